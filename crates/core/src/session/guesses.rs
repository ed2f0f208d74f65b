//! Guesses at what comes next: the guest is asked what there is, and code is made of that.
//!
//! It is asked right after an exchange, before the state is saved: so whatever that does to the guest's memory is in the copy, too. A guess runs
//! only when nobody has told anything, once in each state; once more when what is talked about is for other code.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::Body;
use super::shadow::Shadow;
use super::shadows::Shadows;
use crate::protocol::{Request, SurveyedVariable};
use crate::speculate::{Context, Prediction, Source};

/// The source of guesses.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    context: Context,
    last_survey: u32,
    answered: u32,
    /// True when the guest was asked what there is in the state as it is, and has told.
    is_asked: bool,
    is_known: bool,
    /// The source of the guess that was tried in this state.
    tried: Option<Source>,
}

impl<B: Body> Shadows<B> {
    /// Makes guesses, too.
    pub(super) fn guess(&mut self) {
        self.guesses = Some(Guesses::default());
    }

    /// The guesses for the present state, the most worthwhile first.
    pub(super) fn predictions(&self) -> Vec<Prediction> {
        self.predictor.offered()
    }

    /// Asks the guest what there is, when it can be asked and has not been in this state.
    pub(super) fn survey(&mut self) {
        if let Some(guesses) = self.guesses.as_mut().filter(|guesses| !guesses.is_asked) {
            guesses.is_asked = true;
            guesses.last_survey += 1;
            let survey = guesses.last_survey;
            self.ask(Request::Survey { survey });
        }
    }

    /// The guest has told what there is. An error is a violation.
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

    /// See [`super::Input::Conversation`].
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

    /// A guess is tried.
    pub(super) fn tried(&mut self, source: Source) {
        if let Some(guesses) = self.guesses.as_mut().filter(|_| source.is_guess()) {
            guesses.tried = Some(source);
        }
    }

    /// The state will be another one.
    pub(super) fn forget_guesses(&mut self) {
        if let Some(guesses) = &mut self.guesses {
            (guesses.is_asked, guesses.is_known, guesses.tried) = (false, false, None);
            self.predictor.offer(Vec::new());
        }
    }

    /// Code has run, and took so long.
    pub(super) fn learn(&mut self, code: &str, ms: f64) {
        if let Some(guesses) = &mut self.guesses {
            guesses.context.ran(code, ms);
            self.predictor.took(ms);
        }
    }
}
