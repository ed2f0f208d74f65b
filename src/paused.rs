//! Checkpoints on a server: paused copies of a guest's process.

use std::rc::{Rc, Weak};

/// The connection to the server that holds checkpoints.
pub(super) trait Holder {
    /// Gives up a checkpoint.
    fn forget(&self, checkpoint: u32);
}

/// A checkpoint on a server. Dropping it ends the paused copy.
#[derive(Debug)]
pub(super) struct RemoteCheckpoint {
    number: u32,
    holder: Weak<dyn Holder>,
}

impl RemoteCheckpoint {
    pub(super) fn new(number: u32, holder: Weak<dyn Holder>) -> Self {
        Self { number, holder }
    }

    /// The checkpoint's number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns true if the server at the end of this connection holds the checkpoint.
    pub(super) fn is_held_by<H>(&self, holder: &Rc<H>) -> bool {
        std::ptr::addr_eq(self.holder.as_ptr(), Rc::as_ptr(holder))
    }
}

impl Drop for RemoteCheckpoint {
    fn drop(&mut self) {
        if let Some(holder) = self.holder.upgrade() {
            holder.forget(self.number);
        }
    }
}
