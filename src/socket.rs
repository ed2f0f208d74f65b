//! The connection to a server: a WebSocket, or one after the other. When one breaks, the next takes the conversation up again.
//!
//! Decisions: `docs/internals/server.md`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use gloo_timers::callback::Timeout;
use js_sys::{Array, ArrayBuffer, JsString, Math, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{BinaryType, CloseEvent, MessageEvent, WebSocket};

use super::glue::{describe, now};
use sandglass_core::resumable::{Broken, Control, MAX_CONTROL_BYTES, Resumable, SUFFIX};

/// The pause before the second attempt to reconnect, and the longest pause, in milliseconds.
const PAUSES_MS: (f64, f64) = (50.0, 2_000.0);
/// The time for one attempt, in milliseconds. A server that stands still takes connections and says nothing.
const ATTEMPT_MS: u32 = 20_000;
/// The code with which this side leaves a WebSocket, and not the conversation.
const RECONNECTING: u16 = 4_000;
/// The most bytes that wait in a WebSocket whose conversation ends with it.
const HIGH_WATER: u32 = 4 << 20;

/// The listener of messages.
type OnMessage = Rc<dyn Fn(&JsValue)>;
/// The listener of the end. It hears the reason, such as ` (code 1013: too many guests)`.
type OnClose = Rc<dyn Fn(String)>;

/// The reason for which a connection could not be opened.
pub(super) enum NotOpened {
    /// There is no WebSocket to be had, or it does not speak as a server of this release.
    Failed(String),
    /// The WebSocket was closed. Carries its last words.
    Closed(String),
    /// The server refused the conversation, with this reason.
    Refused(String),
}

/// A connection; dropping it closes it.
pub(super) struct Socket(Rc<Shared>);

/// The sending end of a connection.
#[derive(Clone)]
pub(super) struct Sender(Rc<Shared>);

struct Shared {
    address: String,
    protocols: Array,
    /// The WebSocket of the moment.
    socket: RefCell<Option<Dialed>>,
    listeners: RefCell<Option<(OnMessage, OnClose)>>,
    /// `None` if the conversation ends with its WebSocket.
    conversation: RefCell<Option<Conversation>>,
    has_ended: Cell<bool>,
}

struct Conversation {
    messages: Resumable<Outgoing>,
    token: String,
    within_ms: f64,
    most_bytes: f64,
    /// The number of the link that carries, or is being opened.
    link: u64,
    /// While there is no link: the end of the time, and the next pause.
    lost: Option<(f64, f64)>,
    /// The begin of the next attempt, or the end of this one.
    timer: Option<Timeout>,
}

#[derive(Clone)]
enum Outgoing {
    Text(Rc<str>),
    Frame(Uint8Array),
}

/// A WebSocket and its listeners. Dropping it closes it.
struct Dialed {
    socket: WebSocket,
    listeners: Option<Listeners>,
}

/// Of the opening, of messages and of the end.
type Listeners = (
    Closure<dyn FnMut()>,
    Closure<dyn FnMut(MessageEvent)>,
    Closure<dyn FnMut(CloseEvent)>,
);

impl Dialed {
    fn new(address: &str, protocols: &Array) -> Result<Self, JsValue> {
        let socket = WebSocket::new_with_str_sequence(address, protocols)?;
        socket.set_binary_type(BinaryType::Arraybuffer);
        Ok(Self {
            socket,
            listeners: None,
        })
    }

    /// Resolves to the first event. The error is the WebSocket's end.
    async fn first(&self, listen: impl Fn(&WebSocket, Option<&js_sys::Function>)) -> Result<JsValue, NotOpened> {
        let event = Promise::new(&mut |resolve, reject| {
            listen(&self.socket, Some(&resolve));
            self.socket.set_onclose(Some(&reject));
        });
        let event = JsFuture::from(event).await;
        listen(&self.socket, None);
        self.socket.set_onclose(None);
        event.map_err(|closed| NotOpened::Closed(last_words(closed.unchecked_ref())))
    }

    fn send(&self, message: &Outgoing) {
        let sent = match message {
            Outgoing::Text(text) => self.socket.send_with_str(text),
            Outgoing::Frame(frame) => self.socket.send_with_js_u8_array(frame),
        };
        // A WebSocket that is closed takes messages and drops them.
        if let Err(error) = sent {
            web_sys::console::error_1(&error);
        }
    }

    fn tell(&self, control: &Control) {
        self.send(&Outgoing::Text(control.text().into()));
    }
}

impl Drop for Dialed {
    fn drop(&mut self) {
        self.socket.set_onopen(None);
        self.socket.set_onmessage(None);
        self.socket.set_onclose(None);
        let _ = self.socket.close(); // cannot fail without a code
    }
}

impl Socket {
    /// Opens a connection. The server chooses one of the protocols.
    pub(super) async fn open(address: String, protocols: Array) -> Result<Self, NotOpened> {
        let dialed = Dialed::new(&address, &protocols).map_err(|error| NotOpened::Failed(describe(&error)))?;
        dialed.first(WebSocket::set_onopen).await?;
        let conversation = if dialed.socket.protocol().ends_with(SUFFIX) {
            dialed.tell(&Control::Begin {});
            let event: MessageEvent = dialed.first(WebSocket::set_onmessage).await?.unchecked_into();
            Some(Conversation::begun(&event.data())?)
        } else {
            None
        };
        let shared = Rc::new(Shared {
            address,
            protocols,
            socket: RefCell::default(),
            listeners: RefCell::default(),
            conversation: RefCell::new(conversation),
            has_ended: Cell::default(),
        });
        shared.hold(dialed, 1);
        Ok(Self(shared))
    }

    /// Begins to report messages and the end of the connection.
    pub(super) fn listen(&self, on_message: impl Fn(&JsValue) + 'static, on_close: impl Fn(String) + 'static) {
        self.0.listeners.replace(Some((Rc::new(on_message), Rc::new(on_close))));
    }

    /// Returns true until the connection has ended. It may be without a WebSocket meanwhile.
    pub(super) fn is_open(&self) -> bool {
        self.0.is_open()
    }

    pub(super) fn sender(&self) -> Sender {
        Sender(self.0.clone())
    }

    /// Sends a text. Does nothing when the connection has ended.
    pub(super) fn send_text(&self, text: &str) {
        self.0.send(Outgoing::Text(text.into()), text.len());
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.listeners.replace(None);
        self.0.end(String::new());
    }
}

impl Sender {
    /// Sends a frame. Does nothing when the connection has ended, because its owner hears of that anyway.
    pub(super) fn send(&self, frame: Uint8Array) {
        let bytes = frame.length() as usize;
        self.0.send(Outgoing::Frame(frame), bytes);
    }

    /// Returns true while so much waits that no more should be added.
    pub(super) fn is_full(&self) -> bool {
        if !self.0.is_open() {
            return false;
        }
        if let Some(conversation) = &*self.0.conversation.borrow() {
            return !conversation.messages.has_room();
        }
        let socket = self.0.socket.borrow();
        socket
            .as_ref()
            .is_some_and(|dialed| dialed.socket.buffered_amount() > HIGH_WATER)
    }
}

impl Conversation {
    /// Reads the server's greeting.
    fn begun(greeting: &JsValue) -> Result<Self, NotOpened> {
        let (token, within, max_bytes) = match control(greeting) {
            Ok(Some(Control::Begun {
                token,
                within,
                max_bytes,
            })) => (token, within, max_bytes),
            Ok(Some(Control::Ended { reason })) => return Err(NotOpened::Refused(reason)),
            _ => return Err(NotOpened::Failed("the server's greeting is malformed".to_owned())),
        };
        let mut messages = Resumable::new();
        let link = messages.open();
        let _ = messages.link(link, 0); // the first link has a number, and nothing was taken
        Ok(Self {
            messages,
            token,
            within_ms: within as f64,
            most_bytes: max_bytes as f64,
            link,
            lost: None,
            timer: None,
        })
    }
}

/// Reads a message of the layer.
fn control(data: &JsValue) -> Result<Option<Control>, Broken> {
    match data.dyn_ref::<JsString>() {
        Some(text) if text.length() as usize <= MAX_CONTROL_BYTES => Control::read(&String::from(text)),
        _ => Ok(None),
    }
}

impl Shared {
    fn is_open(&self) -> bool {
        if self.has_ended.get() {
            return false;
        }
        let socket = self.socket.borrow();
        let is_open = || {
            socket
                .as_ref()
                .is_some_and(|dialed| dialed.socket.ready_state() == WebSocket::OPEN)
        };
        self.conversation.borrow().is_some() || is_open()
    }

    /// Listens to a WebSocket, which is the link of this number.
    fn hold(self: &Rc<Self>, mut dialed: Dialed, link: u64) {
        let this = Rc::downgrade(self);
        let on_open = Closure::<dyn FnMut()>::new(move || {
            if let Some(this) = this.upgrade() {
                this.greet();
            }
        });
        let this = Rc::downgrade(self);
        let on_message = Closure::<dyn FnMut(_)>::new(move |event: MessageEvent| {
            if let Some(this) = this.upgrade() {
                this.receive(link, &event.data());
            }
        });
        let this = Rc::downgrade(self);
        let on_close = Closure::<dyn FnMut(_)>::new(move |event: CloseEvent| {
            if let Some(this) = this.upgrade() {
                this.closed(link, last_words(&event));
            }
        });
        dialed.socket.set_onopen(Some(on_open.as_ref().unchecked_ref()));
        dialed.socket.set_onmessage(Some(on_message.as_ref().unchecked_ref()));
        dialed.socket.set_onclose(Some(on_close.as_ref().unchecked_ref()));
        dialed.listeners = Some((on_open, on_message, on_close));
        self.socket.replace(Some(dialed));
    }

    fn send(self: &Rc<Self>, message: Outgoing, bytes: usize) {
        if self.has_ended.get() {
            return;
        }
        let mut conversation = self.conversation.borrow_mut();
        let Some(conversation) = &mut *conversation else {
            if let Some(dialed) = &*self.socket.borrow() {
                dialed.send(&message);
            }
            return;
        };
        if bytes as f64 > conversation.most_bytes {
            // Later, because the caller does not expect the end yet.
            let this = self.clone();
            spawn_local(async move { this.end(" (a message is larger than the server takes)".to_owned()) });
            return;
        }
        conversation.messages.push(message, bytes);
        self.pump(conversation);
    }

    /// Sends what may be sent now.
    fn pump(&self, conversation: &mut Conversation) {
        if let Some(dialed) = &*self.socket.borrow() {
            while let Some(message) = conversation.messages.next(conversation.link) {
                dialed.send(&message);
            }
        }
    }

    /// Takes a message of a link.
    fn receive(self: &Rc<Self>, link: u64, data: &JsValue) {
        match self.took(link, data) {
            Ok(true) => {
                let listener = self
                    .listeners
                    .borrow()
                    .as_ref()
                    .map(|(on_message, _)| on_message.clone());
                if let Some(on_message) = listener {
                    on_message(data);
                }
            }
            Ok(false) => {}
            Err(why) => self.end(format!(" ({why})")),
        }
    }

    /// Returns true if the message is the conversation's. The error is the reason of its end.
    fn took(&self, link: u64, data: &JsValue) -> Result<bool, String> {
        let mut conversation = self.conversation.borrow_mut();
        let Some(conversation) = &mut *conversation else {
            return Ok(true);
        };
        if conversation.link != link {
            return Ok(false);
        }
        let broken = |error: Broken| error.to_string();
        match control(data).map_err(broken)? {
            None => {}
            Some(Control::Resumed { taken }) if conversation.lost.is_some() => {
                conversation.messages.link(link, taken).map_err(broken)?;
                (conversation.lost, conversation.timer) = (None, None);
                self.pump(conversation);
                return Ok(false);
            }
            Some(Control::Taken { taken }) => {
                conversation.messages.told(link, taken).map_err(broken)?;
                self.pump(conversation);
                return Ok(false);
            }
            Some(Control::Ended { reason }) => return Err(reason),
            Some(_) => return Err(Broken::Malformed.to_string()),
        }
        let bytes = match (data.dyn_ref::<ArrayBuffer>(), data.dyn_ref::<JsString>()) {
            (Some(frame), _) => frame.byte_length(),
            (None, Some(text)) => text.length(),
            (None, None) => 0,
        };
        // It is taken at once, so its content need not wait.
        let mark = Outgoing::Text("".into());
        conversation
            .messages
            .arrived(link, mark, bytes as usize)
            .map_err(broken)?;
        let is_taken = conversation.messages.take().is_some();
        if let (Some(taken), Some(dialed)) = (conversation.messages.to_tell(link), &*self.socket.borrow()) {
            dialed.tell(&Control::Taken { taken });
        }
        Ok(is_taken)
    }

    /// Hears that a WebSocket has ended.
    fn closed(self: &Rc<Self>, link: u64, why: String) {
        let is_plain = match &*self.conversation.borrow() {
            Some(conversation) if conversation.link != link => return,
            conversation => conversation.is_none(),
        };
        if is_plain {
            return self.end(why);
        }
        self.again();
    }

    /// Makes another attempt: at once after the loss of a link, and later after a failed attempt.
    fn again(self: &Rc<Self>) {
        drop(self.socket.take());
        let mut conversation = self.conversation.borrow_mut();
        let Some(held) = &mut *conversation else { return };
        held.messages.cut();
        let Some((until, pause)) = held.lost else {
            held.lost = Some((now() + held.within_ms, PAUSES_MS.0));
            drop(conversation);
            return self.attempt();
        };
        let left = until - now();
        if left <= 0.0 {
            let seconds = held.within_ms / 1_000.0;
            drop(conversation);
            return self.end(format!(", it could not be taken up again within {seconds} s"));
        }
        held.lost = Some((until, (pause * 2.0).min(PAUSES_MS.1)));
        // Pages that lost the same server do not come back all at once.
        let pause = (pause * (0.5 + Math::random() / 2.0)).min(left);
        let this = Rc::downgrade(self);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "two seconds at most, and positive"
        )]
        let timer = Timeout::new(pause as u32, move || {
            if let Some(this) = this.upgrade() {
                this.attempt();
            }
        });
        held.timer = Some(timer);
    }

    fn attempt(self: &Rc<Self>) {
        let mut conversation = self.conversation.borrow_mut();
        let Some(held) = &mut *conversation else { return };
        held.link = held.messages.open();
        let link = held.link;
        let this = Rc::downgrade(self);
        held.timer = Some(Timeout::new(ATTEMPT_MS, move || {
            if let Some(this) = this.upgrade() {
                this.give_up(link);
            }
        }));
        drop(conversation);
        match Dialed::new(&self.address, &self.protocols) {
            Ok(dialed) => self.hold(dialed, link),
            Err(_) => self.again(),
        }
    }

    /// Sends the first message of a later link.
    fn greet(&self) {
        let conversation = self.conversation.borrow();
        let (Some(conversation), Some(dialed)) = (&*conversation, &*self.socket.borrow()) else {
            return;
        };
        dialed.tell(&Control::Resume {
            token: conversation.token.clone(),
            link: conversation.link,
            taken: conversation.messages.taken(),
        });
    }

    /// Ends an attempt that takes too long.
    fn give_up(self: &Rc<Self>, link: u64) {
        let is_under_way = |conversation: &Conversation| conversation.link == link && conversation.lost.is_some();
        if self.conversation.borrow().as_ref().is_some_and(is_under_way) {
            if let Some(dialed) = &*self.socket.borrow() {
                let _ = dialed.socket.close_with_code(RECONNECTING); // fails only when it is closed
            }
            self.again();
        }
    }

    fn end(&self, why: String) {
        if self.has_ended.replace(true) {
            return;
        }
        drop(self.socket.take());
        if let Some(conversation) = &mut *self.conversation.borrow_mut() {
            conversation.timer = None;
        }
        let listeners = self.listeners.take();
        if let Some((_, on_close)) = listeners {
            on_close(why);
        }
    }
}

/// The reason that the server gave for closing a socket, such as ` (code 1013: too many guests)`.
pub(super) fn last_words(event: &CloseEvent) -> String {
    match (event.code(), event.reason()) {
        (code, reason) if reason.is_empty() => format!(" (code {code})"),
        (code, reason) => format!(" (code {code}: {reason})"),
    }
}
