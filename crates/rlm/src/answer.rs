//! Final values of runs: converts them to JSON, and checks them against the task's schema.

use serde_json::{Map, Number, Value};

use super::integer;
use super::limits::MAX_ANSWER_BYTES;
use super::parse::parse;
use super::schema::Schema;
use sandglass_core::limits::MAX_VALUE_DEPTH;
use sandglass_core::protocol::Encoding;
use sandglass_core::value::{Build, escaped, ill_formed, int_text, lone_surrogate, read, utf16_from_wtf8};

/// A value that Python declared, as JSON. Sets become arrays, keys of dicts become text, and other objects become `{ type, repr }`. Ints
/// beyond 2^53 are written as [`integer`] describes. Floats that are not finite become text; so do dates (ISO 8601) and bytes
/// (hexadecimal).
///
/// # Errors
/// The problem, as text for the author of the code.
pub fn to_json(encoding: Encoding, body: &[u8]) -> Result<Value, String> {
    fits(body.len())?;
    match encoding {
        Encoding::None | Encoding::Missing => Ok(Value::Null),
        Encoding::Text => {
            let mut to = ToJson::default();
            let value = match std::str::from_utf8(body) {
                Ok(text) => to.text(text),
                Err(_) => to.ill_formed_text(&utf16_from_wtf8(body)),
            };
            to.end(value)
        }
        Encoding::Bytes | Encoding::File => Ok(ToJson::default().bytes(body)),
        Encoding::Marshal | Encoding::Tagged => {
            let mut to = ToJson::default();
            let value = read(body, encoding == Encoding::Tagged, 2 * MAX_VALUE_DEPTH, &mut to);
            to.end(value.map_err(|error| error.to_string())?)
        }
    }
}

/// Checks that an answer of this size is accepted.
///
/// # Errors
/// The problem, as text for the author of the code.
pub fn fits(bytes: usize) -> Result<(), String> {
    if bytes <= MAX_ANSWER_BYTES {
        return Ok(());
    }
    Err(format!(
        "the answer takes {bytes} bytes, at most {MAX_ANSWER_BYTES} are taken"
    ))
}

/// The answer to the task: checked by the schema, or as text if there is none.
///
/// # Errors
/// The problem, as text for the model.
pub fn check(value: Value, schema: Option<&Schema>) -> Result<Value, String> {
    let Some(schema) = schema else {
        return Ok(Value::String(text(&value)));
    };
    let problems = schema.problems(&value);
    if problems.is_empty() {
        return Ok(value);
    }
    // Models often declare the text of the JSON that they were asked for.
    if let Value::String(text) = &value
        && let Some(parsed) = json_in(text)
        && schema.problems(&parsed).is_empty()
    {
        return Ok(parsed);
    }
    Err(problems.join("\n"))
}

/// A value as text: the contents of a str, and any other value as JSON.
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => {
            let mut text = String::new();
            integer::write(other, &mut text);
            text
        }
    }
}

/// The JSON in a text: all of the text, or else the first fence that holds JSON.
pub fn json_in(text: &str) -> Option<Value> {
    integer::read(text.trim()).or_else(|| {
        let parsed = parse(text);
        let mut blocks = parsed.others.iter().chain(&parsed.blocks);
        blocks.find_map(|block| integer::read(block.code.trim()))
    })
}

/// Builds an answer's JSON while its bytes are read.
#[derive(Debug, Default)]
pub struct ToJson {
    lone_surrogate: Option<u16>,
}

impl ToJson {
    /// Returns the answer that was built.
    ///
    /// # Errors
    /// The problem, as text for the author of the code: a string that JSON cannot hold.
    pub fn end(self, answer: Value) -> Result<Value, String> {
        match self.lone_surrogate {
            Some(lone) => Err(ill_formed("the answer", lone)),
            None => Ok(answer),
        }
    }
}

impl Build for ToJson {
    type Value = Value;

    fn none(&mut self) -> Value {
        Value::Null
    }

    fn bool(&mut self, value: bool) -> Value {
        value.into()
    }

    fn int(&mut self, value: i64) -> Value {
        integer::from_text(&value.to_string())
    }

    fn big_int(&mut self, negative: bool, hex: &str) -> Value {
        integer::from_text(&int_text(negative, hex))
    }

    fn float(&mut self, value: f64) -> Value {
        let name = if value.is_nan() {
            "NaN"
        } else if value > 0.0 {
            "Infinity"
        } else {
            "-Infinity"
        };
        Number::from_f64(value).map_or_else(|| name.into(), Value::Number)
    }

    fn text(&mut self, value: &str) -> Value {
        value.into()
    }

    fn ill_formed_text(&mut self, utf16: &[u16]) -> Value {
        self.lone_surrogate = self.lone_surrogate.or(lone_surrogate(utf16));
        escaped(utf16).into()
    }

    fn bytes(&mut self, value: &[u8]) -> Value {
        use std::fmt::Write;
        let mut hex = String::with_capacity(2 * value.len());
        for byte in value {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex.into()
    }

    fn list(&mut self, items: Vec<Value>) -> Value {
        items.into()
    }

    fn dict(&mut self, entries: Vec<(Value, Value)>) -> Value {
        let entries = entries.into_iter().map(|(key, value)| (text(&key), value));
        Value::Object(entries.collect::<Map<_, _>>())
    }

    fn set(&mut self, items: Vec<Value>) -> Value {
        items.into()
    }

    fn date(&mut self, ms: f64) -> Value {
        iso_date(ms).into()
    }

    fn array(&mut self, dtype: &str, shape: &[u32], _data: &[u8]) -> Option<Value> {
        Some(self.opaque("ndarray", &format!("array of {dtype}, shape {shape:?}: pass .tolist()")))
    }

    fn frame(&mut self, columns: Value, index: Value, rows: Value) -> Value {
        let fields = [("columns", columns), ("index", index), ("data", rows)];
        Value::Object(
            fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        )
    }

    fn opaque(&mut self, type_name: &str, repr: &str) -> Value {
        serde_json::json!({ "type": type_name, "repr": repr })
    }
}

/// A time as an ISO 8601 date in UTC, from milliseconds since 1970. Source: Howard Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`.
fn iso_date(ms: f64) -> String {
    if !(-6.3e13..2.6e14).contains(&ms) {
        return format!("{ms} ms since 1970");
    }
    #[expect(clippy::cast_possible_truncation, reason = "within the years 0 to 9999")]
    let ms = ms.floor() as i64;
    let (days, of_day) = (ms.div_euclid(86_400_000), ms.rem_euclid(86_400_000));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1_000 % 60, of_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use sandglass_core::value::Writer;
    use serde_json::json;

    #[expect(clippy::unwrap_used, reason = "a test may panic")]
    fn written(write: impl FnOnce(&mut Writer)) -> Value {
        let mut writer = Writer::default();
        write(&mut writer);
        to_json(Encoding::Tagged, &writer.into_bytes()).unwrap()
    }

    #[test]
    fn values_of_python_are_json() {
        let value = written(|writer| {
            writer.dict();
            writer.text("a");
            writer.list(4);
            writer.int(-5);
            writer.big_int(false, "20000000000000");
            writer.float(f64::NAN);
            writer.bytes(b"\x01\xff");
            writer.int(7);
            writer.none();
            writer.end_dict();
        });
        let two_to_53 = json!({ "$bigint": "9007199254740992" });
        assert_eq!(value, json!({ "a": [-5, two_to_53, "NaN", "01ff"], "7": null }));
        assert_eq!(
            written(|writer| writer.big_int(true, "10000000000000000")),
            json!({ "$bigint": "-18446744073709551616" })
        );
        assert_eq!(to_json(Encoding::Text, "é".as_bytes()), Ok(json!("é")));
        assert!(to_json(Encoding::Marshal, b"?").is_err());
        // Half a surrogate pair is refused at any depth of the value; a whole pair is one character.
        let lone = b"\xed\xa0\xbd";
        let refused = to_json(Encoding::Text, lone).unwrap_err();
        assert!(refused.contains("U+D83D"), "{refused}");
        let key = [b"{u\x03\0\0\0", &lone[..], b"N0"].concat();
        assert_eq!(to_json(Encoding::Marshal, &key), Err(refused));
        let pair = [&lone[..], b"\xed\xb8\x80"].concat();
        assert_eq!(to_json(Encoding::Text, &pair), Ok(json!("😀")));
        assert!(to_json(Encoding::Text, &vec![b'x'; MAX_ANSWER_BYTES + 1]).is_err());
    }

    #[test]
    fn dates_are_iso_8601() {
        for (ms, expected) in [
            (0.0, "1970-01-01T00:00:00.000Z"),
            (-1.0, "1969-12-31T23:59:59.999Z"),
            (951_782_400_123.0, "2000-02-29T00:00:00.123Z"),
            (4_107_542_400_000.0, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(written(|writer| writer.date(ms)), json!(expected));
        }
    }

    /// Checks that 30! and an int between 2^53 and 2^64 are not rounded, as a value or in a model's text.
    #[test]
    fn large_ints_are_exact() {
        let integer = Schema::new(json!({ "type": "integer", "minimum": 9_007_199_254_740_993_u64 })).unwrap();
        for (hex, digits) in [
            ("d13f6370f96865df5dd54000000", "265252859812191058636308480000000"),
            ("20000000000001", "9007199254740993"),
            ("fffffffffffffffe", "18446744073709551614"),
        ] {
            let value = written(|writer| writer.big_int(false, hex));
            assert_eq!(check(value.clone(), None), Ok(json!(digits)));
            assert_eq!(check(value.clone(), Some(&integer)), Ok(json!({ "$bigint": digits })));
            assert_eq!(
                check(json!(digits), Some(&integer)),
                Ok(value.clone()),
                "a text of JSON"
            );
            let nested = check(json!({ "a": [value] }), None);
            assert_eq!(nested, Ok(format!("{{\"a\":[{digits}]}}").into()));
        }
    }

    #[test]
    fn an_answer_is_text_unless_a_schema_says_otherwise() {
        assert_eq!(check(json!("a"), None), Ok(json!("a")));
        assert_eq!(check(json!({ "a": 1 }), None), Ok(json!("{\"a\":1}")));
        let schema = Schema::new(json!({ "type": "object", "required": ["n"] })).unwrap();
        assert_eq!(check(json!({ "n": 1 }), Some(&schema)), Ok(json!({ "n": 1 })));
        assert_eq!(check(json!("{\"n\": 1}"), Some(&schema)), Ok(json!({ "n": 1 })));
        assert_eq!(
            check(json!("so:\n```json\n{\"n\": 1}\n```"), Some(&schema)),
            Ok(json!({ "n": 1 }))
        );
        assert!(check(json!("n"), Some(&schema)).is_err());
    }
}
