//! The timeouts of one exchange: decides when to interrupt it, and when to end its guest. All times are milliseconds on the driver's
//! monotonic clock.

use serde::{Deserialize, Serialize};

/// A reason for stopping an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum StopReason {
    /// The guest time is used up.
    Timeout,
    /// The total time, host calls included, is over.
    WallTimeout,
    /// The budget's time is over.
    Budget,
    /// The user interrupted it.
    Interrupt,
}

/// The next step for an exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Nothing to do. Check again at this time, if any.
    Continue(Option<f64>),
    /// Ask the guest to stop.
    Interrupt(StopReason),
    /// End the guest, which did not stop within the grace period.
    Kill(StopReason),
}

/// The clock of one exchange. It counts guest time only: [`Deadline::pause`] stops it while the guest waits for the host.
#[derive(Debug, Clone)]
pub struct Deadline {
    timeout_ms: f64,
    grace_ms: f64,
    started_at: f64,
    wall_ends_at: Option<f64>,
    budget_ends_at: Option<f64>,
    /// Guest time before `running_since`.
    used_ms: f64,
    running_since: Option<f64>,
    stopping: Option<(StopReason, f64)>,
}

impl Deadline {
    /// Starts a running clock.
    pub fn start(now: f64, timeout_ms: f64, wall_timeout_ms: Option<f64>, grace_ms: f64) -> Self {
        Self {
            timeout_ms,
            grace_ms,
            started_at: now,
            wall_ends_at: wall_timeout_ms.map(|ms| now + ms),
            budget_ends_at: None,
            used_ms: 0.0,
            running_since: Some(now),
            stopping: None,
        }
    }

    /// Adds the end of the budget's time, if there is one.
    pub fn within(mut self, budget_ends_at: Option<f64>) -> Self {
        self.budget_ends_at = budget_ends_at;
        self
    }

    /// Stops counting guest time, because the guest waits for the host.
    pub fn pause(&mut self, now: f64) {
        self.used_ms = self.guest_ms(now);
        self.running_since = None;
    }

    /// Counts guest time again.
    pub fn resume(&mut self, now: f64) {
        self.running_since.get_or_insert(now);
    }

    /// Guest time so far, in milliseconds.
    pub fn guest_ms(&self, now: f64) -> f64 {
        self.used_ms + self.running_since.map_or(0.0, |since| (now - since).max(0.0))
    }

    /// Wall time so far, in milliseconds.
    pub fn wall_ms(&self, now: f64) -> f64 {
        (now - self.started_at).max(0.0)
    }

    /// The reason for which the exchange is being stopped, if it is.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stopping.map(|(reason, _)| reason)
    }

    /// Starts the grace period. The first reason stands. Returns true if this call started it.
    pub fn stop(&mut self, now: f64, reason: StopReason) -> bool {
        let first = self.stopping.is_none();
        self.stopping.get_or_insert((reason, now));
        first
    }

    /// Returns the next step. An `Interrupt` is returned once, and starts the grace period.
    pub fn check(&mut self, now: f64) -> Verdict {
        let wake_at = self.wake_at();
        if wake_at.is_none_or(|at| now < at) {
            return Verdict::Continue(wake_at);
        }
        if let Some((reason, _)) = self.stopping {
            return Verdict::Kill(reason);
        }
        let is_over = |at: Option<f64>| at.is_some_and(|at| now >= at);
        let reason = if is_over(self.soft_at()) {
            StopReason::Timeout
        } else if is_over(self.wall_ends_at) {
            StopReason::WallTimeout
        } else {
            StopReason::Budget
        };
        self.stop(now, reason);
        Verdict::Interrupt(reason)
    }

    /// The time at which [`Deadline::check`] next returns another step.
    pub fn wake_at(&self) -> Option<f64> {
        match self.stopping {
            Some((_, since)) => Some(since + self.grace_ms),
            None => earliest(self.soft_at(), earliest(self.wall_ends_at, self.budget_ends_at)),
        }
    }

    fn soft_at(&self) -> Option<f64> {
        self.running_since.map(|since| since + self.timeout_ms - self.used_ms)
    }
}

/// The earlier of two times, if there are any.
pub(crate) fn earliest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn waiting_for_the_host_is_not_guest_time() {
        let mut deadline = Deadline::start(0.0, 100.0, None, 10.0);
        deadline.pause(60.0);
        assert_eq!(deadline.check(5_000.0), Verdict::Continue(None));
        deadline.resume(5_000.0);
        assert_eq!(deadline.check(5_000.0), Verdict::Continue(Some(5_040.0)));
        assert_eq!(deadline.check(5_040.0), Verdict::Interrupt(StopReason::Timeout));
        assert_eq!(deadline.guest_ms(5_040.0), 100.0);
    }

    #[test]
    fn a_guest_that_ignores_the_interrupt_is_killed_after_the_grace_period() {
        let mut deadline = Deadline::start(0.0, 100.0, None, 10.0);
        assert_eq!(deadline.check(105.0), Verdict::Interrupt(StopReason::Timeout));
        assert_eq!(deadline.check(106.0), Verdict::Continue(Some(115.0)));
        assert_eq!(deadline.check(115.0), Verdict::Kill(StopReason::Timeout));
    }

    #[test]
    fn wall_time_runs_through_host_calls() {
        let mut deadline = Deadline::start(0.0, 100.0, Some(500.0), 10.0);
        deadline.pause(1.0);
        assert_eq!(deadline.check(2.0), Verdict::Continue(Some(500.0)));
        assert_eq!(deadline.check(500.0), Verdict::Interrupt(StopReason::WallTimeout));
    }

    #[test]
    fn the_time_of_a_budget_runs_through_host_calls() {
        let mut deadline = Deadline::start(0.0, 100.0, Some(500.0), 10.0).within(Some(400.0));
        deadline.pause(1.0);
        assert_eq!(deadline.check(2.0), Verdict::Continue(Some(400.0)));
        assert_eq!(deadline.check(400.0), Verdict::Interrupt(StopReason::Budget));
    }

    #[test]
    fn the_first_reason_to_stop_stands() {
        let mut deadline = Deadline::start(0.0, 100.0, None, 10.0);
        assert!(deadline.stop(1.0, StopReason::Interrupt));
        assert!(!deadline.stop(2.0, StopReason::Timeout));
        assert_eq!(deadline.check(11.0), Verdict::Kill(StopReason::Interrupt));
    }

    proptest! {
        #[test]
        fn every_clock_that_is_looked_at_when_it_says_ends_in_a_kill_on_time(
            timeout in 1.0..1e4_f64,
            grace in 0.0..1e3_f64,
            pauses in prop::collection::vec((0.0..500.0_f64, 0.0..500.0_f64), 0..8),
        ) {
            let mut deadline = Deadline::start(0.0, timeout, None, grace);
            let mut now = 0.0;
            for (run, wait) in pauses {
                now += run;
                deadline.pause(now);
                now += wait;
                deadline.resume(now);
            }
            let mut killed = None;
            for _ in 0..4 {
                match deadline.check(now) {
                    Verdict::Continue(Some(at)) => now = at.max(now),
                    Verdict::Continue(None) => prop_assert!(false, "a running clock has a next time"),
                    Verdict::Interrupt(_) => prop_assert!(deadline.guest_ms(now) >= timeout - 1e-6),
                    Verdict::Kill(_) => { killed = Some(now); break; }
                }
            }
            prop_assert!(killed.is_some());
        }
    }
}
