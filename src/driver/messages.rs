//! Decodes the messages of a guest into events. Messages are not trusted: every type, size and count is checked here.
//!
//! A message has a *header*, the JSON of its events, and the *bodies* of these events. A large body comes in *pieces*, each in a message of
//! its own, before its event.

use js_sys::{Array, JsString, Uint8Array};
use sandglass_core::protocol::{Encoding, Event};
use wasm_bindgen::prelude::*;

use crate::convert::decode_text;
use crate::outbox::{JsBody, join};

/// The most UTF-16 units of a header. The longest header of an honest guest holds the names of its variables.
const MAX_HEADER: u32 = 4 << 20;

/// The most bytes of notes that do not count as a value.
const MAX_NOTES: u32 = 1 << 20;

/// The fewest bytes of a piece. Together with the limit on all bytes, this bounds the number of pieces.
const MIN_PIECE: u32 = 1 << 19;

/// Events, each with its body if it has one.
pub(super) type Events = Vec<(Event, Option<JsBody>)>;

/// The pieces received so far of a body that is not complete yet.
#[derive(Default)]
pub(super) struct Parts {
    /// The decoded pieces, if the body is text.
    text: Option<JsString>,
    /// The pieces, if the body is bytes.
    bytes: Vec<Uint8Array>,
    /// The bytes of all pieces.
    size: f64,
}

impl Parts {
    /// Decodes a message's events. A piece gives no event. An error is a violation by the guest.
    pub(super) fn read(&mut self, data: &JsValue, max_bytes: f64) -> Result<Events, String> {
        let message: &Array = data.dyn_ref().ok_or("a message that is no array")?;
        let header: JsString = message.get(0).dyn_into().map_err(|_| "a header that is no text")?;
        if header.length() > MAX_HEADER {
            return Err("an oversized header".to_owned());
        }
        let events = parse(&String::from(header))?;
        match &events[..] {
            [Event::Snapshot { .. }] => return Ok(events.into_iter().map(|event| (event, None)).collect()),
            [saved @ Event::Saved { .. }] => {
                let blob = message.get(1).dyn_into().map_err(|_| "a checkpoint that is no Blob")?;
                return Ok(vec![(saved.clone(), Some(JsBody::Blob(blob)))]);
            }
            _ => {}
        }
        self.with_bodies(events, &message.slice(1, message.length()), max_bytes)
    }

    /// Gives the events of a header their bodies. A checkpoint may not be among them.
    pub(super) fn with_bodies(&mut self, events: Vec<Event>, bodies: &Array, max_bytes: f64) -> Result<Events, String> {
        let body_of = |at| bodies.get(at).dyn_into::<Uint8Array>();
        let is_a_save = |event: &Event| matches!(event, Event::Saved { .. } | Event::Snapshot { .. });
        if events.iter().any(is_a_save) {
            return Err("a checkpoint that is no Blob, or not alone".to_owned());
        }
        if bodies.length() as usize != events.iter().filter(|event| event.has_body()).count() {
            return Err("a message with bodies that are not its events'".to_owned());
        }
        // A piece must be alone in its message and of full size. So the limit on all bytes bounds the number of pieces.
        if let Some(part) = events.iter().position(|event| matches!(event, Event::Part { .. })) {
            let body = body_of(0).map_err(|_| "a body that is not bytes")?;
            if events.len() > 1 || body.length() < MIN_PIECE {
                return Err("a piece of a body that is none".to_owned());
            }
            return self.keep(&events[part], body, max_bytes);
        }
        let mut next = 0;
        let mut size = self.size;
        events
            .into_iter()
            .map(|event| {
                if !event.has_body() {
                    return Ok((event, None));
                }
                let body = body_of(next).map_err(|_| "a body that is not bytes")?;
                next += 1;
                let most_notes = f64::from(MAX_NOTES);
                let is_small_note = matches!(event, Event::Noted { .. }) && f64::from(body.length()) <= most_notes;
                size += if is_small_note { 0.0 } else { f64::from(body.length()) };
                if size > max_bytes {
                    return Err("a message larger than maxValueSize".to_owned());
                }
                Ok((event, Some(self.whole(body))))
            })
            .collect()
    }

    /// Keeps a piece. A text is decoded piece by piece, so that a long text never holds the page up.
    fn keep(&mut self, event: &Event, body: Uint8Array, max_bytes: f64) -> Result<Events, String> {
        self.size += f64::from(body.length());
        if self.size > max_bytes {
            return Err("a body larger than maxValueSize".to_owned());
        }
        match event {
            Event::Part {
                encoding: Encoding::Text,
            } => {
                let so_far = self.text.take().unwrap_or_else(|| "".into());
                self.text = Some(so_far.concat(&decode_text(&body)));
            }
            _ => self.bytes.push(body),
        }
        Ok(Vec::new())
    }

    /// Joins a body with the pieces that came before it.
    fn whole(&mut self, body: Uint8Array) -> JsBody {
        let Self { text, mut bytes, .. } = std::mem::take(self);
        if let Some(text) = text {
            return JsBody::Text(text.concat(&decode_text(&body)));
        }
        bytes.push(body);
        JsBody::Bytes(join(&bytes))
    }
}

/// Parses a header. There must be at least one event.
pub(super) fn parse(header: &str) -> Result<Vec<Event>, String> {
    let events: Vec<Event> = serde_json::from_str(header).map_err(|error| error.to_string())?;
    if events.is_empty() {
        return Err("a message without an event".to_owned());
    }
    Ok(events)
}
