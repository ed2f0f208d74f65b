//! Work that can be done while the model still writes. Packages that its code imports are fetched, and the first block runs while it is
//! being written. Before there is a block, the text is used for guesses. Later blocks find another state than the present one, so they do
//! not run ahead.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::parse::{may_end, parse};
use sandglass_core::limits::MAX_WRITTEN_BYTES;
use sandglass_core::predictions::Lines;

/// The most bytes of a reply that are read. Each new line makes all of it be read again.
const MOST_BYTES: usize = 4 * MAX_WRITTEN_BYTES;

/// A reply that is being written.
#[derive(Debug, Default)]
pub struct Writing {
    text: String,
    lines: Lines,
    /// `sent`: the length of the first block's part that was returned already. `is_closed`: the whole first block was returned.
    sent: usize,
    is_closed: bool,
    /// True if the reply is too long to be read.
    is_over: bool,
}

/// A step that is possible with the reply so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Fetch the packages that this code imports. It is all code so far, with the unfinished line.
    Prepare(String),
    /// Run this code: the complete statements of the first block so far.
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
        // A line that looks like the end of a block is taken for its end at once, before its line is complete. Most replies end there.
        let is_fenced = !self.is_closed && may_end(&self.text[end..]);
        if !text.contains('\n') && !is_fenced {
            return Vec::new();
        }
        let known = if is_fenced {
            self.text.as_str()
        } else {
            &self.text[..end]
        };
        let blocks = parse(known).blocks;
        let mut steps = Vec::new();
        if text.contains('\n') {
            steps.push(Step::Prepare(
                blocks.iter().map(|block| format!("{}\n", block.code)).collect(),
            ));
        }
        if let Some(block) = blocks.into_iter().next().filter(|_| !self.is_closed) {
            self.is_closed = block.closed;
            let code = format!("{}\n", block.code);
            let complete = self.lines.complete(&code);
            if complete.len() > self.sent {
                self.sent = complete.len();
                steps.push(Step::Written(complete.to_owned()));
            }
            if block.closed {
                steps.push(Step::Hint(block.code));
            }
        } else if !self.is_closed {
            steps.push(Step::Words(known.to_owned()));
        }
        steps
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
        // Text for an open block may lack the end of its last line. The next text is then no continuation, which the session notices.
        let done = steps(&["```repl\nx = 1 # ```\n", "b = 2\n", "```\n"]);
        let whole = "x = 1 # ```\nb = 2".to_owned();
        assert_eq!(done[1..], [Step::Written(whole.clone()), Step::Hint(whole)]);
    }

    #[test]
    fn a_long_reply_is_not_read_again_and_again() {
        let long = "x = 1\n".repeat(MOST_BYTES / 6 + 1);
        let behind = ["```repl\n", &long, "y = 1\n", "```\n"];
        assert_eq!(steps(&behind), steps(&["```repl\n"]));
    }
}
