//! Leases: how servers that share a store know which of them live.
//!
//! Each server has a lease in the store and renews it. The other servers watch it. The lease of a server is *over* when a watcher has seen
//! it unchanged for as long as it lasts, on the watcher's own clock. So no two clocks are compared. The watcher then writes that the lease
//! is over. A server that was only slow finds that out when it renews the lease, and before that by its own clock.
//!
//! A lease that is over never comes back: the server begins another one, under another id.
//!
//! A server may tell its address in its lease. Then the others know where its sessions are: ids of sessions begin with the server's *home*,
//! an id that a process keeps when it begins another lease.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::error::StateError;
use crate::keys::MasterKey;
use crate::load::{Load, Loads, MOST_LASTS, OtherLoad, Record, Used};
use crate::locks::lock;
use crate::manifest::{FORMAT, read, write};
use crate::names::{HomeId, Name, Place, ServerId, TenantId};
use crate::seal::{MOST_SEALED, Sealer};
use crate::store::{Store, Version};

/// The shortest interval between two searches for a server that is not known.
const SEARCH: Duration = Duration::from_millis(100);

/// Another server, which lives as far as is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Living {
    /// Its id.
    pub server: ServerId,
    /// The URL that it tells the others; `None` if it tells none.
    pub address: Option<String>,
}

/// The state of a lease after it was to be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// It is renewed.
    Renewed,
    /// Another server ended it, and may have taken the sessions over. A new lease has begun.
    Lost,
}

/// The right of a server to the sessions that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No other server can have taken them over.
    Held,
    /// The lease has run out, and may be over.
    Unsure,
    /// The lease is over. Others may have them.
    Lost,
}

/// The servers that use a store.
#[derive(Debug)]
pub(crate) enum Servers {
    /// This one, by a lock that the store has.
    Alone(ServerId),
    /// Several, each with a lease.
    Several {
        leases: Box<Leases>,
        own: RwLock<Arc<Lease>>,
    },
}

impl Servers {
    /// This server, without others.
    pub(crate) fn alone() -> Result<Self, StateError> {
        Ok(Self::Alone(ServerId::random()?))
    }

    /// This server among others.
    pub(crate) fn several(leases: Leases) -> Result<Self, StateError> {
        leases.check()?;
        let own = RwLock::new(Arc::new(leases.begin()?));
        let leases = Box::new(leases);
        Ok(Self::Several { leases, own })
    }

    /// The id of this server.
    pub(crate) fn id(&self) -> ServerId {
        match self {
            Self::Alone(id) => *id,
            Self::Several { own, .. } => lease(own).id,
        }
    }

    /// The server whose objects this one writes.
    pub(crate) fn writer(&self) -> Option<ServerId> {
        match self {
            Self::Alone(_) => None,
            Self::Several { own, .. } => Some(lease(own).id),
        }
    }

    /// Returns true if no other server uses the store.
    pub(crate) fn is_alone(&self) -> bool {
        matches!(self, Self::Alone(_))
    }

    /// Returns true if the server of this id has ended. A server that has not been watched for long enough has not.
    pub(crate) fn is_over(&self, server: ServerId) -> Result<bool, StateError> {
        match self {
            Self::Alone(id) => Ok(server != *id),
            Self::Several { leases, own } => Ok(server != lease(own).id && leases.living(server)?.is_none()),
        }
    }

    /// Another server of this id, if it lives.
    pub(crate) fn living(&self, server: ServerId) -> Result<Option<Living>, StateError> {
        match self {
            Self::Several { leases, own } if server != lease(own).id => leases.living(server),
            _ => Ok(None),
        }
    }

    /// Another server with this home, if it lives.
    pub(crate) fn at_home(&self, home: HomeId) -> Result<Option<Living>, StateError> {
        match self {
            Self::Several { leases, own } if self.home() != Some(home) => leases.at_home(home, || lease(own).id),
            _ => Ok(None),
        }
    }

    /// The home of this server, if it tells an address.
    pub(crate) fn home(&self) -> Option<HomeId> {
        match self {
            Self::Several { leases, .. } => leases.address.as_ref().map(|_| leases.home),
            Self::Alone(_) => None,
        }
    }

    /// Returns true if another server lived when this one last looked. It asks the store for nothing.
    pub(crate) fn seems_to_live(&self, server: ServerId) -> bool {
        match self {
            Self::Several { leases, .. } => lock(&leases.watched).contains_key(&server),
            Self::Alone(_) => false,
        }
    }

    /// The other servers that tell an address, and lived when this one last looked. It asks the store for nothing.
    pub(crate) fn others(&self) -> Vec<Living> {
        match self {
            Self::Several { leases, .. } => {
                let watched = lock(&leases.watched);
                let homes = lock(&leases.homes);
                let others = homes.iter().filter(|(home, _)| **home != leases.home);
                let others = others.filter(|(_, living)| watched.contains_key(&living.server));
                others.map(|(_, living)| living.clone()).collect()
            }
            Self::Alone(_) => Vec::new(),
        }
    }

    /// Tells the load of this server. Returns the bytes of the record; 0 if it waits for the next renewal.
    pub(crate) fn tell(&self, load: Load, lasts: Duration) -> Result<usize, StateError> {
        match self {
            Self::Several { leases, own } => leases.loads.tell(&*leases.store, lease(own).id, load, lasts),
            Self::Alone(_) => Ok(0),
        }
    }

    /// Looks up the leases of servers that told a load, and are not known yet.
    pub(crate) fn meet(&self) -> Result<(), StateError> {
        let Self::Several { leases, .. } = self else {
            return Ok(());
        };
        for server in leases.loads.unknown(|server| self.seems_to_live(server)) {
            leases.living(server)?;
        }
        Ok(())
    }

    /// The load of another server, as last heard.
    pub(crate) fn load(&self, server: ServerId) -> Option<OtherLoad> {
        match self {
            Self::Several { leases, .. } => leases.loads.of(server),
            Self::Alone(_) => None,
        }
    }

    /// The use of an owner on the other servers, as last heard.
    pub(crate) fn used(&self, owner: TenantId) -> Used {
        match self {
            Self::Several { leases, .. } => leases.loads.used(owner, |server| self.seems_to_live(server)),
            Self::Alone(_) => Used::default(),
        }
    }

    /// The number of loads that were refused.
    pub(crate) fn refused_loads(&self) -> u64 {
        match self {
            Self::Several { leases, .. } => leases.loads.refused(),
            Self::Alone(_) => 0,
        }
    }

    /// The state of the lease under this id of this server.
    pub(crate) fn standing(&self, server: ServerId) -> Standing {
        match self {
            Self::Alone(_) => Standing::Held,
            Self::Several { leases, own } => {
                let own = lease(own);
                match (own.id == server, own.holds(leases.clock.now())) {
                    (true, true) => Standing::Held,
                    (true, false) => Standing::Unsure,
                    (false, _) => Standing::Lost,
                }
            }
        }
    }

    /// Renews the lease.
    pub(crate) fn renew(&self) -> Result<Beat, StateError> {
        let Self::Several { leases, own } = self else {
            return Ok(Beat::Renewed);
        };
        if leases.renew(&lease(own))? {
            return Ok(Beat::Renewed);
        }
        let next = Arc::new(leases.begin()?);
        *own.write().unwrap_or_else(PoisonError::into_inner) = next;
        Ok(Beat::Lost)
    }

    /// Looks at the leases of the others.
    pub(crate) fn watch(&self) -> Result<(), StateError> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Several { leases, own } => leases.watch(lease(own).id),
        }
    }

    /// Ends the lease. What the server still has in the store is free for others.
    pub(crate) fn end(&self) -> Result<(), StateError> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Several { leases, own } => leases.end(&lease(own)),
        }
    }
}

fn lease(own: &RwLock<Arc<Lease>>) -> Arc<Lease> {
    Arc::clone(&own.read().unwrap_or_else(PoisonError::into_inner))
}

/// The lease of this server.
#[derive(Debug)]
pub(crate) struct Lease {
    id: ServerId,
    lasts: Duration,
    state: Mutex<State>,
    /// Held while the lease is written.
    writing: Mutex<()>,
}

#[derive(Debug, Clone)]
struct State {
    beat: u64,
    version: Version,
    /// The time before the last renewal was sent.
    renewed: Duration,
    is_over: bool,
}

impl Lease {
    fn holds(&self, now: Duration) -> bool {
        let state = lock(&self.state);
        !state.is_over && now.saturating_sub(state.renewed) < self.lasts
    }
}

/// The text of a lease.
#[derive(Debug, Serialize, Deserialize)]
struct Text {
    format: u32,
    /// The number of renewals.
    beat: u64,
    /// The time that the lease lasts without a renewal.
    lasts_ms: u64,
    /// True if the server has ended, or counts as ended.
    is_over: bool,
    /// The server's home, and its URL for other servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    at: Option<(HomeId, String)>,
    /// The server's load, in a store that carries none by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    load: Option<Record>,
}

/// A lease of another server, as this one saw it first.
#[derive(Debug)]
struct Watched {
    version: Version,
    since: Duration,
}

/// All leases of a store.
#[derive(Debug)]
pub(crate) struct Leases {
    store: Arc<dyn Store>,
    sealer: Sealer,
    lasts: Duration,
    clock: Clock,
    home: HomeId,
    address: Option<String>,
    loads: Arc<Loads>,
    watched: Mutex<HashMap<ServerId, Watched>>,
    /// The servers that told their homes.
    homes: Mutex<HashMap<HomeId, Living>>,
    /// The last search for a home. Held while one is under way.
    searched: Mutex<Option<Search>>,
}

/// A search for a home among all leases.
#[derive(Debug, Clone, Copy)]
struct Search {
    began: Instant,
    has_failed: bool,
}

impl Leases {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        key: &MasterKey,
        lasts: Duration,
        clock: Clock,
        address: Option<String>,
    ) -> Result<Self, StateError> {
        Ok(Self {
            sealer: key.sealer()?,
            loads: Loads::new(&*store, key, clock.clone())?,
            store,
            lasts: lasts.min(MOST_LASTS),
            clock,
            home: HomeId::random()?,
            address,
            watched: Mutex::default(),
            homes: Mutex::default(),
            searched: Mutex::default(),
        })
    }

    /// Tries a write that the store has to refuse. A store that ignores conditions would lose states without a word.
    fn check(&self) -> Result<(), StateError> {
        let name = Name::Lease(ServerId::random()?);
        let text = |beat| self.sealed(&name, beat, true);
        let first = self.store.swap(&name, &text(0)?, None)?;
        let first = first.ok_or_else(|| StateError::Damaged(format!("{name} was there before it was written")))?;
        let refused = [
            self.store.swap(&name, &text(1)?, None)?.is_none(),
            self.store.swap(&name, &text(2)?, Some(&first))?.is_some(),
            self.store.swap(&name, &text(3)?, Some(&first))?.is_none(),
        ];
        self.store.remove(&name)?;
        match refused {
            [true, true, true] => Ok(()),
            _ => Err(StateError::Key(
                "this object storage ignores the conditions If-None-Match and If-Match of a PUT, so servers could overwrite each \
                 other's states; use one that heeds them"
                    .to_owned(),
            )),
        }
    }

    /// Begins a lease of this server.
    fn begin(&self) -> Result<Lease, StateError> {
        let id = ServerId::random()?;
        let name = Name::Lease(id);
        let renewed = self.clock.now();
        let version = self.store.swap(&name, &self.sealed(&name, 0, false)?, None)?;
        let version = version.ok_or_else(|| StateError::Damaged(format!("{name} was there before it was written")))?;
        let state = State {
            beat: 0,
            version,
            renewed,
            is_over: false,
        };
        Ok(Lease {
            id,
            lasts: self.lasts,
            state: Mutex::new(state),
            writing: Mutex::default(),
        })
    }

    /// Renews a lease of this server. Returns false if another server has ended it.
    fn renew(&self, lease: &Lease) -> Result<bool, StateError> {
        let renewed = self.clock.now();
        self.put(lease, false, renewed)
    }

    fn end(&self, lease: &Lease) -> Result<(), StateError> {
        self.put(lease, true, self.clock.now())?;
        // Missing and over are the same. If this fails, whoever watches removes it.
        let _ = self.store.remove(&Name::Lease(lease.id));
        Ok(())
    }

    fn put(&self, lease: &Lease, is_over: bool, renewed: Duration) -> Result<bool, StateError> {
        let _writing = lease.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let State { beat, version, .. } = lock(&lease.state).clone();
        let name = Name::Lease(lease.id);
        let sealed = self.sealed(&name, beat + 1, is_over)?;
        let swapped = self.store.swap(&name, &sealed, Some(&version))?;
        // A renewal whose answer was lost is the one that is there, if nobody has ended the lease.
        let swapped = match swapped {
            None => match self.seen(lease.id)? {
                Some((Some(text), version)) if !text.is_over => self.store.swap(&name, &sealed, Some(&version))?,
                _ => None,
            },
            swapped => swapped,
        };
        let mut state = lock(&lease.state);
        let Some(version) = swapped else {
            state.is_over = true;
            return Ok(false);
        };
        *state = State {
            beat: beat + 1,
            version,
            renewed,
            is_over,
        };
        Ok(true)
    }

    /// Looks at the leases of all other servers, so that it is known later which of them stood still.
    fn watch(&self, own: ServerId) -> Result<(), StateError> {
        let before: Vec<_> = lock(&self.watched).keys().copied().collect();
        let listed = self.store.list(Place::Leases)?;
        let servers = listed.into_iter().filter_map(|listed| match listed.name {
            Name::Lease(server) if server != own => Some(server),
            _ => None,
        });
        let servers: Vec<_> = servers.collect();
        // A server that was seen during the listing may be missing there.
        lock(&self.watched).retain(|server, _| servers.contains(server) || !before.contains(server));
        for server in servers {
            self.living(server)?;
        }
        Ok(())
    }

    /// The server with this home, if it lives.
    fn at_home(&self, home: HomeId, own: impl Fn() -> ServerId) -> Result<Option<Living>, StateError> {
        let asked = Instant::now();
        if let Some(living) = self.known_at_home(home)? {
            return Ok(Some(living));
        }
        {
            // Those who wait here share one search. Ids of sessions come from clients, so there must not be a search for each.
            let mut searched = self.searched.lock().unwrap_or_else(PoisonError::into_inner);
            match *searched {
                Some(last) if last.began >= asked => {
                    if last.has_failed {
                        let why = io::Error::other("the search that this request waited for has failed");
                        return Err(StateError::io("the other servers cannot be searched", why));
                    }
                }
                last => {
                    if let Some(rest) = last.and_then(|last| SEARCH.checked_sub(last.began.elapsed())) {
                        std::thread::sleep(rest);
                    }
                    let began = Instant::now();
                    let watched = self.watch(own());
                    // Those who wait must not repeat a search that fails, one after the other.
                    let has_failed = watched.is_err();
                    *searched = Some(Search { began, has_failed });
                    watched?;
                }
            }
        }
        self.known_at_home(home)
    }

    fn known_at_home(&self, home: HomeId) -> Result<Option<Living>, StateError> {
        let server = lock(&self.homes).get(&home).map(|living| living.server);
        Ok(match server {
            Some(server) => self.living(server)?,
            None => None,
        })
    }

    /// Another server, if its lease is not over. If the lease stood still for long enough, it is ended now.
    fn living(&self, server: ServerId) -> Result<Option<Living>, StateError> {
        let name = Name::Lease(server);
        let asked = self.clock.now();
        let Some((text, version)) = self.seen(server)? else {
            // A replica of the store may be behind, and lack a lease that has just begun. A write is never behind.
            if self.store.swap(&name, &self.sealed(&name, 0, true)?, None)?.is_none() {
                return Ok(Some(Living { server, address: None }));
            }
            self.forget(server);
            return Ok(None);
        };
        // Whoever can damage a lease could remove it as well.
        let lasts = text
            .as_ref()
            .map_or(self.lasts, |text| Duration::from_millis(text.lasts_ms).min(MOST_LASTS));
        let beat = text.as_ref().map_or(0, |text| text.beat);
        if !text.as_ref().is_some_and(|text| text.is_over) {
            let (at, load) = text.map_or((None, None), |text| (text.at, text.load));
            let living = Living {
                server,
                address: at.as_ref().map(|(_, address)| address.clone()),
            };
            if !self.has_stood_still(server, &version, asked, lasts) {
                if let Some(load) = load {
                    self.loads.note(server, load);
                }
                lock(&self.homes).extend(at.map(|(home, _)| (home, living.clone())));
                return Ok(Some(living));
            }
            if self
                .store
                .swap(&name, &self.sealed(&name, beat, true)?, Some(&version))?
                .is_none()
            {
                return Ok(Some(living)); // renewed at the last moment
            }
        }
        self.forget(server);
        Ok(None)
    }

    /// Forgets a server whose lease is over.
    fn forget(&self, server: ServerId) {
        lock(&self.watched).remove(&server);
        lock(&self.homes).retain(|_, at_home| at_home.server != server);
        self.loads.forget(server);
        let _ = self.store.remove(&Name::Lease(server)); // missing and over are the same
    }

    /// Returns true if this version has been there for the whole time. `asked` is a time before it was read.
    fn has_stood_still(&self, server: ServerId, version: &Version, asked: Duration, lasts: Duration) -> bool {
        // An eighth more, because no two clocks run at the same rate.
        let whole = lasts + lasts / 8;
        let mut watched = lock(&self.watched);
        match watched.get(&server).filter(|watched| watched.version == *version) {
            Some(watched) => asked.saturating_sub(watched.since) >= whole,
            None => {
                let version = version.clone();
                // A time after it was read: the lease may have been renewed just before.
                let since = self.clock.now();
                watched.insert(server, Watched { version, since });
                false
            }
        }
    }

    /// The text of a lease, if it can be read, and its version. `None` if the lease is missing.
    fn seen(&self, server: ServerId) -> Result<Option<(Option<Text>, Version)>, StateError> {
        let name = Name::Lease(server);
        let found = self.store.read_version(&name, MOST_SEALED)?;
        Ok(found.map(|(sealed, version)| {
            let text = self.sealer.open(&name, sealed);
            let text = text.and_then(|json| read(&name.to_string(), &json));
            (text.ok(), version)
        }))
    }

    fn sealed(&self, name: &Name, beat: u64, is_over: bool) -> Result<Vec<u8>, StateError> {
        let text = Text {
            format: FORMAT,
            beat,
            lasts_ms: u64::try_from(self.lasts.as_millis()).unwrap_or(u64::MAX),
            is_over,
            at: self.address.clone().map(|address| (self.home, address)),
            load: self.loads.for_lease(self.lasts),
        };
        self.sealer.seal(name, &write(&text)?)
    }
}
