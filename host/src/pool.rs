//! Pools of spares: guests that are forked, isolated and ready before they are needed.
//!
//! A guest that was taken never comes back. The number of spares follows demand: it doubles when a request finds the pool
//! empty, and falls by one after each quiet [`PoolSettings::calm`]. A spare that dies is replaced.
//!
//! Decisions: `docs/internals/guests-on-hosts.md`.

mod settings;

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use prometheus_client::metrics::histogram::Histogram;
use sandglass_core::Error;
use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, Notify, RwLock};

use crate::guest::{Exit, Guest};
use crate::launcher::{BackendKind, Launcher};
use crate::zygote::{Zygote, ZygoteLauncher};
use futures_util::future::BoxFuture;

pub use settings::{PoolSettings, Unavailable, WhenEmpty};

/// The source of a pool's guests.
#[derive(Clone)]
pub enum Source {
    /// They are forked from a zygote, which this starts.
    Zygote(Arc<dyn ZygoteLauncher>),
    /// Each guest is a new process with its own memory layout, started by this launcher.
    Fresh(Arc<dyn Launcher>),
}

impl Source {
    /// The most guests that are made at the same time. A guest's making waits now and then, and that of a container mostly waits.
    fn at_once(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get).clamp(2, 8);
        match self {
            Self::Fresh(launcher) if launcher.kind() == BackendKind::Docker => 2 * processors,
            _ => processors,
        }
    }
}

/// The counts of a pool.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStats {
    /// Spares that wait now.
    pub spares: usize,
    /// The wanted number of spares.
    pub level: usize,
    /// Guests made.
    pub made: u64,
    /// Guests taken.
    pub acquired: u64,
    /// Requests that found the pool empty.
    pub empty: u64,
    /// Requests refused because the pool was empty.
    pub refused: u64,
    /// Guests started cold because the pool was empty.
    pub cold: u64,
    /// Spares that died.
    pub died: u64,
    /// Guests that could not be made.
    pub failed: u64,
    /// The reason why the last guest could not be made or died at once. `None` after the next success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Zygotes started.
    pub zygotes: u64,
    /// Milliseconds until the last zygote was ready.
    pub warmup_ms: f64,
    /// Milliseconds to make the last guest.
    pub make_ms: f64,
}

/// Upper bounds of the histogram of acquisition times, in seconds.
const BOUNDS: [f64; 10] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.01, 0.05, 0.25, 1.0, 5.0];
/// The interval at which the pool is looked after when nobody wants anything.
const TICK: Duration = Duration::from_secs(1);
/// The pause before a taken spare is replaced, while others wait. The replacement would take a processor from the taken guest.
const HEAD_START: Duration = Duration::from_millis(25);
/// The age below which a zygote is not replaced for a failed fork.
const MIN_AGE: Duration = Duration::from_secs(60);
/// The pause after a guest that could not be made, or a spare that died.
const PAUSE: Duration = Duration::from_millis(500);

/// A pool of spares; see the [module](self). A task keeps it filled until it is dropped.
pub struct Pool {
    shared: Arc<Shared>,
}

struct Shared {
    settings: PoolSettings,
    source: Source,
    /// The launcher of guests that are started because the pool is empty.
    cold: Arc<dyn Launcher>,
    state: Mutex<State>,
    /// The lock to start a zygote, with the time and the error of the last failed start.
    starting: AsyncMutex<Option<(Instant, Error)>>,
    /// Held for reading by each spare in the making.
    making: RwLock<()>,
    /// True once nobody can ask for a guest any more.
    is_dropped: AtomicBool,
    wanted: Notify,
    arrived: Notify,
    empty: AtomicU64,
    /// The seconds that each acquisition took.
    acquisitions: Histogram,
}

#[derive(Default)]
struct State {
    spares: VecDeque<Guest>,
    zygote: Option<Arc<Zygote>>,
    level: usize,
    has_ended: bool,
    calm_since: Option<Instant>,
    /// The reason why the last guest could not be made; `None` after the next success.
    failure: Option<Error>,
    /// The error of the last spare that died; `None` after the next spare that lives.
    death: Option<Error>,
    stats: PoolStats,
}

impl State {
    /// Counts a guest that was made or could not be made.
    fn note(&mut self, begin: Instant, made: &Result<Guest, Error>) {
        match made {
            Ok(_) => {
                self.failure = None;
                self.stats.made += 1;
                self.stats.make_ms = ms(begin.elapsed());
            }
            Err(error) => {
                self.stats.failed += 1;
                self.failure = Some(error.clone());
            }
        }
    }

    /// Counts a spare that died. The next one may die too.
    fn bury(&mut self, exit: &Exit) {
        self.stats.died += 1;
        self.death = Some(Error::BootFailed(format!("a guest that waited has ended: {exit}")));
    }

    /// Notes that a guest lives, so the next ones may live too.
    fn recover(&mut self) {
        self.failure = None;
        self.death = None;
    }

    /// The problem, if the pool has no spare and keeps trying to make one. So callers need not try too. `None` if the pool wants no
    /// spares, has ended or has a spare: then each caller tries, and its success shows that the problem is over.
    fn lasting_problem(&self) -> Option<&Error> {
        let is_tried = self.level > 0 && self.spares.is_empty() && !self.has_ended;
        self.problem().filter(|_| is_tried)
    }

    /// The reason why no further guest may be possible.
    fn problem(&self) -> Option<&Error> {
        self.failure.as_ref().or(self.death.as_ref())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Pool")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Makes a pool, which begins to fill. `cold` starts guests for [`WhenEmpty::Cold`].
    pub fn new(source: Source, cold: Arc<dyn Launcher>, settings: PoolSettings) -> Self {
        let level = settings.min_spares.min(settings.max_spares);
        let shared = Arc::new(Shared {
            settings,
            source,
            cold,
            state: Mutex::new(State {
                level,
                ..State::default()
            }),
            starting: AsyncMutex::default(),
            making: RwLock::default(),
            is_dropped: AtomicBool::new(false),
            wanted: Notify::new(),
            arrived: Notify::new(),
            empty: AtomicU64::new(0),
            acquisitions: Histogram::new(BOUNDS),
        });
        tokio::spawn(look_after(Arc::downgrade(&shared)));
        Self { shared }
    }

    /// Waits until the pool has its wanted number of spares.
    ///
    /// # Errors
    /// The reason why they cannot be made, or [`Error::BackendUnavailable`] after `timeout`.
    pub async fn warm(&self, timeout: Duration) -> Result<(), Error> {
        let shared = &self.shared;
        let filled = async {
            loop {
                let arrived = shared.arrived.notified();
                {
                    let state = shared.state();
                    if state.spares.len() >= state.level {
                        return Ok(());
                    }
                    if let Some(error) = &state.failure {
                        return Err(error.clone());
                    }
                }
                let _ = tokio::time::timeout(TICK, arrived).await;
            }
        };
        tokio::time::timeout(timeout, filled).await.unwrap_or_else(|_| {
            Err(Error::BackendUnavailable(format!(
                "the pool of guests was not full after {} s",
                timeout.as_secs()
            )))
        })
    }

    /// Takes a guest that nobody has used. Dropping this future gives up.
    ///
    /// # Errors
    /// [`Unavailable::Empty`] when there is no spare and the settings refuse to wait, or none comes in time.
    pub async fn acquire(&self) -> Result<Guest, Unavailable> {
        let begin = Instant::now();
        let guest = self.shared.acquire(begin).await?;
        self.shared.acquired(begin.elapsed());
        Ok(guest)
    }

    /// A guest with one of the workspaces that the zygote sees. It is forked now, because spares have no workspace.
    ///
    /// # Errors
    /// The reason why there is none. [`Error::BackendUnavailable`] without a zygote. While no guest can be made at all, this
    /// error comes at once; the pool itself tries again.
    pub async fn acquire_with_workspace(&self, workspace: &str) -> Result<Guest, Error> {
        self.acquire_forked(Some(workspace), false).await
    }

    /// A guest that makes copies of itself, with one of the workspaces that the zygote sees if one is named. It is forked now, because
    /// spares make no copies.
    ///
    /// # Errors
    /// As [`Pool::acquire_with_workspace`].
    pub async fn acquire_with_copies(&self, workspace: Option<&str>) -> Result<Guest, Error> {
        self.acquire_forked(workspace, true).await
    }

    async fn acquire_forked(&self, workspace: Option<&str>, copies: bool) -> Result<Guest, Error> {
        let has_workspaces = workspace.is_none() || self.has_workspaces();
        let (true, Source::Zygote(launcher)) = (has_workspaces, &self.shared.source) else {
            return Err(Error::BackendUnavailable(
                "guests of this pool have no workspaces".to_owned(),
            ));
        };
        if let Some(why) = self.shared.state().lasting_problem() {
            return Err(why.clone());
        }
        let begin = Instant::now();
        let forked = self.shared.fork(launcher, workspace, copies).await;
        let mut state = self.shared.state();
        state.note(begin, &forked);
        if forked.is_ok() {
            state.recover();
        }
        drop(state);
        forked
    }

    /// Counts a guest that was started cold because this pool was empty.
    pub fn went_cold(&self) {
        self.shared.state().stats.cold += 1;
    }

    /// Ends all spares, and makes no more. Dropping the pool also ends them, but later.
    pub async fn end(&self) {
        let shared = &self.shared;
        shared.state().has_ended = true;
        shared.end_spares().await;
        // A spare in the making becomes one of the waiting spares, and is then ended with them.
        let _none = shared.making.write().await;
        shared.end_spares().await;
    }

    /// Returns true when guests of this pool can make copies of themselves. Only forked guests can.
    pub fn has_copies(&self) -> bool {
        matches!(&self.shared.source, Source::Zygote(_))
    }

    /// Returns true when guests of this pool can have workspaces. Only forked guests can.
    pub fn has_workspaces(&self) -> bool {
        matches!(&self.shared.source, Source::Zygote(launcher) if launcher.has_workspaces())
    }

    /// The histogram of the seconds that it took to get a guest, for metrics.
    pub fn acquisitions(&self) -> &Histogram {
        &self.shared.acquisitions
    }

    /// The counts so far.
    pub fn stats(&self) -> PoolStats {
        let state = self.shared.state();
        PoolStats {
            spares: state.spares.len(),
            level: state.level,
            empty: self.shared.empty.load(Ordering::Relaxed),
            problem: state.problem().map(ToString::to_string),
            ..state.stats.clone()
        }
    }
}

impl Launcher for Pool {
    fn kind(&self) -> BackendKind {
        self.shared.cold.kind()
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        Box::pin(async { Ok(self.acquire().await?) })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Release);
        self.shared.wanted.notify_one(); // wakes the task that fills the pool, which then ends
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire(&self, begin: Instant) -> Result<Guest, Unavailable> {
        let mut found_none = false;
        loop {
            let arrived = self.arrived.notified();
            if let Some(guest) = self.take() {
                return Ok(guest);
            }
            if !found_none {
                found_none = true;
                self.empty.fetch_add(1, Ordering::Relaxed);
                let mut state = self.state();
                state.level = (state.level * 2).clamp(1, self.settings.max_spares.max(1));
            }
            self.wanted.notify_one();
            let when_empty = match self.settings.when_empty {
                // The pool may never have another spare.
                WhenEmpty::Wait if self.state().problem().is_some() => WhenEmpty::Cold,
                when_empty => when_empty,
            };
            match when_empty {
                WhenEmpty::Refuse => {
                    self.state().stats.refused += 1;
                    let why = self.state().problem().map(|why| format!(" ({why})"));
                    return Err(Unavailable::Empty(format!(
                        "no guest is ready{}",
                        why.unwrap_or_default()
                    )));
                }
                WhenEmpty::Cold => {
                    self.state().stats.cold += 1;
                    return Ok(self.cold.launch().await?);
                }
                WhenEmpty::Wait => {}
            }
            let left = self.settings.max_wait.saturating_sub(begin.elapsed());
            if tokio::time::timeout(left, arrived).await.is_err() {
                return Err(Unavailable::Empty(format!(
                    "no guest was ready within {} s",
                    self.settings.max_wait.as_secs()
                )));
            }
        }
    }

    fn take(&self) -> Option<Guest> {
        let mut state = self.state();
        while let Some(mut guest) = state.spares.pop_front() {
            if let Some(exit) = guest.exit() {
                state.bury(&exit);
            } else {
                state.recover();
                state.calm_since = Some(Instant::now());
                drop(state);
                self.wanted.notify_one();
                return Some(guest);
            }
        }
        None
    }

    fn acquired(&self, took: Duration) {
        self.state().stats.acquired += 1;
        self.acquisitions.observe(took.as_secs_f64());
    }

    /// The zygote, if it lives and is not too old.
    fn fit_zygote(&self) -> Option<Arc<Zygote>> {
        let settings = &self.settings;
        let is_fit = |zygote: &&Arc<Zygote>| {
            !zygote.is_dead() && zygote.age() < settings.max_zygote_age && zygote.forks() < settings.max_zygote_forks
        };
        self.state().zygote.as_ref().filter(is_fit).cloned()
    }

    /// A zygote that lives and is not too old. Callers during a start wait for that zygote or its error.
    async fn zygote(&self, launcher: &Arc<dyn ZygoteLauncher>) -> Result<Arc<Zygote>, Error> {
        if let Some(zygote) = self.fit_zygote() {
            return Ok(zygote);
        }
        let begin = Instant::now();
        let mut failed = self.starting.lock().await;
        if let Some(zygote) = self.fit_zygote() {
            return Ok(zygote);
        }
        if let Some((at, why)) = &*failed
            && *at > begin
        {
            return Err(why.clone());
        }
        let begin = Instant::now();
        let zygote = match launcher.launch().await {
            Ok(zygote) => zygote,
            Err(why) => {
                *failed = Some((Instant::now(), why.clone()));
                return Err(why);
            }
        };
        let mut state = self.state();
        state.stats.zygotes += 1;
        state.stats.warmup_ms = ms(begin.elapsed());
        state.zygote = Some(Arc::clone(&zygote));
        Ok(zygote)
    }

    async fn make(&self) -> Result<Guest, Error> {
        match &self.source {
            Source::Fresh(launcher) => launcher.launch().await,
            Source::Zygote(launcher) => self.fork(launcher, None, false).await,
        }
    }

    async fn fork(
        &self,
        launcher: &Arc<dyn ZygoteLauncher>,
        workspace: Option<&str>,
        copies: bool,
    ) -> Result<Guest, Error> {
        let zygote = self.zygote(launcher).await?;
        let forked = zygote.fork(&self.settings.resources, workspace, copies).await;
        if forked.is_err() {
            self.give_up(&zygote);
        }
        forked
    }

    /// Replaces a zygote that is at fault, but not repeatedly when a new one would fail too.
    fn give_up(&self, zygote: &Arc<Zygote>) {
        let mut state = self.state();
        if zygote.is_at_fault()
            && zygote.age() >= MIN_AGE
            && state
                .zygote
                .as_ref()
                .is_some_and(|current| Arc::ptr_eq(current, zygote))
        {
            state.zygote = None;
        }
    }

    async fn end_spares(&self) {
        let spares = std::mem::take(&mut self.state().spares);
        futures_util::future::join_all(spares.into_iter().map(Guest::end)).await;
    }

    /// Buries spares that have died, and lets the number of spares fall in a calm time. Returns true when a spare had died.
    fn tidy(&self) -> bool {
        let mut state = self.state();
        let died = state.stats.died;
        for mut guest in std::mem::take(&mut state.spares) {
            match guest.exit() {
                None => state.spares.push_back(guest),
                Some(exit) => state.bury(&exit),
            }
        }
        let some_died = state.stats.died > died;
        if !some_died && !state.spares.is_empty() {
            state.recover();
        }
        let now = Instant::now();
        if now.duration_since(*state.calm_since.get_or_insert(now)) >= self.settings.calm {
            state.calm_since = Some(now);
            if state.level > self.settings.min_spares {
                state.level -= 1;
                let level = state.level;
                state.spares.truncate(level);
            }
        }
        some_died
    }

    /// Returns true when the pool lacks a spare that could be made now, beside those in the making. While the last guest could not be
    /// made, one attempt at a time is enough.
    fn lacks_spare(&self, in_the_making: usize) -> bool {
        let state = self.state();
        let at_once = if state.failure.is_some() {
            1
        } else {
            self.source.at_once()
        };
        !state.has_ended && in_the_making < at_once && state.spares.len() + in_the_making < state.level
    }

    /// Makes one spare. Returns false if it could not be made.
    async fn make_spare(&self) -> bool {
        let _making = self.making.read().await;
        if self.state().has_ended {
            return true;
        }
        let begin = Instant::now();
        let made = self.make().await;
        let mut state = self.state();
        let before = state.failure.clone();
        state.note(begin, &made);
        let is_made = match made {
            Ok(guest) => {
                state.spares.push_back(guest.waited());
                true
            }
            Err(error) => {
                // The pool tries twice a second. One line for each reason is enough.
                if before.as_ref() != Some(&error) {
                    tracing::warn!(%error, "a guest for the pool could not be made");
                }
                false
            }
        };
        drop(state);
        self.arrived.notify_waiters();
        is_made
    }
}

/// Keeps a pool filled, until it is dropped.
async fn look_after(pool: Weak<Shared>) {
    let mut making = FuturesUnordered::new();
    let mut was_full = false;
    let mut not_before = Instant::now();
    while let Some(shared) = pool.upgrade() {
        if shared.is_dropped.load(Ordering::Acquire) {
            return;
        }
        let some_died = shared.tidy();
        let now = Instant::now();
        if now >= not_before && shared.lacks_spare(making.len()) {
            if some_died {
                not_before = now + PAUSE;
            }
            if std::mem::take(&mut was_full) && !some_died && !shared.state().spares.is_empty() {
                let _ = tokio::time::timeout(HEAD_START, shared.wanted.notified()).await;
                continue;
            }
            let shared = Arc::clone(&shared);
            making.push(async move { shared.make_spare().await });
            continue;
        }
        was_full = making.is_empty() && now >= not_before;
        let rest = if now < not_before { not_before - now } else { TICK };
        tokio::select! {
            Some(is_made) = making.next() => if !is_made {
                not_before = Instant::now() + PAUSE; // even if a caller waits: a failed attempt is not repeated at once
            },
            _ = tokio::time::timeout(rest, shared.wanted.notified()) => {}
        }
    }
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}
