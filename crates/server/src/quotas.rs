//! Quotas: the resources that each key may use at the same time, and its request rate.
//!
//! Decisions: `docs/internals/server.md`.

mod bucket;
mod counter;
mod elsewhere;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::http::StatusCode;
use sandglass_states::Used;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::errors::ApiError;
use bucket::Bucket;
use counter::Counter;
use elsewhere::Elsewhere;

/// States of one key that are in memory at the same time, to be opened. Each may be as large as a stored state.
const MOST_OPEN_STATES: usize = 4;

/// The bounds of each key, and of all keys together.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Sessions of all keys.
    pub sessions: u64,
    /// Sessions of one key.
    pub sessions_per_key: u64,
    /// Stored states of suspended sessions, of all keys.
    pub stored: u64,
    /// Stored states of one key.
    pub stored_per_key: u64,
    /// MiB of stored states of one key. Each counts as one at least.
    pub stored_mib_per_key: u64,
    /// Executions of one key that run or wait for their session.
    pub executions_per_key: u64,
    /// Bytes of request bodies in memory, of all keys.
    pub body_bytes: u64,
    /// Bytes of request bodies in memory, of one key.
    pub body_bytes_per_key: u64,
    /// Requests of one key at the same time, including open channels. Each takes a connection until its response was sent.
    /// Resumable conversations have the same bound of their own, and so have sessions of the Model Context Protocol.
    /// Requests that need no key have the same bound together.
    pub requests_per_key: u64,
    /// Requests of one key per second. A burst may have twice as many.
    pub requests_per_second: f64,
}

/// The accounts of all keys.
#[derive(Debug)]
pub struct Quotas {
    accounts: HashMap<Arc<str>, Arc<Account>>,
    sessions: Arc<Counter>,
    open_requests: Arc<Counter>,
}

/// The current use of one key.
#[derive(Debug)]
pub struct Account {
    /// The owner's name.
    pub owner: Arc<str>,
    sessions: [Arc<Counter>; 2],
    stored: [Arc<Counter>; 2],
    stored_mib: Arc<Counter>,
    open_states: Arc<Semaphore>,
    executions: Arc<Counter>,
    requests: Arc<Counter>,
    conversations: Arc<Counter>,
    mcp_sessions: Arc<Counter>,
    body_bytes: [Arc<Counter>; 2],
    bucket: Mutex<Bucket>,
    elsewhere: Elsewhere,
}

impl Quotas {
    /// Accounts for these owners.
    pub fn new(owners: impl IntoIterator<Item = Arc<str>>, bounds: Bounds) -> Self {
        let sessions = Counter::new(bounds.sessions);
        let stored = Counter::new(bounds.stored);
        let body_bytes = Counter::new(bounds.body_bytes);
        let now = Instant::now();
        let account = |owner: Arc<str>| {
            let account = Account {
                owner: Arc::clone(&owner),
                sessions: [Counter::new(bounds.sessions_per_key), Arc::clone(&sessions)],
                stored: [Counter::new(bounds.stored_per_key), Arc::clone(&stored)],
                stored_mib: Counter::new(bounds.stored_mib_per_key),
                open_states: Arc::new(Semaphore::new(MOST_OPEN_STATES)),
                executions: Counter::new(bounds.executions_per_key),
                requests: Counter::new(bounds.requests_per_key),
                conversations: Counter::new(bounds.requests_per_key),
                mcp_sessions: Counter::new(bounds.requests_per_key),
                body_bytes: [Counter::new(bounds.body_bytes_per_key), Arc::clone(&body_bytes)],
                bucket: Mutex::new(Bucket::new(bounds.requests_per_second, now)),
                elsewhere: Elsewhere::default(),
            };
            (owner, Arc::new(account))
        };
        Self {
            accounts: owners.into_iter().map(account).collect(),
            sessions,
            open_requests: Counter::new(bounds.requests_per_key),
        }
    }

    /// Admits a request that needs no key. Its place is free again when the returned value is dropped.
    ///
    /// # Errors
    /// 429 when there are too many.
    pub fn admit_open(&self) -> Result<Held, ApiError> {
        under_way(&self.open_requests, "without a key")
    }

    /// The account of an owner.
    pub fn account(&self, owner: &str) -> Option<Arc<Account>> {
        self.accounts.get(owner).cloned()
    }

    /// All accounts.
    pub fn accounts(&self) -> impl Iterator<Item = &Arc<Account>> {
        self.accounts.values()
    }

    /// The sessions and executions of each owner here.
    pub fn used(&self) -> impl Iterator<Item = (Arc<str>, Used)> {
        self.accounts.values().map(|account| {
            let used = Used {
                sessions: account.sessions[0].now(),
                executions: account.executions.now(),
                ..Used::default()
            };
            (Arc::clone(&account.owner), used)
        })
    }

    /// The number of sessions.
    pub fn sessions(&self) -> u64 {
        self.sessions.now()
    }

    /// The number of executions that run or wait.
    pub fn executions(&self) -> u64 {
        self.accounts.values().map(|account| account.executions.now()).sum()
    }
}

impl Account {
    /// Admits a request. Its place is free again when the returned value is dropped.
    ///
    /// # Errors
    /// 429 when too many run at once, or come per second.
    pub fn admit(&self, now: Instant) -> Result<Held, ApiError> {
        let held = under_way(&self.requests, "of this key")?;
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.take(now).map_err(|wait| {
            let message = format!(
                "this key may send {} requests per second; nothing was done, try again later",
                bucket.per_second
            );
            refused("too_many_requests", message).retry_after(wait.as_secs_f64().ceil().max(1.0) as u64)
        })?;
        Ok(held)
    }

    /// Has quotas count what this key uses on other servers as well. `used` tells it; `None` while it does not count.
    pub fn counts(&self, used: impl Fn() -> Option<Used> + Send + Sync + 'static) {
        self.elsewhere.set(used);
    }

    /// Notes the states of this key that this server has written.
    pub fn stores_here(&self, used: Used) {
        self.elsewhere.stores_here(used);
    }

    /// Takes the place of a session, until the returned value is dropped.
    ///
    /// # Errors
    /// 429 when this key has too many sessions, with those on other servers; 503 when the server has.
    pub fn session(&self) -> Result<Held, ApiError> {
        let held = self.session_here()?;
        let most = self.sessions[0].most as u64;
        if let Some(elsewhere) = self.elsewhere.now()
            && self.sessions[0].now().saturating_add(elsewhere.sessions) > most
        {
            let message = format!(
                "this key has {most} sessions on all servers together ({} on others), and may have no more: destroy one first",
                elsewhere.sessions
            );
            return Err(refused("too_many_sessions", message).retry_after(5));
        }
        Ok(held)
    }

    fn session_here(&self) -> Result<Held, ApiError> {
        take_both(&self.sessions, 1).map_err(|(most, of_key)| {
            if of_key {
                let message = format!("this key has {most} sessions, and may have no more: destroy one first");
                refused("too_many_sessions", message).retry_after(5)
            } else {
                let message = format!("the server has {most} sessions, and no room for another; try again later");
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_full", message).retry_after(10)
            }
        })
    }

    /// Takes the place of a stored state with so many bytes, until the returned value is dropped.
    ///
    /// # Errors
    /// 429 when this key stores too much, with what other servers wrote; also when the server does.
    pub fn stored(&self, bytes: u64) -> Result<Held, ApiError> {
        let held = self.stored_here(bytes)?;
        self.are_stored(1, stored_mib(bytes) as u64)?;
        Ok(held)
    }

    /// Takes the place of a state that was found in the store; `None` if there are more than this server allows. The server that wrote it
    /// counts it for all.
    pub fn found_stored(&self, bytes: u64) -> Option<Held> {
        self.stored_here(bytes).ok()
    }

    /// Refuses more states, or more MiB, than this key may have on all servers together.
    fn are_stored(&self, states: u64, mib: u64) -> Result<(), ApiError> {
        let Some(elsewhere) = self.elsewhere.now() else {
            return Ok(());
        };
        let all = elsewhere.and(self.elsewhere.stored_here());
        let most = self.stored[0].most as u64;
        if states > 0 && all.stored.saturating_add(states) > most {
            let message =
                format!("this key stores {most} suspended sessions on all servers together, and may store no more");
            return Err(refused("too_many_sessions", message));
        }
        let most = self.stored_mib.most as u64;
        if mib > 0 && all.stored_mib.saturating_add(mib) > most {
            let message = format!("suspended sessions of this key may take {most} MiB on all servers together");
            return Err(refused("too_many_bytes", message));
        }
        Ok(())
    }

    fn stored_here(&self, bytes: u64) -> Result<Held, ApiError> {
        let taken = take_both(&self.stored, 1).map_err(|(most, of_key)| {
            let whose = if of_key { "this key" } else { "the server" };
            let message = format!("{whose} stores {most} suspended sessions, and may store no more");
            refused("too_many_sessions", message)
        });
        let room = self.stored_mib.take(stored_mib(bytes));
        let room = room.ok_or_else(|| self.too_many_stored_bytes());
        let Held(mut held) = taken?;
        held.push(room?);
        Ok(Held(held))
    }

    /// Takes the place of a stored state of so many bytes instead of an earlier one's.
    ///
    /// # Errors
    /// 429 when this key stores too much; with the earlier place, which is unchanged.
    pub fn stored_instead(&self, bytes: u64, mut earlier: Held) -> Result<Held, (ApiError, Held)> {
        let Some(mut room) = earlier.0.pop() else {
            return self.stored(bytes).map_err(|full| (full, earlier));
        };
        let (mib, before) = (stored_mib(bytes), room.num_permits());
        if let Err(full) = self.are_stored(0, mib.saturating_sub(before) as u64) {
            earlier.0.push(room);
            return Err((full, earlier));
        }
        let more = self.stored_mib.take(mib.saturating_sub(before));
        let fits = more.is_some();
        if let Some(more) = more {
            room.merge(more);
            drop(room.split(before.saturating_sub(mib))); // given back
        }
        earlier.0.push(room);
        match fits {
            true => Ok(earlier),
            false => Err((self.too_many_stored_bytes(), earlier)),
        }
    }

    /// Returns true if a stored state may take so many bytes more than are needed, in place of what it took before. The states of a key may
    /// do so until all of them take half of the key's room. So one that is written can always get the other half.
    pub fn has_spare(&self, before: u64, next: u64) -> bool {
        let counter = &self.stored_mib;
        let taken = counter.most.saturating_sub(counter.free.available_permits());
        let others = taken.saturating_sub(stored_mib(before));
        others.saturating_add(stored_mib(next)) <= counter.most / 2
    }

    /// Waits until one more state of this key may be in memory, until the returned value is dropped.
    pub async fn open_state(&self) -> Held {
        let permit = Arc::clone(&self.open_states).acquire_owned().await;
        Held(permit.into_iter().collect()) // the semaphore is never closed
    }

    /// The turns of states of this key that are in memory.
    pub fn open_states(&self) -> Arc<Semaphore> {
        Arc::clone(&self.open_states)
    }

    fn too_many_stored_bytes(&self) -> ApiError {
        let most = self.stored_mib.most;
        let message = format!("suspended sessions of this key may take {most} MiB together");
        refused("too_many_bytes", message)
    }

    /// Takes the place of a resumable conversation, until the returned value is dropped. It may be without a connection meanwhile.
    ///
    /// # Errors
    /// 429 when this key has too many.
    pub fn conversation(&self) -> Result<Held, ApiError> {
        one(&self.conversations, |most| {
            let message = format!("this key has {most} connections that can be taken up again, and may have no more");
            refused("too_many_requests_at_once", message).retry_after(1)
        })
    }

    /// Takes the place of a session of the Model Context Protocol, until the returned value is dropped. It may be without a sandbox.
    ///
    /// # Errors
    /// 429 when this key has too many.
    pub fn mcp_session(&self) -> Result<Held, ApiError> {
        one(&self.mcp_sessions, |most| {
            let message = format!("{most} sessions of this key are open: end one, or try again later");
            refused("too_many_sessions", message).retry_after(5)
        })
    }

    /// Takes the place of an execution, until the returned value is dropped.
    ///
    /// # Errors
    /// 429 when this key has too many executions, with those on other servers.
    pub fn execution(&self) -> Result<Held, ApiError> {
        let most = self.executions.most;
        let full = |whose: &str| {
            let message =
                format!("{most} executions of this key run or wait{whose}, and no more may: wait for one to end");
            refused("too_many_executions", message).retry_after(1)
        };
        let held = self.executions.take(1).ok_or_else(|| full(""))?;
        match self.elsewhere.now() {
            Some(elsewhere) if self.executions.now().saturating_add(elsewhere.executions) > most as u64 => {
                Err(full(" on all servers together"))
            }
            _ => Ok(Held(vec![held])),
        }
    }

    /// Takes room for a body, until the returned value is dropped.
    ///
    /// # Errors
    /// 429 when this key has too many bytes; 503 when the server has.
    pub fn body(&self, bytes: usize) -> Result<Held, ApiError> {
        take_both(&self.body_bytes, bytes).map_err(|(most, of_key)| {
            if of_key {
                let message = format!("requests of this key with {most} bytes are under way, and no more may be");
                refused("too_many_bytes", message).retry_after(1)
            } else {
                let message = "the server holds as many bytes of requests as it can; try again later";
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_full", message).retry_after(1)
            }
        })
    }
}

/// The MiB of a stored state. It counts as one at least.
pub(super) fn stored_mib(bytes: u64) -> usize {
    usize::try_from(bytes.div_ceil(1 << 20).max(1)).unwrap_or(usize::MAX)
}

fn refused(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, code, message)
}

/// Takes one place.
fn one(places: &Arc<Counter>, full: impl FnOnce(usize) -> ApiError) -> Result<Held, ApiError> {
    let held = places.take(1).map(|held| Held(vec![held]));
    held.ok_or_else(|| full(places.most))
}

/// Takes the place of a request.
fn under_way(requests: &Arc<Counter>, whose: &str) -> Result<Held, ApiError> {
    one(requests, |most| {
        let message = format!(
            "{most} requests {whose} are under way, and no more may be; nothing was done: wait for one to be answered"
        );
        refused("too_many_requests_at_once", message).retry_after(1)
    })
}

/// Takes from the key's counter and from the server's. The error holds the bound of the full counter, and true if that is the
/// key's own.
fn take_both([own, all]: &[Arc<Counter>; 2], amount: usize) -> Result<Held, (usize, bool)> {
    let own = own.take(amount).ok_or((own.most, true))?;
    let all = all.take(amount).ok_or((all.most, false))?;
    Ok(Held(vec![own, all]))
}

/// A part of a quota, given back when dropped.
#[derive(Debug)]
#[must_use = "the quota is given back when this is dropped"]
pub struct Held(Vec<OwnedSemaphorePermit>);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn quotas() -> Quotas {
        let bounds = Bounds {
            sessions: 3,
            sessions_per_key: 2,
            stored: 4,
            stored_per_key: 3,
            stored_mib_per_key: 10,
            executions_per_key: 1,
            requests_per_key: 2,
            body_bytes: 100,
            body_bytes_per_key: 60,
            requests_per_second: 2.0,
        };
        Quotas::new(["a".into(), "b".into()], bounds)
    }

    #[test]
    fn what_is_held_is_given_back() {
        let quotas = quotas();
        let (a, b) = (quotas.account("a").unwrap(), quotas.account("b").unwrap());
        let first = a.session().unwrap();
        let _second = a.session().unwrap();
        assert_eq!(a.session().unwrap_err().code, "too_many_sessions");
        let _third = b.session().unwrap();
        assert_eq!(b.session().unwrap_err().code, "server_full");
        assert_eq!(quotas.sessions(), 3);
        drop(first);
        assert_eq!(quotas.sessions(), 2);
        let _fourth = b.session().unwrap();
        assert!(quotas.account("c").is_none());
    }

    #[test]
    fn stored_states_are_bounded_apart_from_sessions() {
        let quotas = quotas();
        let (a, b) = (quotas.account("a").unwrap(), quotas.account("b").unwrap());
        let _sessions = (a.session().unwrap(), a.session().unwrap());
        let large = a.stored(7 << 20).unwrap();
        let small = a.stored(10).unwrap();
        assert_eq!(a.stored(3 << 20).unwrap_err().code, "too_many_bytes");
        let _last = a.stored(0).unwrap();
        assert_eq!(a.stored(0).unwrap_err().code, "too_many_sessions");
        let _of_b = b.stored(0).unwrap();
        assert_eq!(b.stored(0).unwrap_err().code, "too_many_sessions");
        drop((large, small));
        let _room = a.stored(9 << 20).unwrap();
        assert!(b.stored(u64::MAX).is_err());
    }

    #[test]
    fn a_state_takes_the_place_of_an_earlier_one_or_leaves_it() {
        let quotas = quotas();
        let a = quotas.account("a").unwrap();
        let _others = (a.stored(2 << 20).unwrap(), a.stored(3 << 20).unwrap());
        let earlier = a.stored(4 << 20).unwrap();
        let (full, earlier) = a.stored_instead(6 << 20, earlier).unwrap_err();
        assert_eq!(full.code, "too_many_bytes");
        assert_eq!(a.stored_mib.now(), 9, "the earlier state is there, and counts");
        let larger = a.stored_instead(5 << 20, earlier).unwrap();
        assert_eq!(a.stored_mib.now(), 10);
        let smaller = a.stored_instead(1, larger).unwrap();
        assert_eq!((a.stored_mib.now(), a.stored[0].now()), (6, 3));
        drop(smaller);
        assert_eq!((a.stored_mib.now(), a.stored[0].now()), (5, 2));
    }

    #[test]
    fn few_states_of_a_key_are_open_at_once() {
        let quotas = quotas();
        let (a, b) = (quotas.account("a").unwrap(), quotas.account("b").unwrap());
        let mut open: Vec<_> = (0..MOST_OPEN_STATES)
            .map(|_| a.open_state().now_or_never().unwrap())
            .collect();
        let mut next = Box::pin(a.open_state());
        assert!((&mut next).now_or_never().is_none());
        assert!(b.open_state().now_or_never().is_some());
        open.pop();
        assert!(next.now_or_never().is_some());
    }

    #[test]
    fn bodies_are_bounded_per_key_and_in_all() {
        let quotas = quotas();
        let (a, b) = (quotas.account("a").unwrap(), quotas.account("b").unwrap());
        let held = a.body(60).unwrap();
        assert_eq!(a.body(1).unwrap_err().code, "too_many_bytes");
        assert_eq!(b.body(41).unwrap_err().code, "server_full");
        assert!(b.body(usize::MAX).is_err());
        drop(held);
        let _fits = a.body(60).unwrap();
        let _fits_too = b.body(40).unwrap();
    }

    #[test]
    fn one_key_does_not_have_all_requests() {
        let quotas = quotas();
        let now = Instant::now();
        let (a, b) = (quotas.account("a").unwrap(), quotas.account("b").unwrap());
        let first = a.admit(now).unwrap();
        let second = a.admit(now).unwrap();
        let _open = (quotas.admit_open().unwrap(), quotas.admit_open().unwrap());
        let code = |admitted: Result<Held, ApiError>| admitted.unwrap_err().code;
        assert_eq!(code(a.admit(now)), "too_many_requests_at_once");
        assert_eq!(code(quotas.admit_open()), "too_many_requests_at_once");
        let _others = b.admit(now).unwrap();
        drop(first);
        let third = a.admit(now).unwrap();
        drop((second, third));
        // A request refused for its place takes no token, and one refused for its rate takes no place.
        let fourth = a.admit(now).unwrap();
        assert_eq!(code(a.admit(now)), "too_many_requests");
        let later = now + Duration::from_secs(1);
        let _fifth = a.admit(later).unwrap();
        assert_eq!(code(a.admit(later)), "too_many_requests_at_once");
        drop(fourth);
        assert!(a.admit(later).is_ok());
    }

    #[test]
    fn executions_are_counted() {
        let quotas = quotas();
        let a = quotas.account("a").unwrap();
        let running = a.execution().unwrap();
        assert_eq!(
            (a.execution().unwrap_err().code, quotas.executions()),
            ("too_many_executions", 1)
        );
        drop(running);
        assert!(a.execution().is_ok());
    }

    #[test]
    fn quotas_count_what_other_servers_tell() {
        let quotas = quotas();
        let (a, b) = (quotas.account("a").unwrap(), quotas.account("b").unwrap());
        let elsewhere = Arc::new(Mutex::new(Some(Used::default())));
        let told = Arc::clone(&elsewhere);
        a.counts(move || *told.lock().unwrap());
        let tell = |sessions, executions, stored, stored_mib| {
            *elsewhere.lock().unwrap() = Some(Used::from([sessions, executions, stored, stored_mib]));
        };
        tell(1, 0, 2, 4);
        let one = a.session().unwrap();
        let full = a.session().unwrap_err();
        assert_eq!(full.code, "too_many_sessions");
        assert!(full.message.contains("on all servers together"), "{}", full.message);
        assert_eq!(quotas.sessions(), 1, "what is refused takes no place");
        let _of_b = (b.session().unwrap(), b.session().unwrap());
        let stored = a.stored(1 << 20).unwrap();
        a.stores_here(Used::from([0, 0, 1, 1]));
        assert_eq!(a.stored(1).unwrap_err().code, "too_many_sessions");
        assert!(a.found_stored(1).is_some(), "the server that wrote it counts it");
        let (full, stored) = a.stored_instead(7 << 20, stored).unwrap_err();
        assert_eq!(full.code, "too_many_bytes");
        let _more = a.stored_instead(6 << 20, stored).unwrap();
        assert!(a.execution().is_ok());
        tell(2, 1, 0, 0);
        let full = a.execution().unwrap_err();
        assert!(full.message.contains("on all servers together"), "{}", full.message);
        assert_eq!(quotas.executions(), 0);
        drop(one);
        assert_eq!(a.session().unwrap_err().code, "too_many_sessions");
        *elsewhere.lock().unwrap() = None;
        assert!(a.session().is_ok() && a.execution().is_ok(), "they do not count now");
        tell(u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        assert!(a.session().is_err() && a.execution().is_err() && a.stored(0).is_err());
    }
}
