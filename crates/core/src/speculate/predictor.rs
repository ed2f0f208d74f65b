//! Which prediction to run.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Prediction, Source, Tally, lower_bound};
use crate::limits::{MAX_PREDICTED_CHARS, MAX_PREDICTIONS};

/// The cost of a run ahead, in milliseconds: a guest that has to be replaced, and the state that it is given.
const COST_MS: f64 = 30.0;
/// The time assumed for code that nobody has an estimate of, in milliseconds.
const UNKNOWN_MS: f64 = 200.0;
/// One of so many that would be refused is run all the same: whether predictions have become better shows no other way.
const PROBE: u32 = 16;

/// Predictions of what comes next, and how earlier ones came true.
#[derive(Debug, Clone, Default)]
pub struct Predictor {
    waiting: Vec<Prediction>,
    /// True when what waits has not been looked at yet.
    is_new: bool,
    /// True when what waits is worth its cost.
    is_worth_it: bool,
    tallies: BTreeMap<Source, Tally>,
    /// How many lists of what was told had what came, and how many there were.
    told: BTreeMap<Source, (f64, f64)>,
    refused: u32,
    /// The guesses for the present state, whether it ran or not: so what comes teaches something about all of them.
    offered: Vec<Prediction>,
    learned: BTreeMap<Kind, Learned>,
    /// The guesses that have come true by what runs now.
    came: BTreeSet<Kind>,
}

/// Guesses that are learned of together: their source and description.
type Kind = (Source, &'static str);

/// The success of guesses of a kind in this session.
#[derive(Debug, Clone, Default)]
struct Learned {
    /// In how many states there were any, and in how many of those one of them was what came.
    offered: f64,
    came: f64,
    /// The time that those took, in milliseconds, and how many of them are known.
    ms: f64,
    measured: f64,
}

impl Predictor {
    /// Takes the code that may come next, instead of what was thought before. What is too much is left out.
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

    /// Returns true once for each list of what may come next.
    pub fn take_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    /// Takes this from what may come next, when it is there.
    pub fn take(&mut self, code: &str) -> Option<Prediction> {
        let at = self.waiting.iter().position(|known| known.code == code)?;
        Some(self.waiting.remove(at))
    }

    /// The highest probability of what waits; 0 when nothing does.
    pub fn likeliest(&self) -> f64 {
        let probabilities = self.waiting.iter().map(|prediction| prediction.probability);
        probabilities.fold(0.0, f64::max)
    }

    /// Nothing that was thought before holds any more.
    pub fn forget(&mut self) {
        self.waiting.clear();
        self.is_new = false;
    }

    /// A list of what was told, of which something has run, is over. `came`: whether one of it is what came.
    pub fn turned_out(&mut self, source: Source, came: bool) {
        let (right, all) = self.told.entry(source).or_default();
        *right += f64::from(u8::from(came));
        *all += 1.0;
    }

    /// Guesses are not to be tried.
    pub fn forget_guesses(&mut self) {
        self.waiting.retain(|waiting| !waiting.source.is_guess());
    }

    /// Returns true when there is anything to try.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The time that a prediction is expected to save, in milliseconds.
    pub fn expected_saving(&self, prediction: &Prediction) -> f64 {
        self.probability(prediction) * self.estimated_ms(prediction).unwrap_or(UNKNOWN_MS) - COST_MS
    }

    /// The time that it costs when it does not come true, in milliseconds.
    pub fn cost_ms(&self, prediction: &Prediction) -> f64 {
        self.estimated_ms(prediction).unwrap_or(UNKNOWN_MS) + COST_MS
    }

    /// A prediction's probability, as far as it is safe to say.
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

    /// The time that it would take: what its kind has taken in this session, where that is known.
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

    /// Takes guesses by the names that there are, instead of those before. The best of them waits to be tried, where it is
    /// worth that and nothing that was told does.
    pub fn offer(&mut self, guesses: Vec<Prediction>) {
        self.offered = guesses;
        let best = self.best_guess().cloned();
        if self.waiting.iter().all(|waiting| waiting.source.is_guess()) {
            self.waiting = best.into_iter().collect();
            (self.is_new, self.is_worth_it) = (!self.waiting.is_empty(), false);
        }
    }

    /// The guess that is worth most, when it is worth anything.
    pub fn best_guess(&self) -> Option<&Prediction> {
        let savings = self.offered.iter().map(|guess| (self.expected_saving(guess), guess));
        let best = savings.reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.filter(|(saving, _)| *saving > 0.0).map(|(_, guess)| guess)
    }

    /// The guesses for the present state, the most worthwhile first, as likely and as slow as this session has shown.
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

    /// This is what came; what was guessed is over.
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

    /// It took so long.
    pub fn took(&mut self, ms: f64) {
        for kind in std::mem::take(&mut self.came) {
            let learned = self.learned.entry(kind).or_default();
            learned.ms += ms;
            learned.measured += 1.0;
        }
    }

    /// Takes the prediction that is worth most; none when none is worth its cost, and then all are given up. That is decided once for all
    /// that was told together: by how often one of such a list was what came, and by the best of it.
    pub fn choose(&mut self) -> Option<Prediction> {
        let savings = self.waiting.iter().map(|prediction| self.expected_saving(prediction));
        let (at, best) = savings
            .enumerate()
            .reduce(|best, next| if next.1 > best.1 { next } else { best })?;
        if best <= 0.0 && !self.is_worth_it {
            self.refused += 1;
            // Of guesses it shows whether they run or not.
            let is_guess = self.waiting.get(at).is_some_and(|best| best.source.is_guess());
            if is_guess || !self.refused.is_multiple_of(PROBE) {
                self.waiting.clear();
                return None;
            }
        }
        self.is_worth_it = true;
        Some(self.waiting.remove(at))
    }

    /// The outcome so far.
    pub fn tallies(&self) -> &BTreeMap<Source, Tally> {
        &self.tallies
    }

    /// The counts of a source.
    pub fn tally(&mut self, source: Source) -> &mut Tally {
        self.tallies.entry(source).or_default()
    }
}
