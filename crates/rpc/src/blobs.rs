//! Large values as binary messages: pieces of numbered blobs.
//!
//! A piece is `u32` number of the blob, `u8` 1 for the last piece or 0, and its bytes.

use std::collections::HashMap;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use sandglass_host::Value;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value as Json};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::connection::Held;
use crate::messages::{BLOB_BYTES, MAX_PIECE_BYTES, MAX_REQUESTS, MIN_MESSAGE_BYTES, RpcError, WireValue};

/// The bytes before a piece's own.
const HEAD_BYTES: usize = 5;
/// The bytes of a piece that this side sends.
pub(crate) const PIECE_BYTES: usize = MIN_MESSAGE_BYTES - HEAD_BYTES;
/// The most bytes of a reference's JSON.
const MAX_REFERENCE_BYTES: usize = 1_000;
/// The key of a blob in JSON.
const KEY: &str = "$blob";

/// A reference to a blob.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    id: u32,
    #[serde(rename = "type")]
    kind: Kind,
}

/// The type of a blob: the meaning of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A str, as UTF-8.
    Str,
    /// Bytes.
    Bytes,
    /// Bytes that become a str if they are UTF-8, without a byte order mark.
    File,
    /// The JSON of a value.
    Json,
}

/// Blobs that have arrived, or are on their way.
#[derive(Debug)]
pub struct Arrived {
    blobs: HashMap<u32, Blob>,
    last: u32,
    bytes: usize,
    max_bytes: usize,
}

#[derive(Default)]
struct Blob {
    data: Vec<u8>,
    is_whole: bool,
    /// The reason for which its bytes were dropped: the message that names it hears it.
    dropped: Option<String>,
    /// The home's permits for its bytes.
    held: Vec<Held>,
}

impl fmt::Debug for Blob {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Blob({} bytes)", self.data.len())
    }
}

/// The blobs that one message names. Those that nobody takes end with it.
#[derive(Debug, Default)]
pub struct Named(HashMap<u32, Blob>);

impl Arrived {
    /// No blobs yet. Those that no message has named may take this many bytes.
    pub fn within(max_bytes: usize) -> Self {
        Self {
            blobs: HashMap::new(),
            last: 0,
            bytes: 0,
            max_bytes,
        }
    }

    /// Takes a piece, and the home's permit for it.
    ///
    /// # Errors
    /// The piece is malformed or out of order, or there are too many blobs. The connection cannot go on.
    pub fn take_piece(&mut self, piece: &[u8], held: Held) -> Result<(), String> {
        let Some((head, data)) = piece.split_first_chunk::<HEAD_BYTES>() else {
            return Err("a binary message is shorter than its head".to_owned());
        };
        if data.len() > MAX_PIECE_BYTES {
            return Err(format!("a piece of a blob has more than {MAX_PIECE_BYTES} bytes"));
        }
        let [a, b, c, d, last] = *head;
        let id = u32::from_le_bytes([a, b, c, d]);
        if !self.blobs.contains_key(&id) {
            if id <= self.last {
                return Err(format!("blob {id} was sent, named or dropped before; numbers grow"));
            }
            if self.blobs.len() >= MAX_REQUESTS {
                return Err(format!(
                    "more than {MAX_REQUESTS} blobs wait for a message that names them"
                ));
            }
            self.last = id;
        }
        let blob = self.blobs.entry(id).or_default();
        if blob.is_whole || last > 1 {
            return Err(format!(
                "a piece of blob {id} is malformed, or comes after its last one"
            ));
        }
        blob.is_whole = last == 1;
        if blob.dropped.is_none() && self.bytes.saturating_add(data.len()) > self.max_bytes {
            self.bytes -= blob.data.len();
            let most = self.max_bytes;
            let why = format!("blobs that no message has named may take {most} bytes (--max-body-mib of a server)");
            (blob.data, blob.held, blob.dropped) = (Vec::new(), Vec::new(), Some(why));
        }
        if blob.dropped.is_none() {
            self.bytes += data.len();
            blob.data.extend_from_slice(data);
            blob.held.push(held);
        }
        Ok(())
    }

    /// Forgets a blob, which may not be whole. Its later pieces are refused.
    pub fn forget(&mut self, id: u32) {
        if let Some(blob) = self.blobs.remove(&id) {
            self.bytes = self.bytes.saturating_sub(blob.data.len());
        }
    }

    /// Takes the blobs that a message's parameters or result name.
    pub fn named_in(&mut self, parts: &RawValue) -> Named {
        let text = parts.get();
        if self.blobs.is_empty() || !text.contains(KEY) {
            return Named::default();
        }
        let fields: HashMap<String, Box<RawValue>> = serde_json::from_str(text).unwrap_or_default();
        let ids = fields
            .values()
            .filter_map(|value| reference_of(value.get()).ok().flatten());
        let blobs = ids.filter_map(|Reference { id, .. }| {
            let blob = self.blobs.remove(&id)?;
            self.bytes = self.bytes.saturating_sub(blob.data.len());
            Some((id, blob))
        });
        Named(blobs.collect())
    }
}

impl Named {
    /// The value that JSON or its blob holds. `what` names it in errors.
    ///
    /// # Errors
    /// [`RpcError::InvalidParams`] for a value or blob that is not what it says, [`RpcError::TooMuch`] for a blob that is too large.
    pub fn value(&mut self, what: &str, json: &RawValue) -> Result<Value, RpcError> {
        let problem = |error| RpcError::InvalidParams(format!("{what}: {KEY}: {error}"));
        match reference_of(json.get()).map_err(problem)? {
            Some(Reference { id, kind }) => self.take(what, id, kind),
            None => from_json(what, json.get()),
        }
    }

    fn take(&mut self, what: &str, id: u32, kind: Kind) -> Result<Value, RpcError> {
        let Some(blob) = self.0.remove(&id).filter(|blob| blob.is_whole) else {
            let problem = format!("{what}: blob {id} has not arrived as a whole, or was named before");
            return Err(RpcError::InvalidParams(problem));
        };
        if let Some(why) = blob.dropped {
            return Err(RpcError::TooMuch(format!("{what}: blob {id} is too large: {why}")));
        }
        let text = |data| {
            let problem = format!("{what}: blob {id} is not UTF-8");
            String::from_utf8(data).map_err(|_| RpcError::InvalidParams(problem))
        };
        Ok(match kind {
            Kind::Bytes => Value::Bytes(blob.data),
            Kind::Str => Value::Str(text(blob.data)?),
            Kind::Json => from_json(what, &text(blob.data)?)?,
            Kind::File => match String::from_utf8(blob.data) {
                Ok(text) => Value::Str(match text.strip_prefix('\u{feff}') {
                    Some(rest) => rest.to_owned(),
                    None => text,
                }),
                Err(error) => Value::Bytes(error.into_bytes()),
            },
        })
    }
}

/// The reference that JSON is, if it is an object with the key of references alone.
fn reference_of(json: &str) -> Result<Option<Reference>, serde_json::Error> {
    // Most values are none.
    if !json.starts_with('{') || json.len() > MAX_REFERENCE_BYTES || !json.contains(KEY) {
        return Ok(None);
    }
    let object: Map<String, Json> = serde_json::from_str(json)?;
    match (object.len(), object.get(KEY)) {
        (1, Some(reference)) => Reference::deserialize(reference).map(Some),
        _ => Ok(None),
    }
}

fn from_json(what: &str, text: &str) -> Result<Value, RpcError> {
    aside(text.len(), || {
        let json = serde_json::from_str(text).map_err(|error| RpcError::InvalidParams(format!("{what}: {error}")))?;
        Value::from_json(json).map_err(|error| RpcError::InvalidParams(format!("{what}: {error}")))
    })
}

/// Does work on this many bytes of JSON. Other tasks of this thread go on meanwhile if the work is long.
pub fn aside<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    let has_threads = Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread);
    if bytes > BLOB_BYTES && has_threads {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// The JSON of a value, or the bytes for a blob if it is large.
#[derive(Debug)]
pub enum Form {
    /// The JSON.
    Json(WireValue),
    /// The type and bytes of a blob.
    Blob(Kind, Bytes),
}

/// The form in which a value is sent.
pub fn form(value: Value) -> Form {
    match value {
        Value::Str(text) if text.len() > BLOB_BYTES => Form::Blob(Kind::Str, text.into()),
        Value::Bytes(bytes) if bytes.len() > BLOB_BYTES / 4 * 3 => Form::Blob(Kind::Bytes, bytes.into()),
        value => json_form(value.to_json().to_string()),
    }
}

/// The form in which the text of JSON is sent.
pub fn json_form(text: String) -> Form {
    if text.len() > BLOB_BYTES {
        return Form::Blob(Kind::Json, text.into());
    }
    Form::Json(RawValue::from_string(text).unwrap_or_default())
}

/// The reference to a blob, as a value.
pub fn reference(id: u32, kind: Kind) -> WireValue {
    to_raw_value(&HashMap::from([(KEY, Reference { id, kind })])).unwrap_or_default()
}

/// The binary messages of a blob. There is one even for a blob without bytes.
pub fn pieces(id: u32, data: &Bytes) -> impl Iterator<Item = Bytes> {
    let count = data.len().div_ceil(PIECE_BYTES).max(1);
    (0..count).map(move |at| {
        let piece = data.slice(at * PIECE_BYTES..data.len().min((at + 1) * PIECE_BYTES));
        let mut message = BytesMut::with_capacity(HEAD_BYTES + piece.len());
        message.put_u32_le(id);
        message.put_u8(u8::from(at + 1 == count));
        message.put(piece);
        message.freeze()
    })
}
