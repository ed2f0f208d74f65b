//! The requests to a store that is far away.

use std::future::Future;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::error::StateError;

/// The age up to which bytes count as young, so that they are not written again. It is far below the age of what is collected.
const YOUNG: Duration = Duration::from_secs(900);

/// A thread for requests. The threads of callers block, and may be those of another runtime. So requests have a runtime of their own,
/// which ends with this.
#[derive(Debug)]
pub(super) struct Requests {
    runtime: Handle,
    _end: oneshot::Sender<()>,
}

impl Requests {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`StateError::Io`] when no thread can be started.
    pub(super) fn start(name: &str) -> Result<Self, StateError> {
        let fail = |error| StateError::io("the thread of the storage cannot be started", error);
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(fail)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _ = runtime.block_on(ended);
            })
            .map_err(fail)?;
        Ok(Self {
            runtime: handle,
            _end: end,
        })
    }

    /// Runs requests for which nobody waits. They end with this.
    pub(super) fn begin(&self, requests: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(requests);
    }

    /// Runs requests to their end, or for so long. `None` if they did not end in that time.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        most: Duration,
        requests: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (tell, told) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let _ = tell.send(tokio::time::timeout(most, requests).await.ok());
        });
        told.recv().ok().flatten()
    }
}

/// The clock of the store, which may differ from the one here.
#[derive(Debug, Default)]
pub(super) struct FarClock(Mutex<Option<(i64, Instant)>>);

impl FarClock {
    /// Notes a time of the store, in milliseconds since 1970, and a time here that was not later.
    pub(super) fn note(&self, now_ms: i64, here: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now_ms, here));
    }

    /// Returns true if bytes were written a short time ago. They count as old as long as no time of the store is known.
    pub(super) fn is_young(&self, written_ms: i64) -> bool {
        let noted = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = noted.and_then(|(then, here)| i64::try_from(here.elapsed().as_millis()).ok()?.checked_add(then));
        now.is_some_and(|now| age(now, written_ms) < YOUNG)
    }
}

/// The age of bytes, by the clock of the store.
pub(super) fn age(now_ms: i64, written_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(now_ms.saturating_sub(written_ms)).unwrap_or_default())
}
