//! Calls that may change a sandbox's state, counted for whoever keeps the state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Sandbox;

/// Counts the begin and the end of each call that may change the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Changes(Arc<AtomicU64>);

impl Changes {
    /// The number so far. A state that was written is the present one as long as this is the number from before it was written.
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn add(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Counts the end of a call.
pub(super) struct Counted<'a>(Option<&'a Changes>);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if let Some(changes) = self.0 {
            changes.add();
        }
    }
}

impl Sandbox {
    /// The same sandbox. Calls of this handle, and of its clones, are counted.
    pub(crate) fn counting(mut self, changes: Changes) -> Self {
        self.changes = Some(changes);
        self
    }

    /// Counts a call, and its end when this is dropped.
    pub(super) fn counted(&self) -> Counted<'_> {
        let changes = self.changes.as_ref();
        if let Some(changes) = changes {
            changes.add();
        }
        Counted(changes)
    }
}
