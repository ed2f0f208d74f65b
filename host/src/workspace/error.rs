//! The errors of workspaces, and their quotas.

use std::io;

use rustix::io::Errno;

use super::MAX_NAME;
use super::tree::Usage;

/// The reason why an operation on a workspace or its file failed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// A user or session cannot have this name.
    #[error(
        "{what} {name:?} cannot be a folder's name: 1 to {MAX_NAME} letters, digits, \"_\", \"-\", \".\" or \"@\", the first none of the last three"
    )]
    Name {
        /// Either "user" or "session".
        what: &'static str,
        /// The invalid name.
        name: String,
    },
    /// Another session has claimed the workspace.
    #[error("the workspace {0} is in use: end the session that has it, or take another name")]
    InUse(String),
    /// There is no such file or folder.
    #[error("there is no file or folder {0:?}")]
    NotFound(String),
    /// The path leads to something that must not be used.
    #[error("{path}: {problem}")]
    Refused {
        /// The path as given.
        path: String,
        /// The reason.
        problem: String,
    },
    /// The quota is used up.
    #[error("the workspace has no room for it: {0}")]
    Quota(String),
    /// The system failed.
    #[error("{what}: {error}")]
    System {
        /// The operation.
        what: String,
        /// The system's error.
        error: io::Error,
    },
}

impl WorkspaceError {
    /// The stable code, on which callers can branch.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Name { .. } => "invalid_option",
            Self::InUse(_) => "workspace_in_use",
            Self::NotFound(_) => "file_not_found",
            Self::Refused { .. } | Self::System { .. } => "file_error",
            Self::Quota(_) => "quota",
        }
    }

    pub(super) fn refused(path: &str, problem: impl Into<String>) -> Self {
        Self::Refused {
            path: path.to_owned(),
            problem: problem.into(),
        }
    }

    pub(super) fn system(what: impl Into<String>, error: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            error: error.into(),
        }
    }

    /// The error of a failure at a path within a workspace.
    pub(super) fn at(path: &str, error: Errno) -> Self {
        match error {
            Errno::NOENT | Errno::NOTDIR => Self::NotFound(path.to_owned()),
            Errno::LOOP => Self::refused(path, "is a link, or lies behind one; links are not followed"),
            Errno::XDEV => Self::refused(path, "leads out of the workspace"),
            Errno::NOSPC | Errno::DQUOT => Self::Quota("the disk is full".to_owned()),
            error => Self::system(path, error),
        }
    }
}

/// The bounds of a workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Bytes on the disk.
    pub bytes: u64,
    /// Files and folders.
    pub files: u64,
}

impl Quota {
    /// The exceeded bound as a text, if any.
    pub fn exceeded(&self, usage: &Usage) -> Option<String> {
        if usage.in_flight {
            let why = "code has sent file descriptors that nobody has received, and what they keep on the disk cannot be counted";
            Some(why.to_owned())
        } else if !usage.complete {
            Some("its folders are deeper, or more, than can be looked at".to_owned())
        } else if usage.bytes > self.bytes {
            Some(format!("{} bytes of {}", usage.bytes, self.bytes))
        } else if usage.files > self.files {
            Some(format!("{} files of {}", usage.files, self.files))
        } else {
            None
        }
    }
}
