//! All sessions of the server: their owners and their expiry.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use futures_util::future::join_all;
use sandglass_core::stats::Stats;
use tokio_util::sync::CancellationToken;

use super::App;
use super::errors::ApiError;
use super::metrics::Metrics;
use super::quotas::{Account, Held};
use super::storage::{Fate, Folder};
use sandglass_host::Sandbox;
use sandglass_host::launcher::Launcher;

/// The shortest and the longest interval between two searches for expired sessions.
const SWEEP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(15));

/// All sessions, by their ids.
#[derive(Debug, Default)]
pub struct Sessions {
    all: Mutex<HashMap<String, Arc<Session>>>,
    closed: CancellationToken,
}

/// A session and its guests.
#[derive(Debug)]
pub struct Session {
    /// The random id. The id alone gives no access.
    pub id: String,
    /// The owner: the name of the key that created the session.
    pub owner: Arc<str>,
    /// The sandbox or channel.
    pub kind: Kind,
    uses: Mutex<Uses>,
    attached: AtomicBool,
    destroyed: CancellationToken,
    folder: Option<Arc<Folder>>,
    /// The session's part of the server's metrics.
    counted: Mutex<Stats>,
    /// The session's part of its key's quota, until it is destroyed.
    held: Mutex<Option<Held>>,
}

/// The kind of a session.
pub enum Kind {
    /// A sandbox that requests use.
    Sandbox(Sandbox),
    /// Guests that a client supervises over a channel.
    Channel {
        /// The launcher of the guests.
        launcher: Arc<dyn Launcher>,
        /// Bytes of the bodies in one frame from a guest.
        most_value_bytes: usize,
        /// Bytes of the memory of the guest and its paused copies.
        memory_bytes: f64,
    },
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sandbox(sandbox) => sandbox.fmt(formatter),
            Self::Channel { launcher, .. } => write!(formatter, "Channel({})", launcher.kind()),
        }
    }
}

#[derive(Debug)]
struct Uses {
    now: u32,
    last: Instant,
}

/// Keeps a session from expiring.
#[derive(Debug)]
#[must_use = "the session can expire when this is dropped"]
pub struct InUse(Arc<Session>);

/// The session's only channel. The session cannot expire meanwhile, because the relay ends it.
#[derive(Debug)]
#[must_use = "another channel can take the place when this is dropped"]
pub struct Attached(InUse);

impl Session {
    /// A session that holds this part of the quota.
    pub fn new(id: String, owner: Arc<str>, kind: Kind, folder: Option<Arc<Folder>>, held: Held) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner,
            kind,
            uses: Mutex::new(Uses {
                now: 0,
                last: Instant::now(),
            }),
            attached: AtomicBool::new(false),
            destroyed: CancellationToken::new(),
            folder,
            counted: Mutex::default(),
            held: Mutex::new(Some(held)),
        })
    }

    /// The sandbox, and a guard that keeps the session from expiring.
    ///
    /// # Errors
    /// 409 when the session has a channel instead.
    pub fn sandbox(self: &Arc<Self>) -> Result<(&Sandbox, InUse), ApiError> {
        match &self.kind {
            Kind::Sandbox(sandbox) => Ok((sandbox, self.enter())),
            Kind::Channel { .. } => {
                let message = "the session was created with \"channel\": true, and is used over its WebSocket only";
                Err(ApiError::new(StatusCode::CONFLICT, "channel_only", message))
            }
        }
    }

    /// Adds the session's new counts to the metrics.
    pub fn count(&self, stats: &Stats, metrics: &Metrics) {
        let mut counted = lock(&self.counted);
        metrics.ran_ahead(&stats.since(&counted));
        counted.clone_from(stats);
    }

    /// The backend of the session's guests.
    pub fn backend(&self) -> sandglass_host::BackendKind {
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.capabilities().backend,
            Kind::Channel { launcher, .. } => launcher.kind(),
        }
    }

    /// The session's folder on disk, if there is one.
    pub fn folder(&self) -> Option<&Arc<Folder>> {
        self.folder.as_ref()
    }

    /// Takes the place of the session's only channel. `None` when another channel has it.
    pub fn attach(self: &Arc<Self>) -> Option<Attached> {
        let is_free = !self.attached.swap(true, Ordering::AcqRel);
        is_free.then(|| Attached(self.enter()))
    }

    /// A token that is cancelled when the session is destroyed.
    pub fn destroyed(&self) -> CancellationToken {
        self.destroyed.clone()
    }

    /// The time since the last use; `None` while the session is used.
    pub fn idle_for(&self) -> Option<Duration> {
        let uses = lock(&self.uses);
        (uses.now == 0).then(|| uses.last.elapsed())
    }

    fn enter(self: &Arc<Self>) -> InUse {
        lock(&self.uses).now += 1;
        InUse(Arc::clone(self))
    }

    async fn destroy(&self, fate: Fate) {
        if let Some(folder) = &self.folder {
            folder.decide(fate);
        }
        self.destroyed.cancel();
        let held = lock(&self.held).take(); // until the guest is gone
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.destroy().await,
            // The relay ends the guest first, and then settles.
            Kind::Channel { .. } if self.attached.load(Ordering::Acquire) => {
                *lock(&self.held) = held; // until the relay's end
                return;
            }
            Kind::Channel { .. } => {}
        }
        drop(held);
        self.settle().await;
    }

    /// Removes or keeps the folder, after the guest is gone.
    pub async fn settle(&self) {
        if let Some(folder) = &self.folder {
            folder.settle().await;
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut uses = lock(&self.0.uses);
        uses.now -= 1;
        uses.last = Instant::now();
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.0.attached.store(false, Ordering::Release);
    }
}

/// The session in a request's path, which belongs to the request's key.
#[derive(Debug)]
pub struct OwnSession(pub Arc<Session>);

impl FromRequestParts<App> for OwnSession {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let named = Path::<HashMap<String, String>>::from_request_parts(parts, app).await;
        let account = parts.extensions.get::<Arc<Account>>();
        match (named, account) {
            (Ok(Path(named)), Some(account)) => {
                let id = named.get("id").map(String::as_str).unwrap_or_default();
                app.sessions.of(&account.owner, id).map(Self)
            }
            _ => Err(ApiError::invalid("the request could not be read")),
        }
    }
}

impl Sessions {
    /// Adds a session.
    ///
    /// # Errors
    /// 503 when the server is shutting down; the session is then destroyed.
    pub async fn add(&self, session: Arc<Session>) -> Result<(), ApiError> {
        let id = session.id.clone();
        lock(&self.all).insert(id.clone(), session);
        // This check comes after the insertion: either it sees the shutdown, or the shutdown sees the session.
        if self.are_closed() {
            self.remove(&id, Fate::Removed).await;
            return Err(ApiError::shutting_down());
        }
        Ok(())
    }

    /// A session of this owner.
    ///
    /// # Errors
    /// 404: no session has this id, or it belongs to another key.
    pub fn of(&self, owner: &str, id: &str) -> Result<Arc<Session>, ApiError> {
        let session = lock(&self.all).get(id).cloned();
        session
            .filter(|session| &*session.owner == owner)
            .ok_or_else(|| ApiError::no_session(id))
    }

    /// All sessions of this owner, ordered by id.
    pub fn all_of(&self, owner: &str) -> Vec<Arc<Session>> {
        let all = lock(&self.all);
        let mut own: Vec<_> = all
            .values()
            .filter(|session| &*session.owner == owner)
            .cloned()
            .collect();
        own.sort_by(|a, b| a.id.cmp(&b.id));
        own
    }

    /// Removes a session and destroys its contents. Its guest is gone when this returns; the guest of a channel is ended by the
    /// relay.
    pub async fn remove(&self, id: &str, fate: Fate) {
        let session = lock(&self.all).remove(id);
        if let Some(session) = session {
            session.destroy(fate).await;
        }
    }

    /// Destroys all sessions, and refuses new ones.
    pub async fn destroy_all(&self) {
        self.closed.cancel();
        let all: Vec<_> = lock(&self.all).drain().map(|(_, session)| session).collect();
        join_all(all.iter().map(|session| session.destroy(Fate::Kept))).await;
    }

    /// Returns true when all sessions are being destroyed, because the server shuts down.
    pub fn are_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until the sessions are being destroyed.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// The number of shadows that run, as of each session's last execution.
    pub fn under_way(&self) -> u64 {
        lock(&self.all)
            .values()
            .map(|session| lock(&session.counted).under_way())
            .sum()
    }

    fn idle_since(&self, most: Duration) -> Vec<String> {
        let all = lock(&self.all);
        let idle = all
            .values()
            .filter(|session| session.idle_for().is_some_and(|idle| idle >= most));
        idle.map(|session| session.id.clone()).collect()
    }
}

/// Destroys sessions that have been unused for too long.
pub(super) async fn expire(app: App) {
    let most = Duration::from_secs_f64(app.args.session_idle_seconds);
    loop {
        tokio::time::sleep((most / 4).clamp(SWEEP.0, SWEEP.1)).await;
        let expired = app.sessions.idle_since(most);
        for id in &expired {
            tracing::info!(session = id, "expired");
            app.metrics.sessions_expired.inc();
        }
        join_all(expired.iter().map(|id| app.sessions.remove(id, Fate::Kept))).await;
    }
}

/// Watches the folder of a session. Destroys a session whose folder grows while nobody uses the session.
pub(super) async fn watch_folder(app: App, folder: Arc<Folder>, session: Weak<Session>) {
    let is_idle = || session.upgrade().is_none_or(|session| session.idle_for().is_some());
    if let Some(why) = folder.watch(is_idle).await {
        let workspace = folder.workspace();
        tracing::warn!(
            session = workspace.session(),
            owner = workspace.user(),
            why,
            "ended: it writes while nobody uses it"
        );
        app.sessions.remove(workspace.session(), Fate::Kept).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
