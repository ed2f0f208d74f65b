//! The handle that ends runs from outside.

use tokio_util::sync::{CancellationToken, DropGuard};

/// Ends a run and all its child runs. Clones are the same handle.
#[derive(Debug, Clone, Default)]
pub struct Stop(CancellationToken);

impl Stop {
    /// A handle that also ends when this one does.
    pub(super) fn below(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Ends the run.
    pub fn end(&self) {
        self.0.cancel();
    }

    /// Ends the run when the guard is dropped.
    pub(super) fn on_drop(&self) -> DropGuard {
        self.0.clone().drop_guard()
    }

    /// Returns true after the end.
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
