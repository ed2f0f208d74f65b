//! Ends work from outside.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use gloo_timers::callback::Timeout;
use js_sys::{Array, Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{AbortController, AbortSignal};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(catch, js_namespace = AbortSignal, js_name = any)]
    fn any(signals: &Array) -> Result<AbortSignal, JsValue>;
}

/// Ends work: what waits by [`Stop::wait`] waits no longer, and fetches with its signal are aborted. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Stop(Rc<Inner>);

struct Inner {
    controller: AbortController,
    signal: AbortSignal,
    /// Resolves when the signal is aborted.
    aborted: Promise,
}

/// Why waiting brought nothing.
pub(crate) enum Waited {
    /// It was ended.
    Stopped,
    /// The promise was rejected.
    Rejected(JsValue),
}

impl Stop {
    /// One that also ends when any of `signals` is aborted.
    pub(crate) fn on(signals: &[&AbortSignal]) -> Result<Self, JsValue> {
        let controller = AbortController::new()?;
        let all = Array::of1(&controller.signal());
        for signal in signals {
            all.push(signal);
        }
        let signal = any(&all)?;
        let aborted = if signal.aborted() {
            Promise::resolve(&JsValue::UNDEFINED)
        } else {
            Promise::new(&mut |resolve, _| {
                let _ = signal.add_event_listener_with_callback("abort", &resolve);
            })
        };
        Ok(Self(Rc::new(Inner {
            controller,
            signal,
            aborted,
        })))
    }

    pub(super) fn signal(&self) -> &AbortSignal {
        &self.0.signal
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.signal.aborted()
    }

    /// Ends it.
    pub(super) fn end(&self) {
        self.0.controller.abort();
    }

    /// Waits for a promise, but no longer than until the end.
    pub(crate) async fn wait(&self, promise: Promise) -> Result<JsValue, Waited> {
        let settled = JsFuture::from(Promise::race(&Array::of2(&promise, &self.0.aborted))).await;
        match settled {
            _ if self.is_stopped() => Err(Waited::Stopped),
            settled => settled.map_err(Waited::Rejected),
        }
    }

    /// Waits for some time.
    pub(super) async fn pause(&self, ms: f64) -> Result<(), Waited> {
        let mut timer = None;
        let over = Promise::new(&mut |resolve, _| {
            timer = Some(after(ms, move || drop(resolve.call0(&JsValue::UNDEFINED))));
        });
        self.wait(over).await.map(drop)
    }
}

/// A timer that goes off unless it is dropped.
pub(super) fn after(ms: f64, act: impl FnOnce() + 'static) -> Timeout {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what a timer can count"
    )]
    Timeout::new(ms.ceil().clamp(0.0, f64::from(i32::MAX)) as u32, act)
}

/// A number of places, which are taken in the order of asking.
pub(super) struct Places {
    free: RefCell<u32>,
    waiting: RefCell<VecDeque<Rc<Ticket>>>,
}

/// The one who waits for a place.
struct Ticket {
    state: RefCell<State>,
}

enum State {
    Waiting(Function),
    Granted,
    Gone,
}

/// A place that is taken until this is dropped.
pub(super) struct Place(Rc<Places>);

impl Places {
    pub(super) fn new(count: u32) -> Rc<Self> {
        Rc::new(Self {
            free: RefCell::new(count),
            waiting: RefCell::default(),
        })
    }

    /// Waits for a place.
    pub(super) async fn take(self: &Rc<Self>, stop: &Stop) -> Result<Place, Waited> {
        if *self.free.borrow() > 0 {
            *self.free.borrow_mut() -= 1;
            return Ok(Place(self.clone()));
        }
        let mut ticket = None;
        let granted = Promise::new(&mut |resolve, _| {
            let state = RefCell::new(State::Waiting(resolve));
            ticket = Some(Rc::new(Ticket { state }));
        });
        let Some(ticket) = ticket else {
            return Err(Waited::Stopped);
        };
        self.waiting.borrow_mut().push_back(ticket.clone());
        let waited = stop.wait(granted).await;
        let state = ticket.state.replace(State::Gone);
        let place = matches!(state, State::Granted).then(|| Place(self.clone()));
        waited.and(place.ok_or(Waited::Stopped))
    }

    fn give_back(&self) {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            let Some(ticket) = next else {
                *self.free.borrow_mut() += 1;
                return;
            };
            let state = ticket.state.replace(State::Granted);
            if let State::Waiting(resolve) = state {
                let _ = resolve.call0(&JsValue::UNDEFINED);
                return;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.give_back();
    }
}
