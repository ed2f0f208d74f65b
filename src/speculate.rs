//! What is worth doing before anybody asks for it: predictions of code, which of them to run, and how well that went. No clock, no
//! guest: [`crate::session`] runs what is chosen here.

mod lines;
mod predictor;
mod share;
mod tally;

use serde::{Deserialize, Serialize};

pub use lines::{Lines, begins_with_line_end};
pub use predictor::Predictor;
pub use share::Share;
pub use tally::{Tally, lower_bound};

/// Where a prediction comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "wasm", derive(tsify::Tsify))]
pub enum Source {
    /// Words of the conversation.
    Conversation,
    /// What usually follows such code.
    Pattern,
    /// The tables that there are.
    Dataframe,
    /// The code before.
    Code,
    /// Whoever runs code has said so.
    Explicit,
    /// Code that is being written.
    Stream,
    /// What was run before.
    Memo,
}

impl Source {
    /// All there are.
    pub const ALL: [Self; 7] = [
        Self::Conversation,
        Self::Pattern,
        Self::Dataframe,
        Self::Code,
        Self::Explicit,
        Self::Stream,
        Self::Memo,
    ];

    /// Predictions that are thought to have come true, and to have failed, before there are any: one that is told is believed more than one
    /// that is guessed.
    fn prior(self) -> (f64, f64) {
        match self {
            Self::Explicit | Self::Stream => (4.0, 1.0),
            _ => (1.0, 1.0),
        }
    }
}

/// Code that may come next.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// What who made it calls it by.
    pub id: u32,
    /// The code, exactly as it would come.
    pub code: String,
    /// Where it comes from.
    pub source: Source,
    /// How likely it is, by who made it.
    pub probability: f64,
    /// How long it would take, in milliseconds, where that is known.
    pub estimated_ms: Option<f64>,
}
