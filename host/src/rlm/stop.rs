//! How runs are ended from outside.

use std::sync::Arc;

use futures_util::future::select_all;
use tokio::sync::watch;

/// Ends work, and all work below it. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Stop {
    own: Arc<watch::Sender<bool>>,
    above: Vec<Arc<watch::Sender<bool>>>,
}

impl Default for Stop {
    fn default() -> Self {
        Self {
            own: Arc::new(watch::Sender::new(false)),
            above: Vec::new(),
        }
    }
}

impl Stop {
    /// One that also ends when this one does.
    pub(super) fn below(&self) -> Self {
        Self {
            above: self.all().cloned().collect(),
            ..Self::default()
        }
    }

    /// Ends it.
    pub fn end(&self) {
        self.own.send_replace(true);
    }

    /// Ends it when this is dropped.
    pub(super) fn on_drop(&self) -> EndOnDrop {
        EndOnDrop(self.clone())
    }

    /// Whether it was ended.
    pub(super) fn is_ended(&self) -> bool {
        self.all().any(|stop| *stop.borrow())
    }

    /// Waits for work, but no longer than until the end; the work is dropped then.
    pub(super) async fn wait<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let ends = self.all().map(|stop| {
            let mut stop = stop.subscribe();
            Box::pin(async move { stop.wait_for(|ended| *ended).await.is_ok() })
        });
        tokio::select! {
            biased;
            _ = select_all(ends) => None,
            done = work => Some(done),
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<watch::Sender<bool>>> {
        self.above.iter().chain([&self.own])
    }
}

/// Ends work when nobody waits for it any more.
pub(super) struct EndOnDrop(Stop);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}
