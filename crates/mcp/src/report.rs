//! The results of tools, for models and for programs.

use std::fmt::Write;

use rmcp::model::{CallToolResult, ContentBlock};
use sandglass_core::limits::FEEDBACK_CHARS;
use sandglass_host::sandbox::traceback_with_error;
use sandglass_host::{Execution, Outcome, StateStatus};
use sandglass_rlm::middle_cut;
use schemars::JsonSchema;
use serde::Serialize;

/// The most pictures of a result.
const MAX_PICTURES: usize = 10;
/// The most bytes of a picture in base64. Agents' models take no larger ones.
const MAX_PICTURE_BYTES: usize = 5 << 20;
/// The most bytes of all pictures of a result. A result is one message.
const MAX_PICTURES_BYTES: usize = 16 << 20;
/// The kinds of pictures that models see.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// The most names in a report.
const MAX_NAMES: usize = 200;

/// The first and last characters of a long text, as many as a model is shown of an execution.
pub fn cut(text: &str) -> String {
    if text.len() <= FEEDBACK_CHARS as usize {
        return text.to_owned();
    }
    middle_cut(text, FEEDBACK_CHARS as usize)
}

/// An execution, as a program reads it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// How the code ended: `ok`, `error`, `timeout`, `interrupted`, `crashed` or `limit`.
    pub outcome: Outcomes,
    /// The state of the variables now: `kept` as the code left them, or `lost`.
    pub state: States,
    /// Names of lost variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// Text printed to standard output. The middle of a long text is left out.
    pub stdout: String,
    /// Text printed to standard error.
    pub stderr: String,
    /// The `repr` of the last expression's value, unless that is `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The last line of the exception.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The traceback.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceback: Option<String>,
    /// The answer that the code declared by `FINAL`, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// Paths of files in the working folder that the code created, changed or removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    /// The number of pictures in the result.
    pub pictures: usize,
    /// Wall time in milliseconds.
    pub milliseconds: f64,
}

/// How code ended.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcomes {
    /// The code ran to its end.
    Ok,
    /// An exception ended the code.
    Error,
    /// The code ran out of time.
    Timeout,
    /// The client cancelled the call.
    Interrupted,
    /// Python died.
    Crashed,
    /// A limit ended the code.
    Limit,
}

/// What became of the variables.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum States {
    /// They are as the code left them.
    Kept,
    /// They are as an earlier execution left them.
    Restored,
    /// They are gone. Only `context` was set again.
    Lost,
}

/// The result of a tool that ran code.
pub fn execution(run: &Execution) -> CallToolResult {
    let (pictures, note) = pictures(run);
    let shown = run
        .displays
        .iter()
        .filter(|display| display.mime == "text/plain" || display.mime == "text/markdown");
    let mut stdout = run.stdout.clone();
    for display in shown {
        if !stdout.is_empty() && !stdout.ends_with('\n') {
            stdout.push('\n');
        }
        let _ = writeln!(stdout, "{}", display.data.trim_end());
    }
    let report = Report {
        outcome: match run.outcome {
            Outcome::Ok => Outcomes::Ok,
            Outcome::Error => Outcomes::Error,
            Outcome::Timeout => Outcomes::Timeout,
            Outcome::Interrupted => Outcomes::Interrupted,
            Outcome::Crashed => Outcomes::Crashed,
            Outcome::Limit => Outcomes::Limit,
        },
        state: match run.state.status {
            StateStatus::Kept => States::Kept,
            StateStatus::Restored => States::Restored,
            StateStatus::Lost => States::Lost,
        },
        lost: names(run.state.lost.iter().flatten().map(|lost| &lost.name)),
        stdout: cut(&stdout),
        stderr: cut(&run.stderr),
        result: run.result.as_deref().map(cut),
        error: run.error.as_deref().map(cut),
        traceback: run.traceback.as_deref().map(cut),
        answer: run.final_answer.as_ref().map(|last| cut(&last.value.to_text())),
        files: names(run.files.iter().map(|file| &file.path)),
        pictures: pictures.len(),
        milliseconds: run.duration.round(),
    };
    let mut content = vec![ContentBlock::text(text(&report, note))];
    content.extend(pictures);
    let mut result = structured(content, &report);
    result.is_error = Some(run.outcome != Outcome::Ok);
    result
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    names.take(MAX_NAMES).cloned().collect()
}

/// The pictures of an execution, and a note on those that are left out.
fn pictures(run: &Execution) -> (Vec<ContentBlock>, Option<String>) {
    let (mut fit, mut bytes) = (Vec::new(), 0);
    let mut left = run.truncated.displays as usize;
    for picture in run.displays.iter().filter(|display| display.mime.starts_with("image/")) {
        let size = picture.data.len();
        let is_seen = PICTURES.contains(&&*picture.mime) && size <= MAX_PICTURE_BYTES;
        if is_seen && fit.len() < MAX_PICTURES && bytes + size <= MAX_PICTURES_BYTES {
            bytes += size;
            fit.push(ContentBlock::image(&*picture.data, &*picture.mime));
        } else {
            left += 1;
        }
    }
    let why = "too many, too large, or no PNG, JPEG, GIF or WebP; save them as files instead";
    (
        fit,
        (left > 0).then(|| format!("[{left} outputs are not shown: {why}]")),
    )
}

/// The execution as a model reads it, in the order of a terminal.
fn text(report: &Report, note: Option<String>) -> String {
    let mut parts = Vec::new();
    let mut add = |text: &str| {
        if !text.is_empty() {
            parts.push(text.trim_end_matches('\n').to_owned());
        }
    };
    add(&report.stdout);
    if !report.stderr.is_empty() {
        add(&format!("[stderr]\n{}", report.stderr));
    }
    add(report.result.as_deref().unwrap_or_default());
    if let Some(answer) = &report.answer {
        add(&format!("[answer]\n{answer}"));
    }
    add(&note.unwrap_or_default());
    if let Some(error) = &report.error {
        add(&traceback_with_error(
            report.traceback.as_deref().unwrap_or_default(),
            error,
        ));
        add(&state(report));
    } else if !matches!(report.state, States::Kept) {
        add(&state(report));
    }
    if parts.is_empty() {
        return "(no output)".to_owned();
    }
    parts.join("\n")
}

/// What became of the variables, as a sentence.
fn state(report: &Report) -> String {
    let lost = match report.lost.as_slice() {
        [] => String::new(),
        lost => format!(" Lost: {}.", lost.join(", ")),
    };
    match report.state {
        States::Kept => "[The variables are kept.]".to_owned(),
        States::Restored => format!("[The variables are as an earlier call left them.{lost}]"),
        States::Lost => format!("[The variables are lost; `context` was set again.{lost}]"),
    }
}

/// A result with these blocks for models, and a value for programs.
pub fn structured(content: Vec<ContentBlock>, value: &impl Serialize) -> CallToolResult {
    let mut result = CallToolResult::success(content);
    result.structured_content = serde_json::to_value(value).ok();
    result
}
