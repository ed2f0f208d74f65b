//! The controller of a Recursive Language Model: it asks a model what to do, runs the code of its replies in a sandbox, shows it
//! what came of it, and ends with an answer. Sans-IO, like [`session`](sandglass_core::session): the driver asks, runs and waits.
//!
//! | module | holds |
//! |---|---|
//! | [`controller`] | the state machine of one run |
//! | [`tree`] | runs and their children: numbers, queries, events and why they end |
//! | [`prompt`] | everything that a model reads |
//! | [`parse`] | the code in a model's reply |
//! | [`answer`] | final values as JSON, and as what was asked for |
//! | [`integer`] | ints that are too large for numbers of JSON |
//! | [`schema`] | the part of JSON Schema that typed answers are checked by |
//! | [`message_history`] | the messages of a run, kept below a number of tokens |
//! | [`directives`] | final answers in a model's prose |
//! | [`feedback`] | what a model is told of an execution |
//! | [`event`] | what is told of a run: the lines of a trajectory |
//! | [`replay`] | a recorded trajectory in the place of the model |
//! | [`query`] | what Python is told of its queries |
//! | [`draft`] | what drafts of replies may spend, and what they are for |
//! | [`writing`] | what can be done while a reply still comes |
//! | [`openai`] | the wire of `/chat/completions` endpoints, and when to try again |
//! | [`limits`] | defaults and bounds |

pub mod answer;
pub mod controller;
pub mod directives;
pub mod draft;
pub mod event;
pub mod feedback;
pub mod integer;
pub mod limits;
pub mod message_history;
pub mod openai;
pub mod parse;
pub mod prompt;
pub mod query;
pub mod replay;
pub mod schema;
pub mod tree;
pub mod writing;

use serde::{Deserialize, Serialize};

/// A message of one side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Message {
    /// The side that said it.
    pub role: Role,
    /// The text.
    pub content: String,
}

/// A side that says something to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Role {
    /// The author of the rules.
    System,
    /// The side that asks, and shows what code did.
    User,
    /// The model.
    Assistant,
}

impl Message {
    /// A message of this role.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// About how many tokens a text takes: four ASCII characters or one other character are counted as one.
pub fn estimate_tokens(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    let others = text.chars().filter(|char| !char.is_ascii()).count();
    ascii.div_ceil(4) + others
}

/// The first and last characters of a text, `most` in all, around a notice of how many are missing.
pub fn middle_cut(text: &str, most: usize) -> String {
    let mut buffer = sandglass_core::output::OutputBuffer::new(u32::try_from(most).unwrap_or(u32::MAX));
    buffer.push(0, text);
    buffer.text()
}
