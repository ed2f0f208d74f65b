use super::*;
use proptest::prelude::*;

fn encoded(encoding: Encoding, body: Vec<u8>) -> Encoded<Payload> {
    let body = Payload(body.into());
    Encoded { encoding, body }
}

/// Values that return from Python unchanged.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::Int),
        any::<f64>()
            .prop_filter("equal to itself", |value| !value.is_nan())
            .prop_map(Value::Float),
        ".*".prop_map(Value::Str),
        // Half of the units are surrogates.
        prop::collection::vec(prop_oneof![any::<u16>(), 0xD800..=0xDFFF_u16], 0..6).prop_map(|utf16| text_of(&utf16)),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
        (any::<bool>(), "[1-9][0-9]{19,60}").prop_filter_map("more than 64 bits", |(negative, digits)| {
            let digits = if negative { format!("-{digits}") } else { digits };
            digits.parse::<i64>().is_err().then_some(Value::BigInt(digits))
        }),
        (-6e13..2.5e14).prop_map(Value::DateTime),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Tuple),
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Set),
            prop::collection::vec((".*".prop_map(Value::Str), inner.clone()), 0..6).prop_map(Value::Dict),
            prop::collection::vec((inner.clone(), inner), 0..6).prop_map(Value::Dict),
        ]
    })
}

/// The value after a conversion to JSON and back: lists and tuples both become lists, and tuples where Python needs a hash.
fn listed(value: Value) -> Value {
    let all = |items: Vec<Value>| items.into_iter().map(listed).collect();
    match value {
        Value::List(items) | Value::Tuple(items) => Value::List(all(items)),
        Value::Set(items) => Value::Set(items.into_iter().map(listed).map(hashable).collect()),
        Value::Dict(entries) => Value::Dict(
            entries
                .into_iter()
                .map(|(key, value)| (hashable(listed(key)), listed(value)))
                .collect(),
        ),
        other => other,
    }
}

/// Objects have no order.
fn sorted(value: Value) -> Value {
    let all = |items: Vec<Value>| items.into_iter().map(sorted).collect();
    match value {
        Value::List(items) => Value::List(all(items)),
        Value::Tuple(items) => Value::Tuple(all(items)),
        Value::Set(items) => Value::Set(all(items)),
        Value::Dict(entries) => {
            let mut entries: Vec<_> = entries
                .into_iter()
                .map(|(key, value)| (sorted(key), sorted(value)))
                .collect();
            if entries.iter().all(|(key, _)| key.as_str().is_some()) {
                entries.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
            }
            Value::Dict(entries)
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn what_goes_into_a_body_comes_out_of_it(value in values()) {
        let body = value.clone().encode("a value", 1e9).unwrap();
        prop_assert_eq!(Value::decode(&body).unwrap(), Some(value));
    }

    #[test]
    fn what_goes_into_json_comes_out_of_it(value in values()) {
        let json = serde_json::to_string(&value.to_json()).unwrap();
        let back = Value::from_json(serde_json::from_str(&json).unwrap()).unwrap();
        prop_assert_eq!(sorted(back), sorted(listed(value)));
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), tagged: bool) {
        let encoding = if tagged { Encoding::Tagged } else { Encoding::Marshal };
        let _ = Value::decode(&encoded(encoding, bytes));
    }

    #[test]
    fn no_json_does_harm(key in r"\$(bytes|str|bigint|float|set|date|map|array|table|other|ref)", inner in "[\\[\\]{}a0:\",]{0,12}") {
        if let Ok(content) = serde_json::from_str(&inner) {
            let mut object = Map::new();
            object.insert(key, content);
            let _ = Value::from_json(serde_json::Value::Object(object));
        }
    }
}

#[test]
fn json_is_as_documented() {
    let cases = [
        (Value::None, json!(null)),
        (Value::Int(MAX_JSON_INT), json!(9_007_199_254_740_991_i64)),
        (Value::Int(MAX_JSON_INT + 1), json!({ "$bigint": "9007199254740992" })),
        (Value::Float(1.0), json!(1.0)),
        (Value::Float(f64::INFINITY), json!({ "$float": "inf" })),
        (Value::Bytes(vec![0, 255]), json!({ "$bytes": "AP8=" })),
        (
            Value::IllFormedStr(vec![0x61, 0xD800, 0x22, 0x0A]),
            json!({ "$str": r#""a\ud800\"\u000a""# }),
        ),
        (
            Value::Dict(vec![(Value::IllFormedStr(vec![0xDC80]), Value::None)]),
            json!({ "$map": [[{ "$str": r#""\udc80""# }, null]] }),
        ),
        (Value::Set(vec![Value::Int(1)]), json!({ "$set": [1] })),
        (Value::DateTime(5.5), json!({ "$date": 5.5 })),
        (Value::Dict(vec![("a".into(), Value::Int(1))]), json!({ "a": 1 })),
        (
            Value::Dict(vec![("$ref".into(), Value::Int(1))]),
            json!({ "$map": [["$ref", 1]] }),
        ),
        (
            Value::Dict(vec![(Value::Int(1), Value::Int(2))]),
            json!({ "$map": [[1, 2]] }),
        ),
        (
            Value::Array {
                dtype: "uint8".to_owned(),
                shape: vec![2],
                data: vec![1, 2],
            },
            json!({ "$array": { "dtype": "uint8", "shape": [2], "data": "AQI=" } }),
        ),
        (
            Value::Table {
                columns: vec!["a".into()],
                index: vec![Value::Int(0)],
                data: vec![vec![Value::Float(1.5)]],
            },
            json!({ "$table": { "columns": ["a"], "index": [0], "data": [[1.5]] } }),
        ),
        (
            Value::Other {
                type_name: "A".to_owned(),
                repr: "an A".to_owned(),
            },
            json!({ "$other": { "type": "A", "repr": "an A" } }),
        ),
    ];
    for (value, json) in cases {
        assert_eq!(value.to_json(), json);
        assert_eq!(Value::from_json(json).unwrap(), value);
    }
    // Objects with other `$` keys stay unchanged.
    let schema = json!({ "$ref": "#/definitions/a" });
    let dict = Value::Dict(vec![("$ref".into(), "#/definitions/a".into())]);
    assert_eq!(Value::from_json(schema).unwrap(), dict);
    assert_eq!(
        Value::from_json(json!({ "$bytes": 1 })).unwrap_err().code(),
        "not_serializable"
    );
}

#[test]
fn what_cannot_go_into_python_is_named() {
    let refused = |value: Value| value.encode("the context", 100.0).unwrap_err().to_string();
    let other = Value::Other {
        type_name: "Lock".to_owned(),
        repr: String::new(),
    };
    assert!(refused(Value::List(vec![other])).contains("the context holds a Lock"));
    assert!(refused(Value::Str("x".repeat(101))).contains("takes 101 bytes, maxValueSize is 100"));
    let deep = (0..=MAX_VALUE_DEPTH).fold(Value::None, |inner, _| Value::List(vec![inner]));
    assert!(refused(deep).contains("nests more than 200 levels deep"));
    assert!(refused(Value::List(vec![Value::BigInt("1e5".to_owned())])).contains("no integer"));
    for ms in [-62_135_596_800_001.0, 253_402_300_800_000.0, f64::NAN, f64::INFINITY] {
        assert!(
            refused(Value::DateTime(ms)).contains("a date outside of the years 1 to 9999"),
            "{ms}"
        );
    }
}

#[test]
fn large_ints_keep_their_digits() {
    for (hex, decimal) in [
        ("0", "0"),
        ("3b9aca00", "1000000000"),
        ("10000000000000000", "18446744073709551616"),
        ("de0b6b3a7640000000", "4096000000000000000000"),
    ] {
        assert_eq!(int_text(false, hex), decimal);
        assert_eq!(hex_of(decimal), Some((false, hex.to_owned())));
    }
    let mut builder = Builder;
    let huge = "f".repeat(MAX_DECIMAL_HEX_DIGITS + 1);
    let value = builder.big_int(true, &huge);
    assert_eq!(value, Value::BigInt(format!("-0x{huge}")));
    let body = Value::List(vec![value.clone()]).encode("it", 1e9).unwrap();
    assert_eq!(Value::decode(&body).unwrap(), Some(Value::List(vec![value])));
}
