//! Tests of what servers with one store know of each other, while the store changes.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use sandglass_states::{
    Clock, Listed, MasterKey, MemoryStore, Name, Place, Saved, SessionId, StateError, States, Store, Tenant, Version,
};

const MOST: u64 = 1 << 30;
const LASTS: Duration = Duration::from_secs(3600);

/// A store in which something happens between a listing and its answer.
#[derive(Default)]
struct Meanwhile {
    store: MemoryStore,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Meanwhile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Meanwhile")
    }
}

impl Store for Meanwhile {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.store.read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        self.store.swap(name, bytes, seen)
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.store.write(name, bytes)
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.store.touch(name, bytes)
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.store.remove(name)
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        let listed = self.store.list(place)?;
        let then = self.then.lock().unwrap().take();
        if let Some(then) = then {
            then();
        }
        Ok(listed)
    }
}

fn server(store: &Arc<Meanwhile>) -> (States, Tenant) {
    let key = MasterKey::parse(&"5a".repeat(32)).unwrap();
    let states = States::shared(Arc::clone(store) as _, key, LASTS, Clock::default(), None).unwrap();
    let ann = states.tenant("ann").unwrap();
    (states, ann)
}

fn session(number: u8) -> SessionId {
    format!("{number:032x}").parse().unwrap()
}

/// Otherwise a request that was just forwarded to that server would be cut off.
#[test]
fn a_server_that_begins_during_a_listing_lives() {
    let store = Arc::new(Meanwhile::default());
    let (a, of_a) = server(&store);
    let (tell, told) = mpsc::channel();
    let inner = Arc::clone(&store);
    *store.then.lock().unwrap() = Some(Box::new(move || {
        let (b, of_b) = server(&inner);
        of_b.write(session(1), &Saved::default()).unwrap();
        of_b.take_up(session(1), MOST).unwrap().unwrap();
        let id = of_b.mark_awake(session(1)).unwrap();
        assert_eq!(of_a.elsewhere(session(1)).unwrap().unwrap().server, id);
        tell.send((b, id)).unwrap();
    }));
    a.watch().unwrap();
    let (b, id) = told.recv().unwrap();
    assert!(a.seems_to_live(id));
    b.end().unwrap();
    a.watch().unwrap();
    assert!(!a.seems_to_live(id));
}

#[test]
fn sessions_that_others_woke_or_removed_no_longer_sleep() {
    let store = Arc::new(Meanwhile::default());
    let [(_a, of_a), (b, of_b)] = [(), ()].map(|()| server(&store));
    // More than are read at once.
    let all: Vec<_> = (0..20).map(session).collect();
    for id in &all[..19] {
        of_a.write(*id, &Saved::default()).unwrap();
    }
    let wake = |tenant: &Tenant, number: u8| {
        tenant.take_up(session(number), MOST).unwrap().unwrap();
        tenant.mark_awake(session(number)).unwrap();
    };
    wake(&of_a, 1);
    wake(&of_b, 2);
    wake(&of_b, 18);
    of_b.remove(session(3)).unwrap();
    wake(&of_b, 4);
    of_b.write(session(4), &Saved::default()).unwrap();
    store.write(&Name::Ref(of_a.id(), session(5)), b"damaged").unwrap();
    assert_eq!(of_a.no_longer_asleep(&all).unwrap(), [2, 3, 18, 19].map(session));
    // What a server leaves at its end is free.
    b.end().unwrap();
    assert_eq!(of_a.no_longer_asleep(&all).unwrap(), [3, 19].map(session));
}
