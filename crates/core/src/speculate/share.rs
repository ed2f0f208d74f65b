//! The share of time that may be spent on code that nobody asks for.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use crate::limits::AHEAD_CREDIT_MS;

/// A part of the time that has passed, less what was spent in vain.
#[derive(Debug, Clone)]
pub struct Share {
    most: f64,
    begun_at: Option<f64>,
    wasted_ms: f64,
}

impl Share {
    /// At most this part, from 0 to 1.
    pub fn new(most: f64) -> Self {
        Self {
            most,
            begun_at: None,
            wasted_ms: 0.0,
        }
    }

    /// The session has begun, if it had not before.
    pub fn begin(&mut self, now: f64) {
        self.begun_at.get_or_insert(now);
    }

    /// So much was spent in vain.
    pub fn waste(&mut self, ms: f64) {
        self.wasted_ms += ms.max(0.0);
    }

    /// The time at which nothing will be left if what has taken `spent_ms` by now goes on; never, where there is no limit.
    pub fn ends_at(&self, now: f64, spent_ms: f64) -> Option<f64> {
        (self.most < 1.0).then(|| now + (self.left(now) - spent_ms).max(0.0) / (1.0 - self.most))
    }

    /// The number of milliseconds that may still be spent; none or less, when there is nothing left.
    pub fn left(&self, now: f64) -> f64 {
        let passed = now - self.begun_at.unwrap_or(now) + AHEAD_CREDIT_MS;
        self.most * passed - self.wasted_ms
    }
}
