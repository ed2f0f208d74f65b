//! The state that comes back: when a guest dies, or when the user asks for it. `saves.rs` tells when the state is saved.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use super::checkpoint_chain::{CheckpointChain, Link};
use super::exchange::{Exchange, Job};
use super::files::FileCommand;
use super::interpreter::{Config, Guest, Interpreter};
use super::packages::Package;
use super::saves::{LEAST_SAVE_MS, Saved, Saving};
use super::{Body, Error, Reply, Ticket};
use crate::execution::{LostVariable, StateReport};
use crate::limits::{Limits, MAX_NAMES};

/// Guests that crash before they have finished anything with a state that was restored, until it is given up.
const MOST_CRASHES: u32 = 3;

/// A request of the user's about checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// To have the state saved.
    Checkpoint,
    /// To go back to that of an execution, or to the newest.
    Restore(Option<u32>),
    /// To go back to before the last execution.
    Undo,
    /// To have another session with the same state.
    Fork,
}

/// All that another session needs to go on from the same state.
#[derive(Debug, Clone)]
pub struct Fork<B> {
    config: Config,
    last_execution: u32,
    packages: Vec<Package<B>>,
    chain: Vec<Link<B>>,
}

impl<B> PartialEq for Fork<B> {
    fn eq(&self, other: &Self) -> bool {
        let number = |fork: &Self| fork.chain.last().map(|link| link.number);
        (self.last_execution, number(self)) == (other.last_execution, number(other))
    }
}

/// The part of the state that is safe.
#[derive(Debug)]
pub(super) struct Checkpoints<B> {
    /// True when the state is saved at all.
    pub(super) are_made: bool,
    /// Bytes that a chain of them may take.
    pub(super) max_bytes: f64,
    pub(super) chain: CheckpointChain<B>,
    /// The one that the state comes from, or was last saved as.
    pub(super) base: Option<u32>,
    /// The one that the last execution began with.
    pub(super) before: Option<u32>,
    pub(super) last_number: u32,
    /// The one under way.
    pub(super) saving: Option<Saving<B>>,
    /// True when the guest has saved something that its next checkpoint can build upon.
    pub(super) growing: bool,
    /// A checkpoint that somebody asked for is being restored.
    reverting: Option<Reverting>,
    /// True when nobody has been told yet what the checkpoint that is restored does not hold.
    tells: bool,
    /// True when the state is another session's, and not restored yet.
    forked: bool,
    /// True when something may have changed since the last one was begun.
    pub(super) dirty: bool,
    /// True when the user's code may have run since, where that is not meant to change anything, as a `__repr__`. For going back the
    /// last checkpoint will do; for a copy that is to be exact, the state is saved once more.
    pub(super) looked_at: bool,
    /// The last execution whose effects the state has.
    pub(super) execution: u32,
    /// The variables that the host has set since the last checkpoint was begun.
    pub(super) set_since: Vec<String>,
    /// Time that exchanges took since the last save that did not give way, in milliseconds.
    pub(super) unsaved_ms: f64,
    /// Why the state of this guest could not be saved when that was last tried.
    pub(super) unsavable: Option<String>,
    /// True when nothing has changed since: another try would end in the same way.
    pub(super) vain: bool,
    /// The number of guests in a row that have crashed before they had finished anything with the state that they were given.
    crashes: u32,
    /// True when the guest has finished nothing yet with the state that it was given.
    pub(super) unproven: bool,
    /// A guest died of the last save: nobody waits for another.
    pub(super) failed: bool,
    /// The time that the last one took, in milliseconds.
    pub(super) save_ms: f64,
    /// The time at which the last exchange ended.
    pub(super) idle_since: f64,
}

/// Going back.
#[derive(Debug)]
struct Reverting {
    ticket: Ticket,
    /// The place that it goes to.
    number: u32,
    /// The variables that the host has set since then.
    dropped: Vec<String>,
    /// The origin of the state until then, and what of it is lost if it has to be gone back to.
    base: Option<u32>,
    loss: Option<StateReport>,
}

impl<B> Checkpoints<B> {
    /// None yet.
    pub(super) fn within(limits: &Limits) -> Self {
        Self {
            are_made: limits.checkpoints,
            max_bytes: limits.max_checkpoint_bytes,
            chain: CheckpointChain::default(),
            base: None,
            before: None,
            last_number: 0,
            saving: None,
            growing: false,
            reverting: None,
            tells: false,
            forked: false,
            dirty: false,
            looked_at: false,
            execution: 0,
            set_since: Vec::new(),
            unsaved_ms: 0.0,
            unsavable: None,
            vain: false,
            crashes: 0,
            unproven: false,
            failed: false,
            idle_since: 0.0,
            save_ms: LEAST_SAVE_MS,
        }
    }
}

impl<B: Body> Checkpoints<B> {
    /// An exchange begins.
    pub(super) fn begins(&mut self, job: &Job<B>) {
        match job {
            Job::Execute(_) => self.touched(true),
            Job::Set { .. } | Job::OpenState(..) => self.touched(false),
            Job::File(command) if command.changes().is_some() => self.touched(false),
            Job::Get(_) | Job::CaptureState(_) => self.looked_at = true,
            Job::File(FileCommand::Cell { .. } | FileCommand::Look { .. }) => self.looked_at = true,
            Job::File(_) | Job::List | Job::Install(_) | Job::Restore { .. } => {}
        }
    }

    /// The state may change.
    fn touched(&mut self, executes: bool) {
        if executes {
            self.before = self.at();
        }
        self.dirty = true;
        self.vain = false;
    }

    /// The checkpoint that holds the state exactly as it is.
    fn at(&self) -> Option<u32> {
        let saves_changes = self.saving.as_ref().is_some_and(|saving| !saving.again);
        self.base.filter(|_| !self.dirty && !saves_changes)
    }

    /// An exchange took so long.
    pub(super) fn worked(&mut self, now: f64, ms: f64) {
        self.unsaved_ms += ms;
        self.idle_since = now;
    }

    /// Which one a guest that starts is to become.
    fn wanted(&self) -> Option<u32> {
        self.reverting
            .as_ref()
            .map_or(self.base, |reverting| Some(reverting.number))
    }

    /// Returns true when there is a checkpoint that a guest that starts is to become.
    pub(super) fn is_saved(&self) -> bool {
        self.wanted().is_some()
    }

    /// The host has set a variable.
    pub(super) fn set(&mut self, name: &str) {
        if self.set_since.len() < MAX_NAMES && !self.set_since.iter().any(|known| known == name) {
            self.set_since.push(name.to_owned());
        }
    }

    /// The variables that the host has set since the last complete checkpoint.
    fn news(&self) -> impl Iterator<Item = &String> {
        let saving = self.saving.iter().flat_map(|saving| &saving.news);
        self.set_since.iter().chain(saving)
    }

    /// Takes it: the guest that had it is gone.
    fn take_news(&mut self) -> Vec<String> {
        let mut news = std::mem::take(&mut self.set_since);
        news.extend(self.saving.take().into_iter().flat_map(|saving| saving.news));
        news
    }

    /// The guest is gone, and what it had not saved.
    pub(super) fn guest_ended(&mut self) {
        self.saving = None;
        self.growing = false;
        self.set_since.clear();
        self.dirty = false;
        self.looked_at = false;
        self.unsaved_ms = 0.0;
        self.unsavable = None;
        self.vain = false;
    }

    /// Another guest has taken over, whose state comes from the same checkpoint: its next one stands for itself.
    pub(super) fn promoted(&mut self) {
        self.growing = false;
    }

    /// An exchange is over: the state that the guest was given is good.
    pub(super) fn proved(&mut self) {
        self.unproven = false;
        self.crashes = 0;
    }

    /// There is nothing to go back to: the next guest's state is as before the first execution.
    fn forget(&mut self) {
        self.chain.clear();
        self.base = None;
        self.before = None;
        self.execution = 0;
        self.crashes = 0;
    }

    /// The checkpoint that somebody asks for.
    fn target(&self, ask: Ask) -> Result<u32, Error> {
        let found = match ask {
            Ask::Undo => self.before.and_then(|number| self.chain.find(number)),
            Ask::Restore(execution) => self.chain.newest(execution),
            Ask::Checkpoint | Ask::Fork => None,
        };
        found.map(|link| link.number).ok_or_else(|| {
            let wanted = match ask {
                Ask::Restore(Some(execution)) => format!("of execution {execution}"),
                Ask::Restore(None) => "yet".to_owned(),
                _ => format!("of the state before execution {}", self.execution),
            };
            let mut known: Vec<String> = self.chain.executions().iter().map(u32::to_string).collect();
            known.truncate(20);
            let known = match known[..] {
                [] => "there is none at all".to_owned(),
                _ => format!("the newest are those of {}", known.join(", ")),
            };
            let advice = "call checkpoint() before what may have to be undone";
            Error::NoCheckpoint(format!(
                "there is no checkpoint {wanted}, and variables are kept; {known}; {advice}"
            ))
        })
    }

    /// The checkpoint that holds all of the state as it is.
    fn exact(&self) -> Option<&Link<B>> {
        let link = self.chain.find(self.at()?)?;
        let is_exact = link.lost.is_empty() && self.reverting.is_none() && !self.looked_at && self.saving.is_none();
        is_exact.then_some(link)
    }

    /// The checkpoint of the state as it is.
    fn newest(&self) -> Result<&Link<B>, Error> {
        let saved = self.base.and_then(|number| self.chain.find(number));
        match saved {
            Some(link) if self.at() == Some(link.number) => Ok(link),
            _ if self.failed => Err(Error::NotSerializable(
                "the guest ended while it saved its state; variables are as the next execution says".to_owned(),
            )),
            _ if self.unsavable.is_some() => {
                let why = self.unsavable.as_deref().unwrap_or_default();
                Err(Error::NotSerializable(format!(
                    "the state could not be saved: {why}; variables are kept"
                )))
            }
            Some(link) => Ok(link),
            None => Err(Error::NotInitialized),
        }
    }

    /// The bodies of a checkpoint, each on top of the one before it.
    fn bodies(&self, checkpoint: u32) -> Vec<B> {
        let chain = self.chain.chain(checkpoint);
        chain.iter().map(|link| link.body.clone()).collect()
    }
}

impl<B: Body> Interpreter<B> {
    /// One without a guest that goes on where another is.
    pub(super) fn forked(fork: Fork<B>) -> Self {
        let Fork {
            config,
            last_execution,
            packages,
            chain,
        } = fork;
        let mut interpreter = Self::new(config);
        interpreter.last_execution = last_execution;
        interpreter.packages = packages;
        if let Some(link) = chain.last() {
            interpreter.contexts = link.contexts.clone();
            interpreter.checkpoints.base = Some(link.number);
            interpreter.checkpoints.last_number = link.number;
            interpreter.checkpoints.forked = true;
            interpreter.checkpoints.tells = true;
        }
        interpreter.checkpoints.chain = CheckpointChain::from_chain(&chain);
        interpreter
    }

    /// Does what somebody asks of the checkpoints, now that there is nothing to wait for.
    pub(super) fn answer_about_state(&mut self, now: f64, ticket: Ticket, ask: Ask) {
        let reply = match ask {
            _ if !self.checkpoints.are_made => Err(Error::invalid("checkpoints", "is \"off\": nothing is saved")),
            Ask::Checkpoint => self.checkpoints.newest().map(|link| Reply::State(link.execution)),
            Ask::Fork => self
                .checkpoints
                .newest()
                .map(|link| Reply::Fork(Box::new(self.fork_of(link)))),
            Ask::Restore(_) | Ask::Undo => match self.checkpoints.target(ask) {
                // As after an execution that crashed: what it had done is gone already.
                Ok(number) if self.checkpoints.at() == Some(number) => {
                    let link = self.checkpoints.chain.find(number);
                    self.checkpoints.before = link.and_then(|link| link.before);
                    Ok(Reply::State(self.checkpoints.execution))
                }
                Ok(number) => return self.revert(now, ticket, number),
                Err(error) => Err(error),
            },
        };
        self.resolve(ticket, reply);
    }

    fn fork_of(&self, link: &Link<B>) -> Fork<B> {
        Fork {
            chain: self.checkpoints.chain.chain(link.number).to_vec(),
            ..self.bare_fork()
        }
    }

    /// The same without a state.
    fn bare_fork(&self) -> Fork<B> {
        Fork {
            config: self.config.clone(),
            last_execution: self.last_execution,
            packages: self.packages.clone(),
            chain: Vec::new(),
        }
    }

    /// One that goes on from the state as it is, saves nothing and needs no context. There is none where no checkpoint holds all of the
    /// state, unless guests can be forked.
    pub(super) fn exact_copy(&self) -> Option<Self> {
        let mut fork = if self.forks {
            self.bare_fork()
        } else {
            self.fork_of(self.checkpoints.exact()?)
        };
        fork.config.limits.checkpoints = false;
        let mut copy = Self::forked(fork);
        copy.contextless = true;
        Some(copy)
    }

    /// Returns true when there may be a copy of the state, now or when it is saved.
    pub(super) fn can_be_copied(&self) -> bool {
        self.forks || self.checkpoints.are_saved()
    }

    /// Returns true when its guest may be asked what there is. It is asked before the state is saved, so that whatever that
    /// does to its memory is saved, too.
    pub(super) fn can_be_surveyed(&self) -> bool {
        let is_before_save = self.checkpoints.is_unsaved();
        self.is_at_rest() && (self.forks || is_before_save) // a fork is a copy whenever it is made
    }

    /// Has another guest take over with an earlier state.
    fn revert(&mut self, now: f64, ticket: Ticket, number: u32) {
        let (base, is_new) = (self.checkpoints.base, self.checkpoints.at().is_none());
        let mut dropped = self.checkpoints.chain.set_since(number, base);
        dropped.extend(self.checkpoints.news().cloned());
        let loss = is_new.then(|| self.loss("going back failed", false));
        self.checkpoints.reverting = Some(Reverting {
            ticket,
            number,
            dropped,
            base,
            loss,
        });
        self.checkpoints.tells = true;
        self.end_guest(Guest::Down);
        self.boot(now);
    }

    /// It is not gone back after all: who waits for that is told something else.
    pub(super) fn take_reverting(&mut self) -> Option<Ticket> {
        let Reverting { ticket, base, loss, .. } = self.checkpoints.reverting.take()?;
        self.checkpoints.base = base;
        self.tell_later(loss);
        Some(ticket)
    }

    /// Has the next execution tell of a loss.
    pub(super) fn tell_later(&mut self, loss: Option<StateReport>) {
        if let Some(mut loss) = loss {
            loss.add_earlier(self.untold_loss.take());
            self.untold_loss = Some(loss);
        }
    }

    /// Decides what becomes of the variables now that the guest is gone. Takes their names.
    ///
    /// A state with which one guest after the other crashes at once is given up.
    pub(super) fn loss(&mut self, reason: &str, crashed: bool) -> StateReport {
        let checkpoints = &mut self.checkpoints;
        checkpoints.crashes += u32::from(crashed && checkpoints.unproven);
        if checkpoints.crashes >= MOST_CRASHES {
            checkpoints.forget();
        }
        checkpoints.unproven = false;
        checkpoints.failed |= checkpoints.saving.is_some() && self.exchange.is_none();
        // An execution that is gone with its guest has been taken back already.
        let executed = matches!(
            &self.exchange,
            Some(Exchange {
                job: Job::Execute(_),
                ..
            })
        );
        if !executed || checkpoints.before != checkpoints.base {
            checkpoints.before = None;
        }
        let names = std::mem::take(&mut self.names).into_iter();
        let mut news = self.checkpoints.take_news();
        let contexts = &self.contexts;
        for name in news.extract_if(.., |name| contexts.has(name)) {
            if !self.lacking.contains(&name) {
                self.lacking.push(name);
            }
        }
        let why = self.checkpoints.unsavable.take();
        let why = why.map_or_else(String::new, |why| format!(", and its state could not be saved: {why}"));
        let reason = format!("{reason}{why}");
        let base = self.checkpoints.base;
        let Some(saved) = base.and_then(|number| self.checkpoints.chain.find(number)) else {
            let restored = |name: &String| self.contexts.has(name);
            self.checkpoints.forget();
            let files = news.into_iter().filter(|name| is_file(name));
            return StateReport::lost(names.filter(|name| !restored(name)).chain(files), &reason);
        };
        let reason = format!("it was made after execution {}, and {reason}", saved.execution);
        let newer = names.filter(|name| !(saved.names.contains(name) || self.contexts.has(name)));
        let mut state = StateReport::restored(saved.execution, newer, &reason);
        let reason = format!(
            "it was set or written after execution {}, which is undone",
            saved.execution
        );
        let older = news
            .into_iter()
            .filter(|name| is_file(name) || saved.names.contains(name));
        state.add_lost(older, &reason);
        state.add(saved.lost.iter().cloned());
        state
    }

    /// Gives a fresh guest the state that was saved; false when there is none.
    pub(super) fn restore(&mut self, now: f64) -> bool {
        let Some(checkpoint) = self.checkpoints.wanted() else {
            return false;
        };
        let chain = self.checkpoints.bodies(checkpoint);
        self.begin(now, None, Job::Restore { checkpoint, chain }, None);
        true
    }

    /// The guest has saved its state. One that has memory which its variables no longer need is replaced, when nobody waits for it.
    pub(super) fn saved(&mut self, now: f64, save: Saved, body: Option<B>) {
        match self.checkpoints.saved(now, save, body) {
            Err(what) => self.violation(now, what),
            Ok(true) if self.exchange.is_none() && self.queue.is_empty() => {
                self.checkpoints.tells = true;
                self.end_guest(Guest::Down);
                self.boot(now);
            }
            Ok(_) => {}
        }
    }

    /// It has not: there was something else to do, or there is a `reason`.
    pub(super) fn not_saved(&mut self, now: f64, number: u32, reason: Option<String>) {
        if let Err(what) = self.checkpoints.not_saved(now, number, reason) {
            self.violation(now, what);
        }
    }

    /// The guest has the state that was saved.
    pub(super) fn restored(&mut self, now: f64, lost: Vec<LostVariable>) {
        self.finish_exchange(now);
        let checkpoints = &mut self.checkpoints;
        checkpoints.unsaved_ms = 0.0;
        checkpoints.dirty = false;
        checkpoints.unproven = true;
        checkpoints.forked = false;
        let tells = std::mem::take(&mut checkpoints.tells);
        let reverted = checkpoints.reverting.take();
        if let Some(reverted) = &reverted {
            checkpoints.base = Some(reverted.number);
        }
        let mut state = None;
        if let Some(link) = checkpoints.base.and_then(|number| checkpoints.chain.find(number)) {
            checkpoints.execution = link.execution;
            if tells {
                checkpoints.before = link.before;
            }
            self.names.clone_from(&link.names);
            if reverted.is_some() {
                self.contexts = link.contexts.clone();
            }
            // What the guest could not restore, and what nobody has been told.
            let untold = link.lost.iter().filter(|_| tells).cloned().chain(lost);
            let mut report = StateReport::restored(link.execution, [], "");
            report.add(untold);
            state = report.lost.is_some().then_some(report);
        }
        if let Some(Reverting { ticket, dropped, .. }) = reverted {
            self.lacking.clear();
            self.untold_loss = self.reverted_loss(state, dropped);
            let execution = self.checkpoints.execution;
            return self.resolve(ticket, Ok(Reply::State(execution)));
        }
        self.tell_later(state);
        self.restore_contexts(now); // those that came after the checkpoint
    }

    /// The report of a state that was gone back to: what the checkpoint does not hold, and what the host had set since.
    fn reverted_loss(&self, loss: Option<StateReport>, mut dropped: Vec<String>) -> Option<StateReport> {
        dropped.sort_unstable();
        dropped.dedup();
        if dropped.is_empty() {
            return loss;
        }
        let execution = self.checkpoints.execution;
        let reason =
            format!("it was set or written after execution {execution}, and the state is as it was before that");
        let mut report = loss.unwrap_or_else(|| StateReport::restored(execution, [], ""));
        report.add_lost(dropped, &reason);
        Some(report)
    }

    /// It has not, and never will. Who had asked to go back is told so, and the state of before is restored; otherwise the next
    /// execution says that everything is lost.
    pub(super) fn not_restored_exactly(&mut self, now: f64, why: &Error) {
        self.exchange = None;
        self.end_guest(Guest::Down);
        if self.checkpoints.forked {
            let what = format!("the copy could not be restored ({why}); the original goes on");
            return self.boot_failed(Error::NoCheckpoint(what));
        }
        if let Some(ticket) = self.take_reverting() {
            self.checkpoints.tells = true;
            let what = format!("the checkpoint could not be restored ({why}); the state is as the next execution says");
            self.resolve(ticket, Err(Error::NoCheckpoint(what)));
        } else {
            let base = self.checkpoints.base;
            let saved = base.and_then(|number| self.checkpoints.chain.find(number));
            let names = saved.map(|link| link.names.clone()).unwrap_or_default();
            self.checkpoints.forget();
            let reason = format!("the saved state could not be restored: {why}");
            let contexts = &self.contexts;
            let loss = StateReport::lost(names.into_iter().filter(|name| !contexts.has(name)), &reason);
            self.tell_later(Some(loss));
        }
        self.boot(now);
    }
}

/// Returns true when this is no variable but a file that the host wrote: no variable's name has a space.
fn is_file(name: &str) -> bool {
    name.starts_with("file ")
}
