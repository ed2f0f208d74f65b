//! What is done while the model still writes: what its code imports is fetched, and its first block runs ahead as soon as it is closed.
//! The blocks after it find another state than the one that there is now.

use std::rc::{Rc, Weak};

use crate::rlm::parse::{code_so_far, parse};
use crate::wasm::driver::Driver;
use crate::wasm::packages::disregard;

/// A reply that is being written.
#[derive(Default)]
pub(super) struct Writing {
    /// Who is to run its code.
    driver: Weak<Driver>,
    text: String,
    most_chars: usize,
    is_hinted: bool,
}

impl Writing {
    /// Nothing of it is there yet.
    pub(super) fn to(driver: &Rc<Driver>) -> Self {
        Self {
            driver: Rc::downgrade(driver),
            most_chars: driver.options().limits.max_code_chars as usize,
            ..Self::default()
        }
    }

    /// It begins, for the first time or again.
    pub(super) fn begin(&mut self) {
        self.text.clear();
        self.is_hinted = false;
    }

    /// More of it has come; what can be done about that.
    pub(super) fn hear(&mut self, text: &str) -> Option<Work> {
        if self.text.len() + text.len() > self.most_chars {
            return None;
        }
        self.text.push_str(text);
        if !text.contains('\n') {
            return None;
        }
        let driver = self.driver.upgrade().filter(|driver| !driver.is_destroyed())?;
        let whole_lines = self.text.rfind('\n').map_or("", |end| &self.text[..end]);
        let first = parse(whole_lines).blocks.into_iter().next();
        let closed = first.filter(|block| block.closed && !self.is_hinted);
        self.is_hinted |= closed.is_some();
        Some(Work {
            driver,
            is_closed: closed.is_some(),
            code: closed.map_or_else(|| code_so_far(&self.text), |block| block.code),
        })
    }
}

/// It may call the page's functions, which may have more text.
pub(super) struct Work {
    driver: Rc<Driver>,
    code: String,
    is_closed: bool,
}

impl Work {
    pub(super) fn begin(self) {
        disregard(match self.is_closed {
            true => self.driver.hint(vec![self.code]),
            false => self.driver.prepare(&self.code),
        });
    }
}
