//! A store in memory, for tests.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::{Listed, Store, Version};
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
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        match self.lock().get(name) {
            Some((bytes, _)) if bytes.len() as u64 > most => Err(StateError::Damaged(format!("{name} is too large"))),
            found => Ok(found.map(|(bytes, _)| (bytes.clone(), Version::of(bytes)))),
        }
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        let mut all = self.lock();
        let there = all.get(name).map(|(bytes, _)| Version::of(bytes));
        if there.as_ref() != seen {
            return Ok(None);
        }
        all.insert(*name, (bytes.to_vec(), Instant::now()));
        Ok(Some(Version::of(bytes)))
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.lock().insert(*name, (bytes.to_vec(), Instant::now()));
        Ok(())
    }

    fn touch(&self, name: &Name, _bytes: &[u8]) -> Result<bool, StateError> {
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
