//! Posts messages without blocking the page: a large body leaves in pieces, and the event loop runs between slices of work.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use js_sys::{Array, JsString, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, MessageChannel, MessagePort};

use super::glue::{bytes, describe, now, well_formed};
use super::paused::RemoteCheckpoint;
use super::wire::Wire;
use sandglass_core::protocol::{Encoding, Request};
use sandglass_core::session::Body;
use sandglass_core::value::wtf8_from_utf16;

/// The largest piece of a body, in bytes.
const PIECE: u32 = 1 << 20;
/// UTF-16 units of text that are encoded in one step.
const STEP: u32 = 1 << 16;
/// The size in bytes from which a buffer is moved. Copying a smaller one is cheaper.
const SMALL_BODY: u32 = 100_000;
/// The longest slice of work on the page, in milliseconds.
const SLICE_MS: f64 = 8.0;

/// A body as the page holds it. Text is encoded piece by piece when it is sent, and never copied before.
#[derive(Debug, Clone)]
pub(super) enum JsBody {
    /// Text, sent as UTF-8. Only bodies to a guest have this form.
    Text(JsString),
    /// Bytes.
    Bytes(Uint8Array),
    /// Bytes that nobody uses once they were sent. Their buffer is moved to a guest of the page. Only bodies to a guest have this form.
    Owned(Uint8Array),
    /// A checkpoint or a file. The browser holds its bytes outside of the page's memory, and it is sent as it is.
    Blob(Blob),
    /// A checkpoint on a server. It is never sent.
    Checkpoint(Rc<RemoteCheckpoint>),
}

impl Body for JsBody {
    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.length() as usize,
            Self::Bytes(data) | Self::Owned(data) => data.length() as usize,
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size")]
            Self::Blob(blob) => blob.size() as usize,
            Self::Checkpoint(_) => 0,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Blob(one), Self::Blob(other)) => js_sys::Object::is(one, other),
            (Self::Text(one), Self::Text(other)) => one == other,
            _ => self
                .bytes()
                .zip(other.bytes())
                .is_some_and(|(one, other)| one.to_vec() == other.to_vec()),
        }
    }

    fn joined(parts: &[&Self]) -> Self {
        let parts: Vec<Uint8Array> = parts.iter().filter_map(|part| part.bytes()).collect();
        Self::Bytes(join(&parts))
    }

    fn first(&self, most: usize) -> Vec<u8> {
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        match self {
            Self::Bytes(data) | Self::Owned(data) => data.subarray(0, most.min(data.length())).to_vec(),
            Self::Text(text) => String::from(text.slice(0, most)).into_bytes(),
            Self::Blob(_) | Self::Checkpoint(_) => Vec::new(),
        }
    }
}

impl JsBody {
    /// The body as the browser's store holds it.
    pub(super) fn to_value(&self) -> JsValue {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) | Self::Owned(bytes) => bytes.into(),
            Self::Blob(blob) => blob.into(),
            Self::Checkpoint(_) => JsValue::UNDEFINED, // sessions on servers are not kept
        }
    }

    /// The body that the browser's store holds so. `None` for any other value.
    pub(super) fn of_value(value: &JsValue) -> Option<Self> {
        if let Some(text) = value.dyn_ref::<JsString>() {
            return Some(Self::Text(text.clone()));
        }
        if let Some(blob) = value.dyn_ref::<Blob>() {
            return Some(Self::Blob(blob.clone()));
        }
        Some(Self::Bytes(value.dyn_ref::<Uint8Array>()?.clone()))
    }

    /// The bytes, or those of the text in UTF-8. `None` for a `Blob` or a checkpoint on a server.
    fn bytes(&self) -> Option<Uint8Array> {
        match self {
            Self::Text(text) => Some(bytes(&wtf8_from_utf16(&text.iter().collect::<Vec<u16>>()))),
            Self::Bytes(data) | Self::Owned(data) => Some(data.clone()),
            Self::Blob(_) | Self::Checkpoint(_) => None,
        }
    }

    /// The length, in UTF-16 units or bytes.
    fn length(&self) -> u32 {
        match self {
            Self::Text(text) => text.length(),
            Self::Bytes(data) | Self::Owned(data) => data.length(),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most what a value may take"
            )]
            Self::Blob(blob) => blob.size() as u32,
            Self::Checkpoint(_) => 0,
        }
    }
}

/// A piece of a body.
struct Piece {
    bytes: Uint8Array,
    /// The position at which the next piece begins.
    next: u32,
    /// True when nobody else uses `bytes`, so that they may be moved instead of copied.
    owned: bool,
}

/// Cuts bodies into pieces.
#[derive(Clone)]
pub(super) struct Cutter {
    encoder: Encoder,
    /// The buffer for encoding large texts. A new buffer for every piece would cost much more.
    buffer: Uint8Array,
}

#[wasm_bindgen]
extern "C" {
    /// A `TextEncoder` that takes JavaScript's own strings, without a copy through the memory of this module.
    #[derive(Clone)]
    #[wasm_bindgen(js_name = TextEncoder)]
    type Encoder;
    #[wasm_bindgen(constructor, js_class = "TextEncoder")]
    fn new() -> Encoder;
    #[wasm_bindgen(method)]
    fn encode(this: &Encoder, text: &JsString) -> Uint8Array;
    #[wasm_bindgen(method, js_name = encodeInto)]
    fn encode_into(this: &Encoder, text: &JsString, target: &Uint8Array) -> Encoded;

    type Encoded;
    #[wasm_bindgen(method, getter)]
    fn read(this: &Encoded) -> u32;
    #[wasm_bindgen(method, getter)]
    fn written(this: &Encoded) -> u32;
}

impl Cutter {
    pub(super) fn new() -> Self {
        Self {
            encoder: Encoder::new(),
            buffer: Uint8Array::new_with_length(PIECE),
        }
    }

    /// Cuts the piece of `body` that begins at `start`. Returns the piece and the position of the next one.
    pub(super) fn cut(&self, body: &JsBody, start: u32) -> (Uint8Array, u32) {
        let Piece { bytes, next, owned } = self.piece(body, start);
        (if owned { bytes } else { bytes.slice(0, bytes.length()) }, next)
    }

    /// Cuts the piece of `body` that begins at `start`, except of a file.
    fn piece(&self, body: &JsBody, start: u32) -> Piece {
        match body {
            JsBody::Bytes(data) | JsBody::Owned(data) => {
                let next = data.length().min(start.saturating_add(PIECE));
                Piece {
                    bytes: data.slice(start, next),
                    next,
                    owned: true,
                }
            }
            JsBody::Text(text) => self.text_piece(text, start),
            // A checkpoint is sent as it is, and a file is read in pieces by `read`.
            JsBody::Blob(_) | JsBody::Checkpoint(_) => Piece {
                bytes: Uint8Array::new_with_length(0),
                next: 0,
                owned: true,
            },
        }
    }

    fn text_piece(&self, text: &JsString, start: u32) -> Piece {
        if text.length() <= STEP && well_formed(text) {
            return Piece {
                bytes: self.encoder.encode(text),
                next: text.length(),
                owned: true,
            };
        }
        let (mut next, mut written) = (start, 0);
        while next < text.length() && written + 3 * STEP <= PIECE {
            let slice = text.slice(next, pair_boundary(text, next.saturating_add(STEP)));
            if !well_formed(&slice) {
                if written > 0 {
                    break;
                }
                let bytes = bytes(&wtf8_from_utf16(&slice.iter().collect::<Vec<u16>>()));
                return Piece {
                    bytes,
                    next: next + slice.length(),
                    owned: true,
                };
            }
            let encoded = self.encoder.encode_into(&slice, &self.buffer.subarray(written, PIECE));
            next += encoded.read();
            written += encoded.written();
        }
        Piece {
            bytes: self.buffer.subarray(0, written),
            next,
            owned: false,
        }
    }
}

/// Moves `end` one unit back when it would separate a pair of surrogates.
fn pair_boundary(text: &JsString, end: u32) -> u32 {
    let last = text.char_code_at(end.saturating_sub(1));
    let parts_a_pair = end < text.length() && (f64::from(0xD800)..f64::from(0xDC00)).contains(&last);
    if parts_a_pair { end - 1 } else { end.min(text.length()) }
}

/// The piece that begins at `start`, without a copy: the frame that it goes into is one.
fn view(data: &Uint8Array, start: u32) -> Piece {
    let next = data.length().min(start.saturating_add(PIECE));
    Piece {
        bytes: data.subarray(start, next),
        next,
        owned: false,
    }
}

/// Reads the piece of a file that begins at `start`.
async fn read(blob: &Blob, start: u32) -> Result<Piece, JsValue> {
    let next = start.saturating_add(PIECE);
    let slice = blob.slice_with_f64_and_f64(f64::from(start), f64::from(next))?;
    let buffer = JsFuture::from(slice.array_buffer()).await?;
    Ok(Piece {
        bytes: Uint8Array::new(&buffer),
        next,
        owned: true,
    })
}

/// The channel to a guest.
#[derive(Clone)]
pub(super) enum Way {
    Port(MessagePort),
    /// The connection to a guest on a server.
    Socket(Wire),
}

/// The messages to one guest, sent in order. A message without a body may overtake one with a long body.
pub(super) struct Outbox {
    /// The channel. `None` before the guest can be reached, and after the guest was given up.
    way: RefCell<Option<Way>>,
    /// The messages that wait for the channel.
    early: RefCell<Vec<(Request, Option<JsBody>)>>,
    waiting: RefCell<VecDeque<(Request, JsBody)>>,
    /// True while a task sends the waiting messages. There is at most one such task, also while it lets the page do other work.
    is_draining: Cell<bool>,
    cutter: Cutter,
}

impl Outbox {
    pub(super) fn new() -> Rc<Self> {
        Rc::new(Self {
            way: RefCell::default(),
            early: RefCell::default(),
            waiting: RefCell::default(),
            is_draining: Cell::default(),
            cutter: Cutter::new(),
        })
    }

    /// Hears that the guest can be reached, and sends the waiting messages.
    pub(super) fn open(self: &Rc<Self>, way: Way) {
        self.way.replace(Some(way));
        for (request, body) in self.early.take() {
            self.post(request, body);
        }
    }

    /// Sends a message.
    pub(super) fn post(self: &Rc<Self>, request: Request, body: Option<JsBody>) {
        let way = self.way.borrow();
        let (way, body) = match (&*way, body) {
            (Some(way), Some(body)) => (way, body),
            (Some(way), None) => return self.post_piece(way, &request, None),
            (None, body) => return self.early.borrow_mut().push((request, body)),
        };
        if self.waiting.borrow().is_empty() {
            match (way, &body) {
                (Way::Port(port), JsBody::Blob(blob)) => return post_blobs(port, &request, blob),
                (Way::Socket(_), JsBody::Blob(_)) => {}
                _ if body.length() <= STEP => {
                    let piece = self.cutter.piece(&body, 0);
                    return self.post_piece(way, &request, Some(&piece));
                }
                _ => {}
            }
        }
        self.waiting.borrow_mut().push_back((request, body));
        if !self.is_draining.replace(true) {
            let outbox = self.clone();
            spawn_local(async move { outbox.drain().await });
        }
    }

    /// Sends a message with checkpoints or wheels, without cutting it into pieces.
    pub(super) fn post_all(&self, request: &Request, bodies: Vec<JsBody>) {
        let blobs = bodies.into_iter().filter_map(|body| match body {
            JsBody::Blob(blob) => Some(blob),
            _ => None,
        });
        if let Some(Way::Port(port)) = &*self.way.borrow() {
            post_blobs(port, request, &blobs.collect::<Array>());
        }
    }

    /// Sends a body in one piece.
    pub(super) fn whole(&self, body: &JsBody) -> Uint8Array {
        let (mut pieces, mut start) = (Vec::new(), 0);
        loop {
            let (piece, next) = self.cutter.cut(body, start);
            pieces.push(piece);
            if next >= body.length() {
                return join(&pieces);
            }
            start = next;
        }
    }

    /// Drops the messages that have not been sent, because the guest was given up.
    pub(super) fn close(&self) {
        self.way.take();
        self.waiting.take();
    }

    async fn drain(&self) {
        let mut slice_ends = now() + SLICE_MS;
        let mut start = 0;
        loop {
            let way = self.way.borrow().clone();
            if let Some(Way::Socket(wire)) = &way {
                wire.has_room().await;
            }
            let next = self.waiting.borrow().front().cloned();
            // A closed outbox has nothing to send.
            let (Some(way), Some((request, body))) = (way, next) else {
                return self.is_draining.set(false);
            };
            let piece = match (&body, &way) {
                (JsBody::Blob(blob), Way::Port(port)) => {
                    post_blobs(port, &request, blob);
                    self.waiting.borrow_mut().pop_front();
                    continue;
                }
                (JsBody::Blob(blob), Way::Socket(wire)) => match read(blob, start).await {
                    _ if self.way.borrow().is_none() => continue,
                    Ok(piece) => piece,
                    Err(error) => {
                        self.waiting.borrow_mut().pop_front();
                        wire.unreadable(&request, start > 0, &describe(&error));
                        start = 0;
                        continue;
                    }
                },
                (JsBody::Bytes(data) | JsBody::Owned(data), Way::Socket(_)) => view(data, start),
                (JsBody::Owned(data), Way::Port(_)) => Piece {
                    bytes: data.clone(),
                    next: data.length(),
                    owned: true,
                },
                _ => self.cutter.piece(&body, start),
            };
            if piece.next < body.length() {
                let encoding = match (&body, &request) {
                    (JsBody::Text(_), Request::SetVariable { .. }) => Encoding::Text,
                    _ => Encoding::Bytes,
                };
                self.post_piece(&way, &Request::Part { encoding }, Some(&piece));
                start = piece.next;
            } else {
                self.post_piece(&way, &request, Some(&piece));
                self.waiting.borrow_mut().pop_front();
                start = 0;
            }
            if now() >= slice_ends {
                next_task().await;
                slice_ends = now() + SLICE_MS;
            }
        }
    }

    fn post_piece(&self, way: &Way, request: &Request, piece: Option<&Piece>) {
        let header = header(request);
        let posted = match way {
            Way::Socket(wire) => wire.send(&header, piece.map(|piece| &piece.bytes)),
            Way::Port(port) => {
                let message = Array::of1(&header.into());
                if let Some(piece) = piece {
                    message.push(&piece.bytes);
                }
                match piece {
                    Some(Piece { bytes, owned: true, .. }) if bytes.length() >= SMALL_BODY => {
                        port.post_message_with_transferable(&message, &Array::of1(&bytes.buffer()))
                    }
                    _ => port.post_message(&message),
                }
            }
        };
        if let Err(error) = posted {
            web_sys::console::error_1(&error);
        }
    }
}

/// Writes a request as JSON. A request is plain data, so this cannot fail.
pub(super) fn header(request: &Request) -> String {
    serde_json::to_string(request).unwrap_or_default()
}

/// Sends a message with one `Blob`, or with an array of them.
fn post_blobs(port: &MessagePort, request: &Request, blobs: &JsValue) {
    if let Err(error) = port.post_message(&Array::of2(&header(request).into(), blobs)) {
        web_sys::console::error_1(&error);
    }
}

/// Joins the pieces of a body.
pub(super) fn join(pieces: &[Uint8Array]) -> Uint8Array {
    if let [only] = pieces {
        return only.clone();
    }
    let whole = Uint8Array::new_with_length(pieces.iter().map(Uint8Array::length).sum());
    let mut offset = 0;
    for piece in pieces {
        whole.set(piece, offset);
        offset += piece.length();
    }
    whole
}

/// Lets the page do all other waiting work, then continues.
pub(super) async fn next_task() {
    let Ok(channel) = MessageChannel::new() else { return };
    let port = channel.port1();
    let promise = Promise::new(&mut |resolve, _| {
        port.set_onmessage(Some(&resolve));
        let _ = channel.port2().post_message(&JsValue::NULL);
    });
    let _ = JsFuture::from(promise).await;
    port.close();
}
