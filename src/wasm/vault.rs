//! Where a sandbox's checkpoints are kept: `Blob`s, whose bytes the browser holds outside of the page's memory.

use web_sys::Blob;

/// Bytes that a chain may have beyond twice its first link's, before a full checkpoint replaces it.
const SLACK_BYTES: f64 = 32.0 * 1024.0 * 1024.0;

/// A full checkpoint, and those on top of it.
#[derive(Default)]
pub(super) struct Vault {
    chain: Vec<Blob>,
    bytes: f64,
    /// Whether the guest under way made the chain, so that what it saves next can build upon it.
    growing: bool,
    /// Whether the one under way is full.
    full: bool,
}

impl Vault {
    /// A checkpoint is asked for; whether it has to be a full one.
    pub(super) fn begin(&mut self) -> bool {
        let first = self.chain.first().map_or(0.0, Blob::size);
        self.full = !self.growing || self.bytes > 2.0 * first + SLACK_BYTES;
        self.full
    }

    /// Keeps a complete checkpoint; false when it is larger than `budget` bytes, and then nothing is kept.
    pub(super) fn keep(&mut self, blob: Blob, budget: f64) -> bool {
        if self.full {
            self.clear();
        }
        self.bytes += blob.size();
        self.chain.push(blob);
        self.growing = self.bytes <= budget;
        if !self.growing {
            self.clear();
        }
        self.growing
    }

    /// The guest is gone. What it saved stays.
    pub(super) fn guest_ended(&mut self) {
        self.growing = false;
    }

    pub(super) fn chain(&self) -> &[Blob] {
        &self.chain
    }

    fn clear(&mut self) {
        self.chain.clear();
        self.bytes = 0.0;
    }
}
