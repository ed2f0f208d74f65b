//! States that come and go: what is written is read, and everything else is refused.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use sandglass_states::{
    FolderStore, JournalId, Listed, Lost, MasterKey, MemoryStore, Name, Place, Saved, SavedFile, SessionId, StateError,
    States, Store, Tenant, Version, part_bytes,
};
use serde_json::json;
use tempfile::TempDir;

const MOST: u64 = 1 << 30;

fn key() -> MasterKey {
    MasterKey::parse(&"5a".repeat(32)).unwrap()
}

fn session(number: u8) -> SessionId {
    format!("{number:032x}").parse().unwrap()
}

fn in_folder() -> (TempDir, States) {
    let folder = TempDir::new().unwrap();
    let states = States::new(Arc::new(FolderStore::open(folder.path()).unwrap()), key()).unwrap();
    (folder, states)
}

fn in_memory() -> (Arc<MemoryStore>, Tenant) {
    let store = Arc::new(MemoryStore::default());
    let states = States::new(Arc::clone(&store) as Arc<dyn Store>, key()).unwrap();
    let ann = states.tenant("ann").unwrap();
    (store, ann)
}

fn some_state() -> Saved {
    Saved {
        execution: 7,
        settings: json!({ "backend": "bubblewrap" }),
        past: json!({ "contexts": [0, 1] }),
        bodies: vec![vec![1; 10_000].into(), vec![].into()],
        state: b"variables".as_slice().into(),
        lost: vec![Lost {
            name: "f".to_owned(),
            reason: "an open file".to_owned(),
        }],
        files: vec![SavedFile {
            path: "../of/the guest\u{0}".to_owned(),
            body: b"contents".as_slice().into(),
        }],
        folders: vec!["empty".to_owned()],
    }
}

/// All files of a folder and below.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn what_is_written_is_read_by_the_next_process() {
    let folder = TempDir::new().unwrap();
    let saved = some_state();
    for round in 0..3 {
        let states = States::new(Arc::new(FolderStore::open(folder.path()).unwrap()), key()).unwrap();
        let ann = states.tenant("ann").unwrap();
        let before = (round > 0).then(|| saved.clone());
        assert_eq!(ann.read(session(1), MOST).unwrap(), before);
        let written = ann.write_about(session(1), &saved, json!("a fact")).unwrap();
        assert_eq!(
            written.new_objects == 0,
            round > 0,
            "an object that is there is not written again"
        );
        let head = ann.head(session(1)).unwrap().unwrap();
        assert_eq!((head.execution, head.awake, head.about), (7, false, json!("a fact")));
        assert_eq!(head.bytes, saved.bytes());
    }
}

/// Guests choose paths and names. Without this, a state of nothing but names would be free.
#[test]
fn texts_count_as_bytes() {
    let long = "x".repeat(10_000);
    let empty = Saved::default().bytes();
    let with = |saved: Saved| saved.bytes() - empty;
    let file = SavedFile {
        path: long.clone(),
        body: Vec::new().into(),
    };
    let (name, reason) = (long.clone(), long.clone());
    let lost = vec![Lost { name, reason }];
    let counted = [
        with(Saved {
            files: vec![file],
            ..Saved::default()
        }),
        with(Saved {
            folders: vec![long.clone()],
            ..Saved::default()
        }),
        with(Saved {
            lost,
            ..Saved::default()
        }) / 2,
        with(Saved {
            settings: json!({ "a": long }),
            ..Saved::default()
        }),
        with(Saved {
            past: json!([long]),
            ..Saved::default()
        }),
    ];
    assert!(
        counted.iter().all(|bytes| (10_000..10_200).contains(bytes)),
        "{counted:?}"
    );
    // A file without a name and content still takes a place.
    let folders = vec![String::new(); 1_000];
    assert!(
        with(Saved {
            folders,
            ..Saved::default()
        }) > 50_000
    );
}

/// The time of the last use decides when a state is forgotten.
#[test]
fn the_use_of_a_state_is_noted() {
    let (_store, ann) = in_memory();
    ann.write(session(1), &some_state()).unwrap();
    let written = ann.head(session(1)).unwrap().unwrap();
    assert_eq!(written.last_used_ms(), written.written_ms);
    for _ in 0..2 {
        let before = ann.head(session(1)).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(5)); // so that the clock goes on
        ann.mark_awake(session(1)).unwrap();
        let used = ann.head(session(1)).unwrap().unwrap();
        assert!(used.last_used_ms() > before.last_used_ms() && used.awake);
        assert_eq!(used.written_ms, written.written_ms);
    }
    ann.write(session(1), &some_state()).unwrap();
    let again = ann.head(session(1)).unwrap().unwrap();
    assert!(again.last_used_ms() == again.written_ms && !again.awake);
}

#[test]
fn files_and_folders_are_the_owners_alone() {
    let (folder, states) = in_folder();
    states.tenant("ann").unwrap().write(session(1), &some_state()).unwrap();
    for file in files(folder.path()) {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "{file:?}");
    }
    let text = files(folder.path())
        .iter()
        .map(|file| fs::read(file).unwrap())
        .collect::<Vec<_>>()
        .concat();
    for secret in [b"variables".as_slice(), b"contents", b"bubblewrap"] {
        assert!(!text.windows(secret.len()).any(|window| window == secret), "{secret:?}");
    }
}

#[test]
fn a_store_is_open_once() {
    let (folder, states) = in_folder();
    let refused = FolderStore::open(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("another process"), "{refused}");
    drop(states);
    FolderStore::open(folder.path()).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = FolderStore::open(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("chmod go-w"), "{refused}");
}

#[test]
fn another_key_is_refused_at_once() {
    let (folder, states) = in_folder();
    drop(states);
    let store = Arc::new(FolderStore::open(folder.path()).unwrap());
    let other = MasterKey::parse(&"5b".repeat(32)).unwrap();
    let refused = States::new(store, other).unwrap_err().to_string();
    assert!(refused.contains("not the one"), "{refused}");
}

#[test]
fn a_key_is_made_once_for_its_owner_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("key");
    MasterKey::from_file_or_new(&path).unwrap();
    let made = fs::read_to_string(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    MasterKey::from_file_or_new(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), made);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
    assert!(
        MasterKey::from_file(&path)
            .unwrap_err()
            .to_string()
            .contains("chmod o-rwx")
    );
    for bad in ["", "short", &"0g".repeat(32), &"00".repeat(33)] {
        let refused = MasterKey::parse(bad).unwrap_err().to_string();
        assert!(
            refused.contains("64 hexadecimal digits") && !refused.contains("short"),
            "{refused}"
        );
    }
}

/// As after a kill in between: whoever sees the file sees a whole key.
#[test]
fn a_key_is_there_as_a_whole_or_not_at_all() {
    for _ in 0..50 {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("key");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| MasterKey::from_file_or_new(&path).unwrap());
            }
        });
        assert_eq!(files(folder.path()), [path], "no part is left");
    }
}

#[test]
fn tenants_see_nothing_of_each_other() {
    let (folder, states) = in_folder();
    let (ann, bob) = (states.tenant("ann").unwrap(), states.tenant("bob").unwrap());
    ann.write(session(1), &some_state()).unwrap();
    assert_eq!(bob.read(session(1), MOST).unwrap(), None);
    assert!(bob.sessions().unwrap().is_empty());
    // The same state of Bob's shares no object with Ann's, so he cannot learn what she has.
    let written = bob.write(session(1), &some_state()).unwrap();
    assert!(written.new_objects > 0);
    let names = |path: &PathBuf| path.file_name().unwrap().to_owned();
    let objects = files(folder.path())
        .into_iter()
        .filter(|path| path.parent().unwrap().ends_with("objects"));
    let mut objects: Vec<_> = objects.map(|path| names(&path)).collect();
    let all = objects.len();
    objects.sort();
    objects.dedup();
    assert_eq!(objects.len(), all);
    // A ref of Ann's in Bob's place is refused.
    let (anns, bobs): (Vec<_>, Vec<_>) = files(folder.path())
        .into_iter()
        .filter(|path| path.parent().unwrap().ends_with("sessions"))
        .partition(|path| is_anns(&ann, &bob, path));
    fs::copy(&anns[0], &bobs[0]).unwrap();
    let refused = bob.read(session(1), MOST).unwrap_err();
    assert!(matches!(refused, StateError::Damaged(_)), "{refused}");
}

#[test]
fn a_name_is_another_session_for_each_tenant() {
    let (_folder, states) = in_folder();
    let (ann, bob) = (states.tenant("ann").unwrap(), states.tenant("bob").unwrap());
    let again = states.tenant("ann").unwrap();
    assert_eq!(ann.session_named("a/../b"), again.session_named("a/../b"));
    assert_ne!(ann.session_named("a"), bob.session_named("a"));
    assert_ne!(ann.session_named("a"), ann.session_named("b"));
    assert_ne!(ann.session_named(""), ann.session_named("\0"));
}

/// Tells whose ref a file is by moving it away.
fn is_anns(ann: &Tenant, bob: &Tenant, path: &Path) -> bool {
    let aside = path.with_extension("aside");
    fs::rename(path, &aside).unwrap();
    let gone = (
        ann.head(session(1)).unwrap().is_none(),
        bob.head(session(1)).unwrap().is_none(),
    );
    fs::rename(&aside, path).unwrap();
    assert_ne!(gone.0, gone.1);
    gone.0
}

#[test]
fn no_ref_takes_the_place_of_another() {
    let (folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    ann.write(session(1), &some_state()).unwrap();
    ann.write(session(2), &Saved::default()).unwrap();
    let refs: Vec<_> = files(folder.path())
        .into_iter()
        .filter(|path| path.parent().unwrap().ends_with("sessions"))
        .collect();
    fs::copy(&refs[0], &refs[1]).unwrap();
    assert!(ann.read(session(2), MOST).unwrap_err().is_damage());
    assert_eq!(ann.read(session(1), MOST).unwrap(), Some(some_state()));
    assert_eq!(
        ann.sessions().unwrap().iter().filter(|(_, head)| head.is_err()).count(),
        1
    );
}

/// Each file of a store is cut everywhere, and each of its bits is changed.
#[test]
fn every_cut_and_every_changed_bit_is_refused() {
    let (folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    let saved = Saved {
        bodies: vec![b"a context".as_slice().into()],
        ..some_state()
    };
    ann.write(session(1), &saved).unwrap();
    let mut tried = 0;
    for file in files(folder.path()) {
        if ["lock", "check"].contains(&file.file_name().unwrap().to_str().unwrap()) {
            continue;
        }
        let whole = fs::read(&file).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            let refused = ann.read(session(1), MOST).unwrap_err();
            assert!(
                refused.is_damage() && refused.to_string().contains("damaged"),
                "{refused}"
            );
        };
        for length in 0..whole.len() {
            refused(&whole[..length]);
        }
        refused(&[whole.as_slice(), b"\0"].concat());
        for bit in 0..whole.len() * 8 {
            let mut changed = whole.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            refused(&changed);
            tried += 1;
        }
        fs::remove_file(&file).unwrap();
        if file.parent().unwrap().ends_with("objects") {
            let refused = ann.read(session(1), MOST).unwrap_err().to_string();
            assert!(refused.contains("missing"), "{refused}");
        } else {
            assert_eq!(ann.read(session(1), MOST).unwrap(), None);
        }
        fs::write(&file, &whole).unwrap();
    }
    assert!(tried > 4_000, "{tried}");
    assert_eq!(ann.read(session(1), MOST).unwrap(), Some(saved));
}

#[test]
fn a_damaged_object_is_written_again() {
    let (folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    ann.write(session(1), &some_state()).unwrap();
    for file in files(folder.path()) {
        if file.parent().unwrap().ends_with("objects") {
            fs::write(&file, b"SGS1 damaged").unwrap();
        }
    }
    assert!(ann.read(session(1), MOST).unwrap_err().is_damage());
    ann.write(session(1), &some_state()).unwrap();
    assert_eq!(ann.read(session(1), MOST).unwrap(), Some(some_state()));
}

#[test]
fn what_is_no_file_of_the_store_is_left_alone_and_never_followed() {
    let (folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    ann.write(session(1), &some_state()).unwrap();
    let refs = files(folder.path());
    let one = refs
        .iter()
        .find(|path| path.parent().unwrap().ends_with("sessions"))
        .unwrap();
    let secret = TempDir::new().unwrap();
    let outside = secret.path().join("outside");
    fs::copy(one, &outside).unwrap();
    for name in ["..%2f", "0", "notes.txt"] {
        fs::write(one.with_file_name(name), b"x").unwrap();
    }
    fs::create_dir(one.with_file_name(session(9).to_string())).unwrap();
    assert_eq!(ann.sessions().unwrap().len(), 2);
    assert!(ann.read(session(9), MOST).unwrap_err().is_damage());
    fs::remove_file(one).unwrap();
    std::os::unix::fs::symlink(&outside, one).unwrap();
    assert!(ann.read(session(1), MOST).is_err(), "a link was followed");
    fs::remove_file(one).unwrap();
    let fifo = std::process::Command::new("mkfifo").arg(one).status().unwrap();
    assert!(fifo.success());
    assert!(ann.read(session(1), MOST).unwrap_err().is_damage());
}

#[test]
fn a_state_larger_than_allowed_is_not_read() {
    let (_, ann) = in_memory();
    let saved = Saved {
        state: vec![0; 9 << 20].into(),
        ..Saved::default()
    };
    ann.write(session(1), &saved).unwrap();
    let refused = ann.read(session(1), (9 << 20) - 1).unwrap_err();
    assert!(matches!(refused, StateError::TooLarge { .. }), "{refused}");
    assert_eq!(ann.read(session(1), 9 << 20).unwrap(), Some(saved));
}

#[test]
fn a_session_that_goes_on_says_so() {
    let (_, ann) = in_memory();
    ann.mark_awake(session(1)).unwrap();
    assert!(ann.head(session(1)).unwrap().is_none());
    ann.write(session(1), &some_state()).unwrap();
    ann.mark_awake(session(1)).unwrap();
    let head = ann.head(session(1)).unwrap().unwrap();
    assert!(head.awake && head.execution == 7);
    assert_eq!(ann.read(session(1), MOST).unwrap(), Some(some_state()));
    ann.write(session(1), &some_state()).unwrap();
    assert!(!ann.head(session(1)).unwrap().unwrap().awake);
}

#[test]
fn objects_that_no_manifest_names_are_collected() {
    let (store, ann) = in_memory();
    let shared = some_state();
    let own = Saved {
        state: vec![3; 5_000].into(),
        ..some_state()
    };
    ann.write(session(1), &shared).unwrap();
    ann.write(session(2), &own).unwrap();
    let objects = |store: &MemoryStore| {
        store
            .names()
            .iter()
            .filter(|name| matches!(name, Name::Object(..)))
            .count()
    };
    let all = objects(&store);
    assert_eq!(ann.collect(Duration::ZERO).unwrap().removed, 0);
    ann.remove(session(2)).unwrap();
    assert_eq!(
        ann.collect(Duration::from_secs(60)).unwrap().removed,
        0,
        "they are too young"
    );
    let collected = ann.collect(Duration::ZERO).unwrap();
    // Its manifest and its variables.
    assert_eq!((collected.sessions, collected.removed), (1, 2));
    assert_eq!(objects(&store), all - 2);
    assert_eq!(ann.read(session(1), MOST).unwrap(), Some(shared));
    ann.remove(session(1)).unwrap();
    ann.collect(Duration::ZERO).unwrap();
    assert_eq!(objects(&store), 0);
}

#[test]
fn nothing_is_collected_while_a_manifest_cannot_be_read() {
    let (folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    ann.write(session(1), &some_state()).unwrap();
    let before = files(folder.path());
    let one = before
        .iter()
        .find(|path| path.parent().unwrap().ends_with("sessions"))
        .unwrap();
    fs::write(one, b"damaged").unwrap();
    assert!(ann.collect(Duration::ZERO).unwrap_err().is_damage());
    assert_eq!(files(folder.path()), before);
}

/// Writers and the collector at once: no state that was written loses an object.
#[test]
fn collections_take_nothing_from_writes_under_way() {
    let (_, ann) = in_memory();
    let ann = Arc::new(ann);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let ann = &ann;
            scope.spawn(move || {
                for round in 0..60_u32 {
                    let saved = Saved {
                        execution: round,
                        state: vec![u8::try_from(round % 5).unwrap(); 2_000].into(),
                        ..some_state()
                    };
                    ann.write(session(number), &saved).unwrap();
                    assert_eq!(ann.read(session(number), MOST).unwrap(), Some(saved));
                    if round % 7 == 0 {
                        ann.remove(session(number)).unwrap();
                    }
                }
            });
        }
        let ann = &ann;
        scope.spawn(move || (0..120).for_each(|_| assert!(ann.collect(Duration::ZERO).is_ok())));
    });
    assert_eq!(ann.sessions().unwrap().len(), 4);
}

fn any_state() -> impl Strategy<Value = Saved> {
    let body = || {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..600),
            (any::<u8>(), 0_usize..3 << 20).prop_map(|(byte, bytes)| vec![byte; bytes]),
        ]
    };
    let file = (".{0,20}", body()).prop_map(|(path, body)| SavedFile {
        path,
        body: body.into(),
    });
    (
        any::<u32>(),
        prop::collection::vec(body(), 0..4),
        body(),
        prop::collection::vec(file, 0..4),
        prop::collection::vec((".{0,9}", ".{0,30}"), 0..5),
        prop::collection::vec(".{0,9}", 0..3),
    )
        .prop_map(|(execution, bodies, state, files, lost, folders)| Saved {
            execution,
            settings: json!({ "profile": "rlm" }),
            past: json!([1, { "a": null }]),
            bodies: bodies.into_iter().map(Into::into).collect(),
            state: state.into(),
            lost: lost.into_iter().map(|(name, reason)| Lost { name, reason }).collect(),
            files,
            folders,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_state_is_read_as_it_was_written(states in prop::collection::vec(any_state(), 1..4)) {
        let (_, ann) = in_memory();
        for (number, saved) in states.iter().enumerate() {
            // Each session is written several times.
            ann.write(session(u8::try_from(number % 2).unwrap()), saved).unwrap();
        }
        for (number, saved) in states.iter().enumerate().rev().take(2) {
            prop_assert_eq!(ann.read(session(u8::try_from(number % 2).unwrap()), MOST).unwrap(), Some(saved.clone()));
        }
    }
}

fn part(tenant: &Tenant, journal: JournalId, number: u32, text: &str, body: Option<&[u8]>) {
    tenant.write_part(session(1), journal, number, text, body).unwrap();
}

fn texts(tenant: &Tenant) -> Option<Vec<(String, Option<Vec<u8>>)>> {
    let (_, parts) = tenant.journal(session(1), MOST).unwrap()?;
    let of = |part: sandglass_states::Part| (part.text, part.body.map(|body| body.to_vec()));
    Some(parts.into_iter().map(of).collect())
}

#[test]
fn a_journal_has_its_parts_in_order_until_another_one_begins() {
    let (_folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    ann.write(session(1), &some_state()).unwrap();
    assert_eq!(texts(&ann), None);
    let [first, second] = [(); 2].map(|()| JournalId::random().unwrap());
    part(&ann, first, 0, "begins", None);
    part(&ann, first, 1, "a call", Some(&[7; 3_000_000]));
    part(&ann, first, 2, "an answer", Some(b""));
    let expected = [
        ("begins".to_owned(), None),
        ("a call".to_owned(), Some(vec![7; 3_000_000])),
        ("an answer".to_owned(), Some(Vec::new())),
    ];
    assert_eq!(texts(&ann).unwrap(), expected);
    let bytes = [("begins", 0), ("a call", 3_000_000), ("an answer", 0)].map(|(text, body)| part_bytes(text, body));
    assert_eq!(ann.journal_bytes(session(1)).unwrap(), bytes.iter().sum::<u64>());
    assert_eq!(texts(&states.tenant("bob").unwrap()), None);
    part(&ann, second, 0, "another", None);
    assert_eq!(texts(&ann).unwrap(), [("another".to_owned(), None)]);
    ann.remove(session(1)).unwrap();
    assert_eq!(texts(&ann), None, "it goes with the state");
    assert_eq!(ann.journal_bytes(session(1)).unwrap(), 0);
}

#[test]
fn parts_of_another_journal_count_for_nothing() {
    let (_, ann) = in_memory();
    let [first, second] = [(); 2].map(|()| JournalId::random().unwrap());
    part(&ann, first, 0, "begins", None);
    part(
        &ann,
        second,
        1,
        "left by a process that was killed while it began",
        None,
    );
    assert_eq!(texts(&ann).unwrap(), [("begins".to_owned(), None)]);
}

#[test]
fn a_late_writer_removes_its_own_journal_only() {
    let (_, ann) = in_memory();
    let [old, new] = [(); 2].map(|()| JournalId::random().unwrap());
    part(&ann, old, 0, "begins", None);
    part(&ann, new, 0, "begins again", None);
    assert!(!ann.remove_one_journal(session(1), old).unwrap());
    assert_eq!(texts(&ann).unwrap(), [("begins again".to_owned(), None)]);
    assert!(ann.remove_one_journal(session(1), new).unwrap());
    assert_eq!(texts(&ann), None);
    assert!(!ann.remove_one_journal(session(1), new).unwrap());
}

#[test]
fn a_journal_without_a_part_in_between_is_damaged() {
    let (store, ann) = in_memory();
    let journal = JournalId::random().unwrap();
    for number in 0..3 {
        part(&ann, journal, number, "a part", Some(b"body"));
    }
    let names = store.names();
    let second = names
        .iter()
        .find(|name| matches!(name, Name::Part(_, _, None, 1)))
        .unwrap();
    let bytes = store.read(second, MOST).unwrap().unwrap();
    store.remove(second).unwrap();
    assert!(matches!(ann.journal(session(1), MOST), Err(StateError::Damaged(_))));
    // Nor can another part take its place.
    let third = names
        .iter()
        .find(|name| matches!(name, Name::Part(_, _, None, 2)))
        .unwrap();
    let other = store.read(third, MOST).unwrap().unwrap();
    store.write(second, &other).unwrap();
    assert!(matches!(ann.journal(session(1), MOST), Err(StateError::Damaged(_))));
    store.write(second, &bytes).unwrap();
    assert_eq!(texts(&ann).unwrap().len(), 3);
    assert!(matches!(ann.journal(session(1), 11), Err(StateError::TooLarge { .. })));
    assert!(ann.journal(session(1), 12).is_ok());
}

#[test]
fn a_collection_spares_what_a_journal_needs() {
    let (_, ann) = in_memory();
    ann.write(session(1), &some_state()).unwrap();
    let journal = JournalId::random().unwrap();
    part(&ann, journal, 0, "begins", None);
    let large = vec![7; (64 << 10) + 1];
    part(&ann, journal, 1, "a call", Some(&large));
    part(&ann, journal, 2, "a small one", Some(&large[1..]));
    ann.collect(Duration::ZERO).unwrap();
    let texts = texts(&ann).unwrap();
    assert_eq!(
        (texts[1].1.as_deref(), texts[2].1.as_deref()),
        (Some(&*large), Some(&large[1..]))
    );
    ann.remove_journal(session(1)).unwrap();
    assert_eq!(ann.collect(Duration::ZERO).unwrap().removed, 1);
}

#[test]
fn a_journal_has_a_bound() {
    let (store, ann) = in_memory();
    let before = store.names();
    let refused = ann.write_part(
        session(1),
        JournalId::random().unwrap(),
        1 << 20,
        "a part",
        Some(b"body"),
    );
    assert!(matches!(refused, Err(StateError::Io { .. })), "{refused:?}");
    assert_eq!(store.names(), before);
}

/// A store that counts the names which are removed for good, of which each may take the time of a disk.
#[derive(Debug, Default)]
struct Counting(MemoryStore, AtomicUsize);

impl Store for Counting {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.0.read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        self.0.swap(name, bytes, seen)
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.0.write(name, bytes)
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.0.touch(name, bytes)
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.remove(name)
    }

    fn forget(&self, name: &Name) -> Result<(), StateError> {
        self.0.forget(name)
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        self.0.list(place)
    }
}

/// Without its first part, a journal is none. So only this part must not come back.
#[test]
fn the_end_of_a_long_journal_waits_for_the_disk_once() {
    let store = Arc::new(Counting::default());
    let states = States::new(Arc::clone(&store) as Arc<dyn Store>, key()).unwrap();
    let ann = states.tenant("ann").unwrap();
    let before = store.0.names();
    let journal = JournalId::random().unwrap();
    for number in 0..300 {
        part(&ann, journal, number, "a part", None);
    }
    ann.remove_journal(session(1)).unwrap();
    assert_eq!((store.0.names(), store.1.load(Ordering::SeqCst)), (before, 1));
}

#[test]
fn names_in_a_folder_can_be_forgotten() {
    let (folder, states) = in_folder();
    let ann = states.tenant("ann").unwrap();
    let before = files(folder.path());
    let journal = JournalId::random().unwrap();
    for number in 0..3 {
        part(&ann, journal, number, "a part", None);
    }
    ann.remove_journal(session(1)).unwrap();
    ann.remove_journal(session(1)).unwrap();
    assert_eq!(files(folder.path()), before);
}
