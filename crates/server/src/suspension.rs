//! The stored states of suspended sessions: where they are, and whose.
//!
//! | module | does |
//! |---|---|
//! | this one | opens the store, and knows what is in it |
//! | `stored` | turns a session's state into what the store has, and back |
//! | `suspending` | writes sessions that nobody uses, and ends their guests |
//! | `waking` | brings a suspended session back when it is used |
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use sandglass_host::args::Secrets;
use sandglass_states::{FolderStore, Found, Head, MasterKey, SessionId, StateError, States, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::bodies::off_the_workers;
use super::errors::ApiError;
use super::quotas::{Account, Held};
use super::settings::{MIB, ServeArgs};

/// The name of the key's file in the folder of states, if the operator gives no key.
const KEY_FILE: &str = "key";
/// Guests that write their states at once, of all owners. Each needs a processor for a moment.
const AT_ONCE: usize = 4;
/// The age from which objects are collected that nobody needs.
const COLLECTED_AGE: Duration = Duration::from_secs(60);

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
    /// True if the session went on from this state. Then clients have seen a newer one.
    is_left: AtomicBool,
    /// The time at which the state was last written or used, in milliseconds since 1970.
    used_ms: AtomicU64,
    /// Its place in the quota. `None` if a former server stored more than this one allows.
    held: Mutex<Option<Held>>,
}

impl Asleep {
    /// A session that is stored.
    pub fn new(id: String, owner: Arc<str>, head: Head, held: Option<Held>) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner,
            is_left: AtomicBool::new(head.awake),
            used_ms: AtomicU64::new(head.last_used_ms()),
            head,
            held: Mutex::new(held),
        })
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

    /// The time since the session was last used, as far as that is known.
    pub fn age(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.used_ms.load(Ordering::Acquire)))
    }
}

/// The store of suspended sessions.
#[derive(Debug)]
pub struct Suspension {
    store: Arc<FolderStore>,
    tenants: HashMap<Arc<str>, Owned>,
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
    /// True if there may be objects that nobody needs.
    has_garbage: AtomicBool,
    /// The reason for which the last collection failed, so that it is logged once.
    problem: Mutex<Option<String>>,
}

impl Suspension {
    /// Opens the store of the settings; `None` without one. It is open in one server at a time.
    ///
    /// # Errors
    /// The store cannot be used, or the settings contradict each other.
    pub fn open(args: &ServeArgs, secrets: &Secrets, owners: &[Arc<str>]) -> Result<Option<Self>, String> {
        let (suspend, idle) = (&args.suspend, args.session_idle_seconds);
        let Some(folder) = &suspend.state_dir else {
            return Ok(None);
        };
        if suspend.suspend_after >= idle {
            return Err(format!(
                "--suspend-after is {} s, but --session-idle-seconds ends sessions after {idle} s: give a shorter time",
                suspend.suspend_after
            ));
        }
        let told = |error: StateError| format!("--state-dir (SANDGLASS_STATE_DIR): {error}");
        let store = FolderStore::open(folder).map_err(told)?;
        let key = match (&suspend.state_key_file, &secrets.state_key) {
            (Some(_), Some(_)) => return Err("give --state-key-file or SANDGLASS_STATE_KEY, not both".to_owned()),
            (Some(file), None) => MasterKey::from_file(file),
            (None, Some(text)) => MasterKey::parse(text),
            (None, None) => MasterKey::from_file_or_new(&store.path().join(KEY_FILE)),
        };
        let store = Arc::new(store);
        let shared = Arc::clone(&store);
        let states = States::new(shared, key.map_err(told)?).map_err(told)?;
        let owned = |owner: &Arc<str>| {
            let tenant = Arc::new(states.tenant(owner).map_err(told)?);
            let owned = Owned {
                tenant,
                has_garbage: AtomicBool::new(true), // of a server that was killed
                problem: Mutex::default(),
            };
            Ok((Arc::clone(owner), owned))
        };
        Ok(Some(Self {
            store,
            tenants: owners.iter().map(owned).collect::<Result<_, String>>()?,
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
            let held = account.stored(head.bytes).ok();
            Asleep::new(id.to_string(), Arc::clone(&account.owner), head, held)
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

    /// Notes that the session goes on, durably. Otherwise a server that is killed would leave an older state that looks like the newest.
    ///
    /// # Errors
    /// The state cannot be read or written.
    pub async fn mark_awake(&self, asleep: &Asleep) -> Result<(), ApiError> {
        let (tenant, id) = (self.tenant(&asleep.owner)?, session_id(&asleep.id)?);
        let marked = off_the_workers(move || tenant.mark_awake(id)).await?;
        marked.map_err(|error| unreadable(&asleep.id, &error))?;
        asleep.leave();
        Ok(())
    }

    /// Removes the state of a session, if it has one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub async fn remove(&self, owner: &str, id: &str) -> Result<(), ApiError> {
        let (tenant, session) = (self.tenant(owner)?, session_id(id)?);
        let removed = off_the_workers(move || tenant.remove(session)).await?;
        removed.map_err(|error| unreadable(id, &error))?;
        self.has_garbage(owner);
        Ok(())
    }

    /// Waits for the turn to have a guest write its state. The oldest wait ends first.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Lets the next server open the store. Nothing of this one uses it any more.
    pub fn release(&self) {
        self.store.release();
    }

    /// Notes that some objects of an owner may not be needed any more.
    pub fn has_garbage(&self, owner: &str) {
        if let Some(owned) = self.tenants.get(owner) {
            owned.has_garbage.store(true, Ordering::Release);
        }
    }

    /// Removes objects that nobody needs. Blocks as long as the disk does.
    pub fn collect(&self) {
        for (owner, owned) in &self.tenants {
            if !owned.has_garbage.swap(false, Ordering::AcqRel) {
                continue;
            }
            let collected = owned.tenant.collect(COLLECTED_AGE);
            let mut problem = owned.problem.lock().unwrap_or_else(PoisonError::into_inner);
            match collected {
                Ok(collected) => {
                    *problem = None;
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
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "state_damaged", message);
    }
    let message = format!("session {id} is suspended, and its state cannot be read now: {error}; it stays suspended");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(10)
}

/// The time now, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
