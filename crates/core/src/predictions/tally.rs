//! The success of predictions of a source.

use serde::{Deserialize, Serialize};

/// The certainty of the lower bound of a probability: one standard deviation.
const Z: f64 = 1.0;

/// Counts of runs ahead of time, and their outcomes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Tally {
    /// The number of runs that were begun.
    pub started: u32,
    /// The number of runs that came to their end, or to a host call, before their code was asked for. A run of code that is being written
    /// counts once it has run its first part.
    pub finished: u32,
    /// The number of runs whose guest took over, because their code was asked for.
    pub used: u32,
    /// The number of runs that were ended without use.
    pub wasted: u32,
    /// The time that used runs had taken before their code was asked for, in milliseconds, all together.
    pub time_saved: f64,
    /// The time that wasted runs took, with the preparation of their guests, in milliseconds, all together.
    pub time_wasted: f64,
}

impl Tally {
    /// The number of runs that are neither used nor wasted yet.
    pub fn under_way(&self) -> u32 {
        self.started.saturating_sub(self.used.saturating_add(self.wasted))
    }

    /// The counts that have come since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            started: self.started.saturating_sub(before.started),
            finished: self.finished.saturating_sub(before.finished),
            used: self.used.saturating_sub(before.used),
            wasted: self.wasted.saturating_sub(before.wasted),
            time_saved: self.time_saved - before.time_saved,
            time_wasted: self.time_wasted - before.time_wasted,
        }
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Self) {
        self.started = self.started.saturating_add(other.started);
        self.finished = self.finished.saturating_add(other.finished);
        self.used = self.used.saturating_add(other.used);
        self.wasted = self.wasted.saturating_add(other.wasted);
        self.time_saved += other.time_saved;
        self.time_wasted += other.time_wasted;
    }
}

/// The lower bound of Wilson's interval for a probability, if `won` of `all` attempts succeeded.
pub fn lower_bound(won: f64, all: f64) -> f64 {
    if all <= 0.0 {
        return 0.0;
    }
    let (p, z2) = ((won / all).clamp(0.0, 1.0), Z * Z);
    let centre = p + z2 / (2.0 * all);
    let spread = Z * (p * (1.0 - p) / all + z2 / (4.0 * all * all)).sqrt();
    ((centre - spread) / (1.0 + z2 / all)).clamp(0.0, p)
}
