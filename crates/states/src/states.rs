//! The states of a store: written, read, listed, removed and collected.
//!
//! A state is written in this order: its objects, its manifest, its ref. A process that is killed in between leaves the old ref, and
//! objects that nobody names. [`Tenant::collect`] removes those.

mod collecting;
mod refs;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::Value;

use crate::clock::Clock;
use crate::error::StateError;
use crate::keys::{MasterKey, TenantKeys};
use crate::lease::{Beat, Leases, Living, Servers, Standing};
use crate::load::{Load, OtherLoad, Used};
use crate::locks::lock;
use crate::manifest::{Body, Ended, FORMAT, Head, Manifest, Ref, Saved, SavedFile, bytes_of_ended, read, write};
use crate::names::{HomeId, Name, ObjectId, Place, ServerId, SessionId, TenantId};
use crate::pieces::pieces;
use crate::seal::MOST_SEALED;
use crate::store::Store;
pub(crate) use refs::Hold;
use refs::{Next, Seen, What};

/// The most bytes of a manifest. It names the pieces of many files.
const MOST_MANIFEST: u64 = 32 << 20;
/// Refs or pieces that are read at once. A piece has at most 4 MiB.
const AT_ONCE: usize = 16;
/// The content of [`Name::Check`].
const CHECK: &[u8] = b"states of Sandglass";

/// All states of a store.
#[derive(Debug)]
pub struct States {
    store: Arc<dyn Store>,
    servers: Arc<Servers>,
    key: MasterKey,
}

/// The states of one tenant.
#[derive(Debug)]
pub struct Tenant {
    store: Arc<dyn Store>,
    servers: Arc<Servers>,
    keys: TenantKeys,
    /// Held shared by writers, and alone by the collector.
    writing: RwLock<()>,
    /// The refs of sessions that this server has, or is about to have. Only from these may it write them.
    had: Mutex<HashMap<SessionId, Seen>>,
}

/// The work of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// The bytes of the state ([`Saved::bytes`]).
    pub bytes: u64,
    /// The objects that were not there before.
    pub new_objects: u64,
    /// The bytes of these objects, compressed and encrypted.
    pub new_bytes: u64,
    /// The bytes of executions that can run again: their journals, and what the states before them add to each other.
    pub ended_bytes: u64,
}

/// A session in a listing, with its facts or the reason why they cannot be read.
pub type Found = (SessionId, Result<Head, StateError>);

/// The work of a collection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collected {
    /// The sessions that have a state.
    pub sessions: u64,
    /// The objects that a session's state needs.
    pub kept: u64,
    /// The objects that nobody needs, but that are too young to be removed.
    pub too_young: u64,
    /// The objects that were removed.
    pub removed: u64,
}

impl States {
    /// The states in a store that no other server uses. A new store is marked with the key.
    ///
    /// # Errors
    /// [`StateError::Key`] when the store was marked with another key; [`StateError::Io`].
    pub fn new(store: Arc<dyn Store>, key: MasterKey) -> Result<Self, StateError> {
        check_key(&*store, &key)?;
        let servers = Arc::new(Servers::alone()?);
        Ok(Self { store, servers, key })
    }

    /// The states in a store that other servers use as well. This server has a lease there, which [`States::renew`] renews. Without renewal
    /// it lasts for `lasts`; then others take over what this server has. `address` is a URL at which the others reach this one, if it tells
    /// one.
    ///
    /// # Errors
    /// As [`States::new`]; also [`StateError::Key`] when the store ignores conditions.
    pub fn shared(
        store: Arc<dyn Store>,
        key: MasterKey,
        lasts: Duration,
        clock: Clock,
        address: Option<String>,
    ) -> Result<Self, StateError> {
        check_key(&*store, &key)?;
        let leases = Leases::new(Arc::clone(&store), &key, lasts, clock, address)?;
        let servers = Arc::new(Servers::several(leases)?);
        Ok(Self { store, servers, key })
    }

    /// Renews this server's lease. Call it several times in the time that the lease lasts.
    ///
    /// # Errors
    /// [`StateError`]; then the lease runs on, and may end.
    pub fn renew(&self) -> Result<Beat, StateError> {
        self.servers.renew()
    }

    /// Looks at the leases of other servers, so that it is known later which of them stood still. Call it as often as [`States::renew`], and
    /// not in its place: it takes longer.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn watch(&self) -> Result<(), StateError> {
        self.servers.watch()
    }

    /// The right to sessions that [`Tenant::mark_awake`] noted under this id of this server. It asks the clock only.
    pub fn standing(&self, server: ServerId) -> Standing {
        self.servers.standing(server)
    }

    /// The home of this server, which the ids of its new sessions are to begin with. `None` if it tells others no address.
    pub fn home(&self) -> Option<HomeId> {
        self.servers.home()
    }

    /// Returns true if another server lived when this one last [watched](States::watch). It asks the store for nothing.
    pub fn seems_to_live(&self, server: ServerId) -> bool {
        self.servers.seems_to_live(server)
    }

    /// The other servers that tell an address, and lived when this one last [watched](States::watch). It asks the store for nothing.
    pub fn others(&self) -> Vec<Living> {
        self.servers.others()
    }

    /// Tells the other servers the load of this one, which they believe for so long. Returns the bytes of the record; 0 if the store carries
    /// none by itself, so that it goes with the next renewal.
    ///
    /// # Errors
    /// [`StateError`]; then nobody hears of it.
    pub fn tell_load(&self, load: Load, lasts: Duration) -> Result<usize, StateError> {
        self.servers.tell(load, lasts)
    }

    /// Looks up servers that told a load and that this one has not [watched](States::watch) yet.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn meet(&self) -> Result<(), StateError> {
        self.servers.meet()
    }

    /// The load of another server, as last heard; `None` if that is stale or unknown. It asks the store for nothing.
    pub fn load(&self, server: ServerId) -> Option<OtherLoad> {
        self.servers.load(server)
    }

    /// The number of loads that were refused: damaged, made up, or put back.
    pub fn refused_loads(&self) -> u64 {
        self.servers.refused_loads()
    }

    /// Ends this server's lease. What it has is free for others at once.
    ///
    /// # Errors
    /// [`StateError`]; then the others wait until the lease has run out.
    pub fn end(&self) -> Result<(), StateError> {
        self.servers.end()
    }

    /// A function that tells what an owner uses on the other servers, as last heard. It asks the store for nothing.
    pub fn used_elsewhere(&self, owner: TenantId) -> impl Fn() -> Used + Send + Sync + 'static {
        let servers = Arc::clone(&self.servers);
        move || servers.used(owner)
    }

    /// The states of an owner. Make one tenant of an owner only, since its lock keeps collections and writes apart.
    ///
    /// # Errors
    /// [`StateError::Key`] when its keys cannot be derived.
    pub fn tenant(&self, owner: &str) -> Result<Tenant, StateError> {
        Ok(Tenant {
            store: Arc::clone(&self.store),
            servers: Arc::clone(&self.servers),
            keys: self.key.tenant(owner)?,
            writing: RwLock::new(()),
            had: Mutex::default(),
        })
    }
}

fn check_key(store: &dyn Store, key: &MasterKey) -> Result<(), StateError> {
    let (name, sealer) = (Name::Check, key.sealer()?);
    let found = match store.read(&name, MOST_SEALED)? {
        None if store.swap(&name, &sealer.seal(&name, CHECK)?, None)?.is_some() => return Ok(()),
        None => store.read(&name, MOST_SEALED)?, // another server has begun the store just now
        found => found,
    };
    let opened = found.and_then(|sealed| sealer.open(&name, sealed).ok());
    if opened.as_deref() == Some(CHECK) {
        return Ok(());
    }
    let problem = "the key of states is not the one with which this store was begun, or its file \"check\" is damaged; \
                   give the earlier key, or another folder";
    Err(StateError::Key(problem.to_owned()))
}

/// All these functions block as long as the store does.
impl Tenant {
    pub(crate) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The key of the tags of conversations.
    pub(crate) fn conversations(&self) -> &ring::hmac::Key {
        &self.keys.conversations
    }

    /// The tenant's id, which names its places in the store.
    pub fn id(&self) -> TenantId {
        self.keys.id
    }

    /// The id of the session that a client calls by this name, of any length. It tells nothing of the name.
    pub fn session_named(&self, name: &str) -> SessionId {
        self.keys.session(name)
    }

    /// Writes the state of a session, in place of its earlier one. It is durable when this returns. `about` is kept in the state's
    /// [`Head`]. From then on any server may have the session.
    ///
    /// # Errors
    /// [`StateError`]; then the session has its earlier state. [`StateError::Taken`]: another server went on with the session.
    pub fn write_about(&self, session: SessionId, saved: &Saved, about: Value) -> Result<Written, StateError> {
        self.write_with(session, saved, about, Hold::Free, |_, _| Vec::new())
    }

    /// As [`Tenant::write_about`]. `ended` makes the executions that can run again, from the ref so far.
    pub(crate) fn write_with(
        &self,
        session: SessionId,
        saved: &Saved,
        about: Value,
        hold: Hold,
        ended: impl FnOnce(Option<&Ref>, &mut Written) -> Vec<Ended>,
    ) -> Result<Written, StateError> {
        let _writing = self.writers();
        let before = self.before(session)?;
        let writer = self.servers.writer();
        let mut written = Written {
            bytes: saved.bytes(),
            ..Written::default()
        };
        let ended = ended(before.as_ref().and_then(|seen| seen.stored.as_ref()), &mut written);
        let ended_bytes = bytes_of_ended(&ended);
        written.ended_bytes = ended_bytes;
        let mut body = |bytes: &[u8]| self.write_body(writer, bytes, &mut written);
        let manifest = Manifest {
            format: FORMAT,
            session,
            execution: saved.execution,
            settings: saved.settings.clone(),
            past: saved.past.clone(),
            bodies: saved.bodies.iter().map(|bytes| body(bytes)).collect::<Result<_, _>>()?,
            state: body(&saved.state)?,
            lost: saved.lost.clone(),
            files: saved
                .files
                .iter()
                .map(|file| Ok((file.path.clone(), body(&file.body)?)))
                .collect::<Result<_, StateError>>()?,
            folders: saved.folders.clone(),
            ended,
        };
        let manifest = write(&manifest)?;
        within(manifest.len() as u64, MOST_MANIFEST)?;
        let manifest = body(&manifest)?;
        let head = Head {
            execution: saved.execution,
            written_ms: now_ms(),
            used_ms: 0,
            bytes: written.bytes,
            ended_bytes,
            awake: false,
            about,
        };
        let next = Next {
            head,
            manifest,
            writer,
            server: self.servers.id(),
            hold,
            what: What::State,
            journaled: hold == Hold::Held,
        };
        self.write_ref(session, next, before)?;
        Ok(written)
    }

    /// As [`Tenant::write_about`], without further facts.
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, session: SessionId, saved: &Saved) -> Result<Written, StateError> {
        self.write_about(session, saved, Value::Null)
    }

    /// The state of a session, whose bodies take at most `most` bytes; `None` if it has none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn read(&self, session: SessionId, most: u64) -> Result<Option<Saved>, StateError> {
        let stored = self.read_ref(session)?;
        let read = |stored: Ref| self.read_state(session, stored.writer, &stored.manifest, most);
        stored.map(read).transpose()
    }

    /// The state of a session with its facts, to go on from it with [`Tenant::mark_awake`]; `None` if it has none. `allowed` is the most
    /// bytes of a state that is written now; one that is there may have more.
    ///
    /// # Errors
    /// [`StateError`]. [`StateError::Taken`]: the session goes on elsewhere.
    pub fn take_up(&self, session: SessionId, allowed: u64) -> Result<Option<(Head, Saved)>, StateError> {
        let Some((stored, version)) = self.read_ref_version(session)? else {
            return Ok(None);
        };
        self.is_free(&stored)?;
        let most = stored.head.bytes.max(allowed);
        let saved = self.read_state(session, stored.writer, &stored.manifest, most)?;
        let head = stored.head.clone();
        let seen = Seen {
            stored: Some(stored),
            version,
        };
        lock(&self.had).insert(session, seen);
        Ok(Some((head, saved)))
    }

    pub(crate) fn read_state(
        &self,
        session: SessionId,
        writer: Option<ServerId>,
        manifest: &Body,
        most: u64,
    ) -> Result<Saved, StateError> {
        let manifest = self.read_manifest(session, writer, manifest)?;
        let bytes = manifest.all().map(|body| body.bytes).fold(0, u64::saturating_add);
        within(bytes, most)?;
        let bodies = manifest.bodies.iter().map(|body| self.read_body(writer, body));
        let files = manifest.files.iter().map(|(path, body)| {
            Ok(SavedFile {
                path: path.clone(),
                body: self.read_body(writer, body)?,
            })
        });
        Ok(Saved {
            bodies: bodies.collect::<Result<_, StateError>>()?,
            files: files.collect::<Result<_, StateError>>()?,
            state: self.read_body(writer, &manifest.state)?,
            execution: manifest.execution,
            settings: manifest.settings,
            past: manifest.past,
            lost: manifest.lost,
            folders: manifest.folders,
        })
    }

    /// The facts about a session's state; `None` if it has none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn head(&self, session: SessionId) -> Result<Option<Head>, StateError> {
        Ok(self.read_ref(session)?.map(|stored| stored.head))
    }

    /// Removes the state of a session, and its journal. Their objects stay until the next [collection](Tenant::collect).
    ///
    /// # Errors
    /// [`StateError::Io`]. [`StateError::Taken`]: another server has the session.
    pub fn remove(&self, session: SessionId) -> Result<(), StateError> {
        self.remove_unused(session, u64::MAX)
    }

    /// As [`Tenant::remove`], unless the session was used after this time, in milliseconds since 1970. Then it is [`StateError::Taken`].
    ///
    /// # Errors
    /// As there.
    pub fn remove_unused(&self, session: SessionId, used_ms: u64) -> Result<(), StateError> {
        let name = Name::Ref(self.keys.id, session);
        let _writing = self.writers(); // a collection of this server would remove it, too
        if !self.servers.is_alone() {
            let Some(seen) = self.see(session)? else {
                return Ok(());
            };
            if let Some(stored) = seen.stored.as_ref().filter(|stored| !stored.gone) {
                self.is_free(stored)?;
                if stored.head.last_used_ms() > used_ms {
                    return Err(StateError::Taken);
                }
            }
            // Another server may take it up at this moment. Either that or the removal is refused.
            let journaled = seen.stored.as_ref().is_some_and(|stored| stored.journaled);
            let gone = Ref {
                journaled,
                ..Ref::gone(self.servers.id())
            };
            let gone = self.sealed(&name, &gone)?;
            if self.store.swap(&name, &gone, Some(&seen.version))?.is_none() {
                return Err(StateError::Taken);
            }
            if journaled {
                self.forget_parts(session)?;
            }
        }
        lock(&self.had).remove(&session);
        if self.servers.is_alone() {
            self.remove_parts(session, None)?;
            return self.store.remove(&name);
        }
        let _ = self.store.remove(&name); // it is gone already, and the next collection removes it
        Ok(())
    }

    /// The sessions that have a state, each with its facts or with the reason why they cannot be read.
    ///
    /// # Errors
    /// [`StateError::Io`] when they cannot be listed.
    pub fn sessions(&self) -> Result<Vec<Found>, StateError> {
        let listed = self.store.list(Place::Refs(self.keys.id))?;
        let names: Vec<_> = listed.into_iter().map(|listed| listed.name).collect();
        let mut found = Vec::new();
        for names in names.chunks(AT_ONCE) {
            for (name, sealed) in names.iter().zip(self.store.read_all(names, MOST_SEALED)) {
                let Name::Ref(_, session) = *name else { continue };
                let stored = sealed.and_then(|sealed| sealed.map(|sealed| self.opened(name, sealed)).transpose());
                match stored.map(|stored| stored.filter(|stored| !stored.gone)) {
                    Ok(stored) => found.extend(stored.map(|stored| (session, Ok(stored.head)))),
                    Err(error) => found.push((session, Err(error))),
                }
            }
        }
        Ok(found)
    }

    /// Returns true if no other server uses the store.
    pub fn is_alone(&self) -> bool {
        self.servers.is_alone()
    }

    pub(crate) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Keeps collections away while something is written.
    pub(crate) fn writers(&self) -> RwLockReadGuard<'_, ()> {
        self.writing.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write_sealed(&self, name: &Name, content: &[u8]) -> Result<(), StateError> {
        self.store.write(name, &self.keys.sealer.seal(name, content)?)
    }

    pub(crate) fn open_sealed(&self, name: &Name, sealed: Vec<u8>) -> Result<Vec<u8>, StateError> {
        self.keys.sealer.open(name, sealed)
    }

    pub(crate) fn read_manifest(
        &self,
        session: SessionId,
        writer: Option<ServerId>,
        manifest: &Body,
    ) -> Result<Manifest, StateError> {
        within(manifest.bytes, MOST_MANIFEST)?;
        let what = format!("the manifest of session {session}");
        let manifest: Manifest = read(&what, &self.read_body(writer, manifest)?)?;
        match manifest.session == session {
            true => Ok(manifest),
            false => Err(StateError::Damaged(format!("{what} is another session's"))),
        }
    }

    pub(crate) fn write_body(
        &self,
        writer: Option<ServerId>,
        bytes: &[u8],
        written: &mut Written,
    ) -> Result<Body, StateError> {
        let write = |piece| self.write_object(writer, piece, written);
        Ok(Body {
            bytes: bytes.len() as u64,
            pieces: pieces(bytes).into_iter().map(write).collect::<Result<_, _>>()?,
        })
    }

    /// Writes an object, unless it is there. An object that is there is read, so that a damaged one is replaced.
    fn write_object(
        &self,
        writer: Option<ServerId>,
        content: &[u8],
        written: &mut Written,
    ) -> Result<ObjectId, StateError> {
        let id = self.keys.object(content);
        let name = Name::Object(self.keys.id, writer, id);
        if let Some(there) = self.store.read(&name, MOST_SEALED).unwrap_or_default() {
            let opened = self.keys.sealer.open(&name, there.clone()).ok();
            if opened.as_deref() == Some(content) && self.store.touch(&name, &there)? {
                return Ok(id);
            }
        }
        let sealed = self.keys.sealer.seal(&name, content)?;
        self.store.write(&name, &sealed)?;
        written.new_objects += 1;
        written.new_bytes += sealed.len() as u64;
        Ok(id)
    }

    pub(crate) fn read_body(&self, writer: Option<ServerId>, body: &Body) -> Result<Bytes, StateError> {
        let mut bytes = Vec::new();
        let names: Vec<_> = body
            .pieces
            .iter()
            .map(|id| Name::Object(self.keys.id, writer, *id))
            .collect();
        let read = names
            .chunks(AT_ONCE)
            .flat_map(|names| names.iter().zip(self.store.read_all(names, MOST_SEALED)));
        for (name, sealed) in read {
            let sealed = sealed?.ok_or_else(|| StateError::Damaged(format!("{name} is missing")))?;
            let content = self.keys.sealer.open(name, sealed)?;
            if bytes.len() as u64 + content.len() as u64 > body.bytes {
                return Err(StateError::Damaged(format!("{name} is larger than its manifest says")));
            }
            bytes.extend_from_slice(&content);
        }
        match bytes.len() as u64 == body.bytes {
            true => Ok(bytes.into()),
            false => Err(StateError::Damaged(
                "a body is shorter than its manifest says".to_owned(),
            )),
        }
    }
}

pub(crate) fn within(bytes: u64, most: u64) -> Result<(), StateError> {
    match bytes <= most {
        true => Ok(()),
        false => Err(StateError::TooLarge { bytes, most }),
    }
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
