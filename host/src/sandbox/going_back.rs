//! Checkpoints of a sandbox, and the ways back to them.

use sandglass_core::Error;
use sandglass_core::session::{Command, Reply, StateCommand};

use super::Sandbox;

impl Sandbox {
    /// Saves the state now. Returns the number of the execution whose state it is; 0 is before the first. With
    /// [`SandboxBuilder::checkpoints`](super::SandboxBuilder::checkpoints), the state is also saved after each execution.
    ///
    /// # Errors
    /// [`Error::NotSerializable`] names what keeps the guest from being copied, such as a thread or a socket. The variables are kept.
    /// [`Error::InvalidOption`] when checkpoints are off.
    pub async fn checkpoint(&self) -> Result<u32, Error> {
        self.state(StateCommand::Checkpoint).await
    }

    /// Takes back the last execution: variables are as they were before it. Returns the number of the execution whose state it is.
    /// Changes of files, and all other effects on the outside, stay.
    ///
    /// # Errors
    /// [`Error::NoCheckpoint`] when the state before it was not saved; then nothing changes. [`Error::InvalidOption`] when checkpoints
    /// are off.
    pub async fn undo(&self) -> Result<u32, Error> {
        self.state(StateCommand::Undo).await
    }

    /// Goes back to the newest checkpoint of an execution, or to the newest one of all. Returns the number of the execution.
    ///
    /// # Errors
    /// As [`Sandbox::undo`].
    pub async fn restore(&self, execution: Option<u32>) -> Result<u32, Error> {
        self.state(StateCommand::Restore(execution)).await
    }

    async fn state(&self, command: StateCommand) -> Result<u32, Error> {
        match self.ask(Command::State(command)).await? {
            Reply::State(execution) => Ok(execution),
            _ => Err(Error::Protocol("an answer that is no state".to_owned())),
        }
    }
}
