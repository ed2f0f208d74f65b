//! Tests of the loads that servers with one store tell each other: also of loads that somebody else wrote.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "common/nats.rs"]
mod nats;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nats::Nats;
use sandglass_states::{
    Clock, Listed, Listener, Load, MasterKey, MemoryStore, Name, NatsStore, Place, ServerId, StateError, States, Store,
    Used, Version,
};

const LASTS: Duration = Duration::from_secs(30);
const STALE: Duration = Duration::from_secs(10);

/// A store in memory that carries messages, and keeps them for attacks.
#[derive(Default)]
struct Carrier {
    store: MemoryStore,
    listeners: Mutex<Vec<Listener>>,
    told: Mutex<Vec<(Name, Vec<u8>)>>,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Carrier")
    }
}

impl Carrier {
    fn carry(&self, name: Option<Name>, bytes: &[u8]) {
        let mut listeners = std::mem::take(&mut *self.listeners.lock().unwrap());
        listeners.retain_mut(|listener| listener(name, bytes));
        self.listeners.lock().unwrap().extend(listeners);
    }

    fn last(&self) -> (Name, Vec<u8>) {
        self.told.lock().unwrap().last().unwrap().clone()
    }
}

impl Store for Carrier {
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
        self.store.list(place)
    }

    fn tell(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.told.lock().unwrap().push((*name, bytes.to_vec()));
        self.carry(Some(*name), bytes);
        Ok(true)
    }

    fn listen(&self, heard: Listener) {
        self.listeners.lock().unwrap().push(heard);
    }
}

#[derive(Clone, Default)]
struct Hands(Arc<AtomicU64>);

impl Hands {
    fn pass(&self, time: Duration) {
        self.0.fetch_add(time.as_secs(), Ordering::Relaxed);
    }

    fn server(&self, store: &Arc<dyn Store>, number: u8) -> States {
        let passed = Arc::clone(&self.0);
        let clock = Clock::new(move || Duration::from_secs(passed.load(Ordering::Relaxed)));
        let address = Some(format!("http://{number}"));
        States::shared(Arc::clone(store), key(), LASTS, clock, address).unwrap()
    }
}

fn key() -> MasterKey {
    MasterKey::parse(&"5a".repeat(32)).unwrap()
}

fn load(states: &States, sessions: u64) -> Load {
    let used = Used {
        sessions,
        ..Used::default()
    };
    Load {
        sessions,
        used: [(states.tenant("ann").unwrap().id(), used)].into(),
        ..Load::default()
    }
}

/// The sessions that a server knows of on each of the others.
fn sessions(states: &States) -> Vec<u64> {
    let loads = states
        .others()
        .into_iter()
        .filter_map(|other| states.load(other.server));
    let mut sessions: Vec<_> = loads.map(|other| other.load.sessions).collect();
    sessions.sort_unstable();
    sessions
}

fn of_ann(states: &States) -> u64 {
    let ann = states.tenant("ann").unwrap().id();
    states.used_elsewhere(ann)().sessions
}

#[test]
fn loads_are_heard_and_go_stale() {
    let (carrier, hands) = (Arc::new(Carrier::default()), Hands::default());
    let store = Arc::clone(&carrier) as Arc<dyn Store>;
    let [a, b, c] = [0, 1, 2].map(|number| hands.server(&store, number));
    assert!(a.tell_load(load(&a, 3), STALE).unwrap() > 0);
    assert!(c.tell_load(load(&c, 4), STALE).unwrap() > 0);
    assert_eq!(
        (sessions(&b), of_ann(&b)),
        (vec![], 0),
        "nobody knows yet that they live"
    );
    for server in [&a, &b, &c] {
        server.meet().unwrap();
    }
    assert_eq!((sessions(&b), of_ann(&b)), (vec![3, 4], 7));
    assert_eq!((sessions(&a), of_ann(&a)), (vec![4], 4), "its own does not count");
    a.tell_load(load(&a, 1), STALE).unwrap();
    assert_eq!((sessions(&b), of_ann(&b)), (vec![1, 4], 5));
    c.end().unwrap();
    b.watch().unwrap();
    assert_eq!((sessions(&b), of_ann(&b)), (vec![1], 1), "it has ended");
    hands.pass(STALE);
    assert_eq!((sessions(&b), of_ann(&b)), (vec![], 0), "it is stale");
    assert_eq!(b.refused_loads(), 0);
}

#[test]
fn loads_that_no_server_tells_are_refused() {
    let (carrier, hands) = (Arc::new(Carrier::default()), Hands::default());
    let store = Arc::clone(&carrier) as Arc<dyn Store>;
    let [a, b, c] = [0, 1, 2].map(|number| hands.server(&store, number));
    for (server, count) in [(&a, 1), (&c, 2)] {
        server.tell_load(load(server, count), STALE).unwrap();
        b.meet().unwrap();
    }
    let (of_c, sealed_of_c) = carrier.last();
    a.tell_load(load(&a, 5), STALE).unwrap();
    let (of_a, newest) = carrier.last();
    let first = carrier.told.lock().unwrap()[0].1.clone();
    let known = (vec![2, 5], 7);
    assert_eq!((sessions(&b), of_ann(&b)), known);
    let mut changed = newest.clone();
    *changed.last_mut().unwrap() ^= 1;
    let invented = "00112233445566778899aabbccddeeff".parse::<ServerId>().unwrap();
    let attacks: [(Option<Name>, Vec<u8>); 9] = [
        (Some(of_a), first),                  // put back
        (Some(of_a), sealed_of_c.clone()),    // of another server
        (Some(of_c), newest.clone()),         //
        (Some(of_a), changed),                // changed
        (Some(of_a), newest[..40].to_vec()),  // cut off
        (Some(of_a), vec![]),                 //
        (Some(of_a), vec![0; 1 << 20]),       // too large
        (Some(Name::Load(invented)), newest), // of a server that is none
        (None, b"no name".to_vec()),
    ];
    for (count, (name, bytes)) in attacks.iter().enumerate() {
        carrier.carry(*name, bytes);
        b.meet().unwrap();
        assert_eq!((sessions(&b), of_ann(&b)), known, "{count}");
        assert_eq!(b.refused_loads(), count as u64 + 1);
    }
    // A server with another key is no server of this store.
    let other = MasterKey::parse(&"5b".repeat(32)).unwrap();
    let elsewhere = States::shared(Arc::new(MemoryStore::default()), other, LASTS, Clock::default(), None);
    elsewhere.unwrap().tell_load(Load::default(), STALE).unwrap();
    // What c told last is put back after its end: it lives no more.
    c.end().unwrap();
    b.watch().unwrap();
    carrier.carry(Some(of_c), &sealed_of_c);
    b.meet().unwrap();
    assert_eq!((sessions(&b), of_ann(&b)), (vec![5], 5));
}

#[test]
fn a_record_is_bounded() {
    let (carrier, hands) = (Arc::new(Carrier::default()), Hands::default());
    let store = Arc::clone(&carrier) as Arc<dyn Store>;
    let [a, b] = [0, 1].map(|number| hands.server(&store, number));
    let mut large = load(&a, 1 << 40);
    large.packages = "é".repeat(1 << 16);
    for number in 0..3000 {
        let owner = a.tenant(&format!("owner {number}")).unwrap().id();
        let used = Used::from([number, u64::MAX >> 12, u64::MAX >> 12, u64::MAX >> 12]);
        large.used.insert(owner, used);
    }
    let bytes = a.tell_load(large, STALE).unwrap();
    assert!(bytes < 128 << 10, "{bytes}");
    b.meet().unwrap();
    assert_eq!(sessions(&b), [1 << 40]);
    assert_eq!(b.refused_loads(), 0);
}

/// In a store that carries no messages, loads go with leases.
#[test]
fn loads_go_with_leases() {
    let (store, hands) = (Arc::new(MemoryStore::default()) as Arc<dyn Store>, Hands::default());
    let [a, b] = [0, 1].map(|number| hands.server(&store, number));
    assert_eq!(a.tell_load(load(&a, 3), STALE).unwrap(), 0);
    b.watch().unwrap();
    assert!(sessions(&b).is_empty());
    a.renew().unwrap();
    b.watch().unwrap();
    assert_eq!((sessions(&b), of_ann(&b)), (vec![3], 3));
    hands.pass(LASTS / 2);
    a.renew().unwrap();
    b.watch().unwrap();
    hands.pass(LASTS / 2);
    assert_eq!(sessions(&b), [3], "it was told again");
    hands.pass(LASTS / 2);
    assert!(sessions(&b).is_empty());
}

#[test]
fn nats_carries_loads() {
    let nats = Nats::start(0, &[]);
    let open = |bucket: &str| Arc::new(NatsStore::open(&format!("{}/{bucket}", nats.url), None, 1).unwrap());
    let hands = Hands::default();
    let server = |bucket, number| hands.server(&(open(bucket) as Arc<dyn Store>), number);
    let (a, b, other) = (server("one", 0), server("one", 1), server("another", 2));
    let began = Instant::now();
    while sessions(&b) != [3] {
        assert!(began.elapsed() < Duration::from_secs(90), "it is never heard");
        a.tell_load(load(&a, 3), STALE).unwrap();
        other.tell_load(load(&other, 4), STALE).unwrap();
        b.meet().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(
        (of_ann(&b), of_ann(&other)),
        (3, 0),
        "another bucket is another cluster"
    );
    assert_eq!(b.refused_loads(), 0);
}
