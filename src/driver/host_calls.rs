//! Host calls: Python's calls of the user's functions.
//!
//! A *query* is a call of `llm_query` or `rlm_query`. The page's functions answer queries. If the driver was made with an [`OnQuery`], code
//! in Rust answers them instead.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::FutureExt;
use js_sys::{Array, Function, JsString, Object, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{AbortController, AbortSignal};

use super::functions::{arguments, set};
use super::{Driver, notify};
use crate::budget::{JsBudget, usage};
use crate::convert::{decode, encode};
use crate::glue::{describe, get, now, object};
use crate::outbox::JsBody;
use crate::stop::Stop;
use sandglass_core::budget::{Budget, BudgetLimits};
use sandglass_core::protocol::QUERIES;
use sandglass_core::session::{Call, Encoded, Input, Progress};
use sandglass_rlm::tree::Answer;

/// A query of Python for [`OnQuery`].
pub(crate) struct Asked {
    /// The prompt of `llm_query`, or the task of `rlm_query`.
    pub(crate) prompt: JsString,
    /// The context that `rlm_query` gives to the child.
    pub(crate) context: JsValue,
    /// The name of the model. No string if Python named none.
    pub(crate) model: JsValue,
    /// The budget of the child of `rlm_query`. `None` for `llm_query`.
    pub(crate) budget: Option<Budget>,
    /// Aborted when Python no longer waits for the answer.
    pub(crate) signal: AbortSignal,
    /// The fate of a query that was begun before its code was asked for.
    pub(crate) fate: Option<Fate>,
}

/// The fate of a call that was begun before its code was asked for: the code makes the call, or the call's signal is aborted.
pub(crate) struct Fate {
    is_made: Rc<Cell<bool>>,
    known: Promise,
}

impl Fate {
    /// Waits until it is known whether the code that came made the call, and returns that.
    pub(crate) fn is_claimed(&self) -> impl Future<Output = bool> + Unpin {
        let is_made = self.is_made.clone();
        JsFuture::from(self.known.clone()).map(move |_| is_made.get())
    }

    /// Waits until it is known whether the code that came made the call.
    pub(crate) async fn is_made(&self, stop: &Stop) -> bool {
        let _ = stop.wait(self.known.clone()).await;
        self.is_made.get() // a call may be made, and stopped afterwards
    }
}

/// The calls whose fate is not known yet.
#[derive(Default)]
pub(super) struct Fates(RefCell<HashMap<u32, Unknown>>);

/// A call whose fate is not known yet, with the function that makes it known.
type Unknown = (Rc<Cell<bool>>, Function);

impl Fates {
    fn begin(&self, call: u32) -> Fate {
        let is_made = Rc::<Cell<bool>>::default();
        let known = Promise::new(&mut |resolve, _| {
            self.0.borrow_mut().insert(call, (is_made.clone(), resolve));
        });
        Fate { is_made, known }
    }

    /// Notes that the code which came has made a call.
    pub(super) fn claim(&self, call: u32) {
        let begun = self.0.borrow_mut().remove(&call);
        if let Some((is_made, resolve)) = begun {
            is_made.set(true);
            let _ = resolve.call0(&JsValue::UNDEFINED);
        }
    }

    /// Notes that a call is aborted.
    pub(super) fn end(&self, call: u32) {
        let begun = self.0.borrow_mut().remove(&call);
        if let Some((_, resolve)) = begun {
            let _ = resolve.call0(&JsValue::UNDEFINED); // whoever waits would be kept for good
        }
    }
}

/// Answers queries. The future is not dropped when Python stops waiting: it must watch [`Asked::signal`] to end early.
pub(crate) type OnQuery = Rc<dyn Fn(Asked) -> Pin<Box<dyn Future<Output = Result<Answer, String>>>>>;

impl Driver {
    /// Begins a host call. The session gets the result as [`Input::HostReturned`], unless the call is aborted before.
    pub(super) fn call_host(&self, asked: Call<JsBody>) {
        let call = asked.call;
        let signal = match AbortController::new() {
            Ok(controller) => {
                let signal = controller.signal();
                self.calls.borrow_mut().insert(call, controller);
                signal
            }
            Err(error) => return self.feed(Input::HostReturned(call, Err(describe(&error)))),
        };
        let Call {
            name,
            args,
            budget,
            ahead,
            place,
            ..
        } = asked;
        if self.asks_nobody.get() {
            let why = "the journal has no answer to this call, and replay() makes no calls without { ask: true }";
            self.calls.borrow_mut().remove(&call);
            return self.feed(Input::HostReturned(call, Err(why.to_owned())));
        }
        let id = self
            .keeper
            .as_ref()
            .filter(|_| place > 0)
            .map(|keeper| keeper.journal.call_id(place));
        if let Some(on_query) = self.on_query.as_ref().filter(|_| QUERIES.contains(&name.as_str())) {
            let asked = self.asked(call, &name, &args, &budget, &signal, ahead);
            return self.query(call, &name, asked, signal, on_query.clone());
        }
        let functions = &self.options.host_functions;
        let function = functions.iter().find(|function| function.name == name);
        let promise = decode(&args)
            .map_err(|error| JsValue::from_str(&error.to_string()))
            .and_then(|decoded| match function {
                Some(function) => self.call_function(call, id, function, arguments(&args, decoded)?, &signal),
                None => self.ask(&name, &list(decoded), &signal, &budget, id),
            });
        let this = self.this.clone();
        // The user's promise may never settle. So waiting ends with the call.
        let aborted = aborted(&signal);
        spawn_local(async move {
            let result = match promise {
                Ok(value) => JsFuture::from(Promise::race(&Array::of2(&value, &aborted))).await,
                Err(error) => Err(error),
            };
            let Some(driver) = this.upgrade().filter(|_| !signal.aborted()) else {
                return;
            };
            let result = result.map_err(|error| describe(&error));
            let result = result.and_then(|value| driver.result(call, &name, &value));
            driver.calls.borrow_mut().remove(&call);
            driver.feed(Input::HostReturned(call, result));
        });
    }

    /// Has `on_query` answer a query, and charges the answer's usage to the budget.
    fn query(&self, call: u32, name: &str, asked: Result<Asked, String>, signal: AbortSignal, on_query: OnQuery) {
        let what = format!("the result of {name}");
        let this = self.this.clone();
        spawn_local(async move {
            let answered = match asked {
                Ok(asked) => on_query(asked).await,
                Err(error) => Err(error),
            };
            let Some(driver) = this.upgrade().filter(|_| !signal.aborted()) else {
                return;
            };
            let result = answered.and_then(|Answer { text, usage }| {
                driver.feed(Input::Used(call, usage));
                let most = driver.options.limits.max_value_bytes;
                encode(&text.into(), &what, most).map_err(|error| error.to_string())
            });
            driver.calls.borrow_mut().remove(&call);
            driver.feed(Input::HostReturned(call, result));
        });
    }

    /// Reads a query's arguments.
    fn asked(
        &self,
        call: u32,
        name: &str,
        args: &Encoded<JsBody>,
        budget: &Budget,
        signal: &AbortSignal,
        ahead: bool,
    ) -> Result<Asked, String> {
        let args = list(decode(args).map_err(|error| error.to_string())?);
        let prompt = args.get(0).dyn_into::<JsString>();
        let prompt = prompt.map_err(|_| "the first argument must be a str".to_owned())?;
        let signal = signal.clone();
        let fate = ahead.then(|| self.fates.begin(call));
        Ok(match name {
            "llm_query" => Asked {
                prompt,
                context: JsValue::NULL,
                model: args.get(1),
                budget: None,
                signal,
                fate,
            },
            _ => Asked {
                prompt,
                context: args.get(1),
                model: args.get(2),
                budget: Some(budget.child(BudgetLimits::default(), now())),
                signal,
                fate,
            },
        })
    }

    /// Reports the progress of calls that Python made together to `onProgress`.
    pub(super) fn calls_progress(&self, progress: &Progress) {
        if let Some(callback) = &self.options.on_progress {
            let Progress {
                name,
                done,
                failed,
                total,
            } = progress;
            let entries = [
                ("stage", &"calls".into()),
                ("name", &name.into()),
                ("done", &JsValue::from(*done)),
                ("failed", &JsValue::from(*failed)),
                ("total", &JsValue::from(*total)),
            ];
            notify(callback, &object(&entries));
        }
    }

    /// Has `onLLMQuery` or `onRLMQuery` answer a query.
    fn ask(
        &self,
        name: &str,
        args: &Array,
        signal: &JsValue,
        budget: &Budget,
        id: Option<String>,
    ) -> Result<JsValue, JsValue> {
        let nobody = JsValue::UNDEFINED;
        let with_id = |info: Object| {
            if let Some(id) = &id {
                set(&info, "id", &id.into());
            }
            info
        };
        if !args.get(0).is_string() {
            return Err(JsValue::from_str("the first argument must be a str"));
        }
        match (name, &self.options.on_llm_query, &self.options.on_rlm_query) {
            ("llm_query", Some(function), _) => {
                let info = object(&[("model", &model(args.get(1))), ("signal", signal)]);
                function.call2(&nobody, &args.get(0), &with_id(info))
            }
            ("rlm_query", _, Some(function)) => {
                let child = JsBudget::new(budget.child(BudgetLimits::default(), now()));
                let info = object(&[
                    ("model", &model(args.get(2))),
                    ("signal", signal),
                    ("budget", &child.into()),
                ]);
                function.call3(&nobody, &args.get(0), &args.get(1), &with_id(info))
            }
            _ => Err(JsValue::from_str("there is no such function")),
        }
    }

    /// Encodes the value that a host function returned. Charges the usage of a model's answer to the budget.
    fn result(&self, call: u32, name: &str, value: &JsValue) -> Result<Encoded<JsBody>, String> {
        let callback = match name {
            "llm_query" => Some("onLLMQuery"),
            "rlm_query" => Some("onRLMQuery"),
            _ => None,
        };
        let mut value = value.clone();
        if let Some(callback) = callback {
            if value.is_object() && get(&value, "text").is_string() {
                self.feed(Input::Used(call, usage(&get(&value, "usage"))));
                value = get(&value, "text");
            }
            if !value.is_string() {
                let kind = if value.is_null() {
                    "null".to_owned()
                } else {
                    value.js_typeof().as_string().unwrap_or_default()
                };
                return Err(format!("{callback} returned {kind}, not a string"));
            }
        }
        let most = self.options.limits.max_value_bytes;
        encode(&value, &format!("the result of {name}"), most).map_err(|error| error.to_string())
    }
}

/// A list of arguments. A single str comes alone.
pub(super) fn list(args: JsValue) -> Array {
    args.dyn_into().unwrap_or_else(|only| Array::of1(&only))
}

/// A promise that resolves when the signal is aborted.
pub(super) fn aborted(signal: &AbortSignal) -> Promise {
    Promise::new(&mut |resolve, _| {
        let _ = signal.add_event_listener_with_callback("abort", &resolve);
    })
}

/// The model that Python asked for, or `undefined`: callbacks never get `null`.
fn model(value: JsValue) -> JsValue {
    if value.is_null() { JsValue::UNDEFINED } else { value }
}
