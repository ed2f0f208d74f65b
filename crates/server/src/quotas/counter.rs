//! A number of units, of which each belongs to one holder at a time.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The units: places or bytes.
#[derive(Debug)]
pub(super) struct Counter {
    pub(super) free: Arc<Semaphore>,
    pub(super) most: usize,
}

impl Counter {
    pub(super) fn new(most: u64) -> Arc<Self> {
        let most = usize::try_from(most).map_or(Semaphore::MAX_PERMITS, |most| most.min(Semaphore::MAX_PERMITS));
        let free = Arc::new(Semaphore::new(most));
        Arc::new(Self { free, most })
    }

    pub(super) fn now(&self) -> u64 {
        (self.most - self.free.available_permits()) as u64
    }

    /// Takes units. Each call takes at most 4 GiB, because bodies are bounded below that.
    pub(super) fn take(&self, amount: usize) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.free)
            .try_acquire_many_owned(u32::try_from(amount).ok()?)
            .ok()
    }
}
