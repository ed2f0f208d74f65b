//! The shadows of a server's sandbox: their start, their limits of memory and message size, and their promotion.
//!
//! A shadow here is a *copy*: a fork of the sandbox's own guest (`host/src/guest/fork.rs`).
//!
//! Decisions: `docs/internals/running-ahead.md`.

use sandglass_core::Error;
use sandglass_core::limits::MAX_AHEAD_BYTES;
use sandglass_core::session::{GuestInput, Input, ShadowId, Slot};

use super::slots::HeldGuest;
use super::task::SandboxTask;
use crate::frame::FRAME_SLACK_BYTES;
use crate::guest::memory;

/// The share of the memory limit that the guest and its copies may take together. Beyond it, copies are ended. The rest is left for the
/// code that runs.
const MEMORY_SHARE: f64 = 0.75;

impl SandboxTask {
    /// Has the guest fork itself into a shadow's slot.
    pub(super) fn fork(&mut self, shadow: ShadowId) {
        let slot = Slot::Shadow(shadow);
        let main = self.slots.running(Slot::Main);
        match main.and_then(|running| running.kin.forker.as_ref()) {
            Some(forker) => {
                let copy = forker.fork();
                self.slots.launch(slot, copy, Vec::new());
            }
            None => self.lost(slot, "the guest makes no copies of itself"),
        }
    }

    /// The most bytes of a message from a slot's guest. The limit of a copy is lower, because its events are kept until its code comes.
    pub(super) fn max_bytes(&self, slot: Slot) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a constant far below 2^32"
        )]
        match slot {
            Slot::Main => self.max_value_bytes,
            Slot::Shadow(_) => self.max_value_bytes.min(MAX_AHEAD_BYTES as usize),
        }
    }

    /// Tells the session if the copies take too much memory. Called when the copy in a slot has begun or has finished its code.
    /// Nothing is checked while there is only one copy.
    pub(super) fn look_at_memory(&mut self, slot: Slot) {
        if slot == Slot::Main || self.slots.shadows().nth(1).is_none() {
            return;
        }
        let mut origin = None;
        let mut processes = Vec::new();
        for copy in self.slots.shadows() {
            origin = origin.or_else(|| copy.succession.as_ref()?.origin());
            processes.extend(copy.process.id());
        }
        processes.extend(origin);
        let most = self.session.limits().max_memory_bytes * MEMORY_SHARE;
        if memory::take_more(&processes, most) {
            self.tell(Input::MemoryIsShort);
        }
    }

    /// Puts a copy in the place of the sandbox's own guest.
    pub(super) fn promote(&mut self, shadow: ShadowId) {
        let replaced = self.slots.replace(Slot::Main, Slot::Shadow(shadow));
        let max_bytes = self.max_value_bytes + FRAME_SLACK_BYTES;
        let (Some(HeldGuest::Running(guest)), Some(copy)) = (replaced, self.slots.running_mut(Slot::Main)) else {
            // The copy has just ended, but the session already takes it for its guest.
            self.slots.take(Slot::Main);
            let lost = GuestInput::Lost(Error::GuestLost("the copy ended".to_owned()));
            return self.tell(Input::Guest(Slot::Main, lost));
        };
        copy.reader.set_max_bytes(max_bytes);
        if let Some(succession) = copy.succession.take() {
            succession.succeed();
        }
        // Everything that was started for the first guest must end with its last copy. So the first guest's process is kept.
        let own = std::mem::replace(&mut copy.process, guest.process);
        copy.kin.boundary = guest.kin.boundary;
        copy.kin.own = copy.kin.boundary.is_some().then_some(own);
        self.begun = self.hits();
    }
}
