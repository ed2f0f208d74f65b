//! The promises of all stores, against a model of named bytes.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::Kind;
use common::nats::Nats;
use proptest::prelude::*;
use sandglass_states::{FolderStore, Name, NatsStore, Place, SplitStore, Store, TenantId, Version};

/// The time after which a test gives up, long enough for a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// An action on the name of this number.
#[derive(Debug, Clone)]
enum Act {
    Write(usize, Vec<u8>),
    Swap(usize, Vec<u8>, Seen),
    Touch(usize),
    Remove(usize),
    ReadAll,
    List,
}

/// The version that a swap names.
#[derive(Debug, Clone, Copy)]
enum Seen {
    Newest,
    Nothing,
    /// The version of the first bytes that were ever there.
    First,
}

fn tenant(digit: char) -> TenantId {
    digit.to_string().repeat(32).parse().unwrap()
}

/// Names that are written, and names that are swapped.
fn names() -> [Vec<Name>; 2] {
    let object = |digit: &str| digit.repeat(64).parse().unwrap();
    let id = |digit: &str| digit.repeat(32);
    let server = id("c").parse().unwrap();
    let written = vec![
        Name::Object(tenant('a'), None, object("1")),
        Name::Object(tenant('a'), None, object("2")),
        Name::Object(tenant('a'), Some(server), object("1")),
        Name::Object(tenant('b'), Some(server), object("1")),
    ];
    let swapped = vec![
        Name::Ref(tenant('a'), id("1").parse().unwrap()),
        Name::Ref(tenant('a'), id("2").parse().unwrap()),
        Name::Ref(tenant('b'), id("1").parse().unwrap()),
        Name::Lease(server),
        Name::Check,
    ];
    [written, swapped]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let seen = prop_oneof![Just(Seen::Newest), Just(Seen::Nothing), Just(Seen::First)];
    let act = prop_oneof![
        3 => (0_usize..4, bytes()).prop_map(|(name, bytes)| Act::Write(name, bytes)),
        6 => (0_usize..5, bytes(), seen).prop_map(|(name, bytes, seen)| Act::Swap(name, bytes, seen)),
        1 => (0_usize..4).prop_map(Act::Touch),
        2 => (0_usize..9).prop_map(Act::Remove),
        1 => Just(Act::ReadAll),
        1 => Just(Act::List),
    ];
    prop::collection::vec(act, 1..30)
}

/// The bytes under each name, and the versions that each name ever had, the newest last.
#[derive(Default)]
struct Model {
    bytes: HashMap<Name, Vec<u8>>,
    versions: HashMap<Name, Vec<Version>>,
}

const PLACES: [char; 2] = ['a', 'b'];

fn holds(store: &dyn Store, acts: Vec<Act>) -> Result<(), TestCaseError> {
    let [written, swapped] = names();
    let all: Vec<Name> = written.iter().chain(&swapped).copied().collect();
    let mut model = Model::default();
    for (number, act) in acts.into_iter().enumerate() {
        // No bytes come twice, as nothing that is sealed does.
        let unique = |mut bytes: Vec<u8>| {
            bytes.extend(number.to_le_bytes());
            bytes
        };
        match act {
            Act::Write(name, bytes) => {
                let (name, bytes) = (written[name], unique(bytes));
                store.write(&name, &bytes).unwrap();
                model.bytes.insert(name, bytes);
            }
            Act::Swap(name, bytes, seen) => {
                let (name, bytes) = (swapped[name], unique(bytes));
                let versions = model.versions.entry(name).or_default();
                let newest = versions.last().filter(|_| model.bytes.contains_key(&name));
                let seen = match seen {
                    Seen::Newest => newest,
                    Seen::Nothing => None,
                    Seen::First => versions.first(),
                };
                let swapped = store.swap(&name, &bytes, seen).unwrap();
                prop_assert_eq!(swapped.is_some(), seen == newest);
                if let Some(version) = swapped {
                    prop_assert!(!versions.contains(&version));
                    versions.push(version);
                    model.bytes.insert(name, bytes);
                }
            }
            Act::Touch(name) => {
                let name = written[name];
                let bytes = model.bytes.get(&name).cloned();
                let touched = store.touch(&name, bytes.as_deref().unwrap_or_default()).unwrap();
                prop_assert_eq!(touched, bytes.is_some());
            }
            Act::Remove(name) => {
                store.remove(&all[name]).unwrap();
                model.bytes.remove(&all[name]);
            }
            Act::ReadAll => {
                let read: Vec<_> = store.read_all(&all, 1000).into_iter().map(Result::unwrap).collect();
                let expected: Vec<_> = all.iter().map(|name| model.bytes.get(name).cloned()).collect();
                prop_assert_eq!(read, expected);
            }
            Act::List => {
                let tenants = PLACES.map(tenant);
                let places = tenants
                    .iter()
                    .flat_map(|tenant| [Place::Objects(*tenant), Place::Refs(*tenant)]);
                for place in places.chain([Place::Leases]) {
                    let listed = store.list(place).unwrap();
                    prop_assert!(listed.iter().all(|listed| listed.age < Duration::from_secs(600)));
                    let mut listed: Vec<_> = listed.into_iter().map(|listed| listed.name).collect();
                    listed.sort();
                    let mut expected: Vec<_> = all
                        .iter()
                        .copied()
                        .filter(|name| place.has(name) && model.bytes.contains_key(name))
                        .collect();
                    expected.sort();
                    prop_assert_eq!(listed, expected);
                }
            }
        }
    }
    for name in &all {
        let found = store.read_version(name, 1000).unwrap();
        let (bytes, version) = found.unzip();
        prop_assert_eq!(bytes.as_ref(), model.bytes.get(name));
        if let (Some(version), Some(versions)) = (version, model.versions.get(name)) {
            prop_assert_eq!(Some(&version), versions.last());
        }
        if let Some(bytes) = bytes {
            let refused = store.read(name, bytes.len() as u64 - 1).unwrap_err();
            prop_assert!(refused.is_damage(), "{}", refused);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_folder_is_named_bytes(acts in acts()) {
        let folder = tempfile::TempDir::new().unwrap();
        holds(&FolderStore::open(folder.path()).unwrap(), acts)?;
    }

    #[test]
    fn memory_is_named_bytes(acts in acts()) {
        holds(&*Kind::Memory.store(), acts)?;
    }

    #[test]
    fn two_stores_are_named_bytes(acts in acts()) {
        holds(&SplitStore::new(Kind::Memory.store(), Kind::LibrarysMemory.store()), acts)?;
    }

    #[test]
    fn object_storage_in_memory_is_named_bytes(acts in acts()) {
        holds(&*Kind::LibrarysMemory.store(), acts)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nats_is_named_bytes(acts in acts()) {
        holds(&*Kind::Nats.store(), acts)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn object_storage_over_http_is_named_bytes(acts in acts()) {
        holds(&*Kind::S3.store(), acts)?;
    }
}

/// Many threads add one each to a number, and none is lost.
#[test]
fn of_writes_at_once_one_wins() {
    let folder = tempfile::TempDir::new().unwrap();
    let in_folder: std::sync::Arc<dyn Store> = std::sync::Arc::new(FolderStore::open(folder.path()).unwrap());
    let kinds = common::KINDS.map(Kind::store);
    for store in kinds.into_iter().chain([in_folder]) {
        let name = Name::Check;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let store = &store;
                scope.spawn(move || (0..5).map(|_| add(&**store, thread)).sum::<u32>());
            }
        });
        let sum = String::from_utf8(store.read(&name, 1000).unwrap().unwrap()).unwrap();
        assert!(sum.starts_with("20 "), "{sum} {store:?}");
    }
}

/// Adds one to the number under a name, and returns it.
fn add(store: &dyn Store, thread: u32) -> u32 {
    loop {
        let found = store.read_version(&Name::Check, 1000).unwrap();
        let (bytes, version) = found.unzip();
        let text = String::from_utf8(bytes.unwrap_or_else(|| b"0".to_vec())).unwrap();
        let number: u32 = text.split(' ').next().unwrap().parse().unwrap();
        let next = format!("{} {thread} {number}", number + 1);
        let swapped = store.swap(&Name::Check, next.as_bytes(), version.as_ref());
        if swapped.unwrap().is_some() {
            return number + 1;
        }
    }
}

/// A value of many messages is there as a whole or not at all, also while it is written again.
#[test]
fn long_values_are_whole_in_nats() {
    let store = Kind::Nats.store();
    let [written, _] = names();
    let (name, place) = (written[0], Place::Objects(tenant('a')));
    let lengths = [0, 1, 262_143, 262_144, 262_145, 524_288, 4_000_000];
    let value = |length: usize, seed: u8| (0..length).map(|at| (at / 1000) as u8 ^ seed).collect::<Vec<u8>>();
    for length in lengths {
        store.write(&name, &value(length, 1)).unwrap();
        assert!(
            store.read(&name, length as u64).unwrap().unwrap() == value(length, 1),
            "{length}"
        );
        if length > 0 {
            assert!(
                store.read(&name, length as u64 - 1).unwrap_err().is_damage(),
                "{length}"
            );
        }
        let listed: Vec<_> = store
            .list(place)
            .unwrap()
            .into_iter()
            .map(|listed| listed.name)
            .collect();
        assert_eq!(listed, [name], "parts are no names");
    }
    let values = [value(3_000_000, 2), value(700_000, 3)];
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (0..6).for_each(|round| store.write(&name, &values[round % 2]).unwrap()));
        while !writing.is_finished() {
            let read = store.read(&name, 5_000_000).unwrap().unwrap();
            assert!(values.contains(&read) || read == value(4_000_000, 1), "{}", read.len());
        }
    });
    store.remove(&name).unwrap();
    assert_eq!(store.read(&name, 5_000_000).unwrap(), None);
    assert!(store.list(place).unwrap().is_empty());
}

/// Three servers of NATS, of which one is killed while clients write. All else goes on, and what was written is there.
#[test]
fn a_cluster_of_nats_goes_on_without_one_of_its_servers() {
    let routes = "--routes=nats://HOST:6231,nats://HOST:6232,nats://HOST:6233";
    let start = |number: u16| {
        let (listen, name) = (
            format!("--cluster=nats://HOST:{}", 6230 + number),
            format!("--name=n{number}"),
        );
        Nats::start(number, &["--cluster_name=tests", routes, &listen, &name])
    };
    let mut servers: Vec<_> = std::thread::scope(|scope| {
        let starting = [1, 2, 3].map(|number| scope.spawn(move || start(number)));
        starting.map(|server| server.join().unwrap()).into()
    });
    let all: Vec<_> = servers.iter().map(|server| server.url.clone()).collect();
    let open = || NatsStore::open_within(LONG, &all.join(","), None, 3).unwrap();
    let stores = [open(), open()];
    let [written, _] = names();
    let long = vec![7; 3_000_000];
    stores[0].write(&written[0], &long).unwrap();
    let killed = &std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for (thread, store) in (0..).zip(&stores) {
            scope.spawn(move || {
                let before: Vec<_> = (0..10).map(|_| add(store, thread)).collect();
                killed.wait();
                let after: Vec<_> = (0..20).map(|_| add(store, thread)).collect();
                assert!(before.iter().chain(&after).is_sorted(), "{before:?} {after:?}");
            });
        }
        killed.wait();
        drop(servers.remove(0));
    });
    let sum = String::from_utf8(stores[0].read(&Name::Check, 1000).unwrap().unwrap()).unwrap();
    assert!(sum.starts_with("60 "), "{sum}");
    assert!(stores[1].read(&written[0], 5_000_000).unwrap().unwrap() == long);
    // Without servers, nothing is written, and the error comes in time.
    let began = Instant::now();
    let hasty = loop {
        match NatsStore::open_within(Duration::from_secs(1), &all.join(","), None, 3) {
            Ok(store) => break store,
            Err(error) => assert!(began.elapsed() < LONG, "{error}"),
        }
    };
    servers.clear();
    let refused = hasty.write(&written[1], b"lost").unwrap_err().to_string();
    assert!(refused.contains("cannot be written"), "{refused}");
}

#[test]
fn nats_that_cannot_be_used_is_told_without_secrets() {
    let open = |most, url: &str, replicas| {
        NatsStore::open_within(most, url, None, replicas)
            .unwrap_err()
            .to_string()
    };
    let nobody = open(Duration::from_secs(1), "nats://ann:secret@127.0.0.1:1", 1);
    assert!(nobody.contains("NATS at 127.0.0.1:1 cannot be used"), "{nobody}");
    assert!(!nobody.contains("secret"), "{nobody}");
    let server = Nats::start(9, &["--user", "ann", "--pass", "secret"]);
    let with = |login: &str| server.url.replace("nats://", &format!("nats://{login}"));
    let refused = open(LONG, &with("ann:wrong-secret@"), 1);
    assert!(
        refused.contains("authorization violation") && !refused.contains("secret"),
        "{refused}"
    );
    let alone = open(LONG, &with("ann:secret@"), 3);
    assert!(alone.contains("replicas > 1 not supported"), "{alone}");
    let store = NatsStore::open(&with("ann:secret@"), None, 1).unwrap();
    assert!(store.list(Place::Leases).unwrap().is_empty());
}

/// The subjects in a row of the table of rights in the operators' page, for a bucket.
fn rights(right: &str, bucket: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/server/many-servers.md");
    let page = std::fs::read_to_string(page).unwrap();
    let row = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("| {right} | ")));
    let subjects = row.unwrap().split('`').skip(1).step_by(2);
    let named =
        |subject: &str| [bucket.to_owned(), format!("{bucket}-objects")].map(|name| subject.replace("NAME", &name));
    subjects
        .flat_map(named)
        .map(|subject| subject.replace("BUCKET", bucket))
        .collect()
}

#[test]
fn a_login_needs_no_more_rights_than_the_page_says() {
    let [publish, subscribe] = ["publish", "subscribe"].map(|right| rights(right, "small"));
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("nats.conf");
    let ann = format!(
        "user: ann, password: secret, permissions: {{ publish: {{ allow: {publish:?} }}, subscribe: {{ allow: {subscribe:?} }} }}"
    );
    std::fs::write(&settings, format!("authorization {{ users: [ {{ {ann} }} ] }}")).unwrap();
    let server = Nats::start(11, &["--config", settings.to_str().unwrap()]);
    let url = server.url.replace("nats://", "nats://ann:secret@");
    let open = |most, bucket: &str| NatsStore::open_within(most, &format!("{url}/{bucket}"), None, 1);
    let store = open(LONG, "small").unwrap();
    assert!(
        open(Duration::from_millis(100), "another").is_err(),
        "the rights are limited"
    );
    let [written, swapped] = names();
    let long = vec![7; 3_000_000];
    store.write(&written[0], &long).unwrap();
    assert!(store.touch(&written[0], &long).unwrap());
    assert!(store.read(&written[0], 5_000_000).unwrap().unwrap() == long);
    let version = store.swap(&swapped[0], b"first", None).unwrap().unwrap();
    assert!(store.swap(&swapped[0], b"late", None).unwrap().is_none());
    assert!(store.swap(&swapped[0], b"second", Some(&version)).unwrap().is_some());
    assert_eq!(
        store.read_all(&swapped[..1], 100)[0].as_ref().unwrap().as_deref(),
        Some(&b"second"[..])
    );
    assert_eq!(store.list(Place::Objects(tenant('a'))).unwrap().len(), 1);
    assert_eq!(store.list(Place::Refs(tenant('a'))).unwrap().len(), 1);
    let (tell, told) = std::sync::mpsc::channel();
    store.listen(Box::new(move |_, bytes| tell.send(bytes.to_vec()).is_ok()));
    let load = Name::Load("c".repeat(32).parse().unwrap());
    let began = Instant::now();
    let heard = loop {
        // Nobody hears what is told before the store listens.
        assert!(store.tell(&load, b"a load").unwrap() && began.elapsed() < LONG);
        if let Ok(heard) = told.recv_timeout(Duration::from_millis(50)) {
            break heard;
        }
    };
    assert_eq!(heard, b"a load");
    store.remove(&written[0]).unwrap();
    assert!(store.list(Place::Objects(tenant('a'))).unwrap().is_empty());
}
