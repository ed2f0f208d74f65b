//! Kept sandboxes in a listing.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::cmp::Reverse;
use std::fs::read_dir;
use std::path::Path;
use std::sync::Arc;

use sandglass_core::Error;
use sandglass_states::{FolderStore, Head, MasterKey, StateError, States};
use serde::Serialize;

use super::failed;
use super::place::{KEY_FILE, session_of_folder};

/// The most kept sandboxes in a listing.
pub const MOST_LISTED: usize = 1000;

/// The facts about a kept sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptFacts {
    /// The sandbox's name, or that of its folder.
    pub name: String,
    /// The last execution whose effects the state has.
    pub execution: u32,
    /// The bytes of the state.
    pub bytes: u64,
    /// The time at which the state was written, in milliseconds since 1970.
    pub saved_at: u64,
}

impl KeptFacts {
    /// The facts about the sandbox with this name and head.
    pub fn of(name: String, head: &Head) -> Self {
        Self {
            name,
            execution: head.execution,
            bytes: head.bytes,
            saved_at: head.written_ms,
        }
    }
}

/// The newest 1000 of these sandboxes, the newest first.
pub fn newest(mut all: Vec<KeptFacts>) -> Vec<KeptFacts> {
    all.sort_by(|a, b| (Reverse(a.saved_at), &a.name).cmp(&(Reverse(b.saved_at), &b.name)));
    all.truncate(MOST_LISTED);
    all
}

/// The sandboxes that are kept in the folders of a folder, as [`newest`] orders them. Programs may have them open. Those that cannot be read
/// are left out, with a warning in the log. Blocks as long as the disk does.
///
/// # Errors
/// [`Error::PersistFailed`] when the folder cannot be listed.
pub fn in_folders(folder: impl AsRef<Path>) -> Result<Vec<KeptFacts>, Error> {
    let folder = folder.as_ref();
    let unlisted = |error| failed(format!("{} cannot be listed ({error})", folder.display()));
    let mut all = Vec::new();
    for entry in read_dir(folder).map_err(unlisted)? {
        let entry = entry.map_err(unlisted)?;
        let Ok(name) = entry.file_name().into_string() else {
            continue; // no option can name it
        };
        match head(&entry.path()) {
            Ok(head) => all.extend(head.map(|head| KeptFacts::of(name, &head))),
            Err(error) => tracing::warn!(name, %error, "a kept sandbox cannot be read"),
        }
    }
    Ok(newest(all))
}

/// The head of the sandbox in a folder. `None` if there is no such sandbox.
fn head(folder: &Path) -> Result<Option<Head>, StateError> {
    let key = folder.join(KEY_FILE);
    if !key.is_file() {
        return Ok(None);
    }
    let store = Arc::new(FolderStore::look(folder)?);
    let tenant = States::new(store, MasterKey::from_file(&key)?)?.tenant("")?;
    let session = session_of_folder().map_err(|error| StateError::Damaged(error.to_string()))?;
    tenant.head(session)
}
