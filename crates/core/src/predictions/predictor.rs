//! The choice of the prediction to run.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Prediction, Source, Tally, lower_bound};
use crate::limits::{MAX_PREDICTED_CHARS, MAX_PREDICTIONS};

/// The fixed cost of a run ahead, in milliseconds: a guest is replaced, and gets the state.
const COST_MS: f64 = 30.0;
/// The assumed time of code without an estimate, in milliseconds.
const UNKNOWN_MS: f64 = 200.0;
/// One of this many refused predictions runs all the same. Nothing else would show that predictions have become better.
const PROBE: u32 = 16;

/// The predictions of the next code, and the success of earlier ones.
#[derive(Debug, Clone, Default)]
pub struct Predictor {
    waiting: Vec<Prediction>,
    /// True when nobody has looked at the waiting predictions yet.
    is_new: bool,
    /// True when the waiting predictions are worth their cost.
    is_worth_it: bool,
    tallies: BTreeMap<Source, Tally>,
    /// For hinted and written code, by source: the number of lists that had the code which came, and the number of all lists.
    told: BTreeMap<Source, (f64, f64)>,
    refused: u32,
    /// All guesses for the present state. They are kept even if they do not run, because the next code shows which of them were right.
    offered: Vec<Prediction>,
    learned: BTreeMap<Kind, Learned>,
    /// The kinds of the guesses that were right about the code which runs now.
    came: BTreeSet<Kind>,
}

/// A kind of guesses, whose success is learned together: their source and description.
type Kind = (Source, &'static str);

/// The success of guesses of a kind in this session.
#[derive(Debug, Clone, Default)]
struct Learned {
    /// The number of states with guesses of the kind, and the number of those in which one of the guesses came.
    offered: f64,
    came: f64,
    /// The time of the code of right guesses, in milliseconds, and the number of measured times.
    ms: f64,
    measured: f64,
}

impl Predictor {
    /// Replaces the waiting predictions. Leaves out code that is too long, impossible or repeated, and predictions beyond the limit.
    pub fn predict(&mut self, predictions: Vec<Prediction>) {
        let mut known = std::collections::HashSet::new();
        self.waiting = predictions
            .into_iter()
            .filter(|new| {
                new.probability > 0.0 && new.code.len() <= MAX_PREDICTED_CHARS && known.insert(new.code.clone())
            })
            .take(MAX_PREDICTIONS)
            .collect();
        (self.is_new, self.is_worth_it) = (!self.waiting.is_empty(), false);
    }

    /// Returns true once for each list of predictions.
    pub fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Takes the prediction of this code, if it waits.
    pub fn take(&mut self, code: &str) -> Option<Prediction> {
        let at = self.waiting.iter().position(|known| known.code == code)?;
        Some(self.waiting.remove(at))
    }

    /// The highest probability of a waiting prediction; 0 if there is none.
    pub fn likeliest(&self) -> f64 {
        let probabilities = self.waiting.iter().map(|prediction| prediction.probability);
        probabilities.fold(0.0, f64::max)
    }

    /// Drops the waiting predictions.
    pub fn forget(&mut self) {
        self.waiting.clear();
        self.is_new = false;
    }

    /// Records the outcome of a list of hinted or written code that was tried. `came` is true if code of the list was asked for.
    pub fn turned_out(&mut self, source: Source, came: bool) {
        let (right, all) = self.told.entry(source).or_default();
        *right += f64::from(u8::from(came));
        *all += 1.0;
    }

    /// Drops the waiting guesses.
    pub fn forget_guesses(&mut self) {
        self.waiting.retain(|waiting| !waiting.source.is_guess());
    }

    /// Returns true when no prediction waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The time that a prediction is expected to save, in milliseconds.
    pub fn expected_saving(&self, prediction: &Prediction) -> f64 {
        self.probability(prediction) * self.estimated_ms(prediction).unwrap_or(UNKNOWN_MS) - COST_MS
    }

    /// The time that a wrong prediction costs, in milliseconds.
    pub fn cost_ms(&self, prediction: &Prediction) -> f64 {
        self.estimated_ms(prediction).unwrap_or(UNKNOWN_MS) + COST_MS
    }

    /// A cautious estimate of a prediction's probability.
    fn probability(&self, prediction: &Prediction) -> f64 {
        let (won, lost) = prediction.source.prior();
        let trust = if prediction.source.is_guess() {
            let learned = self.learned(prediction);
            lower_bound(learned.came + won, learned.offered + won + lost)
        } else {
            let (right, all) = self.told.get(&prediction.source).copied().unwrap_or_default();
            lower_bound(right + won, all + won + lost)
        };
        prediction.probability.clamp(0.0, 1.0) * trust
    }

    /// The estimated time of a prediction's code, in milliseconds. For a guess, the mean time of its kind in this session, if known.
    fn estimated_ms(&self, prediction: &Prediction) -> Option<f64> {
        let Learned { ms, measured, .. } = self.learned(prediction);
        let known = (prediction.source.is_guess() && measured > 0.0).then(|| ms / measured);
        known.or(prediction.estimated_ms)
    }

    fn learned(&self, prediction: &Prediction) -> Learned {
        let kind = (prediction.source, prediction.description);
        self.learned.get(&kind).cloned().unwrap_or_default()
    }

    // ---- guesses ----

    /// Replaces the guesses. The best guess waits to be tried, if it is worth its cost and no hinted or written code waits.
    pub fn offer(&mut self, guesses: Vec<Prediction>) {
        self.offered = guesses;
        let best = self.best_guess().cloned();
        if self.waiting.iter().all(|waiting| waiting.source.is_guess()) {
            self.waiting = best.into_iter().collect();
            (self.is_new, self.is_worth_it) = (!self.waiting.is_empty(), false);
        }
    }

    /// The guess that saves the most time, if any guess is expected to save time.
    pub fn best_guess(&self) -> Option<&Prediction> {
        let savings = self.offered.iter().map(|guess| (self.expected_saving(guess), guess));
        let best = savings.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.filter(|(saving, _)| *saving > 0.0).map(|(_, guess)| guess)
    }

    /// The guesses for the present state, with the probabilities and times of this session. The most worthwhile guess comes first.
    pub fn offered(&self) -> Vec<Prediction> {
        let mut offered: Vec<_> = self
            .offered
            .iter()
            .map(|guess| {
                let learned = Prediction {
                    probability: self.probability(guess),
                    estimated_ms: self.estimated_ms(guess),
                    ..guess.clone()
                };
                (self.expected_saving(guess), learned)
            })
            .collect();
        offered.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        offered.into_iter().map(|(_, guess)| guess).collect()
    }

    /// Records the code that came, and learns from the guesses for this moment.
    pub fn came(&mut self, code: &str) {
        let offered = std::mem::take(&mut self.offered);
        let kind = |guess: &Prediction| (guess.source, guess.description);
        self.came = offered.iter().filter(|guess| guess.code == code).map(kind).collect();
        for kind in offered.iter().map(kind).collect::<BTreeSet<_>>() {
            let learned = self.learned.entry(kind).or_default();
            learned.offered += 1.0;
            learned.came += f64::from(u8::from(self.came.contains(&kind)));
        }
    }

    /// Records the time of the code that came, in milliseconds.
    pub fn took(&mut self, ms: f64) {
        for kind in std::mem::take(&mut self.came) {
            let learned = self.learned.entry(kind).or_default();
            learned.ms += ms;
            learned.measured += 1.0;
        }
    }

    /// Takes the prediction that saves the most time. If none is worth its cost, returns `None` and drops all. This is decided once for
    /// each list, by its best prediction and the success of earlier lists.
    pub fn choose(&mut self) -> Option<Prediction> {
        let savings = self.waiting.iter().map(|prediction| self.expected_saving(prediction));
        let (at, best) = savings
            .enumerate()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        if best <= 0.0 && !self.is_worth_it {
            self.refused += 1;
            // Guesses need no trial, because the next code shows which of them were right.
            let is_guess = self.waiting.get(at).is_some_and(|best| best.source.is_guess());
            if is_guess || !self.refused.is_multiple_of(PROBE) {
                self.waiting.clear();
                return None;
            }
        }
        self.is_worth_it = true;
        Some(self.waiting.remove(at))
    }

    /// The outcomes so far, by source.
    pub fn tallies(&self) -> &BTreeMap<Source, Tally> {
        &self.tallies
    }

    /// The counts of a source.
    pub fn tally(&mut self, source: Source) -> &mut Tally {
        self.tallies.entry(source).or_default()
    }
}
