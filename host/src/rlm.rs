//! The controller of a Recursive Language Model on native sandboxes: [`run`].
//!
//! [`sandglass_rlm`] decides what a run does; here it is carried out.
//!
//! | module | holds |
//! |---|---|
//! | `run` | one run: carries out what [`sandglass_rlm::tree`] wants |
//! | `repl` | its sandbox |
//! | `endpoint` | asks models |
//! | `stop` | how work is ended |

mod endpoint;
mod repl;
mod run;
mod stop;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_core::speculate::{Source, Tally};
use sandglass_core::{Error, Limits};
use sandglass_rlm::controller::Finish;
use sandglass_rlm::event::{RlmEvent, RunOutcome};
use sandglass_rlm::limits::{
    HOST_CALL_TIMEOUT_MS, MAX_CALLS, MAX_CONCURRENT_RUNS, MAX_DEPTH, MAX_ITERATIONS, MAX_OUTPUT_CHARS,
    MAX_PROMPT_TOKENS,
};
use sandglass_rlm::query;
use sandglass_rlm::schema::Schema;
use sandglass_rlm::tree::Rules;

pub use endpoint::Endpoint;
pub use stop::Stop;

use self::run::{Run, Tree};
use crate::driver::now;
use crate::launcher::{Launcher, Resources};
use crate::value::Value;

/// The options of a tree of runs.
#[derive(Clone)]
pub struct RlmOptions {
    /// The question to be answered.
    pub task: String,
    /// The data.
    pub context: Value,
    /// More of it: `context_1`, `context_2`, … The model is told of 19 at most.
    pub more_contexts: Vec<Value>,
    /// The model that writes the code.
    pub model: Endpoint,
    /// The model that answers `llm_query`, and writes the code of children.
    pub sub_model: Endpoint,
    /// Levels of children.
    pub max_depth: u32,
    /// Replies of the model per run.
    pub max_iterations: u32,
    /// Tokens of one prompt, by estimate.
    pub max_prompt_tokens: u32,
    /// Children of one depth that have a sandbox at the same time.
    pub max_concurrent_runs: u32,
    /// The budget of the whole tree.
    pub budget: BudgetLimits,
    /// The answer's type.
    pub schema: Option<Schema>,
    /// Added to the system prompt.
    pub instructions: Option<String>,
    /// Packages that Python can import beside its standard library, as the model is told.
    pub packages: Vec<String>,
    /// The limits of each sandbox.
    pub limits: Limits,
    /// True when code is guessed, where nothing better is known ([`SandboxBuilder::predictions`](crate::SandboxBuilder::predictions)).
    pub predictions: bool,
    /// The model that drafts each reply while the model thinks: the code of the draft runs ahead, where guests can make
    /// [copies](Launcher::forks) of themselves. It spends the budget as well, but never the calls that the run itself may need.
    pub draft: Option<Endpoint>,
    /// Each sandbox's share of the machine.
    pub resources: Resources,
    /// Hears every step.
    pub on_event: Arc<dyn Fn(&RlmEvent) + Send + Sync>,
}

impl fmt::Debug for RlmOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RlmOptions")
            .field("task", &self.task)
            .field("model", &self.model)
            .field("sub_model", &self.sub_model)
            .finish_non_exhaustive()
    }
}

impl RlmOptions {
    /// The defaults, for a task that `model` does.
    ///
    /// # Errors
    /// None that a caller can cause: the defaults are within their bounds.
    pub fn new(task: impl Into<String>, context: impl Into<Value>, model: Endpoint) -> Result<Self, Error> {
        let mut limits = Limits::default();
        limits.set("maxOutputLength", MAX_OUTPUT_CHARS)?;
        limits.set("hostCallTimeout", HOST_CALL_TIMEOUT_MS)?;
        Ok(Self {
            task: task.into(),
            context: context.into(),
            more_contexts: Vec::new(),
            sub_model: model.clone(),
            model,
            max_depth: MAX_DEPTH,
            max_iterations: MAX_ITERATIONS,
            max_prompt_tokens: MAX_PROMPT_TOKENS,
            max_concurrent_runs: MAX_CONCURRENT_RUNS,
            budget: BudgetLimits {
                max_calls: Some(MAX_CALLS),
                ..BudgetLimits::default()
            },
            schema: None,
            instructions: None,
            packages: Vec::new(),
            limits,
            predictions: false,
            draft: None,
            resources: Resources::default(),
            on_event: Arc::new(|_| {}),
        })
    }

    fn rules(&self) -> Rules {
        Rules {
            schema: self.schema.clone(),
            max_iterations: self.max_iterations,
            max_prompt_tokens: self.max_prompt_tokens,
            max_depth: self.max_depth,
            output_chars: self.limits.max_output_chars as usize,
            functions: Vec::new(),
            packages: self.packages.clone(),
            models: query::offered(&self.sub_model.model, &self.sub_model.models),
            instructions: self.instructions.clone(),
        }
    }
}

/// The outcome of a tree of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Rlm {
    /// The way the first run ended.
    pub finish: Finish,
    /// The usage of the whole tree.
    pub usage: Usage,
    /// Code that ran before it was asked for, by what had predicted it.
    pub ahead: BTreeMap<Source, Tally>,
}

/// Lets a model answer a task about data. Where guests of `launcher` can [make copies](Launcher::forks) of themselves, the code of a reply
/// runs while that still comes. Whatever models and code do, this comes to an end; `stop` is how to end it early, and then
/// too all sandboxes are gone when it returns.
pub async fn run(options: RlmOptions, launcher: Arc<dyn Launcher>, stop: &Stop) -> Rlm {
    let budget = Budget::new(options.budget, now());
    let mut contexts = vec![options.context.clone()];
    contexts.extend(options.more_contexts.iter().cloned());
    let most = options.budget.max_time;
    let tree = Tree::new(options, launcher);
    // Its own, which ends when the reason is known, and not before.
    let own = Stop::default();
    let watching = {
        let (tree, own, stop, budget) = (tree.clone(), own.clone(), stop.clone(), budget.clone());
        async move {
            let time_is_over = async {
                match budget.expires_at().zip(most) {
                    Some((at, most)) => {
                        let left = std::time::Duration::from_secs_f64((at - now()).clamp(0.0, 1e12) / 1_000.0);
                        tokio::time::sleep(left).await;
                        most
                    }
                    None => std::future::pending().await,
                }
            };
            match stop.wait(time_is_over).await {
                Some(most) => {
                    let why = sandglass_core::budget::Exhausted::Time(most).to_string();
                    tree.runs.stop(RunOutcome::Limit, why);
                }
                None => tree.runs.stop(RunOutcome::Aborted, "it was stopped from outside"),
            }
            own.end();
            std::future::pending().await
        }
    };
    let root = Run::root(&tree, budget.clone(), own);
    let finish = tokio::select! {
        // It gives the reason before anybody asks for it.
        biased;
        never = watching => never,
        finish = root.work(contexts) => finish,
    };
    Rlm {
        finish,
        usage: budget.spent(),
        ahead: tree.ran_ahead(),
    }
}
