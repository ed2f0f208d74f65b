//! The files that a guest is made of: fetched by the page, checked, kept for the next guest.

use std::cell::RefCell;
use std::collections::HashMap;

use js_sys::{Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::Response;

use super::glue::{Glue, describe, fetch, get, object};
use crate::error::Error;

const GUEST: &str = "guest.js";
const PYODIDE: [&str; 2] = ["pyodide.asm.wasm", "python_stdlib.zip"];

/// All assets, as bytes.
#[derive(Clone)]
pub(super) struct Assets {
    /// The worker's script.
    pub(super) script: JsValue,
    /// Pyodide's files by name.
    pub(super) pyodide: Object,
}

/// Fetches everything below `base`, at most once per page.
pub(super) async fn load(base: &str, glue: &Glue) -> Result<Assets, Error> {
    let integrity = glue.integrity();
    let fetch = |name| load_one(base, name, &integrity);
    let (script, pyodide) = (fetch(GUEST), PYODIDE.map(|name| (name, fetch(name))));
    let script = bytes(script).await?;
    let files = Object::new();
    for (name, promise) in pyodide {
        let _ = Reflect::set(&files, &name.into(), &bytes(promise).await?);
    }
    Ok(Assets { script, pyodide: files })
}

async fn bytes(promise: Promise) -> Result<JsValue, Error> {
    JsFuture::from(promise)
        .await
        .map_err(|message| Error::AssetFailed(describe(&message)))
}

/// A promise of one file's bytes. One that failed is forgotten, so that the next sandbox tries again.
fn load_one(base: &str, name: &'static str, integrity: &Object) -> Promise {
    thread_local! {
        static LOADED: RefCell<HashMap<String, Promise>> = RefCell::default();
    }
    let url = format!("{base}{name}");
    if let Some(promise) = LOADED.with_borrow(|loaded| loaded.get(&url).cloned()) {
        return promise;
    }
    let integrity = get(integrity, name);
    let promise = future_to_promise({
        let url = url.clone();
        async move {
            let bytes = download(&url, &integrity).await;
            if bytes.is_err() {
                LOADED.with_borrow_mut(|loaded| loaded.remove(&url));
            }
            bytes.map_err(|problem| JsValue::from_str(&format!("{url}: {problem}; no guest was started")))
        }
    });
    LOADED.with_borrow_mut(|loaded| loaded.insert(url, promise.clone()));
    promise
}

/// The browser checks the file's SHA-256 (subresource integrity).
async fn download(url: &str, integrity: &JsValue) -> Result<JsValue, String> {
    let damaged = |error: JsValue| {
        format!(
            "could not be fetched, or is not the file of this release ({})",
            describe(&error)
        )
    };
    let init = object(&[("integrity", integrity)]);
    let response = JsFuture::from(fetch(url, &init).map_err(damaged)?)
        .await
        .map_err(damaged)?;
    let response: Response = response.unchecked_into();
    if !response.ok() {
        return Err(format!("the server answered {}", response.status()));
    }
    let buffer = JsFuture::from(response.array_buffer().map_err(damaged)?)
        .await
        .map_err(damaged)?;
    Ok(Uint8Array::new(&buffer).into())
}
