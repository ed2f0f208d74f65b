//! What executions leave: the state after them, and their results.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::execution::{LostVariable, StateReport, StateStatus};
use sandglass_states::{Saved, StateError};
use serde_json::json;
use tokio::sync::OwnedMutexGuard;

use super::replay::ran;
use super::stage::Stage;
use super::{Inside, JournalPlace, Kept, taken};
use crate::driver::EndedRecord;
use crate::sandbox::{Execution, Sandbox};

/// The number of states after which objects of earlier ones are removed, if nobody else does that.
const COLLECTED_AFTER: u32 = 32;
/// The age from which objects are removed that nobody needs.
const COLLECTED_AGE: Duration = Duration::from_secs(60);
/// The most bytes of a result that is kept.
const MOST_LAST_BYTES: usize = 1 << 20;
/// The setting of a stored state that names the body with the last result.
const LAST: &str = "last";

impl Kept {
    /// The last execution that has ended, as JSON, also if it ended in an earlier process. `None` if there is none, or if it has more than
    /// 1 MiB.
    pub fn last(&self) -> Option<Bytes> {
        self.inside().last.clone()
    }

    /// The sandbox, after its state was written if the store may not have it.
    pub(super) async fn written(&self) -> Result<Sandbox, Error> {
        let sandbox = self.opened().await?;
        if !self.is_changed() {
            return Ok(sandbox);
        }
        match self.write(&sandbox, None).await {
            Ok(false) => {
                self.lost(&sandbox).await?;
                self.opened().await
            }
            Err(taken @ Error::PersistInUse(_)) => Err(taken),
            Ok(true) | Err(_) => Ok(sandbox),
        }
    }

    /// Returns true if the store may not have the present state.
    pub(super) fn is_changed(&self) -> bool {
        self.is_ahead(&self.inside())
    }

    /// Returns true if the sandbox has gone on from all that the store has.
    pub(super) fn is_ahead(&self, inside: &Inside) -> bool {
        inside.unkept.is_some() || inside.changes != self.changes.count()
    }

    /// Writes the state of the sandbox, with the record of the execution before it, and removes its journal. Returns false, and writes nothing,
    /// if the guest with the state is gone. After an error, the sandbox goes on with a state that is not kept.
    pub(super) async fn write(&self, sandbox: &Sandbox, ended: Option<EndedRecord>) -> Result<bool, Error> {
        self.write_returned(sandbox, ended, false).await
    }

    /// As [`Kept::write`]. `is_returned_to`: the next execution tells that what came after this state is lost.
    pub(super) async fn write_returned(
        &self,
        sandbox: &Sandbox,
        ended: Option<EndedRecord>,
        is_returned_to: bool,
    ) -> Result<bool, Error> {
        let _turn = self.place.turn().await;
        let changes = self.changes.count();
        let suspended = sandbox.suspend(self.place.most_bytes()).await;
        let is_lost = suspended.as_ref().is_ok_and(|suspended| suspended.past.is_lost());
        if is_lost || !sandbox.has_first_guest().await {
            return Ok(false);
        }
        let written = async {
            let mut suspended = suspended?;
            if is_returned_to {
                suspended.past.is_returned_to();
            }
            let lost = inexact(&suspended.lost);
            let mut saved = suspended.into_saved(json!(self.settings))?;
            add_last(&mut saved, self.last(), self.place.most_bytes());
            let writes = self.writes.fetch_add(1, Ordering::Relaxed);
            let collects = self.place.collects && writes.is_multiple_of(COLLECTED_AFTER);
            self.state_bytes.store(saved.bytes(), Ordering::Relaxed);
            let write = move |place: &JournalPlace| {
                place.write(&saved, ended.as_ref().map(ran).as_ref())?;
                match place.remove_journal() {
                    // The state is written. Whoever takes it over passes the journal by, because its execution is not the next one.
                    Err(StateError::Taken) => {}
                    removed => removed?,
                }
                if collects && let Err(error) = place.tenant.collect(COLLECTED_AGE) {
                    tracing::warn!(%error, "objects that no kept sandbox needs were not removed");
                }
                Ok(())
            };
            self.work(write).await.map(|()| lost)
        };
        let written = written.await;
        let mut inside = self.inside();
        inside.unkept = match &written {
            Ok(unkept) => {
                (inside.changes, inside.after_end) = (changes, None);
                unkept.clone()
            }
            Err(error) => {
                tracing::warn!(%error, "the state of a kept sandbox could not be written");
                Some(error.to_string())
            }
        };
        drop(inside);
        written.map(|_| true)
    }

    /// Keeps what an execution has left, for whoever has the turn.
    pub(super) async fn ended(
        &self,
        sandbox: &Sandbox,
        mut execution: Execution,
        turn: OwnedMutexGuard<()>,
    ) -> Result<Execution, Error> {
        let was_lost = execution.state.status == StateStatus::Lost;
        self.inside().last = described(&execution);
        if !was_lost {
            let ended = sandbox.ended_record().await;
            let ended = ended.filter(|ended| ended.record.execution() == execution.id);
            if let Some(ended) = &ended
                && self.ended_early(&execution, ended).await
            {
                self.write_soon(sandbox.clone(), ended.clone(), turn);
                return Ok(execution);
            }
            let written = self.write(sandbox, ended).await;
            if let Err(Error::PersistInUse(_)) = written {
                self.leave(sandbox).await;
                let what = "the code ran here, and what it did to variables and files is lost. Its execution is pending there, or has gone on";
                return Err(taken(what));
            }
            if !matches!(written, Ok(false)) {
                execution.unkept = self.inside().unkept.clone();
                if execution.unkept.is_some() {
                    self.inside().last = described(&execution);
                }
                return Ok(execution);
            }
        }
        // The guest is gone with its state. That of the store takes its place.
        let is_after_end = self.inside().after_end.is_some(); // then the journal is that of an earlier execution
        self.leave(sandbox).await;
        if !is_after_end {
            self.work(JournalPlace::remove_journal).await?;
        }
        self.read_again(false).await?; // this execution tells it
        let lost = execution.run.state.lost.take().unwrap_or_default();
        let reason = match lost.first() {
            Some(lost) if was_lost => lost.reason.clone(),
            _ => "the guest ended while its state was written".to_owned(),
        };
        execution.run.state = match &self.inside().stage {
            Stage::Stored(suspended) => StateReport::restored(suspended.past.execution(), [], &reason),
            Stage::Ended(_, run) => StateReport::restored(run.record.execution(), [], &reason),
            _ if was_lost => StateReport::lost(lost.into_iter().map(|lost| lost.name), &reason),
            _ => StateReport::lost([], &reason),
        };
        self.inside().last = described(&execution);
        Ok(execution)
    }
}

/// The reason for which a state without these variables is not exactly the present one.
pub(super) fn inexact(lost: &[LostVariable]) -> Option<String> {
    let LostVariable { name, reason } = lost.first()?;
    Some(format!("{name} cannot be written ({reason})"))
}

/// An execution as JSON, unless that is too long.
pub(super) fn described(execution: &Execution) -> Option<Bytes> {
    struct Bounded(Vec<u8>);
    impl Write for Bounded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > MOST_LAST_BYTES - self.0.len() {
                return Err(ErrorKind::FileTooLarge.into());
            }
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut json = Bounded(Vec::new());
    serde_json::to_writer(&mut json, execution).ok()?;
    Some(json.0.into())
}

/// Adds the last result to a state.
/// Leaves it out if the state would have more than `most` bytes: it could not be read again.
fn add_last(saved: &mut Saved, last: Option<Bytes>, most: u64) {
    let bytes = saved.bytes();
    let last = last.filter(|last| bytes + last.len() as u64 <= most);
    if let (Some(last), Some(settings)) = (last, saved.settings.as_object_mut()) {
        settings.insert(LAST.to_owned(), json!(saved.bodies.len()));
        saved.bodies.push(last);
    }
}

/// The last result that a state has.
pub(super) fn last_of(saved: &Saved) -> Option<Bytes> {
    let place = usize::try_from(saved.settings.get(LAST)?.as_u64()?).ok()?;
    saved.bodies.get(place).cloned()
}
