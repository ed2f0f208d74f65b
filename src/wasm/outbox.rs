//! Posting messages without holding the page up: a large body leaves in pieces, with a trip through the event loop
//! between slices of work.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use js_sys::{Array, JsString, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{MessageChannel, MessagePort, TextEncoder};

use super::glue::{bytes, now, well_formed};
use crate::protocol::{Encoding, Request};
use crate::session::Body;
use crate::value::wtf8_from_utf16;

/// UTF-16 units of text, or bytes, that are sent as one piece.
const PIECE: u32 = 1 << 20;
/// Moving a smaller buffer costs more than copying it, in bytes.
const SMALL_BODY: u32 = 100_000;
/// The longest that the page is held up at a time, in milliseconds.
const SLICE_MS: f64 = 8.0;

/// A body as the page holds it. Text is encoded piece by piece on its way out, and never copied before.
#[derive(Debug, Clone)]
pub(super) enum JsBody {
    /// Text to be sent as UTF-8; only on its way to the guest.
    Text(JsString),
    /// Bytes.
    Bytes(Uint8Array),
}

impl Body for JsBody {
    fn size(&self) -> usize {
        match self {
            Self::Text(text) => text.length() as usize,
            Self::Bytes(data) => data.length() as usize,
        }
    }
}

impl JsBody {
    fn length(&self) -> u32 {
        match self {
            Self::Text(text) => text.length(),
            Self::Bytes(data) => data.length(),
        }
    }

    /// The piece that begins at `start`, and where the next one begins.
    fn piece(&self, start: u32, encoder: &TextEncoder) -> (Uint8Array, u32) {
        let mut end = self.length().min(start.saturating_add(PIECE));
        match self {
            Self::Bytes(data) => (data.slice(start, end), end),
            Self::Text(text) => {
                let last = text.char_code_at(end.saturating_sub(1));
                if end < text.length() && (f64::from(0xD800)..f64::from(0xDC00)).contains(&last) {
                    end -= 1; // a pair of surrogates stays together
                }
                let slice = text.slice(start, end);
                if well_formed(&slice) {
                    let encoded: JsValue = encode_text(encoder, &slice);
                    return (encoded.unchecked_into(), end);
                }
                (bytes(&wtf8_from_utf16(&slice.iter().collect::<Vec<u16>>())), end)
            }
        }
    }
}

/// `TextEncoder.encode` without a copy of the text through this module's memory.
fn encode_text(encoder: &TextEncoder, text: &JsString) -> JsValue {
    #[wasm_bindgen]
    extern "C" {
        #[wasm_bindgen(js_name = TextEncoder)]
        type Encoder;
        #[wasm_bindgen(method)]
        fn encode(this: &Encoder, text: &JsString) -> JsValue;
    }
    encoder.unchecked_ref::<Encoder>().encode(text)
}

/// Where messages to one guest leave, in order. One without a body may overtake.
#[derive(Clone)]
pub(super) struct Outbox {
    port: MessagePort,
    waiting: Rc<RefCell<VecDeque<(Request, JsBody)>>>,
    encoder: TextEncoder,
}

impl Outbox {
    /// An outbox to the other end of `port`.
    pub(super) fn new(port: MessagePort) -> Result<Self, JsValue> {
        Ok(Self {
            port,
            waiting: Rc::default(),
            encoder: TextEncoder::new()?,
        })
    }

    /// Sends a message.
    pub(super) fn post(&self, request: Request, body: Option<JsBody>) {
        let Some(body) = body else {
            return self.post_piece(&request, None);
        };
        let busy = !self.waiting.borrow().is_empty();
        if !busy && body.length() <= PIECE {
            let (piece, _) = body.piece(0, &self.encoder);
            return self.post_piece(&request, Some(&piece));
        }
        self.waiting.borrow_mut().push_back((request, body));
        if !busy {
            let outbox = self.clone();
            spawn_local(async move { outbox.pump().await });
        }
    }

    /// A body in one piece.
    pub(super) fn whole(&self, body: &JsBody) -> Uint8Array {
        let (mut pieces, mut start) = (Vec::new(), 0);
        loop {
            let (piece, next) = body.piece(start, &self.encoder);
            pieces.push(piece);
            if next >= body.length() {
                return join(&pieces);
            }
            start = next;
        }
    }

    /// Forgets what has not been sent.
    pub(super) fn clear(&self) {
        self.waiting.borrow_mut().clear();
    }

    async fn pump(&self) {
        let mut slice_ends = now() + SLICE_MS;
        let mut start = 0;
        loop {
            let Some((request, body)) = self.waiting.borrow().front().cloned() else {
                return;
            };
            let (piece, next) = body.piece(start, &self.encoder);
            if next < body.length() {
                let encoding = match &body {
                    JsBody::Text(_) => Encoding::Text,
                    JsBody::Bytes(_) => Encoding::Bytes,
                };
                self.post_piece(&Request::Part { encoding }, Some(&piece));
                start = next;
            } else {
                self.post_piece(&request, Some(&piece));
                self.waiting.borrow_mut().pop_front();
                start = 0;
            }
            if now() >= slice_ends {
                next_task().await;
                slice_ends = now() + SLICE_MS;
            }
        }
    }

    fn post_piece(&self, request: &Request, body: Option<&Uint8Array>) {
        // A request is plain data, which JSON can always hold.
        let header = serde_json::to_string(request).unwrap_or_default();
        let message = Array::of1(&header.into());
        let posted = match body {
            None => self.port.post_message(&message),
            Some(body) if body.length() < SMALL_BODY => {
                message.push(body);
                self.port.post_message(&message)
            }
            Some(body) => {
                message.push(body);
                self.port
                    .post_message_with_transferable(&message, &Array::of1(&body.buffer()))
            }
        };
        if let Err(error) = posted {
            web_sys::console::error_1(&error);
        }
    }
}

/// Pieces of a body, joined.
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

/// Lets the page do everything else that is waiting, and comes back.
async fn next_task() {
    thread_local! {
        static CHANNEL: Option<MessageChannel> = MessageChannel::new().ok();
    }
    let promise = CHANNEL.with(|channel| {
        let channel = channel.as_ref()?;
        Some(Promise::new(&mut |resolve, _| {
            let done = Closure::once_into_js(move || {
                let _ = resolve.call0(&JsValue::UNDEFINED);
            });
            channel.port1().set_onmessage(Some(done.unchecked_ref()));
            let _ = channel.port2().post_message(&JsValue::NULL);
        }))
    });
    if let Some(promise) = promise {
        let _ = JsFuture::from(promise).await;
    }
}
