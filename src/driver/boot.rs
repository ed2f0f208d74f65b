//! Starts and ends the guests of a page's sandbox.
//!
//! The sandbox's own guest is a spare if there is one, and is started from its files otherwise. A shadow uses a parked guest, then a spare,
//! then a new guest. A guest is *adopted* when the driver begins to exchange messages with it. A spare or parked guest may turn out to be
//! unusable: until its first answer, another guest can take its place.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::{Cell, OnceCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use gloo_timers::callback::Timeout;
use gloo_timers::future::TimeoutFuture;
use js_sys::Promise;
use sandglass_core::error::Error;
use sandglass_core::session::{GuestInput, Input, ShadowId, Slot};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

use super::Driver;
use super::slots::{Act, GuestSlot, Held, UnconfirmedInit};
use crate::assets::{self, Assets};
use crate::glue::{Glue, failure};
use crate::guest_frame::{Guest, NO_PROCESSES};
use crate::options::Isolation;
use crate::snapshot;
use crate::spares::Claim;

/// The time in which a spare or parked guest must answer, in milliseconds. The page may have broken it since its start.
const SPARE_MS: u32 = 2_000;

/// The time after which the files of a guest in a frame or process are checked, in milliseconds. The engine takes about so long to compile the
/// module, on all processors. Python's start follows, and leaves one to the check. A shorter time makes the start slower. A longer one delays
/// the first message, because no message is exchanged with the guest before the check is over.
const CHECK_AFTER_MS: u32 = 70;

impl Driver {
    /// Puts a guest into a slot: a prepared one if possible, or a new one.
    pub(super) fn boot(&self, slot: Slot) {
        match (slot, &self.server) {
            (Slot::Main, Some(server)) => self.boot_remotely(server, None),
            (Slot::Main, None) => match self.take_spare() {
                Some(spare) => self.boot_spare(spare),
                None => self.boot_anew(),
            },
            (Slot::Shadow(_), _) => match self.take_parked() {
                Some(parked) => self.boot_shadow(slot, Some(parked), true),
                None => self.boot_shadow(slot, self.take_spare(), false),
            },
        }
    }

    fn take_spare(&self) -> Option<Guest> {
        self.claim.as_ref().and_then(Claim::take)
    }

    /// Makes a spare the sandbox's own guest.
    fn boot_spare(&self, spare: Guest) {
        let unconfirmed = Some(UnconfirmedInit::default());
        let held = self.slots.place(Slot::Main, Some(Held::Here(spare)), unconfirmed);
        self.adopt_earlier(&held);
    }

    /// Adopts a guest that was started earlier. Gives it up if it does not answer in time.
    fn adopt_earlier(&self, held: &GuestSlot) {
        let (this, generation) = (self.of_generation(held.generation), held.generation);
        let watch = Timeout::new(SPARE_MS, move || {
            let silent = || GuestInput::BadMessage("a guest that was started earlier does not answer".to_owned());
            this(&|driver, _| driver.failed(generation, silent()));
        });
        if let Some(unconfirmed) = &mut *held.unconfirmed_init.borrow_mut() {
            unconfirmed.watch = Some(watch);
        }
        self.adopt(held);
    }

    /// Starts the sandbox's own guest from its files.
    fn boot_anew(&self) {
        let base = self.options.assets_base();
        let guest = match Guest::open(&self.glue, self.options.isolation, &base) {
            Ok(guest) => guest,
            Err(error) => {
                let error = failure(&error, Error::BootFailed);
                return self.feed(Input::Guest(Slot::Main, GuestInput::Lost(error)));
            }
        };
        let given = guest.given_snapshot();
        let held = self.slots.place(Slot::Main, Some(Held::Here(guest)), None);
        self.progress("assets");
        let this = self.of_generation(held.generation);
        let isolation = self.options.isolation;
        let glue = self.glue.clone();
        spawn_local(async move {
            let assets = OnceCell::new();
            let mut started = start(&base, &glue, isolation, given, &assets, &this).await;
            // A damaged copy of the browser's: another guest gets the file from the network.
            if let (Err(_), Some(assets)) = (&started, assets.get())
                && assets.forget_damaged_module(&glue).await
            {
                let is_wanted = Cell::new(false);
                this(&|driver, held| {
                    is_wanted.set(true);
                    held.maker.take();
                    held.with_guest(driver, |guest| {
                        *guest = Guest::open(&glue, isolation, &base)?;
                        Ok(())
                    });
                });
                if is_wanted.get() {
                    started = start(&base, &glue, isolation, None, &OnceCell::new(), &this).await;
                }
            }
            this(&|driver, held| match &started {
                Ok(()) => driver.adopt(held),
                Err(error) => {
                    let error = match error {
                        Error::AssetFailed(why) => Error::AssetFailed(format!("{why}; no guest was started")),
                        error => error.clone(),
                    };
                    driver.feed(Input::Guest(Slot::Main, GuestInput::Lost(error)));
                }
            });
        });
    }

    /// Makes a guest a shadow's. Without a guest, starts one as spares are started.
    fn boot_shadow(&self, slot: Slot, guest: Option<Guest>, was_parked: bool) {
        let is_there = guest.is_some();
        let unconfirmed = is_there.then(|| UnconfirmedInit {
            was_parked,
            ..UnconfirmedInit::default()
        });
        let held = self.slots.place(slot, guest.map(Held::Here), unconfirmed);
        self.hold_spares();
        if is_there {
            return self.adopt_earlier(&held);
        }
        let generation = held.generation;
        let (this, fresh) = (self.of_generation(generation), self.claim.as_ref().map(Claim::start));
        spawn_local(async move {
            let guest = match fresh {
                Some(fresh) => fresh.await,
                None => None,
            };
            let guest = Cell::new(guest);
            this(&|driver, held| match guest.take() {
                Some(guest) => {
                    held.guest.replace(Some(Held::Here(guest)));
                    driver.adopt(held);
                }
                None => {
                    let none = Error::GuestLost("no guest can be had".to_owned());
                    driver.failed(generation, GuestInput::Lost(none));
                }
            });
        });
    }

    /// Replaces an unusable guest by a fresh one, and sends it the first message again.
    pub(super) fn start_another(&self, slot: Slot, held: &GuestSlot) {
        let unconfirmed = held.unconfirmed_init.take();
        if let Some(Held::Here(guest)) = self.slots.take(slot) {
            guest.end_soon();
        }
        match slot {
            Slot::Main => self.boot_anew(),
            Slot::Shadow(_) => self.boot_shadow(slot, self.take_spare(), false),
        }
        if let Some(init) = unconfirmed.and_then(|unconfirmed| unconfirmed.init) {
            self.post(slot, init, None);
        }
    }

    /// Ends the guest in a slot.
    pub(super) fn kill(&self, slot: Slot) {
        match (self.slots.take(slot), slot) {
            (Some(Held::Here(guest)), Slot::Main) => {
                if !guest.is_adopted() {
                    assets::forget(); // a fetch that hangs must not hold up the next sandbox
                }
            }
            (Some(Held::Here(guest)), Slot::Shadow(_)) => {
                guest.end_soon(); // other code has usually come, and must not wait for the removal of this guest
            }
            (Some(Held::OnServer(_)) | None, _) => {}
        }
        if slot != Slot::Main {
            self.hold_spares();
        }
    }

    /// Puts a shadow's guest in the place of the sandbox's own. The replaced guest is kept for reuse.
    pub(super) fn promote(&self, shadow: ShadowId) {
        if let Some(Held::Here(replaced)) = self.slots.replace(Slot::Main, Slot::Shadow(shadow)) {
            self.keep(replaced);
        }
    }
}

impl GuestSlot {
    /// Acts on the guest while it is being started. A failure ends the start.
    fn with_guest(&self, driver: &Driver, act: impl FnOnce(&mut Guest) -> Result<(), JsValue>) {
        let done = match &mut *self.guest.borrow_mut() {
            Some(Held::Here(guest)) => act(guest),
            _ => Ok(()),
        };
        if let Err(error) = done {
            let error = failure(&error, Error::BootFailed);
            driver.feed(Input::Guest(Slot::Main, GuestInput::Lost(error)));
        }
    }
}

/// Starts the guest in its slot. In a frame or a confined process, Python may start before its files are verified, which saves time. This
/// is safe, because the guest exchanges no messages until then. Elsewhere verification comes first.
async fn start(
    base: &str,
    glue: &Glue,
    isolation: Isolation,
    given: Option<Promise>,
    assets: &OnceCell<Assets>,
    on_guest: &impl Fn(&Act<'_>),
) -> Result<(), Error> {
    if isolation == Isolation::Process {
        let processes = glue
            .processes()
            .ok_or_else(|| Error::BootFailed(NO_PROCESSES.to_owned()))?;
        let prepared = JsFuture::from(processes.prepare()).await;
        prepared.map_err(|missing| failure(&missing, Error::BackendUnavailable))?;
    }
    let assets = assets.get_or_init(|| Assets::load(base, glue));
    let launched = async {
        let script = assets.script().await?;
        on_guest(&|driver, held| held.with_guest(driver, |guest| guest.launch(glue, &script)));
        Ok(())
    };
    let compiled = async {
        let wasm = assets.wasm().await?;
        if !isolation.is_closed() {
            assets.verified().await?;
        }
        on_guest(&|driver, held| held.with_guest(driver, |guest| guest.compile(&wasm)));
        Ok(())
    };
    // A frame that was begun early has its module already: it must not wait until the page has it.
    let furnished = async {
        let (snapshot, maker) = snapshot::find(base, glue, given).await;
        let packed = match snapshot {
            Some(_) => None,
            None => assets.snapshot(base, glue).await,
        };
        if !isolation.is_closed() {
            assets.verified().await?;
        }
        if snapshot.is_none() && packed.is_none() {
            assets::library(base, glue).await?; // the guest cannot start without it
        }
        let maker = Cell::new(maker);
        on_guest(&|driver, held| {
            held.maker.replace(maker.take());
            driver.progress("python");
            held.with_guest(driver, |guest| {
                guest.furnish(snapshot.as_ref(), packed.as_ref())?;
                guest.bring_library(base.to_owned(), glue.clone());
                Ok(())
            });
        });
        Ok(())
    };
    both(both(launched, compiled), furnished).await?;
    if isolation.is_closed() {
        TimeoutFuture::new(CHECK_AFTER_MS).await;
    }
    assets.verified().await
}

/// Waits for two results at the same time. Returns the first error at once.
async fn both<A, B, E>(
    a: impl Future<Output = Result<A, E>>,
    b: impl Future<Output = Result<B, E>>,
) -> Result<(A, B), E> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(result) = a.as_mut().poll(context)
        {
            first = Some(result?);
        }
        if second.is_none()
            && let Poll::Ready(result) = b.as_mut().poll(context)
        {
            second = Some(result?);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready(Ok((a, b))),
            (a, b) => {
                (first, second) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}
