//! Requests about files, the answers that fit, and what is lost with a guest.

use sandglass_core::Error;
use sandglass_core::limits::{LOOK_TIMEOUT_MS, Limits};
use sandglass_core::protocol::{Encoding, Event, Request};
use sandglass_core::session::{CellFile, Command, Encoded, FileCommand, Look, Reply, Ticket};

use crate::world::{Bytes, World, guest_lost, limits, ok};

fn write(world: &mut World, path: &str) -> Ticket {
    world.command(Command::File(FileCommand::Write {
        path: path.to_owned(),
        data: b"data".to_vec(),
    }))
}

fn read(text: bool) -> Command<Bytes> {
    let path = "x".to_owned();
    Command::File(FileCommand::Read { path, text })
}

fn list() -> Command<Bytes> {
    Command::File(FileCommand::List("x".to_owned()))
}

fn remove() -> Command<Bytes> {
    Command::File(FileCommand::Remove("x".to_owned()))
}

fn value(world: &mut World, encoding: Encoding) {
    let exchange = world.exchange();
    world.event_with(Event::Value { exchange, encoding }, b"bytes");
}

fn with_checkpoints() -> World {
    World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    })
}

#[test]
fn a_file_is_written_with_its_bytes_and_read() {
    let mut world = World::ready();
    let written = write(&mut world, "a/b");
    let last = world.guest.as_ref().and_then(|guest| guest.inbox.last());
    assert!(
        matches!(last, Some((Request::WriteFile { path, .. }, Some(body))) if path == "a/b" && body == b"data"),
        "{last:?}"
    );
    world.done();
    assert_eq!(world.answer(written), &Ok(Reply::Done));
    for (command, encoding) in [
        (read(true), Encoding::Text),
        (read(false), Encoding::Bytes),
        (list(), Encoding::Marshal),
    ] {
        let ticket = world.command(command);
        value(&mut world, encoding);
        let body = b"bytes".to_vec();
        assert_eq!(world.answer(ticket), &Ok(Reply::Value(Encoded { encoding, body })));
    }
}

#[test]
fn a_missing_file_and_a_refusal_have_codes_of_their_own() {
    let mut world = World::ready();
    for command in [read(true), read(false), list(), remove()] {
        let ticket = world.command(command);
        value(&mut world, Encoding::Missing);
        assert_eq!(world.error(ticket), &Error::FileNotFound("x".to_owned()));
    }
    let ticket = write(&mut world, "x");
    let message = "x: No space left on device".to_owned();
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: message.clone(),
    });
    assert_eq!(world.error(ticket), &Error::File(message));
    assert_eq!(world.code_of(ticket), "file_error");
}

#[test]
fn an_answer_that_does_not_fit_ends_the_guest() {
    type Forge = fn(&mut World);
    let forgeries: [(Command<Bytes>, Forge); 7] = [
        (read(true), |world| value(world, Encoding::Bytes)),
        (read(false), |world| value(world, Encoding::Text)),
        (read(false), |world| value(world, Encoding::Tagged)),
        (list(), |world| value(world, Encoding::Bytes)),
        (list(), World::done),
        (remove(), |world| value(world, Encoding::Marshal)),
        (read(true), |world| {
            let (exchange, encoding) = (world.exchange(), Encoding::Text);
            world.event(Event::Value { exchange, encoding });
        }),
    ];
    for (command, forge) in forgeries {
        let mut world = World::ready();
        let ticket = world.command(command);
        forge(&mut world);
        assert_eq!(world.code_of(ticket), "protocol");
        world.fresh_guest();
    }
}

#[test]
fn a_write_makes_a_new_checkpoint_and_reading_does_not() {
    let mut world = with_checkpoints();
    world.execute("x");
    world.ends_well(&[]);
    assert!(world.saves(true));
    world.command(list());
    value(&mut world, Encoding::Marshal);
    assert!(!world.saves(true), "nothing has changed");
    write(&mut world, "x");
    world.done();
    assert!(world.saves(true));
    world.command(remove());
    world.done();
    assert!(world.saves(true));
}

#[test]
fn a_file_that_no_checkpoint_holds_is_named_among_what_is_lost() {
    let mut world = with_checkpoints();
    write(&mut world, "saved");
    world.done();
    assert!(world.saves(true));
    write(&mut world, "late");
    world.done();
    let ticket = world.execute("die()");
    world.feed(guest_lost(Error::GuestLost("gone".to_owned())));
    assert_eq!(world.lost(ticket), ["file late"]);

    let mut world = World::ready();
    write(&mut world, "unsaved");
    world.done();
    let ticket = world.execute("die()");
    world.feed(guest_lost(Error::GuestLost("gone".to_owned())));
    assert_eq!(world.lost(ticket), ["file unsaved"]);
}

#[test]
fn files_need_a_context_and_wait_for_their_turn() {
    let mut world = World::new(limits());
    let early = write(&mut world, "x");
    assert_eq!(world.code_of(early), "not_initialized");
    let mut world = World::ready();
    let (run, written) = (world.execute("1"), write(&mut world, "x"));
    assert!(world.is_pending(written));
    world.ends(ok());
    assert!(!world.is_pending(run));
    world.done();
    assert_eq!(world.answer(written), &Ok(Reply::Done));
}

#[test]
fn an_interrupt_stops_no_write_half_way() {
    let mut world = World::ready();
    let ticket = write(&mut world, "x");
    world.feed(sandglass_core::session::Input::Interrupt);
    assert_eq!(world.asked_for(), "write x");
    world.done();
    assert_eq!(world.answer(ticket), &Ok(Reply::Done));
}

#[test]
fn what_is_said_of_code_is_bytes_and_comes_soon() {
    for look in [Look::Complete, Look::Inspect] {
        let mut world = World::ready();
        let about = b"{}".to_vec();
        let ticket = world.command(Command::File(FileCommand::Look { look, about }));
        let last = world.guest.as_ref().and_then(|guest| guest.inbox.last());
        assert!(
            matches!(last, Some((Request::Look { path, timeout_ms, .. }, Some(body)))
                if path == look.name() && *timeout_ms == LOOK_TIMEOUT_MS && body == b"{}"),
            "{last:?}"
        );
        value(&mut world, Encoding::Bytes);
        assert!(matches!(world.answer(ticket), Ok(Reply::Value(_))));
        let mut world = World::ready();
        let about = b"{}".to_vec();
        let ticket = world.command(Command::File(FileCommand::Look { look, about }));
        value(&mut world, Encoding::Missing);
        assert!(matches!(world.answer(ticket), Err(Error::Protocol(_))));
    }
}

#[test]
fn a_cells_file_is_bytes_and_never_missing() {
    for file in [CellFile::Input, CellFile::Output] {
        let command = || {
            let about = b"{}".to_vec();
            Command::File(FileCommand::Cell { file, about })
        };
        let mut world = World::ready();
        let ticket = world.command(command());
        let last = world.guest.as_ref().and_then(|guest| guest.inbox.last());
        assert!(
            matches!(last, Some((Request::CellFile { path, .. }, Some(body))) if path == file.name() && body == b"{}"),
            "{last:?}"
        );
        value(&mut world, Encoding::Bytes);
        let encoded = Encoded {
            encoding: Encoding::Bytes,
            body: b"bytes".to_vec(),
        };
        assert_eq!(world.answer(ticket), &Ok(Reply::Value(encoded)));
        for wrong in [Encoding::Missing, Encoding::Text, Encoding::Tagged] {
            let mut world = World::ready();
            let ticket = world.command(command());
            value(&mut world, wrong);
            assert!(matches!(world.answer(ticket), Err(Error::Protocol(_))), "{wrong:?}");
        }
    }
}
