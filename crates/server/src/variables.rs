//! Variables: listed, read, set.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::App;
use super::bodies::{self, Taken, media_type, off_the_workers, sized, take, take_json};
use super::errors::ApiError;
use super::own_session::OwnSession;
use super::quotas::Account;
use sandglass_host::Value;

/// `GET /v1/sessions/{id}/variables`.
pub async fn list(OwnSession(session, ..): OwnSession) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let variables = sandbox.list_variables().await?;
    bodies::json(StatusCode::OK, variables.len() * 100, json!({ "variables": variables })).await
}

/// `GET /v1/sessions/{id}/variables/{name}`.
pub async fn get(
    OwnSession(session, ..): OwnSession,
    Path((_, name)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let Some(value) = sandbox.get_variable(name.clone()).await? else {
        let message = format!("there is no variable \"{name}\"");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "variable_not_found", message));
    };
    let is_small = matches!(
        value,
        Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::DateTime(_)
    );
    let write = move || {
        let value = value.to_json();
        let mut fields = serde_json::Map::new();
        fields.insert("name".to_owned(), name.into());
        fields.insert("value".to_owned(), value);
        Json::Object(fields)
    };
    if is_small {
        return bodies::json(StatusCode::OK, 0, write()).await;
    }
    let json = off_the_workers(write).await?;
    bodies::json(StatusCode::OK, usize::MAX, json).await
}

/// The new value of a variable.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Set {
    value: Json,
}

/// `PUT /v1/sessions/{id}/variables/{name}`: takes JSON `{ "value": … }`, text as a str, or bytes.
pub async fn set(
    State(app): State<App>,
    Extension(account): Extension<Arc<Account>>,
    OwnSession(session, ..): OwnSession,
    Path((_, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (sandbox, _in_use) = session.sandbox().await?;
    let limits = app.args.body_limits();
    let (value, _held) = match media_type(&headers).as_deref() {
        Some("text/plain") => {
            let Taken { value, held, .. } = take(&account, limits, &headers, body).await?;
            let text =
                String::from_utf8(value).map_err(|_| ApiError::invalid("the text is not UTF-8; nothing was set"))?;
            (Value::Str(text), held)
        }
        Some("application/octet-stream") => {
            let Taken { value, held, .. } = take(&account, limits, &headers, body).await?;
            (Value::Bytes(value), held)
        }
        _ => {
            let Taken { value, size, held } = take_json::<Set>(&account, limits, &headers, body).await?;
            (sized(size, move || Value::from_json(value.value)).await??, held)
        }
    };
    let _turn = session.turn().await?;
    sandbox.set_variable(name, value).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
