//! The memory that guests start from. The first guest of a page unpacks the package's, or makes one; the page keeps it, and the browser keeps
//! it for the next page.
//!
//! A guest checks its snapshot, and makes a new one if it is damaged. Nobody gains from a forged one: whoever can write to this page's
//! cache can also write to the page.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md`.

use std::cell::RefCell;
use std::collections::HashMap;

use js_sys::{Function, Promise};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;
use web_sys::Blob;

use super::glue::{Glue, disregard};

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
/// gets the task of providing one. `given` is a promise of what a guest has already got of what the browser kept.
pub(super) async fn find(base: &str, glue: &Glue, given: Option<Promise>) -> (Option<Snapshot>, Option<Maker>) {
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
            let found = JsFuture::from(given.unwrap_or_else(|| glue.find_kept())).await;
            let blob = found.ok().and_then(|found| found.dyn_into().ok());
            blob.map(|blob| Snapshot { blob, proven: false })
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
    // Failing to store it only makes the first guest of the next page start slowly.
    disregard(glue.keep(&blob));
}
