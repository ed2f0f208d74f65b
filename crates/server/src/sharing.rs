//! The part of a server in a store of states that other servers use, too: its lease, and the sessions that it loses with the lease.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use sandglass_states::{Beat, SessionId, Standing, StateError, States};
use tokio::sync::oneshot;

use super::App;
use super::errors::ApiError;
use super::kept::KeptSandboxes;
use super::quotas::Account;
use super::sessions::{Kind, Known, Session, Sessions};
use super::storage::Fate;
use super::suspension::{Asleep, Suspension};

/// Renewals in the time that a lease lasts. Some may fail.
const RENEWALS: f64 = 4.0;
/// The interval between two looks at the sessions that sleep, and the most sessions that are looked at in a second on average. A look reads a
/// small file for each session, and each server may know all. Without a bound, the reads would grow with servers times sessions.
const LOOK: Duration = Duration::from_secs(300);
const LOOKS_PER_SECOND: usize = 10;
/// The time for which the answer to an execution waits for the store to tell who has the session.
const ASK_TIME: Duration = Duration::from_secs(5);

/// Keeps the lease of this server, and ends the sessions that others have taken over. Ends with the server.
pub(super) async fn run(app: App) {
    if !app.suspension.as_ref().is_some_and(Suspension::is_shared) {
        return;
    }
    tokio::join!(renew(&app), watch(&app), let_go_of_all(&app));
}

/// Renews the lease. Nothing else delays it.
async fn renew(app: &App) {
    let mut problem = Problem::default();
    loop {
        tokio::time::sleep(pause(app)).await;
        match ask(app, States::renew).await {
            Some(Ok(Beat::Lost)) => {
                tracing::error!(
                    "this server was silent for so long that others may have taken its sessions over: those that they have end here"
                );
                let app = app.clone();
                tokio::spawn(async move { settle_all(&app).await });
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

/// The pause after a look at so many sessions.
fn look_pause(sessions: usize) -> Duration {
    LOOK.max(Duration::from_secs((sessions / LOOKS_PER_SECOND) as u64))
}

/// Lets go of suspended sessions that other servers have woken or removed. They would keep their places in the quota here.
async fn let_go_of_all(app: &App) {
    let mut problem = Problem::default();
    let mut pause = LOOK;
    loop {
        tokio::time::sleep(pause).await;
        let mut looked_at = 0;
        if let Some(suspension) = &app.suspension {
            looked_at += KeptSandboxes::let_go_of_taken(app, suspension).await;
        }
        let mut owners: HashMap<Arc<str>, Vec<Arc<Asleep>>> = HashMap::new();
        for asleep in app.sessions.asleep() {
            owners.entry(Arc::clone(&asleep.owner)).or_default().push(asleep);
        }
        for (owner, sessions) in owners {
            let Some(Ok(tenant)) = app.suspension.as_ref().map(|suspension| suspension.tenant(&owner)) else {
                continue;
            };
            let ids: Vec<SessionId> = sessions.iter().filter_map(|asleep| asleep.id.parse().ok()).collect();
            looked_at += ids.len();
            match ask(app, move |_| tenant.no_longer_asleep(&ids)).await {
                Some(Ok(found)) => {
                    problem = Problem::default();
                    let found: HashSet<_> = found.iter().map(SessionId::to_string).collect();
                    let found = sessions.iter().filter(|asleep| found.contains(&asleep.id));
                    found.for_each(|asleep| let_go(app, asleep));
                }
                Some(Err(error)) => problem.tell(&error, "the sessions that sleep cannot be looked up"),
                None => {}
            }
        }
        pause = look_pause(looked_at);
    }
}

/// Lets go of a suspended session that another server has, or has removed. Its place in the quota is free again. The store stays as it is.
pub(super) fn let_go(app: &App, asleep: &Arc<Asleep>) {
    let Some((now, moving)) = Sessions::begin_to_forget(app, &asleep.id) else {
        return;
    };
    if Arc::ptr_eq(&now, asleep) {
        tracing::debug!(session = asleep.id, owner = %asleep.owner, "another server has it");
        moving.end(None, Ok(()));
    } else {
        moving.end_in_vain(Ok(())); // this server has stored it again meanwhile
    }
}

/// Asks the store on a thread of its own. Requests that wait for a silent store may have all others.
pub(super) async fn ask<T: Send + 'static>(
    app: &App,
    question: impl FnOnce(&States) -> Result<T, StateError> + Send + 'static,
) -> Option<Result<T, StateError>> {
    let (app, (tell, told)) = (app.clone(), oneshot::channel());
    let begun = thread::Builder::new().name("lease".to_owned()).spawn(move || {
        let answer = app.suspension.as_ref().map(|suspension| question(suspension.states()));
        let _ = tell.send(answer); // or the server ends
    });
    match begun {
        Ok(_) => told.await.ok().flatten(),
        Err(error) => Some(Err(StateError::io("no thread can be started", error))),
    }
}

/// The last problem that was told, so that it is told once.
#[derive(Default)]
pub(super) struct Problem(Option<String>);

impl Problem {
    pub(super) fn tell(&mut self, error: &StateError, what: &str) {
        let why = error.to_string();
        if self.0.as_ref() != Some(&why) {
            tracing::error!(%error, "{what}");
            self.0 = Some(why);
        }
    }
}

/// Takes all sessions again that other servers may know of, and ends those that they have.
async fn settle_all(app: &App) {
    let mut known = app.sessions.awake();
    known.retain(|session| session.lease().is_some());
    for settled in join_all(known.iter().map(|session| settle(app, &session.id))).await {
        if let Err(error) = settled {
            tracing::warn!(error = error.message, "it is not known yet who has a session");
        }
    }
}

/// Asks the store who has a session that is awake under a lease that has run out. Takes it again if nobody had it since; otherwise it ends.
/// This goes on if nobody waits for it any more.
///
/// # Errors
/// The store cannot be read or written. Then this is still to be done.
pub(super) async fn settle(app: &App, id: &str) -> Result<(), ApiError> {
    let (app, id) = (app.clone(), id.to_owned());
    let settled = tokio::spawn(async move {
        let is_in_doubt = |session: &Session| standing(&app, session) != Standing::Held;
        let Some((session, moving)) = Sessions::begin_to_settle(&app, &id, is_in_doubt) else {
            return Ok(()); // or somebody else is at it
        };
        match take_again(&app, &session).await {
            Ok(true) => moving.end_in_vain(Ok(())),
            Ok(false) => {
                tracing::error!(session = session.id, owner = %session.owner, "another server has taken it over: it ends here");
                end(&session).await;
                moving.end(session.stored().map(Known::Asleep), Ok(()));
            }
            Err(error) => {
                moving.end_in_vain(Err(error.clone()));
                return Err(error);
            }
        }
        Ok(())
    });
    settled
        .await
        .unwrap_or_else(|_| Err(ApiError::internal("it could not be found out who has the session")))
}

/// Takes a session again that is awake here, so that it is under the present lease. Returns false if another server has it, or had it since.
///
/// # Errors
/// The store cannot be read or written.
pub(super) async fn take_again(app: &App, session: &Session) -> Result<bool, ApiError> {
    if let Kind::Kept { opened, .. } = &session.kind {
        return opened.hold_again().await;
    }
    let (Some(suspension), Some(under)) = (&app.suspension, session.lease()) else {
        return Ok(true); // no server knows of it but this one
    };
    let server = suspension.take_again(&session.owner, &session.id, under).await?;
    if let Some(server) = server {
        session.is_under(server);
    }
    Ok(server.is_some())
}

/// Returns true if another server has taken over a session whose code has run here. If the store does not tell that soon, the answer is no:
/// the session is still here, and if another server takes it over later, that is as after a kill.
pub(super) async fn is_taken(app: &App, session: &Session) -> bool {
    if standing(app, session) != Standing::Held {
        let settled = async {
            let _ = settle(app, &session.id).await;
            if !session.is_taken()
                && let Ok((_, Some(settled))) = app.sessions.of(&session.owner, &session.id)
            {
                let _ = settled.wait().await; // somebody else is at it
            }
        };
        let _ = tokio::time::timeout(ASK_TIME, settled).await;
    }
    session.is_taken()
}

/// Ends a session that another server has now.
pub(super) async fn end(session: &Session) {
    session.take_over();
    session.destroy(Fate::Removed).await;
    if let Some(asleep) = session.stored() {
        asleep.leave();
    }
    if let Kind::Kept { opened, .. } = &session.kind {
        opened.let_go().await;
    }
}

/// The right to a session that is awake here.
pub(super) fn standing(app: &App, session: &Session) -> Standing {
    match (&app.suspension, session.lease()) {
        (Some(suspension), Some(server)) => suspension.states().standing(server),
        _ => Standing::Held, // no server knows of it but this one
    }
}

/// Looks for a session in the store that this server does not know of, because another one stored it. Returns true if this server knows of
/// the session now, and looks nowhere else than in a store that servers share.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn look_up(app: &App, account: &Account, id: &str) -> Result<bool, ApiError> {
    let Some(suspension) = app.suspension.as_ref().filter(|suspension| suspension.is_shared()) else {
        return Ok(false);
    };
    if app.sessions.of(&account.owner, id).is_err()
        && let Some(asleep) = suspension.find(account, id).await?
    {
        app.sessions.add_found(asleep);
    }
    Ok(app.sessions.of(&account.owner, id).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_knows_many_sessions_looks_less_often() {
        assert_eq!(look_pause(0), LOOK);
        assert_eq!(look_pause(3_000), LOOK);
        assert_eq!(look_pause(10_000), Duration::from_secs(1_000));
    }
}
