//! Helpers that the tests share.

use std::time::{Duration, Instant};

use bollard::Docker;
use sandglass_host::{BackendKind, Execution, Limits, Sandbox, SandboxBuilder, Value, engine, image};

/// The time after which a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs every test on both backends.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod on_subprocess {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                $crate::support::soon(super::$name(sandglass_host::BackendKind::Subprocess)).await;
            })*
        }
        mod on_bubblewrap {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                $crate::support::soon(super::$name(sandglass_host::BackendKind::Bubblewrap)).await;
            })*
        }
    };
}
pub(crate) use on_both;

/// The result of a future that must end.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE * 2, future)
        .await
        .expect("it goes on and on")
}

/// A sandbox builder whose timeouts suit a busy machine.
pub fn builder(backend: BackendKind) -> SandboxBuilder {
    Sandbox::builder().backend(backend).limits(limits())
}

/// Docker's engine, which must have the image of these tests' guests.
pub async fn docker_engine() -> Docker {
    let docker = engine::connect().await;
    let docker = docker.expect("these tests need Docker's engine: scripts/setup installs and starts it");
    let is_there = image::has_image(&docker, image::BASE)
        .await
        .expect("an answer of the engine");
    assert!(
        is_there,
        "Docker's engine has no image {}: scripts/setup makes it",
        image::BASE
    );
    docker
}

pub fn limits() -> Limits {
    Limits {
        timeout_ms: 60_000.0,
        grace_period_ms: 30_000.0,
        ..Limits::default()
    }
}

/// A sandbox with the context "the context".
pub async fn sandbox(backend: BackendKind) -> Sandbox {
    with_context(builder(backend)).await
}

pub async fn with_context(builder: SandboxBuilder) -> Sandbox {
    let sandbox = builder.build().await.expect("a sandbox");
    sandbox.initialize("the context").await.expect("a guest");
    sandbox
}

/// Runs code that must succeed.
pub async fn ran(sandbox: &Sandbox, code: &str) -> Execution {
    let run = sandbox.execute(code).await.expect("an execution");
    assert_eq!(run.error, None, "{code}\n{:?}", run.traceback);
    run
}

/// The value of a variable, which must exist.
pub async fn variable(sandbox: &Sandbox, name: &str) -> Value {
    sandbox
        .get_variable(name)
        .await
        .expect("an answer")
        .expect("a variable")
}

/// Waits until a condition holds.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A word that no other process has in its command line.
pub fn token() -> String {
    format!("{}{:09}", std::process::id(), getrandom())
}

fn getrandom() -> u32 {
    sandglass_host::guest::epoch().expect("random numbers") % 1_000_000_000
}

/// The number of processes on this machine with the word in their command line.
pub fn processes_with(token: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(token))
        .count()
}

/// Code that starts a process that would run for hours, and another one that has left its parents.
pub fn starts_processes(token: &str) -> String {
    format!(
        "import os, subprocess, sys, time
sleeper = [sys.executable, '-S', '-c', 'import time; time.sleep(9999)', '{token}']
children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
"
    )
}
