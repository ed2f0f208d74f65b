//! The rich outputs of an execution: bounded here as well, for a guest of ours never sends more.

use crate::display::kind;
use crate::limits::{MAX_DISPLAY_BYTES, MAX_DISPLAYS, MAX_DISPLAYS_BYTES};

/// The rich outputs of an execution so far.
#[derive(Debug, Default)]
pub(super) struct Shown {
    count: u32,
    bytes: f64,
}

impl Shown {
    /// Counts one more, when nothing is wrong with it.
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
}

/// A rich output's relation to the value of the last expression, which is told as text when the execution ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToResult {
    /// It came before, or there is none.
    Before,
    /// It is another form of that value.
    Same,
    /// It came after it: a figure that was left open.
    After,
}
