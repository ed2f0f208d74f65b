//! The sandbox of one run.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use js_sys::{JsString, Promise, RegExp};
use serde_json::Value;
use wasm_bindgen::prelude::*;

use super::run::Run;
use super::writing::Writing;
use crate::budget::Given;
use crate::convert::encode;
use crate::driver::{Driver, OnOutput, OnQuery};
use crate::glue::{describe, exact, thrown};
use crate::outbox::JsBody;
use crate::sandbox::Sandbox;
use crate::stop::Waited;
use sandglass_core::execution::CodeExecution;
use sandglass_core::protocol::Stream;
use sandglass_core::session::Command;
use sandglass_rlm::answer::{fits, to_json};
use sandglass_rlm::event::RlmEventKind;
use sandglass_rlm::limits::PEEK_CHARS;
use sandglass_rlm::prompt::{ContextFacts, describe_code, facts_of, read_facts};

/// The sandbox of a run. Dropping it ends the sandbox, even while it works.
pub(super) struct Repl {
    run: Rc<Run>,
    sandbox: Sandbox,
    driver: Rc<Driver>,
    max_value_bytes: f64,
}

impl Repl {
    /// Starts a sandbox and gives it the contexts. Returns their descriptions.
    pub(super) async fn open(run: &Rc<Run>, contexts: &[JsValue]) -> Result<(Self, Vec<ContextFacts>), Waited> {
        let tree = &run.tree;
        let mut options = tree.options.sandbox().map_err(|error| tree.thrown(&error))?;
        let max_value_bytes = options.limits.max_value_bytes;
        options.budget = Given::Shared(run.budget());
        options.ahead_calls = tree.options.ahead_calls;
        let driver = Driver::with_queries(tree.glue.clone(), options, Some(on_query(Rc::downgrade(run))));
        let repl = Self {
            run: run.clone(),
            sandbox: Sandbox::new(driver.clone()),
            driver: driver.clone(),
            max_value_bytes,
        };
        let started = driver.submit(Command::Start);
        run.stop.wait(started).await?;
        let Some((first, others)) = contexts.split_first() else {
            return Err(Waited::Rejected("there is no context".into()));
        };
        run.stop.wait(repl.sandbox.initialize(first).unchecked_into()).await?;
        for other in others {
            let added = repl.sandbox.add_context(other, &JsValue::UNDEFINED);
            run.stop.wait(added.unchecked_into()).await?;
        }
        // A guest that fails to describe its contexts is still of use.
        let (_, facts) = repl.execute(&describe_code(), false).await?;
        Ok((repl, read_facts(facts.and_then(Result::ok))))
    }

    /// Tells a reply that is being written of this sandbox, which runs its code.
    pub(super) fn opened(&self) {
        self.run.writes(|writing| writing.opened(&self.driver));
    }

    /// Runs code. Returns the execution and the final answer that the code declared.
    pub(super) async fn execute(
        &self,
        code: &str,
        shown: bool,
    ) -> Result<(CodeExecution, Option<Result<Value, String>>), Waited> {
        let on_output = shown.then(|| on_output(Rc::downgrade(&self.run)));
        let outcome = Rc::new(RefCell::new(None));
        let mut is_there = None;
        let there = Promise::new(&mut |resolve, _| is_there = Some(resolve));
        let told = outcome.clone();
        self.driver.run(code.to_owned(), on_output, move |ended| {
            told.replace(Some(ended));
            if let Some(is_there) = is_there {
                let _ = is_there.call0(&JsValue::UNDEFINED);
            }
        });
        self.run.writes(Writing::end);
        self.run.stop.wait(there).await?;
        let ended = outcome.take().ok_or(Waited::Stopped)?;
        let (execution, declared) = ended.map_err(|error| thrown(&self.run.tree.glue, &error))?;
        Ok((*execution, declared.map(|value| self.value(&value))))
    }

    /// A final answer as JSON.
    fn value(&self, value: &JsValue) -> Result<Value, String> {
        let encoded = encode(value, "the final answer", self.max_value_bytes).map_err(|error| error.to_string())?;
        match encoded.body {
            JsBody::Text(text) => {
                fits(text.length() as usize)?;
                exact("the answer", &text).map(Value::String)
            }
            JsBody::Bytes(bytes) | JsBody::Owned(bytes) => {
                fits(bytes.length() as usize)?;
                to_json(encoded.encoding, &bytes.to_vec())
            }
            JsBody::Blob(_) | JsBody::Checkpoint(_) => Err("the final answer is no value".to_owned()),
        }
    }
}

impl Drop for Repl {
    fn drop(&mut self) {
        let _ = self.sandbox.destroy();
    }
}

fn on_query(run: Weak<Run>) -> OnQuery {
    Rc::new(move |asked| {
        let run = run.upgrade();
        Box::pin(async move { run.ok_or("the run is over")?.answer(asked).await })
    })
}

fn on_output(run: Weak<Run>) -> OnOutput {
    Rc::new(move |stream, text| {
        if let Some(run) = run.upgrade() {
            let stream = match stream {
                Stream::Stderr => "stderr",
                _ => "stdout",
            };
            run.emit(RlmEventKind::Output {
                stream: stream.to_owned(),
                text: text.to_owned(),
            });
        }
    })
}

/// The facts of contexts that are texts, or null. `None` if a guest has to describe some.
pub(super) fn known_facts(contexts: &[JsValue]) -> Option<Vec<ContextFacts>> {
    // Texts of the basic plane have as many characters as units. Others are left to a guest, because counting would take long.
    let others = RegExp::new("[\\ud800-\\udfff]", "");
    let facts = contexts.iter().enumerate().map(|(index, context)| {
        if context.is_null() {
            return Some(facts_of(index, None));
        }
        let text: &JsString = context.dyn_ref()?;
        let beginning = text.slice(0, u32::try_from(PEEK_CHARS).unwrap_or(u32::MAX));
        let is_basic = text.search(&others) < 0;
        is_basic.then(|| facts_of(index, Some((u64::from(text.length()), &String::from(beginning)))))
    });
    facts.collect()
}

impl From<JsValue> for Waited {
    fn from(error: JsValue) -> Self {
        Self::Rejected(error)
    }
}

impl Waited {
    /// The text of an error for people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Stopped => "it was ended".to_owned(),
            Self::Rejected(error) => describe(error),
        }
    }
}
