//! Tells words from code, after a block whose closing fence was forgotten.
//!
//! Decisions: `docs/internals/controller.md`.

use super::fence::{Strings, is_blank, without_list_mark};

/// The index of the line at which the words after a block's code begin: the paragraphs at the end whose first lines are no Python. The
/// number of lines if there are none. Words directly after code, without an empty line, count as code, and Python refuses them.
///
/// More lines at the end never move the words' beginning up. So the code before it is certain while the reply still comes.
pub fn begin<'a>(lines: impl ExactSizeIterator<Item = &'a str>) -> usize {
    let all = lines.len();
    let mut strings = Strings::default();
    let mut words = None;
    let mut is_after_gap = false;
    for (at, line) in lines.enumerate() {
        let in_string = strings.in_triple();
        strings.read(line);
        if in_string {
            is_after_gap = false;
        } else if line.trim_matches(is_blank).is_empty() {
            is_after_gap = true;
        } else if std::mem::take(&mut is_after_gap) {
            if is_sentence(line) {
                words = words.or(Some(at));
            } else if !line.starts_with('#') {
                words = None;
            }
        }
    }
    words.unwrap_or(all)
}

/// Returns true if a line begins as a sentence does, and is no Python. Commands such as `pip install x` begin with a small letter: they
/// count as code, so that Python's error tells the model of them.
fn is_sentence(line: &str) -> bool {
    let text = without_list_mark(line).unwrap_or(line).trim_matches(is_blank);
    let text = text.strip_prefix("**").unwrap_or(text);
    let begins = text.starts_with(|first: char| first.is_alphabetic() && !first.is_lowercase());
    let is_indented = line.starts_with([' ', '\t']);
    // What follows a quote or a hash may be a string or a comment.
    let plain = text.split(['#', '"', '\'']).next().unwrap_or_default();
    begins && !is_indented && (ends_as_sentence(text) || is_contraction(text) || has_words(plain) || has_mark(plain))
}

/// Returns true for words with a mark at their end, such as `Output:` or `Done.`
fn ends_as_sentence(text: &str) -> bool {
    let text = text.strip_suffix("**").unwrap_or(text);
    let words = text.trim_end_matches(['.', ':', '!', '?']);
    words.len() < text.len()
        && words
            .chars()
            .all(|char| char.is_alphanumeric() || " -,'".contains(char))
}

/// Returns true for texts such as `Let's see`. In Python, a quote directly after a word begins a string with a prefix, such as `f`.
fn is_contraction(text: &str) -> bool {
    let is_prefix = |char: char| "rubft".contains(char.to_ascii_lowercase());
    text.split_once('\'').is_some_and(|(word, rest)| {
        word.chars().all(char::is_alphanumeric) && !word.chars().all(is_prefix) && rest.starts_with(char::is_alphabetic)
    })
}

/// Returns true if two words follow each other, neither of them a keyword.
fn has_words(text: &str) -> bool {
    let is_word = |word: &str| !word.is_empty() && word.chars().all(char::is_alphanumeric) && !KEYWORDS.contains(&word);
    let mut before = "";
    text.split_whitespace().any(|word| {
        let after = std::mem::replace(&mut before, word);
        is_word(after) && is_word(word.trim_end_matches(['.', ',', ':', ';', '!', '?']))
    })
}

/// Returns true if a text has a mark that Python does not know outside of strings, such as `。` or `’`.
fn has_mark(text: &str) -> bool {
    let is_mark = |char: char| !char.is_ascii() && !char.is_alphanumeric() && !is_blank(char);
    text.contains(is_mark)
}

/// Words of Python that may stand beside a name. `print` is one, because old Python had it so.
const KEYWORDS: [&str; 31] = [
    "and", "as", "assert", "async", "await", "case", "class", "def", "del", "elif", "else", "except", "for", "from",
    "global", "if", "import", "in", "is", "lambda", "match", "nonlocal", "not", "or", "print", "raise", "return",
    "type", "while", "with", "yield",
];

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_told_from_code() {
        for sentence in [
            "Now I count the words:",
            "Output:",
            "**Output:**",
            "REPL output (block 1):",
            "Done.",
            "Let's look at it (again)",
            "I'll wait",
            "I\u{2019}ll wait",
            "1. Count them",
            "- Count them",
            "Then f(x) gives the total",
            "The answer is \"7\"",
            "\u{73b0}\u{5728}\u{8ba1}\u{7b97}\u{3002}",
        ] {
            assert!(is_sentence(sentence), "{sentence}");
        }
        for code in [
            "FINAL(total)",
            "Total = 3",
            "Point = Pair",
            "X = a if B else not C",
            "X = [Y for Y in Z]",
            "X: list[int] = []",
            "TEXT = 'Now I count the words.'",
            "TEXT = \"\u{2026}\"",
            "N = 1  # Now I count the words.",
            "F'{x}'",
            "BR'x'",
            "Total",
            "Shape.area",
            "A, B = C",
            "lambda: x",
            "print x",
            "pip install pandas",
            "    Now it is indented.",
            "-x",
            "@Cache",
            "**kwargs",
        ] {
            assert!(!is_sentence(code), "{code}");
        }
    }

    #[test]
    fn words_begin_after_an_empty_line() {
        for (text, code) in [
            ("x = 1\n\nNow I wait.\nfor it", 2),
            ("x = 1\n\nNow I wait.\n\n## Step 2\n\nThen I go on.\n", 2),
            ("x = 1\n\n# Step 2\n\nThen I go on.", 4),
            ("x = 1\n\nNow I wait.\n\ny = 2", 5),
            ("x = 1\nNow I wait.", 2),
            ("x = \"\"\"\n\nNow I wait.", 3),
            ("Now I wait.\n\nx = 1", 3),
            ("", 0),
        ] {
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(begin(lines.iter().copied()), code, "{text:?}");
        }
    }
}
