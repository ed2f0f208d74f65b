//! Tests of predictions, and of the share of time for them.
#![cfg(not(target_arch = "wasm32"))]

use proptest::prelude::*;
use sandglass_core::limits::{AHEAD_CREDIT_MS, MAX_PREDICTED_CHARS, MAX_PREDICTIONS};
use sandglass_core::predictions::{Prediction, Predictor, Share, Source, lower_bound};

fn prediction(id: u32, source: Source, probability: f64, estimated_ms: Option<f64>) -> Prediction {
    Prediction {
        estimated_ms,
        ..Prediction::told(id, format!("code {id}"), source, probability)
    }
}

#[test]
fn the_bound_is_wilsons() {
    // By hand, for z = 1: (0.8 + 1/20 - sqrt(0.16/10 + 1/400)) / 1.1
    let by_hand = (0.85 - (0.016_f64 + 0.0025).sqrt()) / 1.1;
    assert!((lower_bound(8.0, 10.0) - by_hand).abs() < 1e-12);
    assert!(lower_bound(0.0, 0.0) == 0.0);
}

#[test]
fn what_is_told_is_tried_before_what_is_guessed() {
    let mut predictor = Predictor::default();
    predictor.predict(vec![
        prediction(0, Source::Pattern, 0.9, Some(200.0)),
        prediction(1, Source::Explicit, 0.9, Some(200.0)),
    ]);
    assert_eq!(predictor.choose().map(|chosen| chosen.id), Some(1));
}

#[test]
fn what_takes_no_time_is_not_worth_its_cost() {
    let mut predictor = Predictor::default();
    predictor.predict(vec![prediction(0, Source::Explicit, 1.0, Some(5.0))]);
    assert_eq!(predictor.choose(), None);
    assert!(predictor.is_empty(), "it is not tried again and again");
}

#[test]
fn a_source_that_becomes_right_is_believed_again() {
    let mut predictor = Predictor::default();
    for _ in 0..40 {
        predictor.turned_out(Source::Explicit, false);
    }
    let mut tries = 0;
    for _ in 0..2_000 {
        predictor.predict(vec![prediction(0, Source::Explicit, 1.0, None)]);
        if predictor.choose().is_some() {
            predictor.turned_out(Source::Explicit, true);
            tries += 1;
        }
    }
    assert!((1_000..2_000).contains(&tries), "{tries} of 2000");
}

proptest! {
    #[test]
    fn a_bound_is_a_probability_below_the_mean(won in 0.0..1e6_f64, lost in 0.0..1e6_f64) {
        let bound = lower_bound(won, won + lost);
        prop_assert!(bound >= 0.0 && bound <= won / (won + lost).max(f64::MIN_POSITIVE) + 1e-12);
        prop_assert!(lower_bound(won + 1.0, won + 1.0 + lost) >= bound);
        prop_assert!(lower_bound(won, won + lost + 1.0) <= bound);
    }

    #[test]
    fn a_share_is_of_the_time_since_the_begin(
        most in 0.0..1.0_f64,
        begun_at in 0.0..1e9_f64,
        passed in 0.0..1e9_f64,
        wasted in proptest::collection::vec(-10.0..1e4_f64, 0..20),
    ) {
        let mut share = Share::new(most);
        share.begin(begun_at);
        share.begin(begun_at + passed); // later calls change nothing
        let sum: f64 = wasted.iter().map(|ms| ms.max(0.0)).sum();
        for ms in wasted {
            share.waste(ms);
        }
        let left = share.left(begun_at + passed);
        prop_assert!((left - (most * (passed + AHEAD_CREDIT_MS) - sum)).abs() < 1e-3);
        prop_assert!(most > 0.0 || left <= 0.0, "without a share there is nothing");
    }

    #[test]
    fn the_chosen_one_is_expected_to_save_most(
        given in proptest::collection::vec((0..Source::ALL.len(), -0.5..1.5, proptest::option::of(0.0..5_000.0)), 0..40),
        came in proptest::collection::vec(any::<bool>(), 0..50),
    ) {
        let mut predictor = Predictor::default();
        for came in came {
            predictor.turned_out(Source::Explicit, came);
        }
        let given: Vec<_> = (0..).zip(given).map(|(id, (source, probability, ms))| {
            prediction(id, Source::ALL[source], probability, ms)
        }).collect();
        let kept = given.iter().filter(|one| one.probability > 0.0).take(MAX_PREDICTIONS);
        let best = kept.map(|one| predictor.expected_saving(one)).fold(0.0, f64::max);
        predictor.predict(given);
        match predictor.choose() {
            Some(chosen) => prop_assert!(predictor.expected_saving(&chosen) >= best && best > 0.0),
            None => prop_assert!(best <= 0.0),
        }
    }
}

#[test]
fn too_much_is_left_out() {
    let mut predictor = Predictor::default();
    let long = Prediction {
        code: "#".repeat(MAX_PREDICTED_CHARS + 1),
        ..prediction(0, Source::Explicit, 1.0, None)
    };
    predictor.predict(vec![long]);
    assert!(predictor.is_empty());
}
