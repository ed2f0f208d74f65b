//! Loads: the records by which servers that share a store tell each other their work.
//!
//! A record is sealed with the key of the store under the name of its server. So nobody without the key can read one, make one up, or give a
//! server another one's. Each has a number. One that is put back later is refused, because the server has told a higher number since. A
//! record goes stale on the clock of the server that heard it.
//!
//! A store that can send messages ([`Store::tell`]) carries each record at once. In other stores, it waits for the next renewal of the
//! lease, and others read it there.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::StateError;
use crate::keys::MasterKey;
use crate::locks::lock;
use crate::manifest::{FORMAT, read, write};
use crate::names::{Name, ServerId, TenantId};
use crate::seal::Sealer;
use crate::store::Store;

/// The longest time that a lease or a load of another server is believed to last.
pub(crate) const MOST_LASTS: Duration = Duration::from_secs(3600);
/// The most owners in a record: those that use most.
const MOST_OWNERS: usize = 1024;
/// The most bytes of a sealed record. One with [`MOST_OWNERS`] is below that.
const MOST_RECORD: usize = 128 << 10;
/// The most characters of a text in a record.
const MOST_TEXT: usize = 64;
/// The most servers whose records are kept.
const MOST_SERVERS: usize = 4096;
/// The most new servers whose leases are looked up at once.
const MOST_NEW: usize = 16;

/// The work of a server, and its room for more.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Load {
    /// True if the server was told to end, and leaves new work to others.
    pub is_draining: bool,
    /// Sessions that are awake.
    pub sessions: u64,
    /// The most sessions at the same time.
    pub most_sessions: u64,
    /// Spare guests that wait; `None` if the server keeps none.
    pub spares: Option<u64>,
    /// Executions that run or wait.
    pub executions: u64,
    /// Processors.
    pub processors: u64,
    /// Bytes of memory in use.
    pub memory_used: u64,
    /// Bytes of memory that the server and its guests may use; 0 if that is not known.
    pub memory_bytes: u64,
    /// The most bytes of memory that a session may ask for.
    pub most_session_bytes: u64,
    /// The digest of the guests' packages; empty if that is not known.
    pub packages: String,
    /// The use of each owner that uses something.
    pub used: BTreeMap<TenantId, Used>,
}

/// The use of one owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 4]", into = "[u64; 4]")]
pub struct Used {
    /// Sessions that are awake.
    pub sessions: u64,
    /// Executions that run or wait.
    pub executions: u64,
    /// Stored states.
    pub stored: u64,
    /// MiB of stored states.
    pub stored_mib: u64,
}

impl From<[u64; 4]> for Used {
    fn from([sessions, executions, stored, stored_mib]: [u64; 4]) -> Self {
        Self {
            sessions,
            executions,
            stored,
            stored_mib,
        }
    }
}

impl From<Used> for [u64; 4] {
    fn from(used: Used) -> Self {
        [used.sessions, used.executions, used.stored, used.stored_mib]
    }
}

impl Used {
    /// The sum of two.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            sessions: self.sessions.saturating_add(other.sessions),
            executions: self.executions.saturating_add(other.executions),
            stored: self.stored.saturating_add(other.stored),
            stored_mib: self.stored_mib.saturating_add(other.stored_mib),
        }
    }
}

impl Load {
    /// Leaves out what does not fit into a record.
    fn bound(&mut self) {
        self.packages = self.packages.chars().take(MOST_TEXT).collect();
        self.used.retain(|_, used| *used != Used::default());
        if self.used.len() > MOST_OWNERS {
            let mut all: Vec<_> = std::mem::take(&mut self.used).into_iter().collect();
            all.sort_by_key(|(_, used)| std::cmp::Reverse(used.sessions.max(used.executions).max(used.stored)));
            self.used = all.into_iter().take(MOST_OWNERS).collect();
        }
    }

    fn is_bounded(&self) -> bool {
        self.used.len() <= MOST_OWNERS && self.packages.chars().count() <= MOST_TEXT
    }
}

/// The text of a record.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    /// The number of the record, which rises.
    number: u64,
    /// The time after which the record is stale.
    lasts_ms: u64,
    load: Load,
}

/// The record of another server, as this one heard it.
#[derive(Debug, Clone)]
struct Heard {
    number: u64,
    stale_at: Duration,
    load: Arc<Load>,
}

/// The load of another server.
#[derive(Debug, Clone)]
pub struct OtherLoad {
    /// The number of its record. A later record has a higher one.
    pub number: u64,
    /// The load.
    pub load: Arc<Load>,
}

/// The record of this server, and those of the others.
#[derive(Debug)]
pub(crate) struct Loads {
    sealer: Sealer,
    clock: Clock,
    /// The ids of this server.
    own: Mutex<HashSet<ServerId>>,
    number: AtomicU64,
    /// The record that goes with the lease. `None` if the store carries records by itself.
    for_lease: Mutex<Option<Record>>,
    others: Mutex<HashMap<ServerId, Heard>>,
    refused: AtomicU64,
}

impl Loads {
    /// The records in a store, which begins to listen.
    pub(crate) fn new(store: &dyn Store, key: &MasterKey, clock: Clock) -> Result<Arc<Self>, StateError> {
        let loads = Arc::new(Self {
            sealer: key.sealer()?,
            clock,
            own: Mutex::default(),
            number: AtomicU64::new(0),
            for_lease: Mutex::default(),
            others: Mutex::default(),
            refused: AtomicU64::new(0),
        });
        let listening = Arc::downgrade(&loads);
        store.listen(Box::new(move |name, bytes| {
            let loads = listening.upgrade();
            if let (Some(loads), Some(Name::Load(server))) = (&loads, name) {
                loads.hear(server, bytes);
            } else if let Some(loads) = &loads {
                loads.refuse();
            }
            loads.is_some()
        }));
        Ok(loads)
    }

    /// Tells the load of this server. Returns the bytes of the record; 0 if it waits for the lease.
    pub(crate) fn tell(
        &self,
        store: &dyn Store,
        own: ServerId,
        mut load: Load,
        lasts: Duration,
    ) -> Result<usize, StateError> {
        lock(&self.own).insert(own);
        load.bound();
        let record = Record {
            format: FORMAT,
            number: self.next_number(),
            lasts_ms: u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX),
            load,
        };
        let name = Name::Load(own);
        let sealed = self.sealer.seal(&name, &write(&record)?)?;
        let bytes = sealed.len();
        if store.tell(&name, &sealed)? {
            return Ok(bytes);
        }
        *lock(&self.for_lease) = Some(record);
        Ok(0)
    }

    fn next_number(&self) -> u64 {
        self.number.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The record that goes with a lease which lasts for so long.
    pub(crate) fn for_lease(&self, lasts: Duration) -> Option<Record> {
        let mut record = lock(&self.for_lease).clone()?;
        record.number = self.next_number(); // told again, so it is younger
        record.lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        Some(record)
    }

    /// Hears a sealed record.
    fn hear(&self, server: ServerId, sealed: &[u8]) {
        if lock(&self.own).contains(&server) {
            return; // stores tell all, this server too
        }
        let name = Name::Load(server);
        let record = match sealed.len() <= MOST_RECORD {
            true => self.sealer.open(&name, sealed.to_vec()).ok(),
            false => None,
        };
        let record = record.and_then(|json| read::<Record>("a load", &json).ok());
        match record {
            Some(record) => self.note(server, record),
            None => self.refuse(),
        }
    }

    /// Notes a record of another server, unless a later one is known.
    pub(crate) fn note(&self, server: ServerId, record: Record) {
        let now = self.clock.now();
        let lasts = Duration::from_millis(record.lasts_ms).min(MOST_LASTS);
        if !record.load.is_bounded() {
            return self.refuse();
        }
        let mut others = lock(&self.others);
        match others.get(&server) {
            Some(known) if known.number == record.number => return, // the same lease, read again
            Some(known) if known.number > record.number => {
                drop(others);
                return self.refuse();
            }
            Some(_) => {}
            None if others.len() < MOST_SERVERS => {}
            None => return,
        }
        let heard = Heard {
            number: record.number,
            stale_at: now.saturating_add(lasts),
            load: Arc::new(record.load),
        };
        others.insert(server, heard);
    }

    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets a server that has ended.
    pub(crate) fn forget(&self, server: ServerId) {
        lock(&self.others).remove(&server);
    }

    /// The servers that told a load, and are not known otherwise.
    pub(crate) fn unknown(&self, is_known: impl Fn(ServerId) -> bool) -> Vec<ServerId> {
        let now = self.clock.now();
        let mut others = lock(&self.others);
        others.retain(|server, heard| now < heard.stale_at || is_known(*server));
        let unknown = others.keys().copied().filter(|server| !is_known(*server));
        unknown.take(MOST_NEW).collect()
    }

    /// The load of another server, unless it is stale.
    pub(crate) fn of(&self, server: ServerId) -> Option<OtherLoad> {
        let now = self.clock.now();
        let others = lock(&self.others);
        let heard = others.get(&server).filter(|heard| now < heard.stale_at)?;
        Some(OtherLoad {
            number: heard.number,
            load: Arc::clone(&heard.load),
        })
    }

    /// The use of an owner on those of the other servers that live.
    pub(crate) fn used(&self, owner: TenantId, lives: impl Fn(ServerId) -> bool) -> Used {
        let now = self.clock.now();
        let others = lock(&self.others);
        let living = others
            .iter()
            .filter(|(server, heard)| now < heard.stale_at && lives(**server));
        let used = living.filter_map(|(_, heard)| heard.load.used.get(&owner));
        used.fold(Used::default(), |sum, used| sum.and(*used))
    }

    /// The number of records that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}
