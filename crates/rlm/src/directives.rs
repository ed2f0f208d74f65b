//! Reads final answers that a model writes into its prose instead of its code.
//!
//! The names are those of `find_final_answer` in `rlm/utils/parsing.py` of alexzhang13/rlm, releases 0.1.0 to 0.1.1a. There two regular
//! expressions read them, `^\s*FINAL_VAR\((.*?)\)` and then `^\s*FINAL\((.*)\)\s*$`, both over lines and with `.` matching newlines. The
//! second takes all text up to the last parenthesis that ends a line, so that a remark after the answer becomes a part of it. Here an
//! answer ends at its own parenthesis.

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
/// A directive begins a line, after white space and special tokens (`<|begin_of_box|>`) at most. A `FINAL_VAR` anywhere comes before all `FINAL`s, and its name ends at the first
/// parenthesis. The first `FINAL(…)` counts that [has an end](end_of_answer).
pub fn final_directive(text: &str) -> Option<Directive<'_>> {
    if let Some(rest) = after_line_starts(text, "FINAL_VAR(").next()
        && let Some((name, _)) = rest.split_once(')')
    {
        let name = name.trim_matches(is_space);
        return Some(Directive::Variable(name.trim_matches('"').trim_matches('\'')));
    }
    let mut all = after_line_starts(text, "FINAL(");
    let (rest, end) = all.find_map(|rest| Some((rest, end_of_answer(rest)?)))?;
    Some(Directive::Value(rest[..end].trim_matches(is_space)))
}

/// The texts after each `prefix` that begins a line.
fn after_line_starts<'a>(text: &'a str, prefix: &str) -> impl Iterator<Item = &'a str> {
    let mut start = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        let mut words = line.trim_start_matches(is_space);
        while let Some(rest) = after_token(words) {
            words = rest.trim_start_matches(is_space);
        }
        let indent = line.len() - words.len();
        let found = line[indent..]
            .starts_with(prefix)
            .then(|| start + indent + prefix.len());
        start += line.len();
        found.map(|at| &text[at..])
    })
}

/// The index of the parenthesis that ends an answer: the first that closes all others and ends a line, but for a full stop. More words
/// after it make a sentence about answers. An answer may hold lines, and parentheses that close nothing. If one of its own is never
/// closed, it ends at the last parenthesis that ends a line.
fn end_of_answer(text: &str) -> Option<usize> {
    let (mut depth, mut least, mut start, mut last) = (1_i64, 1, 0, None);
    for line in text.split_inclusive('\n') {
        let mut words = line.trim_end_matches(is_space);
        while let Some(rest) = before_token(words) {
            words = rest.trim_end_matches(is_space);
        }
        let ends = words.trim_end_matches(['.', '!']).strip_suffix(')');
        let end = ends.map(|before| start + before.len());
        let mut closes = false;
        for char in line.chars().filter(|char| matches!(char, '(' | ')')) {
            depth += if char == '(' { 1 } else { -1 };
            closes = depth < least && depth <= 0;
            least = least.min(depth);
        }
        if least <= 0 {
            return end.filter(|_| closes);
        }
        last = end.or(last);
        start += line.len();
    }
    last
}

/// The text after a special token of a model at the beginning of a text. Some models put answers between such tokens.
fn after_token(text: &str) -> Option<&str> {
    let (token, rest) = text.strip_prefix("<|")?.split_once("|>")?;
    is_token(token).then_some(rest)
}

/// The text before a special token at the end of a text.
fn before_token(text: &str) -> Option<&str> {
    let (rest, token) = text.strip_suffix("|>")?.rsplit_once("<|")?;
    is_token(token).then_some(rest)
}

fn is_token(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
}

/// White space by Python's rules, which have four more separators.
fn is_space(char: char) -> bool {
    char.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&char)
}

/// Cases of our own. Answers that published parsers misread are in `tests/rlm/misread.rs`, with their sources.
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::Directive::{Value, Variable};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_ends_at_its_own_parenthesis() {
        for (text, expected) in [
            ("", None),
            ("I think FINAL(42) is it", None),
            ("FINAL(42)", Some(Value("42"))),
            ("So:\n  FINAL( 42 )  \nbye", Some(Value("42"))),
            ("FINAL(f(x) = (a, b))", Some(Value("f(x) = (a, b)"))),
            ("FINAL(one\ntwo)", Some(Value("one\ntwo"))),
            ("FINAL(one) and more\n(two)\nrest", None),
            ("FINAL(a)\nFINAL(b)", Some(Value("a"))),
            ("FINAL(42)\n\nThe table says so (see above)\n", Some(Value("42"))),
            ("FINAL(x) ends the run, so:\nFINAL(42).", Some(Value("42"))),
            ("FINAL(3^(2^(2^(1))) = 81)", Some(Value("3^(2^(2^(1))) = 81"))),
            (
                "FINAL({7: (8, 9)}, [3])\nI checked (twice)",
                Some(Value("{7: (8, 9)}, [3]")),
            ),
            ("FINAL(f(a,\n  b)\n  + 1)\n(done)", Some(Value("f(a,\n  b)\n  + 1"))),
            ("FINAL(a smile :) and b)", Some(Value("a smile :) and b"))),
            ("FINAL(a :( b)\nend", Some(Value("a :( b"))),
            ("FINAL(42) (see above)\nFINAL(43)", Some(Value("43"))),
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
            ("<|begin_of_box|>FINAL(f(1))<|end_of_box|>", Some(Value("f(1)"))),
            ("<|a|> <|b|> FINAL_VAR(x)", Some(Variable("x"))),
            ("FINAL(x).<|im_end|>\n<|endoftext|>", Some(Value("x"))),
            ("<|no token|>FINAL(x)", None),
            ("FINAL(a <|b|>", None),
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
