//! The files of a session's working folder.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::bodies::{self, Taken, take};
use super::errors::ApiError;
use super::own_session::OwnSession;
use super::quotas::Account;

/// The query of a listing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folder {
    #[serde(default)]
    path: String,
}

/// `GET /v1/sessions/{id}/files?path=…`.
pub async fn list(
    OwnSession(session, ..): OwnSession,
    folder: Result<Query<Folder>, QueryRejection>,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let Query(folder) = folder.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    let files = sandbox.list_files(folder.path).await?;
    bodies::json(StatusCode::OK, files.len() * 100, json!({ "files": files })).await
}

/// `GET /v1/sessions/{id}/files/{path}`.
pub async fn read(
    OwnSession(session, ..): OwnSession,
    Path((_, path)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let bytes = sandbox.read_file(path).await?;
    // The file is untrusted, so no browser may show it as a page of this server.
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::CONTENT_SECURITY_POLICY, "sandbox; default-src 'none'"),
    ];
    Ok((headers, bytes).into_response())
}

/// `PUT /v1/sessions/{id}/files/{path}`.
pub async fn write(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    Path((_, path)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let Taken { value, held, .. } = take(&account, app.args.body_limits(), &headers, body).await?;
    if let Some(folder) = session.folder() {
        folder.room_for(value.len() as u64).await?;
    }
    let _turn = session.turn().await?;
    sandbox.write_file(path, value).await?;
    drop(held);
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// `DELETE /v1/sessions/{id}/files/{path}`.
pub async fn remove(
    OwnSession(session, ..): OwnSession,
    Path((_, path)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let _turn = session.turn().await?;
    sandbox.remove_file(path).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
