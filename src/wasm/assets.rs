//! The files that a guest is made of: fetched by the page, checked, kept for the next guest.

use std::cell::RefCell;
use std::collections::HashMap;

use js_sys::{Array, Object, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::{Blob, Response, SubtleCrypto};

use super::glue::{Glue, btoa, describe, fetch, get, object};
use crate::error::Error;

const GUEST: &str = "guest.js";
const PYODIDE: [&str; 2] = ["pyodide.asm.wasm", "python_stdlib.zip"];

/// All assets, as `Blob`s: the browser keeps their bytes, and handing them to a guest copies nothing.
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
    let names = [GUEST].into_iter().chain(PYODIDE);
    let all: Array = names.map(|name| load_one(base, name, &integrity)).collect();
    let loaded = JsFuture::from(Promise::all(&all)).await;
    let loaded: Array = loaded
        .map_err(|message| Error::AssetFailed(describe(&message)))?
        .unchecked_into();
    let files: Vec<JsValue> = loaded.iter().skip(1).collect();
    let pyodide: Vec<(&str, &JsValue)> = PYODIDE.into_iter().zip(&files).collect();
    Ok(Assets {
        script: loaded.get(0),
        pyodide: object(&pyodide),
    })
}

/// Begins to fetch everything below `base`; [`load`] waits for it.
pub(super) fn prefetch(base: &str, glue: &Glue) {
    for name in [GUEST].into_iter().chain(PYODIDE) {
        let promise = load_one(base, name, &glue.integrity());
        spawn_local(async move { drop(JsFuture::from(promise).await) }); // what failed is told by `load`
    }
}

/// Forgets what is being fetched, and what was.
pub(super) fn forget() {
    LOADED.with_borrow_mut(HashMap::clear);
}

thread_local! {
    static LOADED: RefCell<HashMap<String, Promise>> = RefCell::default();
}

/// A promise of one file. One that failed is forgotten, so that the next sandbox tries again.
fn load_one(base: &str, name: &'static str, integrity: &Object) -> Promise {
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

/// Fetches a file and checks its SHA-256 against `integrity`.
async fn download(url: &str, integrity: &JsValue) -> Result<JsValue, String> {
    let failed = |error: JsValue| {
        format!(
            "could not be fetched, or is not the file of this release ({})",
            describe(&error)
        )
    };
    let subtle = get(&get(&js_sys::global(), "crypto"), "subtle")
        .dyn_into::<SubtleCrypto>()
        .ok();
    // Off the main thread where the page's context is secure; else the browser does it while it fetches.
    let init = match subtle {
        Some(_) => Object::new(),
        None => object(&[("integrity", integrity)]),
    };
    let response = JsFuture::from(fetch(url, &init).map_err(failed)?)
        .await
        .map_err(failed)?;
    let response: Response = response.unchecked_into();
    if !response.ok() {
        return Err(format!("the server answered {}", response.status()));
    }
    let blob = JsFuture::from(response.blob().map_err(failed)?).await.map_err(failed)?;
    if let Some(subtle) = subtle {
        let bytes = blob.unchecked_ref::<Blob>().array_buffer();
        let bytes = JsFuture::from(bytes).await.map_err(failed)?;
        let digest = subtle
            .digest_with_str_and_buffer_source("SHA-256", bytes.unchecked_ref())
            .map_err(failed)?;
        let digest = Uint8Array::new(&JsFuture::from(digest).await.map_err(failed)?).to_vec();
        let found = format!(
            "sha256-{}",
            btoa(&digest.into_iter().map(char::from).collect::<String>())
        );
        if integrity.as_string().as_deref() != Some(found.as_str()) {
            return Err(format!(
                "is not the file of this release (its SHA-256 is {found}); serve the package's dist/ whole"
            ));
        }
    }
    Ok(blob)
}
