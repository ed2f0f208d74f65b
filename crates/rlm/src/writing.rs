//! Work that can be done while the model still writes. Packages that its code imports are fetched, and the first block runs while it is
//! being written. Before there is a block, the text is used for guesses. Later blocks find another state than the present one, so they do
//! not run ahead.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::parse::{code_so_far, may_end, parse_beginning};
use sandglass_core::limits::MAX_WRITTEN_BYTES;
use sandglass_core::predictions::Lines;

/// The most bytes of a reply that are read. Each new line makes all of it be read again.
const MOST_BYTES: usize = 4 * MAX_WRITTEN_BYTES;

/// A reply that is being written.
#[derive(Debug, Default)]
pub struct Writing {
    text: String,
    lines: Lines,
    /// The first block so far, as of the last time.
    code: String,
    /// The length of the part of `code` that was returned already.
    sent: usize,
    /// The whole first block that was returned.
    hinted: Option<String>,
    /// True if the reply is too long to be read.
    is_over: bool,
}

/// A step that is possible with the reply so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Fetch the packages that this code imports. It is all code so far, with the unfinished line.
    Prepare(String),
    /// Run this code: the complete statements of the first block so far. Each code goes on with the one before, and the reply's first
    /// block with each, unless the text so far turns out to be thoughts. Empty if it does.
    Written(String),
    /// Run this code: the whole first block.
    Hint(String),
    /// Guess the next code from this text. There is no code yet.
    Words(String),
}

impl Writing {
    /// Adds new text, and returns the steps that are now possible.
    pub fn hear(&mut self, text: &str) -> Vec<Step> {
        self.is_over = self.is_over || self.text.len() + text.len() > MOST_BYTES;
        if self.is_over {
            return Vec::new();
        }
        self.text.push_str(text);
        let end = self.text.rfind('\n').map_or(0, |end| end + 1);
        let is_line = text.contains('\n');
        // A line that looks like the end of a block is taken for its end at once, before its line is complete. Most replies end there.
        let may_be_fenced = self.hinted.is_none() && may_end(&self.text[end..]);
        if !is_line && !may_be_fenced {
            return Vec::new();
        }
        let first = parse_beginning(&self.text[..end]).blocks.into_iter().next();
        let mut steps = Vec::new();
        if is_line {
            steps.push(Step::Prepare(code_so_far(&self.text)));
        }
        steps.extend(match &first {
            Some(block) => self.follow(&block.code),
            None => self.forget(),
        });
        let first = match may_be_fenced {
            true => parse_beginning(&self.text).blocks.into_iter().next(),
            false => first,
        };
        match first {
            Some(block) if block.closed && self.hinted.as_ref() != Some(&block.code) => {
                self.hinted = Some(block.code.clone());
                steps.push(Step::Hint(block.code));
            }
            Some(_) => {}
            None => steps.push(Step::Words(self.text[..end].to_owned())),
        }
        steps
    }

    /// Follows the first block.
    fn follow(&mut self, code: &str) -> Vec<Step> {
        let code = format!("{code}\n");
        let mut steps = Vec::new();
        if !code.starts_with(&self.code) {
            steps = self.forget();
        }
        self.code = code;
        let complete = self.lines.complete(&self.code);
        if complete.len() > self.sent {
            self.sent = complete.len();
            steps.push(Step::Written(complete.to_owned()));
        }
        steps
    }

    /// Takes back what was returned of the first block, if anything was.
    fn forget(&mut self) -> Vec<Step> {
        (self.lines, self.code, self.hinted) = Default::default();
        match std::mem::take(&mut self.sent) {
            0 => Vec::new(),
            _ => vec![Step::Written(String::new())],
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    /// The steps, except for fetches, if the pieces come one after another.
    fn steps(pieces: &[&str]) -> Vec<Step> {
        let mut writing = Writing::default();
        let steps = pieces.iter().flat_map(|piece| writing.hear(piece));
        steps.filter(|step| !matches!(step, Step::Prepare(_))).collect()
    }

    #[test]
    fn the_first_block_runs_as_its_statements_become_complete() {
        let pieces = [
            "Let me ",
            "look.\n",
            "```repl\n",
            "a = 1\n",
            "for i in range(3):\n",
            "    print(i)\n",
            "b = 2\n",
            "```\n",
            "```repl\nnot_now()\n```\n",
        ];
        let done = steps(&pieces);
        assert_eq!(done[0], Step::Words("Let me look.\n".to_owned()));
        let written: Vec<_> = done.iter().filter(|step| !matches!(step, Step::Words(_))).collect();
        let expected = [
            "a = 1",
            "a = 1\nfor i in range(3):",
            "a = 1\nfor i in range(3):\n    print(i)\nb = 2",
        ];
        let mut expected = expected.map(|code| Step::Written(code.to_owned())).to_vec();
        expected.push(Step::Hint("a = 1\nfor i in range(3):\n    print(i)\nb = 2".to_owned()));
        assert_eq!(written, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_reply_that_ends_with_its_block_is_whole_before_it_ends() {
        let done = steps(&["```repl\nfor i in range(3):\n", "    print(i)\n", "``", "`"]);
        let written = Step::Written("for i in range(3):".to_owned());
        let whole = Step::Hint("for i in range(3):\n    print(i)".to_owned());
        assert_eq!(done, [written, whole]);
        // Each of these ends is also an end in the whole reply.
        for (before, quote, after) in [("> ", "> ", ""), ("</think>", "", "\u{feff}"), ("So: ", "", " ")] {
            let done = steps(&[&format!("{before}```repl\n{quote}f()\n"), &format!("{quote}```{after}")]);
            assert_eq!(done.last(), Some(&Step::Hint("f()".to_owned())), "{before}");
        }
        // This line looks like an end, but is none.
        let done = steps(&["````repl\nx = '''\n", "```", "\n'''\n"]);
        assert!(!done.iter().any(|step| matches!(step, Step::Hint(_))), "{done:?}");
    }

    #[test]
    fn backticks_at_the_end_of_a_line_may_be_its_own() {
        let done = steps(&["```repl\na()\nx = 1 # ```\n", "b = 2\n", "```\n"]);
        let whole = "a()\nx = 1 # ```\nb = 2";
        let expected = [
            Step::Written("a()".to_owned()),
            Step::Written(whole.to_owned()),
            Step::Hint(whole.to_owned()),
        ];
        assert_eq!(done, expected);
    }

    #[test]
    fn thoughts_that_end_without_a_beginning_are_taken_back() {
        let done = steps(&[
            "I could\n```repl\nold()\n```\n",
            "</think>\n",
            "```repl\nnew()\n",
            "```\n",
        ]);
        let written = |code: &str| Step::Written(code.to_owned());
        let done: Vec<_> = done
            .into_iter()
            .filter(|step| !matches!(step, Step::Words(_)))
            .collect();
        let expected = [
            written("old()"),
            Step::Hint("old()".to_owned()),
            written(""),
            written("new()"),
            Step::Hint("new()".to_owned()),
        ];
        assert_eq!(done, expected);
    }

    #[test]
    fn a_long_reply_is_not_read_again_and_again() {
        let long = "x = 1\n".repeat(MOST_BYTES / 6 + 1);
        let behind = ["```repl\n", &long, "y = 1\n", "```\n"];
        assert_eq!(steps(&behind), steps(&["```repl\n"]));
    }
}
