//! Finds the code in a model's reply.
//!
//! *Blocks* are fenced code in Markdown: three or more backticks or tildes, then `repl`, `python`, `py` or `python3`. Models also write
//! fences after a quote's `>`, a list's mark, a tag, a character without width, or words of a sentence (`fence.rs`). A fence inside of a
//! triple-quoted string in the code does not end the block. A block without a closing fence ends before the next fence that names a
//! language, and before a paragraph of words (`prose.rs`). *Thoughts*, `<think>…</think>`, are skipped. The rest is *prose*.
//!
//! Prose may declare an answer, so a block's text must never be read as prose. If a reply can be read in two ways, its prose ends there.
//!
//! Decisions: `docs/internals/controller.md`.

mod fence;
mod prose;

pub use fence::may_end;
use fence::{End, Fence, is_blank};

/// Names of tags around thoughts.
const THOUGHTS: [&str; 5] = ["think", "thinking", "thought", "thoughts", "reasoning"];
/// Names of tags around code. Some models write these tags instead of fences.
const CODE: [&str; 12] = [
    "code",
    "pre",
    "script",
    "repl",
    "python",
    "py",
    "execute",
    "tool_call",
    "tool_code",
    "parameter",
    "function",
    "invoke",
];

/// The parts of a reply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parsed {
    /// The code to run, in order.
    pub blocks: Vec<Block>,
    /// Fenced text in other languages, or in none.
    pub others: Vec<Block>,
    /// Stretches of text outside of all fences.
    pub prose: Vec<String>,
    /// True if thoughts have code. It is in no block.
    pub thinks_code: bool,
}

/// A fenced block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The block's text, without its fences.
    pub code: String,
    /// True if the block has an end. A reply that was cut lacks the end of its last block.
    pub closed: bool,
}

/// Takes a reply apart.
pub fn parse(reply: &str) -> Parsed {
    read(reply, false)
}

/// Takes apart the whole lines of a reply that is still being written. Each block's code is a beginning of that block's code in the
/// complete reply, with one exception: an end of thoughts without a beginning, which nobody can foresee, makes all before it thoughts.
/// What may become anything else is left out.
pub fn parse_beginning(lines: &str) -> Parsed {
    read(lines, true)
}

fn read(reply: &str, goes_on: bool) -> Parsed {
    let lines: Vec<&str> = reply.lines().collect();
    let mut reader = Reader {
        goes_on,
        ..Reader::default()
    };
    let mut next = 0;
    // The rest of a line after a tag.
    let mut left = None;
    while let Some(line) = left.take().or_else(|| lines.get(next).copied().inspect(|_| next += 1)) {
        let rest = &lines[next..];
        if let Some((taken, after)) = reader.thoughts(line, rest) {
            reader.think(line, &rest[..taken]);
            next += taken;
            left = after;
        } else if let Some((before, after)) = end_of_thoughts(line) {
            reader.end_thoughts(before);
            left = Some(after);
        } else if let Some(taken) = reader.tagged(line, rest) {
            next += taken;
        } else if let Some(fence) = Fence::open(line) {
            next += reader.fenced(&fence, rest);
        } else {
            reader.say(line);
        }
    }
    reader.parsed
}

/// The code of a reply that is being written: the whole lines of all blocks, joined.
pub fn code_so_far(reply: &str) -> String {
    let whole_lines = reply.rfind('\n').map_or("", |end| &reply[..end]);
    let blocks = parse(whole_lines).blocks.into_iter();
    blocks.map(|block| block.code + "\n").collect()
}

/// The texts before and after a tag that ends thoughts, at the beginning or the end of a line.
fn end_of_thoughts(line: &str) -> Option<(&str, &str)> {
    let text = line.trim_matches(is_blank);
    THOUGHTS.iter().find_map(|name| {
        let tag = format!("</{name}>");
        let after = text.strip_prefix(&tag).map(|after| ("", after));
        after.or_else(|| text.strip_suffix(&tag).map(|before| (before, "")))
    })
}

/// The name of a code tag that begins or ends the line.
fn code_tag(line: &str) -> Option<&'static str> {
    let text = line.trim_matches(is_blank);
    CODE.into_iter().find(|name| {
        let rest = text.strip_prefix('<').and_then(|rest| rest.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['>', ' ', '='])) || text.ends_with(&format!("<{name}>"))
    })
}

#[derive(Default)]
struct Reader {
    parsed: Parsed,
    /// True if the next line of prose begins a new stretch.
    after_block: bool,
    /// True if the lines that follow may be a block's text, though they look like prose.
    is_doubtful: bool,
    /// True if more of the reply may come.
    goes_on: bool,
    /// True if the reply had thoughts.
    has_thought: bool,
    /// True if thoughts within thoughts have no end. So each text is searched for such an end once.
    thinks_loosely: bool,
}

impl Reader {
    /// Reads thoughts at the beginning of a line. Returns the number of further lines that they take, and the text after them on the last.
    /// Thoughts may hold others. If they do not all end, the first end counts, and in the rest of the reply as well.
    fn thoughts<'a>(&mut self, line: &'a str, rest: &[&'a str]) -> Option<(usize, Option<&'a str>)> {
        let text = line.trim_start_matches(is_blank);
        let (name, text) = THOUGHTS
            .iter()
            .find_map(|name| Some((name, text.strip_prefix(&format!("<{name}>"))?)))?;
        let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
        let (mut depth, mut first) = (1_usize, None);
        for (index, line) in std::iter::once(text).chain(rest.iter().copied()).enumerate() {
            let mut left = line;
            while let Some((before, after)) = left.split_once('<') {
                let tag = &left[before.len()..];
                left = after;
                if let Some(after) = tag.strip_prefix(&end) {
                    depth -= 1;
                    if depth == 0 || self.thinks_loosely {
                        return Some((index, Some(after)));
                    }
                    first = first.or(Some((index, Some(after))));
                } else if tag.starts_with(&begin) && !before.ends_with('`') {
                    depth += 1;
                }
            }
        }
        self.thinks_loosely = true;
        Some(first.filter(|_| !self.goes_on).unwrap_or((rest.len(), None)))
    }

    /// Takes note of thoughts: their first line, and the others. The last may hold other text, and is left out.
    fn think(&mut self, line: &str, rest: &[&str]) {
        self.has_thought = true;
        let all = std::iter::once(&line).chain(rest).take(rest.len());
        let mut fences = all.filter_map(|line| Fence::open(line));
        self.parsed.thinks_code |= fences.any(|fence| fence.is_code);
    }

    /// Takes an end of thoughts that has no beginning. The text so far was thoughts: templates of models may begin them in the prompt. After
    /// other thoughts, the tag has no meaning.
    fn end_thoughts(&mut self, before: &str) {
        if self.has_thought {
            if !before.is_empty() {
                self.say(before);
            }
            return;
        }
        *self = Self {
            parsed: Parsed {
                thinks_code: !self.parsed.blocks.is_empty(),
                ..Parsed::default()
            },
            goes_on: self.goes_on,
            has_thought: true,
            ..Self::default()
        };
    }

    fn say(&mut self, line: &str) {
        if self.is_doubtful {
            return;
        }
        let prose = &mut self.parsed.prose;
        if std::mem::take(&mut self.after_block) || prose.is_empty() {
            prose.push(String::new());
        }
        if let Some(stretch) = prose.last_mut() {
            stretch.push_str(line);
            stretch.push('\n');
        }
    }

    /// Takes the text between code tags, if the line begins it. Returns the number of further lines taken.
    fn tagged(&mut self, line: &str, rest: &[&str]) -> Option<usize> {
        let name = code_tag(line)?;
        let end = format!("</{name}>");
        let inner = rest.iter().find(|line| !line.trim_matches(is_blank).is_empty());
        let is_fenced = |line: &&str| Fence::open(line).is_some();
        if self.is_doubtful || line.contains(&end) || is_fenced(&line) || inner.is_some_and(is_fenced) {
            return None;
        }
        let Some(end) = rest.iter().position(|line| line.contains(&end)) else {
            self.is_doubtful = true;
            return self.goes_on.then_some(rest.len());
        };
        self.parsed.others.push(Block {
            code: rest[..end].join("\n"),
            closed: true,
        });
        self.after_block = true;
        Some(end + 1)
    }

    /// Takes a fence's block. Returns the number of lines taken after the fence's own.
    fn fenced(&mut self, fence: &Fence, rest: &[&str]) -> usize {
        let (end, closed, next, is_doubtful) = match fence.end(rest) {
            End::Closed { at, is_doubtful } => (at, true, at + 1, is_doubtful),
            End::Followed { by } => (fence.code_lines(&rest[..by]), true, by, true),
            // Words before a fence may turn out to mention fences only.
            End::Missing | End::InString { .. } if self.goes_on && !fence.before.is_empty() => return rest.len(),
            // The string may end, and no fence may follow. Then the words after the code are not code.
            End::InString { at } if self.goes_on => (fence.code_lines(&rest[..at]), false, rest.len(), true),
            End::InString { at } => (at, true, at + 1, true),
            End::Missing => (fence.code_lines(rest), false, rest.len(), false),
            End::Mention { of } => {
                self.say(fence.before);
                self.is_doubtful = true;
                return of;
            }
        };
        if !fence.before.is_empty() {
            self.say(fence.before);
        }
        let lines = match closed {
            true => &rest[..end],
            false => self.open_lines(&rest[..end]),
        };
        let mut code = fence.content(lines);
        if !closed && !self.goes_on && code.trim_end_matches(is_blank).ends_with("```") {
            code.truncate(code.trim_end_matches(is_blank).trim_end_matches('`').len());
        }
        let block = Block { code, closed };
        if !fence.is_code {
            self.parsed.others.push(block);
        } else if !block.code.trim().is_empty() {
            self.parsed.blocks.push(block);
        }
        self.after_block = true;
        self.is_doubtful |= is_doubtful;
        next
    }

    /// The lines of a block without an end. Backticks at the end of its last line close it. While more may come, they may be the line's
    /// own, so the line is not certain.
    fn open_lines<'a, 'b>(&self, lines: &'a [&'b str]) -> &'a [&'b str] {
        let filled = lines.iter().rposition(|line| !line.trim_matches(is_blank).is_empty());
        match filled {
            Some(last) if lines[last].trim_end_matches(is_blank).ends_with("```") => {
                &lines[..last + usize::from(!self.goes_on)]
            }
            _ => lines,
        }
    }
}

/// Cases of our own. Replies that published parsers misread are in `tests/rlm/misread.rs`, with their sources.
#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use proptest::prelude::*;

    use super::fence::Strings;
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
            ("> ```py\n> a\n> b", "a\n"),
            ("So: ```py\na\nb", "a\n"),
        ] {
            assert_eq!(code_so_far(reply), code, "{reply:?}");
        }
    }

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
        // The string has no end, so the code has none either. The first fence ends it.
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
    fn fences_are_read_as_models_write_them() {
        for before in [
            "\u{feff}",
            "\u{200b}",
            " \u{2060}\u{200d} ",
            "</think>",
            "thoughts\n</thinking>\u{200b}",
            "<code>",
            "> ",
            ">",
            "> > ",
            "- ",
            "* ",
            "2. ",
            "10) ",
            "> - ",
            "- > ",
            "- 1. ",
            "</answer>\u{feff}> ",
            "\u{a0}",
            "So: ",
            "Let me `look`: ",
            "**Code:**",
            "Use ```x``` so ",
        ] {
            for (info, quote, after) in [("repl", "", ""), ("python ", "> ", ""), ("py", "", "\u{200b} ")] {
                if quote.is_empty() || before == ">" || before.contains("> ") {
                    let reply = format!("a\n{before}```{info}\n{quote}x = 1\n{quote}{after}```{after}\nb");
                    assert_eq!(codes(&reply), ["x = 1"], "{reply:?}");
                    assert_eq!(parse(&reply).prose.last().unwrap(), "b\n", "{reply:?}");
                }
            }
        }
        let quoted = "x = \"\"\"\n```json\n{}\n```\n\"\"\"";
        for (reply, expected) in [
            ("- ```repl\n  if x:\n    y\n  ```", "if x:\n  y"),
            ("- ```repl\nif x:\n  y\n```", "if x:\n  y"),
            ("> ```repl\n> if x:\n>     y\n>\n> z\n> ```", "if x:\n    y\n\nz"),
            ("> ```repl\nif x > 3:\n    y\n```", "if x > 3:\n    y"),
            ("A block is fenced by ```repl, so:\n```repl\nx\n```", "x"),
            ("A block begins with ```repl\nas here:\n```repl\nx\n```", "x"),
            (&format!("So: ```repl\n{quoted}\n```"), quoted),
        ] {
            assert_eq!(codes(reply), [expected], "{reply:?}");
        }
    }

    #[test]
    fn text_of_a_block_is_no_prose() {
        for (reply, expected) in [
            ("a ```json\nno\n```\nb", vec!["a\n", "b\n"]),
            ("Use ```repl fences.\nno", vec!["Use\n"]),
            ("```repl `x`\nno\n```\nb", vec!["b\n"]),
            ("a\n<code>\nno\n</code>\nb", vec!["a\n", "b\n"]),
            ("a\n<tool_call>\nno", vec!["a\n"]),
            ("<code>\nno", vec![]),
            ("a\n<pre><code>\nno\n</code></pre>\nb", vec!["a\n", "b\n"]),
            ("<code class=\"py\">no\nno\n</code>\nb", vec!["b\n"]),
            (
                "<function=repl>\n<parameter=code>\nno\n</parameter>\n</function>\nb",
                vec!["b\n"],
            ),
            ("So: <code>\nno\n</code>\nb", vec!["b\n"]),
            ("<code>x</code>\nb", vec!["<code>x</code>\nb\n"]),
            // Quotes in place of backticks.
            ("a\n'''python\nno\n'''\nb", vec!["a\n", "b\n"]),
            ("\"\"\"repl\nno", vec![]),
            ("'''quoted\nb", vec!["'''quoted\nb\n"]),
            ("<code>\n```repl\nx\n```\n</code>", vec!["<code>\n", "</code>\n"]),
            ("a\n<pre>\nno\n```repl\nx\n```\nb", vec!["a\n"]),
            // By Markdown's rules the inner block ends the outer one. The author hardly means that.
            ("a\n```md\n```repl\nx\n```\nno\n```\nb", vec!["a\n"]),
            ("a ```md\n```repl\nx\n```\nno\n```", vec!["a\n"]),
            ("a\n```repl\nx = '''\n```\nno'''\n```", vec!["a\n"]),
            // Code within a line.
            ("`x`, ```y``` or ``z`z``.\nb", vec!["`x`, ```y``` or ``z`z``.\nb\n"]),
        ] {
            assert_eq!(parse(reply).prose, expected, "{reply:?}");
        }
    }

    #[test]
    fn thoughts_are_not_read() {
        for reply in [
            "\u{feff}<think>no\n```repl\nno\n</think>b",
            "no\n```repl\nno\n```\nno</think>\nb",
            "no\n</thinking>b",
            "<think>no</think><reasoning>\nno\n</reasoning>\nb\n<think>no",
            "<think>no<think>no</think>no\n```repl\nno\n```\n</think>b",
            "<think>no\n<think>\nno</think>b",
            "no</think>\nb\n</think>",
        ] {
            let parsed = parse(reply);
            assert_eq!(
                (parsed.prose.concat().trim(), parsed.blocks.len()),
                ("b", 0),
                "{reply:?}"
            );
        }
        // Code may contain the tags of thoughts.
        let code = "x = '</think>'\n'''\n</think>\n'''";
        assert_eq!(codes(&format!("```repl\n{code}\n```\nNo `</think>`")), [code]);
        assert_eq!(
            codes("\n<think>\n```repl\nbad\n```\n</think>\n```repl\ngood\n```"),
            ["good"]
        );
        assert!(codes("<think>```repl\nbad\n```").is_empty());
        // After thoughts with a beginning, a further end has no meaning.
        assert_eq!(codes("<think>no</think>\n```repl\nx\n```\n</think>\nb"), ["x"]);
        for (reply, thinks_code) in [
            ("<think>\n```repl\nno\n```\n</think>\nb", true),
            ("```repl\nno\n```\n</think>", true),
            ("<think>```repl\nno", true),
            ("<think>no</think>```repl\nx\n```", false),
            ("<think>\nno\n</think>```repl\nx\n```", false),
            ("```repl\nx\n```", false),
        ] {
            assert_eq!(parse(reply).thinks_code, thinks_code, "{reply:?}");
        }
    }

    #[test]
    fn a_block_without_a_closing_fence_ends_before_the_next() {
        for (reply, blocks, prose) in [
            ("```repl\nx\n```repl\ny\n```\nb", vec!["x", "y"], ""),
            (
                "a\n```repl\nx\n\nNow I go on.\nFINAL(1)\n\n```python\ny\n```",
                vec!["x\n", "y"],
                "a\n",
            ),
            ("```repl\nx\n\nIt prints:\n```text\n1\n```", vec!["x\n"], ""),
            ("```repl\nx\n``` That is all.\nFINAL(1)", vec!["x"], ""),
            ("```repl\n```python\nx\n```\n```", vec!["x"], ""),
            ("```repl\nx\n\nNow I wait.\nFINAL(1)", vec!["x\n"], ""),
            ("```repl\nx```\n\nNow I wait.", vec!["x"], ""),
            ("> ```repl\n> x\n>\n> Now I wait.", vec!["x\n"], ""),
            ("~~~py\nx\n~~~py\ny\n~~~", vec!["x", "y"], ""),
            // These fences stand in strings, or may be Python.
            (
                "```repl\nx = '''\n```repl\n\nNow.\n'''\n```",
                vec!["x = '''\n```repl\n\nNow.\n'''"],
                "",
            ),
            ("```repl\n~~~x\n```", vec!["~~~x"], ""),
            ("```repl\nx\n'''python\n'''\n```", vec!["x\n'''python\n'''"], ""),
            ("````repl\nx\n```py\ny\n````", vec!["x\n```py\ny"], ""),
            // A closed block is taken as it is.
            ("```repl\nx\n\nNow I go on.\n```\nb", vec!["x\n\nNow I go on."], "b\n"),
        ] {
            assert_eq!(codes(reply), blocks, "{reply:?}");
            assert_eq!(parse(reply).prose.concat(), prose, "{reply:?}");
        }
    }

    #[test]
    fn prose_is_what_is_outside() {
        let parsed = parse("FINAL(1)\n```repl\nFINAL(2)\n```\n```json\n[3]\n```\nend");
        assert_eq!(parsed.prose, ["FINAL(1)\n", "end\n"]);
        assert_eq!(parsed.others[0].code, "[3]");
    }

    proptest! {
        #[test]
        fn any_reply_is_read_and_nothing_is_invented(
            reply in "(```|~~~|````|repl|python|\n|\"\"\"|'''|'|\"|#|\\\\| |x|é|`|>|- |\u{feff}|</?think>|</?code>)*"
        ) {
            let parsed = parse(&reply);
            for block in parsed.blocks.iter().chain(&parsed.others) {
                for line in block.code.lines() {
                    prop_assert!(reply.contains(line.trim()));
                }
            }
            for line in parsed.prose.iter().flat_map(|stretch| stretch.lines()) {
                prop_assert!(reply.contains(line.trim()));
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
