//! When the state is saved, and what comes back: when a guest dies, or when the user asks for it.
//!
//! A save is no turn: the guest works at it while it has nothing else to do, and gives up when a request comes in. A command
//! waits for it only when much is at stake: when the work that would be lost took [`WORTH`] times as long as a save does. So
//! saving takes a twentieth of the time at most, and a guest that is never idle is saved as well.

use super::history::{History, Link};
use super::turn::Task;
use super::{Body, Encoded, Error, Guest, Reply, Session, Ticket};
use crate::execution::{LostVariable, StateReport};
use crate::limits::Limits;
use crate::protocol::Request;

/// How much longer than a save the work took that is worth waiting for it.
const WORTH: f64 = 20.0;
/// How long a save takes, in milliseconds, at least, and before one was seen.
const LEAST_SAVE_MS: f64 = 20.0;
/// How long there has been nothing to do before a save is begun, in milliseconds.
const IDLE_MS: f64 = 50.0;
/// How long a guest may take to save what somebody waits for, in milliseconds.
const MAX_SAVE_MS: f64 = 20_000.0;

/// What a user asks of the checkpoints.
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

/// What another session needs to go on from the same state.
#[derive(Debug, Clone)]
pub struct Fork<B> {
    limits: Limits,
    host_functions: Vec<String>,
    last_execution: u32,
    chain: Vec<Link<B>>,
}

impl<B> PartialEq for Fork<B> {
    fn eq(&self, other: &Self) -> bool {
        let number = |fork: &Self| fork.chain.last().map(|link| link.number);
        (self.last_execution, number(self)) == (other.last_execution, number(other))
    }
}

/// What of the state is safe.
#[derive(Debug)]
pub(super) struct Checkpoints<B> {
    history: History<B>,
    /// The one that the state comes from, or was last saved as.
    base: Option<u32>,
    /// The one that the last execution began with.
    before: Option<u32>,
    last_number: u32,
    /// The one under way.
    saving: Option<Saving<B>>,
    /// Whether the guest has saved something that its next checkpoint can build upon.
    growing: bool,
    /// Who asked for which to be restored, and what the state came from until then.
    reverting: Option<(Ticket, u32, Option<u32>)>,
    /// Whether something may have changed since the last one was begun.
    pub(super) dirty: bool,
    /// The last execution whose effects the state has.
    pub(super) execution: u32,
    /// The variables that the host has set since the last checkpoint was begun.
    set_since: Vec<String>,
    /// Time that turns took since the last checkpoint was begun, in milliseconds.
    unsaved_ms: f64,
    /// Why the state of this guest cannot be saved.
    unsavable: Option<String>,
    /// Whether the guest has done nothing yet with the state that it was given.
    pub(super) unproven: bool,
    /// A guest died of the last save: nobody waits for another.
    failed: bool,
    /// How long the last one took, in milliseconds.
    save_ms: f64,
    /// When the last turn ended.
    idle_since: f64,
}

/// A checkpoint under way.
#[derive(Debug)]
struct Saving<B> {
    number: u32,
    full: bool,
    execution: u32,
    names: Vec<String>,
    context: Option<Encoded<B>>,
    before: Option<u32>,
    /// What the host had set after the checkpoint before.
    news: Vec<String>,
    begun_at: f64,
}

impl<B> Default for Checkpoints<B> {
    fn default() -> Self {
        Self {
            history: History::default(),
            base: None,
            before: None,
            last_number: 0,
            saving: None,
            growing: false,
            reverting: None,
            dirty: false,
            execution: 0,
            set_since: Vec::new(),
            unsaved_ms: 0.0,
            unsavable: None,
            unproven: false,
            failed: false,
            idle_since: 0.0,
            save_ms: LEAST_SAVE_MS,
        }
    }
}

impl<B: Body> Checkpoints<B> {
    /// A turn begins that may change something.
    pub(super) fn touched(&mut self, executes: bool) {
        if executes {
            self.before = self.at();
        }
        self.dirty = true;
    }

    /// The checkpoint that holds the state exactly as it is.
    fn at(&self) -> Option<u32> {
        self.base.filter(|_| !self.dirty && self.saving.is_none())
    }

    /// A turn that may have changed something took so long.
    pub(super) fn worked(&mut self, now: f64, ms: f64) {
        self.unsaved_ms += ms;
        self.idle_since = now;
    }

    /// Which one a guest that starts is to become.
    fn wanted(&self) -> Option<u32> {
        self.reverting.map_or(self.base, |(_, number, _)| Some(number))
    }

    /// Whether there is a checkpoint that a guest that starts is to become.
    pub(super) fn is_saved(&self) -> bool {
        self.wanted().is_some()
    }

    /// The host has set a variable.
    pub(super) fn set(&mut self, name: &str) {
        if !self.set_since.iter().any(|known| known == name) {
            self.set_since.push(name.to_owned());
        }
    }

    /// What the host has set since the last complete checkpoint.
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
        self.unsaved_ms = 0.0;
        self.unsavable = None;
    }

    /// Who waits for a checkpoint to be restored is told something else.
    pub(super) fn take_reverting(&mut self) -> Option<Ticket> {
        let (ticket, _, base) = self.reverting.take()?;
        self.base = base;
        Some(ticket)
    }

    fn forget(&mut self) {
        self.history.clear();
        self.base = None;
    }

    fn is_worth_waiting(&self) -> bool {
        self.unsaved_ms >= WORTH * self.save_ms
    }

    /// The checkpoint that somebody asks for.
    fn target(&self, ask: Ask) -> Result<u32, Error> {
        let found = match ask {
            Ask::Undo => self.before.and_then(|number| self.history.find(number)),
            Ask::Restore(execution) => self.history.newest(execution),
            Ask::Checkpoint | Ask::Fork => None,
        };
        found.map(|link| link.number).ok_or_else(|| {
            let wanted = match ask {
                Ask::Restore(Some(execution)) => format!("of execution {execution}"),
                Ask::Restore(None) => "yet".to_owned(),
                _ => format!("of the state before execution {}", self.execution),
            };
            let mut known: Vec<String> = self.history.executions().iter().map(u32::to_string).collect();
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
}

impl<B: Body> Session<B> {
    /// A session without a guest that goes on where another is.
    pub fn forked(fork: Fork<B>) -> Self {
        let Fork {
            limits,
            host_functions,
            last_execution,
            chain,
        } = fork;
        let mut session = Self::new(limits, host_functions);
        session.last_execution = last_execution;
        if let Some(link) = chain.last() {
            session.context.clone_from(&link.context);
            session.checkpoints.base = Some(link.number);
            session.checkpoints.last_number = link.number;
        }
        session.checkpoints.history = History::from_chain(&chain);
        session
    }

    fn saves(&self) -> bool {
        self.limits.checkpoints && self.checkpoints.unsavable.is_none()
    }

    /// Whether the next command has to wait until the state is saved.
    pub(super) fn waits_for_save(&self) -> bool {
        let checkpoints = &self.checkpoints;
        let asked = matches!(self.queue.front(), Some((_, Task::State(_))));
        let unsaved = checkpoints.dirty || checkpoints.saving.is_some();
        self.saves() && !checkpoints.failed && unsaved && (asked || checkpoints.is_worth_waiting())
    }

    /// Does what somebody asks of the checkpoints, now that there is nothing to wait for.
    pub(super) fn do_state(&mut self, now: f64, ticket: Ticket, ask: Ask) {
        let reply = match ask {
            _ if !self.limits.checkpoints => Err(Error::invalid("checkpoints", "is \"off\": nothing is saved")),
            Ask::Checkpoint => self.checkpointed().map(|link| Reply::State(link.execution)),
            Ask::Fork => self.checkpointed().map(|link| {
                Reply::Fork(Box::new(Fork {
                    limits: self.limits.clone(),
                    host_functions: self.host_functions.clone(),
                    last_execution: self.last_execution,
                    chain: self.checkpoints.history.chain(link.number).to_vec(),
                }))
            }),
            Ask::Restore(_) | Ask::Undo => match self.checkpoints.target(ask) {
                Ok(number) if self.checkpoints.at() == Some(number) => Ok(Reply::State(self.checkpoints.execution)),
                Ok(number) => return self.revert(now, ticket, number),
                Err(error) => Err(error),
            },
        };
        self.resolve(ticket, reply);
    }

    /// The checkpoint of the state as it is.
    fn checkpointed(&self) -> Result<&Link<B>, Error> {
        let checkpoints = &self.checkpoints;
        let saved = checkpoints.base.and_then(|number| checkpoints.history.find(number));
        match saved {
            _ if checkpoints.failed => Err(Error::NotSerializable(
                "the guest ended while it saved its state; variables are as the next execution says".to_owned(),
            )),
            _ if checkpoints.unsavable.is_some() => {
                let why = checkpoints.unsavable.as_deref().unwrap_or_default();
                Err(Error::NotSerializable(format!(
                    "the state could not be saved: {why}; variables are kept"
                )))
            }
            Some(link) => Ok(link),
            None => Err(Error::NotInitialized),
        }
    }

    /// Has another guest take over with an earlier state.
    fn revert(&mut self, now: f64, ticket: Ticket, number: u32) {
        self.checkpoints.reverting = Some((ticket, number, self.checkpoints.base));
        self.end_guest(Guest::Down);
        self.boot(now);
    }

    /// When a save is to begin, if nothing happens until then.
    pub(super) fn saves_at(&self) -> Option<f64> {
        self.can_save().then_some(self.checkpoints.idle_since + IDLE_MS)
    }

    fn can_save(&self) -> bool {
        let idle = self.guest == Guest::Up && self.turn.is_none() && (self.queue.is_empty() || self.waits_for_save());
        self.saves() && idle && self.checkpoints.dirty && self.checkpoints.saving.is_none()
    }

    /// When a guest that saves what somebody waits for has taken too long.
    pub(super) fn save_ends_at(&self) -> Option<f64> {
        let saving = self.checkpoints.saving.as_ref().filter(|_| self.turn.is_none());
        saving.map(|saving| saving.begun_at + MAX_SAVE_MS)
    }

    /// Ends a guest that takes too long to save.
    pub(super) fn check_save(&mut self, now: f64) {
        if self.save_ends_at().is_some_and(|ends_at| now >= ends_at) {
            self.checkpoints.failed = true;
            self.guest_gone(now, Error::GuestLost("it did not finish saving its state".to_owned()));
        }
    }

    /// Begins a checkpoint when there is nothing else to do, or too much at stake.
    pub(super) fn save(&mut self, now: f64) {
        let due = self.waits_for_save() || now >= self.checkpoints.idle_since + IDLE_MS;
        if !(due && self.can_save()) {
            return;
        }
        let checkpoints = &mut self.checkpoints;
        checkpoints.dirty = false;
        checkpoints.last_number += 1;
        let number = checkpoints.last_number;
        let full = !checkpoints.growing || checkpoints.history.is_long();
        checkpoints.saving = Some(Saving {
            number,
            full,
            execution: checkpoints.execution,
            names: self.names.clone(),
            context: self.context.clone(),
            before: checkpoints.before,
            news: std::mem::take(&mut checkpoints.set_since),
            begun_at: now,
        });
        let request = Request::Save {
            checkpoint: number,
            full,
        };
        self.post(request, None);
    }

    /// The guest has saved its state. A `spent` one has memory that its variables no longer need.
    pub(super) fn saved(
        &mut self,
        now: f64,
        number: u32,
        full: bool,
        body: Option<B>,
        lost: Vec<LostVariable>,
        spent: bool,
    ) {
        let Some((saving, body)) = self.take_saving(number).zip(body) else {
            return self.violation(now, "a checkpoint that nobody asked for");
        };
        let link = Link {
            number,
            full: full || saving.full,
            execution: saving.execution,
            names: saving.names,
            lost,
            context: saving.context,
            before: saving.before,
            body,
        };
        let recycles = spent && link.lost.is_empty();
        let checkpoints = &mut self.checkpoints;
        if !checkpoints.history.keep(link, self.limits.max_checkpoint_bytes) {
            checkpoints.base = None;
            checkpoints.unsavable = Some("it was too large".to_owned());
            return;
        }
        checkpoints.base = Some(number);
        checkpoints.growing = true;
        checkpoints.save_ms = LEAST_SAVE_MS.max(now - saving.begun_at);
        checkpoints.failed = false;
        if !checkpoints.dirty {
            checkpoints.unsaved_ms = 0.0;
        }
        if recycles && self.turn.is_none() && self.queue.is_empty() && !self.checkpoints.dirty {
            self.end_guest(Guest::Down);
            self.boot(now);
        }
    }

    /// It has not: there was something else to do, or there is a `reason`.
    pub(super) fn not_saved(&mut self, now: f64, number: u32, reason: Option<String>) {
        let Some(saving) = self.take_saving(number) else {
            return self.violation(now, "a checkpoint that nobody asked for");
        };
        self.checkpoints.dirty = true;
        self.checkpoints.set_since.extend(saving.news);
        self.checkpoints.unsavable = reason.map(|why| why.chars().take(300).collect());
    }

    fn take_saving(&mut self, number: u32) -> Option<Saving<B>> {
        let saving = &mut self.checkpoints.saving;
        saving.take_if(|saving| saving.number == number)
    }

    /// What becomes of the variables now that the guest is gone. Takes their names.
    ///
    /// A guest that crashed before it had done anything with the state that was restored would crash again: then that state is
    /// given up.
    pub(super) fn loss(&mut self, reason: &str, crashed: bool) -> StateReport {
        if crashed && self.checkpoints.unproven {
            self.checkpoints.forget();
        }
        self.checkpoints.unproven = false;
        let names = std::mem::take(&mut self.names).into_iter();
        let mut news = self.checkpoints.take_news();
        self.context_is_new = news.iter().any(|name| name == "context");
        news.retain(|name| name != "context");
        let unsavable = self.checkpoints.unsavable.take();
        let base = self.checkpoints.base;
        let Some(saved) = base.and_then(|number| self.checkpoints.history.find(number)) else {
            let restored = |name: &String| self.context.is_some() && name == "context";
            let why = unsavable.map(|why| format!(", and its state could not be saved: {why}"));
            let reason = format!("{reason}{}", why.unwrap_or_default());
            return StateReport::lost(names.filter(|name| !restored(name)), &reason);
        };
        let reason = format!("it was made after execution {}, and {reason}", saved.execution);
        let newer = names.filter(|name| !(saved.names.contains(name) || name == "context" && self.context.is_some()));
        let mut state = StateReport::restored(saved.execution, newer, &reason);
        let reason = format!(
            "setVariable changed it after execution {}, which is undone",
            saved.execution
        );
        let older = news.into_iter().filter(|name| saved.names.contains(name));
        state.add_lost(older, &reason);
        state.add(saved.lost.iter().cloned());
        state
    }

    /// Gives a fresh guest the state that was saved; false when there is none.
    pub(super) fn restore(&mut self, now: f64) -> bool {
        let Some(checkpoint) = self.checkpoints.wanted() else {
            return false;
        };
        self.begin(now, None, Task::Restore { checkpoint });
        true
    }

    /// The bodies of a checkpoint, each on top of the one before it.
    pub(super) fn chain(&self, checkpoint: u32) -> Vec<B> {
        let chain = self.checkpoints.history.chain(checkpoint);
        chain.iter().map(|link| link.body.clone()).collect()
    }

    /// The guest has the state that was saved.
    pub(super) fn restored(&mut self, now: f64, lost: Vec<LostVariable>) {
        self.finish_turn(now);
        let checkpoints = &mut self.checkpoints;
        checkpoints.unsaved_ms = 0.0;
        checkpoints.dirty = false;
        checkpoints.unproven = true;
        let reverted = checkpoints.reverting.take();
        checkpoints.base = reverted.map_or(checkpoints.base, |(_, number, _)| Some(number));
        if let Some(link) = checkpoints.base.and_then(|number| checkpoints.history.find(number)) {
            checkpoints.execution = link.execution;
            checkpoints.before = link.before;
            self.names.clone_from(&link.names);
            if reverted.is_some() {
                self.context.clone_from(&link.context);
                self.untold_loss = None;
            }
            // What the guest could not restore, and what whoever asked for this has not been told.
            let untold = link.lost.iter().filter(|_| reverted.is_some()).cloned().chain(lost);
            let untold: Vec<_> = untold.collect();
            if !untold.is_empty() {
                let state = self.untold_loss.take();
                let mut state = state.unwrap_or_else(|| StateReport::restored(link.execution, [], ""));
                state.add(untold);
                self.untold_loss = Some(state);
            }
        }
        if let Some((ticket, ..)) = reverted {
            let execution = self.checkpoints.execution;
            self.context_is_new = false;
            return self.resolve(ticket, Ok(Reply::State(execution)));
        }
        // `initialize` came after the checkpoint.
        if std::mem::take(&mut self.context_is_new) {
            self.restore_context(now);
        }
    }

    /// It has not, and never will: the next execution says that everything is lost. What was only to be tried is.
    pub(super) fn not_restored_exactly(&mut self, now: f64, why: &Error) {
        self.turn = None;
        self.end_guest(Guest::Down);
        if let Some(ticket) = self.checkpoints.take_reverting() {
            let what = format!("the checkpoint could not be restored ({why}); variables are as before");
            self.resolve(ticket, Err(Error::NoCheckpoint(what)));
        } else {
            let base = self.checkpoints.base;
            let saved = base.and_then(|number| self.checkpoints.history.find(number));
            let names = saved.map(|link| link.names.clone()).unwrap_or_default();
            self.checkpoints.forget();
            let reason = format!("the saved state could not be restored: {why}");
            let loss = StateReport::lost(names.into_iter().filter(|name| name != "context"), &reason);
            self.untold_loss = Some(loss);
        }
        self.boot(now);
    }
}
