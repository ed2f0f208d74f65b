//! The use of a key on other servers of the same store. Quotas hold for all of them together.
//!
//! Decisions: `docs/internals/server.md`.

use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};

use sandglass_states::Used;

/// A function that tells the use on other servers; `None` while it does not count.
type Tells = Box<dyn Fn() -> Option<Used> + Send + Sync>;

/// The use of a key on other servers.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// Unset on a server without others.
    used: OnceLock<Tells>,
    /// The states that this server has written, as last told to the others.
    stored_here: Mutex<Used>,
}

impl fmt::Debug for Elsewhere {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Elsewhere").field("used", &self.now()).finish()
    }
}

impl Elsewhere {
    /// Sets the function that tells the use on other servers, once.
    pub(super) fn set(&self, used: impl Fn() -> Option<Used> + Send + Sync + 'static) {
        let _ = self.used.set(Box::new(used));
    }

    /// The use on other servers; `None` if it does not count.
    pub(super) fn now(&self) -> Option<Used> {
        self.used.get()?()
    }

    /// Notes the states that this server has written. No server counts those that it found.
    pub(super) fn stores_here(&self, used: Used) {
        *self.stored_here.lock().unwrap_or_else(PoisonError::into_inner) = used;
    }

    /// The states that this server has written.
    pub(super) fn stored_here(&self) -> Used {
        *self.stored_here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
