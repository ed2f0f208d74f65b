//! Large states that are written after their executions were answered.
//!
//! A state is written as a whole, which takes time when it is large. So an execution that can run again by its journal is durable as soon as
//! the journal has its end. It is answered then, and the state is written while the user thinks. If the process ends before, the next one
//! runs the execution again, which asks nobody.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_core::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::session::Strictness;
use serde_json::Value as Json;

use super::ending::described;
use super::stage::Stage;
use super::{Kept, MOST_BYTES, built};
use crate::driver::EndedRecord;
use crate::driver::journal::EndedRun;
use crate::sandbox::{ExecuteOptions, Execution, Suspended};

/// The bytes from which on a state is written late.
const LARGE: u64 = 4 << 20;
/// The most bytes of a record, which is written twice then.
const MOST_RECORD_BYTES: usize = 4 << 20;
/// The longest time that an execution may take to be run again.
const MOST_MS: f64 = 10_000.0;
/// The time for which the end of a sandbox waits for a state that is being written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
/// The parts of an execution's JSON that are the same when it runs again.
const SAME: [&str; 6] = ["outcome", "stdout", "stderr", "result", "error", "final"];

impl Kept {
    /// Makes an execution durable by its journal, and has its state written later. Returns false if the state has to be written now.
    ///
    /// # Errors
    /// [`Error::PersistInUse`].
    pub(super) async fn ended_early(&self, execution: &Execution, ended: Option<&EndedRecord>) -> Result<bool, Error> {
        let is_large = self.state_bytes.load(Ordering::Relaxed) >= LARGE;
        let Some(ended) = ended
            .filter(|ended| is_large && ended.record.size() <= MOST_RECORD_BYTES && execution.guest_time <= MOST_MS)
        else {
            return Ok(false);
        };
        let (written, last) = (ended.clone(), self.last());
        match self.work(move |place| place.write_ended(&written, last.as_ref())).await {
            Ok(false) => Ok(false),
            Ok(true) => {
                self.inside().unkept = None;
                self.late.send_replace(Some(ended.clone()));
                self.write_soon();
                Ok(true)
            }
            Err(taken @ Error::PersistInUse(_)) => Err(taken),
            Err(error) => {
                tracing::warn!(%error, "the end of a journal could not be written, so the state is written at once");
                Ok(false)
            }
        }
    }

    /// Writes the late state as soon as nobody uses the sandbox.
    fn write_soon(&self) {
        let me = self.me.clone();
        tokio::spawn(async move {
            let Some(kept) = me.upgrade() else { return };
            let Ok(_turn) = kept.turn().await else { return };
            let sandbox = match &kept.inside().stage {
                Stage::Open(sandbox) => sandbox.clone(),
                _ => return,
            };
            if kept.is_late() && matches!(kept.write(&sandbox, None).await, Ok(false)) {
                let _ = kept.lost(&sandbox).await; // the next call tries again
            }
        });
    }

    /// Returns true if the state after the last execution is not written yet.
    pub(super) fn is_late(&self) -> bool {
        self.late.borrow().is_some()
    }

    /// Waits until the late state is written, for the end of the sandbox.
    pub(super) async fn is_written(&self) {
        let mut late = self.late.subscribe();
        let _ = tokio::time::timeout(WRITTEN_WITHIN, late.wait_for(Option::is_none)).await;
    }

    /// Writes the state after this execution, if it is late.
    pub(super) async fn settle_late(&self, execution: u32) -> Result<(), Error> {
        let is_its = |ended: &EndedRecord| ended.record.execution() == execution;
        let is_late = self.late.borrow().as_ref().is_some_and(is_its);
        let is_stored = matches!(&self.inside().stage, Stage::Ended(..));
        if is_late {
            return self.save().await;
        }
        if is_stored {
            let _turn = self.turn().await?;
            self.ran_again().await?;
        }
        Ok(())
    }

    /// Makes the state after an execution that has ended in an earlier process, and writes it. Does nothing if there is no such execution.
    ///
    /// # Errors
    /// Those of the guest's start, and of the store. The execution can still be run again then.
    pub(super) async fn ran_again(&self) -> Result<(), Error> {
        let (before, run) = match &self.inside().stage {
            Stage::Ended(before, run) => (before.clone(), run.clone()),
            _ => return Ok(()),
        };
        let execution = run.record.execution();
        let builder = self
            .builder
            .clone()
            .journal(None, self.settings.hash_seed)
            .asks_nobody();
        let sandbox = built(before.begin(builder)).await?;
        self.inside().other = Some(sandbox.clone());
        let differs = match self.run_again(&sandbox, &before, &run).await {
            Ok(()) => None,
            Err(Error::JournalDiffers(why) | Error::NoCheckpoint(why)) => Some(why),
            Err(error) => {
                self.end_other(&sandbox).await;
                return Err(error);
            }
        };
        if let Some(why) = differs {
            tracing::error!(
                execution,
                why,
                "an execution of a kept sandbox cannot be run again, so its effects are lost"
            );
            self.end_other(&sandbox).await;
            self.inside().stage = Stage::without(before, execution, &why);
            return Ok(());
        }
        let ended = EndedRecord {
            record: run.record.into(),
            journal: None,
            parts: None,
        };
        let written = self.write(&sandbox, Some(ended)).await;
        self.end_other(&sandbox).await;
        match written? {
            true => self.read_again(false).await,
            false => Err(Error::GuestLost(format!(
                "the guest in which execution {execution} ran again has ended; nothing is lost. The next call tries again"
            ))),
        }
    }

    /// Runs an ended execution again.
    async fn run_again(&self, sandbox: &crate::Sandbox, before: &Suspended, run: &EndedRun) -> Result<(), Error> {
        let turn = self.place.turn().await;
        let lost = sandbox.take_up(before, MOST_BYTES).await?;
        if let Some(LostVariable { name, reason }) = lost.first() {
            return Err(Error::NoCheckpoint(format!(
                "{name} of the state before it cannot be made ({reason})"
            )));
        }
        drop(turn);
        let replayed = sandbox.replay(run.record.clone(), Strictness::Replay, ExecuteOptions::default());
        let (execution, _) = replayed.await?;
        let [now, then] = [described(&execution), run.last.clone()]
            .map(|json| json.and_then(|json| serde_json::from_slice::<Json>(&json).ok()));
        let (Some(now), Some(then)) = (now, then) else {
            return Ok(()); // one of them is too long to be kept
        };
        match SAME.into_iter().find(|part| now.get(part) != then.get(part)) {
            Some(part) => Err(Error::JournalDiffers(format!("{part} is not the same"))),
            None => Ok(()),
        }
    }

    /// Ends the sandbox in which an execution ran again.
    async fn end_other(&self, sandbox: &crate::Sandbox) {
        sandbox.destroy().await;
        self.inside().other = None;
    }
}
