//! Kept sandboxes: those whose executions outlive the server. Clients of JSON-RPC give them names, and over HTTP they are sessions.
//!
//! One sandbox at a time has a name. If its client is away, because its WebSocket broke, another client of the key takes the name over.
//! `kept_sessions` has the sessions. In a store that servers share, what is known here may be out of date: `shared` looks it up.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

mod expiring;
mod releasing;
mod shared;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use futures_util::future::join_all;
use sandglass_host::kept::{Garbage, KeptBounds, KeptFacts, KeptPlace, newest};
use sandglass_states::{Found, Head, SessionId, StateError, Tenant};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::App;
use super::bodies::off_the_workers;
use super::errors::ApiError;
use super::quotas::{Account, Held};
use super::storage::Fate;
use super::suspension::{Recipe, STATE_DAMAGED, Suspension, now_ms, session_id, unreadable};
pub use shared::Listed;

/// The time for a sandbox to end whose name another client takes over.
const TAKE_OVER: Duration = Duration::from_secs(10);

/// The fact of a named sandbox that its state has in the store.
const NAME: &str = "name";

/// A kept sandbox's owner, and its id, which stands for its name.
type Key = (Arc<str>, SessionId);

/// All kept sandboxes of the server, open or not.
#[derive(Debug)]
pub struct KeptSandboxes {
    all: Mutex<HashMap<Key, Arc<Entry>>>,
    /// The bytes that each owner has written since the last collection.
    garbage: Mutex<HashMap<Arc<str>, Arc<Garbage>>>,
    /// The most bytes of it, of each owner.
    most_garbage: u64,
}

/// A kept sandbox.
#[derive(Debug)]
struct Entry {
    place: KeptPlace,
    bounds: Arc<KeptBounds>,
    /// The time at which it was last open, in milliseconds since 1970.
    used_ms: AtomicU64,
    holder: Mutex<Option<Holder>>,
    /// The facts of a session over HTTP. `None` for a name.
    about: Mutex<Option<About>>,
    /// Held while the session of the sandbox is opened or removed.
    turn: tokio::sync::Mutex<()>,
    /// True if its facts could not be read when the server started. It may be a session, or have a name.
    is_unread: AtomicBool,
    /// True once this server has opened it, and counts it for all servers that share the store.
    is_ours: AtomicBool,
}

/// The facts of a session over HTTP that its state has in the store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct About {
    /// The settings from which the session is made again.
    pub recipe: Recipe,
    /// The backend of its guests.
    pub backend: String,
    /// The facts about the backend.
    pub capabilities: Json,
}

/// A session over HTTP that is kept, open or not.
#[derive(Debug)]
pub struct KeptSession {
    /// The session's id.
    pub id: String,
    /// Its facts.
    pub about: About,
    /// The time since it was last open.
    pub age: Duration,
    entry: Arc<Entry>,
}

/// The client that has a kept sandbox.
#[derive(Debug)]
struct Holder {
    /// The session of its sandbox.
    session: String,
    /// False while its WebSocket is broken.
    is_linked: Arc<AtomicBool>,
}

/// A kept sandbox that a client has, until this is dropped.
#[derive(Debug)]
#[must_use = "another client may have the name when this is dropped"]
pub struct Opened {
    app: App,
    key: Key,
    entry: Arc<Entry>,
}

/// A new session. What is stored of it is removed when this is dropped, unless it is [kept](Unmade::keep) by then.
#[derive(Debug)]
#[must_use = "the session is removed when this is dropped"]
pub struct Unmade {
    app: App,
    key: Key,
    entry: Option<Arc<Entry>>,
}

/// The kept sandboxes of an owner in the store.
struct Store<'a> {
    suspension: &'a Suspension,
    tenant: Arc<Tenant>,
    has_garbage: Arc<AtomicBool>,
    garbage: Arc<Garbage>,
}

impl<'a> Store<'a> {
    fn of(app: &'a App, owner: &str) -> Result<Self, ApiError> {
        let refused = |why: &str| ApiError::option("persist", why);
        let suspension = app.suspension.as_ref();
        let suspension = suspension.ok_or_else(|| {
            refused(
                "this server keeps nothing: it was started without --state-dir, --state-url or --cluster; leave the option out",
            )
        })?;
        let kept = suspension.kept(owner);
        let (tenant, has_garbage) =
            kept.ok_or_else(|| ApiError::internal("the key has no kept sandboxes; this is a bug"))?;
        Ok(Self {
            suspension,
            tenant,
            has_garbage,
            garbage: app.kept.garbage(owner),
        })
    }

    /// A kept sandbox of an earlier server, with its head or the reason for which that cannot be read.
    fn found(&self, account: &Arc<Account>, id: SessionId, head: Result<Head, StateError>) -> Arc<Entry> {
        let told = |error: &StateError| {
            tracing::error!(kept = %id, owner = %account.owner, %error, "a kept sandbox cannot be read");
        };
        let head = head.inspect_err(told).ok();
        let has_journal = self.tenant.is_alone() || head.as_ref().is_none_or(|head| head.awake);
        let journal = has_journal.then(|| self.tenant.journal_bytes(id).inspect_err(told));
        let journal = journal.and_then(Result::ok).unwrap_or_default();
        let (bytes, ended) = head.as_ref().map_or((0, 0), |head| (head.bytes, head.ended_bytes));
        // A former server may have stored more than this one allows.
        let held = account.found_stored(bytes.saturating_add(journal).saturating_add(ended));
        let entry = self.entry(account, id, (bytes, journal, ended), held);
        match head {
            Some(head) => entry.is_found(&head),
            // It may be readable later. Until then it counts as just used, because nobody knows better.
            None => entry.is_unread.store(true, Ordering::Release),
        }
        entry
    }

    /// A kept sandbox whose state, journal and ended executions take so many bytes.
    fn entry(
        &self,
        account: &Arc<Account>,
        id: SessionId,
        (state, journal, ended): (u64, u64, u64),
        held: Option<Held>,
    ) -> Arc<Entry> {
        let of_spare = Arc::clone(account);
        let (account, has_garbage) = (Arc::clone(account), Arc::clone(&self.has_garbage));
        let turns = account.open_states();
        let held = Mutex::new(held);
        let resize = move |bytes| {
            has_garbage.store(true, Ordering::Release);
            let mut held = lock(&held);
            let resized = match held.take() {
                Some(earlier) => account.stored_instead(bytes, earlier).map_err(|(full, earlier)| {
                    *held = Some(earlier);
                    full
                }),
                None => account.stored(bytes),
            };
            *held = Some(resized.map_err(|full| full.message)?);
            Ok(())
        };
        let bounds = KeptBounds::new(self.suspension.most_bytes, turns, (state, journal), resize);
        let bounds = bounds.with_ended(ended, move |before, next| of_spare.has_spare(before, next));
        let bounds = Arc::new(bounds.collecting(Arc::clone(&self.garbage)));
        Arc::new(Entry {
            place: KeptPlace::new(Arc::clone(&self.tenant), id).within(Arc::clone(&bounds)),
            bounds,
            used_ms: AtomicU64::new(now_ms()),
            holder: Mutex::default(),
            about: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            is_unread: AtomicBool::new(false),
            is_ours: AtomicBool::new(false),
        })
    }
}

impl KeptSandboxes {
    /// None yet. An owner may write so many bytes before earlier states are collected.
    pub fn new(most_garbage: u64) -> Self {
        Self {
            all: Mutex::default(),
            garbage: Mutex::default(),
            most_garbage,
        }
    }

    /// Takes note of what an earlier server has kept for an owner.
    ///
    /// # Errors
    /// The kept sandboxes cannot be listed.
    pub fn load(&self, suspension: &Suspension, account: &Arc<Account>) -> Result<(), String> {
        let Some((tenant, has_garbage)) = suspension.kept(&account.owner) else {
            return Ok(());
        };
        let store = Store {
            suspension,
            tenant,
            has_garbage,
            garbage: self.garbage(&account.owner),
        };
        for (id, head) in store.tenant.sessions().map_err(|error| error.to_string())? {
            let entry = store.found(account, id, head);
            self.lock().insert((Arc::clone(&account.owner), id), entry);
        }
        Ok(())
    }

    /// Opens the place of a name for a client. If another client has it that is away, that one loses it, and what it runs is pending.
    ///
    /// # Errors
    /// 400: this server can keep nothing. 429: the key stores too much.
    pub async fn open(app: &App, account: &Arc<Account>, name: &str) -> Result<Opened, ApiError> {
        let store = Store::of(app, &account.owner)?;
        let key = (Arc::clone(&account.owner), store.tenant.session_named(name));
        if !store.tenant.is_alone() {
            match shared::look_up(app, account, &key, "of this name").await {
                Err(error) if error.code == STATE_DAMAGED => {} // whoever opens it is told
                looked_up => drop(looked_up?),
            }
        }
        let entry = {
            let mut all = app.kept.lock();
            match all.get(&key) {
                Some(entry) => Arc::clone(entry),
                None => {
                    let entry = store.entry(account, key.1, (0, 0, 0), Some(account.stored(0)?));
                    all.insert(key.clone(), Arc::clone(&entry));
                    entry
                }
            }
        };
        let opened = Opened::new(app, key, entry);
        opened.entry.take_over(app).await;
        opened.entry.place.set_about(json!({ NAME: name }));
        Ok(opened)
    }

    /// The named sandboxes of a key that have a state, the newest first. Names of earlier releases are known once they have been used again.
    ///
    /// # Errors
    /// 400: this server can keep nothing. 503: they cannot be listed.
    pub async fn names(app: &App, account: &Account) -> Result<Vec<KeptFacts>, ApiError> {
        let tenant = Store::of(app, &account.owner)?.tenant;
        let listed = off_the_workers(move || {
            let named = |(_, head): Found| {
                let head = head.ok()?;
                let name = head.about.get(NAME)?.as_str()?.to_owned();
                Some(KeptFacts::of(name, &head))
            };
            let all = tenant.sessions()?.into_iter().filter_map(named).collect();
            Ok(newest(all))
        });
        listed.await?.map_err(|error: StateError| {
            let message = format!("the kept names cannot be listed now: {error}; nothing was changed");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "state_unavailable", message).retry_after(10)
        })
    }

    /// Opens the place of a new session.
    ///
    /// # Errors
    /// As [`KeptSandboxes::open`].
    pub fn begin(app: &App, account: &Arc<Account>, id: &str) -> Result<(Opened, Unmade), ApiError> {
        let store = Store::of(app, &account.owner)?;
        let key = (Arc::clone(&account.owner), session_id(id)?);
        let entry = store.entry(account, key.1, (0, 0, 0), Some(account.stored(0)?));
        app.kept.lock().insert(key.clone(), Arc::clone(&entry));
        let unmade = Unmade {
            app: app.clone(),
            key: key.clone(),
            entry: Some(Arc::clone(&entry)),
        };
        Ok((Opened::new(app, key, entry), unmade))
    }

    /// As [`KeptSandboxes::session`]. One whose facts could not be read when the server started is read again, and so is one that is not open
    /// here, if other servers use the store.
    ///
    /// # Errors
    /// 500 and 503: it is there, and cannot be read.
    pub async fn find(app: &App, account: &Arc<Account>, id: &str) -> Result<Option<KeptSession>, ApiError> {
        if app.suspension.as_ref().is_some_and(Suspension::is_shared) {
            return shared::find(app, account, id).await;
        }
        let Some((key, unread)) = app.kept.unread(account, id) else {
            return Ok(app.kept.session(&account.owner, id));
        };
        let tenant = Store::of(app, &account.owner)?.tenant;
        let (own, account, session) = (app.clone(), Arc::clone(account), key.1);
        let read = off_the_workers(move || {
            let head = tenant.head(session)?;
            let store = Store::of(&own, &account.owner).ok();
            let found = head.zip(store);
            Ok(found.map(|(head, store)| store.found(&account, session, Ok(head))))
        });
        let read = read.await?.map_err(|error: StateError| unreadable(id, &error))?;
        let mut all = app.kept.lock();
        if all.get(&key).is_some_and(|entry| Arc::ptr_eq(entry, &unread)) && !unread.place.is_open() {
            match read {
                Some(read) => drop(all.insert(key.clone(), read)),
                None => drop(all.remove(&key)),
            }
        }
        drop(all);
        Ok(app.kept.session(&key.0, id))
    }

    /// Removes one whose facts could not be read when the server started. Returns false if this is none.
    ///
    /// # Errors
    /// 409: a client has it. 503: it cannot be removed.
    pub async fn delete_unread(app: &App, account: &Arc<Account>, id: &str) -> Result<bool, ApiError> {
        let Some((key, entry)) = app.kept.unread(account, id) else {
            return Ok(false);
        };
        entry.remove().await?;
        app.kept.forget_empty(&key);
        Ok(true)
    }

    /// A session that is kept, and may be open as well. `None` if there is none of this owner.
    pub fn session(&self, owner: &Arc<str>, id: &str) -> Option<KeptSession> {
        let id = id.parse().ok()?;
        let entry = self.lock().get(&(Arc::clone(owner), id)).cloned();
        entry.and_then(|entry| entry.session(id))
    }

    /// The sessions of an owner that are kept, and may be open as well.
    pub fn sessions(&self, owner: &str) -> Vec<KeptSession> {
        let all = self.lock();
        let own = all.iter().filter(|((of, _), _)| **of == *owner);
        own.filter_map(|((_, id), entry)| Arc::clone(entry).session(*id))
            .collect()
    }

    /// Removes what is kept under a name, if anything is.
    ///
    /// # Errors
    /// 409: a client has it. 503: it cannot be removed.
    pub async fn delete(app: &App, account: &Arc<Account>, name: &str) -> Result<(), ApiError> {
        let store = Store::of(app, &account.owner)?;
        let key = (Arc::clone(&account.owner), store.tenant.session_named(name));
        let entry = {
            let mut all = app.kept.lock();
            // Also if nothing is known of it, because a damaged one can be removed as well.
            let entry = all.entry(key.clone());
            Arc::clone(entry.or_insert_with(|| store.entry(account, key.1, (0, 0, 0), None)))
        };
        entry.take_over(app).await;
        let removed = entry.remove().await;
        app.kept.forget_empty(&key);
        Ok(removed?)
    }

    /// The number of kept sandboxes, open or not.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Waits until none is open, and nothing writes for one any more.
    pub async fn freed(&self) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        join_all(all.iter().map(|entry| entry.place.freed())).await;
    }

    /// Forgets one that has nothing in the store, and that nobody has but the caller.
    fn forget_empty(&self, key: &Key) {
        let mut all = self.lock();
        // Whoever uses one has taken it from here, under this lock.
        let is_empty = |entry: &Arc<Entry>| Arc::strong_count(entry) <= 2 && entry.is_empty() && !entry.place.is_open();
        if all.get(key).is_some_and(is_empty) {
            all.remove(key);
        }
    }

    /// One whose facts could not be read when the server started.
    fn unread(&self, account: &Account, id: &str) -> Option<(Key, Arc<Entry>)> {
        let key = (Arc::clone(&account.owner), id.parse().ok()?);
        let entry = self.lock().get(&key).cloned()?;
        entry.is_unread.load(Ordering::Acquire).then_some((key, entry))
    }

    fn garbage(&self, owner: &str) -> Arc<Garbage> {
        let mut all = lock(&self.garbage);
        let new = || Arc::new(Garbage::new(self.most_garbage));
        Arc::clone(all.entry(Arc::from(owner)).or_insert_with(new))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<Entry>>> {
        lock(&self.all)
    }
}

impl KeptSession {
    /// Waits for the turn to open or remove the session. No other request does so until the returned value is dropped.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.entry.turn.lock().await
    }

    /// Returns true if the session was removed.
    pub fn is_gone(&self) -> bool {
        self.entry.bounds.bytes() == 0
    }

    /// Opens the place of the session.
    pub async fn open(&self, app: &App, owner: &Arc<str>) -> Result<Opened, ApiError> {
        let _ = tokio::time::timeout(TAKE_OVER, self.entry.place.freed()).await; // otherwise it is in use
        let key = (Arc::clone(owner), session_id(&self.id)?);
        Ok(Opened::new(app, key, Arc::clone(&self.entry)))
    }

    /// Removes what is kept of the session, once it is not open any more.
    ///
    /// # Errors
    /// 409: it is open. 503: it cannot be removed.
    pub async fn remove(&self, app: &App, owner: &Arc<str>) -> Result<(), ApiError> {
        let opened = self.open(app, owner).await?;
        Ok(opened.entry.remove().await?)
    }
}

impl Entry {
    fn age(&self) -> Duration {
        Duration::from_millis(now_ms().saturating_sub(self.used_ms.load(Ordering::Acquire)))
    }

    /// Notes that it is in use now.
    fn is_used(&self) {
        self.used_ms.store(now_ms(), Ordering::Release);
    }

    /// Returns true if nothing of it is in the store.
    fn is_empty(&self) -> bool {
        self.bounds.bytes() == 0 && !self.is_unread.load(Ordering::Acquire)
    }

    async fn remove(&self) -> Result<(), sandglass_core::Error> {
        self.place.remove().await?;
        self.is_unread.store(false, Ordering::Release);
        Ok(())
    }

    /// Notes the facts that the store has.
    fn is_found(&self, head: &Head) {
        self.used_ms.store(head.last_used_ms(), Ordering::Release);
        self.is_unread.store(false, Ordering::Release);
        if let Ok(about) = About::deserialize(&head.about) {
            self.is_about(about);
        }
    }

    fn is_about(&self, about: About) {
        self.place.set_about(json!(about));
        *lock(&self.about) = Some(about);
    }

    /// The session of the sandbox. `None` if it has a name instead, or nothing is stored.
    fn session(self: Arc<Self>, id: SessionId) -> Option<KeptSession> {
        let about = lock(&self.about).clone()?;
        (self.bounds.bytes() > 0).then(|| KeptSession {
            id: id.to_string(),
            about,
            age: self.age(),
            entry: self,
        })
    }

    /// Ends the sandbox of a client that is away.
    async fn take_over(&self, app: &App) {
        let away = {
            let holder = lock(&self.holder);
            let is_away = |holder: &&Holder| !holder.is_linked.load(Ordering::Acquire);
            holder.as_ref().filter(is_away).map(|holder| holder.session.clone())
        };
        if let Some(session) = away {
            tracing::info!(session, "its kept sandbox is taken over: its client is away");
            app.sessions.remove(&session, Fate::Removed).await;
            let _ = tokio::time::timeout(TAKE_OVER, self.place.freed()).await; // otherwise it is in use
        }
    }
}

impl Opened {
    fn new(app: &App, key: Key, entry: Arc<Entry>) -> Self {
        entry.is_ours.store(true, Ordering::Release);
        Self {
            app: app.clone(),
            key,
            entry,
        }
    }

    /// The place.
    pub fn place(&self) -> KeptPlace {
        self.entry.place.clone()
    }

    /// Notes the facts of a session over HTTP. Its states have them from now on.
    pub fn is_about(&self, about: About) {
        self.entry.is_about(about);
    }

    /// Notes that it is in use now.
    pub fn is_used(&self) {
        self.entry.is_used();
    }

    /// Notes the session of the client's sandbox, and the state of the client's connection.
    pub fn is_had_by(&self, session: &str, is_linked: Arc<AtomicBool>) {
        let session = session.to_owned();
        *lock(&self.entry.holder) = Some(Holder { session, is_linked });
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.entry.is_used();
        self.app.kept.forget_empty(&self.key);
    }
}

impl Unmade {
    /// Leaves the session in the store.
    pub fn keep(mut self) {
        self.entry = None;
    }
}

impl Drop for Unmade {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        let (app, key) = (self.app.clone(), self.key.clone());
        tokio::spawn(async move {
            let (owner, id) = &key;
            app.sessions.remove(&id.to_string(), Fate::Removed).await;
            let _ = tokio::time::timeout(TAKE_OVER, entry.place.freed()).await;
            if let Err(error) = entry.remove().await {
                tracing::error!(kept = %id, %owner, %error, "a session that was not made is not removed: it expires");
            }
            app.kept.forget_empty(&key);
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
