//! Sessions that go on after the past of another, whose variables are opened by value.

use sandglass_core::Error;
use sandglass_core::execution::{LostVariable, StateStatus};
use sandglass_core::session::{Command, Past, Reply, Session, VariableCommand};

use crate::world::{Bytes, World, guest_lost, limits, text};

/// The past of a session, as a later one reads it.
fn past(world: &World) -> Past<Bytes> {
    let mut bodies = Vec::new();
    let written = world.session.past().map(|body| {
        bodies.push(body);
        bodies.len() - 1
    });
    let json = serde_json::to_string(&written).expect("it is plain data");
    let read: Past<usize> = serde_json::from_str(&json).expect("it can be read again");
    read.map(|index| bodies[index].clone())
}

/// A session with a context, two variables and one execution.
fn first() -> World {
    let mut world = World::ready();
    world.execute("code");
    world.ends_well(&["context", "x", "f"]);
    world
}

/// A later session that has opened the variables.
fn later(past: Past<Bytes>) -> World {
    let mut world = World::with(limits(), Session::new(limits(), Vec::new()).with_past(past));
    let open = VariableCommand::Open(text("state").body, 1e6);
    let opened = world.command(Command::Variable(open));
    world.boot();
    while world.is_pending(opened) {
        world.done();
    }
    assert_eq!(world.answer(opened), &Ok(Reply::Done));
    world
}

#[test]
fn executions_are_counted_on_and_what_was_not_written_is_told_once() {
    let mut past = past(&first());
    assert_eq!(past.execution(), 1);
    past.add_lost(vec![LostVariable {
        name: "f".to_owned(),
        reason: "an open file".to_owned(),
    }]);
    let mut later = later(past);
    let next = later.execute("x");
    later.ends_well(&["context", "x"]);
    let run = later.execution(next);
    assert_eq!((run.id, run.state.status), (2, StateStatus::Kept));
    assert_eq!(later.lost(next), ["f"]);
    let next = later.execute("x");
    later.ends_well(&["context", "x"]);
    assert_eq!((later.execution(next).id, later.lost(next).len()), (3, 0));
}

#[test]
fn a_session_that_returns_to_an_earlier_state_says_so_and_what_is_missing() {
    let mut past = past(&first());
    past.is_returned_to();
    let mut later = later(past);
    later.session.add_lost(vec![LostVariable {
        name: "f".to_owned(),
        reason: "no module".to_owned(),
    }]);
    let next = later.execute("x");
    later.ends_well(&["context", "x"]);
    let state = &later.execution(next).state;
    assert_eq!((state.status, state.restored_to), (StateStatus::Restored, Some(1)));
    assert_eq!(later.lost(next), ["f"]);
}

#[test]
fn a_loss_that_nobody_was_told_of_stays_one_when_more_is_missing() {
    let mut world = first();
    world.feed(guest_lost(Error::GuestLost("exit status 139".to_owned())));
    let mut past = past(&world);
    past.add_lost(vec![LostVariable {
        name: "file a".to_owned(),
        reason: "it cannot be read".to_owned(),
    }]);
    let mut later = later(past);
    let next = later.execute("1");
    later.ends_well(&["context"]);
    assert_eq!(later.execution(next).state.status, StateStatus::Lost);
    assert_eq!(later.lost(next), ["x", "f", "file a"]);
}

#[test]
fn a_guest_that_dies_takes_the_opened_variables_along_but_not_the_contexts() {
    let mut later = later(past(&first()));
    let next = later.execute("crash");
    later.feed(guest_lost(Error::GuestLost("exit status 139".to_owned())));
    assert_eq!(later.execution(next).state.status, StateStatus::Lost);
    assert_eq!(later.lost(next), ["x", "f"]);
    let next = later.execute("context");
    later.boot();
    while later.asked_for().starts_with("set") {
        later.done();
    }
    later.ends_well(&["context"]);
    assert_eq!(later.execution(next).id, 3);
}

#[test]
fn contexts_that_come_with_the_variables_are_not_given_before() {
    let session = Session::new(limits(), Vec::new())
        .with_past(past(&first()))
        .with_contexts_to_come();
    let mut later = World::with(limits(), session);
    let open = VariableCommand::Open(text("state").body, 1e6);
    let opened = later.command(Command::Variable(open));
    later.boot();
    assert!(later.asked_for().starts_with("OpenState"), "{}", later.asked_for());
    later.done();
    assert_eq!(later.answer(opened), &Ok(Reply::Done));
    later.execute("crash");
    later.feed(guest_lost(Error::GuestLost("exit status 139".to_owned())));
    later.execute("context");
    later.boot();
    assert!(later.asked_for().starts_with("set"), "a later guest is given them");
}

#[test]
fn what_did_not_come_along_is_told_once_and_is_no_later_loss() {
    let mut later = later(past(&first()));
    let lost = |name: &str| LostVariable {
        name: name.to_owned(),
        reason: "a package that is not there".to_owned(),
    };
    later.session.add_lost(Vec::new());
    later.session.add_lost(vec![lost("f")]);
    let next = later.execute("x");
    later.ends_well(&["context", "x"]);
    assert_eq!(later.execution(next).state.status, StateStatus::Kept);
    assert_eq!(later.lost(next), ["f"]);
    let next = later.execute("crash");
    later.feed(guest_lost(Error::GuestLost("exit status 139".to_owned())));
    assert_eq!(later.lost(next), ["x"]);
}
