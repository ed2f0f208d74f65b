//! Frames on the socket: `u32 guest`, `u32` length of the header, the header, and each body as `u32` length and bytes. Numbers
//! are little-endian.

use std::rc::Rc;

use gloo_timers::callback::Timeout;
use js_sys::{Array, ArrayBuffer, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::WebSocket;

use super::glue::bytes;
use sandglass_core::error::Error;
use sandglass_core::execution::Killer;
use sandglass_core::protocol::Request;

/// Bytes that may wait in the socket before more of a body is added.
const HIGH_WATER: u32 = 4 << 20;
/// The time until the socket is looked at again, in milliseconds: it does not tell when it has sent something.
const POLL_MS: u32 = 5;
/// Bytes of a header that comes from the server.
const MAX_HEADER_BYTES: u32 = 16 << 20;

/// The news of a guest on a server.
pub(super) enum News<'a> {
    /// It runs, and this is the way to it.
    Booted(Wire),
    /// It says something.
    Frame(&'a ArrayBuffer),
    /// It is gone, or never came up; a limit may have killed it.
    Lost(Error, Option<Killer>),
    /// A file cannot be read that was to be sent with this request; parts of it may have been sent.
    Unreadable {
        request: &'a Request,
        begun: bool,
        why: &'a str,
    },
}

/// Hears the news of a guest.
pub(super) type OnNews = Rc<dyn Fn(News<'_>)>;

/// The header of a frame, and its bodies.
pub(super) type Frame = (String, Array);

/// The way to one guest.
#[derive(Clone)]
pub(super) struct Wire {
    socket: WebSocket,
    guest: u32,
    on_news: OnNews,
}

impl Wire {
    pub(super) fn new(socket: WebSocket, guest: u32, on_news: OnNews) -> Self {
        Self { socket, guest, on_news }
    }

    /// Sends a frame. On a socket that is closed it does nothing: its owner is told of the end in any case.
    pub(super) fn send(&self, header: &str, body: Option<&Uint8Array>) -> Result<(), JsValue> {
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| JsValue::from_str("a message that is too long"));
        let mut head = Vec::with_capacity(header.len() + 12);
        head.extend(self.guest.to_le_bytes());
        head.extend(length(header.len())?.to_le_bytes());
        head.extend(header.as_bytes());
        let Some(body) = body else {
            return self.socket.send_with_u8_array(&head);
        };
        head.extend(body.length().to_le_bytes());
        let start = length(head.len())?;
        let frame = Uint8Array::new_with_length(start + body.length());
        frame.set(&bytes(&head), 0);
        frame.set(body, start);
        self.socket.send_with_js_u8_array(&frame)
    }

    /// Waits until there is room for more, or nobody listens any more.
    pub(super) async fn has_room(&self) {
        while self.socket.ready_state() == WebSocket::OPEN && self.socket.buffered_amount() > HIGH_WATER {
            let later = Promise::new(&mut |resolve, _| {
                Timeout::new(POLL_MS, move || drop(resolve.call0(&JsValue::UNDEFINED))).forget();
            });
            let _ = JsFuture::from(later).await;
        }
    }

    pub(super) fn unreadable(&self, request: &Request, begun: bool, why: &str) {
        (self.on_news)(News::Unreadable { request, begun, why });
    }
}

/// The number at a place of a frame.
fn number(frame: &ArrayBuffer, at: u32) -> Option<u32> {
    if at.checked_add(4)? > frame.byte_length() {
        return None;
    }
    let mut number = [0; 4];
    Uint8Array::new_with_byte_offset_and_length(frame, at, 4).copy_to(&mut number);
    Some(u32::from_le_bytes(number))
}

/// The guest that a frame comes from.
pub(super) fn guest_of(frame: &ArrayBuffer) -> Option<u32> {
    number(frame, 0)
}

/// The header and the bodies of a frame. It is to be trusted no more than the guest.
pub(super) fn open_frame(frame: &ArrayBuffer) -> Result<Frame, String> {
    let cut_short = || "a frame that is cut short".to_owned();
    let part = |at: u32, length: u32| {
        let end = at.checked_add(length).filter(|end| *end <= frame.byte_length());
        end.map(|_| Uint8Array::new_with_byte_offset_and_length(frame, at, length))
    };
    let length = number(frame, 4).ok_or_else(cut_short)?;
    if length > MAX_HEADER_BYTES {
        return Err("an oversized header".to_owned());
    }
    let header = part(8, length).ok_or_else(cut_short)?.to_vec();
    let header = String::from_utf8(header).map_err(|_| "a header that is no UTF-8")?;
    let bodies = Array::new();
    let mut at = 8 + length;
    while at < frame.byte_length() {
        let length = number(frame, at).ok_or_else(cut_short)?;
        let body = part(at + 4, length).ok_or_else(cut_short)?;
        // A copy: what becomes the user's own must not hold the whole frame.
        bodies.push(&body.slice(0, length));
        at += 4 + length;
    }
    Ok((header, bodies))
}
