//! All shadows of a session: the choice of code that runs ahead, and the start, the end and the promotion of its shadows.
//!
//! This part only reads the session's interpreter. It is told of each change of the interpreter's state. A change ends all shadows,
//! because they began with the earlier state.
//!
//! Each code of a hint has a shadow of its own. The likeliest code begins first, and another one whenever a processor is free. A finished
//! shadow waits for its code to be asked for. When there is no room for another shadow, the least likely one is ended. Code that is being
//! written, or guessed, has one shadow.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::collections::BTreeMap;

use super::calls_ahead::AheadOfCalls;
use super::commands::Queued;
use super::exchange::Job;
use super::guesses::Guesses;
use super::interpreter::Interpreter;
use super::shadow::{Check, InVain, Promotion, Shadow, Stage, Writing, goes_on};
use super::{Body, GuestEffect, GuestInput, HostEffect, ShadowId};
use crate::deadline::earliest;
use crate::limits::{CHECK_MS, Limits, MAX_AHEAD_BYTES, MAX_COPIES, MAX_FORKS, MAX_WRITTEN_BYTES, PROMOTION_MS};
use crate::predictions::{Prediction, Predictor, Share, Source, Tally};
use crate::protocol::Request;

/// Added to the time at which a shadow's clock is due. That clock is computed from the session's, and the computation rounds. Without
/// this, the session could wake a moment too early by the shadow's clock.
const ROUNDING_MS: f64 = 0.001;

/// The memory of a guest without any state, in bytes.
const GUEST_BYTES: f64 = 64.0 * 1024.0 * 1024.0;

/// A step that shadows ask for. Steps must be done in order.
#[derive(Debug)]
pub(super) enum ShadowEffect<B> {
    /// Acts on a shadow's guest.
    Guest(ShadowId, GuestEffect<B>),
    /// Gives up a shadow's guest. It is at rest, so it can be parked.
    Park(ShadowId),
    /// Makes a shadow's guest the session's own.
    Promote(ShadowId),
    /// Asks the session's own guest, which is at rest.
    Ask(Request),
    /// Begins a host call ahead, or aborts it.
    Host(HostEffect<B>),
}

/// The room for shadows.
#[derive(Debug)]
struct Room {
    /// The most shadows that are kept.
    most: usize,
    /// The most shadows that run at the same time.
    at_once: usize,
    /// The most bytes of state in all shadows together, if each has a state of its own.
    bytes: f64,
    /// The most shadows for which memory suffices, as far as the driver has reported.
    proven: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shadows<B> {
    pub(super) predictor: Predictor,
    pub(super) share: Share,
    /// `None` if the session makes no guesses.
    pub(super) guesses: Option<Guesses>,
    /// The time of the input that is being handled.
    now: f64,
    writing: Option<Writing>,
    /// The shadows, the likeliest first.
    pub(super) shadows: Vec<Shadow<B>>,
    room: Room,
    /// The source of hinted or written code that was tried. `None` once it is known if any of that code came.
    trial: Option<Source>,
    last_shadow: ShadowId,
    last_check: u32,
    answered_check: u32,
    pub(super) calls: AheadOfCalls<B>,
    pub(super) effects: Vec<ShadowEffect<B>>,
}

impl<B: Body> Shadows<B> {
    /// No shadows yet.
    pub(super) fn within(limits: &Limits) -> Self {
        Self {
            predictor: Predictor::default(),
            share: Share::new(limits.max_ahead_share),
            guesses: None,
            now: 0.0,
            writing: None,
            shadows: Vec::new(),
            room: Room {
                most: limits.max_shadows.unwrap_or(MAX_COPIES) as usize,
                at_once: 1,
                bytes: f64::INFINITY,
                proven: usize::MAX,
            },
            trial: None,
            last_shadow: 0,
            last_check: 0,
            answered_check: 0,
            calls: AheadOfCalls::default(),
            effects: Vec::new(),
        }
    }

    /// Declares that shadows are forks. Their guests share memory with the session's own.
    pub(super) fn are_forks(&mut self, limits: &Limits) {
        self.room.most = limits.max_shadows.unwrap_or(MAX_FORKS) as usize;
    }

    /// Sets the number of processors for shadows, and the bytes of state that they may hold together.
    pub(super) fn on(&mut self, processors: usize, bytes: f64) {
        self.room.at_once = processors.max(1);
        self.room.bytes = bytes;
    }

    /// Takes the steps to be done.
    pub(super) fn take_effects(&mut self) -> Vec<ShadowEffect<B>> {
        std::mem::take(&mut self.effects)
    }

    /// Records the time of the input that is being handled.
    pub(super) fn look_at_clock(&mut self, now: f64) {
        self.now = now;
        self.share.begin(now);
    }

    /// The success of predictions, by their source.
    pub(super) fn tallies(&self) -> BTreeMap<Source, Tally> {
        self.predictor.tallies().clone()
    }

    /// Returns true when code waits for a copy of the interpreter.
    pub(super) fn want_a_copy(&self) -> bool {
        !self.predictor.is_empty() || self.writing.as_ref().is_some_and(|writing| !writing.tried)
    }

    /// The time at which to look at the shadows, if no input comes before. `is_idle` is true if the session's guest is at rest.
    pub(super) fn wake_at(&self, is_idle: bool) -> Option<f64> {
        let times = self.shadows.iter().map(|shadow| self.wakes_at(shadow, is_idle));
        times.fold(None, earliest)
    }

    fn wakes_at(&self, shadow: &Shadow<B>, is_idle: bool) -> Option<f64> {
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

    /// Ends all shadows and forgets the guesses, because the state may change.
    pub(super) fn state_changes(&mut self) {
        self.end();
        self.forget_guesses();
    }

    /// Ends the least likely shadow, because memory is short. Until all shadows have ended, no more than the remaining number are kept.
    pub(super) fn memory_is_short(&mut self) {
        if self.shadows.len() > 1
            && let Some(id) = self.least_likely().map(|shadow| shadow.id)
        {
            self.end_those(&[id]);
        }
        self.room.proven = self.shadows.len().max(1);
    }

    // ---- running ahead ----

    /// Runs code ahead, if the session's guest is at rest.
    pub(super) fn run_next(&mut self, now: f64, interpreter: &Interpreter<B>) {
        if !interpreter.is_at_rest() {
            return;
        }
        let next = interpreter.last_execution + 1;
        self.end_where(|shadow| shadow.execution != next); // its execution is no longer the next one
        if self.writing.is_some() {
            return self.follow_writing(now, interpreter);
        }
        self.end_where(Shadow::is_written); // no code is being written
        if self.predictor.is_empty() {
            return;
        }
        if self.share.left(now) <= 0.0 {
            return self.predictor.forget(); // too much time was wasted
        }
        if self.predictor.take_new() {
            self.keep_expected();
        }
        self.start_expected(now, interpreter);
    }

    /// Takes a new list of predictions. Shadows whose code is in the list are kept, and the others are ended.
    fn keep_expected(&mut self) {
        let mut vain = Vec::new();
        for shadow in &mut self.shadows {
            match self.predictor.take(&shadow.prediction.code) {
                Some(expected) => shadow.prediction.probability = expected.probability,
                None => vain.push(shadow.id),
            }
        }
        self.end_those(&vain);
        if self.shadows.is_empty() {
            self.end_trial();
        }
        self.sort();
    }

    /// Starts shadows for the predictions, the likeliest first, as long as there is room.
    fn start_expected(&mut self, now: f64, interpreter: &Interpreter<B>) {
        while !self.predictor.is_empty() && self.has_processor() {
            // At most one shadow is promoted. The time of all others is wasted, and must fit into the share.
            let spent_ms: f64 = self.shadows.iter().map(|shadow| shadow.busy_ms(now)).sum();
            if !self.shadows.is_empty() && self.share.left(now) <= spent_ms {
                return self.predictor.forget();
            }
            let Some(copy) = interpreter.exact_copy() else { return };
            if !self.has_room(&copy) {
                let likeliest = self.predictor.likeliest();
                match self.least_likely() {
                    Some(last) if last.prediction.probability < likeliest => {
                        let last = last.id;
                        self.end_those(&[last]);
                    }
                    _ => return,
                }
            }
            let Some(prediction) = self.predictor.choose() else {
                return;
            };
            self.start(now, copy, prediction, None);
        }
    }

    /// Returns true when a processor is free for another shadow.
    fn has_processor(&self) -> bool {
        self.shadows.iter().filter(|shadow| shadow.is_at_work()).count() < self.room.at_once
    }

    /// Returns true when there is room for another shadow with this state.
    fn has_room(&self, copy: &Interpreter<B>) -> bool {
        let Room {
            most, bytes, proven, ..
        } = self.room;
        let count = self.shadows.len();
        #[expect(clippy::cast_precision_loss, reason = "a few")]
        let needed = (count + 1) as f64 * (copy.checkpoints.chain.bytes() + GUEST_BYTES);
        count == 0 || (count < most.min(proven) && needed <= bytes)
    }

    fn least_likely(&self) -> Option<&Shadow<B>> {
        self.shadows.last()
    }

    fn sort(&mut self) {
        let probability = |shadow: &Shadow<B>| shadow.prediction.probability;
        self.shadows
            .sort_by(|one, other| probability(other).total_cmp(&probability(one)));
    }

    /// Runs the present part of the code that is being written. This code is certain to come, so all predictions are forgotten.
    fn follow_writing(&mut self, now: f64, interpreter: &Interpreter<B>) {
        self.predictor.forget();
        let Some(writing) = self.writing.take() else { return };
        self.end_where(|shadow| {
            let goes_with_it = if shadow.is_written() {
                shadow.may_be_of(&writing)
            } else {
                shadow.prediction.code.starts_with(&writing.code) // its code was hinted as a whole
            };
            !goes_with_it
        });
        let writing = self.writing.insert(writing);
        if let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.is_written()) {
            let id = shadow.id;
            // The check comes after the copy has run all of the code, because that code may not be the one that is asked for. It comes
            // before the code is asked for, because the session's guest is idle until then.
            if shadow.is_over_as_a_whole() && shadow.check == Check::NotAsked {
                let whole = shadow.prediction.code.clone();
                return self.ask_check(now, id, whole);
            }
            shadow.extend(now, writing);
            return self.follow_shadow(id);
        }
        if writing.tried || !self.shadows.is_empty() {
            return;
        }
        let Some(copy) = interpreter.exact_copy() else { return };
        writing.tried = true;
        let timeout_ms = writing.timeout_ms;
        let prediction = Prediction::told(0, writing.code.clone(), Source::Stream, 1.0);
        self.predictor.predict(vec![prediction]);
        if let Some(prediction) = self.predictor.choose() {
            self.start(now, copy, prediction, timeout_ms);
        }
    }

    /// Starts a shadow: a copy of the interpreter that runs the predicted code.
    fn start(&mut self, now: f64, copy: Interpreter<B>, prediction: Prediction, timeout_ms: Option<f64>) {
        let source = prediction.source;
        self.tally(source).started += 1;
        self.tried(source);
        if !source.is_guess() {
            self.trial = Some(source);
        }
        self.last_shadow = self.last_shadow.wrapping_add(1);
        let id = self.last_shadow;
        self.shadows.push(Shadow::new(now, id, copy, prediction, timeout_ms));
        self.sort();
        self.with_shadow(id, |shadow| shadow.tick(now));
    }

    /// Takes an input from a shadow's guest.
    pub(super) fn guest_input(&mut self, now: f64, id: ShadowId, input: GuestInput<B>) {
        self.with_shadow(id, |shadow| shadow.guest_input(now, input));
        // The events of all shadows are kept here, and share one limit.
        while self.shadows.iter().map(|shadow| shadow.bytes).sum::<f64>() > MAX_AHEAD_BYTES {
            let Some(id) = self.least_likely().map(|shadow| shadow.id) else {
                return;
            };
            self.end_those(&[id]);
        }
    }

    /// Ends shadows that have taken too long.
    pub(super) fn check_time(&mut self, now: f64) {
        let ids: Vec<ShadowId> = self.shadows.iter().map(|shadow| shadow.id).collect();
        for id in ids {
            self.check_time_of(now, id);
        }
    }

    fn check_time_of(&mut self, now: f64, id: ShadowId) {
        let Some(shadow) = self.shadows.iter().find(|shadow| shadow.id == id) else {
            return;
        };
        let late = matches!(shadow.check, Check::Asked(_, since) if now >= since + CHECK_MS);
        match shadow.stage {
            _ if late => self.end_those(&[id]),
            // Only guesses are stopped for the share. Hinted and written code may take as long as it needs.
            Stage::Preparing | Stage::Running(_)
                if shadow.is_guess() && self.share.left(now) <= shadow.busy_ms(now) =>
            {
                self.end_those(&[id]);
            }
            Stage::Preparing | Stage::Running(_) => self.with_shadow(id, |shadow| shadow.tick(now)),
            Stage::Asked(_, since) if now < since + PROMOTION_MS => {}
            Stage::Over(_) | Stage::Waiting(_) if now < shadow.gives_up_at() => {}
            Stage::Asked(..) | Stage::Over(_) | Stage::Waiting(_) => {
                if shadow.is_written() {
                    self.writing = None; // no more code came in time
                }
                self.end_those(&[id]);
            }
        }
    }

    /// Acts on a shadow. Ends the shadow if the act shows that it is in vain.
    fn with_shadow(&mut self, id: ShadowId, act: impl FnOnce(&mut Shadow<B>) -> Result<(), InVain>) {
        let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.id == id) else {
            return;
        };
        let goes_on = act(shadow);
        self.follow_shadow(id);
        if let Err(InVain) = goes_on {
            self.end_those(&[id]);
        }
    }

    /// Takes a shadow's effects. Counts the shadow when it has finished.
    fn follow_shadow(&mut self, id: ShadowId) {
        let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.id == id) else {
            return;
        };
        let effects = shadow.take_effects().into_iter();
        self.effects
            .extend(effects.map(|effect| ShadowEffect::Guest(id, effect)));
        if shadow.is_finished && !std::mem::replace(&mut shadow.is_counted, true) {
            let source = shadow.prediction.source;
            self.tally(source).finished += 1;
        }
    }

    /// Ends all shadows.
    pub(super) fn end(&mut self) {
        self.end_where(|_| true);
    }

    fn end_those(&mut self, ids: &[ShadowId]) {
        self.end_where(|shadow| ids.contains(&shadow.id));
    }

    fn end_where(&mut self, is_vain: impl Fn(&Shadow<B>) -> bool) {
        let vain: Vec<_> = self.shadows.extract_if(.., |shadow| is_vain(shadow)).collect();
        for mut shadow in vain {
            self.leave_calls(&mut shadow);
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
        if self.shadows.is_empty() {
            self.room.proven = usize::MAX;
            if self.predictor.is_empty() {
                self.end_trial();
            }
        }
    }

    /// Records that none of the hinted or written code came.
    fn end_trial(&mut self) {
        if let Some(source) = self.trial.take() {
            self.predictor.turned_out(source, false);
        }
    }

    // ---- a shadow's code is asked for ----

    /// Returns true when a shadow runs the next command's code, but must not be promoted yet. Asks for the consent that is missing: that of
    /// the session's own guest for written code, and that of the shadow's guest if it is at work.
    pub(super) fn are_joined(&mut self, now: f64, interpreter: &Interpreter<B>) -> bool {
        let Some(Queued::Job(Job::Execute(execution))) = interpreter.front() else {
            return false;
        };
        let budget = &interpreter.budget;
        let mut shadows = self.shadows.iter_mut();
        let Some(shadow) = shadows.find(|shadow| shadow.can_be_asked() && shadow.is(execution, now, budget)) else {
            return false;
        };
        let id = shadow.id;
        if shadow.is_written() {
            match shadow.check {
                Check::Passed if shadow.checked == execution.asked.code => {}
                Check::Asked(..) if shadow.checked == execution.asked.code => return true,
                _ => {
                    self.ask_check(now, id, execution.asked.code.clone());
                    return true;
                }
            }
        }
        match shadow.stage {
            Stage::Asked(..) => true,
            // A fork may take over at any time, because its effects on the world wait until then.
            Stage::Running(_) if !interpreter.forks => {
                shadow.ask(now, &execution.asked.code);
                self.follow_shadow(id);
                true
            }
            _ => false,
        }
    }

    /// Asks the session's own guest if code may have run piece by piece.
    fn ask_check(&mut self, now: f64, id: ShadowId, code: String) {
        if let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.id == id) {
            self.last_check += 1;
            let check = self.last_check;
            shadow.check = Check::Asked(check, now);
            shadow.checked.clone_from(&code);
            self.ask(Request::Check { check, code });
        }
    }

    /// Sends the session's own guest a question.
    pub(super) fn ask(&mut self, request: Request) {
        self.effects.push(ShadowEffect::Ask(request));
    }

    /// Takes the answer of the session's own guest. `plain` is true if the code may have run piece by piece. An error is a violation.
    pub(super) fn checked(&mut self, check: u32, plain: bool) -> Result<(), &'static str> {
        if check <= self.answered_check || check > self.last_check {
            return Err("a check that nobody asked for");
        }
        self.answered_check = check;
        let is_asked = |shadow: &&mut Shadow<B>| matches!(shadow.check, Check::Asked(number, _) if number == check);
        // No shadow waits for this answer if it took too long.
        if let Some(shadow) = self.shadows.iter_mut().find(is_asked) {
            shadow.check = Check::Passed;
            if !plain {
                let id = shadow.id;
                self.end_those(&[id]);
            }
        }
        Ok(())
    }

    /// Promotes the shadow that runs the code of a job, which is about to begin, and ends the others. Returns `None` if no shadow fits.
    /// Forgets all predictions in either case.
    pub(super) fn promote(&mut self, now: f64, job: &Job<B>, interpreter: &Interpreter<B>) -> Option<Promotion<B>> {
        let Job::Execute(execution) = job else { return None };
        self.predictor.forget();
        self.predictor.came(&execution.asked.code);
        self.writing = None;
        if !interpreter.may_run() {
            return None;
        }
        let takes_over = |shadow: &Shadow<B>| {
            let exchange = shadow.can_take_over(execution, interpreter.forks)?;
            shadow.is(execution, now, &interpreter.budget).then_some(exchange)
        };
        let mut shadows = self.shadows.iter().enumerate();
        let (at, exchange) = shadows.find_map(|(at, shadow)| Some((at, takes_over(shadow)?)))?;
        let mut shadow = self.shadows.remove(at);
        let (promotion, saved_ms) = shadow.promotion(now, exchange, &execution.asked.code, interpreter.forks);
        let effects = shadow.take_effects().into_iter();
        self.effects
            .extend(effects.map(|effect| ShadowEffect::Guest(shadow.id, effect)));
        self.effects.push(ShadowEffect::Promote(shadow.id));
        let tally = self.tally(shadow.prediction.source);
        tally.used += 1;
        tally.time_saved += saved_ms;
        if let Some(source) = self.trial.take() {
            self.predictor.turned_out(source, true);
        }
        self.end();
        Some(promotion)
    }

    pub(super) fn tally(&mut self, source: Source) -> &mut Tally {
        self.predictor.tally(source)
    }
}
