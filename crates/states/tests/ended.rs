//! Executions that can run again: their journals, and the states before them, stay with the state after them.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandglass_states::{MasterKey, MemoryStore, MostEnded, Name, Place, Ran, Saved, SessionId, States, Store, Tenant};
use serde_json::Value;

const MOST: u64 = 1 << 30;
const PLENTY: MostEnded = MostEnded {
    executions: 32,
    journal_bytes: 1 << 30,
    state_bytes: 1 << 30,
};

fn session() -> SessionId {
    "01".repeat(16).parse().unwrap()
}

fn begin() -> (Arc<MemoryStore>, Tenant) {
    let store = Arc::new(MemoryStore::default());
    let key = MasterKey::parse(&"5a".repeat(32)).unwrap();
    let states = States::new(Arc::clone(&store) as Arc<dyn Store>, key).unwrap();
    let ann = states.tenant("ann").unwrap();
    ann.write(session(), &state(0)).unwrap();
    (store, ann)
}

/// The state after an execution, of 1000 bytes that no other state has and 1 MB that all have.
fn state(execution: u32) -> Saved {
    Saved {
        execution,
        state: execution.to_le_bytes().repeat(250).into(),
        bodies: vec![noise(1 << 20).into()],
        ..Saved::default()
    }
}

/// Bytes that look random, always the same ones.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..bytes).map(|_| next()).collect()
}

fn journal(execution: u32) -> Vec<u8> {
    format!("the journal of {execution}").into_bytes()
}

fn ran(execution: u32) -> Ran {
    Ran {
        execution,
        journal: Ok(journal(execution)),
    }
}

fn runs(ann: &Tenant, executions: std::ops::RangeInclusive<u32>, most: &MostEnded) {
    for execution in executions {
        ann.write_after(
            session(),
            &state(execution),
            (Value::Null, Some(&ran(execution))),
            most,
            |_| true,
        )
        .unwrap();
    }
}

/// The reason for which an execution cannot run again. Checks the state and the journal of one that can.
fn why_not(ann: &Tenant, execution: u32) -> Option<String> {
    match ann.rerun(session(), execution, MOST).unwrap() {
        Ok(rerun) => {
            assert_eq!(rerun.state, state(execution - 1));
            assert_eq!(rerun.journal, journal(execution));
            None
        }
        Err(why) => Some(why),
    }
}

fn can_run_again(ann: &Tenant) -> Vec<u32> {
    (1..50).filter(|execution| why_not(ann, *execution).is_none()).collect()
}

#[test]
fn an_ended_execution_has_its_journal_and_the_state_before_it() {
    let (_, ann) = begin();
    runs(&ann, 1..=2, &PLENTY);
    // A state that no execution has left, and one without a journal.
    ann.write_after(session(), &state(2), (Value::Null, None), &PLENTY, |_| true)
        .unwrap();
    let stopped = Ran {
        execution: 3,
        journal: Err("it was stopped".to_owned()),
    };
    ann.write_after(session(), &state(3), (Value::Null, Some(&stopped)), &PLENTY, |_| true)
        .unwrap();
    runs(&ann, 4..=4, &PLENTY);
    assert_eq!(can_run_again(&ann), [1, 2, 4]);
    runs(&ann, 4..=4, &PLENTY); // once more, because nobody heard of the first write
    assert_eq!(can_run_again(&ann), [1, 2, 4]);
    assert_eq!(why_not(&ann, 3).unwrap(), "it was stopped");
    assert_eq!(why_not(&ann, 5).unwrap(), "there is no journal of it");
    assert_eq!(ann.read(session(), MOST).unwrap(), Some(state(4)));
    ann.write(session(), &state(5)).unwrap();
    assert_eq!(can_run_again(&ann), [0; 0], "a plain state has none");
}

#[test]
fn the_oldest_ones_make_room() {
    let (_, ann) = begin();
    runs(&ann, 1..=4, &PLENTY);
    let mut asked = Vec::new();
    let room = |bytes| {
        asked.push(bytes);
        asked.len() == 3
    };
    let written = ann.write_after(session(), &state(5), (Value::Null, Some(&ran(5))), &PLENTY, room);
    let ended_bytes = written.unwrap().ended_bytes;
    assert_eq!(can_run_again(&ann), [3, 4, 5]);
    assert_eq!((asked.len(), asked[2]), (3, ended_bytes));
    assert!(
        asked[0] > asked[1] && asked[1] > asked[2] && asked[2] > 1 << 20,
        "{asked:?}"
    );
    assert_eq!(ann.head(session()).unwrap().unwrap().ended_bytes, ended_bytes);
    let none = ann.write_after(session(), &state(6), (Value::Null, Some(&ran(6))), &PLENTY, |_| false);
    assert_eq!((none.unwrap().ended_bytes, can_run_again(&ann).len()), (0, 0));
}

#[test]
fn the_newest_ones_stay_within_the_bounds() {
    let (_, ann) = begin();
    let three = MostEnded {
        executions: 3,
        ..PLENTY
    };
    runs(&ann, 1..=8, &three);
    assert_eq!(can_run_again(&ann), [6, 7, 8]);

    let (_, ann) = begin();
    let bytes = journal(1).len() as u64;
    let journals = MostEnded {
        journal_bytes: 2 * bytes,
        ..PLENTY
    };
    runs(&ann, 1..=5, &journals);
    assert_eq!(can_run_again(&ann), [4, 5]);
    let why = "there is no room for its journal and for the state before it";
    assert_eq!(why_not(&ann, 3).unwrap(), why);

    // The large piece that all states share counts once.
    let (_, ann) = begin();
    let states = MostEnded {
        state_bytes: (1 << 20) + 4500,
        ..PLENTY
    };
    runs(&ann, 1..=8, &states);
    assert_eq!(can_run_again(&ann), [5, 6, 7, 8]);
    assert_eq!(why_not(&ann, 4).unwrap(), why);
    let none = MostEnded {
        state_bytes: 0,
        ..PLENTY
    };
    runs(&ann, 9..=9, &none);
    assert_eq!(can_run_again(&ann), [0; 0]);
}

#[test]
fn a_collection_spares_what_they_need_and_nothing_else() {
    let (store, ann) = begin();
    let two = MostEnded {
        executions: 2,
        ..PLENTY
    };
    runs(&ann, 1..=6, &two);
    assert!(ann.collect(Duration::ZERO).unwrap().removed > 0);
    assert_eq!(can_run_again(&ann), [5, 6]);
    // The piece or pieces that all states share; and of three states the variables and the manifest, with two journals.
    let listed = store.list(Place::Objects(ann.id())).unwrap().len();
    assert!((9..=12).contains(&listed), "{listed}");
    assert_eq!(ann.collect(Duration::ZERO).unwrap().removed, 0);
    ann.remove(session()).unwrap();
    ann.collect(Duration::ZERO).unwrap();
    assert!(store.list(Place::Objects(ann.id())).unwrap().is_empty());
}

#[test]
fn damage_costs_only_the_executions_that_need_what_is_damaged() {
    let (store, ann) = begin();
    let objects = || -> BTreeSet<Name> {
        let listed = store.list(Place::Objects(ann.id())).unwrap();
        listed.into_iter().map(|listed| listed.name).collect()
    };
    for execution in 1..=3 {
        let before = objects();
        runs(&ann, execution..=execution, &PLENTY);
        if execution == 2 {
            // The journal of the second execution, and the state after it, which is the one before the third.
            for name in objects().difference(&before) {
                store.write(name, b"damage").unwrap();
            }
        }
    }
    // The state after the second execution was damaged when the third one ended, with all that it knew of earlier ones.
    assert_eq!(can_run_again(&ann), [0; 0]);
    let why = why_not(&ann, 3).unwrap();
    assert!(why.starts_with("the state before it could not be read"), "{why}");
    runs(&ann, 4..=4, &PLENTY);
    assert_eq!(can_run_again(&ann), [4]);
    assert!(ann.collect(Duration::ZERO).is_ok());
    assert_eq!(can_run_again(&ann), [4]);
}

#[test]
fn a_damaged_journal_or_state_is_told_and_stops_no_collection() {
    let (store, ann) = begin();
    let objects = || -> BTreeSet<Name> {
        let listed = store.list(Place::Objects(ann.id())).unwrap();
        listed.into_iter().map(|listed| listed.name).collect()
    };
    let before = objects();
    runs(&ann, 1..=1, &PLENTY);
    let of_first: Vec<_> = objects().difference(&before).copied().collect();
    runs(&ann, 2..=2, &PLENTY);
    assert_eq!(can_run_again(&ann), [1, 2]);
    for name in &of_first {
        store.write(name, b"damage").unwrap();
    }
    let whys = [1, 2].map(|execution| why_not(&ann, execution).unwrap());
    assert!(whys[0].starts_with("its journal cannot be read: "), "{whys:?}");
    assert!(whys[1].starts_with("the state before it cannot be read: "), "{whys:?}");
    ann.collect(Duration::ZERO).unwrap();
    assert_eq!(ann.read(session(), MOST).unwrap(), Some(state(2)));
}
