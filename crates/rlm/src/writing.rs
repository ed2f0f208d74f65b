//! Work that can be done while the model still writes: what its code imports is fetched, the first block of its reply runs as it comes, and
//! before there is one, what it says is for guesses. The blocks after it find another state than the one that there is now.
//!
//! Decisions: `docs/internals/running-ahead.md`.

use super::parse::{may_end, parse};
use sandglass_core::limits::MAX_WRITTEN_BYTES;
use sandglass_core::speculate::Lines;

/// So much of a reply is looked at, in bytes: all of it again with each line.
const MOST_BYTES: usize = 4 * MAX_WRITTEN_BYTES;

/// A reply that is being written.
#[derive(Debug, Default)]
pub struct Writing {
    text: String,
    lines: Lines,
    /// The part of the first block that is known to be complete, and whether all of it is there.
    sent: usize,
    is_closed: bool,
    /// True when it is too long to be looked at.
    is_over: bool,
}

/// A step that the reply so far allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To get ready what this code imports: all that there is, the line that is being written included.
    Prepare(String),
    /// To run this: the first block as far as its statements are complete.
    Written(String),
    /// To run this: the first block, when all of it is there.
    Hint(String),
    /// To guess by this, since there is no code yet.
    Words(String),
}

impl Writing {
    /// More of it has come; what can be done about that.
    pub fn hear(&mut self, text: &str) -> Vec<Step> {
        self.is_over = self.is_over || self.text.len() + text.len() > MOST_BYTES;
        if self.is_over {
            return Vec::new();
        }
        self.text.push_str(text);
        let end = self.text.rfind('\n').map_or(0, |end| end + 1);
        // What looks like the end of a block is taken for it, before it is known whether its line ends there, too: most often the reply does.
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

    /// Steps besides fetching, when these pieces come one after the other.
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
        // Ends are those that the whole reply has.
        for (before, quote, after) in [("> ", "> ", ""), ("</think>", "", "\u{feff}"), ("So: ", "", " ")] {
            let done = steps(&[&format!("{before}```repl\n{quote}f()\n"), &format!("{quote}```{after}")]);
            assert_eq!(done.last(), Some(&Step::Hint("f()".to_owned())), "{before}");
        }
        // What looked like an end and was none.
        let done = steps(&["````repl\nx = '''\n", "```", "\n'''\n"]);
        assert!(!done.iter().any(|step| matches!(step, Step::Hint(_))), "{done:?}");
    }

    #[test]
    fn backticks_at_the_end_of_a_line_may_be_its_own() {
        // What is said of an open block may lack them: so the next is no more of it, which the session sees.
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
