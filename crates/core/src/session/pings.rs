//! Proof that a worker is idle. It is a second safeguard behind the rule that Python cannot end its own exchange.
//!
//! A worker answers a `Ping` only from its event loop, and only between exchanges. The host sends one after each execution. Until the
//! answer, no event of another exchange counts. A worker that does not answer still computes, and is ended. Code that computes cannot
//! answer in the worker's place, because the numbers cannot be guessed.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use super::Body;
use super::interpreter::{Guest, Interpreter};
use crate::error::Error;
use crate::protocol::Request;

/// Time for an idle worker to answer, in milliseconds. The page may have been blocked or asleep meanwhile, so the time must pass twice.
const ANSWER_MS: f64 = 5_000.0;

/// The pings of a session, and the state of the generator of their numbers.
#[derive(Debug)]
pub(super) struct Pings {
    state: u64,
    /// The ping without an answer, the time of the next look at it, and true if that is the second look.
    open: Option<(u32, f64, bool)>,
}

impl Pings {
    /// Pings with numbers that nobody can guess. `secret` is a random number.
    pub(super) fn new(secret: u64) -> Self {
        Self {
            state: secret,
            open: None,
        }
    }

    /// Begins a ping.
    fn open(&mut self, now: f64) -> Request {
        let ping = self.next();
        self.open = Some((ping, now + ANSWER_MS, false));
        Request::Ping { ping }
    }

    /// Takes an answer. Returns false if no such ping is open.
    fn answered(&mut self, ping: u32) -> bool {
        self.open.take_if(|(open, ..)| *open == ping).is_some()
    }

    /// Checks the open ping. Returns true if the worker has not answered in time.
    fn is_late(&mut self, now: f64) -> bool {
        match &mut self.open {
            Some((_, at, is_second)) if now >= *at => {
                *at = now + ANSWER_MS;
                std::mem::replace(is_second, true)
            }
            _ => false,
        }
    }

    /// The next number, by splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits >> 32) as u32
    }
}

impl<B: Body> Interpreter<B> {
    /// Asks the guest for a proof that it is idle.
    pub(super) fn ping(&mut self, now: f64) {
        if self.guest == Guest::Up
            && let Some(pings) = &mut self.pings
        {
            let ping = pings.open(now);
            self.post(ping);
        }
    }

    /// Takes the guest's answer.
    pub(super) fn ponged(&mut self, now: f64, ping: u32) {
        if !self.pings.as_mut().is_some_and(|pings| pings.answered(ping)) {
            self.violation(now, "an answer to a ping that it did not get");
        }
    }

    /// Returns true until the guest has proved that it is idle.
    pub(super) fn awaits_pong(&self) -> bool {
        self.pings.as_ref().is_some_and(|pings| pings.open.is_some())
    }

    /// Drops the open ping, because another guest comes next.
    pub(super) fn forget_ping(&mut self) {
        if let Some(pings) = &mut self.pings {
            pings.open = None;
        }
    }

    /// The time of the next look at the open ping.
    pub(super) fn ping_ends_at(&self) -> Option<f64> {
        let (_, at, _) = self.pings.as_ref()?.open?;
        Some(at)
    }

    /// Ends a guest that did not answer.
    pub(super) fn check_ping(&mut self, now: f64) {
        if self.pings.as_mut().is_some_and(|pings| pings.is_late(now)) {
            let why = "its worker went on computing after it had said that the execution was over";
            self.guest_gone(now, Error::Protocol(why.to_owned()));
        }
    }
}
