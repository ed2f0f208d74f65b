//! The return to an earlier state: at the user's request, or because guests crash with the newest one.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use super::checkpoints::Checkpoints;
use super::interpreter::{Guest, Interpreter};
use super::journal::{Origin, Steps};
use super::{Body, Reply, Ticket};
use crate::execution::{LostVariable, StateReport};

/// A return to an earlier state that is under way.
#[derive(Debug)]
pub(super) struct Reverting<B> {
    pub(super) ticket: Ticket,
    /// The state to go back to.
    pub(super) origin: Origin<B>,
    /// The variables that the host has set since that checkpoint.
    pub(super) dropped: Vec<String>,
    /// The variables that were lost earlier, of which nobody was told, and which the state to go back to lacks as well.
    pub(super) earlier: Vec<LostVariable>,
    /// The checkpoint that the state came from until now, and the loss if going back fails.
    pub(super) base: Option<u32>,
    pub(super) loss: Option<StateReport>,
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
        let earlier = self.lost_earlier(&origin);
        // The guest does not end of its own here. A save that this interrupts has not failed.
        let failed = self.checkpoints.failed;
        let loss = is_new.then(|| self.loss("going back failed", false));
        self.checkpoints.failed = failed;
        self.checkpoints.reverting = Some(Reverting {
            ticket,
            origin,
            dropped,
            earlier,
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
            earlier,
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
        self.contexts_given += 1;
        self.untold_loss = self.reverted_loss(None, dropped, earlier);
        self.resolve(ticket, Ok(Reply::State(0)));
    }

    /// The losses that nobody was told of, as far as they are also losses in the state to go back to. An earlier state lacks what a later one had
    /// lost. A state on another branch may have it.
    fn lost_earlier(&self, origin: &Origin<B>) -> Vec<LostVariable> {
        let chain = &self.checkpoints.chain;
        let has = |name: &String| match origin {
            Origin::Fresh(contexts) => contexts.has(name),
            Origin::Saved(number, _) if chain.descends(self.checkpoints.base, *number) => false,
            Origin::Saved(number, _) => chain.find(*number).is_some_and(|link| link.names.contains(name)),
        };
        let untold = self.untold_loss.iter().flat_map(|loss| loss.lost.iter().flatten());
        untold.filter(|lost| !has(&lost.name)).cloned().collect()
    }

    /// The loss to report after going back: the variables that the checkpoint lacks, those that the host had set since, and earlier losses.
    pub(super) fn reverted_loss(
        &self,
        loss: Option<StateReport>,
        mut dropped: Vec<String>,
        earlier: Vec<LostVariable>,
    ) -> Option<StateReport> {
        dropped.sort_unstable();
        dropped.dedup();
        if dropped.is_empty() && earlier.is_empty() {
            return loss;
        }
        let execution = self.checkpoints.execution;
        let reason =
            format!("it was set or written after execution {execution}, and the state is as it was before that");
        let mut report = loss.unwrap_or_else(|| StateReport::restored(execution, [], ""));
        report.add_lost(dropped, &reason);
        let mut untold = StateReport::kept();
        untold.add(earlier);
        report.add_earlier(Some(untold));
        Some(report)
    }
}

impl<B: Body> Checkpoints<B> {
    /// Drops all checkpoints. The next guest starts with the state before the first execution.
    pub(super) fn forget(&mut self) {
        self.chain.clear();
        self.base = None;
        self.before = None;
        self.execution = 0;
        self.crashes = 0;
    }

    /// Gives up the state with which guests crash, for the one that it came from. Returns the variables that the host has set in between, and
    /// the state that comes now. If there is no earlier state, drops all checkpoints.
    ///
    /// The state may be that of a moment before memory ran out. Then no guest gets far with it, and the one before may be well.
    pub(super) fn give_up(&mut self) -> Option<(Vec<String>, Origin<B>)> {
        let link = self.base.and_then(|number| self.chain.find(number));
        let parent = link.and_then(|link| self.chain.find(link.parent?));
        let Some((link, parent)) = link.zip(parent) else {
            self.forget();
            return None;
        };
        let (number, parent, set) = (link.number, parent.number, link.set.clone());
        self.crashes = 0;
        self.chain.drop_newest(number);
        self.base = Some(parent);
        Some((set, Origin::Saved(parent, Steps::default())))
    }
}
