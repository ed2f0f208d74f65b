//! Errors of stored states.

use std::io;

/// An error of a stored state. Other states are not affected.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Something that was stored is missing, was cut or was changed.
    #[error("the stored state is damaged: {0}; nothing was changed")]
    Damaged(String),
    /// A state was stored by a later version.
    #[error("the state was stored in format {0} by a later version of Sandglass; nothing was changed")]
    Newer(u32),
    /// A state is larger than allowed.
    #[error("the state takes {bytes} bytes, of which at most {most} are allowed; nothing was changed")]
    TooLarge {
        /// The size of the state.
        bytes: u64,
        /// The most bytes.
        most: u64,
    },
    /// Another server has a session, or had it in the meantime.
    #[error("another server has the session now; nothing was changed")]
    Taken,
    /// A key is malformed, or another one than that of the store.
    #[error("{0}")]
    Key(String),
    /// Another process has the store open.
    #[error("{0}")]
    InUse(String),
    /// A text is no id.
    #[error("{0:?} is no id: it must have {1} hexadecimal digits")]
    Id(String, usize),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The attempt that failed.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl StateError {
    /// An error of the system.
    pub fn io(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Io {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Returns true if the stored bytes are unusable, so that another try cannot help.
    pub fn is_damage(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::Newer(_) | Self::TooLarge { .. })
    }
}

pub(crate) fn no_random_numbers() -> StateError {
    StateError::Key("the system gives no random numbers".to_owned())
}
