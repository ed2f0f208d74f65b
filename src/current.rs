//! The driver of a sandbox at the moment. A move puts another in its place, and calls wait meanwhile.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use js_sys::Promise;
use wasm_bindgen::prelude::*;

use super::driver::Driver;
use super::glue::thrown;
use super::options::Options;
use super::outbox::JsBody;
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_QUEUED_COMMANDS;
use sandglass_core::session::{Input, Package};

/// A call that waits for its turn.
type Call = Box<dyn FnOnce(&Rc<Driver>)>;

/// The driver of a sandbox, and the calls that wait until its state has been written, or has arrived elsewhere.
pub(super) struct Current {
    driver: RefCell<Rc<Driver>>,
    /// The options of `createSandbox`. Each place takes those that are about its guests.
    pub(super) asked: Rc<Options>,
    /// The packages of the last guest of the page, for the next one.
    pub(super) packages: RefCell<Vec<Package<JsBody>>>,
    /// True while calls wait.
    is_held: Cell<bool>,
    waiting: RefCell<VecDeque<Call>>,
    /// The driver that is getting the state.
    arriving: RefCell<Option<Rc<Driver>>>,
}

/// Lets calls wait, until it is dropped.
#[must_use = "calls wait only as long as this is held"]
pub(super) struct Hold(Rc<Current>);

impl Current {
    pub(super) fn new(driver: Rc<Driver>) -> Rc<Self> {
        Self::asked_for(driver.shared_options(), driver)
    }

    /// The driver of a sandbox whose `createSandbox` was given these options.
    pub(super) fn asked_for(asked: Rc<Options>, driver: Rc<Driver>) -> Rc<Self> {
        Rc::new(Self {
            driver: RefCell::new(driver),
            asked,
            packages: RefCell::default(),
            is_held: Cell::default(),
            waiting: RefCell::default(),
            arriving: RefCell::default(),
        })
    }

    pub(super) fn driver(&self) -> Rc<Driver> {
        self.driver.borrow().clone()
    }

    /// Makes a call in its turn: at once, or when nothing is held any more. Returns a promise of its outcome.
    pub(super) fn call(&self, call: impl FnOnce(&Rc<Driver>) -> Result<Promise, Error> + 'static) -> Promise {
        let driver = self.driver();
        let made = |driver: &Rc<Driver>, outcome: Result<Promise, Error>| {
            outcome.unwrap_or_else(|error| Promise::reject(&thrown(driver.glue(), &error)))
        };
        if !self.is_held.get() && self.waiting.borrow().is_empty() {
            return made(&driver, call(&driver));
        }
        if self.waiting.borrow().len() >= MAX_QUEUED_COMMANDS {
            let why = format!("{MAX_QUEUED_COMMANDS} calls wait for the move already; nothing was done");
            return made(&driver, Err(Error::invalid("moveTo", why)));
        }
        let mut resolve = None;
        let promise = Promise::new(&mut |resolves, _| resolve = Some(resolves));
        let call = move |driver: &Rc<Driver>| {
            let outcome = made(driver, call(driver));
            if let Some(resolve) = resolve {
                let _ = resolve.call1(&JsValue::UNDEFINED, &outcome); // the function of a promise does not throw
            }
        };
        self.waiting.borrow_mut().push_back(Box::new(call));
        promise
    }

    /// Lets later calls wait.
    pub(super) fn hold(self: &Rc<Self>) -> Hold {
        self.is_held.set(true);
        Hold(self.clone())
    }

    /// Ends the sandbox, and the guest that is getting its state.
    pub(super) fn destroy(&self) {
        let arriving = self.arriving.borrow().clone();
        for driver in [Some(self.driver()), arriving].into_iter().flatten() {
            driver.feed(Input::Destroy);
        }
    }
}

impl Hold {
    pub(super) fn driver(&self) -> Rc<Driver> {
        self.0.driver()
    }

    /// Notes the driver that is getting the state.
    pub(super) fn expect(&self, arriving: &Rc<Driver>) {
        self.0.arriving.replace(Some(arriving.clone()));
    }

    /// Puts the driver that has got the state in the place of the one before, whose guest ends. Rejects if the sandbox was destroyed meanwhile.
    pub(super) fn arrive(&self, arrived: Rc<Driver>) -> Result<(), Error> {
        let before = self.driver();
        if before.is_destroyed() {
            return Err(Error::Destroyed);
        }
        self.0.driver.replace(arrived);
        before.feed(Input::Destroy);
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.arriving.take();
        self.0.is_held.set(false);
        // A call may hold those after it.
        while !self.0.is_held.get() {
            let Some(next) = self.0.waiting.borrow_mut().pop_front() else {
                break;
            };
            next(&self.0.driver());
        }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        self.driver.borrow().abandon();
    }
}
