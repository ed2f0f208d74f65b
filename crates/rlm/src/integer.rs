//! Ints that readers of JSON would round. Beyond 2^53 they are written as `{"$bigint": "…"}`, as in a server's values. In text for models
//! they are plain digits.

use std::borrow::Cow;

use serde_json::{Value, json};

use sandglass_core::value::MAX_DECIMAL_HEX_DIGITS;

const KEY: &str = "$bigint";
/// The greatest int that is a number in JSON. It is the greatest that JavaScript holds exactly.
const MAX_EXACT: u64 = (1 << 53) - 1;

/// An int as JSON, from its text in the form of [`int_text`](sandglass_core::value::int_text).
pub fn from_text(text: &str) -> Value {
    match text.parse::<i64>() {
        Ok(value) if value.unsigned_abs() <= MAX_EXACT => value.into(),
        _ => json!({ KEY: text }),
    }
}

/// The text of an int that is written as `{"$bigint": "…"}`.
pub fn big_int(value: &Value) -> Option<&str> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get(KEY)?.as_str().filter(|text| is_big(text))
}

/// Returns true if a text is an int beyond 2^53 in its written form. It must not be longer than any such text from Python.
fn is_big(text: &str) -> bool {
    let magnitude = text.strip_prefix('-').unwrap_or(text);
    if let Some(hex) = magnitude.strip_prefix("0x") {
        return hex.len() > MAX_DECIMAL_HEX_DIGITS && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    }
    (1..=2 * MAX_DECIMAL_HEX_DIGITS).contains(&magnitude.len())
        && magnitude.bytes().all(|byte| byte.is_ascii_digit())
        && !magnitude.starts_with('0')
        && magnitude.parse().map_or(true, |magnitude: u64| magnitude > MAX_EXACT)
}

/// Reads JSON. All ints stay exact.
pub fn read(text: &str) -> Option<Value> {
    serde_json::from_str(&with_marks(text)).ok()
}

/// Replaces large ints in JSON with `{"$bigint": "…"}`, which `serde_json` does not round.
fn with_marks(text: &str) -> Cow<'_, str> {
    let is_of_number = |char: char| char.is_ascii_alphanumeric() || matches!(char, '+' | '-' | '.');
    let (mut marked, mut rest, mut in_string) = (String::new(), text, false);
    let mut kept = text;
    while let Some(char) = rest.chars().next() {
        let mut length = char.len_utf8();
        match char {
            '"' => in_string = !in_string,
            '\\' if in_string => length += rest[1..].chars().next().map_or(0, char::len_utf8),
            '-' | '0'..='9' if !in_string => {
                length = rest.find(|char| !is_of_number(char)).unwrap_or(rest.len());
                let number = &rest[..length];
                if is_big(number) {
                    marked.push_str(&kept[..kept.len() - rest.len()]);
                    marked.push_str(&json!({ KEY: number }).to_string());
                    kept = &rest[length..];
                }
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    if kept.len() == text.len() {
        return Cow::Borrowed(text);
    }
    marked.push_str(kept);
    Cow::Owned(marked)
}

/// Writes JSON as text, with ints of any size as plain numbers. Ints in hexadecimal digits are written as text.
pub fn write(value: &Value, text: &mut String) {
    match value {
        _ if let Some(int) = big_int(value)
            && !int.contains('x') =>
        {
            text.push_str(int)
        }
        Value::Array(items) => {
            text.push('[');
            for (index, item) in items.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                write(item, text);
            }
            text.push(']');
        }
        Value::Object(fields) if big_int(value).is_none() => {
            text.push('{');
            for (index, (name, field)) in fields.iter().enumerate() {
                text.push_str(if index > 0 { "," } else { "" });
                text.push_str(&Value::from(name.as_str()).to_string());
                text.push(':');
                write(field, text);
            }
            text.push('}');
        }
        Value::Object(fields) => fields.values().for_each(|hex| text.push_str(&hex.to_string())),
        leaf => text.push_str(&leaf.to_string()),
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ints_are_exact_whatever_their_size() {
        for (int, value) in [
            ("9007199254740991", json!(9_007_199_254_740_991_i64)),
            ("-9007199254740992", json!({ KEY: "-9007199254740992" })),
            ("18446744073709551617", json!({ KEY: "18446744073709551617" })),
        ] {
            assert_eq!(from_text(int), value);
            assert_eq!(read(int), Some(value.clone()));
            let mut text = String::new();
            write(&json!({ "a": [value, 1.5], "b\"": "12345678901234567890" }), &mut text);
            assert_eq!(
                text,
                format!("{{\"a\":[{int},1.5],\"b\\\"\":\"12345678901234567890\"}}")
            );
        }
        assert_eq!(
            read("[1e30, \"\\\"9007199254740993\"]"),
            Some(json!([1e30, "\"9007199254740993"]))
        );
        for (text, what) in [
            ("09007199254740993", "no JSON"),
            ("9007199254740993x", "no JSON"),
            (&"9".repeat(9_000), "longer than Python writes it"),
        ] {
            assert_eq!(read(text), None, "{what}");
        }
        for value in [
            json!({ KEY: "5" }),
            json!({ KEY: "9007199254740993", "a": 1 }),
            json!({ KEY: 5 }),
        ] {
            assert_eq!(big_int(&value), None, "an object of the user's");
        }
    }

    proptest! {
        #[test]
        fn json_is_read_as_it_is_written(value in any::<i128>(), text in "[\\\\\"0-9é-]{0,40}") {
            let json = format!("{{{}:[{value}, -1]}}", Value::from(text.as_str()));
            let read = read(&json).unwrap();
            prop_assert_eq!(&read, &json!({ text: [from_text(&value.to_string()), -1] }));
            let mut written = String::new();
            write(&read, &mut written);
            prop_assert_eq!(written, json.replace(", ", ","));
        }

        #[test]
        fn any_text_is_read_without_a_fault(text in "([\\\\\"0-9é{}:,-]|9007199254740993){0,12}") {
            let plain = serde_json::from_str::<Value>(&text);
            prop_assert_eq!(read(&text).is_some(), plain.is_ok());
        }
    }
}
