//! Spares: guests that start before requests need them, as the settings say.
//!
//! Decisions: `docs/internals/server.md`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use prometheus_client::metrics::histogram::Histogram;
use sandglass_core::Error;
use tokio::sync::OnceCell;

use super::errors::ApiError;
use super::settings::{ServeArgs, WarmArgs};
use futures_util::future::BoxFuture;
use sandglass_host::backend::{self, bubblewrap};
use sandglass_host::guest::isolated::CopyLimits;
use sandglass_host::launcher::Launcher;
use sandglass_host::pool::{Pool, PoolSettings, PoolStats, Source, Unavailable};
use sandglass_host::{BackendKind, Guest, Settings};

/// The server's pool, and the launchers for cold starts.
pub struct Warm {
    settings: Settings,
    backend: BackendKind,
    cold: OnceCell<Arc<dyn Launcher>>,
    pool: OnceCell<Option<Arc<Pool>>>,
    args: Option<WarmArgs>,
    workspaces: Option<PathBuf>,
    warmup: Duration,
}

impl std::fmt::Debug for Warm {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Warm")
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl Warm {
    /// Makes the pool of the settings, for guests with folders in `workspaces`. The pool starts with [`Warm::begin`], or when a
    /// guest is first needed.
    pub fn new(args: &ServeArgs, workspaces: Option<&Path>) -> Self {
        let mut settings = args.guest_settings();
        settings.resources = args.resources();
        Self {
            settings,
            backend: args.guest.backend,
            cold: OnceCell::new(),
            pool: OnceCell::new(),
            args: args.enabled.then(|| args.warm.clone()),
            workspaces: workspaces.map(Path::to_owned),
            warmup: Duration::from_secs_f64(args.boot_timeout_seconds),
        }
    }

    /// The launcher of guests without a pool.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] says why there is none.
    pub async fn cold(&self) -> Result<Arc<dyn Launcher>, Error> {
        let made = self
            .cold
            .get_or_try_init(|| backend::launcher(self.backend, &self.settings));
        made.await.map(Arc::clone)
    }

    /// A launcher with the guest for one stateless run, from the pool if there is one.
    ///
    /// # Errors
    /// 429 when the pool is empty and the settings refuse to wait; 503 when no guest can be had.
    pub async fn guest(&self) -> Result<Arc<dyn Launcher>, ApiError> {
        let Some(pool) = self.pool().await? else {
            return Ok(self.cold().await?);
        };
        let guest = pool.acquire().await.map_err(|why| match why {
            Unavailable::Empty(_) => {
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "pool_empty", why.to_string()).retry_after(1)
            }
            Unavailable::Failed(error) => error.into(),
        })?;
        Ok(Arc::new(Claimed {
            guest: Mutex::new(Some(guest)),
            pool,
        }))
    }

    /// A launcher for a session with these settings and this workspace, a folder `USER/SESSION` below the pool's workspaces.
    /// `None` when the pool has no such guests.
    ///
    /// # Errors
    /// As [`Warm::cold`].
    pub async fn launcher_for(
        &self,
        backend: BackendKind,
        settings: &Settings,
        workspace: Option<&str>,
    ) -> Result<Option<Arc<dyn Launcher>>, Error> {
        if backend != self.backend || settings.resources != self.settings.resources {
            return Ok(None);
        }
        Ok(match (self.pool().await?, workspace) {
            (None, _) => None,
            (Some(pool), Some(_)) if !pool.has_workspaces() => None,
            (Some(pool), _) if settings.checkpoints > 0 && !pool.has_copies() => None,
            (Some(pool), None) if settings.checkpoints == 0 => Some(pool),
            (Some(pool), workspace) => Some(Arc::new(ForkedNow {
                pool,
                workspace: workspace.map(str::to_owned),
                cold: settings.clone(),
            })),
        })
    }

    /// Starts the pool, so that it is filled before the first request.
    pub async fn begin(&self) {
        if let Err(error) = self.pool().await {
            tracing::warn!(%error, "there is no pool of guests");
        }
    }

    /// Ends all spares.
    pub async fn end(&self) {
        if let Some(Some(pool)) = self.pool.get() {
            pool.end().await;
        }
    }

    /// The counts of the pool, when there is one.
    pub fn stats(&self) -> Option<PoolStats> {
        self.pool.get()?.as_ref().map(|pool| pool.stats())
    }

    /// The histogram of the times to get a guest, when there is a pool.
    pub fn acquisitions(&self) -> Option<&Histogram> {
        Some(self.pool.get()?.as_ref()?.acquisitions())
    }

    async fn pool(&self) -> Result<Option<Arc<Pool>>, Error> {
        let made = self.pool.get_or_try_init(async || match &self.args {
            Some(args) if args.max_spares > 0 => self.make(args).await.map(|pool| Some(Arc::new(pool))),
            _ => Ok(None),
        });
        made.await.cloned()
    }

    async fn make(&self, args: &WarmArgs) -> Result<Pool, Error> {
        let cold = self.cold().await?;
        let settings = PoolSettings {
            min_spares: args.spares.min(args.max_spares),
            max_spares: args.max_spares,
            when_empty: args.when_empty,
            max_wait: self.warmup,
            max_zygote_age: Duration::from_secs_f64(args.zygote_max_age_seconds),
            max_zygote_forks: args.zygote_max_forks,
            resources: self.settings.resources,
            ..PoolSettings::default()
        };
        let preload: Vec<String> = args.preload.iter().map(|name| name.trim().to_owned()).collect();
        let preload = preload.into_iter().filter(|name| !name.is_empty()).collect();
        let source = if cold.kind() == BackendKind::Bubblewrap && !args.fresh_exec {
            let workspaces = self.workspaces.as_deref();
            Source::Zygote(bubblewrap::zygote_launcher(&self.settings, preload, workspaces, self.warmup).await?)
        } else {
            let settings = Settings {
                preload,
                ..self.settings.clone()
            };
            Source::Fresh(backend::launcher(cold.kind(), &settings).await?)
        };
        Ok(Pool::new(source, cold, settings))
    }
}

/// A guest from a pool, and the launcher of its replacement if it is already dead.
struct Claimed {
    guest: Mutex<Option<Guest>>,
    pool: Arc<Pool>,
}

impl Launcher for Claimed {
    fn kind(&self) -> BackendKind {
        self.pool.kind()
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        let guest = self.guest.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async {
            match guest {
                Some(guest) => Ok(guest),
                None => self.pool.launch().await,
            }
        })
    }
}

/// A launcher for a session with a workspace or checkpoints: the pool, whose spares have neither, and the settings of a guest without the
/// pool.
struct ForkedNow {
    pool: Arc<Pool>,
    workspace: Option<String>,
    cold: Settings,
}

impl Launcher for ForkedNow {
    fn kind(&self) -> BackendKind {
        self.pool.kind()
    }

    fn checkpoints(&self) -> u32 {
        self.cold.checkpoints
    }

    fn copy_limits(&self) -> Option<CopyLimits> {
        (self.kind() == BackendKind::Bubblewrap).then(|| bubblewrap::copy_limits(&self.cold))?
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        Box::pin(async {
            let forked = match (self.cold.checkpoints, &self.workspace) {
                (0, Some(workspace)) => self.pool.acquire_with_workspace(workspace).await,
                (0, None) => return self.pool.launch().await,
                (_, workspace) => self.pool.acquire_with_copies(workspace.as_deref()).await,
            };
            let why = match forked {
                Err(why @ Error::BootFailed(_)) => why,
                forked => return forked,
            };
            tracing::warn!(%why, "a guest could not be forked: it is started cold");
            self.pool.went_cold();
            backend::launcher(self.kind(), &self.cold).await?.launch().await
        })
    }
}
