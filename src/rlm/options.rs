//! Checks the options of `runRlm`. An unknown or ill-typed option is an error that names the option.

use std::rc::Rc;

use js_sys::{Array, Function};
use wasm_bindgen::prelude::*;
use web_sys::AbortSignal;

use super::model::Model;
use crate::arguments::{entries, json, text, whole};
use crate::budget;
use crate::endpoint::Endpoint;
use crate::glue::get;
use crate::options as sandbox_options;
use crate::persist::Persist;
use sandglass_core::budget::BudgetLimits;
use sandglass_core::error::Error;
use sandglass_rlm::limits::{
    HOST_CALL_TIMEOUT_MS, LEAST_PROMPT_TOKENS, MAX_CALLS, MAX_CONCURRENT_RUNS, MAX_CONTEXTS, MAX_DEPTH, MAX_ITERATIONS,
    MAX_OUTPUT_CHARS, MAX_PROMPT_TOKENS,
};
use sandglass_rlm::query;
use sandglass_rlm::schema::Schema;
use sandglass_rlm::tree::Rules;

/// The options of a tree of runs.
pub(super) struct Options {
    pub(super) task: String,
    /// The contexts: at least one.
    pub(super) contexts: Vec<JsValue>,
    pub(super) model: Model,
    pub(super) sub_model: Model,
    /// The model that drafts replies.
    pub(super) draft: Option<Model>,
    /// True if queries begin while the reply that makes them still comes.
    pub(super) ahead_calls: bool,
    pub(super) max_depth: u32,
    pub(super) max_iterations: u32,
    pub(super) max_prompt_tokens: u32,
    pub(super) max_concurrent_runs: u32,
    pub(super) budget: BudgetLimits,
    pub(super) schema: Option<Schema>,
    pub(super) instructions: Option<String>,
    /// The option `packages` of the sandboxes.
    pub(super) packages: Vec<String>,
    sandbox: JsValue,
    pub(super) persist: Option<Persist>,
    pub(super) on_event: Option<Function>,
    pub(super) signal: Option<AbortSignal>,
}

impl Options {
    pub(super) fn parse(value: &JsValue) -> Result<Self, Error> {
        let (mut task, mut model, mut sub_model) = (None, None, None);
        // Replaced below. A function made of text would need `eval`, which a strict policy of the page forbids.
        let none = Model::Function(JsValue::UNDEFINED.unchecked_into());
        let mut options = Self {
            task: String::new(),
            contexts: Vec::new(),
            model: none.clone(),
            sub_model: none,
            draft: None,
            ahead_calls: false,
            max_depth: MAX_DEPTH,
            max_iterations: MAX_ITERATIONS,
            max_prompt_tokens: MAX_PROMPT_TOKENS,
            max_concurrent_runs: MAX_CONCURRENT_RUNS,
            budget: BudgetLimits::default(),
            schema: None,
            instructions: None,
            packages: Vec::new(),
            sandbox: JsValue::UNDEFINED,
            persist: None,
            on_event: None,
            signal: None,
        };
        for (name, value) in entries(value, "options")? {
            match name.as_str() {
                _ if value.is_undefined() => {}
                "task" => task = Some(text(&name, &value)?),
                "context" | "contexts" if !options.contexts.is_empty() => {
                    return Err(Error::invalid("contexts", "is for all of the data: leave context out"));
                }
                "context" => options.contexts.push(value),
                "contexts" => options.contexts = several(&name, &value)?,
                "model" => model = Some(parse_model(&name, &value)?),
                "subModel" => sub_model = Some(parse_model(&name, &value)?),
                "draft" => options.draft = Some(parse_model(&name, &value)?),
                "aheadCalls" => {
                    let is_on = value.as_bool();
                    options.ahead_calls = is_on.ok_or_else(|| Error::invalid(name, "must be true or false"))?;
                }
                "maxDepth" => options.max_depth = whole(&name, &value, 0.0, 16.0)?,
                "maxIterations" => options.max_iterations = whole(&name, &value, 1.0, 10_000.0)?,
                "maxPromptTokens" => {
                    options.max_prompt_tokens = whole(&name, &value, f64::from(LEAST_PROMPT_TOKENS), 1e8)?;
                }
                "maxConcurrentRuns" => options.max_concurrent_runs = whole(&name, &value, 1.0, 64.0)?,
                "budget" => options.budget = budget::limits(&value)?,
                "answerSchema" => options.schema = Some(Schema::new(json(&name, &value)?)?),
                "instructions" => options.instructions = Some(text(&name, &value)?),
                "sandbox" => options.sandbox = value,
                "persist" => options.persist = Some(Persist::parse(&name, &value)?),
                "onEvent" => {
                    let function = value
                        .dyn_into()
                        .map_err(|_| Error::invalid(name, "must be a function"))?;
                    options.on_event = Some(function);
                }
                "signal" => {
                    let signal = value
                        .dyn_into()
                        .map_err(|_| Error::invalid(name, "must be an AbortSignal"))?;
                    options.signal = Some(signal);
                }
                _ => return Err(Error::invalid(name, "there is no such option of runRlm")),
            }
        }
        options.task = task
            .filter(|task| !task.trim().is_empty())
            .ok_or_else(|| Error::invalid("task", "must be a question or an instruction"))?;
        options.model = model.ok_or_else(|| {
            Error::invalid(
                "model",
                "must be { baseUrl, model, … } or a function that answers messages",
            )
        })?;
        if options.contexts.is_empty() {
            options.contexts.push(JsValue::NULL);
        }
        options.sub_model = sub_model.unwrap_or_else(|| options.model.clone());
        options.budget.max_calls = options.budget.max_calls.or(Some(MAX_CALLS));
        if options.budget.max_depth.is_some() {
            return Err(Error::invalid("budget.maxDepth", "is the option maxDepth here"));
        }
        options.sandbox()?;
        if options.sandbox.is_object()
            && let Some(packages) = get(&options.sandbox, "packages").dyn_ref::<Array>()
        {
            options.packages = packages
                .iter()
                .filter_map(|package| package.as_string())
                .take(100)
                .collect();
        }
        Ok(options)
    }

    /// The rules of the runs.
    pub(super) fn rules(&self) -> Rules {
        let sandbox = self.sandbox().ok();
        Rules {
            schema: self.schema.clone(),
            max_iterations: self.max_iterations,
            max_prompt_tokens: self.max_prompt_tokens,
            max_depth: self.max_depth,
            output_chars: sandbox
                .as_ref()
                .map_or(0, |sandbox| sandbox.limits.max_output_chars as usize),
            functions: sandbox
                .iter()
                .flat_map(|sandbox| sandbox.host_functions.iter().map(|one| one.name.clone()))
                // A name that begins with an underscore is not for code: `_tools` gives Python the object `tools`.
                .filter(|name| !name.starts_with('_'))
                .collect(),
            packages: self.packages.clone(),
            models: match &self.sub_model {
                Model::Endpoint(endpoint) => query::offered(&endpoint.model, &endpoint.models),
                Model::Function(_) => Vec::new(),
            },
            instructions: self.instructions.clone(),
            sub_price: self.sub_model.price(),
        }
    }

    /// The options of a run's sandbox, without the answering of queries.
    pub(super) fn sandbox(&self) -> Result<sandbox_options::Options, Error> {
        for (name, value) in entries(&self.sandbox, "sandbox")? {
            let instead = match name.as_str() {
                "onLLMQuery" => "is answered by subModel",
                "onRLMQuery" => "is answered by runs of their own",
                "budget" | "persist" => "is an option of runRlm itself",
                "profile" if !value.is_undefined() && value != "default" => {
                    "must be \"default\": the controller's prompts are written for that"
                }
                _ => continue,
            };
            return Err(Error::invalid(format!("sandbox.{name}"), instead));
        }
        let mut options = sandbox_options::Options::parse(&self.sandbox)?;
        let given = |name| !get(&self.sandbox, name).is_undefined();
        if self.sandbox.is_undefined() || !given("maxOutputLength") {
            options.limits.set("maxOutputLength", MAX_OUTPUT_CHARS)?;
        }
        if self.sandbox.is_undefined() || !given("hostCallTimeout") {
            options.limits.set("hostCallTimeout", HOST_CALL_TIMEOUT_MS)?;
        }
        Ok(options)
    }
}

/// Reads the contexts.
fn several(name: &str, value: &JsValue) -> Result<Vec<JsValue>, Error> {
    let list: Option<Vec<JsValue>> = value.dyn_ref::<Array>().map(|list| list.iter().collect());
    list.filter(|list| (1..=MAX_CONTEXTS).contains(&list.len()))
        .ok_or_else(|| Error::invalid(name, format!("must be an array of 1 to {MAX_CONTEXTS} values")))
}

fn parse_model(what: &str, value: &JsValue) -> Result<Model, Error> {
    Ok(match value.dyn_ref::<Function>() {
        Some(function) => Model::Function(function.clone()),
        None => Model::Endpoint(Rc::new(Endpoint::parse(what, value)?)),
    })
}
