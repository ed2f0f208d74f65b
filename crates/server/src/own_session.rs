//! The session in a request's path.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;

use super::App;
use super::errors::ApiError;
use super::quotas::Account;
use super::sessions::{InUse, Session};
use super::waking;

/// The session in a request's path, which belongs to the request's key. A suspended session is woken first. The session is in use as long as
/// this lives.
#[derive(Debug)]
pub struct OwnSession(pub Arc<Session>, pub InUse);

/// The id in a request's path, and the request's key.
#[derive(Debug)]
pub struct OwnId(pub String, pub Arc<Account>);

impl FromRequestParts<App> for OwnId {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let named = Path::<HashMap<String, String>>::from_request_parts(parts, app).await;
        let account = parts.extensions.get::<Arc<Account>>();
        match (named, account) {
            (Ok(Path(mut named)), Some(account)) => {
                Ok(Self(named.remove("id").unwrap_or_default(), Arc::clone(account)))
            }
            _ => Err(ApiError::invalid("the request could not be read")),
        }
    }
}

impl FromRequestParts<App> for OwnSession {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let OwnId(id, account) = OwnId::from_request_parts(parts, app).await?;
        let (session, in_use) = waking::awake(app, &account, &id).await?;
        Ok(Self(session, in_use))
    }
}
