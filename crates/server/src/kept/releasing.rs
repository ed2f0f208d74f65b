//! Names whose client is away at another server: that server is asked to give the name back.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};

use super::{KeptSandboxes, Store, TAKE_OVER};
use crate::App;
use crate::errors::ApiError;
use crate::quotas::Account;

/// The time for the other server to answer. It ends a sandbox, and waits until nothing writes for it.
const ANSWER_TIME: Duration = Duration::from_secs(2 * TAKE_OVER.as_secs());

impl KeptSandboxes {
    /// Ends the named sandbox with this id if its client is away. Otherwise, nothing is done.
    pub async fn give_back(app: &App, owner: &Arc<str>, id: &str) {
        let Ok(id) = id.parse() else { return };
        let entry = app.kept.lock().get(&(Arc::clone(owner), id)).cloned();
        if let Some(entry) = entry {
            entry.take_over(app).await;
        }
    }

    /// Asks the server that holds a name to give it back, if its client is away. `key` is the client's authorization, which that server
    /// checks. Whether it did so shows when the name is opened.
    ///
    /// # Errors
    /// 503: the store does not tell which server holds it.
    pub async fn ask_for(app: &App, account: &Account, name: &str, key: Option<&HeaderValue>) -> Result<(), ApiError> {
        let (Some(suspension), Some(forwarding)) = (&app.suspension, &app.forwarding) else {
            return Ok(());
        };
        let id = Store::of(app, &account.owner)?.tenant.session_named(name).to_string();
        let Some(Some(living)) = suspension.kept_elsewhere(&account.owner, &id).await? else {
            return Ok(());
        };
        let Some(address) = living.address else { return Ok(()) };
        let mut request = forwarding.client().post(format!("{address}/v1/kept/{id}/release"));
        if let Some(key) = key {
            request = request.header(header::AUTHORIZATION, key);
        }
        match request.timeout(ANSWER_TIME).send().await {
            Ok(answer) => tracing::debug!(kept = id, %address, status = answer.status().as_u16(), "asked for a name"),
            Err(error) => tracing::debug!(kept = id, %address, %error, "a server that holds a name does not answer"),
        }
        Ok(())
    }
}
