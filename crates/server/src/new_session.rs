//! The route that creates sessions.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use sandglass_host::Value;
use sandglass_rpc::options::{Options, flag};
use serde_json::{Map, Value as Json, json};

use super::App;
use super::bodies::{self, sized, take_json};
use super::create::{bounds, capabilities, make, make_channel};
use super::errors::ApiError;
use super::kept_sessions;
use super::quotas::Account;
use super::suspension::Recipe;

/// Options that only clients over JSON-RPC have.
const OF_RPC: [&str; 6] = [
    "hostFunctions",
    "onLLMQuery",
    "onRLMQuery",
    "maxResultSize",
    "cleanHtml",
    "naming",
];

/// `POST /v1/sessions`.
pub async fn create(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let place = account.session()?;
    let mut body = take_json::<Map<String, Json>>(&account, app.args.body_limits(), &headers, body).await?;
    let channel = body.value.remove("channel");
    let is_channel = channel.map_or(Ok(false), |value| flag("channel", &value))?;
    let persist = body.value.remove("persist");
    let is_kept = persist.map_or(Ok(false), |value| flag("persist", &value))?;
    if is_channel && is_kept {
        return Err(ApiError::option("persist", "cannot be given together with \"channel\""));
    }
    for name in OF_RPC {
        if body.value.contains_key(name) {
            return Err(ApiError::option(name, "is an option of GET /v1/rpc only"));
        }
    }
    let context = body.value.remove("context").unwrap_or_default();
    let recipe = Recipe(body.value.clone());
    let options = Options::read(body.value, &bounds(&app))?;
    let context = sized(body.size, move || Value::from_json(context)).await??;
    let session = if is_channel {
        make_channel(&app, &account, options, place).await?
    } else if is_kept {
        kept_sessions::make(&app, &account, options, place, (context, recipe)).await?
    } else {
        make(&app, &account, options, place, Some((context, recipe)), |builder| {
            builder
        })
        .await?
    };
    drop(body.held);
    let told = json!({ "id": session.id, "backend": session.backend(), "capabilities": capabilities(&session) });
    bodies::json(StatusCode::CREATED, 0, told).await
}
