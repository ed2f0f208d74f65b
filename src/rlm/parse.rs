//! The code in a model's reply.
//!
//! Blocks are Markdown's fenced code: three or more backticks or tildes, then `repl`, `python`, `py` or `python3`. A fence that
//! stands inside of a triple-quoted string of the code does not end it, and what is between `<think>` and `</think>` at the
//! beginning of a reply is not read.

/// A reply, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The code to run, in order.
    pub blocks: Vec<Block>,
    /// Fenced text of other languages, or of none.
    pub others: Vec<Block>,
    /// What stands outside of all fences.
    pub prose: String,
}

/// One fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What is in it.
    pub code: String,
    /// Whether its end is there; a reply that was cut lacks it.
    pub closed: bool,
}

/// Takes a reply apart.
pub fn parse(reply: &str) -> Parsed {
    let lines: Vec<&str> = without_thoughts(reply).lines().collect();
    let mut parsed = Parsed::default();
    let mut next = 0;
    while let Some(line) = lines.get(next) {
        let Some(fence) = Fence::open(line) else {
            parsed.prose.push_str(line);
            parsed.prose.push('\n');
            next += 1;
            continue;
        };
        let rest = &lines[next + 1..];
        let (end, closed) = match fence.end(rest) {
            Some(end) => (end, true),
            None => (rest.len(), false),
        };
        let mut code = fence.content(&rest[..end]);
        if !closed && code.ends_with("```") {
            code.truncate(code.trim_end_matches('`').len());
        }
        let block = Block { code, closed };
        if !fence.is_code {
            parsed.others.push(block);
        } else if !block.code.trim().is_empty() {
            parsed.blocks.push(block);
        }
        next += 1 + end + usize::from(closed);
    }
    parsed
}

/// The code of a reply that is being written: whole lines of all blocks, one after the other.
pub fn code_so_far(reply: &str) -> String {
    let whole_lines = reply.rfind('\n').map_or("", |end| &reply[..end]);
    let blocks = parse(whole_lines).blocks.into_iter();
    blocks.map(|block| block.code + "\n").collect()
}

fn without_thoughts(reply: &str) -> &str {
    let Some(thoughts) = reply.trim_start().strip_prefix("<think>") else {
        return reply;
    };
    thoughts.split_once("</think>").map_or("", |(_, rest)| rest)
}

/// The beginning of a block.
struct Fence {
    mark: char,
    width: usize,
    indent: usize,
    is_code: bool,
}

impl Fence {
    fn open(line: &str) -> Option<Self> {
        let text = line.trim_start();
        let mark = text.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
        let info = text.trim_start_matches(mark);
        let width = text.len() - info.len();
        // With a backtick after them, backticks are code within a line.
        if width < 3 || (mark == '`' && info.contains('`')) {
            return None;
        }
        let language = info.trim_start().split(|char: char| !char.is_alphanumeric()).next();
        let language = language.unwrap_or_default().to_ascii_lowercase();
        Some(Self {
            mark,
            width,
            indent: line.len() - text.len(),
            is_code: matches!(language.as_str(), "repl" | "python" | "py" | "python3"),
        })
    }

    /// The index of the line that ends the block.
    fn end(&self, lines: &[&str]) -> Option<usize> {
        let mut strings = Strings::default();
        let mut first = None;
        for (index, line) in lines.iter().enumerate() {
            if self.closes(line) {
                if !self.is_code || !strings.in_triple() {
                    return Some(index);
                }
                first = first.or(Some(index));
            }
            strings.read(line);
        }
        first
    }

    fn closes(&self, line: &str) -> bool {
        let text = line.trim();
        text.len() >= self.width && text.chars().all(|char| char == self.mark)
    }

    /// The lines without the indentation of the fence.
    fn content(&self, lines: &[&str]) -> String {
        let lines = lines.iter().map(|line| {
            let spaces = line.len() - line.trim_start_matches([' ', '\t']).len();
            &line[spaces.min(self.indent)..]
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Follows Python's string literals from line to line.
#[derive(Default)]
struct Strings {
    /// The quote that a triple-quoted string has been opened with.
    triple: Option<char>,
}

impl Strings {
    fn in_triple(&self) -> bool {
        self.triple.is_some()
    }

    fn read(&mut self, line: &str) {
        let mut chars = line.chars();
        let mut single = None;
        while let Some(char) = chars.next() {
            match char {
                '\\' => drop(chars.next()),
                '#' if self.triple.is_none() && single.is_none() => return,
                '"' | '\'' => {
                    let is_triple = {
                        let mut ahead = chars.clone();
                        ahead.next() == Some(char) && ahead.next() == Some(char)
                    };
                    match (self.triple, single) {
                        (Some(open), _) if open == char && is_triple => {
                            self.triple = None;
                            chars.nth(1);
                        }
                        (Some(_), _) => {}
                        (None, Some(open)) if open == char => single = None,
                        (None, Some(_)) => {}
                        (None, None) if is_triple => {
                            self.triple = Some(char);
                            chars.nth(1);
                        }
                        (None, None) => single = Some(char),
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;

    #[test]
    fn of_a_reply_that_is_being_written_whole_lines_are_code() {
        for (reply, code) in [
            ("Let me see.\n```repl\nimport num", ""),
            ("```repl\nimport numpy\nfrom pan", "import numpy\n"),
            ("```repl\nimport numpy\n``", "import numpy\n"),
            ("```py\na\nb\n```\nand\n```repl\nc\n", "a\nb\nc\n"),
            ("<think>\n```repl\nno\n```\n", ""),
            ("import nothing\n", ""),
        ] {
            assert_eq!(code_so_far(reply), code, "{reply:?}");
        }
    }
    use proptest::prelude::*;

    fn codes(reply: &str) -> Vec<String> {
        parse(reply).blocks.into_iter().map(|block| block.code).collect()
    }

    #[test]
    fn takes_the_blocks_of_both_languages_in_order() {
        for (reply, expected) in [
            ("no code", vec![]),
            ("```repl\nx = 1\n```", vec!["x = 1"]),
            ("a\n```python\nx\n```\nb\n```repl\ny\nz\n```\nc", vec!["x", "y\nz"]),
            ("```REPL title=\"a\"\nx\n```", vec!["x"]),
            ("``` python3 \nx\n```  ", vec!["x"]),
            ("~~~py\nx\n```\ny\n~~~", vec!["x\n```\ny"]),
            ("````repl\nx = '''\n```\n'''\n````", vec!["x = '''\n```\n'''"]),
            ("```json\n{}\n```\n```\nplain\n```\n```pythonic\nx\n```", vec![]),
            ("inline ```repl x``` and `code`", vec![]),
            ("```repl x = 1```", vec![]),
            ("```repl\r\nx\r\ny\r\n```\r\n", vec!["x\ny"]),
            ("```repl\n\n  \n```", vec![]),
        ] {
            assert_eq!(codes(reply), expected, "{reply:?}");
        }
    }

    #[test]
    fn a_fence_inside_of_a_string_does_not_end_the_block() {
        let code = "prompt = \"\"\"Answer as\n```json\n{}\n```\nit's that\n\"\"\"\nprint(1)";
        assert_eq!(codes(&format!("```repl\n{code}\n```\nso")), [code]);
        let code = "# it's \"\"\" no string\ns = 'a\\'\"\"\"'\nt = \"#'''\"";
        assert_eq!(
            codes(&format!("```repl\n{code}\n```\nprose\n```repl\ny\n```")),
            [code, "y"]
        );
        // The string has no end: neither has the code; the first fence ends it.
        assert_eq!(codes("```repl\nx = '''\n```\nprose"), ["x = '''"]);
    }

    #[test]
    fn a_block_without_an_end_is_known_as_such() {
        let parsed = parse("so:\n```repl\nx = 1\nprint(x");
        assert_eq!(
            parsed.blocks,
            [Block {
                code: "x = 1\nprint(x".to_owned(),
                closed: false
            }]
        );
        assert_eq!(codes("```repl\nx = 1```"), ["x = 1"]);
    }

    #[test]
    fn an_indented_block_loses_the_indentation_of_its_fence() {
        assert_eq!(
            codes("1. do\n   ```repl\n   if x:\n       y\n  z\n   ```"),
            ["if x:\n    y\nz"]
        );
    }

    #[test]
    fn thoughts_are_not_read() {
        assert_eq!(
            codes("\n<think>\n```repl\nbad\n```\n</think>\n```repl\ngood\n```"),
            ["good"]
        );
        assert!(codes("<think>```repl\nbad\n```").is_empty());
    }

    #[test]
    fn prose_is_what_is_outside() {
        let parsed = parse("FINAL(1)\n```repl\nFINAL(2)\n```\n```json\n[3]\n```\nend");
        assert_eq!(parsed.prose, "FINAL(1)\nend\n");
        assert_eq!(parsed.others[0].code, "[3]");
    }

    proptest! {
        #[test]
        fn any_reply_is_read_and_nothing_is_invented(
            reply in "(```|~~~|````|repl|python|\n|\"\"\"|'''|'|\"|#|\\\\| |x|é|</?think>)*"
        ) {
            let parsed = parse(&reply);
            for block in parsed.blocks.iter().chain(&parsed.others) {
                for line in block.code.lines() {
                    prop_assert!(reply.contains(line.trim()));
                }
            }
        }

        #[test]
        fn code_comes_back_as_it_was_written(code in "([a-z =()\n]|\"\"\"|'x'|# it's)*") {
            let lines: Vec<&str> = code.lines().collect();
            let code = lines.join("\n");
            prop_assume!(!code.trim().is_empty());
            let mut strings = Strings::default();
            lines.iter().for_each(|line| strings.read(line));
            prop_assume!(!strings.in_triple());
            prop_assert_eq!(codes(&format!("text\n```repl\n{code}\n```\nmore\n")), [code]);
        }
    }
}
