//! Guests that ran code ahead, or were replaced by one that did, and wait to be used again.

use sandglass_core::protocol::Event;
use sandglass_core::session::{ShadowId, Slot};

use super::Driver;
use super::messages::Parts;
use super::slots::Held;
use crate::guest_frame::{Guest, Letter};

/// A guest that has run code, and may run code ahead.
pub(super) struct Parked {
    guest: Guest,
    /// True when it has said that it can.
    is_sure: bool,
}

impl Driver {
    /// A shadow's guest is at rest, and not needed any more.
    pub(super) fn park(&self, shadow: ShadowId) {
        match self.slots.take(Slot::Shadow(shadow)) {
            Some(Held::Here(guest)) => self.keep(guest),
            Some(Held::OnServer(_)) | None => self.hold_a_spare(),
        }
    }

    /// Keeps a guest that is at rest for the next code that runs ahead: it is given the state in a tenth of the time that another takes
    /// to start. It counts as a spare, and there is none where the user wants none. It is asked at once whether it can be used again; one
    /// that says anything else, or anything later, is ended: it has run code.
    pub(super) fn keep(&self, guest: Guest) {
        let may_park = self.options.limits.spares > 0 && !self.session.borrow().has_packages();
        let init = self.shadow_init.borrow().clone();
        match init {
            Some(init) if may_park && self.parked.borrow().is_none() => {
                let this = self.this.clone();
                let outbox = guest.outbox();
                guest.adopt(&outbox, move |letter| {
                    if let Some(driver) = this.upgrade() {
                        driver.hear_parked(letter);
                    }
                });
                outbox.post(init, None);
                self.parked.replace(Some(Parked { guest, is_sure: false }));
            }
            _ => guest.end_soon(),
        }
        self.hold_a_spare();
    }

    fn hear_parked(&self, letter: Letter) {
        let is_ready = if let Letter::Message(data) = letter {
            let events = Parts::default().read(&data, self.options.limits.max_value_bytes);
            matches!(events.as_deref(), Ok([(Event::Ready { .. }, None)]))
        } else {
            false
        };
        if let Some(parked) = &mut *self.parked.borrow_mut()
            && is_ready
            && !parked.is_sure
        {
            parked.is_sure = true;
            return;
        }
        self.end_parked();
    }

    fn end_parked(&self) {
        if let Some(Parked { guest, .. }) = self.parked.take() {
            guest.end_soon();
        }
        self.hold_a_spare();
    }

    /// The parked guest, if it can be used.
    pub(super) fn take_parked(&self) -> Option<Guest> {
        let is_gone = |parked: &Parked| parked.guest.is_gone();
        if self.session.borrow().has_packages() || self.parked.borrow().as_ref().is_some_and(is_gone) {
            self.end_parked();
        }
        let parked = self.parked.borrow_mut().take_if(|parked| parked.is_sure);
        parked.map(|parked| parked.guest)
    }

    /// A guest that is parked, or runs ahead, stands for one of the spares.
    pub(super) fn hold_a_spare(&self) {
        if let Some(claim) = &self.claim {
            claim.hold(self.parked.borrow().is_some() || self.slots.has_shadows());
        }
    }
}
