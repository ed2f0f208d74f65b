//! What predictions are made of: what there is in the session, what ran last, and what is talked about.

use std::collections::BTreeSet;

use super::literal::{is_name, literal};
use crate::limits::{MAX_CONVERSATION_BYTES, MAX_PREDICTED_FROM_BYTES};
use crate::protocol::{ColumnKind, SurveyedVariable};

/// Characters of a word, and of a text in quotes; words that are kept.
const WORD_CHARS: usize = 40;
const QUOTED_CHARS: usize = 60;
const MOST_WORDS: usize = 1_000;
const MOST_QUOTED: usize = 3;

/// What there is, what ran last, and what is talked about.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The newest variables, the newest first.
    pub variables: Vec<SurveyedVariable>,
    /// The code that ran last, and milliseconds of the guest's time that it took.
    pub last: Option<(String, f64)>,
    /// Words of the conversation, in lower case.
    words: BTreeSet<String>,
    /// What stands in quotes there, the newest first.
    quoted: Vec<String>,
    /// Words of the code that ran last, as they are; whether it prints, and quotes by `'`.
    mentioned: BTreeSet<String>,
    prints: bool,
    quotes_singly: bool,
}

/// A DataFrame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The variable.
    pub name: &'a str,
    /// How many rows it has.
    pub rows: f64,
    /// Its columns.
    pub variable: &'a SurveyedVariable,
}

impl<'a> Frame<'a> {
    /// The names of its columns of a kind.
    pub fn columns(&self, kind: ColumnKind) -> impl Iterator<Item = &'a str> + use<'a> {
        let columns = self.variable.columns.iter();
        columns
            .filter(move |column| column.kind == kind)
            .map(|column| column.name.as_str())
    }

    /// How many values it holds.
    pub fn cells(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a guest tells of few columns")]
        let columns = self.variable.columns.len() as f64;
        self.rows * columns.max(1.0)
    }
}

impl Context {
    /// The guest has told what there is; what could not stand in code is left out.
    pub fn surveyed(&mut self, mut variables: Vec<SurveyedVariable>) {
        variables.retain(|variable| is_name(&variable.name));
        self.variables = variables;
    }

    /// Code has run.
    pub fn ran(&mut self, code: &str, ms: f64) {
        self.last = (code.len() <= MAX_PREDICTED_FROM_BYTES).then(|| (code.to_owned(), ms));
        let words = words(code).take(MOST_WORDS);
        self.mentioned = words.map(str::to_owned).collect();
        let count = |quote| self.code().matches(quote).count();
        self.quotes_singly = count('\'') > count('"');
        self.prints = self.code().contains("print(");
    }

    /// The newest of what is talked about, instead of what was before; whether that changes anything.
    pub fn converse(&mut self, text: &str) -> bool {
        let mut begin = text.len().saturating_sub(MAX_CONVERSATION_BYTES);
        while !text.is_char_boundary(begin) {
            begin += 1;
        }
        let text = &text[begin..];
        let newest: BTreeSet<String> = words(text).take(MOST_WORDS).map(str::to_lowercase).collect();
        let quoted = quoted(text);
        let is_new = newest != self.words || quoted != self.quoted;
        (self.words, self.quoted) = (newest, quoted);
        is_new
    }

    /// Whether one of these words was said.
    pub fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.words.contains(*word))
    }

    /// What was said in quotes, the newest first.
    pub fn quoted(&self) -> &[String] {
        &self.quoted
    }

    /// Whether the conversation, or the code that ran last, names this variable or column.
    pub fn names(&self, name: &str) -> bool {
        let mut parts = words(name).peekable();
        parts.peek().is_some()
            && parts.all(|part| self.mentioned.contains(part) || self.words.contains(&part.to_lowercase()))
    }

    /// All DataFrames, the newest first.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        let frames = self
            .variables
            .iter()
            .filter(|variable| variable.type_name == "DataFrame");
        frames.map(|variable| Frame {
            name: &variable.name,
            rows: f64::from(variable.length.unwrap_or(0)),
            variable,
        })
    }

    /// The code that ran last; empty when there is none.
    pub fn code(&self) -> &str {
        self.last.as_ref().map_or("", |(code, _)| code)
    }

    /// An expression as whoever writes the code would have it shown: printed, or as the last line.
    pub fn shown(&self, expression: &str) -> String {
        if self.prints {
            format!("print({expression})")
        } else {
            expression.to_owned()
        }
    }

    /// A text as whoever writes the code would quote it.
    pub fn literal(&self, text: &str) -> String {
        literal(text, if self.quotes_singly { '\'' } else { '"' })
    }
}

/// Words: letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '_')
        .filter(|word| !word.is_empty() && word.len() <= WORD_CHARS)
}

/// What stands between quotes on one line, the newest first.
fn quoted(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in text.lines().rev() {
        for quote in ['"', '`'] {
            let inner = line.split(quote).skip(1).step_by(2);
            for part in inner.filter(|part| (3..=QUOTED_CHARS).contains(&part.len())) {
                if found.len() < MOST_QUOTED && !found.iter().any(|known| known == part) {
                    found.push(part.to_owned());
                }
            }
        }
    }
    found
}
