//! The load of this server, which it tells the others, and theirs.
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sandglass_states::{Living, Load, ServerId, StateError, States, Used};

use super::App;
use super::draining;
use super::machine::{self, Memory};
use super::placement::{Candidate, Reason, Sent, choose};
use super::quotas::stored_mib;
use super::settings::MIB;
use super::sharing::{self, Problem};
use super::suspension::Suspension;

/// The interval between two looks at the load. It is told if it has changed.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// The interval after which a load is told that has not changed.
const UNCHANGED: Duration = Duration::from_secs(3);
/// The intervals after which a load that was told is stale.
const STALE: u32 = 10;
/// The time without a load, beside the time of a lease, after which a server counts as unheard.
const UNHEARD: Duration = Duration::from_secs(30);
/// The bytes of loads that each server gets in a second. With more servers or larger loads, the interval is longer.
const BYTES_PER_SECOND: u32 = 256 << 10;
/// Changes of memory below this part of the whole are not told.
const SMALL_CHANGE: u64 = 50;

/// The parts of the load that take a while to find out, and the work that was sent to others.
#[derive(Debug, Default)]
pub(super) struct Loads {
    slow: Mutex<(Memory, String)>,
    sent: Sent,
}

impl Loads {
    fn slow(&self) -> (Memory, String) {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The part of the memory that is in use, from 0 to 1.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub(super) fn memory_used(&self) -> f64 {
        let (memory, _) = self.slow();
        memory.used as f64 / memory.all.max(1) as f64
    }
}

/// The servers of which no load was ever heard.
#[derive(Debug, Default)]
struct Unheard {
    /// The time at which each server was first seen; `None` once its load was heard.
    seen: HashMap<ServerId, Option<Instant>>,
    is_told: bool,
}

impl Unheard {
    /// Returns true, once in all, if a living server has told no load for so long. `servers` are those that live.
    fn is_new(
        &mut self,
        servers: &[ServerId],
        is_heard: impl Fn(ServerId) -> bool,
        least: Duration,
        now: Instant,
    ) -> bool {
        self.seen.retain(|server, _| servers.contains(server));
        for server in servers {
            let seen = self.seen.entry(*server).or_insert(Some(now));
            if is_heard(*server) {
                *seen = None;
            }
        }
        let is_unheard = |seen: &Option<Instant>| seen.is_some_and(|seen| now.saturating_duration_since(seen) >= least);
        let is_new = !self.is_told && self.seen.values().any(is_unheard);
        self.is_told |= is_new;
        is_new
    }
}

/// The load of this server now, without the use of each key.
fn own(app: &App) -> Load {
    let (memory, packages) = app.loads.slow();
    Load {
        is_draining: app.draining.is_cancelled(),
        sessions: app.quotas.sessions(),
        most_sessions: app.args.max_sessions,
        spares: app
            .warm
            .stats()
            .filter(|pool| pool.level > 0)
            .map(|pool| pool.spares as u64),
        executions: app.quotas.executions(),
        processors: machine::processors(),
        memory_used: memory.used,
        memory_bytes: memory.all,
        most_session_bytes: app.args.max_memory_mib * MIB,
        packages,
        used: BTreeMap::new(),
    }
}

/// The use of each key here. Sessions of a server that ends do not count: others are about to have them.
fn used(app: &App) -> BTreeMap<Arc<str>, Used> {
    let is_draining = app.draining.is_cancelled();
    let mut used: BTreeMap<Arc<str>, Used> = app.quotas.used().collect();
    for used in used.values_mut().filter(|_| is_draining) {
        used.sessions = 0;
    }
    let beneath = app.sessions.awake().into_iter().filter_map(|session| session.stored());
    for stored in app.sessions.asleep().into_iter().chain(beneath) {
        if stored.is_written_here()
            && let Some(used) = used.get_mut(&stored.owner)
        {
            used.stored += 1;
            used.stored_mib += stored_mib(stored.head.bytes) as u64;
        }
    }
    used
}

/// Tells the others the load of this server, and hears of theirs. Ends with the server.
pub(super) async fn run(app: App) {
    let app = &app;
    if !app.suspension.as_ref().is_some_and(Suspension::is_shared) {
        return;
    }
    let packages = machine::packages(&app.args.guest).await;
    app.loads.slow.lock().unwrap_or_else(PoisonError::into_inner).1 = packages;
    let mut problem = Problem::default();
    let mut told: Option<(Load, Vec<ServerId>, Instant)> = None;
    let mut pause = INTERVAL;
    let mut unheard = Unheard::default();
    let least = UNHEARD + Duration::from_secs_f64(2.0 * app.args.suspend.state_lease_seconds);
    loop {
        let was_draining = app.draining.is_cancelled();
        let memory = tokio::task::spawn_blocking(Memory::now).await.unwrap_or_default();
        app.loads.slow.lock().unwrap_or_else(PoisonError::into_inner).0 = memory;
        let mut load = own(app);
        for (owner, used) in used(app) {
            let Some(Ok(tenant)) = app.suspension.as_ref().map(|suspension| suspension.tenant(&owner)) else {
                continue;
            };
            if let Some(account) = app.quotas.account(&owner) {
                account.stores_here(used);
            }
            load.used.insert(tenant.id(), used);
        }
        let mut servers: Vec<_> = draining::others(app).iter().map(|other| other.server).collect();
        servers.sort();
        let is_due = told.as_ref().is_none_or(|(last, knew, at)| {
            // A server that is new has heard nothing yet.
            has_changed(last, &load) || *knew != servers || at.elapsed() >= UNCHANGED
        });
        let (record, lasts) = (is_due.then(|| load.clone()), pause * STALE);
        let exchanged = sharing::ask(app, move |states| exchange(states, record, lasts)).await;
        match exchanged {
            Some(Ok(bytes)) => {
                problem = Problem::default();
                if is_due {
                    let all = bytes.saturating_mul(u32::try_from(servers.len()).unwrap_or(u32::MAX));
                    pause = INTERVAL.max(Duration::from_secs(1) * all / BYTES_PER_SECOND);
                    told = Some((load, servers.clone(), Instant::now()));
                }
            }
            Some(Err(error)) => problem.tell(&error, "the load of this server is not told to others"),
            None => {}
        }
        let is_heard = |server| {
            let states = app.suspension.as_ref().map(Suspension::states);
            states.is_some_and(|states| states.load(server).is_some())
        };
        if unheard.is_new(&servers, is_heard, least, Instant::now()) {
            tracing::warn!(
                "another server lives, and its load was never heard. With NATS, the logins of all servers need the right to publish and \
                 subscribe to sandglass.told.>; otherwise that server may be of an earlier release"
            );
        }
        app.loads.sent.keep(|server| {
            let states = app.suspension.as_ref().map(Suspension::states);
            states.is_some_and(|states| states.seems_to_live(server))
        });
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // The others hear of it at once.
            () = app.draining.cancelled(), if !was_draining => {}
        }
    }
}

/// Tells a load, and looks up servers that told theirs for the first time. Returns the bytes of the record.
fn exchange(states: &States, load: Option<Load>, lasts: Duration) -> Result<u32, StateError> {
    let bytes = load.map_or(Ok(0), |load| states.tell_load(load, lasts))?;
    states.meet()?;
    Ok(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// Returns true if a load differs by more than a little memory.
fn has_changed(before: &Load, now: &Load) -> bool {
    let difference = before.memory_used.abs_diff(now.memory_used);
    let memory_used = now.memory_used;
    let without = Load {
        memory_used,
        ..before.clone()
    };
    without != *now || difference > now.memory_bytes / SMALL_CHANGE
}

/// The reason for which this server leaves new work to others; `None` if it takes it.
pub(super) fn reason(app: &App) -> Option<Reason> {
    Reason::of(&own(app))
}

/// The number of other servers whose load is known.
pub(super) fn known(app: &App) -> usize {
    let Some(suspension) = &app.suspension else { return 0 };
    let others = draining::others(app);
    let known = others
        .iter()
        .filter(|other| suspension.states().load(other.server).is_some());
    known.count()
}

/// The server that takes new work in place of this one, for this reason, and is none of those that were tried.
pub(super) fn another(app: &App, (why, is_session): (Reason, bool), tried: &[ServerId]) -> Option<Living> {
    let states = app.suspension.as_ref()?.states();
    let mut others = draining::others(app);
    others.retain(|other| !tried.contains(&other.server));
    let candidate = |living: Living| {
        let load = states.load(living.server);
        Candidate {
            sent: load
                .as_ref()
                .map_or(0, |load| app.loads.sent.since(living.server, load)),
            load: load.map(|load| load.load),
            living,
        }
    };
    let others: Vec<_> = others.into_iter().map(candidate).collect();
    let random = |below: usize| {
        let number = usize::try_from(getrandom::u32().unwrap_or_default()).unwrap_or_default();
        number.checked_rem(below).unwrap_or_default()
    };
    let own = own(app);
    let chosen = choose(&own, others.clone(), why, random).or_else(|| {
        // Not all that was sent has taken a place. A server that has none sends the work back.
        let asked = others.into_iter().map(|other| Candidate { sent: 0, ..other });
        (why != Reason::Busy).then(|| choose(&own, asked.collect(), why, random))?
    })?;
    if is_session {
        app.loads.sent.note(chosen.server, states.load(chosen.server).as_ref());
    }
    app.metrics.place(why.name());
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_never_heard_is_told_once() {
        let [a, b]: [ServerId; 2] = [
            "00112233445566778899aabbccddeeff".parse().unwrap(),
            "10112233445566778899aabbccddeeff".parse().unwrap(),
        ];
        let (begin, second) = (Instant::now(), Duration::from_secs(1));
        let mut unheard = Unheard::default();
        assert!(!unheard.is_new(&[a, b], |server| server == a, second, begin));
        // The first one is silent only now, as a server that was killed.
        assert!(!unheard.is_new(&[a], |_| false, second, begin + 2 * second));
        assert!(!unheard.is_new(&[a, b], |_| false, second, begin + 2 * second));
        assert!(unheard.is_new(&[a, b], |_| false, second, begin + 3 * second));
        assert!(!unheard.is_new(&[a, b], |_| false, second, begin + 9 * second));
    }
}
