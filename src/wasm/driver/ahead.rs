//! Work ahead of code that is likely to come, as far as nobody can see it: a guest is there, and the files of packages are. Nothing is
//! installed or run.

use std::collections::HashSet;

use js_sys::Promise;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::AbortController;

use super::Driver;
use crate::error::Error;
use crate::packages::imported_modules;
use crate::session::{Command, Package, Wanted};
use crate::stats::{self, Stats};
use crate::wasm::glue::{describe, thrown};
use crate::wasm::options::ExecuteOptions;
use crate::wasm::outbox::JsBody;
use crate::wasm::packages::disregard;
use crate::wasm::pieces::Pieces;
use crate::wasm::rlm::stop::Stop;
use crate::wasm::sandbox::source;

/// What was done ahead.
#[derive(Default)]
pub(super) struct Ahead {
    /// Modules that were looked for.
    modules: HashSet<String>,
    /// The files that were fetched and that no code has needed yet.
    files: HashSet<String>,
    pub(super) count: stats::Ahead,
}

impl Ahead {
    fn fetched(&mut self, packages: &[Package<JsBody>]) {
        for package in packages {
            if self.files.insert(package.wheel.file_name.clone()) {
                self.count.fetched += 1;
            }
        }
    }

    /// Code needs these.
    pub(super) fn needed(&mut self, packages: &[Package<JsBody>]) {
        for package in packages {
            if self.files.remove(&package.wheel.file_name) {
                self.count.used += 1;
            }
        }
    }
}

impl Driver {
    /// Whether the user is done with the sandbox.
    pub(in crate::wasm) fn is_destroyed(&self) -> bool {
        self.session.borrow().is_destroyed()
    }

    /// What it has done so far.
    pub(in crate::wasm) fn stats(&self) -> Stats {
        Stats {
            ahead: self.ahead.borrow().count.clone(),
            ..self.session.borrow().stats().clone()
        }
    }

    /// A promise of what becomes of code that comes in pieces.
    pub(in crate::wasm) fn execute_written(&self, options: ExecuteOptions, pieces: Pieces) -> Result<Promise, Error> {
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
        Ok(future_to_promise(async move {
            let on_import = |lines: &str| {
                if let Some(driver) = this.upgrade() {
                    disregard(driver.prepare(lines));
                }
            };
            let code = pieces.read(&stop, most, on_import).await;
            let Some(driver) = this.upgrade() else {
                return Err(thrown(&glue, &Error::Destroyed));
            };
            let execution = match code.and_then(|code| source(&code)) {
                Ok(code) => Ok(driver.execute(code, options)),
                Err(error) => Err(thrown(&glue, &error)),
            };
            driver.reading.set(driver.reading.get() - 1);
            driver.follow(Vec::new()); // or nobody would notice that nobody waits any more
            JsFuture::from(execution?).await
        }))
    }

    /// A promise of what becomes of code.
    pub(in crate::wasm) fn execute(&self, code: String, options: ExecuteOptions) -> Promise {
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
    pub(in crate::wasm) fn prepare(&self, code: &str) -> Promise {
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
}
