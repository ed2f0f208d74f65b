//! Stores: places for named bytes.

mod folder;
mod memory;

use std::fmt::Debug;
use std::time::Duration;

pub use folder::FolderStore;
pub use memory::MemoryStore;

use crate::error::StateError;
use crate::names::{Name, Place};

/// A place for named bytes. Its functions block. Nothing in it is trusted: whoever reads checks what comes.
pub trait Store: Debug + Send + Sync {
    /// The bytes under a name; `None` if there are none.
    ///
    /// # Errors
    /// [`StateError::Io`]; [`StateError::Damaged`] for more than `most` bytes.
    fn read(&self, name: &Name, most: u64) -> Result<Option<Vec<u8>>, StateError>;

    /// Puts bytes under a name, completely or not at all. They are durable when this returns.
    ///
    /// # Errors
    /// [`StateError::Io`]; then the name has its earlier bytes.
    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError>;

    /// Makes the bytes under a name as young as new ones. Returns false if there are none.
    ///
    /// # Errors
    /// [`StateError::Io`].
    fn touch(&self, name: &Name) -> Result<bool, StateError>;

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

    /// The names in a place, in any order.
    ///
    /// # Errors
    /// [`StateError::Io`].
    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError>;
}

/// A name in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: Name,
    /// The time since its bytes were written or touched.
    pub age: Duration,
}
