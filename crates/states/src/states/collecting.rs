//! The removal of objects that nobody needs any more.

use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;
use std::time::Duration;

use super::{Collected, Tenant};
use crate::error::StateError;
use crate::manifest::Ref;
use crate::names::{Name, ObjectId, Place, ServerId, SessionId};
use crate::store::Version;

/// All these functions block as long as the store does.
impl Tenant {
    /// Removes objects that no manifest names and that are at least so old: those of this server, and those of servers that have ended.
    /// Writes of this tenant wait meanwhile. The age has to be longer than the slowest write of a server that counts as ended.
    ///
    /// # Errors
    /// [`StateError`]. When a ref or manifest cannot be read, nothing is removed, because its objects are not known.
    pub fn collect(&self, least_age: Duration) -> Result<Collected, StateError> {
        self.collect_while(least_age, || true)
    }

    /// As [`Tenant::collect`], as long as `goes_on` returns true. It is asked before each request to the store.
    ///
    /// # Errors
    /// As there.
    pub fn collect_while(&self, least_age: Duration, goes_on: impl Fn() -> bool) -> Result<Collected, StateError> {
        self.collect_aged(least_age, least_age, goes_on)
    }

    /// As [`Tenant::collect_while`], with an age of its own for the objects of this server. That one has to be longer than this server's
    /// slowest write.
    ///
    /// # Errors
    /// As there.
    pub fn collect_aged(
        &self,
        own_age: Duration,
        least_age: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<Collected, StateError> {
        let _alone = self.writing.write().unwrap_or_else(PoisonError::into_inner);
        let mut named: HashSet<(Option<ServerId>, ObjectId)> = HashSet::new();
        let mut collected = Collected::default();
        for listed in self.store.list(Place::Refs(self.keys.id))? {
            let Name::Ref(_, session) = listed.name else { continue };
            if !goes_on() {
                return Ok(collected);
            }
            let Some((stored, version)) = self.read_any_ref(session)? else {
                continue;
            };
            if stored.gone {
                self.remove_gone(session, &stored, &version, listed.age >= least_age)?;
                continue;
            }
            let bodies = self.read_manifest(session, stored.writer, &stored.manifest)?;
            let pieces = bodies.all().flat_map(|body| &body.pieces);
            named.extend(pieces.chain(&stored.manifest.pieces).map(|id| (stored.writer, *id)));
            named.extend(self.objects_of_ended(session, &bodies.ended)?);
            let owner = stored
                .owner
                .filter(|_| !self.servers.is_alone())
                .map(|owner| owner.server);
            let has_parts = self.servers.is_alone() || stored.journaled;
            for (writer, number) in has_parts.then(|| self.parts(session)).transpose()?.unwrap_or_default() {
                if writer != owner {
                    // Another server that lives may be about to take the session over, with these parts.
                    let is_over = writer.is_none_or(|writer| writer == self.servers.id());
                    if is_over || self.servers.is_over(writer.unwrap_or(self.servers.id()))? {
                        self.store.forget(&Name::Part(self.keys.id, session, writer, number))?;
                    }
                    continue;
                }
                let part = self.part(session, writer, number)?;
                let pieces = part
                    .and_then(|part| part.body?.into_objects())
                    .into_iter()
                    .flat_map(|body| body.pieces);
                named.extend(pieces.map(|id| (writer, id)));
            }
            collected.sessions += 1;
        }
        let mut of_others = HashMap::new();
        for listed in self.store.list(Place::Objects(self.keys.id))? {
            let Name::Object(_, writer, id) = listed.name else {
                continue;
            };
            if !goes_on() {
                return Ok(collected);
            }
            // Another server may name its own objects at any moment. Nobody else ever does.
            let may_remove = match writer {
                Some(other) if writer != self.servers.writer() => match of_others.get(&other) {
                    Some(is_over) => *is_over,
                    None => *of_others.entry(other).or_insert(self.servers.is_over(other)?),
                },
                _ => true,
            };
            let least = if writer == self.servers.writer() {
                own_age
            } else {
                least_age
            };
            if named.contains(&(writer, id)) || !may_remove {
                collected.kept += 1;
            } else if listed.age < least {
                collected.too_young += 1;
            } else {
                self.store.forget(&listed.name)?; // one that comes back is collected again
                collected.removed += 1;
            }
        }
        Ok(collected)
    }

    /// Removes a ref that says that its session is gone, with what is left of the journal.
    ///
    /// Only the server that wrote it may do so, or another one if that server's lease is over. Whoever removed it later, or twice, could
    /// remove the ref of a new session of the same name.
    fn remove_gone(&self, session: SessionId, stored: &Ref, version: &Version, is_old: bool) -> Result<(), StateError> {
        let name = Name::Ref(self.keys.id, session);
        let of_another = stored.owner.map(|owner| owner.server);
        if let Some(other) = of_another.filter(|server| !self.servers.is_alone() && *server != self.servers.id()) {
            if !is_old || !self.servers.is_over(other)? {
                return Ok(());
            }
            let mine = Ref {
                journaled: stored.journaled,
                ..Ref::gone(self.servers.id())
            };
            if self
                .store
                .swap(&name, &self.sealed(&name, &mine)?, Some(version))?
                .is_none()
            {
                return Ok(());
            }
        }
        if stored.journaled {
            self.forget_parts(session)?;
        }
        self.store.remove(&name)
    }
}
