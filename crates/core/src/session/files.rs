//! Files of a guest: what may be asked, and whether the answer fits.

use super::exchange::Ending;
use super::oversized::kind;
use super::{Body, Encoded};
use crate::execution::FileChange;
use crate::limits::{MAX_CHANGED_FILES, MAX_PATH_TEXT};
use crate::protocol::{Encoding, Event, Request};

/// A request of the user's about files. A path is relative to the working folder, or lies in it or in the folder of temporary files.
#[derive(Debug, Clone, PartialEq)]
pub enum FileCommand<B> {
    /// Make these bytes the contents of a file.
    Write {
        /// Which file.
        path: String,
        /// Its contents, in any encoding: they are sent as they are.
        data: B,
    },
    /// Get a file's contents.
    Read {
        /// Which file.
        path: String,
        /// True when it has to be UTF-8.
        text: bool,
    },
    /// List a folder, and those in it.
    List(String),
    /// Remove a file, or a folder and all in it.
    Remove(String),
    /// Get the file that describes a cell.
    Cell {
        /// Which of the two.
        file: CellFile,
        /// The host's facts about the cell, as JSON.
        about: B,
    },
    /// Look at code that is being written. It is no file, but asked for and answered as one.
    Look {
        /// The question.
        look: Look,
        /// The code, and where in it, as JSON.
        about: B,
    },
}

/// A question about code that is being written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Names that could go on here.
    Complete,
    /// The meaning of a name.
    Inspect,
}

impl Look {
    /// As the guest calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Inspect => "inspect",
        }
    }
}

/// The files that describe a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellFile {
    /// The state that it begins with.
    Input,
    /// The outcome.
    Output,
}

impl CellFile {
    /// As the guest calls it.
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

    /// The path that it changes, if it does.
    pub(super) fn changes(&self) -> Option<&str> {
        matches!(self, Self::Write { .. } | Self::Remove(_)).then(|| self.path())
    }

    /// The request that the guest is sent.
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

    /// The ending of the exchange that an event of the guest is. An error is a violation.
    pub(super) fn ending(&self, event: Event, body: Option<B>) -> Result<Ending<B>, String> {
        Ok(match event {
            Event::Refused { message, .. } => Ending::Refused(message),
            Event::Done { .. } if self.changes().is_some() => Ending::Done,
            Event::Value {
                encoding: Encoding::Missing,
                ..
            } if !matches!(self, Self::Write { .. } | Self::Cell { .. } | Self::Look { .. }) => Ending::Missing,
            Event::Value { encoding, .. } if self.takes(encoding) => {
                let body = body.ok_or("a value without a body")?;
                Ending::Value(Encoded { encoding, body })
            }
            Event::Done { .. } | Event::Value { .. } => {
                return Err("an answer that does not fit what was asked of a file".to_owned());
            }
            event => return Err(format!("{} does not fit what was asked", kind(&event))),
        })
    }

    /// Returns true when a value so written answers it.
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

/// Returns true when a guest tells of more changed files, or longer paths, than one of ours would.
pub(super) fn oversized_report(files: &[FileChange]) -> bool {
    files.len() > MAX_CHANGED_FILES
        || files
            .iter()
            .any(|file| file.path.len() > MAX_PATH_TEXT || !(0.0..=1e15).contains(&file.size))
}
