//! Checkpoints of a server's sandbox: paused copies of its guest (`host/src/guest/paused.rs`).
//!
//! The session sees the body of a checkpoint, which here is only a number. The copy lives as long as the body does.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use sandglass_core::protocol::Event;
use sandglass_core::session::{GuestInput, Input, Slot};
use sandglass_core::{Error, Killer};
use tokio::task::JoinSet;

use super::slots::{HeldGuest, Running};
use super::task::SandboxTask;
use crate::guest::memory;
use crate::guest::paused::{Boundary, PausedGuest};
use crate::guest::{Exit, GuestProcess};
use crate::value::Payload;

/// The share of the memory limit that the guest and its paused copies may take together. Beyond it, the oldest copies are ended.
const MEMORY_SHARE: f64 = 0.75;

/// The paused copies of a sandbox's guests.
#[derive(Default)]
pub(super) struct PausedGuests {
    /// True if the session has checkpoints.
    are_made: bool,
    /// By the numbers of their checkpoints.
    copies: BTreeMap<u32, Weak<Copy>>,
    /// Copies that are being made: the generation of the guest, the number of the checkpoint, and the copy.
    pub(super) making: JoinSet<Made>,
}

/// A copy that the guest has made, or the reason why not.
pub(super) type Made = (u64, u32, Result<Copy, Error>);

/// A paused copy, and the processes around it.
pub(super) struct Copy {
    guest: PausedGuest,
    boundary: Arc<Boundary>,
}

/// The body of a checkpoint.
struct Handle {
    number: [u8; 4],
    _copy: Arc<Copy>,
}

impl AsRef<[u8]> for Handle {
    fn as_ref(&self) -> &[u8] {
        &self.number
    }
}

impl PausedGuests {
    pub(super) fn new(are_made: bool) -> Self {
        Self {
            are_made,
            ..Self::default()
        }
    }

    /// The copies that live.
    fn alive(&self) -> impl Iterator<Item = (u32, Arc<Copy>)> {
        let copies = self
            .copies
            .iter()
            .filter_map(|(number, copy)| Some((*number, copy.upgrade()?)));
        copies.filter(|(_, copy)| !copy.guest.has_ended())
    }

    /// The numbers of the processes of copies in a boundary.
    fn ids(&self, boundary: &Arc<Boundary>) -> Vec<u32> {
        let within = self.alive().filter(|(_, copy)| Arc::ptr_eq(&copy.boundary, boundary));
        within.filter_map(|(_, copy)| copy.guest.id()).collect()
    }
}

impl SandboxTask {
    /// Gets to know the processes of a guest that is ready. It has run no code yet.
    pub(super) fn know_processes(&mut self) {
        if self.paused.are_made
            && let Some(running) = self.slots.running_mut(Slot::Main)
            && running.boundary.is_none()
            && running.forker.is_some()
            && let Some((boundary, own)) = running.process.id().and_then(Boundary::of)
        {
            (running.boundary, running.own) = (Some(boundary), Some(own));
        }
    }

    /// Has the guest make a paused copy of itself.
    pub(super) fn pause(&mut self, checkpoint: u32) {
        let generation = self.slots.generation(Slot::Main).unwrap_or_default();
        let running = self.slots.running(Slot::Main);
        let means = running
            .and_then(|running| Some((running.forker.as_ref()?.pause(), Arc::clone(running.boundary.as_ref()?))));
        let Some((pausing, boundary)) = means else {
            let why = Error::BootFailed("guests of this kind make no copies of themselves".to_owned());
            return self.paused((generation, checkpoint, Err(why)));
        };
        self.paused.making.spawn(async move {
            let copy = pausing.await.map(|guest| Copy { guest, boundary });
            (generation, checkpoint, copy)
        });
    }

    /// Takes a copy that the guest has made.
    pub(super) fn paused(&mut self, (generation, checkpoint, made): Made) {
        if self.slots.generation(Slot::Main) != Some(generation) {
            return;
        }
        let (event, body) = match made {
            Ok(copy) => {
                let copy = Arc::new(copy);
                self.paused.copies.retain(|_, copy| copy.strong_count() > 0);
                self.paused.copies.insert(checkpoint, Arc::downgrade(&copy));
                let number = checkpoint.to_le_bytes();
                let event = Event::Saved {
                    checkpoint,
                    full: true,
                    lost: Vec::new(),
                    spent: false,
                };
                (event, Some(Payload(Bytes::from_owner(Handle { number, _copy: copy }))))
            }
            Err(error) => {
                let why = error.to_string();
                let why = why.rsplit_once("could not be copied: ").map_or(&*why, |(_, why)| why);
                let reason = Some(why.to_owned());
                (Event::NotSaved { checkpoint, reason }, None)
            }
        };
        self.tell(Input::Guest(Slot::Main, GuestInput::Event(event, body)));
        self.look_at_paused_memory();
    }

    /// Ends the oldest paused copies if the guest and they take too much memory together.
    fn look_at_paused_memory(&mut self) {
        let most = self.session.limits().max_memory_bytes * MEMORY_SHARE;
        let own = self
            .slots
            .running(Slot::Main)
            .and_then(|running| running.own.as_ref()?.id());
        loop {
            let copies: Vec<_> = self.paused.alive().collect();
            let ids = copies.iter().filter_map(|(_, copy)| copy.guest.id());
            let processes: Vec<u32> = ids.chain(own).collect();
            let Some((oldest, _)) = copies.first() else { return };
            if !memory::take_more(&processes, most) {
                return;
            }
            let oldest = *oldest;
            drop(copies);
            self.give_up(oldest, "memory is short");
        }
    }

    /// Gives up a checkpoint. The session drops its body, and so the copy ends.
    fn give_up(&mut self, checkpoint: u32, why: &str) {
        self.paused.copies.remove(&checkpoint);
        self.tell(Input::CheckpointGone(checkpoint, why.to_owned()));
    }

    /// Tells the session of paused copies that have ended.
    pub(super) fn find_ended_copies(&mut self) {
        let copies = self.paused.copies.iter();
        let ended = copies.filter(|(_, copy)| copy.upgrade().is_none_or(|copy| copy.guest.has_ended()));
        let ended: Vec<u32> = ended.map(|(number, _)| *number).collect();
        for checkpoint in ended {
            self.give_up(checkpoint, "the process that held it has ended");
        }
    }

    /// Starts a copy of a paused copy as the sandbox's guest.
    pub(super) fn revive(&mut self, checkpoint: &Payload) {
        let number = <[u8; 4]>::try_from(&*checkpoint.0).map(u32::from_le_bytes);
        let copy = number
            .ok()
            .and_then(|number| self.paused.copies.get(&number)?.upgrade());
        let inner = self.paused.alive().filter_map(|(_, copy)| copy.guest.inner_id());
        let paused: Vec<u32> = inner.collect();
        let all: Vec<_> = self.paused.alive().map(|(_, copy)| copy).collect();
        self.slots.launch(
            Slot::Main,
            Box::pin(async move {
                let copy = copy.ok_or_else(|| Error::GuestLost("its process is gone".to_owned()))?;
                let stop_all = || all.iter().for_each(|copy| copy.guest.stop());
                copy.boundary.revive(&copy.guest, &paused, stop_all).await
            }),
            Vec::new(),
        );
    }

    /// Ends the main guest. Its paused copies stay, unless the session is over.
    pub(super) fn kill(&mut self) {
        let Some(HeldGuest::Running(running)) = self.slots.take(Slot::Main) else {
            return;
        };
        let Running {
            process, own, boundary, ..
        } = *running;
        let mut left = Some(process);
        if let Some(boundary) = boundary.filter(|_| !self.session.is_destroyed()) {
            let ids = self.paused.ids(&boundary);
            if !ids.is_empty()
                && let Some(root) = left.take()
            {
                if let Some(mut own) = own {
                    own.kill();
                }
                self.paused.alive().for_each(|(_, copy)| copy.guest.stop());
                left = boundary.end_guest(root, ids.into_iter());
            }
        }
        left.into_iter().for_each(|process| self.end(process));
    }

    /// Ends a guest's processes altogether.
    fn end(&mut self, mut process: GuestProcess) {
        process.kill();
        self.ending.spawn(async move {
            process.wait().await;
        });
    }

    /// Ends all paused copies, and everything around them.
    pub(super) fn end_paused(&mut self) {
        for (_, copy) in std::mem::take(&mut self.paused.copies) {
            if let Some(copy) = copy.upgrade() {
                copy.guest.kill();
                copy.boundary.take_root().into_iter().for_each(|root| self.end(root));
            }
        }
    }

    /// Handles the end of the guest's own process. If there are paused copies, the process around it stays and tells no exit.
    pub(super) fn own_ended(&mut self, slot: Slot) {
        let hits = self.hits();
        let is_oom = hits.oom > self.begun.oom;
        let Some(running) = self.slots.running_mut(slot) else {
            return;
        };
        running.own = None;
        let boundary = running.boundary.clone();
        if boundary.is_some_and(|boundary| !self.paused.ids(&boundary).is_empty()) {
            let exit = Exit {
                killer: is_oom.then_some(Killer::Oom),
                ..Exit::default()
            };
            self.exited(slot, exit);
        }
    }
}
