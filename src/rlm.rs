//! `runRlm`: a complete Recursive Language Model in a page.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | one run: carries out the steps that [`sandglass_rlm::tree`] decides on |
//! | [`repl`] | the sandbox of a run |
//! | [`draft`] | asks another model for drafts of the reply |
//! | [`model`] | asks a model for an answer: an endpoint (`crate::endpoint`), or a function |
//! | [`writing`] | uses a reply while it comes |
//! | [`tree`] | the state that all runs of a tree share |
//! | [`kept`] | the replies of a run that the browser keeps |
//! | [`options`] | reads the options |

mod draft;
mod kept;
mod model;
mod options;
mod repl;
mod run;
mod tree;
mod writing;

use js_sys::{Array, BigInt, Function, JSON, Object, Promise};
use serde_json::Value;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};

use self::kept::Kept;
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
/** An OpenAI-compatible endpoint. Its key is sent to the endpoint only: no event holds it, and Python cannot see it. */
export interface RlmEndpoint {
  /**
   * The address to which `/chat/completions` is appended, such as `https://api.example.com/v1`. It has to allow requests of the page
   * (CORS).
   */
  baseUrl: string;
  apiKey?: string;
  model: string;
  /**
   * Other models of the endpoint that Python may name in `llm_query(prompt, model)`. The system prompt lists those of `subModel`.
   */
  models?: string[];
  /** Additional headers. */
  headers?: Record<string, string>;
  /** Additional fields of every request, such as `temperature`. */
  body?: Record<string, unknown>;
  /** Streams replies. Default true. */
  stream?: boolean;
  /**
   * Attempts after the first one, when the endpoint is busy, fails or breaks off. Default 5. The pauses grow, or are as `Retry-After` says.
   */
  maxRetries?: number;
  /** Time limit of one attempt, in milliseconds. Default 600 000. */
  timeout?: number;
  /** Cost per million tokens, for `budget.maxCost` and `usage.cost`. */
  price?: { input?: number; output?: number };
  /** The way to start the endpoint, and to make it allow requests of the page. The error of an endpoint that cannot be reached ends with it. */
  setup?: string;
}

/** Answers a conversation. */
export type RlmModelFunction = (
  messages: Message[],
  info: {
    signal: AbortSignal;
    /** Call it with each new part of the text, as it comes. */
    onText: (text: string) => void;
    /** The run that asks: `"0"` is the first, and `"0.1"` is the second of its children. */
    run: string;
    depth: number;
    /** `"turn"`: a reply with code. `"draft"`: a draft of such a reply. `"query"`: an answer to `llm_query`. */
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
  /** The question to answer. */
  task: string;
  /** The data that the question is about, as `initialize` takes it. Default null. */
  context?: unknown;
  /** The data as several values instead of `context`, at most 20: the variables `context`, `context_1`, `context_2`, … */
  contexts?: unknown[];
  /** The model that writes the code. */
  model: RlmEndpoint | RlmModelFunction;
  /** The model that answers `llm_query`, and writes the code of children. Default: `model`. */
  subModel?: RlmEndpoint | RlmModelFunction;
  /**
   * A model that drafts replies. Whenever a model is asked for a reply, this one is asked the same. The first block of code in the draft
   * runs ahead until the reply itself begins. Then the draft is aborted (`signal`). Drafts are worth their cost when the model thinks for
   * long. Each draft is a call of the budget, with its tokens. There is no draft when the run itself may need all calls that are left.
   * Default: none.
   */
  draft?: RlmEndpoint | RlmModelFunction;
  /**
   * Begins calls of `llm_query` while the reply that makes them still comes, if their prompts are certain. Such an answer is used only
   * if the finished reply makes the same call. A call in vain is charged; above 5 % of all calls, no more begin. Default false.
   */
  aheadCalls?: boolean;
  /** Levels of children. Below the last level, `rlm_query` asks the sub-model. Default 1. */
  maxDepth?: number;
  /** Turns per run. Default 20. */
  maxIterations?: number;
  /** Estimated tokens of one prompt. A run's messages are shortened beyond it; a longer `llm_query` fails. Default 100 000. */
  maxPromptTokens?: number;
  /** Children of one depth that may have a sandbox at the same time. Default 4. */
  maxConcurrentRuns?: number;
  /** The budget of the whole tree. `maxCalls` is 500 unless it is given. */
  budget?: Omit<BudgetLimits, "maxDepth">;
  /** A JSON Schema of the answer. Keywords that are not supported are refused. */
  answerSchema?: unknown;
  /** Text that is added to the system prompt. */
  instructions?: string;
  /** Options of the sandboxes. */
  sandbox?: Omit<SandboxOptions, "onLLMQuery" | "onRLMQuery" | "budget">;
  /**
   * The name under which the browser keeps the run, or the name and a key with which it is encrypted. Each reply is kept before Python
   * gets it. A run that is begun again with this name, task and contexts gets the replies that it had, and goes on from there. Contexts
   * have to be texts, Files, `Uint8Array`s or JSON values. Default: it is not kept.
   */
  persist?: string | PersistOptions;
  /** Hears every step of every run. */
  onEvent?: (event: RlmEvent) => void;
  /** Ends all runs when it is aborted. */
  signal?: AbortSignal;
}

/** One step of a run: one line of the trajectory. */
export type RlmEvent = {
  /** The run: `"0"` is the first, and `"0.1"` is the second of its children. */
  run: string;
  /** The depth of the run; 0 is the first. */
  depth: number;
  /** Milliseconds since the first run began. */
  time: number;
} & RlmEventKind;

/** The value that `runRlm` resolves to. */
export interface RlmRun {
  /**
   * The answer: a string, or a value as `answerSchema` asks, where ints past 2^53 are `BigInt`s. Undefined when there is none.
   */
  answer: any;
  outcome: RunOutcome;
  /** The reason why there is no answer, or why the answer is not what was asked for. */
  error?: string;
  /** Turns of the first run, including the one after `maxIterations`. */
  iterations: number;
  /** The usage of the whole tree. */
  usage: Usage;
  /** The trajectory: every event except the live ones. */
  events: RlmEvent[];
  /** With `persist`: the number of replies that came from an earlier visit, and the reason why the newest are not kept, if so. */
  kept?: { replies: number; problem?: string };
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

/// Lets a model answer a task about a context. Rejects for wrong options only; every other failure is in the result.
#[wasm_bindgen(js_name = startRlm)]
pub fn start_rlm(glue: Glue, options: RlmOptionsValue) -> RlmRunPromise {
    console_error_panic_hook::set_once();
    let run = async move {
        let options = Options::parse(&options).map_err(|error| thrown(&glue, &error))?;
        let signals: Vec<_> = options.signal.iter().collect();
        let stop = Stop::on(&signals)?;
        let budget = Budget::new(options.budget, now());
        let (most, contexts) = (options.budget.max_time, options.contexts.clone());
        let kept = match &options.persist {
            Some(persist) => {
                let contexts: js_sys::Array = options.contexts.iter().collect();
                let store = persist.open_run(&glue, &options.task, &contexts)?;
                Some(Kept::new(JsFuture::from(store).await?.unchecked_into()))
            }
            None => None,
        };
        let tree = Tree::new(glue, options, stop, kept);
        let _timer = budget.expires_at().zip(most).map(|(at, most)| {
            let tree = tree.clone();
            let why = sandglass_core::budget::Exhausted::Time(most).to_string();
            after(at - now(), move || tree.end(RunOutcome::Limit, why))
        });
        let finish = tree.root(budget.clone()).work(contexts).await;
        tree.end(RunOutcome::Aborted, "the run is over");
        let kept = match &tree.kept {
            Some(kept) => Some(kept.close(&outcome_name(finish.outcome)).await),
            None => None,
        };
        Ok(show(&finish, &budget, &tree, kept).into())
    };
    future_to_promise(run).unchecked_into()
}

/// The name of an outcome in JSON.
fn outcome_name(outcome: RunOutcome) -> String {
    let name = serde_json::to_value(outcome).ok();
    name.and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn show(finish: &Finish, budget: &Budget, tree: &Tree, kept: Option<(u32, Option<String>)>) -> Object {
    let json = |value: &dyn Fn() -> serde_json::Result<String>| {
        value()
            .ok()
            .and_then(|json| JSON::parse(&json).ok())
            .unwrap_or_default()
    };
    let answer = finish.answer.as_ref().map_or(JsValue::UNDEFINED, answer_of_json);
    let run = object(&[
        ("answer", &answer),
        ("outcome", &outcome_name(finish.outcome).into()),
        ("iterations", &finish.iterations.into()),
        ("usage", &json(&|| serde_json::to_string(&budget.spent()))),
        ("events", &tree.events()),
    ]);
    if let Some(error) = &finish.error {
        let _ = js_sys::Reflect::set(&run, &"error".into(), &error.into());
    }
    if let Some((replies, problem)) = kept {
        let kept = object(&[("replies", &replies.into())]);
        if let Some(problem) = problem {
            let _ = js_sys::Reflect::set(&kept, &"problem".into(), &problem.into());
        }
        let _ = js_sys::Reflect::set(&run, &"kept".into(), &kept);
    }
    run
}

/// Converts JSON into JavaScript's values; ints past 2^53 become `BigInt`s.
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

/// Converts an int's text. A negative hexadecimal number, `-0x…`, is not JavaScript's syntax.
fn js_int(text: &str) -> JsValue {
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    match BigInt::new(&magnitude.into()) {
        Ok(int) if magnitude.len() < text.len() => (-&int).into(),
        Ok(int) => int.into(),
        // A number larger than the engine's largest `BigInt`.
        Err(_) => text.into(),
    }
}

/// Reads a trajectory from JSON lines.
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

/// A model that repeats its replies of a recorded trajectory.
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
