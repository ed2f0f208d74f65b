//! The part of a server in a store of states that other servers use, too: its lease, and the sessions that it loses with the lease.
//!
//! Decisions: `docs/internals/server.md`.

use std::time::Duration;

use futures_util::future::join_all;
use sandglass_states::{Beat, Standing, StateError, States};

use super::App;
use super::bodies::off_the_workers;
use super::errors::ApiError;
use super::quotas::Account;
use super::sessions::{Known, Session, Sessions};
use super::storage::Fate;
use super::suspension::Suspension;

/// Renewals in the time that a lease lasts. Some may fail.
const RENEWALS: f64 = 4.0;

/// Keeps the lease of this server, and ends the sessions that others may have taken over. Ends with the server.
pub(super) async fn run(app: App) {
    if !app.suspension.as_ref().is_some_and(Suspension::is_shared) {
        return;
    }
    tokio::join!(renew(&app), watch(&app));
}

/// Renews the lease. Nothing else delays it.
async fn renew(app: &App) {
    let mut problem = Problem::default();
    loop {
        tokio::time::sleep(pause(app)).await;
        match ask(app, States::renew).await {
            Some(Ok(Beat::Lost)) => {
                tracing::error!(
                    "this server was silent for so long that others may have taken its sessions over: these end here"
                );
                let app = app.clone();
                tokio::spawn(async move { lose_all(&app).await });
            }
            Some(Err(error)) => problem.tell(&error, "the lease of this server is not renewed"),
            _ => problem = Problem::default(),
        }
    }
}

/// Watches the leases of the other servers, which may take longer than a renewal.
async fn watch(app: &App) {
    let mut problem = Problem::default();
    loop {
        tokio::time::sleep(pause(app)).await;
        match ask(app, States::watch).await {
            Some(Err(error)) => problem.tell(&error, "the leases of other servers cannot be read"),
            _ => problem = Problem::default(),
        }
    }
}

/// The interval between two renewals, and between two looks at the other servers.
pub(super) fn pause(app: &App) -> Duration {
    Duration::from_secs_f64(app.args.suspend.state_lease_seconds / RENEWALS)
}

async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&States) -> Result<T, StateError> + Send + 'static,
) -> Option<Result<T, StateError>> {
    let app = app.clone();
    let asked = off_the_workers(move || app.suspension.as_ref().map(|suspension| question(suspension.states())));
    asked.await.ok().flatten()
}

/// The last problem that was told, so that it is told once.
#[derive(Default)]
struct Problem(Option<String>);

impl Problem {
    fn tell(&mut self, error: &StateError, what: &str) {
        let why = error.to_string();
        if self.0.as_ref() != Some(&why) {
            tracing::error!(%error, "{what}");
            self.0 = Some(why);
        }
    }
}

/// Ends all sessions that went on from a stored state. The next request finds out who has them.
async fn lose_all(app: &App) {
    let stored = app
        .sessions
        .awake()
        .into_iter()
        .filter(|session| session.stored().is_some());
    let ids: Vec<_> = stored.map(|session| session.id.clone()).collect();
    join_all(ids.iter().map(|id| lose(app, id))).await;
}

/// Ends a session that another server may have now, if it is awake under a lease that is over.
pub(super) async fn lose(app: &App, id: &str) {
    let is_lost = |session: &Session| standing(app, session) == Standing::Lost;
    let Some((session, moving)) = Sessions::begin_to_lose(app, id, is_lost) else {
        return;
    };
    end(&session).await;
    moving.end(session.stored().map(Known::Asleep), Ok(()));
}

/// Ends a session that another server may have now.
pub(super) async fn end(session: &Session) {
    session.destroy(Fate::Removed).await;
    if let Some(asleep) = session.stored() {
        asleep.leave();
    }
}

/// The right to a session that is awake here.
pub(super) fn standing(app: &App, session: &Session) -> Standing {
    let server = session.stored().and_then(|asleep| asleep.server());
    match (&app.suspension, server) {
        (Some(suspension), Some(server)) => suspension.states().standing(server),
        _ => Standing::Held, // no server knows of it but this one
    }
}

/// Looks for a session in the store that this server does not know of, because another one stored it.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn look_up(app: &App, account: &Account, id: &str) -> Result<(), ApiError> {
    let Some(suspension) = app.suspension.as_ref().filter(|suspension| suspension.is_shared()) else {
        return Ok(());
    };
    if app.sessions.of(&account.owner, id).is_err()
        && let Some(asleep) = suspension.find(account, id).await?
    {
        app.sessions.add_found(asleep);
    }
    Ok(())
}
