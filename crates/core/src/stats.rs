//! Counts of what a session has done so far.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::execution::{CodeExecution, Outcome, StateStatus};
use crate::speculate::{Source, Tally};

/// Counts of what a sandbox has done so far. A fork begins anew.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Stats {
    /// Its executions that are over, by how they ended.
    pub executions: Outcomes,
    /// Milliseconds that they took.
    pub duration: f64,
    /// The part of it that timeouts count.
    pub guest_time: f64,
    /// Host calls that they made.
    pub host_calls: u32,
    /// Guests that were started or took over.
    pub guests: u32,
    /// Executions that said that the state was restored.
    pub restored: u32,
    /// Executions that said that the state was lost.
    pub lost: u32,
    /// The gains of `hint`, `updateConversation` and `executeStream` brought.
    pub ahead: Ahead,
}

/// The number of executions that ended so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Outcomes {
    /// Well.
    pub ok: u32,
    /// With an exception.
    pub error: u32,
    /// Out of time.
    pub timeout: u32,
    /// By an interrupt.
    pub interrupted: u32,
    /// With their guest.
    pub crashed: u32,
    /// By a limit.
    pub limit: u32,
}

/// Work that was done before code asked for it. `fetched` and `used` are packages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Ahead {
    /// The number of those fetched.
    pub fetched: u32,
    /// The number of those that code has imported since.
    pub used: u32,
    /// Code that ran before it was asked for, by what had predicted it.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "Partial<Record<Source, Tally>>"))]
    pub code: BTreeMap<Source, Tally>,
}

impl Stats {
    /// The counts of executions and of code that ran ahead that have come since `before`. The rest is left out.
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

    /// Adds what [`Stats::since`] has found.
    pub fn add(&mut self, new: &Self) {
        self.executions.ok = self.executions.ok.saturating_add(new.executions.ok);
        for (source, tally) in &new.ahead.code {
            self.ahead.code.entry(*source).or_default().add(tally);
        }
    }
}

impl Outcomes {
    /// All of them.
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
    /// Counts an execution that is over.
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
