//! Ended executions of kept sessions that run again.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use sandglass_core::Error;
use sandglass_host::Value;
use sandglass_host::kept::{Replay, ReplayOptions};
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::App;
use super::bodies::{self, Taken, sized, take_json};
use super::errors::ApiError;
use super::execute::size_of;
use super::own_session::OwnSession;
use super::quotas::Account;
use super::sessions::{Kind, Session};

/// The body of a request to run an ended execution again.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Again {
    execution: u32,
    /// Answers in place of those in the journal, by the ids of the calls or their places from 1.
    #[serde(default)]
    answers: Map<String, Json>,
    /// True if a call without an answer in the journal is made.
    #[serde(default)]
    ask: bool,
}

/// `POST /v1/sessions/{id}/replay`.
pub async fn replay(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let _in_use = session.enter()?;
    let Taken { value, size, held } = take_json::<Again>(&account, app.args.body_limits(), &headers, body).await?;
    let Again {
        execution,
        answers,
        ask,
    } = value;
    let read = move || {
        let answers = answers.into_iter();
        let answers = answers.map(|(name, answer)| Ok((name, Value::from_json(answer)?)));
        answers.collect::<Result<Vec<_>, Error>>()
    };
    let options = ReplayOptions {
        answers: sized(size, read).await??,
        ask,
        ..ReplayOptions::default()
    };
    // If the client leaves, this future is dropped, which ends the copy.
    let Replay { execution, difference } = run(&account, &session, execution, options).await?;
    drop(held);
    let size = size_of(&execution);
    let mut told = json!({ "execution": execution });
    if let (Some(difference), Some(told)) = (difference, told.as_object_mut()) {
        told.insert("difference".to_owned(), json!(difference));
    }
    bodies::json(StatusCode::OK, size, told).await
}

/// Runs an ended execution of a kept sandbox again. Its guest has a place among the sessions of the key meanwhile.
///
/// # Errors
/// 400: the sandbox is not kept. 429 and 503: the key or the server has no place. Those of [`Kept::replay`](sandglass_host::kept::Kept::replay).
pub async fn run(
    account: &Account,
    session: &Session,
    execution: u32,
    options: ReplayOptions,
) -> Result<Replay, ApiError> {
    let Kind::Kept { kept, .. } = &session.kind else {
        let problem = "no execution has a journal: the session was created without \"persist\"; nothing was done";
        return Err(ApiError::option("replay", problem));
    };
    let _places = (account.session()?, account.execution()?);
    Ok(kept.replay(execution, options).await?)
}
