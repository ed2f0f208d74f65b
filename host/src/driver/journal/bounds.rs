//! The bounds of a kept sandbox in a store that has other users, too.

use std::fmt;
use std::io::{Error as IoError, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_states::{StateError, Tenant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of a kept sandbox's variables, contexts and files.
pub const MOST_BYTES: u64 = 256 << 20;

/// The age of objects in a store that servers share, after which no late request of this server, or of one that has ended, names them.
const LATE: Duration = Duration::from_secs(60);
const LATE_OF_OTHERS: Duration = Duration::from_secs(3600);

/// Takes room for so many bytes, in place of what it took before. Refuses with the reason, and then what it took before stays taken.
type Resize = Box<dyn Fn(u64) -> Result<(), String> + Send + Sync>;
/// Returns true if the sandbox may take so many bytes with executions that can run again, in place of what it took before.
type Spare = Box<dyn Fn(u64, u64) -> bool + Send + Sync>;

/// The bytes that the sandboxes of a tenant have written since their earlier states were last collected. Each state leaves those of the one
/// before to the next collection, and no quota counts them until then.
#[derive(Debug)]
pub struct Garbage {
    most: u64,
    written: AtomicU64,
}

impl Garbage {
    /// At most so many bytes are written between two collections, except for the last state.
    pub fn new(most: u64) -> Self {
        Self {
            most,
            written: AtomicU64::new(0),
        }
    }

    fn add(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Collects what nobody needs, if enough was written. Blocks as long as the store does.
    fn collect(&self, tenant: &Tenant) {
        let written = self.written.load(Ordering::Acquire);
        if written < self.most {
            return;
        }
        // Another one collects if it is not the same any more.
        let is_first = self
            .written
            .compare_exchange(written, 0, Ordering::AcqRel, Ordering::Acquire);
        // No age is needed in a store of one server: writes of this tenant wait meanwhile, and nobody else writes. Elsewhere, a request that
        // was given up may still arrive.
        let (own, others) = match tenant.is_alone() {
            true => (Duration::ZERO, Duration::ZERO),
            false => (LATE, LATE_OF_OTHERS),
        };
        if is_first.is_ok()
            && let Err(error) = tenant.collect_aged(own, others, || true)
        {
            tracing::error!(%error, "earlier states of kept sandboxes were not removed");
        }
    }
}

/// The bounds of a kept sandbox in a store that has other users, too.
pub struct KeptBounds {
    most_bytes: u64,
    turns: Arc<Semaphore>,
    resize: Resize,
    spare: Option<Spare>,
    garbage: Option<Arc<Garbage>>,
    taken: Mutex<Taken>,
}

/// The bytes that a sandbox takes in the store.
#[derive(Debug, Clone, Copy, Default)]
struct Taken {
    state: u64,
    journal: u64,
    /// Executions that can run again.
    ended: u64,
}

impl Taken {
    fn sum(self) -> u64 {
        self.state.saturating_add(self.journal).saturating_add(self.ended)
    }
}

impl fmt::Debug for KeptBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("KeptBounds")
            .field("most_bytes", &self.most_bytes)
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl KeptBounds {
    /// Bounds of a sandbox whose state takes `state` bytes now, and its journal `journal` bytes.
    ///
    /// A state that is written may have `most_bytes`, and [`MOST_BYTES`] at most. Each state that is in memory has one of the `turns`
    /// meanwhile. `resize` hears the bytes of state and journal together before they grow, and after they shrink. It may refuse more bytes, and
    /// then those before count on.
    pub fn new(
        most_bytes: u64,
        turns: Arc<Semaphore>,
        (state, journal): (u64, u64),
        resize: impl Fn(u64) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            most_bytes: most_bytes.min(MOST_BYTES),
            turns,
            resize: Box::new(resize),
            spare: None,
            garbage: None,
            taken: Mutex::new(Taken {
                state,
                journal,
                ended: 0,
            }),
        }
    }

    /// Has the sandbox keep executions that can run again, which take `ended` bytes now. `spare` hears the bytes of all that the sandbox takes
    /// and would take, and returns true if that is room to spare. Their room is the first to be given up.
    #[must_use]
    pub fn with_ended(mut self, ended: u64, spare: impl Fn(u64, u64) -> bool + Send + Sync + 'static) -> Self {
        self.spare = Some(Box::new(spare));
        self.taken.get_mut().unwrap_or_else(PoisonError::into_inner).ended = ended;
        self
    }

    /// Has the sandbox collect earlier states as soon as its tenant has written much. The caller collects from time to time as well.
    #[must_use]
    pub fn collecting(mut self, garbage: Arc<Garbage>) -> Self {
        self.garbage = Some(garbage);
        self
    }

    /// Notes bytes that were written, or of which some may have been.
    pub(crate) fn wrote(&self, bytes: u64) {
        if let Some(garbage) = &self.garbage {
            garbage.add(bytes);
        }
    }

    /// Collects what nobody needs, if enough was written. Blocks as long as the store does.
    pub(crate) fn collect(&self, tenant: &Tenant) {
        if let Some(garbage) = &self.garbage {
            garbage.collect(tenant);
        }
    }

    /// Notes what was found in the store anew, because another server may have written it.
    pub fn is_as(&self, found: &Self) {
        let found = found.taken();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if found.sum() != taken.sum() {
            let _ = (self.resize)(found.sum()); // another server may have stored more than this one allows
        }
        *taken = found;
    }

    /// The bytes that the sandbox takes in the store.
    pub fn bytes(&self) -> u64 {
        self.taken().sum()
    }

    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    pub(crate) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    /// Takes room for a state that is about to be written. The one before it stays until then. If only ended executions are in the way, they
    /// give up their room: then this returns false, and the state is to be written without them.
    pub(crate) fn begin_state(&self, bytes: u64) -> Result<bool, StateError> {
        let begun = self.change(|taken| taken.state = taken.state.max(bytes));
        match begun {
            Ok(()) => Ok(self.spare.is_some()),
            Err(refused) if self.taken().ended == 0 => Err(refused),
            Err(_) => self
                .change(|taken| (taken.state, taken.ended) = (taken.state.max(bytes), 0))
                .map(|()| false),
        }
    }

    /// Takes room for executions that can run again, with a state that is about to be written. Returns false if there is none to spare.
    pub(crate) fn begin_ended(&self, bytes: u64) -> bool {
        let before = self.taken();
        let next = Taken { ended: bytes, ..before };
        let fits = self.spare.as_ref().is_some_and(|spare| spare(before.sum(), next.sum()));
        fits && self.change(|taken| taken.ended = taken.ended.max(bytes)).is_ok()
    }

    /// Notes that a state has taken the place of the one before, with executions that can run again.
    pub(crate) fn end_state(&self, bytes: u64, ended: u64) -> Result<(), StateError> {
        self.change(|taken| (taken.state, taken.ended) = (bytes, ended))
    }

    fn taken(&self) -> Taken {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes room for a part of the journal that is about to be written.
    pub(crate) fn add_part(&self, bytes: u64) -> Result<(), StateError> {
        self.change(|taken| taken.journal = taken.journal.saturating_add(bytes))
    }

    /// Notes that there is no journal.
    pub(crate) fn end_journal(&self) -> Result<(), StateError> {
        self.change(|taken| taken.journal = 0)
    }

    fn change(&self, change: impl FnOnce(&mut Taken)) -> Result<(), StateError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = *taken;
        change(&mut next);
        if next.sum() != taken.sum()
            && let Err(why) = (self.resize)(next.sum())
            && next.sum() > taken.sum()
        {
            let what = "the kept sandbox may take no more room in the store";
            return Err(StateError::io(what, IoError::new(ErrorKind::QuotaExceeded, why)));
        }
        *taken = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Bounds of 100 bytes, and the bytes that they heard last.
    fn bounds(state: u64, journal: u64) -> (KeptBounds, Arc<AtomicU64>) {
        let heard = Arc::new(AtomicU64::new(0));
        let hears = Arc::clone(&heard);
        let resize = move |bytes| match bytes {
            ..=100 => {
                hears.store(bytes, Ordering::SeqCst);
                Ok(())
            }
            _ => Err("100 bytes at most".to_owned()),
        };
        (
            KeptBounds::new(u64::MAX, Arc::new(Semaphore::new(1)), (state, journal), resize),
            heard,
        )
    }

    #[test]
    fn a_state_counts_beside_the_journal_until_it_has_taken_the_place_of_the_one_before() {
        let (bounds, heard) = bounds(50, 20);
        bounds.begin_state(10).unwrap();
        assert_eq!(bounds.bytes(), 70, "the larger one is still there");
        bounds.end_state(10, 0).unwrap();
        bounds.end_journal().unwrap();
        assert_eq!((bounds.bytes(), heard.load(Ordering::SeqCst)), (10, 10));
        bounds.add_part(90).unwrap();
        let refused = bounds.add_part(1).unwrap_err().to_string();
        assert!(refused.contains("100 bytes at most"), "{refused}");
        assert!(bounds.begin_state(11).is_err());
        assert_eq!((bounds.bytes(), bounds.most_bytes()), (100, MOST_BYTES));
    }

    #[test]
    fn ended_executions_take_room_to_spare_only_and_are_the_first_to_give_it_up() {
        let (bounds, heard) = bounds(30, 0);
        let bounds = bounds.with_ended(10, |_, next| next <= 50);
        assert_eq!(bounds.bytes(), 40);
        assert!(bounds.begin_state(20).unwrap());
        assert!(!bounds.begin_ended(21), "more than half");
        assert!(bounds.begin_ended(20));
        bounds.end_state(30, 20).unwrap();
        assert_eq!((bounds.bytes(), heard.load(Ordering::SeqCst)), (50, 50));
        // A state has the room of the executions, if it needs it.
        assert!(!bounds.begin_state(90).unwrap());
        assert!(bounds.begin_state(101).is_err());
        bounds.end_state(90, 0).unwrap();
        assert_eq!((bounds.bytes(), heard.load(Ordering::SeqCst)), (90, 90));
    }

    #[test]
    fn what_is_too_large_already_may_shrink() {
        let (bounds, heard) = bounds(300, 0);
        assert!(bounds.begin_state(301).is_err());
        bounds.end_state(200, 0).unwrap();
        assert_eq!((bounds.bytes(), heard.load(Ordering::SeqCst)), (200, 0));
        bounds.end_state(60, 0).unwrap();
        assert_eq!((bounds.bytes(), heard.load(Ordering::SeqCst)), (60, 60));
    }
}
