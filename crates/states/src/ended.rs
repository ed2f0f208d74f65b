//! Executions that have ended and can run again: the journal of each, with the state before it.
//!
//! The manifest of a session's state names them. So they are replaced together with the state, at once: after a crash, the store has the
//! earlier ones or the new ones. The states share their objects, so that one of which little changes takes little more.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::HashSet;

use bytes::Bytes;
use serde_json::Value;

use crate::error::StateError;
use crate::manifest::{Body, Ended, KeptRun, Manifest, Ref, Saved, bytes_of_ended};
use crate::names::{ObjectId, ServerId, SessionId};
use crate::seal::MOST_CONTENT;
use crate::states::{Hold, Tenant, Written};

/// The reason for which an execution without room cannot run again.
const NO_ROOM: &str = "there is no room for its journal and for the state before it";

/// An execution that has ended after the state that the store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The execution's number.
    pub execution: u32,
    /// Its journal, which this crate does not read, or the reason for which it cannot run again.
    pub journal: Result<Vec<u8>, String>,
}

/// All that an execution needs to run again.
#[derive(Debug, Clone, PartialEq)]
pub struct Rerun {
    /// The state before it.
    pub state: Saved,
    /// Its journal.
    pub journal: Bytes,
}

/// The most executions that are kept. Of all that are there, the newest ones are.
#[derive(Debug, Clone, Copy)]
pub struct MostEnded {
    /// The number of executions, also of those that cannot run again.
    pub executions: usize,
    /// The bytes of their journals.
    pub journal_bytes: u64,
    /// The bytes of the states before them. A piece that two states share counts once if one follows the other.
    pub state_bytes: u64,
}

/// All these functions block as long as the store does.
impl Tenant {
    /// As [`Tenant::write_about`]. The state that the store has, and the journal of the execution after it, stay with the new state, so that
    /// [`Tenant::rerun`] finds them. So do earlier ones. What cannot be kept of them never costs the new state. `room` tells if they may take
    /// so many bytes together; if not, the oldest make room.
    ///
    /// # Errors
    /// As [`Tenant::write_about`].
    pub fn write_after(
        &self,
        session: SessionId,
        saved: &Saved,
        (about, ran): (Value, Option<&Ran>),
        most: &MostEnded,
        mut room: impl FnMut(u64) -> bool,
    ) -> Result<Written, StateError> {
        let ended = |before: Option<&Ref>, written: &mut Written| {
            let mut ended = before.map_or_else(Vec::new, |before| self.ended_after(session, before, ran, written));
            most.keep(&mut ended);
            while let Some(oldest) = ended.iter().position(|ended| ended.kept.is_ok()) {
                if room(bytes_of_ended(&ended)) {
                    break;
                }
                ended[oldest].kept = Err(NO_ROOM.to_owned());
            }
            ended
        };
        // Among several servers, the session stays this server's.
        let hold = if self.is_alone() { Hold::Free } else { Hold::Held };
        self.write_with(session, saved, about, hold, ended)
    }

    /// The state before an execution that has ended, of at most `most` bytes, and its journal; or the reason for which it cannot run again.
    ///
    /// # Errors
    /// [`StateError`], but damage is a reason.
    pub fn rerun(&self, session: SessionId, execution: u32, most: u64) -> Result<Result<Rerun, String>, StateError> {
        let run = match self.kept_run(session, execution)? {
            Ok(kept) => kept,
            Err(why) => return Ok(Err(why)),
        };
        let journal = self.read_body(run.journal_writer, &run.journal);
        let state = self.read_state(session, run.writer, &run.manifest, most);
        match (journal, state) {
            (Ok(journal), Ok(state)) => Ok(Ok(Rerun { state, journal })),
            (Err(error), _) if error.is_damage() => Ok(Err(format!("its journal cannot be read: {error}"))),
            (_, Err(error)) if error.is_damage() => Ok(Err(format!("the state before it cannot be read: {error}"))),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    fn kept_run(&self, session: SessionId, execution: u32) -> Result<Result<KeptRun, String>, StateError> {
        let stored = self.read_ref(session)?;
        let manifest = stored.map(|stored| self.read_manifest(session, stored.writer, &stored.manifest));
        let ended = manifest.transpose()?.map(|manifest| manifest.ended).unwrap_or_default();
        let found = ended.into_iter().find(|ended| ended.execution == execution);
        Ok(found.map_or_else(|| Err("there is no journal of it".to_owned()), |found| found.kept))
    }

    /// The executions after this one. `before` is the ref of the state before it.
    fn ended_after(&self, session: SessionId, before: &Ref, ran: Option<&Ran>, written: &mut Written) -> Vec<Ended> {
        let (mut ended, state) = match self.read_manifest(session, before.writer, &before.manifest) {
            Ok(mut manifest) => (std::mem::take(&mut manifest.ended), Ok(manifest)),
            Err(error) => (
                Vec::new(),
                Err(format!("the state before it could not be read ({error})")),
            ),
        };
        // A write that nobody waited for may have written the state after it already.
        let ran = ran.filter(|ran| before.head.execution < ran.execution);
        let Some(Ran { execution, journal }) = ran else {
            return ended;
        };
        let kept = journal.clone().and_then(|journal| {
            let state = state?;
            let last = ended.iter().rev().find_map(|ended| ended.kept.as_ref().ok());
            let earlier = last.and_then(|last| self.read_manifest(session, last.writer, &last.manifest).ok());
            let journal_writer = self.servers().writer();
            let journal = self.write_body(journal_writer, &journal, written);
            Ok(KeptRun {
                manifest: before.manifest.clone(),
                bytes: state.all().map(|body| body.bytes).fold(0, u64::saturating_add),
                added: added(&state, earlier.as_ref()),
                journal: journal.map_err(|error| format!("its journal could not be written ({error})"))?,
                writer: before.writer,
                journal_writer,
            })
        });
        ended.retain(|ended| ended.execution != *execution);
        ended.push(Ended {
            execution: *execution,
            kept,
        });
        ended
    }

    /// The objects that these executions need. Those of a damaged state are not known: its execution cannot run again anyway.
    pub(crate) fn objects_of_ended(
        &self,
        session: SessionId,
        ended: &[Ended],
    ) -> Result<Vec<(Option<ServerId>, ObjectId)>, StateError> {
        let mut objects = Vec::new();
        for run in ended.iter().filter_map(|ended| ended.kept.as_ref().ok()) {
            let mut name = |writer, body: &Body| objects.extend(body.pieces.iter().map(|id| (writer, *id)));
            name(run.journal_writer, &run.journal);
            name(run.writer, &run.manifest);
            match self.read_manifest(session, run.writer, &run.manifest) {
                Ok(state) => state.all().for_each(|body| name(run.writer, body)),
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(objects)
    }
}

/// The bytes of a state's pieces that an earlier state lacks. A piece counts as much as it may have at most.
/// Another server's copy of a piece counts as the same one, although both are there until the older state goes.
fn added(state: &Manifest, earlier: Option<&Manifest>) -> u64 {
    let known = earlier.into_iter().flat_map(Manifest::all);
    let known: HashSet<&ObjectId> = known.flat_map(|body| &body.pieces).collect();
    let added = |Body { bytes, pieces }: &Body| {
        let new = pieces.iter().filter(|piece| !known.contains(piece)).count() as u64;
        new.saturating_mul(MOST_CONTENT as u64).min(*bytes)
    };
    state.all().map(added).fold(0, u64::saturating_add)
}

impl MostEnded {
    /// Drops the oldest executions, or what they need to run again, until the others are within the bounds.
    fn keep(&self, ended: &mut Vec<Ended>) {
        ended.drain(..ended.len().saturating_sub(self.executions));
        let (mut journals, mut added) = (0_u64, 0_u64);
        let mut is_full = false;
        for Ended { kept, .. } in ended.iter_mut().rev() {
            let Ok(run) = kept else { continue };
            journals = journals.saturating_add(run.journal.bytes);
            // The oldest state counts as a whole, and each later one what it adds.
            is_full |= journals > self.journal_bytes || added.saturating_add(run.bytes) > self.state_bytes;
            added = added.saturating_add(run.added);
            if is_full {
                *kept = Err(NO_ROOM.to_owned());
            }
        }
    }
}
