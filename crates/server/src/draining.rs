//! Draining: a server that is told to end hands its sessions over while it still answers.
//!
//! Sessions that nobody uses are stored at once. The next request for one goes to another server, which wakes it. Sessions in use follow when
//! their requests end. New sessions are made on other servers meanwhile.
//!
//! Decisions: `docs/internals/server.md`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_states::{Living, States};

use super::App;
use super::errors::ApiError;
use super::kept::KeptSandboxes;
use super::quotas::Account;
use super::sessions::{Kind, Known};
use super::{kept_sessions, sharing, suspending};

/// The interval between two searches for sessions to hand over.
const SWEEP: Duration = Duration::from_millis(50);
/// The time for which nothing may be left before the server answers no more. Other servers and balancers hear of the end meanwhile.
const LINGER: Duration = Duration::from_secs(1);

/// The other servers that can take a request, as this one last saw them.
pub(super) fn others(app: &App) -> Vec<Living> {
    let mut others = app
        .suspension
        .as_ref()
        .map(|suspension| suspension.states().others())
        .unwrap_or_default();
    others.retain(|other| other.address.is_some());
    others
}

/// Hands all sessions over that can be stored. Ends at once if no other server can take requests.
pub(super) async fn run(app: &App) {
    if app.forwarding.is_none() {
        return;
    }
    if let Some(Err(error)) = sharing::ask(app, States::watch).await {
        tracing::warn!(%error, "the leases of other servers cannot be read");
    }
    let servers = others(app).len();
    if servers == 0 {
        return;
    }
    tracing::info!(servers, "draining: other servers take the sessions over");
    let mut rests_since = Instant::now();
    loop {
        suspending::suspend_idle(app, Duration::ZERO).await;
        if app.sessions.are_to_move() {
            rests_since = Instant::now();
        } else if rests_since.elapsed() >= LINGER {
            return;
        }
        tokio::time::sleep(SWEEP).await;
    }
}

/// Stores a session for another server. Returns false if it is in use here, cannot be stored, or is not known.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn hand_over(app: &App, account: &Arc<Account>, id: &str) -> Result<bool, ApiError> {
    loop {
        match app.sessions.of(&account.owner, id) {
            Ok((_, Some(settled))) => drop(settled.wait().await),
            Ok((Known::Asleep(_), None)) => return Ok(true),
            Ok((Known::Awake(session), None)) if session.idle_for().is_none() => return Ok(false),
            Ok((Known::Awake(session), None)) => {
                match &session.kind {
                    Kind::Kept { .. } => kept_sessions::close_unused(app, &session).await,
                    _ => suspending::suspend_unused(app, &session).await,
                }
                if matches!(app.sessions.of(&account.owner, id), Ok((Known::Awake(_), None))) {
                    return Ok(false);
                }
            }
            Err(_) if sharing::look_up(app, account, id).await? => {}
            Err(_) => return Ok(KeptSandboxes::find(app, account, id).await?.is_some()),
        }
    }
}
