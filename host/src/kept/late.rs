//! Large states that are written after their executions were answered.
//!
//! A state is written as a whole, which takes time when it is large. So an execution that can run again by its journal is durable as soon as
//! the journal has its end. It is answered then, and the state is written while the user thinks. Whoever comes meanwhile waits for that. If
//! the process ends before, the next one runs the execution again, which asks nobody.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use sandglass_core::Error;
use sandglass_core::execution::{LostVariable, Outcome};
use sandglass_core::session::Strictness;
use serde_json::Value as Json;
use tokio::sync::OwnedMutexGuard;

use super::ending::described;
use super::stage::Stage;
use super::{JournalPlace, Kept, MOST_BYTES, built};
use crate::driver::EndedRecord;
use crate::driver::journal::{AfterEnd, EndedRun};
use crate::sandbox::{ExecuteOptions, Execution, Sandbox, Suspended};

/// The bytes from which on a state is written late.
const LARGE: u64 = 4 << 20;
/// The most bytes of a record, which is written twice then.
const MOST_RECORD_BYTES: usize = 4 << 20;
/// The longest time that an execution may have computed, in milliseconds.
const MOST_MS: f64 = 10_000.0;
/// The time that it may take when it runs again, in milliseconds.
const AGAIN_MS: f64 = 120_000.0;
/// The attempts to run an execution again whose guest was stopped, or died.
const ATTEMPTS: u32 = 3;
/// The time for which the end of a sandbox waits for a state that is being written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(3);
/// The parts of an execution's JSON that are the same when it runs again. Warnings on `stderr` come once in a process.
const SAME: [&str; 5] = ["outcome", "errorType", "stdout", "result", "final"];

/// Whoever writes a state after its execution was answered.
struct Writer(Arc<Kept>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.late.send_replace(false);
    }
}

/// The outcome of a second run.
enum Again {
    /// The guest has the state after it.
    Done,
    /// The code went another way, or printed something else. The text says where.
    Differs(String),
}

impl Kept {
    /// Makes an execution durable by its journal. Returns false if its state has to be written now.
    pub(super) async fn ended_early(&self, execution: &Execution, ended: &EndedRecord) -> bool {
        let is_large = self.state_bytes.load(Ordering::Relaxed) >= LARGE;
        if !is_large || ended.record.size() > MOST_RECORD_BYTES || execution.guest_time > MOST_MS {
            return false;
        }
        let Some(after) = AfterEnd::of(ended) else { return false };
        let (written, last) = (ended.clone(), self.last());
        // The store may have the end also if nobody hears of that.
        self.inside().after_end = Some(after);
        match self
            .work(move |place| place.write_ended(&written, last.as_ref(), after))
            .await
        {
            Ok(is_written) => {
                let mut inside = self.inside();
                match is_written {
                    true => inside.unkept = None,
                    false => inside.after_end = None,
                }
                is_written
            }
            // If another server has the sandbox, the write of the state finds that out.
            Err(error) => {
                tracing::warn!(%error, "the end of a journal could not be written, so the state is written at once");
                false
            }
        }
    }

    /// Writes the state after an execution that was answered. Nobody else has the turn until that is done.
    pub(super) fn write_soon(&self, sandbox: Sandbox, ended: EndedRecord, turn: OwnedMutexGuard<()>) {
        let Some(kept) = self.me.upgrade() else { return };
        kept.late.send_replace(true);
        tokio::spawn(async move {
            let writer = Writer(kept);
            match writer.0.write(&sandbox, Some(ended)).await {
                Ok(false) => drop(writer.0.lost(&sandbox).await), // the next call tries again
                Err(Error::PersistInUse(_)) => writer.0.leave(&sandbox).await,
                Ok(true) | Err(_) => {}
            }
            drop((writer, turn));
        });
    }

    /// Returns true while a state is written after its execution was answered.
    pub(super) fn is_late(&self) -> bool {
        *self.late.borrow()
    }

    /// Waits until no state is written any more whose execution was answered.
    async fn is_written(&self) {
        let _ = self.late.subscribe().wait_for(|is_late| !is_late).await;
    }

    /// As [`Kept::is_written`], for the end of the sandbox, which does not need that: the journal has the execution.
    pub(super) async fn is_written_soon(&self) {
        let _ = tokio::time::timeout(WRITTEN_WITHIN, self.is_written()).await;
    }

    /// Notes that the sandbox goes on although the store has its last execution in the journal only. Returns true if that is so. Then the next
    /// execution cannot be recorded.
    ///
    /// # Errors
    /// [`Error::PersistInUse`].
    pub(super) async fn goes_on(&self) -> Result<bool, Error> {
        let Some(after) = self.inside().after_end else {
            return Ok(false);
        };
        if after.is_left {
            return Ok(true);
        }
        match self.work(move |place| place.write_left(after)).await {
            Err(taken @ Error::PersistInUse(_)) => return Err(taken),
            Err(error) => tracing::warn!(%error, "a later process will not hear that changes of the sandbox were lost"),
            Ok(()) => self.inside().after_end = Some(AfterEnd { is_left: true, ..after }),
        }
        Ok(true)
    }

    /// Waits until the store has the state after the last execution, or makes it.
    pub(super) async fn settle_late(&self) -> Result<(), Error> {
        self.is_written().await;
        if matches!(&self.inside().stage, Stage::Ended(..)) {
            let _turn = self.turn().await?;
            self.ran_again().await?;
        }
        Ok(())
    }

    /// Makes the state after an execution that has ended in an earlier process, and writes it. Returns the sandbox that goes on, if one does.
    /// Does nothing if there is no such execution.
    ///
    /// # Errors
    /// Those of the guest's start, and of the store. The execution can still be run again then.
    pub(super) async fn ran_again(&self) -> Result<Option<Sandbox>, Error> {
        let (before, run) = match &self.inside().stage {
            Stage::Ended(before, run) => (before.clone(), run.clone()),
            _ => return Ok(None),
        };
        let mut why = String::new();
        for attempt in 1..=ATTEMPTS {
            let sandbox = built(before.begin(self.builder()?)).await?;
            let is_destroyed = {
                let mut inside = self.inside();
                inside.other = Some(sandbox.clone());
                inside.lease.is_none()
            };
            let again = match is_destroyed {
                true => Err(Error::Destroyed),
                false => self.run_again(&sandbox, &before, &run).await,
            };
            let written = match again {
                Ok(Again::Done) => self.write_again(&sandbox, &run).await,
                Ok(Again::Differs(difference)) => {
                    self.end_other(&sandbox).await;
                    why = difference;
                    break;
                }
                Err(error) => {
                    self.end_other(&sandbox).await;
                    match error {
                        Error::GuestLost(_) if attempt < ATTEMPTS => continue,
                        error => return Err(error),
                    }
                }
            };
            match written {
                // The state says that what came after it is lost, so the sandbox begins from there.
                Ok(true) if run.after.is_left => {
                    self.end_other(&sandbox).await;
                    self.read_again(false).await?;
                    return Ok(None);
                }
                Ok(false) => {
                    self.end_other(&sandbox).await;
                    "its guest ended while the state was written".clone_into(&mut why);
                }
                Err(taken @ Error::PersistInUse(_)) => {
                    self.end_other(&sandbox).await;
                    return Err(taken);
                }
                // If the state could not be written, the next execution tells it, and the journal stays.
                Ok(true) | Err(_) => {
                    let mut inside = self.inside();
                    inside.after_end = written.is_err().then_some(run.after);
                    (inside.stage, inside.other) = (Stage::Open(sandbox.clone()), None);
                    return Ok(Some(sandbox));
                }
            }
        }
        self.is_given_up(before, &run, &why).await;
        Ok(None)
    }

    /// Writes the state after an execution that ran again.
    async fn write_again(&self, sandbox: &Sandbox, run: &EndedRun) -> Result<bool, Error> {
        let ended = EndedRecord {
            record: run.record.clone().into(),
            journal: run.journal,
            parts: None,
        };
        self.write_returned(sandbox, Some(ended), run.after.is_left).await
    }

    /// Runs an ended execution again.
    async fn run_again(&self, sandbox: &Sandbox, before: &Suspended, run: &EndedRun) -> Result<Again, Error> {
        let turn = self.place.turn().await;
        let lost = sandbox.take_up(before, MOST_BYTES).await?;
        if let Some(LostVariable { name, reason }) = lost.first() {
            let why = format!(
                "the state before the last execution cannot be made again: {name} ({reason}). Nothing is lost: try again where it can, or call \
                 discard() to give the execution up"
            );
            return Err(Error::NoCheckpoint(why));
        }
        drop(turn);
        let mut record = run.record.clone();
        record.allow_time(AGAIN_MS); // the machine may be busier than before
        let execution = match sandbox
            .replay(record, Strictness::Replay, ExecuteOptions::default())
            .await
        {
            Ok((execution, _)) => execution,
            Err(Error::JournalDiffers(why)) => return Ok(Again::Differs(why)),
            Err(error) => return Err(error),
        };
        // An execution that was stopped has no such journal. So something else than the code has stopped this one.
        if matches!(
            execution.outcome,
            Outcome::Timeout | Outcome::Interrupted | Outcome::Crashed
        ) {
            return Err(Error::GuestLost(
                "the last execution could not be run again: it was stopped, or its guest ended. Nothing is lost: the next call tries again, and \
                 discard() gives the execution up"
                    .to_owned(),
            ));
        }
        let parsed = |json: Option<Bytes>| json.and_then(|json| serde_json::from_slice::<Json>(&json).ok());
        let (Some(now), Some(then)) = (parsed(described(&execution)), parsed(run.last.clone())) else {
            return Ok(Again::Done); // one of them is too long to be kept
        };
        let differs = |part: &&str| repeatable(now.get(*part)) != repeatable(then.get(*part));
        Ok(match SAME.into_iter().find(differs) {
            Some(part) => Again::Differs(format!("{part} is not the same")),
            None => Again::Done,
        })
    }

    /// Gives up an execution that cannot be run again. The next one tells that.
    async fn is_given_up(&self, before: Box<Suspended>, run: &EndedRun, why: &str) {
        let execution = run.record.execution();
        tracing::error!(
            execution,
            why,
            "an execution of a kept sandbox cannot be run again, so its effects are lost"
        );
        if let Err(error) = self.work(JournalPlace::remove_journal).await {
            tracing::warn!(%error, "the journal of an execution that is lost was not removed");
        }
        let mut inside = self.inside();
        inside.stage = Stage::without(before, execution, why);
        inside.last = None;
    }

    /// Ends the sandbox in which an execution ran again.
    async fn end_other(&self, sandbox: &Sandbox) {
        sandbox.destroy().await;
        self.inside().other = None;
    }
}

/// The part of a result that is the same in each process: addresses of objects are not.
fn repeatable(part: Option<&Json>) -> Option<Json> {
    let text = part?.as_str();
    let Some(text) = text else { return part.cloned() };
    let mut pieces = text.split("0x");
    let mut masked = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        masked.push_str("0x");
        masked.push_str(piece.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()));
    }
    Some(masked.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_of_objects_are_not_compared() {
        let of = |text: &str| repeatable(Some(&json!(text)));
        assert_eq!(of("<f at 0x7f00ab12> 0x"), of("<f at 0x7ee1> 0x"));
        assert_ne!(of("<f at 0x7f>"), of("<g at 0x7f>"));
        assert_ne!(of("0x1 7"), of("0x1 8"));
        assert_eq!(repeatable(Some(&json!([1]))), Some(json!([1])));
        assert_eq!(repeatable(None), None);
    }
}
