//! All sessions of the server: their owners, their places and their expiry.
//!
//! A session is awake, with a guest, or asleep: suspended, with a stored state. In between it moves, and requests for it wait.

mod moving;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use futures_util::future::join_all;
use sandglass_core::stats::Stats;
use sandglass_states::ServerId;
use tokio_util::sync::CancellationToken;

use super::App;
use super::errors::ApiError;
use super::kept::Opened;
use super::metrics::{Gauge, Metrics, Up};
use super::quotas::Held;
use super::storage::{Fate, Folder};
use super::suspension::{Asleep, Recipe};
use moving::Place;
pub use moving::{Known, Move, Settled, Target};
use sandglass_host::Sandbox;
use sandglass_host::kept::Kept;
use sandglass_host::launcher::Launcher;

/// The shortest and the longest interval between two searches for expired sessions.
const SWEEP: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(15));

/// All sessions, by their ids.
#[derive(Debug, Default)]
pub struct Sessions {
    all: Mutex<HashMap<String, Place>>,
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
    /// Executions that have begun.
    running: Gauge,
    folder: Option<Arc<Folder>>,
    /// The session's part of the server's metrics.
    counted: Mutex<Stats>,
    /// The session's part of its key's quota, until it is destroyed.
    held: Mutex<Option<Held>>,
    /// Held while something changes the state, so that a stored state or a copy is of one moment.
    turn: tokio::sync::Mutex<()>,
    /// Cancelled when the session has had its last turn, because the server ends.
    leaving: CancellationToken,
    /// The settings from which the session is made again. `None` if it cannot be suspended.
    recipe: Option<Recipe>,
    /// The stored state from which the session went on. It stays until the next one is written.
    stored: Option<Arc<Asleep>>,
    /// The id of this server under which the store may have a state of the session.
    lease: Mutex<Option<ServerId>>,
    /// True once another server has taken the session over.
    is_taken: AtomicBool,
}

/// The turn to change a session's state.
pub type Turn<'a> = tokio::sync::MutexGuard<'a, ()>;

/// The kind of a session.
pub enum Kind {
    /// A sandbox that requests use.
    Sandbox(Sandbox),
    /// A sandbox whose executions outlive the server.
    Kept {
        /// The sandbox.
        kept: Arc<Kept>,
        /// Its place.
        opened: Opened,
        /// The settings from which it is made again. `None` if a client of JSON-RPC has it.
        recipe: Option<Recipe>,
    },
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
            Self::Kept { kept, .. } => kept.fmt(formatter),
            Self::Channel { launcher, .. } => write!(formatter, "Channel({})", launcher.kind()),
        }
    }
}

#[derive(Debug)]
struct Uses {
    now: u32,
    last: Instant,
    /// The time before which the session is not suspended again, because an attempt failed. `None` after the next use.
    not_before: Option<Instant>,
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
    /// A session that holds this part of the quota. With a recipe, it can be suspended. `stored` is the state from which it goes on.
    pub fn new(
        id: String,
        owner: Arc<str>,
        kind: Kind,
        folder: Option<Arc<Folder>>,
        held: Held,
        (recipe, stored): (Option<Recipe>, Option<Arc<Asleep>>),
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner,
            kind,
            uses: Mutex::new(Uses {
                now: 0,
                last: Instant::now(),
                not_before: None,
            }),
            attached: AtomicBool::new(false),
            destroyed: CancellationToken::new(),
            running: Gauge::default(),
            folder,
            counted: Mutex::default(),
            held: Mutex::new(Some(held)),
            turn: tokio::sync::Mutex::default(),
            leaving: CancellationToken::new(),
            recipe,
            lease: Mutex::new(stored.as_ref().and_then(|stored| stored.server())),
            stored,
            is_taken: AtomicBool::new(false),
        })
    }

    /// Waits for the turn to change the state. It ends when the returned value is dropped. A session that cannot be suspended needs no
    /// turns: its sandbox does one thing after another, in the order in which its one client asked.
    ///
    /// # Errors
    /// 503 when the session has had its last turn.
    pub async fn turn(&self) -> Result<Option<Turn<'_>>, ApiError> {
        if self.settings().is_none() {
            return Ok(None);
        }
        tokio::select! {
            biased;
            () = self.leaving.cancelled() => Err(ApiError::shutting_down()),
            turn = self.turn.lock() => Ok(Some(turn)),
        }
    }

    /// Interrupts what runs, and takes everything back that waits for its turn. Nothing changes the state after [`Session::last_turn`].
    pub fn leave(&self) {
        self.leaving.cancel();
        if let Kind::Sandbox(sandbox) = &self.kind {
            sandbox.interrupt();
        }
    }

    /// The turn after the one that runs, for whoever made the session [leave](Session::leave).
    pub async fn last_turn(&self) -> Turn<'_> {
        self.turn.lock().await
    }

    /// As [`Session::last_turn`], unless something runs.
    pub fn last_turn_now(&self) -> Option<Turn<'_>> {
        self.turn.try_lock().ok()
    }

    /// The sandbox, and a guard that keeps the session from expiring.
    ///
    /// # Errors
    /// As [`Session::enter`]. Those of [`Kept::sandbox`] if the sandbox is kept, such as 409 when an execution is pending.
    pub async fn sandbox(self: &Arc<Self>) -> Result<(Sandbox, InUse), ApiError> {
        let in_use = self.enter()?;
        match &self.kind {
            Kind::Kept { kept, .. } => Ok((kept.sandbox().await?, in_use)),
            _ => {
                let sandbox = self.current();
                Ok((sandbox.ok_or(sandglass_core::Error::Destroyed)?, in_use))
            }
        }
    }

    /// The sandbox as it is now, for what waits for nothing. `None` while only the store has its state, and for a channel.
    pub fn current(&self) -> Option<Sandbox> {
        match &self.kind {
            Kind::Sandbox(sandbox) => Some(sandbox.clone()),
            Kind::Kept { kept, .. } => kept.current(),
            Kind::Channel { .. } => None,
        }
    }

    /// Interrupts its code.
    pub fn interrupt(&self) {
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.interrupt(),
            Kind::Kept { kept, .. } => kept.interrupt(),
            Kind::Channel { .. } => {}
        }
    }

    /// Keeps a session that has routes over HTTP from expiring.
    ///
    /// # Errors
    /// 409 when the session has a channel instead, or when a client of JSON-RPC has it.
    pub fn enter(self: &Arc<Self>) -> Result<InUse, ApiError> {
        match &self.kind {
            Kind::Sandbox(_) | Kind::Kept { recipe: Some(_), .. } => Ok(self.used()),
            Kind::Kept { recipe: None, .. } => {
                let message = "the session was created with \"persist\", and is used over the connection to GET /v1/rpc that made it only";
                Err(ApiError::new(StatusCode::CONFLICT, "rpc_only", message))
            }
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
            Kind::Kept { kept, .. } => kept.capabilities().backend,
            Kind::Channel { launcher, .. } => launcher.kind(),
        }
    }

    /// The session's folder on disk, if there is one.
    pub fn folder(&self) -> Option<&Arc<Folder>> {
        self.folder.as_ref()
    }

    /// Notes that an execution has begun, until the returned value is dropped.
    pub fn runs(&self) -> Up {
        self.running.up()
    }

    /// Returns true while an execution runs.
    pub fn is_running(&self) -> bool {
        self.running.get() > 0
    }

    /// Takes the place of the session's only channel. `None` when another channel has it.
    pub fn attach(self: &Arc<Self>) -> Option<Attached> {
        let is_free = !self.attached.swap(true, Ordering::AcqRel);
        is_free.then(|| Attached(self.used()))
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

    /// Keeps the session from expiring.
    pub fn used(self: &Arc<Self>) -> InUse {
        lock(&self.uses).now += 1;
        InUse(Arc::clone(self))
    }

    /// The settings from which the session is made again, if it can be suspended.
    pub fn recipe(&self) -> Option<&Recipe> {
        self.recipe.as_ref()
    }

    /// The settings of a session over HTTP, suspended or kept; `None` for any other.
    pub fn settings(&self) -> Option<&Recipe> {
        match &self.kind {
            Kind::Kept { recipe, .. } => recipe.as_ref(),
            _ => self.recipe(),
        }
    }

    /// The stored state from which the session went on, if there is one.
    pub fn stored(&self) -> Option<Arc<Asleep>> {
        self.stored.clone()
    }

    /// The id of this server under which the store may have a state of the session. `None` if no other server can know of it.
    pub fn lease(&self) -> Option<ServerId> {
        match &self.kind {
            Kind::Kept { opened, .. } => opened.held_under(),
            _ => *lock(&self.lease),
        }
    }

    /// Notes that this server has the session under this id.
    pub fn is_under(&self, server: ServerId) {
        *lock(&self.lease) = Some(server);
    }

    /// Returns true once another server has taken the session over.
    pub fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }

    /// Notes that another server has taken the session over.
    pub fn take_over(&self) {
        self.is_taken.store(true, Ordering::Release);
    }

    /// Notes that the session could not be suspended. It is tried again after `pause`, or after the next use.
    pub fn put_off(&self, pause: Duration) {
        lock(&self.uses).not_before = Some(Instant::now() + pause);
    }

    /// Returns true if the session can be suspended and has been unused for so long.
    fn may_sleep(&self, idle: Duration) -> bool {
        self.recipe.is_some() && self.is_due(idle)
    }

    /// Returns true if the session is unused for so long, and no attempt to write its state has failed just now.
    fn is_due(&self, idle: Duration) -> bool {
        let uses = lock(&self.uses);
        let is_due = uses.not_before.is_none_or(|at| Instant::now() >= at);
        uses.now == 0 && uses.last.elapsed() >= idle && is_due
    }

    /// Ends the guest, and removes or keeps the folder.
    pub async fn destroy(&self, fate: Fate) {
        if let Some(folder) = &self.folder {
            folder.decide(fate);
        }
        self.destroyed.cancel();
        let held = lock(&self.held).take(); // until the guest is gone
        match &self.kind {
            Kind::Sandbox(sandbox) => sandbox.destroy().await,
            Kind::Kept { kept, opened, .. } => {
                opened.is_used();
                kept.destroy().await;
            }
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
        uses.not_before = None;
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.0.attached.store(false, Ordering::Release);
    }
}

impl Sessions {
    /// Adds a session.
    ///
    /// # Errors
    /// 503 when the server is shutting down; the session is then destroyed.
    pub async fn add(&self, session: Arc<Session>) -> Result<(), ApiError> {
        let id = session.id.clone();
        lock(&self.all).insert(id.clone(), Place::Awake(session));
        // This check comes after the insertion: either it sees the shutdown, or the shutdown sees the session.
        if self.are_closed() {
            self.remove(&id, Fate::Removed).await;
            return Err(ApiError::shutting_down());
        }
        Ok(())
    }

    /// Removes a session that is awake, and destroys its contents. Its guest is gone when this returns; the guest of a channel is ended by
    /// the relay.
    pub async fn remove(&self, id: &str, fate: Fate) {
        let session = {
            let mut all = lock(&self.all);
            match all.get(id) {
                Some(Place::Awake(_)) => all.remove(id).and_then(Place::session),
                _ => None,
            }
        };
        if let Some(session) = session {
            session.destroy(fate).await;
        }
    }

    /// Destroys all sessions, and refuses new ones. Stored states stay.
    pub async fn destroy_all(&self) {
        self.closed.cancel();
        let all: Vec<_> = lock(&self.all)
            .drain()
            .filter_map(|(_, place)| place.session())
            .collect();
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
        self.awake()
            .iter()
            .map(|session| lock(&session.counted).under_way())
            .sum()
    }

    /// The sessions that are awake.
    pub fn awake(&self) -> Vec<Arc<Session>> {
        let all = lock(&self.all);
        let awake = all.values().filter_map(|place| match place {
            Place::Awake(session) => Some(Arc::clone(session)),
            _ => None,
        });
        awake.collect()
    }

    /// The sessions that can be suspended and have been unused for so long.
    pub fn may_sleep(&self, idle: Duration) -> Vec<Arc<Session>> {
        let mut awake = self.awake();
        awake.retain(|session| session.may_sleep(idle));
        awake
    }

    /// The sessions over HTTP with a kept sandbox that have been unused for so long.
    pub fn may_close(&self, idle: Duration) -> Vec<Arc<Session>> {
        let mut awake = self.awake();
        awake.retain(|session| matches!(session.kind, Kind::Kept { recipe: Some(_), .. }) && session.is_due(idle));
        awake
    }

    /// Returns true if a session moves, or if another server can go on with one after its present use.
    pub fn are_to_move(&self) -> bool {
        lock(&self.all).values().any(|place| match place {
            Place::Awake(session) => {
                session.settings().is_some() && (session.idle_for().is_none() || session.is_due(Duration::ZERO))
            }
            Place::Moving(..) => true,
            Place::Asleep(_) => false,
        })
    }

    fn idle_since(&self, most: Duration) -> Vec<String> {
        let awake = self.awake().into_iter();
        let idle = awake.filter(|session| session.idle_for().is_some_and(|idle| idle >= most));
        idle.map(|session| session.id.clone()).collect()
    }
}

/// Ends sessions that have been unused for too long.
pub(super) async fn expire(app: App) {
    let most = Duration::from_secs_f64(app.args.session_idle_seconds);
    loop {
        tokio::time::sleep((most / 4).clamp(SWEEP.0, SWEEP.1)).await;
        let expired = app.sessions.idle_since(most);
        join_all(expired.into_iter().map(|id| expire_one(&app, id, most))).await;
    }
}

async fn expire_one(app: &App, id: String, most: Duration) {
    if end_unused(app, &id, most).await {
        tracing::info!(session = id, "expired");
        app.metrics.sessions_expired.inc();
    }
}

/// Ends a session that has been unused for so long. If it has a stored state, it is suspended with that. Returns false if it is in use.
async fn end_unused(app: &App, id: &str, idle: Duration) -> bool {
    let Some((session, moving)) = Sessions::begin_to_end(app, id, idle) else {
        return false;
    };
    session.destroy(Fate::Kept).await;
    let stored = session.stored();
    let noted = match (&app.suspension, &stored) {
        // It was used until now, so its state is as young as one that is written now.
        (Some(suspension), Some(asleep)) => suspension.mark_left(asleep).await,
        // A write that failed late may have left a state. The next server would take it for a session that its client still has.
        (Some(suspension), None) if session.recipe.is_some() => {
            let again = match session.lease() {
                Some(under) => suspension.take_again(&session.owner, id, under).await.map(Some),
                None => Ok(None),
            };
            match again {
                Ok(Some(None)) => Ok(()), // another server has it
                Ok(_) => suspension.remove(&session.owner, id, None).await,
                Err(error) => Err(error),
            }
        }
        _ => Ok(()),
    };
    if let Err(error) = noted {
        tracing::error!(session = id, why = error.message, "the store does not know of its end");
    }
    moving.end(stored.map(Known::Asleep), Ok(()));
    true
}

/// Watches the folder of a session. Destroys a session whose folder grows while nobody uses the session.
pub(super) async fn watch_folder(app: App, folder: Arc<Folder>, session: Weak<Session>) {
    let is_idle = || session.upgrade().is_none_or(|session| session.idle_for().is_some());
    // The session cannot be ended while it moves or is used. Then the watch goes on.
    while let Some(why) = folder.watch(is_idle).await {
        let workspace = folder.workspace();
        let (session, owner) = (workspace.session(), workspace.user());
        if end_unused(&app, session, Duration::ZERO).await {
            tracing::warn!(session, owner, why, "ended: it writes while nobody uses it");
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
