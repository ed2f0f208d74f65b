//! A guest: a worker in a hidden frame of an opaque origin, in the page itself, or in a process of its own on Node, Deno or Bun.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};

use gloo_timers::callback::Timeout;
use gloo_timers::future::TimeoutFuture;
use js_sys::{Array, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;
use web_sys::{HtmlIFrameElement, MessageChannel, MessageEvent, MessagePort};

use super::assets;
use super::glue::{Glue, Place, describe, get, global, object};
use super::options::Isolation;
use super::outbox::{Outbox, Way, header};
use super::snapshot::Snapshot;
use sandglass_core::guest;
use sandglass_core::protocol::Request;

/// Time that the frame may take to run its script, in milliseconds.
const FRAME_MS: u32 = 20_000;
/// The time for which an abandoned guest is kept, in milliseconds. Most of its answers arrive within it.
const SOON_MS: u32 = 30;
/// The time for which the port of an ended guest stays open if its worker has said nothing, in milliseconds.
const ON_ITS_WAY_MS: u32 = 3_000;
/// The time after the first failure of fetching the library, in milliseconds. It doubles with each further one, up to [`LAST_RETRY_MS`].
const RETRY_MS: u32 = 2_000;
const LAST_RETRY_MS: u32 = 60_000;
const FRAME_IS_BLOCKED: &str = "the page's Content-Security-Policy blocks its frame, which inherits it: allow its script in \
    script-src (its hash is the package's export `frameHash`) with 'wasm-unsafe-eval', and worker-src blob:";
const FRAME_IS_SILENT: &str = "its frame does not run. Does the page have a Content-Security-Policy? The frame inherits it: allow its \
    script in script-src (its hash is the package's export `frameHash`) with 'wasm-unsafe-eval', and worker-src blob:";

pub(super) const NO_PROCESSES: &str =
    "this is the package's entry for browsers; import \"sandglass\", with the export condition \"node\"";

/// A guest. [`Guest::open`] makes its frame, [`Guest::launch`] starts its worker, [`Guest::compile`] and [`Guest::furnish`] start Python in
/// the worker, and [`Guest::adopt`] gives the guest an owner who hears its messages. Dropping a guest ends it.
#[must_use = "dropping a guest ends it"]
pub(super) struct Guest {
    port: MessagePort,
    control: MessagePort,
    /// The port for the worker, and the port for the script that starts the worker. `None` once they are there.
    far_ends: Option<Array>,
    /// A promise of the snapshot, or undefined, which the guest gets ahead of the other parts.
    given_snapshot: Option<Promise>,
    /// The messages to the guest, while it has an owner.
    outbox: RefCell<Option<Rc<Outbox>>>,
    home: Home,
    inbox: Rc<Inbox>,
    catching_up: RefCell<Option<Timeout>>,
    /// Set until the frame reports that its script runs.
    frame_watch: Rc<RefCell<Option<Timeout>>>,
    _on_message: Closure<dyn FnMut(MessageEvent)>,
    _on_control: Closure<dyn FnMut(MessageEvent)>,
}

/// The inbox of a guest. Letters wait in it until the guest has an owner.
#[derive(Default)]
struct Inbox {
    owner: RefCell<Option<OnLetter>>,
    /// The waiting letters in order; new ones join the end.
    early: RefCell<VecDeque<Letter>>,
    /// Fetches the library for the guest: at its first letter, or when the guest asks.
    bring_library: RefCell<Option<Box<dyn FnOnce()>>>,
    /// True once the worker has said something, so its port has arrived.
    has_heard: Cell<bool>,
}

/// Hears the letters of a guest.
type OnLetter = Rc<dyn Fn(Letter)>;

/// A message from a guest, or the end of its worker.
pub(super) enum Letter {
    Message(JsValue),
    /// The reason why the worker failed.
    Failure(String),
}

impl Inbox {
    /// A copy of the owner's handler: while it takes a letter, the owner may drop the guest, and with it this inbox.
    fn owner(&self) -> Option<OnLetter> {
        self.owner.borrow().clone()
    }

    fn deliver(&self, letter: Letter) {
        self.bring_library();
        let is_first = self.early.borrow().is_empty();
        match self.owner().filter(|_| is_first) {
            Some(owner) => owner(letter),
            None => self.early.borrow_mut().push_back(letter),
        }
    }

    fn bring_library(&self) {
        if let Some(bring) = self.bring_library.take() {
            bring();
        }
    }

    /// Hands out the letters that arrived before the owner.
    fn catch_up(&self) {
        while let Some(owner) = self.owner() {
            let Some(letter) = self.early.borrow_mut().pop_front() else {
                return;
            };
            owner(letter);
        }
    }
}

enum Home {
    Frame {
        element: HtmlIFrameElement,
        gate: Rc<Gate>,
        _on_load: Closure<dyn FnMut()>,
        _on_error: Closure<dyn FnMut()>,
    },
    Page(Option<web_sys::Worker>),
    /// The handle of a process has a worker's `terminate`.
    Process {
        confined: bool,
        process: Option<web_sys::Worker>,
    },
}

/// The message for a frame's script, kept until the frame can receive it.
#[derive(Default)]
struct Gate {
    is_open: Cell<bool>,
    message: RefCell<Option<(JsValue, Array)>>,
}

impl Gate {
    fn pass(&self, frame: &HtmlIFrameElement) {
        let message = self.is_open.get().then(|| self.message.take()).flatten();
        if let (Some((message, ports)), Some(window)) = (message, frame.content_window())
            && let Err(error) = window.post_message_with_transfer(&message, "*", &ports)
        {
            web_sys::console::error_1(&error);
        }
    }
}

impl Guest {
    /// Makes a guest: in the page itself, or with a frame that loads in the background. A page's first frame may have begun to start its
    /// worker already.
    pub(super) fn open(glue: &Glue, isolation: Isolation, base: &str) -> Result<Self, JsValue> {
        let place = match isolation {
            Isolation::Frame => Some(open_frame(glue, base)?),
            Isolation::Worker | Isolation::Process | Isolation::Unconfined => None,
        };
        let begun = place.as_ref().and_then(|place| Some((place.port()?, place.control()?)));
        let (port, control, far_ends) = match begun {
            Some((port, control)) => (port, control, None),
            None => {
                let (channel, control) = (MessageChannel::new()?, MessageChannel::new()?);
                let far_ends = Array::of2(&channel.port2(), &control.port2());
                (channel.port1(), control.port1(), Some(far_ends))
            }
        };
        let frame_watch: Rc<RefCell<Option<Timeout>>> = Rc::default();
        let inbox: Rc<Inbox> = Rc::default();
        let on_message = Closure::<dyn FnMut(_)>::new({
            let inbox = inbox.clone();
            move |event: MessageEvent| {
                inbox.has_heard.set(true);
                inbox.deliver(Letter::Message(event.data()));
            }
        });
        let on_control = Closure::<dyn FnMut(_)>::new({
            let (inbox, frame_watch) = (inbox.clone(), frame_watch.clone());
            move |event: MessageEvent| match event.data() {
                // The script runs, or later: the guest asks for the library.
                data if data.is_null() => match frame_watch.take() {
                    Some(watch) => drop(watch),
                    None => {
                        inbox.has_heard.set(true);
                        inbox.bring_library();
                    }
                },
                why => inbox.deliver(Letter::Failure(describe(&why))),
            }
        });
        port.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        control.set_onmessage(Some(on_control.as_ref().unchecked_ref()));
        let guest = Self {
            port,
            control,
            far_ends,
            given_snapshot: place.as_ref().and_then(Place::kept),
            outbox: RefCell::default(),
            home: match place {
                Some(place) => tend_frame(&place, &inbox),
                None if isolation == Isolation::Worker => Home::Page(None),
                None => Home::Process {
                    confined: isolation == Isolation::Process,
                    process: None,
                },
            },
            inbox,
            catching_up: RefCell::default(),
            frame_watch,
            _on_message: on_message,
            _on_control: on_control,
        };
        if guest.far_ends.is_none() {
            guest.watch_frame();
        }
        Ok(guest)
    }

    /// A promise of the snapshot, or undefined, which the guest gets ahead of the other parts.
    pub(super) fn given_snapshot(&self) -> Option<Promise> {
        self.given_snapshot.clone()
    }

    /// Reports a failure when the frame's script does not run in time.
    fn watch_frame(&self) {
        let inbox = self.inbox.clone();
        let silent = move || inbox.deliver(Letter::Failure(FRAME_IS_SILENT.to_owned()));
        self.frame_watch.replace(Some(Timeout::new(FRAME_MS, silent)));
    }

    /// Gives the guest an owner, who hears all waiting letters at once. The guest receives the messages of the outbox, which belongs to it
    /// from now on.
    pub(super) fn adopt(&self, outbox: &Rc<Outbox>, owner: impl Fn(Letter) + 'static) {
        self.inbox.owner.replace(Some(Rc::new(owner)));
        self.outbox.replace(Some(outbox.clone()));
        outbox.open(Way::Port(self.port.clone()));
        if !self.inbox.early.borrow().is_empty() {
            let inbox = self.inbox.clone();
            // In a task of its own: the caller is not ready for letters yet.
            let soon = Timeout::new(0, move || inbox.catch_up());
            self.catching_up.replace(Some(soon));
        }
    }

    /// The messages to the guest. An outbox with messages under way passes on to the next owner; a guest without an owner gets a fresh one.
    pub(super) fn outbox(&self) -> Rc<Outbox> {
        self.outbox.borrow().clone().unwrap_or_else(Outbox::new)
    }

    /// Starts the worker, unless that has begun.
    pub(super) fn launch(&mut self, glue: &Glue, script: &JsValue) -> Result<(), JsValue> {
        let Some(far_ends) = &self.far_ends else {
            return Ok(());
        };
        let (port, control) = (far_ends.get(0), far_ends.get(1));
        match &mut self.home {
            Home::Page(worker) => *worker = Some(glue.start_worker(script, &port, &control)?),
            Home::Process { confined, process } => {
                let processes = glue.processes().ok_or(NO_PROCESSES)?;
                *process = Some(processes.start(*confined, script, &port, &control)?);
            }
            Home::Frame { element, gate, .. } => {
                gate.message.replace(Some((script.clone(), far_ends.clone())));
                gate.pass(element);
                self.watch_frame();
            }
        }
        Ok(())
    }

    /// Gives the guest its module, unless it gets that anyway.
    pub(super) fn compile(&self, wasm: &JsValue) -> Result<(), JsValue> {
        if self.far_ends.is_none() {
            return Ok(());
        }
        self.control.post_message(&object(&[("wasm", wasm)]))
    }

    /// Gives the worker the parts that Python starts from.
    pub(super) fn furnish(&self, snapshot: Option<&Snapshot>, packed: Option<&JsValue>) -> Result<(), JsValue> {
        let files: Array = guest::FILES
            .iter()
            .map(|(name, source)| Array::of2(&JsValue::from_str(name), &JsValue::from_str(source)))
            .collect();
        let proven = snapshot.is_some_and(|snapshot| snapshot.proven);
        let snapshot = snapshot.map_or(JsValue::UNDEFINED, |snapshot| snapshot.blob.clone().into());
        self.control.post_message(&object(&[
            ("files", &files),
            ("snapshot", &snapshot),
            ("packed", packed.unwrap_or(&JsValue::UNDEFINED)),
            ("proven", &proven.into()),
        ]))
    }

    /// Fetches the standard library once the guest has started, or asks for it. If that fails, the guest hears why, and another attempt
    /// follows as long as the guest lives.
    pub(super) fn bring_library(&self, base: String, glue: Glue) {
        let (inbox, control) = (Rc::downgrade(&self.inbox), self.control.clone());
        let bring = move || spawn_local(bring_library(inbox, control, base, glue));
        self.inbox.bring_library.replace(Some(Box::new(bring)));
    }

    /// Returns true when the guest has failed, or its frame was removed.
    pub(super) fn is_gone(&self) -> bool {
        let failed = |letter: &Letter| matches!(letter, Letter::Failure(_));
        self.inbox.early.borrow().iter().any(failed)
            || matches!(&self.home, Home::Frame { element, .. } if !element.is_connected())
    }

    /// Returns true when the guest has an owner.
    pub(super) fn is_adopted(&self) -> bool {
        self.inbox.owner.borrow().is_some()
    }

    /// Sends a message through the mailbox to a guest that is blocked.
    pub(super) fn post_blocked(&self, request: &Request, body: Option<Uint8Array>) {
        let body = body.map_or(JsValue::UNDEFINED, JsValue::from);
        let message = Array::of2(&header(request).into(), &body);
        if let Err(error) = self.control.post_message(&message) {
            web_sys::console::error_1(&error);
        }
    }
}

impl Guest {
    /// Ends the guest. Nobody hears it from now on. Its frame is removed a moment later, because removing takes the page some milliseconds
    /// and somebody's code would wait for them.
    pub(super) fn end_soon(self) {
        self.close();
        spawn_local(async move {
            TimeoutFuture::new(SOON_MS).await;
            drop(self);
        });
    }

    fn close(&self) {
        self.inbox.owner.take();
        self.frame_watch.take();
        if let Some(outbox) = self.outbox.take() {
            outbox.close();
        }
        for port in [&self.port, &self.control] {
            port.set_onmessage(None);
        }
        self.control.close();
        let is_worker = matches!(self.home, Home::Frame { .. } | Home::Page(Some(_)));
        if is_worker && !self.inbox.has_heard.get() {
            // In Firefox, a worker stays for good if it is ended while its port is on its way, and the other end is closed already.
            let port = self.port.clone();
            spawn_local(async move {
                TimeoutFuture::new(ON_ITS_WAY_MS).await;
                port.close();
            });
        } else {
            self.port.close();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.close();
        match &self.home {
            Home::Frame { element, .. } => {
                element.set_onload(None);
                element.set_onerror(None);
                element.remove();
            }
            Home::Page(Some(ended))
            | Home::Process {
                process: Some(ended), ..
            } => ended.terminate(),
            Home::Page(None) | Home::Process { process: None, .. } => {}
        }
    }
}

async fn bring_library(guest: Weak<Inbox>, control: MessagePort, base: String, glue: Glue) {
    let mut pause = RETRY_MS;
    while guest.strong_count() > 0 {
        let library = assets::library(&base, &glue).await;
        let (is_there, message) = match library {
            Ok(library) => (true, library),
            Err(error) => (false, error.to_string().into()),
        };
        let _ = control.post_message(&object(&[("library", &message)])); // a Blob and a text can be posted
        if is_there {
            return;
        }
        TimeoutFuture::new(pause).await;
        pause = (2 * pause).min(LAST_RETRY_MS);
    }
}

fn open_frame(glue: &Glue, base: &str) -> Result<Place, JsValue> {
    if get(&global(), "document").is_undefined() {
        let why = "isolation \"frame\" needs a document; use isolation \"worker\" here";
        return Err(JsValue::from_str(why));
    }
    let place = glue.open_frame(base)?;
    match place.blocked() {
        true => Err(JsValue::from_str(FRAME_IS_BLOCKED)),
        false => Ok(place),
    }
}

fn tend_frame(place: &Place, inbox: &Rc<Inbox>) -> Home {
    let frame = place.element();
    let gate: Rc<Gate> = Rc::default();
    gate.is_open.set(place.loaded());
    let on_load = Closure::<dyn FnMut()>::new({
        let (frame, gate) = (frame.clone(), gate.clone());
        move || {
            gate.is_open.set(true);
            gate.pass(&frame);
        }
    });
    frame.set_onload(Some(on_load.as_ref().unchecked_ref()));
    let on_error = Closure::<dyn FnMut()>::new({
        let inbox = inbox.clone();
        move || inbox.deliver(Letter::Failure(FRAME_IS_BLOCKED.to_owned()))
    });
    frame.set_onerror(Some(on_error.as_ref().unchecked_ref()));
    Home::Frame {
        element: frame,
        gate,
        _on_load: on_load,
        _on_error: on_error,
    }
}
