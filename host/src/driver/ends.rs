//! The ends of guests: by themselves, by a limit, or because they are given up.

use sandglass_core::Error;
use sandglass_core::execution::Killer;
use sandglass_core::protocol::Request;
use sandglass_core::session::{Effect, GuestEffect, GuestInput, HostEffect, Input, Reply, Slot};
use tokio::time::Instant;

use super::now;
use super::task::SandboxTask;
use crate::guest::Exit;

impl SandboxTask {
    pub(super) fn exited(&mut self, slot: Slot, exit: Exit) {
        if let Some(running) = self.slots.running_mut(slot) {
            let is_closed = running.closed.is_some();
            running.exit = Some(exit);
            running.closed.get_or_insert_with(Instant::now);
            if is_closed {
                self.ended();
            }
        }
    }

    /// Records that the guest's channel is closed. The guest has ended, or is ended if it does not exit soon.
    pub(super) fn closed(&mut self) {
        if let Some(running) = self.slots.running_mut(Slot::Main) {
            running.closed.get_or_insert_with(Instant::now);
            if running.exit.is_some() {
                self.ended();
            }
        }
    }

    pub(super) fn overdue(&mut self) {
        if let Some(running) = self.slots.running_mut(Slot::Main) {
            match running.exit {
                None if !running.given_up => {
                    running.process.kill();
                    running.given_up = true;
                }
                _ => self.ended(),
            }
        }
    }

    fn ended(&mut self) {
        if let Some(running) = self.slots.running_mut(Slot::Main) {
            let mut exit = running.exit.take().unwrap_or_default();
            // No process was killed for want of memory since this execution began. The count is of an earlier execution, which
            // explains nothing now. A count of 0 means that the group is gone, and then the exit's own reason stands.
            if exit.killer == Some(Killer::Oom) && (1..=self.begun.oom).contains(&running.process.hits().oom) {
                exit.killer = None;
            }
            match exit.killer.or(exit.signal.map(|_| Killer::Signal)) {
                // The host sent the signal itself.
                Some(Killer::Signal) | None if running.given_up => self.main_lost("it closed its channel", None),
                // Recorded code cannot have done this while it waits. Whoever stops the whole unit of this program does so.
                Some(Killer::Signal) if self.session.only_waits() => {
                    self.journal.leave(Error::GuestLost(format!(
                        "the guest ended: {exit}, while its code waited for calls; the execution is pending"
                    )));
                    self.tell(Input::Destroy);
                }
                killer => self.main_lost(&exit.to_string(), killer),
            }
        }
    }

    /// Handles the loss of the guest in a slot.
    pub(super) fn lost(&mut self, slot: Slot, why: &str) {
        match slot {
            Slot::Main => self.main_lost(why, None),
            Slot::Shadow(_) => {
                tracing::debug!(why, "code does not run ahead");
                self.slots.take(slot);
                self.tell(Input::Guest(slot, GuestInput::Lost(Error::GuestLost(why.to_owned()))));
            }
        }
    }

    /// Handles the loss of the main guest. A guest from the pool that died before it was ready is replaced, and the session does not
    /// notice. Otherwise the session hears of the loss, and the result of the execution under way gets the killer.
    fn main_lost(&mut self, why: &str, killer: Option<Killer>) {
        if self.session.is_booting()
            && let Some(running) = self.slots.running_mut(Slot::Main)
            && let Some(begin) = running.begin.take()
        {
            self.kill();
            self.launch(begin);
            return;
        }
        self.find_ended_copies();
        // An answer that waits for the journal was for this guest.
        let is_answer = |effect: &Effect<_>| {
            matches!(
                effect,
                Effect::Guest(Slot::Main, GuestEffect::Post(Request::HostReply { .. }, _))
            )
        };
        self.effects.retain(|effect| !is_answer(effect));
        let why = Error::GuestLost(format!("the guest ended: {why}"));
        let effects = self
            .session
            .handle(now(), Input::Guest(Slot::Main, GuestInput::Lost(why)));
        for mut effect in effects {
            if let Effect::Host(HostEffect::Resolve(_, Ok(Reply::Execution(run, _)))) = &mut effect {
                run.killer = killer;
            }
            self.effects.push_back(effect);
        }
    }
}
