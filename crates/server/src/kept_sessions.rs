//! Sessions over HTTP with `"persist": true`: their sandboxes are kept, so that executions outlive the server.
//!
//! Such a session is opened when it is used, and closed when nobody uses it. Then it has no guest, and nothing is lost when the server ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures_util::future::join_all;
use sandglass_core::Error;
use sandglass_host::Value;
use sandglass_host::kept::Kept;
use sandglass_rpc::options::Options;
use serde_json::json;

use super::App;
use super::attempt::{Attempt, TOO_SLOW};
use super::create::{add, bounds, kept_builder};
use super::errors::ApiError;
use super::kept::{About, KeptSandboxes, KeptSession, Opened};
use super::quotas::{Account, Held};
use super::sessions::{Kind, Known, Session, Sessions};
use super::storage::{Fate, new_id};
use super::suspension::{Recipe, Suspension, elsewhere};

/// The longest settings of a session, in bytes of JSON. Each state has them in its small file.
const MOST_RECIPE_BYTES: usize = 64 << 10;
/// The pause after an attempt to write a state that failed.
const PAUSE: Duration = Duration::from_secs(60);

/// The error for a session whose sandbox is not kept.
pub(super) fn not_kept(what: &str) -> ApiError {
    let problem = "no execution is pending: the session was created without \"persist\"; nothing was done";
    ApiError::option(what, problem)
}

/// Makes a session. It is kept when this returns. After an error, or if the client leaves before, nothing of it is.
///
/// # Errors
/// The server cannot keep such a session, or the key may have no more.
pub(super) async fn make(
    app: &App,
    account: &Arc<Account>,
    options: Options,
    place: Held,
    (context, recipe): (Value, Recipe),
) -> Result<Arc<Session>, ApiError> {
    let refused = |why: &str| Err(ApiError::option("persist", why));
    if app.storage.is_some() {
        return refused(
            "files of --workspace-dir cannot be given back as they were before an execution; leave the option out",
        );
    }
    if serde_json::to_string(&recipe.0).map_or(true, |json| json.len() > MOST_RECIPE_BYTES) {
        return refused("the options of such a session may have 64 KiB of JSON; leave long lists out");
    }
    let id = new_id(app.home())?;
    let options = options.persisting(id.clone())?;
    let (opened, unmade) = KeptSandboxes::begin(app, account, &id)?;
    let (session, kept) = session(app, account, (id, &options, recipe), opened, place).await?;
    let begun = async {
        kept.sandbox().await?.initialize(context).await?;
        kept.save().await
    };
    if let Err(error) = begun.await {
        session.destroy(Fate::Removed).await;
        return Err(error.into());
    }
    let session = add(app, session).await?;
    unmade.keep();
    Ok(session)
}

/// The session of a place.
async fn session(
    app: &App,
    account: &Account,
    (id, options, recipe): (String, &Options, Recipe),
    opened: Opened,
    place: Held,
) -> Result<(Arc<Session>, Arc<Kept>), Error> {
    let kept = Kept::open(kept_builder(app, options), opened.place()).await?;
    opened.is_about(About {
        recipe: recipe.clone(),
        backend: kept.capabilities().backend.to_string(),
        capabilities: json!(kept.capabilities()),
    });
    let kind = Kind::Kept {
        kept: Arc::clone(&kept),
        opened,
        recipe: Some(recipe),
    };
    let owner = Arc::clone(&account.owner);
    let session = Session::new(id, owner, kind, None, place, (None, None));
    Ok((session, kept))
}

/// Opens a session that is closed. Returns false if there is none.
///
/// # Errors
/// Its state cannot be read, this server does not allow its settings, or the key has too many sessions.
pub(super) async fn reopen(app: &App, account: &Arc<Account>, id: &str) -> Result<bool, ApiError> {
    let Some(closed) = KeptSandboxes::find(app, account, id).await? else {
        return Ok(false);
    };
    let _turn = closed.turn().await;
    if app.sessions.of(&account.owner, id).is_ok() {
        return Ok(true); // another request was quicker
    }
    if closed.is_gone() {
        return Ok(false);
    }
    if app.ending.is_cancelled() {
        return Err(ApiError::shutting_down());
    }
    let began = Instant::now();
    let place = account.session()?;
    let recipe = closed.about.recipe.clone();
    let options = Options::read(recipe.0.clone(), &bounds(app));
    let options = options
        .and_then(|options| options.persisting(id.to_owned()))
        .map_err(|error| {
            let message =
                format!("this server does not allow the settings of session {id} any more: {error}; its state is kept");
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "state_unusable", message)
        })?;
    let opened = closed.open(app, &account.owner).await?;
    let settings = (id.to_owned(), &options, recipe);
    let (session, kept) = session(app, account, settings, opened, place)
        .await
        .map_err(|error| match error {
            // Another server was quicker. If it tells its address, the next attempt is forwarded there.
            Error::PersistInUse(_) if is_shared(app) => elsewhere(id),
            error => error.into(),
        })?;
    if kept.is_new() {
        session.destroy(Fate::Removed).await; // another server has removed it just now
        return Ok(false);
    }
    app.sessions.add(session).await?;
    app.metrics.wake("ok", began.elapsed());
    tracing::info!(session = id, owner = %account.owner, "opened");
    Ok(true)
}

/// Closes the sessions that nobody has used for so long, after their states are written.
pub(super) async fn close_idle(app: &App, idle: Duration) {
    let idle_ones = app.sessions.may_close(idle);
    join_all(idle_ones.iter().map(|session| close(app, &session.id, idle))).await;
}

fn is_shared(app: &App) -> bool {
    app.suspension.as_ref().is_some_and(Suspension::is_shared)
}

/// Closes a session now if nobody uses it, so that any server may have it. This goes on if nobody waits for it any more.
pub(super) async fn close_unused(app: &App, session: &Session) {
    let (app, id) = (app.clone(), session.id.clone());
    let _ = tokio::spawn(async move { close(&app, &id, Duration::ZERO).await }).await;
}

/// Closes a session, unless it is used again.
async fn close(app: &App, id: &str, idle: Duration) {
    let Some((session, moving)) = Sessions::begin_to_end(app, id, idle) else {
        return;
    };
    let saved = match &session.kind {
        Kind::Kept { kept, .. } => saved(app, kept, Attempt::First).await,
        _ => return moving.end_in_vain(Ok(())),
    };
    match saved {
        Ok(()) => {
            session.destroy(Fate::Kept).await;
            if let Kind::Kept { opened, .. } = &session.kind {
                opened.freed().await;
            }
            app.metrics.suspension("ok");
            tracing::info!(session = id, owner = %session.owner, "closed");
            moving.end(None, Ok(()));
        }
        Err(error) => {
            app.metrics.suspension("state");
            tracing::warn!(session = id, owner = %session.owner, why = error, "not closed: it stays open, and is tried again later");
            session.put_off(PAUSE);
            moving.end_in_vain(Ok(()));
        }
    }
}

/// Saves a sandbox, in the time of this attempt.
async fn saved(app: &App, kept: &Kept, attempt: Attempt) -> Result<(), String> {
    tokio::select! {
        saved = kept.save() => saved.map_err(|error| error.to_string()),
        () = attempt.over(app) => Err(TOO_SLOW.to_owned()),
    }
}

/// Saves the sessions that are open, when the server ends. What waits never runs. An execution that runs goes on, and is left pending.
pub(super) async fn save_used(app: &App) {
    let save = async |session: Arc<Session>| {
        let Kind::Kept {
            kept, recipe: Some(_), ..
        } = &session.kind
        else {
            return;
        };
        session.leave();
        let Some(_last) = session.last_turn_now() else { return };
        if let Err(why) = saved(app, kept, Attempt::Last).await {
            tracing::warn!(session = session.id, owner = %session.owner, why, "changes since its last execution are lost");
        }
    };
    join_all(app.sessions.awake().into_iter().map(save)).await;
}

/// Removes a session with what is kept of it.
///
/// # Errors
/// It cannot be removed.
pub(super) async fn remove(app: &App, account: &Account, closed: KeptSession) -> Result<(), ApiError> {
    let _turn = closed.turn().await;
    loop {
        match app.sessions.of(&account.owner, &closed.id) {
            Ok((_, Some(settled))) => drop(settled.wait().await),
            Ok((Known::Awake(_), None)) => app.sessions.remove(&closed.id, Fate::Removed).await,
            Ok((Known::Asleep(_), None)) | Err(_) => break,
        }
    }
    closed.remove(app, &account.owner).await
}
