//! The files that a guest is made of. The page fetches and checks each once, and keeps it for the next guest.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use js_sys::{Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::{Blob, Response, SubtleCrypto};

use super::glue::{Glue, btoa, describe, fetch, get, object};
use sandglass_core::error::Error;

const GUEST: &str = "guest.js";
/// The files, by the names that the glue uses.
const PYODIDE: [(&str, &str); 2] = [("pyodide.asm.wasm", "wasm"), ("python_stdlib.zip", "stdlib")];

thread_local! {
    static LOADING: RefCell<HashMap<String, File>> = RefCell::default();
}

/// A file under way: a promise of its `Blob`.
#[derive(Clone)]
struct File {
    url: Rc<str>,
    integrity: JsValue,
    blob: Promise,
    verified: Rc<OnceCell<Promise>>,
}

impl File {
    /// A promise that resolves once the file's hash is verified. Hashing takes the page some milliseconds, so it begins when somebody first
    /// waits for it.
    async fn verified(&self) -> Result<(), Error> {
        let begin = || promise(&self.url, verify(self.blob.clone(), self.integrity.clone()));
        settle(self.verified.get_or_init(begin)).await.map(drop)
    }
}

/// All files, as `Blob`s: the browser keeps their bytes, and handing them to a guest copies nothing.
#[derive(Clone)]
pub(super) struct Assets {
    script: File,
    pyodide: Vec<File>,
}

impl Assets {
    /// Begins to fetch the files below `base` that nobody has asked for yet.
    pub(super) fn load(base: &str, glue: &Glue) -> Self {
        Self {
            script: load_one(base, GUEST, glue),
            pyodide: PYODIDE
                .into_iter()
                .map(|(file, _)| load_one(base, file, glue))
                .collect(),
        }
    }

    /// The worker's script.
    pub(super) async fn script(&self) -> Result<JsValue, Error> {
        self.script.verified().await?;
        settle(&self.script.blob).await
    }

    /// Pyodide's files. Trust them no more than a guest, until [`Self::verified`] says that all are right.
    pub(super) async fn pyodide(&self) -> Result<Object, Error> {
        let files = Object::new();
        for ((_, name), file) in PYODIDE.into_iter().zip(&self.pyodide) {
            let blob = settle(&file.blob).await?;
            let _ = Reflect::set(&files, &name.into(), &blob); // a fresh object takes any property
        }
        Ok(files)
    }

    /// Waits until all files are verified to be those of this release.
    pub(super) async fn verified(&self) -> Result<(), Error> {
        for file in [&self.script].into_iter().chain(&self.pyodide) {
            file.verified().await?;
        }
        Ok(())
    }
}

async fn settle(promise: &Promise) -> Result<JsValue, Error> {
    let settled = JsFuture::from(promise.clone()).await;
    settled.map_err(|message| Error::AssetFailed(describe(&message)))
}

/// Forgets all files, and the fetches under way.
pub(super) fn forget() {
    LOADING.with_borrow_mut(HashMap::clear);
}

/// Fetches one file. A failure is forgotten, so that the next sandbox tries again.
fn load_one(base: &str, name: &'static str, glue: &Glue) -> File {
    let url = format!("{base}{name}");
    if let Some(file) = LOADING.with_borrow(|loading| loading.get(&url).cloned()) {
        return file;
    }
    let integrity = get(&glue.integrity(), name);
    let request = glue.take_request(&url);
    let file = File {
        url: url.as_str().into(),
        blob: promise(&url, download(url.clone(), integrity.clone(), request)),
        integrity,
        verified: Rc::default(),
    };
    LOADING.with_borrow_mut(|loading| loading.insert(url, file.clone()));
    file
}

fn promise(url: &str, work: impl Future<Output = Result<JsValue, JsValue>> + 'static) -> Promise {
    let url = url.to_owned();
    let promise = future_to_promise(async move {
        let result = work.await;
        if result.is_err() {
            LOADING.with_borrow_mut(|loading| loading.remove(&url));
        }
        result.map_err(|problem| match problem.as_string() {
            Some(told) if told.starts_with(&url) => problem,
            _ => format!("{url}: {}; no guest was started", describe(&problem)).into(),
        })
    });
    let settled = promise.clone();
    // Those who wait for the file hear of the failure; the page must not report it as an unhandled rejection.
    spawn_local(async move { drop(JsFuture::from(settled).await) });
    promise
}

/// The browser's hashing; `None` in a context that is not secure.
pub(super) fn subtle() -> Option<SubtleCrypto> {
    get(&get(&js_sys::global(), "crypto"), "subtle").dyn_into().ok()
}

fn failed(error: &JsValue) -> JsValue {
    let why = describe(error);
    format!("could not be fetched, or is not the file of this release ({why})").into()
}

/// Fetches a file.
async fn download(url: String, integrity: JsValue, begun: Option<Promise>) -> Result<JsValue, JsValue> {
    // A context that is not secure has no `crypto.subtle`. There the browser checks the hash while it fetches, on the main thread.
    let init = match subtle() {
        Some(_) => Object::new(),
        None => object(&[("integrity", &integrity)]),
    };
    let response = async { JsFuture::from(begun.map_or_else(|| fetch(&url, &init), Ok)?).await };
    let response: Response = response.await.map_err(|error| failed(&error))?.unchecked_into();
    if !response.ok() {
        return Err(format!("the server answered {}", response.status()).into());
    }
    let blob = async { JsFuture::from(response.blob()?).await };
    blob.await.map_err(|error| failed(&error))
}

/// Checks the SHA-256 of a file.
async fn verify(blob: Promise, integrity: JsValue) -> Result<JsValue, JsValue> {
    let blob: Blob = JsFuture::from(blob).await?.unchecked_into();
    let Some(subtle) = subtle() else {
        return Ok(JsValue::UNDEFINED);
    };
    let digest = sha256(&subtle, &blob).await.map_err(|error| failed(&error))?;
    let found = integrity_of(&digest);
    if integrity.as_string().as_ref() != Some(&found) {
        let what = format!("is not the file of this release (its SHA-256 is {found})");
        return Err(format!("{what}; serve the package's dist/ whole").into());
    }
    Ok(JsValue::UNDEFINED)
}

/// The SHA-256 of a file, off the main thread.
pub(super) async fn sha256(subtle: &SubtleCrypto, blob: &Blob) -> Result<Vec<u8>, JsValue> {
    let bytes = JsFuture::from(blob.array_buffer()).await?;
    let digest = subtle.digest_with_str_and_buffer_source("SHA-256", bytes.unchecked_ref())?;
    Ok(Uint8Array::new(&JsFuture::from(digest).await?).to_vec())
}

/// A SHA-256 as subresource integrity metadata.
pub(super) fn integrity_of(digest: &[u8]) -> String {
    let found = btoa(&digest.iter().copied().map(char::from).collect::<String>());
    format!("sha256-{found}")
}
