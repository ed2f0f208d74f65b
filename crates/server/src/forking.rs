//! The route that copies sessions.
//!
//! A copy has the state by value, as a woken session has it: an exact copy of a process would share its namespaces with the original.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use sandglass_core::execution::LostVariable;
use sandglass_host::sandbox::{Past, Spent};
use sandglass_rpc::options::Options;
use sandglass_states::Saved;
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::bodies::{self, take_json};
use super::create::{add, bounds, capabilities, prepare};
use super::errors::ApiError;
use super::own_session::OwnSession;
use super::quotas::{Account, Held};
use super::sessions::{Kind, Session};
use super::storage::{Fate, new_id};
use super::suspending::{Vain, WRITE_TIME, captured};
use super::suspension::Recipe;
use super::waking::give_files;

/// The most copies of one request.
const MOST: usize = 100;
/// Copies that are made at once.
const AT_ONCE: usize = 4;

/// The body of a request for copies.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fork {
    /// The number of copies; by default one.
    count: Option<usize>,
}

/// `POST /v1/sessions/{id}/fork`: takes JSON `{ "count": … }`, or nothing.
pub async fn fork(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, _in_use): OwnSession,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox()?;
    let recipe = session
        .recipe()
        .ok_or_else(|| ApiError::internal("the session's settings are unknown; this is a bug"))?;
    let wanted = take_json::<Fork>(&account, app.args.body_limits(), &headers, body)
        .await?
        .value;
    let count = wanted.count.unwrap_or(1);
    if !(1..=MOST).contains(&count) {
        return Err(ApiError::option(
            "count",
            format!("must be 1 to {MOST}; nothing was done"),
        ));
    }
    let places = (0..count)
        .map(|_| account.session())
        .collect::<Result<Vec<Held>, _>>()?;
    let options = Options::read(recipe.0.clone(), &bounds(&app))?;
    let turn = session.turn().await?;
    let _open = account.open_state().await;
    let capturing = tokio::time::timeout(WRITE_TIME, captured(sandbox, recipe, most_bytes(&app)));
    let saved = capturing.await.unwrap_or_else(|_| Err(Vain::too_slow()));
    drop(turn);
    let saved = saved.map_err(refused)?;
    let original = Original {
        past: past_of(&saved)?,
        spent: Spent {
            usage: sandbox.spent(),
            time_ms: sandbox.budget_time().unwrap_or_default(),
        },
        recipe,
        options,
        saved,
    };
    // Nobody knows a copy before all are made. If one cannot be, the others are dropped, and their guests with them.
    let copies: Vec<Arc<Session>> = stream::iter(places)
        .map(|place| copy(&app, &account, &original, place))
        .buffered(AT_ONCE)
        .try_collect()
        .await?;
    let mut told = Vec::new();
    for copy in copies {
        let copy = add(&app, copy).await?;
        told.push(json!({ "id": copy.id, "backend": copy.backend(), "capabilities": capabilities(&copy) }));
    }
    let told = json!({ "sessions": told, "execution": original.saved.execution, "lost": original.saved.lost });
    bodies::json(StatusCode::CREATED, 0, told).await
}

/// The state of a session, and all that its copies are made of.
struct Original<'a> {
    saved: Saved,
    past: Past,
    spent: Spent,
    recipe: &'a Recipe,
    options: Options,
}

async fn copy(app: &App, account: &Account, original: &Original<'_>, place: Held) -> Result<Arc<Session>, ApiError> {
    let prepared = prepare(app, &account.owner, new_id()?, &original.options, Fate::Removed).await?;
    let builder = prepared.builder(app, &original.options);
    let sandbox = builder
        .past(original.past.clone())
        .spent(original.spent)
        .build()
        .await?;
    let opened = async {
        give_files(&sandbox, &original.saved).await?;
        sandbox.open_state(original.saved.state.clone(), most_bytes(app)).await
    };
    let opened = opened.await;
    let stored = (Some(original.recipe.clone()), None);
    let session = prepared.session(&account.owner, Kind::Sandbox(sandbox), place, stored);
    match opened {
        Ok(_) => Ok(session), // such a state is opened as a whole
        Err(error) => {
            session.destroy(Fate::Removed).await;
            Err(error.into())
        }
    }
}

/// The host's part of the state, which tells the next execution what the copy lacks.
fn past_of(saved: &Saved) -> Result<Past, ApiError> {
    let mut past = Past::from_parts(saved.past.clone(), &saved.bodies)?;
    let lost = saved.lost.iter().map(|lost| LostVariable {
        name: lost.name.clone(),
        reason: lost.reason.clone(),
    });
    past.add_lost(lost.collect());
    Ok(past)
}

/// The most bytes of a state.
fn most_bytes(app: &App) -> u64 {
    let stored = app.suspension.as_ref().map(|suspension| suspension.most_bytes);
    stored.unwrap_or_else(|| bounds(app).max_state_bytes)
}

fn refused(why: Vain) -> ApiError {
    let (Vain::State(why) | Vain::Store(why)) = why;
    let message = format!("the session cannot be copied: {why}; it goes on as it is");
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "not_serializable", message)
}
