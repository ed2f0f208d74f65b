//! Python values in Rust, with their form as bodies and as JSON.
//!
//! | Python | [`Value`] | JSON |
//! |---|---|---|
//! | `None`, bool, str | `None`, `Bool`, `Str` | `null`, a boolean, a string |
//! | str with lone surrogates | `IllFormedStr` | `{"$str": JSON}`: the string's JSON, for a parser that keeps lone surrogates |
//! | int | `Int`; `BigInt` past 64 bits | a number; `{"$bigint": "…"}` past 2^53 |
//! | float | `Float` | a number with a point or an exponent; `{"$float": "nan"}`, `"inf"` and `"-inf"` |
//! | bytes | `Bytes` | `{"$bytes": base64}` |
//! | list, tuple | `List`, `Tuple` | an array |
//! | dict with str keys | `Dict` | an object |
//! | any other dict | `Dict` | `{"$map": [[key, value], …]}` |
//! | set, frozenset | `Set` | `{"$set": […]}` |
//! | aware datetime | `DateTime` | `{"$date": milliseconds since 1970}` |
//! | numpy array | `Array` | `{"$array": {"dtype", "shape", "data": base64}}`, little-endian, in C order |
//! | DataFrame | `Table` | `{"$table": {"columns", "index", "data"}}` |
//! | anything else | `Other` | `{"$other": {"type", "repr"}}` |
//!
//! A dict whose only key is a str that begins with `$` is written as `$map`, so it cannot be confused with these forms.

use std::fmt::{self, Write as _};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::limits::{MAX_STRUCTURED_BYTES, MAX_VALUE_DEPTH};
use sandglass_core::protocol::Encoding;
use sandglass_core::session::{Body, Encoded};
use sandglass_core::value::{
    Build, MAX_DECIMAL_HEX_DIGITS, Writer, escaped, int_text, read, utf16_from_wtf8, wtf8_from_utf16,
};
use serde::de::{Deserialize, Deserializer, Visitor};
use serde_json::{Map, Number, json};

/// A Python value outside of Python.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Value {
    /// `None`.
    #[default]
    None,
    /// A bool.
    Bool(bool),
    /// An int of 64 bits.
    Int(i64),
    /// An int beyond 64 bits, in decimal; in hexadecimal (`0x…`, `-0x…`) above a few thousand digits.
    BigInt(String),
    /// A float.
    Float(f64),
    /// A str.
    Str(String),
    /// A str with lone surrogates, as UTF-16. Two surrogates that form a pair become one character.
    IllFormedStr(Vec<u16>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A list.
    List(Vec<Self>),
    /// A tuple.
    Tuple(Vec<Self>),
    /// A dict, in order.
    Dict(Vec<(Self, Self)>),
    /// A set or frozenset.
    Set(Vec<Self>),
    /// A point in time: milliseconds since 1970, UTC.
    DateTime(f64),
    /// A numpy array. Python receives one only where numpy is installed.
    Array {
        /// numpy's name of the element type.
        dtype: String,
        /// The dimensions.
        shape: Vec<u32>,
        /// The elements, little-endian, in C order.
        data: Vec<u8>,
    },
    /// A pandas DataFrame. Python receives one only where pandas is installed.
    Table {
        /// The names of the columns.
        columns: Vec<Self>,
        /// The index.
        index: Vec<Self>,
        /// The rows.
        data: Vec<Vec<Self>>,
    },
    /// A value of any other type. Python can send one, but not receive one.
    Other {
        /// The name of the value's type.
        type_name: String,
        /// The value's `repr`.
        repr: String,
    },
}

/// The bytes of a body, shared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl Body for Payload {
    fn size(&self) -> usize {
        self.0.len()
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn joined(parts: &[&Self]) -> Self {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.0.iter().copied()).collect();
        Self(bytes.into())
    }

    fn first(&self, most: usize) -> Vec<u8> {
        self.0.iter().copied().take(most).collect()
    }
}

/// The largest int that is a number in JSON, which is JavaScript's largest safe integer.
const MAX_JSON_INT: i64 = (1 << 53) - 1;

impl Value {
    /// Encodes the value as a body. Errors name it as `what`.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] for a value that Python cannot receive, nests too deeply, or has more than `max_bytes`.
    pub fn encode(self, what: &str, max_bytes: f64) -> Result<Encoded<Payload>, Error> {
        let (encoding, body) = match self {
            Self::None => (Encoding::None, Vec::new()),
            Self::Str(text) => (Encoding::Text, text.into_bytes()),
            Self::IllFormedStr(utf16) => (Encoding::Text, wtf8_from_utf16(&utf16)),
            Self::Bytes(bytes) => (Encoding::Bytes, bytes),
            value => {
                let mut encoder = Encoder {
                    writer: Writer::default(),
                    what,
                    tagged: false,
                };
                encoder.value(&value, MAX_VALUE_DEPTH)?;
                let encoding = if encoder.tagged {
                    Encoding::Tagged
                } else {
                    Encoding::Marshal
                };
                (encoding, encoder.writer.into_bytes())
            }
        };
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let size = body.len() as f64;
        if size > max_bytes {
            return Err(Error::NotSerializable(format!(
                "{what} takes {size} bytes, maxValueSize is {max_bytes}; nothing was changed"
            )));
        }
        let body = Payload(body.into());
        Ok(Encoded { encoding, body })
    }

    /// Decodes a body from a guest; `None` when there is no such variable.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when the body is malformed or too large.
    pub fn decode(encoded: &Encoded<Payload>) -> Result<Option<Self>, Error> {
        let body = &encoded.body.0;
        Ok(Some(match encoded.encoding {
            Encoding::Missing => return Ok(None),
            Encoding::None => Self::None,
            Encoding::Bytes | Encoding::File => Self::Bytes(body.to_vec()),
            Encoding::Text => match std::str::from_utf8(body) {
                Ok(text) => Self::Str(text.to_owned()),
                Err(_) => text_of(&utf16_from_wtf8(body)),
            },
            Encoding::Marshal | Encoding::Tagged => {
                let (size, most) = (body.len(), MAX_STRUCTURED_BYTES);
                if size > most as usize {
                    return Err(Error::NotSerializable(format!(
                        "the value takes {size} bytes, more than {most} for one that is not a str or bytes; take parts of it"
                    )));
                }
                let tagged = encoded.encoding == Encoding::Tagged;
                // The guest counts levels as Python does, and an extension type adds one.
                read(body, tagged, 2 * MAX_VALUE_DEPTH, &mut Builder)
                    .map_err(|error| Error::NotSerializable(error.to_string()))?
            }
        }))
    }

    /// The value as JSON; see the [module](self).
    pub fn to_json(&self) -> serde_json::Value {
        let all = |items: &[Self]| items.iter().map(Self::to_json).collect::<Vec<_>>();
        match self {
            Self::None => serde_json::Value::Null,
            Self::Bool(value) => json!(value),
            Self::Int(value) if (-MAX_JSON_INT..=MAX_JSON_INT).contains(value) => json!(value),
            Self::Int(value) => json!({ "$bigint": value.to_string() }),
            Self::BigInt(digits) => json!({ "$bigint": digits }),
            Self::Float(value) => Number::from_f64(*value).map_or_else(
                || {
                    let name = match value {
                        value if value.is_nan() => "nan",
                        value if *value > 0.0 => "inf",
                        _ => "-inf",
                    };
                    json!({ "$float": name })
                },
                serde_json::Value::Number,
            ),
            Self::Str(text) => json!(text),
            Self::IllFormedStr(utf16) => json!({ "$str": json_of(utf16) }),
            Self::Bytes(bytes) => json!({ "$bytes": BASE64.encode(bytes) }),
            Self::List(items) | Self::Tuple(items) => json!(all(items)),
            Self::Set(items) => json!({ "$set": all(items) }),
            Self::DateTime(ms) => json!({ "$date": ms }),
            Self::Dict(entries) => object(entries).unwrap_or_else(|| {
                let pairs = entries
                    .iter()
                    .map(|(key, value)| json!([key.to_json(), value.to_json()]));
                json!({ "$map": pairs.collect::<Vec<_>>() })
            }),
            Self::Array { dtype, shape, data } => {
                json!({ "$array": { "dtype": dtype, "shape": shape, "data": BASE64.encode(data) } })
            }
            Self::Table { columns, index, data } => {
                let rows: Vec<_> = data.iter().map(|row| all(row)).collect();
                json!({ "$table": { "columns": all(columns), "index": all(index), "data": rows } })
            }
            Self::Other { type_name, repr } => json!({ "$other": { "type": type_name, "repr": repr } }),
        }
    }

    /// The value of JSON; see the [module](self). An object with another single key is a dict.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] for a special form with invalid content.
    pub fn from_json(json: serde_json::Value) -> Result<Self, Error> {
        let all = |items: Vec<serde_json::Value>| items.into_iter().map(Self::from_json).collect::<Result<Vec<_>, _>>();
        Ok(match json {
            serde_json::Value::Null => Self::None,
            serde_json::Value::Bool(value) => Self::Bool(value),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(value) => Self::Int(value),
                None if number.is_u64() => Self::BigInt(number.to_string()),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Self::Str(text),
            serde_json::Value::Array(items) => Self::List(all(items)?),
            serde_json::Value::Object(mut entries) => {
                let only = match (entries.len(), entries.keys().next()) {
                    (1, Some(key)) if key.starts_with('$') => Some(key.clone()),
                    _ => None,
                };
                if let Some(kind) = only
                    && let Some(content) = entries.remove(&kind)
                {
                    return special(&kind, content);
                }
                let entries = entries.into_iter();
                let entries = entries.map(|(key, value)| Ok((Self::Str(key), Self::from_json(value)?)));
                Self::Dict(entries.collect::<Result<_, Error>>()?)
            }
        })
    }

    /// The value with each str readable: lone surrogates are written as Python escapes them.
    #[must_use]
    pub fn readable(self) -> Self {
        let all = |items: Vec<Self>| items.into_iter().map(Self::readable).collect();
        match self {
            Self::IllFormedStr(utf16) => Self::Str(escaped(&utf16)),
            Self::List(items) => Self::List(all(items)),
            Self::Tuple(items) => Self::Tuple(all(items)),
            Self::Dict(entries) => {
                let entries = entries.into_iter();
                Self::Dict(entries.map(|(key, value)| (key.readable(), value.readable())).collect())
            }
            other => other,
        }
    }

    /// The value as text for people: a str unchanged, other values as JSON.
    pub fn to_text(&self) -> String {
        match self {
            Self::Str(text) => text.clone(),
            Self::IllFormedStr(utf16) => escaped(utf16),
            other => other.to_json().to_string(),
        }
    }

    /// The text of a str.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    /// An int of 64 bits.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The dict's value for a str key.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Dict(entries) => entries
                .iter()
                .find_map(|(own, value)| (own.as_str() == Some(key)).then_some(value)),
            _ => None,
        }
    }
}

/// A dict as a JSON object, if its keys allow that.
fn object(entries: &[(Value, Value)]) -> Option<serde_json::Value> {
    let mut object = Map::new();
    for (key, value) in entries {
        object.insert(key.as_str()?.to_owned(), value.to_json());
    }
    let is_special = object.len() == 1 && object.keys().all(|key| key.starts_with('$'));
    (!is_special && object.len() == entries.len()).then_some(serde_json::Value::Object(object))
}

/// The value as a key or an item of a set. A list was a tuple, because Python cannot hash lists.
fn hashable(value: Value) -> Value {
    match value {
        Value::List(items) => Value::Tuple(items.into_iter().map(hashable).collect()),
        value => value,
    }
}

/// The value of the special form `{kind: content}`.
fn special(kind: &str, content: serde_json::Value) -> Result<Value, Error> {
    let wrong = |what: &str| Error::NotSerializable(format!("{{\"{kind}\": …}} needs {what}; nothing was done"));
    let list = |content: serde_json::Value| match Value::from_json(content)? {
        Value::List(items) => Ok(items),
        _ => Err(wrong("lists")),
    };
    let text = |content: Option<&serde_json::Value>| {
        let text = content.and_then(serde_json::Value::as_str);
        text.map(str::to_owned).ok_or_else(|| wrong("texts"))
    };
    let binary = |content: Option<&serde_json::Value>| {
        let text = content.and_then(serde_json::Value::as_str);
        text.and_then(|text| BASE64.decode(text).ok())
            .ok_or_else(|| wrong("base64"))
    };
    Ok(match kind {
        "$bytes" => Value::Bytes(binary(Some(&content))?),
        "$str" => {
            let json = text(Some(&content))?;
            let Wtf8(wtf8) = serde_json::from_str(&json).map_err(|_| wrong("the JSON of a string"))?;
            text_of(&utf16_from_wtf8(&wtf8))
        }
        "$bigint" => {
            let digits = text(Some(&content))?;
            hex_of(&digits).ok_or_else(|| wrong("an integer as text"))?;
            digits.parse().map_or(Value::BigInt(digits), Value::Int)
        }
        "$float" => match content.as_str() {
            Some("nan") => Value::Float(f64::NAN),
            Some("inf") => Value::Float(f64::INFINITY),
            Some("-inf") => Value::Float(f64::NEG_INFINITY),
            _ => return Err(wrong("\"nan\", \"inf\" or \"-inf\"")),
        },
        "$set" => Value::Set(list(content)?.into_iter().map(hashable).collect()),
        "$date" => Value::DateTime(content.as_f64().ok_or_else(|| wrong("milliseconds since 1970"))?),
        "$map" => {
            let pairs = list(content)?.into_iter().map(|pair| match pair {
                Value::List(pair) => <[Value; 2]>::try_from(pair)
                    .map(|[key, value]| (hashable(key), value))
                    .map_err(|_| wrong("pairs")),
                _ => Err(wrong("pairs")),
            });
            Value::Dict(pairs.collect::<Result<_, _>>()?)
        }
        "$array" => Value::Array {
            dtype: text(content.get("dtype"))?,
            shape: serde_json::from_value(content.get("shape").cloned().unwrap_or_default())
                .map_err(|_| wrong("a shape"))?,
            data: binary(content.get("data"))?,
        },
        "$table" => {
            let part = |name: &str| list(content.get(name).cloned().unwrap_or_default());
            let rows = part("data")?.into_iter().map(|row| match row {
                Value::List(row) => Ok(row),
                _ => Err(wrong("rows")),
            });
            Value::Table {
                columns: part("columns")?,
                index: part("index")?,
                data: rows.collect::<Result<_, _>>()?,
            }
        }
        "$other" => Value::Other {
            type_name: text(content.get("type"))?,
            repr: text(content.get("repr"))?,
        },
        _ => Value::Dict(vec![(Value::Str(kind.to_owned()), Value::from_json(content)?)]),
    })
}

struct Encoder<'a> {
    writer: Writer,
    what: &'a str,
    tagged: bool,
}

impl Encoder<'_> {
    fn value(&mut self, value: &Value, depth: u32) -> Result<(), Error> {
        let what = self.what;
        let refuse = |why: &str| Err(Error::NotSerializable(format!("{what} {why}; nothing was changed")));
        let Some(inner) = depth.checked_sub(1) else {
            return refuse(&format!("nests more than {MAX_VALUE_DEPTH} levels deep"));
        };
        match value {
            Value::None => self.writer.none(),
            Value::Bool(value) => self.writer.bool(*value),
            Value::Int(value) => self.writer.int(*value),
            Value::BigInt(digits) => match hex_of(digits) {
                Some((negative, hex)) => self.writer.big_int(negative, &hex),
                None => return refuse(&format!("holds \"{digits}\", which is no integer")),
            },
            Value::Float(value) => self.writer.float(*value),
            Value::Str(text) => self.writer.text(text),
            Value::IllFormedStr(utf16) => self.writer.ill_formed_text(utf16),
            Value::Bytes(bytes) => self.writer.bytes(bytes),
            Value::List(items) => {
                self.writer.list(items.len());
                self.all(items, inner)?;
            }
            Value::Tuple(items) => {
                self.writer.tuple(items.len());
                self.all(items, inner)?;
            }
            Value::Set(items) => {
                self.writer.set(items.len());
                self.all(items, inner)?;
            }
            Value::Dict(entries) => {
                self.writer.dict();
                for (key, value) in entries {
                    self.value(key, inner)?;
                    self.value(value, inner)?;
                }
                self.writer.end_dict();
            }
            Value::DateTime(ms) if !sandglass_core::value::is_date(*ms) => {
                return refuse("holds a date outside of the years 1 to 9999, which are all that Python's datetime has");
            }
            Value::DateTime(ms) => {
                self.tagged = true;
                self.writer.date(*ms);
            }
            Value::Array { dtype, shape, data } => {
                self.extension("ndarray", 3);
                self.writer.text(dtype);
                self.writer.list(shape.len());
                for length in shape {
                    self.writer.int(i64::from(*length));
                }
                self.writer.bytes(data);
            }
            Value::Table { columns, index, data } => {
                self.extension("frame", 3);
                for part in [columns, index] {
                    self.writer.list(part.len());
                    self.all(part, inner)?;
                }
                self.writer.list(data.len());
                for row in data {
                    self.writer.list(row.len());
                    self.all(row, inner)?;
                }
            }
            Value::Other { type_name, .. } => {
                return refuse(&format!("holds a {type_name} of which only the text is known"));
            }
        }
        Ok(())
    }

    fn extension(&mut self, kind: &str, payloads: usize) {
        self.tagged = true;
        self.writer.extension(kind, payloads);
    }

    fn all(&mut self, items: &[Value], depth: u32) -> Result<(), Error> {
        items.iter().try_for_each(|item| self.value(item, depth))
    }
}

struct Builder;

impl Build for Builder {
    type Value = Value;

    fn none(&mut self) -> Value {
        Value::None
    }

    fn bool(&mut self, value: bool) -> Value {
        Value::Bool(value)
    }

    fn int(&mut self, value: i64) -> Value {
        Value::Int(value)
    }

    fn big_int(&mut self, negative: bool, hex: &str) -> Value {
        let sign = if negative { "-" } else { "" };
        if let Ok(value) = i64::from_str_radix(&format!("{sign}{hex}"), 16) {
            return Value::Int(value);
        }
        Value::BigInt(int_text(negative, hex))
    }

    fn float(&mut self, value: f64) -> Value {
        Value::Float(value)
    }

    fn text(&mut self, value: &str) -> Value {
        Value::Str(value.to_owned())
    }

    fn ill_formed_text(&mut self, utf16: &[u16]) -> Value {
        text_of(utf16)
    }

    fn bytes(&mut self, value: &[u8]) -> Value {
        Value::Bytes(value.to_vec())
    }

    fn list(&mut self, items: Vec<Value>) -> Value {
        Value::List(items)
    }

    fn tuple(&mut self, items: Vec<Value>) -> Value {
        Value::Tuple(items)
    }

    fn dict(&mut self, entries: Vec<(Value, Value)>) -> Value {
        Value::Dict(entries)
    }

    fn set(&mut self, items: Vec<Value>) -> Value {
        Value::Set(items)
    }

    fn date(&mut self, ms: f64) -> Value {
        Value::DateTime(ms)
    }

    fn array(&mut self, dtype: &str, shape: &[u32], data: &[u8]) -> Option<Value> {
        Some(Value::Array {
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            data: data.to_vec(),
        })
    }

    fn frame(&mut self, columns: Value, index: Value, rows: Value) -> Value {
        let items = |value| match value {
            Value::List(items) | Value::Tuple(items) => items,
            other => vec![other],
        };
        Value::Table {
            columns: items(columns),
            index: items(index),
            data: items(rows).into_iter().map(items).collect(),
        }
    }

    fn opaque(&mut self, type_name: &str, repr: &str) -> Value {
        Value::Other {
            type_name: type_name.to_owned(),
            repr: repr.to_owned(),
        }
    }
}

/// A str from UTF-16, which may have lone surrogates.
fn text_of(utf16: &[u16]) -> Value {
    String::from_utf16(utf16).map_or_else(|_| Value::IllFormedStr(utf16.to_owned()), Value::Str)
}

/// The JSON of a string with lone surrogates.
fn json_of(utf16: &[u16]) -> String {
    let mut json = String::from("\"");
    for unit in char::decode_utf16(utf16.iter().copied()) {
        // Writing to a String cannot fail.
        let _ = match unit {
            Ok(char @ ('"' | '\\')) => write!(json, "\\{char}"),
            Ok(char @ ..' ') => write!(json, "\\u{:04x}", u32::from(char)),
            Ok(char) => write!(json, "{char}"),
            Err(lone) => write!(json, "\\u{:04x}", lone.unpaired_surrogate()),
        };
    }
    json.push('"');
    json
}

/// The bytes of a JSON string. serde_json keeps lone surrogates when it reads bytes.
struct Wtf8(Vec<u8>);

impl<'de> Deserialize<'de> for Wtf8 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Wtf8;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a string")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Wtf8, E> {
                Ok(Wtf8(bytes.to_owned()))
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}

/// The sign and the hexadecimal digits of an integer's decimal or hexadecimal text. `None` for malformed text, and for decimal
/// text longer than Python writes.
fn hex_of(text: &str) -> Option<(bool, String)> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    if let Some(hex) = digits.strip_prefix("0x") {
        let is_hex = !hex.is_empty() && hex.chars().all(|char| char.is_ascii_hexdigit());
        return is_hex.then(|| (negative, hex.to_owned()));
    }
    let is_decimal = !digits.is_empty() && digits.chars().all(|char| char.is_ascii_digit());
    if !is_decimal || digits.len() > 2 * MAX_DECIMAL_HEX_DIGITS {
        return None;
    }
    // Least significant first, in base 2^32.
    let mut limbs: Vec<u32> = vec![0];
    for digit in digits.chars() {
        let mut carry = u64::from(digit.to_digit(10).unwrap_or(0));
        for limb in &mut limbs {
            let value = u64::from(*limb) * 10 + carry;
            *limb = (value & u64::from(u32::MAX)) as u32;
            carry = value >> 32;
        }
        if carry > 0 {
            limbs.push(carry as u32);
        }
    }
    let mut hex = String::new();
    for (at, limb) in limbs.iter().rev().enumerate() {
        let _ = if at == 0 {
            write!(hex, "{limb:x}")
        } else {
            write!(hex, "{limb:08x}")
        };
    }
    Some((negative, hex))
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Str(value.to_owned())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Str(value)
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(value)
    }
}

impl From<Vec<Self>> for Value {
    fn from(value: Vec<Self>) -> Self {
        Self::List(value)
    }
}

/// A user's variable.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Variable {
    /// The variable's name.
    pub name: String,
    /// The class name of the variable's value.
    #[serde(rename = "type")]
    pub type_name: String,
    /// The value's `len`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<i64>,
}

#[cfg(test)]
mod tests;
