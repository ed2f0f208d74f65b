//! The packages of a session. The driver finds and fetches them; this guest and every later one gets them.
//!
//! A command that loads packages waits in the queue like any other. The fetch begins as soon as the command is given.

use serde::{Deserialize, Serialize};

use super::commands::Queued;
use super::exchange::Job;
use super::interpreter::Interpreter;
use super::{Body, Effect, Error, GuestEffect, HostEffect, Reply, Ticket};
use crate::limits::MAX_UNPACKED_BYTES;
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

/// A request for packages. It waits in the queue until they are fetched. Then it is the job to install them.
#[derive(Debug)]
pub(super) struct Load<B> {
    pub(super) wanted: Wanted,
    /// `None` until the packages are fetched, or cannot be.
    fetched: Option<Result<(), Error>>,
    packages: Vec<Package<B>>,
}

impl<B> Load<B> {
    pub(super) fn new(wanted: Wanted) -> Self {
        Self {
            wanted,
            fetched: None,
            packages: Vec::new(),
        }
    }

    /// Returns true if the packages are for the execution that comes next. Its `stderr` tells of a failure.
    fn is_quiet(&self) -> bool {
        matches!(self.wanted, Wanted::Modules(_))
    }
}

impl<B: Body> Load<B> {
    /// The effect that gives the guest the packages.
    pub(super) fn install(&self, exchange: u32, timeout_ms: f64) -> GuestEffect<B> {
        let file = |package: &Package<B>| WheelFile {
            file_name: package.wheel.file_name.clone(),
            is_library: package.wheel.is_library,
        };
        let request = Request::Install {
            exchange,
            wheels: self.packages.iter().map(file).collect(),
            max_bytes: MAX_UNPACKED_BYTES,
            timeout_ms,
        };
        GuestEffect::Install(
            request,
            self.packages.iter().map(|package| package.body.clone()).collect(),
        )
    }
}

impl<B: Body> Interpreter<B> {
    /// Takes the packages that the driver fetched, or the error.
    pub(super) fn fetched(&mut self, ticket: Ticket, result: Result<Vec<Package<B>>, Error>) {
        let queued = self.queue.iter_mut().find(|(waiting, _)| *waiting == ticket);
        if let Some((_, Queued::Load(load))) = queued {
            load.fetched = Some(result.map(|packages| load.packages = packages));
        }
    }

    /// Returns true if the next command waits for packages that are not fetched yet.
    pub(super) fn waits_for_packages(&self) -> bool {
        matches!(self.front(), Some(Queued::Load(load)) if load.fetched.is_none())
    }

    /// Gives the guest the fetched packages.
    pub(super) fn load(&mut self, now: f64, ticket: Ticket, mut load: Load<B>) {
        if let Some(Err(error)) = load.fetched.take() {
            return self.not_loaded(ticket, &load, error);
        }
        // Another command may have loaded some of them meanwhile.
        load.packages
            .retain(|new| !self.packages.iter().any(|old| is_same(old, new)));
        if load.packages.is_empty() {
            self.resolve(ticket, Ok(Reply::Packages(Vec::new())));
        } else {
            self.begin(now, Some(ticket), Job::Load(load), None);
        }
    }

    /// Gives a fresh guest the session's packages. Returns false if there are none.
    pub(super) fn install_again(&mut self, now: f64) -> bool {
        if self.packages.is_empty() {
            return false;
        }
        let mut load = Load::new(Wanted::Requirements(Vec::new()));
        load.packages.clone_from(&self.packages);
        self.begin(now, None, Job::Load(load), None);
        true
    }

    /// Records that the guest has the packages that it was given.
    pub(super) fn installed(&mut self, now: f64, ticket: Option<Ticket>, load: Load<B>) {
        match ticket {
            None => self.settle(now),
            Some(ticket) => {
                let names = load.packages.iter().map(|package| package.wheel.clone()).collect();
                self.packages.extend(load.packages);
                self.resolve(ticket, Ok(Reply::Packages(names)));
            }
        }
    }

    /// Tells the caller that packages were not loaded, or the `stderr` of the code that needs them.
    pub(super) fn not_loaded(&mut self, ticket: Ticket, load: &Load<B>, error: Error) {
        if !load.is_quiet() {
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
            let is_quiet = matches!(&exchange.job, Job::Load(load) if load.is_quiet());
            exchange.ticket.is_some() && !is_quiet
        })
    }
}

fn is_same<B>(one: &Package<B>, other: &Package<B>) -> bool {
    normalized(&one.wheel.name) == normalized(&other.wheel.name)
}
