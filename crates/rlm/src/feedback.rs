//! Texts that tell the model of an execution, in the words of each [`Profile`]'s controllers.
//!
//! The texts are those of these projects:
//!
//! - alexzhang13/rlm 0.1.3 and 0.1.1 (`rlm/utils/parsing.py`): `format_iteration`, `format_execution_result`;
//! - alexzhang13/rlm-minimal at 973f8d4 (`rlm/utils/utils.py`): `add_execution_result_to_messages`, `format_execution_result`;
//! - stanfordnlp/dspy 3.3.1 and 3.4.1 (`dspy/primitives/repl_types.py`, `dspy/predict/rlm.py`): `REPLEntry.format_output`, `_format_output`.
//!
//! Two facts are added, because a model goes wrong without them. One is the text printed before an error, which dspy drops. The other is
//! the state of the variables after a guest was replaced.

use sandglass_core::execution::{CodeExecution, StateStatus, Truncated};
use sandglass_core::limits::{DSPY_FEEDBACK_CHARS, FEEDBACK_CHARS, RLM_MINIMAL_FEEDBACK_CHARS};
use sandglass_core::output::omission_notice;
use sandglass_core::protocol::Profile;

/// The project whose texts are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Sandglass's own.
    Default,
    /// alexzhang13/rlm from 0.1.2 on: one message for all blocks of a reply.
    Rlm,
    /// alexzhang13/rlm up to 0.1.1a: a message for each block, with its code.
    RlmLegacy,
    /// alexzhang13/rlm-minimal: the same, cut later and without a count.
    RlmMinimal,
    /// stanfordnlp/dspy.
    Dspy,
}

impl From<Profile> for Format {
    fn from(profile: Profile) -> Self {
        match profile {
            Profile::Default | Profile::RlmCore => Self::Default,
            Profile::Rlm => Self::Rlm,
            Profile::RlmLegacy => Self::RlmLegacy,
            Profile::Dspy => Self::Dspy,
        }
    }
}

impl Format {
    /// The format with this public name: a profile's, or `rlm-minimal`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "rlm-minimal" => Some(Self::RlmMinimal),
            _ => Profile::named(name).map(Self::from),
        }
    }

    /// The most characters of one execution that the format shows.
    pub fn max_chars(self) -> u32 {
        match self {
            Self::Default | Self::Rlm | Self::RlmLegacy => FEEDBACK_CHARS,
            Self::RlmMinimal => RLM_MINIMAL_FEEDBACK_CHARS,
            Self::Dspy => DSPY_FEEDBACK_CHARS,
        }
    }
}

/// The text that tells a model of an execution.
///
/// `block` is the number of the code block, from 1, if its reply had several. `variables` are the names for formats that list variables;
/// controllers of `rlm` list those that hold a str, int, float, bool, list, dict or tuple. `max_chars` is the most characters (code points)
/// of the result to show. By default it is the number of the project.
pub fn feedback(
    format: impl Into<Format>,
    execution: &CodeExecution,
    block: Option<u32>,
    variables: &[String],
    max_chars: Option<u32>,
) -> String {
    let format = format.into();
    let max = max_chars.unwrap_or(format.max_chars()) as usize;
    let numbered = block.map_or(String::new(), |number| format!(" (block {number})"));
    match format {
        Format::Default => {
            let text = default_text(execution, variables);
            let shown = cut(&text, hidden(execution), max, Half::Both, omission_notice);
            format!("Output{numbered}:\n{shown}")
        }
        Format::Rlm => format!(
            "REPL output{numbered}:\n{}",
            rlm_text(format, execution, variables, max)
        ),
        Format::RlmLegacy | Format::RlmMinimal => format!(
            "Code executed:\n```python\n{}\n```\n\nREPL output:\n{}",
            execution.code,
            rlm_text(format, execution, variables, max)
        ),
        Format::Dspy => dspy_text(execution, max),
    }
}

/// The message by which alexzhang13/rlm asks its model at every turn but the first (`rlm/utils/prompts.py`, `build_user_prompt`).
pub fn rlm_turn(turn: u32, turns: u32) -> String {
    format!("Turn {turn}/{turns}:")
}

fn default_text(execution: &CodeExecution, variables: &[String]) -> String {
    let mut lines = Lines::default();
    lines.add(&execution.stdout);
    if !execution.stderr.is_empty() {
        lines.add("stderr:");
        lines.add(&execution.stderr);
    }
    if let Some(result) = &execution.result {
        lines.add(&format!("Result: {result}"));
    }
    lines.add_some(execution.traceback.as_deref().or(execution.error.as_deref()));
    lines.add_some(state_note(execution).as_deref());
    if !variables.is_empty() {
        lines.add(&format!("Variables: {}", variables.join(", ")));
    }
    lines.or("No output")
}

fn rlm_text(format: Format, execution: &CodeExecution, variables: &[String], max: usize) -> String {
    let mut stdout = execution.stdout.clone();
    let mut stderr = execution.stderr.clone();
    if let Some(error) = &execution.error {
        if format == Format::RlmMinimal {
            stderr += message(error, execution.error_type.as_deref());
        } else {
            stderr += "\n";
            stderr += error;
        }
    }
    if let Some(result) = execution.result.as_ref().filter(|_| format == Format::RlmMinimal) {
        stdout += result;
        stdout += "\n";
    }
    if let Some(note) = state_note(execution) {
        stderr += "\n";
        stderr += &note;
    }
    let mut parts = Vec::new();
    for text in [stdout, stderr] {
        if !text.is_empty() {
            parts.push(format!("\n{text}"));
        }
    }
    if !variables.is_empty() {
        parts.push(format!("REPL variables: ['{}']\n", variables.join("', '")));
    }
    let text = if parts.is_empty() {
        "No output".to_owned()
    } else {
        parts.join("\n\n")
    };
    cut(&text, hidden(execution), max, Half::Head, |left| match format {
        Format::RlmMinimal => "...".to_owned(),
        _ => format!("... + [{left} chars...]"),
    })
}

fn dspy_text(execution: &CodeExecution, max: usize) -> String {
    let mut lines = Lines::default();
    lines.add(&execution.stdout);
    lines.add(&execution.stderr);
    lines.add_some(execution.result.as_deref());
    if let Some(error) = &execution.error {
        lines.add(&format!("[Error] {error}"));
    }
    lines.add_some(state_note(execution).as_deref());
    let text = lines.or("(no output - did you forget to print?)");
    let hidden = hidden(execution);
    let chars = total(&text, hidden);
    let shown = cut(&text, hidden, max, Half::Both, |left| {
        format!("\n\n... ({} characters omitted) ...\n\n", grouped(left))
    });
    format!("Output ({} chars):\n{shown}", grouped(chars))
}

/// The text about variables that are not as the code left them, if there are any.
fn state_note(execution: &CodeExecution) -> Option<String> {
    const MOST: usize = 50;
    let state = &execution.state;
    let lost = state.lost.as_deref().unwrap_or_default();
    let mut gone: Vec<&str> = lost.iter().take(MOST).map(|lost| lost.name.as_str()).collect();
    gone.extend((lost.len() > MOST).then_some("…"));
    let gone = gone.join(", ");
    Some(match (state.status, gone.is_empty()) {
        (StateStatus::Kept, true) => return None,
        (StateStatus::Kept, false) => format!("Variables lost: {gone}."),
        (StateStatus::Restored, true) => {
            "The REPL was restarted; the variables are as an earlier execution left them.".to_owned()
        }
        (StateStatus::Restored, false) => {
            format!("The REPL was restarted; the variables are as an earlier execution left them. Lost: {gone}.")
        }
        (StateStatus::Lost, true) => "State lost: the REPL was restarted without its variables.".to_owned(),
        (StateStatus::Lost, false) => format!("State lost: the REPL was restarted without its variables: {gone}."),
    })
}

/// The exception's text as `str()` gives it: the last line without the class.
fn message<'a>(error: &'a str, error_type: Option<&str>) -> &'a str {
    error_type
        .and_then(|kind| error.strip_prefix(kind)?.strip_prefix(": "))
        .unwrap_or(error)
}

/// The number of characters that both streams left out, less the length of the notices in their place.
fn hidden(execution: &CodeExecution) -> i64 {
    let Truncated { stdout, stderr, .. } = execution.truncated;
    [stdout, stderr]
        .into_iter()
        .filter(|omitted| *omitted > 0)
        .map(|omitted| to_i64(omitted).saturating_sub(to_i64(omission_notice(omitted).chars().count() as u64)))
        .fold(0, i64::saturating_add)
}

/// The number of characters of the whole text, before any were left out.
fn total(text: &str, hidden: i64) -> u64 {
    let chars = to_i64(text.chars().count() as u64);
    chars.saturating_add(hidden).try_into().unwrap_or(0)
}

fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The part of a long text that is kept.
#[derive(Clone, Copy, PartialEq)]
enum Half {
    Head,
    Both,
}

/// The first characters of a text, or its first and last ones; `max` in all. `notice` makes the text in place of the others.
fn cut(text: &str, hidden: i64, max: usize, half: Half, notice: impl Fn(u64) -> String) -> String {
    let chars = text.chars().count();
    if chars <= max {
        return text.to_owned();
    }
    let head = if half == Half::Both { max / 2 } else { max };
    let at = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(byte, _)| byte);
    let left = total(text, hidden).saturating_sub(max as u64);
    format!(
        "{}{}{}",
        &text[..at(head)],
        notice(left),
        &text[at(chars - (max - head))..]
    )
}

/// A number with commas after each thousand.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Pieces of text, each of which begins on a new line.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, piece: &str) {
        if !self.0.is_empty() && !self.0.ends_with('\n') && !piece.is_empty() {
            self.0.push('\n');
        }
        self.0.push_str(piece);
    }

    fn add_some(&mut self, piece: Option<&str>) {
        self.add(piece.unwrap_or_default());
    }

    fn or(self, nothing: &str) -> String {
        if self.0.is_empty() { nothing.to_owned() } else { self.0 }
    }
}
