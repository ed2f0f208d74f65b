//! The refs of sessions, and who may write them.
//!
//! A ref names the server that wrote it last, and tells whether that server still has the session. Others may have it once that server
//! gives it back, or its lease is over. A ref is only ever swapped for the one that its writer saw, so the write of a server that was
//! thought to be dead comes too late.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;

use super::{AT_ONCE, Tenant, now_ms};
use crate::error::StateError;
use crate::lease::{Living, Standing};
use crate::locks::lock;
use crate::manifest::{Body, FORMAT, Head, Owner, Ref, read, write};
use crate::names::{Name, ServerId, SessionId};
use crate::seal::MOST_SEALED;
use crate::store::Version;

/// A ref, as this server saw or wrote it last. `None` if it cannot be read.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) stored: Option<Ref>,
    pub(super) version: Version,
}

/// The ref of a session that is written next.
pub(super) struct Next {
    pub(super) head: Head,
    pub(super) manifest: Body,
    pub(super) writer: Option<ServerId>,
    /// The server that writes it.
    pub(super) server: ServerId,
    pub(super) hold: Hold,
    pub(super) what: What,
    pub(super) journaled: bool,
}

/// The thing that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// A new state.
    State,
    /// A note at the state that is there.
    Mark,
}

/// The right to a session after a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hold {
    /// This server has it.
    Held,
    /// Any server may have it.
    Free,
}

impl Tenant {
    /// Takes a session for this server, from now on, with its journal. The state stays as it is.
    ///
    /// # Errors
    /// As [`Tenant::mark_awake`].
    pub fn hold(&self, session: SessionId) -> Result<ServerId, StateError> {
        self.mark(session, Hold::Held, false)
    }

    /// Gives a session back that this server holds: any server may have it. The state stays as it is. A session that this server does not
    /// hold, or held under a lease that is over, is left as it is: others may have it anyway.
    ///
    /// # Errors
    /// As [`Tenant::mark_awake`].
    pub fn release(&self, session: SessionId) -> Result<(), StateError> {
        let released = match self.held_under(session) == self.servers.writer() {
            true => self.mark(session, Hold::Free, false).map(drop),
            false => Ok(()),
        };
        if matches!(released, Ok(()) | Err(StateError::Taken)) {
            lock(&self.had).remove(&session); // others may change it from here on
        }
        released
    }

    /// The id of this server under which it holds a session, also of a lease that is over. `None` if it does not hold the session, and in a
    /// store that no other server uses.
    pub fn held_under(&self, session: SessionId) -> Option<ServerId> {
        self.servers.writer()?;
        let had = lock(&self.had);
        let owner = had.get(&session)?.stored.as_ref()?.owner?;
        owner.holds.then_some(owner.server)
    }

    /// Notes that a session goes on from its state here, from now on. The state stays. Returns the id of this server that has it now.
    ///
    /// # Errors
    /// [`StateError`]. [`StateError::Taken`]: another server has the session.
    pub fn mark_awake(&self, session: SessionId) -> Result<ServerId, StateError> {
        self.mark(session, Hold::Held, true)
    }

    /// Notes that a session has gone on from its state until now, and ended without a newer one. Any server may have it.
    ///
    /// # Errors
    /// As [`Tenant::mark_awake`].
    pub fn mark_left(&self, session: SessionId) -> Result<(), StateError> {
        self.mark(session, Hold::Free, true).map(drop)
    }

    fn mark(&self, session: SessionId, hold: Hold, is_left: bool) -> Result<ServerId, StateError> {
        let _writing = self.writers();
        let server = self.servers.id();
        let Some(before) = self.before(session)? else {
            return Ok(server);
        };
        let Some(stored) = &before.stored else {
            return Err(StateError::Damaged(format!("the ref of session {session}")));
        };
        let (awake, used_ms) = (is_left || stored.head.awake, now_ms());
        if let Some(owner) = stored.owner
            && owner.server != server
            && stored.journaled
        {
            self.carry_journal(session, owner.server, server)?;
        }
        let next = Next {
            head: Head {
                awake,
                used_ms,
                ..stored.head.clone()
            },
            manifest: stored.manifest.clone(),
            writer: stored.writer,
            server,
            hold,
            what: What::Mark,
            journaled: stored.journaled,
        };
        self.write_ref(session, next, Some(before))?;
        Ok(server)
    }

    /// The id under which this server writes now.
    pub fn server(&self) -> ServerId {
        self.servers.id()
    }

    /// The server whose parts of a session's journal this one may write: itself, if it holds the session. In a store that no other server uses,
    /// they are nobody's.
    ///
    /// # Errors
    /// [`StateError::Taken`].
    pub(crate) fn part_writer(&self, session: SessionId) -> Result<Option<ServerId>, StateError> {
        let Some(server) = self.servers.writer() else {
            return Ok(None);
        };
        if self.held_under(session) != Some(server) {
            return Err(StateError::Taken);
        }
        self.still_holds(Some(server))?;
        Ok(Some(server))
    }

    /// Refuses what was done under a lease that may be over by now.
    pub(crate) fn still_holds(&self, writer: Option<ServerId>) -> Result<(), StateError> {
        match writer.map_or(Standing::Held, |server| self.servers.standing(server)) {
            Standing::Held => Ok(()),
            Standing::Unsure | Standing::Lost => Err(StateError::Taken),
        }
    }

    /// Takes a session again that this server had under this id of a lease that is over, unless another server has had it since. Then it is
    /// as after [`Tenant::mark_awake`]. A session whose first write was not confirmed may have no state: then nobody else knows of it.
    ///
    /// # Errors
    /// As [`Tenant::mark_awake`].
    pub fn take_again(&self, session: SessionId, under: ServerId) -> Result<ServerId, StateError> {
        if !lock(&self.had).contains_key(&session) {
            let Some(seen) = self.see(session)? else {
                return Ok(self.servers.id());
            };
            let owner = seen.stored.as_ref().and_then(|stored| stored.owner);
            if owner.is_none_or(|owner| owner.server != under) {
                return Err(StateError::Taken);
            }
            lock(&self.had).insert(session, seen); // from here on, the write of any other server shows
        }
        self.mark_awake(session)
    }

    /// The ref from which this server may write a session: the one that it saw last if it has the session. `None` if there is none.
    pub(super) fn before(&self, session: SessionId) -> Result<Option<Seen>, StateError> {
        if let Some(seen) = lock(&self.had).get(&session) {
            return Ok(Some(seen.clone()));
        }
        let seen = self.see(session)?;
        match seen.as_ref().map(|seen| &seen.stored) {
            Some(Some(stored)) if stored.gone => return Err(StateError::Taken),
            Some(Some(stored)) => self.is_free(stored)?,
            _ => {}
        }
        Ok(seen)
    }

    /// Writes a ref in place of the one before, unless another server has written one since.
    pub(super) fn write_ref(&self, session: SessionId, next: Next, before: Option<Seen>) -> Result<(), StateError> {
        let Next { server, hold, what, .. } = next;
        let name = Name::Ref(self.keys.id, session);
        let owner = before.as_ref().and_then(|before| before.stored.as_ref()?.owner);
        let epoch = match owner {
            Some(owner) if owner.server == server => owner.epoch,
            owner => owner.map_or(0, |owner| owner.epoch) + 1,
        };
        let owner = Owner {
            server,
            epoch,
            holds: hold == Hold::Held,
        };
        let mut stored = Ref {
            format: FORMAT,
            head: next.head,
            manifest: next.manifest,
            writer: next.writer,
            owner: Some(owner),
            journaled: next.journaled,
            gone: false,
        };
        let sealed = self.sealed(&name, &stored)?;
        let seen = before.map(|before| before.version);
        let version = match self.store.swap(&name, &sealed, seen.as_ref())? {
            // It may be there by a write of this server whose answer was lost. A store of one server has no other writes.
            None => {
                let is_own = |seen: &Seen| {
                    let owner = seen.stored.as_ref().and_then(|stored| stored.owner);
                    self.servers.is_alone() || owner.is_some_and(|owner| (owner.server, owner.epoch) == (server, epoch))
                };
                let there = self.see(session)?.filter(is_own).ok_or(StateError::Taken)?;
                let newer = there.stored.filter(|_| what == What::Mark);
                let sealed = match newer {
                    // The objects of the state before it may be collected already.
                    Some(newer) => {
                        stored.manifest = newer.manifest;
                        stored.writer = newer.writer;
                        stored.journaled = newer.journaled;
                        stored.head = Head {
                            awake: stored.head.awake,
                            used_ms: stored.head.used_ms,
                            ..newer.head
                        };
                        self.sealed(&name, &stored)?
                    }
                    None => sealed,
                };
                let swapped = self.store.swap(&name, &sealed, Some(&there.version))?;
                swapped.ok_or(StateError::Taken)?
            }
            Some(version) => version,
        };
        let mut had = lock(&self.had);
        match hold {
            Hold::Held => drop(had.insert(
                session,
                Seen {
                    stored: Some(stored),
                    version,
                },
            )),
            Hold::Free => drop(had.remove(&session)),
        }
        Ok(())
    }

    /// Another living server that has the session, or that made it and has stored nothing of it yet. `None` if there is none: then this
    /// server may have it, or nobody has.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn elsewhere(&self, session: SessionId) -> Result<Option<Living>, StateError> {
        match self.stored_elsewhere(session)? {
            Some(stored) => Ok(stored),
            None => self.at_home(session),
        }
    }

    /// Another living server that made a session.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn at_home(&self, session: SessionId) -> Result<Option<Living>, StateError> {
        self.servers.at_home(session.home())
    }

    /// As [`Tenant::elsewhere`], but for a session that has a state only. `None` if it has none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn stored_elsewhere(&self, session: SessionId) -> Result<Option<Option<Living>>, StateError> {
        let Some(stored) = self.read_ref(session)? else {
            return Ok(None);
        };
        match stored.owner {
            Some(owner) if owner.holds => self.servers.living(owner.server).map(Some),
            _ => Ok(Some(None)),
        }
    }

    /// Those of these sessions that no longer sleep: they have no state any more, or another living server has them.
    ///
    /// # Errors
    /// [`StateError`]. A session whose ref is damaged counts as asleep.
    pub fn no_longer_asleep(&self, sessions: &[SessionId]) -> Result<Vec<SessionId>, StateError> {
        let mut found = Vec::new();
        let mut lives: HashMap<ServerId, bool> = HashMap::new();
        for sessions in sessions.chunks(AT_ONCE) {
            let name = |session: &SessionId| Name::Ref(self.keys.id, *session);
            let names: Vec<_> = sessions.iter().map(name).collect();
            let read = self.store.read_all(&names, MOST_SEALED);
            for ((session, name), sealed) in sessions.iter().zip(&names).zip(read) {
                let sealed = match sealed {
                    Err(error) if error.is_damage() => continue, // whoever uses the session is told
                    sealed => sealed?,
                };
                let Some(sealed) = sealed else {
                    found.push(*session);
                    continue;
                };
                let Ok(stored) = self.opened(name, sealed) else {
                    continue;
                };
                let is_elsewhere = match stored.owner.filter(|owner| owner.holds && !stored.gone) {
                    Some(owner) => match lives.get(&owner.server) {
                        Some(lives) => *lives,
                        None => {
                            let is_living = self.servers.living(owner.server)?.is_some();
                            lives.insert(owner.server, is_living);
                            is_living
                        }
                    },
                    None => stored.gone,
                };
                if is_elsewhere {
                    found.push(*session);
                }
            }
        }
        Ok(found)
    }

    /// Refuses a session that another server has.
    pub(super) fn is_free(&self, stored: &Ref) -> Result<(), StateError> {
        match stored.owner {
            Some(owner) if owner.holds && owner.server != self.servers.id() => {
                match self.servers.is_over(owner.server)? {
                    true => Ok(()),
                    false => Err(StateError::Taken),
                }
            }
            _ => Ok(()),
        }
    }

    pub(super) fn sealed(&self, name: &Name, stored: &Ref) -> Result<Vec<u8>, StateError> {
        self.keys.sealer.seal(name, &write(stored)?)
    }

    pub(super) fn opened(&self, name: &Name, sealed: Vec<u8>) -> Result<Ref, StateError> {
        read(&name.to_string(), &self.keys.sealer.open(name, sealed)?)
    }

    /// The ref of a session with its version, also if it cannot be opened or says that the session is gone.
    pub(super) fn see(&self, session: SessionId) -> Result<Option<Seen>, StateError> {
        let name = Name::Ref(self.keys.id, session);
        let found = self.store.read_version(&name, MOST_SEALED)?;
        Ok(found.map(|(sealed, version)| Seen {
            stored: self.opened(&name, sealed).ok(),
            version,
        }))
    }

    /// The ref of a session with its version, also if it says that the session is gone.
    pub(super) fn read_any_ref(&self, session: SessionId) -> Result<Option<(Ref, Version)>, StateError> {
        let name = Name::Ref(self.keys.id, session);
        let Some((sealed, version)) = self.store.read_version(&name, MOST_SEALED)? else {
            return Ok(None);
        };
        Ok(Some((self.opened(&name, sealed)?, version)))
    }

    pub(super) fn read_ref_version(&self, session: SessionId) -> Result<Option<(Ref, Version)>, StateError> {
        Ok(self.read_any_ref(session)?.filter(|(stored, _)| !stored.gone))
    }

    pub(crate) fn read_ref(&self, session: SessionId) -> Result<Option<Ref>, StateError> {
        Ok(self.read_ref_version(session)?.map(|(stored, _)| stored))
    }
}
