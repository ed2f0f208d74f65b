//! Decodes a guest's messages. Nothing of them is to be trusted.

use js_sys::{Array, JsString, Uint8Array};
use sandglass_core::protocol::{Encoding, Event};
use wasm_bindgen::prelude::*;

use crate::convert::decode_text;
use crate::outbox::{JsBody, join};

/// UTF-16 units of an event's header. The longest that a guest of ours sends holds its variables' names.
const MAX_HEADER: u32 = 4 << 20;

/// Bytes of a piece of a body, at least.
const MIN_PIECE: u32 = 1 << 19;

/// Events, each with its body.
pub(super) type Events = Vec<(Event, Option<JsBody>)>;

/// The pieces of a body that is still to come.
#[derive(Default)]
pub(super) struct Parts {
    text: Option<JsString>,
    bytes: Vec<Uint8Array>,
    size: f64,
}

impl Parts {
    /// The events of a message.
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

    /// The events of a header, with these bodies.
    pub(super) fn with_bodies(&mut self, events: Vec<Event>, bodies: &Array, max_bytes: f64) -> Result<Events, String> {
        let body_of = |at| bodies.get(at).dyn_into::<Uint8Array>();
        let is_a_save = |event: &Event| matches!(event, Event::Saved { .. } | Event::Snapshot { .. });
        if events.iter().any(is_a_save) {
            return Err("a checkpoint that is no Blob, or not alone".to_owned());
        }
        if bodies.length() as usize != events.iter().filter(|event| event.has_body()).count() {
            return Err("a message with bodies that are not its events'".to_owned());
        }
        // A piece is alone in its message and of full size, so that their number is bounded with their sum.
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
                size += f64::from(body.length());
                if size > max_bytes {
                    return Err("a message larger than maxValueSize".to_owned());
                }
                Ok((event, Some(self.whole(body))))
            })
            .collect()
    }

    /// Keeps a piece of a body that is still to come. A long text is decoded a piece at a time, and never holds the page up.
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

    /// A body with the pieces that came before it.
    fn whole(&mut self, body: Uint8Array) -> JsBody {
        let Self { text, mut bytes, .. } = std::mem::take(self);
        if let Some(text) = text {
            return JsBody::Text(text.concat(&decode_text(&body)));
        }
        bytes.push(body);
        JsBody::Bytes(join(&bytes))
    }
}

/// The events of a message's header.
pub(super) fn parse(header: &str) -> Result<Vec<Event>, String> {
    let events: Vec<Event> = serde_json::from_str(header).map_err(|error| error.to_string())?;
    if events.is_empty() {
        return Err("a message without an event".to_owned());
    }
    Ok(events)
}
