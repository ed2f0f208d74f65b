//! The routes that list and destroy sessions. None of them wakes a suspended session.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use super::App;
use super::bodies;
use super::create::capabilities;
use super::errors::ApiError;
use super::kept::{KeptSandboxes, Listed};
use super::kept_sessions;
use super::own_session::OwnId;
use super::quotas::Account;
use super::sessions::Known;
use super::sharing;
use super::storage::Fate;
use super::suspending::{self, Unused};

fn told(known: &Known) -> Json {
    match known {
        Known::Awake(session) => json!({
            "id": session.id,
            "backend": session.backend(),
            "idleSeconds": session.idle_for().map_or(0.0, |idle| idle.as_secs_f64()),
            "capabilities": capabilities(session),
        }),
        Known::Asleep(asleep) => json!({
            "id": asleep.id,
            "backend": asleep.head.about["backend"],
            "idleSeconds": asleep.age().as_secs_f64(),
            "capabilities": asleep.head.about["capabilities"],
            "suspended": true,
        }),
    }
}

fn told_closed((id, about, age): &Listed) -> Json {
    json!({
        "id": id,
        "backend": about.backend,
        "idleSeconds": age.as_secs_f64(),
        "capabilities": about.capabilities,
        "suspended": true,
    })
}

/// `GET /v1/sessions`.
pub async fn list(State(app): State<App>, Extension(account): Extension<Arc<Account>>) -> Result<Response, ApiError> {
    let mut sessions: Vec<_> = app.sessions.all_of(&account.owner).iter().map(told).collect();
    let mut closed = KeptSandboxes::listed(&app, &account).await;
    closed.retain(|(id, ..)| sessions.iter().all(|session| session["id"] != *id));
    sessions.extend(closed.iter().map(told_closed));
    bodies::json(StatusCode::OK, sessions.len() * 200, json!({ "sessions": sessions })).await
}

/// `GET /v1/sessions/{id}`.
pub async fn show(State(app): State<App>, OwnId(id, account): OwnId) -> Result<Response, ApiError> {
    sharing::look_up(&app, &account, &id).await?;
    let told = match app.sessions.of(&account.owner, &id) {
        Ok((known, _)) => told(&known),
        Err(error) => {
            let closed = KeptSandboxes::find(&app, &account, &id).await?.ok_or(error)?;
            told_closed(&(closed.id, closed.about, closed.age))
        }
    };
    bodies::json(StatusCode::OK, 0, told).await
}

/// `DELETE /v1/sessions/{id}`.
pub async fn destroy(State(app): State<App>, OwnId(id, account): OwnId) -> Result<Response, ApiError> {
    // The removal goes on when the client leaves.
    let removing = tokio::spawn(remove(app, account, id));
    removing
        .await
        .map_err(|_| ApiError::internal("the session could not be destroyed; this is a bug"))??;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn remove(app: App, account: Arc<Account>, id: String) -> Result<(), ApiError> {
    let kept = KeptSandboxes::find(&app, &account, &id).await;
    if let Ok(Some(closed)) = kept {
        return kept_sessions::remove(&app, &account, closed).await;
    }
    // One that cannot be read can be removed.
    if KeptSandboxes::delete_unread(&app, &account, &id).await? {
        return Ok(());
    }
    // A session that is awake here can be removed while the store is down.
    if app.sessions.of(&account.owner, &id).is_err() {
        kept?;
    }
    sharing::look_up(&app, &account, &id).await?;
    let mut found = app.sessions.of(&account.owner, &id)?;
    loop {
        match found {
            (_, Some(settled)) => drop(settled.wait().await),
            (Known::Asleep(_), None) => suspending::forget(&app, &id, Unused::OrUsed).await?,
            (Known::Awake(session), None) => {
                // The stored state goes first: a server that is killed in between must not bring the session back.
                suspending::forget_stored(&app, &session).await?;
                app.sessions.remove(&id, Fate::Removed).await;
            }
        }
        // It may have begun to move in between.
        found = match app.sessions.of(&account.owner, &id) {
            Ok(found) => found,
            Err(_) => return Ok(()),
        };
    }
}
