//! Kept sandboxes in a store that servers share: another server may have opened, changed or removed one since this one looked.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_states::{Found, ServerId, SessionId, StateError, Tenant};
use serde::Deserialize;

use super::{About, Entry, KeptSandboxes, KeptSession, Key, Opened, Store, TAKE_OVER};
use crate::App;
use crate::bodies::off_the_workers;
use crate::errors::ApiError;
use crate::quotas::{Account, stored_mib};
use crate::suspension::{Suspension, now_ms, unreadable, unsure};

/// A session over HTTP that is kept, as listings have it: its id, its facts, and the time since it was last open.
pub type Listed = (String, About, Duration);

/// Looks a sandbox up in the store, unless it is open here. Returns what is known of it from now on.
///
/// # Errors
/// 500 and 503: it is there, and cannot be read.
pub(super) async fn look_up(
    app: &App,
    account: &Arc<Account>,
    key: &Key,
    what: &str,
) -> Result<Option<Arc<Entry>>, ApiError> {
    let known = app.kept.lock().get(key).cloned();
    if let Some(open) = known.as_ref().filter(|entry| entry.place.is_open()) {
        return Ok(Some(Arc::clone(open)));
    }
    let suspension = app.suspension.as_ref();
    let suspension = suspension.ok_or_else(|| ApiError::internal("there is no store of states; this is a bug"))?;
    let (own, of, session) = (app.clone(), Arc::clone(account), key.1);
    let looked_up = suspension.kept_look_up(&account.owner, what, move |tenant: &Tenant| {
        let Some(head) = tenant.head(session)? else {
            return Ok(None);
        };
        let store = Store::of(&own, &of.owner).map_err(|error| StateError::Key(error.message))?;
        Ok(Some((store.found(&of, session, Ok(head.clone())), head)))
    });
    let found = match looked_up.await? {
        Ok(found) => found,
        Err(error) => {
            if error.is_damage() {
                let entry = Store::of(app, &account.owner)?.entry(account, session, (0, 0, 0), None);
                entry.is_unread.store(true, Ordering::Release); // it can be removed
                app.kept.lock().entry(key.clone()).or_insert(entry);
            }
            return Err(unreadable(what, &error));
        }
    };
    let Some((found, head)) = found else {
        drop(known);
        app.kept.let_go(key, 1);
        return Ok(None);
    };
    let mut all = app.kept.lock();
    let entry = Arc::clone(all.entry(key.clone()).or_insert_with(|| Arc::clone(&found)));
    if !entry.place.is_open() {
        entry.bounds.is_as(&found.bounds);
        entry.is_found(&head);
    }
    Ok(Some(entry))
}

/// A session that is kept, as the store has it.
///
/// # Errors
/// As [`look_up`].
pub(super) async fn find(app: &App, account: &Arc<Account>, id: &str) -> Result<Option<KeptSession>, ApiError> {
    let Ok(session) = id.parse() else { return Ok(None) };
    let key = (Arc::clone(&account.owner), session);
    let entry = look_up(app, account, &key, id).await?;
    Ok(entry.and_then(|entry| entry.session(session)))
}

impl KeptSandboxes {
    /// The sessions of a key that are kept, open or not, also those of other servers. Without an answer of the store, those that this server
    /// knows of.
    pub async fn listed(app: &App, account: &Account) -> Vec<Listed> {
        let own = || {
            let own = app.kept.sessions(&account.owner).into_iter();
            own.map(|own| (own.id, own.about, own.age)).collect()
        };
        let suspension = app.suspension.as_ref().filter(|suspension| suspension.is_shared());
        let Some(suspension) = suspension else { return own() };
        let found = suspension.kept_look_up(&account.owner, "of this key", Tenant::sessions);
        let Ok(Ok(found)) = found.await else { return own() };
        let listed = |(id, head): Found| {
            let head = head.ok()?;
            let age = Duration::from_millis(now_ms().saturating_sub(head.last_used_ms()));
            Some((id.to_string(), About::deserialize(&head.about).ok()?, age))
        };
        found.into_iter().filter_map(listed).collect()
    }

    /// The states of each owner, and their MiB, that this server counts for all servers.
    pub fn counted(&self) -> HashMap<Arc<str>, (u64, u64)> {
        let mut counted: HashMap<Arc<str>, (u64, u64)> = HashMap::new();
        for ((owner, _), entry) in self.lock().iter() {
            if entry.is_ours.load(Ordering::Acquire) {
                let (states, mib) = counted.entry(Arc::clone(owner)).or_default();
                *states += 1;
                *mib += stored_mib(entry.bounds.bytes()) as u64;
            }
        }
        counted
    }

    /// Lets go of a session that another server has. The store stays as it is.
    pub fn let_go_of(&self, owner: &Arc<str>, id: &str) {
        if let Ok(id) = id.parse() {
            self.let_go(&(Arc::clone(owner), id), 1);
        }
    }

    /// Lets go of a sandbox that is not open here. Its place in the quota is free again. The map and the caller have so many parts of it:
    /// whoever has another one is about to open it.
    pub(super) fn let_go(&self, key: &Key, parts: usize) {
        let mut all = self.lock();
        let is_unused = |entry: &Arc<Entry>| Arc::strong_count(entry) <= parts && !entry.place.is_open();
        if all.get(key).is_some_and(is_unused) {
            all.remove(key);
        }
    }

    /// Lets go of sandboxes that other servers have, or have removed. Returns the number of those that were looked at.
    pub async fn let_go_of_taken(app: &App, suspension: &Suspension) -> usize {
        let mut looked_at = 0;
        let mut owners: HashMap<Arc<str>, Vec<SessionId>> = HashMap::new();
        for (owner, id) in app.kept.lock().keys() {
            owners.entry(Arc::clone(owner)).or_default().push(*id);
        }
        for (owner, ids) in owners {
            looked_at += ids.len();
            let taken = suspension.kept_look_up(&owner, "of this key", move |tenant| tenant.no_longer_asleep(&ids));
            match taken.await {
                Ok(Ok(taken)) => {
                    for id in taken {
                        app.kept.let_go(&(Arc::clone(&owner), id), 1);
                    }
                }
                Ok(Err(error)) => tracing::warn!(%owner, %error, "kept sandboxes cannot be looked up"),
                Err(_) => {} // the store is slow: later
            }
        }
        looked_at
    }
}

impl Opened {
    /// The id of this server under which it has the sandbox, in a store that servers share.
    pub fn held_under(&self) -> Option<ServerId> {
        self.entry.place.held_under()
    }

    /// Takes the sandbox for this server again, under its present lease. Returns false if another server has it, or had it since.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub async fn hold_again(&self) -> Result<bool, ApiError> {
        let place = self.place();
        let held = off_the_workers(move || place.hold_again()).await?;
        held.map_err(|error| {
            tracing::warn!(kept = %self.key.1, %error, "the store does not tell who has it");
            unsure(&self.key.1.to_string())
        })
    }

    /// Waits until nothing of the sandbox writes any more, and any server may have it.
    pub async fn freed(&self) {
        let _ = tokio::time::timeout(TAKE_OVER, self.entry.place.freed()).await;
    }

    /// Lets go of a sandbox that another server has, once nothing of it writes here any more.
    pub async fn let_go(&self) {
        self.freed().await;
        self.entry.is_ours.store(false, Ordering::Release);
        self.app.kept.let_go(&self.key, 2);
    }
}
