//! The arguments and results of tools. Their documentation is what agents' models read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Code to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// Python source. Several statements are fine; the value of the last expression is shown. Top-level `await` works.
    pub code: String,
    /// Seconds that the code may run, without waiting for models. By default the server's own timeout.
    pub timeout_seconds: Option<f64>,
}

/// A text or a file to load.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The text itself. Give either `text` or `path`.
    pub text: Option<String>,
    /// The path of a file on the server's machine, in a folder that its operator allowed. The file stays unchanged.
    pub path: Option<String>,
    /// The variable that gets the text; by default `context`. Only `context` is set again if Python crashes.
    pub variable: Option<String>,
}

/// A loaded text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Loaded {
    /// The variable.
    pub variable: String,
    /// `str`, or `bytes` for a file that is not UTF-8.
    #[serde(rename = "type")]
    pub kind: String,
    /// Characters of the str, or the number of bytes.
    pub length: usize,
    /// The first characters.
    pub begin: String,
}

/// A search.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// A regular expression of Python. Upper and lower case are the same.
    pub pattern: String,
    /// The variable to search: a str, or a list or dict of str. By default `context`.
    pub variable: Option<String>,
    /// Characters to show on each side of a match; by default 200, at most 2000.
    pub window: Option<u32>,
    /// The most matches; by default 20, at most 100.
    pub max_results: Option<u32>,
}

/// The matches of a search.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    /// The number of matches in this result. There may be more.
    pub count: usize,
    /// The matches in order.
    pub matches: Vec<Match>,
}

/// A match.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Match {
    /// The matched text.
    #[serde(rename = "match")]
    pub text: String,
    /// The position of the match in the text, in characters.
    pub start: i64,
    /// The position after the match.
    pub end: i64,
    /// The match with the text around it.
    pub context: String,
    /// The item of the list, or the key of the dict, if the variable is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
}

/// A part to read.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The variable; by default `context`. A str or bytes are read as text, any other value as its `repr`.
    pub variable: Option<String>,
    /// The first character; by default 0. A negative number counts from the end.
    pub start: Option<i64>,
    /// The number of characters; by default 5000, at most 20000.
    pub length: Option<u32>,
}

/// A part of a text.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// The part.
    pub text: String,
    /// The position of its first character.
    pub start: i64,
    /// The position after its last character: the `start` of the next part.
    pub end: i64,
    /// Characters of the whole text.
    pub total: i64,
}

/// A question about a variable.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The question or instruction. Say all that is needed: the model sees nothing else of this conversation.
    pub question: String,
    /// The variable with the data; by default `context`.
    pub variable: Option<String>,
    /// A JSON Schema that the answer must match. Without it, the answer is text.
    pub schema: Option<serde_json::Map<String, serde_json::Value>>,
}

/// The name of a variable.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Name {
    /// The variable's name.
    pub name: String,
}

/// No arguments.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// A variable's value.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Got {
    /// The variable's name.
    pub name: String,
    /// The value as text: a str unchanged, any other value as JSON. The middle of a long text is left out.
    pub text: String,
    /// True if `text` is the whole value.
    pub complete: bool,
}

/// The variables.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Variables {
    /// The variables, without private names.
    pub variables: Vec<Variable>,
    /// The number of variables that are not listed.
    pub more: usize,
}

/// A variable.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Variable {
    /// The name.
    pub name: String,
    /// The class name of the value.
    #[serde(rename = "type")]
    pub kind: String,
    /// The value's `len`, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<i64>,
}

/// A file to write.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    /// The path, relative to Python's working folder. Missing folders are made, and an existing file is replaced.
    pub path: String,
    /// The contents as text. Give either `text` or `base64`.
    pub text: Option<String>,
    /// The contents as bytes in base64.
    pub base64: Option<String>,
}

/// A written file.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Written {
    /// The file's resource.
    pub uri: String,
    /// The file's size in bytes.
    pub bytes: usize,
}
