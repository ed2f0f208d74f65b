//! Guesses at what comes next: the guest is asked what there is, and code is made of that.
//!
//! It is asked right after a turn, before the state is saved: so whatever that does to the guest's memory is in the copy, too. A guess runs
//! only when nobody has told anything, once in each state; once more when what is talked about is for other code.

use super::{Body, Guest, Session};
use crate::protocol::{Request, SurveyedVariable};
use crate::speculate::{Context, Prediction, Source};

/// What guesses are made of.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    context: Context,
    last_survey: u32,
    answered: u32,
    /// Whether the guest was asked what there is in the state as it is, and has told.
    is_asked: bool,
    is_known: bool,
    /// What was the source of the guess that was tried in this state.
    tried: Option<Source>,
}

impl<B: Body> Session<B> {
    /// The same with guesses at what comes next, which run when nothing else does.
    #[must_use]
    pub fn with_guesses(mut self) -> Self {
        self.ahead.guesses = Some(Guesses::default());
        self
    }

    /// What is guessed for the state as it is, the most worthwhile first.
    pub fn predictions(&self) -> Vec<Prediction> {
        self.ahead.predictor.offered()
    }

    /// Asks the guest what there is, when it has just become idle.
    pub(super) fn survey(&mut self) {
        let is_idle = self.guest == Guest::Up && self.turn.is_none() && self.queue.is_empty();
        let is_before_save = self.saves() && self.checkpoints.is_unsaved();
        // A fork is a copy whenever it is made.
        if !is_idle || !(self.forks || is_before_save) {
            return;
        }
        if let Some(guesses) = self.ahead.guesses.as_mut().filter(|guesses| !guesses.is_asked) {
            guesses.is_asked = true;
            guesses.last_survey += 1;
            let survey = guesses.last_survey;
            self.post(Request::Survey { survey }, None);
        }
    }

    /// The guest has told what there is.
    pub(super) fn surveyed(&mut self, now: f64, survey: u32, variables: Vec<SurveyedVariable>) {
        let Some(guesses) = self
            .ahead
            .guesses
            .as_mut()
            .filter(|guesses| survey > guesses.answered && survey <= guesses.last_survey)
        else {
            return self.violation(now, "a survey that nobody asked for");
        };
        guesses.answered = survey;
        if guesses.is_asked && survey == guesses.last_survey {
            guesses.is_known = true;
            guesses.context.surveyed(variables);
            self.guess(now);
        }
    }

    /// See [`super::Input::Conversation`].
    pub(super) fn converse(&mut self, now: f64, text: &str) {
        if let Some(guesses) = &mut self.ahead.guesses
            && guesses.context.converse(text)
            && guesses.is_known
        {
            self.guess(now);
        }
    }

    fn guess(&mut self, now: f64) {
        let Some(guesses) = &self.ahead.guesses else { return };
        self.ahead.predictor.offer(guesses.context.predictions());
        let best = self.ahead.predictor.best_guess();
        let cost_ms = best.map_or(0.0, |best| self.ahead.predictor.cost_ms(best));
        let is_new = best.is_some_and(|best| match guesses.tried {
            None => true,
            Some(tried) => best.source == Source::Conversation && tried != Source::Conversation,
        });
        let gives_way = self.ahead.run.as_ref().is_none_or(super::ahead::Ahead::is_guess);
        if !is_new || !gives_way || self.ahead.share.left(now) < cost_ms {
            self.ahead.predictor.forget_guesses();
        }
    }

    /// A guess is tried.
    pub(super) fn tried(&mut self, source: Source) {
        if let Some(guesses) = self.ahead.guesses.as_mut().filter(|_| source.is_guess()) {
            guesses.tried = Some(source);
        }
    }

    /// The state will be another one.
    pub(super) fn forget_guesses(&mut self) {
        if let Some(guesses) = &mut self.ahead.guesses {
            (guesses.is_asked, guesses.is_known, guesses.tried) = (false, false, None);
            self.ahead.predictor.offer(Vec::new());
        }
    }

    /// Code has run, and took so long.
    pub(super) fn learn(&mut self, code: &str, ms: f64) {
        if let Some(guesses) = &mut self.ahead.guesses {
            guesses.context.ran(code, ms);
            self.ahead.predictor.took(ms);
        }
    }
}
