//! The server's settings, from the command line or from variables of the environment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Uri;
use clap::ArgAction;
use clap::builder::{BoolishValueParser, TypedValueParser};

use super::access::{self, Keys, Origins};
use super::bodies::BodyLimits;
use super::quotas::Bounds;
use sandglass_host::args::{GuestArgs, ModelArgs, Secrets};
use sandglass_host::log::LogFormat;
use sandglass_host::pool::WhenEmpty;
use sandglass_host::{Kernels, Resources, Settings};

/// The modules that guests preload by default: those that data science uses most. Modules that are not installed are left out.
const PRELOAD: &str = "numpy,pandas,scipy.stats,scipy.optimize,scipy.interpolate,sklearn.linear_model,sklearn.tree,\
    sklearn.ensemble,sklearn.cluster,sklearn.preprocessing,sklearn.model_selection,sklearn.metrics,statsmodels.api,\
    matplotlib.pyplot,seaborn,cloudpickle,lz4.frame,\
    csv,datetime,collections,itertools,functools,math,random,re,json,statistics,decimal,fractions,textwrap,string,\
    hashlib,base64,io,pathlib,typing,dataclasses,asyncio,concurrent.futures,subprocess,urllib.parse,html,xml.etree.ElementTree";

/// Bytes of a MiB.
pub(super) const MIB: u64 = 1 << 20;

/// Options of `sandglass-host serve`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Address and port. Port 0 takes a free one. Any address except loopback needs keys.
    #[arg(long, env = "SANDGLASS_LISTEN", default_value = "127.0.0.1:8788")]
    pub listen: SocketAddr,
    /// The guests of sessions that name no backend.
    #[command(flatten)]
    pub guest: GuestArgs,
    /// The starter of guests in Jupyter kernels, handed in by the program.
    #[arg(skip)]
    pub kernels: Option<Arc<dyn Kernels>>,
    /// Let sessions choose plain processes, which isolate nothing. Use this for trusted code only.
    #[arg(long, env = "SANDGLASS_ALLOW_SUBPROCESS", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "Guests")]
    pub allow_subprocess: bool,
    /// Keep each session's files on disk, in DIR/KEY NAME/SESSION. Without DIR, files are in memory and gone with the guest.
    #[arg(long, env = "WORKSPACE_DIR", value_name = "DIR", help_heading = "Files on disk")]
    pub workspace_dir: Option<PathBuf>,
    /// Folders of ended sessions kept in DIR for each key; older ones are removed. A session that its client deletes is removed
    /// at once. 0 keeps none.
    #[arg(
        long,
        env = "SANDGLASS_KEPT_WORKSPACES",
        default_value_t = 20,
        value_name = "NUMBER",
        help_heading = "Files on disk"
    )]
    pub kept_workspaces: usize,
    /// Keep spares: guests that start before a request needs them. Without spares, each request starts its own guest, with the
    /// same results.
    #[arg(long, env = "REPL_ENABLED", action = ArgAction::Set, default_value = "true", value_parser = BoolishValueParser::new(), value_name = "BOOL", help_heading = "Spares")]
    pub enabled: bool,
    /// Seconds that a guest may take to start.
    #[arg(long, env = "REPL_WARMUP_TIMEOUT_SECONDS", default_value = "120", value_parser = seconds, help_heading = "Guests")]
    pub boot_timeout_seconds: f64,
    /// Seconds that the trial run of /health/detailed may take.
    #[arg(long, env = "REPL_HEALTH_CHECK_TIMEOUT_SECONDS", default_value = "10", value_parser = seconds, help_heading = "Guests")]
    pub health_timeout_seconds: f64,

    /// Spares, and stateless runs.
    #[command(flatten)]
    pub warm: WarmArgs,

    /// Suspended sessions.
    #[command(flatten)]
    pub suspend: SuspendArgs,

    /// A file with one key per line: `name key`, or only the key. The variable SANDGLASS_KEYS takes the same text.
    #[arg(long, env = "SANDGLASS_KEYS_FILE", value_name = "FILE", help_heading = "Access")]
    pub keys_file: Option<PathBuf>,
    /// An origin whose pages may send requests, such as https://app.example. Can be given several times. `*` means every page,
    /// and needs keys.
    #[arg(
        long,
        env = "SANDGLASS_ALLOW_ORIGIN",
        value_delimiter = ',',
        value_name = "ORIGIN",
        help_heading = "Access"
    )]
    pub allow_origin: Vec<String>,

    /// Sessions at the same time.
    #[arg(long, env = "SANDGLASS_MAX_SESSIONS", default_value_t = 100, help_heading = "Limits")]
    pub max_sessions: u64,
    /// Sessions of one key at the same time.
    #[arg(
        long,
        env = "SANDGLASS_MAX_SESSIONS_PER_KEY",
        default_value_t = 50,
        help_heading = "Limits"
    )]
    pub max_sessions_per_key: u64,
    /// Executions of one key that run or wait for their session.
    #[arg(
        long,
        env = "SANDGLASS_MAX_EXECUTIONS_PER_KEY",
        default_value_t = 32,
        help_heading = "Limits"
    )]
    pub max_executions_per_key: u64,
    /// Requests of one key per second. A burst may have twice as many.
    #[arg(long, env = "SANDGLASS_REQUESTS_PER_SECOND", default_value = "500", value_parser = rate, help_heading = "Limits")]
    pub requests_per_second: f64,
    /// Largest body of a request, in MiB.
    #[arg(long, env = "SANDGLASS_MAX_BODY_MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1024), help_heading = "Limits")]
    pub max_body_mib: u64,
    /// Bodies that arrive at the same time for one key, in MiB together.
    #[arg(long, env = "SANDGLASS_MAX_BODY_MIB_PER_KEY", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1 << 20), help_heading = "Limits")]
    pub max_body_mib_per_key: u64,
    /// Bodies that arrive at the same time, in MiB together.
    #[arg(long, env = "SANDGLASS_MAX_BODY_MIB_IN_ALL", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 20), help_heading = "Limits")]
    pub max_body_mib_in_all: u64,
    /// TCP connections at the same time. A new one replaces the connection that has been idle longest. If none is idle, it
    /// waits.
    #[arg(long, env = "SANDGLASS_MAX_CONNECTIONS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 20), help_heading = "Limits")]
    pub max_connections: u32,
    /// Most memory that a session can ask for, in MiB.
    #[arg(long, env = "SANDGLASS_MAX_MEMORY_MIB", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(64..=4096), help_heading = "Limits")]
    pub max_memory_mib: u64,
    /// Longest execution timeout that a session can ask for, in seconds.
    #[arg(long, env = "SANDGLASS_MAX_TIMEOUT_SECONDS", default_value = "3600", value_parser = seconds, help_heading = "Limits")]
    pub max_timeout_seconds: f64,

    /// Seconds after which an unused session ends.
    #[arg(long, env = "SANDGLASS_SESSION_IDLE_SECONDS", default_value = "1800", value_parser = seconds, help_heading = "Times")]
    pub session_idle_seconds: f64,
    /// Seconds for a client to send a request's head, and for a connection to stay silent between requests.
    #[arg(long, env = "SANDGLASS_HEAD_TIMEOUT_SECONDS", default_value = "15", value_parser = seconds, help_heading = "Times")]
    pub head_timeout_seconds: f64,
    /// Seconds for a client to send a request's body. At most a third of them may pass without a byte.
    #[arg(long, env = "SANDGLASS_BODY_TIMEOUT_SECONDS", default_value = "90", value_parser = seconds, help_heading = "Times")]
    pub body_timeout_seconds: f64,
    /// Seconds for which a client may take nothing of a response.
    #[arg(long, env = "SANDGLASS_WRITE_TIMEOUT_SECONDS", default_value = "60", value_parser = seconds, help_heading = "Times")]
    pub write_timeout_seconds: f64,
    /// Seconds for which a WebSocket may be silent. The server pings three times within them.
    #[arg(long, env = "SANDGLASS_CHANNEL_SILENCE_SECONDS", default_value = "90", value_parser = seconds, help_heading = "Times")]
    pub channel_silence_seconds: f64,
    /// Seconds for which a client that has lost its WebSocket can take it up again. Its sandboxes go on meanwhile. 0 ends them at
    /// once.
    #[arg(long, env = "SANDGLASS_RECONNECT_WITHIN", default_value = "60", value_parser = seconds_or_none, value_name = "SECONDS", help_heading = "Times")]
    pub reconnect_within: f64,
    /// Seconds for running requests to end after SIGTERM or SIGINT.
    #[arg(long, env = "SANDGLASS_SHUTDOWN_SECONDS", default_value = "20", value_parser = seconds, help_heading = "Times")]
    pub shutdown_seconds: f64,

    /// The model that answers `llm_query`.
    #[command(flatten)]
    pub model: ModelArgs,

    /// The form of the log. The variable RUST_LOG chooses its contents.
    #[arg(long, env = "SANDGLASS_LOG_FORMAT", default_value = "text", help_heading = "Log")]
    pub log_format: LogFormat,
}

/// Options of spares and of stateless runs (`POST /execute`).
#[derive(Debug, Clone, clap::Args)]
pub struct WarmArgs {
    /// Modules that guests import before they are needed; by default those that data science uses most, if installed.
    #[arg(long, env = "PRELOAD_MODULES", value_delimiter = ',', default_value = PRELOAD, hide_default_value = true, value_name = "MODULE", help_heading = "Spares")]
    pub preload: Vec<String>,
    /// Fewest spares.
    #[arg(long, env = "SANDGLASS_SPARES", default_value_t = 2, help_heading = "Spares")]
    pub spares: usize,
    /// Most spares. Their number follows demand. 0 disables spares.
    #[arg(long, env = "SANDGLASS_MAX_SPARES", default_value_t = 20, help_heading = "Spares")]
    pub max_spares: usize,
    /// The answer to a request if there is no spare: wait for one, start a guest for it, or refuse with status 429.
    #[arg(long, env = "SANDGLASS_WHEN_EMPTY", default_value = "wait", help_heading = "Spares")]
    pub when_empty: WhenEmpty,
    /// Seconds after which the zygote is replaced. A zygote is the process that forks guests.
    #[arg(long, env = "SANDGLASS_ZYGOTE_MAX_AGE_SECONDS", default_value = "3600", value_parser = seconds, help_heading = "Spares")]
    pub zygote_max_age_seconds: f64,
    /// Forks after which the zygote is replaced.
    #[arg(
        long,
        env = "SANDGLASS_ZYGOTE_MAX_FORKS",
        default_value_t = 10_000,
        help_heading = "Spares"
    )]
    pub zygote_max_forks: u64,
    /// Start every guest as a new process instead of a fork. This is slower, but no two guests share a memory layout.
    #[arg(long, env = "SANDGLASS_FRESH_EXEC", action = ArgAction::SetTrue, value_parser = BoolishValueParser::new(), help_heading = "Spares")]
    pub fresh_exec: bool,
    /// Seconds of guest time for a `POST /execute` that names no timeout.
    #[arg(long, env = "SANDGLASS_RUN_TIMEOUT_SECONDS", default_value = "30", value_parser = seconds, help_heading = "Stateless runs")]
    pub run_timeout_seconds: f64,
    /// Largest state of a `POST /execute`, in MiB before compression.
    #[arg(long, env = "STATE_MAX_SIZE_MB", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=1024), help_heading = "Stateless runs")]
    pub state_max_size_mb: u64,
}

/// Options of suspended sessions.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Suspended sessions")]
pub struct SuspendArgs {
    /// Keep the states of unused sessions in DIR, and end their guests. The next request wakes a session, on a later server as well.
    #[arg(long, env = "SANDGLASS_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The same in object storage, which several servers may share: `s3://BUCKET/PREFIX`, with settings from `AWS_*` variables.
    /// `file:///srv/states` is the same as `--state-dir /srv/states`.
    #[arg(long, env = "SANDGLASS_STATE_URL", value_name = "URL", conflicts_with = "state_dir")]
    pub state_url: Option<String>,
    /// The same in NATS JetStream, which several servers share: `nats://HOST[:PORT][,nats://HOST2…][/BUCKET]`, with `tls://` for TLS
    /// and `nats://USER:PASSWORD@HOST` for a login. Each server answers for the sessions of all. With `--state-url s3://…`, the large part of states is there instead.
    #[arg(
        long,
        env = "SANDGLASS_CLUSTER",
        hide_env_values = true,
        value_name = "URL",
        conflicts_with = "state_dir"
    )]
    pub cluster: Option<String>,
    /// A file of credentials for NATS, with a JWT and a seed.
    #[arg(
        long,
        env = "SANDGLASS_CLUSTER_CREDENTIALS",
        value_name = "FILE",
        requires = "cluster"
    )]
    pub cluster_credentials: Option<PathBuf>,
    /// Servers of NATS that keep each state, at least. With 3, one of them may fail.
    #[arg(long, env = "SANDGLASS_CLUSTER_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5).map(usize::from), value_name = "NUMBER")]
    pub cluster_replicas: usize,
    /// The URL at which other servers reach this one, to forward requests for its sessions. With `--cluster`, it is the address of
    /// `--listen` by default, if that is not loopback or if NATS is on this machine. With `--state-url s3://…`, nothing is forwarded without it.
    #[arg(long, env = "SANDGLASS_ADVERTISE", value_parser = server_url, value_name = "URL")]
    pub advertise: Option<String>,
    /// Seconds after which another server may take over the sessions of one that is silent.
    #[arg(long, env = "SANDGLASS_STATE_LEASE_SECONDS", default_value = "30", value_parser = lease_seconds, value_name = "SECONDS")]
    pub state_lease_seconds: f64,
    /// A file with the key that encrypts the states: 64 hexadecimal digits. The variable SANDGLASS_STATE_KEY takes the same text. By
    /// default, a new key is made in DIR/key. Servers that share states need one of the two.
    #[arg(long, env = "SANDGLASS_STATE_KEY_FILE", value_name = "FILE")]
    pub state_key_file: Option<PathBuf>,
    /// Seconds without use after which a session is suspended.
    #[arg(long, env = "SANDGLASS_SUSPEND_AFTER", default_value = "300", value_parser = seconds, value_name = "SECONDS")]
    pub suspend_after: f64,
    /// Seconds after which a suspended session is removed that nobody wakes.
    #[arg(long, env = "SANDGLASS_FORGET_AFTER", default_value = "2592000", value_parser = seconds, value_name = "SECONDS")]
    pub forget_after: f64,
    /// Suspended sessions.
    #[arg(
        long,
        env = "SANDGLASS_MAX_SUSPENDED",
        default_value_t = 10_000,
        value_name = "NUMBER"
    )]
    pub max_suspended: u64,
    /// Suspended sessions of one key.
    #[arg(
        long,
        env = "SANDGLASS_MAX_SUSPENDED_PER_KEY",
        default_value_t = 1_000,
        value_name = "NUMBER"
    )]
    pub max_suspended_per_key: u64,
    /// Largest state of a session with its files, in MiB. A session with a larger one is not suspended.
    #[arg(long, env = "SANDGLASS_MAX_SUSPENDED_MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=1024), value_name = "MIB")]
    pub max_suspended_mib: u64,
    /// States of one key's suspended sessions, in MiB together. Each counts as one at least.
    #[arg(long, env = "SANDGLASS_MAX_SUSPENDED_MIB_PER_KEY", default_value_t = 4_096, value_parser = clap::value_parser!(u64).range(1..=1 << 24), value_name = "MIB")]
    pub max_suspended_mib_per_key: u64,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.001..=1e7).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number of seconds above 0".to_owned()),
    }
}

fn lease_seconds(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        seconds if (1.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number of seconds from 1 to 3600".to_owned()),
    }
}

fn seconds_or_none(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(0.0) => Ok(0.0),
        _ => seconds(text),
    }
}

/// A URL of a server, without a path.
fn server_url(text: &str) -> Result<String, String> {
    let problem = || "must be http://HOST:PORT or https://HOST:PORT".to_owned();
    let url: Uri = text.parse().map_err(|_| problem())?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    match url.authority() {
        Some(authority)
            if is_http && !authority.as_str().contains('@') && url.path_and_query().is_none_or(|path| path == "/") =>
        {
            Ok(text.trim_end_matches('/').to_owned())
        }
        _ => Err(problem()),
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if (0.01..=1e9).contains(&rate) => Ok(rate),
        _ => Err("must be a number of requests above 0".to_owned()),
    }
}

impl ServeArgs {
    /// The keys of the file and of the environment, if any.
    ///
    /// # Errors
    /// A key is invalid, or the server would be open to other machines without keys.
    pub fn keys(&self, secrets: &Secrets) -> Result<Keys, String> {
        access::keys(self.keys_file.as_deref(), secrets, self.listen)
    }

    /// The origins whose pages may send requests.
    ///
    /// # Errors
    /// A text is no origin, or `*` is given without keys.
    pub fn origins(&self, keys: &Keys) -> Result<Origins, String> {
        access::origins(&self.allow_origin, keys)
    }

    /// The settings from which every session's backend plans.
    pub fn guest_settings(&self) -> Settings {
        Settings {
            allow_subprocess: self.allow_subprocess,
            kernels: self.kernels.clone(),
            ..self.guest.settings()
        }
    }

    /// A session's resources when its client names none.
    pub fn resources(&self) -> Resources {
        Resources {
            memory_bytes: self.max_memory_mib << 20,
            ..Resources::default()
        }
    }

    /// The time for which a client can reconnect; 0 if it cannot.
    pub fn reconnect_within(&self) -> Duration {
        Duration::from_secs_f64(self.reconnect_within)
    }

    /// The quotas.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            sessions: self.max_sessions,
            sessions_per_key: self.max_sessions_per_key,
            stored: self.suspend.max_suspended,
            stored_per_key: self.suspend.max_suspended_per_key,
            stored_mib_per_key: self.suspend.max_suspended_mib_per_key,
            executions_per_key: self.max_executions_per_key,
            // Some connections are left for everybody else.
            requests_per_key: u64::from(self.max_connections)
                .div_ceil(4)
                .saturating_mul(3)
                .min(u64::from(self.max_connections)),
            body_bytes: self.max_body_mib_in_all * MIB,
            body_bytes_per_key: self.max_body_mib_per_key * MIB,
            requests_per_second: self.requests_per_second,
        }
    }

    /// The limits of bodies.
    pub fn body_limits(&self) -> BodyLimits {
        BodyLimits {
            most_bytes: usize::try_from(self.max_body_mib * MIB).unwrap_or(usize::MAX),
            total: Duration::from_secs_f64(self.body_timeout_seconds),
            silence: Duration::from_secs_f64(self.body_timeout_seconds / 3.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        serve: ServeArgs,
    }

    fn args(args: &[&str]) -> ServeArgs {
        let all = std::iter::once("serve").chain(args.iter().copied());
        <Cli as clap::Parser>::try_parse_from(all)
            .unwrap_or_else(|error| panic!("{error}"))
            .serve
    }

    #[test]
    fn others_can_reach_it_only_with_keys() {
        let open = args(&["--listen", "0.0.0.0:80"]);
        assert!(open.keys(&Secrets::default()).unwrap_err().contains("no keys"));
        let secrets = Secrets {
            keys: Some("ann 0123456789abcdef".to_owned()),
            ..Secrets::default()
        };
        assert!(!open.keys(&secrets).unwrap().is_empty());
        assert!(
            args(&["--listen", "[::1]:80"])
                .keys(&Secrets::default())
                .unwrap()
                .is_empty()
        );
        let any = args(&["--allow-origin", "*"]);
        assert!(any.origins(&Keys::default()).unwrap_err().contains("needs keys"));
        assert!(any.origins(&any.keys(&secrets).unwrap()).unwrap().any());
    }

    #[test]
    fn keys_of_the_file_and_of_the_environment_hold() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "bob fedcba9876543210\n").unwrap();
        let secrets = Secrets {
            keys: Some("ann 0123456789abcdef".to_owned()),
            ..Secrets::default()
        };
        let keys = args(&["--keys-file", file.path().to_str().unwrap()])
            .keys(&secrets)
            .unwrap();
        assert_eq!(keys.owners().len(), 2);
        assert!(
            args(&["--keys-file", "/nowhere/at/all"])
                .keys(&secrets)
                .unwrap_err()
                .contains("cannot be read")
        );
        std::fs::write(file.path(), "# none\n").unwrap();
        assert!(Keys::from_file(file.path()).unwrap_err().contains("holds no keys"));
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        for bad in [
            ["--shutdown-seconds", "-1"],
            ["--head-timeout-seconds", "NaN"],
            ["--requests-per-second", "0"],
            ["--max-body-mib", "0"],
            ["--max-connections", "0"],
        ] {
            let all = std::iter::once("serve").chain(bad);
            assert!(<Cli as clap::Parser>::try_parse_from(all).is_err(), "{bad:?}");
        }
    }
}
