//! The guests of a sandbox, each in its slot: how they are found, sent something and heard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use gloo_timers::callback::Timeout;
use js_sys::Array;
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_AHEAD_BYTES;
use sandglass_core::protocol::{Event, Request};
use sandglass_core::session::{GuestInput, Input, Slot};
use wasm_bindgen::prelude::*;
use web_sys::Blob;

use super::messages::{Events, Parts};
use super::{Driver, notify};
use crate::glue::object;
use crate::guest_frame::{Guest, Letter};
use crate::outbox::{JsBody, Outbox};
use crate::remote::RemoteGuest;
use crate::snapshot::{self, Maker};

/// The guests of a sandbox: its own, and its shadows'.
#[derive(Default)]
pub(super) struct Slots {
    held: RefCell<BTreeMap<Slot, Rc<GuestSlot>>>,
    last_generation: Cell<u32>,
}

/// A guest in a slot. It keeps its generation when it moves to another, and no other guest has the same.
pub(super) struct GuestSlot {
    pub(super) generation: u32,
    /// None while it is started.
    pub(super) guest: RefCell<Option<Held>>,
    /// Messages to it; open once it can be reached.
    pub(super) outbox: Rc<Outbox>,
    pub(super) parts: RefCell<Parts>,
    /// The guest's numbers of calls that it is blocked in.
    blocked: RefCell<HashSet<u32>>,
    /// As long as it has not said that it can be used: another one would take its place.
    pub(super) unconfirmed_init: RefCell<Option<UnconfirmedInit>>,
    /// Held while it makes the page's snapshot, or is the first to start from it.
    pub(super) maker: RefCell<Option<Maker>>,
}

/// Something to do with the driver and a guest of its.
pub(super) type Act<'a> = dyn Fn(&Driver, &GuestSlot) + 'a;

/// A guest, as it is reached.
pub(super) enum Held {
    Here(Guest),
    OnServer(RemoteGuest),
}

/// The first messages to a guest that was started before.
#[derive(Default)]
pub(super) struct UnconfirmedInit {
    pub(super) init: Option<Request>,
    /// True when it has run code already: it may still say something to the session that it was of.
    pub(super) was_parked: bool,
    /// Goes off when it takes too long to answer.
    pub(super) watch: Option<Timeout>,
}

impl Slots {
    /// Puts a guest into a slot.
    pub(super) fn place(&self, slot: Slot, guest: Option<Held>, unconfirmed: Option<UnconfirmedInit>) -> Rc<GuestSlot> {
        let generation = self.last_generation.get() + 1;
        self.last_generation.set(generation);
        let outbox = match &guest {
            Some(Held::Here(guest)) => guest.outbox(),
            _ => Outbox::new(),
        };
        let placed = Rc::new(GuestSlot {
            generation,
            guest: RefCell::new(guest),
            outbox,
            parts: RefCell::default(),
            blocked: RefCell::default(),
            unconfirmed_init: RefCell::new(unconfirmed),
            maker: RefCell::default(),
        });
        drop(self.take(slot));
        self.held.borrow_mut().insert(slot, placed.clone());
        placed
    }

    pub(super) fn at(&self, slot: Slot) -> Option<Rc<GuestSlot>> {
        self.held.borrow().get(&slot).cloned()
    }

    /// A guest, where it is now.
    pub(super) fn find(&self, generation: u32) -> Option<(Slot, Rc<GuestSlot>)> {
        let held = self.held.borrow();
        let mut held = held.iter();
        held.find_map(|(slot, held)| (held.generation == generation).then(|| (*slot, held.clone())))
    }

    /// Takes the guest out of a slot: nobody hears it any more.
    pub(super) fn take(&self, slot: Slot) -> Option<Held> {
        let held = self.held.borrow_mut().remove(&slot)?;
        held.unconfirmed_init.take();
        held.maker.take();
        let guest = held.guest.take();
        if !matches!(guest, Some(Held::Here(_))) {
            held.outbox.close(); // a guest of the page does so when it ends
        }
        guest
    }

    /// Moves a guest to another slot, whose guest is taken out.
    pub(super) fn replace(&self, slot: Slot, by: Slot) -> Option<Held> {
        let before = self.take(slot);
        let mut held = self.held.borrow_mut();
        if let Some(moved) = held.remove(&by) {
            held.insert(slot, moved);
        }
        before
    }

    /// The number of guests that run code ahead, have done so, or are to.
    pub(super) fn shadows(&self) -> usize {
        self.held.borrow().keys().filter(|slot| **slot != Slot::Main).count()
    }
}

impl GuestSlot {
    /// Returns true when the guest hears this in its mailbox only. What it may hear in either way is in the mailbox then. `is_blocking`: a
    /// guest that waits hears nothing but its mailbox.
    fn is_blocked(&self, guest: &Guest, request: &Request, is_blocking: bool) -> bool {
        match request {
            Request::HostReply { call, .. } => return self.blocked.borrow_mut().remove(call),
            Request::Interrupt { .. } => drop(self.blocked.take()),
            Request::Promote { .. } => {}
            _ => return false,
        }
        // It may be blocked or not; it takes the first that it hears and ignores the second.
        if is_blocking {
            guest.post_blocked(request, None);
        }
        false
    }
}

impl Driver {
    /// Sends the guest in a slot a message.
    pub(super) fn post(&self, slot: Slot, request: Request, body: Option<JsBody>) {
        if let (Request::Init { .. }, Slot::Shadow(_)) = (&request, slot) {
            self.shadow_init.replace(Some(request.clone()));
        }
        let Some(held) = self.slots.at(slot) else { return };
        if let (Request::Init { .. }, Some(unconfirmed)) = (&request, &mut *held.unconfirmed_init.borrow_mut()) {
            unconfirmed.init = Some(request.clone());
        }
        let is_blocking = self.session.borrow().info().bridge == "atomics";
        match &*held.guest.borrow() {
            Some(Held::Here(guest)) if held.is_blocked(guest, &request, is_blocking) => {
                guest.post_blocked(&request, body.map(|body| held.outbox.whole(&body)));
            }
            _ => held.outbox.post(request, body),
        }
    }

    /// Runs something on the driver and a guest, as long as both are there.
    pub(super) fn of_generation(&self, generation: u32) -> impl Fn(&Act<'_>) + 'static {
        let this = self.this.clone();
        move |act| {
            if let Some(driver) = this.upgrade()
                && let Some((_, held)) = driver.slots.find(generation)
            {
                act(&driver, &held);
            }
        }
    }

    /// Lets messages to and from a guest through.
    pub(super) fn adopt(&self, held: &GuestSlot) {
        let (this, generation) = (self.this.clone(), held.generation);
        if let Some(Held::Here(guest)) = &*held.guest.borrow() {
            guest.adopt(&held.outbox, move |letter| {
                if let Some(driver) = this.upgrade() {
                    driver.receive(generation, letter);
                }
            });
        }
    }

    /// Something comes from a guest; it is not to be trusted.
    fn receive(&self, generation: u32, letter: Letter) {
        let Some((slot, held)) = self.slots.find(generation) else {
            return;
        };
        let data = match letter {
            Letter::Message(data) => data,
            Letter::Failure(why) => return self.failed(generation, GuestInput::Lost(Error::GuestLost(why))),
        };
        let most = self.options.limits.max_value_bytes;
        let most = match slot {
            Slot::Main => most,
            Slot::Shadow(_) => most.min(MAX_AHEAD_BYTES), // it is kept until its code comes
        };
        let read = held.parts.borrow_mut().read(&data, most);
        let events = match read {
            Ok(events) => events,
            Err(what) => return self.feed(Input::Guest(slot, GuestInput::BadMessage(what))),
        };
        if let (Slot::Main, [(event @ Event::Snapshot { .. }, _)]) = (slot, &events[..]) {
            return self.take_snapshot(&held, &data, event);
        }
        if self.take_all(generation, events) {
            snapshot::prove(&self.options.assets_url(&self.glue));
            held.maker.take();
            self.progress("ready");
        }
    }

    /// Takes a message's events, as long as their guest is in a slot: each may end it, or move it to another. Returns true when the
    /// sandbox's own guest has become ready.
    pub(super) fn take_all(&self, generation: u32, events: Events) -> bool {
        let mut has_become_ready = false;
        for (event, body) in events {
            let Some((slot, held)) = self.slots.find(generation) else {
                return false;
            };
            let was_parked = held.unconfirmed_init.borrow().as_ref().map(|init| init.was_parked);
            match (&event, was_parked) {
                (Event::Ready { .. }, Some(_)) => drop(held.unconfirmed_init.take()),
                (Event::BootFailed { .. } | Event::Fatal { .. }, Some(_)) => {
                    self.start_another(slot, &held);
                    return false;
                }
                (_, Some(true)) => continue, // it has said so to the session that it was of
                _ => {}
            }
            if let Event::HostCall {
                call, blocking: true, ..
            } = &event
            {
                held.blocked.borrow_mut().insert(*call);
            }
            has_become_ready |= slot == Slot::Main && matches!(event, Event::Ready { .. });
            self.feed(Input::Guest(slot, GuestInput::Event(event, body)));
        }
        has_become_ready && self.slots.find(generation).is_some()
    }

    /// A guest is gone, or could not start. One that was started before is no reason to fail: another takes its place.
    pub(super) fn failed(&self, generation: u32, input: GuestInput<JsBody>) {
        let Some((slot, held)) = self.slots.find(generation) else {
            return;
        };
        if held.unconfirmed_init.borrow().is_some() {
            self.start_another(slot, &held);
        } else {
            self.feed(Input::Guest(slot, input));
        }
    }

    /// Memory that later guests start from. Only a guest that has run no code yet may offer it.
    fn take_snapshot(&self, held: &GuestSlot, message: &JsValue, event: &Event) {
        let blob = message.unchecked_ref::<Array>().get(1).dyn_into::<Blob>();
        match (blob, event) {
            (Ok(blob), Event::Snapshot { reason }) if self.session.borrow().is_booting() => {
                if let (Some(reason), Some(callback)) = (reason, &self.options.on_progress) {
                    let reason: String = reason.chars().take(300).collect();
                    notify(
                        callback,
                        &object(&[("stage", &"cold".into()), ("reason", &reason.into())]),
                    );
                }
                snapshot::keep(&self.options.assets_url(&self.glue), &self.glue, blob);
                held.maker.take();
            }
            _ => {
                let unasked = GuestInput::BadMessage("an unasked snapshot".to_owned());
                self.feed(Input::Guest(Slot::Main, unasked));
            }
        }
    }
}
