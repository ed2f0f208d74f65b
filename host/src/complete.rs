//! Tells if Python source is complete. Gives the same answers as Python's own REPL (`codeop`), from the source's tokens.

use std::iter::Peekable;
use std::str::Chars;

/// The width of a tab in columns, as Python counts.
const TAB: usize = 8;

/// Returns true when more lines must follow before `source` can run. Examples: an open bracket, an unfinished block, a
/// decorator without a function, or a `try` without `except`. Source that Python refuses does not go on, so that the user gets
/// the error.
///
/// An empty line ends a block. A following line without indentation ends it too, so that several statements can be pasted.
pub fn goes_on(source: &str) -> bool {
    state(source) == State::Incomplete
}

/// The progress through a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The source can be run.
    Complete,
    /// More lines must follow.
    Incomplete,
    /// Python refuses the source because of its brackets or strings.
    Invalid,
}

/// The state of `source`: complete, incomplete or refused by Python.
pub fn state(source: &str) -> State {
    let mut scan = Scan {
        rest: source.chars().peekable(),
        inside: Vec::new(),
        line: None,
        last: None,
        tries: Vec::new(),
    };
    match scan.all() {
        Err(Stop::Refused) => State::Invalid,
        Err(Stop::Open) => State::Incomplete,
        Ok(()) => {
            let ends_empty = source.ends_with('\n');
            let last_goes_on = scan
                .last
                .is_some_and(|last| last.needs_more() || last.in_block() && !ends_empty);
            if last_goes_on || !scan.tries.is_empty() {
                State::Incomplete
            } else {
                State::Complete
            }
        }
    }
}

/// The reason why reading a text stopped before its end.
enum Stop {
    /// Python refuses the text.
    Refused,
    /// The text ends within brackets, within a string, or after a backslash.
    Open,
}

type Read = Result<(), Stop>;

/// An open construct.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// An open bracket, by its closing one.
    Bracket(char),
    /// The text of a string with fields, `f"…"`.
    Text(Quote),
    /// The code of a field `{…}` in the string.
    Field(Quote),
    /// The format after the colon in a field.
    Format(Quote),
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Quote {
    char: char,
    triple: bool,
    raw: bool,
}

/// A logical line of Python: a simple statement, or the head of a block.
#[derive(Default)]
struct Line {
    indent: usize,
    /// The line's first two words, empty if it begins otherwise.
    words: [String; 2],
    tokens: usize,
    decorates: bool,
    /// True when there is a colon outside of brackets.
    has_colon: bool,
    ends_in_colon: bool,
}

impl Line {
    fn keyword(&self) -> &str {
        match &self.words {
            [first, second] if first == "async" => second,
            [first, _] => first,
        }
    }

    /// Returns true when the line begins a block, or is a block.
    fn heads(&self) -> bool {
        match self.keyword() {
            "if" | "elif" | "else" | "for" | "while" | "with" | "try" | "except" | "finally" | "def" | "class" => {
                self.has_colon
            }
            // These words may also be names.
            "match" | "case" => self.ends_in_colon,
            _ => false,
        }
    }

    /// Returns true when the source cannot end after this line.
    fn needs_more(&self) -> bool {
        self.decorates || self.heads() && self.ends_in_colon
    }

    /// Returns true when more may belong to the same block.
    fn in_block(&self) -> bool {
        self.indent > 0 || self.heads()
    }
}

struct Scan<'a> {
    rest: Peekable<Chars<'a>>,
    inside: Vec<Inside>,
    /// The line that is being read.
    line: Option<Line>,
    /// The previous line.
    last: Option<Line>,
    /// The indentation of each `try` that has neither `except` nor `finally` yet.
    tries: Vec<usize>,
}

impl Scan<'_> {
    fn all(&mut self) -> Read {
        let mut indent = 0;
        while let Some(char) = self.rest.next() {
            match (self.inside.last().copied(), char) {
                (Some(Inside::Text(quote)), _) => self.text(quote, char)?,
                (Some(Inside::Format(quote)), _) => self.format(quote, char)?,
                (None, '\n') => {
                    indent = 0;
                    self.end_line()?;
                }
                (None, ' ') if self.line.is_none() => indent += 1,
                (None, '\t') if self.line.is_none() => indent = (indent / TAB + 1) * TAB,
                (_, ' ' | '\t' | '\n' | '\r' | '\u{c}') => {}
                (_, '#') => while self.rest.next_if(|char| *char != '\n').is_some() {},
                (inside, _) => {
                    self.line.get_or_insert_with(|| Line {
                        indent,
                        ..Line::default()
                    });
                    self.token(inside, char)?;
                }
            }
        }
        match self.inside.last() {
            Some(Inside::Text(quote) | Inside::Format(quote)) if !quote.triple => Err(Stop::Refused),
            Some(_) => Err(Stop::Open),
            None => self.end_line(),
        }
    }

    fn end_line(&mut self) -> Read {
        let Some(line) = self.line.take() else { return Ok(()) };
        let goes_with_another = matches!(line.keyword(), "elif" | "else" | "except" | "finally");
        if self.last.is_none() && (line.indent > 0 || goes_with_another) {
            return Err(Stop::Refused);
        }
        if self.tries.last() == Some(&line.indent) && matches!(line.keyword(), "except" | "finally") {
            self.tries.pop();
        }
        if self.tries.last().is_some_and(|indent| *indent >= line.indent) {
            return Err(Stop::Refused);
        }
        if line.keyword() == "try" && line.has_colon {
            self.tries.push(line.indent);
        }
        self.last = Some(line);
        Ok(())
    }

    /// Reads the token that begins with `first`.
    fn token(&mut self, inside: Option<Inside>, first: char) -> Read {
        let mut word = String::new();
        let mut ends_in_colon = false;
        match first {
            '(' => self.inside.push(Inside::Bracket(')')),
            '[' => self.inside.push(Inside::Bracket(']')),
            '{' => self.inside.push(Inside::Bracket('}')),
            ')' | ']' | '}' => match self.inside.pop() {
                Some(Inside::Bracket(closes)) if closes == first => {}
                Some(Inside::Field(_)) if first == '}' => {}
                _ => return Err(Stop::Refused),
            },
            ':' => match inside {
                Some(Inside::Field(quote)) => self.inside.push(Inside::Format(quote)),
                Some(_) => {}
                None => ends_in_colon = self.rest.next_if_eq(&'=').is_none(),
            },
            '\\' => match (self.rest.next(), self.rest.peek()) {
                (None | Some('\n'), None) => return Err(Stop::Open),
                (Some('\n'), _) => return Ok(()),
                _ => return Err(Stop::Refused),
            },
            '$' | '?' => return Err(Stop::Refused),
            '\'' | '"' => self.string("", first)?,
            char if is_of_word(char) => {
                word.push(char);
                while let Some(char) = self.rest.next_if(|char| is_of_word(*char)) {
                    word.push(char);
                }
                if is_prefix(&word)
                    && let Some(quote) = self.rest.next_if(|char| matches!(char, '\'' | '"'))
                {
                    self.string(&std::mem::take(&mut word), quote)?;
                }
            }
            _ => {}
        }
        if inside.is_none()
            && let Some(line) = &mut self.line
        {
            line.decorates |= first == '@' && line.tokens == 0;
            line.has_colon |= ends_in_colon;
            line.ends_in_colon = ends_in_colon;
            if let Some(place) = line.words.get_mut(line.tokens) {
                *place = word;
            }
            line.tokens += 1;
        }
        Ok(())
    }

    /// Reads a string after its first quote: the whole string, or up to its text if it has fields.
    fn string(&mut self, prefix: &str, char: char) -> Read {
        let prefix = prefix.to_ascii_lowercase();
        let mut quote = Quote {
            char,
            triple: false,
            raw: prefix.contains('r'),
        };
        if self.rest.next_if_eq(&char).is_some() {
            if self.rest.next_if_eq(&char).is_none() {
                return Ok(());
            }
            quote.triple = true;
        }
        if prefix.contains(['f', 't']) {
            self.inside.push(Inside::Text(quote));
            return Ok(());
        }
        while let Some(next) = self.rest.next() {
            match next {
                '\\' if self.rest.next().is_none() => return Err(Stop::Open),
                '\n' if !quote.triple => return Err(Stop::Refused),
                next if self.ends(quote, next) => return Ok(()),
                _ => {}
            }
        }
        Err(if quote.triple { Stop::Open } else { Stop::Refused })
    }

    /// Returns true when `char` and the next characters end the string. Reads them in that case.
    fn ends(&mut self, quote: Quote, char: char) -> bool {
        if char != quote.char || !quote.triple {
            return char == quote.char;
        }
        let mut ahead = self.rest.clone();
        let ends = ahead.next_if_eq(&char).is_some() && ahead.next_if_eq(&char).is_some();
        if ends {
            self.rest = ahead;
        }
        ends
    }

    /// Reads on in the text of a string with fields.
    fn text(&mut self, quote: Quote, char: char) -> Read {
        match char {
            '\\' => return self.escape(quote),
            '{' if self.rest.next_if_eq(&'{').is_none() => self.inside.push(Inside::Field(quote)),
            '\n' if !quote.triple => return Err(Stop::Refused),
            char if self.ends(quote, char) => {
                self.inside.pop();
            }
            _ => {}
        }
        Ok(())
    }

    /// Reads a character of the format after the colon in a field.
    fn format(&mut self, quote: Quote, char: char) -> Read {
        match char {
            '\\' => return self.escape(quote),
            '{' => self.inside.push(Inside::Field(quote)),
            '}' => {
                self.inside.pop();
                self.inside.pop();
            }
            '\n' if !quote.triple => return Err(Stop::Refused),
            char if self.ends(quote, char) => return Err(Stop::Refused),
            _ => {}
        }
        Ok(())
    }

    /// Reads the rest of an escape in a string with fields. An escaped quote does not end the string. An escaped brace still
    /// begins a field.
    fn escape(&mut self, quote: Quote) -> Read {
        if self.rest.peek().is_none() {
            return Err(Stop::Open);
        }
        let escaped = self.rest.next_if(|char| !matches!(char, '{' | '}'));
        // \N{DIGIT ONE} is no field.
        if escaped == Some('N') && !quote.raw && self.rest.next_if_eq(&'{').is_some() {
            while self.rest.next_if(|char| !matches!(char, '}' | '\n')).is_some() {}
            self.rest.next_if_eq(&'}');
        }
        Ok(())
    }
}

fn is_of_word(char: char) -> bool {
    char.is_alphanumeric() || char == '_' || !char.is_ascii()
}

/// Returns true for a word that may stand before a string's quote.
fn is_prefix(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    matches!(
        word.as_str(),
        "r" | "u" | "b" | "f" | "t" | "br" | "rb" | "fr" | "rf" | "tr" | "rt"
    )
}

#[cfg(test)]
mod tests;
