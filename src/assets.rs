//! The files that a guest is made of. The page fetches and checks each once, and keeps it for the next guest.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use js_sys::{Object, Promise, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::{Blob, Response, SubtleCrypto};

use super::glue::{Begun, Glue, btoa, describe, disregard, fetch, get, global, object};
use sandglass_core::error::Error;

/// The files by the names of `pyodide-glue/assets.js`.
const SCRIPT: &str = "script";
const WASM: &str = "wasm";
const LIBRARY: &str = "stdlib";
const SNAPSHOT: &str = "snapshot";

thread_local! {
    static LOADING: RefCell<HashMap<String, File>> = RefCell::default();
}

/// The form in which the page holds a file.
#[derive(Clone, Copy)]
enum Form {
    Bytes,
    Blob,
}

/// A file under way: a promise of its bytes or its `Blob`.
#[derive(Clone)]
struct File {
    url: Rc<str>,
    integrity: JsValue,
    contents: Promise,
    verified: Rc<OnceCell<Promise>>,
    /// True when the browser has the file for the next page.
    is_kept: Rc<Cell<bool>>,
}

impl File {
    /// A promise that resolves once the file's hash is verified. Hashing takes the page some milliseconds, so it begins when somebody first
    /// waits for it.
    async fn verified(&self) -> Result<(), Error> {
        let begin = || promise(&self.url, verify(self.contents.clone(), self.integrity.clone()));
        settle(self.verified.get_or_init(begin)).await.map(drop)
    }
}

/// The files of a start. The large ones are `Blob`s: the browser keeps their bytes, and handing them to a guest copies nothing.
#[derive(Clone)]
pub(super) struct Assets {
    script: File,
    wasm: File,
    /// The package's snapshot, once somebody needs it.
    snapshot: OnceCell<File>,
}

impl Assets {
    /// Begins to fetch the files that nobody has asked for yet.
    pub(super) fn load(base: &str, glue: &Glue) -> Self {
        Self {
            script: load_one(base, SCRIPT, Form::Bytes, glue),
            wasm: load_one(base, WASM, Form::Blob, glue),
            snapshot: OnceCell::new(),
        }
    }

    /// The worker's script, as bytes.
    pub(super) async fn script(&self) -> Result<JsValue, Error> {
        self.script.verified().await?;
        settle(&self.script.contents).await
    }

    /// The module. Trust it no more than a guest, until [`Self::verified`] says that all files are right.
    pub(super) async fn wasm(&self) -> Result<JsValue, Error> {
        settle(&self.wasm.contents).await
    }

    /// The package's snapshot, for a page that has no other yet. `None` where data is to be saved, or the browser tells that the line is slow
    /// (`3g` or less): making one takes less time there.
    pub(super) async fn snapshot(&self, base: &str, glue: &Glue) -> Option<JsValue> {
        let connection = get(&get(&global(), "navigator"), "connection");
        let kind = get(&connection, "effectiveType").as_string();
        if kind.is_some_and(|kind| kind != "4g") || get(&connection, "saveData").is_truthy() {
            return None;
        }
        let file = load_one(base, SNAPSHOT, Form::Blob, glue);
        let blob = settle(&file.contents).await.ok()?; // without it, the guest makes one
        let _ = self.snapshot.set(file);
        Some(blob)
    }

    /// Forgets the module if it is damaged and the browser has kept it since an earlier page. Returns false otherwise.
    pub(super) async fn forget_damaged_module(&self, glue: &Glue) -> bool {
        let File { url, is_kept, .. } = &self.wasm;
        if !is_kept.get() || self.wasm.verified().await.is_ok() {
            return false;
        }
        // Another sandbox may have fetched the file, and kept it, meanwhile.
        let is_this = |file: &File| Rc::ptr_eq(&file.is_kept, is_kept);
        if LOADING.with_borrow(|loading| loading.get(&**url).is_none_or(is_this)) {
            disregard(glue.forget_module());
            LOADING.with_borrow_mut(|loading| loading.remove(&**url));
        }
        true
    }

    /// Waits until all files are verified to be those of this release.
    pub(super) async fn verified(&self) -> Result<(), Error> {
        for file in [&self.script]
            .into_iter()
            .chain([&self.wasm])
            .chain(self.snapshot.get())
        {
            file.verified().await?;
        }
        Ok(())
    }
}

/// The verified archive of the standard library, which a guest may never read. Guests that start from a snapshot get it afterwards, so nothing fetches it before.
pub(super) async fn library(base: &str, glue: &Glue) -> Result<JsValue, Error> {
    let file = load_one(base, LIBRARY, Form::Blob, glue);
    file.verified().await?;
    settle(&file.contents).await
}

/// Keeps the verified module for the next page, unless the browser has it already.
pub(super) async fn keep_module(base: &str, glue: &Glue) {
    let file = load_one(base, WASM, Form::Blob, glue);
    // Failing to store it only makes the first guest of the next page start slowly.
    if file.verified().await.is_ok()
        && !file.is_kept.replace(true)
        && let Ok(module) = settle(&file.contents).await
    {
        disregard(glue.keep_module(&module));
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
fn load_one(base: &str, asset: &'static str, form: Form, glue: &Glue) -> File {
    let url = match glue.asset_url(asset, base) {
        Ok(url) => url,
        Err(why) => {
            let contents = Promise::reject(&why);
            disregard(contents.clone()); // those who wait for the file hear of it
            return File {
                url: asset.into(),
                integrity: JsValue::UNDEFINED,
                contents,
                verified: Rc::default(),
                is_kept: Rc::default(),
            };
        }
    };
    if let Some(file) = LOADING.with_borrow(|loading| loading.get(&url).cloned()) {
        return file;
    }
    let integrity = get(&glue.integrity(), asset);
    let request = glue.take_request(&url);
    let is_kept: Rc<Cell<bool>> = Rc::default();
    let work = download(
        glue.clone(),
        url.clone(),
        integrity.clone(),
        form,
        request,
        is_kept.clone(),
    );
    let file = File {
        url: url.as_str().into(),
        contents: promise(&url, work),
        integrity,
        verified: Rc::default(),
        is_kept,
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
            _ => format!("{url}: {}", describe(&problem)).into(),
        })
    });
    disregard(promise.clone()); // those who wait for the file hear of the failure
    promise
}

/// The browser's hashing; `None` in a context that is not secure.
pub(super) fn subtle() -> Option<SubtleCrypto> {
    get(&get(&global(), "crypto"), "subtle").dyn_into().ok()
}

fn failed(error: &JsValue) -> JsValue {
    let why = describe(error);
    format!("could not be fetched, or is not the file of this release ({why})").into()
}

/// Fetches a file, if its request was not begun earlier.
async fn download(
    glue: Glue,
    url: String,
    integrity: JsValue,
    form: Form,
    begun: Option<Begun>,
    is_kept: Rc<Cell<bool>>,
) -> Result<JsValue, JsValue> {
    // A context that is not secure has no `crypto.subtle`. There the browser checks the hash while it fetches, on the main thread.
    let init = match subtle() {
        Some(_) => Object::new(),
        None => object(&[("integrity", &integrity)]),
    };
    let (request, body) = (
        begun.as_ref().map(Begun::response),
        begun.as_ref().and_then(Begun::body),
    );
    let response = async { JsFuture::from(request.map_or_else(|| fetch(&url, &init), Ok)?).await };
    let response = response
        .await
        .map_err(|error| failed(&glue.failed_request(&url, &error).into()))?;
    let response: Response = response.unchecked_into();
    is_kept.set(begun.as_ref().and_then(Begun::kept) == Some(true));
    if let Some(problem) = glue.wrong_answer(&url, &response) {
        return Err(problem.into());
    }
    let contents = async {
        let body = match (body, form) {
            (Some(body), _) => body,
            (None, Form::Blob) => response.blob()?,
            (None, Form::Bytes) => response.array_buffer()?,
        };
        JsFuture::from(body).await
    };
    contents.await.map_err(|error| failed(&error))
}

/// Checks the SHA-256 of a file.
async fn verify(contents: Promise, integrity: JsValue) -> Result<JsValue, JsValue> {
    let contents = JsFuture::from(contents).await?;
    let Some(subtle) = subtle() else {
        return Ok(JsValue::UNDEFINED);
    };
    let digest = match contents.dyn_ref() {
        Some(blob) => sha256(&subtle, blob).await,
        None => digest(&subtle, &contents).await,
    };
    let digest = digest.map_err(|error| failed(&error))?;
    let found = integrity_of(&digest);
    if integrity.as_string().as_ref() != Some(&found) {
        let what = format!("is not the file of this release (its SHA-256 is {found})");
        return Err(format!("{what}; serve the package's dist/ whole").into());
    }
    Ok(JsValue::UNDEFINED)
}

/// The SHA-256 of a file, off the main thread.
pub(super) async fn sha256(subtle: &SubtleCrypto, blob: &Blob) -> Result<Vec<u8>, JsValue> {
    digest(subtle, &JsFuture::from(blob.array_buffer()).await?).await
}

async fn digest(subtle: &SubtleCrypto, bytes: &JsValue) -> Result<Vec<u8>, JsValue> {
    let digest = subtle.digest_with_str_and_buffer_source("SHA-256", bytes.unchecked_ref())?;
    Ok(Uint8Array::new(&JsFuture::from(digest).await?).to_vec())
}

/// A SHA-256 as subresource integrity metadata.
pub(super) fn integrity_of(digest: &[u8]) -> String {
    let found = btoa(&digest.iter().copied().map(char::from).collect::<String>());
    format!("sha256-{found}")
}
