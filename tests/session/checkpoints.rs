//! When the state is saved, and what comes back when a guest dies.

use sandglass::Error;
use sandglass::execution::StateStatus;
use sandglass::limits::Limits;
use sandglass::protocol::{Encoding, Event};
use sandglass::session::{Command, Input};

use crate::world::{World, limits, ok, text};

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
    Input::GuestLost(Error::GuestLost("exit status 139".to_owned()))
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
    assert_eq!(world.asked_for(), "restore 1");
    world.done();
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
    assert!(world.saves(false), "it had something else to do");
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
    world.command(Command::SetVariable("x".to_owned(), text("2")));
    world.done();
    world.wait(50.0);
    world.command(Command::Initialize(text("newer")));
    assert!(world.saves(false));
    world.done();
    let killed = world.execute("while True: pass");
    world.feed(crash());
    assert_eq!(world.lost(killed), ["x"]);
    world.execute("context");
    world.boot();
    assert_eq!(world.asked_for(), "restore 1");
    world.done();
    assert_eq!(world.asked_for(), "set context");
    world.done();
    assert_eq!(world.asked_for(), "execute context");
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
            turn: world.turn(),
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
        turn: world.turn(),
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
    world.done();
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
    world.done();
    world.ends(ok());
    assert_eq!(
        world.execution(next).state.restored_to,
        Some(0),
        "as after `initialize`"
    );
}

#[test]
fn what_is_too_large_to_be_saved_is_said() {
    let mut world = ready();
    run(&mut world, &["context", "huge"]);
    assert!(world.saves(true));
    world.feed(Input::CheckpointDropped);
    run(&mut world, &["context", "huge", "x"]);
    assert!(!world.saves(true), "it would be in vain");
    let killed = world.execute("while True: pass");
    world.feed(crash());
    let state = &world.execution(killed).state;
    assert_eq!(state.status, StateStatus::Lost);
    assert_eq!(world.lost(killed), ["huge", "x"]);
    let reason = &state.lost.as_ref().expect("names")[0].reason;
    assert!(reason.ends_with("could not be saved: it was too large"), "{reason}");
}
