//! The route by which a server of the same store asks for a name whose client is away.

use axum::extract::State;
use axum::http::StatusCode;

use super::App;
use super::kept::KeptSandboxes;
use super::own_session::OwnId;

/// `POST /v1/kept/{id}/release`.
pub async fn release(State(app): State<App>, OwnId(id, account): OwnId) -> StatusCode {
    KeptSandboxes::give_back(&app, &account.owner, &id).await;
    StatusCode::NO_CONTENT
}
