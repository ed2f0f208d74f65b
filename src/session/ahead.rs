//! Running code before anybody asks for it, in a copy of the session that is thrown away or takes the guest's place.
//!
//! The copy is a session of its own, made of the newest checkpoint: it boots its guest, restores it and judges what that says. What the
//! guest said is kept with its times. When an execution comes with the same code in the same state, the guest becomes this session's,
//! and this session hears all that was said as if it came now: so the result, the numbers, the budgets and the next checkpoint are
//! what they always are, and nothing is told twice. A turn of any other kind ends the copy, since that changes the state.

use std::collections::BTreeMap;

use super::turn::Task;
use super::{Body, Command, Effect, Guest, Input, Reply, Session, Ticket};
use crate::budget::BudgetLimits;
use crate::execution::Outcome;
use crate::limits::{AHEAD_TTL_MS, EVENT_BYTES, MAX_AHEAD_BYTES, PROMOTION_MS};
use crate::protocol::{Event, Request};
use crate::speculate::{Prediction, Predictor, Source, Tally};

/// What is done before anybody asks for it.
#[derive(Debug)]
pub(super) struct Aheads<B> {
    predictor: Predictor,
    run: Option<Ahead<B>>,
}

/// Code that runs ahead, or did.
#[derive(Debug)]
pub(super) struct Ahead<B> {
    copy: Box<Session<B>>,
    prediction: Prediction,
    /// The number of the execution that it would be.
    execution: u32,
    stage: Stage,
    begun_at: f64,
    /// What the guest has said since the code began, and when.
    said: Vec<(f64, Event, Option<B>)>,
    bytes: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Stage {
    /// The guest is given the state.
    Preparing,
    /// The guest is at this turn.
    Running(u32),
    /// The same, and its code has come: it is asked since then whether it may take over.
    Asked(u32, f64),
    /// The turn is over, or has come to what only the host can answer.
    Over(u32),
}

impl<B> Default for Aheads<B> {
    fn default() -> Self {
        Self {
            predictor: Predictor::default(),
            run: None,
        }
    }
}

impl<B: Body> Aheads<B> {
    /// See [`Input::Hint`].
    pub(super) fn predict(&mut self, predictions: Vec<Prediction>) {
        self.predictor.predict(predictions);
    }

    /// How well predictions came true, by their source.
    pub(super) fn tallies(&self) -> BTreeMap<Source, Tally> {
        self.predictor.tallies().clone()
    }

    /// When to look again, if nothing else happens.
    pub(super) fn wake_at(&self) -> Option<f64> {
        let run = self.run.as_ref()?;
        match run.stage {
            Stage::Preparing | Stage::Running(_) => run.copy.wake_at(),
            Stage::Asked(_, since) => Some(since + PROMOTION_MS),
            Stage::Over(_) => Some(run.last_word() + AHEAD_TTL_MS),
        }
    }
}

impl<B: Body> Ahead<B> {
    fn last_word(&self) -> f64 {
        self.said.last().map_or(self.begun_at, |(at, ..)| *at)
    }

    /// Whether this is what it runs, and it would not have been stopped by now had it begun when it came.
    fn is(&self, task: &Task<B>) -> bool {
        let Task::Execute(execution) = task else { return false };
        let own = self.copy.limits.timeout_ms;
        let in_time = match (self.stage, self.said.last()) {
            (Stage::Over(_), Some((at, Event::Executed { .. }, _))) => at - self.begun_at <= execution.timeout_ms,
            _ => false,
        };
        execution.code == self.prediction.code
            && execution.id == self.execution
            && (in_time || execution.timeout_ms.total_cmp(&own).is_eq())
    }
}

impl<B: Body> Session<B> {
    /// Runs what is likely to come, when there is nothing to do and the state is safe.
    pub(super) fn speculate(&mut self, now: f64) {
        if self.guest != Guest::Up || self.turn.is_some() || !self.queue.is_empty() {
            return;
        }
        if self
            .ahead
            .run
            .as_ref()
            .is_some_and(|run| run.execution != self.last_execution + 1)
        {
            self.drop_ahead(); // the execution that it was for was taken back
        }
        if self.ahead.predictor.is_empty() {
            return;
        }
        if let Some(run) = &self.ahead.run {
            if self.ahead.predictor.expects(&run.prediction.code) {
                return self.ahead.predictor.forget(); // it is under way already
            }
            self.drop_ahead();
        }
        let Some(mut copy) = self.exact_copy() else { return };
        let Some(prediction) = self.ahead.predictor.choose() else {
            return;
        };
        self.ahead.predictor.forget();
        self.tally(prediction.source).started += 1;
        let execute = Command::Execute {
            code: prediction.code.clone(),
            timeout_ms: None,
            budget: BudgetLimits::default(),
        };
        let effects = copy.handle(now, Input::Command(0, execute));
        self.ahead.run = Some(Ahead {
            copy: Box::new(copy),
            prediction,
            execution: self.last_execution + 1,
            stage: Stage::Preparing,
            begun_at: now,
            said: Vec::new(),
            bytes: 0.0,
        });
        self.relay(now, effects);
    }

    /// Something happens to the copy.
    pub(super) fn ahead_input(&mut self, now: f64, input: Input<B>) {
        let Some(run) = &mut self.ahead.run else { return };
        match (&input, run.stage) {
            (Input::Guest(Event::Promoted { .. }, _), Stage::Asked(turn, _)) => {
                run.stage = Stage::Over(turn); // as it is: what it says from now on, it says to this session
                return;
            }
            (Input::Guest(event, body), Stage::Running(turn) | Stage::Asked(turn, _) | Stage::Over(turn)) => {
                let call = matches!(event, Event::HostCall { .. });
                let before = run.said.last().map(|(_, event, _)| event);
                let goes_on =
                    !matches!(run.stage, Stage::Over(_)) || (call && matches!(before, Some(Event::HostCall { .. })));
                #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
                let size = (text_of(event).len() + body.as_ref().map_or(0, Body::size)) as f64;
                run.bytes += size + EVENT_BYTES;
                if !goes_on || run.bytes > MAX_AHEAD_BYTES || matches!(event, Event::External { .. }) {
                    return self.drop_ahead();
                }
                run.said.push((now, event.clone(), body.clone()));
                if call {
                    // Whether it is made is decided when its code comes.
                    if !matches!(run.stage, Stage::Over(_)) {
                        run.stage = Stage::Over(turn);
                        self.count_finished();
                    }
                    return;
                }
            }
            (_, Stage::Over(_)) => return self.drop_ahead(),
            _ => {}
        }
        let effects = run.copy.handle(now, input);
        self.relay(now, effects);
    }

    /// Does what the copy wants, as far as it is between it and its guest.
    fn relay(&mut self, now: f64, effects: Vec<Effect<B>>) {
        for effect in effects {
            let Some(run) = &mut self.ahead.run else { return };
            let prepares = run.stage == Stage::Preparing;
            match effect {
                Effect::Post(
                    Request::Execute {
                        turn,
                        execution,
                        code,
                        timeout_ms,
                        ..
                    },
                    body,
                ) if prepares => {
                    run.stage = Stage::Running(turn);
                    run.begun_at = now;
                    let request = Request::Execute {
                        turn,
                        execution,
                        code,
                        timeout_ms,
                        ahead: true,
                    };
                    self.effects.push(Effect::Ahead(Box::new(Effect::Post(request, body))));
                }
                Effect::Boot | Effect::Restore(..) | Effect::Install(..) | Effect::Post(..) if prepares => {
                    self.effects.push(Effect::Ahead(Box::new(effect)));
                }
                // Kept with what the guest said.
                Effect::Print(..) | Effect::Display { .. } => {}
                Effect::Resolve(_, Ok(Reply::Execution(execution, _)))
                    if is_sure(execution.outcome, execution.error_type.as_deref()) =>
                {
                    if let Stage::Running(turn) | Stage::Asked(turn, _) = run.stage {
                        run.stage = Stage::Over(turn);
                        self.count_finished();
                    }
                }
                // It is stopped, or lost, or wants what is not the copy's to have.
                _ => return self.drop_ahead(),
            }
        }
    }

    /// Looks whether it has taken too long.
    pub(super) fn check_ahead(&mut self, now: f64) {
        let Some(run) = &mut self.ahead.run else { return };
        match run.stage {
            Stage::Preparing | Stage::Running(_) => {
                let effects = run.copy.handle(now, Input::Tick);
                self.relay(now, effects);
            }
            Stage::Asked(_, since) if now < since + PROMOTION_MS => {}
            Stage::Over(_) if now < run.last_word() + AHEAD_TTL_MS => {}
            Stage::Asked(..) | Stage::Over(_) => self.drop_ahead(),
        }
    }

    /// Whether what comes next is what runs ahead, and the guest that is at it has not said yet whether it may take over.
    pub(super) fn waits_for_ahead(&mut self, now: f64) -> bool {
        let (Some(run), Some((_, task))) = (&mut self.ahead.run, self.queue.front()) else {
            return false;
        };
        match run.stage {
            Stage::Asked(..) => run.is(task),
            Stage::Running(turn) if run.is(task) => {
                run.stage = Stage::Asked(turn, now);
                let ask = Effect::Post(Request::Promote { turn }, None);
                self.effects.push(Effect::Ahead(Box::new(ask)));
                true
            }
            _ => false,
        }
    }

    /// Takes what ran ahead when it is what is asked for now. Else it is ended, with all that was predicted for this moment.
    pub(super) fn take_ahead_of(&mut self, task: &Task<B>) -> Option<Ahead<B>> {
        if matches!(task, Task::Execute(_)) {
            self.ahead.predictor.forget();
        }
        let may = self.may_run();
        self.ahead
            .run
            .take_if(|run| may && matches!(run.stage, Stage::Over(_)) && run.is(task))
    }

    /// Has the guest that ran it take over.
    pub(super) fn promote(&mut self, now: f64, ticket: Ticket, task: Task<B>, ahead: Ahead<B>) {
        let Stage::Over(turn) = ahead.stage else {
            return self.begin(now, Some(ticket), task);
        };
        // A turn that is over, or waits for the host, does so now; one that goes on has run since it began.
        let last = ahead.said.last().map(|(_, event, _)| event);
        let rests = matches!(last, Some(Event::Executed { .. } | Event::HostCall { .. }));
        let later = if rests { now - ahead.last_word() } else { 0.0 };
        let tally = self.tally(ahead.prediction.source);
        tally.used += 1;
        tally.time_saved += now - later - ahead.begun_at;
        self.effects.push(Effect::Promote);
        self.stats.guests += 1;
        self.info = ahead.copy.info;
        self.checkpoints.promoted();
        self.begin_as(ahead.begun_at + later, Some(ticket), task, Some(turn));
        for (at, event, body) in ahead.said {
            self.guest_event(at + later, event, body);
        }
    }

    /// Ends what runs ahead, when there is anything.
    pub(super) fn drop_ahead(&mut self) {
        if let Some(run) = self.ahead.run.take() {
            self.tally(run.prediction.source).wasted += 1;
            self.effects.push(Effect::Ahead(Box::new(Effect::Kill)));
        }
    }

    fn count_finished(&mut self) {
        if let Some(run) = &self.ahead.run {
            let source = run.prediction.source;
            self.tally(source).finished += 1;
        }
    }

    fn tally(&mut self, source: Source) -> &mut Tally {
        self.ahead.predictor.tally(source)
    }
}

/// Whether an execution that ended so would always end so. One that ran out of time or memory may not.
fn is_sure(outcome: Outcome, error_type: Option<&str>) -> bool {
    matches!(outcome, Outcome::Ok | Outcome::Error) && error_type != Some("MemoryError")
}

fn text_of(event: &Event) -> &str {
    if let Event::Output { text, .. } = event {
        text
    } else {
        ""
    }
}
