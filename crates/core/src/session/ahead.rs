//! Running code before anybody asks for it, in a copy of the session that is thrown away or takes the guest's place.
//!
//! The copy is a session of its own, made of the newest checkpoint: it boots its guest, restores it and judges what that says. What the
//! guest said is kept with its times. When an execution comes with the same code in the same state, the guest becomes this session's,
//! and this session hears all that was said as if it came now: so the result, the numbers, the budgets and the next checkpoint are
//! what they always are, and nothing is told twice. A turn of any other kind ends the copy, since that changes the state.
//!
//! Code that is being written runs as it comes, in one execution of the copy, which waits for more between two statements; that time
//! counts for nothing. When all of it is there, this session's own guest says whether its statements were allowed to run before the
//! rest was known: a syntax error, a warning or an `await` further down makes it another program. Then the copy is given the rest.

use std::collections::BTreeMap;

use super::guesses::Guesses;
use super::turn::Task;
use super::{Body, Command, Effect, Guest, Input, Reply, Session, Ticket};
use crate::budget::{Budget, BudgetLimits};
use crate::deadline::earliest;
use crate::execution::Outcome;
use crate::limits::{AHEAD_TTL_MS, CHECK_MS, EVENT_BYTES, EXTEND_MS, MAX_AHEAD_BYTES, MAX_WRITTEN_BYTES, PROMOTION_MS};
use crate::protocol::{Event, Request};
use crate::speculate::{Prediction, Predictor, Share, Source, Tally, begins_with_line_end};

/// By how much two clocks may differ that are so far apart: whoever is woken by one must be late by the other.
const ROUNDING_MS: f64 = 0.001;

/// Where the turns of copies are numbered from, and how many numbers each has: it is given packages and a state, and runs some code.
const FIRST_TURN: u32 = 1 << 30;
const MOST_TURNS: u32 = 16;

/// What is done before anybody asks for it.
#[derive(Debug)]
pub(super) struct Aheads<B> {
    pub(super) predictor: Predictor,
    pub(super) share: Share,
    /// None where nothing is guessed.
    pub(super) guesses: Option<Guesses>,
    /// The time of the input that is being handled.
    now: f64,
    writing: Option<Writing>,
    pub(super) run: Option<Ahead<B>>,
    copies: u32,
    last_check: u32,
    answered_check: u32,
}

/// Code that is being written, as far as it is there.
#[derive(Debug)]
struct Writing {
    code: String,
    timeout_ms: Option<f64>,
    /// Whether it was begun, or refused: it is not begun again.
    tried: bool,
    /// What all of it will be, when somebody has told.
    whole: Option<String>,
}

impl Writing {
    /// What there is of it, and whether that is all.
    fn text(&self) -> (&str, bool) {
        match &self.whole {
            Some(whole) => (whole, true),
            None => (&self.code, false),
        }
    }
}

/// Code that runs ahead, or did.
#[derive(Debug)]
pub(super) struct Ahead<B> {
    copy: Box<Session<B>>,
    /// Of code that is being written, what the guest was sent so far.
    prediction: Prediction,
    /// Whether it was all there, of code that was being written.
    is_whole: bool,
    timeout_ms: f64,
    /// When its guest was begun with, and its code.
    prepared_at: f64,
    /// The number of the execution that it would be.
    execution: u32,
    stage: Stage,
    begun_at: f64,
    /// What the guest has said since the code began, and when, by its own clock.
    said: Vec<(f64, Event, Option<B>)>,
    bytes: f64,
    /// How long it has waited for code before, and since when it does now: its clock stands still then.
    rested: f64,
    rests_since: Option<f64>,
    extended_at: f64,
    check: Check,
    /// What the check is about.
    checked: String,
    /// Whether it was told that its code has come.
    told: bool,
    is_counted: bool,
}

/// Whether code that was being written may have run piece by piece.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Check {
    NotAsked,
    /// The session's own guest is asked under this number, since then.
    Asked(u32, f64),
    Passed,
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
    /// It has run all the code that there is, and waits for more.
    Waiting(u32),
}

impl<B> Aheads<B> {
    /// Nothing yet; `most` is the share of time that may be spent in vain.
    pub(super) fn within(most: f64) -> Self {
        Self {
            predictor: Predictor::default(),
            share: Share::new(most),
            guesses: None,
            now: 0.0,
            writing: None,
            run: None,
            copies: 0,
            last_check: 0,
            answered_check: 0,
        }
    }
}

impl<B: Body> Aheads<B> {
    /// An input comes at this time.
    pub(super) fn look_at_clock(&mut self, now: f64) {
        self.now = now;
        self.share.begin(now);
    }

    /// See [`Input::Hint`].
    pub(super) fn predict(&mut self, predictions: Vec<Prediction>) {
        if let Some(writing) = &mut self.writing {
            let is_more = |code: &&String| code.len() <= MAX_WRITTEN_BYTES && goes_on(code, &writing.code);
            let whole = predictions.iter().map(|prediction| &prediction.code).find(is_more);
            writing.whole = whole.cloned();
        }
        self.predictor.predict(predictions);
    }

    /// See [`Input::Written`].
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

    /// How well predictions came true, by their source.
    pub(super) fn tallies(&self) -> BTreeMap<Source, Tally> {
        self.predictor.tallies().clone()
    }

    /// Whether there is something to run as soon as that can be done.
    pub(super) fn waits(&self) -> bool {
        !self.predictor.is_empty() || self.writing.as_ref().is_some_and(|writing| !writing.tried)
    }

    /// When to look again, if nothing else happens. `is_idle`: whether there is nothing else to do.
    pub(super) fn wake_at(&self, is_idle: bool) -> Option<f64> {
        let run = self.run.as_ref()?;
        let more = self.writing.as_ref().filter(|writing| is_idle && run.can_take(writing));
        let stage = match run.stage {
            Stage::Preparing | Stage::Running(_) => {
                let over = self.share.ends_at(self.now, run.busy_ms(self.now));
                let over = over.filter(|_| run.is_guess());
                earliest(run.copy.wake_at().map(|at| at + run.rested), over).map(|at| at + ROUNDING_MS)
            }
            Stage::Asked(_, since) => Some(since + PROMOTION_MS),
            Stage::Waiting(_) if more.is_some() => Some(run.extends_at(more)),
            Stage::Over(_) | Stage::Waiting(_) => Some(run.gives_up_at()),
        };
        match run.check {
            Check::Asked(_, since) => earliest(stage, Some(since + CHECK_MS)),
            _ => stage,
        }
    }
}

impl<B: Body> Ahead<B> {
    fn is_written(&self) -> bool {
        self.prediction.source == Source::Stream
    }

    /// Whether nobody has told it.
    pub(super) fn is_guess(&self) -> bool {
        self.prediction.source.is_guess()
    }

    /// Whether its guest has come to the end of the code.
    fn is_at_rest(&self) -> bool {
        matches!(self.stage, Stage::Over(_)) && matches!(self.said.last(), Some((_, Event::Executed { .. }, _)))
    }

    /// Its own clock, which stands still while it waits for code.
    fn clock(&self, now: f64) -> f64 {
        self.rests_since.unwrap_or(now) - self.rested
    }

    fn last_word(&self) -> f64 {
        match self.rests_since {
            Some(since) => since - self.rested,
            None => self.said.last().map_or(self.begun_at, |(at, ..)| *at),
        }
    }

    /// How long it has kept its guest busy.
    fn busy_ms(&self, now: f64) -> f64 {
        let until = match self.stage {
            Stage::Over(_) | Stage::Waiting(_) => self.last_word(),
            Stage::Preparing | Stage::Running(_) | Stage::Asked(..) => self.clock(now),
        };
        until - self.prepared_at
    }

    /// Until when what is over, or waits, is kept.
    fn gives_up_at(&self) -> f64 {
        self.last_word() + self.rested + AHEAD_TTL_MS
    }

    /// Whether it waits for what there is now of the code that is being written.
    fn can_take(&self, writing: &Writing) -> bool {
        let (text, is_whole) = writing.text();
        matches!(self.stage, Stage::Waiting(_))
            && !self.is_whole
            && (is_whole || text.len() > self.prediction.code.len())
            && goes_on(text, &self.prediction.code)
    }

    /// Whether it runs what is being written, as far as anybody knows.
    fn may_be_of(&self, writing: &Writing) -> bool {
        let known = &self.prediction.code;
        goes_on(writing.text().0, known) || (self.is_whole && goes_on(known, &writing.code))
    }

    /// Whether this code, which was being written, may run piece by piece, as is known.
    fn may_have_run(&self, task: &Task<B>) -> bool {
        let is_checked = |execution: &super::turn::Execution| execution.code == self.checked;
        self.check == Check::Passed && matches!(task, Task::Execute(execution) if is_checked(execution))
    }

    /// When it may be given that: not all the time, but at once when it is all.
    fn extends_at(&self, writing: Option<&Writing>) -> f64 {
        let is_whole = writing.is_some_and(|writing| writing.text().1);
        self.extended_at + if is_whole { 0.0 } else { EXTEND_MS }
    }

    /// Tells the guest that its code has come.
    fn promotion(&mut self, turn: u32, code: &str) -> Effect<B> {
        self.told = true;
        let rest = self.is_written().then(|| code[self.prediction.code.len()..].to_owned());
        Effect::Ahead(Box::new(Effect::Post(Request::Promote { turn, rest }, None)))
    }

    /// Whether this is what it runs, and it would not have been stopped by now had it begun when it came. What goes on is stopped
    /// when that is due, but what it did may then be more than it would have done: so it needs as much time as any.
    fn is(&self, task: &Task<B>, now: f64, session: &Budget) -> bool {
        let Task::Execute(execution) = task else { return false };
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
        if self.ahead.writing.is_some() {
            return self.follow_writing(now);
        }
        if self.ahead.run.as_ref().is_some_and(Ahead::is_written) {
            self.drop_ahead(); // nobody writes any more
        }
        if self.ahead.predictor.is_empty() {
            return;
        }
        if self.ahead.share.left(now) <= 0.0 {
            return self.ahead.predictor.forget(); // too much was in vain
        }
        if let Some(run) = &self.ahead.run {
            if self.ahead.predictor.expects(&run.prediction.code) {
                return self.ahead.predictor.forget(); // it is under way already
            }
            self.drop_ahead();
        }
        let Some(copy) = self.exact_copy() else { return };
        let Some(prediction) = self.ahead.predictor.choose() else {
            return;
        };
        self.ahead.predictor.forget();
        self.run_ahead(now, copy, prediction, None);
    }

    /// Runs what there is of code that is being written. It comes for certain, so that nothing else is worth trying.
    fn follow_writing(&mut self, now: f64) {
        self.ahead.predictor.forget();
        let Some(writing) = &mut self.ahead.writing else { return };
        match &mut self.ahead.run {
            Some(run) if run.is_written() && run.may_be_of(writing) => {
                // Not before the copy has compiled and run it: it may be what nobody asks for. The guest is idle now, and not when it has come.
                if run.is_whole && matches!(run.stage, Stage::Over(_)) && run.check == Check::NotAsked {
                    let whole = run.prediction.code.clone();
                    return self.check(now, whole);
                }
                let Some(run) = &mut self.ahead.run else { return };
                let Some(writing) = &self.ahead.writing else { return };
                let Stage::Waiting(turn) = run.stage else { return };
                if run.can_take(writing) && now >= run.extends_at(Some(writing)) {
                    let (code, last) = writing.text();
                    let text = code[run.prediction.code.len()..].to_owned();
                    run.prediction.code.push_str(&text);
                    run.rested += run.rests_since.take().map_or(0.0, |since| now - since);
                    run.extended_at = now;
                    run.stage = Stage::Running(turn);
                    run.is_whole = last;
                    let extend = Effect::Post(Request::Extend { turn, text, last }, None);
                    self.effects.push(Effect::Ahead(Box::new(extend)));
                }
                return;
            }
            Some(run) if !run.is_written() && run.prediction.code.starts_with(&writing.code) => return, // as was hinted
            Some(_) => self.drop_ahead(),
            None => {}
        }
        let Some(writing) = self.ahead.writing.as_ref().filter(|writing| !writing.tried) else {
            return;
        };
        let Some(copy) = self.exact_copy() else { return };
        let timeout_ms = writing.timeout_ms;
        let prediction = Prediction::told(0, writing.code.clone(), Source::Stream, 1.0);
        if let Some(writing) = &mut self.ahead.writing {
            writing.tried = true;
        }
        self.ahead.predictor.predict(vec![prediction]);
        if let Some(prediction) = self.ahead.predictor.choose() {
            self.run_ahead(now, copy, prediction, timeout_ms);
        }
    }

    fn run_ahead(&mut self, now: f64, mut copy: Self, prediction: Prediction, timeout_ms: Option<f64>) {
        self.tally(prediction.source).started += 1;
        self.tried(prediction.source);
        // A guest may have been others' before: no turn of its has the number of an earlier one, of which a message may be on its way.
        self.ahead.copies = self.ahead.copies.wrapping_add(1);
        copy.last_turn = FIRST_TURN
            .wrapping_add(self.ahead.copies.wrapping_mul(MOST_TURNS))
            .max(FIRST_TURN);
        let execute = Command::Execute {
            code: prediction.code.clone(),
            timeout_ms,
            budget: BudgetLimits::default(),
        };
        let effects = copy.handle(now, Input::Command(0, execute));
        self.ahead.run = Some(Ahead {
            is_whole: false,
            timeout_ms: timeout_ms.unwrap_or(copy.limits.timeout_ms),
            copy: Box::new(copy),
            prediction,
            prepared_at: now,
            execution: self.last_execution + 1,
            stage: Stage::Preparing,
            begun_at: now,
            said: Vec::new(),
            bytes: 0.0,
            rested: 0.0,
            rests_since: None,
            extended_at: now,
            check: Check::NotAsked,
            checked: String::new(),
            told: false,
            is_counted: false,
        });
        self.relay(now, effects);
    }

    /// Something happens to the copy.
    pub(super) fn ahead_input(&mut self, now: f64, input: Input<B>) {
        let Some(run) = &mut self.ahead.run else { return };
        match (&input, run.stage) {
            (Input::Guest(Event::Waiting { turn: said }, _), Stage::Running(turn) | Stage::Asked(turn, _))
                if run.is_written() && *said == turn =>
            {
                if run.is_whole {
                    return self.drop_ahead(); // there is no more, as it was told
                }
                let effects = run.copy.handle(run.clock(now), Input::Tick);
                self.relay(now, effects); // unless it has taken too long
                if let Some(run) = &mut self.ahead.run {
                    run.rests_since = Some(now);
                    run.stage = Stage::Waiting(turn);
                }
                return self.count_finished();
            }
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
                // Code that is still being written has no end.
                let too_soon = run.is_written() && !run.is_whole && matches!(event, Event::Executed { .. });
                let external = matches!(event, Event::External { .. });
                if !goes_on || run.bytes > MAX_AHEAD_BYTES || external || too_soon {
                    return self.drop_ahead();
                }
                run.said.push((run.clock(now), event.clone(), body.clone()));
                if call {
                    // Whether it is made is decided when its code comes.
                    if !matches!(run.stage, Stage::Over(_)) {
                        run.stage = Stage::Over(turn);
                        self.count_finished();
                    }
                    return;
                }
            }
            (_, Stage::Over(_) | Stage::Waiting(_)) => return self.drop_ahead(),
            _ => {}
        }
        let effects = run.copy.handle(run.clock(now), input);
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
                    run.extended_at = now;
                    let request = Request::Execute {
                        turn,
                        execution,
                        code,
                        timeout_ms,
                        ahead: true,
                        more: run.is_written(),
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
        let late = matches!(run.check, Check::Asked(_, since) if now >= since + CHECK_MS);
        match run.stage {
            _ if late => self.drop_ahead(),
            // What is told may take as long as it needs.
            Stage::Preparing | Stage::Running(_)
                if run.is_guess() && self.ahead.share.left(now) <= run.busy_ms(now) =>
            {
                self.drop_ahead();
            }
            Stage::Preparing | Stage::Running(_) => {
                let effects = run.copy.handle(run.clock(now), Input::Tick);
                self.relay(now, effects);
            }
            Stage::Asked(_, since) if now < since + PROMOTION_MS => {}
            Stage::Over(_) | Stage::Waiting(_) if now < run.gives_up_at() => {}
            Stage::Asked(..) | Stage::Over(_) | Stage::Waiting(_) => {
                if run.is_written() {
                    self.ahead.writing = None; // nobody has gone on with it
                }
                self.drop_ahead();
            }
        }
    }

    /// Whether what comes next is what runs ahead, and it is not certain yet that the guest that is at it may take over.
    pub(super) fn waits_for_ahead(&mut self, now: f64) -> bool {
        let forks = self.forks;
        let (Some(run), Some((_, task @ Task::Execute(execution)))) = (&mut self.ahead.run, self.queue.front()) else {
            return false;
        };
        // Without a bridge it would hear the question when it is done.
        let may_be_asked = match run.stage {
            Stage::Preparing => false,
            Stage::Running(_) => run.copy.info.bridge != "none",
            _ => true,
        };
        if !may_be_asked || !run.is(task, now, &self.budget) {
            return false;
        }
        if run.is_written() {
            match run.check {
                Check::Passed if run.checked == execution.code => {}
                Check::Asked(..) if run.checked == execution.code => return true,
                _ => {
                    let code = execution.code.clone();
                    self.check(now, code);
                    return true;
                }
            }
        }
        match run.stage {
            Stage::Asked(..) => true,
            // What a fork does to the world waits until it has taken over: it may do so at any time.
            Stage::Running(turn) if !forks => {
                run.stage = Stage::Asked(turn, now);
                let ask = run.promotion(turn, &execution.code);
                self.effects.push(ask);
                true
            }
            _ => false,
        }
    }

    /// Asks the session's own guest whether code may have run piece by piece.
    fn check(&mut self, now: f64, code: String) {
        if let Some(run) = &mut self.ahead.run {
            self.ahead.last_check += 1;
            let check = self.ahead.last_check;
            run.check = Check::Asked(check, now);
            run.checked.clone_from(&code);
            self.post(Request::Check { check, code }, None);
        }
    }

    /// The session's own guest says whether code may have run piece by piece.
    pub(super) fn checked(&mut self, now: f64, check: u32, plain: bool) {
        if check <= self.ahead.answered_check || check > self.ahead.last_check {
            return self.violation(now, "a check that nobody asked for");
        }
        self.ahead.answered_check = check;
        match &mut self.ahead.run {
            Some(run) if matches!(run.check, Check::Asked(number, _) if number == check) => {
                run.check = Check::Passed;
                if !plain {
                    self.drop_ahead();
                }
            }
            _ => {} // it took too long
        }
    }

    /// Takes what ran ahead when it is what is asked for now. Else it is ended, with all that was predicted for this moment.
    pub(super) fn take_ahead_of(&mut self, now: f64, task: &Task<B>) -> Option<Ahead<B>> {
        if let Task::Execute(execution) = task {
            self.ahead.predictor.forget();
            self.ahead.predictor.came(&execution.code);
            self.ahead.writing = None;
        }
        let (may, budget, forks) = (self.may_run(), &self.budget, self.forks);
        self.ahead.run.take_if(|run| {
            may && (matches!(run.stage, Stage::Over(_) | Stage::Waiting(_))
                || (forks && matches!(run.stage, Stage::Running(_))))
                && (!run.is_written() || run.may_have_run(task))
                && run.is(task, now, budget)
        })
    }

    /// Has the guest that ran it take over.
    pub(super) fn promote(&mut self, now: f64, ticket: Ticket, task: Task<B>, ahead: Ahead<B>) {
        let (Stage::Over(turn) | Stage::Waiting(turn) | Stage::Running(turn)) = ahead.stage else {
            return self.begin(now, Some(ticket), task);
        };
        let mut ahead = ahead;
        // A turn that is over, or waits for the host or its code, does so now; one that goes on has run since it began. Of a fork that goes
        // on nobody knows whether it computes or waits: it has its time from its last word.
        let last = ahead.said.last().map(|(_, event, _)| event);
        let rests =
            ahead.rests_since.is_some() || matches!(last, Some(Event::Executed { .. } | Event::HostCall { .. }));
        let rests = rests || (self.forks && matches!(ahead.stage, Stage::Running(_)));
        let later = if rests { now - ahead.last_word() } else { ahead.rested };
        if let Task::Execute(execution) = &task
            && (ahead.is_written() || self.forks)
            && !ahead.told
        {
            let promotion = ahead.promotion(turn, &execution.code);
            self.effects.push(promotion);
        }
        let tally = self.tally(ahead.prediction.source);
        tally.used += 1;
        tally.time_saved += now - later - ahead.begun_at;
        self.effects.push(Effect::Promote);
        self.forget_ping();
        self.stats.guests += 1;
        self.info = ahead.copy.info;
        self.checkpoints.promoted();
        self.begin_as(ahead.begun_at + later, Some(ticket), task, Some(turn));
        for (at, event, body) in ahead.said {
            if self.turn.as_ref().is_none_or(|turn| turn.ticket != Some(ticket)) {
                break; // what it said ended it, and the next guest has not said the rest
            }
            self.guest_event(at + later, event, body);
        }
    }

    /// Ends what runs ahead, when there is anything.
    pub(super) fn drop_ahead(&mut self) {
        if let Some(run) = self.ahead.run.take() {
            let spent_ms = run.busy_ms(self.ahead.now).max(0.0);
            self.ahead.share.waste(spent_ms);
            let tally = self.tally(run.prediction.source);
            tally.wasted += 1;
            tally.time_wasted += spent_ms;
            let end = if run.is_at_rest() { Effect::Rest } else { Effect::Kill };
            self.effects.push(Effect::Ahead(Box::new(end)));
        }
    }

    fn count_finished(&mut self) {
        if let Some(run) = &mut self.ahead.run
            && !std::mem::replace(&mut run.is_counted, true)
        {
            let source = run.prediction.source;
            self.tally(source).finished += 1;
        }
    }

    fn tally(&mut self, source: Source) -> &mut Tally {
        self.ahead.predictor.tally(source)
    }
}

/// Whether code may be another that was known as far as a line's end, and more. What goes on in the middle of a line is no more of it: `x = 1` and
/// `x = 10` begin alike.
fn goes_on(code: &str, known: &str) -> bool {
    code.strip_prefix(known).is_some_and(begins_with_line_end)
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
