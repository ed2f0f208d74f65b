//! A container's life.

use std::fmt::Write;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as EngineError;
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptionsBuilder, LogsOptionsBuilder, WaitContainerOptionsBuilder,
};
use futures_util::StreamExt;
use sandglass_core::Killer;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::supervisor::remove;
use crate::cgroup::{Events, Watched};
use crate::engine::is_missing;
use crate::guest::{Exit, Hits, Process};
use futures_util::future::BoxFuture;

/// SIGKILL.
const KILLED: i32 = 9;
/// The tries and pauses when a silent engine is asked for the end of a container.
const ASKING: (u32, Duration) = (40, Duration::from_millis(250));
/// The tries and pauses when the engine is asked if a container was killed for lack of memory. Needed if its control group
/// cannot be seen. The engine may know this later than the end, or never.
const LOOKING: (u32, Duration) = (10, Duration::from_millis(50));
/// Lines of a guest's stray output that are quoted when the guest ends.
const TOLD_LINES: &str = "40";

/// A container. Dropping it removes the container with all its processes.
pub(super) struct Container {
    docker: Docker,
    id: String,
    limits: Option<Watched>,
    /// The connection to the first process. That process closes its side when the guest has ended, and exits when the host's
    /// side closes.
    watcher: Option<UnixStream>,
    /// The counts of the control group by then.
    counted: Option<Events>,
    was_killed: bool,
    exit: Option<Exit>,
}

impl Container {
    pub(super) fn new(docker: Docker, id: String) -> Self {
        Self {
            docker,
            id,
            limits: None,
            watcher: None,
            counted: None,
            was_killed: false,
            exit: None,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Notes that the guest runs. From now on `watcher` shows the guest's end, and the control group shows refused resources.
    pub(super) async fn runs(&mut self, watcher: UnixStream) {
        self.watcher = Some(watcher);
        let state = self
            .docker
            .inspect_container(&self.id, None::<InspectContainerOptions>)
            .await;
        let pid = state.ok().and_then(|found| found.state?.pid);
        self.limits = pid.and_then(|pid| u32::try_from(pid).ok()).and_then(Watched::of);
        if let Some(limits) = &self.limits {
            limits.bound_sockets();
        }
    }

    /// The end of the container. Can be dropped and called again.
    pub(super) async fn ended(&mut self) -> Exit {
        if let Some(exit) = &self.exit {
            return exit.clone();
        }
        if let Some(watcher) = &mut self.watcher {
            // The first process sends nothing on this connection, and only closes it.
            let _ = watcher.read(&mut [0]).await;
            self.counted = self.limits.as_ref().and_then(Watched::events);
            self.watcher = None;
        }
        let mut exit = exit(self.status().await);
        if exit.signal == Some(KILLED) {
            let was_out_of_memory = match self.counted {
                Some(counted) => counted.oom_kills > 0,
                None => !self.was_killed && self.was_out_of_memory().await,
            };
            if was_out_of_memory {
                exit.killer = Some(Killer::Oom);
            }
        }
        exit.stderr = self.said().await;
        self.exit = Some(exit.clone());
        exit
    }

    /// The container's exit status; `None` when the engine does not know the container any more.
    async fn status(&self) -> Option<i64> {
        let (times, pause) = ASKING;
        for _ in 0..times {
            let until = WaitContainerOptionsBuilder::default().condition("not-running").build();
            match self.docker.wait_container(&self.id, Some(until)).next().await {
                Some(Ok(end)) => return Some(end.status_code),
                Some(Err(EngineError::DockerContainerWaitError { code, .. })) => return Some(code),
                Some(Err(error)) if is_missing(&error) => return None,
                // An engine's long silence does not mean that the container has ended.
                Some(Err(EngineError::RequestTimeoutError)) | None => {}
                Some(Err(error)) => tracing::debug!(%error, "the engine does not say how a container ended"),
            }
            sleep(pause).await;
        }
        None
    }

    async fn was_out_of_memory(&self) -> bool {
        let (times, pause) = LOOKING;
        for _ in 0..times {
            let found = self
                .docker
                .inspect_container(&self.id, None::<InspectContainerOptions>)
                .await;
            match found.ok().and_then(|found| found.state?.oom_killed) {
                Some(false) => sleep(pause).await,
                found => return found.unwrap_or(false),
            }
        }
        false
    }

    /// The last lines of the container's own output.
    async fn said(&self) -> String {
        let options = LogsOptionsBuilder::default()
            .stdout(true)
            .stderr(true)
            .tail(TOLD_LINES)
            .build();
        let mut lines = self.docker.logs(&self.id, Some(options));
        let mut text = String::new();
        while let Some(Ok(line)) = lines.next().await {
            let _ = write!(text, "{line}");
        }
        text
    }

    /// Starts a request to the engine without waiting for its end.
    fn aside<F: Future<Output = ()> + Send + 'static>(&self, act: impl FnOnce(Docker, String) -> F) {
        // Without a runtime the process is ending. Then the channel closes, which ends the guest. The next supervisor removes
        // the container.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(act(self.docker.clone(), self.id.clone()));
        }
    }
}

impl Process for Container {
    fn kill(&mut self) {
        if self.exit.is_some() || self.was_killed {
            return;
        }
        self.was_killed = true;
        self.aside(|docker, id| async move {
            let signal = KillContainerOptionsBuilder::default().signal("SIGKILL").build();
            // The container may have ended by itself.
            if let Err(error) = docker.kill_container(&id, Some(signal)).await {
                tracing::debug!(%error, "a container was not killed");
            }
        });
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Box::pin(async move {
            let exit = self.ended().await;
            remove(&self.docker, &self.id).await;
            exit
        })
    }

    fn hits(&self) -> Hits {
        let now = || self.limits.as_ref().and_then(Watched::events);
        let events = self.counted.or_else(now).unwrap_or_default();
        Hits {
            oom: events.oom_kills,
            pids: events.pids_refused,
        }
    }

    fn exit_timeout(&self) -> Duration {
        // The engine notices and reports the end of a container slowly.
        Duration::from_secs(10)
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.aside(|docker, id| async move { remove(&docker, &id).await });
    }
}

/// The first process tells of the guest's end as shells do.
fn exit(status: Option<i64>) -> Exit {
    let status = status.and_then(|status| i32::try_from(status).ok());
    let signal = status
        .filter(|status| (129..=192).contains(status))
        .map(|status| status - 128);
    Exit {
        code: status.filter(|_| signal.is_none()),
        signal,
        killer: signal.map(|_| Killer::Signal),
        stderr: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_of_a_signal_as_shells_do() {
        let ended = exit(Some(137));
        assert_eq!(
            (ended.code, ended.signal, ended.killer),
            (None, Some(9), Some(Killer::Signal))
        );
        let ended = exit(Some(3));
        assert_eq!((ended.code, ended.signal, ended.killer), (Some(3), None, None));
        assert_eq!(exit(None), Exit::default());
    }
}
