//! The routes of executions that outlive their clients or their server: the pending one, which is told or given up, and the last one that
//! has ended. `execute` goes on with the pending one.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
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

/// `GET /v1/sessions/{id}/last`.
pub async fn last(OwnSession(session, ..): OwnSession) -> Result<Response, ApiError> {
    let _in_use = session.enter()?;
    let Kind::Kept { kept, .. } = &session.kind else {
        let problem = "only a session with \"persist\" keeps its last execution; nothing was done";
        return Err(ApiError::option("last", problem));
    };
    // In this order: if nothing runs, the execution is the last one.
    let is_running = session.is_running();
    let last = kept.last();
    let parts = [
        format!("{{\"running\":{is_running},\"execution\":").into(),
        last.unwrap_or(Bytes::from_static(b"null")),
        Bytes::from_static(b"}"),
    ];
    // The result is not copied: many clients may read it slowly.
    let body = Body::from_stream(stream::iter(parts.map(Ok::<_, Infallible>)));
    Ok(bodies::written_json(StatusCode::OK, body))
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
