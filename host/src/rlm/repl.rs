//! The sandbox of a run.

use std::sync::{Arc, Weak};

use sandglass_core::execution::CodeExecution;
use sandglass_core::predictions::Source;
use sandglass_core::protocol::Stream;
use sandglass_core::session::Series;
use sandglass_core::value::Build;
use sandglass_rlm::answer::{ToJson, fits};
use sandglass_rlm::event::RlmEventKind;
use sandglass_rlm::integer;
use sandglass_rlm::prompt::{ContextFacts, describe_code, read_facts};
use sandglass_rlm::writing::Step;

use super::run::Run;
use crate::sandbox::{Answer, ExecuteOptions, Query, Sandbox};
use crate::value::Value;

/// The sandbox of a run, which ends with this value.
pub(super) struct Repl {
    sandbox: Sandbox,
    /// True if code may run ahead.
    pub(super) forks: bool,
}

/// A block's execution, and its final value, or the reason why that value is invalid.
type Executed = (CodeExecution, Option<Result<serde_json::Value, String>>);

impl Repl {
    /// Makes a sandbox whose queries the run answers.
    pub(super) async fn new(run: &Arc<Run>) -> Result<Self, String> {
        let (llm, rlm) = (Arc::downgrade(run), Arc::downgrade(run));
        let launcher = run.tree.launcher.clone().await?;
        let forks = launcher.forks();
        let sandbox = Sandbox::builder()
            .launcher(launcher)
            .limits(run.tree.options.limits.clone())
            .resources(run.tree.options.resources)
            .shared_budget(run.budget())
            .predictions(run.tree.options.predictions)
            .calls_ahead(run.tree.options.ahead_calls)
            .on_llm_query(move |query| answer(llm.clone(), query, false))
            .on_rlm_query(move |query| answer(rlm.clone(), query, true))
            .build()
            .await
            .map_err(|error| error.to_string())?;
        Ok(Self { sandbox, forks })
    }

    /// Starts the sandbox with its contexts. Returns their descriptions.
    pub(super) async fn begin(&self, run: &Arc<Run>, contexts: Vec<Value>) -> Result<Vec<ContextFacts>, String> {
        self.sandbox.start().await.map_err(|error| error.to_string())?;
        let mut contexts = contexts.into_iter();
        let given = self.sandbox.initialize(contexts.next().unwrap_or(Value::None)).await;
        given.map_err(|error| error.to_string())?;
        for context in contexts {
            let added = self.sandbox.add_context(Series::Context, context).await;
            added.map_err(|error| error.to_string())?;
        }
        // A guest works even if its contexts cannot be described.
        let (_, facts) = self.execute(run, describe_code(), false).await?;
        Ok(read_facts(facts.and_then(Result::ok)))
    }

    /// Runs code.
    pub(super) async fn execute(&self, run: &Arc<Run>, code: String, shown: bool) -> Result<Executed, String> {
        let mut options = ExecuteOptions::default();
        if shown {
            let run = Arc::downgrade(run);
            options.on_output = Some(Arc::new(move |stream, text| {
                if let Some(run) = run.upgrade() {
                    let stream = match stream {
                        Stream::Stdout => "stdout",
                        _ => "stderr",
                    };
                    run.emit(RlmEventKind::Output {
                        stream: stream.to_owned(),
                        text: text.to_owned(),
                    });
                }
            }));
        }
        let executed = self.sandbox.execute_with(code, options).await;
        let executed = executed.map_err(|error| error.to_string())?;
        let declared = executed.final_answer.map(|declared| json(declared.value));
        Ok((executed.run, declared))
    }

    /// Prepares for the next block while a reply comes. Packages need no preparation here, because native guests have all from
    /// the start.
    pub(super) fn prepare(&self, step: Step) {
        if !self.forks {
            return;
        }
        match step {
            Step::Prepare(_) => {}
            Step::Written(code) => self.sandbox.written(&code, None),
            Step::Hint(code) => self.sandbox.hint([code]),
            Step::Words(text) => self.sandbox.update_conversation(text),
        }
    }

    /// A draft of the reply has this code.
    pub(super) fn expect(&self, codes: Vec<String>) {
        self.sandbox.expect(codes, Source::Model);
    }

    /// Nothing more of a reply comes than was asked for.
    pub(super) fn nothing_is_written(&self) {
        self.sandbox.written("", None);
    }

    /// Ends the sandbox. Nothing of it is left when this returns.
    pub(super) async fn close(self, run: &Run) {
        self.nothing_is_written(); // no call begins ahead any more
        if let Ok(stats) = self.sandbox.stats().await {
            run.tree.count(&stats);
        }
        self.sandbox.destroy().await;
    }
}

/// The JSON of a value that Python declared as final.
fn json(value: Value) -> Result<serde_json::Value, String> {
    let mut to = ToJson::default();
    let json = build(value, &mut to);
    let json = to.end(json)?;
    fits(json.to_string().len())?;
    Ok(json)
}

fn build(value: Value, to: &mut ToJson) -> serde_json::Value {
    let all = |items: Vec<Value>, to: &mut ToJson| items.into_iter().map(|item| build(item, to)).collect::<Vec<_>>();
    match value {
        Value::None => to.none(),
        Value::Bool(value) => to.bool(value),
        Value::Int(value) => to.int(value),
        Value::BigInt(digits) => integer::from_text(&digits),
        Value::Float(value) => to.float(value),
        Value::Str(text) => text.into(),
        Value::IllFormedStr(utf16) => to.ill_formed_text(&utf16),
        Value::Bytes(bytes) => to.bytes(&bytes),
        Value::List(items) | Value::Tuple(items) => {
            let items = all(items, to);
            to.list(items)
        }
        Value::Set(items) => {
            let items = all(items, to);
            to.set(items)
        }
        Value::Dict(entries) => {
            let entries = entries
                .into_iter()
                .map(|(key, value)| (build(key, to), build(value, to)));
            let entries = entries.collect();
            to.dict(entries)
        }
        Value::DateTime(ms) => to.date(ms),
        Value::Array { dtype, shape, data } => to.array(&dtype, &shape, &data).unwrap_or_default(),
        Value::Table { columns, index, data } => {
            let (columns, index) = (all(columns, to).into(), all(index, to).into());
            let rows: Vec<serde_json::Value> = data.into_iter().map(|row| all(row, to).into()).collect();
            to.frame(columns, index, rows.into())
        }
        Value::Other { type_name, repr } => to.opaque(&type_name, &repr),
    }
}

async fn answer(run: Weak<Run>, query: Query, is_recursive: bool) -> Result<Answer, String> {
    let run = run.upgrade().ok_or("the run is over")?;
    run.answer(query, is_recursive).await
}
