//! Preparations for code that may come: a guest is started, the files of packages are fetched, and the code runs ahead in a shadow.
//!
//! Code may come from a hint, or it is being *written*: it arrives in pieces, and complete statements run before the rest is there. The
//! session starts and promotes the shadows (`crates/core/src/session/shadows.rs`). Code runs ahead only if the guest has all packages that
//! the code imports.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use js_sys::{Array, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::AbortController;

use super::Driver;
use crate::arguments::source;
use crate::glue::{describe, disregard, global, thrown};
use crate::options::Watch;
use crate::outbox::JsBody;
use crate::pieces::Pieces;
use crate::stop::Stop;
use sandglass_core::error::Error;
use sandglass_core::limits::MAX_WRITTEN_BYTES;
use sandglass_core::packages::imported_modules;
use sandglass_core::predictions::{Lines, Prediction, Source};
use sandglass_core::session::{Command, Execute, Input, Package, Wanted};
use sandglass_core::stats::Stats;

/// The assumed memory of a machine in GiB, if the browser does not tell.
const UNKNOWN_MEMORY_GIB: f64 = 4.0;
/// The share of the machine's memory that all shadows may take together.
const MEMORY_SHARE: f64 = 1.0 / 16.0;

/// The number of processors for shadows: all except one for the page, and 1 at least.
pub(super) fn processors() -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to a few"
    )]
    let all = of_navigator("hardwareConcurrency").unwrap_or(2.0).clamp(2.0, 1024.0) as usize;
    all - 1
}

/// The bytes of state that all shadows may hold together. This is rough, because browsers round the machine's memory or hide it.
pub(super) fn copied_bytes() -> f64 {
    let gib = of_navigator("deviceMemory").unwrap_or(UNKNOWN_MEMORY_GIB);
    gib * MEMORY_SHARE * 1024.0 * 1024.0 * 1024.0
}

/// A positive number that the browser tells about its machine.
fn of_navigator(name: &str) -> Option<f64> {
    let navigator = Reflect::get(&global(), &"navigator".into()).ok()?;
    let number = Reflect::get(&navigator, &name.into()).ok()?.as_f64()?;
    (number > 0.0).then_some(number)
}

/// The packages that were looked for and fetched ahead.
#[derive(Default)]
pub(super) struct Ahead {
    /// Modules that were looked for. None is looked for twice.
    modules: HashSet<String>,
    /// The names of fetched files that no code has needed yet.
    files: HashSet<String>,
    /// The number of files fetched ahead.
    fetched: u32,
    /// The number of those files that code has needed since.
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

    /// Counts packages that code needs, if they were fetched ahead.
    pub(super) fn needed(&mut self, packages: &[Package<JsBody>]) {
        for package in packages {
            if self.files.remove(&package.wheel.file_name) {
                self.used += 1;
            }
        }
    }
}

impl Driver {
    /// Returns true once the sandbox is destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.session.borrow().is_destroyed()
    }

    /// The sandbox's counts, with those of packages fetched ahead.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.session.borrow().stats();
        let Ahead { fetched, used, .. } = *self.ahead.borrow();
        (stats.ahead.fetched, stats.ahead.used) = (fetched, used);
        stats
    }

    /// The session's guesses of the next code.
    pub(crate) fn predictions(&self) -> Vec<Prediction> {
        self.session.borrow().predictions()
    }

    /// Tells the session the newest text of the conversation, if the session makes guesses.
    pub(crate) fn converse(&self, text: &str) {
        if self.options.predictions {
            self.feed(Input::Conversation(text.to_owned()));
        }
    }

    /// Runs code that comes in pieces. Returns a promise of the outcome. Complete statements run ahead while the rest is still to come.
    pub(crate) fn execute_written(&self, execute: Execute, watch: Watch, pieces: Pieces) -> Result<Promise, Error> {
        if self.is_destroyed() {
            return Err(Error::Destroyed);
        }
        let mut ended = self.ended.borrow_mut();
        if ended.is_none() {
            *ended = AbortController::new().ok();
        }
        let signals = watch.signal.iter().cloned();
        let signals: Vec<_> = signals.chain(ended.iter().map(AbortController::signal)).collect();
        drop(ended);
        let stop = Stop::on(&signals.iter().collect::<Vec<_>>());
        let stop = stop.map_err(|error| Error::invalid("signal", describe(&error)))?;
        let most = 2 * self.options.limits.max_code_chars;
        self.reading.set(self.reading.get() + 1);
        disregard(self.prepare(""));
        let (this, glue) = (self.this.clone(), self.glue.clone());
        // Only one code at a time runs ahead while it is written. Code with a time budget of its own does not: a shadow knows no such
        // budget, and could do more than the budget allows.
        let runs = self.reading.get() == 1 && execute.budget.max_time.is_none();
        let written = Rc::new(Written::within(execute.timeout_ms));
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
                Ok(code) => {
                    let execute = Command::Execute(Execute { code, ..execute });
                    Ok(driver.submit_for(execute, watch, Self::present))
                }
                Err(error) => Err(thrown(&glue, &error)),
            };
            driver.reading.set(driver.reading.get() - 1);
            if runs {
                driver.nothing_is_written();
            }
            driver.follow(Vec::new()); // ends a dropped sandbox that nobody waits for any more
            JsFuture::from(execution?).await
        }))
    }

    /// Lets the complete statements of written code run ahead, as soon as the guest has all packages that they import.
    pub(crate) fn written(&self, written: &Rc<Written>, code: &str) {
        if code.len() > MAX_WRITTEN_BYTES {
            written.end(); // the part that ran ahead is not used
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
                    return; // the rest of the code does not run ahead
                }
                if let Some(driver) = this.upgrade().filter(|_| !written.is_over.get()) {
                    driver.feed(Input::Written(code, written.timeout_ms));
                }
            }
            written.is_looking.set(false);
        });
    }

    /// Tells the session that no more code is being written. A shadow that ran such code ends, unless the code was asked for.
    pub(crate) fn nothing_is_written(&self) {
        self.feed(Input::Written(String::new(), None));
    }

    /// Starts a guest and fetches the packages that code imports. Resolves when both are done. Failures are not reported here, because the
    /// code itself will report them.
    pub(crate) fn prepare(&self, code: &str) -> Promise {
        let started = self.submit(Command::Start);
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

    /// Prepares for codes that may come next, the likeliest first. Then the session may run those whose packages the guest has.
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
            // An execution that began meanwhile makes the hint outdated.
            if let Some(driver) = this
                .upgrade()
                .filter(|driver| driver.session.borrow().last_execution() == asked)
            {
                driver.feed(Input::Hint(predictions));
            }
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Returns true when the guest has all packages that code imports.
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
    /// The newest part that waits for the search for its packages.
    newest: RefCell<Option<String>>,
    /// True while packages are searched. Stays true once one is missing, so that nothing more runs ahead.
    is_looking: Cell<bool>,
    /// True once no more of the code runs ahead.
    is_over: Cell<bool>,
}

impl Written {
    /// No code yet. The whole code will have this time limit.
    pub(crate) fn within(timeout_ms: Option<f64>) -> Self {
        Self {
            timeout_ms,
            newest: RefCell::default(),
            is_looking: Cell::default(),
            is_over: Cell::default(),
        }
    }

    /// Ends running ahead: the code is complete, or no more of it comes.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
    }
}
