//! A store in memory, for tests.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Listed, Store};
use crate::error::StateError;
use crate::names::{Name, Place};

/// A store in memory.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<HashMap<Name, (Vec<u8>, Instant)>>);

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, (Vec<u8>, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All names.
    pub fn names(&self) -> Vec<Name> {
        let mut names: Vec<_> = self.lock().keys().copied().collect();
        names.sort();
        names
    }
}

impl Store for MemoryStore {
    fn read(&self, name: &Name, most: u64) -> Result<Option<Vec<u8>>, StateError> {
        match self.lock().get(name) {
            Some((bytes, _)) if bytes.len() as u64 > most => Err(StateError::Damaged(format!("{name} is too large"))),
            found => Ok(found.map(|(bytes, _)| bytes.clone())),
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.lock().insert(*name, (bytes.to_vec(), Instant::now()));
        Ok(())
    }

    fn touch(&self, name: &Name) -> Result<bool, StateError> {
        Ok(self.lock().get_mut(name).is_some_and(|(_, at)| {
            *at = Instant::now();
            true
        }))
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.lock().remove(name);
        Ok(())
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        let all = self.lock();
        let here = all.iter().filter(|(name, _)| place.has(name));
        Ok(here
            .map(|(name, (_, at))| Listed {
                name: *name,
                age: at.elapsed(),
            })
            .collect())
    }
}
