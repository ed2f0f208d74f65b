//! Finds the part of code that is being written which ends where a statement may end.
//!
//! Decisions: `docs/internals/running-ahead.md`.

/// Reads code as it grows, each line once.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of the first line that was not read yet, or is not complete.
    seen: usize,
    complete: usize,
    /// True when the line before goes on in that line, by a backslash.
    goes_on: bool,
}

impl Lines {
    /// The code up to the last line that may begin or end a statement, without that line's end. Python decides which statements are
    /// complete. Empty if there is no such line yet. `code` must begin with the code of the last call.
    pub fn complete<'a>(&mut self, code: &'a str) -> &'a str {
        while let Some((line, _)) = code.get(self.seen..).and_then(|rest| rest.split_once('\n')) {
            let text = line.trim_end_matches('\r');
            let goes_on = text.ends_with('\\');
            if !goes_on && (self.goes_on || begins_statement(text) || text.starts_with([')', ']', '}'])) {
                self.complete = self.seen + text.len();
            }
            self.goes_on = goes_on;
            self.seen += line.len() + 1;
        }
        code.get(..self.complete).unwrap_or_default()
    }
}

/// Returns true when `rest` may follow code that was cut at the end of a line, before the line's end.
pub fn begins_with_line_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('\n') || rest.starts_with("\r\n")
}

/// Returns true when a line may begin a statement: not indented, not empty, no comment, and no branch of an earlier statement.
fn begins_statement(line: &str) -> bool {
    let word = line.find(|c: char| !c.is_alphanumeric() && c != '_');
    let word = &line[..word.unwrap_or(line.len())];
    match line.chars().next() {
        Some(first) if first.is_alphanumeric() => !matches!(word, "else" | "elif" | "except" | "finally"),
        // A backslash or a form feed is not listed, because a word like `else` may follow it.
        Some(first) => "_\"'@([{-+~*.".contains(first),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(code: &str) -> &str {
        Lines::default().complete(code)
    }

    #[test]
    fn a_line_may_end_a_statement() {
        assert_eq!(complete("x = 1"), "", "it may become anything");
        assert_eq!(complete("x = 1\n"), "x = 1");
        assert_eq!(complete("x = 1\ny"), "x = 1");
        assert_eq!(complete("x = 1\r\ny = 2\r\n"), "x = 1\r\ny = 2");
        assert_eq!(complete("é = 1\nÿ = 2\nz"), "é = 1\nÿ = 2");
        assert_eq!(complete("f(\n    1,\n)\n"), "f(\n    1,\n)");
    }

    #[test]
    fn what_goes_on_is_not_told_of() {
        for next in [
            "else:",
            "elif x:",
            "except E:",
            "except*E:",
            "finally:",
            "# no",
            "",
            "    z",
            "\tz",
            "\\",
            "\x0celse:",
            "\relse:",
        ] {
            assert_eq!(complete(&format!("if x:\n    y\n{next}\n")), "if x:", "{next:?}");
        }
    }

    #[test]
    fn a_line_that_goes_on_is_no_end() {
        assert_eq!(complete("x = 1 \\\r\n"), "");
        assert_eq!(complete("x = 1 \\\n  + 2\ny"), "x = 1 \\\n  + 2");
    }

    #[test]
    fn it_grows() {
        let code = "a = 1\nb = 2\nif a:\n    c\nelse:\n    d\ne = 3\n";
        let mut lines = Lines::default();
        let mut found = Vec::new();
        for (end, _) in code.char_indices().chain([(code.len(), ' ')]) {
            let complete = lines.complete(&code[..end]).len();
            if found.last() != Some(&complete) {
                found.push(complete);
            }
        }
        assert_eq!(found, [0, 5, 11, 17, 41]);
        assert_eq!(complete(code).len(), 41);
    }
}
