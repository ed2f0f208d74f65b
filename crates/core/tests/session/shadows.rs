//! Code that runs before anybody asks for it.

use proptest::prelude::*;
use sandglass_core::Error;
use sandglass_core::budget::{Budget, BudgetLimits};
use sandglass_core::deadline::StopReason;
use sandglass_core::execution::{CodeExecution, Outcome};
use sandglass_core::limits::Limits;
use sandglass_core::predictions::{Source, Tally};
use sandglass_core::protocol::{Encoding, Event, GuestInfo, PROTOCOL_VERSION, Request, Stream};
use sandglass_core::session::{Command, Execute, GuestInput, Input, Reply, Session, Slot, StateCommand, Ticket};

use crate::world::{World, assign, assign_context, get, limits, list, ok, output, raised};

/// A session whose guest has its context, and has saved it.
fn ready() -> World {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    assert!(world.saves(true), "idle, and not asked to save");
    world
}

/// The same, of a session that has so much time.
fn ready_within(max_time: f64) -> World {
    let limits = Limits {
        checkpoints: true,
        ..limits()
    };
    let session = Session::new(limits.clone(), Vec::new()).with_budget(Budget::new(
        BudgetLimits {
            max_time: Some(max_time),
            ..BudgetLimits::default()
        },
        1_000.0,
    ));
    World::with(limits, session).begun()
}

/// The same, where this code runs ahead.
fn running(code: &str) -> World {
    let mut world = ready();
    world.hint(&[code]);
    world.shadow_begins();
    world
}

/// The same, where it has come to its end.
fn finished(code: &str) -> World {
    let mut world = running(code);
    world.sleep(30.0);
    world.shadow_says(output(world.shadow_turn(), Stream::Stdout, "hello\n"), None);
    world.shadow_ends(named(&["context", "x"]));
    world
}

/// Events that a guest at this exchange sends, or what becomes of it.
type Lie = fn(u32) -> GuestInput<Vec<u8>>;

fn named(names: &[&str]) -> sandglass_core::protocol::ExecutionReport {
    sandglass_core::protocol::ExecutionReport {
        names: Some(names.iter().map(|&name| name.to_owned()).collect()),
        ..ok()
    }
}

fn tally(world: &World) -> Tally {
    let stats = world.session.stats();
    stats.ahead.code.get(&Source::Explicit).cloned().unwrap_or_default()
}

/// Nothing runs ahead, and the code is run as if nothing ever had.
fn assert_forced(world: &mut World, code: &str) {
    let ticket = world.execute(code);
    assert_eq!(world.asked_for(), format!("execute {code}"));
    assert!(world.shadow().is_none(), "it still runs ahead");
    world.ends(ok());
    assert_eq!(world.execution(ticket).stdout, "");
    assert_eq!(tally(world).used, 0);
}

#[test]
fn what_ran_ahead_is_what_the_code_comes_to() {
    let mut world = finished("x = 1; print('hello')");
    assert_eq!(
        (world.printed.as_str(), world.answers.len()),
        ("", 1),
        "nobody has been told"
    );
    world.wait(5_000.0);
    let boots = world.boots;
    let ticket = world.execute("x = 1; print('hello')");
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.id, execution.outcome, execution.stdout.as_str()),
        (1, Outcome::Ok, "hello\n")
    );
    assert_eq!(
        (execution.duration, execution.guest_time),
        (30.0, 30.0),
        "as long as it took"
    );
    assert_eq!((world.printed.as_str(), world.boots), ("hello\n", boots));
    let Tally {
        started,
        finished,
        used,
        wasted,
        time_saved,
        time_wasted,
    } = tally(&world);
    assert_eq!((started, finished, used, wasted), (1, 1, 1, 0));
    assert_eq!((time_saved, time_wasted), (30.0, 0.0));
    // The session goes on in that guest: its checkpoint stands for itself, and there is one to go back to.
    world.wait(50.0);
    let saving = world.guest.as_ref().and_then(|guest| guest.saving);
    assert_eq!(saving, Some((2, true)));
    assert!(world.saves(true));
    let ticket = world.command(Command::State(StateCommand::Undo));
    world.boot();
    assert_eq!(world.asked_for(), "restore 1");
    world.restored(&[]);
    assert_eq!(world.answer(ticket), &Ok(Reply::State(0)));
}

#[test]
fn a_fork_needs_no_checkpoint() {
    let limits = limits();
    let session = Session::new(limits.clone(), Vec::new()).with_forks();
    let mut world = World::with(limits, session).begun();
    let before = world.execute("y = 1");
    world.ends(named(&["context", "y"]));
    assert_eq!(world.execution(before).outcome, Outcome::Ok);
    world.hint(&["x = 1"]);
    world.shadow_says(
        Event::Ready {
            version: PROTOCOL_VERSION,
            guest: GuestInfo::default(),
        },
        None,
    );
    let asked = world.shadow().and_then(|guest| guest.inbox.last());
    assert!(
        matches!(
            asked,
            Some((
                Request::Execute {
                    ahead: true,
                    execution: 2,
                    ..
                },
                _
            ))
        ),
        "it has the state already: {asked:?}"
    );
    world.shadow_ends(named(&["context", "x", "y"]));
    let ticket = world.execute("x = 1");
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    assert_eq!(tally(&world).used, 1);
    // The next one is of that guest.
    world.hint(&["x = 2"]);
    assert_eq!(tally(&world).started, 2);
}

#[test]
fn other_code_runs_as_if_nothing_had() {
    let mut world = finished("x = 1");
    assert_forced(&mut world, "x = 2");
    assert_eq!(tally(&world).wasted, 1);
}

/// Lets code run ahead for so long, and other code come.
fn waste(world: &mut World, ms: f64) {
    world.hint(&["x = 1"]);
    world.shadow_begins();
    world.sleep(ms);
    world.shadow_ends(ok());
    world.wait(5_000.0); // while it is at rest, it costs nothing
    world.execute("y = 1");
    world.ends(ok());
    assert!(world.saves(true));
}

#[test]
fn no_more_than_a_share_of_the_time_is_spent_in_vain() {
    let mut world = ready();
    for _ in 0..3 {
        waste(&mut world, 900.0);
    }
    // Of about a minute and a quarter, with the credit of a minute, a twentieth is 3.7 s.
    let spent = tally(&world).time_wasted;
    assert!((2_700.0..2_750.0).contains(&spent), "{spent}");
    waste(&mut world, 900.0);
    waste(&mut world, 900.0);
    let Tally { started, wasted, .. } = tally(&world);
    assert_eq!((started, wasted), (5, 5));

    world.hint(&["x = 1"]);
    assert!(world.shadow().is_none(), "there is nothing left");
    world.writes("x = 1");
    assert!(world.shadow().is_some(), "what is written comes for certain");
    world.writes("");
    world.wait(20_000.0);
    world.hint(&["x = 1"]);
    assert!(world.shadow().is_some(), "the share is larger by now");
}

#[test]
fn what_is_used_is_not_spent_in_vain() {
    let mut world = ready();
    for _ in 0..10 {
        world.hint(&["x = 1"]);
        world.shadow_begins();
        world.sleep(900.0);
        world.shadow_ends(ok());
        world.execute("x = 1");
        assert!(world.saves(true));
    }
    assert_eq!((tally(&world).used, tally(&world).time_wasted), (10, 0.0));
}

#[test]
fn the_next_execution_has_another_number() {
    let mut world = finished("x = 1");
    let refused = world.execute(&"#".repeat(2_000));
    assert_eq!(world.execution(refused).outcome, Outcome::Limit);
    assert_forced(&mut world, "x = 1");
}

#[test]
fn whatever_may_change_the_state_ends_it() {
    let changes: [fn() -> Command<Vec<u8>>; 4] = [
        || assign("y", "1"),
        || assign_context("another"),
        || get("y"), // runs the user's code, perhaps
        || Command::Execute(Execute::of("y = 1")),
    ];
    for change in changes {
        for mut world in [running("x = 1"), finished("x = 1")] {
            world.command(change());
            assert!(world.shadow().is_none(), "{:?}", change());
        }
    }
    let mut world = finished("x = 1");
    world.command(list());
    assert!(world.shadow().is_some(), "a list changes nothing");
}

#[test]
fn going_back_ends_it() {
    let mut world = ready();
    world.execute("x = 1");
    world.ends_well(&["context", "x"]);
    assert!(world.saves(true));
    world.hint(&["x"]);
    world.shadow_begins();
    world.shadow_ends(ok());
    let ticket = world.command(Command::State(StateCommand::Undo));
    assert!(world.shadow().is_none());
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(ticket), &Ok(Reply::State(0)));
    assert_forced(&mut world, "x");
}

#[test]
fn what_only_the_world_can_tell_ends_it() {
    let mut world = running("import time; time.time()");
    let exchange = world.shadow_turn();
    world.shadow_says(Event::External { exchange }, None);
    assert_forced(&mut world, "import time; time.time()");
}

#[test]
fn an_exception_is_what_the_code_comes_to_but_for_want_of_memory() {
    let mut world = running("1 / 0");
    let exchange = world.shadow_turn();
    world.shadow_says(
        output(exchange, Stream::Error, "ZeroDivisionError: division by zero"),
        None,
    );
    world.shadow_ends(raised("ZeroDivisionError"));
    let ticket = world.execute("1 / 0");
    assert_eq!(world.failure(ticket), "ZeroDivisionError: division by zero");

    let mut world = running("big()");
    world.shadow_ends(raised("MemoryError"));
    assert_forced(&mut world, "big()");
}

#[test]
fn what_takes_too_long_is_ended() {
    let mut world = running("while True: pass");
    world.wait(1_000.0);
    assert_forced(&mut world, "while True: pass");

    let mut world = running("while True: pass");
    let stopped = sandglass_core::protocol::ExecutionReport {
        stopped: Some(StopReason::Timeout),
        ..raised("KeyboardInterrupt")
    };
    world.shadow_ends(stopped);
    assert_forced(&mut world, "while True: pass");
}

#[test]
fn what_dies_or_lies_is_thrown_away() {
    let inputs: [Lie; 5] = [
        |_| GuestInput::Lost(Error::GuestLost("exit".to_owned())),
        |_| GuestInput::BadMessage("nonsense".to_owned()),
        |exchange| GuestInput::Event(Event::Done { exchange }, None),
        |exchange| GuestInput::Event(output(exchange + 1, Stream::Stdout, "of another exchange"), None),
        |exchange| GuestInput::Event(output(exchange, Stream::Stdout, &"x".repeat(300_000)), None),
    ];
    for input in inputs {
        let mut world = running("x = 1");
        let exchange = world.shadow_turn();
        world.shadow_sends(input(exchange));
        assert_forced(&mut world, "x = 1");
        let mut world = finished("x = 1");
        world.shadow_sends(input(exchange));
        assert_forced(&mut world, "x = 1");
    }
}

#[test]
fn a_shadow_is_not_heard_in_the_place_of_another() {
    let mut world = ready();
    world.hint(&["x = 1"]);
    let gone = world.last_shadow();
    world.hint(&["x = 2"]);
    assert_ne!(gone, world.last_shadow());
    world.shadow_begins();
    world.shadow_ends(ok());
    let stale = [
        GuestInput::Lost(Error::GuestLost("exit".to_owned())),
        GuestInput::BadMessage("nonsense".to_owned()),
        GuestInput::Event(Event::External { exchange: 1 }, None),
    ];
    for input in stale {
        world.feed(Input::Guest(Slot::Shadow(gone), input));
    }
    let ticket = world.execute("x = 2");
    assert_eq!((world.execution(ticket).id, tally(&world).used), (1, 1));
}

#[test]
fn a_guest_that_does_not_come_up_is_no_loss() {
    let mut world = ready();
    world.hint(&["x = 1"]);
    world.shadow_sends(GuestInput::Lost(Error::GuestLost("none".to_owned())));
    assert_forced(&mut world, "x = 1");
}

#[test]
fn nobody_waits_for_a_guest_that_has_not_begun() {
    let mut world = ready();
    world.hint(&["x = 1"]);
    world.execute("x = 1");
    assert_eq!(world.asked_for(), "execute x = 1");
    assert!(world.shadow().is_none());
}

#[test]
fn a_host_call_waits_for_its_code() {
    let mut world = running("ask('?')");
    let (exchange, call) = (world.shadow_turn(), world.fresh_call());
    let event = Event::HostCall {
        exchange,
        call,
        batch: 1,
        name: "ask".to_owned(),
        encoding: Encoding::Marshal,
        blocking: false,
    };
    world.shadow_says(event, Some(b"args"));
    world.wait(10_000.0);
    assert_eq!(
        (world.under_way().len(), tally(&world).finished),
        (0, 1),
        "nobody was called"
    );
    let ticket = world.execute("ask('?')");
    let calls = world.under_way();
    assert_eq!(calls.len(), 1);
    world.wait(4_000.0); // of the 5 s that a call may take
    world.returns(calls[0], "!");
    assert!(world.reply(call).is_some());
    world.ends(ok());
    assert_eq!(
        (world.execution(ticket).host_calls, world.execution(ticket).outcome),
        (1, Outcome::Ok)
    );
}

#[test]
fn a_host_call_for_other_code_is_never_made() {
    let mut world = running("ask('?')");
    let (exchange, call) = (world.shadow_turn(), world.fresh_call());
    let event = Event::HostCall {
        exchange,
        call,
        batch: 1,
        name: "ask".to_owned(),
        encoding: Encoding::Marshal,
        blocking: false,
    };
    world.shadow_says(event, Some(b"args"));
    world.execute("something else");
    assert!(world.shadow().is_none() && world.under_way().is_empty());
    assert_eq!(world.asked_for(), "execute something else");
}

#[test]
fn code_that_comes_while_it_runs_ahead_goes_on_there() {
    let mut world = running("work()");
    let exchange = world.shadow_turn();
    world.sleep(400.0);
    world.shadow_says(output(exchange, Stream::Stdout, "half\n"), None);
    let ticket = world.execute("work()");
    assert!(
        world.is_pending(ticket) && world.printed.is_empty(),
        "it is asked first"
    );
    world.shadow_says(Event::Promoted { exchange }, None);
    assert_eq!(world.printed, "half\n");
    world.event(output(exchange, Stream::Stdout, "more\n"));
    assert_eq!(world.printed, "half\nmore\n");
    // It has as much time as any execution: its own.
    world.wait(599.0);
    assert!(!world.asked_for().starts_with("interrupt"));
    world.wait(2.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
    world.ends(raised("KeyboardInterrupt"));
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, execution.stdout.as_str()),
        (Outcome::Timeout, "half\nmore\n")
    );
}

#[test]
fn code_that_ends_while_it_is_asked_is_taken_too() {
    let mut world = running("work()");
    let ticket = world.execute("work()");
    world.sleep(20.0);
    world.shadow_ends(ok());
    assert_eq!(
        (world.execution(ticket).outcome, world.execution(ticket).duration),
        (Outcome::Ok, 20.0)
    );
    assert!(world.shadow().is_none());
}

#[test]
fn a_guest_that_does_not_say_so_does_not_take_over() {
    let ends: [fn(&mut World); 3] = [
        |world| {
            let exchange = world.shadow_turn();
            world.shadow_says(Event::External { exchange }, None);
        },
        |world| world.wait(100.0),
        |world| world.shadow_sends(GuestInput::BadMessage("nonsense".to_owned())),
    ];
    for end in ends {
        let mut world = running("work()");
        let ticket = world.execute("work()");
        end(&mut world);
        assert!(world.shadow().is_none());
        assert_eq!(world.asked_for(), "execute work()");
        world.ends(ok());
        assert_eq!(world.execution(ticket).id, 1);
    }
}

#[test]
fn what_is_taken_back_while_it_is_asked_never_runs() {
    let mut world = running("work()");
    let exchange = world.shadow_turn();
    let ticket = world.execute("work()");
    world.feed(Input::Interrupt);
    assert!(world.failure(ticket).contains("nothing was run"));
    assert!(world.shadow().is_none(), "nobody can ask for it any more");
    world.shadow_sends(GuestInput::Event(Event::Promoted { exchange }, None));
    let ticket = world.execute("work()");
    assert_eq!(world.asked_for(), "execute work()");
    world.ends(ok());
    assert_eq!(world.execution(ticket).id, 2);
}

#[test]
fn an_execution_with_less_time_takes_only_what_was_quicker() {
    for (timeout, taken) in [(40.0, true), (20.0, false)] {
        let mut world = finished("x = 1");
        let ticket = world.command(Command::Execute(Execute {
            code: "x = 1".to_owned(),
            timeout_ms: Some(timeout),
            budget: BudgetLimits::default(),
        }));
        assert_eq!(!world.is_pending(ticket), taken);
    }
}

/// Executes code that may take so long.
fn within(world: &mut World, code: &str, max_time: f64) -> Ticket {
    world.command(Command::Execute(Execute {
        code: code.to_owned(),
        timeout_ms: None,
        budget: BudgetLimits {
            max_time: Some(max_time),
            ..BudgetLimits::default()
        },
    }))
}

#[test]
fn a_budget_of_time_takes_only_what_was_quicker() {
    for (max_time, taken) in [(40.0, true), (20.0, false)] {
        let mut world = finished("x = 1");
        let ticket = within(&mut world, "x = 1", max_time);
        assert_eq!(!world.is_pending(ticket), taken, "finished, {max_time} ms");
        assert!(world.shadow().is_none());
    }
    let mut world = running("x = 1");
    within(&mut world, "x = 1", 500.0);
    assert_eq!(
        world.asked_for(),
        "execute x = 1",
        "it has done more than it may have, perhaps"
    );
    assert!(world.shadow().is_none());
}

#[test]
fn the_time_that_a_session_has_left_takes_only_what_was_quicker() {
    for (left, taken) in [(31.0, true), (29.0, false)] {
        let mut world = ready_within(10_000.0);
        let ends_at = world.now + 10_000.0;
        assert!(world.saves(true));
        world.hint(&["x = 1"]);
        world.shadow_begins();
        world.sleep(30.0);
        world.shadow_ends(ok());
        world.wait(ends_at - left - world.now);
        let ticket = world.execute("x = 1");
        assert_eq!(!world.is_pending(ticket), taken, "{left} ms are left");
    }
}

#[test]
fn a_guest_without_a_bridge_is_not_asked_at_work() {
    let mut world = ready();
    world.hint(&["work()"]);
    let guest = GuestInfo {
        bridge: "none".to_owned(),
        ..GuestInfo::default()
    };
    let version = PROTOCOL_VERSION;
    world.shadow_says(Event::Ready { version, guest }, None);
    let exchange = world.shadow_turn();
    world.shadow_says(
        Event::Restored {
            exchange,
            lost: Vec::new(),
            names: None,
        },
        None,
    );
    world.execute("work()");
    assert_eq!(world.asked_for(), "execute work()", "at once");
    assert!(world.shadow().is_none());
}

#[test]
fn a_look_at_the_state_is_saved_before_it_is_copied() {
    let mut world = ready();
    world.execute("x = Counting()");
    world.ends_well(&["context", "x"]);
    assert!(world.saves(true));
    let ticket = world.get("x"); // its `__repr__` counts
    let exchange = world.exchange();
    world.event(Event::Refused {
        exchange,
        message: "it is no value".to_owned(),
    });
    assert!(!world.is_pending(ticket));
    assert!(!world.saves(true), "nothing is to run ahead");
    world.hint(&["x"]);
    assert!(world.shadow().is_none(), "the checkpoint may be another state");
    assert!(world.saves(true));
    world.shadow_begins();
    world.shadow_ends(ok());
    let ticket = world.execute("x");
    assert_eq!((world.execution(ticket).id, tally(&world).used), (2, 1));
}

#[test]
fn a_look_at_the_state_does_not_keep_from_going_back() {
    for hinted in [false, true] {
        let mut world = ready();
        world.execute("x = 1");
        world.ends_well(&["context", "x"]);
        assert!(world.saves(true));
        world.get("x");
        let exchange = world.exchange();
        world.event_with(
            Event::Value {
                exchange,
                encoding: Encoding::Marshal,
            },
            b"1",
        );
        if hinted {
            world.hint(&["other"]);
        }
        world.execute("x = 2");
        world.ends_well(&["context", "x"]);
        let ticket = world.command(Command::State(StateCommand::Undo));
        world.boot();
        assert_eq!(world.asked_for(), "restore 2");
        world.restored(&[]);
        assert_eq!(world.answer(ticket), &Ok(Reply::State(1)));
    }
}

#[test]
fn what_breaks_the_protocol_when_it_takes_over_says_nothing_to_the_next_guest() {
    let mut world = running("work()");
    // Nobody looks at calls before they are made.
    let (exchange, calls) = (world.shadow_turn(), [world.fresh_call(), world.fresh_call()]);
    for (call, size) in calls.into_iter().zip([2_000, 1]) {
        let event = Event::HostCall {
            exchange,
            call,
            batch: 2,
            name: "ask".to_owned(),
            encoding: Encoding::Marshal,
            blocking: false,
        };
        world.shadow_says(event, Some(&vec![0; size]));
    }
    let (boots, ticket) = (world.boots, world.execute("work()"));
    let next = world.execute("x");
    assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
    assert!(world.is_pending(next), "{:?}", world.answers);
    assert_eq!((world.boots, world.under_way().len()), (boots + 1, 0));
    world.boot();
    world.restored(&[]);
    world.ends(ok());
    assert_eq!(world.execution(next).outcome, Outcome::Ok);
}

#[test]
fn it_does_not_wait_for_ever() {
    let mut world = finished("x = 1");
    world.wait(60_000.0);
    assert_forced(&mut world, "x = 1");
}

#[test]
fn it_does_not_say_without_end() {
    let mut world = running("x = 1");
    let (exchange, bytes) = (world.shadow_turn(), "x".repeat(200_000));
    for _ in 0..90 {
        if world.shadow().is_some() {
            world.sleep(10.0);
            world.shadow_says(output(exchange, Stream::Stdout, &bytes), None);
        }
    }
    assert_forced(&mut world, "x = 1");
}

#[test]
fn destroying_ends_it() {
    let mut world = running("x = 1");
    world.feed(Input::Destroy);
    assert!(world.shadow().is_none());
}

#[test]
fn a_hint_during_an_execution_is_for_the_next() {
    let mut world = ready();
    world.execute("x = 1");
    world.hint(&["x"]);
    assert!(world.shadow().is_none());
    world.ends_well(&["context", "x"]);
    assert!(world.shadow().is_none(), "the state is not safe yet");
    assert!(world.saves(true));
    world.shadow_begins();
    let asked = world.shadow().and_then(|guest| guest.inbox.last());
    assert!(matches!(asked, Some((Request::Execute { execution: 2, .. }, _))));
}

#[test]
fn a_state_that_cannot_be_copied_is_not() {
    let mut world = ready();
    world.execute("x = pipe()");
    world.ends_well(&["context", "x"]);
    world.wait(50.0);
    assert!(world.saves_but(&["x"], false));
    world.hint(&["x"]);
    assert!(world.shadow().is_none());
}

#[test]
fn the_newest_hint_counts() {
    let mut world = finished("x = 1");
    world.hint(&["x = 2"]);
    world.shadow_begins();
    world.shadow_ends(ok());
    world.hint(&["x = 2", "x = 3"]);
    assert_eq!(tally(&world).started, 3, "one is there already");
    assert_eq!(world.runs_ahead(), ["x = 2", "none yet"]);
    let ticket = world.execute("x = 2");
    assert_eq!((world.execution(ticket).id, tally(&world).used), (1, 1));
}

#[test]
fn predictions_that_are_mostly_wrong_are_not_tried() {
    let mut world = ready();
    for _ in 0..100 {
        world.hint(&["never"]);
        world.execute("x = 1");
        world.ends(ok());
        assert!(world.saves(true));
    }
    let tried = tally(&world).started;
    assert!((10..40).contains(&tried), "{tried} of 100");
}

fn streams(world: &World) -> Tally {
    let stats = world.session.stats();
    stats.ahead.code.get(&Source::Stream).cloned().unwrap_or_default()
}

/// A session where the begin of code that is being written has run within 30 ms, and the guest waits for more of it.
fn written(code: &str) -> World {
    let mut world = ready();
    world.writes(code);
    world.shadow_begins();
    assert!(matches!(
        world.shadow_told(),
        Some(Request::Execute {
            ahead: true,
            more: true,
            ..
        })
    ));
    world.sleep(30.0);
    let exchange = world.shadow_turn();
    world.shadow_says(output(exchange, Stream::Stdout, "begun\n"), None);
    world.shadow_says(Event::Waiting { exchange }, None);
    world
}

/// More of code that is being written, and not the last of it.
fn more(exchange: u32, text: &str) -> Request {
    Request::Extend {
        exchange,
        text: text.to_owned(),
        last: false,
    }
}

/// All of the code is there, and it is run as if nothing of it had been there before.
fn assert_run_whole(world: &mut World, code: &str) {
    world.execute(code);
    if world.asked_for() != format!("execute {code}") {
        world.checks(false);
    }
    assert_eq!(world.asked_for(), format!("execute {code}"));
    assert!(world.shadow().is_none(), "it still runs ahead");
    world.ends(ok());
    assert_eq!((streams(world).used, world.printed.as_str()), (0, ""));
}

#[test]
fn code_that_is_being_written_runs_as_it_comes() {
    let mut world = written("a");
    world.wait(5_000.0);
    world.writes("a\nb");
    let exchange = world.shadow_turn();
    assert_eq!(
        world.shadow_told(),
        Some(&Request::Extend {
            exchange,
            text: "\nb".to_owned(),
            last: false
        })
    );
    world.sleep(20.0);
    world.shadow_says(Event::Waiting { exchange }, None);
    world.wait(3_000.0);
    let ticket = world.execute("a\nb\nc");
    assert_eq!(
        (world.asked_for().as_str(), world.printed.as_str()),
        ("check a\nb\nc", "")
    );
    world.sleep(4.0);
    world.checks(true);
    assert_eq!(world.printed, "begun\n");
    assert_eq!(
        world.shadow_told(),
        Some(&Request::Promote {
            exchange,
            rest: Some("\nc".to_owned())
        })
    );
    world.sleep(10.0);
    world.ends(ok());
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.stdout.as_str(), execution.code.as_str()),
        ("begun\n", "a\nb\nc")
    );
    assert_eq!(
        (execution.duration, execution.guest_time),
        (60.0, 60.0),
        "nobody counts the waiting"
    );
    let Tally {
        started,
        finished,
        used,
        wasted,
        time_saved,
        time_wasted,
    } = streams(&world);
    assert_eq!((started, finished, used, wasted), (1, 1, 1, 0));
    assert_eq!((time_saved, time_wasted), (50.0, 0.0));
}

#[test]
fn when_all_of_it_is_known_the_rest_runs_at_once() {
    let mut world = written("a\nfor x in y:");
    let whole = "a\nfor x in y:\n    b";
    world.hint(&["something else"]);
    assert!(
        !matches!(world.shadow_told(), Some(Request::Extend { .. })),
        "it comes for certain"
    );
    world.hint(&[whole]);
    let exchange = world.shadow_turn();
    let rest = Request::Extend {
        exchange,
        text: "\n    b".to_owned(),
        last: true,
    };
    assert_eq!(world.shadow_told(), Some(&rest));
    world.sleep(20.0);
    world.shadow_ends(ok());
    assert_eq!(
        world.asked_for(),
        format!("check {whole}"),
        "before anybody waits for it"
    );
    world.checks(true);
    // Nobody asks the guest that ran it any more, and nobody waits.
    world.wait(1_000.0);
    let ticket = world.execute(whole);
    let execution = world.execution(ticket);
    assert_eq!((execution.outcome, execution.stdout.as_str()), (Outcome::Ok, "begun\n"));
    assert_eq!((execution.duration, streams(&world).used), (50.0, 1));
}

#[test]
fn what_goes_on_in_the_middle_of_a_line_is_other_code() {
    for comes in ["ab", "ab\nc", "a # b"] {
        let mut world = written("a");
        world.writes(comes);
        assert!(
            !matches!(world.shadow_told(), Some(Request::Extend { .. })),
            "{comes} is no more of it"
        );
        world.hint(&[comes]);
        assert!(
            !matches!(world.shadow_told(), Some(Request::Extend { .. })),
            "{comes} is no more of it"
        );
        world.execute(comes);
        assert_eq!(world.asked_for(), format!("execute {comes}"));
        world.ends(ok());
        assert_eq!((streams(&world).used, world.printed.as_str()), (0, ""), "{comes}");
    }
}

#[test]
fn what_was_told_of_the_rest_may_be_wrong() {
    for (told, comes, plain) in [
        ("a\nb", "a\nc", true),
        ("a\nb", "a\nb\nc", true),
        ("a\nb", "a\nb", false),
    ] {
        let mut world = written("a");
        world.hint(&[told]);
        world.shadow_ends(ok());
        world.checks(plain);
        assert_run_whole(&mut world, comes);
    }
}

#[test]
fn what_has_waited_has_all_the_time_that_is_left() {
    let mut world = written("a");
    world.wait(20_000.0);
    world.execute("a\nb");
    world.checks(true);
    world.wait(969.0); // of 1000, less the 30 before
    assert!(!world.asked_for().starts_with("interrupt"));
    world.wait(2.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
}

#[test]
fn what_took_too_long_before_is_not_waited_with() {
    let mut world = ready();
    world.writes("a");
    world.shadow_begins();
    let exchange = world.shadow_turn();
    world.sleep(1_001.0); // nobody was told of the time
    world.shadow_says(Event::Waiting { exchange }, None);
    assert!(world.shadow().is_none());
    assert_run_whole(&mut world, "a\nb");
}

#[test]
fn it_takes_a_little_at_a_time() {
    let mut world = ready();
    world.writes("a");
    world.shadow_begins();
    let exchange = world.shadow_turn();
    world.writes("a\nb");
    world.shadow_says(Event::Waiting { exchange }, None);
    assert!(matches!(world.shadow_told(), Some(Request::Execute { .. })), "too soon");
    world.writes("a\nb\nc");
    world.wait(100.0);
    assert_eq!(world.shadow_told(), Some(&more(exchange, "\nb\nc")));
    world.writes("a\nb\nc\nd");
    world.wait(200.0);
    assert!(
        matches!(world.shadow_told(), Some(Request::Extend { .. })),
        "it is at work"
    );
    world.shadow_says(Event::Waiting { exchange }, None);
    assert_eq!(world.shadow_told(), Some(&more(exchange, "\nd")));
}

#[test]
fn what_waits_for_more_wakes_nobody_meanwhile() {
    let mut world = written("a");
    world.command(list());
    world.writes("a\nb");
    world.wait(500.0);
    let exchange = world.exchange();
    let encoding = Encoding::Marshal;
    world.event_with(Event::Value { exchange, encoding }, b"[]");
    assert!(matches!(world.shadow_told(), Some(Request::Extend { .. })));
    let exchange = world.shadow_turn();
    world.shadow_says(Event::Waiting { exchange }, None);
    world.writes("a\nb\nc");
    world.execute("a\nb\nc\nd");
    world.wait(500.0);
    world.checks(true);
    let rest = Some("\nc\nd".to_owned());
    assert_eq!(world.shadow_told(), Some(&Request::Promote { exchange, rest }));
}

#[test]
fn code_that_becomes_something_else_runs_whole() {
    // Some of it begins with what has run, which is half a statement there.
    for code in [
        "a",
        "b\nc",
        "a \nb",
        "",
        "a\n",
        "a\n# b",
        "a\n b\nc",
        "a\nelse: b\nc",
        "a\n)\nc",
    ] {
        assert_run_whole(&mut written("a"), code);
    }
    // Not plain: its own guest says so.
    assert_run_whole(&mut written("a"), "a\nb");
    // What the guest of the sandbox does not say in time.
    let mut world = written("a");
    world.execute("a\nb");
    world.wait(1_000.0);
    assert_eq!(world.asked_for(), "execute a\nb");
    world.ends(ok());
    // Too late, it says nothing.
    let check = world
        .guest
        .as_mut()
        .and_then(|guest| guest.checks.pop_front())
        .expect("asked");
    world.event(Event::Checked { check, plain: true });
    assert_eq!(world.execute("1"), 3);
    assert_eq!(world.asked_for(), "execute 1");
}

#[test]
fn a_change_of_the_state_ends_what_is_being_written() {
    let mut world = written("a");
    world.command(assign("y", "1"));
    assert!(world.shadow().is_none());
    let exchange = world.exchange();
    world.event(Event::Done { exchange });
    world.wait(50.0);
    world.writes("a\nb");
    assert!(world.shadow().is_none(), "it is begun once");
    assert_run_whole(&mut world, "a\nb\nc");
}

#[test]
fn nobody_writes_any_more() {
    let mut world = written("a");
    world.writes("");
    assert!(world.shadow().is_none());
    assert_eq!(streams(&world).wasted, 1);
}

#[test]
fn it_does_not_wait_for_more_for_ever() {
    let mut world = written("a");
    world.wait(60_000.0);
    assert_run_whole(&mut world, "a\nb");
}

#[test]
fn a_host_call_of_what_is_being_written_waits_for_all_of_it() {
    let mut world = ready();
    world.writes("ask('?')");
    world.shadow_begins();
    let (exchange, call) = (world.shadow_turn(), world.fresh_call());
    let event = Event::HostCall {
        exchange,
        call,
        batch: 1,
        name: "ask".to_owned(),
        encoding: Encoding::Marshal,
        blocking: false,
    };
    world.shadow_says(event, Some(b"args"));
    world.writes("ask('?')\nb");
    world.wait(500.0);
    assert!(world.under_way().is_empty());
    assert!(matches!(world.shadow_told(), Some(Request::Execute { .. })));
    let ticket = world.execute("ask('?')\nb\nc");
    world.checks(true);
    assert_eq!(
        world.shadow_told(),
        Some(&Request::Promote {
            exchange,
            rest: Some("\nb\nc".to_owned())
        })
    );
    let calls = world.under_way();
    world.returns(calls[0], "!");
    world.event(Event::Waiting { exchange }); // it has not heard of the rest yet
    world.ends(ok());
    assert_eq!((world.execution(ticket).host_calls, streams(&world).used), (1, 1));
}

#[test]
fn all_of_it_may_come_while_a_statement_runs() {
    for waits in [false, true] {
        let mut world = ready();
        world.writes("a");
        world.shadow_begins();
        world.sleep(40.0);
        let exchange = world.shadow_turn();
        let ticket = world.execute("a\nb");
        world.checks(true);
        let rest = Some("\nb".to_owned());
        assert_eq!(world.shadow_told(), Some(&Request::Promote { exchange, rest }));
        assert!(world.shadow().is_some(), "it is asked first");
        world.sleep(10.0);
        world.shadow_says(
            if waits {
                Event::Waiting { exchange }
            } else {
                Event::Promoted { exchange }
            },
            None,
        );
        assert!(world.shadow().is_none());
        world.sleep(5.0);
        world.ends(ok());
        assert_eq!(world.execution(ticket).duration, 55.0);
        assert_eq!(streams(&world).used, 1);
    }
}

#[test]
fn what_lies_about_code_that_is_being_written_is_thrown_away() {
    let inputs: [Lie; 4] = [
        |exchange| {
            let (execution, encoding) = (ok(), Encoding::None);
            GuestInput::Event(
                Event::Executed {
                    exchange,
                    execution,
                    encoding,
                },
                None,
            )
        },
        |exchange| GuestInput::Event(output(exchange, Stream::Stdout, "at rest"), None),
        |exchange| GuestInput::Event(Event::Waiting { exchange }, None),
        |exchange| GuestInput::Event(Event::External { exchange }, None),
    ];
    for input in inputs {
        let mut world = written("a");
        let exchange = world.shadow_turn();
        world.shadow_sends(input(exchange));
        assert_run_whole(&mut world, "a\nb");
    }
    let mut world = ready();
    world.event(Event::Checked { check: 1, plain: true });
    assert_eq!(world.boots, 2, "nobody has asked");
    let mut world = written("a");
    assert_run_whole(&mut world, "a\nb");
    world.event(Event::Checked { check: 1, plain: true });
    assert_eq!(world.boots, 2, "nobody has asked again");
}

#[test]
fn less_time_than_it_began_with_is_another_execution() {
    let mut world = written("a");
    let ticket = world.command(Command::Execute(Execute {
        code: "a\nb".to_owned(),
        timeout_ms: Some(500.0),
        budget: BudgetLimits::default(),
    }));
    assert_eq!(world.asked_for(), "execute a\nb");
    world.ends(ok());
    assert_eq!(world.execution(ticket).id, 1);
}

/// A step of a cell, in the order in which it does it.
#[derive(Debug, Clone)]
enum Step {
    Says(Stream, String),
    Shows(Vec<u8>),
    Works(f64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stream = prop_oneof![
        Just(Stream::Stdout),
        Just(Stream::Stderr),
        Just(Stream::Result),
        Just(Stream::Traceback)
    ];
    let step = prop_oneof![
        (stream, "[a-zé\n]{1,80}").prop_map(|(stream, text)| Step::Says(stream, text)),
        proptest::collection::vec(any::<u8>(), 1..20).prop_map(Step::Shows),
        (0.0..50.0).prop_map(Step::Works),
    ];
    proptest::collection::vec(step, 0..12)
}

/// The place where a cell runs.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Where {
    /// In the session's own guest.
    Here,
    /// In one that took over so many milliseconds later.
    Ahead(f64),
    /// The same; this many steps are those of the code that was there then.
    Written(f64, usize),
}

/// The outcome of a cell.
fn run(steps: &[Step], fails: bool, place: Where) -> (CodeExecution, String, Vec<(String, Vec<u8>)>) {
    let mut world = ready();
    match place {
        Where::Here => drop(world.execute("cell\nmore")),
        Where::Ahead(_) => world.hint(&["cell\nmore"]),
        Where::Written(..) => world.writes("cell"),
    }
    let exchange = if place == Where::Here {
        world.exchange()
    } else {
        world.shadow_begins();
        world.shadow_turn()
    };
    let say = |world: &mut World, event: Event, body: Option<&[u8]>| match (world.shadow().is_some(), body) {
        (true, body) => world.shadow_says(event, body),
        (false, Some(body)) => world.event_with(event, body),
        (false, None) => world.event(event),
    };
    let written = |world: &mut World, at: usize| {
        if let Where::Written(ms, last) = place
            && at == last.min(steps.len())
        {
            world.shadow_says(Event::Waiting { exchange }, None);
            world.wait(ms);
            world.execute("cell\nmore");
            world.checks(true);
        }
    };
    for (at, step) in steps.iter().enumerate() {
        written(&mut world, at);
        match step {
            Step::Says(stream, text) => say(&mut world, output(exchange, *stream, text), None),
            Step::Shows(bytes) => {
                let mime = "image/png".to_owned();
                say(
                    &mut world,
                    Event::Display {
                        exchange,
                        mime,
                        is_result: false,
                    },
                    Some(bytes),
                );
            }
            Step::Works(ms) => world.sleep(*ms),
        }
    }
    written(&mut world, steps.len());
    let execution = if fails {
        raised("ValueError")
    } else {
        named(&["context", "y"])
    };
    let encoding = Encoding::None;
    say(
        &mut world,
        Event::Executed {
            exchange,
            execution,
            encoding,
        },
        None,
    );
    if let Where::Ahead(ms) = place {
        world.wait(ms);
        world.execute("cell\nmore");
    }
    assert!(world.shadow().is_none());
    (world.execution(2).clone(), world.printed, world.shown)
}

proptest! {
    #[test]
    fn nobody_can_tell_whether_it_ran_ahead(
        steps in steps(), fails: bool, waits in 0.0..50_000.0, written in proptest::option::of(0_usize..12)
    ) {
        let (forced, printed, shown) = run(&steps, fails, Where::Here);
        let place = written.map_or(Where::Ahead(waits), |last| Where::Written(waits, last));
        let (served, told, seen) = run(&steps, fails, place);
        // Times are differences of larger numbers.
        prop_assert!((forced.duration - served.duration).abs() < 1e-6 && (forced.guest_time - served.guest_time).abs() < 1e-6);
        let served = CodeExecution { duration: forced.duration, guest_time: forced.guest_time, ..served };
        prop_assert_eq!((forced, printed, shown), (served, told, seen));
    }
}
