//! Frames on the socket: `u32` number of the guest, `u32` length of the header, the header, and for each body its `u32` length and bytes.
//! Numbers are little-endian.
//!
//! Decisions: `docs/internals/server.md`.

use std::rc::Rc;

use gloo_timers::future::TimeoutFuture;
use js_sys::{Array, ArrayBuffer, Uint8Array};
use wasm_bindgen::prelude::*;

use super::glue::bytes;
use super::paused::RemoteCheckpoint;
use super::socket::Sender;
use sandglass_core::error::Error;
use sandglass_core::execution::Killer;
use sandglass_core::protocol::Request;

/// The time between two looks at the socket, in milliseconds. A socket has no event for data that it has sent.
const POLL_MS: u32 = 5;
/// The most bytes of a header from the server.
const MAX_HEADER_BYTES: u32 = 16 << 20;

/// News of a guest on a server.
pub(super) enum News<'a> {
    /// The guest runs. Carries the wire to it.
    Booted(Wire),
    /// A frame from the guest.
    Frame(&'a ArrayBuffer),
    /// The guest is lost, or could not be started. Names the limit that killed it, if one did.
    Lost(Error, Option<Killer>),
    /// The guest has made a paused copy of itself.
    Paused(Rc<RemoteCheckpoint>),
    /// The guest has made no copy for this checkpoint. Carries the reason.
    NotPaused(u32, String),
    /// The copy that holds this checkpoint has ended. Carries the reason.
    Gone(u32, String),
    /// The file that this request sends cannot be read. With `begun`, a part of it has been sent.
    Unreadable {
        request: &'a Request,
        begun: bool,
        why: &'a str,
    },
}

/// Hears news of a guest.
pub(super) type OnNews = Rc<dyn Fn(News<'_>)>;

/// The header of a frame, and its bodies.
pub(super) type Frame = (String, Array);

/// The wire to one guest.
#[derive(Clone)]
pub(super) struct Wire {
    sender: Sender,
    guest: u32,
    on_news: OnNews,
}

impl Wire {
    pub(super) fn new(sender: Sender, guest: u32, on_news: OnNews) -> Self {
        Self { sender, guest, on_news }
    }

    /// Sends a frame. Does nothing when the socket is closed, because its owner hears of that anyway.
    pub(super) fn send(&self, header: &str, body: Option<&Uint8Array>) -> Result<(), JsValue> {
        let length = |bytes: usize| u32::try_from(bytes).map_err(|_| JsValue::from_str("a message that is too long"));
        let mut head = Vec::with_capacity(header.len() + 12);
        head.extend(self.guest.to_le_bytes());
        head.extend(length(header.len())?.to_le_bytes());
        head.extend(header.as_bytes());
        let Some(body) = body else {
            self.sender.send(bytes(&head));
            return Ok(());
        };
        head.extend(body.length().to_le_bytes());
        let start = length(head.len())?;
        let frame = Uint8Array::new_with_length(start + body.length());
        frame.set(&bytes(&head), 0);
        frame.set(body, start);
        self.sender.send(frame);
        Ok(())
    }

    /// Waits until the socket has room, or is closed.
    pub(super) async fn has_room(&self) {
        while self.sender.is_full() {
            TimeoutFuture::new(POLL_MS).await;
        }
    }

    pub(super) fn unreadable(&self, request: &Request, begun: bool, why: &str) {
        (self.on_news)(News::Unreadable { request, begun, why });
    }
}

/// The number at a position of a frame.
fn number(frame: &ArrayBuffer, at: u32) -> Option<u32> {
    if at.checked_add(4)? > frame.byte_length() {
        return None;
    }
    let mut number = [0; 4];
    Uint8Array::new_with_byte_offset_and_length(frame, at, 4).copy_to(&mut number);
    Some(u32::from_le_bytes(number))
}

/// The number of the guest that a frame comes from.
pub(super) fn guest_of(frame: &ArrayBuffer) -> Option<u32> {
    number(frame, 0)
}

/// Reads the header and the bodies of a frame. Trust a frame no more than the guest.
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
        // A copy, so that a value of the user's does not keep the whole frame in memory.
        bodies.push(&body.slice(0, length));
        at += 4 + length;
    }
    Ok((header, bodies))
}
