//! Work ahead of code that is likely to come: a guest is there, the files of packages are, and code that was hinted at runs in a second
//! guest, which takes over when that code comes (`crates/core/src/session/ahead.rs`).

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use js_sys::{Array, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::AbortController;

use super::{Driver, Parts};
use crate::glue::{describe, thrown};
use crate::guest_frame::Guest;
use crate::options::ExecuteOptions;
use crate::outbox::JsBody;
use crate::packages::disregard;
use crate::pieces::Pieces;
use crate::rlm::stop::Stop;
use crate::sandbox::source;
use crate::spares::Claim;
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_WRITTEN_BYTES;
use sandglass_core::packages::imported_modules;
use sandglass_core::protocol::{Event, Request};
use sandglass_core::session::{Command, Effect, Input, Package, Wanted};
use sandglass_core::speculate::{Lines, Prediction, Source};
use sandglass_core::stats::Stats;

/// What was done ahead.
#[derive(Default)]
pub(super) struct Ahead {
    /// Modules that were looked for.
    modules: HashSet<String>,
    /// The files that were fetched and that no code has needed yet.
    files: HashSet<String>,
    fetched: u32,
    used: u32,
}

impl Ahead {
    fn fetched(&mut self, packages: &[Package<JsBody>]) {
        for package in packages {
            if self.files.insert(package.wheel.file_name.clone()) {
                self.fetched += 1;
            }
        }
    }

    /// Code needs these.
    pub(super) fn needed(&mut self, packages: &[Package<JsBody>]) {
        for package in packages {
            if self.files.remove(&package.wheel.file_name) {
                self.used += 1;
            }
        }
    }
}

impl Driver {
    /// Whether the user is done with the sandbox.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.session.borrow().is_destroyed()
    }

    /// What it has done so far.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.session.borrow().stats();
        let Ahead { fetched, used, .. } = *self.ahead.borrow();
        (stats.ahead.fetched, stats.ahead.used) = (fetched, used);
        stats
    }

    /// What code is guessed to come next.
    pub(crate) fn predictions(&self) -> Vec<Prediction> {
        self.session.borrow().predictions()
    }

    /// This is the newest of what is talked about.
    pub(crate) fn converse(&self, text: &str) {
        if self.options.predictions {
            self.feed(Input::Conversation(text.to_owned()));
        }
    }

    /// A promise of what becomes of code that comes in pieces.
    pub(crate) fn execute_written(&self, options: ExecuteOptions, pieces: Pieces) -> Result<Promise, Error> {
        if self.is_destroyed() {
            return Err(Error::Destroyed);
        }
        let mut ended = self.ended.borrow_mut();
        if ended.is_none() {
            *ended = AbortController::new().ok();
        }
        let signals = options.signal.iter().cloned();
        let signals: Vec<_> = signals.chain(ended.iter().map(AbortController::signal)).collect();
        drop(ended);
        let stop = Stop::on(&signals.iter().collect::<Vec<_>>());
        let stop = stop.map_err(|error| Error::invalid("signal", describe(&error)))?;
        let most = 2 * self.options.limits.max_code_chars;
        self.reading.set(self.reading.get() + 1);
        disregard(self.prepare(""));
        let (this, glue) = (self.this.clone(), self.glue.clone());
        // One at a time runs as it is written. One with less time than any might have done more by then than it may.
        let runs = self.reading.get() == 1 && options.budget.max_time.is_none();
        let written = Rc::new(Written::within(options.timeout_ms));
        written.is_over.set(!runs);
        Ok(future_to_promise(async move {
            let (mut statements, mut sent) = (Lines::default(), 0);
            let on_lines = |lines: &str, new: usize| {
                let Some(driver) = this.upgrade() else { return };
                if lines[new..].contains("import") {
                    disregard(driver.prepare(lines));
                }
                let complete = statements.complete(lines);
                if complete.len() > sent {
                    sent = complete.len();
                    driver.written(&written, complete);
                }
            };
            let code = pieces.read(&stop, most, on_lines).await;
            written.end();
            let Some(driver) = this.upgrade() else {
                return Err(thrown(&glue, &Error::Destroyed));
            };
            let execution = match code.and_then(|code| source(&code)) {
                Ok(code) => Ok(driver.execute(code, options)),
                Err(error) => Err(thrown(&glue, &error)),
            };
            driver.reading.set(driver.reading.get() - 1);
            if runs {
                driver.nothing_is_written();
            }
            driver.follow(Vec::new()); // or nobody would notice that nobody waits any more
            JsFuture::from(execution?).await
        }))
    }

    /// Has statements of code that is being written run, as soon as everything that they import is there.
    pub(crate) fn written(&self, written: &Rc<Written>, code: &str) {
        if code.len() > MAX_WRITTEN_BYTES {
            written.end(); // what ran of it so far is not taken
        }
        if written.is_over.get() {
            return;
        }
        if !self.may_load_imports(code) {
            return self.feed(Input::Written(code.to_owned(), written.timeout_ms));
        }
        written.newest.replace(Some(code.to_owned()));
        if written.is_looking.replace(true) {
            return;
        }
        let (this, written) = (self.this.clone(), written.clone());
        spawn_local(async move {
            while let Some(code) = written.newest.take() {
                let Some(driver) = this.upgrade() else { return };
                let is_there = driver.has_packages_of(&code);
                drop(driver);
                if !is_there.await {
                    return; // nothing more of it runs ahead
                }
                if let Some(driver) = this.upgrade().filter(|_| !written.is_over.get()) {
                    driver.feed(Input::Written(code, written.timeout_ms));
                }
            }
            written.is_looking.set(false);
        });
    }

    /// Nobody writes code any more: what ran of it is thrown away, unless it was asked for.
    pub(crate) fn nothing_is_written(&self) {
        self.feed(Input::Written(String::new(), None));
    }

    /// A promise of what becomes of code.
    pub(crate) fn execute(&self, code: String, options: ExecuteOptions) -> Promise {
        self.load_imported(&code);
        let (timeout_ms, budget) = (options.timeout_ms, options.budget);
        let execute = Command::Execute {
            code,
            timeout_ms,
            budget,
        };
        self.submit(execute, options)
    }

    /// Prepares for code. Resolves when there is nothing more to prepare; what fails is for the code itself to tell.
    pub(crate) fn prepare(&self, code: &str) -> Promise {
        let started = self.submit(Command::Start, ExecuteOptions::default());
        let mut modules = Vec::new();
        if self.may_load_imports(code) {
            modules = imported_modules(code);
            modules.retain(|module| self.ahead.borrow_mut().modules.insert(module.clone()));
        }
        let found = (!modules.is_empty()).then(|| self.find(None, Wanted::Modules(modules)));
        let this = self.this.clone();
        future_to_promise(async move {
            if let Some(found) = found
                && let Ok(packages) = found.await
                && let Some(driver) = this.upgrade()
            {
                driver.ahead.borrow_mut().fetched(&packages);
            }
            let _ = JsFuture::from(started).await;
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Prepares for code that may come next, the likeliest first, and runs it ahead as far as everything that it imports is there.
    pub(crate) fn hint(&self, codes: Vec<String>, source: Source) -> Promise {
        let asked = self.session.borrow().last_execution();
        let prepared: Array = codes.iter().map(|code| self.prepare(code)).collect();
        let this = self.this.clone();
        future_to_promise(async move {
            JsFuture::from(Promise::all_settled(&prepared)).await?;
            let mut predictions = Vec::new();
            for (id, code) in (0..).zip(codes) {
                let Some(driver) = this.upgrade() else { break };
                if !driver.may_load_imports(&code) || driver.has_packages_of(&code).await {
                    let probability = 1.0 / f64::from(id + 1);
                    predictions.push(Prediction::told(id, code, source, probability));
                }
            }
            // What was executed meanwhile is what it was for.
            if let Some(driver) = this
                .upgrade()
                .filter(|driver| driver.session.borrow().last_execution() == asked)
            {
                driver.feed(Input::Hint(predictions));
            }
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Whether code imports nothing that would have to be loaded first.
    fn has_packages_of(&self, code: &str) -> impl Future<Output = bool> + use<> {
        let modules = imported_modules(code);
        let found = (!modules.is_empty()).then(|| self.find(None, Wanted::Modules(modules)));
        async move {
            match found {
                Some(found) => found.await.is_ok_and(|packages| packages.is_empty()),
                None => true,
            }
        }
    }

    // ---- the second guest ----

    /// Does what the session wants of the guest that runs code ahead.
    pub(super) fn carry_out_ahead(&self, effect: Effect<JsBody>) {
        match effect {
            Effect::Boot => self.boot_ahead(),
            Effect::Kill => {
                if let Some(Second { guest: Some(guest), .. }) = self.second.take() {
                    guest.end_soon(); // most often because code has come that something else ran ahead of
                }
                self.hold_rested();
            }
            Effect::Rest => {
                let second = self.second.take();
                self.keep(second.and_then(|second| second.guest));
            }
            Effect::Post(request, body) => {
                let mut second = self.second.borrow_mut();
                match second.as_mut() {
                    Some(Second {
                        guest: Some(guest),
                        doubt,
                        ..
                    }) => {
                        if let Request::Init { .. } = request {
                            self.init_ahead.replace(Some(request.clone()));
                            if let Some(init) = doubt {
                                *init = Some(request.clone());
                            }
                        }
                        // As with an interrupt: it takes the first that it hears.
                        if matches!(request, Request::Promote { .. }) && self.guest_info().bridge == "atomics" {
                            guest.post_blocked(&request, None);
                        }
                        guest.post(request, body);
                    }
                    Some(second) => {
                        if let Request::Init { .. } = request {
                            self.init_ahead.replace(Some(request.clone()));
                        }
                        second.unsent.push(request);
                    }
                    None => {}
                }
            }
            Effect::Restore(request, blobs) | Effect::Install(request, blobs) => {
                if let Some(Second { guest: Some(guest), .. }) = &*self.second.borrow() {
                    guest.post_blobs(&request, blobs);
                }
            }
            _ => {}
        }
    }

    /// Takes the guest that has rested since, or a spare, or starts one like that.
    fn boot_ahead(&self) {
        let rested = self.take_rested();
        let doubt = rested.is_some().then_some(None);
        let guest = rested.or_else(|| self.claim.as_ref().and_then(Claim::take));
        self.boot_second(guest, doubt, Vec::new());
    }

    fn boot_second(&self, guest: Option<Guest>, doubt: Option<Option<Request>>, unsent: Vec<Request>) {
        self.last_generation.set(self.last_generation.get() + 1);
        let generation = self.last_generation.get();
        let is_there = guest.is_some();
        self.second.replace(Some(Second {
            generation,
            guest,
            unsent,
            doubt,
            parts: RefCell::default(),
            blocked: HashSet::new(),
        }));
        self.hold_rested();
        if is_there {
            return self.adopt_second(generation);
        }
        let (this, fresh) = (self.of_generation(generation), self.claim.as_ref().map(Claim::start));
        spawn_local(async move {
            let guest = match fresh {
                Some(fresh) => fresh.await,
                None => None,
            };
            let guest = Cell::new(guest);
            this(&|driver| match guest.take() {
                Some(guest) => {
                    if let Some(second) = &mut *driver.second.borrow_mut() {
                        for request in second.unsent.drain(..) {
                            guest.post(request, None);
                        }
                        second.guest = Some(guest);
                    }
                    driver.adopt_second(generation);
                }
                None => driver.second_failed("no guest can be had"),
            });
        });
    }

    fn adopt_second(&self, generation: u32) {
        let (messages, failures) = (self.of_generation(generation), self.of_generation(generation));
        if let Some(Second { guest: Some(guest), .. }) = &*self.second.borrow() {
            guest.adopt(
                move |data| messages(&|driver| driver.receive_from(generation, &data)),
                move |why| failures(&|driver| driver.failed(generation, why.clone())),
            );
        }
    }

    /// A message from one of the two guests.
    fn receive_from(&self, generation: u32, data: &JsValue) {
        if self.generation.get() == generation {
            return self.receive(data);
        }
        let events = match &*self.second.borrow() {
            Some(second) => self.read_into(&second.parts, data),
            None => return,
        };
        let events = match events {
            Ok(events) => events,
            Err(what) => return self.feed(Input::Ahead(Box::new(Input::BadMessage(what)))),
        };
        for (event, body) in events {
            if let Some(Second {
                doubt: doubt @ Some(_), ..
            }) = &mut *self.second.borrow_mut()
            {
                match event {
                    Event::Ready { .. } => *doubt = None,
                    Event::BootFailed { .. } | Event::Fatal { .. } => {}
                    _ => continue, // it has said so to the session that it was of
                }
            }
            if self.is_doubted() {
                return self.start_another();
            }
            if let (
                Event::HostCall {
                    call, blocking: true, ..
                },
                Some(second),
            ) = (&event, &mut *self.second.borrow_mut())
            {
                second.blocked.insert(*call);
            }
            if self.is_second(generation) {
                self.feed(Input::Ahead(Box::new(Input::Guest(event, body))));
            } else if self.generation.get() == generation {
                self.take_all(vec![(event, body)]); // it has taken over meanwhile
            }
        }
    }

    fn failed(&self, generation: u32, why: String) {
        if self.generation.get() == generation {
            self.guest_failed(Input::GuestLost(Error::GuestLost(why)));
        } else if self.is_doubted() {
            self.start_another();
        } else {
            self.second_failed(&why);
        }
    }

    /// Whether the second guest has rested, and has not said yet that it can be used again.
    fn is_doubted(&self) -> bool {
        matches!(&*self.second.borrow(), Some(Second { doubt: Some(_), .. }))
    }

    /// It cannot: a guest that has run nothing takes its place.
    fn start_another(&self) {
        let Some(Second { guest, doubt, .. }) = self.second.take() else {
            return;
        };
        if let Some(guest) = guest {
            guest.end_soon();
        }
        let spare = self.claim.as_ref().and_then(Claim::take);
        let init = doubt.flatten();
        match (spare, init) {
            (Some(spare), Some(init)) => {
                self.boot_second(Some(spare), None, Vec::new());
                if let Some(Second { guest: Some(guest), .. }) = &*self.second.borrow() {
                    guest.post(init, None);
                }
            }
            (_, init) => self.boot_second(None, None, init.into_iter().collect()),
        }
    }

    // ---- guests at rest ----

    /// Keeps a guest that is at rest for the next code that runs ahead: it is given the state in a tenth of the time that another takes
    /// to start. It counts as a spare, and there is none where the user wants none. It is asked at once whether it can be used again; one
    /// that says anything else, or anything later, is ended: it has run code.
    fn keep(&self, guest: Option<Guest>) {
        let may_rest = self.options.limits.spares > 0 && !self.session.borrow().has_packages();
        let init = self.init_ahead.borrow().clone();
        match (guest, init) {
            (Some(guest), Some(init)) if may_rest && self.rested.borrow().is_none() => {
                let (messages, failures) = (self.this.clone(), self.this.clone());
                guest.adopt(
                    move |data| {
                        if let Some(driver) = messages.upgrade() {
                            driver.hear_rested(&data);
                        }
                    },
                    move |_| {
                        if let Some(driver) = failures.upgrade() {
                            driver.end_rested();
                        }
                    },
                );
                guest.post(init, None);
                self.rested.replace(Some(Rested { guest, is_sure: false }));
            }
            (Some(guest), _) => guest.end_soon(),
            (None, _) => {}
        }
        self.hold_rested();
    }

    fn hear_rested(&self, data: &JsValue) {
        let events = self.read_into(&RefCell::default(), data);
        let is_ready = matches!(events.as_deref(), Ok([(Event::Ready { .. }, None)]));
        if let Some(rested) = &mut *self.rested.borrow_mut()
            && is_ready
            && !rested.is_sure
        {
            rested.is_sure = true;
            return;
        }
        self.end_rested();
    }

    fn end_rested(&self) {
        if let Some(Rested { guest, .. }) = self.rested.take() {
            guest.end_soon();
        }
        self.hold_rested();
    }

    /// The guest that rests, if it can be used.
    fn take_rested(&self) -> Option<Guest> {
        let is_gone = |rested: &Rested| rested.guest.is_gone();
        if self.session.borrow().has_packages() || self.rested.borrow().as_ref().is_some_and(is_gone) {
            self.end_rested();
        }
        let rested = self.rested.borrow_mut().take_if(|rested| rested.is_sure);
        rested.map(|rested| rested.guest)
    }

    /// A guest that rests, or runs ahead, stands for one of the spares.
    fn hold_rested(&self) {
        if let Some(claim) = &self.claim {
            claim.hold(self.rested.borrow().is_some() || self.second.borrow().is_some());
        }
    }

    fn second_failed(&self, why: &str) {
        let lost = Input::GuestLost(Error::GuestLost(why.to_owned()));
        self.feed(Input::Ahead(Box::new(lost)));
    }

    pub(super) fn is_second(&self, generation: u32) -> bool {
        matches!(&*self.second.borrow(), Some(second) if second.generation == generation)
    }

    /// The second guest takes the place of the first.
    pub(super) fn promote(&self) {
        let Some(Second {
            generation,
            guest,
            parts,
            blocked,
            ..
        }) = self.second.take()
        else {
            return;
        };
        let replaced = self.guest.replace(None);
        self.kill();
        self.generation.set(generation);
        self.guest.replace(guest);
        self.keep(replaced);
        self.parts.replace(parts.into_inner());
        self.blocked.replace(blocked);
    }
}

/// Code that is being written.
pub(crate) struct Written {
    timeout_ms: Option<f64>,
    /// What there is of it, while it is looked whether its packages are there.
    newest: RefCell<Option<String>>,
    is_looking: Cell<bool>,
    is_over: Cell<bool>,
}

impl Written {
    /// It will come with this `timeout`.
    pub(crate) fn within(timeout_ms: Option<f64>) -> Self {
        Self {
            timeout_ms,
            newest: RefCell::default(),
            is_looking: Cell::default(),
            is_over: Cell::default(),
        }
    }

    /// All of it is there, or no more comes.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
    }
}

/// A guest that has run code, and may run code ahead.
pub(super) struct Rested {
    guest: Guest,
    /// Whether it has said that it can.
    is_sure: bool,
}

/// The guest that runs code ahead.
pub(super) struct Second {
    generation: u32,
    /// None while it is started.
    guest: Option<Guest>,
    /// What it is to be sent then.
    unsent: Vec<Request>,
    /// As long as it has rested, and not said that it can be used again: what it was sent first.
    doubt: Option<Option<Request>>,
    parts: RefCell<Parts>,
    /// Its calls that it is blocked in.
    blocked: HashSet<u32>,
}
