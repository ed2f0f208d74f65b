//! The host calls of a turn: counted, a few at a time, each with its own timeout.

use std::collections::{BTreeMap, VecDeque};

use super::turn::Task;
use super::{Body, Effect, Encoded, Progress, Session};
use crate::budget::Usage;
use crate::protocol::{Encoding, QUERIES, ReplyStatus, Request};

/// Why the user's function gave no result, as Python is to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFailure(pub String);

/// The host calls of one turn that are not answered yet.
#[derive(Debug)]
pub(super) struct Calls<B> {
    /// Waiting for a place, in order.
    waiting: VecDeque<Waiting<B>>,
    /// Under way, by the host's number.
    running: BTreeMap<u32, Running>,
    /// The highest number that the guest has used.
    last: u32,
    waiting_bytes: usize,
    /// The batch that is coming in, where batches are admitted as a whole.
    batch: Option<Batch>,
    /// How far those are that Python made at once.
    progress: Option<Progress>,
}

#[derive(Debug)]
struct Waiting<B> {
    guest_call: u32,
    name: String,
    args: Encoded<B>,
    /// Whether the budget has counted it.
    is_counted: bool,
}

/// Calls that are all refused when the budget has not enough for all of them.
#[derive(Debug)]
struct Batch {
    /// How many of them are still to come.
    missing: u32,
    refusal: Option<String>,
}

#[derive(Debug)]
struct Running {
    guest_call: u32,
    name: String,
    expires_at: f64,
}

impl<B> Default for Calls<B> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            last: 0,
            waiting_bytes: 0,
            batch: None,
            progress: None,
        }
    }
}

impl<B> Calls<B> {
    /// When the first call under way runs out of time.
    pub(super) fn next_expiry(&self) -> Option<f64> {
        self.running.values().map(|call| call.expires_at).reduce(f64::min)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Counts a call with those that Python made at once.
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

impl<B: Body> Session<B> {
    /// The guest called `name` and waits.
    pub(super) fn host_call(
        &mut self,
        now: f64,
        call: u32,
        batch: u32,
        name: String,
        encoding: Encoding,
        args: Option<B>,
    ) {
        let Some(turn) = &mut self.turn else { return };
        let Task::Execute(execution) = &mut turn.task else {
            return;
        };
        if call <= turn.calls.last {
            return self.violation(now, &format!("host call {call} twice"));
        }
        let Some(body) = args else {
            return self.violation(now, "a host call without arguments");
        };
        turn.calls.last = call;
        turn.calls.count(&name);
        let made = execution.count_host_call();
        let most = self.limits.max_host_calls;
        let is_counted = self.profile.has_whole_batches() && name == QUERIES[0];
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let bytes = turn.calls.waiting_bytes.saturating_add(body.size()) as f64;
        let refusal = if turn.deadline.stop_reason().is_some() {
            Some((ReplyStatus::Error, "the execution is being stopped".to_owned()))
        } else if !self.host_functions.contains(&name) {
            Some((ReplyStatus::Error, format!("the host has no function {name}")))
        } else if made > most {
            Some((
                ReplyStatus::Limit,
                format!("the execution has used its {most} host calls (maxHostCalls)"),
            ))
        } else if bytes > self.limits.max_value_bytes {
            Some((
                ReplyStatus::Limit,
                "the arguments of the calls that wait are too large (maxValueSize)".to_owned(),
            ))
        } else if is_counted {
            // The guest says how many they are, and is believed as far as it may make so many.
            let size = batch.clamp(1, most - made + 1);
            let begun = turn.calls.batch.take().filter(|batch| batch.missing > 0);
            let mut batch = begun.unwrap_or_else(|| Batch {
                missing: size,
                refusal: execution
                    .budget
                    .admit_all(size, now)
                    .err()
                    .map(|why| why.told(self.profile)),
            });
            batch.missing -= 1;
            let refusal = batch.refusal.clone();
            turn.calls.batch = Some(batch);
            refusal.map(|why| (ReplyStatus::Limit, why))
        } else {
            None
        };
        if let Some((status, message)) = refusal {
            self.refuse(call, status, message);
            return self.start_calls(now);
        }
        turn.calls.waiting_bytes += body.size();
        turn.calls.waiting.push_back(Waiting {
            guest_call: call,
            name,
            args: Encoded { encoding, body },
            is_counted,
        });
        turn.deadline.pause(now);
        self.start_calls(now);
    }

    pub(super) fn host_returned(&mut self, now: f64, call: u32, result: Result<Encoded<B>, HostFailure>) {
        let Some(turn) = &mut self.turn else { return };
        let Some(running) = turn.calls.running.remove(&call) else {
            return;
        };
        match result {
            Ok(Encoded { encoding, body }) => {
                self.answered(false);
                self.reply(running.guest_call, ReplyStatus::Ok, encoding, None, Some(body));
            }
            Err(HostFailure(message)) => self.refuse(running.guest_call, ReplyStatus::Error, message),
        }
        self.start_calls(now);
    }

    /// Answers the calls whose time is over.
    pub(super) fn expire_calls(&mut self, now: f64) {
        let ms = self.limits.host_call_timeout_ms;
        let Some(turn) = &mut self.turn else { return };
        let expired: Vec<u32> = turn
            .calls
            .running
            .iter()
            .filter(|(_, call)| now >= call.expires_at)
            .map(|(number, _)| *number)
            .collect();
        if expired.is_empty() {
            return;
        }
        for number in expired {
            let Some(call) = self.turn.as_mut().and_then(|turn| turn.calls.running.remove(&number)) else {
                continue;
            };
            self.effects.push(Effect::AbortHost(number));
            let message = format!("{} took longer than {ms} ms (hostCallTimeout)", call.name);
            self.refuse(call.guest_call, ReplyStatus::Timeout, message);
        }
        self.start_calls(now);
    }

    /// Nobody waits for any of the turn's calls any more.
    pub(super) fn abort_calls(&mut self) {
        let Some(turn) = &mut self.turn else { return };
        turn.calls.waiting.clear();
        turn.calls.waiting_bytes = 0;
        turn.calls.progress = None;
        for number in std::mem::take(&mut turn.calls.running).into_keys() {
            self.effects.push(Effect::AbortHost(number));
        }
    }

    /// What a call under way has used.
    pub(super) fn host_used(&mut self, call: u32, usage: &Usage) {
        if let Some(turn) = &self.turn
            && let Task::Execute(execution) = &turn.task
            && turn.calls.running.contains_key(&call)
        {
            execution.budget.charge(usage);
        }
    }

    /// Starts what has a place, and lets the guest's clock run when nothing is left to wait for.
    fn start_calls(&mut self, now: f64) {
        while let Some(turn) = &mut self.turn
            && let Task::Execute(execution) = &turn.task
            && turn.calls.running.len() < self.limits.max_concurrent_host_calls as usize
            && let Some(Waiting {
                guest_call,
                name,
                args,
                is_counted,
            }) = turn.calls.waiting.pop_front()
        {
            turn.calls.waiting_bytes = turn.calls.waiting_bytes.saturating_sub(args.body.size());
            let budget = execution.budget.clone();
            let allowed = match QUERIES.iter().position(|query| *query == name) {
                None => Ok(()),
                Some(_) if is_counted => budget.go_on(now),
                Some(0) => budget.admit(now),
                Some(_) => budget.may_recurse().and_then(|()| budget.admit(now)),
            };
            if let Err(why) = allowed {
                let why = why.told(self.profile);
                self.refuse(guest_call, ReplyStatus::Limit, why);
                continue;
            }
            self.last_call += 1;
            let call = self.last_call;
            let expires_at = now + self.limits.host_call_timeout_ms;
            let running = Running {
                guest_call,
                name: name.clone(),
                expires_at,
            };
            turn.calls.running.insert(call, running);
            self.effects.push(Effect::CallHost {
                call,
                name,
                args,
                budget,
            });
        }
        if let Some(turn) = &mut self.turn
            && turn.calls.is_empty()
        {
            turn.calls.progress = None;
            turn.deadline.resume(now);
        }
    }

    /// One of the calls that Python made at once is answered.
    fn answered(&mut self, failed: bool) {
        if let Some(progress) = self.turn.as_mut().and_then(|turn| turn.calls.progress.as_mut()) {
            progress.done += 1;
            progress.failed += u32::from(failed);
            if progress.total > 1 {
                self.effects.push(Effect::Progress(progress.clone()));
            }
        }
    }

    fn refuse(&mut self, call: u32, status: ReplyStatus, why: String) {
        self.answered(true);
        self.reply(call, status, Encoding::None, Some(why), None);
    }

    fn reply(&mut self, call: u32, status: ReplyStatus, encoding: Encoding, message: Option<String>, body: Option<B>) {
        self.post(
            Request::HostReply {
                call,
                status,
                encoding,
                message,
            },
            body,
        );
    }
}
