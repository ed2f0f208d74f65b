//! Ends work from outside.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

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

/// A number of permits, given in the order of asking.
pub(super) struct Semaphore {
    free: Cell<u32>,
    /// What wakes each who waits, and the place for its permit.
    waiting: RefCell<VecDeque<(Function, Weak<Given>)>>,
}

type Given = Cell<Option<Permit>>;

/// A permit. Dropping it gives it back.
pub(super) struct Permit(Rc<Semaphore>);

impl Semaphore {
    pub(super) fn new(count: u32) -> Rc<Self> {
        Rc::new(Self {
            free: Cell::new(count),
            waiting: RefCell::default(),
        })
    }

    /// Waits for a permit.
    pub(super) async fn acquire(self: &Rc<Self>, stop: &Stop) -> Result<Permit, Waited> {
        if let Some(left) = self.free.get().checked_sub(1) {
            self.free.set(left);
            return Ok(Permit(self.clone()));
        }
        // One that is given to who has just been stopped is given back with this.
        let given = Rc::<Given>::default();
        let comes = Promise::new(&mut |resolve, _| {
            let waits = (resolve, Rc::downgrade(&given));
            self.waiting.borrow_mut().push_back(waits);
        });
        stop.wait(comes).await?;
        given.take().ok_or(Waited::Stopped)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        loop {
            let next = self.0.waiting.borrow_mut().pop_front();
            let Some((resolve, given)) = next else {
                return self.0.free.set(self.0.free.get() + 1);
            };
            if let Some(given) = given.upgrade() {
                given.set(Some(Self(self.0.clone())));
                let _ = resolve.call0(&JsValue::UNDEFINED);
                return;
            }
        }
    }
}
