//! Sandglass in browsers: the front door of the npm package, and the only crate that knows a browser.
//!
//! | module | holds |
//! |---|---|
//! | `sandbox` | the public API: what `createSandbox` returns |
//! | `driver` | carries out what the session wants: guests, messages, timers, host calls |
//! | `guest_frame` | the frame and the worker of a guest |
//! | `outbox` | messages on their way to a guest, a piece at a time |
//! | `spares`, `snapshot` | guests that wait to be needed, and the memory that all of them start from |
//! | `remote`, `wire` | guests on a server, by a WebSocket, and its frames |
//! | `options`, `arguments` | what `createSandbox` takes; how that, and what all methods take, is read |
//! | `stop` | ends work from outside |
//! | `convert` | values of JavaScript as Python's, and back |
//! | `source` | values on their way to Python |
//! | `files` | the public methods about files |
//! | `packages`, `wheels` | packages, and their files: found, fetched and verified |
//! | `pieces` | code that is being written |
//! | `budget`, `feedback` | `createBudget`, and `feedback` of a sandbox |
//! | `rlm` | `runRlm` |
//! | `assets` | the files of `dist/`, checked |
//! | `glue` | functions of JavaScript that Rust needs |
#![cfg(target_arch = "wasm32")]

mod arguments;
mod assets;
mod budget;
mod convert;
mod driver;
mod feedback;
mod files;
mod glue;
mod guest_frame;
mod options;
mod outbox;
mod packages;
mod pieces;
mod remote;
mod rlm;
mod sandbox;
mod snapshot;
mod source;
mod spares;
mod stop;
mod wheels;
mod wire;

/// Functions that `tests/web.rs` looks at; no part of the API.
#[doc(hidden)]
pub mod testing {
    use wasm_bindgen::JsValue;

    use sandglass_core::error::Error;

    /// Checks what `createSandbox` would be given.
    ///
    /// # Errors
    /// [`Error::InvalidOption`].
    pub fn check_options(options: &JsValue) -> Result<(), Error> {
        super::options::Options::parse(options).map(drop)
    }

    /// The header of a server's frame, and how long its bodies are.
    ///
    /// # Errors
    /// A text that says what is wrong with it.
    pub fn open_frame(frame: &js_sys::ArrayBuffer) -> Result<(String, Vec<u32>), String> {
        let (header, bodies) = super::wire::open_frame(frame)?;
        let length = |body: JsValue| js_sys::Uint8Array::from(body).length();
        Ok((header, bodies.iter().map(length).collect()))
    }

    /// A value as it comes back from a guest that only keeps it.
    ///
    /// # Errors
    /// [`Error::NotSerializable`].
    pub fn round_trip(value: &JsValue, max_bytes: f64) -> Result<JsValue, Error> {
        super::convert::encode(value, "value", max_bytes).and_then(|encoded| super::convert::decode(&encoded))
    }
}
