//! The rich outputs of an execution: bounded here as well, for a guest of ours never sends more.

use super::turn::Task;
use super::{Body, Effect, Session};
use crate::display::kind;
use crate::limits::{MAX_DISPLAY_BYTES, MAX_DISPLAYS, MAX_DISPLAYS_BYTES};

/// What an execution has shown so far.
#[derive(Debug, Default)]
pub(super) struct Shown {
    count: u32,
    bytes: f64,
}

impl Shown {
    /// Counts one more; what is wrong with it, if anything.
    fn add(&mut self, bytes: f64) -> Option<&'static str> {
        self.count += 1;
        self.bytes += bytes;
        if self.count > MAX_DISPLAYS {
            Some("too many displays")
        } else if bytes > MAX_DISPLAY_BYTES || self.bytes > MAX_DISPLAYS_BYTES {
            Some("displays that are too large")
        } else {
            None
        }
    }
}

/// How a rich output stands to the value of the last expression, which is told as text when the execution ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToResult {
    /// It came before, or there is none.
    Before,
    /// It is another form of that value.
    Same,
    /// It came after it: a figure that was left open.
    After,
}

impl<B: Body> Session<B> {
    /// The guest shows something.
    pub(super) fn display(&mut self, now: f64, mime: String, is_result: bool, body: Option<B>) {
        let Some(turn) = &mut self.turn else { return };
        let Task::Execute(execution) = &mut turn.task else {
            return;
        };
        let Some(body) = body else {
            return self.violation(now, "a display without a body");
        };
        if kind(&mime).is_none() {
            return self.violation(now, "a display that has no mime type of one");
        }
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        if let Some(what) = execution.shown.add(body.size() as f64) {
            return self.violation(now, what);
        }
        let to_result = match (execution.has_result(), is_result) {
            (false, _) => ToResult::Before,
            (true, true) => ToResult::Same,
            (true, false) => ToResult::After,
        };
        if let Some(ticket) = turn.ticket {
            self.effects.push(Effect::Display {
                ticket,
                mime,
                body,
                to_result,
            });
        }
    }
}
