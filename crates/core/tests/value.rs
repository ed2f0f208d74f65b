//! Tests of values as bytes: those of CPython, our own, and malformed ones.
#![cfg(not(target_arch = "wasm32"))]
#![expect(clippy::expect_used, reason = "helpers of tests")]

use proptest::prelude::*;
use sandglass_core::value::{Build, DecodeError, Writer, read, utf16_from_wtf8, wtf8_from_utf16};

const DEPTH: u32 = 50;

/// A value that can be compared. Floats compare by bits, ints by sign and hexadecimal magnitude, text as UTF-16.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    None,
    Bool(bool),
    Int(bool, String),
    Float(u64),
    Text(Vec<u16>),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Date(u64),
    Array(String, Vec<u32>, Vec<u8>),
    Frame(Box<[Value; 3]>),
    Opaque(String, String),
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
        int(value)
    }

    fn big_int(&mut self, negative: bool, hex: &str) -> Value {
        assert!(
            hex.len() >= 15 && !hex.starts_with('0'),
            "{hex} is not big, or not in lowest terms"
        );
        Value::Int(negative, hex.to_owned())
    }

    fn float(&mut self, value: f64) -> Value {
        Value::Float(value.to_bits())
    }

    fn text(&mut self, value: &str) -> Value {
        text(value)
    }

    fn ill_formed_text(&mut self, utf16: &[u16]) -> Value {
        Value::Text(utf16.to_vec())
    }

    fn bytes(&mut self, value: &[u8]) -> Value {
        Value::Bytes(value.to_vec())
    }

    fn list(&mut self, items: Vec<Value>) -> Value {
        Value::List(items)
    }

    fn dict(&mut self, entries: Vec<(Value, Value)>) -> Value {
        Value::Dict(entries)
    }

    fn set(&mut self, items: Vec<Value>) -> Value {
        Value::Set(items)
    }

    fn date(&mut self, ms: f64) -> Value {
        Value::Date(ms.to_bits())
    }

    fn array(&mut self, dtype: &str, shape: &[u32], data: &[u8]) -> Option<Value> {
        (dtype != "object").then(|| Value::Array(dtype.to_owned(), shape.to_vec(), data.to_vec()))
    }

    fn frame(&mut self, columns: Value, index: Value, rows: Value) -> Value {
        Value::Frame(Box::new([columns, index, rows]))
    }

    fn opaque(&mut self, type_name: &str, repr: &str) -> Value {
        Value::Opaque(type_name.to_owned(), repr.to_owned())
    }
}

fn int(value: i64) -> Value {
    Value::Int(value < 0, format!("{:x}", value.unsigned_abs()))
}

fn text(value: &str) -> Value {
    Value::Text(value.encode_utf16().collect())
}

fn float(value: f64) -> Value {
    Value::Float(value.to_bits())
}

fn write(value: &Value, out: &mut Writer) {
    match value {
        Value::None => out.none(),
        Value::Bool(value) => out.bool(*value),
        Value::Int(negative, hex) => match i64::from_str_radix(hex, 16) {
            Ok(magnitude) => out.int(if *negative { -magnitude } else { magnitude }),
            Err(_) => out.big_int(*negative, hex),
        },
        Value::Float(bits) => out.float(f64::from_bits(*bits)),
        Value::Text(utf16) => match String::from_utf16(utf16) {
            Ok(text) => out.text(&text),
            Err(_) => out.ill_formed_text(utf16),
        },
        Value::Bytes(bytes) => out.bytes(bytes),
        Value::List(items) => {
            out.list(items.len());
            items.iter().for_each(|item| write(item, out));
        }
        Value::Set(items) => {
            out.set(items.len());
            items.iter().for_each(|item| write(item, out));
        }
        Value::Dict(entries) => {
            out.dict();
            for (key, value) in entries {
                write(key, out);
                write(value, out);
            }
            out.end_dict();
        }
        Value::Date(bits) => out.date(f64::from_bits(*bits)),
        Value::Array(..) | Value::Frame(_) | Value::Opaque(..) => unreachable!("only guests write these"),
    }
}

fn written(value: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    write(value, &mut out);
    out.into_bytes()
}

fn decode(bytes: &[u8]) -> Result<Value, DecodeError> {
    read(bytes, true, DEPTH, &mut Builder)
}

fn from_hex(hex: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hexadecimal");
    (0..hex.len()).step_by(2).map(byte).collect()
}

fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::None),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(int),
        (-5_i64..5).prop_map(int),
        (any::<bool>(), "[1-9a-f][0-9a-f]{15,80}").prop_map(|(negative, hex)| Value::Int(negative, hex)),
        any::<u64>().prop_map(Value::Float),
        any::<String>().prop_map(|value| text(&value)),
        prop::collection::vec(prop_oneof![any::<u16>(), 0xD800_u16..0xE000], 0..8).prop_map(Value::Text),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
        any::<u64>().prop_map(Value::Date),
    ];
    scalar.prop_recursive(6, 60, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Set),
            prop::collection::vec((inner.clone(), inner), 0..6).prop_map(Value::Dict),
        ]
    })
}

/// Bytes that look like values, so that a reader gets beyond the first byte.
fn almost_values() -> impl Strategy<Value = Vec<u8>> {
    let tag = prop::sample::select(b"NFTilgysu([<>{0S.".to_vec());
    let small = prop_oneof![4 => 0..6_u32, 1 => any::<u32>()].prop_map(|length| length.to_le_bytes().to_vec());
    let kind = prop::sample::select(vec!["date", "ndarray", "frame", "opaque", "float64"]);
    let extension = (2..6_u8, kind.clone()).prop_map(|(length, kind)| {
        let head = [
            b'(',
            length,
            0,
            0,
            0,
            b'S',
            b'u',
            u8::try_from(kind.len()).expect("short"),
            0,
            0,
            0,
        ];
        [&head, kind.as_bytes()].concat()
    });
    let piece = prop_oneof![
        4 => tag.prop_map(|tag| vec![tag]),
        3 => small,
        2 => extension,
        2 => value().prop_map(|value| written(&value)),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn what_is_written_is_read(value in value()) {
        prop_assert_eq!(decode(&written(&value)), Ok(value));
    }

    #[test]
    fn a_value_that_is_cut_or_has_more_behind_it_is_none(value in value(), at in any::<prop::sample::Index>()) {
        let mut bytes = written(&value);
        prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err());
        bytes.push(b'N');
        prop_assert_eq!(decode(&bytes), Err(DecodeError::Trailing));
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), tagged in any::<bool>()) {
        let _ = read(&bytes, tagged, DEPTH, &mut Builder);
    }

    #[test]
    fn bytes_that_look_like_values_are_a_value_or_an_error(bytes in almost_values(), tagged in any::<bool>()) {
        let _ = read(&bytes, tagged, DEPTH, &mut Builder);
    }

    #[test]
    fn any_utf16_survives(utf16 in prop::collection::vec(prop_oneof![any::<u16>(), 0xD800_u16..0xE000], 0..60)) {
        prop_assert_eq!(utf16_from_wtf8(&wtf8_from_utf16(&utf16)), utf16);
    }

    #[test]
    fn well_formed_text_is_plain_utf8(text in any::<String>()) {
        let utf16: Vec<u16> = text.encode_utf16().collect();
        prop_assert_eq!(wtf8_from_utf16(&utf16), text.as_bytes());
        prop_assert_eq!(utf16_from_wtf8(text.as_bytes()), utf16);
    }

    #[test]
    fn any_bytes_become_text(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(utf16_from_wtf8(&bytes).len() <= bytes.len());
    }
}

/// Checks both directions: CPython's bytes are read as the value, and the value is written as CPython's bytes.
fn is_written_as(hex: &str, value: &Value) {
    assert_eq!(decode(&from_hex(hex)).as_ref(), Ok(value), "{hex}");
    assert_eq!(written(value), from_hex(hex), "{value:?}");
}

fn is_read_as(hex: &str, value: &Value) {
    assert_eq!(decode(&from_hex(hex)).as_ref(), Ok(value), "{hex}");
}

// The hexadecimal texts below are what CPython 3.11 prints for `marshal.dumps(value, 2).hex()`.

#[test]
fn ints_are_as_cpython_writes_them() {
    for (hex, value) in [
        ("6900000000", 0),
        ("6901000000", 1),
        ("69ffffffff", -1),
        ("6900800000", 1 << 15),
        ("69ffffff7f", (1 << 31) - 1),
        ("6c03000000000000000200", 1 << 31),
        ("6900000080", -(1 << 31)),
        ("6cfdffffff010000000200", -(1 << 31) - 1),
        ("6c040000000000000000000001", 1 << 53),
        ("6c040000000100000000000001", (1 << 53) + 1),
        ("6cfcffffff0000000000000001", -(1 << 53)),
        ("6c04000000ff7fff7fff7fff7f", (1 << 60) - 1),
        ("6c0500000000000000000000000100", 1 << 60),
        ("6c05000000ff7fff7fff7fff7f0700", i64::MAX),
    ] {
        is_written_as(hex, &int(value));
    }
    let sixteen_digits = "8000000000000000".to_owned();
    is_written_as(
        "6c0500000000000000000000000800",
        &Value::Int(false, sixteen_digits.clone()),
    );
    is_written_as("6cfbffffff00000000000000000800", &Value::Int(true, sixteen_digits));
    let two_to_the_200 = format!("1{}", "0".repeat(50));
    let digits = "00".repeat(26) + "2000";
    is_written_as(
        &format!("6c0e000000{digits}"),
        &Value::Int(false, two_to_the_200.clone()),
    );
    is_written_as(&format!("6cf2ffffff{digits}"), &Value::Int(true, two_to_the_200));
    let mut out = Writer::default();
    out.int(i64::MIN);
    assert_eq!(out.into_bytes(), from_hex("6cfbffffff00000000000000000800"));
}

#[test]
fn floats_are_as_cpython_writes_them() {
    for (hex, value) in [
        ("670000000000000000", 0.0),
        ("670000000000000080", -0.0),
        ("67000000000000f83f", 1.5),
        ("67000000000000f07f", f64::INFINITY),
        ("67000000000000f0ff", f64::NEG_INFINITY),
        ("67000000000000f87f", f64::NAN),
        ("670100000000000000", 5e-324),
    ] {
        is_written_as(hex, &float(value));
    }
}

#[test]
fn other_scalars_are_as_cpython_writes_them() {
    is_written_as("4e", &Value::None);
    is_written_as("54", &Value::Bool(true));
    is_written_as("46", &Value::Bool(false));
    is_written_as("7500000000", &text(""));
    is_written_as("7509000000c3a9e282acf09f9880", &text("é€😀"));
    is_written_as("7300000000", &Value::Bytes(vec![]));
    is_written_as("730200000000ff", &Value::Bytes(vec![0, 255]));
}

#[test]
fn lone_surrogates_are_as_cpython_writes_them() {
    is_written_as("750500000061eda08062", &Value::Text(vec![0x61, 0xD800, 0x62]));
    is_written_as("7506000000edb080eda080", &Value::Text(vec![0xDC00, 0xD800]));
    // Two surrogates, which are two characters in Python, are one character in UTF-16.
    is_read_as("7506000000eda0bdedb880", &text("😀"));
}

#[test]
fn containers_are_as_cpython_writes_them() {
    is_written_as("5b00000000", &Value::List(vec![]));
    is_written_as("7b30", &Value::Dict(vec![]));
    is_written_as("3c00000000", &Value::Set(vec![]));
    is_written_as("3c010000006907000000", &Value::Set(vec![int(7)]));
    is_read_as("2800000000", &Value::List(vec![]));
    is_read_as("3e010000006907000000", &Value::Set(vec![int(7)]));
    // [1, [2, (3, None)], {"k": [b"v"]}]
    let inner = Value::List(vec![int(3), Value::None]);
    let dict = Value::Dict(vec![(text("k"), Value::List(vec![Value::Bytes(b"v".to_vec())]))]);
    is_read_as(
        "5b0300000069010000005b020000006902000000280200000069030000004e7b75010000006b5b0100000073010000007630",
        &Value::List(vec![int(1), Value::List(vec![int(2), inner]), dict]),
    );
    // {1: 2, None: "x", (1, 2): 3.0}
    let pair = Value::List(vec![int(1), int(2)]);
    is_read_as(
        "7b690100000069020000004e75010000007828020000006901000000690200000067000000000000084030",
        &Value::Dict(vec![(int(1), int(2)), (Value::None, text("x")), (pair, float(3.0))]),
    );
}

#[test]
fn what_has_no_value_here_is_shown_as_text() {
    let opaque = |kind: &str, repr: &str| Value::Opaque(kind.to_owned(), repr.to_owned());
    is_read_as("79000000000000f03f0000000000000040", &opaque("complex", "(1+2j)"));
    is_read_as("79000000000000f8bf000000000000e0bf", &opaque("complex", "(-1.5-0.5j)"));
    is_read_as("2e", &opaque("ellipsis", "Ellipsis"));
    is_read_as("53", &opaque("type", "<class 'StopIteration'>"));
}

#[test]
fn extensions_are_read() {
    // (StopIteration, "date", 1234.5)
    is_written_as(
        "2803000000537504000000646174656700000000004a9340",
        &Value::Date(1234.5_f64.to_bits()),
    );
    // (StopIteration, "ndarray", "float64", [2, 1], bytes(range(16)))
    is_read_as(
        "28050000005375070000006e6461727261797507000000666c6f617436345b02000000690200000069010000007310000000\
         000102030405060708090a0b0c0d0e0f",
        &Value::Array("float64".to_owned(), vec![2, 1], (0..16).collect()),
    );
    // (StopIteration, "frame", ["a", "b"], [0, 1], [[1, "x"], [2, None]])
    let columns = Value::List(vec![text("a"), text("b")]);
    let index = Value::List(vec![int(0), int(1)]);
    let rows = vec![
        Value::List(vec![int(1), text("x")]),
        Value::List(vec![int(2), Value::None]),
    ];
    is_read_as(
        "28050000005375050000006672616d655b020000007501000000617501000000625b0200000069000000006901000000\
         5b020000005b0200000069010000007501000000785b0200000069020000004e",
        &Value::Frame(Box::new([columns, index, Value::List(rows)])),
    );
    // (StopIteration, "opaque", "Foo", "<Foo>"), and one whose repr is a lone surrogate
    is_read_as(
        "28040000005375060000006f70617175657503000000466f6f75050000003c466f6f3e",
        &Value::Opaque("Foo".to_owned(), "<Foo>".to_owned()),
    );
    is_read_as(
        "28040000005375060000006f70617175657501000000467503000000eda080",
        &Value::Opaque("F".to_owned(), "\\ud800".to_owned()),
    );
    // [(), (StopIteration, "date", 0.0)]
    is_read_as(
        "5b020000002800000000280300000053750400000064617465670000000000000000",
        &Value::List(vec![Value::List(vec![]), Value::Date(0)]),
    );
}

#[test]
fn extensions_are_tuples_like_others_where_there_are_none() {
    let date = from_hex("2803000000537504000000646174656700000000004a9340");
    let class = Value::Opaque("type".to_owned(), "<class 'StopIteration'>".to_owned());
    let items = vec![class, text("date"), float(1234.5)];
    assert_eq!(read(&date, false, DEPTH, &mut Builder), Ok(Value::List(items)));
}

#[test]
fn malformed_values_are_errors() {
    for (what, hex, error) in [
        ("nothing", "", DecodeError::Truncated),
        ("an int that is cut", "69000000", DecodeError::Truncated),
        ("a long string", "75ffffffff61", DecodeError::Truncated),
        ("a long list", "5bffffffff4e", DecodeError::Truncated),
        ("a dict without an end", "7b4e4e", DecodeError::Truncated),
        ("a dict with half an entry", "7b4e30", DecodeError::Unknown(b'0')),
        ("the most digits", "6c00000080", DecodeError::Truncated),
        ("a digit of 16 bits", "6c010000000080", DecodeError::Unknown(b'l')),
        (
            "a long zero",
            "6c0500000000000000000000000000",
            DecodeError::Unknown(b'l'),
        ),
        (
            "a top digit that is zero",
            "6c0200000001000000",
            DecodeError::Unknown(b'l'),
        ),
        ("a reference", "7200000000", DecodeError::Unknown(b'r')),
        ("a flagged reference", "e900000000", DecodeError::Unknown(0xE9)),
        ("a code object", "63", DecodeError::Unknown(b'c')),
        ("two values", "4e4e", DecodeError::Trailing),
        (
            "an unknown extension",
            "28030000005375030000006f64646901000000",
            DecodeError::Unknown(b'S'),
        ),
        ("an extension without a kind", "280100000053", DecodeError::Truncated),
        (
            "a date that is an int",
            "28030000005375040000006461746569000000 00",
            DecodeError::Unknown(b'i'),
        ),
    ] {
        assert_eq!(decode(&from_hex(&hex.replace(' ', ""))), Err(error), "{what}");
    }
}

#[test]
fn an_array_that_the_host_cannot_show_is_an_error() {
    // (StopIteration, "ndarray", "object", [], b"")
    let hex = "28050000005375070000006e646172726179 75060000006f626a656374 5b00000000 7300000000";
    assert_eq!(
        decode(&from_hex(&hex.replace(' ', ""))),
        Err(DecodeError::Unknown(b'S'))
    );
}

#[test]
fn depth_is_bounded() {
    let nested = |tag: &[u8], depth: usize| [tag.repeat(depth), b"N".to_vec()].concat();
    let list = [b'[', 1, 0, 0, 0].as_slice();
    assert!(read(&nested(list, 49), true, 50, &mut Builder).is_ok());
    assert_eq!(
        read(&nested(list, 50), true, 50, &mut Builder),
        Err(DecodeError::TooDeep(50))
    );
    for tag in [list, b"{N", b"{", &[b'<', 1, 0, 0, 0], &[b'(', 1, 0, 0, 0]] {
        assert_eq!(decode(&nested(tag, 1_000_000)), Err(DecodeError::TooDeep(DEPTH)));
    }
    let frame = from_hex("28050000005375050000006672616d65");
    assert_eq!(decode(&nested(&frame, 10_000)), Err(DecodeError::TooDeep(DEPTH)));
}

/// The most memory that this process had at any time, in bytes.
#[cfg(target_os = "linux")]
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPeak:"))
        .expect("Linux tells");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
#[cfg(target_os = "linux")]
fn lengths_that_lie_at_every_level_take_no_memory() {
    let lies = [b'[', 0xFF, 0xFF, 0xFF, 0xFF].repeat(DEPTH as usize - 1);
    let bytes = [lies, vec![b'{'; 4_000_000]].concat();
    let before = peak_memory();
    assert_eq!(decode(&bytes), Err(DecodeError::TooDeep(DEPTH)));
    let taken = peak_memory() - before;
    assert!(taken < 2_000_000_000, "{taken} bytes for a value of 4 MB");
}
