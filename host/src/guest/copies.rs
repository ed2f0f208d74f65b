//! The paused copies of a sandbox's guests, by the numbers of their checkpoints. Whoever runs the guests decides how long a copy is kept:
//! it lives as long as its [`PausedCopy`].
//!
//! All copies are within one boundary, whose limits are the session's. A guest of another boundary ends them.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::future::BoxFuture;
use sandglass_core::Error;
use tokio_util::sync::CancellationToken;

use super::fork::Forker;
use super::isolated::CopyLimits;
use super::memory;
use super::paused::{Boundary, PausedGuest, Spreading, with_beginning};
use super::{Guest, GuestProcess};

/// The share of the memory limit that the guest and its paused copies may take together. Beyond it, the oldest copies are ended.
const MEMORY_SHARE: f64 = 0.75;

/// The paused copies of a sandbox's guests.
#[derive(Default)]
pub struct Copies {
    /// True if the session has checkpoints.
    are_made: bool,
    copies: BTreeMap<u32, Weak<PausedCopy>>,
    /// The boundary of the last guest that started.
    boundary: Option<Arc<Boundary>>,
    /// The guest's unshared bytes just before a copy was made, by the copy's checkpoint. It is kept where no control group counts them.
    written: BTreeMap<u32, u64>,
    heir: Heir,
}

/// The paused copy that takes the place of one of which copies were made, until a guest comes from it. Whoever gives up the copies can start that
/// guest later.
#[derive(Clone, Default)]
pub(super) struct Heir(Arc<Mutex<Option<PausedCheckpoint>>>);

impl Heir {
    pub(super) fn put(&self, checkpoint: PausedCheckpoint) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkpoint);
    }

    /// Makes the guest that goes on from this checkpoint. `None` if the checkpoint has no heir.
    async fn go_on(&self, checkpoint: u32) -> Option<Result<Guest, Error>> {
        let heir = {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.clone().filter(|heir| heir.number == checkpoint)?
        };
        let ids: Vec<u32> = heir.copy.guest.inner_id().into_iter().collect();
        let guest = heir.copy.boundary.revive(&heir.copy.guest, &ids, &[]).await;
        Some(guest.map(|mut guest| {
            guest.kin.copied = Some(heir);
            guest
        }))
    }

    fn end(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A paused copy, and the processes around it. Dropping it ends the copy.
pub struct PausedCopy {
    guest: PausedGuest,
    boundary: Arc<Boundary>,
}

/// A checkpoint, by its number, and the paused copy that holds it.
#[derive(Clone)]
pub struct PausedCheckpoint {
    pub(crate) number: u32,
    pub(crate) copy: Arc<PausedCopy>,
}

impl PausedCopy {
    pub(super) fn new(guest: PausedGuest, boundary: Arc<Boundary>) -> Self {
        Self { guest, boundary }
    }

    /// Ends the process, and waits until its memory is free.
    pub async fn end(self) {
        self.guest.end().await;
    }

    pub(super) fn guest(&self) -> &PausedGuest {
        &self.guest
    }
}

/// Copies that were made of a session.
pub struct Spread {
    /// Makes the guest in which the session goes on.
    pub own: BoxFuture<'static, Result<Guest, Error>>,
    /// The copies.
    pub others: Vec<PausedCheckpoint>,
}

/// A running guest's place among its copies.
#[derive(Default)]
pub struct Kin {
    pub(crate) forker: Option<Forker>,
    /// The guest's own process, if it is known apart from the one that the host started, and if its end was not noticed yet.
    pub(crate) own: Option<GuestProcess>,
    /// All that was started for the guest, if its paused copies are kept.
    pub(crate) boundary: Option<Arc<Boundary>>,
    /// The checkpoint that the guest comes from, if its paused copy took the place of another one. All other checkpoints are gone.
    pub(crate) copied: Option<PausedCheckpoint>,
}

impl Kin {
    /// Waits for the end of the guest's own process. If it is not known apart, waits for ever. Can be dropped and called again.
    pub async fn gone(&mut self) {
        match &mut self.own {
            Some(process) => {
                process.wait().await;
                self.own = None;
            }
            None => std::future::pending().await,
        }
    }
}

impl Copies {
    /// No copies yet. `are_made` is true if the session has checkpoints.
    pub fn new(are_made: bool) -> Self {
        Self {
            are_made,
            ..Self::default()
        }
    }

    /// Has a checkpoint that was made for another session.
    pub fn begin_with(&mut self, checkpoint: &PausedCheckpoint) {
        self.boundary = Some(Arc::clone(&checkpoint.copy.boundary));
        self.add(checkpoint.number, &checkpoint.copy);
    }

    /// Starts a guest without a state. If there are copies, it comes from the beginning of the guest that made them. Otherwise `anew` starts it.
    pub fn launch(
        &self,
        anew: impl Future<Output = Result<Guest, Error>> + Send + 'static,
    ) -> BoxFuture<'static, Result<Guest, Error>> {
        let are_made = self.are_made;
        let boundary = self.boundary.clone().filter(|boundary| self.are_within(boundary));
        let (paused, all) = self.others();
        Box::pin(async move {
            if let Some((boundary, beginning)) = boundary.as_ref().and_then(|its| Some((its, its.beginning()?))) {
                match boundary.revive(beginning, &paused, &all).await {
                    Ok(guest) => return Ok(guest),
                    Err(error) => tracing::debug!(%error, "a guest does not come from its beginning"),
                }
            }
            let guest = anew.await?;
            Ok(if are_made { with_beginning(guest).await } else { guest })
        })
    }

    /// Starts a copy of a paused copy as the sandbox's guest.
    pub fn revive(&self, checkpoint: u32) -> BoxFuture<'static, Result<Guest, Error>> {
        let copy = self.copies.get(&checkpoint).and_then(Weak::upgrade);
        let (paused, all) = self.others();
        let heir = self.heir.clone();
        Box::pin(async move {
            let copy = copy.ok_or_else(|| Error::GuestLost("its process is gone".to_owned()))?;
            match copy.boundary.revive(&copy.guest, &paused, &all).await {
                Ok(guest) => Ok(guest),
                Err(error) => heir.go_on(checkpoint).await.unwrap_or(Err(error)),
            }
        })
    }

    /// Makes so many copies of a paused copy, and one more from which the sandbox goes on, each in namespaces of its own. The guest so
    /// far ends before.
    pub fn spread(
        &self,
        checkpoint: u32,
        limits: CopyLimits,
        count: usize,
        given_up: CancellationToken,
    ) -> BoxFuture<'static, Result<Spread, String>> {
        let copy = self.copies.get(&checkpoint).and_then(Weak::upgrade);
        let (_, paused) = self.others();
        let heir = self.heir.clone();
        Box::pin(async move {
            let copy = copy.ok_or("its process is gone")?;
            let boundary = Arc::clone(&copy.boundary);
            let _guard = given_up.clone().drop_guard();
            let spreading = Spreading {
                checkpoint,
                copy,
                limits,
                count,
                paused,
                given_up,
                heir: heir.clone(),
            };
            // A task of its own: what is under way comes to its end even if nobody waits for it any more.
            let spreading = tokio::spawn(boundary.spread(spreading));
            let others = spreading.await.map_err(|error| error.to_string())??;
            let own = Box::pin(async move {
                let gone = || Err(Error::GuestLost("its own copy is gone".to_owned()));
                heir.go_on(checkpoint).await.unwrap_or_else(gone)
            });
            Ok(Spread { own, others })
        })
    }

    /// Takes note of a guest that has started. Copies within another boundary have limits of their own, so they must end: returns their numbers,
    /// and the process to end with them.
    pub fn started(&mut self, kin: &Kin) -> (Vec<u32>, Option<GuestProcess>) {
        let Some(boundary) = &kin.boundary else {
            return (Vec::new(), None);
        };
        self.heir.end();
        let before = self.boundary.replace(Arc::clone(boundary));
        if let Some(checkpoint) = &kin.copied {
            self.copies.clear();
            self.add(checkpoint.number, &checkpoint.copy);
            return (Vec::new(), None);
        }
        match before.filter(|before| !Arc::ptr_eq(before, boundary)) {
            None => (Vec::new(), None),
            Some(before) => {
                let copies = self.alive().filter(|(_, copy)| Arc::ptr_eq(&copy.boundary, &before));
                (copies.map(|(number, _)| number).collect(), before.take_root())
            }
        }
    }

    /// Has the guest make a paused copy of itself. `memory_bytes` is the session's limit.
    ///
    /// # Errors
    /// The guest makes no copies, or cannot be copied now. The message says why.
    pub fn pause(
        &mut self,
        checkpoint: u32,
        memory_bytes: f64,
        process: &GuestProcess,
        kin: &Kin,
    ) -> BoxFuture<'static, Result<PausedCopy, String>> {
        let held = process.held_bytes();
        if held.is_none() {
            self.note_written(checkpoint, kin);
        }
        let means = kin.forker.as_ref().zip(kin.boundary.as_ref());
        let room = held.map(|held| room(memory_bytes, held));
        let means = means.map(|(forker, boundary)| (forker.pause(room), Arc::clone(boundary)));
        Box::pin(async move {
            let Some((pausing, boundary)) = means else {
                return Err("guests of this kind make no copies of themselves".to_owned());
            };
            let guest = pausing.await.map_err(|error| {
                let why = error.to_string();
                let why = why.rsplit_once("could not be copied: ").map_or(&*why, |(_, why)| why);
                why.to_owned()
            })?;
            Ok(PausedCopy { guest, boundary })
        })
    }

    /// Adds a copy.
    pub fn add(&mut self, checkpoint: u32, copy: &Arc<PausedCopy>) {
        self.copies.retain(|_, copy| copy.strong_count() > 0);
        self.copies.insert(checkpoint, Arc::downgrade(copy));
    }

    /// Removes a copy. It must end now.
    pub fn remove(&mut self, checkpoint: u32) -> Option<Arc<PausedCopy>> {
        self.copies.remove(&checkpoint)?.upgrade()
    }

    /// The numbers of copies that have ended and were not removed.
    pub fn ended(&self) -> Vec<u32> {
        let copies = self.copies.iter();
        let has_ended = |copy: Arc<PausedCopy>| copy.guest.has_ended() && !copy.boundary.is_left();
        let ended = copies.filter(|(_, copy)| copy.upgrade().is_none_or(has_ended));
        ended.map(|(number, _)| *number).collect()
    }

    /// The oldest copy, if the guest and its copies take too much of `memory_bytes` together. Look again once that copy is gone.
    pub fn too_much(&self, memory_bytes: f64, process: &GuestProcess, kin: &Kin) -> Option<u32> {
        let oldest = self.alive().next().map(|(number, _)| number);
        let bytes = oldest.and_then(|_| self.memory(process, kin));
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let takes_more = bytes.is_some_and(|bytes| bytes as f64 > memory_bytes * MEMORY_SHARE);
        oldest.filter(|_| takes_more)
    }

    /// Ends a guest and keeps its copies. Gives the process back if there are none, and everything has to end.
    pub fn end_guest(&self, process: GuestProcess, kin: Kin) -> Option<GuestProcess> {
        let boundary = kin.boundary.filter(|boundary| self.are_within(boundary));
        let Some(boundary) = boundary else { return Some(process) };
        if let Some(mut own) = kin.own {
            own.kill();
        }
        self.alive().for_each(|(_, copy)| copy.guest.stop());
        boundary.end_guest(process, self.ids(&boundary).into_iter())
    }

    /// Returns true if the guest has copies, so that the process that the host started does not end with it.
    pub fn has_copies_of(&self, kin: &Kin) -> bool {
        kin.boundary.as_ref().is_some_and(|boundary| self.are_within(boundary))
    }

    /// Ends all copies. Returns the process that ends everything around them.
    pub fn end_all(&mut self) -> Option<GuestProcess> {
        self.heir.end();
        for (_, copy) in std::mem::take(&mut self.copies) {
            if let Some(copy) = copy.upgrade() {
                copy.guest.kill();
            }
        }
        let boundary = self.boundary.take()?;
        if let Some(beginning) = boundary.beginning() {
            beginning.kill();
        }
        boundary.take_root()
    }

    /// The copies that live.
    fn alive(&self) -> impl Iterator<Item = (u32, Arc<PausedCopy>)> {
        let copies = self
            .copies
            .iter()
            .filter_map(|(number, copy)| Some((*number, copy.upgrade()?)));
        copies.filter(|(_, copy)| !copy.guest.has_ended())
    }

    /// The numbers of all paused processes, as the guest knows them, and all copies.
    fn others(&self) -> (Vec<u32>, Vec<Arc<PausedCopy>>) {
        let all: Vec<_> = self.alive().map(|(_, copy)| copy).collect();
        let beginning = self.boundary.iter().filter_map(|boundary| boundary.beginning());
        let paused = all.iter().map(|copy| &copy.guest).chain(beginning);
        (paused.filter_map(PausedGuest::inner_id).collect(), all)
    }

    /// The numbers of the processes of copies in a boundary.
    fn ids(&self, boundary: &Arc<Boundary>) -> Vec<u32> {
        let within = self.alive().filter(|(_, copy)| Arc::ptr_eq(&copy.boundary, boundary));
        within.filter_map(|(_, copy)| copy.guest.id()).collect()
    }

    fn are_within(&self, boundary: &Arc<Boundary>) -> bool {
        !self.ids(boundary).is_empty()
    }

    /// Bytes that the guest and its paused copies take together.
    fn memory(&self, process: &GuestProcess, kin: &Kin) -> Option<u64> {
        if let Some(bytes) = process.held_bytes() {
            return Some(bytes);
        }
        let copies: Vec<_> = self.alive().collect();
        let (oldest, newest) = (copies.first()?.0, copies.last()?.0);
        let later = self
            .written
            .range(oldest..=newest)
            .skip_while(|(number, _)| **number == oldest);
        let written = later.fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let ids: Vec<u32> = copies.iter().filter_map(|(_, copy)| copy.guest.id()).collect();
        Some(memory::at_most(kin.own.as_ref()?.id()?, &ids, written))
    }

    /// Takes note of the bytes that the guest does not share with its copies, before it makes another one. Nothing else tells them without a
    /// control group.
    fn note_written(&mut self, checkpoint: u32, kin: &Kin) {
        let own = kin.own.as_ref().and_then(GuestProcess::id);
        let bytes = own.and_then(|own| memory::unshared_bytes(own).or_else(|_| memory::own_bytes(own)).ok());
        // Copies that are gone may have had pages that later ones share.
        let numbers: Vec<u32> = self.alive().map(|(number, _)| number).collect();
        let (oldest, newest) = (numbers.first().copied(), numbers.last().copied());
        self.written
            .retain(|number, _| Some(*number) > oldest && Some(*number) <= newest);
        self.written.insert(checkpoint, bytes.unwrap_or(u64::MAX));
    }
}

/// The memory that a guest may take ahead of its next execution: half of what it can take before a copy is given up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "far below 2^53, and never negative"
)]
fn room(memory_bytes: f64, held_bytes: u64) -> u64 {
    ((memory_bytes * MEMORY_SHARE - held_bytes as f64) / 2.0).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::room;

    #[test]
    fn a_guest_takes_nothing_ahead_that_would_cost_a_copy() {
        let limit = f64::from(128 << 20);
        assert_eq!(room(limit, 32 << 20), 32 << 20);
        assert_eq!(room(limit, 96 << 20), 0);
        assert_eq!(room(limit, 120 << 20), 0);
    }
}
