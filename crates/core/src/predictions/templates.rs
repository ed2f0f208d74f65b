//! Guesses of the next code. Each is a template, filled with names of the session's variables and columns.
//!
//! A *template* is a usual question about a table, a column, a text or a list. The guesses come from four sources:
//!
//! - [`Source::Dataframe`]: questions about every table.
//! - [`Source::Pattern`]: code that usually follows the code that ran last, and questions about texts and lists.
//! - [`Source::Conversation`]: questions that the words of the conversation ask for.
//! - [`Source::Code`]: the code that ran last, with another column or table in it.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::context::{Columns, Context, Frame};
use super::literal::is_name;
use super::{Prediction, Source};
use crate::limits::MAX_OFFERED;
use crate::protocol::{ColumnKind, SurveyedVariable};

/// The most tables that guesses are made for.
const MOST_FRAMES: usize = 5;
/// The most columns of a table that guesses are made for.
const MOST_COLUMNS: usize = 12;
/// The factor by which a guess becomes likelier with each of its names that was mentioned.
const NAMED: f64 = 4.0;

// Estimates in milliseconds, used until the session has measured its own times. The times of pandas were measured with a table of a
// million rows and five columns.

/// Milliseconds to show a result.
const SHOW: f64 = 2.0;
/// Milliseconds for each value of a table, or for each row of a column. The next five have the same unit.
const DESCRIBE: f64 = 21e-6;
const DISTINCT: f64 = 77e-6;
const DUPLICATED: f64 = 116e-6;
const COUNTS: f64 = 150e-6;
const GROUPS: f64 = 60e-6;
const SCAN: f64 = 5e-6;
/// Milliseconds to copy a byte.
const COPY: f64 = 1e-6;
/// Milliseconds to split or search a text, for each character.
const SPLIT: f64 = 10e-6;
/// Milliseconds to count occurrences, for each character of a text.
const COUNT: f64 = 1e-6;

/// Questions about a whole table: the description, the code that follows the table's name, and milliseconds for a value.
const OF_TABLES: [(&str, &str, f64); 9] = [
    ("head", ".head()", 0.0),
    ("info", ".info()", 0.0),
    ("shape", ".shape", 0.0),
    ("types", ".dtypes", 0.0),
    ("describe", ".describe()", DESCRIBE),
    ("missing values", ".isna().sum()", SCAN),
    ("correlations", ".corr(numeric_only=True)", DESCRIBE),
    ("distinct values", ".nunique()", DISTINCT),
    ("duplicates", ".duplicated().sum()", DUPLICATED),
];
/// The [questions](OF_TABLES) that usually follow code that read a table.
const AFTER_READING: [&str; 4] = ["head", "info", "describe", "shape"];
/// The [questions](OF_TABLES) that usually follow code that filtered a table.
const AFTER_FILTERING: [&str; 2] = ["shape", "head"];
/// Questions about a column: the columns that fit, the description, the code that follows the column, and milliseconds for a row.
const OF_COLUMNS: [(Columns, &str, &str, f64); 8] = [
    (Columns::Groups, "value counts", ".value_counts()", COUNTS),
    (TEXTS, "distinct values of a column", ".nunique()", DISTINCT),
    (Columns::Gaps, "missing values of a column", ".isna().sum()", SCAN),
    (NUMBERS, "describe of a column", ".describe()", DESCRIBE),
    (NUMBERS, "mean of a column", ".mean()", SCAN),
    (NUMBERS, "sum of a column", ".sum()", SCAN),
    (NUMBERS, "plot of a column", ".hist()", SCAN),
    (Columns::Of(ColumnKind::Time), "range of a column", ".min()", SCAN),
];
const TEXTS: Columns = Columns::Of(ColumnKind::Text);
const NUMBERS: Columns = Columns::Of(ColumnKind::Number);
/// Words of a conversation, and the description of the question that they ask for.
const OF_WORDS: [(&[&str], &str); 14] = [
    (
        &["describe", "summary", "summarize", "statistics", "overview"],
        "describe",
    ),
    (&["missing", "null", "nulls", "nan", "empty"], "missing values"),
    (
        &["missing", "null", "nulls", "nan", "empty"],
        "missing values of a column",
    ),
    (
        &["correlation", "correlations", "correlated", "correlate"],
        "correlations",
    ),
    (&["duplicate", "duplicates", "duplicated"], "duplicates"),
    (&["unique", "distinct"], "distinct values"),
    (&["unique", "distinct"], "distinct values of a column"),
    (
        &["frequency", "frequencies", "counts", "common", "distribution"],
        "value counts",
    ),
    (&["distribution", "spread"], "describe of a column"),
    (&["average", "mean"], "mean of a column"),
    (&["total", "sum"], "sum of a column"),
    (&["plot", "chart", "histogram", "graph"], "plot of a column"),
    (&["average", "mean"], "mean by group"),
    (&["total", "sum"], "sum by group"),
];
/// Questions about groups of rows: the description, and the method of pandas.
const OF_GROUPS: [(&str, &str); 4] = [
    ("mean by group", "mean"),
    ("sum by group", "sum"),
    ("count by group", "count"),
    ("size of groups", "size"),
];

/// The predictions made so far.
struct Maker<'a> {
    context: &'a Context,
    /// Each prediction with its weight among those of the same source and description.
    made: Vec<(Prediction, f64)>,
}

impl Context {
    /// Guesses the next code. The probability of a guess is its share among the guesses of the same source and description.
    pub fn predictions(&self) -> Vec<Prediction> {
        let mut maker = Maker {
            context: self,
            made: Vec::new(),
        };
        maker.after_code();
        maker.like_the_last();
        maker.of_words();
        maker.of_tables();
        maker.of_texts();
        maker.weighed()
    }
}

impl Maker<'_> {
    fn add(&mut self, source: Source, description: &'static str, code: String, names: &[&str], ms: f64) {
        if self.made.len() >= MAX_OFFERED || code == self.context.code() {
            return;
        }
        let named = names.iter().filter(|name| self.context.names(name)).count();
        let weight = (0..named).fold(1.0, |weight, _| weight * NAMED);
        let prediction = Prediction {
            id: u32::try_from(self.made.len()).unwrap_or(u32::MAX),
            code,
            description,
            source,
            probability: 0.0,
            estimated_ms: Some(ms),
            dependencies: names.iter().map(|name| (*name).to_owned()).collect(),
        };
        self.made.push((prediction, weight));
    }

    fn show(&mut self, source: Source, description: &'static str, expression: &str, names: &[&str], ms: f64) {
        let prints_itself = expression.ends_with(".info()");
        let code = if prints_itself {
            expression.to_owned()
        } else {
            self.context.shown(expression)
        };
        self.add(source, description, code, names, SHOW + ms);
    }

    fn weighed(self) -> Vec<Prediction> {
        let kind = |prediction: &Prediction| (prediction.source, prediction.description);
        let mut all = std::collections::BTreeMap::new();
        for (prediction, weight) in &self.made {
            *all.entry(kind(prediction)).or_insert(0.0) += weight;
        }
        let weighed = self.made.into_iter().map(|(prediction, weight)| Prediction {
            probability: weight / all.get(&kind(&prediction)).copied().unwrap_or(weight),
            ..prediction
        });
        weighed.collect()
    }

    // ---- tables ----

    fn of_tables(&mut self) {
        for frame in self.context.frames().take(MOST_FRAMES) {
            for (description, _, _) in OF_TABLES {
                self.of_table(Source::Dataframe, &frame, description);
            }
            for (description, _) in OF_GROUPS.into_iter().take(2) {
                self.by_group(Source::Dataframe, &frame, description);
            }
            for description in ["value counts", "describe of a column", "range of a column"] {
                self.of_columns(Source::Dataframe, &frame, description);
            }
        }
    }

    /// Adds one question of [`OF_TABLES`].
    fn of_table(&mut self, source: Source, frame: &Frame<'_>, description: &str) {
        if let Some((description, code, each)) = OF_TABLES.into_iter().find(|known| known.0 == description) {
            let expression = format!("{}{code}", frame.name);
            self.show(source, description, &expression, &[frame.name], each * frame.cells());
        }
    }

    /// Adds one question of [`OF_COLUMNS`] for each column that fits.
    fn of_columns(&mut self, source: Source, frame: &Frame<'_>, description: &str) {
        for (kind, description, code, each) in OF_COLUMNS.into_iter().filter(|known| known.1 == description) {
            for column in frame.columns(kind).take(MOST_COLUMNS) {
                let expression = format!("{}[{}]{code}", frame.name, self.context.literal(column));
                self.show(
                    source,
                    description,
                    &expression,
                    &[frame.name, column],
                    each * frame.rows,
                );
            }
        }
    }

    /// Adds questions about rows that hold a text of the conversation.
    fn of_values(&mut self, frame: &Frame<'_>) {
        let context = self.context;
        for (column, text) in frame.texts().filter(|(_, text)| context.talks_of(text)) {
            let test = format!(
                "{}[{}] == {}",
                frame.name,
                context.literal(column),
                context.literal(text)
            );
            let names = [frame.name, column];
            let (find, copy) = (SCAN * frame.rows, COPY * frame.bytes());
            let rows = format!("{}[{test}]", frame.name);
            self.show(Source::Conversation, "rows with a value", &rows, &names, find + copy);
            let count = format!("({test}).sum()");
            self.show(
                Source::Conversation,
                "number of rows with a value",
                &count,
                &names,
                find,
            );
        }
    }

    /// Adds one question of [`OF_GROUPS`] for each pair of a column with groups and a column of numbers.
    fn by_group(&mut self, source: Source, frame: &Frame<'_>, description: &str) {
        let Some((description, code)) = OF_GROUPS.into_iter().find(|known| known.0 == description) else {
            return;
        };
        for group in frame.columns(Columns::Groups).take(MOST_COLUMNS / 2) {
            let numbers = frame.columns(NUMBERS).filter(|number| *number != group);
            for column in numbers.take(MOST_COLUMNS / 2) {
                let (by, of) = (self.context.literal(group), self.context.literal(column));
                let expression = format!("{}.groupby({by})[{of}].{code}()", frame.name);
                let names = [frame.name, group, column];
                self.show(source, description, &expression, &names, GROUPS * frame.rows);
            }
        }
    }

    /// Adds questions that the words of the conversation ask for. The table is the one that was mentioned, or else the newest.
    fn of_words(&mut self) {
        let named = self.context.frames().find(|frame| self.context.names(frame.name));
        if let Some(frame) = named.or_else(|| self.context.frames().next()) {
            for (words, description) in OF_WORDS {
                if self.context.says(words) {
                    self.of_table(Source::Conversation, &frame, description);
                    self.of_columns(Source::Conversation, &frame, description);
                    self.by_group(Source::Conversation, &frame, description);
                }
            }
            self.of_values(&frame);
        }
        let texts = self
            .context
            .variables
            .iter()
            .filter(|variable| variable.type_name == "str");
        for variable in texts.take(3) {
            for sought in self.context.quoted() {
                let (name, sought) = (&variable.name, self.context.literal(sought));
                let ms = f64::from(variable.length.unwrap_or(0));
                let count = format!("{name}.count({sought})");
                self.show(Source::Conversation, "occurrences", &count, &[name], COUNT * ms);
                let found = format!("re.findall({sought}, {name})");
                self.show(Source::Conversation, "matches", &found, &[name], SPLIT * ms);
                let lines = format!("[line for line in {name}.splitlines() if {sought} in line]");
                self.show(Source::Conversation, "lines with a text", &lines, &[name], SPLIT * ms);
            }
        }
    }

    // ---- texts and lists ----

    fn of_texts(&mut self) {
        let source = Source::Pattern;
        for variable in self.context.variables.iter().take(10) {
            let name = variable.name.as_str();
            let ms = f64::from(variable.length.unwrap_or(0));
            match variable.type_name.as_str() {
                "str" => {
                    self.show(source, "length", &format!("len({name})"), &[name], 0.0);
                    for most in [500, 1000, 2000] {
                        self.show(source, "begin of a text", &format!("{name}[:{most}]"), &[name], 0.0);
                    }
                    let newline = self.context.literal("\n");
                    for split in [format!("split({newline})"), "splitlines()".to_owned()] {
                        let code = format!("lines = {name}.{split}");
                        self.add(source, "lines of a text", code, &[name], SPLIT * ms);
                        self.show(
                            source,
                            "number of lines",
                            &format!("len({name}.{split})"),
                            &[name],
                            SPLIT * ms,
                        );
                    }
                    self.show(
                        source,
                        "number of words",
                        &format!("len({name}.split())"),
                        &[name],
                        SPLIT * ms,
                    );
                }
                "list" | "dict" => {
                    self.show(source, "length", &format!("len({name})"), &[name], 0.0);
                    if variable.type_name == "list" {
                        self.show(source, "first item", &format!("{name}[0]"), &[name], 0.0);
                        self.show(source, "first items", &format!("{name}[:5]"), &[name], 0.0);
                    }
                }
                _ => {}
            }
        }
    }

    // ---- after code ----

    /// Adds code that usually follows the code that ran last, judged by its last line.
    fn after_code(&mut self) {
        let source = Source::Pattern;
        let Some((name, value)) = self.context.last.as_ref().and_then(|(code, _)| assignment(code)) else {
            return;
        };
        let Some(variable) = self.context.variables.iter().find(|variable| variable.name == name) else {
            return;
        };
        match variable.type_name.as_str() {
            "DataFrame" => {
                let follows: &[&str] = if value.contains(".read_") || value.contains("DataFrame(") {
                    &AFTER_READING
                } else if value.contains('[') || value.contains(".query(") {
                    &AFTER_FILTERING
                } else {
                    &["head"]
                };
                if let Some(frame) = self.context.frames().find(|frame| frame.name == name) {
                    for description in follows {
                        self.of_table(source, &frame, description);
                    }
                }
            }
            "DataFrameGroupBy" | "SeriesGroupBy" => {
                let rows = self.context.frames().map(|frame| frame.rows).fold(0.0, f64::max);
                for (description, code) in OF_GROUPS {
                    let expression = format!("{name}.{code}()");
                    self.show(source, description, &expression, &[name], GROUPS * rows);
                }
            }
            "Series" => self.of_series(variable),
            _ => {}
        }
    }

    fn of_series(&mut self, variable: &SurveyedVariable) {
        let name = variable.name.as_str();
        let rows = self.context.frames().map(|frame| frame.rows).fold(0.0, f64::max);
        for (_, description, code, each) in OF_COLUMNS {
            let expression = format!("{name}{code}");
            self.show(Source::Pattern, description, &expression, &[name], each * rows);
        }
    }

    /// Adds the code that ran last, with another column or table in it. The estimated time is the time of the code that ran last, for
    /// another table in proportion to the rows.
    fn like_the_last(&mut self) {
        let Some((code, ms)) = &self.context.last else { return };
        let is_mentioned = |frame: &Frame<'_>| self.context.names(frame.name);
        let Some(frame) = self.context.frames().find(is_mentioned) else {
            return;
        };
        let mut used = Vec::new();
        for column in &frame.variable.columns {
            let literals = ['"', '\''].map(|quote| super::literal::literal(&column.name, quote));
            if let Some(found) = literals.into_iter().find(|literal| code.contains(literal.as_str())) {
                used.push((column, found));
            }
        }
        for (column, found) in &used {
            let others = frame.columns(Columns::Of(column.kind)).take(MOST_COLUMNS);
            for other in others.filter(|other| !used.iter().any(|(known, _)| known.name == *other)) {
                let quote = found.chars().next().unwrap_or('"');
                let code = code.replace(found.as_str(), &super::literal::literal(other, quote));
                self.add(
                    Source::Code,
                    "the same of another column",
                    code,
                    &[frame.name, other],
                    *ms,
                );
            }
        }
        for other in self.context.frames().take(MOST_FRAMES) {
            let has = |name: &str| other.variable.columns.iter().any(|column| column.name == name);
            if other.name != frame.name && used.iter().all(|(column, _)| has(&column.name)) {
                let code = with_name(code, frame.name, other.name);
                let ms = ms * other.rows / frame.rows.max(1.0);
                self.add(Source::Code, "the same of another table", code, &[other.name], ms);
            }
        }
    }
}

/// The name and the value of the assignment in the last line of code. `None` if that line assigns nothing.
fn assignment(code: &str) -> Option<(&str, &str)> {
    let line = code.lines().rev().find(|line| !line.trim().is_empty())?;
    let (name, value) = line.split_once(" = ")?;
    is_name(name).then_some((name, value))
}

/// Replaces a name in code by another. Longer names that contain the name stay, and so do attributes.
fn with_name(code: &str, name: &str, other: &str) -> String {
    let is_part = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_' || char == '.');
    let mut made = String::with_capacity(code.len());
    let mut rest = code;
    while let Some((before, after)) = rest.split_once(name) {
        made.push_str(before);
        let whole =
            !is_part(made.chars().last()) && !after.starts_with(|char: char| char.is_alphanumeric() || char == '_');
        made.push_str(if whole { other } else { name });
        rest = after;
    }
    made.push_str(rest);
    made
}
