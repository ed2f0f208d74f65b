//! The material of guesses: the session's variables, the code that ran last, and the conversation.
//!
//! The *conversation* is the newest text that the user and the model exchanged. Names that it mentions make a guess likelier.

use std::collections::BTreeSet;

use super::literal::{is_name, literal};
use crate::limits::{MAX_CONVERSATION_BYTES, MAX_PREDICTED_FROM_BYTES};
use crate::protocol::{ColumnKind, SurveyedColumn, SurveyedVariable};

/// The most bytes of a word.
const WORD_CHARS: usize = 40;
/// The most bytes of a text in quotes.
const QUOTED_CHARS: usize = 60;
/// The most words that are kept.
const MOST_WORDS: usize = 1_000;
/// The most texts in quotes that are kept.
const MOST_QUOTED: usize = 3;
/// The fewest sampled rows from which something is concluded about a column.
const ENOUGH_ROWS: u32 = 20;
/// The most different numbers in a column that is taken for groups.
const MOST_GROUPS: u32 = 12;

/// The session's variables, the code that ran last, and the words of the conversation.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The session's variables, the newest first.
    pub variables: Vec<SurveyedVariable>,
    /// The code that ran last, and the milliseconds that it took in the guest.
    pub last: Option<(String, f64)>,
    /// Words of the conversation, in lower case.
    words: BTreeSet<String>,
    /// The conversation's texts in quotes, the newest first.
    quoted: Vec<String>,
    /// Words of the code that ran last, in their own case.
    mentioned: BTreeSet<String>,
    preferences: Preferences,
}

/// The style of the code that ran last. Guesses are written in the same style, because a guess must match the next code exactly.
#[derive(Debug, Clone, Copy, Default)]
struct Preferences {
    /// True when results are printed. Otherwise the last line shows them.
    prints: bool,
    /// True when texts are quoted by `'`.
    quotes_singly: bool,
}

/// A variable that holds a DataFrame.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The variable's name.
    pub name: &'a str,
    /// The number of rows.
    pub rows: f64,
    /// The variable, with its columns.
    pub variable: &'a SurveyedVariable,
}

/// The columns that a question fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Columns {
    /// Columns of a kind.
    Of(ColumnKind),
    /// Columns whose values make groups, as far as the sample shows.
    Groups,
    /// Columns with missing values.
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
                    // A column without repeated values identifies rows and makes no groups.
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
    /// The names of the columns that fit.
    pub fn columns(&self, kind: Columns) -> impl Iterator<Item = &'a str> + use<'a> {
        let columns = self.variable.columns.iter();
        columns
            .filter(move |column| kind.has(column))
            .map(|column| column.name.as_str())
    }

    /// The sampled texts of all columns, each after its column's name.
    pub fn texts(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let columns = self.variable.columns.iter();
        columns.flat_map(|column| {
            let texts = column.sample.iter().flat_map(|sample| &sample.texts);
            texts.map(|text| (column.name.as_str(), text.as_str()))
        })
    }

    /// The size of the arrays in bytes.
    pub fn bytes(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let bytes = self.variable.memory.unwrap_or(0) as f64;
        bytes
    }

    /// The number of values, with 1 column at least.
    pub fn cells(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a guest tells of few columns")]
        let columns = self.variable.columns.len() as f64;
        self.rows * columns.max(1.0)
    }
}

impl Context {
    /// Takes the variables that the guest reported. Drops those whose names cannot be written in code.
    pub fn surveyed(&mut self, mut variables: Vec<SurveyedVariable>) {
        variables.retain(|variable| is_name(&variable.name));
        self.variables = variables;
    }

    /// Records code that has run, and the milliseconds that it took.
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

    /// Replaces the conversation. Only the end of a long text is kept. Returns true when the words or the quoted texts changed.
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

    /// Returns true when one of these words is in the conversation.
    pub fn says(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.words.contains(*word))
    }

    /// Returns true when all words of this text are in the conversation.
    pub fn talks_of(&self, text: &str) -> bool {
        let mut parts = words(text).peekable();
        parts.peek().is_some() && parts.all(|part| self.words.contains(&part.to_lowercase()))
    }

    /// The conversation's texts in quotes, the newest first.
    pub fn quoted(&self) -> &[String] {
        &self.quoted
    }

    /// Returns true when the conversation or the code that ran last mentions this variable or column.
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

    /// The code that ran last. Empty if no code has run.
    pub fn code(&self) -> &str {
        self.last.as_ref().map_or("", |(code, _)| code)
    }

    /// Code that shows an expression in the style of the code that ran last: by `print`, or as the last line.
    pub fn shown(&self, expression: &str) -> String {
        if self.preferences.prints {
            format!("print({expression})")
        } else {
            expression.to_owned()
        }
    }

    /// A text as a Python literal, in the quotes that the code that ran last uses most.
    pub fn literal(&self, text: &str) -> String {
        literal(text, if self.preferences.quotes_singly { '\'' } else { '"' })
    }
}

/// The words of a text. A word consists of letters, digits and underscores.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !char.is_alphanumeric() && char != '_')
        .filter(|word| !word.is_empty() && word.len() <= WORD_CHARS)
}

/// The texts in `"` or in backquotes, each within one line, from the last line to the first.
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
