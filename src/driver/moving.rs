//! Drivers that go on from the state of another, which is carried to them by value.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cell::RefCell;
use std::rc::Rc;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::{Driver, Settle};
use crate::options::{Options, Watch};
use crate::outbox::JsBody;
use sandglass_core::error::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::session::{Command, Input, Package, Reply};

impl Driver {
    pub(crate) fn shared_options(&self) -> Rc<Options> {
        self.options.clone()
    }

    /// Returns true while code that comes piece by piece is read.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading.get() > 0
    }

    /// Gives the session a command for a caller in Rust. Returns the outcome.
    pub(crate) async fn answer_to(&self, command: Command<JsBody>) -> Result<Reply<JsBody>, Error> {
        let outcome = Rc::new(RefCell::new(None));
        let mut resolve: Option<Function> = None;
        let ended = Promise::new(&mut |resolves, _| resolve = Some(resolves));
        let told = outcome.clone();
        let settle: Settle = Box::new(move |_, reply, _| {
            told.replace(Some(reply));
            if let Some(resolve) = resolve {
                let _ = resolve.call0(&JsValue::UNDEFINED); // the function of a promise does not throw
            }
        });
        let ticket = self.wait(settle, None, Watch::default());
        self.feed(Input::Command(ticket, command));
        let _ = JsFuture::from(ended).await; // is never rejected
        outcome.take().unwrap_or(Err(Error::Destroyed))
    }

    /// Makes a driver that goes on from this one's past, with guests that have these packages. The caller opens the variables, which are
    /// carried by value.
    pub(crate) fn continued(&self, options: Rc<Options>, packages: Vec<Package<JsBody>>) -> Rc<Self> {
        let past = self.session.borrow().past();
        let session = Self::session(&options, self.on_query.as_ref())
            .with_budget(self.budget())
            .with_past(past)
            .with_contexts_to_come()
            .with_packages(packages);
        Self::with_session(self.glue.clone(), options, session, self.on_query.clone(), None)
    }

    /// The packages that were loaded, with their files.
    pub(crate) fn loaded(&self) -> Vec<Package<JsBody>> {
        self.session.borrow().loaded()
    }

    /// Has the next execution report variables that did not come along.
    pub(crate) fn tell_lost(&self, lost: Vec<LostVariable>) {
        self.session.borrow_mut().add_lost(lost);
    }
}
