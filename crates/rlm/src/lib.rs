#![doc = include_str!("../README.md")]
//!
//! # Modules
//!
//! | module | holds |
//! |---|---|
//! | [`controller`] | the state machine of one run |
//! | [`tree`] | runs and their children: numbers, queries, events and endings |
//! | [`prompt`] | all texts that a model reads |
//! | [`parse`] | the code in a model's reply |
//! | [`answer`] | final values as JSON, checked against the task's schema |
//! | [`integer`] | ints that are too large for numbers of JSON |
//! | [`schema`] | the part of JSON Schema that answers are checked against |
//! | [`message_history`] | the messages of a run, kept within a number of tokens |
//! | [`directives`] | final answers in a model's prose |
//! | [`feedback`] | texts that tell a model of an execution |
//! | [`event`] | the events of a run, which are the lines of a trajectory |
//! | [`replay`] | a recorded trajectory in the place of the model |
//! | [`query`] | texts for Python about its queries |
//! | [`draft`] | drafts of replies by another model, whose code runs ahead |
//! | [`writing`] | work that can be done while a reply is being written |
//! | [`openai`] | the wire of `/chat/completions` endpoints, and repeated attempts |
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

/// A message to or from a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Message {
    /// The author of the message.
    pub role: Role,
    /// The text of the message.
    pub content: String,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub enum Role {
    /// The rules for the model.
    System,
    /// The task, and the outcomes of code.
    User,
    /// The model's replies.
    Assistant,
}

impl Message {
    /// Makes a message of this role.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
        }
    }
}

/// The estimated number of tokens in a text. Four ASCII characters count as one token; so does any other character.
pub fn estimate_tokens(text: &str) -> usize {
    let ascii = text.bytes().filter(u8::is_ascii).count();
    let others = text.chars().filter(|char| !char.is_ascii()).count();
    ascii.div_ceil(4) + others
}

/// The first and last characters of a text, `most` in all, with a notice of the number of characters left out between them.
pub fn middle_cut(text: &str, most: usize) -> String {
    let mut buffer = sandglass_core::output::OutputBuffer::new(u32::try_from(most).unwrap_or(u32::MAX));
    buffer.push(0, text);
    buffer.text()
}
