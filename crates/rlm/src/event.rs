//! Events of a run. The lines of a trajectory are these events as JSON, one a line; with the model's replies in them, the
//! run can be shown, and run again without a model ([`replay`](super::replay)).
//!
//! Keys of endpoints are in none of them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::limits::MAX_EVENT_CHARS;
use super::middle_cut;
use super::prompt::ContextFacts;
use sandglass_core::budget::{BudgetLeft, Usage};

/// The version of trajectories; it changes when older readers could not read them.
pub const TRAJECTORY_VERSION: u32 = 1;

/// One step of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RlmEvent {
    /// The run: `"0"` is the first, `"0.1"` the second of its children.
    pub run: String,
    /// Its depth.
    pub depth: u32,
    /// Milliseconds since the first run began.
    pub time: f64,
    /// The event itself.
    #[serde(flatten)]
    pub kind: RlmEventKind,
}

/// An event of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum RlmEventKind {
    /// A run begins; its sandbox has its context.
    RunStarted {
        /// [`TRAJECTORY_VERSION`].
        version: u32,
        /// The question.
        task: String,
        /// The facts about its context.
        contexts: Vec<ContextFacts>,
        /// Replies that it may take.
        max_iterations: u32,
        /// The greatest depth of runs.
        max_depth: u32,
        /// The schema of its answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional, type = "unknown"))]
        answer_schema: Option<Value>,
    },
    /// The model is asked for its next reply.
    TurnStarted {
        /// From 1; the last one, beyond `of`, asks for the answer only.
        turn: u32,
        /// The number that there may be.
        of: u32,
        /// The number of messages that it is sent.
        messages: usize,
        /// About how many tokens they take.
        prompt_tokens: usize,
        /// The rest of the tree's budget.
        left: BudgetLeft,
    },
    /// Older turns were shortened, because the messages became too long.
    HistoryCompacted {
        /// About how many tokens they took.
        before: usize,
        /// And take now.
        after: usize,
        /// Turns that are no longer whole.
        turns: usize,
    },
    /// The model replied.
    ModelReplied {
        /// The turn.
        turn: u32,
        /// The reply.
        text: String,
        /// The usage.
        usage: Usage,
        /// True when that is an estimate, because nobody said.
        estimated: bool,
        /// True when the reply was cut by a limit of tokens.
        cut: bool,
        /// Milliseconds, repetitions included.
        duration: f64,
    },
    /// An attempt failed and will be repeated.
    Retry {
        /// The host call that it is for; without it, it is for the turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        call: Option<u32>,
        /// Which attempt failed, from 1.
        attempt: u32,
        /// Milliseconds until the next one.
        wait: f64,
        /// Why it failed.
        reason: String,
    },
    /// A block of code begins.
    CodeStarted {
        /// The turn.
        turn: u32,
        /// Which block of its reply, from 1.
        block: usize,
        /// Of how many.
        blocks: usize,
        /// The code.
        code: String,
    },
    /// It has ended.
    ExecutionEnded {
        /// The turn.
        turn: u32,
        /// Which block of its reply, from 1.
        block: usize,
        /// The [`CodeExecution`](crate::CodeExecution), as it was when this was recorded.
        #[cfg_attr(target_arch = "wasm32", tsify(type = "CodeExecution"))]
        execution: Value,
        /// True when it declared a final answer.
        declared: bool,
    },
    /// Python asks a model.
    CallStarted {
        /// The call's number in its run, from 1.
        call: u32,
        /// `llm_query` or `rlm_query`.
        name: String,
        /// The prompt or task, cut in the middle when it is long.
        prompt: String,
        /// The number of characters that it has.
        prompt_chars: usize,
        /// A hash that identifies it, so that a replay finds it whatever the order.
        prompt_hash: String,
        /// The model that Python named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        model: Option<String>,
        /// The run that it starts, when it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        child: Option<String>,
    },
    /// It is answered, by `answer` or `error`.
    CallEnded {
        /// The call's number.
        call: u32,
        /// The answer, whole: a replay gives it again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        answer: Option<String>,
        /// Why there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        error: Option<String>,
        /// The usage; a child's calls have their own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        usage: Option<Usage>,
        /// Milliseconds.
        duration: f64,
    },
    /// The whole tree's spending so far.
    Budget {
        /// The amounts spent.
        spent: Usage,
        /// The amounts left.
        left: BudgetLeft,
    },
    /// A declared answer is not what was asked for; the model is told and goes on.
    AnswerRejected {
        /// A text that says what is wrong with it.
        problems: String,
    },
    /// The run is over.
    RunEnded {
        /// The outcome.
        outcome: RunOutcome,
        /// The answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional, type = "unknown"))]
        answer: Option<Value>,
        /// Why there is none, or what is wrong.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(target_arch = "wasm32", tsify(optional))]
        error: Option<String>,
        /// Turns that the model was asked for, the one after the last turn included.
        iterations: u32,
        /// The amounts that it spent, its children included.
        usage: Usage,
        /// Milliseconds.
        duration: f64,
    },
    /// Text of a reply as it comes. Live only: no line of a trajectory.
    Text {
        /// The new text.
        text: String,
    },
    /// Output of running code as it comes. Live only.
    Output {
        /// `stdout` or `stderr`.
        stream: String,
        /// The new text.
        text: String,
    },
}

/// A run's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum RunOutcome {
    /// Its code, or its prose, declared an answer.
    Answered,
    /// It has used its iterations; the answer, if there is one, is what the model said when asked for it once more.
    Exhausted,
    /// A budget is used up.
    Limit,
    /// Its signal was aborted, or nobody waits for it any more.
    Aborted,
    /// The model or the sandbox failed.
    Failed,
}

impl RlmEventKind {
    /// Returns true when it is no line of a trajectory.
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Text { .. } | Self::Output { .. })
    }

    /// A call of a model from Python.
    pub fn call_started(call: u32, name: &str, prompt: &str, model: Option<String>, child: Option<String>) -> Self {
        Self::CallStarted {
            call,
            name: name.to_owned(),
            prompt: middle_cut(prompt, MAX_EVENT_CHARS),
            prompt_chars: prompt.chars().count(),
            prompt_hash: hash(prompt),
            model,
            child,
        }
    }
}

/// A hash of a text, as 16 hexadecimal digits. Source: Fowler, Noll and Vo, FNV-1a with 64 bits.
pub fn hash(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
