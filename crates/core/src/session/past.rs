//! The past of a session whose variables are written by value: all that a later session needs to go on, but the variables themselves.
//!
//! [`VariableCommand::Capture`](super::VariableCommand::Capture) writes the variables. The later session begins with the past, and opens
//! the variables before it runs anything.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use serde::{Deserialize, Serialize};

use super::contexts::Contexts;
use super::packages::Package;
use super::{Body, Session};
use crate::execution::{LostVariable, StateReport, StateStatus};
use crate::limits::{MAX_NAMES, STATE_TIMEOUT_MS};

/// The past of a session. In JSON, a body is what the driver puts in its place ([`Past::map`]).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Past<B> {
    last_execution: u32,
    /// The execution whose state the variables are, if that is not the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state_of: Option<u32>,
    contexts: Contexts<B>,
    /// The user's variables, as last reported.
    names: Vec<String>,
    /// A loss of state that no execution has reported yet.
    untold: Option<StateReport>,
}

impl<B> Past<B> {
    /// Replaces each body.
    pub fn map<C>(self, mut replace: impl FnMut(B) -> C) -> Past<C> {
        Past {
            last_execution: self.last_execution,
            state_of: self.state_of,
            contexts: self.contexts.map(&mut replace),
            names: self.names,
            untold: self.untold,
        }
    }

    /// The number of executions that were requested.
    pub fn execution(&self) -> u32 {
        self.last_execution
    }

    /// Returns true if the variables of the past are lost, and no execution has reported that yet.
    pub fn is_lost(&self) -> bool {
        let status = self.untold.as_ref().map(|untold| &untold.status);
        status.is_some_and(|status| *status == StateStatus::Lost)
    }

    /// Has the next execution report variables that could not be written.
    pub fn add_lost(&mut self, lost: Vec<LostVariable>) {
        tell_of(lost, &mut self.names, &mut self.untold);
    }

    /// Has the next execution report that the state is this one again, because executions after it are undone.
    pub fn is_returned_to(&mut self) {
        tell_later(StateReport::restored(self.last_execution, [], ""), &mut self.untold);
    }
}

/// Has the next execution report variables that are gone, and takes them from the known names.
fn tell_of(lost: Vec<LostVariable>, names: &mut Vec<String>, untold: &mut Option<StateReport>) {
    if lost.is_empty() {
        return;
    }
    names.retain(|name| !lost.iter().any(|lost| lost.name == *name));
    // An earlier status stays: nobody was told of it.
    let mut report = StateReport::kept();
    if let Some(earlier) = untold {
        (report.status, report.restored_to) = (earlier.status, earlier.restored_to);
    }
    report.add(lost.into_iter().take(MAX_NAMES));
    tell_later(report, untold);
}

fn tell_later(mut report: StateReport, untold: &mut Option<StateReport>) {
    report.add_earlier(untold.take());
    *untold = Some(report);
}

impl<B: Body> Session<B> {
    /// The session's past up to now.
    pub fn past(&self) -> Past<B> {
        Past {
            last_execution: self.interpreter.last_execution,
            state_of: Some(self.interpreter.checkpoints.execution).filter(|of| *of != self.interpreter.last_execution),
            contexts: self.interpreter.contexts.clone(),
            names: self.interpreter.names.clone(),
            untold: self.interpreter.untold_loss.clone(),
        }
    }

    /// Has the next execution report variables of the past that could not be opened.
    pub fn add_lost(&mut self, lost: Vec<LostVariable>) {
        let interpreter = &mut self.interpreter;
        tell_of(lost, &mut interpreter.names, &mut interpreter.untold_loss);
    }

    /// Has the next execution report what became of the state, because nobody heard the report of this one.
    pub fn add_unheard(&mut self, report: StateReport) {
        if report.status != StateStatus::Kept || report.lost.is_some() {
            self.interpreter.tell_later(Some(report));
        }
    }

    /// Goes on after the past of another session. The driver opens the variables next.
    #[must_use]
    pub fn with_past(mut self, past: Past<B>) -> Self {
        let interpreter = &mut self.interpreter;
        // Their modules need time, even where executions have little.
        let state_ms = &mut interpreter.config.state_timeout_ms;
        *state_ms = state_ms.max(STATE_TIMEOUT_MS);
        interpreter.last_execution = past.last_execution;
        interpreter.checkpoints.execution = past
            .state_of
            .map_or(past.last_execution, |of| of.min(past.last_execution));
        interpreter.contexts = past.contexts;
        interpreter.names = past.names;
        interpreter.untold_loss = past.untold;
        self
    }

    /// Declares that the variables which the driver opens next have the contexts, too. The first guest is not given them before that.
    #[must_use]
    pub fn with_contexts_to_come(mut self) -> Self {
        self.interpreter.contexts_come = true;
        self
    }

    /// Has every guest given these packages, in their order.
    #[must_use]
    pub fn with_packages(mut self, packages: Vec<Package<B>>) -> Self {
        self.interpreter.packages = packages;
        self
    }

    /// The loaded packages with their files, in the order of loading.
    pub fn loaded(&self) -> Vec<Package<B>> {
        self.interpreter.packages.clone()
    }
}
