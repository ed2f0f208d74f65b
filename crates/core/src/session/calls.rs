//! The host calls of an exchange. They are counted, a few run at a time, and each has its own timeout.

use std::collections::{BTreeMap, VecDeque};

use super::calls_ahead::BegunCalls;
use super::exchange::{Exchange, Job};
use super::interpreter::{Config, Interpreter};
use super::records::{Made, Record};
use super::{Body, Effect, Encoded, GuestEffect, HostEffect, Slot, Ticket};
use crate::budget::{Budget, Exhausted, Usage};
use crate::limits::Naming;
use crate::protocol::{Encoding, Event, Profile, QUERIES, ReplyStatus, Request};

/// The progress of calls that Python made at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The called function's name.
    pub name: String,
    /// The number of answered calls, failed ones included.
    pub done: u32,
    /// The number of failed calls.
    pub failed: u32,
    /// The number of all calls.
    pub total: u32,
}

/// The host calls of one exchange that have no answer yet.
#[derive(Debug)]
pub(super) struct Calls<B> {
    /// Calls that wait until fewer others run, in order.
    pub(super) waiting: VecDeque<Waiting<B>>,
    /// Running calls, by the host's number.
    pub(super) running: BTreeMap<u32, Running>,
    /// Calls that were begun ahead, and that no call has claimed yet.
    pub(super) begun: BegunCalls<B>,
    /// The number of claimed calls.
    pub(super) claimed: u32,
    /// The highest number that the guest has used for a call.
    last: u32,
    waiting_bytes: usize,
    /// The batch whose calls are coming in, if the profile admits batches as a whole.
    batch: Option<Batch>,
    /// The progress of the calls that Python made at once.
    progress: Option<Progress>,
    /// The record of the execution, if it is recorded.
    pub(super) record: Option<Record<B>>,
}

/// A call of a function of the user's.
#[derive(Debug, Clone, PartialEq)]
pub struct Call<B> {
    /// The call's number. It is never used twice.
    pub call: u32,
    /// The command whose code calls.
    pub ticket: Option<Ticket>,
    /// The function's name.
    pub name: String,
    /// The list of arguments, or a single str argument alone.
    pub args: Encoded<B>,
    /// The execution's budget. A recursion gets a child of it.
    pub budget: Budget,
    /// The call's place among the calls of its execution, from 1. 0 if the execution is not recorded.
    pub place: u32,
    /// True if the call is begun before its code is asked for. [`HostEffect::ClaimHost`] or [`HostEffect::AbortHost`] follows.
    pub ahead: bool,
}

/// A call that waits until fewer others run.
#[derive(Debug)]
pub(super) struct Waiting<B> {
    /// The guest's number for the call.
    pub(super) guest_call: u32,
    /// True if the budget has counted the call.
    is_counted: bool,
    call: Call<B>,
}

/// Calls that are refused together if the budget is too small for all of them.
#[derive(Debug)]
struct Batch {
    /// The number of calls that are still to come.
    missing: u32,
    refusal: Option<String>,
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) guest_call: u32,
    pub(super) name: String,
    /// `None` while the call waits for approval, which may take any time.
    pub(super) expires_at: Option<f64>,
    /// The use that is expected of a call of a model.
    pub(super) expected: Usage,
}

impl<B> Default for Calls<B> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            begun: BTreeMap::new(),
            claimed: 0,
            last: 0,
            waiting_bytes: 0,
            batch: None,
            progress: None,
            record: None,
        }
    }
}

impl<B> Calls<B> {
    /// The time at which the first running call times out.
    pub(super) fn next_expiry(&self) -> Option<f64> {
        self.running
            .values()
            .filter_map(|call| call.expires_at)
            .reduce(f64::min)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Counts a call among those that Python made at once.
    fn count(&mut self, name: &str) {
        let progress = self.progress.get_or_insert_with(|| Progress {
            name: name.to_owned(),
            done: 0,
            failed: 0,
            total: 0,
        });
        progress.total += 1;
    }
}

impl<B: Body> Calls<B> {
    /// Takes the next call that may begin. Calls of `llm_query` keep their order. Others pass those that wait for tokens.
    fn next_waiting(&mut self, now: f64) -> Option<Waiting<B>> {
        let first = self.waiting.front()?;
        if !self.is_held(first, now) {
            return self.waiting.pop_front();
        }
        let free = self
            .waiting
            .iter()
            .position(|waiting| waiting.call.name != QUERIES[0])?;
        self.waiting.remove(free)
    }

    /// Returns true if a call has to wait because those that run are expected to use up the tokens or the cost that are left. Without such
    /// a pause, a batch would pass the limit by all of its calls at once. Nobody waits for a child run, which spends as it goes, or for a
    /// call that waits for approval, which may take long.
    fn is_held(&self, Waiting { guest_call, call, .. }: &Waiting<B>, now: f64) -> bool {
        let runs_already = self.begun.contains_key(guest_call);
        if call.name != QUERIES[0] || runs_already || call.budget.go_on(now).is_err() {
            return false;
        }
        let mut expected = call.budget.expected(call.args.body.size());
        let mut is_alone = true;
        let others = self.running.values().filter(|other| other.name == QUERIES[0]);
        for other in others.filter(|other| other.expires_at.is_some()) {
            is_alone = false;
            expected.add(&other.expected);
        }
        !is_alone && !call.budget.has_room(&expected)
    }
}

impl<B: Body> Exchange<B> {
    /// Takes a new call of the guest, which makes so many at once, this one included. The guest now waits. An error is a violation.
    pub(super) fn host_call(
        &mut self,
        now: f64,
        event: Event,
        body: Option<B>,
        config: &Config,
        last_call: &mut u32,
        effects: &mut Vec<Effect<B>>,
    ) -> Result<(), String> {
        let (
            Event::HostCall {
                call: guest_call,
                batch,
                name,
                encoding,
                ..
            },
            Job::Execute(execution),
        ) = (event, &mut self.job)
        else {
            return Ok(());
        };
        let body = body.ok_or("a host call without arguments")?;
        let calls = &mut self.calls;
        if guest_call <= calls.last {
            return Err(format!("host call {guest_call} twice"));
        }
        calls.last = guest_call;
        calls.count(&name);
        let made = execution.count_host_call();
        let most = config.limits.max_host_calls;
        let naming = config.limits.naming;
        let is_counted = config.profile.has_whole_batches() && name == QUERIES[0];
        let args = Encoded { encoding, body };
        let mut place = 0;
        if let Some(record) = &mut calls.record {
            match record.made(guest_call, &name, &args) {
                Ok(Made::Fresh(its)) => place = its,
                Ok(Made::Known(answer)) => {
                    execution.budget.charge(&answer.usage);
                    if is_counted {
                        calls.admitted(batch.clamp(1, most.saturating_sub(made) + 1));
                    }
                    calls.reply(guest_call, answer.status, answer.result, effects);
                    return Ok(());
                }
                Err(what) => {
                    self.differs = Some(what);
                    return Ok(());
                }
            }
        }
        calls.tell_record(effects);
        let Encoded { encoding, body } = args;
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let bytes = calls.waiting_bytes.saturating_add(body.size()) as f64;
        let refusal = if self.deadline.stop_reason().is_some() {
            Some((ReplyStatus::Error, "the execution is being stopped".to_owned()))
        } else if !config.host_functions.contains(&name) {
            Some((ReplyStatus::Error, nobody_answers(&name, naming)))
        } else if made > most {
            Some((
                ReplyStatus::Limit,
                format!(
                    "the execution has used its {most} host calls ({})",
                    naming.of("maxHostCalls")
                ),
            ))
        } else if bytes > config.limits.max_value_bytes {
            Some((
                ReplyStatus::Limit,
                format!(
                    "the arguments of the calls that wait are too large ({})",
                    naming.of("maxValueSize")
                ),
            ))
        } else if is_counted {
            // The guest tells the batch's size. It is believed up to the number of calls that the execution may still make.
            let size = batch.clamp(1, most - made + 1);
            let begun = calls.batch.take().filter(|batch| batch.missing > 0);
            let mut batch = begun.unwrap_or_else(|| Batch {
                missing: size,
                refusal: execution
                    .budget
                    .admit_all(size, now)
                    .err()
                    .map(|why| told(&why, config.profile, naming)),
            });
            batch.missing -= 1;
            let refusal = batch.refusal.clone();
            calls.batch = Some(batch);
            refusal.map(|why| (ReplyStatus::Limit, why))
        } else {
            None
        };
        if let Some((status, why)) = refusal {
            calls.reply(guest_call, status, Err(why), effects);
        } else {
            calls.waiting_bytes += body.size();
            *last_call += 1;
            let call = Call {
                call: *last_call,
                ticket: self.ticket,
                name,
                args: Encoded { encoding, body },
                budget: execution.budget.clone(),
                place,
                ahead: false,
            };
            calls.waiting.push_back(Waiting {
                guest_call,
                is_counted,
                call,
            });
            self.deadline.pause(now);
        }
        self.start_calls(now, config, effects);
        Ok(())
    }

    /// Starts waiting calls while there is room for them. The guest's clock runs again if no call is left.
    fn start_calls(&mut self, now: f64, config: &Config, effects: &mut Vec<Effect<B>>) {
        let calls = &mut self.calls;
        while calls.running.len() < config.limits.max_concurrent_host_calls as usize
            && let Some(Waiting {
                guest_call,
                is_counted,
                call,
            }) = calls.next_waiting(now)
        {
            calls.waiting_bytes = calls.waiting_bytes.saturating_sub(call.args.body.size());
            let budget = &call.budget;
            let begun = calls.begun.contains_key(&guest_call); // then the session's budget has counted the call
            let allowed = match QUERIES.iter().position(|query| *query == call.name) {
                None => Ok(()),
                Some(_) if is_counted => budget.go_on(now),
                Some(_) if begun => budget.admit_here(now),
                Some(0) => budget.admit(now),
                Some(_) => budget.may_recurse().and_then(|()| budget.admit(now)),
            };
            if let Err(why) = allowed {
                let why = told(&why, config.profile, config.limits.naming);
                calls.reply(guest_call, ReplyStatus::Limit, Err(why), effects);
                continue;
            }
            let expires_at = now + config.limits.host_call_timeout_ms;
            if let Some(begun) = calls.begun.remove(&guest_call) {
                if let Some(result) = calls.claim(begun, call, expires_at, effects) {
                    calls.reply(guest_call, ReplyStatus::Error, result, effects);
                }
                continue;
            }
            let running = Running {
                guest_call,
                name: call.name.clone(),
                expires_at: Some(expires_at),
                expected: budget.expected(call.args.body.size()),
            };
            calls.running.insert(call.call, running);
            effects.push(Effect::Host(HostEffect::CallHost(call)));
        }
        if calls.is_empty() {
            calls.progress = None;
            self.deadline.resume(now);
        }
    }
}

impl<B: Body> Interpreter<B> {
    /// Takes the return of the user's function.
    pub(super) fn host_returned(&mut self, now: f64, call: u32, result: Result<Encoded<B>, String>) {
        let Some(exchange) = &mut self.exchange else { return };
        let calls = &mut exchange.calls;
        if let Some(begun) = calls.begun_ahead(call) {
            begun.returned(result);
        } else if let Some(running) = calls.running.remove(&call) {
            calls.reply(running.guest_call, ReplyStatus::Error, result, &mut self.effects);
            exchange.start_calls(now, &self.config, &mut self.effects);
        }
    }

    /// Notes that a running call begins or ends to wait for approval. Its `hostCallTimeout` begins when the approval is given.
    pub(super) fn call_waits(&mut self, now: f64, call: u32, waits: bool) {
        let Some(exchange) = &mut self.exchange else { return };
        if let Some(running) = exchange.calls.running.get_mut(&call) {
            running.expires_at = (!waits).then_some(now + self.config.limits.host_call_timeout_ms);
            exchange.start_calls(now, &self.config, &mut self.effects);
        }
    }

    /// Records the use of the budget by a running call.
    pub(super) fn host_used(&mut self, call: u32, usage: &Usage) {
        let Some(exchange) = &mut self.exchange else { return };
        if let Some(begun) = exchange.calls.begun_ahead(call) {
            begun.used(usage);
        } else if let Job::Execute(execution) = &exchange.job
            && exchange.calls.running.contains_key(&call)
        {
            execution.budget.charge(usage);
            if let Some(guest_call) = exchange.calls.running.get(&call).map(|call| call.guest_call)
                && let Some(record) = &mut exchange.calls.record
            {
                record.used(guest_call, usage);
            }
        }
    }

    /// Answers the calls that have timed out.
    pub(super) fn expire_calls(&mut self, now: f64) {
        let Some(exchange) = &mut self.exchange else {
            return;
        };
        let ms = self.config.limits.host_call_timeout_ms;
        let option = self.config.limits.naming.of("hostCallTimeout");
        let running = exchange.calls.running.iter();
        let expired = running.filter(|(_, call)| call.expires_at.is_some_and(|at| now >= at));
        let expired: Vec<u32> = expired.map(|(number, _)| *number).collect();
        for number in &expired {
            let Some(call) = exchange.calls.running.remove(number) else {
                continue;
            };
            self.effects.push(Effect::Host(HostEffect::AbortHost(*number)));
            let message = format!("{} took longer than {ms} ms ({option})", call.name);
            let calls = &mut exchange.calls;
            calls.reply(call.guest_call, ReplyStatus::Timeout, Err(message), &mut self.effects);
        }
        if !expired.is_empty() {
            exchange.start_calls(now, &self.config, &mut self.effects);
        }
    }

    /// Aborts all calls, because nobody waits for them any more.
    pub(super) fn abort_calls(&mut self) {
        let Some(Exchange { calls, .. }) = &mut self.exchange else {
            return;
        };
        calls.waiting.clear();
        calls.waiting_bytes = 0;
        calls.progress = None;
        let running = std::mem::take(&mut calls.running).into_keys();
        let aborts = running.map(|call| Effect::Host(HostEffect::AbortHost(call)));
        self.effects.extend(aborts);
        self.waste_unclaimed_calls();
    }
}

impl<B: Body> Calls<B> {
    /// Counts a call of a batch that was admitted in an earlier run.
    fn admitted(&mut self, size: u32) {
        let begun = self.batch.take().filter(|batch| batch.missing > 0);
        let mut batch = begun.unwrap_or(Batch {
            missing: size,
            refusal: None,
        });
        batch.missing -= 1;
        self.batch = Some(batch);
    }

    /// Has the driver write what is new in the record.
    fn tell_record(&mut self, effects: &mut Vec<Effect<B>>) {
        let notes = self.record.as_mut().map(Record::untold).unwrap_or_default();
        effects.extend(notes.into_iter().map(|note| Effect::Host(HostEffect::Note(note))));
    }

    /// Sends the guest a call's result, or the reason for which there is none, with the status of such a failure.
    fn reply(
        &mut self,
        call: u32,
        failure: ReplyStatus,
        result: Result<Encoded<B>, String>,
        effects: &mut Vec<Effect<B>>,
    ) {
        if let Some(progress) = &mut self.progress {
            progress.done += 1;
            progress.failed += u32::from(result.is_err());
            if progress.total > 1 {
                effects.push(Effect::Host(HostEffect::Progress(progress.clone())));
            }
        }
        if let Some(record) = &mut self.record {
            let status = if result.is_ok() { ReplyStatus::Ok } else { failure };
            record.answered(call, status, &result);
        }
        self.tell_record(effects);
        let (status, encoding, message, body) = match result {
            Ok(Encoded { encoding, body }) => (ReplyStatus::Ok, encoding, None, Some(body)),
            Err(why) => (failure, Encoding::None, Some(why), None),
        };
        let request = Request::HostReply {
            call,
            status,
            encoding,
            message,
        };
        effects.push(Effect::Guest(Slot::Main, GuestEffect::Post(request, body)));
    }
}

/// The message to Python about a function that the host does not have. It is for those who make the sandbox.
fn nobody_answers(name: &str, naming: Naming) -> String {
    let remedy = match (name, naming) {
        ("llm_query", Naming::Snake) => "pass on_llm_query",
        ("rlm_query", Naming::Snake) => "pass on_rlm_query",
        (_, Naming::Snake) => "pass it in host_functions",
        ("llm_query", _) => "pass onLLMQuery, or on_llm_query in Python and Rust",
        ("rlm_query", _) => "pass onRLMQuery, or on_rlm_query in Python and Rust",
        _ => "pass it in hostFunctions, or in host_functions in Python, or by host_function in Rust",
    };
    format!("the host has no function {name}: {remedy}, when you create the sandbox")
}

/// The text for Python. For calls, dspy's `_LLMCallBudget` (`dspy/predict/rlm.py`, 3.4.1) has its own text.
fn told(why: &Exhausted, profile: Profile, naming: Naming) -> String {
    match why {
        Exhausted::Calls { made, more, most } if profile == Profile::Dspy => format!(
            "LLM call limit exceeded: {made} + {more} > {most}. \
             Use Python code for aggregation instead of making more LLM calls."
        ),
        other => other.text(naming),
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn dspy_is_told_of_used_up_calls_in_its_own_words() {
        let (made, more, most) = (48.0, 3.0, 50.0);
        let calls = Exhausted::Calls { made, more, most };
        assert_eq!(
            told(&calls, Profile::Dspy, Naming::Snake),
            "LLM call limit exceeded: 48 + 3 > 50. Use Python code for aggregation instead of making more LLM calls."
        );
        assert_eq!(told(&calls, Profile::Rlm, Naming::Camel), calls.to_string());
        assert_eq!(
            told(&calls, Profile::Rlm, Naming::Snake),
            "the budget of 50 model calls is used up (max_calls)"
        );
        assert_eq!(
            told(&Exhausted::Cost(1.5), Profile::Dspy, Naming::Camel),
            Exhausted::Cost(1.5).to_string()
        );
    }
}
