//! A shadow: code that runs before anybody asks for it, in a copy of the interpreter that is thrown away or takes its guest's place.
//!
//! The copy is an interpreter of its own, made of the newest checkpoint, or of a fork of the guest: it boots its guest, restores it and
//! judges what that says. What the guest said is kept with its times. When an execution comes with the same code in the same state, the
//! guest becomes the session's, and its interpreter hears all that was said as if it came now: so the result, the numbers, the budgets and
//! the next checkpoint are what they always are, and nothing is told twice.
//!
//! Code that is being written runs as it comes, in one execution of the copy, which waits for more between two statements; that time
//! counts for nothing. When all of it is there, the session's own guest says whether its statements were allowed to run before the
//! rest was known: a syntax error, a warning or an `await` further down makes it another program. Then the copy is given the rest.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::exchange::Execution;
use super::interpreter::{Interpreter, Note};
use super::{Body, Command, Effect, GuestEffect, GuestInput, HostEffect, Reply, ShadowId};
use crate::budget::{Budget, BudgetLimits};
use crate::execution::Outcome;
use crate::limits::{AHEAD_TTL_MS, EVENT_BYTES, EXTEND_MS, MAX_AHEAD_BYTES, MAX_WRITTEN_BYTES};
use crate::protocol::{Event, GuestInfo, Request};
use crate::speculate::{Prediction, Source, begins_with_line_end};

/// The first number of copies' exchanges, and how many numbers each copy has: it is given packages and a state, and runs some code.
const FIRST_EXCHANGE: u32 = 1 << 30;
const MOST_EXCHANGES: u32 = 16;

/// Code that is being written, as far as it is there.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) code: String,
    pub(super) timeout_ms: Option<f64>,
    /// True when it was begun, or refused: it is not begun again.
    pub(super) tried: bool,
    /// The whole of it, when somebody has told.
    pub(super) whole: Option<String>,
}

impl Writing {
    /// The part of it that is there, and whether that is all.
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
    /// Of code that is being written, what the guest was sent so far.
    pub(super) prediction: Prediction,
    /// True when it was all there, of code that was being written.
    is_whole: bool,
    timeout_ms: f64,
    /// The times at which its guest and its code were begun.
    prepared_at: f64,
    /// The number of the execution that it would be.
    pub(super) execution: u32,
    pub(super) stage: Stage,
    begun_at: f64,
    /// All that the guest has said since the code began, and when, by its own clock.
    said: Vec<(f64, Event, Option<B>)>,
    /// Bytes of that.
    pub(super) bytes: f64,
    /// The time that it has waited for code before, and since when it does now: its clock stands still then.
    waited_ms: f64,
    waits_since: Option<f64>,
    extended_at: f64,
    pub(super) check: Check,
    /// The code that the check is about.
    pub(super) checked: String,
    /// True when it was told that its code has come.
    told: bool,
    /// True when it has come to where it can only wait.
    pub(super) is_finished: bool,
    pub(super) is_counted: bool,
    effects: Vec<GuestEffect<B>>,
}

/// The answer to whether code that was being written may have run piece by piece.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Check {
    NotAsked,
    /// The session's own guest is asked under this number, since then.
    Asked(u32, f64),
    Passed,
}

/// A shadow's progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Stage {
    /// The guest is given the state.
    Preparing,
    /// The guest is at this exchange.
    Running(u32),
    /// The same, and its code has come: it is asked since then whether it may take over.
    Asked(u32, f64),
    /// The exchange is over, or has come to what only the host can answer.
    Over(u32),
    /// It has run all the code that there is, and waits for more.
    Waiting(u32),
}

/// It is of no use: whoever has it ends it.
#[derive(Debug)]
pub(super) struct InVain;

/// A guest that takes over.
#[derive(Debug)]
pub(super) struct Promotion<B> {
    pub(super) info: GuestInfo,
    /// The number of the exchange that it is in.
    pub(super) exchange: u32,
    pub(super) begun_at: f64,
    /// All that it has said in it so far, and when, as if it had begun when its code came.
    pub(super) said: Vec<(f64, Event, Option<B>)>,
}

impl<B: Body> Shadow<B> {
    /// Code that runs in a copy of the session's interpreter, from the first [`Shadow::tick`] on.
    pub(super) fn new(
        now: f64,
        id: ShadowId,
        mut copy: Interpreter<B>,
        prediction: Prediction,
        timeout_ms: Option<f64>,
    ) -> Self {
        // A guest may have been others' before: no exchange of its has the number of an earlier one, of which a message may be on its way.
        copy.last_exchange = FIRST_EXCHANGE
            .wrapping_add(id.wrapping_mul(MOST_EXCHANGES))
            .max(FIRST_EXCHANGE);
        let execute = Command::Execute {
            code: prediction.code.clone(),
            timeout_ms,
            budget: BudgetLimits::default(),
        };
        let execution = copy.last_execution + 1;
        copy.submit(now, 0, execute, false);
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

    /// Steps to be done with its guest.
    pub(super) fn take_effects(&mut self) -> Vec<GuestEffect<B>> {
        std::mem::take(&mut self.effects)
    }

    /// Returns true when it runs code that is being written.
    pub(super) fn is_written(&self) -> bool {
        self.prediction.source == Source::Stream
    }

    /// Returns true when nobody has told its code.
    pub(super) fn is_guess(&self) -> bool {
        self.prediction.source.is_guess()
    }

    /// Returns true when its guest has come to the end of the code.
    pub(super) fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::Over(_)) && matches!(self.said.last(), Some((_, Event::Executed { .. }, _)))
    }

    /// Returns true when its guest computes, or is to.
    pub(super) fn is_at_work(&self) -> bool {
        matches!(self.stage, Stage::Preparing | Stage::Running(_) | Stage::Asked(..))
    }

    /// Returns true when all of the code that is being written was there, and has run.
    pub(super) fn is_over_as_a_whole(&self) -> bool {
        self.is_whole && matches!(self.stage, Stage::Over(_))
    }

    /// Its own clock, which stands still while it waits for code.
    fn clock(&self, now: f64) -> f64 {
        self.waits_since.unwrap_or(now) - self.waited_ms
    }

    fn last_word(&self) -> f64 {
        match self.waits_since {
            Some(since) => since - self.waited_ms,
            None => self.said.last().map_or(self.begun_at, |(at, ..)| *at),
        }
    }

    /// The time that it has kept its guest busy.
    pub(super) fn busy_ms(&self, now: f64) -> f64 {
        let until = match self.stage {
            Stage::Over(_) | Stage::Waiting(_) => self.last_word(),
            Stage::Preparing | Stage::Running(_) | Stage::Asked(..) => self.clock(now),
        };
        until - self.prepared_at
    }

    /// The time at which it is dropped when it has finished, or waits.
    pub(super) fn gives_up_at(&self) -> f64 {
        self.last_word() + self.waited_ms + AHEAD_TTL_MS
    }

    /// The time at which its copy wants to look at the clock.
    pub(super) fn copy_wakes_at(&self) -> Option<f64> {
        self.copy.wake_at(false).map(|at| at + self.waited_ms)
    }

    /// Returns true when it waits for what there is now of the code that is being written.
    pub(super) fn can_take(&self, writing: &Writing) -> bool {
        let (text, is_whole) = writing.text();
        matches!(self.stage, Stage::Waiting(_))
            && !self.is_whole
            && (is_whole || text.len() > self.prediction.code.len())
            && goes_on(text, &self.prediction.code)
    }

    /// Returns true when it runs what is being written, as far as anybody knows.
    pub(super) fn may_be_of(&self, writing: &Writing) -> bool {
        let known = &self.prediction.code;
        goes_on(writing.text().0, known) || (self.is_whole && goes_on(known, &writing.code))
    }

    /// The time at which it may be given more of it: not all the time, but at once when it is all.
    pub(super) fn extends_at(&self, writing: Option<&Writing>) -> f64 {
        let is_whole = writing.is_some_and(|writing| writing.text().1);
        self.extended_at + if is_whole { 0.0 } else { EXTEND_MS }
    }

    /// Returns true when this is what it runs, and it would not have been stopped by now had it begun when it came. What goes on is stopped
    /// when that is due, but what it did may then be more than it would have done: so it needs as much time as any.
    pub(super) fn is(&self, execution: &Execution, now: f64, session: &Budget) -> bool {
        let own = self.timeout_ms;
        let max_time = execution.budget.limits().max_time;
        let took = self.last_word() - self.begun_at;
        let in_time = match (self.stage, self.said.last()) {
            (Stage::Over(_), Some((_, Event::Executed { .. }, _))) => {
                took <= execution.timeout_ms && max_time.is_none_or(|most| took <= most)
            }
            _ => execution.timeout_ms.total_cmp(&own).is_eq() && max_time.is_none(),
        };
        let in_budget = session.expires_at().is_none_or(|ends_at| now + took <= ends_at);
        let same = if self.is_written() && !self.is_whole {
            // Of another code that begins so, this may be half a line.
            execution.code.len() <= MAX_WRITTEN_BYTES && goes_on(&execution.code, &self.prediction.code)
        } else {
            execution.code == self.prediction.code
        };
        same && execution.id == self.execution && in_time && in_budget
    }

    /// Returns true when its guest could be asked now if it may take over. Without a bridge it would hear the question when it is done.
    pub(super) fn can_be_asked(&self) -> bool {
        match self.stage {
            Stage::Preparing => false,
            Stage::Running(_) => self.copy.info.bridge != "none",
            Stage::Asked(..) | Stage::Over(_) | Stage::Waiting(_) => true,
        }
    }

    /// The exchange that its guest is in, when it can take over for this execution. One that is at work has to be asked first, if it is no
    /// fork. Code that was being written has to be known to be one that may run piece by piece.
    pub(super) fn can_take_over(&self, execution: &Execution, forks: bool) -> Option<u32> {
        let number = match self.stage {
            Stage::Over(number) | Stage::Waiting(number) => Some(number),
            Stage::Running(number) if forks => Some(number),
            Stage::Running(_) | Stage::Preparing | Stage::Asked(..) => None,
        };
        let is_checked = self.check == Check::Passed && execution.code == self.checked;
        number.filter(|_| !self.is_written() || is_checked)
    }

    // ---- what happens ----

    /// Something comes from its guest.
    pub(super) fn guest_input(&mut self, now: f64, input: GuestInput<B>) -> Result<(), InVain> {
        match (&input, self.stage) {
            (GuestInput::Event(Event::Waiting { exchange }, _), Stage::Running(number) | Stage::Asked(number, _))
                if self.is_written() && *exchange == number =>
            {
                return self.waits(now, number);
            }
            (GuestInput::Event(Event::Promoted { .. }, _), Stage::Asked(number, _)) => {
                self.stage = Stage::Over(number); // as it is: what it says from now on, it says to the session
                return Ok(());
            }
            (
                GuestInput::Event(event, body),
                Stage::Running(number) | Stage::Asked(number, _) | Stage::Over(number),
            ) => {
                self.hears(now, event, body.as_ref())?;
                if matches!(event, Event::HostCall { .. }) {
                    // Whether it is made is decided when its code comes.
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

    /// It has run all the code that there is so far.
    fn waits(&mut self, now: f64, number: u32) -> Result<(), InVain> {
        if self.is_whole {
            return Err(InVain); // there is no more, as it was told
        }
        self.tick(now)?; // unless it has taken too long
        self.waits_since = Some(now);
        self.stage = Stage::Waiting(number);
        self.is_finished = true;
        Ok(())
    }

    /// Keeps what its guest says, as far as it may say that.
    fn hears(&mut self, now: f64, event: &Event, body: Option<&B>) -> Result<(), InVain> {
        let is_call = |event: &Event| matches!(event, Event::HostCall { .. });
        let is_more = |(_, before, _): &(f64, Event, Option<B>)| is_call(event) && is_call(before);
        let goes_on = !matches!(self.stage, Stage::Over(_)) || self.said.last().is_some_and(is_more);
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let size = (text_of(event).len() + body.map_or(0, Body::size)) as f64;
        self.bytes += size + EVENT_BYTES;
        // Code that is still being written has no end.
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

    /// Time has passed for its copy.
    pub(super) fn tick(&mut self, now: f64) -> Result<(), InVain> {
        let clock = self.clock(now);
        self.copy.check_time(clock);
        self.copy.run_next(clock);
        for note in std::mem::take(&mut self.copy.notes) {
            match note {
                Note::Changes | Note::Ended | Note::Ran { .. } => {} // it has no copies
                Note::Checked { .. } | Note::Surveyed { .. } => return Err(InVain),
            }
        }
        for effect in std::mem::take(&mut self.copy.effects) {
            self.follow(now, effect)?;
        }
        Ok(())
    }

    /// Does what the copy wants, as far as that is between it and its guest.
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
                };
                self.effects.push(GuestEffect::Post(request, body));
            }
            Effect::Guest(_, effect) if prepares && !matches!(effect, GuestEffect::Kill) => self.effects.push(effect),
            // Kept with what the guest said.
            Effect::Host(HostEffect::Print(..) | HostEffect::Display { .. }) => {}
            Effect::Host(HostEffect::Resolve(_, Ok(Reply::Execution(execution, _))))
                if is_sure(execution.outcome, execution.error_type.as_deref()) =>
            {
                if let Stage::Running(number) | Stage::Asked(number, _) = self.stage {
                    self.finish(number);
                }
            }
            // It is stopped, or lost, or wants what is not the copy's to have.
            Effect::Guest(..) | Effect::Host(_) | Effect::Park(_) | Effect::Promote(_) => return Err(InVain),
        }
        Ok(())
    }

    /// Gives its guest more of the code that is being written.
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

    /// Asks its guest, which is at work, whether it may take over for this code.
    pub(super) fn ask(&mut self, now: f64, code: &str) {
        if let Stage::Running(number) = self.stage {
            self.stage = Stage::Asked(number, now);
            self.tell(number, code);
        }
    }

    /// Tells its guest that its code has come.
    fn tell(&mut self, exchange: u32, code: &str) {
        self.told = true;
        let rest = self.is_written().then(|| code[self.prediction.code.len()..].to_owned());
        self.effects
            .push(GuestEffect::Post(Request::Promote { exchange, rest }, None));
    }

    /// Has its guest take over in this exchange, and tells how many milliseconds that saves.
    pub(super) fn promotion(&mut self, now: f64, exchange: u32, code: &str, forks: bool) -> (Promotion<B>, f64) {
        // An exchange that is over, or waits for the host or its code, does so now; one that goes on has run since it began. Of a fork that
        // goes on nobody knows whether it computes or waits: it has its time from its last word.
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
        };
        (promotion, now - later - self.begun_at)
    }
}

/// Returns true when code may be another that was known as far as a line's end, and more. What goes on in the middle of a line
/// is no more of it: `x = 1` and `x = 10` begin alike.
pub(super) fn goes_on(code: &str, known: &str) -> bool {
    code.strip_prefix(known).is_some_and(begins_with_line_end)
}

/// Returns true when an execution that ended so would always end so. One that ran out of time or memory may not.
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
