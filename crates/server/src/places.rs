//! The store of states that the settings name: a folder of this server, or object storage that several servers share.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::args::Secrets;
use sandglass_states::{Clock, FolderStore, MasterKey, ObjectStorage, StateError, States};

use super::settings::SuspendArgs;

/// The name of the key's file in the folder of states, if the operator gives no key.
const KEY_FILE: &str = "key";

/// An open store.
#[derive(Debug)]
pub(super) enum Opened {
    /// A folder, which no other server has open.
    Folder(Arc<FolderStore>),
    /// Object storage, on which this server has a lease.
    Shared,
}

/// Opens the store of the settings; `None` without one.
///
/// # Errors
/// The store cannot be used, or the settings contradict each other.
pub(super) fn open(args: &SuspendArgs, secrets: &Secrets) -> Result<Option<(States, Opened)>, String> {
    let key = match (&args.state_key_file, &secrets.state_key) {
        (Some(_), Some(_)) => return Err("give --state-key-file or SANDGLASS_STATE_KEY, not both".to_owned()),
        (Some(file), None) => Some(MasterKey::from_file(file)),
        (None, Some(text)) => Some(MasterKey::parse(text)),
        (None, None) => None,
    };
    match (&args.state_dir, &args.state_url) {
        (Some(folder), _) => in_folder(folder, key)
            .map(Some)
            .map_err(|error| format!("--state-dir (SANDGLASS_STATE_DIR): {error}")),
        (None, Some(url)) => match url.strip_prefix("file://") {
            Some(folder) if folder.starts_with('/') => in_folder(Path::new(folder), key),
            Some(_) => Err(StateError::Key("a folder is file:///DIR".to_owned())),
            None => in_storage(url, key, Duration::from_secs_f64(args.state_lease_seconds)),
        }
        .map(Some)
        .map_err(|error| format!("--state-url (SANDGLASS_STATE_URL): {error}")),
        (None, None) if key.is_some() => Err("a key of states needs --state-dir or --state-url".to_owned()),
        (None, None) => Ok(None),
    }
}

fn in_folder(folder: &Path, key: Option<Result<MasterKey, StateError>>) -> Result<(States, Opened), StateError> {
    let store = Arc::new(FolderStore::open(folder)?);
    let key = key.unwrap_or_else(|| MasterKey::from_file_or_new(&store.path().join(KEY_FILE)))?;
    let states = States::new(Arc::clone(&store) as _, key)?;
    Ok((states, Opened::Folder(store)))
}

fn in_storage(
    url: &str,
    key: Option<Result<MasterKey, StateError>>,
    lasts: Duration,
) -> Result<(States, Opened), StateError> {
    let no_key =
        "object storage needs a key of states: give --state-key-file or SANDGLASS_STATE_KEY, the same to all servers";
    let key = key.unwrap_or_else(|| Err(StateError::Key(no_key.to_owned())))?;
    let storage = Arc::new(ObjectStorage::open(url)?);
    let states = States::shared(storage, key, lasts, Clock::default())?;
    Ok((states, Opened::Shared))
}
