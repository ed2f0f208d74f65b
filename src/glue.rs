//! Functions of `pyodide-glue/index.js`, and small helpers that web-sys lacks.

use js_sys::{Array, Function, JsString, Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

use sandglass_core::error::Error;
use sandglass_core::value::{escaped, ill_formed, lone_surrogate};

#[wasm_bindgen]
extern "C" {
    /// The functions that only JavaScript can provide.
    #[derive(Clone)]
    pub type Glue;

    /// The address of a file of the package: in the folder `base`, or where the package itself is when that is empty.
    #[wasm_bindgen(method, catch, js_name = assetUrl)]
    pub(super) fn asset_url(this: &Glue, asset: &str, base: &str) -> Result<String, JsValue>;
    /// The reason why an answer is no file of the package.
    #[wasm_bindgen(method, js_name = wrongAnswer)]
    pub(super) fn wrong_answer(this: &Glue, url: &str, response: &web_sys::Response) -> Option<String>;
    /// The reason why a request failed.
    #[wasm_bindgen(method, js_name = failedRequest)]
    pub(super) fn failed_request(this: &Glue, url: &str, error: &JsValue) -> String;
    /// The SHA-256 of every asset, as subresource integrity metadata.
    #[wasm_bindgen(method, getter)]
    pub(super) fn integrity(this: &Glue) -> Object;
    /// A frame for a guest of the files below `base`.
    #[wasm_bindgen(method, catch, js_name = openFrame)]
    pub(super) fn open_frame(this: &Glue, base: &str) -> Result<Place, JsValue>;
    /// A promise of the snapshot that the browser has kept, or of undefined.
    #[wasm_bindgen(method, js_name = findKept)]
    pub(super) fn find_kept(this: &Glue) -> Promise;
    /// Keeps a snapshot for the next page. A promise of the end.
    #[wasm_bindgen(method)]
    pub(super) fn keep(this: &Glue, snapshot: &web_sys::Blob) -> Promise;
    /// Keeps the module for the next page. A promise of the end.
    #[wasm_bindgen(method, js_name = keepModule)]
    pub(super) fn keep_module(this: &Glue, module: &JsValue) -> Promise;
    /// Forgets the module that the browser has kept. A promise of the end.
    #[wasm_bindgen(method, js_name = forgetModule)]
    pub(super) fn forget_module(this: &Glue) -> Promise;
    /// A promise of the session of this name in the browser's store.
    #[wasm_bindgen(method, catch, js_name = openSession)]
    fn open_session_of(this: &Glue, name: &str, key: &JsValue, build: &str) -> Result<Promise, JsValue>;
    /// A promise of the run of this name in the browser's store.
    #[wasm_bindgen(method, catch, js_name = openRun)]
    pub(super) fn open_run(
        this: &Glue,
        name: &str,
        key: &JsValue,
        task: &str,
        contexts: &js_sys::Array,
    ) -> Result<Promise, JsValue>;
    /// The hash of the files that guests are made of.
    #[wasm_bindgen(method, getter)]
    fn build(this: &Glue) -> String;
    /// A request that was begun earlier.
    #[wasm_bindgen(method, js_name = takeRequest)]
    pub(super) fn take_request(this: &Glue, url: &str) -> Option<Begun>;
    /// `{ python, abi, pyodide }`: the Python that packages must be built for, and the release of Pyodide.
    #[wasm_bindgen(method, getter)]
    pub(super) fn platform(this: &Glue) -> Object;
    /// A promise of the METADATA of a wheel.
    #[wasm_bindgen(method, catch, js_name = readMetadata)]
    pub(super) fn read_metadata(this: &Glue, wheel: &web_sys::Blob) -> Result<Promise, JsValue>;
    /// The class of the errors that are thrown.
    #[wasm_bindgen(method, getter, js_name = SandboxError)]
    fn sandbox_error(this: &Glue) -> Function;
    /// The processes of guests. None in a page.
    #[wasm_bindgen(method, getter)]
    pub(super) fn processes(this: &Glue) -> Option<Processes>;
    /// Starts a worker in the page itself, and returns it.
    #[wasm_bindgen(method, catch, js_name = startWorker)]
    pub(super) fn start_worker(
        this: &Glue,
        script: &JsValue,
        port: &JsValue,
        control: &JsValue,
    ) -> Result<web_sys::Worker, JsValue>;

    pub type Begun;
    /// A promise of the response.
    #[wasm_bindgen(method, getter)]
    pub(super) fn response(this: &Begun) -> Promise;
    /// A promise of the response's body, where it is already being read: a `Blob`, or an `ArrayBuffer` for the script.
    #[wasm_bindgen(method, getter)]
    pub(super) fn body(this: &Begun) -> Option<Promise>;
    /// True when the browser has kept the file since an earlier page; known once the response is there.
    #[wasm_bindgen(method, getter)]
    pub(super) fn kept(this: &Begun) -> Option<bool>;

    /// The frame of a guest.
    pub type Place;
    #[wasm_bindgen(method, getter)]
    pub(super) fn element(this: &Place) -> web_sys::HtmlIFrameElement;
    #[wasm_bindgen(method, getter)]
    pub(super) fn loaded(this: &Place) -> bool;
    /// True when the page's policy has blocked the frame's script.
    #[wasm_bindgen(method, getter)]
    pub(super) fn blocked(this: &Place) -> bool;
    /// The page's end of the way to the worker, where the worker is being started already. Then the frame gets the module, and the snapshot
    /// if one was kept.
    #[wasm_bindgen(method, getter)]
    pub(super) fn port(this: &Place) -> Option<web_sys::MessagePort>;
    /// The page's end of the way to the frame's script, as `port`.
    #[wasm_bindgen(method, getter)]
    pub(super) fn control(this: &Place) -> Option<web_sys::MessagePort>;
    /// A promise of the snapshot that the frame gets, or of undefined.
    #[wasm_bindgen(method, getter)]
    pub(super) fn kept(this: &Place) -> Option<Promise>;

    /// Processes of guests, on Node, Deno or Bun.
    pub type Processes;
    /// A promise that resolves when it is known how a guest's process can be confined here. Rejects with a text that says what is missing.
    #[wasm_bindgen(method)]
    pub(super) fn prepare(this: &Processes) -> Promise;
    /// The name of what confines a guest's process here. None until that is known.
    #[wasm_bindgen(method, getter)]
    pub(super) fn confinement(this: &Processes) -> Option<String>;
    /// Starts a guest's process, and returns what ends it, as a worker is ended.
    #[wasm_bindgen(method, catch)]
    pub(super) fn start(
        this: &Processes,
        confined: bool,
        script: &JsValue,
        port: &JsValue,
        control: &JsValue,
    ) -> Result<web_sys::Worker, JsValue>;

    type Text;
    #[wasm_bindgen(method, js_name = isWellFormed)]
    fn is_well_formed(this: &Text) -> bool;

    #[wasm_bindgen(catch, js_namespace = Object, js_name = getPrototypeOf)]
    fn prototype_of(value: &JsValue) -> Result<JsValue, JsValue>;

    /// `Object.entries`; a getter may throw.
    #[wasm_bindgen(catch, js_namespace = Object)]
    pub(super) fn entries(value: &JsValue) -> Result<Array, JsValue>;

    /// `String(value)`, which may run code of the value's own.
    #[wasm_bindgen(js_name = String, catch)]
    fn string_of(value: &JsValue) -> Result<String, JsValue>;

    #[wasm_bindgen(js_name = fetch, catch)]
    pub(super) fn fetch(url: &str, init: &Object) -> Result<Promise, JsValue>;

    pub(super) fn btoa(binary: &str) -> String;

    /// `btoa` on JavaScript's own strings.
    #[wasm_bindgen(js_name = btoa)]
    fn btoa_of(binary: &JsString) -> JsString;

    type Base64;
    /// `Uint8Array.prototype.toBase64`, in newer browsers. Many times faster than `btoa`.
    #[wasm_bindgen(method, catch, js_name = toBase64)]
    fn to_base64(this: &Base64) -> Result<JsString, JsValue>;

    #[wasm_bindgen(thread_local_v2, js_name = globalThis)]
    static GLOBAL: JsValue;

    /// The performance clock of a page or a worker.
    #[wasm_bindgen(thread_local_v2, js_name = performance)]
    static PERFORMANCE: web_sys::Performance;
}

impl Glue {
    /// A promise of the session of this name in the browser's store.
    pub(super) fn open_session(&self, name: &str, key: &JsValue) -> Result<Promise, JsValue> {
        self.open_session_of(name, key, &self.build())
    }
}

/// Returns false on Node, Deno and Bun, where a guest is a process.
pub(super) fn is_page() -> bool {
    let global = global();
    let versions = get(&get(&global, "process"), "versions");
    let is_of = |program| get(&versions, program).is_string();
    // The windows of Electron and NW.js are pages, and have Node's names. Elsewhere a `document` beside these is a library's, such as jsdom's.
    let is_window = (is_of("electron") || is_of("nw")) && !get(&global, "document").is_undefined();
    is_window || !is_of("node")
}

/// The global object. `js_sys::global` would take `self`, which may be a library's, such as jsdom's.
pub(super) fn global() -> JsValue {
    GLOBAL.with(JsValue::clone)
}

/// Nobody waits for this promise, so its rejection must not be reported as unhandled.
pub(super) fn disregard(promise: Promise) {
    spawn_local(async move { drop(JsFuture::from(promise).await) });
}

/// Milliseconds on the monotonic clock.
pub(super) fn now() -> f64 {
    PERFORMANCE.with(web_sys::Performance::now)
}

/// An object with these properties.
pub(super) fn object(entries: &[(&str, &JsValue)]) -> Object {
    let object = Object::new();
    for (name, value) in entries {
        // Defining a property on a fresh ordinary object cannot fail.
        let _ = Reflect::set(&object, &JsValue::from_str(name), value);
    }
    object
}

/// A property, or undefined when it cannot be read.
pub(super) fn get(object: &JsValue, name: &str) -> JsValue {
    Reflect::get(object, &JsValue::from_str(name)).unwrap_or(JsValue::UNDEFINED)
}

/// Copies bytes into a `Uint8Array`.
pub(super) fn bytes(bytes: &[u8]) -> Uint8Array {
    Uint8Array::new_from_slice(bytes)
}

/// Bytes in base64.
pub(super) fn base64(data: &Uint8Array) -> JsString {
    data.unchecked_ref::<Base64>().to_base64().unwrap_or_else(|_| {
        // A piece is a multiple of three bytes, so that the encoded pieces can be joined.
        let step = 3 * 8_192;
        let parts: Array = (0..data.length())
            .step_by(step as usize)
            .map(|start| {
                let part: Vec<u16> = data
                    .slice(start, data.length().min(start + step))
                    .to_vec()
                    .into_iter()
                    .map(u16::from)
                    .collect();
                JsValue::from(btoa_of(&JsString::from_char_code(&part)))
            })
            .collect();
        parts.join("")
    })
}

/// The error for what JavaScript of the package has thrown: a `SandboxError` keeps its code. `otherwise` makes the error of anything else.
pub(super) fn failure(thrown: &JsValue, otherwise: fn(String) -> Error) -> Error {
    let text = |name| get(thrown, name).as_string().unwrap_or_default();
    match text("code").as_str() {
        "asset_failed" => Error::AssetFailed(text("message")),
        "boot_failed" => Error::BootFailed(text("message")),
        _ => otherwise(describe(thrown)),
    }
}

/// Makes the JavaScript error for an [`Error`].
pub(super) fn thrown(glue: &Glue, error: &Error) -> JsValue {
    sandbox_error(glue, error.code(), &error.to_string())
}

/// A `SandboxError`.
pub(super) fn sandbox_error(glue: &Glue, code: &str, message: &str) -> JsValue {
    let arguments = Array::of2(&code.into(), &message.into());
    Reflect::construct(&glue.sandbox_error(), &arguments).unwrap_or_else(|failure| failure)
}

/// Returns true when a string has no lone surrogates.
pub(super) fn well_formed(text: &JsString) -> bool {
    text.unchecked_ref::<Text>().is_well_formed()
}

/// A string as text for people: lone surrogates are escaped as in Python.
pub(super) fn readable(text: &JsString) -> String {
    if well_formed(text) {
        text.into()
    } else {
        escaped(&text.iter().collect::<Vec<u16>>())
    }
}

/// A string as text that has to arrive unchanged. `what` names the string in errors.
///
/// # Errors
/// The string holds a lone surrogate.
pub(super) fn exact(what: &str, text: &JsString) -> Result<String, String> {
    if well_formed(text) {
        return Ok(text.into());
    }
    let lone = lone_surrogate(&text.iter().collect::<Vec<u16>>());
    Err(ill_formed(what, lone.unwrap_or_default()))
}

/// Returns true for a plain object: a literal, the result of `JSON.parse`, or of `Object.create(null)`, from this realm or another.
pub(super) fn is_plain(value: &JsValue) -> bool {
    if !value.is_object() {
        return false;
    }
    let is_last = |prototype: &JsValue| prototype.is_null() || prototype_of(prototype).is_ok_and(|next| next.is_null());
    prototype_of(value).is_ok_and(|prototype| is_last(&prototype))
}

/// A random number that nobody can guess.
pub(super) fn random() -> u64 {
    let bytes = js_sys::Uint8Array::new_with_length(8);
    let crypto = get(&global(), "crypto");
    if let Ok(fill) = get(&crypto, "getRandomValues").dyn_into::<Function>() {
        // `getRandomValues` fails only for much larger buffers.
        let _ = fill.call1(&crypto, &bytes);
    }
    let mut number = [0; 8];
    bytes.copy_to(&mut number);
    u64::from_le_bytes(number)
}

/// The text of a thrown value, for people. The value may be anything: an error of another realm, `{ status: 429 }`, undefined.
pub(super) fn describe(thrown: &JsValue) -> String {
    let text = |name| get(thrown, name).dyn_ref().map(readable);
    let said = match text("message") {
        Some(message) => match text("name").unwrap_or_default().as_str() {
            "Error" | "" if !message.is_empty() => message,
            "" => "Error".to_owned(),
            name if message.is_empty() => name.to_owned(),
            name => format!("{name}: {message}"),
        },
        None => thrown.dyn_ref().map(readable).unwrap_or_else(|| shown(thrown)),
    };
    said.chars().take(10_000).collect()
}

/// Describes a value without a message: as JSON if that is informative, else by its class.
fn shown(value: &JsValue) -> String {
    if !value.is_object() && !value.is_function() {
        return string_of(value).unwrap_or_default();
    }
    let json = js_sys::JSON::stringify(value).ok().and_then(|json| json.as_string());
    match json.filter(|json| json != "{}") {
        Some(json) => json,
        None => match class_of(value) {
            Some(class) => format!("an object of class {class}"),
            None => "an object without a message".to_owned(),
        },
    }
}

/// The name of a value's class; `None` when the value has no class name, or the name is `Object`.
pub(super) fn class_of(value: &JsValue) -> Option<String> {
    let constructor = get(value, "constructor").dyn_into::<Function>().ok()?;
    Some(String::from(constructor.name())).filter(|name| !name.is_empty() && name != "Object")
}
