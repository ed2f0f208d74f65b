//! The files of packages. The page fetches and verifies them, and shares them between its sandboxes. The browser keeps them for the next
//! page.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use js_sys::{Array, Function, Object, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, future_to_promise, spawn_local};
use web_sys::{Blob, Cache, CacheStorage, Response};

use super::assets;
use super::body::Chunks;
use super::glue::{describe, fetch, get, global, object};
use sandglass_core::error::Error;
use sandglass_core::packages::Wheel;

const CACHE: &str = "sandglass-packages";
/// The prefix of the cache's keys, which have to be addresses. Nothing is fetched from this one.
const ADDRESS: &str = "https://package.invalid/";
/// The most files that the browser keeps. The oldest are removed first.
const MAX_CACHED: u32 = 500;
/// The most files that the page fetches at the same time.
const MAX_DOWNLOADS: u32 = 6;

/// Hears a download's progress: the bytes received, and the size in bytes if known.
pub(super) type Watcher = Rc<dyn Fn(f64, Option<f64>)>;

thread_local! {
    /// Downloads by the file's hash, or by its address when the hash is unknown.
    static WHEELS: RefCell<HashMap<String, Download>> = RefCell::default();
    static RUNNING: Cell<u32> = const { Cell::new(0) };
    static WAITING: RefCell<VecDeque<Function>> = RefCell::default();
}

/// The outcome of a download; `None` while it is under way.
type Outcome = Rc<RefCell<Option<Result<Blob, Error>>>>;

/// A download: under way, or finished.
#[derive(Clone)]
struct Download {
    /// Resolves when the outcome is there.
    done: Promise,
    result: Outcome,
    watchers: Rc<RefCell<Vec<Watcher>>>,
}

/// A file that a caller waits for.
pub(super) struct Wanted {
    download: Download,
    watcher: Watcher,
    url: String,
}

/// Begins to fetch a wheel's file. Callers that want the same file share the download.
pub(super) fn want(wheel: &Wheel, watcher: Watcher) -> Wanted {
    let key = wheel.sha256.clone().unwrap_or_else(|| wheel.url.clone());
    let known = WHEELS.with_borrow(|wheels| wheels.get(&key).cloned());
    let download = known.unwrap_or_else(|| begin(key, wheel.clone()));
    download.watchers.borrow_mut().push(watcher.clone());
    Wanted {
        download,
        watcher,
        url: wheel.url.clone(),
    }
}

impl Wanted {
    /// Waits for the verified file.
    pub(super) async fn blob(self) -> Result<Blob, Error> {
        let _ = JsFuture::from(self.download.done).await; // never rejects
        let result = self.download.result.borrow().clone();
        let blob = result.unwrap_or_else(|| Err(Error::AssetFailed(format!("{}: it was not fetched", self.url))))?;
        (self.watcher)(blob.size(), Some(blob.size()));
        Ok(blob)
    }
}

/// Begins a download. A failure is forgotten, so that the next caller tries again.
fn begin(key: String, wheel: Wheel) -> Download {
    let result = Outcome::default();
    let watchers: Rc<RefCell<Vec<Watcher>>> = Rc::default();
    let (slot, heard, name) = (result.clone(), watchers.clone(), key.clone());
    let done = future_to_promise(async move {
        let got = obtain(&wheel, &heard).await;
        if got.is_err() {
            WHEELS.with_borrow_mut(|wheels| wheels.remove(&name));
        }
        heard.borrow_mut().clear();
        slot.replace(Some(got));
        Ok(JsValue::UNDEFINED)
    });
    let download = Download { done, result, watchers };
    WHEELS.with_borrow_mut(|wheels| wheels.insert(key, download.clone()));
    download
}

async fn obtain(wheel: &Wheel, watchers: &RefCell<Vec<Watcher>>) -> Result<Blob, Error> {
    if let Some(sha256) = &wheel.sha256
        && let Ok(Some(blob)) = look_up(sha256).await
        && verify(wheel, sha256, &blob).await.is_ok()
    {
        return Ok(blob);
    }
    let blob = {
        let _slot = Slot::take().await;
        download(wheel, watchers).await?
    };
    if let Some(sha256) = &wheel.sha256 {
        verify(wheel, sha256, &blob).await?;
        let (sha256, blob) = (sha256.clone(), blob.clone());
        // Failing to store it only means that the next page fetches it again.
        spawn_local(async move { drop(store(&sha256, &blob).await) });
    }
    Ok(blob)
}

async fn download(wheel: &Wheel, watchers: &RefCell<Vec<Watcher>>) -> Result<Blob, Error> {
    let failed = |why: String| {
        let Wheel { name, version, url, .. } = wheel;
        let advice = "serve it there, or say with packageBaseUrl where the files of the lock file are";
        Error::AssetFailed(format!(
            "{name} {version}: {url} could not be fetched: {why}; nothing was installed; {advice}"
        ))
    };
    // In a context that is not secure, the browser checks the hash while it fetches.
    let init = match (&wheel.sha256, assets::subtle()) {
        (Some(sha256), None) => object(&[("integrity", &assets::integrity_of(&bytes_of(sha256)).into())]),
        _ => Object::new(),
    };
    let response = async { JsFuture::from(fetch(&wheel.url, &init)?).await };
    let response: Response = response
        .await
        .map_err(|error| failed(describe(&error)))?
        .unchecked_into();
    if !response.ok() {
        return Err(failed(format!("the server answered {}", response.status())));
    }
    let read = read(&response, watchers).await;
    read.map_err(|error| failed(describe(&error)))
}

/// Reads the body of a response as it comes, and reports the progress.
async fn read(response: &Response, watchers: &RefCell<Vec<Watcher>>) -> Result<Blob, JsValue> {
    let length = response.headers().get("content-length").ok().flatten();
    let total = length.and_then(|length| length.parse::<f64>().ok());
    let pieces = Array::new();
    let mut loaded = 0.0;
    let mut chunks = Chunks::of(response)?;
    while let Some(piece) = chunks.next().await? {
        loaded += f64::from(piece.length());
        pieces.push(&piece);
        // A compressed response has more bytes than its header says.
        let total = total.filter(|total| loaded < *total);
        let heard = watchers.borrow().clone();
        if total.is_some() {
            heard.iter().for_each(|watcher| watcher(loaded, total));
        }
    }
    Blob::new_with_u8_array_sequence(&pieces)
}

async fn verify(wheel: &Wheel, sha256: &str, blob: &Blob) -> Result<(), Error> {
    let Some(subtle) = assets::subtle() else { return Ok(()) };
    let Wheel { file_name, url, .. } = wheel;
    let found = assets::sha256(&subtle, blob)
        .await
        .map_err(|error| Error::AssetFailed(format!("{file_name}: it could not be checked: {}", describe(&error))))?;
    let found: String = found.iter().map(|byte| format!("{byte:02x}")).collect();
    if found == sha256 {
        return Ok(());
    }
    Err(Error::Integrity(format!(
        "{file_name}: its SHA-256 is {found}, and has to be {sha256}; nothing was installed. What {url} serves is damaged, or another file"
    )))
}

fn bytes_of(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    let pairs = digits.filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs.filter_map(|pair| u8::from_str_radix(pair, 16).ok()).collect()
}

/// One of the downloads that may run at the same time. Dropping it lets the next one begin.
struct Slot;

impl Slot {
    async fn take() -> Self {
        if RUNNING.get() >= MAX_DOWNLOADS {
            let turn = Promise::new(&mut |resolve, _| WAITING.with_borrow_mut(|waiting| waiting.push_back(resolve)));
            let _ = JsFuture::from(turn).await; // the download that has ended passes its slot on
        } else {
            RUNNING.set(RUNNING.get() + 1);
        }
        Self
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        match WAITING.with_borrow_mut(VecDeque::pop_front) {
            Some(next) => drop(next.call0(&JsValue::UNDEFINED)),
            None => RUNNING.set(RUNNING.get().saturating_sub(1)),
        }
    }
}

/// The browser's cache. An error in a context that is not secure.
async fn open() -> Result<Cache, JsValue> {
    let caches: CacheStorage = get(&global(), "caches").dyn_into()?;
    JsFuture::from(caches.open(CACHE)).await?.dyn_into()
}

async fn look_up(sha256: &str) -> Result<Option<Blob>, JsValue> {
    let found = JsFuture::from(open().await?.match_with_str(&format!("{ADDRESS}{sha256}"))).await?;
    let Ok(response) = found.dyn_into::<Response>() else {
        return Ok(None);
    };
    Ok(JsFuture::from(response.blob()?).await?.dyn_into().ok())
}

async fn store(sha256: &str, blob: &Blob) -> Result<(), JsValue> {
    let cache = open().await?;
    let known: Array = JsFuture::from(cache.keys()).await?.unchecked_into();
    for index in 0..(known.length() + 1).saturating_sub(MAX_CACHED) {
        JsFuture::from(cache.delete_with_request(known.get(index).unchecked_ref())).await?;
    }
    let response = Response::new_with_opt_blob(Some(blob))?;
    JsFuture::from(cache.put_with_str(&format!("{ADDRESS}{sha256}"), &response))
        .await
        .map(drop)
}
