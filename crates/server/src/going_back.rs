//! The routes that save the state, and go back to an earlier one.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::bodies::{self, Taken, take, take_json};
use super::errors::ApiError;
use super::own_session::OwnSession;
use super::quotas::Account;

/// The body of a request to go back.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restore {
    /// The execution. `None` means the newest checkpoint of all.
    execution: Option<u32>,
}

/// `POST /v1/sessions/{id}/checkpoint`.
pub async fn checkpoint(OwnSession(session, ..): OwnSession) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let _turn = session.turn().await?;
    told(sandbox.checkpoint().await?).await
}

/// `POST /v1/sessions/{id}/undo`.
pub async fn undo(OwnSession(session, ..): OwnSession) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let _turn = session.turn().await?;
    told(sandbox.undo().await?).await
}

/// `POST /v1/sessions/{id}/restore`: takes JSON `{ "execution": … }`, or nothing.
pub async fn restore(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let limits = app.args.body_limits();
    let wanted = if headers.contains_key(axum::http::header::CONTENT_TYPE) {
        take_json::<Restore>(&account, limits, &headers, body).await?.value
    } else {
        let Taken { value, .. } = take(&account, limits, &headers, body).await?;
        if !value.is_empty() {
            return Err(ApiError::invalid("the body has to be JSON; nothing was done"));
        }
        Restore::default()
    };
    let _turn = session.turn().await?;
    told(sandbox.restore(wanted.execution).await?).await
}

async fn told(execution: u32) -> Result<Response, ApiError> {
    bodies::json(StatusCode::OK, 0, json!({ "execution": execution })).await
}
