//! The guests of a sandbox, each in its slot, and the messages to and from them.

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
use wasm_bindgen_futures::spawn_local;
use web_sys::Blob;

use super::messages::{Events, Parts};
use super::{Driver, notify};
use crate::assets;
use crate::glue::object;
use crate::guest_frame::{Guest, Letter};
use crate::outbox::{JsBody, Outbox};
use crate::remote::RemoteGuest;
use crate::snapshot::{self, Maker};

/// The guests of a sandbox: its own guest, and those of its shadows.
#[derive(Default)]
pub(super) struct Slots {
    held: RefCell<BTreeMap<Slot, Rc<GuestSlot>>>,
    last_generation: Cell<u32>,
}

/// A guest in a slot. Its generation is unique, and stays the same when the guest moves to another slot.
pub(super) struct GuestSlot {
    pub(super) generation: u32,
    /// `None` while the guest is starting.
    pub(super) guest: RefCell<Option<Held>>,
    /// The messages to the guest. They leave once the guest can be reached.
    pub(super) outbox: Rc<Outbox>,
    pub(super) parts: RefCell<Parts>,
    /// The numbers of the host calls in which the guest is blocked.
    blocked: RefCell<HashSet<u32>>,
    /// Present until a guest that was started earlier has said that it can be used. If such a guest fails before, another takes its place.
    pub(super) unconfirmed_init: RefCell<Option<UnconfirmedInit>>,
    /// Held while the guest makes the page's snapshot, or is the first to start from it.
    pub(super) maker: RefCell<Option<Maker>>,
}

/// An act on the driver and one of its guests.
pub(super) type Act<'a> = dyn Fn(&Driver, &GuestSlot) + 'a;

/// A guest, by the place where it runs.
pub(super) enum Held {
    Here(Guest),
    OnServer(RemoteGuest),
}

/// The first message to a guest that was started earlier, and the wait for its answer.
#[derive(Default)]
pub(super) struct UnconfirmedInit {
    pub(super) init: Option<Request>,
    /// True when the guest was parked. Late messages about its earlier code may still come.
    pub(super) was_parked: bool,
    /// Goes off when the guest takes too long to answer.
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

    /// A guest and its present slot.
    pub(super) fn find(&self, generation: u32) -> Option<(Slot, Rc<GuestSlot>)> {
        let held = self.held.borrow();
        let mut held = held.iter();
        held.find_map(|(slot, held)| (held.generation == generation).then(|| (*slot, held.clone())))
    }

    /// Takes the guest out of a slot. Its later messages are ignored.
    pub(super) fn take(&self, slot: Slot) -> Option<Held> {
        let held = self.held.borrow_mut().remove(&slot)?;
        held.unconfirmed_init.take();
        held.maker.take();
        let guest = held.guest.take();
        if !matches!(guest, Some(Held::Here(_))) {
            held.outbox.close(); // a guest of the page closes its outbox when it ends
        }
        guest
    }

    /// Moves the guest of the slot `by` to `slot`. Returns the guest that was in `slot`.
    pub(super) fn replace(&self, slot: Slot, by: Slot) -> Option<Held> {
        let before = self.take(slot);
        let mut held = self.held.borrow_mut();
        if let Some(moved) = held.remove(&by) {
            held.insert(slot, moved);
        }
        before
    }

    /// The number of guests of shadows, whatever the progress of their code.
    pub(super) fn shadows(&self) -> usize {
        self.held.borrow().keys().filter(|slot| **slot != Slot::Main).count()
    }
}

impl GuestSlot {
    /// Returns true when the guest can hear this request in its mailbox only. If the guest may hear it in either way, puts it into the
    /// mailbox as well. `is_blocking` is true if a guest that waits hears nothing but its mailbox.
    fn is_blocked(&self, guest: &Guest, request: &Request, is_blocking: bool) -> bool {
        match request {
            Request::HostReply { call, .. } => return self.blocked.borrow_mut().remove(call),
            Request::Interrupt { .. } => drop(self.blocked.take()),
            Request::Promote { .. } => {}
            _ => return false,
        }
        // The guest may be blocked or not. It obeys the request that it hears first, and ignores the second.
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

    /// A function that acts on the driver and this guest, as long as both are there.
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

    /// Opens the way for messages to and from a guest.
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

    /// Takes a message from a guest. Its contents are untrusted.
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
            Slot::Shadow(_) => most.min(MAX_AHEAD_BYTES), // kept until the code is asked for
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
            let (base, glue) = (self.options.assets_base(), self.glue.clone());
            snapshot::prove(&base);
            held.maker.take();
            if matches!(&*held.guest.borrow(), Some(Held::Here(_))) {
                spawn_local(async move { assets::keep_module(&base, &glue).await });
            }
            self.progress("ready");
        }
    }

    /// Takes a message's events. Stops when the guest is in no slot any more, because each event may end the guest or move it. Returns true
    /// when the sandbox's own guest has become ready.
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
                (_, Some(true)) => continue, // a late message about the guest's earlier code
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

    /// Takes the message that a guest is gone, or could not start. Another guest takes the place of one that was started earlier and has not
    /// said that it can be used.
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

    /// Keeps the memory from which later guests start. Only a guest that has run no code may offer it.
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
                snapshot::keep(&self.options.assets_base(), &self.glue, blob);
                held.maker.take();
            }
            _ => {
                let unasked = GuestInput::BadMessage("an unasked snapshot".to_owned());
                self.feed(Input::Guest(Slot::Main, unasked));
            }
        }
    }
}
