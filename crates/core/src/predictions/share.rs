//! The share of time that may be spent on code that nobody asks for.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use crate::limits::AHEAD_CREDIT_MS;

/// The time that may still be spent: a share of the time since the session began, less the wasted time.
#[derive(Debug, Clone)]
pub struct Share {
    most: f64,
    begun_at: Option<f64>,
    wasted_ms: f64,
}

impl Share {
    /// A share of the time, from 0 to 1.
    pub fn new(most: f64) -> Self {
        Self {
            most,
            begun_at: None,
            wasted_ms: 0.0,
        }
    }

    /// Records the session's beginning, at the first call.
    pub fn begin(&mut self, now: f64) {
        self.begun_at.get_or_insert(now);
    }

    /// Records wasted time.
    pub fn waste(&mut self, ms: f64) {
        self.wasted_ms += ms.max(0.0);
    }

    /// The time at which nothing is left, if code that has taken `spent_ms` by now goes on. `None` if there is no limit.
    pub fn ends_at(&self, now: f64, spent_ms: f64) -> Option<f64> {
        (self.most < 1.0).then(|| now + (self.left(now) - spent_ms).max(0.0) / (1.0 - self.most))
    }

    /// The time that may still be spent, in milliseconds. Zero or less if nothing is left.
    pub fn left(&self, now: f64) -> f64 {
        let passed = now - self.begun_at.unwrap_or(now) + AHEAD_CREDIT_MS;
        self.most * passed - self.wasted_ms
    }
}
