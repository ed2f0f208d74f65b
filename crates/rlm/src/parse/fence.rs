//! Fences in the forms that models write, and the ends of their blocks.
//!
//! Decisions: `docs/internals/controller.md`.

use std::collections::HashMap;

use super::prose;

/// A fence that begins a block.
pub struct Fence<'a> {
    /// Words before the fence on its line.
    pub before: &'a str,
    /// True if the block is code to run.
    pub is_code: bool,
    /// True if a text, usually a language, follows the fence's marks.
    has_info: bool,
    mark: char,
    width: usize,
    indent: usize,
    /// The number of Markdown quotes (`>`) around the fence.
    quotes: usize,
}

/// The end of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The block ends at the line with this index. `is_doubtful` is true if the block seems to hold fences of its own.
    Closed { at: usize, is_doubtful: bool },
    /// The block lacks its closing fence, because the line with this index opens the next block.
    Followed { by: usize },
    /// The line with this index closes the block, unless the string around it ends in text that is still to come.
    InString { at: usize },
    /// The block has no end.
    Missing,
    /// There is no block: the words only mention fences. The line with this index has a real fence.
    Mention { of: usize },
}

impl<'a> Fence<'a> {
    /// The fence on a line. A fence that begins the line may have quotes, marks of lists and tags before it. A fence after words must be of
    /// backticks, without matching backticks on the line.
    pub fn open(line: &'a str) -> Option<Self> {
        let (quotes, text) = without_containers(line);
        let (start, mark, width) = match marks(text) {
            Some((mark, width)) => (0, mark, width),
            None => backticks(text).map(|(start, width)| (start, '`', width))?,
        };
        let before = text[..start].trim_matches(is_blank);
        let info = text[start + width..].trim_matches(is_blank);
        let language = info.split(|char: char| !char.is_alphanumeric()).next();
        let is_language = matches!(
            language.unwrap_or_default().to_ascii_lowercase().as_str(),
            "repl" | "python" | "py" | "python3"
        );
        let is_quote = matches!(mark, '\'' | '"');
        if is_quote && !(is_language && language.is_some_and(|language| language.len() == info.len())) {
            return None;
        }
        // After words, more words make a sentence about fences. With a backtick after them, backticks are no fence in Markdown.
        let is_sentence = !before.is_empty() && language.is_some_and(|language| language.len() < info.len());
        Some(Self {
            before,
            is_code: is_language && !is_sentence && !is_quote && (mark == '~' || !info.contains('`')),
            has_info: !info.is_empty(),
            mark,
            width,
            indent: if before.is_empty() { line.len() - text.len() } else { 0 },
            quotes,
        })
    }

    /// Finds the end of the block that begins with these lines.
    pub fn end(&self, lines: &[&str]) -> End {
        let is_behind_words = !self.before.is_empty();
        let mut strings = Strings::default();
        let mut is_doubtful = false;
        let mut first = None;
        for (at, line) in lines.iter().enumerate() {
            if self.closes(line) {
                if !self.is_code || !strings.in_triple() {
                    return End::Closed { at, is_doubtful };
                }
                first = first.or(Some(at));
            } else if !strings.in_triple() && (is_behind_words || !self.is_code) && begins_with_fence(line) {
                if is_behind_words {
                    return End::Mention { of: at };
                }
                is_doubtful = true;
            } else if !strings.in_triple() && self.is_code && self.gives_way_to(line) {
                return End::Followed { by: at };
            }
            strings.read(unquoted(line, self.quotes));
            first = first.filter(|_| strings.in_triple());
        }
        first.map_or(End::Missing, |at| End::InString { at })
    }

    /// Returns true if a line opens another block, though this one was not closed. Such a line is no Python, unless it is in a string.
    fn gives_way_to(&self, line: &str) -> bool {
        Fence::open(line).is_some_and(|next| {
            let may_begin = next.mark == '`' || next.mark == '~' && self.mark == '~';
            may_begin && next.before.is_empty() && next.has_info && next.width >= self.width
        })
    }

    /// The number of lines of a block without a closing fence that are code. The words after the code are not.
    pub fn code_lines(&self, lines: &[&str]) -> usize {
        let lines = lines.iter().map(|line| unquoted(line, self.quotes));
        if self.is_code { prose::begin(lines) } else { lines.len() }
    }

    fn closes(&self, line: &str) -> bool {
        let text = unquoted(line, self.quotes).trim_matches(is_blank);
        text.len() >= self.width && text.chars().all(|char| char == self.mark)
    }

    /// The block's lines, without the quotes around the fence and without the fence's indentation. The first line limits the indentation
    /// that is removed.
    pub fn content(&self, lines: &[&str]) -> String {
        let indentation = |line: &str| line.len() - line.trim_start_matches([' ', '\t']).len();
        let lines: Vec<&str> = lines.iter().map(|line| unquoted(line, self.quotes)).collect();
        let first = lines.iter().find(|line| !line.trim().is_empty());
        let indent = first.map_or(0, |line| indentation(line)).min(self.indent);
        let lines = lines.iter().map(|line| &line[indentation(line).min(indent)..]);
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Returns true if a line, as far as it is written, may end a block.
pub fn may_end(line: &str) -> bool {
    let text = line
        .trim_start_matches(|char| is_blank(char) || char == '>')
        .trim_end_matches(is_blank);
    text.len() >= 3 && ['`', '~'].into_iter().any(|mark| text.chars().all(|char| char == mark))
}

/// Returns true for white space, and for characters without width.
pub fn is_blank(char: char) -> bool {
    char.is_whitespace()
        || matches!(char, '\u{ad}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{fe0f}' | '\u{feff}')
}

/// Returns true if a line begins with a fence that names a language.
fn begins_with_fence(line: &str) -> bool {
    Fence::open(line).is_some_and(|fence| fence.before.is_empty() && fence.has_info)
}

/// A line without at most `quotes` Markdown quotes at its beginning.
fn unquoted(line: &str, quotes: usize) -> &str {
    let mut line = line;
    for _ in 0..quotes {
        let Some(rest) = line.trim_start_matches(is_blank).strip_prefix('>') else {
            break;
        };
        line = rest.strip_prefix(' ').unwrap_or(rest);
    }
    line
}

/// A line without the marks in which a fence may stand: white space, quotes, marks of lists, tags. Also returns the number of quotes.
fn without_containers(line: &str) -> (usize, &str) {
    let mut quotes = 0;
    let mut text = line.trim_start_matches(is_blank);
    loop {
        let rest = if let Some(rest) = text.strip_prefix('>') {
            quotes += 1;
            rest
        } else if let Some(rest) = without_list_mark(text).or_else(|| without_tag(text)) {
            rest
        } else {
            return (quotes, text);
        };
        text = rest.trim_start_matches(is_blank);
    }
}

pub fn without_list_mark(text: &str) -> Option<&str> {
    let rest = text.strip_prefix(['-', '*', '+', '•', '–', '—']).or_else(|| {
        let rest = text.trim_start_matches(|char: char| char.is_ascii_digit());
        rest.strip_prefix(['.', ')']).filter(|_| rest.len() < text.len())
    })?;
    rest.starts_with(is_blank).then_some(rest)
}

fn without_tag(text: &str) -> Option<&str> {
    let (tag, rest) = text.strip_prefix('<')?.split_once('>')?;
    (!tag.is_empty() && !tag.contains(['`', '<'])).then_some(rest)
}

/// The tildes at the beginning of a text, if they are a fence, or quotes, which some models write instead. Blocks with quotes do not run.
fn marks(text: &str) -> Option<(char, usize)> {
    let mark = text.chars().next().filter(|mark| matches!(mark, '~' | '\'' | '"'))?;
    let width = text.len() - text.trim_start_matches(mark).len();
    (width >= 3).then_some((mark, width))
}

/// The position and number of backticks of a fence on a line. Backticks with an equal number later on the line are code within the line,
/// and no fence.
fn backticks(text: &str) -> Option<(usize, usize)> {
    let mut runs = Vec::new();
    let mut start = 0;
    while let Some(found) = text[start..].find('`') {
        start += found;
        let width = text[start..].len() - text[start..].trim_start_matches('`').len();
        runs.push((start, width));
        start += width;
    }
    let last: HashMap<usize, usize> = runs.iter().map(|&(start, width)| (width, start)).collect();
    let mut runs = runs.into_iter();
    while let Some((start, width)) = runs.next() {
        if last[&width] != start {
            runs.find(|run| run.1 == width);
        } else if width >= 3 {
            return Some((start, width));
        }
    }
    None
}

/// Follows Python's string literals from line to line.
#[derive(Default)]
pub struct Strings {
    /// The quote of the triple-quoted string that is open.
    triple: Option<char>,
}

impl Strings {
    /// Returns true if a triple-quoted string is open at the end of the last line.
    pub fn in_triple(&self) -> bool {
        self.triple.is_some()
    }

    /// Reads the next line.
    pub fn read(&mut self, line: &str) {
        let mut chars = line.chars();
        let mut single = None;
        while let Some(char) = chars.next() {
            match char {
                '\\' => drop(chars.next()),
                '#' if self.triple.is_none() && single.is_none() => return,
                '"' | '\'' => {
                    let is_triple = {
                        let mut ahead = chars.clone();
                        ahead.next() == Some(char) && ahead.next() == Some(char)
                    };
                    match (self.triple, single) {
                        (Some(open), _) if open == char && is_triple => {
                            self.triple = None;
                            chars.nth(1);
                        }
                        (Some(_), _) => {}
                        (None, Some(open)) if open == char => single = None,
                        (None, Some(_)) => {}
                        (None, None) if is_triple => {
                            self.triple = Some(char);
                            chars.nth(1);
                        }
                        (None, None) => single = Some(char),
                    }
                }
                _ => {}
            }
        }
    }
}
