//! The checkpoints of a channel's session: paused copies of its guest, which the client orders, revives and drops.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sandglass_host::guest::copies::{Copies, Kin, PausedCopy};
use sandglass_host::guest::{Guest, GuestProcess};
use sandglass_host::launcher::Launcher;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The time for all processes of a session to end.
const ENDING: Duration = Duration::from_secs(10);

/// The paused copies of a session's guests.
pub struct Checkpoints {
    copies: Copies,
    kept: BTreeMap<u32, Arc<PausedCopy>>,
    /// The most copies that a client may keep. One more may be there while the client drops another.
    most: usize,
    /// The session's limit of memory.
    memory_bytes: f64,
    making: Option<(u32, BoxFuture<'static, Result<PausedCopy, String>>)>,
    /// Copies that were given up, and are not gone yet.
    ending: JoinSet<()>,
}

/// An event of the copies.
pub enum Happened {
    /// The guest has made a copy, or has not: then the reason.
    Made(u32, Result<(), String>),
    /// A copy that was given up is gone, and its memory is free.
    Ended,
}

impl Checkpoints {
    /// No copies yet, and never more than `most`.
    pub fn new(most: u32, memory_bytes: f64) -> Self {
        Self {
            copies: Copies::new(most > 0),
            kept: BTreeMap::new(),
            most: most as usize,
            memory_bytes,
            making: None,
            ending: JoinSet::new(),
        }
    }

    /// Starts a guest without a state.
    pub fn launch(&self, launcher: Arc<dyn Launcher>) -> BoxFuture<'static, Result<Guest, sandglass_core::Error>> {
        self.copies.launch(async move { launcher.launch().await })
    }

    /// Starts a guest with the state of a checkpoint.
    pub fn revive(&self, checkpoint: u32) -> BoxFuture<'static, Result<Guest, sandglass_core::Error>> {
        self.copies.revive(checkpoint)
    }

    /// Takes note of a guest that has started. Returns the checkpoints that are gone by this.
    pub fn started(&mut self, kin: &Kin) -> Vec<u32> {
        let (left, root) = self.copies.started(kin);
        for checkpoint in &left {
            self.give_up(*checkpoint);
        }
        root.into_iter().for_each(|root| self.end(root));
        left
    }

    /// Has the guest make a copy.
    ///
    /// # Errors
    /// The reason why it is not asked to.
    pub fn pause(&mut self, checkpoint: u32, process: &GuestProcess, kin: &Kin) -> Result<(), String> {
        if self.making.is_some() {
            return Err("another copy is being made".to_owned());
        }
        if self.kept.len() > self.most {
            return Err(format!("the session keeps {} checkpoints at most", self.most));
        }
        self.making = Some((
            checkpoint,
            self.copies.pause(checkpoint, self.memory_bytes, process, kin),
        ));
        Ok(())
    }

    /// The next event of the copies. Can be dropped and called again.
    pub async fn next(&mut self) -> Happened {
        let Self { making, ending, .. } = self;
        let made = async {
            match making {
                Some((checkpoint, making)) => (*checkpoint, making.await),
                None => pending().await,
            }
        };
        let (checkpoint, made) = tokio::select! {
            made = made => made,
            Some(_) = ending.join_next() => return Happened::Ended,
        };
        self.making = None;
        let made = made.map(|copy| {
            let copy = Arc::new(copy);
            self.copies.add(checkpoint, &copy);
            self.kept.insert(checkpoint, copy);
        });
        Happened::Made(checkpoint, made)
    }

    /// Drops a checkpoint, as the client wants.
    pub fn forget(&mut self, checkpoint: u32) {
        self.kept.remove(&checkpoint);
    }

    /// Gives up the oldest checkpoint if memory is short. Returns its number.
    pub fn look_at_memory(&mut self, process: &GuestProcess, kin: &Kin) -> Option<u32> {
        let oldest = self.copies.too_much(self.memory_bytes, process, kin)?;
        self.give_up(oldest);
        Some(oldest)
    }

    /// Gives up the checkpoints whose processes have ended. Returns their numbers.
    pub fn gone(&mut self) -> Vec<u32> {
        let ended = self.copies.ended();
        let kept = |checkpoint: &u32| self.kept.contains_key(checkpoint);
        let gone = ended.iter().copied().filter(kept).collect();
        for checkpoint in ended {
            self.give_up(checkpoint);
        }
        gone
    }

    /// Returns true if a guest has copies, so that the process that was started for it does not end with it.
    pub fn has_copies_of(&self, kin: &Kin) -> bool {
        self.copies.has_copies_of(kin)
    }

    /// Ends a guest and keeps its copies.
    pub fn end_guest(&mut self, process: GuestProcess, kin: Kin) {
        let left = self.copies.end_guest(process, kin);
        left.into_iter().for_each(|process| self.end(process));
    }

    /// Gives up the copy that is being made, because its guest ends.
    pub fn guest_ends(&mut self) {
        self.making = None;
    }

    /// Ends all copies, and waits for their end. Returns their numbers.
    pub async fn end_all(&mut self) -> Vec<u32> {
        self.making = None;
        let root = self.copies.end_all();
        root.into_iter().for_each(|root| self.end(root));
        let all = std::mem::take(&mut self.kept).into_keys().collect();
        let gone = async { while self.ending.join_next().await.is_some() {} };
        let _ = timeout(ENDING, gone).await;
        all
    }

    fn give_up(&mut self, checkpoint: u32) {
        self.kept.remove(&checkpoint);
        let copy = self.copies.remove(checkpoint);
        // A guest may be coming from the copy just now.
        if let Some(copy) = copy.and_then(Arc::into_inner) {
            self.ending.spawn(copy.end());
        }
    }

    fn end(&mut self, mut process: GuestProcess) {
        process.kill();
        self.ending.spawn(async move {
            process.wait().await;
        });
    }
}
