//! Executions of an earlier process that a sandbox goes on with, and executions that run again.

use sandglass_core::session::{Command, Encoded, Input, Record, Reply, Strictness};
use sandglass_core::{BudgetLimits, Error};

use super::{ExecuteOptions, Execution, Sandbox, finished, no_execution};
use crate::driver::EndedRecord;
use crate::driver::journal::Written;
use crate::value::{Payload, Value};

impl Sandbox {
    /// Tells that a store has the present state, or has not, because of the error. If an execution is next, it goes into the journal.
    pub(crate) fn kept(&self, kept: Result<(), String>) {
        self.driver.tell(Input::StateKept(kept));
    }

    /// Returns true if the guest is the first one, which has the state that it was given. A destroyed sandbox has none.
    pub(crate) async fn has_first_guest(&self) -> bool {
        self.driver.has_first_guest().await
    }

    /// Goes on with an execution by its journal. The guest must have the state before it. Calls whose answers are given, by their places among
    /// the calls, are not made again.
    ///
    /// # Errors
    /// [`Error::JournalDiffers`] when the code goes another way. The guest has ended then.
    pub(crate) async fn resume(
        &self,
        journal: Written,
        answers: Vec<(u32, Value)>,
        options: ExecuteOptions,
    ) -> Result<Execution, Error> {
        no_limits("resume", &options)?;
        let answers = self.encoded(answers)?;
        self.driver.recorded(journal);
        self.go_on(answers, options).await
    }

    /// Puts answers in the place of those in a record, by the places of their calls. Returns the rule for the run.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an answer to no call.
    pub(crate) fn change(&self, record: &mut Record<Payload>, answers: Vec<(u32, Value)>) -> Result<Strictness, Error> {
        let strictness = match answers.is_empty() {
            true => Strictness::Replay,
            false => Strictness::Explore,
        };
        for (call, value) in self.encoded(answers)? {
            if !record.change(call, value) {
                let problem = format!("execution {} has no call {call}; nothing was done", record.execution());
                return Err(Error::invalid("answers", problem));
            }
        }
        Ok(strictness)
    }

    /// Runs an ended execution again by its record. The guest must have the state before it. Returns the execution with its first difference
    /// from the record, if its answers were [changed](Sandbox::change).
    ///
    /// # Errors
    /// [`Error::JournalDiffers`] when the code goes another way, although no answer was changed.
    pub(crate) async fn replay(
        &self,
        record: Record<Payload>,
        strictness: Strictness,
        options: ExecuteOptions,
    ) -> Result<(Execution, Option<String>), Error> {
        no_limits("replay", &options)?;
        self.driver.tell(Input::Recorded(Box::new(record), strictness));
        let execution = self.go_on(Vec::new(), options).await?;
        let ended = self.driver.ended().await;
        let difference = ended.and_then(|ended| ended.record.difference().map(str::to_owned));
        Ok((execution, difference))
    }

    /// Takes the record of the last execution, if it was recorded.
    pub(crate) async fn ended_record(&self) -> Option<EndedRecord> {
        self.driver.ended().await
    }

    fn encoded(&self, answers: Vec<(u32, Value)>) -> Result<Vec<(u32, Encoded<Payload>)>, Error> {
        let encode = |(call, value): (u32, Value)| {
            let what = format!("the answer to call {call}");
            Ok((call, value.encode(&what, self.limits.max_value_bytes)?))
        };
        answers.into_iter().map(encode).collect()
    }

    async fn go_on(&self, answers: Vec<(u32, Encoded<Payload>)>, options: ExecuteOptions) -> Result<Execution, Error> {
        let (watch, value) = self.watch(options);
        match self.driver.submit(Command::Resume(answers), watch)?.answer().await? {
            Reply::Execution(run, last) => Ok(finished(*run, last.as_ref(), value)),
            _ => Err(no_execution()),
        }
    }
}

/// Refuses limits: those of the execution count.
fn no_limits(method: &str, options: &ExecuteOptions) -> Result<(), Error> {
    if options.timeout_ms.is_some() || options.budget != BudgetLimits::default() {
        let problem = "takes no timeout and no budget: those of the execution count";
        return Err(Error::invalid(method, problem));
    }
    Ok(())
}
