//! Splits a long body for a page into pieces. A browser that receives a large message does nothing else meanwhile.

use axum::body::Bytes;
use sandglass_core::protocol::{Encoding, Event};

use sandglass_host::frame::Frame;

/// The largest piece, in bytes. Pages refuse pieces below half of this size.
const PIECE_BYTES: usize = 1 << 20;
/// Most bytes of one UTF-8 character.
const CHAR_BYTES: usize = 4;

/// The messages that carry a guest's frame. Only the body of a single event is split. In other frames, only a hostile guest
/// sends long bodies.
pub(super) fn messages(number: u32, events: &[Event], frame: &Frame) -> Vec<Bytes> {
    let mut messages = Vec::new();
    let mut rest = frame.clone();
    if let ([event], [body]) = (events, &mut rest.bodies[..])
        && let Some(encoding) = encoding(event)
        && let Ok(header) = serde_json::to_vec(&[Event::Part { encoding }])
    {
        let header = Bytes::from(header);
        while body.len() > PIECE_BYTES {
            let piece = Frame {
                header: header.clone(),
                bodies: vec![body.split_to(piece_end(body, encoding))],
            };
            messages.push(message(number, &piece));
        }
    }
    messages.push(message(number, &rest));
    messages
}

fn message(number: u32, frame: &Frame) -> Bytes {
    let mut message = number.to_le_bytes().to_vec();
    message.extend_from_slice(&frame.to_bytes());
    message.into()
}

/// The encoding of an event's body, if the body can be split.
fn encoding(event: &Event) -> Option<Encoding> {
    match event {
        Event::Value { encoding, .. } | Event::HostCall { encoding, .. } | Event::Executed { encoding, .. } => {
            Some(*encoding)
        }
        _ => None,
    }
}

/// The end of a piece in a longer body. Pages decode text piece by piece, so a piece ends between two characters.
fn piece_end(body: &[u8], encoding: Encoding) -> usize {
    let begins_here = |end: &usize| body.get(*end).is_none_or(|byte| byte & 0xc0 != 0x80);
    match encoding {
        Encoding::Text => (PIECE_BYTES - CHAR_BYTES..=PIECE_BYTES)
            .rev()
            .find(begins_here)
            .unwrap_or(PIECE_BYTES),
        _ => PIECE_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(event: &Event, body: &[u8]) -> Vec<Frame> {
        let events = [event.clone()];
        let frame = Frame {
            header: serde_json::to_vec(&events).unwrap().into(),
            bodies: vec![Bytes::copy_from_slice(body)],
        };
        let messages = messages(7, &events, &frame);
        let opened = messages.into_iter().map(|mut message| {
            assert_eq!(message.split_to(4)[..], 7_u32.to_le_bytes());
            Frame::parse(message).unwrap()
        });
        opened.collect()
    }

    fn value(encoding: Encoding) -> Event {
        Event::Value { exchange: 3, encoding }
    }

    #[test]
    fn a_short_body_travels_with_its_event() {
        let frames = cut(&value(Encoding::Bytes), &vec![1; PIECE_BYTES]);
        assert_eq!(frames.len(), 1);
        assert_eq!(frames[0].bodies[0].len(), PIECE_BYTES);
    }

    #[test]
    fn pieces_add_up_and_the_event_comes_last() {
        for encoding in [Encoding::Bytes, Encoding::Text, Encoding::Marshal] {
            let text = "aé€😀".repeat(400_000);
            let frames = cut(&value(encoding), text.as_bytes());
            assert_eq!(frames.len(), text.len() / PIECE_BYTES + 1);
            let (last, pieces) = frames.split_last().unwrap();
            let whole: Vec<u8> = frames.iter().flat_map(|frame| frame.bodies[0].to_vec()).collect();
            assert_eq!(whole, text.as_bytes());
            assert_eq!(last.header, serde_json::to_vec(&[value(encoding)]).unwrap());
            for piece in pieces {
                assert_eq!(piece.header, serde_json::to_vec(&[Event::Part { encoding }]).unwrap());
                assert!((PIECE_BYTES - CHAR_BYTES..=PIECE_BYTES).contains(&piece.bodies[0].len()));
                assert!(encoding != Encoding::Text || std::str::from_utf8(&piece.bodies[0]).is_ok());
            }
        }
    }

    #[test]
    fn what_is_no_text_is_cut_as_well() {
        let frames = cut(&value(Encoding::Text), &vec![0x80; 3 * PIECE_BYTES]);
        assert_eq!(frames.len(), 3);
    }

    #[test]
    fn a_display_stays_whole() {
        let display = Event::Display {
            exchange: 3,
            mime: "image/png".to_owned(),
            is_result: false,
        };
        assert_eq!(cut(&display, &vec![0; 3 * PIECE_BYTES]).len(), 1);
    }
}
