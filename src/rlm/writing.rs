//! Prepares a sandbox for the code of a reply that is being written. [`sandglass_rlm::writing`] decides how.

use std::mem::discriminant;
use std::rc::{Rc, Weak};

use crate::driver::{Driver, Written};
use crate::glue::disregard;
use sandglass_core::predictions::Source;
use sandglass_rlm::writing::{self, Step};

/// A reply that is being written.
#[derive(Default)]
pub(super) struct Writing {
    /// The sandbox that is to run its code. `None` while the sandbox opens.
    driver: Option<Weak<Driver>>,
    /// The newest step of each kind that waits for the sandbox.
    waiting: Vec<Step>,
    reply: writing::Writing,
    /// The first block of code.
    written: Option<Rc<Written>>,
}

impl Writing {
    /// The sandbox is open now.
    #[must_use]
    pub(super) fn opened(&mut self, driver: &Rc<Driver>) -> Option<Work> {
        self.driver = Some(Rc::downgrade(driver));
        let steps = std::mem::take(&mut self.waiting);
        self.take(steps)
    }

    fn driver(&self) -> Option<Rc<Driver>> {
        self.driver.as_ref()?.upgrade()
    }

    /// The reply begins, for the first time or again.
    #[must_use]
    pub(super) fn begin(&mut self) -> Option<Work> {
        let work = self.end();
        self.waiting.clear();
        self.reply = writing::Writing::default();
        work
    }

    /// The reply is complete, or was broken off. Call this after its code was asked for.
    #[must_use]
    pub(super) fn end(&mut self) -> Option<Work> {
        self.written.take()?.end();
        Some(Work(self.driver()?, vec![Done::End]))
    }

    /// A draft suggests the code of the reply, before the reply begins.
    #[must_use]
    pub(super) fn expects(&self, codes: Vec<String>) -> Option<Work> {
        let driver = self.driver().filter(|driver| !driver.is_destroyed())?;
        (!codes.is_empty()).then(|| Work(driver, vec![Done::Draft(codes)]))
    }

    /// More of the reply has come. Carries out what can be prepared by now.
    #[must_use]
    pub(super) fn hear(&mut self, text: &str) -> Option<Work> {
        let steps = self.reply.hear(text);
        self.take(steps)
    }

    fn take(&mut self, steps: Vec<Step>) -> Option<Work> {
        if self.driver.is_none() {
            for step in steps {
                self.waiting.retain(|other| discriminant(other) != discriminant(&step));
                self.waiting.push(step);
            }
            return None;
        }
        let driver = self.driver().filter(|driver| !driver.is_destroyed())?;
        let steps = steps.into_iter().map(|step| match step {
            Step::Prepare(code) => Done::Prepare(code),
            Step::Written(code) => {
                let written = self.written.get_or_insert_with(|| Rc::new(Written::within(None)));
                Done::Written(written.clone(), code)
            }
            Step::Hint(code) => Done::Hint(code),
            Step::Words(text) => Done::Words(text),
        });
        let steps: Vec<_> = steps.collect();
        (!steps.is_empty()).then_some(Work(driver, steps))
    }
}

/// Effects of a reply, to be carried out while nobody borrows the [`Writing`]: they may call the page's functions, which may bring more
/// text.
pub(super) struct Work(Rc<Driver>, Vec<Done>);

enum Done {
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
                Done::Prepare(code) => disregard(driver.prepare(&code)),
                Done::Written(written, code) => driver.written(&written, &code),
                Done::Words(text) => driver.converse(&text),
                Done::Hint(code) => disregard(driver.hint(vec![code], Source::Explicit)),
                Done::Draft(codes) => disregard(driver.hint(codes, Source::Model)),
                Done::End => driver.nothing_is_written(),
            }
        }
    }
}
