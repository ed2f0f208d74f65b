//! Work that is done before anybody asks for it: which code is worth running ahead, and the shadow that runs it.
//!
//! It only reads the session's interpreter. It hears what becomes of that one's state, since whatever changes it ends a shadow: that began
//! with another.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::collections::BTreeMap;

use super::commands::Queued;
use super::exchange::Job;
use super::guesses::Guesses;
use super::interpreter::Interpreter;
use super::shadow::{Check, InVain, Promotion, Shadow, Stage, Writing, goes_on};
use super::{Body, GuestEffect, GuestInput, ShadowId};
use crate::deadline::earliest;
use crate::limits::{CHECK_MS, MAX_WRITTEN_BYTES, PROMOTION_MS};
use crate::protocol::Request;
use crate::speculate::{Prediction, Predictor, Share, Source, Tally};

/// By how much two clocks may differ that are so far apart: whoever is woken by one must be late by the other.
const ROUNDING_MS: f64 = 0.001;

/// A step that shadows ask for, to be done in order.
#[derive(Debug)]
pub(super) enum ShadowEffect<B> {
    /// With a shadow's guest.
    Guest(ShadowId, GuestEffect<B>),
    /// A shadow's guest, which is at rest, is not needed any more.
    Park(ShadowId),
    /// A shadow's guest takes the place of the session's own.
    Promote(ShadowId),
    /// Ask the session's own guest, which is at rest.
    Ask(Request),
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shadows<B> {
    pub(super) predictor: Predictor,
    pub(super) share: Share,
    /// None where nothing is guessed.
    pub(super) guesses: Option<Guesses>,
    /// The time of the input that is being handled.
    now: f64,
    writing: Option<Writing>,
    pub(super) shadow: Option<Shadow<B>>,
    last_shadow: ShadowId,
    last_check: u32,
    answered_check: u32,
    effects: Vec<ShadowEffect<B>>,
}

impl<B: Body> Shadows<B> {
    /// None yet; `most` is the share of time that may be spent in vain.
    pub(super) fn within(most: f64) -> Self {
        Self {
            predictor: Predictor::default(),
            share: Share::new(most),
            guesses: None,
            now: 0.0,
            writing: None,
            shadow: None,
            last_shadow: 0,
            last_check: 0,
            answered_check: 0,
            effects: Vec::new(),
        }
    }

    /// Steps to be done.
    pub(super) fn take_effects(&mut self) -> Vec<ShadowEffect<B>> {
        std::mem::take(&mut self.effects)
    }

    /// An input comes at this time.
    pub(super) fn look_at_clock(&mut self, now: f64) {
        self.now = now;
        self.share.begin(now);
    }

    /// The success of predictions, by their source.
    pub(super) fn tallies(&self) -> BTreeMap<Source, Tally> {
        self.predictor.tallies().clone()
    }

    /// Returns true when there is something to run as soon as there is a copy.
    pub(super) fn want_a_copy(&self) -> bool {
        !self.predictor.is_empty() || self.writing.as_ref().is_some_and(|writing| !writing.tried)
    }

    /// The time at which to look again, if nothing else happens. `is_idle`: whether the session's guest is at rest.
    pub(super) fn wake_at(&self, is_idle: bool) -> Option<f64> {
        let shadow = self.shadow.as_ref()?;
        let more = self.writing.as_ref();
        let more = more.filter(|writing| is_idle && shadow.can_take(writing));
        let stage = match shadow.stage {
            Stage::Preparing | Stage::Running(_) => {
                let over = self.share.ends_at(self.now, shadow.busy_ms(self.now));
                let over = over.filter(|_| shadow.is_guess());
                earliest(shadow.copy_wakes_at(), over).map(|at| at + ROUNDING_MS)
            }
            Stage::Asked(_, since) => Some(since + PROMOTION_MS),
            Stage::Waiting(_) if more.is_some() => Some(shadow.extends_at(more)),
            Stage::Over(_) | Stage::Waiting(_) => Some(shadow.gives_up_at()),
        };
        match shadow.check {
            Check::Asked(_, since) => earliest(stage, Some(since + CHECK_MS)),
            Check::NotAsked | Check::Passed => stage,
        }
    }

    // ---- what may come ----

    /// See [`super::Input::Hint`].
    pub(super) fn predict(&mut self, predictions: Vec<Prediction>) {
        if let Some(writing) = &mut self.writing {
            let is_more = |code: &&String| code.len() <= MAX_WRITTEN_BYTES && goes_on(code, &writing.code);
            let whole = predictions.iter().map(|prediction| &prediction.code).find(is_more);
            writing.whole = whole.cloned();
        }
        self.predictor.predict(predictions);
    }

    /// See [`super::Input::Written`].
    pub(super) fn written(&mut self, code: String, timeout_ms: Option<f64>) {
        let before = self.writing.take();
        if code.is_empty() || code.len() > MAX_WRITTEN_BYTES {
            return;
        }
        let before = before.filter(|before| goes_on(&code, &before.code));
        let tried = before.as_ref().is_some_and(|before| before.tried);
        let whole = before.and_then(|before| before.whole);
        let whole = whole.filter(|whole| goes_on(whole, &code));
        self.writing = Some(Writing {
            code,
            timeout_ms,
            tried,
            whole,
        });
    }

    // ---- what becomes of the state ----

    /// The state may be another from now on.
    pub(super) fn state_changes(&mut self) {
        self.end();
        self.forget_guesses();
    }

    // ---- running ahead ----

    /// Runs what is likely to come, when there is nothing to do and the state is safe.
    pub(super) fn run_next(&mut self, now: f64, interpreter: &Interpreter<B>) {
        if !interpreter.is_at_rest() {
            return;
        }
        let next = interpreter.last_execution + 1;
        if self.shadow.as_ref().is_some_and(|shadow| shadow.execution != next) {
            self.end(); // the execution that it was for was taken back
        }
        if self.writing.is_some() {
            return self.follow_writing(now, interpreter);
        }
        if self.shadow.as_ref().is_some_and(Shadow::is_written) {
            self.end(); // nobody writes any more
        }
        if self.predictor.is_empty() {
            return;
        }
        if self.share.left(now) <= 0.0 {
            return self.predictor.forget(); // too much was in vain
        }
        if let Some(shadow) = &self.shadow {
            if self.predictor.expects(&shadow.prediction.code) {
                return self.predictor.forget(); // it is under way already
            }
            self.end();
        }
        let Some(copy) = interpreter.exact_copy() else { return };
        let Some(prediction) = self.predictor.choose() else {
            return;
        };
        self.predictor.forget();
        self.start(now, copy, prediction, None);
    }

    /// Runs what there is of code that is being written. It comes for certain, so that nothing else is worth trying.
    fn follow_writing(&mut self, now: f64, interpreter: &Interpreter<B>) {
        self.predictor.forget();
        let Some(writing) = &self.writing else { return };
        match &mut self.shadow {
            Some(shadow) if shadow.is_written() && shadow.may_be_of(writing) => {
                // Not before the copy has compiled and run it: it may be what nobody asks for. The guest is idle now, and not when it has come.
                if shadow.is_over_as_a_whole() && shadow.check == Check::NotAsked {
                    let whole = shadow.prediction.code.clone();
                    return self.ask_check(now, whole);
                }
                shadow.extend(now, writing);
                return self.follow_shadow();
            }
            Some(shadow) if !shadow.is_written() && shadow.prediction.code.starts_with(&writing.code) => return, // as was hinted
            Some(_) => self.end(),
            None => {}
        }
        let Some(writing) = self.writing.as_mut().filter(|writing| !writing.tried) else {
            return;
        };
        let Some(copy) = interpreter.exact_copy() else { return };
        writing.tried = true;
        let timeout_ms = writing.timeout_ms;
        let prediction = Prediction::told(0, writing.code.clone(), Source::Stream, 1.0);
        self.predictor.predict(vec![prediction]);
        if let Some(prediction) = self.predictor.choose() {
            self.start(now, copy, prediction, timeout_ms);
        }
    }

    /// Has a copy of the interpreter run code.
    fn start(&mut self, now: f64, copy: Interpreter<B>, prediction: Prediction, timeout_ms: Option<f64>) {
        self.tally(prediction.source).started += 1;
        self.tried(prediction.source);
        self.last_shadow = self.last_shadow.wrapping_add(1);
        self.shadow = Some(Shadow::new(now, self.last_shadow, copy, prediction, timeout_ms));
        self.with_shadow(|shadow| shadow.tick(now));
    }

    /// Something comes from a shadow's guest.
    pub(super) fn guest_input(&mut self, now: f64, id: ShadowId, input: GuestInput<B>) {
        if self.shadow.as_ref().is_some_and(|shadow| shadow.id == id) {
            self.with_shadow(|shadow| shadow.guest_input(now, input));
        }
    }

    /// Ends what has taken too long.
    pub(super) fn check_time(&mut self, now: f64) {
        let Some(shadow) = &self.shadow else { return };
        let late = matches!(shadow.check, Check::Asked(_, since) if now >= since + CHECK_MS);
        match shadow.stage {
            _ if late => self.end(),
            // What is told may take as long as it needs.
            Stage::Preparing | Stage::Running(_)
                if shadow.is_guess() && self.share.left(now) <= shadow.busy_ms(now) =>
            {
                self.end();
            }
            Stage::Preparing | Stage::Running(_) => self.with_shadow(|shadow| shadow.tick(now)),
            Stage::Asked(_, since) if now < since + PROMOTION_MS => {}
            Stage::Over(_) | Stage::Waiting(_) if now < shadow.gives_up_at() => {}
            Stage::Asked(..) | Stage::Over(_) | Stage::Waiting(_) => {
                if shadow.is_written() {
                    self.writing = None; // nobody has gone on with it
                }
                self.end();
            }
        }
    }

    /// Does something with the shadow, and ends it when that shows that it is in vain.
    fn with_shadow(&mut self, act: impl FnOnce(&mut Shadow<B>) -> Result<(), InVain>) {
        let Some(shadow) = &mut self.shadow else { return };
        let goes_on = act(shadow);
        self.follow_shadow();
        if let Err(InVain) = goes_on {
            self.end();
        }
    }

    /// Takes what the shadow wants done, and counts it when it has finished.
    fn follow_shadow(&mut self) {
        let Some(shadow) = &mut self.shadow else { return };
        let id = shadow.id;
        let effects = shadow.take_effects().into_iter();
        self.effects
            .extend(effects.map(|effect| ShadowEffect::Guest(id, effect)));
        if shadow.is_finished && !std::mem::replace(&mut shadow.is_counted, true) {
            let source = shadow.prediction.source;
            self.tally(source).finished += 1;
        }
    }

    /// Ends the shadow, when there is one.
    pub(super) fn end(&mut self) {
        if let Some(shadow) = self.shadow.take() {
            let spent_ms = shadow.busy_ms(self.now).max(0.0);
            self.share.waste(spent_ms);
            let tally = self.tally(shadow.prediction.source);
            tally.wasted += 1;
            tally.time_wasted += spent_ms;
            self.effects.push(if shadow.is_at_rest() {
                ShadowEffect::Park(shadow.id)
            } else {
                ShadowEffect::Guest(shadow.id, GuestEffect::Kill)
            });
        }
    }

    // ---- its code comes ----

    /// Returns true when what comes next is what the shadow runs, and it is not certain yet that its guest may take over.
    pub(super) fn are_joined(&mut self, now: f64, interpreter: &Interpreter<B>) -> bool {
        let (Some(shadow), Some(Queued::Job(Job::Execute(execution)))) = (&mut self.shadow, interpreter.front()) else {
            return false;
        };
        if !shadow.can_be_asked() || !shadow.is(execution, now, &interpreter.budget) {
            return false;
        }
        if shadow.is_written() {
            match shadow.check {
                Check::Passed if shadow.checked == execution.code => {}
                Check::Asked(..) if shadow.checked == execution.code => return true,
                _ => {
                    self.ask_check(now, execution.code.clone());
                    return true;
                }
            }
        }
        match shadow.stage {
            Stage::Asked(..) => true,
            // What a fork does to the world waits until it has taken over: it may do so at any time.
            Stage::Running(_) if !interpreter.forks => {
                shadow.ask(now, &execution.code);
                self.follow_shadow();
                true
            }
            _ => false,
        }
    }

    /// Asks the session's own guest whether code may have run piece by piece.
    fn ask_check(&mut self, now: f64, code: String) {
        if let Some(shadow) = &mut self.shadow {
            self.last_check += 1;
            let check = self.last_check;
            shadow.check = Check::Asked(check, now);
            shadow.checked.clone_from(&code);
            self.ask(Request::Check { check, code });
        }
    }

    /// Asks the session's own guest something.
    pub(super) fn ask(&mut self, request: Request) {
        self.effects.push(ShadowEffect::Ask(request));
    }

    /// The session's own guest says whether code may have run piece by piece. An error is a violation.
    pub(super) fn checked(&mut self, check: u32, plain: bool) -> Result<(), &'static str> {
        if check <= self.answered_check || check > self.last_check {
            return Err("a check that nobody asked for");
        }
        self.answered_check = check;
        match &mut self.shadow {
            Some(shadow) if matches!(shadow.check, Check::Asked(number, _) if number == check) => {
                shadow.check = Check::Passed;
                if !plain {
                    self.end();
                }
            }
            _ => {} // it took too long
        }
        Ok(())
    }

    /// Has the shadow's guest take over when it ran what is to begin now. All that was predicted for this moment is forgotten.
    pub(super) fn promote(&mut self, now: f64, job: &Job<B>, interpreter: &Interpreter<B>) -> Option<Promotion<B>> {
        let Job::Execute(execution) = job else { return None };
        self.predictor.forget();
        self.predictor.came(&execution.code);
        self.writing = None;
        let shadow = self.shadow.as_ref()?;
        let exchange = shadow.can_take_over(execution, interpreter.forks)?;
        if !interpreter.may_run() || !shadow.is(execution, now, &interpreter.budget) {
            return None;
        }
        let mut shadow = self.shadow.take()?;
        let (promotion, saved_ms) = shadow.promotion(now, exchange, &execution.code, interpreter.forks);
        let effects = shadow.take_effects().into_iter();
        self.effects
            .extend(effects.map(|effect| ShadowEffect::Guest(shadow.id, effect)));
        self.effects.push(ShadowEffect::Promote(shadow.id));
        let tally = self.tally(shadow.prediction.source);
        tally.used += 1;
        tally.time_saved += saved_ms;
        Some(promotion)
    }

    pub(super) fn tally(&mut self, source: Source) -> &mut Tally {
        self.predictor.tally(source)
    }
}
