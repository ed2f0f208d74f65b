//! The packages of a session. The driver finds and fetches them; this guest and every later one gets them.
//!
//! A command that loads packages waits in the queue like any other. The fetch begins as soon as the command is given.

use serde::{Deserialize, Serialize};

use super::commands::Queued;
use super::exchange::Job;
use super::interpreter::Interpreter;
use super::{Body, Effect, Error, HostEffect, Reply, Ticket};
use crate::limits::{MAX_UNPACKED_BYTES, VALUE_TIMEOUT_MS};
use crate::packages::{Wheel, normalized};
use crate::protocol::{Request, Stream, WheelFile};

/// The packages to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Packages by requirement, with the packages that these require.
    Requirements(Vec<String>),
    /// The packages that hold these modules, as far as the driver knows them.
    Modules(Vec<String>),
}

/// A package and its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Package<B> {
    /// The wheel's name, version and address.
    pub wheel: Wheel,
    /// The wheel's bytes, verified by the driver.
    pub body: B,
}

impl<B> Package<B> {
    /// Replaces the bytes.
    pub(super) fn map<C>(self, replace: &mut impl FnMut(B) -> C) -> Package<C> {
        Package {
            wheel: self.wheel,
            body: replace(self.body),
        }
    }
}

/// A request for packages in the queue.
#[derive(Debug)]
pub(super) struct Load<B> {
    pub(super) wanted: Wanted,
    fetched: Option<Result<Vec<Package<B>>, Error>>,
}

impl<B> Load<B> {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self { wanted, fetched: None }
    }

    /// Returns true if the packages are for the execution that comes next. Its `stderr` tells of a failure.
    fn is_quiet(&self) -> bool {
        matches!(self.wanted, Wanted::Modules(_))
    }
}

/// A job: packages to install in the guest.
#[derive(Debug)]
pub(super) struct Install<B> {
    packages: Vec<Package<B>>,
    is_quiet: bool,
}

impl<B: Body> Install<B> {
    pub(super) fn request(&self, exchange: u32) -> Request {
        let file = |package: &Package<B>| WheelFile {
            file_name: package.wheel.file_name.clone(),
            is_library: package.wheel.is_library,
        };
        Request::Install {
            exchange,
            wheels: self.packages.iter().map(file).collect(),
            max_bytes: MAX_UNPACKED_BYTES,
            timeout_ms: VALUE_TIMEOUT_MS,
        }
    }

    pub(super) fn bodies(&self) -> Vec<B> {
        self.packages.iter().map(|package| package.body.clone()).collect()
    }
}

impl<B: Body> Interpreter<B> {
    /// Takes the packages that the driver fetched, or the error.
    pub(super) fn fetched(&mut self, ticket: Ticket, result: Result<Vec<Package<B>>, Error>) {
        let queued = self.queue.iter_mut().find(|(waiting, _)| *waiting == ticket);
        if let Some((_, Queued::Load(load))) = queued {
            load.fetched = Some(result);
        }
    }

    /// Returns true if the next command waits for packages that are not fetched yet.
    pub(super) fn waits_for_packages(&self) -> bool {
        matches!(self.front(), Some(Queued::Load(load)) if load.fetched.is_none())
    }

    /// Gives the guest the fetched packages.
    pub(super) fn load(&mut self, now: f64, ticket: Ticket, load: Load<B>) {
        let is_quiet = load.is_quiet();
        match load.fetched.unwrap_or_else(|| Ok(Vec::new())) {
            Ok(mut packages) => {
                // Another command may have loaded some of them meanwhile.
                packages.retain(|new| !self.packages.iter().any(|old| is_same(old, new)));
                if packages.is_empty() {
                    self.resolve(ticket, Ok(Reply::Packages(Vec::new())));
                } else {
                    let install = Job::Install(Install { packages, is_quiet });
                    self.begin(now, Some(ticket), install, None);
                }
            }
            Err(error) => self.not_loaded(ticket, is_quiet, error),
        }
    }

    /// Gives a fresh guest the session's packages. Returns false if there are none.
    pub(super) fn install_again(&mut self, now: f64) -> bool {
        let packages = self.packages.clone();
        if packages.is_empty() {
            return false;
        }
        let install = Install {
            packages,
            is_quiet: false,
        };
        self.begin(now, None, Job::Install(install), None);
        true
    }

    /// Records that the guest has the packages that it was given.
    pub(super) fn installed(&mut self, now: f64, ticket: Option<Ticket>, install: Install<B>) {
        let Install { packages, .. } = install;
        match ticket {
            None => self.settle(now),
            Some(ticket) => {
                let names = packages.iter().map(|package| package.wheel.clone()).collect();
                self.packages.extend(packages);
                self.resolve(ticket, Ok(Reply::Packages(names)));
            }
        }
    }

    /// Handles the guest's refusal to install packages.
    pub(super) fn not_installed(&mut self, ticket: Option<Ticket>, install: &Install<B>, message: String) {
        if let Some(ticket) = ticket {
            self.not_loaded(ticket, install.is_quiet, Error::Integrity(message));
        }
    }

    /// Tells the caller of the error, or the `stderr` of the code that needs the packages.
    fn not_loaded(&mut self, ticket: Ticket, is_quiet: bool, error: Error) {
        if !is_quiet {
            return self.resolve(ticket, Err(error));
        }
        if let Some((ticket, Queued::Job(Job::Execute(execution)))) = self.queue.front_mut() {
            let text = format!("sandglass: a package that this code imports was not loaded: {error}\n");
            execution.note(&text);
            let print = HostEffect::Print(*ticket, Stream::Stderr, text);
            self.effects.push(Effect::Host(print));
        }
        self.resolve(ticket, Ok(Reply::Packages(Vec::new())));
    }

    /// Takes the execution that would run next, if only its own packages come before it.
    pub(super) fn take_next_execution(&mut self) -> Option<(Ticket, Job<B>)> {
        if matches!(self.front(), Some(Queued::Load(load)) if load.is_quiet())
            && let Some((ticket, _)) = self.queue.pop_front()
        {
            self.resolve(ticket, Ok(Reply::Packages(Vec::new())));
        }
        if !matches!(self.front(), Some(Queued::Job(Job::Execute(_)))) {
            return None;
        }
        match self.queue.pop_front()? {
            (ticket, Queued::Job(job)) => Some((ticket, job)),
            _ => None,
        }
    }

    /// Returns true if the guest works on a command of its own, not on packages for an execution.
    pub(super) fn runs_for_somebody(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| {
            let is_quiet = matches!(&exchange.job, Job::Install(install) if install.is_quiet);
            exchange.ticket.is_some() && !is_quiet
        })
    }
}

fn is_same<B>(one: &Package<B>, other: &Package<B>) -> bool {
    normalized(&one.wheel.name) == normalized(&other.wheel.name)
}
