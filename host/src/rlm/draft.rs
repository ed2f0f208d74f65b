//! Drafts: while a run's model thinks, another one is asked the same, and the code of its reply runs ahead.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sandglass_core::budget::Budget;
use sandglass_rlm::openai::Reply;
use sandglass_rlm::{Message, draft};

use super::Endpoint;
use crate::driver::now;

/// Asks for a draft of this turn's reply, where the budget has more calls than the run itself may need; the code that it has. Whoever drops
/// this early pays for what it was sent and has said so far.
pub(super) async fn draft(
    endpoint: &Endpoint,
    messages: &[Message],
    budget: &Budget,
    turn: u32,
    max_iterations: u32,
) -> Option<Vec<String>> {
    if !draft::admit(budget, turn, max_iterations, now()) {
        return None;
    }
    let mut asked = Asked {
        endpoint,
        messages,
        budget,
        heard: Mutex::default(),
        is_over: false,
    };
    let answered = {
        let on_text = |text: &str| asked.heard().push_str(text);
        let on_retry = |_, _, _| asked.heard().clear();
        endpoint.ask(messages, None, Some(&on_text), &on_retry).await
    };
    // A draft that fails is not the run's failure, and costs nothing.
    asked.is_over = true;
    let reply = answered.ok()?;
    draft::charge(budget, messages, &reply);
    Some(draft::codes(&reply))
}

/// A draft that is being written.
struct Asked<'a> {
    endpoint: &'a Endpoint,
    messages: &'a [Message],
    budget: &'a Budget,
    heard: Mutex<String>,
    is_over: bool,
}

impl Asked<'_> {
    fn heard(&self) -> MutexGuard<'_, String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let said = Reply {
            text: std::mem::take(&mut *self.heard()),
            price: self.endpoint.price,
            ..Reply::default()
        };
        draft::charge(self.budget, self.messages, &said);
    }
}
