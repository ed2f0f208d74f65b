//! The tool `ask`: the controller answers a question about a variable.

use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{CallToolResult, ContentBlock};
use rmcp::service::RequestContext;
use sandglass_core::budget::Usage;
use sandglass_host::args::told;
use sandglass_host::rlm::{Rlm, Stop, run};
use sandglass_rlm::answer::text;
use sandglass_rlm::controller::Finish;
use sandglass_rlm::event::{RlmEvent, RlmEventKind, RunOutcome};
use sandglass_rlm::schema::Schema;
use schemars::JsonSchema;
use serde::Serialize;

use crate::execute::awake;
use crate::progress::Progress;
use crate::report;
use crate::session::{Controller, Session};

/// An answer, as a program reads it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answered {
    /// The answer as text: JSON, if the question had a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// `answered`, `exhausted` (no replies left), `limit` (no budget left), `aborted` or `failed`.
    pub outcome: String,
    /// The reason why there is no answer, or the answer's problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Replies of the model that writes the code.
    pub iterations: u32,
    /// Calls of models.
    pub calls: f64,
    /// Tokens of prompts.
    pub input_tokens: f64,
    /// Tokens of replies.
    pub output_tokens: f64,
}

/// A question to the controller.
pub struct Asked {
    /// The question.
    pub question: String,
    /// The variable with the data.
    pub variable: String,
    /// The JSON Schema of the answer.
    pub schema: Option<serde_json::Value>,
}

/// Asks the controller. It works on a copy of the variable, in sandboxes of its own.
///
/// # Errors
/// The question could not be asked.
pub async fn ask(
    session: &Session,
    controller: &Controller,
    asked: Asked,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, String> {
    let sandbox = session.sandbox().await?;
    let data = sandbox.get_variable(&*asked.variable).await.map_err(told)?;
    let data = data.ok_or_else(|| format!("there is no variable {}: load_context makes one", asked.variable))?;
    let progress = Progress::of(context);
    let mut options = controller.args.options(asked.question, data).map_err(told)?;
    options.limits.set("timeout", controller.timeout_ms).map_err(told)?;
    options.schema = asked.schema.map(Schema::new).transpose().map_err(told)?;
    let tell = progress.clone();
    options.on_event = Arc::new(move |event| {
        if let Some(line) = line(event) {
            tell.add(&line);
        }
    });
    let stop = Stop::default();
    let answering = async {
        // The semaphore is never closed.
        let _one = controller.at_once.acquire().await;
        run(options, Arc::clone(&controller.launcher), &stop).await
    };
    let stopping = async {
        context.ct.cancelled().await;
        stop.end();
        std::future::pending::<std::convert::Infallible>().await
    };
    let Rlm { finish, usage, .. } = tokio::select! {
        done = answering => done,
        never = stopping => match never {},
        never = progress.send() => match never {},
        never = awake(session, &context.peer) => match never {},
    };
    Ok(answer(&finish, &usage))
}

fn answer(finish: &Finish, usage: &Usage) -> CallToolResult {
    let answered = Answered {
        answer: finish.answer.as_ref().map(text),
        outcome: match finish.outcome {
            RunOutcome::Answered => "answered",
            RunOutcome::Exhausted => "exhausted",
            RunOutcome::Limit => "limit",
            RunOutcome::Aborted => "aborted",
            RunOutcome::Failed => "failed",
        }
        .to_owned(),
        error: finish.error.clone(),
        iterations: finish.iterations,
        calls: usage.calls,
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
    };
    let mut shown = answered.answer.as_deref().map(report::cut).unwrap_or_default();
    if let Some(error) = &answered.error {
        let gap = if shown.is_empty() { "" } else { "\n" };
        shown = format!("{shown}{gap}[{}: {}]", answered.outcome, report::cut(error));
    }
    let mut result = report::structured(vec![ContentBlock::text(shown)], &answered);
    result.is_error = Some(finish.answer.is_none());
    result
}

/// An event as a line of progress, if it is a step.
fn line(event: &RlmEvent) -> Option<String> {
    let step = match &event.kind {
        RlmEventKind::TurnStarted { turn, of, .. } => format!("asks the model, {turn} of {of}"),
        RlmEventKind::CodeStarted { code, .. } => format!("runs {} lines of code", code.lines().count()),
        RlmEventKind::CallStarted { name, prompt_chars, .. } => format!("{name} with {prompt_chars} characters"),
        RlmEventKind::Retry { wait, .. } => format!("tries again in {:.1} s", wait / 1_000.0),
        RlmEventKind::AnswerRejected { .. } => "gives an answer that does not match the schema".to_owned(),
        RlmEventKind::RunEnded { .. } => "ends".to_owned(),
        _ => return None,
    };
    Some(format!("run {} {step}\n", event.run))
}
