//! Which prediction to run.

use std::collections::BTreeMap;

use super::{Prediction, Source, Tally};
use crate::limits::{MAX_PREDICTED_CHARS, MAX_PREDICTIONS};

/// What a run ahead costs, in milliseconds: a guest that has to be replaced, and the state that it is given.
const COST_MS: f64 = 30.0;
/// What code is thought to take that nobody has an estimate of, in milliseconds.
const UNKNOWN_MS: f64 = 200.0;
/// One of so many that would be refused is run all the same: whether predictions have become better shows no other way.
const PROBE: u32 = 16;

/// Predictions of what comes next, and how earlier ones came true.
#[derive(Debug, Clone, Default)]
pub struct Predictor {
    waiting: Vec<Prediction>,
    tallies: BTreeMap<Source, Tally>,
    refused: u32,
}

impl Predictor {
    /// What may come next, instead of what was thought before. What is too much is left out.
    pub fn predict(&mut self, predictions: Vec<Prediction>) {
        let mut known = std::collections::HashSet::new();
        self.waiting = predictions
            .into_iter()
            .filter(|new| {
                new.probability > 0.0 && new.code.len() <= MAX_PREDICTED_CHARS && known.insert(new.code.clone())
            })
            .take(MAX_PREDICTIONS)
            .collect();
    }

    /// Whether this is among what may come next.
    pub fn expects(&self, code: &str) -> bool {
        self.waiting.iter().any(|known| known.code == code)
    }

    /// Nothing that was thought before holds any more.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }

    /// Whether there is anything to try.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What a prediction is expected to save, in milliseconds.
    pub fn expected_saving(&self, prediction: &Prediction) -> f64 {
        let tally = self.tallies.get(&prediction.source).cloned().unwrap_or_default();
        let probability = prediction.probability.clamp(0.0, 1.0) * tally.precision(prediction.source.prior());
        probability * prediction.estimated_ms.unwrap_or(UNKNOWN_MS) - COST_MS
    }

    /// Takes the prediction that is worth most; none when none is worth its cost, and then all are given up.
    pub fn choose(&mut self) -> Option<Prediction> {
        let savings = self.waiting.iter().map(|prediction| self.expected_saving(prediction));
        let (at, best) = savings
            .enumerate()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        if best <= 0.0 {
            self.refused += 1;
            if !self.refused.is_multiple_of(PROBE) {
                self.waiting.clear();
                return None;
            }
        }
        Some(self.waiting.remove(at))
    }

    /// How it went so far.
    pub fn tallies(&self) -> &BTreeMap<Source, Tally> {
        &self.tallies
    }

    /// The counts of a source.
    pub fn tally(&mut self, source: Source) -> &mut Tally {
        self.tallies.entry(source).or_default()
    }
}
