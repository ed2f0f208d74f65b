//! The value that an execution resolves to.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::budget::Usage;
use crate::limits::MAX_NAMES;

/// One execution and all that is known about how it went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct CodeExecution {
    /// The execution's number, from 1.
    pub id: u32,
    /// Its source.
    pub code: String,
    /// The text printed, even before an error, a timeout or a crash; truncated with a notice.
    pub stdout: String,
    /// The text written to `sys.stderr`, likewise.
    pub stderr: String,
    /// Present when it did not end well: the exception's last line as Python prints it; a timeout's begins with
    /// `TimeoutError:`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub error: Option<String>,
    /// The exception's class name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub error_type: Option<String>,
    /// The traceback, with the guest's frames only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub traceback: Option<String>,
    /// Wall time, in milliseconds.
    pub duration: f64,
    /// The part of it that the timeout counts, in milliseconds.
    pub guest_time: f64,
    /// The way it ended.
    pub outcome: Outcome,
    /// The fate of the variables.
    pub state: StateReport,
    /// The last expression's value as text (`repr`), when it is not `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub result: Option<String>,
    /// Rich outputs, in order: what `display` showed, the last expression's value, figures. All of it is the guest's, and
    /// not to be trusted: HTML and SVG belong into a sandboxed frame.
    pub displays: Vec<Display>,
    /// The files of the working folder that it changed, by path.
    pub files: Vec<FileChange>,
    /// The amount left out.
    pub truncated: Truncated,
    /// The number of host calls that it made.
    pub host_calls: u32,
    /// Which limit ended it, or the guest with it, where that is known; only native guests have all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub killer: Option<Killer>,
    /// The usage of its calls of models, recursions included, when there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub usage: Option<Usage>,
}

/// Something to see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Display {
    /// Its mime type: `text/html`, `image/png`, …
    pub mime: String,
    /// Text (HTML, Markdown, SVG, JSON) as it is; everything else in base64.
    pub data: String,
}

/// A file that an execution changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileChange {
    /// Its path, relative to the working folder.
    pub path: String,
    /// The change.
    pub change: Change,
    /// Its size now, in bytes.
    pub size: f64,
}

/// A change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Change {
    /// It was not there before.
    Created,
    /// It was written to, or replaced.
    Modified,
    /// It is gone.
    Deleted,
}

/// An execution's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Outcome {
    /// The code ran to its end.
    Ok,
    /// An exception ended it.
    Error,
    /// It ran out of time.
    Timeout,
    /// The user stopped it.
    Interrupted,
    /// The guest died.
    Crashed,
    /// A limit other than `timeout` and `wallTimeout` ended it.
    Limit,
}

/// The cause that ended a native guest, or the code in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Killer {
    /// It needed more memory than it may have.
    Oom,
    /// It ran out of time.
    Timeout,
    /// It had as many processes and threads as it may have.
    Pids,
    /// It wrote more than it may.
    Disk,
    /// A signal that was none of these.
    Signal,
}

/// The fate of the variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct StateReport {
    /// The state of the variables after the code.
    pub status: StateStatus,
    /// The execution after which the restored state was saved; 0 is before the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub restored_to: Option<u32>,
    /// The variables that are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub lost: Option<Vec<LostVariable>>,
}

/// The fate of the variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum StateStatus {
    /// They are as the code left them.
    Kept,
    /// They are as an earlier execution left them.
    Restored,
    /// They are gone; only `context` is there again.
    Lost,
}

/// A variable that is gone, and why. A file that `writeFile` wrote counts as one, named `file <path>`, and so does the descriptor of
/// a pipe or socket, named `descriptor <number>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LostVariable {
    /// Its name.
    pub name: String,
    /// Why it could not be kept.
    pub reason: String,
}

/// The parts left out of an execution: characters of the two output streams, and items of the lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Truncated {
    /// Of `stdout`.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "number"))]
    pub stdout: u64,
    /// Of `stderr`.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "number"))]
    pub stderr: u64,
    /// Rich outputs that were too many or too large.
    pub displays: u32,
    /// Files that changed, beyond those in `files`.
    pub files: u32,
}

impl StateReport {
    /// The variables are as the code left them.
    pub fn kept() -> Self {
        Self {
            status: StateStatus::Kept,
            restored_to: None,
            lost: None,
        }
    }

    /// The variables are as execution `id` left them; `newer` ones are gone, because of `reason`.
    pub fn restored(id: u32, newer: impl IntoIterator<Item = String>, reason: &str) -> Self {
        let Self { lost, .. } = Self::lost(newer, reason);
        Self {
            status: StateStatus::Restored,
            restored_to: Some(id),
            lost: lost.filter(|lost| !lost.is_empty()),
        }
    }

    /// The same in words, for who has asked for something that cost the guest its life.
    pub(crate) fn consequence(&self) -> String {
        match self.restored_to {
            Some(0) => "variables are as before the first execution".to_owned(),
            Some(id) => format!("variables are as after execution {id}"),
            None => "variables are lost, context is restored".to_owned(),
        }
    }

    /// Names variables that are gone as well, because of `reason`.
    pub fn add_lost(&mut self, names: impl IntoIterator<Item = String>, reason: &str) {
        self.add(Self::lost(names, reason).lost.unwrap_or_default());
    }

    /// The same for variables that have their reasons.
    pub fn add(&mut self, lost: impl IntoIterator<Item = LostVariable>) {
        let mut lost = lost.into_iter().peekable();
        if lost.peek().is_some() {
            self.lost.get_or_insert_default().extend(lost);
        }
    }

    /// Adds a loss that was before this one, and that nobody was told.
    pub fn add_earlier(&mut self, earlier: Option<Self>) {
        let Some(earlier) = earlier else { return };
        let lost = self.lost.take().unwrap_or_default();
        let mut all: Vec<_> = earlier.lost.into_iter().flatten().collect();
        let known: HashSet<&str> = lost.iter().map(|lost| lost.name.as_str()).collect();
        all.retain(|lost| !known.contains(lost.name.as_str()));
        all.extend(lost);
        all.truncate(MAX_NAMES);
        self.lost = Some(all).filter(|all| !all.is_empty() || self.status == StateStatus::Lost);
    }

    /// The variables `names` are gone, because of `reason`.
    pub fn lost(names: impl IntoIterator<Item = String>, reason: &str) -> Self {
        let lost = names
            .into_iter()
            .map(|name| LostVariable {
                name,
                reason: reason.to_owned(),
            })
            .collect();
        Self {
            status: StateStatus::Lost,
            restored_to: None,
            lost: Some(lost),
        }
    }
}
