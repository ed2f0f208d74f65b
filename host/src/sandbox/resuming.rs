//! Executions of an earlier process that a sandbox goes on with.

use sandglass_core::Error;
use sandglass_core::session::{Command, Input, Reply};

use super::{ExecuteOptions, Execution, Sandbox, finished, no_execution};
use crate::driver::journal::Written;
use crate::value::Value;

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
        if options.timeout_ms.is_some() || options.budget != Default::default() {
            let problem = "takes no timeout and no budget: those of the execution count";
            return Err(Error::invalid("resume", problem));
        }
        let encode = |(call, value): (u32, Value)| {
            let what = format!("the answer to call {call}");
            Ok((call, value.encode(&what, self.limits.max_value_bytes)?))
        };
        let answers = answers.into_iter().map(encode).collect::<Result<_, Error>>()?;
        self.driver.recorded(journal);
        let (watch, value) = self.watch(options);
        match self.driver.submit(Command::Resume(answers), watch).await? {
            Reply::Execution(run, last) => Ok(finished(*run, last.as_ref(), value)),
            _ => Err(no_execution()),
        }
    }
}
