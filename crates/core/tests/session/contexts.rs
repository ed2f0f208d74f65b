//! Values that the host keeps for every guest, and values that are still on their way.

use sandglass_core::Error;
use sandglass_core::limits::Limits;
use sandglass_core::protocol::Event;
use sandglass_core::session::{Command, Input, Reply, Series, Target, Ticket};

use crate::world::{World, add, guest_lost, limits, ok, text};

fn crash() -> Input<Vec<u8>> {
    guest_lost(Error::GuestLost("exit status 139".to_owned()))
}

fn adds(world: &mut World, series: Series, name: &str) {
    let ticket = world.command(add(series, name));
    assert_eq!(world.asked_for(), format!("set {name}"));
    world.done();
    assert_eq!(world.answer(ticket), &Ok(Reply::Name(name.to_owned())));
}

/// The values that the guest is given, in order, until it is asked for something else.
fn given(world: &mut World) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(name) = world.asked_for().strip_prefix("set ") {
        names.push(name.to_owned());
        world.done();
    }
    names
}

#[test]
fn all_contexts_come_back_with_the_next_guest_in_their_order() {
    let mut world = World::ready();
    adds(&mut world, Series::Context, "context_1");
    adds(&mut world, Series::History, "history_0");
    adds(&mut world, Series::Context, "context_2");
    let killed = world.execute("while True: pass");
    let next = world.execute("context_2");
    world.feed(crash());
    assert!(world.lost(killed).is_empty(), "nothing that the host does not have");
    world.boot();
    assert_eq!(given(&mut world), ["context", "context_1", "history_0", "context_2"]);
    world.ends(ok());
    assert!(!world.is_pending(next));
    adds(&mut world, Series::Context, "context_3");
}

#[test]
fn what_was_added_after_the_checkpoint_is_given_to_the_restored_guest() {
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    adds(&mut world, Series::Context, "context_1");
    assert!(world.saves(true));
    adds(&mut world, Series::Context, "context_2");
    adds(&mut world, Series::SessionContext, "session_context_0");
    for _ in 0..2 {
        world.feed(crash());
        world.execute("context_2");
        world.boot();
        world.restored(&[]);
        assert_eq!(given(&mut world), ["context_2", "session_context_0"]);
    }
}

#[test]
fn a_refused_addition_uses_no_number() {
    let mut world = World::ready();
    let ticket = world.command(add(Series::Context, "bad"));
    let exchange = world.exchange();
    let message = "no".to_owned();
    world.event(Event::Refused { exchange, message });
    assert!(world.error(ticket).to_string().contains("no"));
    adds(&mut world, Series::Context, "context_1");
}

/// A session whose context is on its way, with an execution that waits for it.
fn awaiting() -> (World, Ticket, Ticket) {
    let mut world = World::new(limits());
    let initialize = world.command(Command::Later(Target::Context));
    world.boot();
    let waiting = world.execute("len(context)");
    assert!(world.guest.as_ref().is_some_and(|guest| guest.exchange.is_none()));
    (world, initialize, waiting)
}

#[test]
fn commands_wait_for_a_value_that_is_on_its_way() {
    let (mut world, initialize, waiting) = awaiting();
    world.feed(Input::Arrived(initialize, Ok(text("the context"))));
    assert_eq!(world.asked_for(), "set context");
    world.done();
    assert_eq!(world.answer(initialize), &Ok(Reply::Done));
    assert_eq!(world.asked_for(), "execute len(context)");
    world.ends(ok());
    assert!(!world.is_pending(waiting));
}

#[test]
fn a_value_that_never_comes_fails_its_command_only() {
    let (mut world, initialize, waiting) = awaiting();
    let why = Error::NotSerializable("context: the file cannot be read".to_owned());
    world.feed(Input::Arrived(initialize, Err(why.clone())));
    assert_eq!(world.answer(initialize), &Err(why));
    assert_eq!(world.answer(waiting), &Err(Error::NotInitialized));
    world.feed(Input::Arrived(initialize, Ok(text("too late"))));
    assert!(world.guest.as_ref().is_some_and(|guest| guest.exchange.is_none()));
}

#[test]
fn a_value_that_is_awaited_can_be_given_up() {
    let (mut world, initialize, waiting) = awaiting();
    world.feed(Input::Cancel(initialize));
    assert!(!world.is_pending(initialize));
    assert_eq!(world.answer(waiting), &Err(Error::NotInitialized));
}
