//! Hostile code. Each list runs on every isolating backend.

mod exhaust;
mod forge;
mod reach;
mod traces;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_host::backend::{self, bubblewrap};
use sandglass_host::pool::{Pool, PoolSettings, Source};
use sandglass_host::{
    BackendKind, ExecuteOptions, Execution, Launcher, Limits, Outcome, Resources, Sandbox, SandboxBuilder, Settings,
    StateStatus, Value, image,
};

use crate::support::docker_engine;

/// The time after which a test gives up, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tests of these names, on a backend.
macro_rules! on {
    ($module:ident, $kind:expr, $($name:ident),+ $(,)?) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    super::$name($kind).await;
                }
            )+
        }
    };
}
use on;

/// Small resources, so that they are soon used up.
fn small() -> Resources {
    Resources {
        memory_bytes: 256 << 20,
        pids: 48,
        cpus: 1.0,
        open_files: 256,
        tmp_bytes: 16 << 20,
        disk_bytes: 32 << 20,
    }
}

/// The way in which the guest was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Started in bubblewrap.
    Bubblewrap,
    /// Forked from a zygote in bubblewrap.
    Forked,
    /// Started in a Docker container.
    Docker,
}

async fn described(kind: Kind) -> SandboxBuilder {
    let builder = Sandbox::builder().backend(BackendKind::Bubblewrap).resources(small());
    match kind {
        Kind::Bubblewrap => builder,
        Kind::Docker => {
            docker_engine().await;
            builder.backend(BackendKind::Docker).image(image::BASE)
        }
        Kind::Forked => {
            let settings = Settings {
                resources: small(),
                ..Settings::default()
            };
            let zygotes = bubblewrap::zygote_launcher(&settings, Vec::new(), None, PATIENCE).await;
            let cold = backend::launcher(BackendKind::Bubblewrap, &settings).await.unwrap();
            let few = PoolSettings {
                min_spares: 1,
                max_spares: 1,
                max_wait: PATIENCE,
                resources: small(),
                ..PoolSettings::default()
            };
            let pool: Arc<dyn Launcher> = Arc::new(Pool::new(Source::Zygote(zygotes.unwrap()), cold, few));
            builder.launcher(pool)
        }
    }
}

async fn sandbox(kind: Kind) -> Sandbox {
    let sandbox = described(kind).await.build().await.unwrap();
    sandbox.initialize(Value::None).await.unwrap();
    sandbox
}

/// Checks that there is no process except the guest and the first process of its namespace.
async fn assert_alone(sandbox: &Sandbox) {
    let others =
        "import os\n[name for name in os.listdir('/proc') if name.isdigit() and int(name) not in (1, os.getpid())]";
    assert_eq!(text(sandbox, others).await, "[]");
}

/// Runs code with this timeout, and the grace period.
async fn run_for(sandbox: &Sandbox, timeout_ms: f64, code: &str) -> Execution {
    let options = ExecuteOptions {
        timeout_ms: Some(timeout_ms),
        ..ExecuteOptions::default()
    };
    sandbox.execute_with(code, options).await.unwrap()
}

/// Runs code that must succeed. Returns its last expression as text.
async fn text(sandbox: &Sandbox, code: &str) -> String {
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(run.outcome, Outcome::Ok, "{code}: {run:?}");
    run.run.result.unwrap_or_default()
}

/// Checks that the sandbox works as before.
async fn assert_works(sandbox: &Sandbox) {
    let run = sandbox.execute("import sys\nprint('here')\n20 + 22").await.unwrap();
    assert_eq!(
        (run.outcome, run.stdout.as_str(), run.result.as_deref()),
        (Outcome::Ok, "here\n", Some("42")),
        "{run:?}"
    );
    assert_eq!(run.state.status, StateStatus::Kept);
}

/// Waits until a condition holds by itself.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
