//! Python values as bytes, in CPython's `marshal` format, version 2. The guest has that format in C, and the host needs only the tags
//! below. So both ends are fast and small.
//!
//! | tag | then | value |
//! |---|---|---|
//! | `N` `F` `T` | | `None`, `False`, `True` |
//! | `i` | `i32` | int |
//! | `l` | `i32` n, then \|n\| digits `u16` of 15 bits | int with the sign of n |
//! | `g` | `f64` | float |
//! | `y` | two `f64` | complex |
//! | `s` | `u32` n, n bytes | bytes |
//! | `u` | `u32` n, n bytes | str as UTF-8, surrogates encoded like other code points |
//! | `(` `[` `<` `>` | `u32` n, n values | tuple, list, set, frozenset |
//! | `{` | pairs of key and value, then `0` | dict |
//! | `S` `.` | | the class `StopIteration`, `Ellipsis` |
//!
//! Numbers are little-endian. Under [`Encoding::Tagged`](crate::protocol::Encoding::Tagged) a tuple that begins with `S`
//! is an extension: `(StopIteration, kind, …)` with the kinds
//!
//! | kind | payload |
//! |---|---|
//! | `"date"` | float: milliseconds since 1970, UTC |
//! | `"ndarray"` | str: numpy dtype, list of ints: shape, bytes: the elements, little-endian, in C order |
//! | `"frame"` | list: columns, list: index, list of lists: rows |
//! | `"opaque"` | str: type name, str: `repr` |
//! | `"file"` | bytes, which become a str if they are UTF-8; only sent to the guest |
//!
//! Source: CPython's `Python/marshal.c` and the documentation of the module `marshal`.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use std::borrow::Cow;
use std::fmt::Write as _;

use thiserror::Error;

/// The most hexadecimal digits of an int that are converted to decimal ones. The time of the conversion grows with their square.
pub const MAX_DECIMAL_HEX_DIGITS: usize = 4_000;

/// Returns true for a time that Python's `datetime` can hold, in milliseconds since 1970. Its years are 1 to 9999.
pub fn is_date(ms: f64) -> bool {
    (-62_135_596_800_000.0..253_402_300_800_000.0).contains(&ms)
}

/// Builds a driver's own values while bytes are read.
pub trait Build {
    /// The type of the driver's values.
    type Value;
    /// `None`.
    fn none(&mut self) -> Self::Value;
    /// A bool.
    fn bool(&mut self, value: bool) -> Self::Value;
    /// An int of at most 60 bits.
    fn int(&mut self, value: i64) -> Self::Value;
    /// Any larger int, by its sign and the hexadecimal digits of its magnitude.
    fn big_int(&mut self, negative: bool, hex: &str) -> Self::Value;
    /// A float.
    fn float(&mut self, value: f64) -> Self::Value;
    /// A str.
    fn text(&mut self, value: &str) -> Self::Value;
    /// A str with lone surrogates, as UTF-16.
    fn ill_formed_text(&mut self, utf16: &[u16]) -> Self::Value;
    /// Bytes.
    fn bytes(&mut self, value: &[u8]) -> Self::Value;
    /// A list.
    fn list(&mut self, items: Vec<Self::Value>) -> Self::Value;
    /// A tuple. Becomes a list in drivers that have no tuples.
    fn tuple(&mut self, items: Vec<Self::Value>) -> Self::Value {
        self.list(items)
    }
    /// A dict.
    fn dict(&mut self, entries: Vec<(Self::Value, Self::Value)>) -> Self::Value;
    /// A set or frozenset.
    fn set(&mut self, items: Vec<Self::Value>) -> Self::Value;
    /// A point in time, in milliseconds since 1970.
    fn date(&mut self, ms: f64) -> Self::Value;
    /// A numpy array with its dtype, shape and elements. Returns `None` if the driver does not have the dtype.
    fn array(&mut self, dtype: &str, shape: &[u32], data: &[u8]) -> Option<Self::Value>;
    /// A DataFrame.
    fn frame(&mut self, columns: Self::Value, index: Self::Value, rows: Self::Value) -> Self::Value;
    /// A value of any other type, by its type's name and its `repr`.
    fn opaque(&mut self, type_name: &str, repr: &str) -> Self::Value;
}

/// A reason for which bytes are not a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("the value is cut short")]
    Truncated,
    /// Bytes follow the value.
    #[error("the value has bytes left over")]
    Trailing,
    /// The value nests more levels deep than this.
    #[error("the value nests more than {0} levels deep")]
    TooDeep(u32),
    /// The value holds an unknown tag or extension.
    #[error("the value holds something that cannot cross (tag {0})")]
    Unknown(u8),
}

/// Reads one value. If `tagged` is true, it may hold extensions. Memory is bounded by the length of `bytes`, and nesting by `depth`.
///
/// # Errors
/// A [`DecodeError`] if `bytes` are not exactly one value.
pub fn read<B: Build>(bytes: &[u8], tagged: bool, depth: u32, build: &mut B) -> Result<B::Value, DecodeError> {
    let mut reader = Reader {
        bytes,
        tagged,
        max_depth: depth,
    };
    let value = reader.value(depth, build)?;
    if reader.bytes.is_empty() {
        Ok(value)
    } else {
        Err(DecodeError::Trailing)
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

struct Reader<'a> {
    bytes: &'a [u8],
    tagged: bool,
    max_depth: u32,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(DecodeError::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.take(N)?.try_into().map_err(|_| DecodeError::Truncated)
    }

    fn length(&mut self) -> Result<usize, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
    }

    fn float(&mut self) -> Result<f64, DecodeError> {
        Ok(f64::from_le_bytes(self.array()?))
    }

    fn value<B: Build>(&mut self, depth: u32, build: &mut B) -> Result<B::Value, DecodeError> {
        let [tag] = self.array()?;
        self.tagged_value(tag, depth, build)
    }

    fn tagged_value<B: Build>(&mut self, tag: u8, depth: u32, build: &mut B) -> Result<B::Value, DecodeError> {
        let inner = depth.checked_sub(1).ok_or(DecodeError::TooDeep(self.max_depth))?;
        Ok(match tag {
            b'N' => build.none(),
            b'F' => build.bool(false),
            b'T' => build.bool(true),
            b'i' => build.int(i64::from(i32::from_le_bytes(self.array()?))),
            b'l' => self.long(build)?,
            b'g' => build.float(self.float()?),
            b'y' => {
                let (real, imaginary) = (self.float()?, self.float()?);
                build.opaque("complex", &format!("({real}{imaginary:+}j)"))
            }
            b's' => {
                let length = self.length()?;
                build.bytes(self.take(length)?)
            }
            b'u' => {
                let length = self.length()?;
                text(self.take(length)?, build)
            }
            b'(' if self.tagged && self.bytes.get(4) == Some(&b'S') => self.extension(inner, build)?,
            b'(' => {
                let items = self.items(inner, build)?;
                build.tuple(items)
            }
            b'[' => {
                let items = self.items(inner, build)?;
                build.list(items)
            }
            b'<' | b'>' => {
                let items = self.items(inner, build)?;
                build.set(items)
            }
            b'{' => {
                let mut entries = Vec::new();
                loop {
                    let [tag] = self.array()?;
                    if tag == b'0' {
                        break build.dict(entries);
                    }
                    let key = self.tagged_value(tag, inner, build)?;
                    entries.push((key, self.value(inner, build)?));
                }
            }
            b'S' => build.opaque("type", "<class 'StopIteration'>"),
            b'.' => build.opaque("ellipsis", "Ellipsis"),
            tag => return Err(DecodeError::Unknown(tag)),
        })
    }

    fn items<B: Build>(&mut self, depth: u32, build: &mut B) -> Result<Vec<B::Value>, DecodeError> {
        let length = self.length()?;
        // A length may be a lie, at every level. So memory is taken only for items that are there.
        let mut items = Vec::with_capacity(length.min(16));
        for _ in 0..length {
            items.push(self.value(depth, build)?);
        }
        Ok(items)
    }

    fn long<B: Build>(&mut self, build: &mut B) -> Result<B::Value, DecodeError> {
        let digits = i32::from_le_bytes(self.array()?);
        let bytes = self.take((digits.unsigned_abs() as usize).saturating_mul(2))?;
        let digits_of = || bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair));
        if digits_of().any(|digit| digit >> 15 != 0) || digits_of().next_back() == Some(0) {
            return Err(DecodeError::Unknown(b'l'));
        }
        if digits.unsigned_abs() <= 4 {
            let magnitude = digits_of()
                .rev()
                .fold(0_i64, |value, digit| value << 15 | i64::from(digit));
            return Ok(build.int(if digits < 0 { -magnitude } else { magnitude }));
        }
        let mut hex = Vec::with_capacity(bytes.len() * 2);
        let (mut pending, mut bits) = (0_u32, 0);
        for digit in digits_of() {
            pending |= u32::from(digit) << bits;
            bits += 15;
            while bits >= 4 {
                hex.push(HEX[pending as usize & 15]);
                pending >>= 4;
                bits -= 4;
            }
        }
        hex.push(HEX[pending as usize & 15]);
        hex.reverse();
        let hex = std::str::from_utf8(&hex).unwrap_or_default();
        Ok(build.big_int(digits < 0, hex.trim_start_matches('0')))
    }

    fn extension<B: Build>(&mut self, depth: u32, build: &mut B) -> Result<B::Value, DecodeError> {
        let length = self.length()?;
        self.take(1)?;
        let kind = self.short_text()?;
        match (kind, length) {
            ("date", 3) => match self.array()? {
                [b'g'] => Ok(build.date(self.float()?)),
                [tag] => Err(DecodeError::Unknown(tag)),
            },
            ("ndarray", 5) => {
                let dtype = self.short_text()?;
                let shape = self.shape()?;
                let [tag] = self.array()?;
                if tag != b's' {
                    return Err(DecodeError::Unknown(tag));
                }
                let length = self.length()?;
                let data = self.take(length)?;
                build.array(dtype, &shape, data).ok_or(DecodeError::Unknown(b'S'))
            }
            ("frame", 5) => {
                let (columns, index) = (self.value(depth, build)?, self.value(depth, build)?);
                let rows = self.value(depth, build)?;
                Ok(build.frame(columns, index, rows))
            }
            ("opaque", 4) => {
                let type_name = self.escaped_text()?;
                let repr = self.escaped_text()?;
                Ok(build.opaque(&type_name, &repr))
            }
            _ => Err(DecodeError::Unknown(b'S')),
        }
    }

    fn text_bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        match self.array()? {
            [b'u'] => {
                let length = self.length()?;
                self.take(length)
            }
            [tag] => Err(DecodeError::Unknown(tag)),
        }
    }

    fn short_text(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.text_bytes()?).map_err(|_| DecodeError::Unknown(b'u'))
    }

    fn escaped_text(&mut self) -> Result<Cow<'a, str>, DecodeError> {
        let bytes = self.text_bytes()?;
        let escaped = |_| escaped(&utf16_from_wtf8(bytes)).into();
        Ok(std::str::from_utf8(bytes).map_or_else(escaped, Cow::Borrowed))
    }

    fn shape(&mut self) -> Result<Vec<u32>, DecodeError> {
        match self.array()? {
            [b'[' | b'('] => {
                // numpy has at most 64 dimensions.
                match self.length()? {
                    length @ ..=64 => (0..length).map(|_| self.dimension()).collect(),
                    _ => Err(DecodeError::Unknown(b'S')),
                }
            }
            [tag] => Err(DecodeError::Unknown(tag)),
        }
    }

    fn dimension(&mut self) -> Result<u32, DecodeError> {
        match self.array()? {
            [b'i'] => u32::try_from(i32::from_le_bytes(self.array()?)).map_err(|_| DecodeError::Unknown(b'i')),
            [tag] => Err(DecodeError::Unknown(tag)),
        }
    }
}

/// The text of an int, by its sign and the hexadecimal digits of its magnitude. Decimal, or `0x…` and `-0x…` for an int with more than
/// [`MAX_DECIMAL_HEX_DIGITS`].
pub fn int_text(negative: bool, hex: &str) -> String {
    let sign = if negative { "-" } else { "" };
    if hex.len() > MAX_DECIMAL_HEX_DIGITS {
        format!("{sign}0x{hex}")
    } else {
        format!("{sign}{}", decimal_of(hex))
    }
}

/// Converts hexadecimal digits to decimal ones.
fn decimal_of(hex: &str) -> String {
    const CHUNK: u64 = 1_000_000_000;
    // The least significant chunk comes first, in base 10^9.
    let mut chunks: Vec<u64> = vec![0];
    let (mut from, mut to) = (0, (hex.len() + 7) % 8 + 1);
    while let Some(digits) = hex.get(from..to) {
        let mut carry = u64::from_str_radix(digits, 16).unwrap_or(0);
        for chunk in &mut chunks {
            let value = (*chunk << 32) + carry;
            *chunk = value % CHUNK;
            carry = value / CHUNK;
        }
        while carry > 0 {
            chunks.push(carry % CHUNK);
            carry /= CHUNK;
        }
        (from, to) = (to, to + 8);
    }
    let mut text = String::new();
    for (at, chunk) in chunks.iter().rev().enumerate() {
        let _ = if at == 0 {
            write!(text, "{chunk}")
        } else {
            write!(text, "{chunk:09}")
        };
    }
    text
}

fn text<B: Build>(bytes: &[u8], build: &mut B) -> B::Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => build.text(text),
        Err(_) => build.ill_formed_text(&utf16_from_wtf8(bytes)),
    }
}

/// Converts UTF-8 with lone surrogates to UTF-16. Bytes that are neither become U+FFFD.
pub fn utf16_from_wtf8(bytes: &[u8]) -> Vec<u16> {
    let mut utf16 = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while !rest.is_empty() {
        let (valid, after) = match std::str::from_utf8(rest) {
            Ok(text) => (text, &rest[rest.len()..]),
            Err(error) => {
                let (valid, after) = rest.split_at(error.valid_up_to());
                (std::str::from_utf8(valid).unwrap_or_default(), after)
            }
        };
        utf16.extend(valid.encode_utf16());
        rest = match after {
            [0xED, second @ 0xA0..=0xBF, third @ 0x80..=0xBF, rest @ ..] => {
                utf16.push(0xD000 | u16::from(second & 0x3F) << 6 | u16::from(third & 0x3F));
                rest
            }
            [_, rest @ ..] => {
                utf16.push(0xFFFD);
                rest
            }
            [] => after,
        };
    }
    utf16
}

/// The first lone surrogate in UTF-16, if there is one.
pub fn lone_surrogate(utf16: &[u16]) -> Option<u16> {
    let mut units = char::decode_utf16(utf16.iter().copied());
    units.find_map(|unit| unit.err().map(|lone| lone.unpaired_surrogate()))
}

/// The error's text for a text with this lone surrogate. `what` names the text.
pub fn ill_formed(what: &str, lone: u16) -> String {
    format!(
        "{what} holds the lone surrogate U+{lone:04X}, which is no character and cannot be sent: leave it out, or write it as text, \
         as text.encode(\"utf-8\", \"backslashreplace\").decode() does"
    )
}

/// Converts UTF-16 to readable text. A lone surrogate is written as Python escapes it: `\udc80`.
pub fn escaped(utf16: &[u16]) -> String {
    let mut text = String::with_capacity(utf16.len());
    for unit in char::decode_utf16(utf16.iter().copied()) {
        match unit {
            Ok(char) => text.push(char),
            Err(lone) => {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{:04x}", lone.unpaired_surrogate());
            }
        }
    }
    text
}

/// Writes values. The caller must keep the grammar: after [`Writer::list`] of three values, for example, it writes these three.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// The bytes written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The number of bytes written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns true if nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes `None`.
    pub fn none(&mut self) {
        self.bytes.push(b'N');
    }

    /// Writes a bool.
    pub fn bool(&mut self, value: bool) {
        self.bytes.push(if value { b'T' } else { b'F' });
    }

    /// Writes an int.
    pub fn int(&mut self, value: i64) {
        match i32::try_from(value) {
            Ok(small) => {
                self.bytes.push(b'i');
                self.bytes.extend(small.to_le_bytes());
            }
            Err(_) => self.big_int(value < 0, &format!("{:x}", value.unsigned_abs())),
        }
    }

    /// Writes an int, by its sign and the hexadecimal digits of its magnitude.
    pub fn big_int(&mut self, negative: bool, hex: &str) {
        let (mut digits, mut pending, mut bits) = (Vec::<u16>::new(), 0_u32, 0);
        for digit in hex.chars().rev() {
            pending |= digit.to_digit(16).unwrap_or(0) << bits;
            bits += 4;
            if bits >= 15 {
                digits.push((pending & 0x7FFF) as u16);
                pending >>= 15;
                bits -= 15;
            }
        }
        digits.push((pending & 0x7FFF) as u16);
        while digits.last() == Some(&0) {
            digits.pop();
        }
        let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
        self.bytes.push(b'l');
        self.bytes.extend(if negative { -count } else { count }.to_le_bytes());
        digits.iter().for_each(|digit| self.bytes.extend(digit.to_le_bytes()));
    }

    /// Writes a float.
    pub fn float(&mut self, value: f64) {
        self.bytes.push(b'g');
        self.bytes.extend(value.to_le_bytes());
    }

    /// Writes a str.
    pub fn text(&mut self, value: &str) {
        self.sized(b'u', value.len());
        self.bytes.extend(value.as_bytes());
    }

    /// Writes a str from UTF-16 with lone surrogates.
    pub fn ill_formed_text(&mut self, utf16: &[u16]) {
        let wtf8 = wtf8_from_utf16(utf16);
        self.sized(b'u', wtf8.len());
        self.bytes.extend(wtf8);
    }

    /// Writes bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        self.sized(b's', value.len());
        self.bytes.extend(value);
    }

    /// Begins a list; `length` values follow.
    pub fn list(&mut self, length: usize) {
        self.sized(b'[', length);
    }

    /// Begins a tuple; `length` values follow. The first one must not be an extension's tag.
    pub fn tuple(&mut self, length: usize) {
        self.sized(b'(', length);
    }

    /// Begins a set; `length` values follow.
    pub fn set(&mut self, length: usize) {
        self.sized(b'<', length);
    }

    /// Begins a dict; keys and values follow in turn, then [`Writer::end_dict`].
    pub fn dict(&mut self) {
        self.bytes.push(b'{');
    }

    /// Ends a dict.
    pub fn end_dict(&mut self) {
        self.bytes.push(b'0');
    }

    /// Writes a time for which [`is_date`] is true. The encoding becomes `Tagged`.
    pub fn date(&mut self, ms: f64) {
        self.extension("date", 1);
        self.float(ms);
    }

    /// Begins an extension of a kind; its payloads follow. The encoding becomes `Tagged`.
    pub fn extension(&mut self, kind: &str, payloads: usize) {
        self.sized(b'(', payloads + 2);
        self.bytes.push(b'S');
        self.text(kind);
    }

    /// Begins a file; its `length` bytes follow. The encoding becomes `Tagged`.
    pub fn begin_file(&mut self, length: usize) {
        self.extension("file", 1);
        self.sized(b's', length);
    }

    /// Begins a str; its `length` bytes of UTF-8 follow.
    pub fn begin_text(&mut self, length: usize) {
        self.sized(b'u', length);
    }

    fn sized(&mut self, tag: u8, length: usize) {
        self.bytes.push(tag);
        self.bytes
            .extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
}

/// Converts UTF-16 to UTF-8. Lone surrogates are encoded like other code points.
pub fn wtf8_from_utf16(utf16: &[u16]) -> Vec<u8> {
    let mut wtf8 = Vec::with_capacity(utf16.len());
    for unit in char::decode_utf16(utf16.iter().copied()) {
        match unit {
            Ok(char) => wtf8.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(lone) => {
                let unit = lone.unpaired_surrogate();
                let low = |shift: u32| 0x80 | u8::try_from(unit >> shift & 0x3F).unwrap_or(0);
                wtf8.extend([0xED, low(6), low(0)]);
            }
        }
    }
    wtf8
}
