//! The checkpoints that there are: full ones, each followed by what changed after it.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::iter::successors;

use super::Body;
use super::contexts::Contexts;
use crate::execution::LostVariable;

/// Bytes that a chain may have beyond twice its first link's, before a full checkpoint begins another.
const SLACK_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
/// The least that anything kept takes, in bytes.
const LEAST_BYTES: usize = 100;
/// Bytes that earlier chains may take: they only serve to go back.
const EARLIER_BYTES: f64 = 256.0 * 1024.0 * 1024.0;

/// One checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Link<B> {
    /// Its number, which grows.
    pub(super) number: u32,
    /// True when it needs no earlier one.
    pub(super) full: bool,
    /// The last execution whose effects it has; 0 is before the first.
    pub(super) execution: u32,
    /// The user's variables.
    pub(super) names: Vec<String>,
    /// Those that it does not hold.
    pub(super) lost: Vec<LostVariable>,
    /// The contexts that the host keeps for every guest.
    pub(super) contexts: Contexts<B>,
    /// The checkpoint that its last execution began with, where there is one.
    pub(super) before: Option<u32>,
    /// The one that was the state's before, where there is one.
    pub(super) parent: Option<u32>,
    /// The variables that the host has set since then.
    pub(super) set: Vec<String>,
    pub(super) body: B,
}

/// All that are kept, in the order in which they were made.
#[derive(Debug)]
pub(super) struct CheckpointChain<B>(Vec<Link<B>>);

impl<B> Default for CheckpointChain<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B: Body> CheckpointChain<B> {
    pub(super) fn find(&self, number: u32) -> Option<&Link<B>> {
        self.0.iter().rev().find(|link| link.number == number)
    }

    /// The newest one of an execution, or of all.
    pub(super) fn newest(&self, execution: Option<u32>) -> Option<&Link<B>> {
        let mut links = self.0.iter().rev();
        links.find(|link| execution.is_none_or(|execution| link.execution == execution))
    }

    /// The executions that there are checkpoints of, the newest first, each once.
    pub(super) fn executions(&self) -> Vec<u32> {
        let mut executions: Vec<u32> = self.0.iter().map(|link| link.execution).collect();
        executions.sort_unstable_by(|a, b| b.cmp(a));
        executions.dedup();
        executions
    }

    /// The variables that the host has set on the way from one checkpoint to a later state, which comes from `base`; or since they parted.
    pub(super) fn set_since(&self, number: u32, base: Option<u32>) -> Vec<String> {
        let line = |from: Option<u32>| {
            successors(from.and_then(|number| self.find(number)), |link| {
                link.parent.and_then(|number| self.find(number))
            })
        };
        let kept: Vec<u32> = line(Some(number)).map(|link| link.number).collect();
        let undone = line(base).take_while(|link| !kept.contains(&link.number));
        undone.flat_map(|link| link.set.iter().cloned()).collect()
    }

    /// A checkpoint and those that it builds upon, the full one first.
    pub(super) fn chain(&self, number: u32) -> &[Link<B>] {
        let Some(end) = self.0.iter().rposition(|link| link.number == number) else {
            return &[];
        };
        let start = self.0[..=end].iter().rposition(|link| link.full).unwrap_or(end);
        &self.0[start..=end]
    }

    /// Returns true when the last chain is long enough.
    pub(super) fn is_long(&self) -> bool {
        let chain = &self.0[self.last_full()..];
        let first = chain.first().map_or(0.0, size);
        chain.iter().map(size).sum::<f64>() > 2.0 * first + SLACK_BYTES
    }

    /// Keeps a checkpoint whose chain takes `most` bytes at most.
    pub(super) fn keep(&mut self, link: Link<B>, most: f64) -> Kept {
        let is_full = link.full;
        self.0.push(link);
        let last = self.last_full();
        if self.0[last..].iter().map(size).sum::<f64>() > most {
            self.0.pop();
            return if is_full { Kept::No } else { Kept::NotOnTop };
        }
        let mut earlier = self.0[..last].iter().map(size).sum::<f64>();
        while earlier > EARLIER_BYTES {
            let end = 1 + self.0.iter().skip(1).take_while(|link| !link.full).count();
            earlier -= self.0.drain(..end).map(|link| size(&link)).sum::<f64>();
        }
        Kept::Yes
    }

    /// Bytes of the last chain, which is the state.
    pub(super) fn bytes(&self) -> f64 {
        self.0[self.last_full()..].iter().map(size).sum()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn from_chain(chain: &[Link<B>]) -> Self {
        Self(chain.to_vec())
    }

    fn last_full(&self) -> usize {
        self.0.iter().rposition(|link| link.full).unwrap_or(0)
    }
}

/// The outcome of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    /// It is too large on top of the others; a full one may not be.
    NotOnTop,
    /// It is too large. Those before it stay.
    No,
}

/// Bytes that a checkpoint takes, with what the guest says beside it.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn size<B: Body>(link: &Link<B>) -> f64 {
    let names = link.names.iter().chain(&link.set).map(String::len);
    let lost = link.lost.iter().map(|lost| lost.name.len() + lost.reason.len());
    let texts: usize = names.chain(lost).map(|bytes| LEAST_BYTES + bytes).sum();
    (LEAST_BYTES + link.body.size() + texts) as f64
}
