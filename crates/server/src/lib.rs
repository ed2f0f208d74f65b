#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`settings`] | the operator's settings |
//! | [`access`] | keys, and checks of `Host` and `Origin` |
//! | [`quotas`] | limits of each key, and its request rate |
//! | [`connections`], [`write_timeout`] | TCP connections and their deadlines |
//! | `middleware`, `trace_context` | the checks that every request passes first; the trace that its client names, and its span |
//! | [`traces`] | the export of spans |
//! | [`routes`] | the table of routes and their handlers |
//! | [`bodies`] | request bodies and JSON, with limits and deadlines |
//! | [`sessions`] | all sessions, their places and their expiry |
//! | `attempt` | the time that guests have to hand their states over |
//! | `suspension`, `stored`, `suspending`, `waking` | states of sessions that nobody uses: the store, their form there, the way there, the way back |
//! | `places`, `sharing` | the store of states that the settings name, and the lease on one that other servers use, too |
//! | `kept`, `kept_sessions` | sandboxes whose executions outlive the server; those that are sessions over HTTP |
//! | `forwarding` | requests for sessions that another server has, and for new ones that this server does not take |
//! | `load`, `machine`, `placement` | what servers of one store tell each other of their work, and the server that takes new work |
//! | `draining` | the time before the end, in which other servers take over |
//! | `forking` | copies of sessions |
//! | `create` | the making of sessions |
//! | `new_session`, `listing`, `own_session`, `execute`, `pending`, `variables`, `files` | the routes of a session |
//! | `channel`, `relayed`, `pieces`, `exchanges`, `checkpoints` | the WebSocket relay between a page's supervisor and a guest |
//! | [`mcp`], `mcp_ids` | the Model Context Protocol, handed in by the program; the ids of its sessions |
//! | `rpc`, `releasing` | JSON-RPC on a WebSocket; names that other servers want |
//! | `sockets` | WebSockets, and conversations that outlive them, also those that another server holds |
//! | `stateless` | runs that leave nothing behind |
//! | `storage` | the folders of sessions on disk |
//! | `warm` | the pool of spares, and cold starts |
//! | [`llm`] | the model for `llm_query` |
//! | `health`, [`metrics`] | routes for operators |
//! | [`errors`] | the form of errors |

pub mod access;
mod attempt;
pub mod bodies;
mod channel;
mod checkpoints;
pub mod connections;
mod create;
mod draining;
pub mod errors;
mod exchanges;
mod execute;
mod files;
mod forking;
mod forwarding;
mod going_back;
mod health;
mod kept;
mod kept_sessions;
mod listing;
pub mod llm;
mod load;
mod machine;
pub mod mcp;
mod mcp_ids;
pub mod metrics;
mod middleware;
mod new_session;
mod own_session;
mod pending;
mod pieces;
mod placement;
mod places;
pub mod quotas;
mod relayed;
mod releasing;
mod replaying;
pub mod routes;
mod rpc;
pub mod sessions;
pub mod settings;
mod sharing;
mod sockets;
mod stateless;
mod storage;
mod stored;
mod suspending;
mod suspension;
mod trace_context;
pub mod traces;
mod variables;
mod waking;
mod warm;
pub mod write_timeout;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use access::{Keys, LOCAL, Origins};
use connections::Deadlines;
use llm::Llm;
use metrics::Metrics;
use quotas::Quotas;
pub use sandglass_host::args::Secrets;
use sandglass_host::log;
use sandglass_states::HomeId;
use sessions::Sessions;
pub use settings::ServeArgs;

/// The exit status after a second signal, as shells have it after an interrupt.
const TOLD_TWICE: u8 = 130;
/// The time for spares to end. Docker's engine is slow.
const SPARES_END: Duration = Duration::from_secs(10);
/// The time to suspend sessions whose requests did not end in time.
const LAST_SUSPENSIONS: Duration = Duration::from_secs(5);
/// The time for responses to leave after all guests have ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The state shared by all requests.
#[derive(Debug, Clone)]
pub struct App(Arc<Shared>);

/// The contents of [`App`].
#[derive(Debug)]
pub struct Shared {
    args: ServeArgs,
    keys: Keys,
    origins: Origins,
    quotas: Quotas,
    sessions: Sessions,
    lines: sockets::Lines,
    metrics: Metrics,
    llm: Option<Llm>,
    health: health::Checks,
    warm: warm::Warm,
    storage: Option<Arc<storage::Storage>>,
    suspension: Option<suspension::Suspension>,
    kept: kept::KeptSandboxes,
    forwarding: Option<forwarding::Forwarding>,
    loads: load::Loads,
    mcp: OnceLock<Arc<dyn mcp::Mcp>>,
    /// Executions that go on when their clients leave.
    outliving: metrics::Gauge,
    runs: stateless::Files,
    started: Instant,
    /// Cancelled when the server is told to end. It answers on until `ending`.
    draining: CancellationToken,
    ending: CancellationToken,
}

impl std::ops::Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Shared {
    /// Has quotas count what keys use on the other servers of the store as well.
    fn count_elsewhere(&self) -> Result<(), String> {
        let Some(suspension) = self.suspension.as_ref().filter(|suspension| suspension.is_shared()) else {
            return Ok(());
        };
        for account in self.quotas.accounts() {
            let tenant = suspension.tenant(&account.owner).map_err(|error| error.message)?;
            let (used, draining) = (suspension.states().used_elsewhere(tenant.id()), self.draining.clone());
            // A server that ends has to store its sessions, whatever the others have.
            account.counts(move || (!draining.is_cancelled()).then(&used));
        }
        Ok(())
    }

    /// Ends the sessions of the Model Context Protocol, if the program handed it in.
    fn end_mcp(&self) {
        if let Some(mcp) = self.mcp.get() {
            mcp.end();
        }
    }

    /// The home of this server, if others forward requests to it.
    fn home(&self) -> Option<HomeId> {
        self.suspension.as_ref()?.states().home()
    }
}

/// A server that listens. It answers once it is [run](Server::run).
#[derive(Debug)]
pub struct Server {
    app: App,
    listener: TcpListener,
}

impl Server {
    /// Checks the settings and opens the port.
    ///
    /// # Errors
    /// A setting is wrong, or the port cannot be opened.
    pub async fn bind(args: ServeArgs, secrets: Secrets) -> Result<Self, String> {
        let keys = args.keys(&secrets)?;
        let origins = args.origins(&keys)?;
        let llm = args.model.endpoint(secrets.llm_key.clone())?.map(Llm::new);
        let owners = if keys.is_empty() {
            vec![LOCAL.into()]
        } else {
            keys.owners()
        };
        let unheard = |error| format!("{} cannot be listened on: {error}", args.listen);
        let listener = TcpListener::bind(args.listen).await.map_err(unheard)?;
        let listen = listener.local_addr().map_err(unheard)?;
        let suspension = suspension::Suspension::open(&args, &secrets, &owners, listen)?;
        let storage = storage::Storage::open(&args)?;
        let warm = warm::Warm::new(&args, storage.as_ref().map(|storage| storage.workspaces().path()));
        if let Some(storage) = &storage {
            storage.check(&args, &warm).await?;
        }
        let home = suspension.as_ref().and_then(|suspension| suspension.states().home());
        let head_timeout = Duration::from_secs_f64(args.head_timeout_seconds);
        let forwarding = home.map(|_| forwarding::Forwarding::new(head_timeout)).transpose()?;
        let quotas = Quotas::new(owners.iter().cloned(), args.bounds());
        let (sessions, kept) = (
            Sessions::default(),
            kept::KeptSandboxes::new(args.suspend.max_suspended_mib_per_key * settings::MIB),
        );
        for account in owners.iter().filter_map(|owner| quotas.account(owner)) {
            if let Some(suspension) = &suspension {
                kept.load(suspension, &account)?;
            }
            let suspended = suspension.as_ref().map(|suspension| suspension.sessions(&account));
            for asleep in suspended.transpose()?.into_iter().flatten() {
                sessions.add_asleep(asleep);
            }
        }
        let app = App(Arc::new(Shared {
            quotas,
            sessions,
            lines: sockets::Lines::default(),
            metrics: Metrics::default(),
            health: health::Checks::default(),
            warm,
            storage,
            suspension,
            kept,
            forwarding,
            loads: load::Loads::default(),
            mcp: OnceLock::new(),
            outliving: metrics::Gauge::default(),
            runs: stateless::Files::default(),
            started: Instant::now(),
            args,
            keys,
            origins,
            llm,
            draining: CancellationToken::new(),
            ending: CancellationToken::new(),
        }));
        app.count_elsewhere()?;
        Ok(Self { app, listener })
    }

    /// Has the server answer the Model Context Protocol at `/mcp`. Only the first one counts.
    #[must_use]
    pub fn with_mcp(self, mcp: Arc<dyn mcp::Mcp>) -> Self {
        let _ = self.app.mcp.set(mcp);
        self
    }

    /// The listening address.
    ///
    /// # Errors
    /// The system does not tell the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `ended` is ready. Then other servers take over what they can, running requests get some time to end, and all guests are
    /// destroyed.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let Self { app, listener } = self;
        // Dropping this future ends the server too.
        let end = app.ending.clone().drop_guard();
        let seconds = Duration::from_secs_f64;
        let deadlines = Deadlines {
            head: seconds(app.args.head_timeout_seconds),
            write: seconds(app.args.write_timeout_seconds),
        };
        let accepting = connections::accept(
            listener,
            routes::router(app.clone()),
            app.args.max_connections,
            deadlines,
            app.metrics.connections.clone(),
            app.ending.clone(),
        );
        let accepting = tokio::spawn(accepting);
        let warming = {
            let app = app.clone();
            tokio::spawn(async move { app.warm.begin().await })
        };
        let expiring = tokio::spawn(sessions::expire(app.clone()));
        let suspending = tokio::spawn(suspending::run(app.clone()));
        let sharing = tokio::spawn(futures_util::future::join(
            sharing::run(app.clone()),
            load::run(app.clone()),
        ));
        ended.await;
        tracing::info!(
            sessions = app.quotas.sessions(),
            "shutting down: waiting for running requests"
        );
        let most = seconds(app.args.shutdown_seconds);
        let told = Instant::now();
        app.draining.cancel();
        // The other half is for what goes on here after the port is closed.
        if tokio::time::timeout(most / 2, draining::run(&app)).await.is_err() {
            tracing::warn!("other servers could not take all sessions over while this one answered");
        }
        let most = most.saturating_sub(told.elapsed());
        drop(end);
        for task in [expiring, warming] {
            task.abort();
            let _ = task.await;
        }
        let mut connections = accepting.await.unwrap_or_default();
        let requests_end = async {
            while connections.join_next().await.is_some() {}
            app.metrics.channels.none().await;
            app.outliving.none().await;
        };
        let sleep = async {
            let _ = suspending.await;
            suspending::suspend_idle(&app, Duration::ZERO).await;
            app.sessions.rest().await;
        };
        let (requests, idle) = tokio::join!(
            tokio::time::timeout(most, requests_end),
            tokio::time::timeout(most, sleep)
        );
        if requests.is_err() {
            tracing::warn!("requests did not end in time: they are ended");
        }
        let last = async {
            suspending::suspend_used(&app).await;
            app.sessions.rest().await;
        };
        let used = tokio::time::timeout(LAST_SUSPENSIONS, last).await;
        if used.is_err() {
            tracing::warn!("not all sessions could be suspended in time: the others end");
        }
        app.end_mcp();
        app.sessions.destroy_all().await;
        let answers_leave = async {
            while connections.join_next().await.is_some() {}
            app.metrics.channels.none().await;
        };
        let _ = tokio::time::timeout(LAST_WORDS, answers_leave).await;
        connections.shutdown().await;
        if tokio::time::timeout(SPARES_END, app.warm.end()).await.is_err() {
            tracing::warn!("guests that waited are not all gone yet: the next server removes what is left");
        }
        sharing.abort(); // until now, so that no other server took a session that was being suspended
        let _ = sharing.await;
        // Late answers of a driver may still hold the store for a moment.
        let freed = tokio::time::timeout(LAST_WORDS, app.kept.freed()).await;
        if let (Ok(()), Ok(()), Ok(())) = (idle, used, freed) {
            let app = app.clone();
            let _ = bodies::off_the_workers(move || app.suspension.as_ref().map(suspension::Suspension::release)).await;
        }
        tracing::info!("ended");
    }
}

/// Runs the command `serve`, with the Model Context Protocol, until a signal ends it. Returns the exit status: 0, or 130 when a second
/// signal ended the server at once.
///
/// # Errors
/// The server could not start.
pub async fn serve(args: ServeArgs, mcp: Arc<dyn mcp::Mcp>) -> Result<u8, String> {
    log::of_server(args.log_format);
    let secrets = Secrets::from_environment()?;
    let export = traces::Export::start()?;
    let watched = |kind| signal(kind).map_err(|error| format!("signals cannot be watched: {error}"));
    let (mut terminate, mut interrupt) = (watched(SignalKind::terminate())?, watched(SignalKind::interrupt())?);
    let server = Server::bind(args, secrets).await?.with_mcp(mcp);
    let address = server
        .address()
        .map_err(|error| format!("the port is not known: {error}"))?;
    let app = server.app.clone();
    if app.args.allow_subprocess {
        tracing::warn!("sessions may run in plain processes, which isolate nothing");
    }
    if app.keys.is_empty() {
        tracing::warn!("there are no keys: every program on this machine may run code here");
    }
    tracing::info!(%address, backend = %app.args.guest.backend, keys = ?app.keys, llm = ?app.llm.as_ref().map(|llm| &llm.endpoint), "listening");
    // Scripts read this line to learn the port.
    println!("listening on http://{address}");
    let mut told = async move || {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    let (tell, ended) = tokio::sync::oneshot::channel();
    let told_twice = async move {
        told().await;
        let _ = tell.send(());
        told().await;
    };
    let running = server.run(async {
        let _ = ended.await;
    });
    let status = tokio::select! {
        biased;
        () = told_twice => {
            tracing::warn!("told twice: ending at once");
            app.sessions.destroy_all().await;
            TOLD_TWICE
        }
        () = running => 0,
    };
    export.end().await;
    Ok(status)
}
