//! Forks of a guest, made to run code ahead. `python/sandglass/native/forks.py` is the guest's side, and describes how a copy takes over.
//!
//! A *copy* is a process that the guest forked. Its *origin* is the process that was forked. The *root* is the process that the host
//! started for the guest: all its copies descend from that process. A *succession* puts a copy in the place of its origin.
//!
//! Nothing that the guest says here is trusted. The host later kills by the pidfds that the guest sends, so a foreign pidfd would make
//! the host kill a foreign process. The guest can even get the host's own pidfd: the kernel gives it to the other end of a socket.
//! Therefore a descriptor is accepted only if the kernel confirms that it is a pidfd, and if its process descends from the root.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::process::{is_of_none, process_of};
use super::{Exit, Guest, Process, epoch};
use crate::procfs::parent_of;
use crate::seqpacket::{pair, receive, send, watched};
use futures_util::future::BoxFuture;

/// The time limit for a copy. A short limit is enough, because the guest is idle when it gets the order.
pub(super) const FORK_TIMEOUT: Duration = Duration::from_secs(5);

/// An order to the guest to fork itself. The copy's ends of its sockets come with the order.
#[derive(Default, Serialize)]
pub(super) struct Order<'a> {
    pub(super) epoch: u32,
    /// True for a copy that is paused at once.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) pause: bool,
    /// The bytes of memory that the guest may take once it is copied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) room: Option<u64>,
    /// The numbers of all paused copies, for a guest that comes from one of them.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub(super) paused: &'a [u32],
}

/// The guest's answer to an order. The pidfds of the copy and of its origin come with it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Report {
    Forked {
        forked: u32,
    },
    /// The epoch is that of the order. A packet that is no order has none.
    Failed {
        failed: String,
        epoch: Option<u32>,
    },
}

/// The word of a paused copy that it waits for orders.
#[derive(Deserialize)]
struct Waits {
    waits: bool,
}

/// Orders copies from a guest.
pub(crate) struct Forker {
    /// The host's end of the control socket. The lock is held from an order to its answer, so orders never overlap.
    control: Arc<Mutex<AsyncFd<OwnedFd>>>,
    /// The process that the host started for the guest. No copy is accepted without it.
    root: Option<u32>,
    /// A value that lives as long as any copy.
    kept: Option<Arc<dyn Any + Send + Sync>>,
}

/// The two processes of an answered order: the copy, and the process that was forked.
pub(super) struct Forked {
    pub(super) copy: OwnedFd,
    pub(super) origin: OwnedFd,
}

/// The right of a copy to take its origin's place. Dropping it changes nothing.
pub(crate) struct Succession {
    origin: OwnedFd,
    release: OwnedFd,
    stays: Arc<AtomicBool>,
}

impl Forker {
    /// Makes a forker, and the guest's end of its control socket.
    pub(crate) fn new() -> std::io::Result<(Self, OwnedFd)> {
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

    /// The forker of a guest that has its end of this control socket already.
    pub(super) fn on(
        control: OwnedFd,
        root: Option<u32>,
        kept: Option<Arc<dyn Any + Send + Sync>>,
    ) -> std::io::Result<Self> {
        let control = watched(control, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Self {
            control: Arc::new(Mutex::new(control)),
            root,
            kept,
        })
    }

    /// The control socket, for as long as nobody else gives orders.
    pub(super) async fn lock(&self) -> OwnedMutexGuard<AsyncFd<OwnedFd>> {
        Arc::clone(&self.control).lock_owned().await
    }

    /// Sets the process that the host started for the guest.
    #[must_use]
    pub(crate) fn below(self, root: Option<u32>) -> Self {
        Self { root, ..self }
    }

    /// Tells a guest that waits for this on its control socket to begin.
    pub(crate) async fn begin(&self) {
        let control = self.control.lock().await;
        let _ = rustix::net::send(control.get_ref(), b"begin", SendFlags::NOSIGNAL | SendFlags::DONTWAIT); // it may have ended
    }

    /// Keeps a value as long as any copy lives.
    #[must_use]
    pub(super) fn keep(self, what: Arc<dyn Any + Send + Sync>) -> Self {
        let kept = Some(what);
        Self { kept, ..self }
    }

    /// Forks the guest. Answers to earlier orders that timed out are thrown away.
    pub(crate) fn fork(&self) -> BoxFuture<'static, Result<Guest, Error>> {
        let forker = self.same();
        Box::pin(async move {
            let (channel, its_channel) = channel()?;
            let (new, its_control) = forker.next()?;
            let (release, its_release) = StdStream::pair().map_err(unmade)?;
            let fds = [its_channel.as_fd(), its_control.as_fd(), its_release.as_fd()];
            let order = Order {
                epoch: epoch()?,
                ..Order::default()
            };
            let Forked { copy, origin } = forker.order(&order, &fds).await?;
            let stays = Arc::new(AtomicBool::new(false));
            let succession = Succession {
                origin,
                release: release.into(),
                stays: Arc::clone(&stays),
            };
            let guest = Guest::new(channel, order.epoch, Box::new(CopyProcess::new(copy, stays)?));
            let guest = guest.with_forker(new).with_succession(succession);
            Ok(guest.keep_with_copies(forker.kept))
        })
    }

    /// The same forker once more.
    pub(super) fn same(&self) -> Self {
        Self {
            control: Arc::clone(&self.control),
            root: self.root,
            kept: self.kept.clone(),
        }
    }

    /// A forker for a copy, and the copy's end of its control socket.
    pub(super) fn next(&self) -> Result<(Self, OwnedFd), Error> {
        let (forker, control) = Self::new().map_err(unmade)?;
        let kept = self.kept.clone();
        Ok((
            Self {
                kept,
                ..forker.below(self.root)
            },
            control,
        ))
    }

    /// Gives an order, and waits for the answer.
    pub(super) async fn order(&self, order: &Order<'_>, fds: &[BorrowedFd<'_>]) -> Result<Forked, Error> {
        self.order_within(FORK_TIMEOUT, order, fds).await
    }

    /// Gives an order, and waits for the answer for so long.
    pub(super) async fn order_within(
        &self,
        time: Duration,
        order: &Order<'_>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Forked, Error> {
        let control = self.control.lock().await;
        let forked = tokio::time::timeout(time, ask(&control, self.root, order, fds)).await;
        let late = || Error::BootFailed(format!("the guest made no copy of itself within {time:?}"));
        forked.map_err(|_| late())?
    }

    /// Waits until a paused copy says that it waits for orders.
    pub(super) async fn waits_within(&self, time: Duration) -> Result<(), Error> {
        let control = self.control.lock().await;
        let told = tokio::time::timeout(time, receive::<Waits>(&control)).await;
        let late = |_| failed(&format!("the copy was not ready within {time:?}"));
        match told.map_err(late)?.map_err(unmade)? {
            Some((Waits { waits: true }, fds)) if fds.is_empty() => Ok(()),
            Some((_, fds)) => {
                give_up(fds);
                Err(failed("the copy says something else than that it waits"))
            }
            None => Err(failed("the copy ended at once")),
        }
    }

    /// The process that the host started for the guest.
    pub(super) fn root(&self) -> Option<u32> {
        self.root
    }

    /// A value that lives as long as any copy.
    pub(super) fn kept(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        self.kept.clone()
    }
}

fn failed(what: &str) -> Error {
    Error::BootFailed(format!("the guest could not be copied: {what}"))
}

fn unmade(error: impl std::fmt::Display) -> Error {
    failed(&error.to_string())
}

/// The host's end of a channel, and the guest's.
pub(super) fn channel() -> Result<(UnixStream, OwnedFd), Error> {
    let (ours, theirs) = StdStream::pair().map_err(unmade)?;
    ours.set_nonblocking(true).map_err(unmade)?;
    Ok((UnixStream::from_std(ours).map_err(unmade)?, theirs.into()))
}

async fn ask(
    control: &AsyncFd<OwnedFd>,
    root: Option<u32>,
    order: &Order<'_>,
    fds: &[BorrowedFd<'_>],
) -> Result<Forked, Error> {
    send(control, order, fds).await.map_err(unmade)?;
    loop {
        let Some((report, fds)) = receive(control).await.map_err(unmade)? else {
            return Err(failed("it has closed its control socket"));
        };
        let its_order = match &report {
            Report::Forked { forked } => Some(*forked),
            Report::Failed { epoch, .. } => *epoch,
        };
        if its_order.is_some_and(|epoch| epoch != order.epoch) {
            give_up(fds); // that order timed out, and its copy has ended
            continue;
        }
        let are_its = root.is_some_and(|root| fds.iter().all(|fd| is_below(fd, root)));
        if !are_its && !fds.is_empty() {
            let has_ended = fds.iter().any(is_of_none);
            give_up(fds);
            return Err(failed(match has_ended {
                true => "the copy ended at once",
                false => "it has sent something else than its own processes",
            }));
        }
        match report {
            Report::Failed { failed: why, .. } => return Err(failed(&why)),
            Report::Forked { .. } => {
                let mut fds = fds.into_iter();
                let (Some(copy), Some(origin)) = (fds.next(), fds.next()) else {
                    return Err(failed("it does not say which processes they are"));
                };
                return Ok(Forked { copy, origin });
            }
        }
    }
}

/// Closes descriptors that the guest has sent, which may block.
fn give_up(fds: Vec<OwnedFd>) {
    drop(tokio::task::spawn_blocking(move || drop(fds)));
}

/// The most generations between a process and the root. The limit bounds the work that a guest can cause.
const MOST_ANCESTORS: usize = 64;

/// Returns true when this is the pidfd of a living process that is `root` or descends from it.
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

impl Succession {
    /// The process that the copy was forked from.
    pub(crate) fn origin(&self) -> Option<u32> {
        process_of(&self.origin)
    }

    /// Makes the copy the guest, and kills its origin. The copy's effects on the world wait for the origin's end, so that the two never
    /// hold the same lock or port.
    pub(crate) fn succeed(self) {
        let Self { origin, release, stays } = self;
        stays.store(true, Ordering::Relaxed);
        let _ = pidfd_send_signal(&origin, Signal::KILL);
        tokio::spawn(async move {
            if let Ok(origin) = watched(origin, Interest::READABLE) {
                let _ = tokio::time::timeout(FORK_TIMEOUT, origin.readable()).await;
            }
            // The copy may have ended, or wait for nothing. Both are fine.
            let _ = rustix::net::send(&release, b"x", SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        });
    }
}

/// The process of a copy. Dropping this kills the process, unless the copy has become the guest.
pub(super) struct CopyProcess {
    pidfd: AsyncFd<OwnedFd>,
    stays: Arc<AtomicBool>,
}

impl CopyProcess {
    /// `stays` becomes true when the copy becomes the guest.
    pub(super) fn new(pidfd: OwnedFd, stays: Arc<AtomicBool>) -> Result<Self, Error> {
        let pidfd = watched(pidfd, Interest::READABLE).map_err(unmade)?;
        Ok(Self { pidfd, stays })
    }

    /// The pidfd.
    pub(super) fn pidfd(&self) -> &OwnedFd {
        self.pidfd.get_ref()
    }
}

impl Process for CopyProcess {
    fn kill(&mut self) {
        let _ = pidfd_send_signal(self.pidfd.get_ref(), Signal::KILL); // an error means that the process has ended
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
