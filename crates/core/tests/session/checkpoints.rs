//! Times at which the state is saved, and what comes back when a guest dies.

use sandglass_core::Error;
use sandglass_core::execution::StateStatus;
use sandglass_core::limits::Limits;
use sandglass_core::protocol::{Encoding, Event, Profile, Request};
use sandglass_core::session::{Command, Input, Reply, Session, StateCommand, Ticket};

use crate::world::{World, assign, assign_context, guest_lost, limits, ok};

/// A session whose guest has its context, and has saved it.
fn ready() -> World {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    assert!(world.saves(true), "idle, and not asked to save");
    world
}

fn crash() -> Input<Vec<u8>> {
    guest_lost(Error::GuestLost("exit status 139".to_owned()))
}

/// Runs a cell to its end, after which these are the user's variables.
fn run(world: &mut World, names: &[&str]) {
    world.execute("code");
    world.ends_well(names);
}

#[test]
fn a_guest_that_dies_is_replaced_by_what_it_had_saved() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    let killed = world.execute("y = 1; while True: pass");
    world.wait(1_100.0);
    let state = world.execution(killed).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
    assert_eq!(state.lost, None);
    assert!(world.failure(killed).ends_with("variables are as after execution 1"));

    let next = world.execute("x");
    world.boot();
    assert_eq!(world.asked_for(), "restore 2");
    world.restored(&[]);
    assert_eq!(world.asked_for(), "execute x");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn variables_made_after_the_checkpoint_are_named() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    run(&mut world, &["context", "x", "y"]);
    world.wait(50.0); // a save has begun
    let killed = world.execute("while True: pass");
    world.feed(crash());
    let execution = world.execution(killed);
    assert_eq!(execution.state.restored_to, Some(1));
    assert_eq!(world.lost(killed), ["y"]);
}

#[test]
fn what_the_host_set_after_the_checkpoint_is_named_and_the_context_is_set_again() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    world.command(assign("x", "2"));
    world.done();
    world.wait(50.0);
    world.command(assign_context("newer"));
    world.done();
    let killed = world.execute("while True: pass");
    world.feed(crash());
    assert_eq!(world.lost(killed), ["x"]);
    world.execute("context");
    world.boot();
    assert_eq!(world.asked_for(), "restore 2");
    world.restored(&[]);
    assert_eq!(world.asked_for(), "set context");
    world.done();
    assert_eq!(world.asked_for(), "execute context");
}

#[test]
fn who_asked_for_what_cost_the_guest_its_life_is_told_what_became_of_the_state() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    let get = world.get("x");
    world.wait(60_100.0);
    world.wait(100.0);
    let text = world.error(get).to_string();
    assert!(text.ends_with("; variables are as after execution 1"), "{text}");
}

#[test]
fn a_save_that_gave_way_is_asked_for_again() {
    let mut world = ready();
    run(&mut world, &["x"]);
    world.wait(50.0);
    world.execute("more");
    assert!(world.saves(false));
    world.ends(ok());
    assert!(world.saves(true), "it has changed and is idle");
    assert!(!world.saves(true), "nothing has changed since");
    world.get("x");
    world.event_with(
        Event::Value {
            exchange: world.exchange(),
            encoding: Encoding::Text,
        },
        b"1",
    );
    assert!(!world.saves(true), "reading changes nothing");
}

#[test]
fn without_a_checkpoint_only_the_context_comes_back() {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    let killed = world.execute("while True: pass");
    world.wait(1_100.0);
    assert_eq!(world.execution(killed).state.status, StateStatus::Lost);
    world.boot();
    assert_eq!(world.asked_for(), "set context");
}

#[test]
fn a_state_that_cannot_be_restored_is_told_by_the_next_execution() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    world.execute("while True: pass");
    let next = world.execute("x");
    world.wait(1_100.0);
    world.boot();
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "it is broken".to_owned(),
    });
    world.boot();
    assert_eq!(world.asked_for(), "set context");
    world.done();
    world.ends(ok());
    let state = world.execution(next).state.clone();
    assert_eq!(state.status, StateStatus::Lost);
    assert_eq!(world.lost(next), ["x"]);
    assert!(
        state
            .lost
            .iter()
            .flatten()
            .all(|lost| lost.reason.contains("it is broken"))
    );
}

#[test]
fn a_death_between_executions_is_told_by_the_next_one() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    world.feed(crash());
    let next = world.execute("x");
    world.boot();
    world.restored(&[]);
    world.ends(ok());
    let state = &world.execution(next).state;
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
}

#[test]
fn a_command_waits_for_a_save_when_much_is_at_stake() {
    let mut world = ready();
    world.execute("long()");
    world.wait(900.0);
    world.ends_well(&["x"]);
    let next = world.execute("x");
    assert!(world.is_pending(next));
    assert_eq!(world.asked_for(), "execute long()", "the save comes first");
    world.wait(10.0);
    assert!(world.saves(true));
    assert_eq!(world.asked_for(), "execute x");
    world.ends(ok());
    assert!(world.saves(true));

    run(&mut world, &["x"]);
    world.execute("short");
    assert_eq!(world.asked_for(), "execute short", "little is at stake");
}

#[test]
fn a_guest_that_never_finishes_saving_is_ended() {
    let mut world = ready();
    world.execute("long()");
    world.wait(900.0);
    world.ends_well(&["x"]);
    let next = world.execute("x");
    while world.boots == 1 {
        assert!(world.wake());
    }
    world.boot();
    world.restored(&[]);
    world.ends(ok());
    assert_eq!(
        world.execution(next).state.restored_to,
        Some(0),
        "as after `initialize`"
    );
}

#[test]
fn a_guest_that_saved_while_the_host_was_busy_is_not_ended() {
    let mut world = ready();
    world.execute("long()");
    world.wait(900.0);
    world.ends_well(&["x"]);
    let next = world.execute("x");
    world.sleep(60_000.0);
    assert!(world.wake(), "the clock is heard before what the guest sent");
    assert!(world.saves(true));
    assert_eq!(world.boots, 1);
    assert_eq!(world.asked_for(), "execute x");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn a_save_that_nobody_waits_for_ends_no_guest() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    world.wait(600_000.0);
    assert_eq!(world.boots, 1);
    let asked = world.command(Command::State(StateCommand::Checkpoint));
    world.wait(10_000.0);
    assert!(world.saves(true), "the wait has only begun with the command");
    assert_eq!(world.answer(asked), &Ok(Reply::State(1)));
    assert_eq!(world.boots, 1);
}

#[test]
fn what_is_too_large_to_be_saved_is_said() {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        max_checkpoint_bytes: 1.0,
        ..limits()
    });
    run(&mut world, &["context", "huge"]);
    assert!(world.saves(true));
    assert!(!world.saves(true), "it would be in vain");
    run(&mut world, &["context", "huge", "x"]);
    assert!(world.saves(true), "it may be smaller now");
    let killed = world.execute("while True: pass");
    world.feed(crash());
    let state = &world.execution(killed).state;
    assert_eq!(state.status, StateStatus::Lost);
    assert_eq!(world.lost(killed), ["huge", "x"]);
    let reason = &state.lost.as_ref().expect("names")[0].reason;
    assert!(reason.ends_with("could not be saved: it was too large"), "{reason}");
}

/// A session with room for a checkpoint of two variables, where execution 1 made one and 2 made the state too large.
fn too_large() -> World {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        max_checkpoint_bytes: 400.0,
        ..limits()
    });
    assert!(world.saves(true), "with the name of what the host has set");
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true), "on top of the one before");
    assert!(world.saves(true), "by itself");
    run(&mut world, &["context", "x", "huge"]);
    assert!(world.saves(true), "on top of the one before");
    assert!(world.saves(true), "by itself");
    assert!(!world.saves(true), "it would be in vain");
    world
}

#[test]
fn the_checkpoint_before_one_that_was_too_large_stays() {
    let mut world = too_large();
    let asked = world.command(Command::State(StateCommand::Checkpoint));
    assert_eq!(world.code_of(asked), "not_serializable");
    let killed = world.execute("while True: pass");
    world.feed(crash());
    let state = &world.execution(killed).state;
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
    assert_eq!(world.lost(killed), ["huge"]);
    let reason = &state.lost.as_ref().expect("names")[0].reason;
    assert!(reason.ends_with("could not be saved: it was too large"), "{reason}");
    world.execute("x");
    world.boot();
    assert_eq!(world.asked_for(), "restore 3");
}

#[test]
fn a_state_that_is_small_again_is_saved_again() {
    let mut world = too_large();
    run(&mut world, &["context", "x"]);
    let asked = world.command(Command::State(StateCommand::Checkpoint));
    assert!(world.saves(true), "the cell may have removed what was in the way");
    assert_eq!(world.answer(asked), &Ok(Reply::State(3)));
    let killed = world.execute("while True: pass");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(3));
}

#[test]
fn what_the_host_sets_may_make_a_state_that_can_be_saved() {
    let mut world = too_large();
    world.command(assign("huge", ""));
    world.done();
    assert!(world.saves(true));
}

#[test]
fn a_state_that_is_always_too_large_holds_nobody_up() {
    let mut world = too_large();
    for _ in 0..3 {
        world.execute("long()");
        world.wait(350.0);
        world.ends_well(&["context", "x", "huge"]);
        let next = world.execute("x");
        assert_eq!(world.asked_for(), "execute x", "less than a save is worth is at stake");
        world.ends_well(&["context", "x", "huge"]);
        assert!(!world.is_pending(next));
        assert!(world.saves(true));
    }
}

#[test]
fn what_a_checkpoint_does_not_hold_is_named_when_it_is_restored() {
    let mut world = ready();
    run(&mut world, &["context", "file", "x"]);
    world.wait(50.0);
    assert!(world.saves_but(&["file"], false));
    let killed = world.execute("while True: pass");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.status, StateStatus::Restored);
    assert_eq!(world.lost(killed), ["file"]);
    let next = world.execute("x");
    world.boot();
    world.restored(&["x"]);
    world.ends(ok());
    assert_eq!(
        world.lost(next),
        ["x"],
        "what exchanges out to be lost later is told by the next one"
    );
}

// ---- going back ----

/// After executions 1 and 2, each of which was saved.
fn twice() -> World {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    run(&mut world, &["context", "x", "y"]);
    assert!(world.saves(true));
    world
}

#[test]
fn undo_goes_back_by_an_execution_at_a_time() {
    let mut world = twice();
    for execution in [1, 0] {
        let undo = world.command(Command::State(StateCommand::Undo));
        world.boot();
        assert_eq!(world.asked_for(), format!("restore {}", execution + 1));
        world.restored(&[]);
        assert_eq!(world.answer(undo), &Ok(Reply::State(execution)));
    }
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(world.code_of(undo), "no_checkpoint");
    let next = world.execute("x");
    world.ends(ok());
    assert_eq!(
        world.execution(next).state.status,
        StateStatus::Kept,
        "who asked for it needs not be told"
    );
}

#[test]
fn a_save_that_undo_interrupts_has_not_failed() {
    let mut world = twice();
    run(&mut world, &["context", "x", "y"]);
    world.wait(50.0); // a save has begun
    let undo = world.command(Command::State(StateCommand::Undo));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(undo), &Ok(Reply::State(2)));
    run(&mut world, &["context", "x", "y"]);
    let fork = world.command(Command::State(StateCommand::Fork));
    assert!(world.saves(true), "the fork waits for a save");
    assert!(matches!(world.answer(fork), Ok(Reply::Fork(_))));
}

#[test]
fn undo_refuses_to_take_back_more_than_one_execution() {
    let mut world = twice();
    run(&mut world, &["context", "x", "y"]);
    run(&mut world, &["context", "x", "y"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(world.code_of(undo), "no_checkpoint");
    let text = world.error(undo).to_string();
    assert!(text.contains("before execution 4"), "{text}");
    assert!(text.contains("the newest are those of 2, 1, 0"), "{text}");
}

#[test]
fn what_the_host_set_before_an_execution_is_not_undone_with_it() {
    let mut world = twice();
    world.command(assign("x", "2"));
    world.done();
    run(&mut world, &["context", "x", "y"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(world.code_of(undo), "no_checkpoint");
}

/// The host sets this variable.
fn set(world: &mut World, name: &str) {
    world.command(assign(name, "value"));
    world.done();
}

/// Goes back, to that checkpoint.
fn goes_back(world: &mut World, command: Command<Vec<u8>>, checkpoint: u32) {
    world.command(command);
    world.boot();
    assert_eq!(world.asked_for(), format!("restore {checkpoint}"));
    world.restored(&[]);
}

/// The next execution's report of the state: the execution that it is as after, and what is lost.
fn told(world: &mut World) -> (Option<u32>, Vec<String>) {
    let next = world.execute("1");
    world.ends(ok());
    let lost = world.lost(next).into_iter().map(str::to_owned).collect();
    (world.execution(next).state.restored_to, lost)
}

#[test]
fn what_the_host_set_after_an_execution_that_is_undone_is_named() {
    let mut world = twice();
    set(&mut world, "saved");
    assert!(world.saves(true));
    set(&mut world, "unsaved");
    goes_back(&mut world, Command::State(StateCommand::Undo), 2);
    assert_eq!(
        told(&mut world),
        (Some(1), vec!["saved".to_owned(), "unsaved".to_owned()])
    );
    assert_eq!(told(&mut world), (None, vec![]), "it is told once");
}

#[test]
fn what_the_host_set_during_a_save_is_named_when_it_is_undone() {
    let mut world = twice();
    set(&mut world, "x");
    world.wait(50.0); // a save has begun
    set(&mut world, "y");
    goes_back(&mut world, Command::State(StateCommand::Undo), 2);
    assert_eq!(told(&mut world), (Some(1), vec!["x".to_owned(), "y".to_owned()]));
}

#[test]
fn only_what_is_undone_is_named() {
    let mut world = twice(); // checkpoints 2 and 3
    set(&mut world, "early");
    assert!(world.saves(true)); // 4
    run(&mut world, &["context", "x", "y"]);
    assert!(world.saves(true)); // 5
    set(&mut world, "late");
    assert!(world.saves(true)); // 6
    goes_back(&mut world, Command::State(StateCommand::Restore(Some(2))), 4);
    assert_eq!(told(&mut world), (Some(2), vec!["late".to_owned()]));
    assert!(world.saves(true)); // 7, on top of 4
    goes_back(&mut world, Command::State(StateCommand::Restore(Some(3))), 6);
    assert_eq!(
        told(&mut world),
        (None, vec![]),
        "the other line has no variables of the host's"
    );
    goes_back(&mut world, Command::State(StateCommand::Restore(Some(1))), 2);
    assert_eq!(told(&mut world), (Some(1), vec!["early".to_owned(), "late".to_owned()]));
}

#[test]
fn restore_goes_back_and_forth() {
    let mut world = twice();
    let back = world.command(Command::State(StateCommand::Restore(Some(0))));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(back), &Ok(Reply::State(0)));
    let forth = world.command(Command::State(StateCommand::Restore(Some(2))));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(forth), &Ok(Reply::State(2)));
    let same = world.command(Command::State(StateCommand::Restore(None)));
    assert_eq!(world.answer(same), &Ok(Reply::State(2)), "it is there already");
    let missing = world.command(Command::State(StateCommand::Restore(Some(7))));
    assert_eq!(world.code_of(missing), "no_checkpoint");
}

#[test]
fn a_guest_that_dies_after_a_restore_comes_back_there() {
    let mut world = twice();
    world.command(Command::State(StateCommand::Restore(Some(1))));
    world.boot();
    world.restored(&[]);
    run(&mut world, &["context", "z"]);
    let killed = world.execute("while True: pass");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(1));
    assert_eq!(world.lost(killed), ["z"]);
}

#[test]
fn restoring_brings_the_context_of_that_time_back() {
    let mut world = twice();
    world.command(assign_context("newer"));
    world.done();
    let back = world.command(Command::State(StateCommand::Restore(Some(1))));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(back), &Ok(Reply::State(1)));
    assert!(
        world.asked_for().starts_with("restore"),
        "the context is in the checkpoint"
    );
}

#[test]
fn a_checkpoint_that_cannot_be_restored_leaves_the_state_as_it_was() {
    let mut world = twice();
    let back = world.command(Command::State(StateCommand::Restore(Some(1))));
    world.boot();
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "it is broken".to_owned(),
    });
    assert_eq!(world.code_of(back), "no_checkpoint");
    world.boot();
    assert_eq!(world.asked_for(), "restore 3");
    world.restored(&[]);
    let next = world.execute("y");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn a_fork_goes_on_from_the_same_state() {
    let mut world = twice();
    run(&mut world, &["context", "x", "y", "z"]);
    let fork = world.command(Command::State(StateCommand::Fork));
    assert!(world.is_pending(fork), "the state is saved first");
    assert!(world.saves(true));
    let Ok(Reply::Fork(fork)) = world.answer(fork).clone() else {
        panic!("no fork")
    };
    let mut other = World::with(limits(), Session::forked(*fork));
    let ready = other.command(Command::State(StateCommand::Checkpoint));
    other.boot();
    assert_eq!(other.asked_for(), "restore 4");
    other.restored(&[]);
    assert_eq!(other.answer(ready), &Ok(Reply::State(3)));
    let next = other.execute("z");
    other.ends(ok());
    assert_eq!(other.execution(next).id, 4, "numbers go on");
    run(&mut world, &["context"]);
}

#[test]
fn a_fork_speaks_the_same_profile() {
    let limits = Limits {
        checkpoints: true,
        ..limits()
    };
    let session = Session::new(limits.clone(), vec!["llm_query".to_owned()])
        .with_profile(Profile::Dspy, vec!["answer".to_owned()]);
    let mut world = World::with(limits.clone(), session);
    world.command(assign_context("the context"));
    let config = |world: &World| match &world.guest.as_ref().expect("it boots").inbox[0] {
        (Request::Init { config, .. }, None) => config.clone(),
        other => panic!("{other:?}"),
    };
    let first = config(&world);
    assert_eq!(
        (first.profile, &*first.output_fields),
        (Profile::Dspy, &["answer".to_owned()][..])
    );
    assert_eq!(
        (&*first.host_functions, first.max_host_calls),
        (&["llm_query".to_owned()][..], 5)
    );
    world.boot();
    world.done();
    let fork = world.command(Command::State(StateCommand::Fork));
    assert!(world.saves(true));
    let Ok(Reply::Fork(fork)) = world.answer(fork).clone() else {
        panic!("no fork")
    };
    let mut other = World::with(limits, Session::forked(*fork));
    other.command(Command::State(StateCommand::Checkpoint));
    assert_eq!(config(&other), first);
}

#[test]
fn without_checkpoints_nobody_goes_back() {
    let mut world = World::ready();
    for command in [
        Command::State(StateCommand::Checkpoint),
        Command::State(StateCommand::Restore(None)),
        Command::State(StateCommand::Undo),
        Command::State(StateCommand::Fork),
    ] {
        let ticket = world.command(command);
        assert_eq!(world.code_of(ticket), "invalid_option");
    }
}

// ---- guests that are used up ----

#[test]
fn a_guest_with_much_memory_left_over_is_replaced_when_idle() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    world.wait(50.0);
    assert!(world.saves_but(&[], true));
    assert_eq!(world.boots, 2);
    let next = world.execute("x");
    world.boot();
    assert_eq!(world.asked_for(), "restore 2");
    world.restored(&[]);
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn a_guest_whose_state_cannot_all_be_saved_stays() {
    let mut world = ready();
    run(&mut world, &["context", "file"]);
    world.wait(50.0);
    assert!(world.saves_but(&["file"], true));
    assert_eq!(world.boots, 1);
}

// ---- what must not happen ----

#[test]
fn a_context_set_after_the_checkpoint_survives_a_second_crash() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    world.command(assign_context("newer"));
    world.done();
    for _ in 0..2 {
        world.execute("while True: pass");
        world.feed(crash());
        world.execute("context");
        world.boot();
        world.restored(&[]);
        assert_eq!(world.asked_for(), "set context");
        world.done();
        world.ends(ok());
    }
}

#[test]
fn a_guest_is_not_ended_for_a_save_that_a_long_cell_interrupted() {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        host_call_timeout_ms: 60_000.0,
        ..limits()
    });
    run(&mut world, &["context", "x"]);
    world.wait(50.0);
    let asked = world.execute("llm_query()");
    let call = world.calls("ask");
    for _ in 0..6 {
        world.wait(4_000.0);
    }
    world.returns(call, "late");
    world.ends(ok());
    assert_eq!(world.boots, 1);
    assert_eq!(world.execution(asked).state.status, StateStatus::Kept);
    assert!(world.saves(false), "it gave up when the cell began, and says so now");
    assert_eq!(world.boots, 1);
}

#[test]
fn a_guest_that_gives_up_saving_for_nothing_is_ended() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    let asked = world.command(Command::State(StateCommand::Checkpoint));
    assert!(world.saves(false));
    assert!(world.is_pending(asked));
    assert_eq!(world.boots, 2, "or it would be asked again and again");
}

#[test]
fn a_state_that_is_gone_has_no_number_of_an_execution() {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    run(&mut world, &["context", "x"]);
    world.execute("while True: pass");
    world.feed(crash());
    world.boot();
    world.done();
    assert!(world.saves(true));
    let killed = world.execute("while True: pass");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(0));
}

/// Three guests in a row crash with the newest state. Returns the execution of the last one.
fn crash_thrice(world: &mut World) -> Ticket {
    let mut last = None;
    for _ in 0..3 {
        let killed = world.execute("while True: pass");
        world.boot();
        world.restored(&[]);
        if world.asked_for() == "set context" {
            world.done();
        }
        world.feed(crash());
        last = Some(killed);
    }
    last.expect("three")
}

#[test]
fn a_state_with_which_every_guest_crashes_is_given_up_for_the_one_before() {
    let mut world = twice();
    world.command(assign("x", "2"));
    world.done();
    world.command(assign_context("newer"));
    world.done();
    assert!(world.saves(true));
    run(&mut world, &["context", "x", "y", "z"]);
    assert!(world.saves(true));
    world.execute("while True: pass");
    world.feed(crash());

    let killed = crash_thrice(&mut world);
    let state = world.execution(killed).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(2)));
    assert_eq!(world.lost(killed), ["z"]);
    let reason = &state.lost.iter().flatten().next().expect("one").reason;
    assert!(reason.contains("one after another"), "{reason}");

    let killed = crash_thrice(&mut world);
    assert_eq!(
        world.execution(killed).state.restored_to,
        Some(2),
        "before the page set it"
    );
    assert_eq!(world.lost(killed), ["x"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    world.boot();
    assert_eq!(world.asked_for(), "restore 3");
    world.restored(&[]);
    assert_eq!(
        world.asked_for(),
        "set context",
        "no checkpoint has the new one any more"
    );
    world.done();
    world.boot();
    world.restored(&[]);
    assert_eq!(
        world.answer(undo),
        &Ok(Reply::State(2)),
        "what had crashed is gone already"
    );
    let undo = world.command(Command::State(StateCommand::Undo));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(undo), &Ok(Reply::State(1)));
}

#[test]
fn a_first_state_with_which_every_guest_crashes_is_lost() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true));
    world.execute("while True: pass");
    world.feed(crash());
    let killed = crash_thrice(&mut world);
    let state = &world.execution(killed).state;
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(0)));
    assert_eq!(world.lost(killed), ["x"]);
    let killed = crash_thrice(&mut world);
    assert_eq!(world.execution(killed).state.status, StateStatus::Lost);
    world.execute("x");
    world.boot();
    assert_eq!(world.asked_for(), "set context");
}

#[test]
fn a_state_that_was_given_up_is_not_gone_back_to() {
    let mut world = twice();
    world.execute("while True: pass");
    world.feed(crash());
    crash_thrice(&mut world);
    let restore = world.command(Command::State(StateCommand::Restore(None)));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(restore), &Ok(Reply::State(1)));
    let restore = world.command(Command::State(StateCommand::Restore(Some(2))));
    assert_eq!(world.code_of(restore), "no_checkpoint");
    run(&mut world, &["context", "x"]);
    assert!(world.saves(true), "the next state is saved as any other");
}

#[test]
fn going_back_twice_forgets_no_loss() {
    let mut world = twice();
    world.command(assign("late", "1"));
    world.done();
    for execution in [1, 0] {
        let undo = world.command(Command::State(StateCommand::Undo));
        world.boot();
        world.restored(&[]);
        assert_eq!(world.answer(undo), &Ok(Reply::State(execution)));
    }
    let next = world.execute("late");
    world.ends(ok());
    assert_eq!(world.lost(next), ["late"]);
    assert_eq!(world.execution(next).state.restored_to, Some(0));
    let next = world.execute("late");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept, "it is told once");
}

#[test]
fn going_back_and_forth_tells_no_loss_of_what_is_there() {
    let mut world = twice();
    world.command(assign("x", "2"));
    world.done();
    assert!(world.saves(true));
    run(&mut world, &["context", "x", "y"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(undo), &Ok(Reply::State(2)));
    let restore = world.command(Command::State(StateCommand::Restore(Some(1))));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(restore), &Ok(Reply::State(1)));
    let restore = world.command(Command::State(StateCommand::Restore(Some(2))));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(restore), &Ok(Reply::State(2)));
    let next = world.execute("x");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn undo_after_a_crash_takes_back_nothing_more_and_then_goes_on() {
    let mut world = twice();
    world.execute("while True: pass");
    world.feed(crash());
    world.boot();
    world.restored(&[]);
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(
        world.answer(undo),
        &Ok(Reply::State(2)),
        "what had crashed is gone already"
    );
    let undo = world.command(Command::State(StateCommand::Undo));
    world.boot();
    world.restored(&[]);
    assert_eq!(world.answer(undo), &Ok(Reply::State(1)));
}

#[test]
fn a_fork_that_cannot_be_restored_says_so() {
    let mut world = twice();
    let fork = world.command(Command::State(StateCommand::Fork));
    let Ok(Reply::Fork(fork)) = world.answer(fork).clone() else {
        panic!("no fork")
    };
    let mut other = World::with(limits(), Session::forked(*fork));
    let ready = other.command(Command::State(StateCommand::Checkpoint));
    other.boot();
    other.event(Event::Refused {
        exchange: other.exchange(),
        message: "it is broken".to_owned(),
    });
    assert_eq!(other.code_of(ready), "no_checkpoint");
}

#[test]
fn a_fork_tells_what_it_does_not_have() {
    let mut world = ready();
    run(&mut world, &["context", "file"]);
    world.wait(50.0);
    assert!(world.saves_but(&["file"], false));
    let fork = world.command(Command::State(StateCommand::Fork));
    let Ok(Reply::Fork(fork)) = world.answer(fork).clone() else {
        panic!("no fork")
    };
    let mut other = World::with(limits(), Session::forked(*fork));
    let next = other.execute("file");
    other.boot();
    other.restored(&[]);
    other.ends(ok());
    assert_eq!(other.lost(next), ["file"]);
}

#[test]
fn checkpoint_does_not_succeed_with_an_older_state() {
    let mut world = twice();
    run(&mut world, &["context", "x", "y", "z"]);
    let asked = world.command(Command::State(StateCommand::Checkpoint));
    world.feed(crash());
    world.boot();
    world.restored(&[]);
    assert_eq!(
        world.answer(asked),
        &Ok(Reply::State(2)),
        "the number says which state it is"
    );
}
