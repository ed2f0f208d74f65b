//! How runs are ended from outside.

use tokio_util::sync::{CancellationToken, DropGuard};

/// Ends work, and all work below it. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    /// One that also ends when this one does.
    pub(super) fn below(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Ends it.
    pub fn end(&self) {
        self.0.cancel();
    }

    /// Ends it when this is dropped.
    pub(super) fn on_drop(&self) -> DropGuard {
        self.0.clone().drop_guard()
    }

    /// Returns true when it was ended.
    pub(super) fn is_ended(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits for work, but no longer than until the end; the work is dropped then.
    pub(super) async fn wait<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.0.cancelled() => None,
            done = work => Some(done),
        }
    }
}
