//! The rich outputs of an execution. Our guest bounds them; the host checks the bounds again, because guests are untrusted.

use crate::display::kind;
use crate::limits::{MAX_DISPLAY_BYTES, MAX_DISPLAYS, MAX_DISPLAYS_BYTES};

/// The rich outputs of an execution so far.
#[derive(Debug, Default)]
pub(super) struct Shown {
    count: u32,
    bytes: f64,
    has_value: bool,
}

impl Shown {
    /// Counts one more output. The error is the problem of an output that is not allowed.
    pub(super) fn add(&mut self, mime: &str, bytes: usize) -> Result<(), &'static str> {
        if kind(mime).is_none() {
            return Err("a display that has no mime type of one");
        }
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let bytes = bytes as f64;
        self.count += 1;
        self.bytes += bytes;
        if self.count > MAX_DISPLAYS {
            Err("too many displays")
        } else if bytes > MAX_DISPLAY_BYTES || self.bytes > MAX_DISPLAYS_BYTES {
            Err("displays that are too large")
        } else {
            Ok(())
        }
    }

    /// Notes the last expression's value. The error is the problem of one that is not allowed.
    pub(super) fn add_value(&mut self, bytes: usize, max_bytes: f64) -> Result<(), &'static str> {
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let bytes = bytes as f64;
        if max_bytes == 0.0 || bytes > max_bytes || std::mem::replace(&mut self.has_value, true) {
            return Err("the value of a last expression twice, too large, or not asked for");
        }
        Ok(())
    }
}

/// A rich output's relation to the last expression's value. That value is also told as text, at the execution's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToResult {
    /// The output came before the value, or there is no value.
    Before,
    /// The output is another form of the value.
    Same,
    /// The output came after the value: a figure that was left open.
    After,
}
