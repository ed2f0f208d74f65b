//! Drafts: while a run's model thinks, another one is asked the same, and the code of its reply runs ahead.

use super::Message;
use super::openai::Reply;
use super::parse::parse;
use sandglass_core::budget::{Budget, Usage};

/// Counts the call of a draft for this turn, if there may be one: never one of the calls that the run itself may need.
pub fn admit(budget: &Budget, turn: u32, max_iterations: u32, now: f64) -> bool {
    let own_calls = max_iterations.saturating_sub(turn) + 1;
    let left = budget.left(now).calls;
    left.is_none_or(|left| left > f64::from(own_calls)) && budget.admit(now).is_ok()
}

/// Charges what was said, though it may be the begin of a reply only. The call was counted when it was admitted.
pub fn charge(budget: &Budget, asked: &[Message], said: &Reply) {
    budget.charge(&Usage {
        calls: 0.0,
        ..said.used(asked)
    });
}

/// The code that may come: the first block, if there is one. The others find another state than there is now.
pub fn codes(said: &Reply) -> Vec<String> {
    let first = parse(&said.text).blocks.into_iter().take(1);
    first.map(|block| block.code).collect()
}
