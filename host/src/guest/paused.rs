//! Paused copies of a guest: its checkpoints. `python/sandglass/native/paused.py` is the guest's side.
//!
//! A paused copy forks another copy when the host asks for it, and that one becomes the guest. A paused copy is a process of the sandbox
//! like any other: it counts for the sandbox's limits, and code of the guest may end it.
//!
//! The first copy is made before the guest gets any message. It is the *beginning*, from which a guest without any state comes, so that
//! such a guest is within the same limits as the copies.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use sandglass_core::Error;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::copies::{Heir, PausedCheckpoint, PausedCopy};
use super::fork::{CopyProcess, FORK_TIMEOUT, Forked, Forker, Order, channel};
use super::held::Held;
use super::isolated::family::{CopiedProcess, Trunk};
use super::isolated::rooms::Rooms;
use super::isolated::{self, Copy, CopyLimits, Origin, Wanted};
use super::process::ends_within;
use super::{Guest, GuestProcess, Process, epoch};
use crate::procfs::parent_of;

/// The time for a guest to start and to make its first copy.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The time to make copies in namespaces of their own. After twice this time all processes of the session end.
const SPREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The time for a killed copy to end.
const GONE_WITHIN: Duration = Duration::from_secs(5);

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
    /// Has the guest make a paused copy of itself. `room` is the memory that it may take after that; `None` if nothing bounds it.
    pub(crate) fn pause(&self, room: Option<u64>) -> impl Future<Output = Result<PausedGuest, Error>> + Send + 'static {
        let forker = self.same();
        async move { Ok(forker.pause_within(FORK_TIMEOUT, room).await?.0) }
    }

    /// Has the guest make a paused copy of itself, and waits until that one waits for orders. Returns the guest's own process, too. A guest that is
    /// starting takes longer.
    async fn pause_within(&self, time: Duration, room: Option<u64>) -> Result<(PausedGuest, OwnedFd), Error> {
        let (next, control) = self.next()?;
        let order = Order {
            epoch: epoch()?,
            pause: true,
            room,
            ..Order::default()
        };
        let Forked { copy, origin } = self.order_within(time, &order, &[control.as_fd()]).await?;
        drop(control); // so that the end of the copy is seen
        let copy = PausedGuest {
            forker: next,
            process: CopyProcess::new(copy, Arc::default())?,
        };
        copy.forker.waits_within(time).await?;
        copy.stop();
        Ok((copy, origin))
    }
}

impl PausedGuest {
    /// Makes a guest of the checkpoint. The guest is told the numbers of all paused copies.
    pub(crate) async fn revive(&self, paused: &[u32]) -> Result<Revived, Error> {
        let _ = pidfd_send_signal(self.process.pidfd(), Signal::CONT);
        let (ours, its_channel) = channel()?;
        let (forker, control) = self.forker.next()?;
        let order = Order {
            epoch: epoch()?,
            paused,
            ..Order::default()
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
        ends_within(self.process.pidfd(), Duration::ZERO)
    }

    /// Stops the process, which has nothing to do while it is paused. Code of the guest may have handed over a process of its own as a copy, so this
    /// holds only as long as no other signal comes (`held.rs`).
    pub(crate) fn stop(&self) {
        let _ = pidfd_send_signal(self.process.pidfd(), Signal::STOP);
    }

    /// Ends the process.
    pub(crate) fn kill(&self) {
        let _ = pidfd_send_signal(self.process.pidfd(), Signal::KILL); // it may be gone already
    }

    /// Ends the process, and waits until its memory is free.
    pub(crate) async fn end(mut self) {
        self.kill();
        let _ = tokio::time::timeout(GONE_WITHIN, self.process.wait()).await;
    }
}

/// Copies that are to be made of a paused copy.
pub(crate) struct Spreading {
    pub(super) checkpoint: u32,
    pub(super) copy: Arc<PausedCopy>,
    /// Bounds also what they take together with what they stand below.
    pub(super) limits: CopyLimits,
    /// The number of copies, without the one in which the session goes on.
    pub(super) count: usize,
    /// All paused copies.
    pub(super) paused: Vec<Arc<PausedCopy>>,
    pub(super) given_up: CancellationToken,
    pub(super) heir: Heir,
}

/// All that was started for a guest and its paused copies. It is kept as long as one of them lives.
pub(crate) struct Boundary {
    /// The processes between the host and the guest, the nearest to the guest first. They run none of the user's code.
    standing: Vec<u32>,
    /// The paused copy of the guest without any state. A guest that is a copy has none.
    beginning: Option<PausedGuest>,
    rest: Rest,
    /// The processes above the guest's boundary, if the guest is a copy.
    above: Option<Arc<Trunk>>,
    /// The folders for copies of the guest, once there are copies.
    rooms: OnceLock<Arc<Rooms>>,
    /// True once copies have taken the place of the guest and its paused copies.
    is_left: AtomicBool,
}

/// A boundary's processes while it has no guest.
#[derive(Default)]
struct Rest {
    processes: Mutex<Processes>,
    /// Whoever makes guests has the turn until its end.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct Processes {
    /// The process that the host started.
    root: Option<GuestProcess>,
    /// The end of the last guest's other processes.
    sweep: Option<JoinHandle<bool>>,
    /// The paused copies from which the guest does not come.
    held: Option<Held>,
}

/// Starts a guest's paused copies: makes the first one, before the guest gets any message. If the guest makes no copies, it stays as it is.
pub(crate) async fn with_beginning(mut guest: Guest) -> Guest {
    let Some(forker) = &guest.kin.forker else { return guest };
    match Boundary::around(forker).await {
        Ok((boundary, own)) => {
            guest.kin.own = Some(own);
            guest.kin.boundary = Some(Arc::new(boundary));
        }
        Err(error) => tracing::debug!(%error, "a guest has no checkpoints"),
    }
    guest
}

impl Boundary {
    /// The boundary of a guest that gets no messages yet, and the guest's own process.
    async fn around(forker: &Forker) -> Result<(Self, GuestProcess), Error> {
        let (beginning, own) = forker.pause_within(START_TIMEOUT, None).await?;
        let own = CopyProcess::new(own, Arc::default())?;
        let line = forker
            .root()
            .zip(own.id())
            .and_then(|(root, own)| line_above(own, root));
        let standing = line.ok_or_else(|| Error::BootFailed("its processes are not in one line".to_owned()))?;
        let own = GuestProcess {
            process: Box::new(own),
            _kept: Vec::new(),
        };
        let rest = Rest::default();
        Ok((
            Self {
                standing,
                beginning: Some(beginning),
                rest,
                above: None,
                rooms: OnceLock::new(),
                is_left: AtomicBool::new(false),
            },
            own,
        ))
    }

    /// An isolated copy as the paused copy of another session. `kept` lives as long as it does.
    fn of_copy(
        copy: Copy,
        above: &Arc<Trunk>,
        rooms: &Arc<Rooms>,
        kept: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<PausedCopy, Error> {
        let failed = |error: std::io::Error| Error::BootFailed(format!("a copy cannot be watched: {error}"));
        let process = CopiedProcess::new(copy.keeper, copy.group, copy.room, above).map_err(failed)?;
        let keeper = process.id();
        let guest = PausedGuest {
            forker: Forker::on(copy.control, keeper, kept.clone()).map_err(failed)?,
            process: CopyProcess::new(copy.process, Arc::default())?,
        };
        let rest = Rest::default();
        rest.lock().root = Some(GuestProcess {
            process: Box::new(process),
            _kept: kept.into_iter().map(|kept| Box::new(kept) as _).collect(),
        });
        let boundary = Self {
            standing: keeper.into_iter().collect(),
            beginning: None,
            rest,
            above: Some(Arc::clone(above)),
            rooms: OnceLock::from(Arc::clone(rooms)),
            is_left: AtomicBool::new(false),
        };
        Ok(PausedCopy::new(guest, Arc::new(boundary)))
    }

    /// The paused copy of the guest without any state.
    pub(crate) fn beginning(&self) -> Option<&PausedGuest> {
        self.beginning.as_ref()
    }

    /// The folders for copies of the guest.
    fn rooms(&self) -> std::io::Result<Arc<Rooms>> {
        if self.rooms.get().is_none() {
            let nearest = self.standing.first().copied().unwrap_or_default();
            let _ = self.rooms.set(Arc::new(Rooms::around(nearest)?));
        }
        let rooms = self.rooms.get().cloned();
        rooms.ok_or_else(|| std::io::Error::other("there are no folders"))
    }

    /// Bytes of memory that the processes above the guest's boundary hold.
    pub(crate) fn held_above(&self) -> u64 {
        self.above.as_ref().map_or(0, |above| above.held_bytes())
    }

    /// Returns true if copies were made, and the guest's boundary is not the session's any more.
    pub(crate) fn is_left(&self) -> bool {
        self.is_left.load(Ordering::SeqCst)
    }

    /// Makes copies of a paused copy once the last guest is gone, each in namespaces of its own. One of them becomes the heir; returns the others.
    /// The boundary then has no guest any more, and its paused copies end. It is not to be dropped before its end: cancel it by `given_up`.
    ///
    /// # Errors
    /// The reason why there can be none. The paused copy is then as before, or has ended.
    pub(crate) async fn spread(self: Arc<Self>, spreading: Spreading) -> Result<Vec<PausedCheckpoint>, String> {
        let Spreading {
            checkpoint,
            copy,
            limits,
            count,
            paused,
            given_up,
            heir,
        } = spreading;
        let text = |error: std::io::Error| error.to_string();
        let mut lent = self.rest.emptied().await.map_err(|error| error.to_string())?;
        lent.let_go().await;
        paused.iter().for_each(|copy| copy.guest().stop());
        if let Some(beginning) = &self.beginning {
            beginning.stop();
        }
        let root = lent.processes.root.as_mut().ok_or("its processes are gone")?;
        let held = root.held_bytes().unwrap_or_default();
        if held.saturating_add(self.held_above()) > limits.bounds.memory_bytes {
            return Err("the states that it was copied from take too much memory".to_owned());
        }
        let forker = &copy.guest().forker;
        let control = forker.lock().await;
        let others = paused.iter().filter(|other| !Arc::ptr_eq(other, &copy));
        let origin = Origin {
            process: copy.guest().process.pidfd().try_clone().map_err(text)?,
            pid: copy.guest().id().ok_or("its process is gone")?,
            control: control.get_ref().try_clone().map_err(text)?,
            group: root.group().ok_or("its processes have no control group")?,
            standing: self.standing.iter().copied().collect(),
            beginning: self.beginning.as_ref().and_then(PausedGuest::id),
            paused: others
                .map(|other| other.guest().process.pidfd().try_clone())
                .collect::<Result<_, _>>()
                .map_err(text)?,
            rooms: self.rooms().map_err(text)?,
            limits,
        };
        let ends = Instant::now() + SPREAD_TIMEOUT;
        let wanted = Wanted {
            epoch: epoch().map_err(|error| error.to_string())?,
            count: count + 1,
            still: move || match (given_up.is_cancelled(), Instant::now() > ends) {
                (true, _) => Err(std::io::Error::other("nobody waits for them")),
                (_, true) => Err(std::io::Error::other("it takes too long")),
                _ => Ok(()),
            },
        };
        let (trunk, kept) = (Arc::new(Trunk::new(Arc::clone(&self))), forker.kept());
        let making = {
            let (boundary, trunk) = (Arc::clone(&self), Arc::clone(&trunk));
            let runtime = Handle::current();
            move || {
                isolated::make(&origin, &wanted, |copies| {
                    let _entered = runtime.enter();
                    let copies = copies.into_iter().map(|copy| {
                        let copy = Arc::new(Self::of_copy(copy, &trunk, &origin.rooms, kept.clone())?);
                        Ok(PausedCheckpoint {
                            number: checkpoint,
                            copy,
                        })
                    });
                    let copies: Result<Vec<_>, Error> = copies.collect();
                    boundary.is_left.store(copies.is_ok(), Ordering::SeqCst); // before the paused copies end
                    copies.map_err(std::io::Error::other)
                })
            }
        };
        let mut making = tokio::task::spawn_blocking(making);
        let is_made = tokio::time::timeout(2 * SPREAD_TIMEOUT, &mut making).await;
        let is_made = match is_made {
            Ok(is_made) => is_made,
            Err(_) => {
                root.kill(); // which ends all that is being made
                let made = tokio::time::timeout(GONE_WITHIN, making).await;
                made.map_err(|_| "its processes do not end".to_owned())?
            }
        };
        let copies = is_made.map_err(|error| error.to_string())?.map_err(text);
        self.is_left.store(copies.is_ok(), Ordering::SeqCst);
        let mut copies = copies?;
        trunk.keep(lent.processes.root.take().ok_or("its processes are gone")?);
        // Before somebody else has the turn.
        heir.put(copies.pop().ok_or("none was made")?);
        Ok(copies)
    }

    /// Ends the guest with everything else but its paused copies. `paused` are their numbers. Gives the process back if it can only end as a
    /// whole.
    pub(crate) fn end_guest(&self, root: GuestProcess, paused: impl Iterator<Item = u32>) -> Option<GuestProcess> {
        let Some(sweep) = root.sweeper(self.spared(paused)) else {
            return Some(root);
        };
        let mut rest = self.rest.lock();
        rest.root = Some(root);
        rest.sweep = Some(tokio::task::spawn_blocking(sweep));
        None
    }

    /// The processes that stay when a guest ends. `paused` are those of the paused copies.
    fn spared(&self, paused: impl Iterator<Item = u32>) -> Vec<u32> {
        let beginning = self.beginning.as_ref().and_then(PausedGuest::id);
        self.standing.iter().copied().chain(beginning).chain(paused).collect()
    }

    /// Takes the process that the host started, if there is no guest.
    pub(crate) fn take_root(&self) -> Option<GuestProcess> {
        self.rest.lock().root.take()
    }

    /// Makes a guest of a paused copy, once the last guest is gone. From then on the others of `all` make no step. The guest is told the numbers
    /// `paused`. A copy that lives and makes none is asked once more: the machine may be busy.
    pub(crate) async fn revive(
        self: &Arc<Self>,
        copy: &PausedGuest,
        paused: &[u32],
        all: &[Arc<PausedCopy>],
    ) -> Result<Guest, Error> {
        match self.revive_once(copy, paused, all).await {
            Err(_) if !copy.has_ended() && !self.is_left() => self.revive_once(copy, paused, all).await,
            guest => guest,
        }
    }

    async fn revive_once(
        self: &Arc<Self>,
        copy: &PausedGuest,
        paused: &[u32],
        all: &[Arc<PausedCopy>],
    ) -> Result<Guest, Error> {
        let gone = || Error::GuestLost("its processes are gone".to_owned());
        let mut lent = self.rest.emptied().await?;
        if lent.processes.root.is_none() || self.is_left() {
            return Err(gone());
        }
        lent.let_go().await;
        let others = all.iter().map(|other| other.guest());
        let others: Vec<_> = others.filter(|other| !std::ptr::eq(*other, copy)).collect();
        if !others.is_empty() {
            others.iter().for_each(|other| other.stop());
            let processes = others.iter().map(|other| other.process.pidfd().try_clone());
            let beginning = self.beginning.as_ref().map(|its| its.process.pidfd().try_clone());
            let begin = |processes| Held::begin(processes, beginning.transpose()?);
            let held = processes.collect::<Result<_, _>>().and_then(begin);
            let held = held.map_err(|error| Error::BootFailed(format!("older checkpoints cannot be held: {error}")))?;
            if !lent.processes.held.insert(held).stopped().await {
                return Err(lent.cannot_end());
            }
        }
        // A paused copy may have made processes before it was held, or when it was asked for a guest.
        let each = all.iter().map(|each| each.guest()).chain([copy]);
        let spared = self.spared(each.filter_map(PausedGuest::id));
        if let Some(sweep) = lent.processes.root.as_ref().and_then(|root| root.sweeper(spared)) {
            lent.processes.sweep = Some(tokio::task::spawn_blocking(sweep));
            lent.swept().await?;
        }
        let revived = copy.revive(paused).await?;
        let root = lent.processes.root.take().ok_or_else(gone)?;
        Ok(Guest::revived(revived, root, Arc::clone(self)))
    }
}

impl Rest {
    fn lock(&self) -> MutexGuard<'_, Processes> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the last guest is gone.
    async fn emptied(&self) -> Result<Lent<'_>, Error> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let processes = std::mem::take(&mut *self.lock());
        let mut lent = Lent {
            rest: self,
            processes,
            _turn: turn,
        };
        lent.swept().await?;
        Ok(lent)
    }
}

/// A boundary's processes while a guest is made. If there will be none, they go back.
struct Lent<'a> {
    rest: &'a Rest,
    processes: Processes,
    _turn: OwnedMutexGuard<()>,
}

impl Lent<'_> {
    /// Waits for the end of the processes that do not stay.
    async fn swept(&mut self) -> Result<(), Error> {
        if let Some(sweep) = &mut self.processes.sweep {
            let are_gone = sweep.await.unwrap_or(false);
            self.processes.sweep = None;
            if !are_gone {
                return Err(self.cannot_end());
            }
        }
        Ok(())
    }

    /// Ends all processes, because one of them does not end alone.
    fn cannot_end(&mut self) -> Error {
        if let Some(root) = &mut self.processes.root {
            root.kill();
        }
        Error::GuestLost("processes of the guest before it did not end".to_owned())
    }

    /// Lets the paused copies go that are held.
    async fn let_go(&mut self) {
        if let Some(held) = &mut self.processes.held {
            held.let_go().await;
            self.processes.held = None;
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Processes { root, sweep, held } = std::mem::take(&mut self.processes);
        let mut rest = self.rest.lock();
        rest.held = rest.held.take().or(held);
        rest.root = rest.root.take().or(root);
        rest.sweep = rest.sweep.take().or(sweep);
    }
}

/// The processes above a guest, up to the one that the host started. `None` if there are none.
fn line_above(own: u32, root: u32) -> Option<Vec<u32>> {
    const LONGEST: usize = 8;
    let mut line = Vec::new();
    let mut last = own;
    while last != root {
        last = parent_of(last).filter(|_| line.len() < LONGEST)?;
        line.push(last);
    }
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_comes_after_a_cancelled_revival_waits_for_the_last_guest_as_well() {
        let (rest, is_gone) = (Rest::default(), Arc::new(AtomicBool::new(false)));
        let (go_on, waits) = mpsc::channel();
        let sweep = {
            let is_gone = Arc::clone(&is_gone);
            move || {
                waits.recv().unwrap();
                is_gone.store(true, Ordering::SeqCst);
                true
            }
        };
        rest.lock().sweep = Some(tokio::task::spawn_blocking(sweep));
        assert!(rest.emptied().now_or_never().is_none(), "it is given up while it waits");
        go_on.send(()).unwrap();
        assert!(rest.emptied().await.is_ok());
        assert!(
            is_gone.load(Ordering::SeqCst),
            "nobody came before the last guest was gone"
        );
    }

    #[tokio::test]
    async fn nobody_comes_after_a_guest_that_did_not_end() {
        let rest = Rest::default();
        rest.lock().sweep = Some(tokio::task::spawn_blocking(|| false));
        assert_eq!(rest.emptied().await.err().map(|error| error.code()), Some("guest_lost"));
    }

    #[test]
    fn the_line_above_a_process_ends_at_the_one_that_was_started() {
        let own = std::process::id();
        let above = parent_of(own).unwrap();
        assert_eq!(line_above(own, above), Some(vec![above]));
        assert_eq!(line_above(own, own), None, "nobody stands over it");
        assert_eq!(line_above(above, own), None);
    }
}
