//! The executions since a checkpoint. Repeated on it, they make the states again that lie between two checkpoints.
//!
//! A guest repeats only what has the same outcome each time: executions that asked for nothing of the outside, such as the time, and changed
//! no file. It marks each of these with a number that stands for its outcome. Anything else ends the journal, and the next execution waits
//! for a save.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Body;
use super::checkpoints::{Checkpoints, StateCommand};
use super::contexts::Contexts;
use super::exchange::Job;
use super::execution::Execution;
use super::variables::VariableCommand;
use crate::protocol::Step;

/// The most executions in a journal, and the most bytes of their code.
const MAX_STEPS: usize = 256;
const MAX_BYTES: usize = 256 * 1024;

/// The executions since a checkpoint, all of which can be repeated.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Step>", into = "Vec<Step>")]
pub(super) struct Steps(Vec<Arc<Step>>);

impl From<Vec<Step>> for Steps {
    fn from(steps: Vec<Step>) -> Self {
        Self(steps.into_iter().map(Arc::new).collect())
    }
}

impl From<Steps> for Vec<Step> {
    fn from(steps: Steps) -> Self {
        steps.to_repeat()
    }
}

impl Steps {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of the last execution.
    pub(super) fn last(&self) -> Option<u32> {
        self.0.last().map(|step| step.execution)
    }

    /// The same without the last one. `None` if there is none.
    pub(super) fn before_last(&self) -> Option<Self> {
        let (_, earlier) = self.0.split_last()?;
        Some(Self(earlier.to_vec()))
    }

    /// The length of each execution's code, in bytes.
    pub(super) fn code_bytes(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|step| step.code.len())
    }

    pub(super) fn to_repeat(&self) -> Vec<Step> {
        self.0.iter().map(|step| Step::clone(step)).collect()
    }
}

/// A state that can be had again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Origin<B> {
    /// The state of a checkpoint, after some executions are repeated.
    Saved(u32, Steps),
    /// The state of a fresh guest with these contexts.
    Fresh(Contexts<B>),
}

/// The changes of the state since a checkpoint, if they are executions that can be repeated.
#[derive(Debug)]
pub(super) struct Journal {
    /// `None` once there was another change.
    steps: Option<Steps>,
    bytes: usize,
}

impl Default for Journal {
    fn default() -> Self {
        Self::of(Steps::default())
    }
}

impl Journal {
    /// A journal that begins with these executions.
    pub(super) fn of(steps: Steps) -> Self {
        let bytes = steps.code_bytes().sum();
        Self {
            steps: Some(steps),
            bytes,
        }
    }

    pub(super) fn steps(&self) -> Option<&Steps> {
        self.steps.as_ref()
    }

    pub(super) fn add(&mut self, step: &Arc<Step>) {
        self.bytes = self.bytes.saturating_add(step.code.len());
        if let Some(Steps(steps)) = &mut self.steps {
            steps.push(Arc::clone(step));
            if steps.len() > MAX_STEPS || self.bytes > MAX_BYTES {
                self.end();
            }
        }
    }

    /// Records a change that cannot be repeated.
    pub(super) fn end(&mut self) {
        self.steps = None;
    }
}

impl<B: Body> Checkpoints<B> {
    /// Returns true if executions after the job cannot be repeated without it. Even a look at the state has an effect: on the places of later
    /// objects in memory, by which Python tells and orders objects. A fresh guest gets its contexts anyway.
    pub(super) fn disturbs(&self, job: &Job<B>, is_own: bool) -> bool {
        let is_fresh = self.base.is_none();
        match job {
            Job::Execute(_) | Job::Restore { .. } => false,
            Job::Variable(VariableCommand::Set(target, _)) => !(is_fresh && (is_own || target.is_kept())),
            Job::Variable(VariableCommand::Open(..)) => true,
            Job::File(command) if command.changes().is_some() => true,
            _ => !is_own && !is_fresh,
        }
    }

    /// Records a change that cannot be repeated.
    pub(super) fn end_journal(&mut self) {
        self.journal.end();
        if let Some(saving) = &mut self.saving {
            saving.journal.end();
        }
    }

    /// Records the end of an execution. It has a `mark` if it can be repeated.
    pub(super) fn executed(&mut self, execution: &Execution, mark: Option<u32>) {
        self.execution = execution.id;
        let Some(mark) = mark.filter(|_| execution.host_calls == 0) else {
            return self.end_journal();
        };
        let step = Arc::new(Step {
            execution: execution.id,
            code: execution.asked.code.clone(),
            mark,
        });
        match self.base {
            Some(_) => self.journal.add(&step),
            None => self.journal.end(), // two fresh guests differ, for example in their random numbers
        }
        if let Some(saving) = &mut self.saving {
            saving.journal.add(&step);
        }
    }

    /// The present state, if it can be had again.
    pub(super) fn origin(&self, contexts: &Contexts<B>) -> Option<Origin<B>> {
        if let Some(number) = self.at() {
            return Some(Origin::Saved(number, Steps::default()));
        }
        let begins_anew = self.most_paused.is_some() && self.base.is_none();
        let steps = self.journal.steps().filter(|_| self.are_repeated || begins_anew)?;
        match self.base {
            Some(base) => Some(Origin::Saved(base, steps.clone())),
            None => Some(Origin::Fresh(contexts.clone())),
        }
    }

    /// Returns true if the present state is this one already.
    pub(super) fn is_at(&self, origin: &Origin<B>) -> bool {
        match origin {
            Origin::Saved(number, steps) => steps.is_empty() && self.at() == Some(*number),
            Origin::Fresh(_) => self.base.is_none() && self.execution == 0 && self.journal.steps().is_some(),
        }
    }

    /// Returns true if the state is saved before the request is answered. A state that is made again by repeating could turn out to be
    /// another one, and then the present one must come back.
    pub(super) fn needs_save(&self, command: StateCommand) -> bool {
        match command {
            StateCommand::Checkpoint | StateCommand::Fork => true,
            StateCommand::Restore(_) | StateCommand::Rewind => false,
            StateCommand::Undo => matches!(&self.before, Some(Origin::Saved(_, steps)) if !steps.is_empty()),
        }
    }

    /// Records that the guest is asked something while it is idle.
    pub(super) fn asked(&mut self) {
        if self.base.is_some() {
            self.end_journal();
        }
    }
}
