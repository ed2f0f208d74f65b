//! Paused copies that make no step while a guest runs that does not come from them.
//!
//! Code of the user may have handed over a process of its own as a paused copy. A signal stops such a process only until another one continues
//! it: that of a timer, or of the end of a process. So the host traces it, and a traced process goes on only when its tracer lets it.
//!
//! A host that may not trace its guests' processes, as one without privileges with Docker, relies on the signal alone.

use std::io::{self, PipeReader, PipeWriter, pipe};
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
    are_stopped: oneshot::Receiver<()>,
    are_let_go: oneshot::Receiver<()>,
}

impl Held {
    /// Begins to stop these processes.
    pub(super) fn begin(processes: Vec<OwnedFd>) -> io::Result<Self> {
        let (waits, go) = pipe()?;
        let (stopped, are_stopped) = oneshot::channel();
        let (let_go, are_let_go) = oneshot::channel();
        let processes: Arc<[OwnedFd]> = processes.into();
        let its = Arc::clone(&processes);
        // A thread of its own, because a tracer is a thread, and waits.
        thread::Builder::new()
            .name("sandglass-hold".to_owned())
            .spawn(move || {
                let held = hold(&its);
                let _ = stopped.send(());
                let held = until_let_go(held, &waits);
                held.into_iter().for_each(|(traced, _)| drop(traced.let_go_stopped()));
                let _ = let_go.send(());
            })?;
        Ok(Self {
            processes,
            go: Some(go),
            are_stopped,
            are_let_go,
        })
    }

    /// Waits until none of them makes a step. Those that cannot be stopped end.
    pub(super) async fn stopped(&mut self) {
        wait(&self.processes, &mut self.are_stopped).await;
    }

    /// Lets them go, stopped by a signal.
    pub(super) async fn let_go(mut self) {
        self.go = None;
        wait(&self.processes, &mut self.are_let_go).await;
    }
}

/// Waits for the thread that traces. Processes that do not stop end: one may wait in the kernel for another one.
async fn wait(processes: &[OwnedFd], done: &mut oneshot::Receiver<()>) {
    if tokio::time::timeout(WITHIN, &mut *done).await.is_ok() {
        return;
    }
    let moving = processes
        .iter()
        .filter(|process| !process_of(process).is_some_and(is_stopped));
    for process in moving {
        let _ = pidfd_send_signal(process, Signal::KILL); // it may be gone already
    }
    let _ = done.await;
}

/// Has these processes stop. Those with several threads end, as only one is traced.
fn hold(processes: &[OwnedFd]) -> Vec<(Traced, &OwnedFd)> {
    let mut held = Vec::new();
    for process in processes {
        match Traced::seize(process) {
            Ok(traced) if is_stopped(traced.pid()) => held.push((traced, process)),
            Ok(of_several) => drop(of_several),
            Err(error) if !ends_within(process, Duration::ZERO) => tracing::debug!(%error, "a paused copy is not held"),
            Err(_) => {}
        }
    }
    held
}

/// Takes the ends of processes until the rest is to be let go. Returns the rest.
fn until_let_go<'a>(mut held: Vec<(Traced, &'a OwnedFd)>, waits: &PipeReader) -> Vec<(Traced, &'a OwnedFd)> {
    loop {
        let ends = held.iter().map(|(_, process)| PollFd::new(*process, PollFlags::IN));
        let mut polled: Vec<_> = [PollFd::new(waits, PollFlags::IN)].into_iter().chain(ends).collect();
        let is_over = retry_on_intr(|| poll(&mut polled, None)).is_err();
        let mut are_ready = polled
            .iter()
            .map(|fd| !fd.revents().is_empty())
            .collect::<Vec<_>>()
            .into_iter();
        if is_over || are_ready.next() != Some(false) {
            return held;
        }
        held.retain(|_| are_ready.next() != Some(true));
    }
}
