//! Work ahead of code that is likely to come: a guest is there, the files of packages are, and code that was hinted at runs in a second
//! guest, which takes over when that code comes (`crates/core/src/session/shadow.rs`).

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use js_sys::{Array, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::AbortController;

use super::Driver;
use crate::arguments::source;
use crate::glue::{describe, thrown};
use crate::options::ExecuteOptions;
use crate::outbox::JsBody;
use crate::packages::disregard;
use crate::pieces::Pieces;
use crate::stop::Stop;
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_WRITTEN_BYTES;
use sandglass_core::packages::imported_modules;
use sandglass_core::session::{Command, Input, Package, Wanted};
use sandglass_core::speculate::{Lines, Prediction, Source};
use sandglass_core::stats::Stats;

/// Bytes of memory that a machine is thought to have which does not tell.
const UNKNOWN_MEMORY_GIB: f64 = 4.0;
/// The part of the machine's memory that guests may take which run code ahead.
const MEMORY_SHARE: f64 = 1.0 / 16.0;

/// The processors that are there for guests which run code ahead: all but the page's own, and one at least.
pub(super) fn processors() -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a few"
    )]
    let all = of_navigator("hardwareConcurrency").unwrap_or(2.0).clamp(2.0, 1024.0) as usize;
    all - 1
}

/// Bytes of state that guests may be given which run code ahead. Browsers tell the machine's memory roughly, or not.
pub(super) fn copied_bytes() -> f64 {
    let gib = of_navigator("deviceMemory").unwrap_or(UNKNOWN_MEMORY_GIB);
    gib * MEMORY_SHARE * 1024.0 * 1024.0 * 1024.0
}

/// A number that the browser tells of its machine.
fn of_navigator(name: &str) -> Option<f64> {
    let navigator = Reflect::get(&js_sys::global(), &"navigator".into()).ok()?;
    let number = Reflect::get(&navigator, &name.into()).ok()?.as_f64()?;
    (number > 0.0).then_some(number)
}

/// Work that was done ahead.
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
    /// Returns true when the user is done with the sandbox.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.session.borrow().is_destroyed()
    }

    /// The counts of all that it has done so far.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.session.borrow().stats();
        let Ahead { fetched, used, .. } = *self.ahead.borrow();
        (stats.ahead.fetched, stats.ahead.used) = (fetched, used);
        stats
    }

    /// The code that is guessed to come next.
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

    /// Returns true when code imports nothing that would have to be loaded first.
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
}

/// Code that is being written.
pub(crate) struct Written {
    timeout_ms: Option<f64>,
    /// The part of it that is there, while it is looked whether its packages are there.
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
