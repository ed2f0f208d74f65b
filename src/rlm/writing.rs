//! What can be done while the model still writes: what its code imports is fetched, the first block of its reply runs as it comes, and
//! before there is one, what it says is for guesses. The blocks after it find another state than the one that there is now.

use super::parse::{code_so_far, parse};
use crate::limits::MAX_WRITTEN_BYTES;
use crate::speculate::Lines;

/// So much of a reply is looked at, in bytes: all of it again with each line.
const MOST_BYTES: usize = 4 * MAX_WRITTEN_BYTES;

/// A reply that is being written.
#[derive(Debug, Default)]
pub struct Writing {
    text: String,
    lines: Lines,
    /// How much of the first block is known to be complete, and whether all of it is there.
    sent: usize,
    is_closed: bool,
}

/// What can be done about what there is of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// To get ready what this code imports: all that there is, the line that is being written included.
    Prepare(String),
    /// To run this: the first block as far as its statements are complete.
    Written(String),
    /// To run this: the first block, when all of it is there and nothing of it was known to be complete.
    Hint(String),
    /// To guess by this, since there is no code yet.
    Words(String),
}

impl Writing {
    /// More of it has come; what can be done about that.
    pub fn hear(&mut self, text: &str) -> Vec<Step> {
        if self.text.len() + text.len() > MOST_BYTES {
            return Vec::new();
        }
        self.text.push_str(text);
        if !text.contains('\n') {
            return Vec::new();
        }
        let mut steps = vec![Step::Prepare(code_so_far(&self.text))];
        let whole_lines = self.text.rfind('\n').map_or("", |end| &self.text[..end]);
        let first = parse(whole_lines).blocks.into_iter().next();
        if let Some(block) = first.filter(|_| !self.is_closed) {
            self.is_closed = block.closed;
            let code = format!("{}\n", block.code);
            let complete = self.lines.complete(&code);
            if complete.len() > self.sent {
                self.sent = complete.len();
                steps.push(Step::Written(complete.to_owned()));
            } else if block.closed && self.sent == 0 {
                steps.push(Step::Hint(block.code));
            }
        } else if !self.is_closed {
            steps.push(Step::Words(whole_lines.to_owned()));
        }
        steps
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    /// What can be done besides fetching, when these pieces come one after the other.
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
        assert_eq!(done[0], Step::Words("Let me look.".to_owned()));
        let written: Vec<_> = done.iter().filter(|step| !matches!(step, Step::Words(_))).collect();
        let expected = [
            "a = 1",
            "a = 1\nfor i in range(3):",
            "a = 1\nfor i in range(3):\n    print(i)\nb = 2",
        ];
        let expected = expected.map(|code| Step::Written(code.to_owned()));
        assert_eq!(written, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_block_that_begins_no_statement_is_a_hint_when_all_of_it_is_there() {
        let done = steps(&["```repl\n", "  print(len(context))\n", "```", "\n", "More.\n"]);
        assert_eq!(done.last(), Some(&Step::Hint("  print(len(context))".to_owned())));
    }

    #[test]
    fn a_long_reply_is_not_read_again_and_again() {
        let long = "x = 1\n".repeat(MOST_BYTES / 6 + 1);
        assert_eq!(steps(&["```repl\n", &long]), steps(&["```repl\n"]));
    }
}
