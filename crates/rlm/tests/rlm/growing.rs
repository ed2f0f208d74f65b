//! Replies that come in pieces are read as whole ones are.

use proptest::prelude::*;
use sandglass_rlm::parse::{parse, parse_beginning};
use sandglass_rlm::writing::{Step, Writing};

/// Texts with all marks that the parser knows.
fn replies() -> impl Strategy<Value = String> {
    let parts = [
        "```repl\n",
        "```python\n",
        "````repl\n",
        "~~~py\n",
        "```\n",
        "````\n",
        "~~~\n",
        "```",
        "```json\n",
        "> ```py\n",
        "> ",
        "- ",
        "  ",
        "So: ```repl\n",
        "Use ```repl so.\n",
        "x = 1\n",
        "if x:\n",
        "    f(x)\n",
        "'''",
        "\"\"\"",
        "\n",
        "\n\n",
        "# it's\n",
        "Now I wait.\n",
        "Output:\n",
        "y = '''\nNow I wait.\n",
        "a ",
        "<think>\n",
        "<think>",
        "</think>\n",
        "</think>",
        "<code>\n",
        "</code>\n",
        "```py `x`\n",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..24).prop_map(|parts| parts.concat())
}

/// The pieces of a text, cut at those places that are boundaries of characters.
fn pieces<'a>(text: &'a str, cuts: &[prop::sample::Index]) -> Vec<&'a str> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
    cuts.retain(|&cut| text.is_char_boundary(cut));
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]).collect()
}

/// The codes that run while a reply comes.
fn written(pieces: &[&str]) -> Vec<String> {
    let mut writing = Writing::default();
    let steps = pieces.iter().flat_map(|piece| writing.hear(piece));
    let written = steps.filter_map(|step| match step {
        Step::Written(code) => Some(code),
        _ => None,
    });
    written.collect()
}

/// The whole first blocks that are told while a reply comes.
fn hinted(pieces: &[&str]) -> Vec<String> {
    let mut writing = Writing::default();
    let steps = pieces.iter().flat_map(|piece| writing.hear(piece));
    let hinted = steps.filter_map(|step| match step {
        Step::Hint(code) => Some(code),
        _ => None,
    });
    hinted.collect()
}

/// Codes of a beginning of a reply that may still become another reading.
#[test]
fn what_more_text_may_change_is_left_out() {
    for (reply, code, closed) in [
        // The string may have an end, or none.
        ("```repl\nx = '''\n```\ny", Some("x = '''"), false),
        ("```repl\nx = '''\n```\n'''\ny", Some("x = '''\n```\n'''\ny"), false),
        // The backticks may be the line's own.
        ("```repl\nx\ny # ```\n\n", Some("x"), false),
        ("```repl\nx\ny # ```\nz", Some("x\ny # ```\nz"), false),
        // The words may be followed by code.
        ("```repl\nx\n\nNow I wait.\n", Some("x\n"), false),
        ("```repl\nx\n\nNow I wait.\n\ny", Some("x\n\nNow I wait.\n\ny"), false),
        ("```repl\nx\n\nNow I wait.\n```py\n", Some("x\n"), true),
        // The words may only mention a fence, the tag may have an end, and the thoughts may have two.
        ("So: ```repl\nx\n", None, false),
        ("So: ```repl\nx\n```", Some("x"), true),
        ("<code>\nx\n```repl\nx\n```\n", None, false),
        ("<think>a <think>b</think>\n```repl\nx\n", None, false),
        ("<think>a</think>\n```repl\nx\n", Some("x"), false),
    ] {
        let first = parse_beginning(reply).blocks.into_iter().next();
        assert_eq!(first.as_ref().map(|block| block.code.as_str()), code, "{reply:?}");
        assert_eq!(first.is_some_and(|block| block.closed), closed, "{reply:?}");
    }
}

proptest! {
    /// Checks the promise on which calls ahead rest.
    #[test]
    fn the_beginning_of_a_block_is_never_taken_back(reply in replies()) {
        let whole = parse(&reply).blocks;
        let mut most = 0;
        for (end, _) in reply.match_indices('\n') {
            let beginning = parse_beginning(&reply[..=end]).blocks;
            if reply.contains("</think>") {
                continue;
            }
            prop_assert!(beginning.len() >= most, "{end} of {reply:?}");
            most = beginning.len();
            for (index, block) in beginning.iter().enumerate() {
                let all = whole.get(index).map(|block| block.code.as_str());
                prop_assert!(all.is_some_and(|all| all.starts_with(&block.code)), "{block:?} of {reply:?}");
                prop_assert!(!block.closed || all == Some(&block.code), "{block:?} of {reply:?}");
            }
        }
    }

    #[test]
    fn pieces_are_read_as_the_whole(reply in replies(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let reply = reply + "\n";
        let first = parse(&reply).blocks.into_iter().next();
        let whole = written(&[&reply]);
        let by_char: Vec<String> = reply.chars().map(String::from).collect();
        let by_char: Vec<&str> = by_char.iter().map(String::as_str).collect();
        for pieces in [pieces(&reply, &cuts), by_char] {
            let codes = written(&pieces);
            // What is written last is what is read of the whole.
            let last = codes.last().filter(|code| !code.is_empty());
            prop_assert_eq!(last, whole.last(), "{:?}", reply);
            if let Some(last) = last.filter(|_| !reply.contains("</think>")) {
                prop_assert!(first.as_ref().is_some_and(|first| first.code.starts_with(last)), "{last:?} of {reply:?}");
            }
            // What is written goes on with what was written, except where thoughts end.
            for codes in codes.windows(2) {
                let goes_on = codes[1].starts_with(&codes[0]) && codes[1].len() > codes[0].len();
                prop_assert!(goes_on || reply.contains("</think>"), "{codes:?} of {reply:?}");
            }
            let closed = parse_beginning(&reply).blocks.into_iter().next().filter(|first| first.closed);
            if let Some(closed) = closed {
                let hinted = hinted(&pieces);
 prop_assert_eq!(hinted.last(), Some(&closed.code), "{:?}", reply);
            }
        }
    }
}
