//! Converts values between JavaScript and bodies.
//!
//! | Python | JavaScript |
//! |---|---|
//! | `None` | `null` (and from `undefined`) |
//! | bool, float, str | boolean, number, string |
//! | int | number; `BigInt` past 2^53 |
//! | bytes | `Uint8Array` (and from `ArrayBuffer`) |
//! | list, tuple | `Array` |
//! | dict | `Object`; `Map` when a key is no string |
//! | set, frozenset | `Set` |
//! | aware datetime | `Date` |
//! | numpy array | `{ dtype, shape, data }`; from a typed array: list |
//! | DataFrame | `{ columns, index, data }` |
//! | anything else | `{ type, repr }` |
//!
//! From JavaScript, a `Blob` also becomes a str when it is UTF-8, else bytes.

use js_sys::{Array, ArrayBuffer, BigInt, Date, JsString, Map, Number, Object, Set, Uint8Array};
use wasm_bindgen::prelude::*;
use web_sys::{Blob, TextDecoder, TextDecoderOptions};

use super::glue::{base64, bytes, class_of, describe, entries, is_plain, object};
use super::outbox::JsBody;
use sandglass_core::display::{Kind as Mime, kind as mime_kind};
use sandglass_core::error::Error;
use sandglass_core::limits::{MAX_STRUCTURED_BYTES, MAX_VALUE_DEPTH};
use sandglass_core::protocol::Encoding;
use sandglass_core::session::Encoded;
use sandglass_core::value::{Build, Writer, is_date, read, utf16_from_wtf8};

/// The length in UTF-16 units from which a text within a value is encoded by itself.
const LONG_TEXT: u32 = 1 << 14;

/// Converts a JavaScript value into a body. `what` names the value in errors.
pub(super) fn encode(value: &JsValue, what: &str, max_bytes: f64) -> Result<Encoded<JsBody>, Error> {
    match simple(value) {
        Some(encoded) => fits(encoded, what, max_bytes),
        None => {
            let mut encoder = Encoder::new(what, max_bytes, false);
            encoder.value(value)?;
            encoder.finish()
        }
    }
}

/// The bytes of a value that crosses as bytes.
pub(super) fn simple(value: &JsValue) -> Option<Encoded<JsBody>> {
    let (encoding, body) = if let Some(text) = value.dyn_ref::<JsString>() {
        (Encoding::Text, JsBody::Text(text.clone()))
    } else if let Some(blob) = value.dyn_ref::<Blob>() {
        (Encoding::File, JsBody::Blob(blob.clone()))
    } else {
        let data = as_bytes(value)?;
        (Encoding::Bytes, JsBody::Bytes(data.slice(0, data.length())))
    };
    Some(Encoded { encoding, body })
}

/// Refuses a value that is too large to cross.
pub(super) fn fits(encoded: Encoded<JsBody>, what: &str, max_bytes: f64) -> Result<Encoded<JsBody>, Error> {
    #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let size = sandglass_core::session::Body::size(&encoded.body) as f64;
    if size > max_bytes {
        return Err(Error::NotSerializable(format!(
            "{what} takes {size} bytes, maxValueSize is {max_bytes}; nothing was changed"
        )));
    }
    Ok(encoded)
}

pub(super) fn as_bytes(value: &JsValue) -> Option<Uint8Array> {
    match value.dyn_ref::<ArrayBuffer>() {
        Some(buffer) => Some(Uint8Array::new(buffer)),
        None => value.dyn_ref::<Uint8Array>().cloned(),
    }
}

/// Converts a body into a JavaScript value; a missing variable is `undefined`.
pub(super) fn decode(value: &Encoded<JsBody>) -> Result<JsValue, Error> {
    let data = match &value.body {
        JsBody::Bytes(data) | JsBody::Owned(data) => data,
        JsBody::Text(text) if value.encoding == Encoding::Text => return Ok(text.into()),
        JsBody::Text(_) | JsBody::Checkpoint(_) => {
            let what = "the value is not written as it says";
            return Err(Error::NotSerializable(what.to_owned()));
        }
        JsBody::Blob(blob) => return Ok(blob.into()),
    };
    match value.encoding {
        Encoding::None => Ok(JsValue::NULL),
        Encoding::Missing => Ok(JsValue::UNDEFINED),
        Encoding::Bytes | Encoding::File => Ok(data.into()),
        Encoding::Text => Ok(decode_text(data)),
        Encoding::Marshal | Encoding::Tagged => {
            let (size, most) = (data.length(), MAX_STRUCTURED_BYTES);
            if size > most {
                return Err(Error::NotSerializable(format!(
                    "the value takes {size} bytes, more than {most} for one that is not a str or bytes; take parts of it"
                )));
            }
            let tagged = value.encoding == Encoding::Tagged;
            // The limit counts levels as Python does; an extension value adds one.
            read(&data.to_vec(), tagged, 2 * MAX_VALUE_DEPTH, &mut JsBuilder)
                .map_err(|error| Error::NotSerializable(error.to_string()))
        }
    }
}

/// Returns true if the value is a tuple. Its JavaScript form is an array, as a list's.
pub(super) fn is_tuple(value: &Encoded<JsBody>) -> bool {
    match (&value.encoding, &value.body) {
        (Encoding::Marshal | Encoding::Tagged, JsBody::Bytes(data)) => data.length() > 0 && data.get_index(0) == b'(',
        _ => false,
    }
}

/// Converts a rich output into `{ mime, data }`.
pub(super) fn display(mime: &str, body: &JsBody) -> JsValue {
    let data = match body {
        JsBody::Bytes(data) | JsBody::Owned(data) if mime_kind(mime) == Some(Mime::Binary) => base64(data).into(),
        JsBody::Bytes(data) | JsBody::Owned(data) => decode_text(data),
        JsBody::Text(text) if mime_kind(mime) == Some(Mime::Text) => text.into(),
        // Our guests never send this. The data become empty, so that an image's data are always base64.
        JsBody::Text(_) | JsBody::Blob(_) | JsBody::Checkpoint(_) => JsValue::from_str(""),
    };
    object(&[("mime", &mime.into()), ("data", &data)]).into()
}

/// Decodes UTF-8 that may hold lone surrogates.
pub(super) fn decode_text(data: &Uint8Array) -> JsValue {
    let options: TextDecoderOptions = object(&[("fatal", &true.into()), ("ignoreBOM", &true.into())]).unchecked_into();
    let decoded = TextDecoder::new_with_label_and_options("utf-8", &options)
        .and_then(|decoder| decoder.decode_with_js_u8_array(data))
        .map(JsValue::from);
    decoded.unwrap_or_else(|_| from_utf16(&utf16_from_wtf8(&data.to_vec())))
}

fn from_utf16(utf16: &[u16]) -> JsValue {
    // In pieces: `fromCharCode` takes its input as arguments, and all arguments live on the stack.
    let pieces: Array = utf16
        .chunks(8_192)
        .map(|piece| JsValue::from(JsString::from_char_code(piece)))
        .collect();
    pieces.join("").into()
}

/// A part of a value; a deferred part takes too long to write at once, or has to be fetched first.
pub(super) enum Segment {
    /// Bytes that are marshalled already.
    Bytes(Vec<u8>),
    /// A str, to be written as UTF-8.
    Text(JsString),
    /// A file's content.
    File(Blob),
}

/// Writes values. With `defers`, long texts and files are left for later.
pub(super) struct Encoder {
    writer: Writer,
    segments: Vec<Segment>,
    defers: bool,
    path: String,
    /// The open containers around the current value, to find cycles.
    open: Vec<JsValue>,
    max_bytes: f64,
    /// A lower bound of the segments' bytes.
    deferred: f64,
    tagged: bool,
}

/// The contents of a container: items, or pairs.
pub(super) struct Children {
    kind: Kind,
    items: Array,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    List,
    Set,
    Elements,
    Map,
    Object,
}

impl Children {
    pub(super) fn len(&self) -> u32 {
        self.items.length()
    }
}

impl Encoder {
    pub(super) fn new(what: &str, max_bytes: f64, defers: bool) -> Self {
        Self {
            writer: Writer::default(),
            segments: Vec::new(),
            defers,
            path: what.to_owned(),
            open: Vec::new(),
            max_bytes,
            deferred: 0.0,
            tagged: false,
        }
    }

    /// The body, if nothing was deferred.
    fn finish(self) -> Result<Encoded<JsBody>, Error> {
        Ok(Encoded {
            encoding: self.encoding(),
            body: JsBody::Bytes(bytes(&self.writer.into_bytes())),
        })
    }

    /// The body, or the segments that are left to write.
    pub(super) fn end(mut self) -> Result<Encoded<JsBody>, (Encoding, Vec<Segment>)> {
        let encoding = self.encoding();
        self.cut();
        match &self.segments[..] {
            [Segment::Bytes(only)] => Ok(Encoded {
                encoding,
                body: JsBody::Bytes(bytes(only)),
            }),
            _ => Err((encoding, self.segments)),
        }
    }

    fn encoding(&self) -> Encoding {
        if self.tagged {
            Encoding::Tagged
        } else {
            Encoding::Marshal
        }
    }

    /// Ends a segment of bytes.
    pub(super) fn cut(&mut self) {
        let written = std::mem::take(&mut self.writer).into_bytes();
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let size = written.len() as f64;
        if size > 0.0 {
            self.deferred += size;
            self.segments.push(Segment::Bytes(written));
        }
    }

    fn value(&mut self, value: &JsValue) -> Result<(), Error> {
        if value.is_null() || value.is_undefined() {
            self.writer.none();
        } else if let Some(flag) = value.as_bool() {
            self.writer.bool(flag);
        } else if let Some(number) = value.as_f64() {
            self.number(number);
        } else if let Some(text) = value.dyn_ref::<JsString>() {
            self.text(text)?;
        } else if let Some(int) = value.dyn_ref::<BigInt>() {
            self.big_int(int)?;
        } else if let Some(data) = as_bytes(value) {
            self.check_size(f64::from(data.length()))?;
            self.writer.bytes(&data.to_vec());
        } else if let Some(blob) = value.dyn_ref::<Blob>().filter(|_| self.defers) {
            self.check_size(blob.size())?;
            self.tagged = true;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "below maxValueSize"
            )]
            self.writer.begin_file(blob.size() as usize);
            self.cut();
            self.deferred += blob.size();
            self.segments.push(Segment::File(blob.clone()));
        } else if let Some(date) = value.dyn_ref::<Date>() {
            self.tagged = true;
            let ms = date.get_time();
            if ms.is_nan() {
                return Err(self.refuse("is an invalid Date"));
            }
            if !is_date(ms) {
                return Err(
                    self.refuse("is a Date outside of the years 1 to 9999, which are all that Python's datetime has")
                );
            }
            self.writer.date(ms);
        } else {
            let children = self.open(value)?;
            for index in 0..children.len() {
                self.child(&children, index)?;
            }
            self.close(&children);
        }
        self.check_size(0.0)
    }

    fn number(&mut self, number: f64) {
        let whole = number.fract() == 0.0 && number.abs() <= Number::MAX_SAFE_INTEGER;
        if whole && !(number == 0.0 && number.is_sign_negative()) {
            #[expect(clippy::cast_possible_truncation, reason = "a safe integer")]
            self.writer.int(number as i64);
        } else {
            self.writer.float(number);
        }
    }

    fn text(&mut self, text: &JsString) -> Result<(), Error> {
        if self.defers && text.length() > LONG_TEXT {
            self.check_size(f64::from(text.length()))?;
            self.cut();
            self.deferred += f64::from(text.length());
            self.segments.push(Segment::Text(text.clone()));
        } else if super::glue::well_formed(text) {
            self.writer.text(&String::from(text));
        } else {
            self.writer.ill_formed_text(&text.iter().collect::<Vec<u16>>());
        }
        Ok(())
    }

    fn big_int(&mut self, int: &BigInt) -> Result<(), Error> {
        let text = int.to_string(16).map_err(|_| self.refuse("is a BigInt too large"))?;
        let text = String::from(text);
        match text.strip_prefix('-') {
            Some(magnitude) => self.writer.big_int(true, magnitude),
            None => self.writer.big_int(false, &text),
        }
        Ok(())
    }

    /// Begins a container. The caller then writes its children and calls [`Encoder::close`].
    pub(super) fn open(&mut self, value: &JsValue) -> Result<Children, Error> {
        if self.open.len() >= MAX_VALUE_DEPTH as usize {
            return Err(self.refuse(&format!("nests more than {MAX_VALUE_DEPTH} levels deep")));
        }
        if self.open.iter().any(|open| Object::is(open, value)) {
            return Err(self.refuse("contains itself"));
        }
        let (kind, items) = if let Some(items) = value.dyn_ref::<Array>() {
            (Kind::List, items.slice(0, items.length()))
        } else if let Some(map) = value.dyn_ref::<Map>() {
            (Kind::Map, Array::from(map))
        } else if let Some(set) = value.dyn_ref::<Set>() {
            (Kind::Set, Array::from(set))
        } else if ArrayBuffer::is_view(value) {
            (Kind::Elements, Array::from(value))
        } else if is_plain(value) {
            let entries =
                entries(value).map_err(|error| self.refuse(&format!("cannot be read: {}", describe(&error))))?;
            (Kind::Object, entries)
        } else {
            let kind = || value.js_typeof().as_string().unwrap_or_default();
            let class = class_of(value).unwrap_or_else(kind);
            return Err(self.refuse(&format!(
                "is a {class}, which Python has no counterpart for; pass plain objects, arrays, Maps, Sets, Dates, Files, Blobs, bytes, strings and numbers"
            )));
        };
        self.open.push(value.clone());
        match kind {
            Kind::List | Kind::Elements => self.writer.list(items.length() as usize),
            Kind::Set => self.writer.set(items.length() as usize),
            Kind::Map | Kind::Object => self.writer.dict(),
        }
        Ok(Children { kind, items })
    }

    pub(super) fn child(&mut self, children: &Children, index: u32) -> Result<(), Error> {
        let item = children.items.get(index);
        let pair = || {
            let pair: &Array = item.unchecked_ref();
            (pair.get(0), pair.get(1))
        };
        match children.kind {
            Kind::List => self.inner(&format!("[{index}]"), &item),
            Kind::Set => self.inner(" item", &item),
            Kind::Elements => self.inner(" element", &item),
            Kind::Map => {
                let (key, value) = pair();
                self.inner(" key", &key)?;
                let step = match key.as_string() {
                    Some(name) => format!("[{name:?}]"),
                    None => " value".to_owned(),
                };
                self.inner(&step, &value)
            }
            Kind::Object => {
                let (key, value) = pair();
                let key: JsString = key.unchecked_into();
                self.text(&key)?;
                self.inner(&format!(".{}", String::from(key)), &value)
            }
        }
    }

    pub(super) fn close(&mut self, children: &Children) {
        if matches!(children.kind, Kind::Map | Kind::Object) {
            self.writer.end_dict();
        }
        self.open.pop();
    }

    fn inner(&mut self, step: &str, value: &JsValue) -> Result<(), Error> {
        let length = self.path.len();
        self.path.push_str(step);
        self.value(value)?;
        self.path.truncate(length);
        Ok(())
    }

    fn check_size(&self, more: f64) -> Result<(), Error> {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        if self.deferred + self.writer.len() as f64 + more > self.max_bytes {
            return Err(self.refuse(&format!("takes more than {} bytes (maxValueSize)", self.max_bytes)));
        }
        Ok(())
    }

    fn refuse(&self, problem: &str) -> Error {
        let path: String = self.path.chars().take(300).collect();
        Error::NotSerializable(format!("{path} {problem}; nothing was changed"))
    }
}

struct JsBuilder;

impl Build for JsBuilder {
    type Value = JsValue;

    fn none(&mut self) -> JsValue {
        JsValue::NULL
    }

    fn bool(&mut self, value: bool) -> JsValue {
        value.into()
    }

    fn int(&mut self, value: i64) -> JsValue {
        #[expect(clippy::cast_precision_loss, reason = "a safe integer is exact")]
        if value.unsigned_abs() <= Number::MAX_SAFE_INTEGER as u64 {
            (value as f64).into()
        } else {
            value.into()
        }
    }

    fn big_int(&mut self, negative: bool, hex: &str) -> JsValue {
        // Base 16 writes only digits from 0 to f, which is a BigInt's syntax behind `0x`.
        let Ok(magnitude) = BigInt::new(&format!("0x{hex}").into()) else {
            let sign = if negative { "-" } else { "" };
            let start: String = hex.chars().take(40).collect();
            return self.opaque("int", &format!("{sign}0x{start}… ({} hexadecimal digits)", hex.len()));
        };
        if negative {
            (-&magnitude).into()
        } else {
            magnitude.into()
        }
    }

    fn float(&mut self, value: f64) -> JsValue {
        value.into()
    }

    fn text(&mut self, value: &str) -> JsValue {
        value.into()
    }

    fn ill_formed_text(&mut self, utf16: &[u16]) -> JsValue {
        from_utf16(utf16)
    }

    fn bytes(&mut self, value: &[u8]) -> JsValue {
        bytes(value).into()
    }

    fn list(&mut self, items: Vec<JsValue>) -> JsValue {
        items.into_iter().collect::<Array>().into()
    }

    fn dict(&mut self, entries: Vec<(JsValue, JsValue)>) -> JsValue {
        if entries.iter().all(|(key, _)| key.is_string()) {
            // `fromEntries` defines own properties, so that the key "__proto__" is an ordinary key.
            let pairs: Array = entries.iter().map(|(key, value)| Array::of2(key, value)).collect();
            if let Ok(object) = Object::from_entries(&pairs) {
                return object.into();
            }
        }
        let map = Map::new();
        for (key, value) in &entries {
            map.set(key, value);
        }
        map.into()
    }

    fn set(&mut self, items: Vec<JsValue>) -> JsValue {
        Set::new(&items.into_iter().collect::<Array>().into()).into()
    }

    fn date(&mut self, ms: f64) -> JsValue {
        Date::new(&ms.into()).into()
    }

    fn array(&mut self, dtype: &str, shape: &[u32], data: &[u8]) -> Option<JsValue> {
        let width = match dtype {
            "bool" | "uint8" | "int8" => 1,
            "int16" | "uint16" => 2,
            "int32" | "uint32" | "float32" => 4,
            "int64" | "uint64" | "float64" => 8,
            _ => return None,
        };
        if !data.len().is_multiple_of(width) {
            return None;
        }
        let buffer = bytes(data).buffer();
        let data: JsValue = match dtype {
            "int8" => js_sys::Int8Array::new(&buffer).into(),
            "int16" => js_sys::Int16Array::new(&buffer).into(),
            "uint16" => js_sys::Uint16Array::new(&buffer).into(),
            "int32" => js_sys::Int32Array::new(&buffer).into(),
            "uint32" => js_sys::Uint32Array::new(&buffer).into(),
            "float32" => js_sys::Float32Array::new(&buffer).into(),
            "float64" => js_sys::Float64Array::new(&buffer).into(),
            "int64" => js_sys::BigInt64Array::new(&buffer).into(),
            "uint64" => js_sys::BigUint64Array::new(&buffer).into(),
            _ => Uint8Array::new(&buffer).into(),
        };
        let shape: Array = shape.iter().map(|size| JsValue::from(*size)).collect();
        Some(object(&[("dtype", &dtype.into()), ("shape", &shape), ("data", &data)]).into())
    }

    fn frame(&mut self, columns: JsValue, index: JsValue, rows: JsValue) -> JsValue {
        object(&[("columns", &columns), ("index", &index), ("data", &rows)]).into()
    }

    fn opaque(&mut self, type_name: &str, repr: &str) -> JsValue {
        object(&[("type", &type_name.into()), ("repr", &repr.into())]).into()
    }
}
