//! What is done while the model still writes: what its code imports is fetched, the first block of its reply runs as it comes, and before
//! there is one, what it says is for guesses. The blocks after it find another state than the one that there is now.

use std::rc::{Rc, Weak};

use crate::limits::MAX_WRITTEN_BYTES;
use crate::rlm::parse::{code_so_far, parse};
use crate::speculate::{Lines, Source};
use crate::wasm::driver::{Driver, Written};
use crate::wasm::packages::disregard;

/// So much of a reply is looked at, in bytes: all of it again with each line.
const MOST_BYTES: usize = 4 * MAX_WRITTEN_BYTES;

/// A reply that is being written.
#[derive(Default)]
pub(super) struct Writing {
    /// Who is to run its code.
    driver: Weak<Driver>,
    text: String,
    first: First,
}

/// Its first block.
#[derive(Default)]
struct First {
    written: Option<Rc<Written>>,
    lines: Lines,
    /// How much of it runs.
    sent: usize,
    is_closed: bool,
}

impl Writing {
    /// Nothing of it is there yet.
    pub(super) fn to(driver: &Rc<Driver>) -> Self {
        Self {
            driver: Rc::downgrade(driver),
            ..Self::default()
        }
    }

    /// It begins, for the first time or again.
    #[must_use]
    pub(super) fn begin(&mut self) -> Option<Work> {
        let work = self.end();
        self.text.clear();
        self.first = First::default();
        work
    }

    /// All of it is there, or no more comes: to be done once its code was asked for.
    #[must_use]
    pub(super) fn end(&mut self) -> Option<Work> {
        self.first.written.take()?.end();
        Some(Work(self.driver.upgrade()?, vec![Step::End]))
    }

    /// A draft of it says what its code may be, before it begins.
    #[must_use]
    pub(super) fn expects(&self, codes: Vec<String>) -> Option<Work> {
        let driver = self.driver.upgrade().filter(|driver| !driver.is_destroyed())?;
        (!codes.is_empty()).then(|| Work(driver, vec![Step::Draft(codes)]))
    }

    /// More of it has come; what can be done about that.
    #[must_use]
    pub(super) fn hear(&mut self, text: &str) -> Option<Work> {
        if self.text.len() + text.len() > MOST_BYTES {
            return None;
        }
        self.text.push_str(text);
        if !text.contains('\n') {
            return None;
        }
        let driver = self.driver.upgrade().filter(|driver| !driver.is_destroyed())?;
        let mut steps = vec![Step::Prepare(code_so_far(&self.text))];
        let whole_lines = self.text.rfind('\n').map_or("", |end| &self.text[..end]);
        let first = &mut self.first;
        if let Some(block) = parse(whole_lines)
            .blocks
            .into_iter()
            .next()
            .filter(|_| !first.is_closed)
        {
            first.is_closed = block.closed;
            let code = format!("{}\n", block.code);
            let complete = first.lines.complete(&code);
            if complete.len() > first.sent {
                first.sent = complete.len();
                let written = first.written.get_or_insert_with(|| Rc::new(Written::within(None)));
                steps.push(Step::Written(written.clone(), complete.to_owned()));
            } else if block.closed && first.sent == 0 {
                steps.push(Step::Hint(block.code));
            }
        } else if !first.is_closed {
            steps.push(Step::Words(whole_lines.to_owned()));
        }
        Some(Work(driver, steps))
    }
}

/// It may call the page's functions, which may have more text.
pub(super) struct Work(Rc<Driver>, Vec<Step>);

enum Step {
    Prepare(String),
    Written(Rc<Written>, String),
    Hint(String),
    Draft(Vec<String>),
    Words(String),
    End,
}

impl Work {
    pub(super) fn begin(self) {
        let Self(driver, steps) = self;
        for step in steps {
            match step {
                Step::Prepare(code) => disregard(driver.prepare(&code)),
                Step::Written(written, code) => driver.written(&written, &code),
                Step::Words(text) => driver.converse(&text),
                Step::Hint(code) => disregard(driver.hint(vec![code], Source::Explicit)),
                Step::Draft(codes) => disregard(driver.hint(codes, Source::Model)),
                Step::End => driver.nothing_is_written(),
            }
        }
    }
}
