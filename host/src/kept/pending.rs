//! An execution that waits for a later process, as users see it.

use sandglass_core::Error;
use sandglass_core::execution::LostVariable;
use sandglass_core::session::Waits;

use super::stage::Stage;
use super::{Kept, MOST_BYTES, built};
use crate::callbacks::arguments;
use crate::driver::journal::{JournalPlace, Written, call_id};
use crate::sandbox::{ExecuteOptions, Execution};
use crate::value::{Payload, Value};

/// An execution that was under way when the process of the sandbox ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Pending {
    /// The execution's number.
    pub execution: u32,
    /// Its code.
    pub code: String,
    /// The calls that it waits for.
    pub calls: Vec<PendingCall>,
}

/// A host call without an answer. The function may have run: the process ended before its answer was written.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingCall {
    /// The call's name: [`HostCall::id`](crate::HostCall::id) of the function's next call.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The call's positional arguments.
    pub args: Vec<Value>,
    /// The call's keyword arguments, in order.
    pub kwargs: Vec<(String, Value)>,
    /// The time at which Python made the call, in milliseconds since 1970.
    pub since_ms: u64,
}

/// The options of [`Kept::resume`].
#[derive(Debug, Default)]
pub struct ResumeOptions {
    /// Answers to calls that wait, by their [names](PendingCall::id). These calls are not made again.
    pub answers: Vec<(String, Value)>,
    /// The receivers of the execution's events, from its beginning. A timeout or budget is refused: those of the execution count.
    pub execute: ExecuteOptions,
}

impl Pending {
    /// The execution of a journal.
    pub(super) fn of(Written { id, record, times }: &Written) -> Self {
        let call = |waits: Waits<Payload>| {
            let decoded = Value::decode(&waits.args).unwrap_or_default();
            let (args, kwargs, _) = arguments(decoded).unwrap_or_default();
            PendingCall {
                id: call_id(*id, waits.call),
                name: waits.name,
                args,
                kwargs,
                since_ms: times.get(waits.index + 1).copied().unwrap_or_default(),
            }
        };
        Self {
            execution: record.execution(),
            code: record.code().to_owned(),
            calls: record.waiting().into_iter().map(call).collect(),
        }
    }
}

/// Answers to calls that wait, by the places of these.
///
/// # Errors
/// [`Error::InvalidOption`] for a name of no call that waits.
fn by_places(journal: &Written, answers: Vec<(String, Value)>) -> Result<Vec<(u32, Value)>, Error> {
    let waiting = journal.record.waiting();
    let by_place = |(id, value)| {
        let waits = waiting.iter().find(|waits| call_id(journal.id, waits.call) == id);
        let problem = || Error::invalid("answers", format!("\"{id}\" is no call that waits; nothing was done"));
        Ok((waits.ok_or_else(problem)?.call, value))
    };
    answers.into_iter().map(by_place).collect()
}

impl Kept {
    /// Goes on with the pending execution. Output and displays come from the beginning.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when none is pending, or an answer is given to no call that waits; [`Error::JournalDiffers`] when the code
    /// goes another way than its journal says. After any error, the execution is still pending.
    pub async fn resume(&self, options: ResumeOptions) -> Result<Execution, Error> {
        let turn = self.turn().await?;
        let (suspended, journal) = match &self.inside().stage {
            Stage::Pending(suspended, journal) => (suspended.clone(), journal.clone()),
            _ => return Err(nothing_pending("resume")),
        };
        let ResumeOptions { answers, execute } = options;
        let answers = by_places(&journal, answers)?;
        let sandbox = built(suspended.begin(self.builder()?)).await?;
        {
            let mut inside = self.inside();
            inside.other = Some(sandbox.clone());
            inside.unkept = Some("an execution after it was interrupted".to_owned());
        }
        let resumed = async {
            let place_turn = self.place.turn().await;
            let lost = sandbox.take_up(&suspended, MOST_BYTES).await?;
            if let Some(LostVariable { name, reason }) = lost.first() {
                let why = format!("the state before the pending execution cannot be made again: {name} ({reason})");
                return Err(Error::NoCheckpoint(why));
            }
            drop(place_turn);
            self.work(JournalPlace::mark_awake).await?;
            sandbox.resume(*journal, answers, execute).await
        };
        let resumed = resumed.await;
        match resumed {
            Ok(execution) => {
                {
                    let mut inside = self.inside();
                    inside.stage = Stage::Open(sandbox.clone());
                    inside.unkept = Some("it was not written yet".to_owned());
                    inside.other = None;
                }
                self.ended(&sandbox, execution, turn).await
            }
            Err(error) => {
                let _ = self.lost(&sandbox).await; // the next call tries again
                Err(error)
            }
        }
    }

    /// Gives the pending execution up. The state stays as it was before it. So does one that has ended, and that cannot be run again now.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] when none is pending; [`Error::PersistFailed`] when the store cannot be written.
    pub async fn discard(&self) -> Result<(), Error> {
        let _turn = self.turn().await?;
        let stage = match &self.inside().stage {
            Stage::Pending(suspended, _) => Stage::Stored(suspended.clone()),
            Stage::Ended(before, run) => Stage::without(before.clone(), run.record.execution(), "it was given up"),
            _ => return Err(nothing_pending("discard")),
        };
        self.work(JournalPlace::remove_journal).await?;
        let mut inside = self.inside();
        if matches!(inside.stage, Stage::Ended(..)) {
            inside.last = None;
        }
        inside.stage = stage;
        Ok(())
    }
}

fn nothing_pending(method: &str) -> Error {
    Error::invalid(method, "no execution is pending; nothing was done")
}
