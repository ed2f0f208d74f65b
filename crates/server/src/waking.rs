//! The return of suspended sessions, when they are used.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use sandglass_core::Error;
use sandglass_host::Sandbox;
use sandglass_host::sandbox::{Files, Suspended};
use sandglass_rpc::options::Options;
use sandglass_states::{Standing, StateError};

use super::App;
use super::bodies::off_the_workers;
use super::create::{Prepared, bounds, prepare, watch};
use super::errors::{ApiError, NO_SESSION};
use super::kept_sessions;
use super::quotas::Account;
use super::sessions::{InUse, Kind, Known, Move, Session, Sessions, Target};
use super::sharing;
use super::storage::Fate;
use super::stored::unpack;
use super::suspension::{Asleep, Recipe, Suspension, session_id, unreadable, unsure};

/// A session of this key, in use. A suspended session is woken first.
///
/// # Errors
/// 404: no session has this id, or it belongs to another key. Otherwise the reason why the session cannot be woken; it stays suspended.
pub async fn awake(app: &App, account: &Arc<Account>, id: &str) -> Result<(Arc<Session>, InUse), ApiError> {
    loop {
        let target = Sessions::to_use(app, &account.owner, id);
        // It may be let go at any moment, because another server has it.
        let is_unknown = target.is_err();
        if is_unknown && (sharing::look_up(app, account, id).await? || kept_sessions::reopen(app, account, id).await?) {
            continue;
        }
        match target? {
            Target::Awake(session, in_use) => match sharing::standing(app, &session) {
                Standing::Held => return Ok((session, in_use)),
                Standing::Unsure => return Err(unsure(id)),
                Standing::Lost => {
                    drop(in_use);
                    sharing::settle(app, id).await?;
                }
            },
            Target::Moving(settled) => settled.wait().await?,
            Target::Asleep(asleep, moving) => {
                let settled = moving.settled();
                // Others may wait as well, so this goes on when the client leaves.
                tokio::spawn(wake(app.clone(), Arc::clone(account), asleep, moving));
                settled.wait().await?;
            }
        }
    }
}

async fn wake(app: App, account: Arc<Account>, asleep: Arc<Asleep>, moving: Move) {
    let began = Instant::now();
    match revived(&app, &account, &asleep).await {
        Ok(session) => {
            app.metrics.wake("ok", began.elapsed());
            tracing::info!(session = session.id, owner = %session.owner, ms = began.elapsed().as_secs_f64() * 1_000.0, "woken");
            watch(&app, &session);
            if !moving.end(Some(Known::Awake(Arc::clone(&session))), Ok(())) {
                session.destroy(Fate::Kept).await; // the server has shut down
            }
        }
        Err(error) => {
            app.metrics.wake(error.code, began.elapsed());
            tracing::warn!(session = asleep.id, owner = %asleep.owner, code = error.code, why = error.message, "not woken");
            if error.code == NO_SESSION {
                moving.end(None, Err(error)); // another server has removed it
            } else {
                moving.end_in_vain(Err(error));
            }
        }
    }
}

/// Makes a session of a stored state.
async fn revived(app: &App, account: &Account, asleep: &Arc<Asleep>) -> Result<Arc<Session>, ApiError> {
    let _open = account.open_state().await;
    if app.ending.is_cancelled() {
        return Err(ApiError::shutting_down());
    }
    let suspension = app.suspension.as_ref();
    let suspension = suspension.ok_or_else(|| ApiError::internal("there is no store of states; this is a bug"))?;
    let place = account.session()?;
    let (bytes, recipe, suspended) = read(suspension, asleep).await?;
    let options = Options::read(recipe.0.clone(), &bounds(app)).map_err(|error| {
        refused(
            asleep,
            format!("this server does not allow its settings any more: {error}"),
        )
    })?;
    // Files on disk outlive a server that was killed, and are newer than the stored ones. They must outlive a wake that fails as well.
    let fate = if asleep.is_left() { Fate::Kept } else { Fate::Removed };
    let prepared = prepare(app, &account.owner, asleep.id.clone(), &options, fate).await?;
    let builder = prepared.builder(app, &options);
    let sandbox = suspended.begin(builder).build().await?;
    let opened = open(asleep, &prepared, &sandbox, suspended, bytes).await;
    let opened = match opened {
        Ok(()) => suspension.mark_awake(asleep).await,
        Err(error) => Err(error),
    };
    let kind = Kind::Sandbox(sandbox);
    let session = prepared.session(&account.owner, kind, place, (Some(recipe), Some(Arc::clone(asleep))));
    match opened {
        Ok(()) => Ok(session),
        Err(error) => {
            session.destroy(fate).await;
            Err(error)
        }
    }
}

/// Reads the stored state: the most bytes that it may have, the options from which the session is made, and the state.
async fn read(suspension: &Suspension, asleep: &Asleep) -> Result<(u64, Recipe, Suspended), ApiError> {
    let (tenant, id) = (suspension.tenant(&asleep.owner)?, session_id(&asleep.id)?);
    let allowed = suspension.most_bytes;
    let found = off_the_workers(move || {
        let Some((head, saved)) = tenant.take_up(id, allowed)? else {
            return Ok(None);
        };
        // An earlier server may have allowed more.
        let most = head.bytes.max(allowed);
        let (recipe, suspended) = unpack(saved).map_err(StateError::Damaged)?;
        Ok(Some((head, most, recipe, suspended)))
    });
    let found = found.await?.map_err(|error| unreadable(&asleep.id, &error))?;
    let Some((head, most, recipe, mut suspended)) = found else {
        return Err(match suspension.is_shared() {
            true => ApiError::no_session(&asleep.id),
            false => unreadable(&asleep.id, &StateError::Damaged("its file is missing".to_owned())),
        });
    };
    asleep.is_read_again(&head);
    if asleep.is_left() {
        // It was awake once more, and ended without being suspended again.
        suspended.past.is_returned_to();
    }
    Ok((most, recipe, suspended))
}

/// Gives a fresh guest the files and the variables.
async fn open(
    asleep: &Asleep,
    prepared: &Prepared,
    sandbox: &Sandbox,
    mut suspended: Suspended,
    most: u64,
) -> Result<(), ApiError> {
    if let Some(folder) = prepared.folder().filter(|_| asleep.is_left())
        && folder.has_files().await?
    {
        suspended.files = Files::default(); // those on disk are newer
    }
    match sandbox.take_up(&suspended, most).await {
        Err(error @ Error::InvalidOption { .. }) => {
            Err(refused(asleep, format!("its variables cannot be opened: {error}")))
        }
        taken => Ok(taken.map(drop)?), // the next execution tells what is missing
    }
}

fn refused(asleep: &Asleep, why: String) -> ApiError {
    let message = format!(
        "session {} is suspended, and cannot be woken: {why}; it stays suspended",
        asleep.id
    );
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "state_unusable", message)
}
