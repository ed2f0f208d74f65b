//! The states of a store: written, read, listed, removed and collected.
//!
//! A state is written in this order: its objects, its manifest, its ref. A process that is killed in between leaves the old ref, and
//! objects that nobody names. [`Tenant::collect`] removes those.

use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::Value;

use crate::error::StateError;
use crate::keys::{MasterKey, TenantKeys};
use crate::manifest::{Body, FORMAT, Head, Manifest, Ref, Saved, SavedFile, read, write};
use crate::names::{Name, ObjectId, Place, SessionId, TenantId};
use crate::pieces::pieces;
use crate::seal::MOST_SEALED;
use crate::store::Store;

/// The most bytes of a manifest. It names the pieces of many files.
const MOST_MANIFEST: u64 = 32 << 20;
/// The content of [`Name::Check`].
const CHECK: &[u8] = b"states of Sandglass";

/// All states of a store.
#[derive(Debug)]
pub struct States {
    store: Arc<dyn Store>,
    key: MasterKey,
}

/// The states of one tenant.
#[derive(Debug)]
pub struct Tenant {
    store: Arc<dyn Store>,
    keys: TenantKeys,
    /// Held shared by writers, and alone by the collector.
    writing: RwLock<()>,
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
    /// The states in a store. A new store is marked with the key.
    ///
    /// # Errors
    /// [`StateError::Key`] when the store was marked with another key; [`StateError::Io`].
    pub fn new(store: Arc<dyn Store>, key: MasterKey) -> Result<Self, StateError> {
        let sealer = key.sealer()?;
        match store.read(&Name::Check, MOST_SEALED)? {
            None => store.write(&Name::Check, &sealer.seal(&Name::Check, CHECK)?)?,
            Some(sealed) => {
                let opened = sealer.open(&Name::Check, sealed).ok();
                if opened.as_deref() != Some(CHECK) {
                    let problem = "the key of states is not the one with which this store was begun, or its file \"check\" is damaged; \
                                   give the earlier key, or another folder";
                    return Err(StateError::Key(problem.to_owned()));
                }
            }
        }
        Ok(Self { store, key })
    }

    /// The states of an owner. Make one tenant of an owner only, since its lock keeps collections and writes apart.
    ///
    /// # Errors
    /// [`StateError::Key`] when its keys cannot be derived.
    pub fn tenant(&self, owner: &str) -> Result<Tenant, StateError> {
        Ok(Tenant {
            store: Arc::clone(&self.store),
            keys: self.key.tenant(owner)?,
            writing: RwLock::new(()),
        })
    }
}

/// All these functions block as long as the store does.
impl Tenant {
    /// Writes the state of a session, in place of its earlier one. It is durable when this returns. `about` is kept in the state's
    /// [`Head`].
    ///
    /// # Errors
    /// [`StateError`]; then the session has its earlier state.
    pub fn write_about(&self, session: SessionId, saved: &Saved, about: Value) -> Result<Written, StateError> {
        let _writing = self.writers();
        let mut written = Written {
            bytes: saved.bytes(),
            new_objects: 0,
            new_bytes: 0,
        };
        let mut body = |bytes: &[u8]| self.write_body(bytes, &mut written);
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
        };
        let manifest = write(&manifest)?;
        within(manifest.len() as u64, MOST_MANIFEST)?;
        let manifest = body(&manifest)?;
        let head = Head {
            execution: saved.execution,
            written_ms: now_ms(),
            used_ms: 0,
            bytes: written.bytes,
            awake: false,
            about,
        };
        self.write_ref(session, head, manifest)?;
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
        let Some(Ref { manifest, .. }) = self.read_ref(session)? else {
            return Ok(None);
        };
        let manifest = self.read_manifest(session, &manifest)?;
        let bytes = manifest.all().map(|body| body.bytes).fold(0, u64::saturating_add);
        within(bytes, most)?;
        let bodies = manifest.bodies.iter().map(|body| self.read_body(body));
        let files = manifest.files.iter().map(|(path, body)| {
            Ok(SavedFile {
                path: path.clone(),
                body: self.read_body(body)?,
            })
        });
        Ok(Some(Saved {
            bodies: bodies.collect::<Result<_, StateError>>()?,
            files: files.collect::<Result<_, StateError>>()?,
            state: self.read_body(&manifest.state)?,
            execution: manifest.execution,
            settings: manifest.settings,
            past: manifest.past,
            lost: manifest.lost,
            folders: manifest.folders,
        }))
    }

    /// The facts about a session's state; `None` if it has none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn head(&self, session: SessionId) -> Result<Option<Head>, StateError> {
        Ok(self.read_ref(session)?.map(|stored| stored.head))
    }

    /// Notes that a session goes on from its state now. The state stays.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn mark_awake(&self, session: SessionId) -> Result<(), StateError> {
        let _writing = self.writers();
        match self.read_ref(session)? {
            Some(Ref { head, manifest, .. }) => {
                let (awake, used_ms) = (true, now_ms());
                self.write_ref(session, Head { awake, used_ms, ..head }, manifest)
            }
            None => Ok(()),
        }
    }

    /// Removes the state of a session, and its journal. Their objects stay until the next [collection](Tenant::collect).
    ///
    /// # Errors
    /// [`StateError::Io`].
    pub fn remove(&self, session: SessionId) -> Result<(), StateError> {
        self.remove_journal(session)?;
        self.store.remove(&Name::Ref(self.keys.id, session))
    }

    /// The sessions that have a state, each with its facts or with the reason why they cannot be read.
    ///
    /// # Errors
    /// [`StateError::Io`] when they cannot be listed.
    pub fn sessions(&self) -> Result<Vec<Found>, StateError> {
        let listed = self.store.list(Place::Refs(self.keys.id))?;
        let session = |name| match name {
            Name::Ref(_, session) => Some(session),
            _ => None,
        };
        let sessions = listed.into_iter().filter_map(|listed| session(listed.name));
        let read = |session| match self.head(session) {
            Ok(head) => head.map(|head| (session, Ok(head))),
            Err(error) => Some((session, Err(error))),
        };
        Ok(sessions.filter_map(read).collect())
    }

    /// Removes objects that no manifest names and that are at least so old. Writes of this tenant wait meanwhile.
    ///
    /// # Errors
    /// [`StateError`]. When a ref or manifest cannot be read, nothing is removed, because its objects are not known.
    pub fn collect(&self, least_age: Duration) -> Result<Collected, StateError> {
        let _alone = self.writing.write().unwrap_or_else(PoisonError::into_inner);
        let mut named: HashSet<ObjectId> = HashSet::new();
        let mut collected = Collected::default();
        for listed in self.store.list(Place::Refs(self.keys.id))? {
            let Name::Ref(_, session) = listed.name else { continue };
            let Some(Ref { manifest, .. }) = self.read_ref(session)? else {
                continue;
            };
            let bodies = self.read_manifest(session, &manifest)?;
            named.extend(manifest.pieces);
            named.extend(bodies.all().flat_map(|body| &body.pieces));
            for number in self.part_numbers(session)? {
                let part = self.part(session, number)?;
                named.extend(part.and_then(|part| part.body).into_iter().flat_map(|body| body.pieces));
            }
            collected.sessions += 1;
        }
        for listed in self.store.list(Place::Objects(self.keys.id))? {
            let Name::Object(_, id) = listed.name else { continue };
            if named.contains(&id) {
                collected.kept += 1;
            } else if listed.age < least_age {
                collected.too_young += 1;
            } else {
                self.store.forget(&listed.name)?; // one that comes back is collected again
                collected.removed += 1;
            }
        }
        Ok(collected)
    }

    pub(crate) fn id(&self) -> TenantId {
        self.keys.id
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

    fn write_ref(&self, session: SessionId, head: Head, manifest: Body) -> Result<(), StateError> {
        let name = Name::Ref(self.keys.id, session);
        let stored = Ref {
            format: FORMAT,
            head,
            manifest,
        };
        self.write_sealed(&name, &write(&stored)?)
    }

    fn read_ref(&self, session: SessionId) -> Result<Option<Ref>, StateError> {
        let name = Name::Ref(self.keys.id, session);
        let Some(sealed) = self.store.read(&name, MOST_SEALED)? else {
            return Ok(None);
        };
        read(&name.to_string(), &self.open_sealed(&name, sealed)?).map(Some)
    }

    fn read_manifest(&self, session: SessionId, body: &Body) -> Result<Manifest, StateError> {
        within(body.bytes, MOST_MANIFEST)?;
        let what = format!("the manifest of session {session}");
        let manifest: Manifest = read(&what, &self.read_body(body)?)?;
        match manifest.session == session {
            true => Ok(manifest),
            false => Err(StateError::Damaged(format!("{what} is another session's"))),
        }
    }

    pub(crate) fn write_body(&self, bytes: &[u8], written: &mut Written) -> Result<Body, StateError> {
        let write = |piece| self.write_object(piece, written);
        Ok(Body {
            bytes: bytes.len() as u64,
            pieces: pieces(bytes).into_iter().map(write).collect::<Result<_, _>>()?,
        })
    }

    /// Writes an object, unless it is there. An object that is there is read, so that a damaged one is replaced.
    fn write_object(&self, content: &[u8], written: &mut Written) -> Result<ObjectId, StateError> {
        let id = self.keys.object(content);
        let name = Name::Object(self.keys.id, id);
        let there = self.store.read(&name, MOST_SEALED).unwrap_or_default();
        let there = there.and_then(|sealed| self.keys.sealer.open(&name, sealed).ok());
        if there.as_deref() == Some(content) && self.store.touch(&name)? {
            return Ok(id);
        }
        let sealed = self.keys.sealer.seal(&name, content)?;
        self.store.write(&name, &sealed)?;
        written.new_objects += 1;
        written.new_bytes += sealed.len() as u64;
        Ok(id)
    }

    pub(crate) fn read_body(&self, body: &Body) -> Result<Bytes, StateError> {
        let mut bytes = Vec::new();
        for id in &body.pieces {
            let name = Name::Object(self.keys.id, *id);
            let sealed = self.store.read(&name, MOST_SEALED)?;
            let sealed = sealed.ok_or_else(|| StateError::Damaged(format!("{name} is missing")))?;
            let content = self.keys.sealer.open(&name, sealed)?;
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
