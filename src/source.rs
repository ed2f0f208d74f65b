//! Values on their way to Python. A large value is written in slices of work, and a value that is not in the page's memory is fetched
//! first.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use std::future::Future;
use std::pin::Pin;

use js_sys::{Array, Date, JsString, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::{Blob, ReadableStream, Response, Url};

use super::convert::{Children, Encoder, Segment, encode, fits, simple};
use super::glue::{describe, fetch, now, object};
use super::outbox::{Cutter, JsBody, next_task};
use sandglass_core::error::Error;
use sandglass_core::protocol::Encoding;
use sandglass_core::session::Encoded;
use sandglass_core::value::Writer;

/// The longest slice of work on the page, in milliseconds.
const SLICE_MS: f64 = 8.0;
/// Bytes that go into one `Blob`, so that the page need not hold them. Making a `Blob` of 16 MiB takes longer than a frame; many small ones
/// would add up their fixed costs.
const BATCH: u32 = 2 << 20;

type Value = Result<Encoded<JsBody>, Error>;

/// A value on its way to becoming a body.
pub(super) enum Source {
    /// A value that is already written.
    Ready(Encoded<JsBody>),
    /// A value that is still to be written or fetched.
    Later(Pin<Box<dyn Future<Output = Value>>>),
}

impl Source {
    /// Begins to write a value. `what` names the value in errors. A large list or dict is written in slices of work.
    pub(super) fn of(value: &JsValue, what: &str, max_bytes: f64) -> Result<Self, Error> {
        let what = what.to_owned();
        if let Some(encoded) = simple(value) {
            return fits(encoded, &what, max_bytes).map(Self::Ready);
        }
        if let Some(content) = content(value, &what)? {
            return Ok(Self::Later(Box::pin(async move {
                let body = JsBody::Blob(content.await?);
                let encoding = Encoding::File;
                fits(Encoded { encoding, body }, &what, max_bytes)
            })));
        }
        if !value.is_object() || value.has_type::<Date>() {
            return encode(value, &what, max_bytes).map(Self::Ready);
        }
        let mut encoder = Encoder::new(&what, max_bytes, true);
        let mut container = Container {
            children: encoder.open(value)?,
            next: 0,
        };
        if container.read(&mut encoder)? {
            return match encoder.end() {
                Ok(encoded) => fits(encoded, &what, max_bytes).map(Self::Ready),
                Err((encoding, segments)) => Ok(Self::Later(Box::pin(assemble(encoding, segments, what, max_bytes)))),
            };
        }
        Ok(Self::Later(Box::pin(async move {
            loop {
                encoder.cut();
                next_task().await;
                if container.read(&mut encoder)? {
                    break;
                }
            }
            match encoder.end() {
                Ok(encoded) => fits(encoded, &what, max_bytes),
                Err((encoding, segments)) => assemble(encoding, segments, what, max_bytes).await,
            }
        })))
    }
}

/// A container that is being written.
struct Container {
    children: Children,
    next: u32,
}

impl Container {
    /// Writes children until the slice of work is over. Returns true when all are written.
    fn read(&mut self, encoder: &mut Encoder) -> Result<bool, Error> {
        let until = now() + SLICE_MS;
        while self.next < self.children.len() {
            encoder.child(&self.children, self.next)?;
            self.next += 1;
            if now() >= until {
                return Ok(false);
            }
        }
        encoder.close(&self.children);
        Ok(true)
    }
}

/// The content of a value that the browser has to fetch: of a `Response`, a `URL` or a stream.
fn content(value: &JsValue, what: &str) -> Result<Option<impl Future<Output = Result<Blob, Error>> + use<>>, Error> {
    let failed = {
        let what = what.to_owned();
        move |why: &JsValue| {
            Error::SourceFailed(format!(
                "{what} could not be read: {}; nothing was changed",
                describe(why)
            ))
        }
    };
    let promise = if let Some(url) = value.dyn_ref::<Url>() {
        Some(fetch(&url.href(), &object(&[])).map_err(|error| failed(&error))?)
    } else if let Some(stream) = value.dyn_ref::<ReadableStream>() {
        let response = Response::new_with_opt_readable_stream(Some(stream)).map_err(|error| failed(&error))?;
        Some(Promise::resolve(AsRef::<JsValue>::as_ref(&response)))
    } else {
        let response = value.dyn_ref::<Response>();
        response.map(|response| Promise::resolve(AsRef::<JsValue>::as_ref(response)))
    };
    Ok(promise.map(|promise| async move {
        let response = JsFuture::from(promise).await.map_err(|error| failed(&error))?;
        let response: Response = response.unchecked_into();
        if !response.ok() {
            let why = format!("{} answered with status {}", response.url(), response.status());
            return Err(failed(&JsValue::from_str(&why)));
        }
        let blob = response.blob().map_err(|error| failed(&error))?;
        let blob = JsFuture::from(blob).await.map_err(|error| failed(&error))?;
        Ok(blob.unchecked_into())
    }))
}

/// Puts together a value that has long texts or files in it.
async fn assemble(encoding: Encoding, segments: Vec<Segment>, what: String, max_bytes: f64) -> Value {
    let failed = |error: JsValue| Error::SourceFailed(format!("{what} could not be kept: {}", describe(&error)));
    let mut parts = Parts::new();
    let cutter = Cutter::new();
    let mut until = now() + SLICE_MS;
    for segment in segments {
        match segment {
            Segment::Bytes(written) => parts.push_written(&written).map_err(failed)?,
            Segment::File(blob) => parts.push_blob(&blob).map_err(failed)?,
            Segment::Text(text) => {
                let text = Pieces::of(&cutter, text, &mut until).await;
                let mut head = Writer::default();
                head.begin_text(text.size as usize);
                parts.push_written(&head.into_bytes()).map_err(failed)?;
                for piece in &text.pieces {
                    parts.push(piece).map_err(failed)?;
                    pause(&mut until).await;
                }
            }
        }
        pause(&mut until).await;
    }
    let body = JsBody::Blob(parts.finish().map_err(failed)?);
    fits(Encoded { encoding, body }, &what, max_bytes)
}

/// Lets the page do its waiting work when the slice of work is over.
async fn pause(until: &mut f64) {
    if now() >= *until {
        next_task().await;
        *until = now() + SLICE_MS;
    }
}

/// A text as pieces of UTF-8.
struct Pieces {
    pieces: Vec<Uint8Array>,
    size: u32,
}

impl Pieces {
    async fn of(cutter: &Cutter, text: JsString, until: &mut f64) -> Self {
        let mut pieces = Vec::new();
        let (mut start, mut size) = (0, 0);
        let length = text.length();
        let body = JsBody::Text(text);
        while start < length {
            let (piece, next) = cutter.cut(&body, start);
            size += piece.length();
            pieces.push(piece);
            start = next;
            pause(until).await;
        }
        Self { pieces, size }
    }
}

/// A `Blob` that is being put together.
struct Parts {
    finished: Array,
    /// The bytes that are in no `Blob` yet. The buffer is reused, because a new buffer for each piece would make the browser collect
    /// garbage all the time, which blocks the page.
    buffer: Uint8Array,
    filled: u32,
}

impl Parts {
    fn new() -> Self {
        Self {
            finished: Array::new(),
            buffer: Uint8Array::new_with_length(BATCH),
            filled: 0,
        }
    }

    fn push(&mut self, piece: &Uint8Array) -> Result<(), JsValue> {
        let mut start = 0;
        while start < piece.length() {
            let part = piece.subarray(start, start.saturating_add(BATCH - self.filled));
            self.buffer.set(&part, self.filled);
            start += part.length();
            self.grown_by(part.length())?;
        }
        Ok(())
    }

    fn push_written(&mut self, written: &[u8]) -> Result<(), JsValue> {
        let mut rest = written;
        while !rest.is_empty() {
            let room = self.buffer.subarray(self.filled, BATCH);
            let (part, after) = rest.split_at(rest.len().min(room.length() as usize));
            let size = u32::try_from(part.len()).unwrap_or(BATCH);
            room.subarray(0, size).copy_from(part);
            self.grown_by(size)?;
            rest = after;
        }
        Ok(())
    }

    fn grown_by(&mut self, size: u32) -> Result<(), JsValue> {
        self.filled += size;
        if self.filled < BATCH { Ok(()) } else { self.pack() }
    }

    fn push_blob(&mut self, blob: &Blob) -> Result<(), JsValue> {
        self.pack()?;
        self.finished.push(blob);
        Ok(())
    }

    fn pack(&mut self) -> Result<(), JsValue> {
        let filled = std::mem::take(&mut self.filled);
        if filled > 0 {
            let bytes = Array::of1(&self.buffer.subarray(0, filled));
            self.finished.push(Blob::new_with_u8_array_sequence(&bytes)?.as_ref());
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Blob, JsValue> {
        self.pack()?;
        Blob::new_with_blob_sequence(&self.finished)
    }
}
