//! The material of predictions: what there is in the session, what ran last, and what is talked about.

use std::collections::BTreeSet;

use super::literal::{is_name, literal};
use crate::limits::{MAX_CONVERSATION_BYTES, MAX_PREDICTED_FROM_BYTES};
use crate::protocol::{ColumnKind, SurveyedColumn, SurveyedVariable};

/// Characters of a word, and of a text in quotes; words that are kept.
const WORD_CHARS: usize = 40;
const QUOTED_CHARS: usize = 60;
const MOST_WORDS: usize = 1_000;
const MOST_QUOTED: usize = 3;
/// Rows that have to be looked at before anything is concluded from what is in them, and how many different numbers make groups.
const ENOUGH_ROWS: u32 = 20;
const MOST_GROUPS: u32 = 12;

/// The session's variables, what ran last, and what is talked about.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The newest variables, the newest first.
    pub variables: Vec<SurveyedVariable>,
    /// The code that ran last, and milliseconds of the guest's time that it took.
    pub last: Option<(String, f64)>,
    /// Words of the conversation, in lower case.
    words: BTreeSet<String>,
    /// The texts in quotes there, the newest first.
    quoted: Vec<String>,
    /// Words of the code that ran last, as they are.
    mentioned: BTreeSet<String>,
    preferences: Preferences,
}

/// The style of whoever writes the code, as far as the code that ran last shows.
#[derive(Debug, Clone, Copy, Default)]
struct Preferences {
    prints: bool,
    /// By `'`.
    quotes_singly: bool,
}

/// A DataFrame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The variable.
    pub name: &'a str,
    /// The number of rows that it has.
    pub rows: f64,
    /// Its columns.
    pub variable: &'a SurveyedVariable,
}

/// Columns that something is asked of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Columns {
    /// Those of a kind.
    Of(ColumnKind),
    /// Those whose values make groups, as far as anybody knows.
    Groups,
    /// Those in which values are missing.
    Gaps,
}

impl Columns {
    fn has(self, column: &SurveyedColumn) -> bool {
        let sample = column.sample.as_ref();
        match self {
            Self::Of(kind) => column.kind == kind,
            Self::Gaps => sample.is_some_and(|sample| sample.nulls > 0),
            Self::Groups => {
                let enough = sample.filter(|sample| sample.rows >= ENOUGH_ROWS);
                match column.kind {
                    ColumnKind::Bool => true,
                    // Where no value is there twice, it names its row.
                    ColumnKind::Text => {
                        enough.is_none_or(|sample| sample.distinct < sample.rows - sample.nulls.min(sample.rows))
                    }
                    ColumnKind::Number => enough.is_some_and(|sample| (2..=MOST_GROUPS).contains(&sample.distinct)),
                    ColumnKind::Time | ColumnKind::Other => false,
                }
            }
        }
    }
}

impl<'a> Frame<'a> {
    /// The names of its columns of a kind.
    pub fn columns(&self, kind: Columns) -> impl Iterator<Item = &'a str> + use<'a> {
        let columns = self.variable.columns.iter();
        columns
            .filter(move |column| kind.has(column))
            .map(|column| column.name.as_str())
    }

    /// Texts that are in its columns, with the names of these.
    pub fn texts(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let columns = self.variable.columns.iter();
        columns.flat_map(|column| {
            let texts = column.sample.iter().flat_map(|sample| &sample.texts);
            texts.map(|text| (column.name.as_str(), text.as_str()))
        })
    }

    /// Bytes of its arrays.
    pub fn bytes(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bytes = self.variable.memory.unwrap_or(0) as f64;
        bytes
    }

    /// The number of values that it holds.
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
        self.preferences = Preferences {
            prints: self.code().contains("print("),
            quotes_singly: count('\'') > count('"'),
        };
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

    /// Returns true when one of these words was said.
    pub fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.words.contains(*word))
    }

    /// Returns true when the conversation has this text, by its words.
    pub fn talks_of(&self, text: &str) -> bool {
        let mut parts = words(text).peekable();
        parts.peek().is_some() && parts.all(|part| self.words.contains(&part.to_lowercase()))
    }

    /// The texts said in quotes, the newest first.
    pub fn quoted(&self) -> &[String] {
        &self.quoted
    }

    /// Returns true when the conversation, or the code that ran last, names this variable or column.
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
        if self.preferences.prints {
            format!("print({expression})")
        } else {
            expression.to_owned()
        }
    }

    /// A text as whoever writes the code would quote it.
    pub fn literal(&self, text: &str) -> String {
        literal(text, if self.preferences.quotes_singly { '\'' } else { '"' })
    }
}

/// Words: letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '_')
        .filter(|word| !word.is_empty() && word.len() <= WORD_CHARS)
}

/// The texts between quotes on one line, the newest first.
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
