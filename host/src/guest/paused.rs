//! Paused copies of a guest: its checkpoints. `python/sandglass/native/paused.py` is the guest's side.
//!
//! A paused copy forks another copy when the host asks for it, and that one becomes the guest. A paused copy is a process of the sandbox
//! like any other: it counts for the sandbox's limits, and code of the guest may end it.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandglass_core::Error;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::fork::{CopyProcess, Forked, Forker, Order, channel};
use super::{Guest, GuestProcess, Process, epoch};

/// A paused copy. Dropping it ends the process.
pub(crate) struct PausedGuest {
    forker: Forker,
    process: CopyProcess,
}

/// A guest that a paused copy has made.
pub(crate) struct Revived {
    pub(crate) channel: UnixStream,
    pub(crate) epoch: u32,
    pub(crate) own: GuestProcess,
    pub(crate) forker: Forker,
}

impl Forker {
    /// Has the guest make a paused copy of itself.
    pub(crate) fn pause(&self) -> impl Future<Output = Result<PausedGuest, Error>> + Send + 'static {
        let forker = self.same();
        async move {
            let (next, control) = forker.next()?;
            let order = Order {
                epoch: epoch()?,
                pause: true,
                ..Order::default()
            };
            let Forked { copy, .. } = forker.order(&order, &[control.as_fd()]).await?;
            Ok(PausedGuest {
                forker: next,
                process: CopyProcess::new(copy, Arc::default())?,
            })
        }
    }
}

impl PausedGuest {
    /// Makes a guest of the checkpoint. The guest is told the numbers of all paused copies.
    pub(crate) async fn revive(&self, paused: &[u32]) -> Result<Revived, Error> {
        // Code of the guest may have stopped it.
        let _ = pidfd_send_signal(self.process.pidfd(), Signal::CONT);
        let (ours, its_channel) = channel()?;
        let (forker, control) = self.forker.next()?;
        let order = Order {
            epoch: epoch()?,
            pause: false,
            paused,
        };
        let fds = [its_channel.as_fd(), control.as_fd()];
        let Forked { copy, .. } = self.forker.order(&order, &fds).await?;
        let process = CopyProcess::new(copy, Arc::default())?;
        Ok(Revived {
            channel: ours,
            epoch: order.epoch,
            own: GuestProcess {
                process: Box::new(process),
                _kept: self.forker.kept().into_iter().map(|kept| Box::new(kept) as _).collect(),
            },
            forker,
        })
    }

    /// The process's number.
    pub(crate) fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The process's number as the guest knows it.
    pub(crate) fn inner_id(&self) -> Option<u32> {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", self.process.pidfd().as_raw_fd())).ok()?;
        let pids = info.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
        pids.split_whitespace().next_back()?.parse().ok()
    }

    /// Returns true when the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(self.process.pidfd(), PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Stops the process, which has nothing to do while it is paused. Code of the guest may have handed over a process of its own as a copy.
    pub(crate) fn stop(&self) {
        let _ = pidfd_send_signal(self.process.pidfd(), Signal::STOP);
    }

    /// Ends the process.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(self.process.pidfd(), Signal::KILL); // it may be gone already
    }
}

/// All that was started for a guest and its paused copies. It is kept as long as one of them lives.
pub(crate) struct Boundary {
    /// The processes between the host and the guest. They run none of the user's code.
    standing: Vec<u32>,
    between: Mutex<Between>,
}

/// The state of a boundary while it has no guest.
#[derive(Default)]
struct Between {
    /// The process that the host started.
    root: Option<GuestProcess>,
    /// The end of the last guest's other processes.
    sweep: Option<JoinHandle<bool>>,
}

impl Boundary {
    /// The boundary of a guest that is ready and has run no code, and the guest's own process.
    pub(crate) fn of(root: u32) -> Option<(Arc<Self>, GuestProcess)> {
        let mut standing = line_to_guest(root)?;
        let own = process_by_number(standing.pop()?)?;
        if standing.is_empty() {
            return None;
        }
        let between = Mutex::default();
        Some((Arc::new(Self { standing, between }), own))
    }

    /// Ends the guest with everything else but its paused copies. `paused` are their numbers. Gives the process back if it can only end as a
    /// whole.
    pub(crate) fn end_guest(&self, root: GuestProcess, paused: impl Iterator<Item = u32>) -> Option<GuestProcess> {
        let spared = self.standing.iter().copied().chain(paused).collect();
        let Some(sweep) = root.sweeper(spared) else {
            return Some(root);
        };
        let mut between = self.between();
        between.root = Some(root);
        between.sweep = Some(tokio::task::spawn_blocking(sweep));
        None
    }

    /// Takes the process that the host started, if there is no guest.
    pub(crate) fn take_root(&self) -> Option<GuestProcess> {
        self.between().root.take()
    }

    /// Makes a guest of a paused copy, once the last guest is gone. Then nobody is left who could continue a copy that `stop_all` stops.
    pub(crate) async fn revive(
        self: &Arc<Self>,
        copy: &PausedGuest,
        paused: &[u32],
        stop_all: impl Fn(),
    ) -> Result<Guest, Error> {
        let failed = |what: &str| Error::GuestLost(what.to_owned());
        let sweep = self.between().sweep.take();
        let mut lent = Lent {
            boundary: self,
            root: self.take_root(),
        };
        if let Some(sweep) = sweep
            && !sweep.await.unwrap_or(false)
        {
            if let Some(root) = &mut lent.root {
                root.kill();
            }
            return Err(failed("processes of the guest before it did not end"));
        }
        stop_all();
        let revived = copy.revive(paused).await?;
        let root = lent.root.take().ok_or_else(|| failed("its processes are gone"))?;
        Ok(Guest::revived(revived, root, Arc::clone(self)))
    }

    fn between(&self) -> MutexGuard<'_, Between> {
        self.between.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process that the host started, while a guest is made. If there will be none, the process goes back.
struct Lent<'a> {
    boundary: &'a Boundary,
    root: Option<GuestProcess>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            self.boundary.between().root = Some(root);
        }
    }
}

/// The processes from the one that the host started to the guest itself, which has run no code of the user's and has no children yet.
/// `None` if they are not in one line.
fn line_to_guest(root: u32) -> Option<Vec<u32>> {
    const LONGEST: usize = 8;
    let mut line = vec![root];
    while line.len() < LONGEST {
        let last = line.last()?;
        let children = std::fs::read_to_string(format!("/proc/{last}/task/{last}/children")).ok()?;
        let children: Vec<u32> = children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        match children[..] {
            [] => return Some(line),
            [child] => line.push(child),
            _ => return None,
        }
    }
    None
}

/// The process of a guest by its number. Dropping the process ends it.
fn process_by_number(pid: u32) -> Option<GuestProcess> {
    let pidfd: OwnedFd = pidfd_open(Pid::from_raw(pid.cast_signed())?, PidfdFlags::empty()).ok()?;
    let process = CopyProcess::new(pidfd, Arc::new(AtomicBool::new(false))).ok()?;
    Some(GuestProcess {
        process: Box::new(process),
        _kept: Vec::new(),
    })
}
