//! Guesses at the next code. The guest is asked for its variables, and code is made from the answer.
//!
//! The guest is asked right after an exchange, before the state is saved. So a copy of the saved state includes any change that the
//! question made to the guest's memory. A guess runs only if there are no hints, once in each state. If the conversation then points to
//! other code, a second guess may run.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::Body;
use super::shadow::Shadow;
use super::shadows::Shadows;
use crate::predictions::{Context, Prediction, Source};
use crate::protocol::{Request, SurveyedVariable};

/// The state of guessing.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    context: Context,
    last_survey: u32,
    answered: u32,
    /// `is_asked`: the guest was asked for its variables in the present state. `is_known`: it has answered.
    is_asked: bool,
    is_known: bool,
    /// The source of the guess that ran in the present state.
    tried: Option<Source>,
}

impl<B: Body> Shadows<B> {
    /// Turns guesses on.
    pub(super) fn guess(&mut self) {
        self.guesses = Some(Guesses::default());
    }

    /// The guesses for the present state, the most worthwhile first.
    pub(super) fn predictions(&self) -> Vec<Prediction> {
        self.predictor.offered()
    }

    /// Asks the guest for its variables, if that is possible and was not done in the present state.
    pub(super) fn survey(&mut self) {
        if let Some(guesses) = self.guesses.as_mut().filter(|guesses| !guesses.is_asked) {
            guesses.is_asked = true;
            guesses.last_survey += 1;
            let survey = guesses.last_survey;
            self.ask(Request::Survey { survey });
        }
    }

    /// Takes the guest's variables. An error is a violation.
    pub(super) fn surveyed(
        &mut self,
        now: f64,
        survey: u32,
        variables: Vec<SurveyedVariable>,
    ) -> Result<(), &'static str> {
        let is_asked_for = |guesses: &&mut Guesses| survey > guesses.answered && survey <= guesses.last_survey;
        let Some(guesses) = self.guesses.as_mut().filter(is_asked_for) else {
            return Err("a survey that nobody asked for");
        };
        guesses.answered = survey;
        if guesses.is_asked && survey == guesses.last_survey {
            guesses.is_known = true;
            guesses.context.surveyed(variables);
            self.choose_guess(now);
        }
        Ok(())
    }

    /// Takes the conversation. See [`super::Input::Conversation`].
    pub(super) fn converse(&mut self, now: f64, text: &str) {
        if let Some(guesses) = &mut self.guesses
            && guesses.context.converse(text)
            && guesses.is_known
        {
            self.choose_guess(now);
        }
    }

    fn choose_guess(&mut self, now: f64) {
        let Some(guesses) = &self.guesses else { return };
        self.predictor.offer(guesses.context.predictions());
        let best = self.predictor.best_guess();
        let cost_ms = best.map_or(0.0, |best| self.predictor.cost_ms(best));
        let is_new = best.is_some_and(|best| match guesses.tried {
            None => true,
            Some(tried) => best.source == Source::Conversation && tried != Source::Conversation,
        });
        let gives_way = self.shadows.iter().all(Shadow::is_guess);
        if !is_new || !gives_way || self.share.left(now) < cost_ms {
            self.predictor.forget_guesses();
        }
    }

    /// Records that a guess runs.
    pub(super) fn tried(&mut self, source: Source) {
        if let Some(guesses) = self.guesses.as_mut().filter(|_| source.is_guess()) {
            guesses.tried = Some(source);
        }
    }

    /// Forgets guesses, because the state changes.
    pub(super) fn forget_guesses(&mut self) {
        if let Some(guesses) = &mut self.guesses {
            (guesses.is_asked, guesses.is_known, guesses.tried) = (false, false, None);
            self.predictor.offer(Vec::new());
        }
    }

    /// Records that code has run, and its time in milliseconds.
    pub(super) fn learn(&mut self, code: &str, ms: f64) {
        if let Some(guesses) = &mut self.guesses {
            guesses.context.ran(code, ms);
            self.predictor.took(ms);
        }
    }
}
