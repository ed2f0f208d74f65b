//! Servers with one store, whose clock the tests move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandglass_states::{Beat, Clock, MasterKey, Saved, SessionId, States, Store, Tenant};

use crate::common::Kind;

pub const MOST: u64 = 1 << 30;
pub const LASTS: Duration = Duration::from_secs(30);

pub fn key() -> MasterKey {
    MasterKey::parse(&"5a".repeat(32)).unwrap()
}

/// A clock that goes on when it is told to.
#[derive(Clone, Default)]
pub struct Hands(pub Arc<AtomicU64>);

impl Hands {
    pub fn clock(&self) -> Clock {
        let passed = Arc::clone(&self.0);
        Clock::new(move || Duration::from_secs(passed.load(Ordering::Relaxed)))
    }

    pub fn pass(&self, seconds: u64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

pub struct Server {
    pub states: States,
    pub ann: Tenant,
}

impl Server {
    pub fn new(store: &Arc<dyn Store>, hands: &Hands) -> Self {
        let states = States::shared(Arc::clone(store), key(), LASTS, hands.clock(), None).unwrap();
        let ann = states.tenant("ann").unwrap();
        Self { states, ann }
    }

    /// Renews the lease, and watches the others'.
    pub fn beat(&self) -> Beat {
        let beat = self.states.renew().unwrap();
        self.states.watch().unwrap();
        beat
    }
}

pub fn session(number: u8) -> SessionId {
    format!("{number:032x}").parse().unwrap()
}

pub fn state(execution: u32) -> Saved {
    Saved {
        execution,
        state: format!("the variables after {execution}").into_bytes().into(),
        bodies: vec![b"a context".as_slice().into()],
        ..Saved::default()
    }
}

/// Two servers with a new store of this kind, and their clock.
pub fn two(kind: Kind) -> (Arc<dyn Store>, Hands, Server, Server) {
    let (store, hands) = (kind.store(), Hands::default());
    let [a, b] = [(), ()].map(|()| Server::new(&store, &hands));
    (store, hands, a, b)
}
