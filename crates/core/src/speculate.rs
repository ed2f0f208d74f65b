//! Work that is worth doing before anybody asks for it: predictions of code, which of them to run, and how well that went. No clock, no
//! guest: [`crate::session`] runs what is chosen here.
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
    /// Words of the conversation.
    Conversation,
    /// Code that usually follows such code.
    Pattern,
    /// The tables that there are.
    Dataframe,
    /// The code before.
    Code,
    /// Whoever runs code has said so.
    Explicit,
    /// Code that is being written.
    Stream,
    /// A model of the user's was asked for a draft.
    Model,
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
        Self::Model,
    ];

    /// Returns true when nobody has told it: it is made of the names that there are.
    pub fn is_guess(self) -> bool {
        matches!(self, Self::Conversation | Self::Pattern | Self::Dataframe | Self::Code)
    }

    /// Predictions that are thought to have come true, and to have failed, before there are any: one that is told is believed more than one
    /// that is guessed.
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
    /// The name that its maker calls it by.
    pub id: u32,
    /// The code, exactly as it would come.
    pub code: String,
    /// What kind of code it is: how often it comes true is learned for each kind.
    #[cfg_attr(target_arch = "wasm32", tsify(type = "string"))]
    pub description: &'static str,
    /// Its source.
    pub source: Source,
    /// Its probability, from 0 to 1.
    pub probability: f64,
    /// The time that it would take, in milliseconds, where that is known.
    #[serde(rename = "estimatedTime", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub estimated_ms: Option<f64>,
    /// The variables and columns that it is about.
    pub dependencies: Vec<String>,
}

impl Prediction {
    /// One that somebody has told.
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
