//! Copies that a guest makes of itself to run code ahead. `python/sandglass/native/forks.py` is the other end, and tells how they become
//! what they may become: the guest.
//!
//! Whatever the guest says here may be a lie. Descriptors that it sends are taken for pidfds only when the kernel says so, and only
//! of processes that descend from the one that was started for it: others have been passed on, such as the host's own, which the
//! kernel gives to whoever asks for the peer of a socket.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::any::Any;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::SendFlags;
use rustix::process::{Signal, pidfd_send_signal};
use sandglass_core::Error;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::Mutex;

use super::process::process_of;
use super::{Exit, Guest, Process, epoch};
use crate::seqpacket::{pair, receive, send, watched};
use futures_util::future::BoxFuture;

/// The time that a copy may take. The guest is idle when it is asked for one.
const FORK_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Order {
    epoch: u32,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Report {
    Forked { forked: u32 },
    Failed { failed: String },
}

/// Has a guest make copies of itself.
pub(crate) struct Forker {
    /// Held from an order to its answer: there is one at a time.
    control: Arc<Mutex<AsyncFd<OwnedFd>>>,
    /// The process that was started for the guest.
    root: Option<u32>,
    /// An object that is kept for as long as there are copies.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// The means by which a copy takes the place of the guest that it was made of. Dropped with the copy, it changes nothing.
pub(crate) struct Succession {
    origin: OwnedFd,
    release: OwnedFd,
    stays: Arc<AtomicBool>,
}

impl Forker {
    /// One, and the other end of its control socket, for the guest.
    pub(super) fn new() -> std::io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = pair()?;
        let control = watched(ours, Interest::READABLE | Interest::WRITABLE)?;
        Ok((
            Self {
                control: Arc::new(Mutex::new(control)),
                root: None,
                kept: None,
            },
            theirs,
        ))
    }

    /// One of guests whose first process is this.
    #[must_use]
    pub(super) fn below(self, root: Option<u32>) -> Self {
        Self { root, ..self }
    }

    /// One that keeps something for as long as there are copies.
    #[must_use]
    pub(super) fn keep(self, what: Arc<dyn Any + Send + Sync>) -> Self {
        let kept = Some(what);
        Self { kept, ..self }
    }

    /// A copy of the guest as it is. An answer to an earlier order, for which nobody waits any more, is thrown away.
    pub(crate) fn fork(&self) -> BoxFuture<'static, Result<Guest, Error>> {
        let (control, root, kept) = (Arc::clone(&self.control), self.root, self.kept.clone());
        Box::pin(async move {
            let control = control.lock().await;
            let forked = tokio::time::timeout(FORK_TIMEOUT, fork(&control, root)).await;
            let late = || Error::BootFailed(format!("the guest made no copy of itself within {FORK_TIMEOUT:?}"));
            Ok(forked.map_err(|_| late())??.keep_with_copies(kept))
        })
    }
}

async fn fork(control: &AsyncFd<OwnedFd>, root: Option<u32>) -> Result<Guest, Error> {
    let failed = |what: String| Error::BootFailed(format!("the guest could not be copied: {what}"));
    let unmade = |error: std::io::Error| failed(error.to_string());
    let epoch = epoch()?;
    let (ours, theirs) = StdStream::pair().map_err(unmade)?;
    ours.set_nonblocking(true).map_err(unmade)?;
    let channel = UnixStream::from_std(ours).map_err(unmade)?;
    let (forker, its_control) = Forker::new().map_err(unmade)?;
    let (release, its_release) = StdStream::pair().map_err(unmade)?;
    let fds = [theirs.as_fd(), its_control.as_fd(), its_release.as_fd()];
    send(control, &Order { epoch }, &fds).await.map_err(unmade)?;
    loop {
        let Some((report, fds)) = receive(control).await.map_err(unmade)? else {
            return Err(failed("it has closed its control socket".to_owned()));
        };
        let are_its = root.is_some_and(|root| fds.iter().all(|fd| is_below(fd, root)));
        if !are_its && !fds.is_empty() {
            // Closing what is no pidfd may take its time.
            drop(tokio::task::spawn_blocking(move || drop(fds)));
            return Err(failed("it has sent something else than its own processes".to_owned()));
        }
        match report {
            Report::Failed { failed: why } => return Err(failed(why)),
            Report::Forked { forked } if forked != epoch => {} // nobody waits for it any more
            Report::Forked { .. } => {
                let mut fds = fds.into_iter();
                let (Some(copy), Some(origin)) = (fds.next(), fds.next()) else {
                    return Err(failed("it does not say which processes they are".to_owned()));
                };
                let stays = Arc::new(AtomicBool::new(false));
                let process = CopyProcess {
                    pidfd: watched(copy, Interest::READABLE).map_err(unmade)?,
                    stays: Arc::clone(&stays),
                };
                let succession = Succession {
                    origin,
                    release: release.into(),
                    stays,
                };
                let guest = Guest::new(channel, epoch, Box::new(process));
                return Ok(guest.with_forker(forker.below(root)).with_succession(succession));
            }
        }
    }
}

/// The number of generations that are looked at.
const MOST_ANCESTORS: usize = 64;

/// Returns true when this is a pidfd of a process that descends from `root`, and lives.
fn is_below(fd: &OwnedFd, root: u32) -> bool {
    let mut pid = process_of(fd);
    for _ in 0..MOST_ANCESTORS {
        match pid {
            Some(found) if found == root => return true,
            Some(found @ 2..) => pid = parent_of(found),
            _ => return false,
        }
    }
    false
}

/// The fields before it hold the program's name, which may be anything.
fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    status.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

impl Succession {
    /// The process of the guest that the copy was made of.
    pub(crate) fn origin(&self) -> Option<u32> {
        process_of(&self.origin)
    }

    /// The copy is the guest; the one before ends. When it has, what the copy waits for of the world happens: two never have the same
    /// lock, or the same port.
    pub(crate) fn succeed(self) {
        let Self { origin, release, stays } = self;
        stays.store(true, Ordering::Relaxed);
        let _ = pidfd_send_signal(&origin, Signal::KILL);
        tokio::spawn(async move {
            if let Ok(origin) = watched(origin, Interest::READABLE) {
                let _ = tokio::time::timeout(FORK_TIMEOUT, origin.readable()).await;
            }
            // It may wait for nothing, or be gone.
            let _ = rustix::net::send(&release, b"x", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        });
    }
}

/// The process of a copy. It ends when this is dropped, unless it is the guest by then.
struct CopyProcess {
    pidfd: AsyncFd<OwnedFd>,
    stays: Arc<AtomicBool>,
}

impl Process for CopyProcess {
    fn kill(&mut self) {
        let _ = pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL); // it may be gone already
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Box::pin(async move {
            let _ = self.pidfd.readable().await;
            Exit::default()
        })
    }

    fn id(&self) -> Option<u32> {
        process_of(self.pidfd.get_ref())
    }
}

impl Drop for CopyProcess {
    fn drop(&mut self) {
        if !self.stays.load(Ordering::Relaxed) {
            self.kill();
        }
    }
}
