//! Journals in a store that several servers use: the session's server writes, the next one goes on, and a late one changes nothing.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;
#[path = "common/servers.rs"]
mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{KINDS, Kind};
use proptest::prelude::*;
use sandglass_states::{
    JournalId, Listed, MemoryStore, MostEnded, Name, Place, Ran, StateError, Store, Tenant, Version,
};
use servers::{Hands, LASTS, MOST, Server, session, state, two};

const NONE_ENDED: MostEnded = MostEnded {
    executions: 32,
    journal_bytes: MOST,
    state_bytes: MOST,
};

/// Writes a state that the server goes on holding, as a kept sandbox does.
fn keep(server: &Server, execution: u32) -> Result<(), StateError> {
    let ran: Option<&Ran> = None;
    let about = (serde_json::Value::Null, ran);
    let written = server
        .ann
        .write_after(session(1), &state(execution), about, &NONE_ENDED, |_| true);
    written.map(drop)
}

/// Takes the session over, as a kept sandbox that opens does. Returns the texts and bodies of the journal.
fn open(server: &Server) -> Result<Vec<String>, StateError> {
    server.ann.take_up(session(1), MOST)?;
    let read = parts(&server.ann);
    server.ann.hold(session(1))?;
    assert_eq!(parts(&server.ann), read, "the copy is the same");
    Ok(read)
}

fn parts(tenant: &Tenant) -> Vec<String> {
    let journal = tenant.journal(session(1), MOST).unwrap();
    let parts = journal.map(|(_, parts)| parts).unwrap_or_default().into_iter();
    let parts = parts.map(|part| match part.body {
        Some(body) => format!("{}: {}", part.text, String::from_utf8_lossy(&body).trim_end()),
        None => part.text,
    });
    parts.collect()
}

fn write(server: &Server, journal: JournalId, number: u32) -> Result<(), StateError> {
    // A large body has objects of its own.
    let padding = if number % 4 == 3 { 65_537 } else { 0 };
    let body = format!("the body of {number}{}", " ".repeat(padding));
    let body = (number % 2 == 1).then_some(body.as_bytes());
    server
        .ann
        .write_part(session(1), journal, number, &format!("part {number}"), body)
}

fn first(count: usize) -> Vec<String> {
    let all = [
        "part 0",
        "part 1: the body of 1",
        "part 2",
        "part 3: the body of 3",
        "part 4",
    ];
    all[..count].iter().map(|part| (*part).to_owned()).collect()
}

/// The lease of the first server runs out, as the second one sees it.
fn end_lease(hands: &Hands, watching: &[&Server]) {
    for server in watching {
        server.beat();
    }
    for _ in 0..4 {
        hands.pass(LASTS.as_secs() / 2);
        for server in watching {
            server.beat();
        }
    }
}

fn names(store: &dyn Store, tenant: &Tenant, place: fn(&Tenant) -> Place) -> Vec<Name> {
    store
        .list(place(tenant))
        .unwrap()
        .into_iter()
        .map(|Listed { name, .. }| name)
        .collect()
}

fn journals(tenant: &Tenant) -> Place {
    Place::Journal(tenant.id(), session(1))
}

#[test]
fn the_next_server_goes_on_with_the_journal_and_a_late_one_changes_nothing() {
    for kind in KINDS {
        let (store, hands, a, b) = two(kind);
        keep(&a, 1).unwrap();
        let journal = JournalId::random().unwrap();
        for number in 0..3 {
            write(&a, journal, number).unwrap();
        }
        assert!(
            matches!(open(&b), Err(StateError::Taken)),
            "{kind:?}: the first server lives"
        );
        assert!(matches!(write(&b, journal, 3), Err(StateError::Taken)));
        end_lease(&hands, &[&b]);
        assert_eq!(open(&b).unwrap(), first(3), "{kind:?}");
        for late in [
            write(&a, journal, 3),
            write(&a, JournalId::random().unwrap(), 0),
            a.ann.remove_journal(session(1)),
        ] {
            assert!(matches!(late, Err(StateError::Taken)), "{kind:?}: {late:?}");
        }
        assert!(matches!(
            a.ann.remove_one_journal(session(1), journal),
            Err(StateError::Taken)
        ));
        write(&b, journal, 3).unwrap();
        assert_eq!(parts(&b.ann), first(4));
        // What the first server left is collected, and the journal stays.
        b.ann.collect(Duration::ZERO).unwrap();
        assert_eq!(parts(&b.ann), first(4));
        assert_eq!(names(&*store, &b.ann, journals).len(), 4);
        // It is given back with its journal, and another server has it at once.
        b.ann.release(session(1)).unwrap();
        assert!(matches!(write(&b, journal, 4), Err(StateError::Taken)));
        let c = Server::new(&store, &hands);
        assert_eq!(open(&c).unwrap(), first(4));
        write(&c, journal, 4).unwrap();
        c.ann.remove_journal(session(1)).unwrap();
        keep(&c, 2).unwrap();
        assert!(parts(&c.ann).is_empty());
        c.ann.remove(session(1)).unwrap();
        end_lease(&hands, &[&c]);
        c.ann.collect(Duration::ZERO).unwrap();
        let objects = names(&*store, &c.ann, |tenant| Place::Objects(tenant.id()));
        assert!(objects.is_empty(), "{kind:?}: {objects:?}");
    }
}

/// Its answer says that the part was not written, so Python never sees the answer in it.
#[test]
fn a_part_that_comes_after_the_lease_was_not_written() {
    let (_, hands, a, b) = two(Kind::Memory);
    keep(&a, 1).unwrap();
    let journal = JournalId::random().unwrap();
    write(&a, journal, 0).unwrap();
    hands.pass(LASTS.as_secs());
    assert!(matches!(write(&a, journal, 1), Err(StateError::Taken)));
    a.beat();
    write(&a, journal, 1).unwrap();
    end_lease(&hands, &[&b]);
    assert_eq!(open(&b).unwrap(), first(2));
}

/// A server that goes on under a new id, because nobody took its sessions over, has its journal.
#[test]
fn a_server_that_lost_its_lease_has_its_journal_again() {
    let (_, hands, a, b) = two(Kind::Memory);
    keep(&a, 1).unwrap();
    let journal = JournalId::random().unwrap();
    let under = a.ann.server();
    write(&a, journal, 0).unwrap();
    write(&a, journal, 1).unwrap();
    end_lease(&hands, &[&b]);
    a.beat();
    assert_ne!(a.ann.server(), under, "its lease was ended by the other one");
    assert!(matches!(write(&a, journal, 2), Err(StateError::Taken)));
    a.ann.take_again(session(1), under).unwrap();
    assert_eq!(parts(&a.ann), first(2));
    write(&a, journal, 2).unwrap();
    assert_eq!(parts(&a.ann), first(3));
}

/// A journal that a server has written in former times is not taken for that of a later execution elsewhere.
#[test]
fn an_old_journal_of_the_server_is_gone_when_the_session_comes_back() {
    let (_, _, a, b) = two(Kind::Memory);
    keep(&a, 1).unwrap();
    let journal = JournalId::random().unwrap();
    for number in 0..3 {
        write(&a, journal, number).unwrap();
    }
    a.ann.release(session(1)).unwrap();
    assert_eq!(open(&b).unwrap(), first(3));
    b.ann.remove_journal(session(1)).unwrap();
    keep(&b, 2).unwrap();
    b.ann.release(session(1)).unwrap();
    assert!(open(&a).unwrap().is_empty());
}

/// Its state is among the objects of one server, and its journal among those of another.
#[test]
fn an_ended_execution_runs_again_at_the_next_server() {
    for kind in KINDS {
        let (_, hands, a, b) = two(kind);
        let most = MostEnded {
            executions: 2,
            ..NONE_ENDED
        };
        let ends = |server: &Server, execution: u32| {
            let ran = Ran {
                execution,
                journal: Ok(format!("the journal of {execution}").into_bytes()),
            };
            let about = (serde_json::Value::Null, Some(&ran));
            let written = server
                .ann
                .write_after(session(1), &state(execution), about, &most, |_| true);
            written.map(drop)
        };
        let has = |server: &Server, execution: u32| {
            let rerun = server.ann.rerun(session(1), execution, MOST).unwrap().unwrap();
            assert_eq!(rerun.state, state(execution - 1), "{kind:?}");
            assert_eq!(rerun.journal, format!("the journal of {execution}"), "{kind:?}");
        };
        keep(&a, 1).unwrap();
        ends(&a, 2).unwrap();
        has(&a, 2);
        end_lease(&hands, &[&b]);
        open(&b).unwrap();
        ends(&b, 3).unwrap();
        for server in [&b, &a] {
            server.ann.collect(Duration::ZERO).unwrap();
            has(server, 2);
            has(server, 3);
        }
        // What is no longer named goes, whoever wrote it.
        ends(&b, 4).unwrap();
        b.ann.collect(Duration::ZERO).unwrap();
        assert!(b.ann.rerun(session(1), 2, MOST).unwrap().is_err());
        has(&b, 3);
        has(&b, 4);
        assert!(matches!(ends(&a, 3), Err(StateError::Taken)));
    }
}

#[test]
fn a_server_knows_what_it_holds_and_where_the_rest_is() {
    let (_, _, a, b) = two(Kind::Memory);
    assert_eq!(a.ann.stored_elsewhere(session(1)).unwrap(), None);
    keep(&a, 1).unwrap();
    assert_eq!(a.ann.held_under(session(1)), Some(a.ann.server()));
    assert_eq!(b.ann.held_under(session(1)), None);
    let elsewhere = b.ann.stored_elsewhere(session(1)).unwrap();
    assert_eq!(elsewhere.unwrap().unwrap().server, a.ann.server());
    assert_eq!(a.ann.stored_elsewhere(session(1)).unwrap(), Some(None));
    a.ann.release(session(1)).unwrap();
    assert_eq!(a.ann.held_under(session(1)), None);
    assert_eq!(b.ann.stored_elsewhere(session(1)).unwrap(), Some(None));
    b.ann.remove(session(1)).unwrap();
    assert_eq!(a.ann.stored_elsewhere(session(1)).unwrap(), None);
}

#[test]
fn a_server_that_gives_back_what_it_never_had_leaves_the_journal() {
    let (_, _, a, b) = two(Kind::Memory);
    keep(&a, 1).unwrap();
    write(&a, JournalId::random().unwrap(), 0).unwrap();
    a.ann.release(session(1)).unwrap();
    b.ann.release(session(1)).unwrap();
    assert_eq!(open(&a).unwrap(), first(1));
}

#[test]
fn a_journal_with_a_gap_is_damaged_also_for_the_next_server() {
    let (store, hands, a, b) = two(Kind::Memory);
    keep(&a, 1).unwrap();
    let journal = JournalId::random().unwrap();
    for number in 0..4 {
        write(&a, journal, number).unwrap();
    }
    let names = names(&*store, &a.ann, journals);
    let third = names.iter().find(|name| matches!(name, Name::Part(.., 2))).unwrap();
    store.remove(third).unwrap();
    end_lease(&hands, &[&b]);
    b.ann.take_up(session(1), MOST).unwrap();
    assert!(matches!(b.ann.journal(session(1), MOST), Err(StateError::Damaged(_))));
    b.ann.hold(session(1)).unwrap();
    assert!(parts(&b.ann).is_empty(), "no beginning of it passes for the whole");
}

#[test]
fn a_removed_session_leaves_no_parts_of_any_server() {
    let (store, hands, a, b) = two(Kind::Memory);
    keep(&a, 1).unwrap();
    write(&a, JournalId::random().unwrap(), 0).unwrap();
    end_lease(&hands, &[&b]);
    b.ann.remove(session(1)).unwrap();
    assert!(names(&*store, &b.ann, journals).is_empty());
}

/// Memory in which refs cannot be written while this is true.
#[derive(Debug)]
struct Fails(MemoryStore, AtomicBool);

impl Store for Fails {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.0.read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        match name {
            Name::Ref(..) if self.1.load(Ordering::Relaxed) => Ok(None),
            _ => self.0.swap(name, bytes, seen),
        }
    }

    fn write(&self, name: &Name, bytes: &[u8]) -> Result<(), StateError> {
        self.0.write(name, bytes)
    }

    fn touch(&self, name: &Name, bytes: &[u8]) -> Result<bool, StateError> {
        self.0.touch(name, bytes)
    }

    fn remove(&self, name: &Name) -> Result<(), StateError> {
        self.0.remove(name)
    }

    fn list(&self, place: Place) -> Result<Vec<Listed>, StateError> {
        self.0.list(place)
    }
}

#[test]
fn a_server_that_fails_while_it_takes_over_leaves_the_journal_as_it_was() {
    let store = Arc::new(Fails(MemoryStore::default(), AtomicBool::new(false)));
    let (shared, hands) = (Arc::clone(&store) as Arc<dyn Store>, Hands::default());
    let [a, b, c] = [(), (), ()].map(|()| Server::new(&shared, &hands));
    keep(&a, 1).unwrap();
    let journal = JournalId::random().unwrap();
    write(&a, journal, 0).unwrap();
    write(&a, journal, 1).unwrap();
    end_lease(&hands, &[&b, &c]);
    store.1.store(true, Ordering::Relaxed);
    assert!(b.ann.take_up(session(1), MOST).is_ok() && b.ann.hold(session(1)).is_err());
    assert_eq!(names(&*shared, &c.ann, journals).len(), 4, "the copies are there");
    store.1.store(false, Ordering::Relaxed);
    assert_eq!(open(&c).unwrap(), first(2));
    write(&c, journal, 2).unwrap();
    assert!(matches!(write(&b, journal, 2), Err(StateError::Taken)));
    // The second server lives, and might be about to take it over again.
    c.ann.collect(Duration::ZERO).unwrap();
    assert_eq!(names(&*shared, &c.ann, journals).len(), 5);
    end_lease(&hands, &[&c]);
    c.ann.collect(Duration::ZERO).unwrap();
    assert_eq!(names(&*shared, &c.ann, journals).len(), 3);
    assert_eq!(parts(&c.ann), first(3));
}

/// A step of one of three servers.
#[derive(Debug, Clone, Copy)]
enum Step {
    Open(usize),
    Write(usize),
    Beat(usize),
    Release(usize),
    Collect(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let server = 0..3_usize;
    prop_oneof![
        2 => server.clone().prop_map(Step::Open),
        4 => server.clone().prop_map(Step::Write),
        4 => server.clone().prop_map(Step::Beat),
        1 => server.clone().prop_map(Step::Release),
        1 => server.prop_map(Step::Collect),
        3 => (1..20_u64).prop_map(Step::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Each part that a server was told to be written is in the journal of whoever has the session later, in order.
    #[test]
    fn no_part_is_lost_or_doubled(steps in prop::collection::vec(step(), 1..60)) {
        let (store, hands) = (Kind::Memory.store(), Hands::default());
        let servers = [(), (), ()].map(|()| Server::new(&store, &hands));
        keep(&servers[0], 1).unwrap();
        let journal = JournalId::random().unwrap();
        // What each server believes to be in the journal, and what was confirmed.
        let mut believed = [0_u32; 3];
        let mut confirmed = 0;
        for step in steps {
            match step {
                Step::Pass(seconds) => hands.pass(seconds),
                Step::Beat(server) => drop(servers[server].beat()),
                Step::Collect(server) => drop(servers[server].ann.collect(Duration::ZERO)),
                Step::Release(server) => drop(servers[server].ann.release(session(1))),
                Step::Open(server) => {
                    let ann = &servers[server].ann;
                    if ann.take_up(session(1), MOST).is_ok() {
                        let read = parts(ann);
                        prop_assert!(read.len() >= confirmed as usize, "{} of {confirmed}", read.len());
                        for (number, part) in read.iter().enumerate() {
                            prop_assert!(part.starts_with(&format!("part {number}")), "{read:?}");
                        }
                        if ann.hold(session(1)).is_ok() {
                            prop_assert_eq!(parts(ann).len(), read.len());
                            believed[server] = read.len().try_into().unwrap();
                            // A part of which nobody knows if it was written counts once somebody has read it.
                            confirmed = believed[server];
                        }
                    }
                }
                Step::Write(server) => {
                    if write(&servers[server], journal, believed[server]).is_ok() {
                        prop_assert_eq!(believed[server], confirmed, "one server at a time writes");
                        believed[server] += 1;
                        confirmed += 1;
                    }
                }
            }
        }
    }
}
