//! Executions of an earlier page that this one goes on with, and executions that run again by their journals.

use std::rc::Rc;

use js_sys::{Array, Object, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};

use super::Driver;
use super::functions::arguments;
use crate::arguments::entries;
use crate::convert::{decode, encode};
use crate::glue::{disregard, object, thrown};
use crate::journal::place;
use crate::options::Watch;
use crate::outbox::JsBody;
use sandglass_core::error::Error;
use sandglass_core::session::{Command, Encoded, Execute, Input, Session, StateCommand, Strictness, Waits};

/// Answers to calls, by the calls' places.
type Answers = Vec<(u32, Encoded<JsBody>)>;

impl Driver {
    /// TypeScript's `PendingExecution | null`.
    pub(crate) fn pending(&self) -> JsValue {
        let session = self.session.borrow();
        let Some(record) = session.pending() else {
            return JsValue::NULL;
        };
        let calls: Array = record.waiting().iter().map(|waits| self.waiting(waits)).collect();
        let pending = object(&[
            ("execution", &record.execution().into()),
            ("code", &record.code().into()),
            ("calls", &calls),
        ]);
        pending.into()
    }

    /// TypeScript's `PendingCall`. Arguments that cannot be shown are left out.
    fn waiting(&self, waits: &Waits<JsBody>) -> JsValue {
        let decoded = decode(&waits.args).unwrap_or(JsValue::UNDEFINED);
        let (args, kwargs, _) = arguments(&waits.args, decoded).unwrap_or_default();
        let (id, since) = match &self.keeper {
            Some(keeper) => (keeper.journal.call_id(waits.call), keeper.journal.time(waits.index)),
            None => (waits.call.to_string(), 0.0),
        };
        let call = object(&[
            ("id", &id.into()),
            ("name", &waits.name.as_str().into()),
            ("args", &args),
            ("kwargs", &kwargs),
            ("since", &since.into()),
        ]);
        call.into()
    }

    /// Goes on with the pending execution.
    pub(crate) fn resume(&self, options: &JsValue) -> Result<Promise, Error> {
        let (answers, options) = self.answers(options, &[])?;
        let mut unused = Execute::default();
        let watch = Watch::of_execute(&mut unused, &options)?;
        if unused != Execute::default() {
            return Err(Error::invalid(
                "resume",
                "takes no timeout and no budget: those of the execution count",
            ));
        }
        disregard(self.submit(Command::State(StateCommand::Rewind)));
        Ok(self.submit_for(Command::Resume(answers), watch, Self::present))
    }

    /// Gives the pending execution up.
    pub(crate) fn discard(self: &Rc<Self>) -> Promise {
        let rewound = self.submit(Command::State(StateCommand::Rewind));
        let driver = Rc::clone(self);
        future_to_promise(async move {
            let _ = JsFuture::from(rewound).await; // if it fails, the next execution tells of the state
            JsFuture::from(driver.submit(Command::Discard)).await?;
            if let Some(keeper) = driver.keeper() {
                keeper.settled().await?;
            }
            Ok(JsValue::UNDEFINED)
        })
    }

    /// Runs an ended execution again in another guest, by its journal.
    pub(crate) fn replay(self: &Rc<Self>, execution: u32, options: &JsValue) -> Result<Promise, Error> {
        let (answers, rest) = self.answers(options, &["ask"])?;
        let asks = entries(&rest, "options")?.iter().any(|(_, value)| value.is_truthy());
        let (fork, mut record) = self.session.borrow().replayed(execution)?;
        let strictness = match answers.is_empty() {
            true => Strictness::Replay,
            false => Strictness::Explore,
        };
        for (call, value) in answers {
            if !record.change(call, value) {
                return Err(Error::invalid(
                    "answers",
                    format!("execution {execution} has no call {call}"),
                ));
            }
        }
        let session = Session::forked(fork)
            .with_budget(self.budget())
            .with_pending(record, strictness);
        let copy = Self::with_session(
            self.glue.clone(),
            self.options.clone(),
            session,
            self.on_query.clone(),
            None,
        );
        copy.asks_nobody.set(!asks);
        Ok(future_to_promise(async move {
            let resumed = copy
                .resume(&JsValue::UNDEFINED)
                .map_err(|error| thrown(&copy.glue, &error));
            let ran = match resumed {
                Ok(promise) => JsFuture::from(promise).await,
                Err(error) => Err(error),
            };
            let difference = copy.session.borrow().difference().map_or(JsValue::NULL, JsValue::from);
            copy.feed(Input::Destroy);
            Ok(object(&[("execution", &ran?), ("difference", &difference)]).into())
        }))
    }

    /// Takes the answers out of options. `more` are the names of other options, which are left for the caller with those of `execute`.
    fn answers(&self, options: &JsValue, more: &[&str]) -> Result<(Answers, JsValue), Error> {
        let (mut answers, rest) = (Vec::new(), Object::new());
        for (name, value) in entries(options, "options")? {
            if name != "answers" || value.is_undefined() {
                if !more.is_empty() && !more.contains(&name.as_str()) && !value.is_undefined() {
                    return Err(Error::invalid(name, "there is no such option"));
                }
                let _ = Reflect::set(&rest, &name.into(), &value); // a fresh ordinary object
                continue;
            }
            for (id, value) in entries(&value, "answers")? {
                let place = place(&id).ok_or_else(|| Error::invalid("answers", format!("\"{id}\" names no call")))?;
                let most = self.options.limits.max_value_bytes;
                answers.push((place, encode(&value, &format!("the answer to call {id}"), most)?));
            }
        }
        Ok((answers, rest.into()))
    }
}
