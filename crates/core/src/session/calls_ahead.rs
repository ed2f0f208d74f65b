//! Host calls that are begun ahead: a shadow made them, and nobody has asked for its code yet.
//!
//! Only calls of `llm_query` are begun, and only by code that is being written: its complete statements are certain to come. A begun call
//! belongs to its shadow. When the shadow is promoted, the same call of the promoted guest *claims* it.
//!
//! The calls of a shadow that ends instead are *left*. A reply that was cut, or has a mistake in its code, is often followed by nearly the
//! same code. Calls with the same arguments in that code, while it is being written, take the left ones over. After the next execution, left
//! calls are aborted, and count as wasted. A session that has wasted too much begins no more.
//!
//! The budget counts a call when it is begun. What the call used is charged when it is claimed or wasted.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::collections::BTreeMap;

use super::calls::{Call, Calls, Running, Waiting};
use super::interpreter::{Guest, Interpreter};
use super::shadow::Shadow;
use super::shadows::{ShadowEffect, Shadows};
use super::{Body, Effect, Encoded, HostEffect, Session};
use crate::budget::{Budget, Usage};
use crate::limits::WASTED_CALLS;
use crate::protocol::{Event, QUERIES};
use crate::stats::CallsAhead;

/// The first number of calls that are begun ahead. Other calls have lower numbers.
const FIRST_CALL: u32 = 1 << 31;

/// A call that was begun ahead, and is not claimed yet.
#[derive(Debug)]
pub(super) struct Begun<B> {
    /// The guest's number for the call.
    guest_call: u32,
    /// The host's number for the call.
    call: u32,
    args: Encoded<B>,
    budget: Budget,
    /// The use of the budget that was reported so far. It is not charged yet.
    usage: Vec<Usage>,
    /// The call's result, if it has returned already.
    result: Option<Result<Encoded<B>, String>>,
}

impl<B> Begun<B> {
    fn charge(&self, budget: &Budget) {
        self.usage.iter().for_each(|usage| budget.charge(usage));
    }

    /// Keeps the result until the call is claimed.
    pub(super) fn returned(&mut self, result: Result<Encoded<B>, String>) {
        self.result = Some(result);
    }

    /// Keeps the use of the budget until the call is claimed or wasted.
    pub(super) fn used(&mut self, usage: &Usage) {
        self.usage.push(*usage);
    }

    /// Gives the call up. Returns the number that the driver has to abort, if the call is still under way.
    fn waste(self, tally: &mut CallsAhead) -> u32 {
        self.charge(&self.budget);
        tally.wasted += 1;
        self.call
    }
}

/// A call of a shadow that has ended.
#[derive(Debug)]
struct Left<B> {
    /// The execution that the shadow ran ahead.
    execution: u32,
    begun: Begun<B>,
}

/// The begun calls of a session.
#[derive(Debug)]
pub(super) struct AheadOfCalls<B> {
    /// True if calls may be begun ahead.
    pub(super) is_on: bool,
    last: u32,
    left: Vec<Left<B>>,
    pub(super) tally: CallsAhead,
}

impl<B> Default for AheadOfCalls<B> {
    fn default() -> Self {
        Self {
            is_on: false,
            last: 0,
            left: Vec::new(),
            tally: CallsAhead::default(),
        }
    }
}

impl<B: Body> AheadOfCalls<B> {
    /// Returns true if too many calls were begun in vain. Calls that are left may be in vain.
    fn has_wasted(&self, interpreter: &Interpreter<B>) -> bool {
        let left = u32::try_from(self.left.len()).unwrap_or(u32::MAX);
        let wasted = self.tally.wasted + interpreter.stats.ahead.calls.wasted;
        f64::from(wasted) + f64::from(left) > WASTED_CALLS * f64::from(interpreter.stats.host_calls)
    }

    /// Takes a left call with these arguments, for another call of the guest's.
    fn take_left(&mut self, guest_call: u32, args: &Encoded<B>) -> Option<Begun<B>> {
        let is_same = |left: &Left<B>| {
            let its = &left.begun.args;
            its.encoding == args.encoding && its.body.is_same(&args.body)
        };
        let place = self.left.iter().position(is_same)?;
        let begun = self.left.remove(place).begun;
        Some(Begun { guest_call, ..begun })
    }

    /// The number for another call.
    fn next(&mut self) -> u32 {
        let call = FIRST_CALL + self.last;
        self.last = self.last.wrapping_add(1) % FIRST_CALL;
        self.tally.begun += 1;
        call
    }
}

impl<B: Body> Session<B> {
    /// Lets calls of `llm_query` begin before their code is asked for, if that code is being written
    /// ([`Input::Written`](super::Input::Written)).
    #[must_use]
    pub fn with_calls_ahead(mut self) -> Self {
        self.shadows.calls.is_on = true;
        self
    }

    pub(super) fn host_returned(&mut self, now: f64, call: u32, result: Result<Encoded<B>, String>) {
        if let Some(result) = self.shadows.host_returned(call, result) {
            self.interpreter.host_returned(now, call, result);
        }
    }

    pub(super) fn host_used(&mut self, call: u32, usage: &Usage) {
        if !self.shadows.host_used(call, usage) {
            self.interpreter.host_used(call, usage);
        }
    }
}

impl<B: Body> Shadow<B> {
    /// Calls of this name that the guest has made and that are not begun: the guest's numbers and the arguments. With those that are begun, they
    /// are at most so many, and have arguments of at most so many bytes together.
    fn calls_to_begin(&self, name: &str, most: usize, most_bytes: f64) -> Vec<(u32, Encoded<B>)> {
        let made = self.said.iter().filter_map(|(_, event, body)| match (event, body) {
            (
                Event::HostCall {
                    call,
                    name: its,
                    encoding,
                    ..
                },
                Some(body),
            ) => Some((*call, its, *encoding, body)),
            _ => None,
        });
        // The guest is not trusted: of two calls with the same number, the promotion will hear the first one only.
        let (mut highest, mut bytes) = (0, 0.0);
        let begun = self.begun.last().map_or(0, |begun| begun.guest_call);
        let fresh = made.filter(|(call, ..)| {
            let is_first = *call > highest;
            highest = highest.max(*call);
            is_first
        });
        fresh
            .filter(|(_, its, ..)| *its == name)
            .take(most)
            .take_while(|(.., body)| {
                #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
                let more = body.size() as f64;
                bytes += more;
                bytes <= most_bytes
            })
            .filter(|(call, ..)| *call > begun)
            .map(|(call, _, encoding, body)| {
                let body = body.clone();
                (call, Encoded { encoding, body })
            })
            .collect()
    }
}

impl<B: Body> Shadows<B> {
    /// Begins calls that code which is being written has made, as far as the session may make them.
    pub(super) fn begin_calls(&mut self, now: f64, interpreter: &Interpreter<B>) {
        let config = &interpreter.config;
        // In such a profile, calls are refused all together. So none is begun before all are known.
        if !self.calls.is_on || config.profile.has_whole_batches() {
            return;
        }
        let name = QUERIES[0];
        if !config.host_functions.iter().any(|function| function == name) {
            return;
        }
        let most = config
            .limits
            .max_concurrent_host_calls
            .min(config.limits.max_host_calls);
        let Some(shadow) = self.shadows.iter_mut().find(|shadow| shadow.is_written()) else {
            return;
        };
        let most_bytes = config.limits.max_value_bytes;
        for (guest_call, args) in shadow.calls_to_begin(name, most as usize, most_bytes) {
            if let Some(left) = self.calls.take_left(guest_call, &args) {
                shadow.begun.push(left);
                continue;
            }
            let budget = interpreter.budget.clone();
            let is_full = shadow.begun.len() + self.calls.left.len() >= most as usize;
            let under_way = shadow
                .begun
                .iter()
                .chain(self.calls.left.iter().map(|left| &left.begun));
            let mut expected = budget.expected(args.body.size());
            under_way.for_each(|begun| expected.add(&budget.expected(begun.args.body.size())));
            let has_room = budget.has_room(&expected);
            if is_full || !has_room || self.calls.has_wasted(interpreter) || budget.admit(now).is_err() {
                continue; // the code that comes makes the call, or is told why not
            }
            let call = self.calls.next();
            shadow.begun.push(Begun {
                guest_call,
                call,
                args: args.clone(),
                budget: budget.clone(),
                usage: Vec::new(),
                result: None,
            });
            self.effects.push(ShadowEffect::Host(HostEffect::CallHost(Call {
                call,
                ticket: None,
                name: name.to_owned(),
                args,
                budget,
                place: 0,
                ahead: true,
            })));
        }
    }

    fn begun(&mut self, call: u32) -> Option<&mut Begun<B>> {
        let left = self.calls.left.iter_mut().map(|left| &mut left.begun);
        let mut begun = self.shadows.iter_mut().flat_map(|shadow| &mut shadow.begun).chain(left);
        begun.find(|begun| begun.call == call)
    }

    /// Keeps the result of a call that nobody has claimed yet. Returns the result if there is no such call.
    pub(super) fn host_returned(
        &mut self,
        call: u32,
        result: Result<Encoded<B>, String>,
    ) -> Option<Result<Encoded<B>, String>> {
        match self.begun(call) {
            Some(begun) => {
                begun.returned(result);
                None
            }
            None => Some(result),
        }
    }

    /// Keeps the usage that a call has reported which nobody has claimed yet. Returns false if there is no such call.
    pub(super) fn host_used(&mut self, call: u32, usage: &Usage) -> bool {
        self.begun(call).map(|begun| begun.used(usage)).is_some()
    }

    /// Leaves the begun calls of a shadow that has ended to the code that comes.
    pub(super) fn leave_calls(&mut self, shadow: &mut Shadow<B>) {
        let execution = shadow.execution;
        let left = std::mem::take(&mut shadow.begun).into_iter();
        self.calls.left.extend(left.map(|begun| Left { execution, begun }));
    }

    /// Gives up calls that were left, once the execution after theirs is over, or the sandbox.
    pub(super) fn waste_left_calls(&mut self, interpreter: &Interpreter<B>) {
        let is_over = interpreter.guest == Guest::Destroyed;
        let next = interpreter.last_execution + u32::from(interpreter.is_at_rest());
        let calls = &mut self.calls;
        for left in calls.left.extract_if(.., |left| is_over || left.execution + 1 < next) {
            let call = left.begun.waste(&mut calls.tally);
            self.effects.push(ShadowEffect::Host(HostEffect::AbortHost(call)));
        }
    }
}

impl<B: Body> Interpreter<B> {
    /// Takes the calls that the guest's code has begun ahead. The exchange that claims them has just begun.
    pub(super) fn take_begun_calls(&mut self, begun: Vec<Begun<B>>) {
        if let Some(exchange) = &mut self.exchange {
            exchange.calls.begun = begun.into_iter().map(|begun| (begun.guest_call, begun)).collect();
        }
    }

    /// Counts the claimed calls. Gives up the begun calls that no call of the guest has claimed, and no waiting call will.
    pub(super) fn waste_unclaimed_calls(&mut self) {
        let Some(exchange) = &mut self.exchange else { return };
        let calls = &mut exchange.calls;
        self.stats.ahead.calls.used += std::mem::take(&mut calls.claimed);
        let waits = |number: &u32| calls.waiting.iter().any(|call: &Waiting<B>| call.guest_call == *number);
        let vain: Vec<u32> = calls.begun.keys().copied().filter(|number| !waits(number)).collect();
        for begun in vain.iter().filter_map(|number| calls.begun.remove(number)) {
            let call = begun.waste(&mut self.stats.ahead.calls);
            self.effects.push(Effect::Host(HostEffect::AbortHost(call)));
        }
    }
}

/// The calls that a guest's code has begun ahead, by the guest's numbers.
pub(super) type BegunCalls<B> = BTreeMap<u32, Begun<B>>;

impl<B> Calls<B> {
    /// The call with this number of the host's, if it was begun ahead and waits to be claimed.
    pub(super) fn begun_ahead(&mut self, call: u32) -> Option<&mut Begun<B>> {
        self.begun.values_mut().find(|begun| begun.call == call)
    }
}

impl<B: Body> Calls<B> {
    /// Has a call of the guest claim the one that was begun ahead for it. Returns the call's result, if it has returned already.
    pub(super) fn claim(
        &mut self,
        begun: Begun<B>,
        call: Call<B>,
        expires_at: f64,
        effects: &mut Vec<Effect<B>>,
    ) -> Option<Result<Encoded<B>, String>> {
        begun.charge(&call.budget);
        self.claimed += 1;
        effects.push(Effect::Host(HostEffect::ClaimHost(begun.call)));
        if begun.result.is_none() {
            let running = Running {
                guest_call: begun.guest_call,
                name: call.name,
                expires_at: Some(expires_at),
                expected: call.budget.expected(begun.args.body.size()),
            };
            self.running.insert(begun.call, running);
        }
        begun.result
    }
}
