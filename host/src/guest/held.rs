//! Paused copies that make no step while a guest runs that does not come from them.
//!
//! Code of the user may have handed over a process of its own as a paused copy. A signal stops such a process only until another one continues
//! it: that of a timer, or of the end of a process. So the host traces it, and a traced process goes on only when its tracer lets it.
//!
//! A host that may not trace its guests' processes relies on the signal alone, as one that is not root does with plain processes. The host learns
//! that from the beginning, which has run none of the user's code.

use std::io::{self, PipeReader, PipeWriter, Read, pipe};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::oneshot;

use super::process::{ends_within, process_of};
use super::traced::Traced;
use crate::procfs::is_stopped;

/// The time for processes to stop, or to be let go.
const WITHIN: Duration = Duration::from_secs(5);

/// Processes that make no step. Dropping it lets them go, stopped by a signal.
pub(super) struct Held {
    processes: Arc<[OwnedFd]>,
    /// Closing it lets the processes go.
    go: Option<PipeWriter>,
    are_stopped: oneshot::Receiver<bool>,
    are_let_go: oneshot::Receiver<()>,
}

impl Held {
    /// Begins to stop these processes. The user's code has not changed `beginning`, which is none of them.
    pub(super) fn begin(processes: Vec<OwnedFd>, beginning: Option<OwnedFd>) -> io::Result<Self> {
        let (waits, go) = pipe()?;
        let (stopped, are_stopped) = oneshot::channel();
        let (let_go, are_let_go) = oneshot::channel();
        let processes: Arc<[OwnedFd]> = processes.into();
        let its = Arc::clone(&processes);
        let trace = move || {
            let held = match may_trace(beginning.as_ref()) {
                true => hold(&its),
                false => Ok(Vec::new()),
            };
            let _ = stopped.send(held.is_ok());
            let held = until_let_go(held.unwrap_or_default(), waits);
            held.into_iter().for_each(|(traced, _)| drop(traced.let_go_stopped()));
            let _ = let_go.send(());
        };
        // A thread of its own, because a tracer is a thread, and waits.
        let thread = thread::Builder::new().name("sandglass-hold".to_owned());
        thread.spawn(trace)?;
        Ok(Self {
            processes,
            go: Some(go),
            are_stopped,
            are_let_go,
        })
    }

    /// Waits until none of them makes a step. Those that cannot be stopped end. Returns false if one does not even end.
    pub(super) async fn stopped(&mut self) -> bool {
        wait(&self.processes, &mut self.are_stopped).await.unwrap_or(false)
    }

    /// Lets them go, stopped by a signal.
    pub(super) async fn let_go(&mut self) {
        self.go = None;
        wait(&self.processes, &mut self.are_let_go).await;
    }
}

/// Waits for the thread that traces. Processes that do not stop end: one may wait in the kernel for another one.
async fn wait<T>(processes: &[OwnedFd], done: &mut oneshot::Receiver<T>) -> Option<T> {
    loop {
        if let Ok(done) = tokio::time::timeout(WITHIN, &mut *done).await {
            return done.ok();
        }
        let moving = processes
            .iter()
            .filter(|process| !process_of(process).is_some_and(is_stopped));
        for process in moving {
            let _ = pidfd_send_signal(process, Signal::KILL); // it may be gone already
        }
    }
}

/// Returns true if the host may trace its guests' processes. Code of the user cannot keep it from tracing the beginning.
fn may_trace(beginning: Option<&OwnedFd>) -> bool {
    let Some(beginning) = beginning else { return true };
    match Traced::seize(beginning).and_then(Traced::let_go_stopped) {
        Err(error) if !ends_within(beginning, Duration::ZERO) => {
            tracing::debug!(%error, "paused copies are not held");
            false
        }
        _ => true,
    }
}

/// Has these processes stop. One with several threads ends, as only one is traced; so does one that cannot be traced.
///
/// # Errors
/// One does not end.
fn hold(processes: &[OwnedFd]) -> io::Result<Vec<(Traced, &OwnedFd)>> {
    let mut held = Vec::new();
    for process in processes {
        match Traced::seize(process) {
            Ok(traced) if is_stopped(traced.pid()) => held.push((traced, process)),
            _ => {
                let _ = pidfd_send_signal(process, Signal::KILL); // it may be gone already
                if !ends_within(process, WITHIN) {
                    return Err(io::Error::other("a paused copy does not end"));
                }
            }
        }
    }
    Ok(held)
}

/// Takes the ends of processes until the rest is to be let go. Returns the rest.
fn until_let_go(mut held: Vec<(Traced, &OwnedFd)>, mut waits: PipeReader) -> Vec<(Traced, &OwnedFd)> {
    loop {
        let ends = held.iter().map(|(_, process)| PollFd::new(*process, PollFlags::IN));
        let mut polled: Vec<_> = [PollFd::new(&waits, PollFlags::IN)].into_iter().chain(ends).collect();
        let is_polled = retry_on_intr(|| poll(&mut polled, None)).is_ok();
        let are_ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        if !is_polled {
            let _ = waits.read(&mut [0]); // until the other end is closed
            return held;
        }
        let mut are_ready = are_ready.into_iter();
        if are_ready.next() != Some(false) {
            return held;
        }
        held.retain(|_| are_ready.next() != Some(true));
    }
}
