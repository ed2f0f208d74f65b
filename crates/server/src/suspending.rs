//! Suspension: sessions that nobody uses are written to the store, and their guests end.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::{Stream, StreamExt, stream};
use sandglass_core::Error;
use sandglass_host::Sandbox;
use sandglass_states::{Head, Saved, Standing, StateError};
use serde_json::json;
use tokio::sync::SemaphorePermit;
use tokio::task::JoinSet;

use super::App;
use super::attempt::{Attempt, TOO_SLOW};
use super::bodies::off_the_workers;
use super::create::capabilities;
use super::errors::ApiError;
use super::kept::KeptSandboxes;
use super::kept_sessions;
use super::quotas::{Account, Held};
use super::sessions::{Kind, Known, Session, Sessions};
use super::settings::MIB;
use super::sharing;
use super::storage::Fate;
use super::stored::pack;
use super::suspension::{Asleep, Recipe, Suspension, now_ms, session_id};

/// The shortest and the longest interval between two searches for sessions to suspend.
const SWEEP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The shortest interval between two collections of objects.
const COLLECT: Duration = Duration::from_secs(60);
/// Sessions of one owner that are suspended at once.
const AT_ONCE_OF_OWNER: usize = 2;
/// The time after which a guest that still writes its state leaves its turn to others.
const TURN_TIME: Duration = Duration::from_secs(1);
/// The pause after an attempt that the store refused. One that the state made vain is not repeated before the next use.
const STORE_PAUSE: Duration = Duration::from_secs(60);
const STATE_PAUSE: Duration = Duration::from_secs(1 << 30);

/// The reason for which a session was not suspended.
#[derive(Debug)]
pub(super) enum Vain {
    /// The guest's state cannot be written.
    State(String),
    /// The store cannot take it now, or the key may store no more.
    Store(String),
    /// Another server has the session.
    Taken,
}

impl Vain {
    /// The guest took too long.
    fn too_slow() -> Self {
        Self::State(TOO_SLOW.to_owned())
    }
}

impl From<Error> for Vain {
    fn from(error: Error) -> Self {
        Self::State(error.to_string())
    }
}

impl From<ApiError> for Vain {
    fn from(error: ApiError) -> Self {
        Self::Store(error.message)
    }
}

/// Suspends sessions that are unused for so long, and forgets those that nobody has woken for long. Ends with the server.
pub(super) async fn run(app: App) {
    let Some(suspension) = &app.suspension else { return };
    let pause = (suspension.after / 4).clamp(SWEEP.0, SWEEP.1);
    let mut collected = None;
    // Each owner has a sweep of its own, so that the guests of one stall no other's.
    let mut sweeps: JoinSet<Arc<str>> = JoinSet::new();
    let mut closes: JoinSet<()> = JoinSet::new();
    let mut swept: HashSet<Arc<str>> = HashSet::new();
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = app.ending.cancelled() => break,
        }
        while let Some(ended) = sweeps.try_join_next() {
            match ended {
                Ok(owner) => drop(swept.remove(&owner)),
                Err(_) => swept.clear(), // it panicked, and nobody knows whose it was
            }
        }
        for (owner, sessions) in by_owner(app.sessions.may_sleep(suspension.after)) {
            if swept.insert(Arc::clone(&owner)) {
                let (app, after) = (app.clone(), suspension.after);
                sweeps.spawn(async move {
                    let sessions = stream::iter(sessions).take_until(app.ending.cancelled());
                    suspend_all(&app, sessions, Some(after), Attempt::First).await;
                    owner
                });
            }
        }
        while closes.try_join_next().is_some() {}
        let (own, after) = (app.clone(), suspension.after);
        closes.spawn(async move { kept_sessions::close_idle(&own, after).await });
        forget_old(&app, suspension.forget_after).await;
        KeptSandboxes::forget_old(&app, suspension.forget_after).await;
        if collected.is_none_or(|at: Instant| at.elapsed() >= COLLECT) {
            let app = app.clone();
            let collect = move || {
                if let Some(suspension) = &app.suspension {
                    suspension.collect(|| !app.ending.is_cancelled());
                }
            };
            let _ = off_the_workers(collect).await;
            collected = Some(Instant::now());
        }
    }
    // Not to be cut short: what is written last has to be the newest.
    while sweeps.join_next().await.is_some() {}
    while closes.join_next().await.is_some() {}
}

async fn forget_old(app: &App, most: Duration) {
    let old = app.sessions.asleep().into_iter().filter(|asleep| asleep.age() >= most);
    for asleep in old {
        tracing::info!(session = asleep.id, owner = %asleep.owner, "expired while it was suspended");
        app.metrics.sessions_expired.inc();
        if let Err(error) = forget(app, &asleep.id, Unused::Only).await {
            tracing::error!(session = asleep.id, why = error.message, "not removed");
        }
    }
}

/// Suspends the sessions that have been unused for so long.
pub(super) async fn suspend_idle(app: &App, idle: Duration) {
    let owners = by_owner(app.sessions.may_sleep(idle)).into_values();
    let sleep = join_all(owners.map(|sessions| suspend_all(app, stream::iter(sessions), Some(idle), Attempt::First)));
    tokio::join!(sleep, kept_sessions::close_idle(app, idle));
}

/// Suspends the sessions that are in use as well: their code is interrupted, and what waits never runs. Then those that took too long before.
/// Kept ones are saved instead, and their code is not interrupted.
pub(super) async fn suspend_used(app: &App) {
    let mut all = app.sessions.awake();
    all.retain(|session| session.recipe().is_some());
    for session in &all {
        session.leave();
    }
    let owners = by_owner(all).into_values().map(async |sessions| {
        let (used, slow): (Vec<_>, _) = sessions.into_iter().partition(|session| session.idle_for().is_none());
        suspend_all(app, stream::iter(used), None, Attempt::First).await;
        suspend_all(app, stream::iter(slow), None, Attempt::Last).await;
    });
    tokio::join!(join_all(owners), kept_sessions::save_used(app));
}

/// Suspends a session now if nobody uses it. This goes on if nobody waits for it any more.
pub(super) async fn suspend_unused(app: &App, session: &Arc<Session>) {
    let (app, session) = (app.clone(), Arc::clone(session));
    let suspending = async move { suspend(&app, &session, Some(Duration::ZERO), Attempt::First).await };
    let _ = tokio::spawn(suspending).await;
}

fn by_owner(sessions: Vec<Arc<Session>>) -> HashMap<Arc<str>, Vec<Arc<Session>>> {
    let mut owners: HashMap<_, Vec<_>> = HashMap::new();
    for session in sessions {
        owners.entry(Arc::clone(&session.owner)).or_default().push(session);
    }
    owners
}

/// Suspends sessions of one owner. A suspension that has begun goes on if nobody waits for it any more: cut short, it could leave a state in
/// the store that others may take, and the session awake here.
async fn suspend_all(app: &App, sessions: impl Stream<Item = Arc<Session>>, idle: Option<Duration>, attempt: Attempt) {
    sessions
        .for_each_concurrent(AT_ONCE_OF_OWNER, |session| {
            let app = app.clone();
            async move {
                let suspending = tokio::spawn(async move { suspend(&app, &session, idle, attempt).await });
                let _ = suspending.await;
            }
        })
        .await;
}

/// Suspends a session, unless it is used again. With `idle`, it has to be unused for so long.
async fn suspend(app: &App, session: &Session, idle: Option<Duration>, attempt: Attempt) {
    let Some(suspension) = &app.suspension else { return };
    let _last = match idle {
        Some(_) => None,
        None => Some(session.last_turn().await),
    };
    let turn = suspension.turn().await;
    let Some((session, moving)) = Sessions::begin_to_suspend(app, &session.id, idle) else {
        return;
    };
    let began = Instant::now();
    let written = match (&session.kind, session.recipe()) {
        (Kind::Sandbox(sandbox), Some(recipe)) => match has_it(app, &session).await {
            Ok(()) => {
                let capturing = captured(sandbox, recipe, suspension.most_bytes);
                write(app, suspension, &session, capturing, (turn, attempt)).await
            }
            Err(why) => Err(why),
        },
        _ => return moving.end_in_vain(Ok(())),
    };
    match written {
        Ok(asleep) => {
            // The files are stored, so the folder goes.
            session.destroy(Fate::Removed).await;
            app.metrics.suspension("ok");
            let ms = began.elapsed().as_secs_f64() * 1_000.0;
            tracing::info!(session = session.id, owner = %session.owner, bytes = asleep.head.bytes, ms, "suspended");
            moving.end(Some(Known::Asleep(asleep)), Ok(()));
        }
        Err(Vain::Taken) => {
            app.metrics.suspension("taken");
            tracing::error!(session = session.id, owner = %session.owner, "another server has taken it over: it ends here");
            sharing::end(&session).await;
            moving.end(session.stored().map(Known::Asleep), Ok(()));
        }
        Err(why) => {
            let (word, why, pause) = match why {
                Vain::State(why) => ("state", why, STATE_PAUSE),
                Vain::Store(why) => ("store", why, STORE_PAUSE),
                Vain::Taken => return,
            };
            app.metrics.suspension(word);
            tracing::warn!(session = session.id, owner = %session.owner, why, "not suspended: it goes on");
            session.put_off(pause);
            moving.end_in_vain(Ok(()));
        }
    }
}

/// Refuses a session that another server has had. That can be after a first write that was not confirmed, and when the lease is over.
async fn has_it(app: &App, session: &Session) -> Result<(), Vain> {
    let is_unconfirmed = session.stored().is_none() && session.lease().is_some();
    if (is_unconfirmed || sharing::standing(app, session) == Standing::Lost)
        && !sharing::take_again(app, session).await?
    {
        return Err(Vain::Taken);
    }
    Ok(())
}

/// Writes the state of a session. Nobody uses the session meanwhile.
async fn write(
    app: &App,
    suspension: &Suspension,
    session: &Session,
    capturing: impl Future<Output = Result<Saved, Vain>>,
    (mut turn, attempt): (Option<SemaphorePermit<'_>>, Attempt),
) -> Result<Arc<Asleep>, Vain> {
    let capturing = async {
        let mut capturing = pin!(capturing);
        match tokio::time::timeout(TURN_TIME, &mut capturing).await {
            Ok(saved) => saved,
            Err(_) => {
                turn = None; // the guest may never answer, and others wait
                capturing.await
            }
        }
    };
    let saved = tokio::select! {
        saved = capturing => saved?,
        () = attempt.over(app) => return Err(Vain::too_slow()),
    };
    let (execution, bytes) = (saved.execution, saved.bytes());
    let account = app.quotas.account(&session.owner);
    let account = account.ok_or_else(|| Vain::Store("the key is gone".to_owned()))?;
    let held = place(&account, session, bytes)?;
    let about = json!({ "backend": session.backend(), "capabilities": capabilities(session) });
    let (tenant, id) = (suspension.tenant(&session.owner)?, session_id(&session.id)?);
    let kept = about.clone();
    let written = off_the_workers(move || {
        let server = tenant.server();
        tenant.write_about(id, &saved, kept).map_err(|error| {
            if !matches!(error, StateError::Taken) {
                // It may be there all the same, and the session goes on.
                let _ = tenant.mark_awake(id);
            }
            (error, server)
        })
    });
    if let Err((error, server)) = written.await? {
        if suspension.is_shared() && session.lease().is_none() {
            session.is_under(server); // other servers may know of it now
        }
        if let Some(stored) = session.stored() {
            let held = account.stored_instead(stored.head.bytes, held);
            stored.hold(held.unwrap_or_else(|(_, held)| held));
        }
        return Err(match error {
            StateError::Taken => Vain::Taken,
            error => Vain::Store(error.to_string()),
        });
    }
    suspension.has_garbage(&session.owner); // of its earlier state
    let head = Head {
        execution,
        written_ms: now_ms(),
        used_ms: 0,
        bytes,
        ended_bytes: 0,
        awake: false,
        about,
    };
    Ok(Asleep::written(
        session.id.clone(),
        Arc::clone(&session.owner),
        head,
        held,
    ))
}

/// All that is stored of a session, of at most `most` bytes.
async fn captured(sandbox: &Sandbox, recipe: &Recipe, most: u64) -> Result<Saved, Vain> {
    let suspended = sandbox.suspend(most).await;
    let suspended =
        suspended.map_err(|error| Vain::State(format!("{error} (--max-suspended-mib is {})", most / MIB)))?;
    let saved = pack(suspended, recipe)?;
    // The names of files and of what is lost count as well.
    match saved.bytes() <= most {
        true => Ok(saved),
        false => Err(Vain::State(format!(
            "it takes {} bytes with the names of files (--max-suspended-mib is {})",
            saved.bytes(),
            most / MIB
        ))),
    }
}

/// The place of a stored state in its key's quota. The session's earlier state gives its own up, but keeps it if the new state does not fit.
fn place(account: &Account, session: &Session, bytes: u64) -> Result<Held, Vain> {
    let Some(earlier) = session.stored() else {
        return Ok(account.stored(bytes)?);
    };
    let Some(held) = earlier.take_held() else {
        return Ok(account.stored(bytes)?);
    };
    account.stored_instead(bytes, held).map_err(|(full, held)| {
        earlier.hold(held);
        full.into()
    })
}

/// The sessions that are to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unused {
    /// Only those that no other server has used since this one heard of them.
    Only,
    /// All.
    OrUsed,
}

/// Removes a suspended session with its stored state, unless it is not suspended any more.
///
/// # Errors
/// The stored state cannot be removed. Then the session stays.
pub(super) async fn forget(app: &App, id: &str, unused: Unused) -> Result<(), ApiError> {
    let Some((asleep, moving)) = Sessions::begin_to_forget(app, id) else {
        return Ok(());
    };
    let Some(suspension) = &app.suspension else {
        return Ok(());
    };
    let used_ms = (unused == Unused::Only).then(|| asleep.used_ms());
    match suspension.remove(&asleep.owner, id, used_ms).await {
        // Or another server has used it. Whoever asks for it here finds it again.
        Ok(()) => {
            moving.end(None, Ok(()));
            Ok(())
        }
        Err(error) => {
            moving.end_in_vain(Ok(()));
            Err(error)
        }
    }
}

/// Removes the stored state of a session that is awake, if it has one.
///
/// # Errors
/// The stored state cannot be removed.
pub(super) async fn forget_stored(app: &App, session: &Session) -> Result<(), ApiError> {
    match session.recipe() {
        // An attempt that failed may have left one as well.
        Some(_) => match &app.suspension {
            Some(suspension) => suspension.remove(&session.owner, &session.id, None).await,
            None => Ok(()),
        },
        None => Ok(()),
    }
}
