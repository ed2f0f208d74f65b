//! What the session wants fetched.

use std::rc::Rc;

use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::{Driver, notify};
use crate::packages::imported_modules;
use crate::session::{Command, Input, Ticket, Wanted};
use crate::wasm::glue::object;
use crate::wasm::options::ExecuteOptions;
use crate::wasm::packages;

impl Driver {
    /// Before code runs that imports packages of the lock file: has them loaded.
    pub(in crate::wasm) fn load_imported(&self, code: &str) {
        if !self.options.packages.auto_import || code.len() > 4 * self.options.limits.max_code_chars as usize {
            return;
        }
        let modules = imported_modules(code);
        if !modules.is_empty() {
            let loading = self.submit(Command::Load(Wanted::Modules(modules)), ExecuteOptions::default());
            packages::disregard(loading); // the execution tells
        }
    }

    pub(super) fn fetch(&self, ticket: Ticket, wanted: Wanted) {
        let there = self.session.borrow().packages();
        let waiters = self.waiters.borrow();
        let own = waiters.get(&ticket).and_then(|waiter| waiter.on_progress.clone());
        let callbacks: Vec<_> = own.into_iter().chain(self.options.on_progress.clone()).collect();
        drop(waiters);
        let progress = move |name: &str, loaded: f64, total: Option<f64>| {
            for callback in &callbacks {
                let total = total.map_or(JsValue::NULL, JsValue::from);
                let fields = [
                    ("stage", &"packages".into()),
                    ("package", &name.into()),
                    ("loaded", &loaded.into()),
                    ("total", &total),
                ];
                notify(callback, &object(&fields));
            }
        };
        let (this, glue, options) = (self.this.clone(), self.glue.clone(), self.options.clone());
        spawn_local(async move {
            let base = options.assets_url(&glue);
            let found = packages::find(&options.packages, &base, &glue, wanted, &there, Rc::new(progress)).await;
            if let Some(driver) = this.upgrade() {
                driver.feed(Input::Fetched(ticket, found));
            }
        });
    }
}
