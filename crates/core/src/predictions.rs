//! Predictions of code: their sources, the choice of those that run ahead, and their success. This module has no clock and no guest.
//! [`crate::session`] runs the chosen code.
//!
//! Decisions: `docs/internals/running-ahead.md`.

mod context;
mod lines;
mod literal;
mod predictor;
mod share;
mod tally;
mod templates;

use serde::{Deserialize, Serialize};

pub use context::{Columns, Context, Frame};
pub use lines::{Lines, begins_with_line_end};
pub use literal::{is_name, literal};
pub use predictor::Predictor;
pub use share::Share;
pub use tally::{Tally, lower_bound};

/// A prediction's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Source {
    /// A guess from words of the conversation.
    Conversation,
    /// A guess at the code that usually follows the last code.
    Pattern,
    /// A guess from the session's tables.
    Dataframe,
    /// A guess from the last code.
    Code,
    /// A hint of the user.
    Explicit,
    /// Code that is being written.
    Stream,
    /// A draft of the user's model.
    Model,
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 7] = [
        Self::Conversation,
        Self::Pattern,
        Self::Dataframe,
        Self::Code,
        Self::Explicit,
        Self::Stream,
        Self::Model,
    ];

    /// Returns true when the session itself has made the prediction, from the names that it has.
    pub fn is_guess(self) -> bool {
        matches!(self, Self::Conversation | Self::Pattern | Self::Dataframe | Self::Code)
    }

    /// The assumed numbers of right and wrong predictions before any was made. Hints are trusted more than guesses.
    fn prior(self) -> (f64, f64) {
        match self {
            Self::Explicit | Self::Stream => (4.0, 1.0),
            Self::Conversation => (2.0, 2.0),
            Self::Pattern | Self::Code => (1.0, 2.0),
            Self::Dataframe => (1.0, 4.0),
            Self::Model => (1.0, 1.0),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Explicit => "a hint",
            Self::Stream => "code that is being written",
            Self::Model => "a draft",
            Self::Conversation | Self::Pattern | Self::Dataframe | Self::Code => "a guess",
        }
    }
}

/// Code that may come next.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Prediction {
    /// The prediction's number, given by its maker.
    pub id: u32,
    /// The code, exactly as it would come.
    pub code: String,
    /// The kind of the code. The success of predictions is learned for each kind.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "string"))]
    pub description: &'static str,
    /// The prediction's source.
    pub source: Source,
    /// The prediction's probability, from 0 to 1.
    pub probability: f64,
    /// The time that the code would take, in milliseconds, if known.
    #[serde(rename = "estimatedTime", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub estimated_ms: Option<f64>,
    /// The variables and columns that the code is about.
    pub dependencies: Vec<String>,
}

impl Prediction {
    /// A prediction that somebody has told.
    pub fn told(id: u32, code: String, source: Source, probability: f64) -> Self {
        Self {
            id,
            code,
            description: source.description(),
            source,
            probability,
            estimated_ms: None,
            dependencies: Vec::new(),
        }
    }
}
