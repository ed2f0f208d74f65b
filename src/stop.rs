//! Aborts work from outside.

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

/// Aborts work: waits by [`Stop::wait`] end, and fetches with its signal are aborted. Clones abort the same work.
#[derive(Clone)]
pub(crate) struct Stop(Rc<Inner>);

struct Inner {
    controller: AbortController,
    signal: AbortSignal,
    /// Resolves when the signal is aborted.
    aborted: Promise,
}

/// The reason why a wait brought no value.
pub(crate) enum Waited {
    /// The work was aborted.
    Stopped,
    /// The promise was rejected.
    Rejected(JsValue),
}

impl Stop {
    /// Makes a stop that any of `signals` aborts as well.
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

    /// Aborts the work.
    pub(super) fn end(&self) {
        self.0.controller.abort();
    }

    /// Waits for a promise, until the work is aborted.
    pub(crate) async fn wait(&self, promise: Promise) -> Result<JsValue, Waited> {
        let settled = JsFuture::from(Promise::race(&Array::of2(&promise, &self.0.aborted))).await;
        match settled {
            _ if self.is_stopped() => Err(Waited::Stopped),
            settled => settled.map_err(Waited::Rejected),
        }
    }

    /// Waits for some milliseconds, until the work is aborted.
    pub(super) async fn pause(&self, ms: f64) -> Result<(), Waited> {
        let mut timer = None;
        let over = Promise::new(&mut |resolve, _| {
            timer = Some(after(ms, move || drop(resolve.call0(&JsValue::UNDEFINED))));
        });
        self.wait(over).await.map(drop)
    }
}

/// A timer. Dropping it cancels it.
pub(super) fn after(ms: f64, act: impl FnOnce() + 'static) -> Timeout {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to what a timer can count"
    )]
    Timeout::new(ms.ceil().clamp(0.0, f64::from(i32::MAX)) as u32, act)
}

/// A number of permits. Those who wait get them in the order of asking.
pub(super) struct Semaphore {
    free: Cell<u32>,
    /// For each waiting caller: the function that wakes it, and the slot for its permit.
    waiting: RefCell<VecDeque<(Function, Weak<Given>)>>,
}

type Given = Cell<Option<Permit>>;

/// A permit. Dropping it returns it.
pub(super) struct Permit(Rc<Semaphore>);

impl Semaphore {
    pub(super) fn new(count: u32) -> Rc<Self> {
        Rc::new(Self {
            free: Cell::new(count),
            waiting: RefCell::default(),
        })
    }

    /// Waits for a permit, until `stop` is aborted.
    pub(super) async fn acquire(self: &Rc<Self>, stop: &Stop) -> Result<Permit, Waited> {
        if let Some(left) = self.free.get().checked_sub(1) {
            self.free.set(left);
            return Ok(Permit(self.clone()));
        }
        // If the caller was stopped meanwhile, dropping this slot returns the permit in it.
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
