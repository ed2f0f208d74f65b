//! Checkpoints of a server's sandbox: paused copies of its guest (`host/src/guest/copies.rs`).
//!
//! The session sees the body of a checkpoint, which here is only a number. The copy lives as long as the body does.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sandglass_core::protocol::Event;
use sandglass_core::session::{Fork, GuestInput, Input, Slot};
use sandglass_core::{Error, Killer};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::slots::{HeldGuest, Running};
use super::task::SandboxTask;
use super::{Begin, CopiesOrder, MadeCopy};
use crate::guest::copies::{Copies, PausedCheckpoint, PausedCopy, Spread};
use crate::guest::{Exit, Guest, GuestProcess};
use crate::value::Payload;

/// The paused copies of a sandbox's guests.
pub(super) struct PausedGuests {
    copies: Copies,
    /// Copies that are being made.
    pub(super) making: JoinSet<Made>,
}

/// What has become of the state when a session was not copied.
pub(crate) const KEPT: &str = "variables are kept";

/// The generation of the guest, the number of the checkpoint, and the copy that the guest has made, or the reason why not.
pub(super) type Made = (u64, u32, Result<PausedCopy, String>);

/// The body of a checkpoint.
struct Handle {
    number: [u8; 4],
    _copy: Arc<PausedCopy>,
}

impl AsRef<[u8]> for Handle {
    fn as_ref(&self) -> &[u8] {
        &self.number
    }
}

/// The body of the checkpoint that this paused copy holds.
fn body(number: u32, copy: Arc<PausedCopy>) -> Payload {
    let number = number.to_le_bytes();
    Payload(Bytes::from_owner(Handle { number, _copy: copy }))
}

impl PausedGuests {
    pub(super) fn new(are_made: bool) -> Self {
        Self {
            copies: Copies::new(are_made),
            making: JoinSet::new(),
        }
    }
}

impl SandboxTask {
    /// Adds the checkpoint of a session that is a copy.
    pub(super) fn begin_with(mut self, checkpoint: Option<PausedCheckpoint>) -> Self {
        if let Some(checkpoint) = &checkpoint {
            self.paused.copies.begin_with(checkpoint);
        }
        self
    }

    /// Starts a guest without a state.
    pub(super) fn boot(&mut self) {
        let launcher = Arc::clone(&self.launcher);
        let launch = self.paused.copies.launch(async move { launcher.launch().await });
        self.slots.launch(Slot::Main, launch, Vec::new());
    }

    /// Takes note of a guest that has started.
    pub(super) fn within(&mut self, slot: Slot) {
        let Some(running) = self.slots.running_mut(slot) else {
            return;
        };
        let (left, root) = self.paused.copies.started(&running.kin);
        if let Some(PausedCheckpoint { number, copy }) = running.kin.copied.take() {
            self.session.goes_on_from(number, body(number, copy));
        }
        for number in left {
            self.give_up(number, "a guest within new limits has started");
        }
        root.into_iter().for_each(|root| self.end(root));
    }

    /// Has the guest make a paused copy of itself.
    pub(super) fn pause(&mut self, checkpoint: u32) {
        let generation = self.slots.generation(Slot::Main).unwrap_or_default();
        let Some(Running { process, kin, .. }) = self.slots.running(Slot::Main) else {
            return self.paused((generation, checkpoint, Err("there is no guest".to_owned())));
        };
        let memory_bytes = self.session.limits().max_memory_bytes;
        let pausing = self.paused.copies.pause(checkpoint, memory_bytes, process, kin);
        self.paused
            .making
            .spawn(async move { (generation, checkpoint, pausing.await) });
    }

    /// Takes a copy that the guest has made.
    pub(super) fn paused(&mut self, (generation, checkpoint, made): Made) {
        if self.slots.generation(Slot::Main) != Some(generation) {
            return;
        }
        let (event, body) = match made {
            Ok(copy) => {
                let copy = Arc::new(copy);
                self.paused.copies.add(checkpoint, &copy);
                let event = Event::Saved {
                    checkpoint,
                    full: true,
                    lost: Vec::new(),
                    spent: false,
                };
                (event, Some(body(checkpoint, copy)))
            }
            Err(why) => {
                let reason = Some(why);
                (Event::NotSaved { checkpoint, reason }, None)
            }
        };
        self.tell(Input::Guest(Slot::Main, GuestInput::Event(event, body)));
        self.look_at_paused_memory();
    }

    /// Ends the oldest paused copy if the guest and its copies take too much memory together. The memory is looked at again once the copy
    /// is gone, and not before: until then its memory counts, and another copy would go for it.
    pub(super) fn look_at_paused_memory(&mut self) {
        if !self.ending.is_empty() {
            return;
        }
        let Some(Running { process, kin, .. }) = self.slots.running(Slot::Main) else {
            return;
        };
        let memory_bytes = self.session.limits().max_memory_bytes;
        if let Some(oldest) = self.paused.copies.too_much(memory_bytes, process, kin) {
            self.give_up(oldest, "memory is short");
        }
    }

    /// Gives up a checkpoint. The session drops its body, and the copy ends.
    fn give_up(&mut self, checkpoint: u32, why: &str) {
        let copy = self.paused.copies.remove(checkpoint);
        self.tell(Input::CheckpointGone(checkpoint, why.to_owned()));
        // A guest may be coming from the copy just now.
        if let Some(copy) = copy.and_then(Arc::into_inner) {
            self.ending.spawn(copy.end());
        }
    }

    /// Tells the session of paused copies that have ended.
    pub(super) fn find_ended_copies(&mut self) {
        for checkpoint in self.paused.copies.ended() {
            self.give_up(checkpoint, "the process that held it has ended");
        }
    }

    /// Starts a copy of a paused copy as the sandbox's guest.
    pub(super) fn revive(&mut self, checkpoint: &Payload) {
        let number = <[u8; 4]>::try_from(&*checkpoint.0).map_or(0, u32::from_le_bytes); // checkpoints are numbered from 1
        let launch = match self.ordered_copies() {
            Some((order, fork)) => self.spread(number, order, fork),
            None => self.paused.copies.revive(number),
        };
        self.slots.launch(Slot::Main, launch, Vec::new());
    }

    /// The order for copies for which the guest ends just now.
    fn ordered_copies(&mut self) -> Option<(CopiesOrder, Fork<Payload>)> {
        self.waiters.iter_mut().find_map(|(ticket, waiter)| {
            let fork = waiter
                .watch
                .copies
                .is_some()
                .then(|| self.session.copied_for(*ticket))??;
            Some((waiter.watch.copies.take()?, fork))
        })
    }

    /// Makes copies of the sandbox. Its own guest is one of them, or comes alone if there can be none.
    fn spread(
        &self,
        checkpoint: u32,
        order: CopiesOrder,
        fork: Fork<Payload>,
    ) -> BoxFuture<'static, Result<Guest, Error>> {
        let CopiesOrder { count, mut made } = order;
        if made.is_closed() {
            return self.paused.copies.revive(checkpoint);
        }
        let Some(limits) = self.launcher.copy_limits() else {
            let _ = made.send(Err(format!("guests of this kind are copied by value; {KEPT}")));
            return self.paused.copies.revive(checkpoint);
        };
        let given_up = CancellationToken::new();
        let (mut spreading, alone) = (
            self.paused.copies.spread(checkpoint, limits, count, given_up.clone()),
            self.paused.copies.revive(checkpoint),
        );
        let info = self.session.info().clone();
        Box::pin(async move {
            let spread = tokio::select! {
                spread = &mut spreading => spread,
                () = made.closed() => {
                    given_up.cancel();
                    spreading.await
                }
            };
            let why = match spread {
                Ok(Spread { own, others }) => {
                    let copies = others.into_iter().map(|checkpoint| MadeCopy {
                        fork: fork
                            .clone()
                            .with_body(body(checkpoint.number, Arc::clone(&checkpoint.copy))),
                        begin: Begin {
                            checkpoint,
                            info: info.clone(),
                        },
                    });
                    let _ = made.send(Ok(copies.collect())); // if nobody waits for them any more, they end
                    return own.await;
                }
                Err(why) => why,
            };
            tracing::debug!(why, "a session is not copied exactly");
            let own = alone.await;
            let state = match own {
                Ok(_) => KEPT,
                Err(_) => "the next execution says what is lost",
            };
            let _ = made.send(Err(format!("{why}; {state}")));
            own
        })
    }

    /// Ends the main guest. Its paused copies stay, unless the session is over.
    pub(super) fn kill(&mut self) {
        let Some(HeldGuest::Running(running)) = self.slots.take(Slot::Main) else {
            return;
        };
        let Running { process, kin, .. } = *running;
        let left = match self.session.is_destroyed() {
            true => Some(process),
            false => self.paused.copies.end_guest(process, kin),
        };
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
        let root = self.paused.copies.end_all();
        root.into_iter().for_each(|root| self.end(root));
    }

    /// Handles the end of the guest's own process. If there are paused copies, the process around it stays and tells no exit.
    pub(super) fn own_ended(&mut self, slot: Slot) {
        let is_oom = self.hits().oom > self.begun.oom;
        let Some(running) = self.slots.running(slot) else {
            return;
        };
        if self.paused.copies.has_copies_of(&running.kin) {
            let exit = Exit {
                killer: is_oom.then_some(Killer::Oom),
                ..Exit::default()
            };
            self.exited(slot, exit);
        }
    }
}
