//! Suspended sandboxes as a store of states has them.

use sandglass_core::Error;
use sandglass_core::execution::LostVariable;
use sandglass_states::{Lost, Saved, SavedFile};
use serde_json::Value as Json;

use super::{Files, Past, Spent, Suspended};

impl Suspended {
    /// All of it for a store, but the used part of the budget. `settings` are the caller's.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] when the host's part cannot be written.
    pub fn into_saved(self, settings: Json) -> Result<Saved, Error> {
        let execution = self.past.execution();
        let (past, bodies) = self.past.into_parts()?;
        let lost = self.lost.into_iter();
        let files = self.files.files.into_iter();
        Ok(Saved {
            execution,
            settings,
            past,
            bodies,
            state: self.state,
            lost: lost
                .map(|LostVariable { name, reason }| Lost { name, reason })
                .collect(),
            files: files.map(|(path, body)| SavedFile { path, body }).collect(),
            folders: self.files.folders,
        })
    }

    /// Reads what [`Suspended::into_saved`] made. `spent` is the used part of the budget.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for anything else.
    pub fn from_saved(saved: Saved, spent: Spent) -> Result<Self, Error> {
        let past = Past::from_parts(saved.past, &saved.bodies)?;
        let lost = saved.lost.into_iter();
        let files = saved.files.into_iter();
        Ok(Self {
            state: saved.state,
            files: Files {
                files: files.map(|file| (file.path, file.body)).collect(),
                folders: saved.folders,
                lost: Vec::new(),
            },
            lost: lost
                .map(|Lost { name, reason }| LostVariable { name, reason })
                .collect(),
            past,
            spent,
        })
    }
}
