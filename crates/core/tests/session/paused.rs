//! Checkpoints that are paused copies of the guest: made at once, few, and able to end on their own.

use sandglass_core::Error;
use sandglass_core::execution::StateStatus;
use sandglass_core::limits::Limits;
use sandglass_core::protocol::{Event, Request};
use sandglass_core::session::{Command, Input, Reply, Session, StateCommand};

use crate::world::{World, assign, guest_lost, guest_says, limits, ok};

/// A session of this many checkpoints, whose guest has its context and was saved.
fn ready(most: usize) -> World {
    let limits = Limits {
        checkpoints: true,
        ..limits()
    };
    let session = Session::new(limits.clone(), Vec::new()).with_paused_guests(most);
    let mut world = World::with(limits, session).begun();
    assert!(saved(&mut world), "the state with its context is not saved");
    world
}

/// Saves the state if the guest was asked to.
fn saved(world: &mut World) -> bool {
    let Some((number, full)) = world.guest.as_mut().and_then(|guest| guest.saving.take()) else {
        return false;
    };
    assert!(full, "each copy stands alone");
    let event = Event::Saved {
        checkpoint: number,
        full,
        lost: Vec::new(),
        spent: false,
    };
    world.feed(guest_says(event, Some(format!("{number} true").into_bytes())));
    true
}

/// Runs a cell to its end, after which these are the user's variables. The state is saved after it.
fn run(world: &mut World, names: &[&str]) {
    world.execute("code");
    world.ends_well(names);
    assert!(saved(world), "a state is saved at once");
}

fn crash() -> Input<Vec<u8>> {
    guest_lost(Error::GuestLost("exit status 139".to_owned()))
}

/// The checkpoint that the next guest comes from.
fn comes_back(world: &mut World) -> String {
    world.boot();
    let asked = world.asked_for();
    world.restored(&[]);
    asked
}

#[test]
fn each_execution_waits_for_the_copy_of_the_state_before_it() {
    let mut world = ready(3);
    world.execute("first");
    world.ends_well(&["x"]);
    world.execute("second");
    assert_eq!(world.asked_for(), "execute first", "nothing overtakes the fork");
    assert!(saved(&mut world));
    assert_eq!(world.asked_for(), "execute second");
}

#[test]
fn executions_are_undone_one_after_the_other() {
    let mut world = ready(5);
    for names in [&["a"][..], &["a", "b"], &["a", "b", "c"]] {
        run(&mut world, names);
    }
    for wanted in [2, 1, 0] {
        let undo = world.command(Command::State(StateCommand::Undo));
        assert_eq!(comes_back(&mut world), format!("restore {}", wanted + 1));
        assert_eq!(world.answer(undo), &Ok(Reply::State(wanted)));
    }
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(world.code_of(undo), "no_checkpoint");
}

#[test]
fn an_undo_does_not_wait_for_the_copy_of_the_state_that_it_gives_up() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    world.execute("second");
    world.ends_well(&["a", "b"]);
    assert!(world.guest.as_ref().is_some_and(|guest| guest.saving.is_some()));
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(comes_back(&mut world), "restore 2");
    assert_eq!(world.answer(undo), &Ok(Reply::State(1)));
    let restore = world.command(Command::State(StateCommand::Restore(Some(2))));
    assert_eq!(world.code_of(restore), "no_checkpoint", "nobody has that state");
    run(&mut world, &["a", "c"]);
}

#[test]
fn the_oldest_goes_first() {
    let mut world = ready(2);
    for _ in 0..3 {
        run(&mut world, &["x"]);
    }
    let restore = world.command(Command::State(StateCommand::Restore(Some(1))));
    assert_eq!(world.code_of(restore), "no_checkpoint");
    let restore = world.command(Command::State(StateCommand::Restore(Some(2))));
    assert_eq!(comes_back(&mut world), "restore 3");
    assert_eq!(world.answer(restore), &Ok(Reply::State(2)));
}

#[test]
fn what_cannot_be_copied_is_not_waited_for_twice() {
    let mut world = ready(3);
    world.execute("sockets");
    world.ends_well(&["s"]);
    let (checkpoint, _) = world
        .guest
        .as_mut()
        .and_then(|guest| guest.saving.take())
        .expect("a save");
    let reason = Some("a socket is open".to_owned());
    world.feed(guest_says(Event::NotSaved { checkpoint, reason }, None));
    let next = world.execute("next");
    assert_eq!(world.asked_for(), "execute next");
    world.feed(crash());
    let state = world.execution(next).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(0)));
    let reason = &state.lost.expect("a loss")[0].reason;
    assert!(reason.contains("a socket is open"), "{reason}");
}

#[test]
fn an_older_copy_stands_in_for_one_that_has_ended() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    world.feed(Input::CheckpointGone(3, "it ended".to_owned()));
    let killed = world.execute("os._exit(1)");
    world.feed(crash());
    let state = world.execution(killed).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
    assert_eq!(world.lost(killed), ["b"]);
    assert_eq!(comes_back(&mut world), "restore 2");
}

#[test]
fn only_the_copy_that_was_to_come_back_is_given_up_with_its_guest() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    let killed = world.execute("os._exit(1)");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(2));
    world.boot();
    assert_eq!(world.asked_for(), "restore 3");
    world.feed(Input::CheckpointGone(3, "it ended".to_owned()));
    world.feed(crash());
    let next = world.execute("next");
    assert_eq!(comes_back(&mut world), "restore 2", "the one before is innocent");
    world.ends_well(&["a"]);
    let state = world.execution(next).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
    assert_eq!(world.lost(next), ["b"]);
}

#[test]
fn an_undo_whose_copy_ends_meanwhile_is_refused_and_nothing_else_goes() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    world.boot();
    assert_eq!(world.asked_for(), "restore 2");
    world.feed(Input::CheckpointGone(2, "it ended".to_owned()));
    world.feed(crash());
    assert_eq!(world.code_of(undo), "no_checkpoint");
    world.execute("next");
    assert_eq!(comes_back(&mut world), "restore 3", "the present state is as it was");
}

#[test]
fn an_undo_that_fails_says_what_is_lost_if_the_present_state_is_gone_too() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    for number in [3, 2] {
        world.feed(Input::CheckpointGone(number, "it ended".to_owned()));
    }
    world.feed(crash());
    assert_eq!(world.code_of(undo), "no_checkpoint");
    let next = world.execute("next");
    world.feed(crash()); // the one before the present state is the same that has ended
    assert_eq!(comes_back(&mut world), "restore 1");
    world.ends(ok());
    let state = world.execution(next).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(0)));
    let mut lost = world.lost(next);
    lost.sort_unstable();
    assert_eq!(lost, ["a", "b"]);
}

#[test]
fn a_copy_that_ends_after_its_guest_came_is_given_up_then() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    world.execute("os._exit(1)");
    world.feed(crash());
    world.boot();
    world.feed(Input::CheckpointGone(3, "it ended".to_owned()));
    world.restored(&[]);
    let killed = world.execute("os._exit(1)");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(1));
    assert_eq!(world.lost(killed), ["b"]);
}

#[test]
fn copies_that_do_not_come_back_are_given_up_one_after_the_other() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    let killed = world.execute("os._exit(1)");
    let next = world.execute("next");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(2));
    world.feed(crash()); // while it starts
    world.boot();
    assert_eq!(world.asked_for(), "restore 2");
    world.feed(crash()); // after it has started
    assert_eq!(comes_back(&mut world), "restore 1");
    assert_eq!(world.asked_for(), "execute next");
    world.ends(ok());
    let state = world.execution(next).state.clone();
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(0)));
    let mut lost = world.lost(next);
    lost.sort_unstable();
    assert_eq!(lost, ["a", "b"]);
}

#[test]
fn without_a_copy_that_comes_back_all_is_lost() {
    let mut world = ready(1);
    run(&mut world, &["a"]);
    world.execute("os._exit(1)");
    let next = world.execute("next");
    world.feed(crash());
    world.feed(crash());
    world.boot();
    assert_eq!(world.asked_for(), "set context");
    world.done();
    assert!(saved(&mut world), "the new state is saved before it runs");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Lost);
    assert_eq!(world.lost(next), ["a"]);
}

#[test]
fn an_undo_that_fails_keeps_the_state_as_far_as_it_can() {
    let mut world = ready(3);
    run(&mut world, &["a"]);
    run(&mut world, &["a", "b"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    world.feed(crash());
    assert_eq!(world.code_of(undo), "no_checkpoint");
    assert_eq!(comes_back(&mut world), "restore 3", "it was saved");
    let next = world.execute("next");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn what_the_host_set_is_named_when_the_copy_that_has_it_is_gone() {
    let mut world = ready(3);
    run(&mut world, &["x"]);
    world.command(assign("x", "2"));
    world.done();
    assert!(saved(&mut world));
    world.feed(Input::CheckpointGone(3, "memory is short".to_owned()));
    assert!(
        world.guest.as_ref().is_some_and(|guest| guest.saving.is_none()),
        "the same would be given up again"
    );
    let killed = world.execute("os._exit(1)");
    world.feed(crash());
    assert_eq!(world.execution(killed).state.restored_to, Some(1));
    assert_eq!(world.lost(killed), ["x"]);
}

#[test]
fn a_checkpoint_that_is_gone_twice_or_never_was_changes_nothing() {
    let mut world = ready(2);
    run(&mut world, &["x"]);
    for number in [1, 1, 77] {
        world.feed(Input::CheckpointGone(number, "it ended".to_owned()));
    }
    run(&mut world, &["x"]);
    let undo = world.command(Command::State(StateCommand::Undo));
    assert_eq!(comes_back(&mut world), "restore 2");
    assert_eq!(world.answer(undo), &Ok(Reply::State(1)));
    let asked = world.guest.as_ref().expect("a guest").inbox.iter();
    assert!(
        asked
            .map(|(request, _)| request)
            .any(|request| matches!(request, Request::Init { restores: true, .. }))
    );
}
