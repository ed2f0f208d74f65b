//! The user's functions that Python calls, and the approval of their calls.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use std::rc::{Rc, Weak};

use js_sys::{Array, Object, Promise, Reflect};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::AbortSignal;

use super::Driver;
use super::host_calls::{aborted, list};
use crate::arguments::entries;
use crate::convert::is_tuple;
use crate::glue::{describe, get, is_plain, object};
use crate::host_function::HostFunction;
use crate::outbox::JsBody;
use sandglass_core::session::{Encoded, Input};

const IS_OVER: &str = "did not run: Python does not wait for it any more";
const NOBODY_IS_ASKED: &str = "needs approval, and nobody is asked: give createSandbox onApprove";
const IS_UNCLEAR: &str = "did not run: onApprove must return true, false, a text or { args, kwargs }";

impl Driver {
    /// Calls a function of the user, after approval if it needs one. Returns what it returns.
    pub(super) fn call_function(
        &self,
        call: u32,
        id: Option<String>,
        function: &HostFunction,
        (args, kwargs, line): Arguments,
        signal: &AbortSignal,
    ) -> Result<JsValue, JsValue> {
        if !function.has_this {
            return function.call.apply(&JsValue::UNDEFINED, &flat(&args, &kwargs));
        }
        let made = object(&[
            ("name", &function.name.as_str().into()),
            ("args", &args),
            ("kwargs", &kwargs),
            ("signal", signal),
        ]);
        if let Some(id) = id {
            set(&made, "id", &id.into());
        }
        if let Some((execution, number)) = line {
            let place = object(&[("execution", &execution.into()), ("number", &number.into())]);
            if let Some(text) = self.session.borrow().line(execution, number) {
                set(&place, "text", &text.into());
            }
            set(&made, "line", &place);
        }
        let question = Question {
            driver: self.this.clone(),
            call,
            signal: signal.clone(),
            made: Object::assign(&Object::new(), &made),
        };
        let ask = {
            let question = question.clone();
            Closure::<dyn Fn(JsValue) -> Promise>::new(move |shown| {
                let question = question.clone();
                future_to_promise(async move {
                    let (args, kwargs) = question.ask(&shown).await?;
                    Ok(object(&[("args", &args), ("kwargs", &kwargs)]).into())
                })
            })
        };
        set(&made, "approve", &ask.into_js_value());
        let function_ = function.call.clone();
        if !function.needs_approval {
            return function_.apply(&made, &flat(&args, &kwargs));
        }
        let approved = async move {
            let (args, kwargs) = question.ask(&JsValue::UNDEFINED).await?;
            set(&made, "args", &args);
            set(&made, "kwargs", &kwargs);
            let returned = function_.apply(&made, &flat(&args, &kwargs))?;
            JsFuture::from(Promise::resolve(&returned)).await
        };
        Ok(future_to_promise(approved).into())
    }
}

/// A question to `onApprove` about a call.
#[derive(Clone)]
struct Question {
    driver: Weak<Driver>,
    call: u32,
    signal: AbortSignal,
    /// TypeScript's `HostCall`.
    made: Object,
}

impl Question {
    /// Resolves to the approved arguments. The error is for Python. The call's time limit rests meanwhile.
    async fn ask(&self, shown: &JsValue) -> Result<(Array, Object), JsValue> {
        let asked = self.shown(shown)?;
        let name = get(&asked, "name").as_string().unwrap_or_default();
        let (args, kwargs) = (get(&asked, "args"), get(&asked, "kwargs"));
        let answer = {
            let driver = self.waiting_driver().ok_or_else(|| refusal(&name, IS_OVER))?;
            let on_approve = driver.options.on_approve.as_ref();
            let on_approve = on_approve.ok_or_else(|| refusal(&name, NOBODY_IS_ASKED))?;
            driver.feed(Input::NeedsApproval(self.call));
            on_approve.call1(&JsValue::UNDEFINED, &asked)
        };
        let answer = match answer {
            Ok(answer) => JsFuture::from(Promise::race(&Array::of2(&answer, &aborted(&self.signal)))).await,
            Err(error) => Err(error),
        };
        // The execution may have ended, and the sandbox too. An approval that comes then is for nobody.
        let driver = self.waiting_driver().ok_or_else(|| refusal(&name, IS_OVER))?;
        driver.feed(Input::Approved(self.call));
        let answer =
            answer.map_err(|error| refusal(&name, &format!("did not run: onApprove failed: {}", describe(&error))))?;
        let args = || args.unchecked_into();
        let kwargs = || kwargs.unchecked_into();
        match (answer.as_bool(), answer.as_string()) {
            (Some(true), _) => Ok((args(), kwargs())),
            (Some(false), _) => Err(refusal(&name, "was refused by the user of this sandbox")),
            (_, Some(reason)) => Err(refusal(&name, &format!("was refused: {reason}"))),
            _ => {
                let edited = edited(&answer).ok_or_else(|| refusal(&name, IS_UNCLEAR))?;
                Ok((edited.0.unwrap_or_else(args), edited.1.unwrap_or_else(kwargs)))
            }
        }
    }

    /// The driver, if Python still waits for the call.
    fn waiting_driver(&self) -> Option<Rc<Driver>> {
        let driver = self.driver.upgrade()?;
        let waits = !self.signal.aborted() && driver.calls.borrow().contains_key(&self.call);
        waits.then_some(driver)
    }

    /// The call as `onApprove` gets it. `shown` may replace its name and its arguments.
    fn shown(&self, shown: &JsValue) -> Result<Object, JsValue> {
        let asked = Object::assign(&Object::new(), &self.made);
        if shown.is_undefined() {
            return Ok(asked);
        }
        for (key, value) in entries(shown, "approve").map_err(|error| JsValue::from_str(&error.to_string()))? {
            let is_right = match key.as_str() {
                "name" => value.is_string(),
                "args" => Array::is_array(&value),
                "kwargs" => is_plain(&value),
                _ => false,
            };
            if !is_right {
                return Err(JsValue::from_str(&format!(
                    "approve takes {{ name, args, kwargs }}, and {key} is none of these"
                )));
            }
            set(&asked, &key, &value);
        }
        Ok(asked)
    }
}

fn refusal(name: &str, why: &str) -> JsValue {
    js_sys::Error::new(&format!("{name}() {why}")).into()
}

/// Reads `{ args, kwargs }`. `None` for all that is not clearly meant as such.
fn edited(answer: &JsValue) -> Option<(Option<Array>, Option<Object>)> {
    let (mut args, mut kwargs) = (None, None);
    for (key, value) in entries(answer, "").ok()? {
        match key.as_str() {
            "args" => args = Some(value.dyn_into().ok()?),
            "kwargs" if is_plain(&value) => kwargs = Some(value.unchecked_into()),
            _ => return None,
        }
    }
    (args.is_some() || kwargs.is_some()).then_some((args, kwargs))
}

/// The positional and keyword arguments of a call, and its place in the code: the numbers of an execution and a line.
pub(super) type Arguments = (Array, Object, Option<(u32, u32)>);

/// Takes the arguments of a call of a user's function apart. The error is what Python is told of a malformed call.
pub(super) fn arguments(encoded: &Encoded<JsBody>, decoded: JsValue) -> Result<Arguments, JsValue> {
    let malformed = || JsValue::from_str("the call is malformed");
    let parts = list(decoded);
    if !is_tuple(encoded) {
        return Ok((parts, Object::new(), None)); // of Python's `input`
    }
    if parts.length() != 4 {
        return Err(malformed());
    }
    let args = parts.get(0).dyn_into().map_err(|_| malformed())?;
    let kwargs = match parts.get(1) {
        none if none.is_null() => Object::new(),
        kwargs if is_plain(&kwargs) => kwargs.unchecked_into(),
        _ => return Err(malformed()),
    };
    Ok((args, kwargs, number(&parts.get(2)).zip(number(&parts.get(3)))))
}

/// Reads a number from 1.
fn number(value: &JsValue) -> Option<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and within u32 by its range"
    )]
    value
        .as_f64()
        .filter(|number| number.fract() == 0.0 && (1.0..=f64::from(u32::MAX)).contains(number))
        .map(|number| number as u32)
}

/// The arguments as JavaScript functions get them: keyword arguments are one object at the end.
fn flat(args: &Array, kwargs: &Object) -> Array {
    let args = args.slice(0, args.length());
    if Object::keys(kwargs).length() > 0 {
        args.push(kwargs);
    }
    args
}

pub(super) fn set(object: &Object, key: &str, value: &JsValue) {
    // Setting a property of a fresh ordinary object cannot fail.
    let _ = Reflect::set(object, &key.into(), value);
}
