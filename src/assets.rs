//! The files that a guest is made of. The page fetches and checks each once, and keeps it for the next guest.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use js_sys::{Object, Promise, Reflect, Uint8Array};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise};
use web_sys::{Blob, Response, SubtleCrypto};

use super::glue::{Glue, btoa, describe, disregard, fetch, get, object};
use sandglass_core::error::Error;

/// The files by the names of `pyodide-glue/assets.js`.
const SCRIPT: &str = "script";
const PYODIDE: [&str; 2] = ["wasm", "stdlib"];
const SNAPSHOT: &str = "snapshot";

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
    /// The package's snapshot, once somebody needs it.
    snapshot: OnceCell<File>,
}

impl Assets {
    /// Begins to fetch the files that nobody has asked for yet.
    pub(super) fn load(base: &str, glue: &Glue) -> Self {
        Self {
            script: load_one(base, SCRIPT, glue),
            pyodide: PYODIDE.map(|asset| load_one(base, asset, glue)).to_vec(),
            snapshot: OnceCell::new(),
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
        for (asset, file) in PYODIDE.into_iter().zip(&self.pyodide) {
            let blob = settle(&file.blob).await?;
            let _ = Reflect::set(&files, &asset.into(), &blob); // a fresh object takes any property
        }
        Ok(files)
    }

    /// The package's snapshot, for a page that has no other yet. `None` where data is to be saved, or the browser tells that the line is slow
    /// (`3g` or less): making one takes less time there.
    pub(super) async fn snapshot(&self, base: &str, glue: &Glue) -> Result<Option<JsValue>, Error> {
        let connection = get(&get(&js_sys::global(), "navigator"), "connection");
        let kind = get(&connection, "effectiveType").as_string();
        if kind.is_some_and(|kind| kind != "4g") || get(&connection, "saveData").is_truthy() {
            return Ok(None);
        }
        let file = self.snapshot.get_or_init(|| load_one(base, SNAPSHOT, glue));
        settle(&file.blob).await.map(Some)
    }

    /// Waits until all files are verified to be those of this release.
    pub(super) async fn verified(&self) -> Result<(), Error> {
        for file in [&self.script]
            .into_iter()
            .chain(&self.pyodide)
            .chain(self.snapshot.get())
        {
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
fn load_one(base: &str, asset: &'static str, glue: &Glue) -> File {
    let url = match glue.asset_url(asset, base) {
        Ok(url) => url,
        Err(why) => {
            let blob = Promise::reject(&why);
            disregard(blob.clone()); // those who wait for the file hear of it
            return File {
                url: asset.into(),
                integrity: JsValue::UNDEFINED,
                blob,
                verified: Rc::default(),
            };
        }
    };
    if let Some(file) = LOADING.with_borrow(|loading| loading.get(&url).cloned()) {
        return file;
    }
    let integrity = get(&glue.integrity(), asset);
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
    disregard(promise.clone()); // those who wait for the file hear of the failure
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
    let response = response.await.map_err(|error| failed(&other_origin(&url, &error)))?;
    let response: Response = response.unchecked_into();
    if let Some(problem) = wrong_answer(&response) {
        return Err(format!("{problem}. {}", remedy(&url)).into());
    }
    let blob = async { JsFuture::from(response.blob()?).await };
    blob.await.map_err(|error| failed(&error))
}

/// The reason why an answer cannot be the file. Servers answer with their start page where an application has taken over all addresses.
fn wrong_answer(response: &Response) -> Option<String> {
    if !response.ok() {
        return Some(format!("the server answered {}", response.status()));
    }
    let kind = response
        .headers()
        .get("content-type")
        .ok()
        .flatten()
        .unwrap_or_default();
    kind.contains("text/html")
        .then(|| "the server answered with a web page (text/html), so the file is not there".to_owned())
}

/// The advice for a file that is not where the bundle looks for it.
fn remedy(url: &str) -> &'static str {
    if url.contains("/.vite/") {
        "Vite moved the package's code away from its files: set optimizeDeps: { exclude: [\"sandglass\"] } in vite.config.js"
    } else {
        "If your bundler does not copy the files of packages, copy node_modules/sandglass/dist into your site and pass its address by the \
         option assetsUrl"
    }
}

/// The reason of a failed request. Browsers do not tell code that CORS was the reason.
fn other_origin(url: &str, error: &JsValue) -> JsValue {
    let origin = |url: &str| web_sys::Url::new(url).map(|url| url.origin());
    let own = get(&get(&js_sys::global(), "location"), "href").as_string();
    match (own.map(|own| origin(&own)), origin(url)) {
        (Some(Ok(own)), Ok(other)) if own != other => {
            let hint = format!("its server must allow pages of {own} to read it: Access-Control-Allow-Origin");
            format!("{}; {hint}", describe(error)).into()
        }
        _ => error.clone(),
    }
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
