//! Sandglass in browsers: the front door of the npm package, and the only crate that depends on a browser.
//!
//! | module | holds |
//! |---|---|
//! | `sandbox` | the public API: what `createSandbox` returns |
//! | `current`, `moving` | the driver of the moment, and the public methods that carry a state to another: `moveTo`, `fork` |
//! | `driver` | carries out the session's effects: guests, messages, timers, host calls |
//! | `guest_frame` | a guest: its frame and its worker |
//! | `outbox` | messages to a guest, sent piece by piece |
//! | `spares`, `snapshot` | started guests that nobody uses yet, and the memory that all guests start from |
//! | `remote`, `wire`, `paused` | guests on a server: the WebSocket, its frames, and checkpoints there |
//! | `persist` | sessions that the browser keeps |
//! | `options`, `host_function`, `arguments` | read the options of `createSandbox`, and the arguments of all methods |
//! | `stop` | aborts work from outside |
//! | `convert` | converts values between JavaScript and bodies |
//! | `source` | values that are large or have to be fetched, on their way to Python |
//! | `files` | the public methods about files |
//! | `packages`, `wheels` | find the packages; fetch, verify and keep their files |
//! | `pieces` | reads code that is still being written |
//! | `budget`, `feedback` | `createBudget`, and `feedback` of a sandbox |
//! | `endpoint` | OpenAI-compatible endpoints of models: their options, and how they are asked |
//! | `rlm` | `runRlm` |
//! | `assets` | the files of `dist/`: fetched and checked |
//! | `body` | reads the bodies of responses, piece by piece |
//! | `glue` | functions of JavaScript that Rust needs |
#![cfg(target_arch = "wasm32")]

mod arguments;
mod assets;
mod body;
mod budget;
mod convert;
mod current;
mod driver;
mod endpoint;
mod feedback;
mod files;
mod glue;
mod guest_frame;
mod host_function;
mod journal;
mod moving;
mod options;
mod outbox;
mod packages;
mod paused;
mod persist;
mod pieces;
mod remote;
mod rlm;
mod sandbox;
mod snapshot;
mod socket;
mod source;
mod spares;
mod states;
mod stop;
mod wheels;
mod wire;

/// Functions for `tests/web.rs`; no part of the API.
#[doc(hidden)]
pub mod testing {
    use wasm_bindgen::JsValue;

    use sandglass_core::error::Error;

    /// Checks options of `createSandbox`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`].
    pub fn check_options(options: &JsValue) -> Result<(), Error> {
        super::options::Options::parse(options).map(drop)
    }

    /// Reads a frame of a server: the header, and the lengths of the bodies.
    ///
    /// # Errors
    /// A text that says what is wrong with the frame.
    pub fn open_frame(frame: &js_sys::ArrayBuffer) -> Result<(String, Vec<u32>), String> {
        let (header, bodies) = super::wire::open_frame(frame)?;
        let length = |body: JsValue| js_sys::Uint8Array::from(body).length();
        Ok((header, bodies.iter().map(length).collect()))
    }

    /// Sends a value through the conversion to Python and back.
    ///
    /// # Errors
    /// [`Error::NotSerializable`].
    pub fn round_trip(value: &JsValue, max_bytes: f64) -> Result<JsValue, Error> {
        super::convert::encode(value, "value", max_bytes).and_then(|encoded| super::convert::decode(&encoded))
    }
}
