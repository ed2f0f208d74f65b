//! When the state is saved, and what comes back when a guest dies.
//!
//! A save is no turn: the guest works at it while it has nothing else to do, and gives up when a request comes in. A command
//! waits for it only when much is at stake: when the work that would be lost took [`WORTH`] times as long as a save does. So
//! saving takes a twentieth of the time at most, and a guest that is never idle is saved as well.

use super::turn::Task;
use super::{Body, Effect, Error, Guest, Reply, Session};
use crate::execution::StateReport;

/// How much longer than a save the work took that is worth waiting for it.
const WORTH: f64 = 20.0;
/// How long a save takes, in milliseconds, at least, and before one was seen.
const LEAST_SAVE_MS: f64 = 20.0;
/// How long there has been nothing to do before a save is begun, in milliseconds.
const IDLE_MS: f64 = 50.0;
/// How long a guest may take to save what somebody waits for, in milliseconds.
const MAX_SAVE_MS: f64 = 20_000.0;

/// What of the state is safe.
#[derive(Debug)]
pub(super) struct Checkpoints {
    /// The last one that is complete.
    saved: Option<Saved>,
    /// The one under way.
    saving: Option<Saved>,
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
    /// When the one under way was begun.
    begun_at: f64,
    /// How long the last one took, in milliseconds.
    save_ms: f64,
    /// When the last turn ended.
    idle_since: f64,
}

impl Default for Checkpoints {
    fn default() -> Self {
        Self {
            saved: None,
            saving: None,
            dirty: false,
            execution: 0,
            set_since: Vec::new(),
            unsaved_ms: 0.0,
            unsavable: None,
            unproven: false,
            failed: false,
            begun_at: 0.0,
            idle_since: 0.0,
            save_ms: LEAST_SAVE_MS,
        }
    }
}

impl Checkpoints {
    /// A turn that may have changed something took so long.
    pub(super) fn worked(&mut self, now: f64, ms: f64) {
        self.unsaved_ms += ms;
        self.idle_since = now;
    }

    /// Whether there is a checkpoint to go back to.
    pub(super) fn is_saved(&self) -> bool {
        self.saved.is_some()
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
        self.set_since.clear();
        self.dirty = false;
        self.unsaved_ms = 0.0;
        self.unsavable = None;
    }

    fn is_worth_waiting(&self) -> bool {
        self.unsaved_ms >= WORTH * self.save_ms
    }
}

/// What a checkpoint holds.
#[derive(Debug, Clone, Default)]
struct Saved {
    execution: u32,
    names: Vec<String>,
    /// What the host had set after the checkpoint before.
    news: Vec<String>,
}

impl<B: Body> Session<B> {
    fn saves(&self) -> bool {
        self.limits.checkpoints && self.checkpoints.unsavable.is_none()
    }

    /// Whether the next command has to wait until the state is saved.
    pub(super) fn waits_for_save(&self) -> bool {
        let checkpoints = &self.checkpoints;
        let asked = matches!(self.queue.front(), Some((_, Task::Checkpoint)));
        let unsaved = checkpoints.dirty || checkpoints.saving.is_some();
        self.saves() && !checkpoints.failed && unsaved && (asked || checkpoints.is_worth_waiting())
    }

    /// What somebody who asked for a checkpoint gets, now that there is nothing to wait for.
    pub(super) fn checkpointed(&self) -> Result<Reply<B>, Error> {
        match (self.saves(), &self.checkpoints.saved) {
            _ if self.checkpoints.failed => Err(Error::NotSerializable(
                "the guest ended while it saved its state; variables are as the next execution says".to_owned(),
            )),
            (true, Some(_)) => Ok(Reply::Done),
            (false, _) if self.limits.checkpoints => {
                let why = self.checkpoints.unsavable.as_deref().unwrap_or_default();
                Err(Error::NotSerializable(format!(
                    "the state could not be saved: {why}; variables are kept"
                )))
            }
            (false, _) => Err(Error::invalid("checkpoints", "is \"off\": nothing is saved")),
            (true, None) => Err(Error::NotInitialized),
        }
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
        let checkpoints = &self.checkpoints;
        let waiting = checkpoints.saving.is_some() && self.turn.is_none();
        waiting.then_some(checkpoints.begun_at + MAX_SAVE_MS)
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
        checkpoints.begun_at = now;
        checkpoints.saving = Some(Saved {
            execution: checkpoints.execution,
            names: self.names.clone(),
            news: std::mem::take(&mut checkpoints.set_since),
        });
        self.effects.push(Effect::Save(checkpoints.execution));
    }

    /// The guest has saved its state, or had something else to do.
    pub(super) fn save_ended(&mut self, now: f64, checkpoint: u32, done: bool, reason: Option<String>) {
        match self.checkpoints.saving.take() {
            Some(saving) if saving.execution == checkpoint => {
                if done {
                    self.checkpoints.saved = Some(saving);
                    self.checkpoints.save_ms = LEAST_SAVE_MS.max(now - self.checkpoints.begun_at);
                    self.checkpoints.failed = false;
                    if !self.checkpoints.dirty {
                        self.checkpoints.unsaved_ms = 0.0;
                    }
                } else {
                    self.checkpoints.dirty = true;
                    self.checkpoints.set_since.extend(saving.news);
                    self.checkpoints.unsavable = reason.map(|why| why.chars().take(300).collect());
                }
            }
            _ => self.violation(now, "a checkpoint that nobody asked for"),
        }
    }

    /// The last checkpoint was too large to be kept: there is none, and this guest is not asked for another.
    pub(super) fn checkpoint_dropped(&mut self) {
        self.checkpoints.saved = None;
        self.checkpoints.unsavable = Some("it was too large".to_owned());
    }

    /// What becomes of the variables now that the guest is gone. Takes their names.
    ///
    /// A guest that crashed before it had done anything with the state that was restored would crash again: then that state is
    /// given up.
    pub(super) fn loss(&mut self, reason: &str, crashed: bool) -> StateReport {
        if crashed && self.checkpoints.unproven {
            self.checkpoints.saved = None;
        }
        self.checkpoints.unproven = false;
        let names = std::mem::take(&mut self.names).into_iter();
        let mut news = self.checkpoints.take_news();
        self.context_is_new = news.iter().any(|name| name == "context");
        news.retain(|name| name != "context");
        let unsavable = self.checkpoints.unsavable.take();
        match &self.checkpoints.saved {
            None => {
                let restored = |name: &String| self.context.is_some() && name == "context";
                let why = unsavable.map(|why| format!(", and its state could not be saved: {why}"));
                let reason = format!("{reason}{}", why.unwrap_or_default());
                StateReport::lost(names.filter(|name| !restored(name)), &reason)
            }
            Some(saved) => {
                let reason = format!("it was made after execution {}, and {reason}", saved.execution);
                let newer =
                    names.filter(|name| !(saved.names.contains(name) || name == "context" && self.context.is_some()));
                let mut state = StateReport::restored(saved.execution, newer, &reason);
                let reason = format!(
                    "setVariable changed it after execution {}, which is undone",
                    saved.execution
                );
                let older = news.into_iter().filter(|name| saved.names.contains(name));
                state.add_lost(older, &reason);
                state
            }
        }
    }

    /// Gives a fresh guest the state that was saved; false when there is none.
    pub(super) fn restore(&mut self, now: f64) -> bool {
        let Some(saved) = &self.checkpoints.saved else {
            return false;
        };
        let checkpoint = saved.execution;
        self.begin(now, None, Task::Restore { checkpoint });
        true
    }

    /// The guest has the state that was saved.
    pub(super) fn restored(&mut self, now: f64) {
        self.finish_turn(now);
        self.checkpoints.unsaved_ms = 0.0;
        self.checkpoints.dirty = false;
        self.checkpoints.unproven = true;
        if let Some(saved) = &self.checkpoints.saved {
            self.names.clone_from(&saved.names);
            self.checkpoints.execution = saved.execution;
        }
        // `initialize` came after the checkpoint.
        if std::mem::take(&mut self.context_is_new) {
            self.restore_context(now);
        }
    }

    /// It has not, and never will: the next execution says that everything is lost.
    pub(super) fn not_restored_exactly(&mut self, now: f64, why: &Error) {
        let names = self.checkpoints.saved.take().unwrap_or_default().names;
        self.turn = None;
        self.end_guest(Guest::Down);
        let reason = format!("the saved state could not be restored: {why}");
        let loss = StateReport::lost(names.into_iter().filter(|name| name != "context"), &reason);
        self.untold_loss = Some(loss);
        self.boot(now);
    }
}
