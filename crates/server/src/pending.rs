//! The routes of an execution that an earlier server has not finished: told, or given up. `execute` goes on with it.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sandglass_rpc::described;
use serde_json::Value as Json;

use super::bodies;
use super::errors::ApiError;
use super::kept_sessions::not_kept;
use super::own_session::OwnSession;
use super::sessions::Kind;

/// `GET /v1/sessions/{id}/pending`.
pub async fn pending(OwnSession(session, ..): OwnSession) -> Result<Response, ApiError> {
    let in_use = session.enter()?;
    let pending = match &session.kind {
        Kind::Kept { kept, .. } => {
            kept.settle().await?; // a client may have left while it resumed
            kept.pending()
        }
        _ => None,
    };
    let told = bodies::off_the_workers(move || pending.map_or(Json::Null, |pending| described(pending).to_json()));
    let told = told.await?;
    drop(in_use);
    bodies::json(StatusCode::OK, usize::MAX, told).await
}

/// `POST /v1/sessions/{id}/discard`.
pub async fn discard(OwnSession(session, ..): OwnSession) -> Result<Response, ApiError> {
    let _in_use = session.enter()?;
    let Kind::Kept { kept, .. } = &session.kind else {
        return Err(not_kept("discard"));
    };
    kept.discard().await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
