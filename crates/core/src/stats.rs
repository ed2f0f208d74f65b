//! Counts of a session's work.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::execution::{CodeExecution, Outcome, StateStatus};
use crate::predictions::{Source, Tally};

/// Counts of a sandbox's work so far. A fork starts with new counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Stats {
    /// Finished executions, by how they ended.
    pub executions: Outcomes,
    /// Wall time of these executions, in milliseconds.
    pub duration: f64,
    /// Guest time of these executions, in milliseconds. Timeouts count this part.
    pub guest_time: f64,
    /// Host calls of these executions.
    pub host_calls: u32,
    /// Guests that were started, or that took over as the session's guest.
    pub guests: u32,
    /// Executions that reported a restored state.
    pub restored: u32,
    /// Executions that reported a lost state.
    pub lost: u32,
    /// Work that was done before it was asked for, because of `hint`, `updateConversation` or `executeStream`.
    pub ahead: Ahead,
}

/// Numbers of executions, by how they ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Outcomes {
    /// Executions whose code ran to its end.
    pub ok: u32,
    /// Executions that an exception ended.
    pub error: u32,
    /// Executions that ran out of time.
    pub timeout: u32,
    /// Executions that an interrupt ended.
    pub interrupted: u32,
    /// Executions whose guest died.
    pub crashed: u32,
    /// Executions that a limit ended.
    pub limit: u32,
}

/// Work that was done before code asked for it: packages (`fetched` and `used`) and code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Ahead {
    /// Packages that were fetched ahead.
    pub fetched: u32,
    /// Packages that were fetched ahead, and that code has imported since.
    pub used: u32,
    /// Code that ran ahead, by the source of its prediction.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "Partial<Record<Source, Tally>>"))]
    pub code: BTreeMap<Source, Tally>,
    /// Host calls that were begun before their code was asked for. Missing if there were none.
    #[serde(default, skip_serializing_if = "CallsAhead::is_empty")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub calls: CallsAhead,
}

/// Host calls that were begun before their code was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct CallsAhead {
    /// Calls that were begun.
    pub begun: u32,
    /// Begun calls that the code made, when it was asked for.
    pub used: u32,
    /// Begun calls that were in vain.
    pub wasted: u32,
}

impl CallsAhead {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds the counts of others.
    pub fn add(&mut self, others: &Self) {
        self.begun = self.begun.saturating_add(others.begun);
        self.used = self.used.saturating_add(others.used);
        self.wasted = self.wasted.saturating_add(others.wasted);
    }
}

impl Stats {
    /// The counts of executions and of code that ran ahead, as far as they came after `before`. Other counts are left out.
    pub fn since(&self, before: &Self) -> Self {
        let mut new = Self::default();
        let count = self.executions.total().saturating_sub(before.executions.total());
        new.executions.ok = u32::try_from(count).unwrap_or(u32::MAX);
        for (source, tally) in &self.ahead.code {
            let known = before.ahead.code.get(source).cloned().unwrap_or_default();
            new.ahead.code.insert(*source, tally.since(&known));
        }
        new
    }

    /// Adds counts that [`Stats::since`] returned.
    pub fn add(&mut self, new: &Self) {
        self.executions.ok = self.executions.ok.saturating_add(new.executions.ok);
        self.ahead.calls.add(&new.ahead.calls);
        for (source, tally) in &new.ahead.code {
            self.ahead.code.entry(*source).or_default().add(tally);
        }
    }
}

impl Outcomes {
    /// The number of all executions.
    pub fn total(&self) -> u64 {
        let Self {
            ok,
            error,
            timeout,
            interrupted,
            crashed,
            limit,
        } = *self;
        [ok, error, timeout, interrupted, crashed, limit]
            .into_iter()
            .map(u64::from)
            .sum()
    }
}

impl Stats {
    /// Counts a finished execution.
    pub(crate) fn count(&mut self, execution: &CodeExecution) {
        let outcomes = &mut self.executions;
        *match execution.outcome {
            Outcome::Ok => &mut outcomes.ok,
            Outcome::Error => &mut outcomes.error,
            Outcome::Timeout => &mut outcomes.timeout,
            Outcome::Interrupted => &mut outcomes.interrupted,
            Outcome::Crashed => &mut outcomes.crashed,
            Outcome::Limit => &mut outcomes.limit,
        } += 1;
        self.duration += execution.duration;
        self.guest_time += execution.guest_time;
        self.host_calls = self.host_calls.saturating_add(execution.host_calls);
        match execution.state.status {
            StateStatus::Kept => {}
            StateStatus::Restored => self.restored += 1,
            StateStatus::Lost => self.lost += 1,
        }
    }
}
