//! The sandbox of one run.

use std::rc::{Rc, Weak};

use js_sys::{Object, Promise, Reflect};
use serde_json::Value;
use wasm_bindgen::convert::TryFromJsValue;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::future_to_promise;

use super::run::Run;
use super::stop::Waited;
use super::writing::Writing;
use crate::budget::{Given, JsBudget};
use crate::convert::encode;
use crate::driver::Driver;
use crate::glue::{describe, exact, get, object};
use crate::options::ExecuteOptions;
use crate::outbox::JsBody;
use crate::sandbox::Sandbox;
use sandglass_core::execution::CodeExecution;
use sandglass_core::session::Command;
use sandglass_rlm::answer::{fits, to_json};
use sandglass_rlm::event::RlmEventKind;
use sandglass_rlm::prompt::{ContextFacts, describe_code, read_facts};

/// A query's callback: prompt and information.
type LlmQuery = Closure<dyn FnMut(JsValue, JsValue) -> Promise>;
/// The same: task, context and information.
type RlmQuery = Closure<dyn FnMut(JsValue, JsValue, JsValue) -> Promise>;

/// A sandbox that ends with this, whatever it does.
pub(super) struct Repl {
    run: Rc<Run>,
    sandbox: Sandbox,
    driver: Rc<Driver>,
    max_value_bytes: f64,
    print: [JsValue; 2],
    /// What Python's queries come to; the sandbox has them as functions.
    _queries: (LlmQuery, RlmQuery),
    _print: [Closure<dyn FnMut(JsValue)>; 2],
}

impl Repl {
    /// Starts one and gives it its contexts; says what they are.
    pub(super) async fn open(run: &Rc<Run>, contexts: &[JsValue]) -> Result<(Self, Vec<ContextFacts>), Waited> {
        let tree = &run.tree;
        let mut options = tree.options.sandbox().map_err(|error| tree.thrown(&error))?;
        let max_value_bytes = options.limits.max_value_bytes;
        let queries = (llm_query(Rc::downgrade(run)), rlm_query(Rc::downgrade(run)));
        options.on_llm_query = Some(queries.0.as_ref().clone().unchecked_into());
        options.on_rlm_query = Some(queries.1.as_ref().clone().unchecked_into());
        options.budget = Given::Shared(run.budget());
        let print = ["stdout", "stderr"].map(|stream| printer(Rc::downgrade(run), stream));

        let driver = Driver::new(tree.glue.clone(), options);
        let repl = Self {
            run: run.clone(),
            sandbox: Sandbox::new(driver.clone()),
            driver: driver.clone(),
            max_value_bytes,
            print: [0, 1].map(|index: usize| print[index].as_ref().clone()),
            _queries: queries,
            _print: print,
        };
        let started = driver.submit(Command::Start, ExecuteOptions::default());
        run.stop.wait(started).await?;
        let Some((first, others)) = contexts.split_first() else {
            return Err(Waited::Rejected("there is no context".into()));
        };
        run.stop.wait(repl.sandbox.initialize(first).unchecked_into()).await?;
        for other in others {
            let added = repl.sandbox.add_context(other, &JsValue::UNDEFINED);
            run.stop.wait(added.unchecked_into()).await?;
        }
        // A guest whose contexts cannot be described works all the same.
        let (_, facts) = repl.execute(&describe_code(), false).await?;
        Ok((repl, read_facts(facts.and_then(Result::ok))))
    }

    /// Where the model's next reply is heard while it comes.
    pub(super) fn writing(&self) -> Writing {
        Writing::to(&self.driver)
    }

    /// Runs code; returns what came of it, and the value that it declared final.
    pub(super) async fn execute(
        &self,
        code: &str,
        shown: bool,
    ) -> Result<(CodeExecution, Option<Result<Value, String>>), Waited> {
        let [stdout, stderr] = &self.print;
        let options = if shown {
            object(&[("onStdout", stdout), ("onStderr", stderr)])
        } else {
            object(&[])
        };
        let execution = self.sandbox.execute(&code.into(), &options);
        self.run.writes(Writing::end);
        let execution = self.run.stop.wait(execution.unchecked_into()).await?;
        let declared = get(&execution, "final");
        let declared = declared.is_object().then(|| self.value(&get(&declared, "value")));
        let _ = Reflect::delete_property(execution.unchecked_ref::<Object>(), &"final".into());
        let execution = js_sys::JSON::stringify(&execution)
            .ok()
            .and_then(|json| serde_json::from_str(&String::from(json)).ok())
            .ok_or_else(|| Waited::Rejected("the execution could not be read".into()))?;
        Ok((execution, declared))
    }

    /// A value that Python declared, as JSON.
    fn value(&self, value: &JsValue) -> Result<Value, String> {
        let encoded = encode(value, "the final answer", self.max_value_bytes).map_err(|error| error.to_string())?;
        match encoded.body {
            JsBody::Text(text) => {
                fits(text.length() as usize)?;
                exact("the answer", &text).map(Value::String)
            }
            JsBody::Bytes(bytes) => {
                fits(bytes.length() as usize)?;
                to_json(encoded.encoding, &bytes.to_vec())
            }
            JsBody::Blob(_) => Err("the final answer is no value".to_owned()),
        }
    }
}

impl Drop for Repl {
    fn drop(&mut self) {
        let _ = self.sandbox.destroy();
    }
}

fn llm_query(run: Weak<Run>) -> LlmQuery {
    Closure::new(move |prompt: JsValue, info: JsValue| {
        let run = run.clone();
        future_to_promise(async move {
            let run = run.upgrade().ok_or("the run is over")?;
            let (model, signal) = (get(&info, "model"), get(&info, "signal"));
            run.llm_query(&prompt, &model, &signal).await.map_err(error)
        })
    })
}

fn rlm_query(run: Weak<Run>) -> RlmQuery {
    Closure::new(move |task: JsValue, context: JsValue, info: JsValue| {
        let run = run.clone();
        future_to_promise(async move {
            let run = run.upgrade().ok_or("the run is over")?;
            let budget = JsBudget::try_from_js_value(get(&info, "budget")).map(JsBudget::into_budget);
            let budget = budget.map_err(|_| "there is no budget")?;
            let signal = get(&info, "signal");
            run.rlm_query(&task, &context, budget, &signal).await.map_err(error)
        })
    })
}

fn printer(run: Weak<Run>, stream: &'static str) -> Closure<dyn FnMut(JsValue)> {
    Closure::new(move |text: JsValue| {
        if let (Some(run), Some(text)) = (run.upgrade(), text.as_string()) {
            run.emit(RlmEventKind::Output {
                stream: stream.to_owned(),
                text,
            });
        }
    })
}

/// What Python gets as the message of its exception.
fn error(message: String) -> JsValue {
    js_sys::Error::new(&message).into()
}

impl From<JsValue> for Waited {
    fn from(error: JsValue) -> Self {
        Self::Rejected(error)
    }
}

impl Waited {
    /// What a person is told.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Stopped => "it was ended".to_owned(),
            Self::Rejected(error) => describe(error),
        }
    }
}
