//! The route that copies sessions.
//!
//! Copies have the state by value, as a woken session has it. Exact ones are forks of the guest that the host isolates
//! (`host/src/guest/isolated.rs`).

use std::fmt::Display;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::future::join_all;
use sandglass_core::execution::LostVariable;
use sandglass_host::sandbox::{SandboxCopy, Suspended, number_of_copies};
use sandglass_rpc::options::Options;
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::attempt::{TOO_SLOW, WRITE_TIME};
use super::bodies::{self, take_json};
use super::create::{add, bounds, capabilities, prepare};
use super::errors::ApiError;
use super::own_session::OwnSession;
use super::quotas::{Account, Held};
use super::sessions::{Kind, Session};
use super::storage::{Fate, new_id};
use super::suspension::Recipe;

/// The body of a request for copies.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fork {
    /// The number of copies; by default one.
    count: Option<usize>,
    /// True for copies of the process's memory.
    #[serde(default)]
    exact: bool,
}

/// `POST /v1/sessions/{id}/fork`: takes JSON `{ "count": …, "exact": … }`, or nothing.
pub async fn fork(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, _in_use): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let recipe = session
        .settings()
        .ok_or_else(|| ApiError::internal("the session's settings are unknown; this is a bug"))?;
    let wanted = take_json::<Fork>(&account, app.args.body_limits(), &headers, body)
        .await?
        .value;
    let count = number_of_copies(wanted.count).map_err(|problem| ApiError::option("count", problem))?;
    let places = (0..count)
        .map(|_| account.session())
        .collect::<Result<Vec<Held>, _>>()?;
    let options = Options::read(recipe.0.clone(), &bounds(&app))?;
    let turn = session.turn().await?;
    if wanted.exact {
        let copies = sandbox.fork(count).await?;
        drop(turn);
        let execution = copies.first().map(SandboxCopy::execution).unwrap_or_default();
        let each = copies.into_iter().zip(places);
        let made = each.map(|(copy, place)| exact_copy(&app, &account, &options, recipe, copy, place));
        let made = all_or_none(join_all(made).await).await?;
        return tell(&app, made, execution, &[]).await;
    }
    let _open = account.open_state().await;
    let suspending = tokio::time::timeout(WRITE_TIME, sandbox.suspend(most_bytes(&app)));
    let suspended = match suspending.await {
        Ok(suspended) => suspended.map_err(|error| refused(&error))?,
        Err(_) => return Err(refused(&TOO_SLOW)),
    };
    drop(turn);
    let original = Original {
        options,
        suspended,
        recipe,
    };
    let suspended = &original.suspended;
    let make = |place| copy(&app, &account, &original, place);
    let (copies, lost) = suspended.copies(places, make).await?;
    tell(&app, copies, suspended.past.execution(), &lost).await
}

/// Adds the copies to the sessions, and tells of them.
async fn tell(
    app: &App,
    copies: Vec<Arc<Session>>,
    execution: u32,
    lost: &[LostVariable],
) -> Result<Response, ApiError> {
    // A task of its own, because a client can leave meanwhile.
    let adding = tokio::spawn(add_all(app.clone(), copies));
    let added = adding.await;
    let added = added.map_err(|error| ApiError::internal(format!("the copies were not added: {error}")))??;
    let mut told = Vec::new();
    for copy in added {
        told.push(json!({ "id": copy.id, "backend": copy.backend(), "capabilities": capabilities(&copy) }));
    }
    let told = json!({ "sessions": told, "execution": execution, "lost": lost });
    bodies::json(StatusCode::CREATED, 0, told).await
}

/// The sessions, if all could be made. Otherwise those that could end.
async fn all_or_none(made: Vec<Result<Arc<Session>, ApiError>>) -> Result<Vec<Arc<Session>>, ApiError> {
    let (mut sessions, mut failed) = (Vec::new(), None);
    for one in made {
        match one {
            Ok(session) => sessions.push(session),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    let Some(error) = failed else { return Ok(sessions) };
    join_all(sessions.iter().map(|session| session.destroy(Fate::Removed))).await;
    Err(error)
}

/// Adds all copies to the sessions, or none.
async fn add_all(app: App, copies: Vec<Arc<Session>>) -> Result<Vec<Arc<Session>>, ApiError> {
    let mut added: Vec<Arc<Session>> = Vec::new();
    for copy in copies {
        match add(&app, copy).await {
            Ok(copy) => added.push(copy),
            Err(error) => {
                let removing = added.iter().map(|copy| app.sessions.remove(&copy.id, Fate::Removed));
                join_all(removing).await;
                return Err(error);
            }
        }
    }
    Ok(added)
}

/// The session of an exact copy. Its guest starts when it is first needed.
async fn exact_copy(
    app: &App,
    account: &Account,
    options: &Options,
    recipe: &Recipe,
    copy: SandboxCopy,
    place: Held,
) -> Result<Arc<Session>, ApiError> {
    let prepared = prepare(app, &account.owner, new_id(app.home())?, options, Fate::Removed).await?;
    let sandbox = prepared.builder(app, options).copy(copy).build().await?;
    let stored = (Some(recipe.clone()), None);
    Ok(prepared.session(&account.owner, Kind::Sandbox(sandbox), place, stored))
}

/// All that copies of a session are made of.
struct Original<'a> {
    recipe: &'a Recipe,
    options: Options,
    suspended: Suspended,
}

/// A copy, and the variables that it could not take.
async fn copy(
    app: &App,
    account: &Account,
    original: &Original<'_>,
    place: Held,
) -> Result<(Arc<Session>, Vec<LostVariable>), ApiError> {
    let prepared = prepare(
        app,
        &account.owner,
        new_id(app.home())?,
        &original.options,
        Fate::Removed,
    )
    .await?;
    let builder = prepared.builder(app, &original.options);
    let sandbox = original.suspended.begin(builder).build().await?;
    let taken = sandbox.take_up(&original.suspended, most_bytes(app)).await;
    let stored = (Some(original.recipe.clone()), None);
    let session = prepared.session(&account.owner, Kind::Sandbox(sandbox), place, stored);
    match taken {
        Ok(lost) => Ok((session, lost)),
        Err(error) => {
            session.destroy(Fate::Removed).await;
            Err(error.into())
        }
    }
}

/// The most bytes of a state.
fn most_bytes(app: &App) -> u64 {
    let stored = app.suspension.as_ref().map(|suspension| suspension.most_bytes);
    stored.unwrap_or_else(|| bounds(app).max_state_bytes)
}

fn refused(why: &impl Display) -> ApiError {
    let message = format!("the session cannot be copied: {why}; it goes on as it is");
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "not_serializable", message)
}
