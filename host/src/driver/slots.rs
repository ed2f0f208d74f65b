//! The guests of a sandbox, each in its slot.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::select_all;
use sandglass_core::Error;
use sandglass_core::session::Slot;
use tokio::net::unix::OwnedReadHalf;
use tokio::time::Instant;

use super::receive::Parts;
use crate::frame::{Frame, FrameError, FrameReader};
use crate::guest::copies::Kin;
use crate::guest::fork::Succession;
use crate::guest::{Exit, Guest, GuestProcess, GuestWriter};
use futures_util::future::BoxFuture;

/// The time for a killed guest to be gone, counted from the end of its channel.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// The guests of a sandbox: its own guest, and those of its shadows.
#[derive(Default)]
pub(super) struct Slots {
    held: BTreeMap<Slot, Held>,
    last_generation: u64,
}

/// A guest in a slot. Its generation is unique, and stays the same when the guest moves to another slot.
struct Held {
    generation: u64,
    guest: HeldGuest,
}

pub(super) enum HeldGuest {
    /// The guest is starting. The frames wait for it.
    Launching(BoxFuture<'static, Result<Guest, Error>>, Vec<Frame>),
    Running(Box<Running>),
}

pub(super) struct Running {
    pub(super) reader: FrameReader<OwnedReadHalf>,
    pub(super) writer: GuestWriter,
    pub(super) process: GuestProcess,
    /// The means by which a copy takes the place of its guest. `None` for other guests.
    pub(super) succession: Option<Succession>,
    /// The way to fork the guest, and its place among its paused copies.
    pub(super) kin: Kin,
    pub(super) parts: Parts,
    /// Bytes of taken output for which the guest has no new credit yet.
    pub(super) owed: usize,
    /// The time at which the guest's channel closed, or the guest ended.
    pub(super) closed: Option<Instant>,
    /// True when the guest was killed because it did not end after that.
    pub(super) given_up: bool,
    /// The guest's end.
    pub(super) exit: Option<Exit>,
    /// The frames that a guest from a pool was sent before it was ready. Another guest gets them if this one has died in the pool.
    /// `None` for other guests, and once the guest is ready.
    pub(super) begin: Option<Vec<Frame>>,
}

/// An event of a guest.
pub(super) enum Happened {
    Launched(Result<Guest, Error>),
    Frame(Result<Option<Frame>, FrameError>),
    Written(std::io::Result<()>),
    Exited(Exit),
    /// The guest's own process has ended.
    Gone,
    /// The guest's time to end is over.
    Overdue,
}

impl Slots {
    /// Starts a guest for a slot. The guest gets these frames first.
    pub(super) fn launch(&mut self, slot: Slot, launch: BoxFuture<'static, Result<Guest, Error>>, begin: Vec<Frame>) {
        self.last_generation += 1;
        let held = Held {
            generation: self.last_generation,
            guest: HeldGuest::Launching(launch, begin),
        };
        self.held.insert(slot, held);
    }

    /// Puts a started guest into its slot. Returns the frames that wait for the guest. `max_bytes` bounds its messages.
    pub(super) fn launched(&mut self, slot: Slot, guest: Guest, max_bytes: usize) -> Vec<Frame> {
        let running = HeldGuest::Running(Box::new(Running::of(guest, max_bytes)));
        let before = self
            .held
            .get_mut(&slot)
            .map(|held| std::mem::replace(&mut held.guest, running));
        match before {
            Some(HeldGuest::Launching(_, waiting)) => waiting,
            _ => Vec::new(),
        }
    }

    /// The running guests of shadows.
    pub(super) fn shadows(&self) -> impl Iterator<Item = &Running> {
        let shadows = self.held.keys().filter(|slot| **slot != Slot::Main);
        shadows.filter_map(|slot| self.running(*slot))
    }

    /// Takes the guest out of a slot.
    pub(super) fn take(&mut self, slot: Slot) -> Option<HeldGuest> {
        Some(self.held.remove(&slot)?.guest)
    }

    /// Moves the guest of the slot `by` to `slot`. Returns the guest that was in `slot`.
    pub(super) fn replace(&mut self, slot: Slot, by: Slot) -> Option<HeldGuest> {
        let before = self.take(slot);
        if let Some(held) = self.held.remove(&by) {
            self.held.insert(slot, held);
        }
        before
    }

    /// The generation of the guest in a slot.
    pub(super) fn generation(&self, slot: Slot) -> Option<u64> {
        Some(self.held.get(&slot)?.generation)
    }

    /// A running guest and its present slot.
    pub(super) fn find(&mut self, generation: u64) -> Option<(Slot, &mut Running)> {
        let mut held = self.held.iter_mut();
        held.find_map(|(slot, held)| match &mut held.guest {
            HeldGuest::Running(running) if held.generation == generation => Some((*slot, &mut **running)),
            _ => None,
        })
    }

    /// The guest in a slot, if it runs.
    pub(super) fn running(&self, slot: Slot) -> Option<&Running> {
        match &self.held.get(&slot)?.guest {
            HeldGuest::Running(running) => Some(running),
            HeldGuest::Launching(..) => None,
        }
    }

    /// The guest in a slot for changes, if it runs.
    pub(super) fn running_mut(&mut self, slot: Slot) -> Option<&mut Running> {
        match &mut self.held.get_mut(&slot)?.guest {
            HeldGuest::Running(running) => Some(running),
            HeldGuest::Launching(..) => None,
        }
    }

    /// Sends a frame to the guest in a slot. The frame waits if the guest is starting, and is dropped if there is none.
    pub(super) fn send(&mut self, slot: Slot, frame: Frame) -> Result<(), FrameError> {
        match self.held.get_mut(&slot).map(|held| &mut held.guest) {
            None => Ok(()),
            Some(HeldGuest::Launching(_, waiting)) => {
                waiting.push(frame);
                Ok(())
            }
            Some(HeldGuest::Running(running)) => {
                if let Some(begin) = &mut running.begin {
                    begin.push(frame.clone());
                }
                running.writer.push(&frame)
            }
        }
    }

    /// The next event of any guest. The sandbox's own guest comes first. Dropping the future loses no event.
    pub(super) async fn next(&mut self) -> (Slot, Happened) {
        if self.held.is_empty() {
            return std::future::pending().await;
        }
        let held = self.held.iter_mut();
        let each = held.map(|(slot, held)| Box::pin(async { (*slot, held.guest.next().await) }));
        select_all(each).await.0
    }
}

impl HeldGuest {
    /// The next event of the guest. Dropping the future loses no event.
    async fn next(&mut self) -> Happened {
        match self {
            Self::Launching(launch, _) => Happened::Launched(launch.await),
            Self::Running(running) => {
                let Running {
                    reader,
                    writer,
                    process,
                    kin,
                    closed,
                    given_up,
                    exit,
                    ..
                } = &mut **running;
                let GuestWriter { stream, outbox, .. } = writer;
                let time = if *given_up { GONE_WITHIN } else { process.exit_timeout() };
                let overdue = closed.map(|at| at + time);
                tokio::select! {
                    biased;
                    frame = reader.next(), if closed.is_none() || exit.is_some() => Happened::Frame(frame),
                    written = outbox.write_more(stream), if closed.is_none() => Happened::Written(written),
                    exit = process.wait(), if exit.is_none() => Happened::Exited(exit),
                    () = kin.gone(), if exit.is_none() => Happened::Gone,
                    () = tokio::time::sleep_until(overdue.unwrap_or_else(Instant::now)), if overdue.is_some() => Happened::Overdue,
                }
            }
        }
    }
}

impl Running {
    fn of(mut guest: Guest, max_bytes: usize) -> Self {
        let begin = guest.has_waited().then(Vec::new);
        let (kin, succession) = (guest.take_kin(), guest.take_succession());
        let (reader, writer, process) = guest.split(max_bytes);
        Self {
            reader,
            writer,
            process,
            succession,
            kin,
            parts: Parts::default(),
            owed: 0,
            closed: None,
            given_up: false,
            exit: None,
            begin,
        }
    }
}
