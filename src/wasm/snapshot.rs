//! The memory that guests start from: made by the first one, kept by the page, and by the browser for the next page.

use std::cell::RefCell;
use std::collections::HashMap;

use web_sys::Blob;

use super::glue::Glue;

thread_local! {
    /// By where the assets are.
    static KEPT: RefCell<HashMap<String, Blob>> = RefCell::default();
}

/// The snapshot for guests made of the files below `base`.
pub(super) async fn find(base: &str, _glue: &Glue) -> Option<Blob> {
    KEPT.with_borrow(|kept| kept.get(base).cloned())
}

/// Keeps a snapshot.
pub(super) fn keep(base: &str, _glue: &Glue, blob: Blob) {
    KEPT.with_borrow_mut(|kept| kept.insert(base.to_owned(), blob));
}
