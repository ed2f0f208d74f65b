//! Texts as Python source.

use std::fmt::Write as _;

/// A text as a literal of Python's between these quotes, `"` or `'`: whatever is in it, it is one literal and that text.
pub fn literal(text: &str, quote: char) -> String {
    let mut source = String::with_capacity(text.len() + 2);
    source.push(quote);
    for char in text.chars() {
        match char {
            '\n' => source.push_str("\\n"),
            '\r' => source.push_str("\\r"),
            '\t' => source.push_str("\\t"),
            '\\' => source.push_str("\\\\"),
            _ if char == quote => {
                source.push('\\');
                source.push(char);
            }
            _ if char.is_control() => {
                let _ = write!(source, "\\x{:02x}", u32::from(char)); // all of them are below U+00A0
            }
            _ => source.push(char),
        }
    }
    source.push(quote);
    source
}

/// Returns true when a name is one that code can use as it is. Names of other alphabets are left out: Python takes some of them for others.
pub fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !KEYWORDS.contains(&name)
}

/// Those of Python 3.14.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def", "del",
    "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is", "lambda", "nonlocal",
    "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];
