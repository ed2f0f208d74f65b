//! The promises of all stores, against a model of named bytes.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;

use std::collections::HashMap;
use std::time::Duration;

use common::Kind;
use proptest::prelude::*;
use sandglass_states::{FolderStore, Name, Place, Store, TenantId, Version};

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
    fn object_storage_in_memory_is_named_bytes(acts in acts()) {
        holds(&*Kind::LibrarysMemory.store(), acts)?;
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
        let add = |thread: u32| loop {
            let found = store.read_version(&name, 1000).unwrap();
            let (bytes, version) = found.unzip();
            let text = String::from_utf8(bytes.unwrap_or_else(|| b"0".to_vec())).unwrap();
            let number: u32 = text.split(' ').next().unwrap().parse().unwrap();
            let next = format!("{} {thread} {number}", number + 1);
            if store.swap(&name, next.as_bytes(), version.as_ref()).unwrap().is_some() {
                return;
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let add = &add;
                scope.spawn(move || (0..5).for_each(|_| add(thread)));
            }
        });
        let sum = String::from_utf8(store.read(&name, 1000).unwrap().unwrap()).unwrap();
        assert!(sum.starts_with("20 "), "{sum} {store:?}");
    }
}
