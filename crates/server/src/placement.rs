//! Placement: the server that takes a new session or run.
//!
//! A server with a place for it takes it. If the server ends, is full or is busy, it draws two others at random, and the one with less load
//! takes it. So the largest load stays small, and servers that decide at the same time do not all choose the same one: Mitzenmacher, "The
//! Power of Two Choices in Randomized Load Balancing", IEEE Transactions on Parallel and Distributed Systems 12 (2001).
//!
//! Decisions: `docs/internals/server.md`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_states::{Living, Load, OtherLoad, ServerId};

/// The pressure from which a server is busy, in thousandths.
const BUSY: u64 = 800;
/// The pressure of a server whose spares are used up, beside that of its work.
const WITHOUT_SPARES: u64 = 200;
/// The pressure by which another server has to be lower, so that it gets work of a busy one. Otherwise work would go to and fro.
const MARGIN: u64 = 150;
/// Executions of each processor at which a server counts as used up. Many of them wait, for a model or for data.
const EXECUTIONS: u64 = 8;
/// The share of memory from which a server gets no work of others.
const MEMORY_LEFT: u64 = 950;
const WHOLE: u64 = 1000;

/// The reason for which a server leaves new work to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// It was told to end.
    Draining,
    /// It has no place for another session.
    Full,
    /// It has a place, but few, or no spares, or little memory. It takes the work if no other server has clearly less load.
    Busy,
}

impl Reason {
    /// The reason of a server with this load; `None` if it takes new work.
    pub(super) fn of(own: &Load) -> Option<Self> {
        if own.is_draining {
            Some(Self::Draining)
        } else if own.sessions >= own.most_sessions {
            Some(Self::Full)
        } else if own.spares == Some(0) || pressure(own, 0) >= BUSY {
            Some(Self::Busy)
        } else {
            None
        }
    }

    /// The name in metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Full => "full",
            Self::Busy => "busy",
        }
    }
}

/// Another server that lives and can be reached.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) living: Living,
    /// Its load; `None` if that is not known.
    pub(super) load: Option<Arc<Load>>,
    /// The work that this server has sent there since the load was told.
    pub(super) sent: u64,
}

/// The shares of a server that are used up, in thousandths: of places, memory and processors, and the part for missing spares. `sent` is work
/// that its record does not have yet.
fn shares(load: &Load, sent: u64) -> [u64; 4] {
    let share = |part: u64, whole: u64| match whole {
        0 => 0,
        _ => part.saturating_mul(WHOLE) / whole,
    };
    let places = match load.most_sessions {
        0 => WHOLE,
        most => share(load.sessions.saturating_add(sent), most),
    };
    let executions = share(
        load.executions.saturating_add(sent),
        load.processors.saturating_mul(EXECUTIONS),
    );
    let is_without = load.spares.is_some_and(|spares| spares <= sent);
    [
        places,
        share(load.memory_used, load.memory_bytes),
        executions.min(WHOLE),
        u64::from(is_without) * WITHOUT_SPARES,
    ]
}

/// The largest share, which tells how soon a server is used up.
fn pressure(load: &Load, sent: u64) -> u64 {
    let [places, memory, executions, spares] = shares(load, sent);
    places.max(memory).max(executions).saturating_add(spares)
}

/// The sum of all shares, by which two servers are compared. The largest alone would hide that one of them has less of all others.
fn work(load: &Load, sent: u64) -> u64 {
    shares(load, sent).into_iter().fold(0, u64::saturating_add)
}

/// Returns true if a server has room for a session of another one, as far as its load tells.
fn has_room(load: &Load, sent: u64) -> bool {
    let has_memory = load.memory_bytes == 0
        || u128::from(load.memory_used) * u128::from(WHOLE) < u128::from(load.memory_bytes) * u128::from(MEMORY_LEFT);
    !load.is_draining && load.sessions.saturating_add(sent) < load.most_sessions && has_memory
}

/// Returns true if a server allows what this one allows: memory of sessions, and packages.
fn fits(own: &Load, other: &Load) -> bool {
    let same_packages = own.packages == other.packages || own.packages.is_empty() || other.packages.is_empty();
    other.most_session_bytes >= own.most_session_bytes && same_packages
}

/// The server that takes new work in place of this one, for this reason. `None` if no other one is to take it. `random` returns a number
/// below its argument.
pub(super) fn choose(
    own: &Load,
    mut others: Vec<Candidate>,
    why: Reason,
    mut random: impl FnMut(usize) -> usize,
) -> Option<Living> {
    // Servers of an earlier version tell no load. They send back what they cannot take.
    others.retain(|other| other.load.as_ref().is_none_or(|load| has_room(load, other.sent)));
    let known = |other: &Candidate| other.load.as_ref().is_some_and(|load| fits(own, load));
    let rank = |other: &Candidate| match (&other.load, why) {
        _ if known(other) => Some(0),
        (_, Reason::Busy) => None,
        (None, _) => Some(1),
        (Some(_), Reason::Draining) => Some(2), // better than a server that ends
        (Some(_), Reason::Full) => None,
    };
    let best = others.iter().filter_map(rank).min()?;
    others.retain(|other| rank(other) == Some(best));
    let mut draw = |others: &mut Vec<Candidate>| {
        let drawn = (!others.is_empty()).then(|| random(others.len()).min(others.len() - 1))?;
        Some(others.swap_remove(drawn))
    };
    let of = |other: &Candidate, measure: fn(&Load, u64) -> u64| {
        other.load.as_ref().map_or(0, |load| measure(load, other.sent))
    };
    let first = draw(&mut others)?;
    let less = match draw(&mut others) {
        Some(second) if of(&second, work) < of(&first, work) => second,
        _ => first,
    };
    if why == Reason::Busy {
        let pressure_there = of(&less, pressure);
        if pressure_there >= BUSY || pressure_there.saturating_add(MARGIN) > pressure(own, 0) {
            return None;
        }
    }
    Some(less.living)
}

/// The work that was sent to each server since its last record, by the number of the record. Loads are told each second, and much can be sent
/// meanwhile.
#[derive(Debug, Default)]
pub(super) struct Sent(Mutex<HashMap<ServerId, (u64, u64)>>);

impl Sent {
    /// Notes work that is sent to a server with this load.
    pub(super) fn note(&self, server: ServerId, load: Option<&OtherLoad>) {
        let Some(load) = load else { return };
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, count) = sent.entry(server).or_default();
        if *number != load.number {
            (*number, *count) = (load.number, 0);
        }
        *count += 1;
    }

    /// The work that was sent since this record.
    pub(super) fn since(&self, server: ServerId, load: &OtherLoad) -> u64 {
        let sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_record = sent.get(&server).filter(|(number, _)| *number == load.number);
        of_record.map_or(0, |(_, count)| *count)
    }

    /// Forgets servers that have ended.
    pub(super) fn keep(&self, lives: impl Fn(ServerId) -> bool) {
        let mut sent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sent.retain(|server, _| lives(*server));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn load(sessions: u64) -> Load {
        Load {
            sessions,
            most_sessions: 10,
            spares: Some(2),
            processors: 2,
            memory_used: 10,
            memory_bytes: 100,
            most_session_bytes: 1,
            ..Load::default()
        }
    }

    fn living(number: usize) -> Living {
        Living {
            server: format!("{number:032x}").parse().unwrap(),
            address: Some(format!("http://{number}")),
        }
    }

    fn candidates(loads: impl IntoIterator<Item = Option<Load>>) -> Vec<Candidate> {
        let candidate = |(number, load): (usize, Option<Load>)| Candidate {
            living: living(number),
            load: load.map(Arc::new),
            sent: 0,
        };
        loads.into_iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn a_server_leaves_work_when_it_ends_or_is_full_or_busy() {
        let with = |change: fn(&mut Load)| {
            let mut load = load(5);
            change(&mut load);
            Reason::of(&load)
        };
        assert_eq!(with(|_| {}), None);
        assert_eq!(with(|load| load.is_draining = true), Some(Reason::Draining));
        assert_eq!(with(|load| load.sessions = 10), Some(Reason::Full));
        assert_eq!(with(|load| load.most_sessions = 0), Some(Reason::Full));
        assert_eq!(with(|load| load.sessions = 8), Some(Reason::Busy));
        assert_eq!(with(|load| load.spares = Some(0)), Some(Reason::Busy));
        assert_eq!(with(|load| load.spares = None), None);
        assert_eq!(with(|load| load.memory_used = 80), Some(Reason::Busy));
        assert_eq!(with(|load| load.memory_bytes = 0), None);
        assert_eq!(with(|load| load.executions = 16), Some(Reason::Busy));
    }

    #[test]
    fn a_busy_server_keeps_work_unless_another_has_clearly_less() {
        let own = load(8);
        for (sessions, is_chosen) in [(8, false), (7, false), (6, true), (0, true)] {
            let chosen = choose(&own, candidates([Some(load(sessions))]), Reason::Busy, |_| 0);
            assert_eq!(chosen.is_some(), is_chosen, "{sessions}");
        }
        // No server sends work to one that would send it back: what is clearly less is so in one direction only.
        let without_spares = Load {
            spares: Some(0),
            ..load(5)
        };
        let chosen = |own: &Load, other: &Load| choose(own, candidates([Some(other.clone())]), Reason::Busy, |_| 0);
        assert!(chosen(&without_spares, &load(5)).is_some());
        assert!(chosen(&load(5), &without_spares).is_none());
        assert!(chosen(&without_spares, &without_spares).is_none());
        assert!(
            choose(&own, candidates([None]), Reason::Busy, |_| 0).is_none(),
            "its load is not known"
        );
    }

    #[test]
    fn a_large_share_of_memory_does_not_hide_the_others() {
        let with = |sessions| {
            let memory_used = 50;
            Some(Load {
                memory_used,
                ..load(sessions)
            })
        };
        for (loads, expected) in [([with(1), with(2)], 0), ([with(2), with(1)], 1)] {
            let chosen = choose(&load(10), candidates(loads), Reason::Full, |_| 0);
            assert_eq!(chosen, Some(living(expected)));
        }
    }

    #[test]
    fn work_on_its_way_counts() {
        let mut others = candidates([Some(load(2)), Some(load(4))]);
        let first = |others: &[Candidate]| choose(&load(10), others.to_vec(), Reason::Full, |_| 0).unwrap();
        assert_eq!(first(&others), living(0));
        others[0].sent = 3;
        assert_eq!(first(&others), living(1));
        others[0].sent = 8;
        others[1].sent = 6;
        assert!(
            choose(&load(10), others, Reason::Full, |_| 0).is_none(),
            "both are full"
        );
        let sent = Sent::default();
        let told = |number| OtherLoad {
            number,
            load: Arc::new(load(0)),
        };
        let server = living(0).server;
        for expected in [1, 2] {
            sent.note(server, Some(&told(7)));
            assert_eq!(sent.since(server, &told(7)), expected);
        }
        assert_eq!(sent.since(server, &told(8)), 0, "the record has it");
        sent.keep(|_| false);
        assert_eq!(sent.since(server, &told(7)), 0);
    }

    #[test]
    fn servers_of_other_versions_get_work_of_those_that_end() {
        let own = Load {
            is_draining: true,
            packages: "a".to_owned(),
            ..load(0)
        };
        let other_packages = Load {
            packages: "b".to_owned(),
            ..load(0)
        };
        let full = candidates([Some(load(10)), None, Some(other_packages.clone())]);
        assert_eq!(choose(&own, full.clone(), Reason::Draining, |_| 0), Some(living(1)));
        assert_eq!(choose(&own, full, Reason::Full, |_| 0), Some(living(1)));
        let unfit = candidates([Some(other_packages)]);
        assert_eq!(choose(&own, unfit.clone(), Reason::Draining, |_| 0), Some(living(0)));
        assert_eq!(choose(&own, unfit, Reason::Full, |_| 0), None);
    }

    /// With two choices, the fullest of many servers is a little above the mean. With one, it is far above.
    #[test]
    fn sessions_of_a_full_server_spread() {
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        let mut loads: Vec<Load> = (0..50)
            .map(|_| Load {
                most_sessions: 100,
                ..load(0)
            })
            .collect();
        for _ in 0..50 * 40 {
            let others = candidates(loads.iter().cloned().map(Some));
            let chosen = choose(&load(10), others, Reason::Full, &mut random).unwrap();
            let number = (0..50).find(|number| living(*number) == chosen).unwrap();
            loads[number].sessions += 1;
        }
        let (least, most) = (
            loads.iter().map(|load| load.sessions).min(),
            loads.iter().map(|load| load.sessions).max(),
        );
        assert!(least.unwrap() >= 36 && most.unwrap() <= 43, "{least:?} {most:?}");
    }

    fn any_load() -> impl Strategy<Value = Load> {
        let numbers = prop::array::uniform6(prop_oneof![0..20_u64, any::<u64>()]);
        (numbers, any::<bool>(), prop::option::of(0..3_u64), "[ab]?").prop_map(
            |(numbers, is_draining, spares, packages)| {
                let [
                    sessions,
                    most_sessions,
                    executions,
                    memory_used,
                    memory_bytes,
                    most_session_bytes,
                ] = numbers;
                Load {
                    is_draining,
                    sessions,
                    most_sessions,
                    spares,
                    executions,
                    processors: 2,
                    memory_used,
                    memory_bytes,
                    most_session_bytes,
                    packages,
                    used: BTreeMap::new(),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn no_server_is_chosen_that_ends_or_is_full(
            own in any_load(),
            loads in prop::collection::vec((prop::option::of(any_load()), 0..5_u64), 0..8),
            why in prop::sample::select(vec![Reason::Draining, Reason::Full, Reason::Busy]),
            numbers in prop::array::uniform2(any::<usize>()),
        ) {
            let mut others = candidates(loads.iter().map(|(load, _)| load.clone()));
            for (other, (_, sent)) in others.iter_mut().zip(&loads) {
                other.sent = *sent;
            }
            let mut numbers = numbers.into_iter();
            let random = |below: usize| numbers.next().unwrap_or_default() % below;
            let is_possible = others.iter().any(|other| other.load.as_ref().is_none_or(|load| has_room(load, other.sent)));
            let chosen = choose(&own, others.clone(), why, random);
            if why == Reason::Draining {
                prop_assert_eq!(chosen.is_some(), is_possible);
            }
            let Some(chosen) = chosen else { return Ok(()) };
            let other = others.iter().find(|other| other.living == chosen).unwrap();
            if let Some(load) = &other.load {
                prop_assert!(!load.is_draining && load.sessions.saturating_add(other.sent) < load.most_sessions);
                prop_assert!(why == Reason::Draining || fits(&own, load));
                prop_assert!(why != Reason::Busy || pressure(load, other.sent) < pressure(&own, 0));
            }
        }
    }
}
