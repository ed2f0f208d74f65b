//! A guest on a `sandglass-host` server, reached by a WebSocket. The page's session supervises it like a guest of its own, and the server
//! only carries frames.
//!
//! Decisions: `docs/internals/server.md`.

mod connect;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use gloo_timers::callback::Timeout;
use js_sys::{ArrayBuffer, JsString};
use serde::Deserialize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::spawn_local;
use web_sys::{AbortController, Url};

use super::arguments::entries;
use super::glue::{get, global};
use super::paused::{Holder, RemoteCheckpoint};
use super::socket::Socket;
use super::wire::{News, OnNews, Wire, guest_of};
use sandglass_core::error::Error;
use sandglass_core::execution::Killer;
use sandglass_core::limits::Limits;
use sandglass_rlm::query::without_key;

use connect::Opened;

/// The longest text message, in UTF-16 units.
const MAX_NOTICE: u32 = 1 << 16;
/// The bytes of output after which the guest is told that they were taken.
const MOST_UNTOLD: f64 = 256.0 * 1024.0;
/// The time for which the answer of a server is waited for that nobody needs any more, in milliseconds.
const ANSWER_MS: u32 = 5_000;

/// The address of a server, and the key to it.
#[derive(Debug, Clone)]
pub(super) struct Backend {
    /// The absolute address; ends with a slash.
    pub(super) url: String,
    pub(super) api_key: Option<String>,
}

impl Backend {
    /// Reads the option `backend`.
    pub(super) fn parse(value: &JsValue) -> Result<Self, Error> {
        let (mut url, mut api_key) = (None, None);
        for (name, value) in entries(value, "backend")? {
            match name.as_str() {
                _ if value.is_undefined() => {}
                "url" => url = Some(server_url(&value)?),
                "apiKey" => {
                    let key = value.as_string().filter(|key| {
                        !key.is_empty() && key.len() <= 1_000 && key.bytes().all(|byte| byte.is_ascii_graphic())
                    });
                    let refused = || Error::invalid("backend.apiKey", "must be a key of the server, as it knows it");
                    api_key = Some(key.ok_or_else(refused)?);
                }
                _ => return Err(Error::invalid(format!("backend.{name}"), "there is no such option")),
            }
        }
        let url = url.ok_or_else(|| Error::invalid("backend.url", "must say where the sandglass-host server is"))?;
        Ok(Self { url, api_key })
    }

    /// The server's text without the key, because pages show and log errors.
    fn without_key(&self, text: String) -> String {
        without_key(text, self.api_key.as_deref())
    }
}

/// Reads an address, relative to the page's.
fn server_url(value: &JsValue) -> Result<String, Error> {
    let refused = || {
        let what = "must be the http or https address of a sandglass-host server, without a query";
        Error::invalid("backend.url", what)
    };
    let text = match value.dyn_ref::<Url>() {
        Some(url) => url.href(),
        None => value.as_string().filter(|text| !text.is_empty()).ok_or_else(refused)?,
    };
    let here = get(&get(&global(), "location"), "href");
    let url = match here.as_string() {
        Some(here) => Url::new_with_base(&text, &here).or_else(|_| Url::new(&text)),
        None => Url::new(&text),
    };
    let url = url.map_err(|_| refused())?;
    let is_plain = [url.search(), url.hash(), url.username(), url.password()]
        .iter()
        .all(String::is_empty);
    if !is_plain || !["http:", "https:"].contains(&url.protocol().as_str()) {
        return Err(refused());
    }
    let url = url.href();
    Ok(if url.ends_with('/') { url } else { url + "/" })
}

/// A sandbox's session on a server. It lasts as long as its connection, which can go over to another WebSocket. The next guest after a lost
/// connection begins a new session.
pub(super) struct Server {
    backend: Backend,
    /// The session's options, as JSON.
    wanted: String,
    line: RefCell<Option<Rc<Line>>>,
    /// The backend that runs the guests there.
    isolation: RefCell<Option<&'static str>>,
}

/// A connection to a server, for all guests of a session.
struct Line {
    socket: Socket,
    /// The number of guests that were asked for.
    guests: Cell<u32>,
    /// The seat of the newest guest.
    seat: RefCell<Weak<Seat>>,
    /// The checkpoints that the server holds.
    checkpoints: RefCell<BTreeSet<u32>>,
}

/// The state that a guest and its connection share.
struct Seat {
    on_news: OnNews,
    /// The guest's number on the connection, from 1; 0 before it has one.
    number: Cell<u32>,
    has_booted: Cell<bool>,
}

/// A session that is being asked for.
struct Opening {
    request: AbortController,
    is_over: Rc<Cell<bool>>,
}

/// A guest on a server. Dropping it ends it.
#[must_use = "dropping a guest ends it"]
pub(super) struct RemoteGuest {
    seat: Rc<Seat>,
    server: Rc<Server>,
    /// Ends the attempt to reach the server.
    opening: Option<Opening>,
    /// Bytes of output that were taken, and that the guest has not been told of.
    untold: Cell<f64>,
}

/// The server's messages about guests.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Notice {
    Booted {
        guest: u32,
    },
    Lost {
        guest: u32,
        #[serde(default)]
        message: String,
        #[serde(default)]
        killer: Option<Killer>,
    },
    Paused {
        guest: u32,
        checkpoint: u32,
    },
    Unpaused {
        guest: u32,
        checkpoint: u32,
        #[serde(default)]
        message: String,
    },
    Gone {
        checkpoint: u32,
        #[serde(default)]
        message: String,
    },
    #[serde(other)]
    Other,
}

impl Server {
    /// `checkpoints`: the number of states that guests keep.
    pub(super) fn new(backend: &Backend, limits: &Limits, checkpoints: u32) -> Rc<Self> {
        let (default, mut wanted) = (Limits::default(), serde_json::json!({ "channel": true }));
        if checkpoints > 0 {
            wanted["checkpoints"] = checkpoints.into();
        }
        // Options that were not given take the server's defaults.
        for (name, bytes, default) in [
            ("memoryLimit", limits.max_memory_bytes, default.max_memory_bytes),
            ("maxFileBytes", limits.max_file_bytes, default.max_file_bytes),
            ("maxValueSize", limits.max_value_bytes, default.max_value_bytes),
        ] {
            if whole(bytes) != whole(default) {
                wanted[name] = whole(bytes).into();
            }
        }
        Rc::new(Self {
            backend: backend.clone(),
            wanted: wanted.to_string(),
            line: RefCell::default(),
            isolation: RefCell::default(),
        })
    }

    /// The backend that the server uses; `None` before the first guest.
    pub(super) fn isolation(&self) -> Option<&'static str> {
        *self.isolation.borrow()
    }

    /// Starts a guest, with the state of a checkpoint if there is one.
    pub(super) fn boot(self: &Rc<Self>, on_news: OnNews, from: Option<&RemoteCheckpoint>) -> RemoteGuest {
        let seat = Rc::new(Seat {
            on_news,
            number: Cell::default(),
            has_booted: Cell::default(),
        });
        let line = self.line.borrow().clone().filter(|line| line.socket.is_open());
        let opening = match (line, from) {
            (Some(line), None) => {
                line.boot(&seat, None);
                None
            }
            (Some(line), Some(from)) if from.is_held_by(&line) => {
                line.boot(&seat, Some(from.number()));
                None
            }
            (None, None) => self.open(&seat),
            (_, Some(_)) => {
                let seat = Rc::downgrade(&seat);
                spawn_local(async move {
                    let Some(seat) = seat.upgrade() else { return };
                    let why = "the connection to the server that held it has ended".to_owned();
                    (seat.on_news)(News::Lost(Error::GuestLost(why), None));
                });
                None
            }
        };
        RemoteGuest {
            seat,
            server: self.clone(),
            opening,
            untold: Cell::default(),
        }
    }

    fn open(self: &Rc<Self>, seat: &Rc<Seat>) -> Option<Opening> {
        let request = AbortController::new().ok();
        let signal = request.as_ref().map(AbortController::signal);
        let (server, seat) = (self.clone(), Rc::downgrade(seat));
        let is_over = Rc::new(Cell::new(false));
        let opening = request.map(|request| Opening {
            request,
            is_over: is_over.clone(),
        });
        spawn_local(async move {
            let is_wanted = || seat.strong_count() > 0;
            let opened = connect::open(&server.backend, &server.wanted, signal.as_ref(), is_wanted).await;
            is_over.set(true);
            // If the caller has given up meanwhile, dropping the socket closes it.
            let Some(seat) = seat.upgrade() else { return };
            match opened {
                Ok(opened) => server.connected(opened).boot(&seat, None),
                Err(error) => (seat.on_news)(News::Lost(error, None)),
            }
        });
        opening
    }

    fn connected(self: &Rc<Self>, Opened { socket, isolation }: Opened) -> Rc<Line> {
        self.isolation.replace(Some(isolation));
        let line = Rc::new(Line {
            socket,
            guests: Cell::default(),
            seat: RefCell::default(),
            checkpoints: RefCell::default(),
        });
        let this = Rc::downgrade(&line);
        let on_message = move |data: &JsValue| {
            if let Some(line) = this.upgrade() {
                line.receive(data);
            }
        };
        let (server, this) = (Rc::downgrade(self), Rc::downgrade(&line));
        let on_close = move |why: String| {
            let (Some(server), Some(line)) = (server.upgrade(), this.upgrade()) else {
                return;
            };
            server.hang_up(&line);
            line.lose_checkpoints();
            let (url, why) = (&server.backend.url, server.backend.without_key(why));
            line.fail(Error::BackendUnavailable(format!(
                "the connection to the sandglass-host server at {url} ended{why}, and the guest with it; \
                 the next call tries to connect again"
            )));
        };
        line.socket.listen(on_message, on_close);
        self.line.replace(Some(line.clone()));
        line
    }

    /// Forgets a connection, which closes it.
    fn hang_up(&self, line: &Rc<Line>) {
        let is_ours = self.line.borrow().as_ref().is_some_and(|own| Rc::ptr_eq(own, line));
        if is_ours {
            self.close();
        }
    }

    /// Ends the session.
    pub(super) fn close(&self) {
        drop(self.line.take()); // closes when its last user drops it
    }
}

impl Line {
    fn boot(&self, seat: &Rc<Seat>, checkpoint: Option<u32>) {
        let number = self.guests.get() + 1;
        self.guests.set(number);
        seat.number.set(number);
        self.seat.replace(Rc::downgrade(seat));
        match checkpoint {
            Some(checkpoint) => self.send(&serde_json::json!({ "type": "revive", "checkpoint": checkpoint })),
            None => self.tell("boot", number),
        }
    }

    fn tell(&self, what: &str, guest: u32) {
        self.send(&serde_json::json!({ "type": what, "guest": guest }));
    }

    fn send(&self, notice: &serde_json::Value) {
        self.socket.send_text(&notice.to_string());
    }

    fn receive(self: &Rc<Self>, data: &JsValue) {
        let notice = || -> Option<Notice> {
            let text = data.dyn_ref::<JsString>().filter(|text| text.length() <= MAX_NOTICE);
            text.and_then(|text| serde_json::from_str(&String::from(text)).ok())
        };
        // The listener may drop the seat and the connection.
        let Some(seat) = self.seat.borrow().upgrade() else {
            if let Some(Notice::Paused { checkpoint, .. }) = notice() {
                drop(self.checkpoint(checkpoint)); // ends the copy of a guest that is gone
            }
            return;
        };
        if let Some(frame) = data.dyn_ref::<ArrayBuffer>() {
            if guest_of(frame) == Some(seat.number.get()) {
                (seat.on_news)(News::Frame(frame));
            }
            return;
        }
        match notice() {
            Some(Notice::Booted { guest }) if guest == seat.number.get() && !seat.has_booted.replace(true) => {
                let wire = Wire::new(self.socket.sender(), guest, seat.on_news.clone());
                (seat.on_news)(News::Booted(wire));
            }
            Some(Notice::Lost { guest, message, killer }) if guest == seat.number.get() => {
                let error = Error::GuestLost(format!("the guest ended: {message}"));
                (seat.on_news)(News::Lost(error, killer));
            }
            Some(Notice::Paused { guest, checkpoint }) => {
                let checkpoint = self.checkpoint(checkpoint);
                if guest == seat.number.get() {
                    (seat.on_news)(News::Paused(Rc::new(checkpoint)));
                }
            }
            Some(Notice::Unpaused {
                guest,
                checkpoint,
                message,
            }) if guest == seat.number.get() => (seat.on_news)(News::NotPaused(checkpoint, message)),
            Some(Notice::Gone { checkpoint, message }) => (seat.on_news)(News::Gone(checkpoint, message)),
            Some(Notice::Booted { .. } | Notice::Lost { .. } | Notice::Unpaused { .. } | Notice::Other) => {}
            None => self.fail(Error::BackendUnavailable(
                "what answers at backend.url is no sandglass-host server of this release".to_owned(),
            )),
        }
    }

    /// Tells the session that no checkpoint is there any more.
    fn lose_checkpoints(&self) {
        let Some(seat) = self.seat.borrow().upgrade() else {
            return;
        };
        let all = self.checkpoints.borrow().clone();
        for checkpoint in all {
            let why = "the connection to the server that held it has ended".to_owned();
            (seat.on_news)(News::Gone(checkpoint, why));
        }
    }

    /// A checkpoint that the server holds.
    fn checkpoint(self: &Rc<Self>, number: u32) -> RemoteCheckpoint {
        self.checkpoints.borrow_mut().insert(number);
        let this: Weak<Self> = Rc::downgrade(self);
        RemoteCheckpoint::new(number, this)
    }

    /// Has a guest make a paused copy of itself.
    fn pause(&self, guest: u32, checkpoint: u32) {
        self.send(&serde_json::json!({ "type": "pause", "guest": guest, "checkpoint": checkpoint }));
    }

    fn fail(&self, error: Error) {
        let seat = self.seat.borrow().upgrade();
        if let Some(seat) = seat {
            (seat.on_news)(News::Lost(error, None));
        }
    }
}

impl Holder for Line {
    fn forget(&self, checkpoint: u32) {
        self.checkpoints.borrow_mut().remove(&checkpoint);
        self.send(&serde_json::json!({ "type": "drop", "checkpoint": checkpoint }));
    }
}

impl RemoteGuest {
    /// Has the guest make a paused copy of itself.
    pub(super) fn pause(&self, checkpoint: u32) {
        if let Some(line) = &*self.server.line.borrow() {
            line.pause(self.seat.number.get(), checkpoint);
        }
    }

    /// Counts bytes of output that were taken. Returns the sum when it is large enough to tell the guest.
    pub(super) fn took(&self, bytes: f64) -> Option<f64> {
        let untold = self.untold.get() + bytes;
        let is_told = untold >= MOST_UNTOLD;
        self.untold.set(if is_told { 0.0 } else { untold });
        is_told.then_some(untold)
    }
}

impl Drop for RemoteGuest {
    fn drop(&mut self) {
        // A session that the server has made by now is given back when its name comes, which needs the answer. A server that stands still
        // is not waited for.
        if let Some(Opening { request, is_over }) = self.opening.take()
            && !is_over.get()
        {
            Timeout::new(ANSWER_MS, move || request.abort()).forget();
        }
        let line = self.server.line.borrow().clone();
        let Some(line) = line.filter(|line| std::ptr::eq(line.seat.borrow().as_ptr(), Rc::as_ptr(&self.seat))) else {
            return;
        };
        if self.seat.has_booted.get() || !line.checkpoints.borrow().is_empty() {
            line.tell("kill", self.seat.number.get());
        } else {
            self.server.hang_up(&line); // a server that cannot start a guest may be out of reach
        }
    }
}

/// Bytes as a whole number.
fn whole(bytes: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "limits are positive, and far below 2^53"
    )]
    {
        bytes.ceil() as u64
    }
}
