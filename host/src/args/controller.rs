//! The options of the controller: its models, its runs and its budget.

use sandglass_core::Error;
use sandglass_rlm::limits::{LEAST_PROMPT_TOKENS, MAX_CALLS, MAX_DEPTH, MAX_ITERATIONS, MAX_PROMPT_TOKENS};

use crate::rlm::{Endpoint, RlmOptions};
use crate::{BudgetLimits, Value};

/// Options of the controller, for the commands `rlm` and `mcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct ControllerArgs {
    /// The model that writes the code.
    #[arg(long, help_heading = "Models")]
    pub model: Option<String>,
    /// The model's endpoint, which speaks OpenAI's `/chat/completions`.
    #[arg(
        long,
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1",
        help_heading = "Models"
    )]
    pub url: String,
    /// The environment variable that holds the endpoint's key. The key itself is no option, because other users can see a
    /// program's options.
    #[arg(long, value_name = "NAME", default_value = "OPENAI_API_KEY", help_heading = "Models")]
    pub key_env: String,
    /// The model that answers `llm_query` and writes the code of child runs; by default the model of `--model`.
    #[arg(long, value_name = "MODEL", help_heading = "Models")]
    pub sub_model: Option<String>,
    /// The endpoint of the sub-model; by default that of `--url`.
    #[arg(long, value_name = "URL", help_heading = "Models")]
    pub sub_url: Option<String>,
    /// The environment variable that holds the key of `--sub-url`. Each key goes to its own endpoint only.
    #[arg(long, value_name = "NAME", requires = "sub_url", help_heading = "Models")]
    pub sub_key_env: Option<String>,
    /// Levels of child runs. Below the last level, `rlm_query` asks the sub-model instead.
    #[arg(long, value_name = "LEVELS", default_value_t = MAX_DEPTH, value_parser = clap::value_parser!(u32).range(0..=16), help_heading = "Runs")]
    pub max_depth: u32,
    /// Replies of the model in each run.
    #[arg(long, value_name = "REPLIES", default_value_t = MAX_ITERATIONS, value_parser = clap::value_parser!(u32).range(1..=10_000), help_heading = "Runs")]
    pub max_iterations: u32,
    /// Estimated tokens of one prompt. Older messages are shortened to fit.
    #[arg(long, value_name = "TOKENS", default_value_t = MAX_PROMPT_TOKENS, value_parser = clap::value_parser!(u32).range(i64::from(LEAST_PROMPT_TOKENS)..=100_000_000), help_heading = "Runs")]
    pub max_prompt_tokens: u32,
    /// Calls of models, in all runs together.
    #[arg(long, value_name = "CALLS", default_value_t = MAX_CALLS, help_heading = "Budget")]
    pub budget_calls: f64,
    /// Tokens of prompts and replies, in all runs together; no limit by default.
    #[arg(long, value_name = "TOKENS", help_heading = "Budget")]
    pub budget_tokens: Option<f64>,
    /// Cost of all runs together; no limit by default. Needs `--price`.
    #[arg(long, value_name = "COST", help_heading = "Budget")]
    pub budget_cost: Option<f64>,
    /// Seconds of all runs together; no limit by default.
    #[arg(long, value_name = "SECONDS", help_heading = "Budget")]
    pub budget_time: Option<f64>,
    /// The price of a million tokens, of prompts and of replies, such as `2.5,10`.
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = parse_price, help_heading = "Budget")]
    pub price: Option<[f64; 2]>,
    /// The prices of the sub-model. If `--sub-model` is not given, `--price` counts.
    #[arg(long, value_name = "INPUT,OUTPUT", value_parser = parse_price, help_heading = "Budget")]
    pub sub_price: Option<[f64; 2]>,
    /// Let the sub-model draft each reply while the model thinks. The code of the draft runs ahead, and its tokens count in the
    /// budget.
    #[arg(long, help_heading = "Models")]
    pub draft: bool,
    /// Ask for whole replies, if the endpoint cannot stream. Streaming lets bubblewrap and subprocess run the code ahead while
    /// the reply still comes. Such a result is used only if the finished reply has the same code.
    #[arg(long, help_heading = "Models")]
    pub no_stream: bool,
    /// Begin calls of `llm_query` while the reply that makes them still comes. An answer is used only if the finished reply makes
    /// the same call. Calls in vain are charged, and end it above 5 percent of all calls. Needs bubblewrap or plain processes.
    #[arg(long, conflicts_with = "no_stream", help_heading = "Models")]
    pub ahead_calls: bool,
    /// Text that is added to the system prompt.
    #[arg(long, value_name = "TEXT", help_heading = "Runs")]
    pub instructions: Option<String>,
    /// Packages that the guest's Python has, with commas between them. The model is told about them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", help_heading = "Runs")]
    pub packages: Vec<String>,
}

fn parse_price(text: &str) -> Result<[f64; 2], String> {
    let prices: Option<Vec<f64>> = text.split(',').map(|price| price.trim().parse().ok()).collect();
    match prices.as_deref() {
        Some(&[input, output]) if [input, output].iter().all(|price| (0.0..=1e12).contains(price)) => {
            Ok([input / 1e6, output / 1e6])
        }
        _ => Err("must be two numbers of 0 or more, such as 2.5,10".to_owned()),
    }
}

impl ControllerArgs {
    /// True when code may run ahead while its reply still comes.
    pub fn runs_ahead(&self) -> bool {
        !self.no_stream || self.draft
    }

    /// The options of a run.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for options that do not fit together, or without a model.
    pub fn options(&self, task: impl Into<String>, context: impl Into<Value>) -> Result<RlmOptions, Error> {
        let missing = || Error::invalid("model", "must be the name of the model that writes the code");
        let name = self.model.as_ref().ok_or_else(missing)?;
        let mut model = Endpoint::new(&self.url, key(&self.key_env), name)?;
        model.price = self.price;
        let sub_name = self.sub_model.as_ref().unwrap_or(name);
        let mut sub_model = match &self.sub_url {
            // A key is sent to its own endpoint only.
            Some(url) => Endpoint::new(url, self.sub_key_env.as_deref().and_then(key), sub_name)?,
            None => Endpoint::new(&self.url, key(&self.key_env), sub_name)?,
        };
        sub_model.price = self.sub_price.or(self.price.filter(|_| self.sub_model.is_none()));
        (model.stream, sub_model.stream) = (!self.no_stream, !self.no_stream);
        let mut options = RlmOptions::new(task, context, model)?;
        if self.draft && self.sub_model.is_none() && self.sub_url.is_none() {
            let problem = "needs --sub-model or --sub-url: a draft by the same model takes as long as the reply";
            return Err(Error::invalid("draft", problem));
        }
        options.draft = self.draft.then(|| sub_model.clone());
        options.sub_model = sub_model;
        options.ahead_calls = self.ahead_calls;
        options.max_depth = self.max_depth;
        options.max_iterations = self.max_iterations;
        options.max_prompt_tokens = self.max_prompt_tokens;
        options.instructions.clone_from(&self.instructions);
        options.packages.clone_from(&self.packages);
        options.budget = self.budget()?;
        Ok(options)
    }

    /// The budget of all runs of a task together.
    fn budget(&self) -> Result<BudgetLimits, Error> {
        if self.budget_cost.is_some() && self.price.is_none() {
            let problem = "needs --price: otherwise nobody knows the cost";
            return Err(Error::invalid("budget-cost", problem));
        }
        let mut budget = BudgetLimits::default();
        for (name, amount) in [
            ("maxCalls", Some(self.budget_calls)),
            ("maxTokens", self.budget_tokens),
            ("maxCost", self.budget_cost),
            ("maxTime", self.budget_time.map(|seconds| seconds * 1_000.0)),
        ] {
            if let Some(amount) = amount {
                budget.set(name, amount)?;
            }
        }
        Ok(budget)
    }
}

fn key(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|key| !key.is_empty())
}
