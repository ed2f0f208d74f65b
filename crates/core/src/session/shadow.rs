//! A shadow: a copy of the interpreter that runs code before anybody asks for it. Either the copy is thrown away, or its guest is
//! promoted.
//!
//! The copy is an interpreter of its own, made from the newest checkpoint or from a fork of the guest. It boots its guest, restores the
//! state, and judges the guest's events. The shadow keeps these events with their times. When an execution of the same code in the same
//! state is asked for, the guest becomes the session's. The session's interpreter then takes the kept events as if they came now. So the
//! result, the numbers, the budgets and the next checkpoint are as usual, and no event is reported twice.
//!
//! Code that is being written runs as it comes, in one execution of the copy. Between two statements the copy waits for more, and that
//! wait is not counted as time of the code. When the code is complete, the session's own guest is asked if its statements may have run
//! before the rest was known. A syntax error, a warning or an `await` further down would make it another program. If they may have run,
//! the copy gets the rest of the code.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::calls_ahead::Begun;
use super::execution::Execution;
use super::interpreter::{Interpreter, Note};
use super::{Body, Command, Effect, Execute, GuestEffect, GuestInput, HostEffect, Reply, ShadowId};
use crate::budget::Budget;
use crate::execution::Outcome;
use crate::limits::{AHEAD_TTL_MS, EVENT_BYTES, EXTEND_MS, MAX_AHEAD_BYTES, MAX_WRITTEN_BYTES};
use crate::predictions::{Prediction, Source, begins_with_line_end};
use crate::protocol::{Event, GuestInfo, Request};

/// The first number of copies' exchanges, and the count of numbers for each copy. A copy installs packages, restores a state and runs code.
const FIRST_EXCHANGE: u32 = 1 << 30;
const MOST_EXCHANGES: u32 = 16;

/// The present part of code that is being written.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) code: String,
    pub(super) timeout_ms: Option<f64>,
    /// True when a shadow was tried for this code. There is no second try.
    pub(super) tried: bool,
    /// The complete code, if a hint has told it.
    pub(super) whole: Option<String>,
}

impl Writing {
    /// The known part of the code, and true if it is all of the code.
    pub(super) fn text(&self) -> (&str, bool) {
        match &self.whole {
            Some(whole) => (whole, true),
            None => (&self.code, false),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Shadow<B> {
    pub(super) id: ShadowId,
    copy: Interpreter<B>,
    /// The code, with its source and probability. Of code that is being written, only the part that the guest was sent.
    pub(super) prediction: Prediction,
    /// True when the guest was sent all of the code that was being written.
    is_whole: bool,
    timeout_ms: f64,
    /// The time at which the shadow was made.
    prepared_at: f64,
    /// The number that the execution of the code would have.
    pub(super) execution: u32,
    pub(super) stage: Stage,
    /// The time at which the code began.
    begun_at: f64,
    /// The guest's events since the code began, each with its time by the shadow's clock.
    pub(super) said: Vec<(f64, Event, Option<B>)>,
    /// The guest's calls that were begun ahead, in order.
    pub(super) begun: Vec<Begun<B>>,
    /// The size of these events, in bytes.
    pub(super) bytes: f64,
    /// The time of all earlier waits for code, in milliseconds. The shadow's clock stands still during a wait.
    waited_ms: f64,
    /// The beginning of the present wait for code.
    waits_since: Option<f64>,
    /// The time at which the guest was last sent code.
    extended_at: f64,
    pub(super) check: Check,
    /// The code that the check is about.
    pub(super) checked: String,
    /// True when the guest was told that its code is asked for.
    told: bool,
    /// True when the guest has come to a point where it can only wait, for the first time.
    pub(super) is_finished: bool,
    pub(super) is_counted: bool,
    effects: Vec<GuestEffect<B>>,
}

/// The check that code which was being written may have run piece by piece.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Check {
    NotAsked,
    /// The session's own guest was asked under this number, at this time.
    Asked(u32, f64),
    Passed,
}

/// A shadow's progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Stage {
    /// The guest is getting the state.
    Preparing,
    /// The guest is at work in this exchange.
    Running(u32),
    /// The guest is at work in this exchange, and its code is asked for. At this time it was asked if it may take over.
    Asked(u32, f64),
    /// The exchange is over, waits for the answer to a host call, or may be taken over.
    Over(u32),
    /// The guest has run the present part of the code, and waits for more in this exchange.
    Waiting(u32),
}

/// The shadow cannot be promoted any more. The caller must end it.
#[derive(Debug)]
pub(super) struct InVain;

/// A guest that takes over, with its events so far.
#[derive(Debug)]
pub(super) struct Promotion<B> {
    pub(super) info: GuestInfo,
    /// The number of the guest's exchange.
    pub(super) exchange: u32,
    /// The time at which the code began. This time and those of the events leave out the wait for the code to be asked for.
    pub(super) begun_at: f64,
    /// The guest's events in this exchange so far, with their times.
    pub(super) said: Vec<(f64, Event, Option<B>)>,
    /// Calls among these events that were begun ahead.
    pub(super) begun: Vec<Begun<B>>,
}

impl<B: Body> Shadow<B> {
    /// A shadow that runs code in this copy of the session's interpreter. It begins at the first [`Shadow::tick`].
    pub(super) fn new(
        now: f64,
        id: ShadowId,
        mut copy: Interpreter<B>,
        prediction: Prediction,
        timeout_ms: Option<f64>,
    ) -> Self {
        // A parked guest was an earlier shadow's, and late messages of that shadow may still arrive. They must not fit, so each copy has
        // exchange numbers of its own.
        copy.last_exchange = FIRST_EXCHANGE
            .wrapping_add(id.wrapping_mul(MOST_EXCHANGES))
            .max(FIRST_EXCHANGE);
        let execute = Execute {
            timeout_ms,
            ..Execute::of(&prediction.code)
        };
        let execution = copy.last_execution + 1;
        copy.submit(now, 0, Command::Execute(execute), false);
        Self {
            id,
            is_whole: false,
            timeout_ms: timeout_ms.unwrap_or(copy.config.limits.timeout_ms),
            copy,
            prediction,
            prepared_at: now,
            execution,
            stage: Stage::Preparing,
            begun_at: now,
            said: Vec::new(),
            begun: Vec::new(),
            bytes: 0.0,
            waited_ms: 0.0,
            waits_since: None,
            extended_at: now,
            check: Check::NotAsked,
            checked: String::new(),
            told: false,
            is_finished: false,
            is_counted: false,
            effects: Vec::new(),
        }
    }

    /// Takes the steps to be done with the guest.
    pub(super) fn take_effects(&mut self) -> Vec<GuestEffect<B>> {
        std::mem::take(&mut self.effects)
    }

    /// Returns true when the code came as it was being written.
    pub(super) fn is_written(&self) -> bool {
        self.prediction.source == Source::Stream
    }

    /// Returns true when the session has guessed the code.
    pub(super) fn is_guess(&self) -> bool {
        self.prediction.source.is_guess()
    }

    /// Returns true when the guest has run the code to its end.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::Over(_)) && matches!(self.said.last(), Some((_, Event::Executed { .. }, _)))
    }

    /// Returns true when the guest computes, or is about to.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.stage, Stage::Preparing | Stage::Running(_) | Stage::Asked(..))
    }

    /// Returns true when code that was being written is complete, and has run.
    pub(super) fn is_over_as_a_whole(&self) -> bool {
        self.is_whole && matches!(self.stage, Stage::Over(_))
    }

    /// The shadow's clock. It stands still while the guest waits for code.
    fn clock(&self, now: f64) -> f64 {
        self.waits_since.unwrap_or(now) - self.waited_ms
    }

    /// The time of the guest's last event, by the shadow's clock.
    fn last_word(&self) -> f64 {
        match self.waits_since {
            Some(since) => since - self.waited_ms,
            None => self.said.last().map_or(self.begun_at, |(at, ..)| *at),
        }
    }

    /// The time for which the shadow has kept its guest busy, in milliseconds.
    pub(super) fn busy_ms(&self, now: f64) -> f64 {
        let until = match self.stage {
            Stage::Over(_) | Stage::Waiting(_) => self.last_word(),
            Stage::Preparing | Stage::Running(_) | Stage::Asked(..) => self.clock(now),
        };
        until - self.prepared_at
    }

    /// The time at which a finished or waiting shadow is dropped.
    pub(super) fn gives_up_at(&self) -> f64 {
        self.last_word() + self.waited_ms + AHEAD_TTL_MS
    }

    /// The time at which the copy must look at the clock.
    pub(super) fn copy_wakes_at(&self) -> Option<f64> {
        self.copy.wake_at(false).map(|at| at + self.waited_ms)
    }

    /// Returns true when the guest waits for code, and there is more of it now.
    pub(super) fn can_take(&self, writing: &Writing) -> bool {
        let (text, is_whole) = writing.text();
        matches!(self.stage, Stage::Waiting(_))
            && !self.is_whole
            && (is_whole || text.len() > self.prediction.code.len())
            && goes_on(text, &self.prediction.code)
    }

    /// Returns true when the shadow's code may be the code that is being written. Both may be incomplete.
    pub(super) fn may_be_of(&self, writing: &Writing) -> bool {
        let known = &self.prediction.code;
        goes_on(writing.text().0, known) || (self.is_whole && goes_on(known, &writing.code))
    }

    /// The time at which the guest may be sent more code. Pieces have a pause between them, but the last piece is sent at once.
    pub(super) fn extends_at(&self, writing: Option<&Writing>) -> f64 {
        let is_whole = writing.is_some_and(|writing| writing.text().1);
        self.extended_at + if is_whole { 0.0 } else { EXTEND_MS }
    }

    /// Returns true when the shadow runs the code of this execution, and stands for it within its limits. Code that has ended must have
    /// taken no more time than the execution may. Code that goes on must have the same time limit: with a longer one, it may do more than
    /// the execution could.
    pub(super) fn is(&self, execution: &Execution, now: f64, session: &Budget) -> bool {
        let own = self.timeout_ms;
        let max_time = execution.asked.budget.max_time;
        let took = self.last_word() - self.begun_at;
        let in_time = match (self.stage, self.said.last()) {
            (Stage::Over(_), Some((_, Event::Executed { .. }, _))) => {
                took <= execution.timeout_ms && max_time.is_none_or(|most| took <= most)
            }
            _ => execution.timeout_ms.total_cmp(&own).is_eq() && max_time.is_none(),
        };
        let in_budget = session.expires_at().is_none_or(|ends_at| now + took <= ends_at);
        let same = if self.is_written() && !self.is_whole {
            // The execution's code may be longer, but only by whole lines. Otherwise half of a statement has run.
            execution.asked.code.len() <= MAX_WRITTEN_BYTES && goes_on(&execution.asked.code, &self.prediction.code)
        } else {
            execution.asked.code == self.prediction.code
        };
        same && execution.id == self.execution && in_time && in_budget
    }

    /// Returns true when the guest can be asked now if it may take over. A guest without a bridge hears nothing while it computes.
    pub(super) fn can_be_asked(&self) -> bool {
        match self.stage {
            Stage::Preparing => false,
            Stage::Running(_) => self.copy.info.bridge != "none",
            Stage::Asked(..) | Stage::Over(_) | Stage::Waiting(_) => true,
        }
    }

    /// The guest's exchange, if the guest can take over for this execution now. A guest at work must be asked first, unless it is a fork.
    /// Code that was being written must have passed its check.
    pub(super) fn can_take_over(&self, execution: &Execution, forks: bool) -> Option<u32> {
        let number = match self.stage {
            Stage::Over(number) | Stage::Waiting(number) => Some(number),
            Stage::Running(number) if forks => Some(number),
            Stage::Running(_) | Stage::Preparing | Stage::Asked(..) => None,
        };
        let is_checked = self.check == Check::Passed && execution.asked.code == self.checked;
        number.filter(|_| !self.is_written() || is_checked)
    }

    // ---- what happens ----

    /// Takes an input from the guest.
    pub(super) fn guest_input(&mut self, now: f64, input: GuestInput<B>) -> Result<(), InVain> {
        match (&input, self.stage) {
            (GuestInput::Event(Event::Waiting { exchange }, _), Stage::Running(number) | Stage::Asked(number, _))
                if self.is_written() && *exchange == number =>
            {
                return self.waits(now, number);
            }
            (GuestInput::Event(Event::Promoted { .. }, _), Stage::Asked(number, _)) => {
                self.stage = Stage::Over(number); // it may take over: its later events are the session's
                return Ok(());
            }
            (
                GuestInput::Event(event, body),
                Stage::Running(number) | Stage::Asked(number, _) | Stage::Over(number),
            ) => {
                self.hears(now, event, body.as_ref())?;
                if matches!(event, Event::HostCall { .. }) {
                    // The call is made once the code is asked for, if the session allows it then.
                    self.finish(number);
                    return Ok(());
                }
            }
            (_, Stage::Over(_) | Stage::Waiting(_)) => return Err(InVain),
            _ => {}
        }
        let clock = self.clock(now);
        self.copy.guest_input(clock, input);
        self.tick(now)
    }

    /// Records that the guest has run the present part of the code.
    fn waits(&mut self, now: f64, number: u32) -> Result<(), InVain> {
        if self.is_whole {
            return Err(InVain); // the guest was told that no more code comes
        }
        self.tick(now)?; // fails if the code has taken too long
        self.waits_since = Some(now);
        self.stage = Stage::Waiting(number);
        self.is_finished = true;
        Ok(())
    }

    /// Keeps an event of the guest. Fails if the event must not come ahead of time, or if the kept events are too large.
    fn hears(&mut self, now: f64, event: &Event, body: Option<&B>) -> Result<(), InVain> {
        let is_call = |event: &Event| matches!(event, Event::HostCall { .. });
        let is_more = |(_, before, _): &(f64, Event, Option<B>)| is_call(event) && is_call(before);
        let goes_on = !matches!(self.stage, Stage::Over(_)) || self.said.last().is_some_and(is_more);
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let size = (text_of(event).len() + body.map_or(0, Body::size)) as f64;
        self.bytes += size + EVENT_BYTES;
        // Code that is still being written cannot end.
        let too_soon = self.is_written() && !self.is_whole && matches!(event, Event::Executed { .. });
        let external = matches!(event, Event::External { .. });
        if !goes_on || self.bytes > MAX_AHEAD_BYTES || external || too_soon {
            return Err(InVain);
        }
        self.said.push((self.clock(now), event.clone(), body.cloned()));
        Ok(())
    }

    fn finish(&mut self, number: u32) {
        if !matches!(self.stage, Stage::Over(_)) {
            self.stage = Stage::Over(number);
            self.is_finished = true;
        }
    }

    /// Lets the copy see the time, and do its next work.
    pub(super) fn tick(&mut self, now: f64) -> Result<(), InVain> {
        let clock = self.clock(now);
        self.copy.check_time(clock);
        self.copy.run_next(clock);
        for note in std::mem::take(&mut self.copy.notes) {
            match note {
                Note::Changes | Note::Ended | Note::Ran { .. } => {} // a copy has no shadows of its own
                Note::Checked { .. } | Note::Surveyed { .. } => return Err(InVain),
            }
        }
        for effect in std::mem::take(&mut self.copy.effects) {
            self.follow(now, effect)?;
        }
        Ok(())
    }

    /// Carries out an effect of the copy. Fails if the effect concerns more than the copy and its guest.
    fn follow(&mut self, now: f64, effect: Effect<B>) -> Result<(), InVain> {
        let prepares = self.stage == Stage::Preparing;
        match effect {
            Effect::Guest(
                _,
                GuestEffect::Post(
                    Request::Execute {
                        exchange,
                        execution,
                        code,
                        timeout_ms,
                        ..
                    },
                    body,
                ),
            ) if prepares => {
                self.stage = Stage::Running(exchange);
                self.begun_at = now;
                self.extended_at = now;
                let request = Request::Execute {
                    exchange,
                    execution,
                    code,
                    timeout_ms,
                    ahead: true,
                    more: self.is_written(),
                    noted: false,
                    explores: false,
                };
                self.effects.push(GuestEffect::Post(request, body));
            }
            Effect::Guest(_, effect) if prepares && !matches!(effect, GuestEffect::Kill) => self.effects.push(effect),
            // The event that caused this is kept in `said`.
            Effect::Host(HostEffect::Print(..) | HostEffect::Display { .. }) => {}
            Effect::Host(HostEffect::Resolve(_, Ok(Reply::Execution(execution, _))))
                if is_sure(execution.outcome, execution.error_type.as_deref()) =>
            {
                if let Stage::Running(number) | Stage::Asked(number, _) = self.stage {
                    self.finish(number);
                }
            }
            // The guest is stopped or lost, or the copy wants what no copy may have.
            Effect::Guest(..) | Effect::Host(_) | Effect::Park(_) | Effect::Promote(_) => return Err(InVain),
        }
        Ok(())
    }

    /// Sends the guest more of the code that is being written.
    pub(super) fn extend(&mut self, now: f64, writing: &Writing) {
        let Stage::Waiting(exchange) = self.stage else { return };
        if !self.can_take(writing) || now < self.extends_at(Some(writing)) {
            return;
        }
        let (code, last) = writing.text();
        let text = code[self.prediction.code.len()..].to_owned();
        self.prediction.code.push_str(&text);
        self.waited_ms += self.waits_since.take().map_or(0.0, |since| now - since);
        self.extended_at = now;
        self.stage = Stage::Running(exchange);
        self.is_whole = last;
        self.effects
            .push(GuestEffect::Post(Request::Extend { exchange, text, last }, None));
    }

    /// Asks the guest, which is at work, if it may take over for this code.
    pub(super) fn ask(&mut self, now: f64, code: &str) {
        if let Stage::Running(number) = self.stage {
            self.stage = Stage::Asked(number, now);
            self.tell(number, code);
        }
    }

    /// Tells the guest that its code is asked for, and the part that the guest does not have yet.
    fn tell(&mut self, exchange: u32, code: &str) {
        self.told = true;
        let rest = self.is_written().then(|| code[self.prediction.code.len()..].to_owned());
        self.effects
            .push(GuestEffect::Post(Request::Promote { exchange, rest }, None));
    }

    /// Has the guest take over in this exchange. Also returns the time that this saves, in milliseconds.
    pub(super) fn promotion(&mut self, now: f64, exchange: u32, code: &str, forks: bool) -> (Promotion<B>, f64) {
        // `later` is the wait for the code to be asked for, which no time may include. An exchange that is over, or waits for the host or
        // for code, has waited since its last event. A guest at work has waited only for earlier pieces of code. Nobody knows if a fork at
        // work computes or waits, so its wait begins with its last event, in favour of the code.
        let last = self.said.last().map(|(_, event, _)| event);
        let waits = self.waits_since.is_some()
            || matches!(last, Some(Event::Executed { .. } | Event::HostCall { .. }))
            || (forks && matches!(self.stage, Stage::Running(_)));
        let later = if waits { now - self.last_word() } else { self.waited_ms };
        if (self.is_written() || forks) && !self.told {
            self.tell(exchange, code);
        }
        let said = std::mem::take(&mut self.said).into_iter();
        let promotion = Promotion {
            info: self.copy.info.clone(),
            exchange,
            begun_at: self.begun_at + later,
            said: said.map(|(at, event, body)| (at + later, event, body)).collect(),
            begun: std::mem::take(&mut self.begun),
        };
        (promotion, now - later - self.begun_at)
    }
}

/// Returns true when `code` is `known`, or `known` and more after the end of a line. `x = 10` does not go on with `x = 1`, although both
/// begin alike.
pub(super) fn goes_on(code: &str, known: &str) -> bool {
    code.strip_prefix(known).is_some_and(begins_with_line_end)
}

/// Returns true when the execution would end so at any other time too. Its outcome is not sure if time or memory ran out.
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
