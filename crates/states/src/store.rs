//! Stores: places for named bytes.

mod folder;
mod memory;
mod nats;
mod objects;
mod remote;
mod split;

use std::fmt::Debug;
use std::time::Duration;

use ring::digest::{SHA256, digest};

pub use folder::FolderStore;
pub use memory::MemoryStore;
pub use nats::NatsStore;
pub use objects::ObjectStorage;
pub use split::SplitStore;

use crate::error::StateError;
use crate::names::{Name, Place};

/// A place for named bytes. Its functions block. Nothing in it is trusted: whoever reads checks what comes.
///
/// Several servers may use one store. A name that they all change is only ever [swapped](Store::swap): the write of a server that has
/// not seen the newest bytes is refused. So a server that slept while others went on changes nothing.
pub trait Store: Debug + Send + Sync {
    /// The bytes under a name and their version; `None` if there are none.
    ///
    /// # Errors
    /// [`StateError::Io`]; [`StateError::Damaged`] for more than `most` bytes.
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError>;

    /// Puts bytes under a name, if those that are there still have the version `seen`. Without `seen`, if there are none. Returns their
    /// version; `None` if others were there, which stay. The bytes must differ from all that were ever put there, as sealed ones do.
    ///
    /// # Errors
    /// [`StateError::Io`]. Then the name may have its earlier bytes or these.
    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError>;

    /// The bytes under a name; `None` if there are none.
    ///
    /// # Errors
    /// As [`Store::read_version`].
    fn read(&self, name: &Name, most: u64) -> Result<Option<Vec<u8>>, StateError> {
        Ok(self.read_version(name, most)?.map(|(bytes, _)| bytes))
    }

    /// The bytes under each name. A store that is far away reads several at a time.
    fn read_all(&self, names: &[Name], most: u64) -> Vec<Result<Option<Vec<u8>>, StateError>> {
        names.iter().map(|name| self.read(name, most)).collect()
    }

    /// Puts bytes under a name, completely or not at all. They are durable when this returns.
    ///
    /// # Errors
    /// [`StateError::Io`]; then the name has its earlier bytes.
    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError>;

    /// Makes the bytes under a name as young as new ones, or nearly. They are `bytes`. Returns false if there are none.
    ///
    /// # Errors
    /// [`StateError::Io`].
    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError>;

    /// Removes the bytes under a name, if there are any. They are gone for good when this returns.
    ///
    /// # Errors
    /// [`StateError::Io`].
    fn remove(&self, name: &Name) -> Result<(), StateError>;

    /// Removes the bytes under a name, if there are any. After a power failure they may be back, so this may be quicker than
    /// [`Store::remove`].
    ///
    /// # Errors
    /// [`StateError::Io`].
    fn forget(&self, name: &Name) -> Result<(), StateError> {
        self.remove(name)
    }

    /// Sends bytes to all servers that [listen](Store::listen) now, this one among them. Nothing keeps them, and some may miss them. Returns
    /// false if the store can send nothing.
    ///
    /// # Errors
    /// [`StateError::Io`]; then nobody got them.
    fn tell(&self, _name: &Name, _bytes: &[u8]) -> Result<bool, StateError> {
        Ok(false)
    }

    /// Calls `heard` with what servers tell, on a thread of the store, until it returns false. A store that can send nothing never calls it.
    fn listen(&self, _heard: Listener) {}

    /// The names in a place, in any order.
    ///
    /// # Errors
    /// [`StateError::Io`].
    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError>;
}

/// A listener for what servers tell: the name, unless it is none, and the bytes. Returns false when nobody listens any more.
pub type Listener = Box<dyn FnMut(Option<Name>, &[u8]) -> bool + Send>;

/// The version of the bytes under a name. Other bytes have another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(String);

impl Version {
    /// The version in a store that has none of its own.
    fn of(bytes: &[u8]) -> Self {
        let hash = digest(&SHA256, bytes);
        Self(hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// A name in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// The time since its bytes were written or touched.
    pub age: Duration,
}
