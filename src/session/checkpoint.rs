//! When the state is saved, and what comes back when a guest dies.
//!
//! A save is no turn: the guest works at it while it has nothing else to do, and gives up when a request comes in. So at
//! rest there is at most one save under way, and a command never waits for it.

use super::turn::Task;
use super::{Body, Effect, Error, Guest, Session};
use crate::execution::StateReport;

/// What of the state is safe.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// The last one that is complete.
    saved: Option<Saved>,
    /// The one under way.
    saving: Option<Saved>,
    /// Whether something may have changed since the last one was begun.
    pub(super) dirty: bool,
    /// The last execution whose effects the state has.
    pub(super) execution: u32,
}

/// What a checkpoint holds.
#[derive(Debug, Clone, Default)]
struct Saved {
    execution: u32,
    names: Vec<String>,
}

impl<B: Body> Session<B> {
    /// Begins a checkpoint when there is nothing else to do.
    pub(super) fn save_when_idle(&mut self) {
        let checkpoints = &mut self.checkpoints;
        let idle = self.guest == Guest::Up && self.turn.is_none() && self.queue.is_empty();
        if !(self.limits.checkpoints && idle && checkpoints.dirty && checkpoints.saving.is_none()) {
            return;
        }
        checkpoints.dirty = false;
        checkpoints.saving = Some(Saved {
            execution: checkpoints.execution,
            names: self.names.clone(),
        });
        self.effects.push(Effect::Save(checkpoints.execution));
    }

    /// The guest has saved its state, or had something else to do.
    pub(super) fn save_ended(&mut self, now: f64, checkpoint: u32, done: bool) {
        match self.checkpoints.saving.take() {
            Some(saving) if saving.execution == checkpoint => {
                if done {
                    self.checkpoints.saved = Some(saving);
                } else {
                    self.checkpoints.dirty = true;
                }
            }
            _ => self.violation(now, "a checkpoint that nobody asked for"),
        }
    }

    /// The driver could not keep the last checkpoint: there is none.
    pub(super) fn checkpoint_dropped(&mut self) {
        self.checkpoints.saved = None;
    }

    /// What becomes of the variables now that the guest is gone. Takes their names.
    pub(super) fn loss(&mut self, reason: &str) -> StateReport {
        let names = std::mem::take(&mut self.names).into_iter();
        self.checkpoints.saving = None;
        self.checkpoints.dirty = false;
        match &self.checkpoints.saved {
            None => {
                let restored = |name: &String| self.context.is_some() && name == "context";
                StateReport::lost(names.filter(|name| !restored(name)), reason)
            }
            Some(saved) => {
                let reason = format!("it was made after execution {}, and {reason}", saved.execution);
                let newer = names.filter(|name| !saved.names.contains(name));
                StateReport::restored(saved.execution, newer, &reason)
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
    pub(super) fn restored(&mut self) {
        self.finish_turn();
        self.checkpoints.dirty = false;
        if let Some(saved) = &self.checkpoints.saved {
            self.names.clone_from(&saved.names);
            self.checkpoints.execution = saved.execution;
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
