//! Replies that published parsers misread: the places that show it, and the right readings.
//!
//! Each reply has the shape of the one in its sources, in words of our own. Cases that name no source, in `parse.rs`,
//! `directives.rs` and `controller.rs`, are our own.

mod code;
mod words;

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
    for case in code::CASES.iter().chain(words::CASES) {
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
    for case in code::CASES.iter().chain(words::CASES) {
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
