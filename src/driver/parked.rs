//! Parked guests: they ran code ahead, or were replaced by a guest that did, and wait to be used again.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use sandglass_core::limits::MAX_COPIES;
use sandglass_core::protocol::Event;
use sandglass_core::session::{ShadowId, Slot};

use super::Driver;
use super::messages::Parts;
use super::slots::Held;
use crate::guest_frame::{Guest, Letter};

/// A parked guest. It has run code, and may run code ahead.
pub(super) struct Parked {
    number: u32,
    guest: Guest,
    /// True when the guest has said that it can be used again.
    is_sure: bool,
}

impl Driver {
    /// Parks a shadow's guest, which is at rest and not needed any more.
    pub(super) fn park(&self, shadow: ShadowId) {
        match self.slots.take(Slot::Shadow(shadow)) {
            Some(Held::Here(guest)) => self.keep(guest),
            Some(Held::OnServer(_)) | None => self.hold_spares(),
        }
    }

    /// Keeps a guest that is at rest, for the next code that runs ahead. Giving it another state takes a tenth of the time that a new guest
    /// takes to start. It counts as a spare, so none is kept if the user wants no spares. It is asked at once if it can be used again. A guest
    /// with any other answer, or any later message, is ended, because it has run code and is not trusted.
    pub(super) fn keep(&self, guest: Guest) {
        let limits = &self.options.limits;
        let most = limits.max_shadows.unwrap_or(MAX_COPIES) as usize;
        let has_room = self.parked.borrow().len() + self.slots.shadows() < most;
        let may_park = limits.spares > 0 && has_room && !self.session.borrow().has_packages();
        let init = self.shadow_init.borrow().clone();
        match init {
            Some(init) if may_park => {
                let number = self.last_parked.get() + 1;
                self.last_parked.set(number);
                let this = self.this.clone();
                let outbox = guest.outbox();
                guest.adopt(&outbox, move |letter| {
                    if let Some(driver) = this.upgrade() {
                        driver.hear_parked(number, letter);
                    }
                });
                outbox.post(init, None);
                self.parked.borrow_mut().push(Parked {
                    number,
                    guest,
                    is_sure: false,
                });
            }
            _ => guest.end_soon(),
        }
        self.hold_spares();
    }

    fn hear_parked(&self, number: u32, letter: Letter) {
        let is_ready = if let Letter::Message(data) = letter {
            let events = Parts::default().read(&data, self.options.limits.max_value_bytes);
            matches!(events.as_deref(), Ok([(Event::Ready { .. }, None)]))
        } else {
            false
        };
        let mut parked = self.parked.borrow_mut();
        if let Some(parked) = parked.iter_mut().find(|parked| parked.number == number)
            && is_ready
            && !parked.is_sure
        {
            parked.is_sure = true;
            return;
        }
        drop(parked);
        self.end_parked(|parked| parked.number == number);
    }

    fn end_parked(&self, which: impl Fn(&Parked) -> bool) {
        let ended: Vec<_> = self
            .parked
            .borrow_mut()
            .extract_if(.., |parked| which(parked))
            .collect();
        for Parked { guest, .. } in ended {
            guest.end_soon();
        }
        self.hold_spares();
    }

    /// Takes a parked guest that can be used.
    pub(super) fn take_parked(&self) -> Option<Guest> {
        let has_packages = self.session.borrow().has_packages();
        self.end_parked(|parked| has_packages || parked.guest.is_gone());
        let mut parked = self.parked.borrow_mut();
        let at = parked.iter().position(|parked| parked.is_sure)?;
        Some(parked.remove(at).guest)
    }

    /// Holds back a spare for each parked guest and each guest of a shadow.
    pub(super) fn hold_spares(&self) {
        if let Some(claim) = &self.claim {
            claim.hold(self.parked.borrow().len() + self.slots.shadows());
        }
    }
}
