//! Checkpoints that are paused copies of the guest.
//!
//! A driver that can fork guests makes them in a moment, and a copy of such a copy becomes the next guest. They take memory and processes
//! of the sandbox itself, so there are few. Any of them may end on its own: then an older one stands in, and the user is told of the loss.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use super::checkpoints::Checkpoints;
use super::copies::Fork;
use super::interpreter::{Guest, Interpreter};
use super::journal::Origin;
use super::saves::Demand;
use super::{Body, Session, Ticket};
use crate::error::Error;
use crate::execution::StateReport;

impl<B: Body> Checkpoints<B> {
    /// The body of the checkpoint that becomes the next guest, if checkpoints are paused guests.
    pub(super) fn paused(&self) -> Option<B> {
        self.most_paused?;
        let link = self.chain.find(self.wanted()?)?;
        Some(link.body.clone())
    }

    /// Returns true if a command waits for a paused copy. An execution waits for it, so that it can be undone. Nothing overtakes a fork
    /// that has begun, because its order would wait in the guest's socket meanwhile. Only `undo` does: it ends the guest, and nobody needs
    /// the copy.
    pub(super) fn pauses_guest(&self, demand: Demand) -> bool {
        self.most_paused.is_some() && (demand.executes || (self.saving.is_some() && !demand.undoes))
    }

    /// Drops the checkpoint that the state came from. The state has the same relation to an older checkpoint then, if there is one.
    fn drop_base(&mut self, number: u32) {
        let parent = self.chain.find(number).and_then(|link| link.parent);
        let older = parent.and_then(|parent| self.chain.find(parent));
        let older = older.or_else(|| self.chain.before(number)).map(|link| link.number);
        let undone = self.chain.set_since(older, Some(number));
        self.set_since.extend(undone);
        self.chain.remove(number);
        self.base = older;
        self.end_journal();
    }
}

impl<B: Body> Session<B> {
    /// All that another session needs to go on from the paused copy of which the guest is being made for `ticket`.
    pub fn copied_for(&self, ticket: Ticket) -> Option<Fork<B>> {
        let checkpoints = &self.interpreter.checkpoints;
        let reverting = checkpoints
            .reverting
            .as_ref()
            .filter(|reverting| reverting.ticket == ticket)?;
        let Origin::Saved(number, _) = reverting.origin else {
            return None;
        };
        Some(self.interpreter.fork_of(checkpoints.chain.find(number)?))
    }

    /// Takes note that the guest which is being made comes from another paused copy with the state of this checkpoint. All other checkpoints are gone.
    pub fn goes_on_from(&mut self, checkpoint: u32, body: B) {
        self.interpreter.checkpoints.chain.leave_only(checkpoint, &body);
    }
}

impl<B: Body> Interpreter<B> {
    /// Returns true if there is or can be a copy of the state.
    pub(super) fn can_be_copied(&self) -> bool {
        self.forks || (!self.records && self.checkpoints.are_saved() && self.checkpoints.most_paused.is_none())
    }

    /// Takes note that a paused guest is gone, with its checkpoint.
    pub(super) fn checkpoint_gone(&mut self, number: u32, why: &str) {
        let checkpoints = &mut self.checkpoints;
        if checkpoints.chain.find(number).is_none() {
            return;
        }
        if checkpoints.reviving == Some(number) {
            // The guest that is being made of it may still come. If it does not, `not_revived` tells of the loss.
            checkpoints.gone = Some(why.to_owned());
            return;
        }
        if checkpoints.base != Some(number) {
            checkpoints.chain.remove(number);
            return;
        }
        if checkpoints.reverting.is_some() {
            return self.cannot_return(number, why);
        }
        checkpoints.drop_base(number);
        // The same state would be given up again. So it is saved when it has changed.
        checkpoints.vain |= !checkpoints.dirty;
        checkpoints.dirty = true;
        checkpoints.unsavable = Some(why.chars().take(300).collect());
    }

    /// Handles the loss of the checkpoint of the state that the user goes back from. Its guest is gone already. If going back fails, an older
    /// state comes back, and the user is told of this loss.
    fn cannot_return(&mut self, number: u32, why: &str) {
        let gone = self.checkpoints.chain.find(number);
        let names = gone.map(|link| link.names.clone()).unwrap_or_default();
        self.checkpoints.drop_base(number);
        let news = std::mem::take(&mut self.checkpoints.set_since);
        let base = self.checkpoints.base;
        let mut loss = self.loss_back_to(base, &names, news, &format!("going back failed, and {why}"));
        if let Some(reverting) = &mut self.checkpoints.reverting {
            reverting.base = base;
            loss.add_earlier(reverting.loss.take());
            reverting.loss = Some(loss);
        }
    }

    /// The loss if the state of checkpoint `base`, or none, stands in for one with these `names`. `news` were set since `base`.
    fn loss_back_to(&self, base: Option<u32>, names: &[String], news: Vec<String>, reason: &str) -> StateReport {
        let Some(older) = base.and_then(|number| self.checkpoints.chain.find(number)) else {
            let contexts = &self.contexts;
            return StateReport::lost(names.iter().filter(|name| !contexts.has(name)).cloned(), reason);
        };
        let lost = names.iter().filter(|name| !older.names.contains(name));
        let mut loss = StateReport::restored(older.execution, lost.cloned(), reason);
        let set = news.into_iter();
        loss.add_lost(
            set.filter(|name| !names.contains(name) || older.names.contains(name)),
            reason,
        );
        loss
    }

    /// Records that the guest which was made of a paused copy has its state.
    pub(super) fn revived(&mut self) {
        let number = self.checkpoints.reviving.take();
        if let Some((number, why)) = number.zip(self.checkpoints.gone.take()) {
            self.checkpoint_gone(number, &why);
        }
    }

    /// Handles a paused guest that did not come back. A user who asked to go back gets an error, and the earlier state comes back.
    /// Otherwise the next older one comes back, and the next execution reports the loss.
    pub(super) fn not_revived(&mut self, now: f64, why: &Error) {
        let wanted = self.checkpoints.wanted();
        (self.checkpoints.reviving, self.checkpoints.gone) = (None, None);
        self.exchange = None;
        self.end_guest(Guest::Down);
        if let Some(ticket) = self.take_reverting() {
            if let Some(number) = wanted.filter(|number| self.checkpoints.base != Some(*number)) {
                self.checkpoints.chain.remove(number);
            }
            self.checkpoints.tells = true;
            let what = format!("the checkpoint could not be restored ({why}); the state is as the next execution says");
            self.resolve(ticket, Err(Error::NoCheckpoint(what)));
        } else if let Some(number) = wanted {
            let gone = self.checkpoints.chain.find(number);
            let names = gone.map(|link| link.names.clone()).unwrap_or_default();
            self.checkpoints.drop_base(number);
            let news = std::mem::take(&mut self.checkpoints.set_since);
            let reason = format!("the saved state could not be restored: {why}");
            let base = self.checkpoints.base;
            let loss = self.loss_back_to(base, &names, news, &reason);
            match base {
                Some(_) => self.checkpoints.tells = true,
                None => self.checkpoints.forget(),
            }
            self.tell_later(Some(loss));
        }
        self.boot(now);
    }
}
