//! Packages: fetched by the driver, installed in every guest.

use sandglass_core::Error;
use sandglass_core::packages::Wheel;
use sandglass_core::protocol::{Event, Request};
use sandglass_core::session::{Command, Input, Package, Reply, StateCommand, Wanted};

use crate::world::{Bytes, World, assign_context, guest_lost, limits};

pub(crate) fn package(name: &str) -> Package<Bytes> {
    let wheel = Wheel {
        name: name.to_owned(),
        version: "1".to_owned(),
        file_name: format!("{name}-1-py3-none-any.whl"),
        url: format!("https://x.example/{name}-1-py3-none-any.whl"),
        sha256: None,
        is_library: false,
    };
    Package {
        wheel,
        body: name.as_bytes().to_vec(),
    }
}

fn load(world: &mut World, name: &str) -> u32 {
    world.command(Command::Load(Wanted::Requirements(vec![name.to_owned()])))
}

fn import(world: &mut World, name: &str) -> u32 {
    world.command(Command::Load(Wanted::Modules(vec![name.to_owned()])))
}

fn fetched(world: &mut World, ticket: u32, names: &[&str]) {
    let packages = names.iter().map(|name| package(name)).collect();
    world.feed(Input::Fetched(ticket, Ok(packages)));
}

fn loaded(world: &World, ticket: u32) -> Vec<&str> {
    match world.answer(ticket) {
        Ok(Reply::Packages(wheels)) => wheels.iter().map(|wheel| wheel.name.as_str()).collect(),
        other => panic!("no packages: {other:?}"),
    }
}

/// The files that the guest is given.
fn installs(world: &World) -> Vec<&str> {
    match world.guest.as_ref().and_then(|guest| guest.inbox.last()) {
        Some((Request::Install { wheels, .. }, _)) => wheels.iter().map(|wheel| wheel.file_name.as_str()).collect(),
        other => panic!("no wheels: {other:?}"),
    }
}

#[test]
fn commands_wait_for_packages_in_their_order() {
    let mut world = World::ready();
    let first = world.execute("1");
    let load = load(&mut world, "a");
    let last = world.execute("2");
    assert_eq!(
        world.fetching.iter().copied().collect::<Vec<_>>(),
        [load],
        "it is fetched meanwhile"
    );
    world.ends_well(&[]);
    assert!(!world.is_pending(first) && world.is_pending(last));
    assert_eq!(world.asked_for(), "execute 1", "the code that came later waits");
    fetched(&mut world, load, &["a", "b"]);
    assert_eq!(installs(&world), ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"]);
    world.done();
    assert_eq!(loaded(&world, load), ["a", "b"]);
    assert_eq!(world.asked_for(), "execute 2");
}

#[test]
fn waiting_for_packages_is_no_time_of_the_guests() {
    let mut world = World::ready();
    let load = load(&mut world, "a");
    let run = world.execute("1");
    world.wait(1_000_000.0);
    fetched(&mut world, load, &["a"]);
    world.done();
    world.wait(10.0);
    world.ends_well(&[]);
    assert_eq!(world.execution(run).guest_time, 10.0);
}

#[test]
fn what_cannot_be_fetched_changes_nothing() {
    let mut world = World::ready();
    let load = load(&mut world, "a");
    world.feed(Input::Fetched(
        load,
        Err(Error::PackageNotFound("a is nowhere".to_owned())),
    ));
    assert_eq!(world.code_of(load), "package_not_found");
    let run = world.execute("1");
    world.ends_well(&[]);
    assert_eq!(world.execution(run).stderr, "");
}

#[test]
fn code_runs_without_what_it_imports_and_says_so() {
    let mut world = World::ready();
    let load = import(&mut world, "a");
    let run = world.execute("import a");
    world.feed(Input::Fetched(load, Err(Error::AssetFailed("offline".to_owned()))));
    assert_eq!(world.asked_for(), "execute import a");
    world.ends_well(&[]);
    assert!(world.execution(run).stderr.contains("was not loaded: offline"));
    assert!(world.printed.contains("offline"));
    assert_eq!(loaded(&world, load), Vec::<&str>::new());
}

#[test]
fn every_later_guest_has_them_first_of_all() {
    let mut world = World::ready();
    for name in ["a", "b"] {
        let load = load(&mut world, name);
        fetched(&mut world, load, &[name]);
        world.done();
    }
    world.execute("crash");
    world.feed(guest_lost(Error::GuestLost("it crashed".to_owned())));
    world.boot();
    assert_eq!(installs(&world), ["a-1-py3-none-any.whl", "b-1-py3-none-any.whl"]);
    world.done();
    assert_eq!(world.asked_for(), "set context");
}

#[test]
fn a_checkpoint_is_restored_where_its_packages_are() {
    let mut limits = limits();
    limits.checkpoints = true;
    let mut world = World::ready_with(limits);
    let load = load(&mut world, "a");
    fetched(&mut world, load, &["a"]);
    world.done();
    world.execute("x = 1");
    world.ends_well(&["x"]);
    assert!(world.saves(true));
    let fork = world.command(Command::State(StateCommand::Fork));
    let Ok(Reply::Fork(fork)) = world.answer(fork).clone() else {
        panic!("no fork")
    };
    world.execute("crash");
    world.feed(guest_lost(Error::GuestLost("it crashed".to_owned())));
    world.boot();
    assert_eq!(installs(&world), ["a-1-py3-none-any.whl"]);
    world.done();
    assert!(world.asked_for().starts_with("restore"), "{}", world.asked_for());

    let mut copy = World::with(crate::world::limits(), sandglass_core::Session::forked(*fork));
    copy.get("x");
    copy.boot();
    assert_eq!(installs(&copy), ["a-1-py3-none-any.whl"], "so does the fork's");
    copy.done();
    assert!(copy.asked_for().starts_with("restore"), "{}", copy.asked_for());
}

#[test]
fn what_is_there_is_not_installed_again() {
    let mut world = World::ready();
    let (first, second) = (load(&mut world, "a"), load(&mut world, "a"));
    fetched(&mut world, second, &["a"]);
    fetched(&mut world, first, &["a"]);
    world.done();
    assert_eq!((loaded(&world, first), loaded(&world, second)), (vec!["a"], vec![]));
}

#[test]
fn a_guest_may_refuse_a_wheel() {
    let mut world = World::ready();
    let ticket = load(&mut world, "a");
    fetched(&mut world, ticket, &["a"]);
    let exchange = world.exchange();
    world.event(Event::Refused {
        exchange,
        message: "it leads out".to_owned(),
    });
    assert_eq!(world.code_of(ticket), "integrity");
    world.execute("crash");
    world.feed(guest_lost(Error::GuestLost("it crashed".to_owned())));
    world.fresh_guest(); // which is not given it
}

#[test]
fn a_guest_that_refuses_what_the_session_has_does_not_start() {
    let mut world = World::ready();
    let ticket = load(&mut world, "a");
    fetched(&mut world, ticket, &["a"]);
    world.done();
    world.execute("crash");
    let next = world.get("x");
    world.feed(guest_lost(Error::GuestLost("it crashed".to_owned())));
    world.boot();
    let exchange = world.exchange();
    world.event(Event::Refused {
        exchange,
        message: "no room".to_owned(),
    });
    assert_eq!(world.code_of(next), "boot_failed");
    assert!(
        world
            .error(next)
            .to_string()
            .contains("packages were not installed again: no room")
    );
}

#[test]
fn it_can_be_taken_back_while_it_is_fetched() {
    let mut world = World::ready();
    let ticket = load(&mut world, "a");
    world.feed(Input::Cancel(ticket));
    assert_eq!(world.code_of(ticket), "timeout");
    fetched(&mut world, ticket, &["a"]); // comes too late
    let quiet = import(&mut world, "a");
    let run = world.execute("import a");
    world.feed(Input::Interrupt);
    assert_eq!(world.execution(run).error_type.as_deref(), Some("KeyboardInterrupt"));
    assert_eq!(loaded(&world, quiet), Vec::<&str>::new());
}

#[test]
fn it_needs_no_context() {
    let mut world = World::new(limits());
    let ticket = load(&mut world, "a");
    world.boot();
    fetched(&mut world, ticket, &["a"]);
    world.done();
    assert_eq!(loaded(&world, ticket), ["a"]);
    let begun = world.command(assign_context("c"));
    world.done();
    assert_eq!(world.answer(begun), &Ok(Reply::Done));
}
