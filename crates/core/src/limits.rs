//! Every number that a user may set, with its default, unit and range, and every bound that host and guest share. A number that one
//! file alone needs stands in that file.
//!
//! A new limit is a field of [`Limits`] with a name in `Limits::NAMES`: the options of pages and of the server read it by that name. It is
//! described in `src/sandbox.rs` (TypeScript) and `crates/server/src/openapi.json`.
//!
//! Decisions: `docs/internals/guest-in-a-browser.md` and `docs/internals/values-and-calls.md`.

use crate::error::Error;

/// The bounds a session lives under. Build one with [`Limits::default`] and [`Limits::set`].
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Guest time of one execution, in milliseconds (`timeout`).
    pub timeout_ms: f64,
    /// Total time of one execution with its host calls, in milliseconds (`wallTimeout`); none by default.
    pub wall_timeout_ms: Option<f64>,
    /// Time one host call may take, in milliseconds (`hostCallTimeout`).
    pub host_call_timeout_ms: f64,
    /// Time between the soft interrupt and termination, in milliseconds (`gracePeriod`).
    pub grace_period_ms: f64,
    /// Time a guest may take to start, in milliseconds (`bootTimeout`).
    pub boot_timeout_ms: f64,
    /// Characters (code points) kept of each output stream (`maxOutputLength`).
    pub max_output_chars: u32,
    /// Host calls of one execution (`maxHostCalls`).
    pub max_host_calls: u32,
    /// Host calls that run at the same time (`maxConcurrentHostCalls`).
    pub max_concurrent_host_calls: u32,
    /// Characters of source that one execution may have (`maxCodeLength`). Compiling cannot be interrupted, so a huge
    /// source would cost the state; data belongs into `setVariable`.
    pub max_code_chars: u32,
    /// Bytes that one value may take when it crosses (`maxValueSize`).
    pub max_value_bytes: f64,
    /// Bytes of memory that a guest may have (`memoryLimit`); Python itself takes 31 MB of it.
    pub max_memory_bytes: f64,
    /// Bytes that the files of a guest may have in all (`maxFileBytes`).
    pub max_file_bytes: f64,
    /// True when the state is saved between executions (`checkpoints`).
    pub checkpoints: bool,
    /// Bytes that the saved state may take.
    pub max_checkpoint_bytes: f64,
    /// The part of the session's time that code may take which ran ahead and was not asked for, from 0 to 1 (`maxAheadShare`).
    pub max_ahead_share: f64,
    /// Guests that run code ahead, or wait for theirs to come (`maxShadows`); [`MAX_FORKS`] or [`MAX_COPIES`] by default.
    pub max_shadows: Option<u32>,
    /// Guests that are kept ready to take over (`spares`).
    pub spares: u32,
}

/// Time that reading, listing or assigning variables may take, in milliseconds.
pub const VALUE_TIMEOUT_MS: f64 = 60_000.0;
/// Time that looking at code may take, in milliseconds: somebody waits for it with a finger on a key.
pub const LOOK_TIMEOUT_MS: f64 = 5_000.0;
/// Bytes that the wheels of one request may take unpacked.
pub const MAX_UNPACKED_BYTES: f64 = 1024.0 * 1024.0 * 1024.0;
/// Bytes of a value that is not a str or bytes and comes out of Python: reading it holds the page up.
pub const MAX_STRUCTURED_BYTES: u32 = 64 << 20;
/// Nesting depth of a value that crosses.
pub const MAX_VALUE_DEPTH: u32 = 200;
/// Characters of past cells' source kept in the guest for tracebacks.
pub const MAX_SOURCE_CACHE_CHARS: u32 = 8_000_000;
/// UTF-8 bytes of one `Output` event's text. A guest sends at most 64 Ki characters.
pub const MAX_OUTPUT_EVENT_BYTES: usize = 4 * 64 * 1024;
/// Variable names that a guest may report, and bytes of each.
pub const MAX_NAMES: usize = 10_000;
/// Bytes of a name (variable, host function, exception type) in an event.
pub const MAX_NAME_BYTES: usize = 1_000;
/// Bytes of a message (a failure's text) in an event.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;
/// The bytes that an output event counts beyond its text, in bytes.
pub const EVENT_BYTES: f64 = 512.0;
/// Bytes of output that one exchange may send at once, and per second after that, whatever is kept of it. Per character that is
/// kept (`maxOutputLength`) come [`OUTPUT_BURST_PER_CHAR`] and [`OUTPUT_PER_SECOND_PER_CHAR`]: a guest of ours sends the tail
/// of two streams twenty times a second at most.
pub const OUTPUT_BURST_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
/// See [`OUTPUT_BURST_BYTES`].
pub const OUTPUT_BYTES_PER_SECOND: f64 = 8.0 * 1024.0 * 1024.0;
/// See [`OUTPUT_BURST_BYTES`].
pub const OUTPUT_BURST_PER_CHAR: f64 = 8.0;
/// See [`OUTPUT_BURST_BYTES`].
pub const OUTPUT_PER_SECOND_PER_CHAR: f64 = 160.0;
/// Rich outputs of one execution.
pub const MAX_DISPLAYS: u32 = 100;
/// Bytes of one rich output. The page decodes it in one go.
pub const MAX_DISPLAY_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
/// Bytes of all rich outputs of one execution.
pub const MAX_DISPLAYS_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
/// Files and folders that a guest may have.
pub const MAX_FILES: u32 = 10_000;
/// Changed files that an execution tells of, and characters of their paths in all.
pub const MAX_CHANGED_FILES: usize = 1_000;
/// Bytes of a file's path.
pub const MAX_PATH_BYTES: usize = 4_096;
/// Bytes of the text of a path, in which a byte that is not UTF-8 takes six.
pub const MAX_PATH_TEXT: usize = 6 * MAX_PATH_BYTES;
/// Characters of an execution that a model is shown, as alexzhang13/rlm has it.
pub const FEEDBACK_CHARS: u32 = 20_000;
/// The same, as alexzhang13/rlm-minimal has it.
pub const RLM_MINIMAL_FEEDBACK_CHARS: u32 = 100_000;
/// The same, as stanfordnlp/dspy has it.
pub const DSPY_FEEDBACK_CHARS: u32 = 10_000;
/// Predictions of what comes next that are kept, and characters of each.
pub const MAX_PREDICTIONS: usize = 16;
/// See [`MAX_PREDICTIONS`].
pub const MAX_PREDICTED_CHARS: usize = 100_000;
/// Predictions that are made of the names that there are.
pub const MAX_OFFERED: usize = 256;
/// The newest bytes of a conversation whose words count.
pub const MAX_CONVERSATION_BYTES: usize = 16 * 1024;
/// Bytes of code that others are predicted from.
pub const MAX_PREDICTED_FROM_BYTES: usize = 4_000;
/// The most that a guest may tell of what there is: variables, columns of each, and bytes of a name.
pub const MAX_SURVEYED: usize = 100;
/// See [`MAX_SURVEYED`].
pub const MAX_SURVEYED_COLUMNS: usize = 50;
/// See [`MAX_SURVEYED`].
pub const MAX_SURVEYED_NAME_BYTES: usize = 400;
/// See [`MAX_SURVEYED`].
pub const MAX_SAMPLED_TEXTS: usize = 10;
/// Bytes that code which runs ahead may send, all of it together.
pub const MAX_AHEAD_BYTES: f64 = 16.0 * 1024.0 * 1024.0;
/// Guests that run code ahead where they are forks, and so share their memory with the session's own: by default, and at most.
pub const MAX_FORKS: u32 = 8;
/// The same by default where each is given a copy of all the memory.
pub const MAX_COPIES: u32 = 2;
/// The time by which a session is thought to have begun earlier, in milliseconds, for its share of time that may be spent in vain
/// (`maxAheadShare`): at its begin, that is all there is.
pub const AHEAD_CREDIT_MS: f64 = 60_000.0;
/// The time that what ran ahead waits for its code to come, in milliseconds: it holds a guest.
pub const AHEAD_TTL_MS: f64 = 60_000.0;
/// The time that code that has come waits for a guest that runs it already to say that it may take over, in milliseconds. A guest that computes
/// hears of it within 50.
pub const PROMOTION_MS: f64 = 100.0;
/// The longest code, in bytes, that runs while it is written. When all of it is there, the guest has to compile it once more, which takes
/// a millisecond for each of its kilobytes and is waited for.
pub const MAX_WRITTEN_BYTES: usize = 20_000;
/// The least time between two pieces of code that is being written, for the guest that runs it as it comes, in milliseconds.
pub const EXTEND_MS: f64 = 30.0;
/// The time that a guest may take to say whether such code may run piece by piece, in milliseconds. It only compiles it.
pub const CHECK_MS: f64 = 1_000.0;
/// Calls that may wait in a session's queue.
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
        }
    }
}

/// Memory that Python can start in, and that 32-bit addresses reach, in bytes.
const LEAST_MEMORY_BYTES: f64 = 48.0 * 1024.0 * 1024.0;
const MOST_MEMORY_BYTES: f64 = 4.0 * 1024.0 * 1024.0 * 1024.0;

/// The longest time that a browser's timers can count.
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
    /// [`Error::InvalidOption`] for an unknown name or a value outside its range; nothing is changed then.
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
