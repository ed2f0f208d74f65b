//! `runRlm`: a whole Recursive Language Model in a page.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | one run: carries out what [`sandglass_rlm::tree`] wants |
//! | [`repl`] | its sandbox |
//! | [`draft`] | what another model thinks the reply will be |
//! | [`model`] | who answers: an endpoint or a function |
//! | [`writing`] | what is done while a reply comes |
//! | [`tree`] | what all runs of a tree share |
//! | [`options`] | the options |

mod draft;
mod model;
mod options;
mod repl;
mod run;
mod tree;
mod writing;

use js_sys::{Array, BigInt, Function, JSON, Object, Promise};
use serde_json::Value;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use self::model::NOT_RECORDED;
use self::options::Options;
use self::tree::Tree;
use super::glue::{Glue, get, now, object, thrown};
use super::stop::{Stop, after};
use sandglass_core::budget::Budget;
use sandglass_core::error::Error;
use sandglass_rlm::controller::Finish;
use sandglass_rlm::event::{RlmEvent, RunOutcome};
use sandglass_rlm::integer::big_int;
use sandglass_rlm::replay::{Replay, read_trajectory};

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** An OpenAI-compatible endpoint. Its key is sent to it, and to nobody else: it is in no event, and Python cannot see it. */
export interface RlmEndpoint {
  /** The address that `/chat/completions` is appended to, such as `https://api.example.com/v1`. It has to allow requests of the page (CORS). */
  baseUrl: string;
  apiKey?: string;
  model: string;
  /** Other models of the endpoint that Python may name in `llm_query(prompt, model)`; the system prompt lists those of `subModel`. */
  models?: string[];
  /** More headers. */
  headers?: Record<string, string>;
  /** More fields of every request, such as `temperature`. */
  body?: Record<string, unknown>;
  /** Has replies come piece by piece. Default true. */
  stream?: boolean;
  /** Attempts after the first when it is busy, fails or breaks off. Default 5, with growing pauses or as `Retry-After` says. */
  maxRetries?: number;
  /** Milliseconds of one attempt. Default 600 000. */
  timeout?: number;
  /** Cost per million tokens, for `budget.maxCost` and `usage.cost`. */
  price?: { input?: number; output?: number };
}

/** Answers messages. */
export type RlmModelFunction = (
  messages: Message[],
  info: {
    signal: AbortSignal;
    /** Hears what is new of the text, as it comes. */
    onText: (text: string) => void;
    /** The run that asks: `"0"` is the first, `"0.1"` the second of its children. */
    run: string;
    depth: number;
    /** `"turn"`: a reply with code; `"draft"`: what that may be; `"query"`: an answer to `llm_query`. */
    purpose: "turn" | "draft" | "query";
    /** The number of the turn, or of the call within its run. */
    call: number;
    /** The model that Python named. */
    model?: string;
    promptHash: string;
  },
) => string | Answer | Promise<string | Answer>;

/** The options of `runRlm`. An unknown or ill-typed option rejects with code `invalid_option`. */
export interface RlmOptions {
  /** The question to be answered. */
  task: string;
  /** The data, as `initialize` takes it. Default null. */
  context?: unknown;
  /** The data, instead of `context`, when it is several values: the variables `context`, `context_1`, `context_2`, … 20 at most. */
  contexts?: unknown[];
  /** The model that writes the code. */
  model: RlmEndpoint | RlmModelFunction;
  /** The model that answers `llm_query`, and writes the code of children. Default: `model`. */
  subModel?: RlmEndpoint | RlmModelFunction;
  /**
   * Drafts replies: whenever a model is asked for one, this is asked the same, and the first block of code in its answer runs ahead until
   * the reply itself begins; then it is ended (`signal`). It pays for models that think for long. Each draft is a call of the
   * budget, with its tokens; there is none when the budget has no more calls than the run may need for itself. Default: none.
   */
  draft?: RlmEndpoint | RlmModelFunction;
  /** Levels of children. Below the last one, `rlm_query` asks the sub-model. Default 1. */
  maxDepth?: number;
  /** Replies of the model per run. Default 20. */
  maxIterations?: number;
  /** Tokens of one prompt, by estimate: of the messages of a run, which are shortened beyond it, and of `llm_query`. Default 100 000. */
  maxPromptTokens?: number;
  /** Children of one depth that have a sandbox at the same time. Default 4. */
  maxConcurrentRuns?: number;
  /** The budget of the whole tree. `maxCalls` is 500 unless you say otherwise. */
  budget?: Omit<BudgetLimits, "maxDepth">;
  /** The answer's type: a JSON Schema. Keywords that are not checked are refused. */
  answerSchema?: unknown;
  /** Added to the system prompt. */
  instructions?: string;
  /** Options of the sandboxes. */
  sandbox?: Omit<SandboxOptions, "onLLMQuery" | "onRLMQuery" | "budget">;
  /** Hears every step. */
  onEvent?: (event: RlmEvent) => void;
  /** Ends everything. */
  signal?: AbortSignal;
}

/** One step of a run: a line of its trajectory. */
export type RlmEvent = {
  /** The run: `"0"` is the first, `"0.1"` the second of its children. */
  run: string;
  /** Its depth. */
  depth: number;
  /** Milliseconds since the first run began. */
  time: number;
} & RlmEventKind;

/** The value that `runRlm` resolves to. */
export interface RlmRun {
  /** The answer: a string, or what `answerSchema` asks for, where ints past 2^53 are `BigInt`s; undefined when there is none. */
  answer: any;
  outcome: RunOutcome;
  /** Why there is no answer, or what is wrong with it. */
  error?: string;
  /** Turns that the model of the first run was asked for, the one after `maxIterations` included. */
  iterations: number;
  /** The usage of the whole tree. */
  usage: Usage;
  /** The trajectory: every event that is not live. */
  events: RlmEvent[];
}
"#;

#[wasm_bindgen]
extern "C" {
    /// TypeScript's `RlmOptions`.
    #[wasm_bindgen(typescript_type = "RlmOptions")]
    pub type RlmOptionsValue;
    /// TypeScript's `Promise<RlmRun>`.
    #[wasm_bindgen(typescript_type = "Promise<RlmRun>")]
    pub type RlmRunPromise;
    /// TypeScript's `string | RlmEvent[]`.
    #[wasm_bindgen(typescript_type = "string | RlmEvent[]")]
    pub type TrajectoryValue;
    /// TypeScript's `RlmEvent[]`.
    #[wasm_bindgen(typescript_type = "RlmEvent[]")]
    pub type EventsValue;
    /// TypeScript's `RlmModelFunction`.
    #[wasm_bindgen(typescript_type = "RlmModelFunction")]
    pub type ModelFunctionValue;
}

/// Lets a model answer a task about a context. Resolves whatever models and code do; rejects only for wrong options.
#[wasm_bindgen(js_name = startRlm)]
pub fn start_rlm(glue: Glue, options: RlmOptionsValue) -> RlmRunPromise {
    console_error_panic_hook::set_once();
    let run = async move {
        let options = Options::parse(&options).map_err(|error| thrown(&glue, &error))?;
        let signals: Vec<_> = options.signal.iter().collect();
        let stop = Stop::on(&signals)?;
        let budget = Budget::new(options.budget, now());
        let (most, contexts) = (options.budget.max_time, options.contexts.clone());
        let tree = Tree::new(glue, options, stop);
        let _timer = budget.expires_at().zip(most).map(|(at, most)| {
            let tree = tree.clone();
            let why = sandglass_core::budget::Exhausted::Time(most).to_string();
            after(at - now(), move || tree.end(RunOutcome::Limit, why))
        });
        let finish = tree.root(budget.clone()).work(contexts).await;
        tree.end(RunOutcome::Aborted, "the run is over");
        Ok(show(&finish, &budget, &tree).into())
    };
    future_to_promise(run).unchecked_into()
}

fn show(finish: &Finish, budget: &Budget, tree: &Tree) -> Object {
    let json = |value: &dyn Fn() -> serde_json::Result<String>| {
        value()
            .ok()
            .and_then(|json| JSON::parse(&json).ok())
            .unwrap_or_default()
    };
    let answer = finish.answer.as_ref().map_or(JsValue::UNDEFINED, answer_of_json);
    let run = object(&[
        ("answer", &answer),
        ("outcome", &json(&|| serde_json::to_string(&finish.outcome))),
        ("iterations", &finish.iterations.into()),
        ("usage", &json(&|| serde_json::to_string(&budget.spent()))),
        ("events", &tree.events()),
    ]);
    if let Some(error) = &finish.error {
        let _ = js_sys::Reflect::set(&run, &"error".into(), &error.into());
    }
    run
}

/// JSON as JavaScript's values, with ints past 2^53 as `BigInt`s.
fn answer_of_json(value: &Value) -> JsValue {
    match value {
        Value::Null => JsValue::NULL,
        Value::Bool(flag) => (*flag).into(),
        Value::Number(number) => number.as_f64().into(),
        Value::String(text) => text.into(),
        Value::Array(items) => items.iter().map(answer_of_json).collect::<Array>().into(),
        Value::Object(fields) => match big_int(value) {
            Some(int) => js_int(int),
            None => {
                let entries: Array = fields
                    .iter()
                    .map(|(name, field)| Array::of2(&name.into(), &answer_of_json(field)))
                    .collect();
                Object::from_entries(&entries).map_or(JsValue::UNDEFINED, Into::into)
            }
        },
    }
}

/// An int by its text, `-0x…` among them, which is not JavaScript's.
fn js_int(text: &str) -> JsValue {
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    match BigInt::new(&magnitude.into()) {
        Ok(int) if magnitude.len() < text.len() => (-&int).into(),
        Ok(int) => int.into(),
        // Beyond what the engine holds.
        Err(_) => text.into(),
    }
}

/// The events of a trajectory that was kept as JSON lines.
#[wasm_bindgen(js_name = readTrajectory)]
pub fn read_lines(glue: &Glue, trajectory: &TrajectoryValue) -> Result<EventsValue, JsValue> {
    let events = read_events(glue, trajectory)?;
    let json = serde_json::to_string(&events).unwrap_or_default();
    JSON::parse(&json).map(JsCast::unchecked_into)
}

fn read_events(glue: &Glue, trajectory: &JsValue) -> Result<Vec<RlmEvent>, JsValue> {
    let refuse = |problem: String| thrown(glue, &Error::invalid("trajectory", problem));
    let lines = match trajectory.dyn_ref::<Array>() {
        Some(events) => {
            let lines = events.iter().map(|event| JSON::stringify(&event).map(String::from));
            lines.collect::<Result<Vec<_>, _>>()?.join("\n")
        }
        None => trajectory
            .as_string()
            .ok_or_else(|| refuse("must be the lines of a trajectory, or its events".to_owned()))?,
    };
    read_trajectory(&lines).map_err(refuse)
}

/// A model that replies what it replied in a recorded trajectory.
#[wasm_bindgen(js_name = startReplay)]
pub fn start_replay(glue: &Glue, trajectory: &TrajectoryValue) -> Result<ModelFunctionValue, JsValue> {
    let replay = Replay::new(read_events(glue, trajectory)?)
        .map_err(|problem| thrown(glue, &Error::invalid("trajectory", problem)))?;
    let model = Closure::<dyn Fn(JsValue, JsValue) -> Promise>::new(move |_messages: JsValue, info: JsValue| {
        let text = |name| get(&info, name).as_string().unwrap_or_default();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the number of a call"
        )]
        let call = get(&info, "call").as_f64().unwrap_or_default() as u32;
        let recorded = match text("purpose").as_str() {
            "turn" => replay.turn(&text("run"), call).map(Ok),
            _ => replay.call(&text("run"), call, &text("promptHash")),
        };
        match recorded {
            Ok(Ok((text, usage))) => {
                let usage = serde_json::to_string(&usage).unwrap_or_default();
                let usage = JSON::parse(&usage).unwrap_or_default();
                Promise::resolve(&JsValue::from(object(&[("text", &text.into()), ("usage", &usage)])))
            }
            Ok(Err(error)) => Promise::reject(&js_sys::Error::new(&error).into()),
            Err(missing) => {
                let error = js_sys::Error::new(&missing.to_string());
                error.set_name(NOT_RECORDED);
                Promise::reject(&error.into())
            }
        }
    });
    Ok(model.into_js_value().unchecked_into::<Function>().unchecked_into())
}
