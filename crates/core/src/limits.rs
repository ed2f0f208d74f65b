//! Limits and their defaults: every number that a user may set, with its unit and range, and every bound that host and guest share. A
//! number that only one file needs stands in that file.
//!
//! A new limit is a field of [`Limits`] with a name in `Limits::NAMES`. Pages and the server read the option by that name. Its description
//! belongs into `src/sandbox.rs` (TypeScript) and `crates/server/src/openapi.json`.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md` and `docs/internals/values-and-calls.md`.

use crate::error::Error;

/// The limits of a session. Build them with [`Limits::default`] and [`Limits::set`].
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Guest time of one execution, in milliseconds (`timeout`).
    pub timeout_ms: f64,
    /// Total time of one execution with its host calls, in milliseconds (`wallTimeout`). Unlimited by default.
    pub wall_timeout_ms: Option<f64>,
    /// Time of one host call, in milliseconds (`hostCallTimeout`).
    pub host_call_timeout_ms: f64,
    /// Time from the soft interrupt to the guest's end, in milliseconds (`gracePeriod`).
    pub grace_period_ms: f64,
    /// Time for a guest's start, in milliseconds (`bootTimeout`).
    pub boot_timeout_ms: f64,
    /// Characters (code points) that are kept of each output stream (`maxOutputLength`).
    pub max_output_chars: u32,
    /// The most host calls of one execution (`maxHostCalls`).
    pub max_host_calls: u32,
    /// The most host calls at the same time (`maxConcurrentHostCalls`).
    pub max_concurrent_host_calls: u32,
    /// The most characters of one execution's source (`maxCodeLength`). Compiling cannot be interrupted, so a huge source would cost the
    /// state. Large data belongs into `setVariable`.
    pub max_code_chars: u32,
    /// The most bytes of one value that crosses between host and guest (`maxValueSize`).
    pub max_value_bytes: f64,
    /// The most bytes of a guest's memory (`memoryLimit`). Python itself takes 31 MB.
    pub max_memory_bytes: f64,
    /// The most bytes of all files of a guest (`maxFileBytes`).
    pub max_file_bytes: f64,
    /// True if the state is saved between executions (`checkpoints`).
    pub checkpoints: bool,
    /// The most bytes of the saved state.
    pub max_checkpoint_bytes: f64,
    /// The share of the session's time for code that ran ahead and was not asked for, from 0 to 1 (`maxAheadShare`).
    pub max_ahead_share: f64,
    /// The most shadows that run, or wait for their code to be asked for (`maxShadows`). The default is [`MAX_FORKS`] or [`MAX_COPIES`].
    pub max_shadows: Option<u32>,
    /// The number of guests that are kept ready to take over (`spares`).
    pub spares: u32,
    /// The style in which errors write the names of options.
    pub naming: Naming,
}

/// The style of option names in errors: that of the language in which the user gives options.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Naming {
    /// `hostCallTimeout`, as in JavaScript and JSON.
    #[default]
    Camel,
    /// `host_call_timeout`, as in Python.
    Snake,
}

impl Naming {
    /// An option's name, which is given as in JavaScript.
    pub fn of(self, name: &str) -> String {
        if self == Self::Camel {
            return name.to_owned();
        }
        let mut snake = String::with_capacity(name.len() + 4);
        let mut last = '_';
        let mut letters = name.chars().peekable();
        while let Some(letter) = letters.next() {
            let ends_capitals = last.is_ascii_uppercase() && letters.peek().is_some_and(char::is_ascii_lowercase);
            if letter.is_ascii_uppercase() && (last.is_ascii_lowercase() || ends_capitals) {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
            last = letter;
        }
        snake
    }
}

/// Time for reading, listing or assigning variables, in milliseconds.
pub const VALUE_TIMEOUT_MS: f64 = 60_000.0;
/// The least time for opening the variables of a session that goes on, which imports their modules. In milliseconds.
pub const STATE_TIMEOUT_MS: f64 = 20_000.0;
/// Time for completing or inspecting code, in milliseconds. It is short, because somebody waits in an editor.
pub const LOOK_TIMEOUT_MS: f64 = 5_000.0;
/// The most bytes that the wheels of one request take unpacked.
pub const MAX_UNPACKED_BYTES: f64 = 1024.0 * 1024.0 * 1024.0;
/// The most bytes of a lock file, and of a package index's answer about a package.
pub const MAX_PACKAGE_LIST_BYTES: usize = 64 << 20;
/// The most bytes of a value from Python that is not a str or bytes. Reading such a value blocks the page.
pub const MAX_STRUCTURED_BYTES: u32 = 64 << 20;
/// The deepest nesting of a value that crosses between host and guest.
pub const MAX_VALUE_DEPTH: u32 = 200;
/// Characters of earlier cells' source that the guest keeps for tracebacks.
pub const MAX_SOURCE_CACHE_CHARS: u32 = 8_000_000;
/// The most bytes of text in one `Output` event, in UTF-8. Our guest sends at most 64 Ki characters.
pub const MAX_OUTPUT_EVENT_BYTES: usize = 4 * 64 * 1024;
/// The most variable names that a guest may report.
pub const MAX_NAMES: usize = 10_000;
/// The most bytes of a name (variable, host function, exception type) in an event.
pub const MAX_NAME_BYTES: usize = 1_000;
/// The most bytes of a message (a failure's text) in an event.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// The size of an output event without its text, in bytes, for the bounds on output.
pub const EVENT_BYTES: f64 = 512.0;
/// Bytes of output that one exchange may send at once, however few are kept. [`OUTPUT_BURST_PER_CHAR`] bytes are added for each character
/// that is kept (`maxOutputLength`). A guest may then send [`OUTPUT_BYTES_PER_SECOND`], and [`OUTPUT_PER_SECOND_PER_CHAR`] for each kept
/// character. Our guest sends the ends of two streams at most twenty times a second.
pub const OUTPUT_BURST_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
/// Bytes of output per second. See [`OUTPUT_BURST_BYTES`].
pub const OUTPUT_BYTES_PER_SECOND: f64 = 8.0 * 1024.0 * 1024.0;
/// Bytes of output at once, for each kept character. See [`OUTPUT_BURST_BYTES`].
pub const OUTPUT_BURST_PER_CHAR: f64 = 8.0;
/// Bytes of output per second, for each kept character. See [`OUTPUT_BURST_BYTES`].
pub const OUTPUT_PER_SECOND_PER_CHAR: f64 = 160.0;
/// The most rich outputs of one execution.
pub const MAX_DISPLAYS: u32 = 100;
/// The most bytes of one rich output. The page decodes it in one step.
pub const MAX_DISPLAY_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
/// The most bytes of all rich outputs of one execution.
pub const MAX_DISPLAYS_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
/// The most files and folders of a guest.
pub const MAX_FILES: u32 = 10_000;
/// The most changed files that an execution reports.
pub const MAX_CHANGED_FILES: usize = 1_000;
/// The most bytes of a file's path.
pub const MAX_PATH_BYTES: usize = 4_096;
/// The most bytes of a path's text. A byte that is not UTF-8 takes six bytes there.
pub const MAX_PATH_TEXT: usize = 6 * MAX_PATH_BYTES;
/// The most characters of a line of code that is shown with a host call.
pub const MAX_LINE_CHARS: usize = 1_000;
/// Characters of an execution that a model sees, as in alexzhang13/rlm.
pub const FEEDBACK_CHARS: u32 = 20_000;
/// Characters of an execution that a model sees, as in alexzhang13/rlm-minimal.
pub const RLM_MINIMAL_FEEDBACK_CHARS: u32 = 100_000;
/// Characters of an execution that a model sees, as in stanfordnlp/dspy.
pub const DSPY_FEEDBACK_CHARS: u32 = 10_000;
/// The most predictions that are kept.
pub const MAX_PREDICTIONS: usize = 16;
/// The most characters of a prediction.
pub const MAX_PREDICTED_CHARS: usize = 100_000;
/// The most predictions that are made from the existing names.
pub const MAX_OFFERED: usize = 256;
/// Bytes of a conversation that count for predictions. The newest ones count.
pub const MAX_CONVERSATION_BYTES: usize = 16 * 1024;
/// The most bytes of code from which other code is predicted.
pub const MAX_PREDICTED_FROM_BYTES: usize = 4_000;
/// The most variables in a guest's survey.
pub const MAX_SURVEYED: usize = 100;
/// The most columns of a DataFrame in a guest's survey.
pub const MAX_SURVEYED_COLUMNS: usize = 50;
/// The most bytes of a name in a guest's survey.
pub const MAX_SURVEYED_NAME_BYTES: usize = 400;
/// The most texts of a column's sample in a guest's survey.
pub const MAX_SAMPLED_TEXTS: usize = 10;
/// The most bytes that code which runs ahead may send in all.
pub const MAX_AHEAD_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// The number of shadows by default, and at most, if they are forks. A fork shares its memory with the session's guest.
pub const MAX_FORKS: u32 = 8;
/// The number of shadows by default if each gets a copy of all memory.
pub const MAX_COPIES: u32 = 2;
/// The most checkpoints of a sandbox on a server. Each is a process.
pub const MAX_CHECKPOINTS: u32 = 16;
/// Time that is added to the age of a session for its share of vain work (`maxAheadShare`), in milliseconds. A new session has nothing else
/// to spend.
pub const AHEAD_CREDIT_MS: f64 = 60_000.0;
/// The share of all host calls that may be begun in vain, before no more are begun ahead. The calls of one reply may exceed it.
pub const WASTED_CALLS: f64 = 0.05;
/// Time that a finished shadow waits for its code to be asked for, in milliseconds. A waiting shadow holds a guest.
pub const AHEAD_TTL_MS: f64 = 60_000.0;
/// Time for a shadow that still runs to confirm that it takes over, in milliseconds. A guest that computes reads messages every 50 ms.
pub const PROMOTION_MS: f64 = 100.0;
/// The most bytes of code that runs while it is written. The guest compiles the complete code once more, which takes a millisecond per
/// kilobyte. The user waits for that.
pub const MAX_WRITTEN_BYTES: usize = 20_000;
/// The least time between two pieces of code that is being written, in milliseconds.
pub const EXTEND_MS: f64 = 30.0;
/// Time for a guest to answer a `Check`, in milliseconds. It only compiles the code.
pub const CHECK_MS: f64 = 1_000.0;
/// The most commands in a session's queue.
pub const MAX_QUEUED_COMMANDS: usize = 10_000;

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout_ms: 30_000.0,
            wall_timeout_ms: None,
            host_call_timeout_ms: 600_000.0,
            grace_period_ms: 1_000.0,
            boot_timeout_ms: 120_000.0,
            max_output_chars: 50_000,
            max_host_calls: 10_000,
            max_concurrent_host_calls: 32,
            max_code_chars: 1_000_000,
            max_value_bytes: 512.0 * 1024.0 * 1024.0,
            max_memory_bytes: 2.0 * 1024.0 * 1024.0 * 1024.0,
            max_file_bytes: 256.0 * 1024.0 * 1024.0,
            checkpoints: true,
            max_checkpoint_bytes: 1024.0 * 1024.0 * 1024.0,
            max_ahead_share: 0.05,
            max_shadows: None,
            spares: 1,
            naming: Naming::Camel,
        }
    }
}

/// The least memory in which Python can start, and the most that 32-bit addresses reach, in bytes.
const LEAST_MEMORY_BYTES: f64 = 48.0 * 1024.0 * 1024.0;
const MOST_MEMORY_BYTES: f64 = 4.0 * 1024.0 * 1024.0 * 1024.0;

/// The longest time that a browser's timers can count, in milliseconds.
const MAX_MS: f64 = 2_147_483_647.0;

impl Limits {
    /// The option names that [`Limits::set`] knows.
    pub const NAMES: [&'static str; 15] = [
        "timeout",
        "wallTimeout",
        "hostCallTimeout",
        "gracePeriod",
        "bootTimeout",
        "maxOutputLength",
        "maxHostCalls",
        "maxConcurrentHostCalls",
        "maxCodeLength",
        "maxValueSize",
        "memoryLimit",
        "maxFileBytes",
        "maxAheadShare",
        "maxShadows",
        "spares",
    ];

    /// Sets the limit of a public option name.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an unknown name or a value outside its range. Then nothing is changed.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), Error> {
        let ms = |least: f64| range(name, value, least, MAX_MS, "milliseconds");
        let count = |least: f64, most: f64, unit| whole(name, value, least, most, unit);
        match name {
            "timeout" => self.timeout_ms = ms(1.0)?,
            "wallTimeout" => self.wall_timeout_ms = Some(ms(1.0)?),
            "hostCallTimeout" => self.host_call_timeout_ms = ms(1.0)?,
            "gracePeriod" => self.grace_period_ms = ms(0.0)?,
            "bootTimeout" => self.boot_timeout_ms = ms(1.0)?,
            "maxOutputLength" => self.max_output_chars = count(0.0, 1e8, "characters")?,
            "maxHostCalls" => self.max_host_calls = count(0.0, 1e9, "calls")?,
            "maxConcurrentHostCalls" => self.max_concurrent_host_calls = count(1.0, 1e4, "calls")?,
            "maxCodeLength" => self.max_code_chars = count(1.0, 1e8, "characters")?,
            "maxValueSize" => self.max_value_bytes = range(name, value, 1.0, 2_000_000_000.0, "bytes")?,
            "memoryLimit" => {
                self.max_memory_bytes = range(name, value, LEAST_MEMORY_BYTES, MOST_MEMORY_BYTES, "bytes")?
            }
            "maxFileBytes" => self.max_file_bytes = range(name, value, 0.0, 2_000_000_000.0, "bytes")?,
            "maxAheadShare" => self.max_ahead_share = range(name, value, 0.0, 1.0, "of the session's time")?,
            "maxShadows" => self.max_shadows = Some(count(1.0, f64::from(MAX_FORKS), "guests")?),
            "spares" => self.spares = count(0.0, 8.0, "guests")?,
            _ => return Err(Error::invalid(name, "there is no such limit")),
        }
        Ok(())
    }
}

fn range(name: &str, value: f64, least: f64, most: f64, unit: &str) -> Result<f64, Error> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(Error::invalid(
            name,
            format!("must be a number from {least} to {most} ({unit}), not {value}"),
        ))
    }
}

fn whole(name: &str, value: f64, least: f64, most: f64, unit: &str) -> Result<u32, Error> {
    let value = range(name, value, least, most, unit)?;
    if value.fract() != 0.0 {
        return Err(Error::invalid(
            name,
            format!("must be a whole number of {unit}, not {value}"),
        ));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole, and within u32 by its range"
    )]
    Ok(value as u32)
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_python_does() {
        let names = [
            "timeout",
            "hostCallTimeout",
            "onLLMQuery",
            "onRLMQuery",
            "budget.maxCalls",
        ];
        let snake = [
            "timeout",
            "host_call_timeout",
            "on_llm_query",
            "on_rlm_query",
            "budget.max_calls",
        ];
        assert_eq!(names.map(|name| Naming::Snake.of(name)), snake);
        assert_eq!(names.map(|name| Naming::Camel.of(name)), names);
    }

    #[test]
    fn every_listed_name_can_be_set_and_no_other() {
        let mut limits = Limits::default();
        for name in Limits::NAMES {
            let value = match name {
                "memoryLimit" => 1e8,
                "maxAheadShare" => 0.5,
                _ => 7.0,
            };
            assert_eq!(limits.set(name, value), Ok(()), "{name}");
        }
        assert_eq!(limits.set("tiemout", 1.0).map_err(|e| e.code()), Err("invalid_option"));
    }

    #[test]
    fn a_bad_value_names_its_option_and_changes_nothing() {
        let mut limits = Limits::default();
        for bad in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
            let error = limits.set("timeout", bad).unwrap_err().to_string();
            assert!(error.starts_with("timeout: must be a number from 1"), "{error}");
        }
        assert!(
            limits
                .set("maxOutputLength", 1.5)
                .unwrap_err()
                .to_string()
                .contains("whole")
        );
        assert_eq!(limits, Limits::default());
    }
}
