//! The states that guests are given: a saved one, after a guest's death or at the user's request. `saves.rs` decides when the state is saved.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use super::checkpoint_chain::{CheckpointChain, Link};
use super::contexts::Contexts;
use super::exchange::{Exchange, Job};
use super::files::FileCommand;
use super::going_back::Reverting;
use super::interpreter::{Guest, Interpreter};
use super::journal::{Journal, Origin, Steps};
use super::saves::{LEAST_SAVE_MS, Saving};
use super::variables::VariableCommand;
use super::{Body, Error, Reply, Ticket};
use crate::execution::{LostVariable, StateReport};
use crate::limits::{Limits, MAX_NAMES};
use crate::protocol::Event;

/// The number of guests that may crash one after another at once after a restore. Then the restored state is given up for an earlier one.
const MOST_CRASHES: u32 = 3;

/// A user's request about saved states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateCommand {
    /// Saves the state.
    Checkpoint,
    /// Goes back to the newest checkpoint, or to the newest one of this execution.
    Restore(Option<u32>),
    /// Goes back to the state before the last execution.
    Undo,
    /// Saves the state, and returns it for another session. If checkpoints are paused copies, the session goes on in a guest that comes from the
    /// newest one, and the driver makes the other sessions' guests beside it.
    Fork,
    /// Goes to the state before the pending execution.
    Rewind,
}

/// The saved states, and the present state's relation to them.
#[derive(Debug)]
pub(super) struct Checkpoints<B> {
    /// True if the state is saved at all (the option `checkpoints`).
    pub(super) are_made: bool,
    /// The most bytes of a chain.
    pub(super) max_bytes: f64,
    pub(super) chain: CheckpointChain<B>,
    /// The checkpoint that the state came from, or was last saved as.
    pub(super) base: Option<u32>,
    /// The state before the last execution, if it can be had.
    pub(super) before: Option<Origin<B>>,
    /// The most checkpoints, if they are paused copies of the guest.
    pub(super) most_paused: Option<usize>,
    /// The checkpoint of which a guest is being made, if checkpoints are paused copies.
    pub(super) reviving: Option<u32>,
    /// The reason for which that copy is gone meanwhile.
    pub(super) gone: Option<String>,
    /// True if guests mark executions that they can repeat.
    pub(super) are_repeated: bool,
    /// The executions since the state was that of `base`, or of a fresh guest.
    pub(super) journal: Journal,
    pub(super) last_number: u32,
    /// The save under way.
    pub(super) saving: Option<Saving<B>>,
    /// True if the guest's next checkpoint can build upon its last one.
    pub(super) growing: bool,
    /// The user's request to go back that is under way.
    pub(super) reverting: Option<Reverting<B>>,
    /// True if nobody was told yet which variables the restored checkpoint lacks.
    pub(super) tells: bool,
    /// If the state is another session's and not restored yet: what to say if it cannot be, and what holds then.
    pub(super) given: Option<(&'static str, &'static str)>,
    /// The number of changes of the settings so far. A state that was saved before a change has the earlier settings.
    pub(super) settings: u32,
    /// True if the state may have changed since the last save began.
    pub(super) dirty: bool,
    /// True if code that should not change anything, such as a `__repr__`, may have run since the last save began. The last checkpoint is
    /// good enough to go back to. For an exact copy, the state is saved again.
    pub(super) looked_at: bool,
    /// The last execution whose effects the state has.
    pub(super) execution: u32,
    /// The variables that the host has set since the last save began.
    pub(super) set_since: Vec<String>,
    /// Time that exchanges took since the last save that came to an end, in milliseconds.
    pub(super) unsaved_ms: f64,
    /// The reason for which this guest's state could not be saved at the last try.
    pub(super) unsavable: Option<String>,
    /// The executions that were repeated when the state was last restored.
    pub(super) repeated: Steps,
    /// True while an execution is pending. The state must stay as it is, so nothing is saved.
    pub(super) frozen: bool,
    /// True if executions are recorded: the first one waits for a save of the state before it, and each for a save that is under way.
    pub(super) saves_first: bool,
    /// True if nothing has changed since a failed save, so that another would fail as well.
    pub(super) vain: bool,
    /// The number of guests in a row that crashed before they finished an exchange with the state that they were given.
    pub(super) crashes: u32,
    /// True if the guest has not finished an exchange with the state that it was given.
    pub(super) unproven: bool,
    /// True if a guest died of the last save. Nobody waits for another save then.
    pub(super) failed: bool,
    /// Time that the last save took, in milliseconds.
    pub(super) save_ms: f64,
    /// The time at which the last exchange ended.
    pub(super) idle_since: f64,
}

impl<B> Checkpoints<B> {
    /// No checkpoints yet.
    pub(super) fn within(limits: &Limits) -> Self {
        Self {
            are_made: limits.checkpoints,
            max_bytes: limits.max_checkpoint_bytes,
            chain: CheckpointChain::default(),
            base: None,
            before: None,
            most_paused: None,
            reviving: None,
            gone: None,
            are_repeated: false,
            journal: Journal::default(),
            last_number: 0,
            saving: None,
            growing: false,
            reverting: None,
            tells: false,
            given: None,
            settings: 0,
            dirty: false,
            looked_at: false,
            execution: 0,
            set_since: Vec::new(),
            unsaved_ms: 0.0,
            unsavable: None,
            vain: false,
            repeated: Steps::default(),
            frozen: false,
            saves_first: false,
            crashes: 0,
            unproven: false,
            failed: false,
            idle_since: 0.0,
            save_ms: LEAST_SAVE_MS,
        }
    }
}

impl<B: Body> Checkpoints<B> {
    /// Records that an exchange with this job begins.
    ///
    /// `is_own`: the session itself asks for it.
    pub(super) fn begins(&mut self, job: &Job<B>, is_own: bool, contexts: &Contexts<B>) {
        if self.disturbs(job, is_own) {
            self.end_journal();
        }
        match job {
            Job::Execute(_) => {
                self.before = self.origin(contexts);
                self.touched();
            }
            Job::Variable(VariableCommand::Set(..) | VariableCommand::Open(..)) => self.touched(),
            Job::File(command) if command.changes().is_some() => self.touched(),
            Job::Variable(VariableCommand::Get(_) | VariableCommand::Capture { .. }) => self.looked_at = true,
            Job::File(FileCommand::Cell { .. } | FileCommand::Look { .. }) => self.looked_at = true,
            Job::Variable(VariableCommand::List) => {}
            Job::Configure { .. } | Job::File(_) | Job::Load(_) | Job::Restore { .. } => {}
        }
    }

    /// Records that the state may change.
    fn touched(&mut self) {
        self.dirty = true;
        self.vain = false;
    }

    /// The checkpoint that holds the state exactly as it is.
    pub(super) fn at(&self) -> Option<u32> {
        let saves_changes = self.saving.as_ref().is_some_and(|saving| !saving.again);
        self.base.filter(|_| !self.dirty && !saves_changes)
    }

    /// Records the time that an exchange took, in milliseconds.
    pub(super) fn worked(&mut self, now: f64, ms: f64) {
        self.unsaved_ms += ms;
        self.idle_since = now;
    }

    /// The checkpoint whose state the next guest gets.
    pub(super) fn wanted(&self) -> Option<u32> {
        match self.reverting.as_ref().map(|reverting| &reverting.origin) {
            Some(Origin::Saved(number, _)) => Some(*number),
            Some(Origin::Fresh(_)) => None,
            None => self.base,
        }
    }

    /// The executions that the next guest repeats after that.
    pub(super) fn wanted_steps(&self) -> Steps {
        match self.reverting.as_ref().map(|reverting| &reverting.origin) {
            Some(Origin::Saved(_, steps)) => steps.clone(),
            _ => Steps::default(),
        }
    }

    /// Returns true if there is a checkpoint for the next guest.
    pub(super) fn is_saved(&self) -> bool {
        self.wanted().is_some()
    }

    /// Records that the host has set a variable.
    pub(super) fn set(&mut self, name: &str) {
        if self.set_since.len() < MAX_NAMES && !self.set_since.iter().any(|known| known == name) {
            self.set_since.push(name.to_owned());
        }
    }

    /// The variables that the host has set since the last complete checkpoint.
    pub(super) fn news(&self) -> impl Iterator<Item = &String> {
        let saving = self.saving.iter().flat_map(|saving| &saving.news);
        self.set_since.iter().chain(saving)
    }

    /// Takes the variables that the host has set since the last complete checkpoint. Their guest is gone.
    fn take_news(&mut self) -> Vec<String> {
        let mut news = std::mem::take(&mut self.set_since);
        news.extend(self.saving.take().into_iter().flat_map(|saving| saving.news));
        news
    }

    /// Records that the guest is gone, with its unsaved state.
    pub(super) fn guest_ended(&mut self) {
        self.saving = None;
        self.journal = Journal::default();
        self.growing = false;
        self.set_since.clear();
        self.dirty = false;
        self.looked_at = false;
        self.unsaved_ms = 0.0;
        self.unsavable = None;
        self.vain = false;
    }

    /// Begins with a state of another session: that of checkpoint `base`.
    pub(super) fn given(&mut self, base: u32, newest: u32, what: (&'static str, &'static str)) {
        self.base = Some(base);
        self.last_number = newest;
        self.given = Some(what);
        self.tells = true;
    }

    /// Records that an exchange has ended. So the state that the guest was given is usable.
    pub(super) fn proved(&mut self) {
        self.unproven = false;
        self.crashes = 0;
    }

    /// The checkpoint that a request asks for.
    fn target(&self, command: StateCommand) -> Result<Origin<B>, Error> {
        let found = match command {
            StateCommand::Undo => self.before.clone().filter(|origin| match origin {
                Origin::Saved(number, _) => self.chain.find(*number).is_some(),
                Origin::Fresh(_) => true,
            }),
            StateCommand::Restore(execution) => {
                let link = self.chain.newest(execution);
                link.map(|link| Origin::Saved(link.number, Steps::default()))
            }
            StateCommand::Checkpoint | StateCommand::Fork | StateCommand::Rewind => None,
        };
        found.ok_or_else(|| {
            let wanted = match command {
                StateCommand::Restore(Some(execution)) => format!("of execution {execution}"),
                StateCommand::Restore(None) => "yet".to_owned(),
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

    /// The checkpoint that holds the present state exactly, with all variables.
    pub(super) fn exact(&self) -> Option<&Link<B>> {
        let link = self.chain.find(self.at()?)?;
        let is_exact = link.lost.is_empty() && self.reverting.is_none() && !self.looked_at && self.saving.is_none();
        is_exact.then_some(link)
    }

    /// The newest checkpoint, as the answer to a request for a save.
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
            None => Err(Error::NoCheckpoint(
                "nothing is saved yet, because no code has run since the guest started; variables are kept".to_owned(),
            )),
        }
    }

    /// The bodies of a checkpoint's chain, the full one first.
    pub(super) fn bodies(&self, checkpoint: u32) -> Vec<B> {
        let chain = self.chain.chain(checkpoint);
        chain.iter().map(|link| link.body.clone()).collect()
    }
}

impl<B: Body> Interpreter<B> {
    /// Carries out a request about checkpoints, once nothing has to be waited for.
    pub(super) fn answer_about_state(&mut self, now: f64, ticket: Ticket, command: StateCommand) {
        let reply = match command {
            _ if !self.checkpoints.are_made => Err(Error::invalid("checkpoints", "is \"off\": nothing is saved")),
            StateCommand::Fork if self.checkpoints.most_paused.is_some() => match self.checkpoints.newest() {
                Ok(link) if self.checkpoints.at() == Some(link.number) => {
                    let origin = Origin::Saved(link.number, Steps::default());
                    return self.revert(now, ticket, origin);
                }
                Ok(_) => Err(Error::NotSerializable(
                    "the state is not saved; variables are kept".to_owned(),
                )),
                Err(error) => Err(error),
            },
            StateCommand::Checkpoint => self.checkpoints.newest().map(|link| Reply::State(link.execution)),
            StateCommand::Fork => self
                .checkpoints
                .newest()
                .map(|link| Reply::Fork(Box::new(self.fork_of(link)))),
            StateCommand::Rewind => match self.before_pending() {
                Some(origin) if !self.is_before_pending() => return self.revert(now, ticket, origin),
                Some(_) => Ok(Reply::State(self.checkpoints.execution)),
                None => Err(Error::invalid("resume", "no execution is pending; nothing was done")),
            },
            StateCommand::Restore(_) | StateCommand::Undo => match self.checkpoints.target(command) {
                // After an execution that crashed, for example, the state is already the one to go back to.
                Ok(origin) if self.checkpoints.is_at(&origin) => {
                    let link = self
                        .checkpoints
                        .at()
                        .and_then(|number| self.checkpoints.chain.find(number));
                    self.checkpoints.before = link.and_then(|link| link.before.clone());
                    Ok(Reply::State(self.checkpoints.execution))
                }
                Ok(origin) => return self.revert(now, ticket, origin),
                Err(error) => Err(error),
            },
        };
        self.resolve(ticket, reply);
    }

    /// Returns true if the guest may be asked for its variables. It is asked before a save, so that the save also holds any change of its
    /// memory by the answer.
    pub(super) fn can_be_surveyed(&self) -> bool {
        let is_before_save = self.checkpoints.is_unsaved() && self.checkpoints.most_paused.is_none();
        self.is_at_rest() && (self.forks || is_before_save) // a fork copies the memory at any time
    }

    /// Has the next execution report a loss.
    pub(super) fn tell_later(&mut self, loss: Option<StateReport>) {
        if let Some(mut loss) = loss {
            loss.add_earlier(self.untold_loss.take());
            self.untold_loss = Some(loss);
        }
    }

    /// Decides which state comes after the guest's end, and reports the loss. Takes the names of the variables.
    ///
    /// If several guests in a row crash at once after the restore of a state, it is given up for the one that it came from.
    pub(super) fn loss(&mut self, reason: &str, crashed: bool) -> StateReport {
        let checkpoints = &mut self.checkpoints;
        checkpoints.crashes += u32::from(crashed && checkpoints.unproven);
        let given_up = if checkpoints.crashes >= MOST_CRASHES {
            checkpoints.give_up()
        } else {
            None
        };
        checkpoints.unproven = false;
        checkpoints.failed |= checkpoints.saving.is_some() && self.exchange.is_none();
        // Without its guest, the last execution is undone already.
        let executed = matches!(
            &self.exchange,
            Some(Exchange {
                job: Job::Execute(_),
                ..
            })
        );
        let mut before = checkpoints.before.take().filter(|before| match before {
            Origin::Saved(number, _) => executed && Some(*number) == checkpoints.base,
            Origin::Fresh(_) => executed && checkpoints.base.is_none(),
        });
        let names = std::mem::take(&mut self.names).into_iter();
        let mut news = self.checkpoints.take_news();
        let mut reason = reason;
        if let Some((set, parent)) = given_up {
            before = Some(parent);
            news.extend(set);
            news.sort_unstable();
            news.dedup();
            reason = "guests crashed one after another with a later state";
        }
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
            if base.is_some() {
                self.checkpoints.forget();
            }
            // Without a base, checkpoints are of states from before the user went back to a fresh guest. They stay.
            (self.checkpoints.before, self.checkpoints.execution) = (before, 0);
            self.checkpoints.crashes = 0;
            let files = news.into_iter().filter(|name| is_file(name));
            return StateReport::lost(names.filter(|name| !restored(name)).chain(files), &reason);
        };
        self.checkpoints.before = before;
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

    /// Gives a fresh guest the saved state. Returns false if there is none.
    pub(super) fn restore(&mut self, now: f64) -> bool {
        let Some(checkpoint) = self.checkpoints.wanted() else {
            return false;
        };
        self.begin(now, None, Job::Restore(checkpoint), None);
        true
    }

    /// Takes a checkpoint from the guest. A guest that holds memory which its variables no longer need is replaced, if nobody waits for it.
    pub(super) fn saved(&mut self, now: f64, event: Event, body: Option<B>) {
        match self.checkpoints.saved(now, event, body) {
            Err(what) => self.violation(now, what),
            Ok(true) if self.exchange.is_none() && self.queue.is_empty() => {
                self.checkpoints.tells = true;
                self.end_guest(Guest::Down);
                self.boot(now);
            }
            Ok(_) => {}
        }
    }

    /// Takes the message that the guest has the saved state.
    ///
    /// `names`: those of the user's variables, if executions were repeated and changed them.
    pub(super) fn restored(&mut self, now: f64, lost: Vec<LostVariable>, names: Option<Vec<String>>) {
        self.finish_exchange(now);
        let checkpoints = &mut self.checkpoints;
        checkpoints.unsaved_ms = 0.0;
        checkpoints.dirty = false;
        checkpoints.unproven = true;
        checkpoints.given = None;
        let tells = std::mem::take(&mut checkpoints.tells);
        let reverted = checkpoints.reverting.take();
        let mut steps = Steps::default();
        if let Some(Reverting {
            origin: Origin::Saved(number, repeated),
            ..
        }) = &reverted
        {
            checkpoints.base = Some(*number);
            checkpoints.dirty = !repeated.is_empty();
            steps = repeated.clone();
        }
        checkpoints.journal = Journal::of(steps.clone());
        checkpoints.repeated = steps.clone();
        let mut is_outdated = false;
        let mut state = None;
        if let Some(link) = checkpoints.base.and_then(|number| checkpoints.chain.find(number)) {
            checkpoints.execution = steps.last().unwrap_or(link.execution);
            if tells {
                let earlier = steps.before_last().map(|steps| Origin::Saved(link.number, steps));
                checkpoints.before = earlier.or_else(|| link.before.clone());
            }
            self.names = names.unwrap_or_else(|| link.names.clone());
            is_outdated = link.settings != checkpoints.settings;
            if reverted.is_some() {
                self.contexts = link.contexts.clone();
                self.contexts_given += 1;
            }
            // The variables that the guest could not restore, and those that the checkpoint lacks, if nobody was told of them.
            let untold = link.lost.iter().filter(|_| tells).cloned().chain(lost);
            let mut report = StateReport::restored(checkpoints.execution, [], "");
            report.add(untold);
            state = report.lost.is_some().then_some(report);
        }
        if let Some(Reverting {
            ticket,
            dropped,
            earlier,
            ..
        }) = reverted
        {
            self.lacking.clear();
            self.untold_loss = self.reverted_loss(state, dropped, earlier);
            let execution = self.checkpoints.execution;
            self.resolve(ticket, Ok(Reply::State(execution)));
        } else {
            self.tell_later(state);
        }
        if is_outdated {
            return self.configure_again(now);
        }
        self.restore_contexts(now); // contexts that came after the checkpoint
    }

    /// Handles a failed restore, which would always fail. A user who asked to go back gets an error, and the earlier state is restored.
    /// Otherwise all is lost, and the next execution reports it.
    pub(super) fn not_restored_exactly(&mut self, now: f64, why: &Error) {
        self.exchange = None;
        self.end_guest(Guest::Down);
        if let Some(error) = self.refused_state(why) {
            return self.boot_failed(error);
        }
        if self.checkpoints.most_paused.is_some() {
            return self.not_revived(now, why);
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

/// Returns true if the name is that of a file that the host wrote. No variable's name has a space.
fn is_file(name: &str) -> bool {
    name.starts_with("file ")
}
