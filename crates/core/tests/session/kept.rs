//! Sessions that outlive their page: what is kept of them, and what a later session makes of it.

use sandglass_core::Error;
use sandglass_core::execution::StateStatus;
use sandglass_core::limits::Limits;
use sandglass_core::protocol::Request;
use sandglass_core::session::{Command, Input, Kept, Reply, Series, Session, Settings, StateCommand};

use crate::world::{Bytes, World, add, assign, assign_context, guest_lost, limits, ok};

fn saved() -> Limits {
    Limits {
        checkpoints: true,
        ..limits()
    }
}

fn session() -> Session<Bytes> {
    Session::new(saved(), vec!["ask".to_owned()]).with_repeats()
}

/// A session that is kept, with its context.
fn ready() -> World {
    World::with(saved(), session().with_keeping(None, None)).begun()
}

/// Runs a cell to its end, after which these are the user's variables, and saves the state.
fn run(world: &mut World, names: &[&str]) {
    world.execute("code");
    world.ends_well(names);
    assert!(world.saves(true));
}

/// The kept session, as a later one reads it.
fn kept(world: &World) -> Kept<Bytes> {
    let mut bodies = Vec::new();
    let last = world.last_kept.clone().unwrap_or_else(|| world.session.kept());
    let written = last.map(|_, body| {
        bodies.push(body);
        bodies.len() - 1
    });
    let json = serde_json::to_string(&written).expect("it is plain data");
    let read: Kept<usize> = serde_json::from_str(&json).expect("it can be read again");
    read.map(|_, index| bodies[index].clone())
}

fn resumed(kept: Kept<Bytes>) -> World {
    World::with(saved(), session().with_keeping(Some(kept), None))
}

#[test]
fn a_later_session_goes_on_from_the_newest_checkpoint() {
    let mut first = ready();
    run(&mut first, &["context", "x"]);
    run(&mut first, &["context", "x", "y"]);
    let executions: Vec<u32> = first.session.history().iter().map(|entry| entry.execution).collect();
    assert_eq!(executions[..2], [2, 1]);
    let newest = first.session.history()[0].number;

    let mut later = resumed(kept(&first));
    assert_eq!(later.session.history(), first.session.history());
    let ready = later.command(Command::State(StateCommand::Checkpoint));
    later.boot();
    assert_eq!(later.asked_for(), format!("restore {newest}"));
    later.restored(&[]);
    assert!(
        later.asked_for().contains("onfigure"),
        "the session's own settings come next: {}",
        later.asked_for()
    );
    later.done();
    assert_eq!(later.answer(ready), &Ok(Reply::State(2)));
    assert_eq!(later.keeps, 0, "nothing has changed");

    let next = later.execute("x, y");
    assert!(later.saves(true) || later.asked_for().starts_with("execute"));
    later.ends_well(&["context", "x", "y"]);
    let execution = later.execution(next);
    assert_eq!((execution.id, execution.state.status), (3, StateStatus::Kept));
    let undone = later.command(Command::State(StateCommand::Undo));
    while later.is_pending(undone) {
        if later.guest.as_ref().is_some_and(|guest| guest.saving.is_some()) {
            later.saves(true);
        } else if later.guest.as_ref().is_some_and(|guest| !guest.ready) {
            later.boot();
        } else {
            later.restored(&[]);
        }
    }
    assert_eq!(later.answer(undone), &Ok(Reply::State(2)));
}

#[test]
fn each_change_is_to_be_kept() {
    let mut world = ready();
    let begun = world.keeps;
    assert!(begun > 0, "the context is kept before anything runs");
    run(&mut world, &["context", "x"]);
    assert!(world.keeps > begun);
    let before = world.keeps;
    world.command(assign_context("newer"));
    world.done();
    assert!(world.keeps > before);
    let before = world.keeps;
    world.execute("code");
    while world.saves(true) {} // the state before
    let after = world.keeps;
    world.ends_well(&["context", "x", "y"]);
    assert_eq!(
        (world.keeps, before + 1),
        (after, after),
        "the new state is not saved yet"
    );
}

#[test]
fn a_kept_context_needs_no_second_initialize() {
    let mut first = ready();
    first.command(assign_context("newer"));
    first.done();
    let mut later = resumed(kept(&first));
    let next = later.execute("context");
    later.boot();
    while later.asked_for().starts_with("set") {
        later.done();
    }
    later.ends(ok());
    assert_eq!(later.execution(next).id, 1);
}

#[test]
fn contexts_that_are_newer_than_the_state_come_back_and_other_values_are_told() {
    let mut first = ready();
    run(&mut first, &["context", "x"]);
    first.command(assign("x", "set by the host"));
    first.done();
    first.command(add(Series::Context, "more"));
    first.done();
    let mut later = resumed(kept(&first));
    let next = later.execute("context_1");
    later.boot();
    later.restored(&[]);
    later.done(); // its settings
    assert_eq!(later.asked_for(), "set context_1");
    later.done();
    while !later.asked_for().starts_with("execute") {
        assert!(later.saves(true), "{}", later.asked_for());
    }
    later.ends_well(&["context", "x", "context_1"]);
    assert_eq!(later.lost(next), ["x"]);
}

#[test]
fn going_back_to_the_same_state_takes_newer_contexts_back() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    world.command(assign_context("newer"));
    world.done();
    let before = world.keeps;
    world.command(Command::State(StateCommand::Restore(None)));
    world.boot();
    world.restored(&[]);
    assert!(world.keeps > before);
    let mut later = resumed(kept(&world));
    later.execute("context");
    later.boot();
    later.restored(&[]);
    later.done();
    assert!(!later.asked_for().starts_with("set"), "{}", later.asked_for());
}

#[test]
fn what_is_kept_at_the_end_is_what_was_there_before_it() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    world.feed(Input::Destroy);
    let mut later = resumed(kept(&world));
    let ready = later.command(Command::State(StateCommand::Checkpoint));
    later.boot();
    later.restored(&[]);
    later.done();
    assert_eq!(later.answer(ready), &Ok(Reply::State(1)));
}

#[test]
fn a_state_that_cannot_be_restored_stays_kept() {
    let mut first = ready();
    run(&mut first, &["context", "x"]);
    let mut later = resumed(kept(&first));
    let ready = later.command(Command::State(StateCommand::Checkpoint));
    later.boot();
    later.feed(guest_lost(Error::GuestLost("it crashed".to_owned())));
    let Err(Error::NoCheckpoint(why)) = later.answer(ready) else {
        panic!("{:?}", later.answer(ready))
    };
    assert!(why.contains("it stays kept as it is"), "{why}");
    assert_eq!(later.keeps, 0, "nothing takes its place");
    assert_eq!(later.session.history(), first.session.history());
}

#[test]
fn guests_of_another_kind_get_contexts_only_and_the_loss_is_told() {
    let mut first = ready();
    run(&mut first, &["context", "x"]);
    let session = session().with_keeping(Some(kept(&first)), Some("another release had saved it"));
    let mut later = World::with(saved(), session);
    later.command(assign_context("newer"));
    later.boot();
    while later.guest.as_ref().is_some_and(|guest| guest.exchange.is_some()) {
        later.done();
    }
    // The page ends before anybody was told.
    let mut later = resumed(kept(&later));
    let next = later.execute("context");
    later.boot();
    while later.asked_for().starts_with("set") {
        later.done();
    }
    later.ends(ok());
    let state = later.execution(next).state.clone();
    assert_eq!(state.status, StateStatus::Lost);
    let lost = state.lost.expect("it names what is gone");
    assert_eq!(
        lost.iter().map(|lost| &*lost.name).collect::<Vec<_>>(),
        ["x"],
        "the context came back"
    );
    assert!(lost[0].reason.contains("another release"));
}

#[test]
fn a_state_from_before_a_change_of_settings_gets_the_present_ones() {
    let mut world = ready();
    run(&mut world, &["context", "x"]);
    let settings = Settings {
        host_functions: Some(vec!["look".to_owned()]),
        output_fields: None,
    };
    world.command(Command::Configure(settings));
    world.done();
    world.execute("crash");
    world.saves(true);
    world.feed(guest_lost(Error::GuestLost("it crashed".to_owned())));
    world.boot();
    world.restored(&[]);
    let told = world.guest.as_ref().and_then(|guest| guest.inbox.last());
    let Some((Request::Configure { host_functions, .. }, _)) = told else {
        panic!("{told:?}")
    };
    assert_eq!(host_functions, &["look"]);
    world.done();
    let next = world.execute("look()");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}
