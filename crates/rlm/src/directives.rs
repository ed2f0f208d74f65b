//! Reads final answers that a model writes into its prose instead of its code, as controllers of the profile `rlm-legacy` do.
//!
//! The rules are those of `find_final_answer` in `rlm/utils/parsing.py` of alexzhang13/rlm, releases 0.1.0 to 0.1.1a. There they are two
//! regular expressions, `^\s*FINAL_VAR\((.*?)\)` and then `^\s*FINAL\((.*)\)\s*$`, both over lines and with `.` matching newlines. Here
//! they are two linear scans, because a model's text may be of any length.

/// A final answer in a reply's prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directive<'a> {
    /// `FINAL_VAR(name)`: the answer is the variable's value as text. If there is no such variable, the run continues.
    Variable(&'a str),
    /// `FINAL(…)`: the answer is this text.
    Value(&'a str),
}

/// The final answer that a model's reply declares outside of its code, if there is one.
///
/// A directive begins a line, after white space at most. A `FINAL_VAR` anywhere comes before all `FINAL`s, and its name ends at the first
/// parenthesis. `FINAL(…)` ends at the last parenthesis that ends a line, so the answer may hold parentheses and lines.
pub fn final_directive(text: &str) -> Option<Directive<'_>> {
    if let Some(rest) = after_line_start(text, "FINAL_VAR(")
        && let Some((name, _)) = rest.split_once(')')
    {
        let name = name.trim_matches(is_space);
        return Some(Directive::Variable(name.trim_matches('"').trim_matches('\'')));
    }
    let rest = after_line_start(text, "FINAL(")?;
    let end = last_line_end(rest, ')')?;
    Some(Directive::Value(rest[..end].trim_matches(is_space)))
}

/// The text after the first `prefix` that begins a line.
fn after_line_start<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start_matches(is_space).len();
        if line[indent..].starts_with(prefix) {
            return Some(&text[start + indent + prefix.len()..]);
        }
        start += line.len();
    }
    None
}

/// The index of the last `mark` that only white space follows on its line.
fn last_line_end(text: &str, mark: char) -> Option<usize> {
    let mut end = text.len();
    for line in text.rsplit('\n') {
        let start = end - line.len();
        if let Some(before) = line.trim_end_matches(is_space).strip_suffix(mark) {
            return Some(start + before.len());
        }
        end = start.saturating_sub(1);
    }
    None
}

/// White space by Python's rules, which have four more separators.
fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&char)
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::Directive::{Value, Variable};
    use super::*;
    use proptest::prelude::*;

    /// Checks each answer against the result of `find_final_answer` of rlms 0.1.1 for the same text.
    #[test]
    fn reads_what_the_legacy_controllers_read() {
        for (text, expected) in [
            ("", None),
            ("I think FINAL(42) is it", None),
            ("FINAL(42)", Some(Value("42"))),
            ("So:\n  FINAL( 42 )  \nbye", Some(Value("42"))),
            ("FINAL(f(x) = (a, b))", Some(Value("f(x) = (a, b)"))),
            ("FINAL(one\ntwo)", Some(Value("one\ntwo"))),
            ("FINAL(one) and more\n(two)\nrest", Some(Value("one) and more\n(two"))),
            ("FINAL(a)\nFINAL(b)", Some(Value("a)\nFINAL(b"))),
            ("FINAL(a) but\nFINAL(b) too", None),
            ("FINAL(", None),
            ("FINAL()", Some(Value(""))),
            ("FINAL(no end\n", None),
            ("final(42)", None),
            ("FINAL (42)", None),
            ("xFINAL(1)\r\n\tFINAL(2)\r\n", Some(Value("2"))),
            ("\u{1c}\u{a0}FINAL(3)\u{3000}", Some(Value("3"))),
            ("FINAL_VAR(x)", Some(Variable("x"))),
            ("FINAL_VAR(\" 'x' \") etc.", Some(Variable(" 'x' "))),
            ("FINAL_VAR( \"'x'\" )", Some(Variable("x"))),
            ("FINAL_VAR('\"x\"')", Some(Variable("\"x\""))),
            ("FINAL_VAR(f(x))", Some(Variable("f(x"))),
            ("FINAL(1)\n\n FINAL_VAR(x)", Some(Variable("x"))),
            ("FINAL_VAR(\nx\n)", Some(Variable("x"))),
            ("FINAL_VAR()", Some(Variable(""))),
            ("FINAL_VAR(x", None),
            ("FINAL(1)\nFINAL_VAR(x", Some(Value("1"))),
            ("Use `FINAL_VAR(x)`\nFINAL(1)", Some(Value("1"))),
            ("FINAL_VARS(x)", None),
        ] {
            assert_eq!(final_directive(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_fault(text in "([ \n()\"'a€\u{1c}]|FINAL\\(|FINAL_VAR\\()*") {
            if let Some(Value(found) | Variable(found)) = final_directive(&text) {
                prop_assert!(text.contains(found));
            }
        }
    }
}
