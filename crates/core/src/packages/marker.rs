//! Environment markers (PEP 508): the conditions of requirements.

use std::str::FromStr;

use pep440_rs::{Version, VersionSpecifier};

use super::{Target, normalized};

/// The greatest depth of a marker's parentheses.
const MAX_DEPTH: u32 = 50;

/// The condition of a requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Marker {
    All(Vec<Marker>),
    Any(Vec<Marker>),
    Compare(Operand, &'static str, Operand),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operand {
    Variable(String),
    Text(String),
}

/// The environment in which a marker is evaluated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Environment<'a> {
    pub(super) target: &'a Target,
    /// Extras for which the requirement is read; normalized.
    pub(super) extras: &'a [String],
}

const VARIABLES: [&str; 11] = [
    "python_version",
    "python_full_version",
    "os_name",
    "sys_platform",
    "platform_machine",
    "platform_python_implementation",
    "platform_release",
    "platform_system",
    "platform_version",
    "implementation_name",
    "implementation_version",
];
/// The order matters: an operator comes before those that it begins with.
const OPERATORS: [&str; 10] = ["===", "~=", "==", "!=", "<=", ">=", "<", ">", "in", "not in"];

impl Environment<'_> {
    fn value(&self, name: &str) -> String {
        let (major, minor) = self.target.version();
        match name {
            "python_version" => format!("{major}.{minor}"),
            "python_full_version" | "implementation_version" => self.target.python.clone(),
            "os_name" => "posix".to_owned(),
            "sys_platform" => "emscripten".to_owned(),
            "platform_machine" => "wasm32".to_owned(),
            "platform_python_implementation" => "CPython".to_owned(),
            "platform_system" => "Emscripten".to_owned(),
            "implementation_name" => "cpython".to_owned(),
            _ => String::new(),
        }
    }
}

impl Marker {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser {
            rest: text.trim_start(),
        };
        let marker = parser.any(0)?;
        if parser.rest.is_empty() {
            Ok(marker)
        } else {
            Err(format!("its marker ends with \"{}\"", parser.rest))
        }
    }

    pub(super) fn holds(&self, environment: &Environment<'_>) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.holds(environment)),
            Self::Any(parts) => parts.iter().any(|part| part.holds(environment)),
            Self::Compare(left, operator, right) => compare(left, operator, right, environment),
        }
    }
}

fn compare(left: &Operand, operator: &str, right: &Operand, environment: &Environment<'_>) -> bool {
    let is_extra = |operand: &Operand| matches!(operand, Operand::Variable(name) if name == "extra");
    if let (Operand::Text(name), other) | (other, Operand::Text(name)) = (left, right)
        && is_extra(other)
    {
        let has = environment.extras.contains(&normalized(name));
        return has == (operator != "!=");
    }
    let value = |operand: &Operand| match operand {
        Operand::Text(text) => text.clone(),
        Operand::Variable(name) => environment.value(name),
    };
    let (left, right) = (value(left), value(right));
    match operator {
        "in" => return right.contains(&left),
        "not in" => return !right.contains(&left),
        _ => {}
    }
    // Compares versions if both sides are versions, else texts.
    let specifier = VersionSpecifier::from_str(&format!("{operator}{right}"));
    if let (Ok(version), Ok(specifier)) = (Version::from_str(&left), specifier) {
        return specifier.contains(&version);
    }
    match operator {
        "==" | "===" => left == right,
        "!=" => left != right,
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        ">=" => left >= right,
        _ => false,
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn any(&mut self, depth: u32) -> Result<Marker, String> {
        let mut parts = vec![self.all(depth)?];
        while self.word("or") {
            parts.push(self.all(depth)?);
        }
        Ok(Marker::Any(parts))
    }

    fn all(&mut self, depth: u32) -> Result<Marker, String> {
        let mut parts = vec![self.one(depth)?];
        while self.word("and") {
            parts.push(self.one(depth)?);
        }
        Ok(Marker::All(parts))
    }

    fn one(&mut self, depth: u32) -> Result<Marker, String> {
        if depth > MAX_DEPTH {
            return Err("its marker is nested too deeply".to_owned());
        }
        if self.symbol("(") {
            let inner = self.any(depth + 1)?;
            return if self.symbol(")") {
                Ok(inner)
            } else {
                Err("a ( of its marker is not closed".to_owned())
            };
        }
        let left = self.operand()?;
        let operator = self.operator()?;
        Ok(Marker::Compare(left, operator, self.operand()?))
    }

    fn operand(&mut self) -> Result<Operand, String> {
        for quote in ['"', '\''] {
            if let Some(inner) = self.rest.strip_prefix(quote) {
                let (text, after) = inner.split_once(quote).ok_or("a text of its marker is not closed")?;
                self.advance(after);
                return Ok(Operand::Text(text.to_owned()));
            }
        }
        let end = self
            .rest
            .find(|char: char| !(char.is_ascii_alphanumeric() || "_.".contains(char)));
        let (name, after) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let plain = name.replace('.', "_"); // `os.name` is an old spelling of `os_name`
        if plain != "extra" && !VARIABLES.contains(&plain.as_str()) {
            return Err(format!("its marker has \"{name}\", which is no variable"));
        }
        self.advance(after);
        Ok(Operand::Variable(plain))
    }

    fn operator(&mut self) -> Result<&'static str, String> {
        if self.word("not") {
            return if self.word("in") {
                Ok("not in")
            } else {
                Err("its marker has \"not\" without \"in\"".to_owned())
            };
        }
        if self.word("in") {
            return Ok("in");
        }
        let found = OPERATORS.into_iter().find(|operator| self.symbol(operator));
        found.ok_or_else(|| "its marker compares nothing".to_owned())
    }

    fn symbol(&mut self, symbol: &str) -> bool {
        let after = self.rest.strip_prefix(symbol);
        if let Some(after) = after {
            self.advance(after);
        }
        after.is_some()
    }

    fn word(&mut self, word: &str) -> bool {
        let ends = |after: &&str| !after.starts_with(|char: char| char.is_ascii_alphanumeric() || char == '_');
        let after = self.rest.strip_prefix(word).filter(ends);
        if let Some(after) = after {
            self.advance(after);
        }
        after.is_some()
    }

    fn advance(&mut self, rest: &'a str) {
        self.rest = rest.trim_start();
    }
}
