//! The place of a kept sandbox in a store.

use std::path::Path;
use std::sync::Arc;

use sandglass_core::Error;
use sandglass_states::{FolderStore, JournalId, MasterKey, Part, Saved, SessionId, StateError, States, Tenant};

use super::{MOST_BYTES, unavailable};
use crate::driver::journal::JournalPlace;

/// The most bytes of a journal. The core bounds its calls and answers to 64 MiB, and its notes to 3 MiB.
const MOST_JOURNAL_BYTES: u64 = 128 << 20;
/// The name of the key's file in a folder.
const KEY_FILE: &str = "key";

/// The place of a kept sandbox: a session of a tenant of a store. One sandbox at a time may be open there.
#[derive(Debug, Clone)]
pub struct KeptPlace {
    pub(super) journal: JournalPlace,
    /// True if the sandbox removes what it needs no more, because nobody else does.
    pub(super) collects: bool,
}

impl KeptPlace {
    /// A session in a store. The caller [collects](Tenant::collect) what its tenant needs no more.
    pub fn new(tenant: Arc<Tenant>, session: SessionId) -> Self {
        let journal = JournalPlace { tenant, session };
        Self {
            journal,
            collects: false,
        }
    }

    /// A folder of its own, which is made if it is missing. What is in it is encrypted with the key in its file `key`.
    ///
    /// # Errors
    /// [`Error::BackendUnavailable`] when the folder cannot be used, or another process has it open.
    pub fn in_folder(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let open = || {
            let store = FolderStore::open(path)?;
            let key = MasterKey::from_file_or_new(&store.path().join(KEY_FILE))?;
            States::new(Arc::new(store), key)?.tenant("")
        };
        let tenant = Arc::new(open().map_err(unavailable)?);
        let session = "0".repeat(32).parse().map_err(unavailable)?;
        let place = Self::new(tenant, session);
        Ok(Self {
            collects: true,
            ..place
        })
    }

    /// Runs work that blocks on the store.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tenant, SessionId) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, Error> {
        let JournalPlace { tenant, session } = self.journal.clone();
        let worked = tokio::task::spawn_blocking(move || work(&tenant, session)).await;
        worked.map_err(unavailable)?.map_err(unavailable)
    }
}

/// A journal as it is stored.
pub(super) type Parts = (JournalId, Vec<Part>);

/// Reads the state of a session, whether a sandbox went on from it, and its journal.
pub(super) fn read(tenant: &Tenant, session: SessionId) -> Result<Option<(Saved, bool, Option<Parts>)>, StateError> {
    let saved = tenant.read(session, MOST_BYTES)?;
    let is_left = tenant.head(session)?.is_some_and(|head| head.awake);
    let journal = tenant.journal(session, MOST_JOURNAL_BYTES)?;
    Ok(saved.map(|saved| (saved, is_left, journal)))
}
