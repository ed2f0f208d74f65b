//! A store whose objects are in another one.

use std::sync::Arc;

use super::{Listed, Listener, Store, Version};
use crate::error::StateError;
use crate::names::{Name, Place};

/// A store of two: objects, which are many and large, are in the one, and all other names in the other.
#[derive(Debug)]
pub struct SplitStore {
    names: Arc<dyn Store>,
    objects: Arc<dyn Store>,
}

impl SplitStore {
    /// A store with objects in `objects`, and all else in `names`.
    pub fn new(names: Arc<dyn Store>, objects: Arc<dyn Store>) -> Self {
        Self { names, objects }
    }

    fn of(&self, name: &Name) -> &dyn Store {
        match is_object(name) {
            true => &*self.objects,
            false => &*self.names,
        }
    }
}

fn is_object(name: &Name) -> bool {
    matches!(name, Name::Object(..))
}

impl Store for SplitStore {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.of(name).read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        self.of(name).swap(name, bytes, seen)
    }

    fn read_all(&self, names: &[Name], most: u64) -> Vec<Result<Option<Vec<u8>>, StateError>> {
        match names.first() {
            Some(first) if names.iter().all(|name| is_object(name) == is_object(first)) => {
                self.of(first).read_all(names, most)
            }
            _ => names.iter().map(|name| self.read(name, most)).collect(),
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.of(name).write(name, bytes)
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.of(name).touch(name, bytes)
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.of(name).remove(name)
    }

    fn forget(&self, name: &Name) -> Result<(), StateError> {
        self.of(name).forget(name)
    }

    fn tell(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.names.tell(name, bytes)
    }

    fn listen(&self, heard: Listener) {
        self.names.listen(heard);
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        match place {
            Place::Objects(_) => self.objects.list(place),
            _ => self.names.list(place),
        }
    }
}
