//! The kept checkpoints. A full checkpoint and those with the changes since then form a *chain*.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::iter::successors;

use serde::{Deserialize, Serialize};

use super::Body;
use super::contexts::Contexts;
use super::journal::Origin;
use crate::execution::LostVariable;

/// Bytes by which a chain may exceed twice its first link, before a full checkpoint begins another chain.
const SLACK_BYTES: f64 = 32.0 * 1024.0 * 1024.0;
/// The least bytes that a kept item counts, whatever its size.
const LEAST_BYTES: usize = 100;
/// The most bytes of earlier chains, which serve only to go back.
const EARLIER_BYTES: f64 = 256.0 * 1024.0 * 1024.0;

/// One checkpoint in a chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Link<B> {
    /// The checkpoint's number. Numbers grow.
    pub(super) number: u32,
    /// True if the checkpoint needs no earlier one.
    pub(super) full: bool,
    /// The last execution whose effects the checkpoint has; 0 means before the first.
    pub(super) execution: u32,
    /// The names of the user's variables.
    pub(super) names: Vec<String>,
    /// The user's variables that the checkpoint does not hold.
    pub(super) lost: Vec<LostVariable>,
    /// The contexts that the host keeps for every guest, as they were then.
    pub(super) contexts: Contexts<B>,
    /// The settings that the state has ([`super::checkpoints::Checkpoints::settings`]).
    pub(super) settings: u32,
    /// The state before its last execution, if it can be had.
    pub(super) before: Option<Origin<B>>,
    /// The checkpoint that the state came from, if there is one.
    pub(super) parent: Option<u32>,
    /// The variables that the host has set since the parent.
    pub(super) set: Vec<String>,
    pub(super) body: B,
}

impl<B> Link<B> {
    /// Gives it another body, and none of the checkpoints before it.
    pub(super) fn stand_alone(&mut self, body: B) {
        (self.body, self.before, self.parent) = (body, None, None);
        self.set.clear();
    }

    /// Replaces each body. `replace` also gets the checkpoint's number for the body of the checkpoint itself.
    pub(super) fn map<C>(self, replace: &mut impl FnMut(Option<u32>, B) -> C) -> Link<C> {
        let before = self.before.map(|before| match before {
            Origin::Saved(number, steps) => Origin::Saved(number, steps),
            Origin::Fresh(contexts) => Origin::Fresh(contexts.map(&mut |body| replace(None, body))),
        });
        Link {
            number: self.number,
            full: self.full,
            execution: self.execution,
            names: self.names,
            lost: self.lost,
            contexts: self.contexts.map(&mut |body| replace(None, body)),
            settings: self.settings,
            before,
            parent: self.parent,
            set: self.set,
            body: replace(Some(self.number), self.body),
        }
    }
}

/// All kept checkpoints, in the order of their making.
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

    /// The newest checkpoint of an execution, or of all executions.
    pub(super) fn newest(&self, execution: Option<u32>) -> Option<&Link<B>> {
        let mut links = self.0.iter().rev();
        links.find(|link| execution.is_none_or(|execution| link.execution == execution))
    }

    /// The executions that have checkpoints, the newest first, each once.
    pub(super) fn executions(&self) -> Vec<u32> {
        let mut executions: Vec<u32> = self.0.iter().map(|link| link.execution).collect();
        executions.sort_unstable_by(|a, b| b.cmp(a));
        executions.dedup();
        executions
    }

    /// The variables that the host has set since checkpoint `number`, or since the beginning, up to the state that comes from `base`. If the two states are on
    /// different branches, those since they parted.
    pub(super) fn set_since(&self, number: Option<u32>, base: Option<u32>) -> Vec<String> {
        let kept: Vec<u32> = self.line(number).map(|link| link.number).collect();
        let undone = self.line(base).take_while(|link| !kept.contains(&link.number));
        undone.flat_map(|link| link.set.iter().cloned()).collect()
    }

    /// Returns true if the state of checkpoint `base` is that of checkpoint `number`, or came from it.
    pub(super) fn descends(&self, base: Option<u32>, number: u32) -> bool {
        self.line(base).any(|link| link.number == number)
    }

    /// A checkpoint, that from which it came, and so on.
    fn line(&self, from: Option<u32>) -> impl Iterator<Item = &Link<B>> {
        successors(from.and_then(|number| self.find(number)), |link| {
            link.parent.and_then(|number| self.find(number))
        })
    }

    /// Drops a checkpoint if it is the newest. None builds upon it.
    pub(super) fn drop_newest(&mut self, number: u32) {
        self.0.pop_if(|link| link.number == number);
    }

    /// A checkpoint with those that it builds upon, the full one first.
    pub(super) fn chain(&self, number: u32) -> &[Link<B>] {
        let Some(end) = self.0.iter().rposition(|link| link.number == number) else {
            return &[];
        };
        let start = self.0[..=end].iter().rposition(|link| link.full).unwrap_or(end);
        &self.0[start..=end]
    }

    /// Returns true if the last chain is so long that a full checkpoint should follow.
    pub(super) fn is_long(&self) -> bool {
        let chain = &self.0[self.last_full()..];
        let first = chain.first().map_or(0.0, size);
        chain.iter().map(size).sum::<f64>() > 2.0 * first + SLACK_BYTES
    }

    /// Adds a checkpoint. Its chain may take `most` bytes.
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

    /// Drops checkpoints beyond so many: first those that the present one does not come from, and the oldest of them first.
    pub(super) fn keep_newest(&mut self, most: usize, present: u32) {
        while self.0.len() > most {
            let line: Vec<u32> = self.line(Some(present)).map(|link| link.number).collect();
            let aside = self.0.iter().position(|link| !line.contains(&link.number));
            self.0.remove(aside.unwrap_or(0));
        }
    }

    /// Removes a checkpoint. Those that came from it then come from the one before it.
    pub(super) fn remove(&mut self, number: u32) -> Option<Link<B>> {
        let at = self.0.iter().position(|link| link.number == number)?;
        let gone = self.0.remove(at);
        for link in &mut self.0 {
            if link.parent == Some(number) {
                link.parent = gone.parent;
                link.set.extend(gone.set.iter().cloned());
            }
        }
        Some(gone)
    }

    /// The newest checkpoint that is older than the one with this number.
    pub(super) fn before(&self, number: u32) -> Option<&Link<B>> {
        self.0.iter().rev().find(|link| link.number < number)
    }

    /// The bytes of the last chain, which holds the present state.
    pub(super) fn bytes(&self) -> f64 {
        self.0[self.last_full()..].iter().map(size).sum()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Leaves one checkpoint, with this body.
    pub(super) fn leave_only(&mut self, number: u32, body: &B) {
        self.0.retain(|link| link.number == number);
        self.0.iter_mut().for_each(|link| link.stand_alone(body.clone()));
    }

    /// All checkpoints, the oldest first.
    pub(super) fn all(&self) -> &[Link<B>] {
        &self.0
    }

    pub(super) fn from_chain(chain: &[Link<B>]) -> Self {
        Self(chain.to_vec())
    }

    fn last_full(&self) -> usize {
        self.0.iter().rposition(|link| link.full).unwrap_or(0)
    }
}

/// The result of adding a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kept {
    Yes,
    /// The checkpoint is too large on top of its chain. A full one may fit.
    NotOnTop,
    /// The checkpoint is too large by itself. Earlier ones stay.
    No,
}

/// The bytes of a checkpoint, with the names and reasons that the guest told, and the code to repeat for the state before.
#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
fn size<B: Body>(link: &Link<B>) -> f64 {
    let names = link.names.iter().chain(&link.set).map(String::len);
    let lost = link.lost.iter().map(|lost| lost.name.len() + lost.reason.len());
    let steps: usize = match &link.before {
        Some(Origin::Saved(_, steps)) => steps.code_bytes().map(|bytes| LEAST_BYTES + bytes).sum(),
        _ => 0,
    };
    let texts: usize = names.chain(lost).map(|bytes| LEAST_BYTES + bytes).sum();
    (LEAST_BYTES + link.body.size() + texts + steps) as f64
}
