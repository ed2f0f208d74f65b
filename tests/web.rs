//! Tests of the browser's front door that need Rust only, in a real browser: options, and values as bytes.
//! `npm test -- --only "rust in chromium"`
#![cfg(target_arch = "wasm32")]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use js_sys::{Array, Object, Reflect};
use sandglass::testing::{check_options, open_frame, round_trip};
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_test::{wasm_bindgen_test, wasm_bindgen_test_configure};

wasm_bindgen_test_configure!(run_in_browser);

const NO_LIMIT: f64 = 1e9;

/// Evaluates JavaScript.
fn js(source: &str) -> JsValue {
    js_sys::eval(&format!("({source})")).expect(source)
}

fn refusal(options: &str) -> String {
    let error = check_options(&js(options)).expect_err(options);
    assert_eq!(error.code(), "invalid_option", "{options}");
    error.to_string()
}

/// Returns true if two values are the same, types included.
fn same(a: &JsValue, b: &JsValue) -> bool {
    let compare = js("function same(a, b) {
            if (Object.is(a, b)) return true;
            if (typeof a !== 'object' || typeof b !== 'object' || !a || !b) return false;
            if (Object.prototype.toString.call(a) !== Object.prototype.toString.call(b)) return false;
            if (a instanceof Date) return +a === +b;
            if (a instanceof Map || a instanceof Set) return same([...a], [...b]);
            const keys = Reflect.ownKeys(a);
            return keys.length === Reflect.ownKeys(b).length
                && keys.every((key) => Object.hasOwn(b, key) && same(a[key], b[key]));
        }");
    let compare: js_sys::Function = compare.into();
    compare.call2(&JsValue::NULL, a, b).unwrap().is_truthy()
}

#[wasm_bindgen_test]
fn right_options_are_taken() {
    for options in [
        "undefined",
        "{}",
        "{ timeout: undefined }",
        "{ timeout: 5, wallTimeout: 6.5, maxOutputLength: 0, isolation: 'worker', assetsUrl: 'x' }",
        "{ onLLMQuery() {}, onRLMQuery: async () => '', onStdout: console.log, hostFunctions: { größe: () => 1 } }",
        "{ onLLMQuery: { baseUrl: '/v1', model: 'm', setup: 'Start it.' } }",
        "{ profile: 'rlm-legacy' }",
        "{ profile: 'dspy', outputFields: ['answer', 'größe'] }",
        "{ outputFields: [] }",
        "Object.create(null)",
        "{ backend: { url: 'http://127.0.0.1:8788' } }",
        "{ backend: { url: new URL('https://example.com/a/'), apiKey: 'k+/=', unknown: undefined }, checkpoints: 'off' }",
        "{ backend: { url: '/' }, checkpoints: 16 }",
        "{ backend: { url: '/sandglass' }, memoryLimit: 1e9, spares: undefined }",
    ] {
        check_options(&js(options)).expect(options);
    }
}

#[wasm_bindgen_test]
fn a_wrong_option_is_named() {
    for (options, name) in [
        ("{ tiemout: 5 }", "tiemout"),
        ("{ timeout: '5' }", "timeout"),
        ("{ timeout: 0 }", "timeout"),
        ("{ gracePeriod: NaN }", "gracePeriod"),
        ("{ maxHostCalls: 1.5 }", "maxHostCalls"),
        ("{ maxShadows: 0 }", "maxShadows"),
        ("{ maxShadows: 9 }", "maxShadows"),
        ("{ maxShadows: 1.5 }", "maxShadows"),
        ("{ maxValueSize: 5n }", "maxValueSize"),
        ("{ onLLMQuery: 'x' }", "onLLMQuery"),
        ("{ onLLMQuery: Promise.resolve(() => 'x') }", "onLLMQuery"),
        ("{ onLLMQuery: { baseUrl: '/v1' } }", "onLLMQuery.model"),
        (
            "{ onLLMQuery: { baseUrl: '/v1', model: 'm', setup: 1 } }",
            "onLLMQuery.setup",
        ),
        ("{ onStdout: null }", "onStdout"),
        ("{ isolation: 'none' }", "isolation"),
        ("{ assetsUrl: 5 }", "assetsUrl"),
        ("{ hostFunctions: [] }", "hostFunctions"),
        ("{ hostFunctions: { add: 1 } }", "hostFunctions.add"),
        ("{ hostFunctions: { 'a b': () => 1 } }", "hostFunctions"),
        ("{ hostFunctions: { llm_query: () => 1 } }", "hostFunctions"),
        ("{ profile: 'Rlm' }", "profile"),
        ("{ profile: 1 }", "profile"),
        ("{ profile: 'rlm', outputFields: ['a'] }", "outputFields"),
        ("{ outputFields: 'answer' }", "outputFields"),
        ("{ outputFields: ['a', 'a'] }", "outputFields"),
        ("{ outputFields: ['a b'] }", "outputFields"),
        ("{ backend: 'http://127.0.0.1:8788' }", "backend"),
        ("{ backend: {} }", "backend.url"),
        ("{ backend: { url: '' } }", "backend.url"),
        ("{ backend: { url: 'ws://127.0.0.1' } }", "backend.url"),
        ("{ backend: { url: 'http://user:word@127.0.0.1' } }", "backend.url"),
        ("{ backend: { url: 'http://127.0.0.1/?a' } }", "backend.url"),
        ("{ backend: { url: 'http://127.0.0.1', apiKey: '' } }", "backend.apiKey"),
        (
            "{ backend: { url: 'http://127.0.0.1', apiKey: 'two words' } }",
            "backend.apiKey",
        ),
        ("{ backend: { url: 'http://127.0.0.1', key: 'k' } }", "backend.key"),
        ("{ backend: { url: '/' }, isolation: 'frame' }", "isolation"),
        ("{ spares: 1, backend: { url: '/' } }", "spares"),
        ("{ backend: { url: '/' }, assetsUrl: '/' }", "assetsUrl"),
        ("{ backend: { url: '/' }, checkpoints: 'auto' }", "checkpoints"),
        ("{ backend: { url: '/' }, checkpoints: 0 }", "checkpoints"),
        ("{ backend: { url: '/' }, checkpoints: 17 }", "checkpoints"),
        ("{ checkpoints: 3 }", "checkpoints"),
        ("{ backend: { url: '/' }, packages: [] }", "packages"),
        ("{ backend: { url: '/' }, autoImport: false }", "autoImport"),
        ("'text'", "options"),
        ("[]", "options"),
        ("new Date()", "options"),
        ("() => 1", "options"),
    ] {
        let message = refusal(options);
        assert!(message.starts_with(&format!("{name}: ")), "{options}: {message}");
    }
}

#[wasm_bindgen_test]
fn values_come_back_as_they_went() {
    for value in [
        "null",
        "true",
        "0",
        "-0",
        "1.5",
        "NaN",
        "-Infinity",
        "Number.MAX_SAFE_INTEGER",
        "[2n ** 53n, -(2n ** 70n), 2n ** 64n - 1n]",
        "''",
        "'ü🦀\\0'",
        "'\\ud800'",
        "['\\ud800', 'a\\udfffb', '🦀']",
        "new Uint8Array([0, 255])",
        "[]",
        "[1, [2, [null, 'x']]]",
        "{}",
        "{ a: 1, 'b c': [true], '': null }",
        "JSON.parse('{\"__proto__\": {\"a\": 1}, \"constructor\": 2}')",
        "new Map([[1, 'a'], ['1', 'b'], [null, []]])",
        "new Set([1, 'x', null])",
        "[new Date(0), new Date(-1.5e12)]",
        "Array.from({ length: 3000 }, (_, i) => ({ i, text: 'é'.repeat(i % 7) }))",
    ] {
        let value_here = js(value);
        let back = round_trip(&value_here, NO_LIMIT).expect(value);
        assert!(same(&value_here, &back), "{value} came back as {back:?}");
    }
}

#[wasm_bindgen_test]
fn some_values_come_back_as_their_counterparts() {
    for (value, expected) in [
        ("undefined", "null"),
        ("[undefined]", "[null]"),
        ("5n", "5"),
        ("2 ** 53", "2 ** 53"),
        ("new Float64Array([1.5, 2])", "[1.5, 2]"),
        ("new Uint8Array([1, 2]).buffer", "new Uint8Array([1, 2])"),
        ("new Map([['a', 1]])", "{ a: 1 }"),
        ("Object.assign(Object.create(null), { a: 1 })", "{ a: 1 }"),
    ] {
        let back = round_trip(&js(value), NO_LIMIT).expect(value);
        assert!(same(&js(expected), &back), "{value} came back as {back:?}");
    }
}

#[wasm_bindgen_test]
fn what_cannot_cross_is_refused_with_its_place() {
    for (value, part) in [
        ("() => 1", "value is a Function"),
        ("{ a: [1, Symbol()] }", "value.a[1] is a"),
        ("[Promise.resolve()]", "value[0] is a Promise"),
        ("new (class Point {})()", "value is a Point"),
        ("[new Date(NaN)]", "value[0] is an invalid Date"),
        (
            "(() => { const a = []; a.push({ a }); return a; })()",
            "value[0].a contains itself",
        ),
        (
            "(() => { let a = []; for (let i = 0; i < 1e5; i++) a = [a]; return a; })()",
            "nests more than 200 levels deep",
        ),
    ] {
        let error = round_trip(&js(value), NO_LIMIT).expect_err(value);
        assert_eq!(error.code(), "not_serializable", "{value}");
        let message = error.to_string();
        assert!(message.contains(part), "{value}: {message}");
        assert!(message.contains("nothing was changed"), "{value}: {message}");
    }
}

#[wasm_bindgen_test]
fn a_value_over_the_limit_is_refused_and_one_below_is_not() {
    for (value, size) in [
        ("'x'.repeat(1000)", 1000.0),
        ("'é'.repeat(500)", 500.0), // a single text is measured by its length, which costs nothing
        ("new Uint8Array(1000)", 1000.0),
        ("['x'.repeat(990)]", 1000.0),
        ("[[], [], []].map(() => new Uint8Array(328))", 1004.0),
    ] {
        assert!(round_trip(&js(value), size).is_ok(), "{value}");
        let error = round_trip(&js(value), size - 1.0).expect_err(value).to_string();
        assert!(error.contains("maxValueSize"), "{value}: {error}");
    }
}

#[wasm_bindgen_test]
fn a_getter_that_throws_is_an_error_and_no_panic() {
    let object = Object::new();
    let descriptor = js("{ get() { throw new Error('no'); }, enumerable: true }");
    assert!(Reflect::define_property(&object, &"a".into(), descriptor.unchecked_ref()).unwrap());
    assert!(round_trip(&object, NO_LIMIT).is_err());
    assert!(check_options(&object).is_err());
    assert!(round_trip(&Array::of1(&js("Proxy.revocable({}, {}).proxy")), NO_LIMIT).is_ok());
}

/// A frame of guest 7.
fn frame(header: &str, bodies: &[&[u8]]) -> Vec<u8> {
    let mut frame = 7_u32.to_le_bytes().to_vec();
    for part in [header.as_bytes()].iter().chain(bodies) {
        frame.extend(u32::try_from(part.len()).unwrap().to_le_bytes());
        frame.extend_from_slice(part);
    }
    frame
}

fn open(frame: &[u8]) -> Result<(String, Vec<u32>), String> {
    open_frame(&js_sys::Uint8Array::from(frame).buffer())
}

#[wasm_bindgen_test]
fn frames_of_a_server_are_opened() {
    assert_eq!(open(&frame("[1]", &[])), Ok(("[1]".to_owned(), vec![])));
    assert_eq!(open(&frame("é", &[b"", b"abc"])), Ok(("é".to_owned(), vec![0, 3])));
}

#[wasm_bindgen_test]
fn frames_that_do_not_add_up_are_refused() {
    let whole = frame("[1]", &[b"ab", b"c"]);
    // A frame that is cut after a body is still a frame. The number of bodies is checked later.
    let ends = [11, 17, whole.len()];
    for length in 0..=whole.len() {
        assert_eq!(open(&whole[..length]).is_ok(), ends.contains(&length), "{length}");
    }
    for at in [4, 11] {
        let mut frame = whole.clone();
        frame[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(open(&frame).is_err(), "a length of 4 GiB at {at}");
    }
    let mut no_text = whole;
    no_text[8] = 0xff;
    assert_eq!(open(&no_text), Err("a header that is no UTF-8".to_owned()));
}
