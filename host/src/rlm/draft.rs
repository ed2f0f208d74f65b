//! Drafts: while a run's model thinks, another one is asked the same, and the code of its reply runs ahead.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sandglass::budget::{Budget, Usage};
use sandglass::rlm::Message;
use sandglass::rlm::openai::{Reply, estimated_usage};
use sandglass::rlm::parse::parse;

use super::Endpoint;
use crate::driver::now;

/// Asks for a draft of a reply, unless the budget has no more calls than the `own_calls` that the run itself may need; the code that it
/// has. Whoever drops this early pays for what it was sent and has said so far.
pub(super) async fn draft(
    endpoint: &Endpoint,
    messages: &[Message],
    budget: &Budget,
    own_calls: u32,
) -> Option<Vec<String>> {
    let left = budget.left(now()).calls;
    if left.is_some_and(|left| left <= f64::from(own_calls)) || budget.admit(now()).is_err() {
        return None;
    }
    let asked = Asked {
        endpoint,
        messages,
        budget,
        heard: Mutex::default(),
        is_over: false,
    };
    let on_text = |text: &str| asked.heard().push_str(text);
    let on_retry = |_, _, _| asked.heard().clear();
    let answered = endpoint.ask(messages, None, Some(&on_text), &on_retry).await;
    let reply = asked.answered(answered)?;
    Some(parse(&reply.text).blocks.into_iter().map(|block| block.code).collect())
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

    /// It is over; a draft that fails is not the run's failure, and costs nothing.
    fn answered(mut self, answered: Result<Reply, String>) -> Option<Reply> {
        if let Ok(reply) = &answered {
            let usage = reply
                .usage
                .unwrap_or_else(|| estimated_usage(self.messages, &reply.text));
            self.charge(usage);
        }
        self.is_over = true;
        answered.ok()
    }

    fn charge(&self, usage: Usage) {
        let cost = match self.endpoint.price {
            Some([input, output]) if usage.cost <= 0.0 => usage.input_tokens * input + usage.output_tokens * output,
            _ => usage.cost,
        };
        self.budget.charge(&Usage {
            calls: 0.0, // counted when it was asked
            cost,
            ..usage
        });
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.charge(estimated_usage(self.messages, &self.heard()));
        }
    }
}
