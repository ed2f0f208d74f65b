//! The success of predictions of a source.

use serde::{Deserialize, Serialize};

/// The certainty of the lower bound of a probability: one standard deviation.
const Z: f64 = 1.0;

/// Counts of code that ran ahead, and of what became of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Tally {
    /// The number of times that it was begun.
    pub started: u32,
    /// The number of times that it ended (with what there was first, of code that is being written), or to what only the host
    /// can answer, before it was asked for.
    pub finished: u32,
    /// The number of times that it was what the code that came resolved to.
    pub used: u32,
    /// The number of times that it was not.
    pub wasted: u32,
    /// Milliseconds that code had run when it was asked for, all together.
    pub time_saved: f64,
    /// Milliseconds that were spent on code that was not used, the copy that it ran in included, all together.
    pub time_wasted: f64,
}

impl Tally {
    /// The number of those neither used nor wasted yet.
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

    /// Counts those of another as well.
    pub fn add(&mut self, other: &Self) {
        self.started = self.started.saturating_add(other.started);
        self.finished = self.finished.saturating_add(other.finished);
        self.used = self.used.saturating_add(other.used);
        self.wasted = self.wasted.saturating_add(other.wasted);
        self.time_saved += other.time_saved;
        self.time_wasted += other.time_wasted;
    }
}

/// The lower bound of Wilson's interval for a probability, of which `won` of `all` were seen.
pub fn lower_bound(won: f64, all: f64) -> f64 {
    if all <= 0.0 {
        return 0.0;
    }
    let (p, z2) = ((won / all).clamp(0.0, 1.0), Z * Z);
    let centre = p + z2 / (2.0 * all);
    let spread = Z * (p * (1.0 - p) / all + z2 / (4.0 * all * all)).sqrt();
    ((centre - spread) / (1.0 + z2 / all)).clamp(0.0, p)
}
