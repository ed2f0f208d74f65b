//! Sessions that continue from another session's state: forks, shadows, and sessions that were kept.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::checkpoint_chain::{CheckpointChain, Link};
use super::contexts::Contexts;
use super::interpreter::{Config, Interpreter};
use super::packages::Package;
use super::records::Record;
use super::{Body, Error};
use crate::execution::StateReport;
use crate::protocol::Profile;

/// Everything that another session needs to continue from the same state.
#[derive(Debug, Clone)]
pub struct Fork<B> {
    config: Config,
    last_execution: u32,
    settings: u32,
    packages: Vec<Package<B>>,
    chain: Vec<Link<B>>,
}

impl<B> PartialEq for Fork<B> {
    fn eq(&self, other: &Self) -> bool {
        let number = |fork: &Self| fork.chain.last().map(|link| link.number);
        (self.last_execution, number(self)) == (other.last_execution, number(other))
    }
}

/// Everything that a later session needs to go on from the newest checkpoint, and to go back to the earlier ones. In JSON, a body is what the
/// driver puts in its place ([`Kept::map`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kept<B> {
    profile: Profile,
    last_execution: u32,
    settings: u32,
    packages: Vec<Package<B>>,
    contexts: Contexts<B>,
    /// The variables that the host has set since that checkpoint, contexts among them.
    set: Vec<String>,
    /// A loss of state that no execution has reported yet.
    untold: Option<StateReport>,
    /// The checkpoint that the state came from, or was last saved as.
    base: Option<u32>,
    chain: Vec<Link<B>>,
    /// True if the driver has the record of an execution after this state.
    #[serde(skip)]
    has_record: bool,
    /// Records of ended executions, the oldest first. The driver writes each by itself.
    #[serde(skip, default = "Vec::new")]
    records: Vec<Arc<Record<B>>>,
}

/// A checkpoint that a session can go back to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct HistoryEntry {
    /// The checkpoint's number. Numbers grow, and each is used once.
    pub number: u32,
    /// The last execution whose effects the checkpoint has; 0 means before the first.
    pub execution: u32,
    /// The checkpoint's size in bytes: all of it, or the changes since the one before.
    pub bytes: f64,
    /// True if the present state is this one, or came from it.
    pub current: bool,
}

/// The parts of an interpreter that a [`Kept`] has, in a form that is quick to compare.
pub(super) type KeptMark = (Option<u32>, usize, Option<u32>, usize, u32, bool);

impl<B> PartialEq for Kept<B> {
    fn eq(&self, other: &Self) -> bool {
        let mark = |kept: &Self| {
            (
                kept.base,
                kept.last_execution,
                kept.chain.last().map(|link| link.number),
            )
        };
        mark(self) == mark(other)
    }
}

impl<B> Kept<B> {
    /// Replaces each body, but drops the [records](Kept::records). `replace` also gets the number of the checkpoint whose body it is, if it is
    /// one's.
    pub fn map<C>(self, mut replace: impl FnMut(Option<u32>, B) -> C) -> Kept<C> {
        let packages = self.packages.into_iter();
        Kept {
            profile: self.profile,
            last_execution: self.last_execution,
            settings: self.settings,
            packages: packages
                .map(|package| package.map(&mut |body| replace(None, body)))
                .collect(),
            contexts: self.contexts.map(&mut |body| replace(None, body)),
            set: self.set,
            untold: self.untold,
            base: self.base,
            chain: self.chain.into_iter().map(|link| link.map(&mut replace)).collect(),
            has_record: self.has_record,
            records: Vec::new(),
        }
    }

    /// The records of ended executions, the oldest first. One that cannot be replayed is [broken](Record::broken), and has nothing else.
    pub fn records(&self) -> &[Arc<Record<B>>] {
        &self.records
    }

    /// Adds the records that an earlier driver has written.
    #[must_use]
    pub fn with_records(mut self, records: Vec<Record<B>>) -> Self {
        self.records = records.into_iter().map(Arc::new).collect();
        self
    }

    /// The profile that Python's helpers follow in this state.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The last execution whose effects the state has.
    pub fn execution(&self) -> u32 {
        let base = self.chain.iter().find(|link| Some(link.number) == self.base);
        base.map_or(0, |link| link.execution)
    }

    /// Returns true if the driver keeps the record that it has ([`RecordChange`](super::RecordChange)): it is of an execution after this state.
    pub fn has_record(&self) -> bool {
        self.has_record
    }

    /// Returns true if there is a state other than that of a fresh guest with its contexts.
    pub fn has_state(&self) -> bool {
        self.base.is_some()
    }
}

impl<B: Body> Kept<B> {
    /// The same without records, because of this. The state is worth more than they are.
    #[must_use]
    pub fn without_records(mut self, why: &str) -> Self {
        for record in self.records.iter_mut().filter(|record| record.broken().is_none()) {
            *record = Arc::new(Record::missing(record.execution(), why));
        }
        self
    }

    /// The checkpoints that the user can go back to, the newest first.
    pub fn history(&self) -> Vec<HistoryEntry> {
        history(&self.chain, self.base)
    }
}

impl<B> Fork<B> {
    /// The number of executions that were requested.
    pub fn execution(&self) -> u32 {
        self.last_execution
    }

    /// The same with another body of the checkpoint, which needs no earlier one.
    #[must_use]
    pub fn with_body(mut self, body: B) -> Self {
        self.chain = self.chain.pop().into_iter().collect();
        if let Some(link) = self.chain.last_mut() {
            link.stand_alone(body);
        }
        self
    }

    /// The same for guests that keep the settings of this checkpoint.
    pub(super) fn with_settings_of(mut self, link: &Link<B>) -> Self {
        self.settings = link.settings;
        self
    }
}

fn history<B: Body>(chain: &[Link<B>], base: Option<u32>) -> Vec<HistoryEntry> {
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let entry = |link: &Link<B>| HistoryEntry {
        number: link.number,
        execution: link.execution,
        bytes: link.body.size() as f64,
        current: Some(link.number) == base,
    };
    chain.iter().rev().map(entry).collect()
}

impl<B: Body> Interpreter<B> {
    /// An interpreter without a guest that continues from another session's state.
    pub(super) fn forked(fork: Fork<B>) -> Self {
        let Fork {
            config,
            last_execution,
            settings,
            packages,
            chain,
        } = fork;
        let mut interpreter = Self::new(config);
        interpreter.last_execution = last_execution;
        interpreter.packages = packages;
        interpreter.checkpoints.settings = settings;
        if let Some(link) = chain.last() {
            interpreter.contexts = link.contexts.clone();
            let what = ("the copy could not be restored", "the original goes on");
            interpreter.checkpoints.given(link.number, link.number, what);
        }
        interpreter.checkpoints.chain = CheckpointChain::from_chain(&chain);
        interpreter
    }

    pub(super) fn fork_of(&self, link: &Link<B>) -> Fork<B> {
        Fork {
            chain: self.checkpoints.chain.chain(link.number).to_vec(),
            ..self.bare_fork()
        }
    }

    /// A fork without a state.
    fn bare_fork(&self) -> Fork<B> {
        Fork {
            config: self.config.clone(),
            last_execution: self.last_execution,
            settings: self.checkpoints.settings,
            packages: self.packages.clone(),
            chain: Vec::new(),
        }
    }

    /// An interpreter that continues from the present state, saves nothing and needs no context. `None` if guests cannot be forked and no
    /// checkpoint holds all of the state.
    pub(super) fn exact_copy(&self) -> Option<Self> {
        if self.records {
            return None;
        }
        let mut fork = if self.forks {
            self.bare_fork()
        } else if self.checkpoints.most_paused.is_some() {
            return None;
        } else {
            self.fork_of(self.checkpoints.exact()?)
        };
        fork.config.limits.checkpoints = false;
        let mut copy = Self::forked(fork);
        copy.contextless = true;
        Some(copy)
    }

    /// All that a later session needs.
    pub(super) fn kept(&self) -> Kept<B> {
        Kept {
            profile: self.config.profile,
            last_execution: self.last_execution,
            settings: self.checkpoints.settings,
            packages: self.packages.clone(),
            contexts: self.contexts.clone(),
            set: self.checkpoints.news().cloned().collect(),
            untold: self.untold_loss.clone(),
            base: self.checkpoints.base,
            chain: self.checkpoints.chain.all().to_vec(),
            has_record: self.has_told_record(),
            records: self.kept_records(),
        }
    }

    /// Continues from a kept session. The interpreter has done nothing yet. If its guests are of another kind than those of the kept session,
    /// `foreign` says why they cannot have its state. Then only contexts and packages are taken, and the next execution names what is lost.
    pub(super) fn resume(&mut self, kept: Kept<B>, foreign: Option<&str>) {
        self.last_execution = kept.last_execution;
        self.packages = kept.packages;
        self.contexts = kept.contexts;
        self.untold_loss = kept.untold;
        self.take_records(kept.records, foreign);
        // The settings of the new session may differ from those that the state has.
        self.checkpoints.settings = kept.settings + 1;
        let newest = kept.chain.iter().map(|link| link.number).max();
        self.checkpoints.last_number = newest.unwrap_or_default();
        if let Some(why) = foreign {
            let base = kept.chain.iter().find(|link| Some(link.number) == kept.base);
            let names = base.map(|link| link.names.clone()).unwrap_or_default();
            let contexts = &self.contexts;
            let loss = StateReport::lost(names.into_iter().filter(|name| !contexts.has(name)), why);
            let loss = base.map(|_| loss);
            // Others than those of pure Python are built for one release.
            self.packages
                .retain(|package| package.wheel.file_name.ends_with("-none-any.whl"));
            self.tell_later(loss);
            return;
        }
        self.checkpoints.chain = CheckpointChain::from_chain(&kept.chain);
        if let Some(base) = kept.base {
            let execution = kept.chain.iter().find(|link| link.number == base);
            let execution = execution.map_or(0, |link| link.execution);
            let (newer, gone): (Vec<_>, Vec<_>) = kept.set.into_iter().partition(|name| self.contexts.has(name));
            self.lacking = newer;
            if !gone.is_empty() {
                let mut loss = StateReport::restored(execution, [], "");
                loss.add_lost(gone, "it was set or written just before the page ended");
                self.tell_later(Some(loss));
            }
            let what = ("the kept state could not be restored", "it stays kept as it is");
            self.checkpoints.given(base, newest.unwrap_or(base), what);
        }
    }

    /// The checkpoints that the user can go back to, the newest first.
    pub(super) fn history(&self) -> Vec<HistoryEntry> {
        history(self.checkpoints.chain.all(), self.checkpoints.base)
    }

    /// A value that differs whenever [`kept`](Self::kept) would.
    pub(super) fn kept_mark(&self) -> KeptMark {
        let chain = self.checkpoints.chain.all();
        let newest = chain.last().map(|link| link.number);
        (
            self.checkpoints.base,
            chain.len(),
            newest,
            self.packages.len(),
            self.contexts_given,
            self.untold_loss.is_some(),
        )
    }

    /// The error for a state of another session that the guest could not take.
    pub(super) fn refused_state(&self, why: &Error) -> Option<Error> {
        let (what, consequence) = self.checkpoints.given?;
        Some(Error::NoCheckpoint(format!("{what} ({why}); {consequence}")))
    }
}
