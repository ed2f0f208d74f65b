//! When the state is saved, and what comes back: when a guest dies, or when the user asks for it.
//!
//! A save is no turn: the guest works at it while it has nothing else to do, and gives up when a request comes in. A command
//! waits for it only when much is at stake: when the work that would be lost took [`WORTH`] times as long as a save does. So
//! saving takes a twentieth of the time at most, and a guest that is never idle is saved as well.

use super::contexts::Contexts;
use super::history::{History, Kept, Link};
use super::packages::Package;
use super::turn::{Task, Turn};
use super::{Body, Error, Guest, Reply, Session, Ticket};
use crate::execution::{LostVariable, StateReport};
use crate::limits::{Limits, MAX_NAMES};
use crate::protocol::{Profile, Request};

/// How much longer than a save the work took that is worth waiting for it.
const WORTH: f64 = 20.0;
/// How long a save takes, in milliseconds, at least, and before one was seen.
const LEAST_SAVE_MS: f64 = 20.0;
/// How long there has been nothing to do before a save is begun, in milliseconds.
const IDLE_MS: f64 = 50.0;
/// Guests that crash before they have finished anything with a state that was restored, until it is given up.
const MOST_CRASHES: u32 = 3;
/// How long somebody may wait for a guest that saves, in milliseconds.
const MAX_SAVE_MS: f64 = 20_000.0;
/// How much longer, when that is over: the page may have been busy, and what the guest sent may be waiting in a queue.
const LATE_MS: f64 = 500.0;

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
    profile: Profile,
    output_fields: Vec<String>,
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
    /// A checkpoint that somebody asked for is being restored.
    reverting: Option<Reverting>,
    /// Whether nobody has been told yet what the checkpoint that is restored does not hold.
    tells: bool,
    /// Whether the state is another session's, and not restored yet.
    forked: bool,
    /// Whether something may have changed since the last one was begun.
    pub(super) dirty: bool,
    /// Whether the user's code may have run since, where that is not meant to change anything, as a `__repr__`. For going back the
    /// last checkpoint will do; for a copy that is to be exact, the state is saved once more.
    pub(super) looked_at: bool,
    /// The last execution whose effects the state has.
    pub(super) execution: u32,
    /// The variables that the host has set since the last checkpoint was begun.
    set_since: Vec<String>,
    /// Time that turns took since the last save that did not give way, in milliseconds.
    unsaved_ms: f64,
    /// Why the state of this guest could not be saved when that was last tried.
    unsavable: Option<String>,
    /// Whether nothing has changed since: another try would end in the same way.
    vain: bool,
    /// How many guests in a row have crashed before they had finished anything with the state that they were given.
    crashes: u32,
    /// Whether the guest has finished nothing yet with the state that it was given.
    pub(super) unproven: bool,
    /// A guest died of the last save: nobody waits for another.
    failed: bool,
    /// How long the last one took, in milliseconds.
    save_ms: f64,
    /// When the last turn ended.
    idle_since: f64,
}

/// Going back.
#[derive(Debug)]
struct Reverting {
    ticket: Ticket,
    /// Where to.
    number: u32,
    /// What the host has set since then.
    dropped: Vec<String>,
    /// What the state came from until then, and what of it is lost if it has to be gone back to.
    base: Option<u32>,
    loss: Option<StateReport>,
}

/// A checkpoint under way.
#[derive(Debug)]
struct Saving<B> {
    number: u32,
    full: bool,
    /// Whether nothing has changed since the one before but what looking at it may have.
    again: bool,
    execution: u32,
    names: Vec<String>,
    contexts: Contexts<B>,
    before: Option<u32>,
    /// What the host had set after the checkpoint before.
    news: Vec<String>,
    begun_at: f64,
    /// Since when somebody waits for it.
    awaited_since: Option<f64>,
    /// When that was first found to be too long.
    late_since: Option<f64>,
    /// Whether the guest was sent something else meanwhile, for which it may give up.
    overtaken: bool,
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
    /// A turn begins that may change something.
    pub(super) fn touched(&mut self, executes: bool) {
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

    /// A turn took so long.
    pub(super) fn worked(&mut self, now: f64, ms: f64) {
        self.unsaved_ms += ms;
        self.idle_since = now;
    }

    /// Whether the state as it is, is still to be saved.
    pub(super) fn is_unsaved(&self) -> bool {
        self.dirty && self.saving.is_none()
    }

    /// Which one a guest that starts is to become.
    fn wanted(&self) -> Option<u32> {
        self.reverting
            .as_ref()
            .map_or(self.base, |reverting| Some(reverting.number))
    }

    /// Whether there is a checkpoint that a guest that starts is to become.
    pub(super) fn is_saved(&self) -> bool {
        self.wanted().is_some()
    }

    /// The host has set a variable.
    pub(super) fn set(&mut self, name: &str) {
        if self.set_since.len() < MAX_NAMES && !self.set_since.iter().any(|known| known == name) {
            self.set_since.push(name.to_owned());
        }
    }

    /// What the host has set since the last complete checkpoint.
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

    /// A save that took so long failed: what was saved before stays, and the next turn may change what is in the way.
    fn failed_to_save(&mut self, took: f64, news: Vec<String>, why: String) {
        self.unsavable = Some(why);
        self.vain = !self.dirty;
        self.growing = false;
        self.save_ms = LEAST_SAVE_MS.max(took);
        self.unsaved_ms = 0.0;
        self.gave_way(news);
    }

    /// What was to be saved is not.
    fn gave_way(&mut self, news: Vec<String>) {
        self.dirty = true;
        self.set_since.extend(news);
    }

    /// The guest was sent something.
    pub(super) fn sent(&mut self, request: &Request) {
        if let Some(saving) = &mut self.saving {
            saving.overtaken |= !matches!(request, Request::Save { .. });
        }
    }

    /// A turn is over: the state that the guest was given is good.
    pub(super) fn proved(&mut self) {
        self.unproven = false;
        self.crashes = 0;
    }

    /// There is nothing to go back to: the next guest's state is as before the first execution.
    fn forget(&mut self) {
        self.history.clear();
        self.base = None;
        self.before = None;
        self.execution = 0;
        self.crashes = 0;
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
            profile,
            output_fields,
            last_execution,
            packages,
            chain,
        } = fork;
        let mut session = Self::new(limits, host_functions).with_profile(profile, output_fields);
        session.last_execution = last_execution;
        session.packages = packages;
        if let Some(link) = chain.last() {
            session.contexts = link.contexts.clone();
            session.checkpoints.base = Some(link.number);
            session.checkpoints.last_number = link.number;
            session.checkpoints.forked = true;
            session.checkpoints.tells = true;
        }
        session.checkpoints.history = History::from_chain(&chain);
        session
    }

    pub(super) fn saves(&self) -> bool {
        self.limits.checkpoints && !self.checkpoints.vain
    }

    /// Whether the next command has to wait until the state is saved.
    pub(super) fn waits_for_save(&self) -> bool {
        let checkpoints = &self.checkpoints;
        let asked = matches!(self.queue.front(), Some((_, Task::State(Ask::Checkpoint | Ask::Fork))));
        let unsaved = checkpoints.dirty || checkpoints.saving.is_some();
        self.saves() && !checkpoints.failed && unsaved && (asked || checkpoints.is_worth_waiting())
    }

    /// Does what somebody asks of the checkpoints, now that there is nothing to wait for.
    pub(super) fn do_state(&mut self, now: f64, ticket: Ticket, ask: Ask) {
        let reply = match ask {
            _ if !self.limits.checkpoints => Err(Error::invalid("checkpoints", "is \"off\": nothing is saved")),
            Ask::Checkpoint => self.checkpointed().map(|link| Reply::State(link.execution)),
            Ask::Fork => self
                .checkpointed()
                .map(|link| Reply::Fork(Box::new(self.fork_of(link)))),
            Ask::Restore(_) | Ask::Undo => match self.checkpoints.target(ask) {
                // As after an execution that crashed: what it had done is gone already.
                Ok(number) if self.checkpoints.at() == Some(number) => {
                    let link = self.checkpoints.history.find(number);
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
            chain: self.checkpoints.history.chain(link.number).to_vec(),
            ..self.bare_fork()
        }
    }

    /// The same without a state.
    fn bare_fork(&self) -> Fork<B> {
        Fork {
            limits: self.limits.clone(),
            host_functions: self.host_functions.clone(),
            profile: self.profile,
            output_fields: self.output_fields.clone(),
            last_execution: self.last_execution,
            packages: self.packages.clone(),
            chain: Vec::new(),
        }
    }

    /// A session that goes on from the state as it is, saves nothing and needs no context; none where no checkpoint holds all of it, unless
    /// guests can be forked.
    pub(super) fn exact_copy(&self) -> Option<Self> {
        if self.forks {
            let mut fork = self.bare_fork();
            fork.limits.checkpoints = false;
            return Some(Self::forked(fork).without_context());
        }
        let link = self.checkpoints.history.find(self.checkpoints.at()?)?;
        if !link.lost.is_empty()
            || self.checkpoints.reverting.is_some()
            || self.checkpoints.looked_at
            || self.checkpoints.saving.is_some()
        {
            return None;
        }
        let mut fork = self.fork_of(link);
        fork.limits.checkpoints = false;
        Some(Self::forked(fork).without_context())
    }

    /// The checkpoint of the state as it is.
    fn checkpointed(&self) -> Result<&Link<B>, Error> {
        let checkpoints = &self.checkpoints;
        let saved = checkpoints.base.and_then(|number| checkpoints.history.find(number));
        match saved {
            Some(link) if checkpoints.at() == Some(link.number) => Ok(link),
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
        let (base, is_new) = (self.checkpoints.base, self.checkpoints.at().is_none());
        let mut dropped = self.checkpoints.history.set_since(number, base);
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

    /// When a save is to begin, if nothing happens until then.
    pub(super) fn saves_at(&self) -> Option<f64> {
        let idle_ms = if self.ahead.waits() { 0.0 } else { IDLE_MS }; // what is to run ahead needs a copy, the sooner the better
        self.can_save().then_some(self.checkpoints.idle_since + idle_ms)
    }

    fn can_save(&self) -> bool {
        let idle = self.guest == Guest::Up && self.turn.is_none() && (self.queue.is_empty() || self.waits_for_save());
        let differs = self.checkpoints.dirty || (self.checkpoints.looked_at && self.ahead.waits());
        self.saves() && idle && differs && self.checkpoints.saving.is_none()
    }

    /// Looks whether somebody waits for the save under way.
    pub(super) fn note_wait(&mut self, now: f64) {
        let waits = self.turn.is_none() && !self.queue.is_empty() && self.waits_for_save();
        if let Some(saving) = &mut self.checkpoints.saving {
            if waits {
                saving.awaited_since.get_or_insert(now);
            } else {
                (saving.awaited_since, saving.late_since) = (None, None);
            }
        }
    }

    /// When to look whether a guest has saved what somebody waits for.
    pub(super) fn save_ends_at(&self) -> Option<f64> {
        let saving = self.checkpoints.saving.as_ref()?;
        let late = saving.late_since.map(|since| since + LATE_MS);
        late.or(saving.awaited_since.map(|since| since + MAX_SAVE_MS))
    }

    /// When the guest was last free to save.
    fn since(&self, saving: &Saving<B>) -> f64 {
        saving.begun_at.max(self.checkpoints.idle_since)
    }

    /// Ends a guest that takes too long to save. A clock that is late says nothing yet: it may be the host that was busy.
    pub(super) fn check_save(&mut self, now: f64) {
        if self.save_ends_at().is_none_or(|ends_at| now < ends_at) {
            return;
        }
        if let Some(saving) = &mut self.checkpoints.saving
            && saving.late_since.is_none()
        {
            saving.late_since = Some(now);
            return;
        }
        self.guest_gone(now, Error::GuestLost("it did not finish saving its state".to_owned()));
    }

    /// Begins a checkpoint when there is nothing else to do, or too much at stake.
    pub(super) fn save(&mut self, now: f64) {
        let due = self.saves_at().is_some_and(|at| now >= at || self.waits_for_save());
        if !due {
            return;
        }
        let checkpoints = &mut self.checkpoints;
        let again = !std::mem::take(&mut checkpoints.dirty);
        checkpoints.looked_at = false;
        checkpoints.last_number += 1;
        let number = checkpoints.last_number;
        let full = !checkpoints.growing || checkpoints.history.is_long();
        checkpoints.saving = Some(Saving {
            number,
            full,
            again,
            execution: checkpoints.execution,
            names: self.names.clone(),
            contexts: self.contexts.clone(),
            before: checkpoints.before,
            news: std::mem::take(&mut checkpoints.set_since),
            begun_at: now,
            awaited_since: None,
            late_since: None,
            overtaken: false,
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
        let took = now - self.since(&saving);
        let link = Link {
            number,
            full: full || saving.full,
            execution: saving.execution,
            names: saving.names,
            lost,
            contexts: saving.contexts,
            before: saving.before,
            parent: self.checkpoints.base,
            set: saving.news.clone(),
            body,
        };
        let recycles = spent && link.lost.is_empty();
        let checkpoints = &mut self.checkpoints;
        match checkpoints.history.keep(link, self.limits.max_checkpoint_bytes) {
            Kept::Yes => {}
            Kept::NotOnTop => {
                checkpoints.growing = false;
                return checkpoints.gave_way(saving.news);
            }
            Kept::No => return checkpoints.failed_to_save(took, saving.news, "it was too large".to_owned()),
        }
        checkpoints.unsavable = None;
        checkpoints.base = Some(number);
        checkpoints.growing = true;
        checkpoints.save_ms = LEAST_SAVE_MS.max(took);
        checkpoints.failed = false;
        if !checkpoints.dirty {
            checkpoints.unsaved_ms = 0.0;
        }
        if recycles && self.turn.is_none() && self.queue.is_empty() && !self.checkpoints.dirty {
            self.checkpoints.tells = true;
            self.end_guest(Guest::Down);
            self.boot(now);
        }
    }

    /// It has not: there was something else to do, or there is a `reason`.
    pub(super) fn not_saved(&mut self, now: f64, number: u32, reason: Option<String>) {
        let Some(saving) = self.take_saving(number) else {
            return self.violation(now, "a checkpoint that nobody asked for");
        };
        if reason.is_none() && !saving.overtaken {
            return self.violation(now, "it gives up saving for nothing");
        }
        let took = now - self.since(&saving);
        match reason {
            None => self.checkpoints.gave_way(saving.news),
            Some(why) => {
                let why = why.chars().take(300).collect();
                self.checkpoints.failed_to_save(took, saving.news, why);
            }
        }
    }

    fn take_saving(&mut self, number: u32) -> Option<Saving<B>> {
        let saving = &mut self.checkpoints.saving;
        saving.take_if(|saving| saving.number == number)
    }

    /// What becomes of the variables now that the guest is gone. Takes their names.
    ///
    /// A state with which one guest after the other crashes at once is given up.
    pub(super) fn loss(&mut self, reason: &str, crashed: bool) -> StateReport {
        let checkpoints = &mut self.checkpoints;
        checkpoints.crashes += u32::from(crashed && checkpoints.unproven);
        if checkpoints.crashes >= MOST_CRASHES {
            checkpoints.forget();
        }
        checkpoints.unproven = false;
        checkpoints.failed |= checkpoints.saving.is_some() && self.turn.is_none();
        // An execution that is gone with its guest has been taken back already.
        let executed = matches!(
            &self.turn,
            Some(Turn {
                task: Task::Execute(_),
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
        let Some(saved) = base.and_then(|number| self.checkpoints.history.find(number)) else {
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
        checkpoints.forked = false;
        let tells = std::mem::take(&mut checkpoints.tells);
        let reverted = checkpoints.reverting.take();
        if let Some(reverted) = &reverted {
            checkpoints.base = Some(reverted.number);
        }
        let mut state = None;
        if let Some(link) = checkpoints.base.and_then(|number| checkpoints.history.find(number)) {
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

    /// What is to be told of a state that was gone back to: what the checkpoint does not hold, and what the host had set since.
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
        self.turn = None;
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
            let saved = base.and_then(|number| self.checkpoints.history.find(number));
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

/// Whether this is no variable but a file that the host wrote: no variable's name has a space.
fn is_file(name: &str) -> bool {
    name.starts_with("file ")
}
