//! The controller of a Recursive Language Model (RLM) on native sandboxes: [`run`].
//!
//! [`sandglass_rlm`] decides the steps of a run. This module carries them out.
//!
//! | module | holds |
//! |---|---|
//! | `run` | one run: carries out the steps of [`sandglass_rlm::tree`] |
//! | `repl` | the sandbox of a run |
//! | `place` | that sandbox, before and after it is open |
//! | `endpoint` | requests to models |
//! | `stop` | the handle that ends a run |

mod endpoint;
mod place;
mod repl;
mod run;
mod stop;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_core::predictions::{Source, Tally};
use sandglass_core::stats::CallsAhead;
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
use futures_util::FutureExt;

/// The options of a tree of runs.
#[derive(Clone)]
pub struct RlmOptions {
    /// The question to be answered.
    pub task: String,
    /// The data.
    pub context: Value,
    /// Further contexts: `context_1`, `context_2`, … The model is told of at most 19.
    pub more_contexts: Vec<Value>,
    /// The model that writes the code.
    pub model: Endpoint,
    /// The model that answers `llm_query`, and writes the code of child runs.
    pub sub_model: Endpoint,
    /// Levels of children.
    pub max_depth: u32,
    /// Replies of the model per run.
    pub max_iterations: u32,
    /// The most tokens of one prompt, by estimate.
    pub max_prompt_tokens: u32,
    /// Child runs of one depth that have a sandbox at the same time.
    pub max_concurrent_runs: u32,
    /// The budget of the whole tree.
    pub budget: BudgetLimits,
    /// The answer's type.
    pub schema: Option<Schema>,
    /// Added to the system prompt.
    pub instructions: Option<String>,
    /// Packages beside the standard library that Python can import. The model is told about them.
    pub packages: Vec<String>,
    /// The limits of each sandbox.
    pub limits: Limits,
    /// True when code is guessed, where nothing better is known ([`SandboxBuilder::predictions`](crate::SandboxBuilder::predictions)).
    pub predictions: bool,
    /// True when calls of `llm_query` begin while the reply that makes them still comes. Needs guests that can
    /// [fork](Launcher::forks), and an endpoint that streams.
    pub ahead_calls: bool,
    /// The model that drafts each reply while the main model thinks. The draft's code runs ahead if guests can
    /// [fork](Launcher::forks). Drafts use the same budget, but never the calls that the run itself may need.
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
    /// The default options for a task of `model`.
    ///
    /// # Errors
    /// None that a caller can cause, because the defaults are valid.
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
            ahead_calls: false,
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
            sub_price: self.sub_model.price,
        }
    }
}

/// The outcome of a tree of runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Rlm {
    /// The end of the first run.
    pub finish: Finish,
    /// The usage of the whole tree.
    pub usage: Usage,
    /// Counts of code that ran ahead, by the source of its prediction.
    pub ahead: BTreeMap<Source, Tally>,
    /// Counts of calls that were begun while their code was still being written.
    pub ahead_calls: CallsAhead,
}

/// Lets a model answer a task about data. The code of a reply runs while the reply still comes, if guests of `launcher` can
/// [fork](Launcher::forks). The run always ends, whatever models and code do, and `stop` ends it early. All sandboxes are gone
/// when this returns.
pub async fn run(options: RlmOptions, launcher: Arc<dyn Launcher>, stop: &Stop) -> Rlm {
    run_while(options, async { Ok(launcher) }, stop).await
}

/// The same, with a launcher that is still being found. If all contexts are texts, the model is asked meanwhile. An error ends the run.
pub async fn run_while(
    options: RlmOptions,
    launcher: impl Future<Output = Result<Arc<dyn Launcher>, Error>> + Send + 'static,
    stop: &Stop,
) -> Rlm {
    let budget = Budget::new(options.budget, now());
    let mut contexts = vec![options.context.clone()];
    contexts.extend(options.more_contexts.iter().cloned());
    let most = options.budget.max_time;
    let launcher = async { launcher.await.map_err(|error| error.to_string()) };
    let tree = Tree::new(options, launcher.boxed());
    // The run has a stop of its own, which ends only when the reason is known.
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
        // The stop has the reason, so it is polled first.
        biased;
        never = watching => never,
        finish = root.work(contexts) => finish,
    };
    Rlm {
        finish,
        usage: budget.spent(),
        ahead: tree.ran_ahead().code,
        ahead_calls: tree.ran_ahead().calls,
    }
}
