//! The place of a kept sandbox in a store.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::{Mutex, watch};

use sandglass_core::Error;
use sandglass_states::{FolderStore, JournalId, MasterKey, Part, Saved, SessionId, StateError, States, Tenant};

use super::{MOST_BYTES, failed};
use crate::driver::journal::{JournalPlace, Lease};

/// The most bytes of a journal. The core bounds its calls and answers to 64 MiB, and its notes to 3 MiB.
const MOST_JOURNAL_BYTES: u64 = 128 << 20;
/// The name of the key's file in a folder.
const KEY_FILE: &str = "key";

/// The place of a kept sandbox: a session of a tenant of a store. One sandbox at a time may be open there.
#[derive(Debug, Clone)]
pub struct KeptPlace {
    tenant: Arc<Tenant>,
    session: SessionId,
    /// Held by the sandbox that is open, and by all that may still write for it.
    open: Arc<Mutex<()>>,
    /// True if the sandbox removes what it needs no more, because nobody else does.
    pub(super) collects: bool,
}

impl KeptPlace {
    /// A session in a store. The caller [collects](Tenant::collect) what its tenant needs no more.
    pub fn new(tenant: Arc<Tenant>, session: SessionId) -> Self {
        Self {
            tenant,
            session,
            open: Arc::default(),
            collects: false,
        }
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
        let session = "0".repeat(32).parse().map_err(failed)?;
        let place = Self::new(tenant, session);
        Ok(Self {
            collects: true,
            ..place
        })
    }

    /// Takes the place for a sandbox. All clones of the place share it.
    pub(super) fn lease(&self) -> Result<Lease, Error> {
        let lease = Arc::clone(&self.open).try_lock_owned();
        let in_use =
            |_| Error::PersistInUse("the kept sandbox is open already: call destroy() of that one first".to_owned());
        let lease = lease.map_err(in_use)?;
        Ok(Arc::new(lease))
    }

    /// The place of the journal.
    pub(super) fn journal(&self, lease: Lease) -> JournalPlace {
        JournalPlace {
            tenant: Arc::clone(&self.tenant),
            session: self.session,
            lease,
        }
    }
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
        work: impl FnOnce(&Tenant, SessionId) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.order).lock_owned().await;
        self.is_working.send_replace(true);
        let working = Working(Arc::clone(&self.is_working));
        let JournalPlace { tenant, session, lease } = place()?;
        let worked = tokio::task::spawn_blocking(move || {
            let worked = work(&tenant, session);
            drop((working, lease, turn));
            worked
        });
        worked.await.map_err(failed)?.map_err(failed)
    }

    /// Waits until no work is under way.
    pub(super) async fn ended(&self) {
        let _ = self.is_working.subscribe().wait_for(|is_working| !is_working).await;
    }
}

/// A journal as it is stored, or the damage for which it cannot be read.
pub(super) type Parts = Result<(JournalId, Vec<Part>), String>;

/// Reads the state of a session, whether a sandbox went on from it, and its journal. A damaged journal leaves the state as it is.
pub(super) fn read(tenant: &Tenant, session: SessionId) -> Result<Option<(Saved, bool, Option<Parts>)>, StateError> {
    let saved = tenant.read(session, MOST_BYTES)?;
    let is_left = tenant.head(session)?.is_some_and(|head| head.awake);
    let journal = match tenant.journal(session, MOST_JOURNAL_BYTES) {
        Err(StateError::Damaged(what)) => Some(Err(format!("its journal is damaged: {what}"))),
        Err(error) if error.is_damage() => Some(Err(format!("its journal cannot be read: {error}"))),
        journal => journal?.map(Ok),
    };
    Ok(saved.map(|saved| (saved, is_left, journal)))
}
