//! The result of an execution.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::budget::Usage;
use crate::limits::MAX_NAMES;

/// The result of an execution, and the facts about its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct CodeExecution {
    /// The execution's number, from 1.
    pub id: u32,
    /// The source of the code.
    pub code: String,
    /// Text printed to `stdout`, even before an error, a timeout or a crash. Long text is truncated with a notice.
    pub stdout: String,
    /// Text written to `sys.stderr`. Long text is truncated with a notice.
    pub stderr: String,
    /// The exception's last line, as Python prints it. Missing if the outcome is `ok`. A timeout's text begins with `TimeoutError:`.
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
    /// Wall time of the execution, in milliseconds.
    pub duration: f64,
    /// The part of `duration` that `timeout` limits, in milliseconds.
    pub guest_time: f64,
    /// The way in which the execution ended.
    pub outcome: Outcome,
    /// The state of the variables after the execution.
    pub state: StateReport,
    /// The `repr` of the last expression's value, unless that is `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub result: Option<String>,
    /// Rich outputs, in order: those that `display` showed, the last expression's value, and figures. They come from the guest and are
    /// untrusted: show HTML and SVG only in a sandboxed frame.
    pub displays: Vec<Display>,
    /// Files in the working folder that the code changed, sorted by path.
    pub files: Vec<FileChange>,
    /// The amounts that were left out of this result.
    pub truncated: Truncated,
    /// The number of host calls that the code made.
    pub host_calls: u32,
    /// The limit that ended the code or the guest, if known. Only native guests report all kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub killer: Option<Killer>,
    /// The use of models by this execution, recursions included. Missing if it called no model.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub usage: Option<Usage>,
}

/// A rich output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Display {
    /// The mime type, such as `text/html` or `image/png`.
    pub mime: String,
    /// Text types (HTML, Markdown, SVG, JSON) as they are; all others in base64.
    pub data: String,
}

/// A file that an execution changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct FileChange {
    /// The file's path, relative to the working folder.
    pub path: String,
    /// The kind of change.
    pub change: Change,
    /// The file's size now, in bytes.
    pub size: f64,
}

/// The kind of change of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Change {
    /// The file is new.
    Created,
    /// The file was written to, or replaced.
    Modified,
    /// The file was removed.
    Deleted,
}

/// The way in which an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Outcome {
    /// The code ran to its end.
    Ok,
    /// An exception ended the code.
    Error,
    /// The code ran out of time.
    Timeout,
    /// The user stopped it.
    Interrupted,
    /// The guest died.
    Crashed,
    /// A limit other than `timeout` and `wallTimeout` ended the code.
    Limit,
}

/// The cause that ended a native guest, or the code in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Killer {
    /// The guest needed more memory than its limit.
    Oom,
    /// The code ran out of time.
    Timeout,
    /// The guest reached its limit of processes and threads.
    Pids,
    /// The guest wrote more than its limit.
    Disk,
    /// Another signal ended the guest.
    Signal,
}

/// The state of the variables after an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct StateReport {
    /// The status of the state as a whole.
    pub status: StateStatus,
    /// The execution after which the restored state was saved; 0 means before the first execution.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub restored_to: Option<u32>,
    /// The variables that are gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub lost: Option<Vec<LostVariable>>,
}

/// The status of the variables after an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum StateStatus {
    /// The variables are as the code left them.
    Kept,
    /// The variables are as an earlier execution left them.
    Restored,
    /// The variables are gone. Only `context` was set again.
    Lost,
}

/// A variable that is gone, and the reason. A lost file that `writeFile` wrote is named `file <path>`. A lost descriptor of a pipe or
/// socket is named `descriptor <number>`. An execution that no later process or page has is named `execution <number>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct LostVariable {
    /// The variable's name.
    pub name: String,
    /// The reason for which it could not be kept.
    pub reason: String,
}

/// The amounts that were left out of an execution's result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Truncated {
    /// Characters of `stdout`.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "number"))]
    pub stdout: u64,
    /// Characters of `stderr`.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "number"))]
    pub stderr: u64,
    /// The number of rich outputs that were too many or too large.
    pub displays: u32,
    /// The number of changed files that are not in `files`.
    pub files: u32,
}

impl StateReport {
    /// A report that the variables are as the code left them.
    pub fn kept() -> Self {
        Self {
            status: StateStatus::Kept,
            restored_to: None,
            lost: None,
        }
    }

    /// A report that the variables are as execution `id` left them. The `newer` variables are gone, because of `reason`.
    pub fn restored(id: u32, newer: impl IntoIterator<Item = String>, reason: &str) -> Self {
        let Self { lost, .. } = Self::lost(newer, reason);
        Self {
            status: StateStatus::Restored,
            restored_to: Some(id),
            lost: lost.filter(|lost| !lost.is_empty()),
        }
    }

    /// The report as a clause for messages, for requests that ended the guest.
    pub(crate) fn consequence(&self) -> String {
        match self.restored_to {
            Some(0) => "variables are as before the first execution".to_owned(),
            Some(id) => format!("variables are as after execution {id}"),
            None => "variables are lost, context is restored".to_owned(),
        }
    }

    /// Adds variables that are gone because of `reason`.
    pub fn add_lost(&mut self, names: impl IntoIterator<Item = String>, reason: &str) {
        self.add(Self::lost(names, reason).lost.unwrap_or_default());
    }

    /// Adds variables that are gone, each with its own reason.
    pub fn add(&mut self, lost: impl IntoIterator<Item = LostVariable>) {
        let mut lost = lost.into_iter().peekable();
        if lost.peek().is_some() {
            self.lost.get_or_insert_default().extend(lost);
        }
    }

    /// Adds an earlier loss that nobody was told of.
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

    /// A report that the variables `names` are gone, because of `reason`.
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
