//! Fetches the packages that the session wants, and has the packages loaded that code imports.

use std::future::Future;
use std::rc::Rc;

use js_sys::Function;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;

use super::{Driver, notify};
use crate::glue::{disregard, object};
use crate::outbox::JsBody;
use crate::packages;
use sandglass_core::error::Error;
use sandglass_core::packages::imported_modules;
use sandglass_core::session::{Command, Input, Package, Ticket, Wanted};

impl Driver {
    /// Has the packages loaded that code imports. Called before the code is executed, so that the session loads them first.
    pub(crate) fn load_imported(&self, code: &str) {
        if !self.may_load_imports(code) {
            return;
        }
        let modules = imported_modules(code);
        if !modules.is_empty() {
            let loading = self.submit(Command::Load(Wanted::Modules(modules)));
            disregard(loading); // the execution reports a missing package
        }
    }

    /// Returns true when imported packages are loaded automatically, and the code is short enough to be searched for imports.
    pub(super) fn may_load_imports(&self, code: &str) -> bool {
        self.options.packages.auto_import && code.len() <= 4 * self.options.limits.max_code_chars as usize
    }

    /// Fetches packages for a command. The session gets them as [`Input::Fetched`].
    pub(super) fn fetch(&self, ticket: Ticket, wanted: Wanted) {
        let waiters = self.waiters.borrow();
        let own = waiters.get(&ticket).and_then(|waiter| waiter.watch.on_progress.clone());
        drop(waiters);
        let found = self.find(own, wanted);
        let this = self.this.clone();
        spawn_local(async move {
            let found = found.await;
            if let Some(driver) = this.upgrade() {
                if let Ok(packages) = &found {
                    driver.ahead.borrow_mut().needed(packages);
                }
                driver.feed(Input::Fetched(ticket, found));
            }
        });
    }

    /// Finds and fetches the wanted packages that the guest does not have. Reports the progress to `own` and to the sandbox's `onProgress`.
    pub(super) fn find(
        &self,
        own: Option<Function>,
        wanted: Wanted,
    ) -> impl Future<Output = Result<Vec<Package<JsBody>>, Error>> + use<> {
        let there = self.session.borrow().packages();
        let callbacks: Vec<_> = own.into_iter().chain(self.options.on_progress.clone()).collect();
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
        let (glue, options) = (self.glue.clone(), self.options.clone());
        async move {
            let base = options.assets_base();
            packages::find(&options.packages, &base, &glue, wanted, &there, Rc::new(progress)).await
        }
    }
}
