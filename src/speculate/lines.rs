//! How much of code that is being written is certainly there.

/// Looks at code as it grows, at each line once.
#[derive(Debug, Default)]
pub struct Lines {
    /// Where the first line begins that was not looked at, or is not complete.
    seen: usize,
    complete: usize,
    /// Whether the line before that goes on there.
    goes_on: bool,
}

impl Lines {
    /// The code as far as a line that begins a statement of its own comes after it, which may still be inside of a text: what is
    /// before is complete then, or no Python. Empty as long as there is none. `code` begins with what it was the last time.
    pub fn complete<'a>(&mut self, code: &'a str) -> &'a str {
        while let Some(line) = code.get(self.seen..).and_then(|rest| rest.split_once('\n')) {
            if !self.goes_on && begins_statement(line.0) {
                self.complete = self.seen;
            }
            self.goes_on = line.0.trim_end_matches('\r').ends_with('\\');
            self.seen += line.0.len() + 1;
        }
        code.get(..self.complete).unwrap_or_default()
    }
}

/// Whether code begins with a line that is not indented, not empty, no comment, and does not go on with a statement before it.
pub fn begins_statement(code: &str) -> bool {
    let line = code.split('\n').next().unwrap_or_default();
    let word = line.find(|c: char| !c.is_alphanumeric() && c != '_');
    let word = &line[..word.unwrap_or(line.len())];
    match line.chars().next() {
        Some(first) if first.is_alphanumeric() => !matches!(word, "else" | "elif" | "except" | "finally"),
        // A backslash or a form feed may have such a word behind it.
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
    fn a_statement_is_complete_when_another_line_begins_one() {
        assert_eq!(complete("x = 1\n"), "");
        assert_eq!(complete("x = 1\ny"), "", "it may become anything");
        assert_eq!(complete("x = 1\ny = 2\n"), "x = 1\n");
        assert_eq!(complete("x = 1\r\ny = 2\r\n"), "x = 1\r\n");
        assert_eq!(complete("é = 1\nÿ = 2\nz"), "é = 1\n");
        assert_eq!(complete("if x:\n    y\nelse_ = 1\n"), "if x:\n    y\n");
    }

    #[test]
    fn what_may_go_on_is_not() {
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
            ")",
        ] {
            assert_eq!(complete(&format!("if x:\n    y\n{next}\n")), "", "{next:?}");
        }
    }

    #[test]
    fn a_line_that_goes_on_is_no_end() {
        assert_eq!(complete("x = 1 \\\r\n+ 2\r\n"), "");
        assert_eq!(complete("x = 1 \\\n+ 2\ny\n"), "x = 1 \\\n+ 2\n");
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
        assert_eq!(found, [0, 6, 12, 36]);
        assert_eq!(complete(code).len(), 36);
    }
}
