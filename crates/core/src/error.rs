//! Errors, each with a code that never changes.

/// A reason for which a sandbox refused or could not finish a call.
///
/// An exception in Python code is not an [`Error`]. It is in the `error` of a [`CodeExecution`](crate::CodeExecution).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An option or argument is unknown, has a wrong type or is out of range. Nothing was done; the state is kept.
    #[error("{name}: {problem}")]
    InvalidOption {
        /// The option or argument at fault.
        name: String,
        /// The problem, and the values that are valid.
        problem: String,
    },
    /// `initialize` has not been called. Nothing was done.
    #[error("the sandbox has no context yet: call initialize(context) first, with null if there is none")]
    NotInitialized,
    /// The sandbox was destroyed before or during the call. Its state is gone.
    #[error("the sandbox was destroyed; create a new one")]
    Destroyed,
    /// The guest could not start. A later call tries again.
    #[error("the guest could not start: {0}")]
    BootFailed(String),
    /// A file that the guest needs could not be fetched or is damaged. Nothing was started.
    #[error("{0}")]
    AssetFailed(String),
    /// A package does not exist, not in an acceptable version, or not for this Python. Nothing was installed.
    #[error("{0}")]
    PackageNotFound(String),
    /// A package's file is not the expected one, or must not be installed. Nothing was installed.
    #[error("{0}")]
    Integrity(String),
    /// The guest broke the protocol and was ended. Another guest takes over; the message tells with which state.
    #[error("the guest broke the protocol and was ended: {0}")]
    Protocol(String),
    /// A value cannot cross between the page and Python. Nothing was changed.
    #[error("{0}")]
    NotSerializable(String),
    /// A file, URL or stream given as a value could not be read. Nothing was changed.
    #[error("{0}")]
    SourceFailed(String),
    /// The requested checkpoint does not exist. The state is kept.
    #[error("{0}")]
    NoCheckpoint(String),
    /// The file does not exist. The state is kept.
    #[error("there is no file or folder \"{0}\"")]
    FileNotFound(String),
    /// A file could not be read, written or removed: its path is outside of the working folder, it is a folder, or there is no space left.
    /// The state is kept. A file that was to be written is unchanged.
    #[error("{0}")]
    File(String),
    /// The guest ended, or had to be ended, during the call. Another guest takes over; the message tells with which state.
    #[error("the guest was lost during the call: {0}")]
    GuestLost(String),
    /// No backend, or not the requested one, can run a guest on this machine. Nothing was started.
    #[error("{0}")]
    BackendUnavailable(String),
    /// An execution of an earlier session is pending. Nothing was done.
    #[error("{0}")]
    ExecutionPending(String),
    /// The code did something else than its journal has. The state is as it was before the execution.
    #[error("{0}")]
    JournalDiffers(String),
    /// Another sandbox has the kept one. Nothing was started.
    #[error("{0}")]
    PersistInUse(String),
    /// A kept sandbox cannot be read or written, or is damaged. What was kept before is still there.
    #[error("{0}")]
    PersistFailed(String),
    /// The call did not finish in time and was interrupted. The state is kept.
    #[error("{0}")]
    Timeout(String),
}

impl Error {
    /// The error's stable code, for callers to branch on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidOption { .. } => "invalid_option",
            Self::NotInitialized => "not_initialized",
            Self::Destroyed => "destroyed",
            Self::BootFailed(_) => "boot_failed",
            Self::AssetFailed(_) => "asset_failed",
            Self::PackageNotFound(_) => "package_not_found",
            Self::Integrity(_) => "integrity",
            Self::Protocol(_) => "protocol",
            Self::NotSerializable(_) => "not_serializable",
            Self::SourceFailed(_) => "source_failed",
            Self::NoCheckpoint(_) => "no_checkpoint",
            Self::FileNotFound(_) => "file_not_found",
            Self::File(_) => "file_error",
            Self::GuestLost(_) => "guest_lost",
            Self::BackendUnavailable(_) => "backend_unavailable",
            Self::ExecutionPending(_) => "execution_pending",
            Self::JournalDiffers(_) => "journal_differs",
            Self::PersistInUse(_) => "persist_in_use",
            Self::PersistFailed(_) => "persist_failed",
            Self::Timeout(_) => "timeout",
        }
    }

    /// Makes an [`Error::InvalidOption`].
    pub fn invalid(name: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::InvalidOption {
            name: name.into(),
            problem: problem.into(),
        }
    }

    /// Adds what became of the state, in words, to an error whose text does not say it.
    #[must_use]
    pub fn with_consequence(mut self, consequence: &str) -> Self {
        match &mut self {
            Self::NotInitialized | Self::Destroyed | Self::FileNotFound(_) => {}
            Self::InvalidOption { problem: text, .. }
            | Self::BootFailed(text)
            | Self::AssetFailed(text)
            | Self::PackageNotFound(text)
            | Self::Integrity(text)
            | Self::Protocol(text)
            | Self::NotSerializable(text)
            | Self::SourceFailed(text)
            | Self::NoCheckpoint(text)
            | Self::File(text)
            | Self::GuestLost(text)
            | Self::BackendUnavailable(text)
            | Self::ExecutionPending(text)
            | Self::JournalDiffers(text)
            | Self::PersistInUse(text)
            | Self::PersistFailed(text)
            | Self::Timeout(text) => {
                text.push_str("; ");
                text.push_str(consequence);
            }
        }
        self
    }
}
