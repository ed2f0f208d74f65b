//! Drafts of replies. While a run's model thinks, another model gets the same messages, and code of its reply runs ahead.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::Message;
use super::openai::{Reply, estimated_prompt};
use super::parse::parse;
use sandglass_core::budget::{Budget, Usage};

/// A draft that is being written. If it is dropped before its [end](Draft::end), the prompt and the text so far are charged.
#[derive(Debug)]
pub struct Draft {
    budget: Budget,
    prompt_tokens: f64,
    price: Option<[f64; 2]>,
    heard: String,
    is_over: bool,
}

impl Draft {
    /// Begins a draft of this turn's reply, and counts its call. `None` if only the calls that the run itself may need are left.
    pub fn admit(
        budget: Budget,
        asked: &[Message],
        price: Option<[f64; 2]>,
        turn: u32,
        max_iterations: u32,
        now: f64,
    ) -> Option<Self> {
        let own_calls = max_iterations.saturating_sub(turn) + 1;
        let left = budget.left(now).calls;
        let is_admitted = left.is_none_or(|left| left > f64::from(own_calls)) && budget.admit(now).is_ok();
        is_admitted.then(|| Self {
            budget,
            prompt_tokens: estimated_prompt(asked),
            price,
            heard: String::new(),
            is_over: false,
        })
    }

    /// Adds new text of the draft.
    pub fn hear(&mut self, text: &str) {
        self.heard.push_str(text);
    }

    /// Drops the text of a failed attempt, because another begins.
    pub fn begin_again(&mut self) {
        self.heard.clear();
    }

    /// Ends the draft, and returns code that may come: its first block, if it has one. Later blocks would find another state than the
    /// present one. A failed draft has no code, and costs nothing.
    pub fn end(mut self, reply: Option<Reply>) -> Vec<String> {
        self.is_over = true;
        let Some(reply) = reply else { return Vec::new() };
        self.charge(&reply);
        let first = parse(&reply.text).blocks.into_iter().take(1);
        first.map(|block| block.code).collect()
    }

    /// Charges the budget for the text. The call was counted by [`Draft::admit`].
    fn charge(&self, said: &Reply) {
        self.budget.charge(&Usage {
            calls: 0.0,
            ..said.used_after(self.prompt_tokens)
        });
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_over {
            let said = Reply {
                text: std::mem::take(&mut self.heard),
                price: self.price,
                ..Reply::default()
            };
            self.charge(&said);
        }
    }
}
