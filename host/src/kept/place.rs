//! The place of a kept sandbox in a store.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use tokio::sync::{Mutex, OwnedSemaphorePermit, watch};

use sandglass_core::Error;
use serde_json::Value as Json;

use sandglass_states::{FolderStore, MasterKey, ServerId, SessionId, StateError, States, Tenant};

use super::{failed, refused};
use crate::driver::journal::bounds::{KeptBounds, MOST_BYTES};
use crate::driver::journal::{IsOwed, JournalPlace, Lease, Leased};

/// The name of the key's file in a folder.
pub(super) const KEY_FILE: &str = "key";

/// The place of a kept sandbox: a session of a tenant of a store. One sandbox at a time may be open there.
#[derive(Debug, Clone)]
pub struct KeptPlace {
    tenant: Arc<Tenant>,
    session: SessionId,
    /// Held by the sandbox that is open, and by all that may still write for it.
    open: Arc<Mutex<IsOwed>>,
    /// True if the sandbox removes what it needs no more, because nobody else does.
    pub(super) collects: bool,
    bounds: Option<Arc<KeptBounds>>,
    about: Arc<std::sync::Mutex<Json>>,
}

impl KeptPlace {
    /// A session in a store. The caller [collects](Tenant::collect) what its tenant needs no more.
    pub fn new(tenant: Arc<Tenant>, session: SessionId) -> Self {
        Self {
            tenant,
            session,
            open: Arc::default(),
            collects: false,
            bounds: None,
            about: Arc::default(),
        }
    }

    /// The place, within these bounds.
    #[must_use]
    pub fn within(mut self, bounds: Arc<KeptBounds>) -> Self {
        self.bounds = Some(bounds);
        self
    }

    /// A folder of its own, which is made if it is missing. What is in it is encrypted with the key in its file `key`.
    ///
    /// # Errors
    /// [`Error::PersistInUse`] when another process has it open; [`Error::PersistFailed`] when it cannot be used.
    pub fn in_folder(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let open = || {
            let store = FolderStore::open(path)?;
            let key = MasterKey::from_file_or_new(&store.path().join(KEY_FILE))?;
            States::new(Arc::new(store), key)?.tenant("")
        };
        let tenant = open().map_err(|error| match error {
            StateError::InUse(why) => Error::PersistInUse(why),
            error => failed(error),
        });
        let tenant = Arc::new(tenant?);
        let place = Self::new(tenant, session_of_folder()?);
        Ok(Self {
            collects: true,
            ..place
        })
    }

    /// Sets facts that the states have from now on, in [`Head::about`](sandglass_states::Head::about).
    pub fn set_about(&self, about: Json) {
        *self.about.lock().unwrap_or_else(PoisonError::into_inner) = about;
    }

    /// Removes what is kept here: the state, and the journal.
    ///
    /// # Errors
    /// [`Error::PersistInUse`] while a sandbox is open here, or another server has it; [`Error::PersistFailed`] when it cannot be removed.
    pub async fn remove(&self) -> Result<(), Error> {
        self.remove_unused(u64::MAX).await
    }

    /// As [`KeptPlace::remove`], unless another server has used the sandbox after this time, in milliseconds since 1970. Then it is
    /// [`Error::PersistInUse`].
    ///
    /// # Errors
    /// As there.
    pub async fn remove_unused(&self, used_ms: u64) -> Result<(), Error> {
        let place = self.journal(self.lease()?);
        let removed = tokio::task::spawn_blocking(move || place.remove(used_ms)).await;
        removed.map_err(failed)?.map_err(refused)
    }

    /// The id of this server under which it has the sandbox, in a store that servers share; `None` if it has nothing there.
    pub fn held_under(&self) -> Option<ServerId> {
        self.tenant.held_under(self.session)
    }

    /// Takes the sandbox for this server again, under its present lease. Returns false if another server has it, or had it since. Blocks as
    /// long as the store does.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub fn hold_again(&self) -> Result<bool, StateError> {
        match self.tenant.hold(self.session) {
            Ok(_) => Ok(true),
            Err(StateError::Taken) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Waits until no sandbox is open here, and none writes any more.
    pub async fn freed(&self) {
        drop(self.open.lock().await);
    }

    /// Returns true if a sandbox is open here, or still writes.
    pub fn is_open(&self) -> bool {
        self.open.try_lock().is_err()
    }

    /// The most bytes of a state that is written.
    pub(super) fn most_bytes(&self) -> u64 {
        self.bounds.as_ref().map_or(MOST_BYTES, |bounds| bounds.most_bytes())
    }

    /// Waits for the turn to have a state in memory. `None` without bounds.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.bounds.as_ref()?.turn().await
    }

    /// Takes the place for a sandbox. All clones of the place share it.
    pub(super) fn lease(&self) -> Result<Lease, Error> {
        let lease = Arc::clone(&self.open).try_lock_owned();
        let in_use =
            |_| Error::PersistInUse("the kept sandbox is open already: call destroy() of that one first".to_owned());
        let open = lease.map_err(in_use)?;
        Ok(Arc::new(Leased::new(Arc::clone(&self.tenant), self.session, open)))
    }

    /// The place of the journal.
    pub(super) fn journal(&self, lease: Lease) -> JournalPlace {
        JournalPlace {
            tenant: Arc::clone(&self.tenant),
            session: self.session,
            lease,
            bounds: self.bounds.clone(),
            about: Arc::clone(&self.about),
        }
    }
}

/// The session of a folder that has one sandbox only.
pub(super) fn session_of_folder() -> Result<SessionId, Error> {
    "0".repeat(32).parse().map_err(failed)
}

/// Work on the store, one after the other. It goes on if the future is dropped that waits for it, and later work waits for it then.
#[derive(Debug, Default)]
pub(super) struct Works {
    order: Arc<Mutex<()>>,
    is_working: Arc<watch::Sender<bool>>,
}

/// Tells the end of work when it is dropped.
struct Working(Arc<watch::Sender<bool>>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl Works {
    /// Runs work that blocks on the store. `place` is asked for when the work begins.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        place: impl FnOnce() -> Result<JournalPlace, Error>,
        work: impl FnOnce(&JournalPlace) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.order).lock_owned().await;
        self.is_working.send_replace(true);
        let working = Working(Arc::clone(&self.is_working));
        let place = place()?;
        let worked = tokio::task::spawn_blocking(move || {
            let worked = work(&place);
            drop((working, place, turn));
            worked
        });
        worked.await.map_err(failed)?.map_err(refused)
    }

    /// Waits until no work is under way.
    pub(super) async fn ended(&self) {
        let _ = self.is_working.subscribe().wait_for(|is_working| !is_working).await;
    }
}
