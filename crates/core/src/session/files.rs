//! Requests about a guest's files, and checks of the answers.

use super::Body;
use super::oversized::not_asked;
use crate::execution::FileChange;
use crate::limits::{MAX_CHANGED_FILES, MAX_PATH_TEXT};
use crate::protocol::{Encoding, Event, Request};

/// A user's request about files. A path is relative to the working folder, or absolute in that folder or the folder of temporary files.
#[derive(Debug, Clone, PartialEq)]
pub enum FileCommand<B> {
    /// Writes bytes to a file.
    Write {
        /// The file's path.
        path: String,
        /// The file's contents. They are sent as they are, in any encoding.
        data: B,
    },
    /// Reads a file.
    Read {
        /// The file's path.
        path: String,
        /// True if the contents must be UTF-8.
        text: bool,
    },
    /// Lists a folder, and all folders in it.
    List(String),
    /// Removes a file, or a folder with its contents.
    Remove(String),
    /// Gets the file that describes a cell.
    Cell {
        /// The kind of file.
        file: CellFile,
        /// The host's facts about the cell, as JSON.
        about: B,
    },
    /// Looks at code that is being written. The answer comes like that of a file.
    Look {
        /// The question.
        look: Look,
        /// The code and the position in it, as JSON.
        about: B,
    },
}

/// A question about code that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Asks for names that could continue the code here.
    Complete,
    /// Asks for the meaning of a name.
    Inspect,
}

impl Look {
    /// The question's name in the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Inspect => "inspect",
        }
    }
}

/// A file that describes a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellFile {
    /// The state before the cell runs.
    Input,
    /// The outcome of the cell.
    Output,
}

impl CellFile {
    /// The file's name in the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

impl<B: Body> FileCommand<B> {
    pub(super) fn path(&self) -> &str {
        match self {
            Self::Write { path, .. } | Self::Read { path, .. } | Self::List(path) | Self::Remove(path) => path,
            Self::Cell { file, .. } => file.name(),
            Self::Look { look, .. } => look.name(),
        }
    }

    /// The path that the request changes, if it changes one.
    pub(super) fn changes(&self) -> Option<&str> {
        matches!(self, Self::Write { .. } | Self::Remove(_)).then(|| self.path())
    }

    /// The request to send to the guest.
    pub(super) fn request(&self, exchange: u32, timeout_ms: f64) -> (Request, Option<B>) {
        let path = self.path().to_owned();
        let request = match self {
            Self::Write { data, .. } => {
                let request = Request::WriteFile {
                    exchange,
                    path,
                    timeout_ms,
                };
                return (request, Some(data.clone()));
            }
            Self::Read { text, .. } => Request::ReadFile {
                exchange,
                path,
                text: *text,
                timeout_ms,
            },
            Self::List(_) => Request::ListFiles {
                exchange,
                path,
                timeout_ms,
            },
            Self::Remove(_) => Request::RemoveFile {
                exchange,
                path,
                timeout_ms,
            },
            Self::Cell { about, .. } => {
                let request = Request::CellFile {
                    exchange,
                    path,
                    timeout_ms,
                };
                return (request, Some(about.clone()));
            }
            Self::Look { about, .. } => {
                let request = Request::Look {
                    exchange,
                    path,
                    timeout_ms,
                };
                return (request, Some(about.clone()));
            }
        };
        (request, None)
    }

    /// Checks that an event is an answer to the request. An error is a violation.
    pub(super) fn check_answer(&self, event: &Event, has_body: bool) -> Result<(), String> {
        let may_be_missing = matches!(self, Self::Read { .. } | Self::List(_) | Self::Remove(_));
        match event {
            Event::Refused { .. } => Ok(()),
            Event::Done { .. } if self.changes().is_some() => Ok(()),
            Event::Value {
                encoding: Encoding::Missing,
                ..
            } if may_be_missing => Ok(()),
            Event::Value { encoding, .. } if self.takes(*encoding) => match has_body {
                true => Ok(()),
                false => Err("a value without a body".to_owned()),
            },
            Event::Done { .. } | Event::Value { .. } => {
                Err("an answer that does not fit what was asked of a file".to_owned())
            }
            _ => Err(not_asked(event)),
        }
    }

    /// Returns true if a value in this encoding answers the request.
    fn takes(&self, encoding: Encoding) -> bool {
        match self {
            Self::Write { .. } => false,
            Self::Read { text: true, .. } => encoding == Encoding::Text,
            Self::Read { .. } | Self::Cell { .. } | Self::Look { .. } => encoding == Encoding::Bytes,
            Self::List(_) => encoding == Encoding::Marshal,
            Self::Remove(_) => false,
        }
    }
}

/// Returns true if a report has more changed files, or longer paths, than our guest would send.
pub(super) fn oversized_report(files: &[FileChange]) -> bool {
    files.len() > MAX_CHANGED_FILES
        || files
            .iter()
            .any(|file| file.path.len() > MAX_PATH_TEXT || !(0.0..=1e15).contains(&file.size))
}
