//! Suspension: sessions that nobody uses are written to the store, and their guests end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use sandglass_core::Error;
use sandglass_host::Sandbox;
use sandglass_host::sandbox::{Files, Suspended};
use sandglass_states::{Head, Lost, Saved, SavedFile};
use serde_json::json;

use super::App;
use super::bodies::off_the_workers;
use super::create::capabilities;
use super::errors::ApiError;
use super::quotas::{Account, Held};
use super::sessions::{Kind, Known, Session, Sessions};
use super::storage::Fate;
use super::suspension::{Asleep, Recipe, Stored, Suspension, now_ms, session_id, unreadable};

/// The shortest and the longest interval between two searches for sessions to suspend.
const SWEEP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The shortest interval between two collections of objects.
const COLLECT: Duration = Duration::from_secs(60);
/// Sessions that are suspended at once. Each needs a processor for a moment.
const AT_ONCE: usize = 4;
/// The most files and folders that go along with a session.
const MOST_FILES: usize = 2_000;
/// The time in which a guest has to hand its state over. Hostile code could take longer, and others wait for their turn.
const WRITE_TIME: Duration = Duration::from_secs(30);
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
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = app.ending.cancelled() => return,
        }
        // Not to be cut short: what is written last has to be the newest.
        suspend_idle(&app, suspension.after).await;
        let old = app
            .sessions
            .asleep()
            .into_iter()
            .filter(|asleep| asleep.age() >= suspension.forget_after);
        for asleep in old {
            tracing::info!(session = asleep.id, owner = %asleep.owner, "expired while it was suspended");
            app.metrics.sessions_expired.inc();
            if let Err(error) = forget(&app, &asleep.id).await {
                tracing::error!(session = asleep.id, why = error.message, "not removed");
            }
        }
        if collected.is_none_or(|at: Instant| at.elapsed() >= COLLECT) {
            let app = app.clone();
            let _ = off_the_workers(move || app.suspension.as_ref().map(Suspension::collect)).await;
            collected = Some(Instant::now());
        }
    }
}

/// Suspends the sessions that have been unused for so long.
pub(super) async fn suspend_idle(app: &App, idle: Duration) {
    stream::iter(app.sessions.may_sleep(idle))
        .for_each_concurrent(AT_ONCE, |id| async move { suspend(app, &id, Some(idle)).await })
        .await;
}

/// Suspends the sessions that are in use as well. Their code is interrupted.
pub(super) async fn suspend_used(app: &App) {
    let used = app
        .sessions
        .awake()
        .into_iter()
        .filter(|session| session.recipe().is_some());
    stream::iter(used)
        .for_each_concurrent(AT_ONCE, |session| async move {
            if let Kind::Sandbox(sandbox) = &session.kind {
                sandbox.interrupt();
            }
            suspend(app, &session.id, None).await;
        })
        .await;
}

/// Suspends a session, unless it is used again. With `idle`, it has to be unused for so long.
async fn suspend(app: &App, id: &str, idle: Option<Duration>) {
    let Some(suspension) = &app.suspension else { return };
    let Some((session, moving)) = Sessions::begin_to_suspend(app, id, idle) else {
        return;
    };
    let began = Instant::now();
    let written = match (&session.kind, session.recipe()) {
        (Kind::Sandbox(sandbox), Some(recipe)) => write(app, suspension, &session, sandbox, recipe).await,
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
        Err(why) => {
            let (word, why, pause) = match why {
                Vain::State(why) => ("state", why, STATE_PAUSE),
                Vain::Store(why) => ("store", why, STORE_PAUSE),
            };
            app.metrics.suspension(word);
            tracing::warn!(session = session.id, owner = %session.owner, why, "not suspended: it goes on");
            session.put_off(pause);
            moving.end_in_vain(Ok(()));
        }
    }
}

/// Writes the state of a session. Nobody uses the session meanwhile.
async fn write(
    app: &App,
    suspension: &Suspension,
    session: &Session,
    sandbox: &Sandbox,
    recipe: &Recipe,
) -> Result<Arc<Asleep>, Vain> {
    let most = suspension.most_bytes;
    let saved = tokio::time::timeout(WRITE_TIME, captured(sandbox, recipe, most)).await;
    let saved = saved.map_err(|_| Vain::State(format!("it took more than {} s", WRITE_TIME.as_secs())))??;
    let (execution, bytes) = (saved.execution, saved.bytes());
    let account = app.quotas.account(&session.owner);
    let account = account.ok_or_else(|| Vain::Store("the key is gone".to_owned()))?;
    let held = place(&account, session, bytes)?;
    let about = json!({ "backend": session.backend(), "capabilities": capabilities(session) });
    let (tenant, id) = (suspension.tenant(&session.owner)?, session_id(&session.id)?);
    let kept = about.clone();
    let written = off_the_workers(move || {
        let written = tenant.write_about(id, &saved, kept);
        if written.is_err() {
            // It may be there all the same, and the session goes on.
            let _ = tenant.mark_awake(id);
        }
        written
    });
    if let Err(error) = written.await? {
        if let Some(stored) = session.stored() {
            let held = account.stored_instead(stored.head.bytes, held);
            stored.hold(held.unwrap_or_else(|(_, held)| held));
        }
        return Err(Vain::Store(error.to_string()));
    }
    suspension.has_garbage(&session.owner); // of its earlier state
    let head = Head {
        execution,
        written_ms: now_ms(),
        used_ms: 0,
        bytes,
        awake: false,
        about,
    };
    Ok(Asleep::new(
        session.id.clone(),
        Arc::clone(&session.owner),
        head,
        Some(held),
    ))
}

/// All that is stored of a session, of at most `most` bytes.
pub(super) async fn captured(sandbox: &Sandbox, recipe: &Recipe, most: u64) -> Result<Saved, Vain> {
    let began_ms = sandbox.budget_time().map(|time| as_float(now_ms()) - time);
    let Suspended { state, lost, past } = sandbox.suspend(most).await?;
    let execution = past.execution();
    let (past, bodies) = past.into_parts()?;
    let settings = json!(Stored {
        recipe: recipe.clone(),
        spent: sandbox.spent(),
        budget_began_ms: began_ms,
    });
    let mut saved = Saved {
        execution,
        settings,
        past,
        bodies,
        state: state.into(),
        lost: lost
            .into_iter()
            .map(|lost| Lost {
                name: lost.name,
                reason: lost.reason,
            })
            .collect(),
        ..Saved::default()
    };
    let left = most.checked_sub(saved.bytes()).ok_or_else(|| too_large(most))?;
    add_files(sandbox, &mut saved, left).await?;
    // The names of files and of what is lost count as well.
    match saved.bytes() <= most {
        true => Ok(saved),
        false => Err(too_large(most)),
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

/// Adds the files of the working folder, of at most `left` bytes.
async fn add_files(sandbox: &Sandbox, saved: &mut Saved, left: u64) -> Result<(), Vain> {
    let Files { files, folders, lost } = sandbox.read_files(MOST_FILES, left).await?;
    saved.files = files.into_iter().map(|(path, body)| SavedFile { path, body }).collect();
    saved.folders = folders;
    saved.lost.extend(lost.into_iter().map(|lost| Lost {
        name: lost.name,
        reason: lost.reason,
    }));
    Ok(())
}

fn too_large(most: u64) -> Vain {
    Vain::State(format!(
        "its variables, contexts and files take more than {most} bytes (--max-suspended-mib)"
    ))
}

/// Removes a suspended session with its stored state, unless it is not suspended any more.
///
/// # Errors
/// The stored state cannot be removed. Then the session stays.
pub(super) async fn forget(app: &App, id: &str) -> Result<(), ApiError> {
    let Some((asleep, moving)) = Sessions::begin_to_forget(app, id) else {
        return Ok(());
    };
    match remove(app, &asleep.owner, id).await {
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
        Some(_) => remove(app, &session.owner, &session.id).await,
        None => Ok(()),
    }
}

async fn remove(app: &App, owner: &str, id: &str) -> Result<(), ApiError> {
    let Some(suspension) = &app.suspension else {
        return Ok(());
    };
    let (tenant, session) = (suspension.tenant(owner)?, session_id(id)?);
    let removed = off_the_workers(move || tenant.remove(session)).await?;
    removed.map_err(|error| unreadable(id, &error))?;
    suspension.has_garbage(owner);
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn as_float(number: u64) -> f64 {
    number as f64
}
