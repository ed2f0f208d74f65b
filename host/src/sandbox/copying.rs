//! Copies of a sandbox.

use sandglass_core::Error;
use sandglass_core::session::{Command, StateCommand};
use tokio::sync::oneshot;

use super::{Sandbox, Spent, number_of_copies};
use crate::driver::{CopiesOrder, KEPT, MadeCopy, Watch};

/// An exact copy of a sandbox: all that is in Python's memory, and the files of its folders. [`SandboxBuilder::copy`] makes a sandbox of it,
/// and dropping it ends it.
///
/// [`SandboxBuilder::copy`]: super::SandboxBuilder::copy
pub struct SandboxCopy {
    pub(super) made: MadeCopy,
    pub(super) spent: Spent,
}

impl std::fmt::Debug for SandboxCopy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SandboxCopy").finish_non_exhaustive()
    }
}

impl SandboxCopy {
    /// The number of executions that were requested of the original.
    pub fn execution(&self) -> u32 {
        self.made.fork.execution()
    }
}

impl Sandbox {
    /// Makes exact copies, 1 to 100, each isolated like any other sandbox. The sandbox goes on in another process, and its older checkpoints
    /// end. It needs [`SandboxBuilder::checkpoints`], bubblewrap, files in memory, and a host that is root on Linux and `x86_64`.
    ///
    /// This is new: prefer copies by value ([`Sandbox::suspend`]) for hostile code.
    ///
    /// [`SandboxBuilder::checkpoints`]: super::SandboxBuilder::checkpoints
    ///
    /// # Errors
    /// [`Error::NotSerializable`] names the reason for which there can be none; [`Sandbox::suspend`] then gives copies by value. The state comes
    /// from its newest checkpoint then.
    pub async fn fork(&self, count: usize) -> Result<Vec<SandboxCopy>, Error> {
        number_of_copies(Some(count)).map_err(|problem| Error::invalid("count", problem))?;
        let why_not = |why| Error::NotSerializable(format!("there can be no exact copy: {why}"));
        if !self.copies_exactly {
            return Err(why_not(format!(
                "it needs checkpoints, bubblewrap, files in memory, and a host that is root on x86_64; {KEPT}"
            )));
        }
        let (made, copies) = oneshot::channel();
        let watch = Watch {
            copies: Some(CopiesOrder { count, made }),
            ..Watch::default()
        };
        let forking = self.driver.submit(Command::State(StateCommand::Fork), watch)?;
        let copies = match copies.await {
            // Nobody waits for the session's own guest but the next execution, which says what became of it.
            Ok(Ok(copies)) => {
                forking.leave();
                copies.into_iter()
            }
            Ok(Err(why)) => {
                let _ = forking.answer().await; // the reason says more than the error of a session that does not come back
                return Err(why_not(why));
            }
            Err(_) => {
                forking.answer().await?;
                let why = "the guest ended meanwhile; the next execution says what is lost";
                return Err(why_not(why.to_owned()));
            }
        };
        let spent = self.all_spent();
        Ok(copies.map(|made| SandboxCopy { made, spent }).collect())
    }
}
