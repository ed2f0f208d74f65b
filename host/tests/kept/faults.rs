//! Stores that fail, and journals that are damaged: no call is made twice whose answer was given, and a good state stays in use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use sandglass_host::kept::{Kept, KeptPlace, ResumeOptions};
use sandglass_host::{BackendKind, StateStatus};
use sandglass_states::{Listed, MasterKey, MemoryStore, Name, Place, StateError, States, Store, Version};
use tempfile::TempDir;

use super::{all, ends_while_it_waits, ok, open, questions, some};

/// A store in memory that fails in some ways.
#[derive(Debug)]
pub(super) struct Faulty {
    store: MemoryStore,
    /// The sum of the constants below.
    pub(super) faults: AtomicU8,
    /// The first number of a journal's part that it refuses to write.
    parts: AtomicU32,
    /// The number of refs that it writes before it refuses to.
    pub(super) refs: AtomicU32,
}

/// It refuses to write states.
pub(super) const NO_STATES: u8 = 1;
/// It refuses to read anything.
pub(super) const NO_READS: u8 = 2;
/// It refuses to remove anything.
const NO_REMOVALS: u8 = 4;
/// It refuses to write the next object.
pub(super) const ONE_OBJECT: u8 = 8;

impl Default for Faulty {
    fn default() -> Self {
        Self {
            store: MemoryStore::default(),
            faults: AtomicU8::new(0),
            parts: AtomicU32::new(u32::MAX),
            refs: AtomicU32::new(0),
        }
    }
}

impl Faulty {
    fn has(&self, fault: u8) -> Result<(), StateError> {
        fails_if(self.faults.load(Ordering::SeqCst) & fault != 0)
    }

    pub(super) fn place(self: &Arc<Self>) -> KeptPlace {
        let key = MasterKey::parse(&"5a".repeat(32)).unwrap();
        let tenant = States::new(Arc::<Self>::clone(self), key)
            .unwrap()
            .tenant("ann")
            .unwrap();
        KeptPlace::new(Arc::new(tenant), "01".repeat(16).parse().unwrap())
    }
}

fn fails_if(fails: bool) -> Result<(), StateError> {
    match fails {
        false => Ok(()),
        true => Err(StateError::io("a fault", std::io::Error::other("of the test"))),
    }
}

impl Store for Faulty {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.has(NO_READS)?;
        self.store.read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        if let Name::Ref(..) = name {
            let left = |refs: u32| refs.checked_sub(1);
            if self
                .refs
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
                .is_err()
            {
                self.has(NO_STATES)?;
            }
        }
        self.store.swap(name, bytes, seen)
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        if let Name::Part(_, _, _, number) = name {
            fails_if(*number >= self.parts.load(Ordering::SeqCst))?;
        }
        if let Name::Object(..) = name {
            fails_if(self.faults.fetch_and(!ONE_OBJECT, Ordering::SeqCst) & ONE_OBJECT != 0)?;
        }
        self.store.write(name, bytes)
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.store.touch(name, bytes)
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.has(NO_REMOVALS)?;
        self.store.remove(name)
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        self.store.list(place)
    }
}

/// With a part missing, calls would be made twice.
#[tokio::test]
async fn a_journal_that_cannot_be_written_is_removed_and_the_execution_goes_on() {
    for refused in 0..4 {
        let store = Arc::new(Faulty::default());
        store.parts.store(refused, Ordering::SeqCst);
        let place = store.place();
        let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
        ok(&kept.execute("x = 1").await.unwrap());
        let ran = kept.execute("[ask('a'), ask('b')]").await.unwrap();
        assert_eq!(ok(&ran), "['answer to a', 'answer to b']", "part {refused}");
        kept.destroy().await;
        let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
        let run = |kept: Arc<Kept>| async move { kept.execute("x = 2\nask('a?')").await };
        assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
        let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
        assert_eq!(kept.pending().is_some(), refused == 3, "part {refused}"); // begin, notes, call
        if refused < 3 {
            let next = kept.execute("x").await.unwrap();
            assert_eq!((ok(&next).as_str(), next.state.restored_to), ("1", Some(2)));
        }
    }
}

/// A later process would go by the part of the journal that cannot be removed. So nothing goes on that the store does not have.
#[tokio::test]
async fn a_journal_that_can_neither_be_written_nor_removed_ends_the_guest() {
    // The parts are: begin, notes, call a, answer, notes, call b, answer.
    for (refused, made, again) in [
        (2, &[][..], &["a", "b"][..]),
        (3, &["a"], &["a", "b"]),
        (5, &["a"], &["b"]),
    ] {
        let store = Arc::new(Faulty::default());
        let place = store.place();
        let (kept, calls) = open(&place, BackendKind::Subprocess, all).await;
        ok(&kept.execute("x = 1").await.unwrap());
        store.parts.store(refused, Ordering::SeqCst);
        store.faults.store(NO_REMOVALS, Ordering::SeqCst);
        let error = kept.execute("x = 2\n[ask('a'), ask('b')]").await.unwrap_err();
        assert_eq!(error.code(), "persist_failed", "{error}");
        assert!(error.to_string().contains("neither be written nor removed"), "{error}");
        assert_eq!(questions(&calls), made, "part {refused}");

        store.parts.store(u32::MAX, Ordering::SeqCst);
        store.faults.store(0, Ordering::SeqCst);
        let resumed = kept.resume(ResumeOptions::default()).await.unwrap();
        assert_eq!(ok(&resumed), "['answer to a', 'answer to b']");
        assert_eq!(&questions(&calls)[made.len()..], again, "part {refused}");
        kept.destroy().await;
        let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
        assert_eq!(
            (kept.pending(), ok(&kept.execute("x").await.unwrap())),
            (None, "2".to_owned())
        );
    }
}

/// The files of the journal's parts, in order.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let inner = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let journals = inner(folder).into_iter().map(|tenant| tenant.join("journals"));
    let sessions = journals
        .filter(|folder| folder.is_dir())
        .flat_map(|folder| inner(&folder));
    let mut parts: Vec<_> = sessions.flat_map(|session| inner(&session)).collect();
    parts.sort();
    parts
}

/// Damage to the files of the parts.
type Damage = fn(&[PathBuf]);

fn cut(part: &Path) {
    let bytes = fs::read(part).unwrap();
    fs::write(part, &bytes[..bytes.len() / 2]).unwrap();
}

#[tokio::test]
async fn a_damaged_journal_does_not_lock_the_state_out() {
    let damages: [(&str, Damage); 4] = [
        ("its first part is cut", |parts| cut(&parts[0])),
        ("its last part is cut", |parts| cut(parts.last().unwrap())),
        ("a part is missing", |parts| fs::remove_file(&parts[1]).unwrap()),
        ("a part is another one's", |parts| {
            fs::copy(&parts[0], &parts[1]).unwrap();
        }),
    ];
    for (damage, make) in damages {
        let folder = TempDir::new().unwrap();
        let place = KeptPlace::in_folder(folder.path()).unwrap();
        let (kept, calls) = open(&place, BackendKind::Subprocess, some).await;
        ok(&kept.execute("x = 1").await.unwrap());
        let run = |kept: Arc<Kept>| async move { kept.execute("x = 2\nask('x?')").await };
        assert_eq!(ends_while_it_waits(kept, &calls, run).await.code(), "destroyed");
        let there = parts(folder.path());
        assert_eq!(there.len(), 3, "{there:?}");
        make(&there);

        let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
        assert_eq!(kept.pending(), None, "{damage}");
        let next = kept.execute("x").await.unwrap();
        assert_eq!((ok(&next).as_str(), next.state.restored_to), ("1", Some(1)), "{damage}");
        let lost = next.state.lost.clone().unwrap_or_default();
        let reason = "it was under way when the process ended, and cannot be resumed: its journal is damaged: ";
        let told = lost
            .iter()
            .filter(|lost| lost.name == "execution 2" && lost.reason.starts_with(reason));
        assert_eq!(told.count(), 1, "{damage}: {lost:?}");
        assert!(parts(folder.path()).is_empty(), "the journal is gone");
        kept.destroy().await;
        let (kept, _) = open(&place, BackendKind::Subprocess, all).await;
        let next = kept.execute("x").await.unwrap();
        assert_eq!(
            (ok(&next), next.state.status),
            ("1".to_owned(), StateStatus::Kept),
            "{damage}"
        );
    }
}
