//! Executions that have ended and run again, each in a guest of its own.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use sandglass_core::Error;
use sandglass_core::execution::LostVariable;
use sandglass_states::{JournalId, Ran, Rerun};

use super::stage::Stage;
use super::{Kept, MOST_BYTES, built, failed};
use crate::driver::EndedRecord;
use crate::driver::journal::{JournalPlace, packed, unpacked};
use crate::sandbox::{ExecuteOptions, Execution, Spent, Suspended};
use crate::value::Value;

/// The options of [`Kept::replay`].
#[derive(Debug, Default)]
pub struct ReplayOptions {
    /// Answers in place of those in the journal. A key is a call's place among the calls of the execution, from 1, or its
    /// [name](crate::HostCall::id).
    pub answers: Vec<(String, Value)>,
    /// True if a call without an answer in the journal is made. Otherwise it raises `HostCallError` in Python.
    pub ask: bool,
    /// The receivers of the execution's events. A timeout or budget is refused: those of the execution count.
    pub execute: ExecuteOptions,
}

/// An execution that has run again.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// The execution.
    pub execution: Execution,
    /// The place where the code first went another way than its journal says. `None` if it did not. Without other answers, this is an error.
    pub difference: Option<String>,
}

impl Kept {
    /// Runs an ended execution again by its journal, in a guest of its own that has the state before it. The sandbox stays as it is. Without
    /// other answers, output and result are the same. The last 32 executions can be replayed, also those of an earlier process. Code may run
    /// or be pending meanwhile.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] with the reason for which there is no replay of it; [`Error::InvalidOption`] for an answer to no call;
    /// [`Error::JournalDiffers`] when the code goes another way, although no answer is another one; [`Error::PersistFailed`] when the store
    /// cannot be read; [`Error::Destroyed`]; and those of the guest's start.
    pub async fn replay(&self, execution: u32, options: ReplayOptions) -> Result<Replay, Error> {
        let none = |why: String| Error::NoCheckpoint(format!("execution {execution} cannot be replayed: {why}"));
        self.settle_late().await?;
        let turn = self.place.turn().await;
        // The reading goes on when the user leaves, and has its turn until it has ended.
        let read = move |place: &JournalPlace| Ok((place.rerun(execution)?, turn));
        let (rerun, turn) = self.work(read).await?;
        let Rerun { state, journal } = rerun.map_err(none)?;
        let (journal, mut record) = unpacked(journal).map_err(none)?;
        let suspended = Suspended::from_saved(state, Spent::default()).map_err(failed)?;
        let ReplayOptions { answers, ask, execute } = options;
        let answers = answers.into_iter().map(|(name, value)| match place(journal, &name) {
            Some(place) => Ok((place, value)),
            None => Err(Error::invalid(
                "answers",
                format!("\"{name}\" names no call; nothing was done"),
            )),
        });
        let answers = answers.collect::<Result<_, Error>>()?;

        let mut builder = self.builder.clone().journal(None, self.settings.hash_seed);
        if let Stage::Open(sandbox) = &self.inside().stage {
            builder = builder.shared_budget(sandbox.budget());
        }
        if !ask {
            builder = builder.asks_nobody();
        }
        let sandbox = built(suspended.begin(builder)).await?;
        let strictness = sandbox.change(&mut record, answers)?;
        let replayed = async {
            let lost = sandbox.take_up(&suspended, MOST_BYTES).await?;
            if let Some(LostVariable { name, reason }) = lost.first() {
                let why = format!("the state before it cannot be made again: {name} ({reason})");
                return Err(none(why));
            }
            drop((suspended, turn)); // from here on, only the guest has the state
            sandbox.replay(record, strictness, execute).await
        };
        let replayed = tokio::select! {
            replayed = replayed => replayed,
            () = self.is_ended.cancelled() => Err(Error::Destroyed),
        };
        sandbox.destroy().await;
        let (execution, difference) = replayed?;
        Ok(Replay { execution, difference })
    }
}

/// An execution for the store.
pub(super) fn ran(ended: &EndedRecord) -> Ran {
    Ran {
        execution: ended.record.execution(),
        journal: packed(ended.journal, &ended.record),
    }
}

/// The place of a call that a user names, from 1.
fn place(journal: Option<JournalId>, name: &str) -> Option<u32> {
    let place = match name.split_once('.') {
        Some((its, place)) => Some(place).filter(|_| its.parse::<JournalId>().is_ok_and(|its| Some(its) == journal)),
        None => Some(name),
    };
    place?.parse().ok().filter(|place| *place > 0)
}
