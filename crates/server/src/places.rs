//! The store of states that the settings name: a folder of this server, or object storage or NATS, which several servers share.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::args::Secrets;
use sandglass_states::{
    Clock, FolderStore, MasterKey, NatsStore, ObjectStorage, SplitStore, StateError, States, Store,
};

use super::settings::SuspendArgs;

/// The name of the key's file in the folder of states, if the operator gives no key.
const KEY_FILE: &str = "key";

/// An open store.
#[derive(Debug)]
pub(super) enum Opened {
    /// A folder, which no other server has open.
    Folder(Arc<FolderStore>),
    /// Object storage or NATS, where this server has a lease.
    Shared,
}

/// Opens the store of the settings; `None` without one. The server listens at `listen`.
///
/// # Errors
/// The store cannot be used, or the settings contradict each other.
pub(super) fn open(
    args: &SuspendArgs,
    secrets: &Secrets,
    listen: SocketAddr,
) -> Result<Option<(States, Opened)>, String> {
    let key = match (&args.state_key_file, &secrets.state_key) {
        (Some(_), Some(_)) => return Err("give --state-key-file or SANDGLASS_STATE_KEY, not both".to_owned()),
        (Some(file), None) => Some(MasterKey::from_file(file)),
        (None, Some(text)) => Some(MasterKey::parse(text)),
        (None, None) => None,
    };
    let address = address(args, listen)?;
    let folder_of = |url: &str| url.strip_prefix("file://").map(str::to_owned);
    let (option, opened) = match (&args.state_dir, &args.cluster, &args.state_url) {
        (Some(folder), ..) => ("--state-dir (SANDGLASS_STATE_DIR)", in_folder(folder, key)),
        (None, None, Some(url)) => (
            "--state-url (SANDGLASS_STATE_URL)",
            match folder_of(url) {
                Some(folder) if folder.starts_with('/') => in_folder(Path::new(&folder), key),
                Some(_) => Err(StateError::Key("a folder is file:///DIR".to_owned())),
                None => shared(args, key, address, || Ok(Arc::new(ObjectStorage::open(url)?))),
            },
        ),
        (None, Some(cluster), objects) => (
            "--cluster (SANDGLASS_CLUSTER)",
            shared(args, key, address, || {
                let credentials = args.cluster_credentials.as_deref();
                let names = Arc::new(NatsStore::open(cluster, credentials, args.cluster_replicas)?);
                Ok(match objects {
                    None => names,
                    Some(url) => Arc::new(SplitStore::new(names, Arc::new(ObjectStorage::open(url)?))),
                })
            }),
        ),
        (None, None, None) if key.is_some() => {
            return Err("a key of states needs --state-dir, --state-url or --cluster".to_owned());
        }
        (None, None, None) => return Ok(None),
    };
    opened.map(Some).map_err(|error| format!("{option}: {error}"))
}

/// The URL at which other servers reach this one; `None` if it is not to be told.
fn address(args: &SuspendArgs, listen: SocketAddr) -> Result<Option<String>, String> {
    let is_folder = |url: &String| url.starts_with("file://");
    let is_shared = args.cluster.is_some() || args.state_url.as_ref().is_some_and(|url| !is_folder(url));
    match (&args.advertise, &args.cluster) {
        (Some(_), _) if !is_shared => {
            Err("--advertise is for servers that share states: give --cluster, or --state-url s3://…".to_owned())
        }
        (Some(url), _) => Ok(Some(url.clone())),
        (None, Some(_)) if listen.ip().is_unspecified() => Err(format!(
            "--cluster needs --advertise (SANDGLASS_ADVERTISE), because other servers cannot reach this one at {listen}"
        )),
        (None, Some(cluster)) => {
            let is_local = NatsStore::is_local(cluster);
            let is_local = is_local.map_err(|error| format!("--cluster (SANDGLASS_CLUSTER): {error}"))?;
            match listen.ip().is_loopback() && !is_local {
                true => Err(format!(
                    "--cluster needs --advertise (SANDGLASS_ADVERTISE), because NATS is on another machine, and servers there cannot reach \
                     this one at {listen}. If all servers are on this machine, give --advertise http://{listen}"
                )),
                false => Ok(Some(format!("http://{listen}"))),
            }
        }
        (None, None) => Ok(None),
    }
}

fn in_folder(folder: &Path, key: Option<Result<MasterKey, StateError>>) -> Result<(States, Opened), StateError> {
    let store = Arc::new(FolderStore::open(folder)?);
    let key = key.unwrap_or_else(|| MasterKey::from_file_or_new(&store.path().join(KEY_FILE)))?;
    let states = States::new(Arc::clone(&store) as _, key)?;
    Ok((states, Opened::Folder(store)))
}

/// The states in a store that other servers use as well.
fn shared(
    args: &SuspendArgs,
    key: Option<Result<MasterKey, StateError>>,
    address: Option<String>,
    open: impl FnOnce() -> Result<Arc<dyn Store>, StateError>,
) -> Result<(States, Opened), StateError> {
    let no_key =
        "a shared store needs a key of states: give --state-key-file or SANDGLASS_STATE_KEY, the same to all servers";
    let key = key.unwrap_or_else(|| Err(StateError::Key(no_key.to_owned())))?;
    let lasts = Duration::from_secs_f64(args.state_lease_seconds);
    let states = States::shared(open()?, key, lasts, Clock::default(), address)?;
    Ok((states, Opened::Shared))
}
