//! Undo after any execution, where guests mark executions that they can repeat. The guest here has a state that can be compared: the list
//! of all that was done to it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sandglass_core::Error;
use sandglass_core::execution::StateStatus;
use sandglass_core::limits::Limits;
use sandglass_core::protocol::{Encoding, Event, ExecutionReport, Request, Step};
use sandglass_core::session::{Command, Reply, Session, StateCommand};

use crate::world::{World, assign, guest_lost, guest_says, limits, list, ok};

/// A state: the codes that ran and the variables that were set, in order. The context is in every state.
type State = Vec<String>;

/// A session, and a guest that does as ours would.
struct Bench {
    world: World,
    state: State,
    saved: BTreeMap<u32, State>,
    /// The steps of the last restore.
    repeated: Vec<Step>,
    /// True if steps have another outcome when they are repeated.
    diverges: bool,
    executions: u32,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits {
            checkpoints: true,
            ..limits()
        };
        let session = Session::new(limits.clone(), Vec::new()).with_repeats();
        Self {
            world: World::with(limits, session).begun(),
            state: Vec::new(),
            saved: BTreeMap::new(),
            repeated: Vec::new(),
            diverges: false,
            executions: 0,
        }
    }

    /// Does all that the guest is asked for, but does not end executions. Returns true if there is one under way.
    fn works(&mut self) -> bool {
        loop {
            let Some(guest) = &self.world.guest else { return false };
            if !guest.ready {
                self.state.clear();
                self.world.boot();
            } else if let Some(exchange) = guest.exchange {
                let asked = guest.inbox.iter().rev().map(|(request, _)| request);
                let mut asked = asked.filter(|request| !matches!(request, Request::Interrupt { .. }));
                match asked.next().cloned() {
                    Some(Request::Execute { .. }) => return true,
                    Some(Request::Restore { checkpoint, steps, .. }) => self.restores(exchange, checkpoint, steps),
                    Some(Request::SetVariable { name, .. }) => {
                        if name != "context" {
                            self.state.push(format!("set {name}"));
                        }
                        self.world.done();
                    }
                    Some(_) => {
                        let event = Event::Value {
                            exchange,
                            encoding: Encoding::Text,
                        };
                        self.world.event_with(event, b"value");
                    }
                    None => return false,
                }
            } else if let Some((checkpoint, _)) = guest.saving {
                self.saved.insert(checkpoint, self.state.clone());
                assert!(self.world.saves_but(&[], false));
            } else {
                return false;
            }
        }
    }

    fn restores(&mut self, exchange: u32, checkpoint: u32, steps: Vec<Step>) {
        if self.diverges && !steps.is_empty() {
            let message = "another outcome".to_owned();
            return self.world.event(Event::Fatal { message });
        }
        self.state = self.saved[&checkpoint].clone();
        for Step { execution, code, mark } in &steps {
            assert_eq!(code, &format!("pure {execution}"));
            assert_eq!(*mark, 7 * execution, "not that execution's mark");
            self.state.push(code.clone());
        }
        let names = (!steps.is_empty()).then(|| vec!["context".to_owned(), "x".to_owned()]);
        self.repeated = steps;
        self.world.event(Event::Restored {
            exchange,
            lost: Vec::new(),
            names,
        });
    }

    /// Runs code to its end. `is_pure`: the guest can repeat it.
    fn runs(&mut self, is_pure: bool) {
        self.executions += 1;
        let id = self.executions;
        let code = format!("{} {id}", if is_pure { "pure" } else { "impure" });
        let ticket = self.world.execute(&code);
        assert!(self.works(), "it waits for more than a save");
        self.state.push(code);
        self.world.ends(ExecutionReport {
            mark: is_pure.then_some(7 * id),
            ..ok()
        });
        assert_eq!(self.world.execution(ticket).id, id);
    }

    /// Time passes, and the guest does what it is asked for.
    fn rests(&mut self, ms: f64) {
        self.world.wait(ms);
        self.works();
    }

    fn undoes(&mut self) -> Result<u32, Error> {
        let undo = self.world.command(Command::State(StateCommand::Undo));
        self.works();
        match self.world.answer(undo) {
            Ok(Reply::State(execution)) => Ok(*execution),
            Err(error) => Err(error.clone()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn five_executions_in_a_row_are_undone_one_by_one() {
    let mut bench = Bench::new();
    let mut states = Vec::new();
    for _ in 0..5 {
        states.push(bench.state.clone());
        bench.runs(true);
    }
    for execution in (0..5).rev() {
        assert_eq!(bench.undoes(), Ok(execution));
        assert_eq!(bench.state, states.pop().expect("five"));
    }
    assert_eq!(bench.undoes().map_err(|error| error.code()), Err("no_checkpoint"));
}

#[test]
fn executions_that_can_be_repeated_wait_for_one_save_only() {
    let mut bench = Bench::new();
    for _ in 0..20 {
        bench.runs(true);
    }
    assert_eq!(bench.saved.len(), 1, "a fresh guest cannot repeat anything");
    bench.runs(false);
    assert_eq!(bench.saved.len(), 1, "nobody knew before that it cannot be repeated");
    bench.runs(true);
    assert_eq!(bench.saved.len(), 2);
    assert_eq!(bench.undoes(), Ok(21));
    assert_eq!(bench.repeated, [], "the save held exactly that state");
}

#[test]
fn a_guest_that_marks_nothing_is_saved_before_each_execution() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.runs(false);
    }
    assert_eq!(bench.saved.len(), 2);
    assert_eq!(bench.undoes(), Ok(2));
}

#[test]
fn what_nobody_could_repeat_is_saved_after_a_moment() {
    let mut bench = Bench::new();
    bench.runs(true);
    bench.rests(2.0);
    assert!(bench.saved.is_empty(), "calls that follow at once are not held up");
    bench.rests(1.5);
    assert_eq!(bench.saved.len(), 1, "a fresh guest cannot repeat anything");
    bench.runs(true);
    bench.rests(45.0);
    assert_eq!(bench.saved.len(), 1, "it can be repeated, so there is time");
    bench.rests(10.0);
    assert_eq!(bench.saved.len(), 2);
    bench.world.get("x");
    bench.works();
    bench.rests(60.0);
    assert_eq!(bench.saved.len(), 2, "the last checkpoint is good enough");
}

#[test]
fn nobody_waits_for_saves_again_after_a_guest_died_of_one() {
    let mut bench = Bench::new();
    bench.runs(false);
    bench.rests(10.0);
    bench.runs(false);
    bench.executions += 1;
    let waits = bench.world.execute("next");
    assert!(bench.world.guest.as_ref().is_some_and(|guest| guest.saving.is_some()));
    bench
        .world
        .feed(guest_lost(Error::GuestLost("memory was full".to_owned())));
    assert!(bench.works());
    bench.world.ends(ok());
    let state = &bench.world.execution(waits).state;
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
    bench.runs(false);
    bench.runs(false);
    assert_eq!(bench.saved.len(), 1);
}

#[test]
fn going_back_again_and_again_tells_all_that_the_page_had_set() {
    let mut bench = Bench::new();
    for name in ["a", "b", "c"] {
        bench.runs(true);
        bench.world.command(assign(name, "value"));
        bench.works();
    }
    for execution in (0..3).rev() {
        assert_eq!(bench.undoes(), Ok(execution));
    }
    let next = bench.world.execute("a, b, c");
    assert!(bench.works());
    bench.world.ends(ok());
    assert_eq!(bench.world.lost(next), ["c", "b", "a"], "that of each undo");
    assert_eq!(bench.world.execution(next).state.restored_to, Some(0));
}

#[test]
fn undo_that_comes_out_differently_leaves_the_state_as_it_was() {
    let mut bench = Bench::new();
    for _ in 0..4 {
        bench.runs(true);
    }
    let state = bench.state.clone();
    bench.diverges = true;
    let error = bench.undoes().expect_err("another state than that before");
    assert_eq!(error.code(), "no_checkpoint");
    assert!(error.to_string().contains("another outcome"), "{error}");
    assert_eq!(bench.state, state);
    let next = bench.world.execute("x");
    assert!(bench.works());
    bench.world.ends(ok());
    assert_eq!(bench.world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn undo_after_a_crash_brings_all_back_that_ran_before_it() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.runs(true);
    }
    let state = bench.state.clone();
    bench.executions += 1;
    let crashed = bench.world.execute("while True: pass");
    assert!(bench.works());
    bench
        .world
        .feed(guest_lost(Error::GuestLost("exit status 139".to_owned())));
    bench.works();
    assert_eq!(
        bench.world.execution(crashed).state.restored_to,
        Some(1),
        "it is said what a kill costs"
    );
    assert_eq!(bench.undoes(), Ok(3));
    assert_eq!(bench.state, state);
    assert_eq!(bench.undoes(), Ok(2));
}

#[test]
fn a_large_state_holds_no_execution_up() {
    let mut bench = Bench::new();
    bench.runs(false);
    let checkpoint = bench.world.command(Command::State(StateCommand::Checkpoint));
    let event = Event::Saved {
        checkpoint: 1,
        full: true,
        lost: Vec::new(),
        spent: false,
    };
    bench.world.feed(guest_says(event, Some(vec![0; 257 << 20])));
    assert_eq!(bench.world.answer(checkpoint), &Ok(Reply::State(1)));
    bench.runs(false);
    bench.runs(false);
    assert!(bench.saved.is_empty(), "an execution waited for a large save");
    assert_eq!(bench.undoes().map_err(|error| error.code()), Err("no_checkpoint"));
}

/// Something that a page does.
#[derive(Debug, Clone)]
enum Act {
    Runs { is_pure: bool },
    Crashes,
    Sets,
    Gets,
    Rests,
    Saves,
    Restores,
    Undoes,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => prop::bool::weighted(0.8).prop_map(|is_pure| Act::Runs { is_pure }),
        1 => Just(Act::Crashes),
        1 => Just(Act::Sets),
        1 => Just(Act::Gets),
        1 => Just(Act::Rests),
        1 => Just(Act::Saves),
        1 => Just(Act::Restores),
        4 => Just(Act::Undoes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn undo_brings_back_the_state_before_each_execution(acts in prop::collection::vec(act(), 0..60)) {
        let mut bench = Bench::new();
        // The state before each execution that was not undone. It is unknown after `restore`, and after a crash.
        let mut before: Vec<State> = Vec::new();
        for act in acts {
            match act {
                Act::Runs { is_pure } => {
                    before.push(bench.state.clone());
                    bench.runs(is_pure);
                }
                Act::Crashes => {
                    let state = bench.state.clone();
                    bench.executions += 1;
                    bench.world.execute("crash");
                    prop_assert!(bench.works());
                    bench.world.feed(guest_lost(Error::GuestLost("gone".to_owned())));
                    bench.works();
                    before = vec![state];
                    // Another crash right after the restore would give the state up.
                    bench.world.command(list());
                    bench.works();
                    if bench.undoes().is_ok() {
                        prop_assert_eq!(&bench.state, &before[0]);
                    } else {
                        prop_assert!(bench.saved.is_empty(), "only a state that was never saved is lost");
                    }
                    before.clear();
                }
                Act::Sets => {
                    bench.world.command(assign("x", "value"));
                    bench.works();
                }
                Act::Gets => {
                    bench.world.get("x");
                    bench.works();
                }
                Act::Rests => {
                    bench.rests(60.0);
                }
                Act::Saves => {
                    bench.world.command(Command::State(StateCommand::Checkpoint));
                    bench.works();
                }
                Act::Restores => {
                    let restore = bench.world.command(Command::State(StateCommand::Restore(None)));
                    bench.works();
                    if bench.world.answer(restore).is_ok() {
                        let newest = bench.saved.values().any(|state| *state == bench.state);
                        prop_assert!(newest, "{:?} was never saved", bench.state);
                        before.clear();
                    }
                }
                Act::Undoes => match (before.pop(), bench.undoes()) {
                    (Some(state), Ok(_)) => prop_assert_eq!(&bench.state, &state),
                    (Some(_), Err(error)) => prop_assert!(false, "{}", error),
                    (None, _) => {} // the state before is that of an earlier time, or there is none
                },
            }
        }
    }
}
