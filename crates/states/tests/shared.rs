//! Several servers with one store: each session has one of them at a time, and one that is late writes nothing.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod common;
#[path = "common/servers.rs"]
mod servers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{KINDS, Kind};
use sandglass_states::{
    Beat, Clock, Listed, MemoryStore, Name, Place, ServerId, SessionId, Standing, StateError, States, Store, Version,
};
use servers::{Hands, LASTS, MOST, Server, key, session, state, two};

impl Server {
    /// Goes on with a session, and returns its execution.
    fn wake(&self, number: u8) -> Result<u32, StateError> {
        Ok(self.wake_as(number)?.0)
    }

    /// The same, with the id of the server that has it then.
    fn wake_as(&self, number: u8) -> Result<(u32, ServerId), StateError> {
        let (head, _) = self.ann.take_up(session(number), MOST)?.unwrap();
        Ok((head.execution, self.ann.mark_awake(session(number))?))
    }

    fn sleep(&self, number: u8, execution: u32) -> Result<(), StateError> {
        self.ann.write(session(number), &state(execution)).map(drop)
    }

    /// Tries all that would change a session that another server has.
    fn can_change_nothing(&self, number: u8) {
        let ann = &self.ann;
        let tries = [
            self.sleep(number, 1000),
            ann.mark_awake(session(number)).map(drop),
            ann.mark_left(session(number)),
            ann.remove(session(number)),
            self.wake(number).map(drop),
            self.sleep(number, 1001),
        ];
        assert!(
            tries.iter().all(|tried| matches!(tried, Err(StateError::Taken))),
            "{tries:?}"
        );
    }

    fn execution(&self, number: u8) -> u32 {
        self.ann.read(session(number), MOST).unwrap().unwrap().execution
    }
}

#[test]
fn a_session_goes_from_server_to_server() {
    for kind in KINDS {
        let (_, _, a, b) = two(kind);
        a.sleep(1, 1).unwrap();
        for round in 0..3 {
            let (from, to) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
            assert_eq!(to.wake(1).unwrap(), round + 1);
            from.can_change_nothing(1);
            to.sleep(1, round + 2).unwrap();
            assert_eq!(from.execution(1), round + 2);
        }
    }
}

#[test]
fn the_sessions_of_a_silent_server_are_taken_over_and_it_is_too_late() {
    for kind in KINDS {
        let (_, hands, a, b) = two(kind);
        a.sleep(1, 1).unwrap();
        let (_, id) = a.wake_as(1).unwrap();
        // As long as the first one renews its lease, the second waits.
        for _ in 0..5 {
            hands.pass(20);
            assert_eq!((a.beat(), b.beat()), (Beat::Renewed, Beat::Renewed));
            assert!(matches!(b.wake(1), Err(StateError::Taken)));
            assert_eq!(a.states.standing(id), Standing::Held);
        }
        hands.pass(29);
        b.beat();
        assert!(matches!(b.wake(1), Err(StateError::Taken)));
        hands.pass(10);
        assert_eq!(
            a.states.standing(id),
            Standing::Unsure,
            "its own clock tells it as well"
        );
        assert_eq!(b.wake(1).unwrap(), 1);
        assert!(
            b.ann.head(session(1)).unwrap().unwrap().awake,
            "its state is older than what clients saw"
        );
        a.can_change_nothing(1);
        assert_eq!(a.beat(), Beat::Lost);
        assert_eq!(a.beat(), Beat::Renewed);
        assert_eq!(a.states.standing(id), Standing::Lost);
        a.can_change_nothing(1);
        b.sleep(1, 2).unwrap();
        assert!(
            matches!(a.sleep(1, 1000), Err(StateError::Taken)),
            "it has not seen the newest state"
        );
        assert_eq!(a.wake(1).unwrap(), 2);
        a.sleep(1, 3).unwrap();
        assert_eq!(b.execution(1), 3);
    }
}

/// A lease that nobody ended goes on, however late its renewal is: nobody can have taken anything.
#[test]
fn a_server_that_nobody_watched_goes_on() {
    let (_, hands, a, b) = two(Kind::LibrarysMemory);
    a.sleep(1, 1).unwrap();
    let (_, id) = a.wake_as(1).unwrap();
    hands.pass(1000);
    assert_eq!(a.states.standing(id), Standing::Unsure);
    // A watcher that has just come knows nothing of the time before.
    assert!(matches!(b.wake(1), Err(StateError::Taken)));
    assert_eq!(a.beat(), Beat::Renewed);
    assert_eq!(a.states.standing(id), Standing::Held);
    hands.pass(33);
    assert!(matches!(b.wake(1), Err(StateError::Taken)), "it changed in between");
    a.sleep(1, 2).unwrap();
}

/// The write of a session that nobody took over is as good as ever.
#[test]
fn a_lost_lease_loses_no_session_that_nobody_wanted() {
    let (_, hands, a, b) = two(Kind::LibrarysMemory);
    a.sleep(1, 1).unwrap();
    a.wake(1).unwrap();
    b.beat();
    hands.pass(40);
    b.beat();
    assert_eq!(a.beat(), Beat::Lost);
    a.sleep(1, 2).unwrap();
    assert_eq!(b.wake(1).unwrap(), 2);
}

/// A server that lost its lease has the sessions again that nobody took over, at once and under its new lease.
#[test]
fn a_server_takes_its_sessions_again_that_nobody_took_over() {
    for kind in KINDS {
        let (_, hands, a, b) = two(kind);
        let ids = [1, 2].map(|number| {
            a.sleep(number, 1).unwrap();
            a.wake_as(number).unwrap().1
        });
        b.beat();
        hands.pass(40);
        assert_eq!(b.wake(2).unwrap(), 1);
        assert_eq!(a.beat(), Beat::Lost);
        assert_eq!(ids.map(|id| a.states.standing(id)), [Standing::Lost; 2]);
        let id = a.ann.take_again(session(1), ids[0]).unwrap();
        assert_eq!(a.states.standing(id), Standing::Held);
        b.can_change_nothing(1);
        let taken = a.ann.take_again(session(2), ids[1]);
        assert!(matches!(taken, Err(StateError::Taken)), "{taken:?}");
        // Not even if the other server has given it back: its state is a newer one.
        b.sleep(2, 2).unwrap();
        let taken = a.ann.take_again(session(2), ids[1]);
        assert!(matches!(taken, Err(StateError::Taken)), "{taken:?}");
        a.sleep(1, 2).unwrap();
        assert_eq!((b.wake(1).unwrap(), a.wake(2).unwrap()), (2, 2));
    }
}

/// The first write of a session whose answer was lost may have happened, and another server may have had the session since.
#[test]
fn a_session_whose_first_write_was_not_confirmed_is_taken_again_unless_another_server_had_it() {
    let (_, hands, a, b) = two(Kind::LibrarysMemory);
    let under = a.ann.server();
    a.sleep(1, 1).unwrap(); // nobody here marks it, as if nobody knew
    a.sleep(2, 1).unwrap();
    b.beat();
    hands.pass(40);
    b.beat();
    assert_eq!(b.wake(2).unwrap(), 1);
    b.sleep(2, 2).unwrap();
    assert_eq!(a.beat(), Beat::Lost);
    assert_ne!(a.ann.server(), under);
    let again = [1, 2, 3].map(|number| a.ann.take_again(session(number), under));
    assert!(
        matches!(again, [Ok(_), Err(StateError::Taken), Ok(_)]),
        "the third was never written: {again:?}"
    );
    b.can_change_nothing(1);
}

#[test]
fn a_server_that_ends_leaves_its_sessions_at_once() {
    for kind in KINDS {
        let (store, _, a, b) = two(kind);
        a.sleep(1, 1).unwrap();
        a.wake(1).unwrap();
        a.states.end().unwrap();
        assert_eq!(b.wake(1).unwrap(), 1);
        assert_eq!(store.list(Place::Leases).unwrap().len(), 1, "its lease is gone");
    }
}

#[test]
fn of_servers_that_wake_a_session_at_once_one_has_it() {
    for kind in KINDS {
        let (_, _, a, b) = two(kind);
        for number in 0..8 {
            a.sleep(number, 1).unwrap();
            let woken = std::thread::scope(|scope| {
                let both = [&a, &b].map(|server| scope.spawn(move || server.wake(number)));
                both.map(|woken| woken.join().unwrap())
            });
            let [winner, loser] = if woken[0].is_ok() { [&a, &b] } else { [&b, &a] };
            assert_eq!(woken.iter().filter(|woken| woken.is_ok()).count(), 1, "{woken:?}");
            loser.can_change_nothing(number);
            winner.sleep(number, 2).unwrap();
        }
    }
}

#[test]
fn a_removed_session_comes_back_at_no_server() {
    for kind in KINDS {
        let (_, _, a, b) = two(kind);
        a.sleep(1, 1).unwrap();
        let seen = b.ann.take_up(session(1), MOST).unwrap();
        assert!(seen.is_some());
        a.ann.remove(session(1)).unwrap();
        assert!(matches!(b.ann.mark_awake(session(1)), Err(StateError::Taken)));
        assert!(b.ann.take_up(session(1), MOST).unwrap().is_none());
        assert!(a.ann.sessions().unwrap().is_empty());
        b.ann.remove(session(1)).unwrap();
        // One that was used meanwhile stays.
        a.sleep(2, 1).unwrap();
        let used_ms = a.ann.head(session(2)).unwrap().unwrap().last_used_ms();
        assert!(matches!(
            b.ann.remove_unused(session(2), used_ms - 1),
            Err(StateError::Taken)
        ));
        b.ann.remove_unused(session(2), used_ms).unwrap();
        assert!(a.ann.head(session(2)).unwrap().is_none());
    }
}

#[test]
fn each_server_collects_its_own_objects_and_those_of_dead_ones() {
    for kind in KINDS {
        let (store, hands, a, b) = two(kind);
        let tenant = a.ann.id();
        let objects = || store.list(Place::Objects(tenant)).unwrap().len();
        a.sleep(1, 1).unwrap();
        a.sleep(1, 2).unwrap(); // leaves the first variables and their manifest behind
        assert_eq!(objects(), 5);
        assert_eq!(
            b.ann.collect(Duration::ZERO).unwrap().removed,
            0,
            "the other one may need them"
        );
        assert_eq!(a.ann.collect(Duration::from_secs(3600)).unwrap().too_young, 2);
        assert_eq!(a.ann.collect(Duration::ZERO).unwrap().removed, 2);
        // The second server writes objects of its own. Those of the first are needed no more.
        b.wake(1).unwrap();
        assert_eq!(
            a.ann.collect(Duration::ZERO).unwrap().removed,
            0,
            "the session still has them"
        );
        b.sleep(1, 3).unwrap();
        assert_eq!(objects(), 6);
        b.beat();
        hands.pass(40);
        assert_eq!(b.ann.collect(Duration::ZERO).unwrap().removed, 3);
        assert_eq!((b.execution(1), objects()), (3, 3));
    }
}

/// A store that puts whatever the condition is, as some services do.
#[derive(Debug, Default)]
struct Careless(MemoryStore);

impl Store for Careless {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.0.read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], _seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        self.0.write(name, bytes)?;
        Ok(self.0.read_version(name, MOST)?.map(|(_, version)| version))
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
fn a_store_that_ignores_conditions_is_refused() {
    let store = Arc::new(Careless::default());
    let refused = States::shared(store, key(), LASTS, Clock::default(), None)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("ignores the conditions"), "{refused}");
}

/// A store whose answers to swaps are lost while it is told to.
#[derive(Debug)]
struct Forgetful(Arc<dyn Store>, AtomicBool);

impl Store for Forgetful {
    fn read_version(&self, name: &Name, most: u64) -> Result<Option<(Vec<u8>, Version)>, StateError> {
        self.0.read_version(name, most)
    }

    fn swap(&self, name: &Name, bytes: &[u8], seen: Option<&Version>) -> Result<Option<Version>, StateError> {
        let swapped = self.0.swap(name, bytes, seen)?;
        match self.1.swap(false, Ordering::Relaxed) {
            true => Err(StateError::io("the answer is lost", std::io::ErrorKind::TimedOut)),
            false => Ok(swapped),
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

/// A name that was removed may be used again at once. So its ref is removed only by the server that wrote there that the session is gone.
#[test]
fn a_collection_leaves_what_another_server_is_about_to_remove() {
    let forgetful = Arc::new(Forgetful(Kind::LibrarysMemory.store(), AtomicBool::new(false)));
    let (store, hands) = (Arc::clone(&forgetful) as Arc<dyn Store>, Hands::default());
    let [a, b] = [(), ()].map(|()| Server::new(&store, &hands));
    let refs = || store.list(Place::Refs(a.ann.id())).unwrap().len();
    let begin_removal = |number| {
        a.sleep(number, 1).unwrap();
        forgetful.1.store(true, Ordering::Relaxed);
        assert!(a.ann.remove(session(number)).is_err());
        assert_eq!(refs(), 1, "which says that it is gone");
    };
    begin_removal(1);
    b.ann.collect(Duration::ZERO).unwrap();
    assert_eq!(refs(), 1);
    a.ann.collect(Duration::ZERO).unwrap();
    assert_eq!(refs(), 0);
    begin_removal(2);
    b.beat();
    hands.pass(40);
    b.ann.collect(Duration::from_secs(3600)).unwrap();
    assert_eq!(refs(), 1, "it may be slow");
    b.ann.collect(Duration::ZERO).unwrap();
    assert_eq!(refs(), 0);
}

#[test]
fn a_name_can_be_used_again_after_another_server_took_it_over_and_removed_it() {
    for kind in KINDS {
        let (_, hands, a, b) = two(kind);
        a.sleep(1, 1).unwrap();
        a.ann.take_up(session(1), MOST).unwrap().unwrap();
        a.ann.hold(session(1)).unwrap();
        b.beat();
        hands.pass(40);
        assert_eq!(b.wake(1).unwrap(), 1);
        b.ann.remove(session(1)).unwrap();
        assert_eq!((a.beat(), a.beat()), (Beat::Lost, Beat::Renewed));
        a.ann.release(session(1)).unwrap();
        a.sleep(1, 7).unwrap();
        assert_eq!(b.wake(1).unwrap(), 7);
    }
}

/// The epoch tells a server's own late write from another server's.
#[test]
fn a_server_whose_answer_was_lost_goes_on() {
    let forgetful = Arc::new(Forgetful(Kind::LibrarysMemory.store(), AtomicBool::new(false)));
    let (store, hands) = (Arc::clone(&forgetful) as Arc<dyn Store>, Hands::default());
    let [a, b] = [(), ()].map(|()| Server::new(&store, &hands));
    let lose = || forgetful.1.store(true, Ordering::Relaxed);
    lose();
    assert!(a.sleep(1, 1).is_err());
    a.ann.mark_awake(session(1)).unwrap(); // as the server does, since the session goes on
    b.can_change_nothing(1);
    lose();
    assert!(a.sleep(1, 2).is_err());
    a.ann.mark_awake(session(1)).unwrap();
    a.sleep(1, 3).unwrap();
    assert_eq!(b.wake(1).unwrap(), 3);
    lose();
    assert!(b.states.renew().is_err());
    assert_eq!(b.beat(), Beat::Renewed);
    a.can_change_nothing(1);
}

/// A collection in between removes the objects of the state before it.
#[test]
fn a_note_at_a_state_whose_answer_was_lost_keeps_that_state() {
    let forgetful = Arc::new(Forgetful(Kind::LibrarysMemory.store(), AtomicBool::new(false)));
    let (store, hands) = (Arc::clone(&forgetful) as Arc<dyn Store>, Hands::default());
    let [a, b] = [(), ()].map(|()| Server::new(&store, &hands));
    a.sleep(1, 1).unwrap();
    a.wake(1).unwrap();
    forgetful.1.store(true, Ordering::Relaxed);
    assert!(a.sleep(1, 2).is_err());
    assert!(a.ann.collect(Duration::ZERO).unwrap().removed > 0);
    a.ann.mark_awake(session(1)).unwrap();
    assert_eq!(a.ann.read(session(1), MOST).unwrap(), Some(state(2)));
    a.ann.mark_left(session(1)).unwrap();
    assert_eq!(b.wake(1).unwrap(), 2);
}

#[test]
fn a_collection_ends_when_it_is_told_to() {
    let (_, _, a, _) = two(Kind::LibrarysMemory);
    a.sleep(1, 1).unwrap();
    a.sleep(1, 2).unwrap();
    assert_eq!(a.ann.collect_while(Duration::ZERO, || false).unwrap().removed, 0);
    assert!(a.ann.collect(Duration::ZERO).unwrap().removed > 0);
}

/// Samples of cuts, of changed bits and of exchanged texts. Whatever the bucket has, no other state comes out of it.
#[test]
fn hostile_content_is_refused_as_in_a_folder() {
    for kind in KINDS {
        let (store, _, a, b) = two(kind);
        a.sleep(1, 1).unwrap();
        a.sleep(2, 2).unwrap();
        b.sleep(3, 3).unwrap();
        let tenant = a.ann.id();
        let mut names: Vec<_> = [Place::Refs(tenant), Place::Objects(tenant)]
            .into_iter()
            .flat_map(|place| store.list(place).unwrap())
            .map(|listed| listed.name)
            .collect();
        names.sort();
        let whole: Vec<_> = store
            .read_all(&names, MOST)
            .into_iter()
            .map(|read| read.unwrap().unwrap())
            .collect();
        let expect_refusal = |what: &str| {
            let refused = (1..=3).filter(|number| match a.ann.read(session(*number), MOST) {
                Ok(read) => {
                    assert_eq!(read, Some(state(u32::from(*number))), "{what}");
                    false
                }
                Err(error) => {
                    assert!(error.is_damage(), "{what}: {error}");
                    true
                }
            });
            assert!(refused.count() > 0, "nobody noticed: {what}");
        };
        for (place, (name, bytes)) in names.iter().zip(&whole).enumerate() {
            let put = |bytes: &[u8]| store.write(name, bytes).unwrap();
            // Each sample over HTTP is a dozen requests.
            let (cuts, bits) = if matches!(kind, Kind::S3 | Kind::Nats) {
                (1, 2)
            } else {
                (6, 12)
            };
            for length in [bytes.len() - 1, 0, 1, 19, 40, bytes.len() / 2].into_iter().take(cuts) {
                put(&bytes[..length.min(bytes.len() - 1)]);
                expect_refusal(&format!("{name} cut to {length}"));
            }
            for bit in (0..bytes.len() * 8).step_by(bytes.len() * 8 / bits) {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                put(&changed);
                expect_refusal(&format!("bit {bit} of {name}"));
            }
            put(&whole[(place + 1) % whole.len()]);
            expect_refusal(&format!("the next one in the place of {name}"));
            put(bytes);
        }
        for number in 1..=3 {
            assert_eq!(b.execution(number), u32::from(number));
        }
    }
}

/// The ids of sessions tell where they were made, before anything of them is stored.
#[test]
fn a_server_that_tells_its_address_is_found() {
    for kind in [Kind::Memory, Kind::Nats] {
        let (store, hands) = (kind.store(), Hands::default());
        let at = |url: &str| {
            let states = States::shared(Arc::clone(&store), key(), LASTS, hands.clock(), Some(url.to_owned())).unwrap();
            let ann = states.tenant("ann").unwrap();
            Server { states, ann }
        };
        let [a, b] = ["http://a", "http://b"].map(at);
        let found = |from: &Server, session| {
            let living = from.ann.elsewhere(session).unwrap();
            living.map(|living| living.address.unwrap())
        };
        let id = |server: &Server| SessionId::random(server.states.home()).unwrap();
        let (of_a, of_b) = (id(&a), id(&b));
        assert_eq!(found(&b, of_a), Some("http://a".to_owned()));
        assert_eq!(found(&a, of_b), Some("http://b".to_owned()));
        assert_eq!((found(&a, of_a), found(&a, session(1))), (None, None));
        // A stored session is at the server that has it, wherever it was made.
        a.ann.write(of_a, &state(1)).unwrap();
        assert_eq!(found(&b, of_a), None, "any server may have it");
        b.ann.take_up(of_a, MOST).unwrap().unwrap();
        let b_id = b.ann.mark_awake(of_a).unwrap();
        assert_eq!(found(&a, of_a), Some("http://b".to_owned()));
        assert!(a.states.seems_to_live(b_id));
        // A lease that was lost is followed by another one with the same home. What was stored is free.
        a.beat();
        hands.pass(40);
        a.beat();
        assert_eq!(found(&a, of_a), None);
        assert!(!a.states.seems_to_live(b_id));
        assert_eq!(b.beat(), Beat::Lost);
        assert_eq!(found(&a, of_b), Some("http://b".to_owned()));
        b.states.end().unwrap();
        assert_eq!(found(&a, of_b), None);
        a.ann.remove(of_a).unwrap();
        assert_eq!(
            found(&b, of_a),
            Some("http://a".to_owned()),
            "which says that it is gone"
        );
    }
}

/// Whoever writes to the bucket can end a lease, but not live longer, and cannot make one.
#[test]
fn a_forged_lease_keeps_no_session() {
    let (store, hands, a, b) = two(Kind::LibrarysMemory);
    a.sleep(1, 1).unwrap();
    a.wake(1).unwrap();
    let leases: Vec<_> = store.list(Place::Leases).unwrap();
    for lease in &leases {
        store.write(&lease.name, b"forged").unwrap();
    }
    assert_eq!(b.beat(), Beat::Lost);
    b.beat();
    hands.pass(40);
    assert_eq!(b.wake(1).unwrap(), 1);
    a.can_change_nothing(1);
}
