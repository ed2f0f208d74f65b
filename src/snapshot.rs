//! The memory that guests start from. The first guest of a page unpacks the package's, or makes one; the page keeps it, and the browser keeps
//! it for the next page.
//!
//! A guest checks its snapshot, and makes a new one if it is damaged. Nobody gains from a forged one: whoever can write to this page's
//! cache can also write to the page.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::RefCell;
use std::collections::HashMap;

use js_sys::{Array, Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};
use web_sys::{Blob, Cache, CacheStorage, Response};

use super::glue::{Glue, get, global};

const CACHE: &str = "sandglass-snapshots";
/// The prefix of the cache's keys, which have to be addresses. Nothing is fetched from this one.
const ADDRESS: &str = "https://snapshot.invalid/";

thread_local! {
    /// Snapshots by the address of the assets.
    static KEPT: RefCell<HashMap<String, Snapshot>> = RefCell::default();
    /// Promises that resolve when a snapshot was made or has failed, by the address of the assets.
    static MAKING: RefCell<HashMap<String, (Promise, Function)>> = RefCell::default();
}

/// The memory that guests start from.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub(super) blob: Blob,
    /// True when a guest of this page has started from the snapshot. Later guests do not check it again.
    pub(super) proven: bool,
}

/// The task of making the page's snapshot, or of checking the one that the browser kept. Others wait until the task is dropped: guests of
/// two different snapshots could not take over from each other.
pub(super) struct Maker {
    base: String,
}

impl Drop for Maker {
    fn drop(&mut self) {
        if let Some((_, done)) = MAKING.with_borrow_mut(|making| making.remove(&self.base)) {
            let _ = done.call0(&JsValue::UNDEFINED);
        }
    }
}

/// Finds the snapshot for guests made of the files below `base`. If there is none, or no guest has started from it yet, the caller also
/// gets the task of providing one.
pub(super) async fn find(base: &str, glue: &Glue) -> (Option<Snapshot>, Option<Maker>) {
    let kept = || KEPT.with_borrow(|kept| kept.get(base).cloned());
    let making = || MAKING.with_borrow(|making| making.get(base).map(|(promise, _)| promise.clone()));
    loop {
        if let Some(snapshot) = kept().filter(|snapshot| snapshot.proven) {
            return (Some(snapshot), None);
        }
        let Some(making) = making() else { break };
        let _ = JsFuture::from(making).await;
    }
    let mut done = None;
    let promise = Promise::new(&mut |resolve, _| done = Some(resolve));
    if let Some(done) = done {
        MAKING.with_borrow_mut(|making| making.insert(base.to_owned(), (promise, done)));
    }
    let maker = Maker { base: base.to_owned() };
    let snapshot = match kept() {
        None => {
            let found = look_up(&key(glue)).await.ok().flatten();
            found.map(|blob| Snapshot { blob, proven: false })
        }
        unproven => unproven,
    };
    if let Some(snapshot) = &snapshot {
        KEPT.with_borrow_mut(|kept| kept.insert(base.to_owned(), snapshot.clone()));
    }
    (snapshot, Some(maker))
}

/// Notes that a guest has started from the snapshot.
pub(super) fn prove(base: &str) {
    KEPT.with_borrow_mut(|kept| {
        if let Some(snapshot) = kept.get_mut(base) {
            snapshot.proven = true;
        }
    });
}

/// Keeps a snapshot in the page, and in the browser's cache if possible.
pub(super) fn keep(base: &str, glue: &Glue, blob: Blob) {
    KEPT.with_borrow_mut(|kept| {
        kept.insert(
            base.to_owned(),
            Snapshot {
                blob: blob.clone(),
                proven: true,
            },
        )
    });
    let key = key(glue);
    // Failing to store it only makes the first guest of the next page start slowly.
    spawn_local(async move { drop(store(&key, &blob).await) });
}

/// The cache's key. Guests that are made of other files have another.
fn key(glue: &Glue) -> String {
    format!("{ADDRESS}{}", glue.build())
}

/// The browser's cache. An error in a context that is not secure.
async fn open() -> Result<Cache, JsValue> {
    let caches: CacheStorage = get(&global(), "caches").dyn_into()?;
    JsFuture::from(caches.open(CACHE)).await?.dyn_into()
}

async fn look_up(key: &str) -> Result<Option<Blob>, JsValue> {
    let found = JsFuture::from(open().await?.match_with_str(key)).await?;
    let Ok(response) = found.dyn_into::<Response>() else {
        return Ok(None);
    };
    Ok(JsFuture::from(response.blob()?).await?.dyn_into().ok())
}

async fn store(key: &str, blob: &Blob) -> Result<(), JsValue> {
    let cache = open().await?;
    let old: Array = JsFuture::from(cache.keys()).await?.unchecked_into();
    for request in old.iter() {
        JsFuture::from(cache.delete_with_request(request.unchecked_ref())).await?;
    }
    let response = Response::new_with_opt_blob(Some(blob))?;
    JsFuture::from(cache.put_with_str(key, &response)).await.map(drop)
}
