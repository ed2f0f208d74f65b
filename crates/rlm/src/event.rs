//! Events of a run. A *trajectory* is a recording of a run: these events as JSON, one per line, with the model's replies in them. It can be
//! shown, and replayed without a model ([`replay`](super::replay)).
//!
//! No event holds a key of an endpoint.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::limits::MAX_EVENT_CHARS;
use super::middle_cut;
use super::prompt::ContextFacts;
use sandglass_core::budget::{BudgetLeft, Usage};

/// The version of trajectories. It changes when older readers cannot read newer trajectories.
pub const TRAJECTORY_VERSION: u32 = 1;

/// An event of a run, with its place and time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RlmEvent {
    /// The run's path in the tree: `"0"` is the first run, `"0.1"` the second of its children.
    pub run: String,
    /// The run's depth; 0 is the first run.
    pub depth: u32,
    /// Milliseconds since the first run began.
    pub time: f64,
    /// The kind of event, with its data.
    #[serde(flatten)]
    pub kind: RlmEventKind,
}

/// A kind of event, with its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum RlmEventKind {
    /// A run begins. Its sandbox has its context.
    RunStarted {
        /// The version of the trajectory ([`TRAJECTORY_VERSION`]).
        version: u32,
        /// The question.
        task: String,
        /// The facts about the run's contexts.
        contexts: Vec<ContextFacts>,
        /// The most replies of the model.
        max_iterations: u32,
        /// The greatest depth of runs.
        max_depth: u32,
        /// The schema of the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional, type = "unknown"))]
        answer_schema: Option<Value>,
    },
    /// The model is asked for its next reply.
    TurnStarted {
        /// The turn's number, from 1. A turn beyond `of` asks for the answer only.
        turn: u32,
        /// The most turns of the run, without the question for the answer only.
        of: u32,
        /// The number of messages that the model gets.
        messages: usize,
        /// The estimated number of tokens in these messages.
        prompt_tokens: usize,
        /// The amounts that are left in the budget.
        left: BudgetLeft,
    },
    /// Older turns were shortened, because the messages became too long.
    HistoryCompacted {
        /// The estimated number of tokens before.
        before: usize,
        /// The estimated number of tokens now.
        after: usize,
        /// The number of turns that are no longer shown whole.
        turns: usize,
    },
    /// The model replied.
    ModelReplied {
        /// The turn's number.
        turn: u32,
        /// The text of the reply.
        text: String,
        /// The call's use of the model.
        usage: Usage,
        /// True if `usage` is an estimate, because the endpoint reported none.
        estimated: bool,
        /// True if a limit of tokens cut the reply.
        cut: bool,
        /// Duration of the call in milliseconds, repeated attempts included.
        duration: f64,
    },
    /// An attempt to ask a model failed. Another one follows.
    Retry {
        /// The number of the host call. Missing if the model is asked for a turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        call: Option<u32>,
        /// The number of the failed attempt, from 1.
        attempt: u32,
        /// Milliseconds until the next attempt.
        wait: f64,
        /// The reason for the failure.
        reason: String,
    },
    /// A block of code begins.
    CodeStarted {
        /// The turn's number.
        turn: u32,
        /// The block's number in the reply, from 1.
        block: usize,
        /// The number of blocks in the reply.
        blocks: usize,
        /// The code.
        code: String,
    },
    /// A block of code has ended.
    ExecutionEnded {
        /// The turn's number.
        turn: u32,
        /// The block's number in the reply, from 1.
        block: usize,
        /// The [`CodeExecution`](sandglass_core::CodeExecution), in its form at the time of the recording.
        #[cfg_attr(target_arch = "wasm32", tsify(type = "CodeExecution"))]
        execution: Value,
        /// True if the block declared a final answer.
        declared: bool,
    },
    /// Python code calls a model.
    CallStarted {
        /// The call's number in its run, from 1.
        call: u32,
        /// `llm_query` or `rlm_query`.
        name: String,
        /// The prompt or task. The middle of a long one is cut out.
        prompt: String,
        /// The number of characters of the whole prompt.
        prompt_chars: usize,
        /// A hash of the prompt. A replay finds the call by it, in any order of calls.
        prompt_hash: String,
        /// The model that Python named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        model: Option<String>,
        /// The path of the run that the call starts, if it starts one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        child: Option<String>,
        /// True if the call begins before its code is asked for (`aheadCalls`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        ahead: bool,
    },
    /// A call has ended, with an `answer` or an `error`.
    CallEnded {
        /// The call's number.
        call: u32,
        /// The whole answer, so that a replay can give it again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        answer: Option<String>,
        /// The reason for which there is no answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        error: Option<String>,
        /// The call's use of the model. A child run has its own events for its calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        usage: Option<Usage>,
        /// Duration of the call in milliseconds.
        duration: f64,
        /// True if the call was begun ahead, and the code that came did not make it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        wasted: bool,
    },
    /// The use and the rest of the budget of the whole tree.
    Budget {
        /// The amounts that were used.
        spent: Usage,
        /// The amounts that are left.
        left: BudgetLeft,
    },
    /// A declared answer does not match the task's schema. The model is told, and the run continues.
    AnswerRejected {
        /// The problems, as text.
        problems: String,
    },
    /// The run is over.
    RunEnded {
        /// The outcome of the run.
        outcome: RunOutcome,
        /// The answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional, type = "unknown"))]
        answer: Option<Value>,
        /// The reason for which there is no answer, or the answer's problem.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        error: Option<String>,
        /// The number of turns for which the model was asked. The question for the answer only, after the last turn, counts too.
        iterations: u32,
        /// The use of models by the run, with its children.
        usage: Usage,
        /// Duration of the run in milliseconds.
        duration: f64,
    },
    /// New text of a reply that is being written. A live event; trajectories do not have it.
    Text {
        /// The new text.
        text: String,
    },
    /// New output of running code. A live event; trajectories do not have it.
    Output {
        /// `stdout` or `stderr`.
        stream: String,
        /// The new text.
        text: String,
    },
}

/// The outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum RunOutcome {
    /// The run's code or prose declared an answer.
    Answered,
    /// The turns are used up. The answer, if there is one, is the reply to the question for the answer only.
    Exhausted,
    /// The budget is used up.
    Limit,
    /// The run's signal was aborted, or nobody waits for its answer any more.
    Aborted,
    /// The model or the sandbox failed.
    Failed,
}

impl RlmEventKind {
    /// Returns true for live events, which trajectories do not have.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Text { .. } | Self::Output { .. })
    }

    /// The event of a call of a model from Python.
    pub fn call_started(call: u32, name: &str, prompt: &str, model: Option<String>, child: Option<String>) -> Self {
        Self::CallStarted {
            call,
            name: name.to_owned(),
            prompt: middle_cut(prompt, MAX_EVENT_CHARS),
            prompt_chars: prompt.chars().count(),
            prompt_hash: hash(prompt),
            model,
            child,
            ahead: false,
        }
    }
}

/// A text's hash, as 16 hexadecimal digits. Source: Fowler, Noll and Vo, FNV-1a with 64 bits.
pub fn hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
