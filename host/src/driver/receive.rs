//! Decodes the frames of a guest into events. Frames are not trusted: every size and count is checked here.
//!
//! A *body* is the bytes that belong to an event. A large body comes in *pieces*, each in a frame of its own, before its event.

use bytes::{Bytes, BytesMut};
use sandglass_core::protocol::Event;

use crate::frame::Frame;
use crate::value::Payload;

/// The fewest bytes of a piece. Together with the limit on all bytes, this bounds the number of pieces.
const MIN_PIECE_BYTES: usize = 1 << 19;

/// The pieces received so far of a body that is not complete yet.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pieces: Vec<Bytes>,
    bytes: usize,
}

impl Parts {
    /// Decodes a frame's events, each with its body. A piece gives no event. An error is a violation by the guest.
    pub(super) fn read(&mut self, frame: Frame, max_bytes: usize) -> Result<Vec<(Event, Option<Payload>)>, String> {
        let Frame { header, bodies } = frame;
        let events: Vec<Event> = serde_json::from_slice(&header).map_err(|error| error.to_string())?;
        if events.is_empty() {
            return Err("a message without an event".to_owned());
        }
        if bodies.len() != events.iter().filter(|event| event.has_body()).count() {
            return Err("a message with bodies that are not its events'".to_owned());
        }
        let bytes: usize = bodies.iter().map(Bytes::len).sum();
        if bytes.saturating_add(self.bytes) > max_bytes {
            return Err("a message larger than maxValueSize".to_owned());
        }
        if events.iter().any(|event| matches!(event, Event::Part { .. })) {
            if events.len() > 1 || bytes < MIN_PIECE_BYTES {
                return Err("a piece of a body that is none".to_owned());
            }
            self.bytes += bytes;
            self.pieces.extend(bodies);
            return Ok(Vec::new());
        }
        let mut bodies = bodies.into_iter();
        let with_body = |event: Event| {
            let body = if event.has_body() { bodies.next() } else { None };
            let body = body.map(|body| self.whole(body));
            (event, body)
        };
        Ok(events.into_iter().map(with_body).collect())
    }

    /// Joins a body with the pieces that came before it.
    fn whole(&mut self, body: Bytes) -> Payload {
        if self.pieces.is_empty() {
            return Payload(body);
        }
        let mut all = BytesMut::with_capacity(self.bytes + body.len());
        for piece in std::mem::take(&mut self.pieces).into_iter().chain([body]) {
            all.extend_from_slice(&piece);
        }
        self.bytes = 0;
        Payload(all.freeze())
    }
}

/// The bytes of an event that use up the guest's credit. Only output does: the guest waits for credit before it sends more.
pub(super) fn output_bytes(event: &Event, body: Option<&Payload>) -> usize {
    match event {
        Event::Output { text, .. } => text.len(),
        Event::Display { .. } => body.map_or(0, |body| body.0.len()),
        _ => 0,
    }
}
