//! The session in the browser's store: opened at the start, and kept whenever it has changed.

use std::rc::Rc;

use js_sys::Reflect;
use wasm_bindgen::prelude::*;

use super::{Driver, notify};
use crate::glue::{Glue, object, thrown};
use crate::options::Options;
use crate::outbox::JsBody;
use crate::persist::{HistoryValue, Keeper, Opened};
use sandglass_core::error::Error;
use sandglass_core::protocol::Request;
use sandglass_core::session::{Effect, GuestEffect, HostEffect, Kept, RecordChange, Slot, Strictness};

impl Driver {
    /// A driver whose session the browser keeps, if the options say so.
    pub(crate) async fn open(glue: Glue, options: Options) -> Result<Rc<Self>, JsValue> {
        let Some(persist) = options.persist.clone() else {
            return Ok(Self::with_queries(glue, options, None));
        };
        let Opened {
            keeper,
            kept,
            foreign,
            record,
        } = persist.open(&glue).await?;
        let profile = kept.as_ref().map(Kept::profile).filter(|kept| *kept != options.profile);
        if let Some(profile) = profile {
            keeper.end();
            let why = format!("the kept session has the profile \"{}\"", profile.name());
            return Err(thrown(&glue, &Error::invalid("profile", why)));
        }
        let mut session = Self::session(&options, None).with_keeping(kept, foreign);
        if persist.has_journal {
            session = session.with_records();
        }
        if let Some(record) = record {
            session = session.with_pending(record, Strictness::Resume);
        }
        let driver = Self::with_session(glue, Rc::new(options), session, None, Some(keeper.clone()));
        let this = driver.this.clone();
        let on_noted = move |why: Option<&str>| {
            if let Some(driver) = this.upgrade() {
                driver.noted(why);
            }
        };
        keeper.on_noted.replace(Some(Box::new(on_noted)));
        Ok(driver)
    }

    /// Has the browser write a part of the journal.
    pub(super) fn note(&self, note: RecordChange<JsBody>) {
        if let Some(keeper) = &self.keeper {
            keeper.note(note);
        }
    }

    /// Returns true if an effect must wait until the journal is written: a call has an effect on the world, and an answer one on Python.
    pub(super) fn awaits_journal(&self, effect: &Effect<JsBody>) -> bool {
        let is_written = self.keeper.as_ref().is_none_or(|keeper| keeper.has_noted());
        let is_concerned = matches!(
            effect,
            Effect::Host(HostEffect::CallHost(_))
                | Effect::Guest(Slot::Main, GuestEffect::Post(Request::HostReply { .. }, _))
        );
        !is_written && is_concerned
    }

    /// Goes on with what has waited for the journal.
    fn noted(&self, why: Option<&str>) {
        if let (Some(why), Some(callback)) = (why, &self.options.on_progress) {
            let execution = self.session.borrow().last_execution();
            let progress = object(&[
                ("stage", &"unkept".into()),
                ("execution", &execution.into()),
                ("reason", &why.into()),
            ]);
            notify(callback, &progress);
        }
        if self.keeper.as_ref().is_some_and(|keeper| keeper.has_noted()) {
            let held: Vec<_> = self.held.borrow_mut().drain(..).collect();
            self.follow(held);
        }
    }

    /// Drops effects that wait for the journal and concern a guest that is gone, or a call that is aborted.
    pub(super) fn drop_held(&self, aborted: Option<u32>) {
        self.held.borrow_mut().retain(|effect| match (effect, aborted) {
            (Effect::Host(HostEffect::CallHost(call)), Some(aborted)) => call.call != aborted,
            (Effect::Guest(..), None) => false,
            _ => true,
        });
    }

    /// Has the browser keep the session as it is now, if that has failed before.
    pub(crate) fn keep_again(&self) {
        let has_failed = self.keeper.as_ref().is_some_and(|keeper| keeper.has_failed());
        if has_failed && !self.is_destroyed() {
            let kept = self.session.borrow().kept();
            self.keep_session(kept);
        }
    }

    /// Has the browser keep the session.
    pub(super) fn keep_session(&self, kept: Kept<JsBody>) {
        let Some(keeper) = &self.keeper else { return };
        let on_progress = self.options.on_progress.clone();
        let on_kept = move |execution: u32, why: Option<&str>| {
            let Some(callback) = &on_progress else { return };
            let stage = if why.is_some() { "unkept" } else { "kept" };
            let progress = object(&[("stage", &stage.into()), ("execution", &execution.into())]);
            if let Some(why) = why {
                let _ = Reflect::set(&progress, &"reason".into(), &why.into());
            }
            notify(callback, &progress);
        };
        keeper.keep(kept, Box::new(on_kept));
    }

    /// Returns true if a state comes from an earlier session.
    pub(crate) fn has_kept_state(&self) -> bool {
        self.session.borrow().kept().has_state()
    }

    /// The store of the session, if the browser keeps it.
    pub(crate) fn keeper(&self) -> Option<Rc<Keeper>> {
        self.keeper.clone()
    }

    /// The states to which the user can go back.
    pub(crate) fn history(&self) -> HistoryValue {
        Keeper::history(self.keeper.as_deref(), &self.session.borrow().history())
    }
}
