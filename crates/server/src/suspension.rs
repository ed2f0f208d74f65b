//! The stored states of suspended sessions: where they are, and whose.
//!
//! | module | does |
//! |---|---|
//! | this one | knows what is in the store |
//! | `look_ups` | bounds the requests that ask the store at once |
//! | `kept` | knows the kept sandboxes |
//! | `places` | opens the store that the settings name |
//! | `sharing` | keeps this server's lease on a store that others use, too |
//! | `stored` | turns a session's state into what the store has, and back |
//! | `suspending` | writes sessions that nobody uses, and ends their guests |
//! | `waking` | brings a suspended session back when it is used |
//!
//! Decisions: `docs/internals/server.md`.

mod look_ups;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use sandglass_host::args::Secrets;
use sandglass_states::{Found, Head, Holder, Living, ServerId, SessionId, StateError, States, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::bodies::off_the_workers;
use super::errors::ApiError;
use super::places::{self, Opened};
use super::quotas::{Account, Held};
use super::settings::{MIB, ServeArgs};
use look_ups::LookUps;

/// The code of the error for a state that is damaged.
pub(super) const STATE_DAMAGED: &str = "state_damaged";
/// Guests that write their states at once, of all owners. Each needs a processor for a moment.
const AT_ONCE: usize = 4;
/// The age from which objects are collected that nobody needs.
const COLLECTED_AGE: Duration = Duration::from_secs(60);
/// The same in a store that others use. A request of a server that counts as ended may still arrive there.
const COLLECTED_AGE_SHARED: Duration = Duration::from_secs(3600);
/// The interval between two collections there, whether or not this server has left garbage: others wake its sessions as well. Each reads the
/// small files of all sessions, on each server. So there is a bound of the sessions that are read in a second on average.
const COLLECT_SHARED: Duration = Duration::from_secs(1800);
const COLLECTED_PER_SECOND: u64 = 10;

/// The options with which a client made a session, as it gave them, without the context.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Recipe(pub Map<String, Json>);

/// A suspended session.
#[derive(Debug)]
pub struct Asleep {
    /// The session's id.
    pub id: String,
    /// The session's owner.
    pub owner: Arc<str>,
    /// The facts about its state.
    pub head: Head,
    /// True if this server wrote the state.
    is_written_here: bool,
    /// True if the session went on from this state. Then clients have seen a newer one.
    is_left: AtomicBool,
    /// The time at which the state was last written or used, in milliseconds since 1970.
    used_ms: AtomicU64,
    /// Its place in the quota. `None` if a former server stored more than this one allows.
    held: Mutex<Option<Held>>,
    /// The id of this server under which the session goes on from this state, if it does.
    server: Mutex<Option<ServerId>>,
}

impl Asleep {
    /// A session that was found in the store.
    pub fn found(id: String, owner: Arc<str>, head: Head, held: Option<Held>) -> Arc<Self> {
        Arc::new(Self::new(id, owner, head, held, false))
    }

    /// A session that this server has stored.
    pub fn written(id: String, owner: Arc<str>, head: Head, held: Held) -> Arc<Self> {
        Arc::new(Self::new(id, owner, head, Some(held), true))
    }

    fn new(id: String, owner: Arc<str>, head: Head, held: Option<Held>, is_written_here: bool) -> Self {
        Self {
            id,
            owner,
            is_written_here,
            is_left: AtomicBool::new(head.awake),
            used_ms: AtomicU64::new(head.last_used_ms()),
            head,
            held: Mutex::new(held),
            server: Mutex::default(),
        }
    }

    /// Returns true if this server wrote the state. No other server counts it then, until it has woken the session.
    pub fn is_written_here(&self) -> bool {
        self.is_written_here
    }

    /// Holds the state's place in the quota.
    pub fn hold(&self, held: Held) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
    }

    /// Gives the state's place to a newer state.
    pub fn take_held(&self) -> Option<Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns true if the session went on from this state. Its later executions are undone when it comes back from here.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Acquire)
    }

    /// Notes what the store says now. The facts at the start may have been unreadable.
    pub fn is_read_again(&self, head: &Head) {
        self.is_left.store(head.awake, Ordering::Release);
    }

    /// Notes that the session goes on from this state now.
    pub fn leave(&self) {
        self.used_ms.store(now_ms(), Ordering::Release);
        self.is_left.store(true, Ordering::Release);
    }

    /// The id of this server under which the session goes on from this state, if it does.
    pub fn server(&self) -> Option<ServerId> {
        *self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time of the last use, as far as that is known, in milliseconds since 1970.
    pub fn used_ms(&self) -> u64 {
        self.used_ms.load(Ordering::Acquire)
    }

    /// The time since the session was last used, as far as that is known.
    pub fn age(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.used_ms()))
    }
}

/// The store of suspended sessions.
#[derive(Debug)]
pub struct Suspension {
    states: States,
    place: Opened,
    tenants: HashMap<Arc<str>, Owned>,
    /// The kept sandboxes of each owner. They are tenants of their own, so no session that sleeps has the id of one.
    kept: HashMap<Arc<str>, Owned>,
    /// The time of the next collection in a store that servers share.
    next_collection: Mutex<Instant>,
    /// The turns to have a guest write its state.
    turns: Semaphore,
    /// The time without use after which a session is suspended.
    pub after: Duration,
    /// The age from which a state is removed that nobody wakes.
    pub forget_after: Duration,
    /// The most bytes of a session's state and files.
    pub most_bytes: u64,
}

/// The states of an owner.
#[derive(Debug)]
struct Owned {
    tenant: Arc<Tenant>,
    look_ups: LookUps,
    /// True if there may be objects that nobody needs.
    has_garbage: Arc<AtomicBool>,
    /// The reason for which the last collection failed, so that it is logged once.
    problem: Mutex<Option<String>>,
}

impl Suspension {
    /// Opens the store of the settings; `None` without one. The server listens at `listen`.
    ///
    /// # Errors
    /// The store cannot be used, or the settings contradict each other.
    pub fn open(
        args: &ServeArgs,
        secrets: &Secrets,
        owners: &[Arc<str>],
        listen: SocketAddr,
    ) -> Result<Option<Self>, String> {
        let (suspend, idle) = (&args.suspend, args.session_idle_seconds);
        let Some((states, place)) = places::open(suspend, secrets, listen)? else {
            return Ok(None);
        };
        if matches!(place, Opened::Shared) && args.workspace_dir.is_some() {
            let problem = "--workspace-dir keeps files on this machine, where servers that share --state-url or --cluster miss them: give one of the two";
            return Err(problem.to_owned());
        }
        if suspend.suspend_after >= idle {
            return Err(format!(
                "--suspend-after is {} s, but --session-idle-seconds ends sessions after {idle} s: give a shorter time",
                suspend.suspend_after
            ));
        }
        let look_ups = LookUps::default();
        let owned = |owner: &Arc<str>, tenant: &str| {
            let tenant = Arc::new(states.tenant(tenant).map_err(|error| error.to_string())?);
            let owned = Owned {
                tenant,
                look_ups: look_ups.of_another_owner(),
                has_garbage: Arc::new(AtomicBool::new(true)), // of a server that was killed
                problem: Mutex::default(),
            };
            Ok((Arc::clone(owner), owned))
        };
        let of_sessions = owners.iter().map(|owner| owned(owner, owner));
        let tenants = of_sessions.collect::<Result<_, String>>()?;
        // Names of owners have no slash.
        let of_kept = owners.iter().map(|owner| owned(owner, &format!("{owner}/persist")));
        let kept = of_kept.collect::<Result<_, String>>()?;
        Ok(Some(Self {
            states,
            place,
            tenants,
            kept,
            next_collection: Mutex::new(Instant::now() + COLLECT_SHARED),
            turns: Semaphore::new(AT_ONCE),
            after: Duration::from_secs_f64(suspend.suspend_after),
            forget_after: Duration::from_secs_f64(suspend.forget_after),
            most_bytes: suspend.max_suspended_mib * MIB,
        }))
    }

    /// The suspended sessions of an owner. Those whose facts cannot be read are among them, so that their owner is told.
    ///
    /// # Errors
    /// They cannot be listed.
    pub fn sessions(&self, account: &Account) -> Result<Vec<Arc<Asleep>>, String> {
        let Some(owned) = self.tenants.get(&account.owner) else {
            return Ok(Vec::new());
        };
        let sessions = owned.tenant.sessions().map_err(|error| error.to_string())?;
        let asleep = |(id, head): Found| {
            let head = head.unwrap_or_else(|error| {
                tracing::error!(session = %id, owner = %account.owner, %error, "the state of a suspended session cannot be read");
                // It may be readable later. Until then it counts as left, because nobody knows better.
                Head {
                    written_ms: now_ms(),
                    awake: true,
                    ..Head::default()
                }
            });
            let held = account.found_stored(head.bytes);
            Asleep::found(id.to_string(), Arc::clone(&account.owner), head, held)
        };
        Ok(sessions.into_iter().map(asleep).collect())
    }

    /// The states of an owner.
    ///
    /// # Errors
    /// 500: the server does not know the owner.
    pub fn tenant(&self, owner: &str) -> Result<Arc<Tenant>, ApiError> {
        let owned = self.tenants.get(owner);
        owned
            .map(|owned| Arc::clone(&owned.tenant))
            .ok_or_else(|| ApiError::internal("the key has no stored states; this is a bug"))
    }

    /// The kept sandboxes of an owner, and the flag that some of their objects may not be needed any more. `None` if the server does
    /// not know the owner.
    pub fn kept(&self, owner: &str) -> Option<(Arc<Tenant>, Arc<AtomicBool>)> {
        let owned = self.kept.get(owner)?;
        Some((Arc::clone(&owned.tenant), Arc::clone(&owned.has_garbage)))
    }

    /// Notes that the session goes on, durably. Otherwise a server that is killed would leave an older state that looks like the newest.
    ///
    /// # Errors
    /// The state cannot be read or written.
    pub async fn mark_awake(&self, asleep: &Asleep) -> Result<(), ApiError> {
        let (tenant, id) = (self.tenant(&asleep.owner)?, session_id(&asleep.id)?);
        let marked = off_the_workers(move || tenant.mark_awake(id)).await?;
        let server = marked.map_err(|error| unreadable(&asleep.id, &error))?;
        *asleep.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server);
        asleep.leave();
        Ok(())
    }

    /// Takes a session again that is awake here, and that this server had under this id of a lease that is over. Returns the id under which it
    /// has the session now; `None` if another server has it, or had it since.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub async fn take_again(&self, owner: &str, id: &str, under: ServerId) -> Result<Option<ServerId>, ApiError> {
        let (tenant, session) = (self.tenant(owner)?, session_id(id)?);
        match off_the_workers(move || tenant.take_again(session, under)).await? {
            Ok(server) => Ok(Some(server)),
            Err(StateError::Taken) => Ok(None),
            Err(error) => {
                tracing::warn!(session = id, %error, "the store does not tell who has it");
                Err(unsure(id))
            }
        }
    }

    /// Notes that a session went on from this state until now, and ended.
    ///
    /// # Errors
    /// The state cannot be read or written.
    pub async fn mark_left(&self, asleep: &Asleep) -> Result<(), ApiError> {
        asleep.leave();
        let (tenant, id) = (self.tenant(&asleep.owner)?, session_id(&asleep.id)?);
        let marked = off_the_workers(move || tenant.mark_left(id)).await?;
        marked.map_err(|error| unreadable(&asleep.id, &error))
    }

    /// Removes the state of a session, if it has one. With `used_ms`, one that another server has used after that time stays.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove(&self, owner: &str, id: &str, used_ms: Option<u64>) -> Result<(), ApiError> {
        let (tenant, session) = (self.tenant(owner)?, session_id(id)?);
        let removed = off_the_workers(move || tenant.remove_unused(session, used_ms.unwrap_or(u64::MAX))).await?;
        match removed {
            Err(StateError::Taken) if used_ms.is_some() => return Ok(()),
            removed => removed.map_err(|error| unreadable(id, &error))?,
        }
        self.has_garbage(owner);
        Ok(())
    }

    /// A session that another server has stored in the meantime; `None` if there is none.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn find(&self, account: &Account, id: &str) -> Result<Option<Arc<Asleep>>, ApiError> {
        if !self.is_shared() {
            return Ok(None);
        }
        let head = self.look_up(&account.owner, id, Tenant::head).await?;
        let head = head.map_err(|error| unreadable(id, &error))?;
        Ok(head.map(|head| {
            let held = account.found_stored(head.bytes);
            Asleep::found(id.to_owned(), Arc::clone(&account.owner), head, held)
        }))
    }

    /// Another living server that has a session, kept or not, or that made it and has stored nothing of it yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn elsewhere(&self, owner: &str, id: &str) -> Result<Option<Living>, ApiError> {
        match self.look_up(owner, id, Tenant::stored_elsewhere).await? {
            Ok(Some(stored)) => return Ok(stored),
            Ok(None) => {}
            Err(error) if error.is_damage() => return Ok(None), // whoever uses the session is told
            Err(error) => return Err(unreadable(id, &error)),
        }
        // A session that has left its home is elsewhere, so its home comes last.
        if let Some(kept) = self.kept_elsewhere(owner, id).await? {
            return Ok(kept);
        }
        match self.look_up(owner, id, Tenant::at_home).await? {
            Err(error) if error.is_damage() => Ok(None),
            found => found.map_err(|error| unreadable(id, &error)),
        }
    }

    /// As [`Suspension::elsewhere`], but for a kept sandbox. `None` if there is none with this id.
    ///
    /// # Errors
    /// The store cannot be read.
    pub async fn kept_elsewhere(&self, owner: &str, id: &str) -> Result<Option<Option<Living>>, ApiError> {
        let Ok(session) = session_id(id) else { return Ok(None) };
        match self
            .kept_look_up(owner, id, move |tenant| tenant.stored_elsewhere(session))
            .await?
        {
            Err(error) if error.is_damage() => Ok(Some(None)), // whoever uses it is told
            found => found.map_err(|error| unreadable(id, &error)),
        }
    }

    /// Looks something up among the kept sandboxes of an owner. `what` names it in errors.
    ///
    /// # Errors
    /// 503 when too many look-ups are under way. The inner error is the store's.
    pub async fn kept_look_up<T: Send + 'static>(
        &self,
        owner: &str,
        what: &str,
        find: impl FnOnce(&Tenant) -> Result<T, StateError> + Send + 'static,
    ) -> Result<Result<T, StateError>, ApiError> {
        let owned = self.kept.get(owner);
        let owned = owned.ok_or_else(|| ApiError::internal("the key has no kept sandboxes; this is a bug"))?;
        let tenant = Arc::clone(&owned.tenant);
        owned.look_ups.run(what, move || find(&tenant)).await
    }

    /// The server that holds the conversation with this token. `None` if the store does not tell now.
    pub async fn holder(&self, owner: &str, token: Vec<u8>) -> Option<Holder> {
        let Some(owned) = self.tenants.get(owner) else {
            return Some(Holder::Nobody);
        };
        let tenant = Arc::clone(&owned.tenant);
        let looked_up = owned.look_ups.run("of a conversation", move || tenant.holder(&token));
        match looked_up.await.ok()? {
            Ok(holder) => Some(holder),
            Err(error) => {
                tracing::warn!(%error, "the store does not tell which server holds a conversation");
                None
            }
        }
    }

    /// Looks a session up in the store. A text that is no id leads to none.
    async fn look_up<T: Send + 'static>(
        &self,
        owner: &str,
        id: &str,
        find: fn(&Tenant, SessionId) -> Result<Option<T>, StateError>,
    ) -> Result<Result<Option<T>, StateError>, ApiError> {
        let (tenant, Some(owned), Ok(session)) = (self.tenant(owner)?, self.tenants.get(owner), session_id(id)) else {
            return Ok(Ok(None));
        };
        owned.look_ups.run(id, move || find(&tenant, session)).await
    }

    /// Returns true if other servers may use the store.
    pub fn is_shared(&self) -> bool {
        matches!(self.place, Opened::Shared)
    }

    /// All states, and this server's lease on them.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// Waits for the turn to have a guest write its state. The oldest wait ends first.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Lets the next server open the store. Nothing of this one uses it any more.
    pub fn release(&self) {
        match &self.place {
            Opened::Folder(folder) => folder.release(),
            Opened::Shared => {
                if let Err(error) = self.states.end() {
                    tracing::warn!(%error, "the lease of this server was not ended: it runs out");
                }
            }
        }
    }

    /// Notes that some objects of an owner may not be needed any more.
    pub fn has_garbage(&self, owner: &str) {
        if let Some(owned) = self.tenants.get(owner) {
            owned.has_garbage.store(true, Ordering::Release);
        }
    }

    /// Removes objects that nobody needs, as long as `goes_on` returns true. Blocks as long as the store does.
    pub fn collect(&self, goes_on: impl Fn() -> bool) {
        let age = match self.is_shared() {
            true => COLLECTED_AGE_SHARED,
            false => COLLECTED_AGE,
        };
        let mut read = 0;
        if self.is_shared() {
            if Instant::now() < *self.next_collection.lock().unwrap_or_else(PoisonError::into_inner) {
                return;
            }
            for owned in self.tenants.values().chain(self.kept.values()) {
                owned.has_garbage.store(true, Ordering::Release);
            }
        }
        for (owner, owned) in self.tenants.iter().chain(&self.kept) {
            if !owned.has_garbage.swap(false, Ordering::AcqRel) {
                continue;
            }
            let collected = owned.tenant.collect_while(age, &goes_on);
            let mut problem = owned.problem.lock().unwrap_or_else(PoisonError::into_inner);
            match collected {
                Ok(collected) => {
                    *problem = None;
                    read += collected.sessions;
                    if collected.too_young > 0 {
                        owned.has_garbage.store(true, Ordering::Release);
                    }
                    if collected.removed > 0 {
                        tracing::debug!(%owner, removed = collected.removed, "objects of states are removed");
                    }
                }
                Err(error) => {
                    owned.has_garbage.store(true, Ordering::Release);
                    let why = error.to_string();
                    if problem.as_ref() != Some(&why) {
                        tracing::error!(%owner, %error, "old objects of states are left behind");
                        *problem = Some(why);
                    }
                }
            }
        }
        let pause = COLLECT_SHARED.max(Duration::from_secs(read / COLLECTED_PER_SECOND));
        *self.next_collection.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + pause;
    }
}

/// The text of a session's id, as the store has it.
pub(super) fn session_id(id: &str) -> Result<SessionId, ApiError> {
    id.parse().map_err(|_| ApiError::no_session(id))
}

/// The error for a client whose session cannot be woken.
pub(super) fn unreadable(id: &str, error: &StateError) -> ApiError {
    if error.is_damage() {
        let message = format!(
            "session {id} is suspended, and cannot be woken: {error}. Other sessions are not affected; delete this one (DELETE …)"
        );
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, STATE_DAMAGED, message);
    }
    if matches!(error, StateError::Taken) {
        return elsewhere(id);
    }
    let message = format!("session {id} is suspended, and its state cannot be read now: {error}; it stays suspended");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(10)
}

/// The error for a client whose session is here, while another server may take it over.
pub(super) fn unsure(id: &str) -> ApiError {
    let message = format!(
        "the store of states is out of reach, so another server may take session {id} over; its state stays here as long as none did. \
         Try again: it goes on when the store is back"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(5)
}

/// The error for a client whose code ran here, while another server took the session over.
pub(super) fn taken_over(id: &str) -> ApiError {
    let message = format!(
        "the code ran, but another server that uses the same store took session {id} over meanwhile, because this one was silent for too long: \
         what the code did to variables and files is lost. The state of the session's last sleep goes on there; look at it before you run the \
         code again"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message)
}

/// The same error for a session with `persist`.
pub(super) fn kept_taken_over(id: &str) -> ApiError {
    let message = format!(
        "the code ran, but another server that uses the same store took session {id} over meanwhile, because this one was silent for too long: \
         what the code did to variables and files after the last state in the store is lost. Look at `pending` and `last` of the session \
         before you run the code again"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message)
}

/// The error for a client whose session another server has, as far as is known.
pub(super) fn elsewhere(id: &str) -> ApiError {
    let message = format!(
        "session {id} is awake on another server that uses the same store, or was until now; its state stays there. Ask that server, \
         or try again: a server that is silent loses its sessions to others"
    );
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(5)
}

/// The time now, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
