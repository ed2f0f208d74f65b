//! The return to an earlier state at the user's request.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use super::interpreter::{Guest, Interpreter};
use super::journal::Origin;
use super::{Body, Reply, Ticket};
use crate::execution::StateReport;

/// A return to an earlier state that is under way.
#[derive(Debug)]
pub(super) struct Reverting<B> {
    pub(super) ticket: Ticket,
    /// The state to go back to.
    pub(super) origin: Origin<B>,
    /// The variables that the host has set since that checkpoint.
    pub(super) dropped: Vec<String>,
    /// The checkpoint that the state came from until now, and the loss if going back fails.
    base: Option<u32>,
    loss: Option<StateReport>,
}

impl<B: Body> Interpreter<B> {
    /// Boots another guest with an earlier state.
    pub(super) fn revert(&mut self, now: f64, ticket: Ticket, origin: Origin<B>) {
        let (base, is_new) = (self.checkpoints.base, self.checkpoints.at().is_none());
        let number = match &origin {
            Origin::Saved(number, _) => Some(*number),
            Origin::Fresh(_) => None,
        };
        let mut dropped = self.checkpoints.chain.set_since(number, base);
        dropped.extend(self.checkpoints.news().cloned());
        if let Origin::Fresh(contexts) = &origin {
            dropped.retain(|name| !contexts.has(name));
        }
        // The guest does not end of its own here. A save that this interrupts has not failed.
        let failed = self.checkpoints.failed;
        let loss = is_new.then(|| self.loss("going back failed", false));
        self.checkpoints.failed = failed;
        self.checkpoints.reverting = Some(Reverting {
            ticket,
            origin,
            dropped,
            base,
            loss,
        });
        self.checkpoints.tells = true;
        self.end_guest(Guest::Down);
        self.boot(now);
    }

    /// Gives up going back, and returns the ticket of the request. Its user gets another answer.
    pub(super) fn take_reverting(&mut self) -> Option<Ticket> {
        let Reverting { ticket, base, loss, .. } = self.checkpoints.reverting.take()?;
        self.checkpoints.base = base;
        self.tell_later(loss);
        Some(ticket)
    }

    /// Records that a guest without a saved state begins, which may be the one to go back to.
    pub(super) fn begun_anew(&mut self) {
        let Some(Reverting {
            ticket,
            origin: Origin::Fresh(contexts),
            dropped,
            ..
        }) = self
            .checkpoints
            .reverting
            .take_if(|reverting| matches!(reverting.origin, Origin::Fresh(_)))
        else {
            return;
        };
        let checkpoints = &mut self.checkpoints;
        (checkpoints.base, checkpoints.before, checkpoints.execution) = (None, None, 0);
        checkpoints.tells = false;
        self.contexts = contexts;
        self.untold_loss = self.reverted_loss(None, dropped);
        self.resolve(ticket, Ok(Reply::State(0)));
    }

    /// The loss to report after going back: the variables that the checkpoint lacks, and those that the host had set since.
    pub(super) fn reverted_loss(&self, loss: Option<StateReport>, mut dropped: Vec<String>) -> Option<StateReport> {
        dropped.sort_unstable();
        dropped.dedup();
        if dropped.is_empty() {
            return loss;
        }
        let execution = self.checkpoints.execution;
        let reason =
            format!("it was set or written after execution {execution}, and the state is as it was before that");
        let mut report = loss.unwrap_or_else(|| StateReport::restored(execution, [], ""));
        report.add_lost(dropped, &reason);
        Some(report)
    }
}
