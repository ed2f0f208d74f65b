//! Code that is made of the names that there are: what is usually asked of such a table, column or text, what usually follows such code,
//! what was talked about, and the code that ran last, of something else.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::context::{Columns, Context, Frame};
use super::literal::is_name;
use super::{Prediction, Source};
use crate::limits::MAX_OFFERED;
use crate::protocol::{ColumnKind, SurveyedVariable};

/// Tables and columns of each that something is predicted of.
const MOST_FRAMES: usize = 5;
const MOST_COLUMNS: usize = 12;
/// The factor by which what is named is likelier than what is not.
const NAMED: f64 = 4.0;

/// Milliseconds that showing something takes, and what pandas takes for a value or a row: of a table of a million rows and five columns,
/// before this session has seen what it really takes.
const SHOW: f64 = 2.0;
const DESCRIBE: f64 = 21e-6;
const DISTINCT: f64 = 77e-6;
const DUPLICATED: f64 = 116e-6;
const COUNTS: f64 = 150e-6;
const GROUPS: f64 = 60e-6;
const SCAN: f64 = 5e-6;
/// The same for a byte of what is copied.
const COPY: f64 = 1e-6;
/// The same for a character of a text.
const SPLIT: f64 = 10e-6;
const COUNT: f64 = 1e-6;

/// A question about a whole table: what it is, the code behind the name of the table, and the time for each of its values.
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
/// Those of them that follow code that has read a table, and code that has filtered one.
const AFTER_READING: [&str; 4] = ["head", "info", "describe", "shape"];
const AFTER_FILTERING: [&str; 2] = ["shape", "head"];
/// Questions about a column, by what it holds.
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
/// Words, and what of a table or its columns they are for.
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
/// Aggregates of groups.
const OF_GROUPS: [(&str, &str); 4] = [
    ("mean by group", "mean"),
    ("sum by group", "sum"),
    ("count by group", "count"),
    ("size of groups", "size"),
];

/// Predictions under way.
struct Maker<'a> {
    context: &'a Context,
    made: Vec<(Prediction, f64)>,
}

impl Context {
    /// The code that may come next. The probability of each is its part of those of the same source and description.
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

    /// One of [`OF_TABLES`].
    fn of_table(&mut self, source: Source, frame: &Frame<'_>, description: &str) {
        if let Some((description, code, each)) = OF_TABLES.into_iter().find(|known| known.0 == description) {
            let expression = format!("{}{code}", frame.name);
            self.show(source, description, &expression, &[frame.name], each * frame.cells());
        }
    }

    /// One of [`OF_COLUMNS`], of each column that it fits.
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

    /// The rows that have what is talked about.
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

    /// One of [`OF_GROUPS`] that takes numbers, by each column that has groups.
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

    /// The code that usually follows the last line of the code that ran last.
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

    /// The code that ran last, of another column or another table: it takes as long as that did.
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

/// The name and the value of the assignment that code ends with.
fn assignment(code: &str) -> Option<(&str, &str)> {
    let line = code.lines().rev().find(|line| !line.trim().is_empty())?;
    let (name, value) = line.split_once(" = ")?;
    is_name(name).then_some((name, value))
}

/// Code with another name in place of one.
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
