//! Proof that a worker is idle: a second wall behind the rule that Python cannot end its own turn.
//!
//! A worker answers a `Ping` from its event loop only, and only between turns. After each execution the guest gets one. Until
//! it is answered no event of another turn counts, and a worker that does not answer is ended: it still computes. The numbers
//! cannot be guessed, so that code which computes cannot answer in its place.

use super::{Body, Guest, Session};
use crate::error::Error;
use crate::protocol::Request;

/// The time that an idle worker may take to answer, in milliseconds. The page may have been blocked or asleep meanwhile, so the
/// time has to pass twice.
const ANSWER_MS: f64 = 5_000.0;

/// The pings of a session.
#[derive(Debug)]
pub(super) struct Pings {
    state: u64,
    /// The ping that has no answer yet, when to look at it, and whether that is the second look.
    open: Option<(u32, f64, bool)>,
}

impl Pings {
    /// The next number, by splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits >> 32) as u32
    }
}

impl<B: Body> Session<B> {
    /// The same for guests that are workers: after each execution they prove that they are idle. `secret` is a random number.
    #[must_use]
    pub fn with_pings(mut self, secret: u64) -> Self {
        self.pings = Some(Pings {
            state: secret,
            open: None,
        });
        self
    }

    /// Has the guest prove that it is idle.
    pub(super) fn ping(&mut self, now: f64) {
        if self.guest != Guest::Up {
            return;
        }
        if let Some(pings) = &mut self.pings {
            let ping = pings.next();
            pings.open = Some((ping, now + ANSWER_MS, false));
            self.post(Request::Ping { ping }, None);
        }
    }

    /// The guest has answered.
    pub(super) fn ponged(&mut self, now: f64, ping: u32) {
        match &mut self.pings {
            Some(pings) if pings.open.is_some_and(|(open, ..)| open == ping) => pings.open = None,
            _ => self.violation(now, "an answer to a ping that it did not get"),
        }
    }

    /// Returns true while the guest has yet to prove that it is idle.
    pub(super) fn awaits_pong(&self) -> bool {
        self.pings.as_ref().is_some_and(|pings| pings.open.is_some())
    }

    /// Another guest comes next.
    pub(super) fn forget_ping(&mut self) {
        if let Some(pings) = &mut self.pings {
            pings.open = None;
        }
    }

    /// The next time to look at the open ping.
    pub(super) fn ping_ends_at(&self) -> Option<f64> {
        let (_, at, _) = self.pings.as_ref()?.open?;
        Some(at)
    }

    /// Ends a guest that did not answer.
    pub(super) fn check_ping(&mut self, now: f64) {
        let Some(open) = self.pings.as_mut().and_then(|pings| pings.open.as_mut()) else {
            return;
        };
        if now < open.1 {
            return;
        }
        if !open.2 {
            (open.1, open.2) = (now + ANSWER_MS, true);
            return;
        }
        let why = "its worker went on computing after it had said that the execution was over";
        self.guest_gone(now, Error::Protocol(why.to_owned()));
    }
}
