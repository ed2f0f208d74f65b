//! Checks the options of `runRlm`. An unknown or ill-typed option is an error that names the option.

use std::rc::Rc;

use js_sys::{Array, Function, JSON};
use serde_json::Value;
use wasm_bindgen::prelude::*;
use web_sys::AbortSignal;

use super::model::{Endpoint, Model};
use crate::arguments::entries;
use crate::budget;
use crate::glue::{exact, get};
use crate::options as sandbox_options;
use sandglass_core::budget::BudgetLimits;
use sandglass_core::error::Error;
use sandglass_rlm::limits::{
    ATTEMPT_TIMEOUT_MS, HOST_CALL_TIMEOUT_MS, LEAST_PROMPT_TOKENS, MAX_CALLS, MAX_CONCURRENT_RUNS, MAX_CONTEXTS,
    MAX_DEPTH, MAX_ITERATIONS, MAX_OUTPUT_CHARS, MAX_PROMPT_TOKENS, MAX_RETRIES,
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
            max_depth: MAX_DEPTH,
            max_iterations: MAX_ITERATIONS,
            max_prompt_tokens: MAX_PROMPT_TOKENS,
            max_concurrent_runs: MAX_CONCURRENT_RUNS,
            budget: BudgetLimits::default(),
            schema: None,
            instructions: None,
            packages: Vec::new(),
            sandbox: JsValue::UNDEFINED,
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
                .flat_map(|sandbox| sandbox.host_functions.iter().map(|(name, _)| name.clone()))
                .collect(),
            packages: self.packages.clone(),
            models: match &self.sub_model {
                Model::Endpoint(endpoint) => query::offered(&endpoint.model, &endpoint.models),
                Model::Function(_) => Vec::new(),
            },
            instructions: self.instructions.clone(),
        }
    }

    /// The options of a run's sandbox, without the answering of queries.
    pub(super) fn sandbox(&self) -> Result<sandbox_options::Options, Error> {
        for (name, value) in entries(&self.sandbox, "sandbox")? {
            let instead = match name.as_str() {
                "onLLMQuery" => "is answered by subModel",
                "onRLMQuery" => "is answered by runs of their own",
                "budget" => "is an option of runRlm itself",
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
    if let Some(function) = value.dyn_ref::<Function>() {
        return Ok(Model::Function(function.clone()));
    }
    let mut endpoint = Endpoint {
        base_url: String::new(),
        api_key: None,
        model: String::new(),
        models: Vec::new(),
        headers: Vec::new(),
        body: serde_json::Map::new(),
        stream: true,
        max_retries: MAX_RETRIES,
        timeout_ms: ATTEMPT_TIMEOUT_MS,
        price: None,
    };
    for (key, value) in entries(value, what)? {
        let name = format!("{what}.{key}");
        match key.as_str() {
            _ if value.is_undefined() => {}
            "baseUrl" => endpoint.base_url = text(&name, &value)?,
            "apiKey" => endpoint.api_key = Some(text(&name, &value)?).filter(|key| !key.is_empty()),
            "model" => endpoint.model = text(&name, &value)?,
            "models" => {
                let models = value
                    .dyn_into::<Array>()
                    .map_err(|_| Error::invalid(&name, "must be an array"))?;
                endpoint.models = models
                    .iter()
                    .map(|model| text(&name, &model))
                    .collect::<Result<_, _>>()?;
            }
            "headers" => {
                for (header, value) in entries(&value, &name)? {
                    endpoint.headers.push((header, text(&name, &value)?));
                }
            }
            "body" => match json(&name, &value)? {
                Value::Object(fields) => endpoint.body = fields,
                _ => return Err(Error::invalid(name, "must be an object of request fields")),
            },
            "stream" => {
                endpoint.stream = value
                    .as_bool()
                    .ok_or_else(|| Error::invalid(name, "must be true or false"))?
            }
            "maxRetries" => endpoint.max_retries = whole(&name, &value, 0.0, 100.0)?,
            "timeout" => endpoint.timeout_ms = number(&name, &value, 1.0, 2_147_483_647.0)?,
            "price" => endpoint.price = Some(parse_price(&name, &value)?),
            _ => {
                return Err(Error::invalid(
                    name,
                    "there is no such option of a model; request fields go into body",
                ));
            }
        }
    }
    // An address that begins with a slash belongs to the page's own origin.
    if !endpoint.base_url.starts_with('/') && web_sys::Url::new(&endpoint.base_url).is_err() {
        return Err(Error::invalid(
            format!("{what}.baseUrl"),
            "must be an address, such as https://api.example.com/v1",
        ));
    }
    if endpoint.model.is_empty() {
        return Err(Error::invalid(format!("{what}.model"), "must be the name of a model"));
    }
    Ok(Model::Endpoint(Rc::new(endpoint)))
}

/// Converts cost per million tokens into cost per token.
fn parse_price(name: &str, value: &JsValue) -> Result<[f64; 2], Error> {
    let mut price = [0.0; 2];
    for (kind, value) in entries(value, name)? {
        let of = match kind.as_str() {
            "input" => &mut price[0],
            "output" => &mut price[1],
            _ => return Err(Error::invalid(name, "is { input, output }, per million tokens")),
        };
        *of = number(&format!("{name}.{kind}"), &value, 0.0, 1e12)? / 1e6;
    }
    Ok(price)
}

fn text(name: &str, value: &JsValue) -> Result<String, Error> {
    let text = value
        .dyn_ref()
        .ok_or_else(|| Error::invalid(name, "must be a string"))?;
    exact("it", text).map_err(|problem| Error::invalid(name, problem))
}

fn number(name: &str, value: &JsValue, least: f64, most: f64) -> Result<f64, Error> {
    value
        .as_f64()
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| Error::invalid(name, format!("must be a number from {least} to {most}")))
}

fn whole(name: &str, value: &JsValue, least: f64, most: f64) -> Result<u32, Error> {
    let number = number(name, value, least, most)?;
    if number.fract() != 0.0 {
        return Err(Error::invalid(name, format!("must be a whole number, not {number}")));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and within u32 by its range"
    )]
    Ok(number as u32)
}

/// Reads a value that JSON can hold.
fn json(name: &str, value: &JsValue) -> Result<Value, Error> {
    JSON::stringify(value)
        .ok()
        .and_then(|text| text.as_string())
        .and_then(|text| serde_json::from_str(&text).ok())
        .ok_or_else(|| Error::invalid(name, "must be what JSON can hold"))
}
