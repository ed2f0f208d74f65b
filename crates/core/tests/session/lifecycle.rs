//! Start, initialization, boot failures, destruction.

use sandglass_core::Error;
use sandglass_core::protocol::{Encoding, Event, GuestInfo, PROTOCOL_VERSION, Profile, Request};
use sandglass_core::session::{Command, Input, Reply};

use crate::world::{World, assign, assign_context, bad_message, guest_lost, guest_says, limits, list, text};

#[test]
fn boots_once_and_answers_every_start() {
    let mut world = World::new(limits());
    let (first, second) = (world.command(Command::Start), world.command(Command::Start));
    assert_eq!(world.boots, 1);
    assert!(world.is_pending(first));
    world.boot();
    let third = world.command(Command::Start);
    for ticket in [first, second, third] {
        assert_eq!(world.answer(ticket), &Ok(Reply::Done));
    }
    assert_eq!(world.boots, 1);
}

#[test]
fn tells_the_guest_its_limits_before_anything_else() {
    let mut world = World::new(limits());
    world.command(Command::Start);
    let guest = world.guest.as_ref().expect("it boots");
    let [(Request::Init { version, config, .. }, None)] = guest.inbox.as_slice() else {
        panic!("{:?}", guest.inbox)
    };
    assert_eq!(*version, PROTOCOL_VERSION);
    assert_eq!((config.max_output_chars, config.max_value_bytes), (100, 1_000.0));
    assert_eq!(config.host_functions, ["ask", "look", "llm_query", "rlm_query"]);
    assert_eq!(config.max_host_calls, limits().max_host_calls);
    assert_eq!((config.profile, config.output_fields.len()), (Profile::Default, 0));
}

#[test]
fn remembers_what_the_guest_said_of_itself() {
    let mut world = World::new(limits());
    world.command(Command::Start);
    let info = GuestInfo {
        bridge: "jspi".to_owned(),
        soft_interrupt: true,
        ..GuestInfo::default()
    };
    world.event(Event::Ready {
        version: PROTOCOL_VERSION,
        guest: info.clone(),
    });
    assert_eq!(world.session.info(), &info);
}

#[test]
fn refuses_everything_but_start_before_initialize() {
    let mut world = World::new(limits());
    let refused = [
        world.execute("1"),
        world.get("x"),
        world.command(assign("x", "1")),
        world.command(list()),
    ];
    for ticket in refused {
        assert_eq!(world.code_of(ticket), "not_initialized");
    }
    assert_eq!(world.boots, 0);
}

#[test]
fn takes_commands_while_the_guest_boots() {
    let mut world = World::new(limits());
    let initialize = world.command(assign_context("the context"));
    let execution = world.execute("1");
    world.boot();
    assert_eq!(world.asked_for(), "set context");
    world.done();
    assert_eq!(world.asked_for(), "execute 1");
    world.ends_well(&[]);
    assert_eq!(world.answer(initialize), &Ok(Reply::Done));
    assert_eq!(world.execution(execution).id, 1);
}

#[test]
fn a_context_that_the_guest_refuses_is_none() {
    let mut world = World::new(limits());
    let initialize = world.command(assign_context("the context"));
    let waiting = world.execute("len(context)");
    world.boot();
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "too deep".to_owned(),
    });
    assert_eq!(world.code_of(initialize), "invalid_option");
    assert_eq!(world.code_of(waiting), "not_initialized");
    let later = world.execute("1");
    assert_eq!(world.code_of(later), "not_initialized");
}

#[test]
fn a_refused_context_leaves_the_one_before() {
    let mut world = World::ready();
    world.command(assign_context("a worse one"));
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "too deep".to_owned(),
    });
    world.feed(guest_lost(Error::GuestLost("gone".to_owned())));
    world.boot();
    let (_, body) = world
        .guest
        .as_ref()
        .and_then(|guest| guest.inbox.last())
        .expect("the context is restored");
    assert_eq!(body.as_deref(), Some(b"the context".as_slice()));
}

#[test]
fn a_context_that_ends_the_guest_is_not_tried_on_the_next() {
    let mut world = World::new(limits());
    let initialize = world.command(assign_context("a deadly context"));
    let waiting = world.execute("1");
    world.boot();
    world.feed(guest_lost(Error::GuestLost("out of memory".to_owned())));
    assert_eq!(world.code_of(initialize), "guest_lost");
    let again = world.command(assign_context("a smaller context"));
    world.boot();
    assert_eq!(world.code_of(waiting), "not_initialized");
    world.done();
    assert_eq!(world.answer(again), &Ok(Reply::Done));
}

#[test]
fn a_failed_boot_refuses_what_waits_and_the_next_command_tries_again() {
    let mut world = World::new(limits());
    let waiting = [
        world.command(Command::Start),
        world.command(assign_context("c")),
        world.execute("1"),
    ];
    world.event(Event::BootFailed {
        message: "no memory".to_owned(),
    });
    for ticket in waiting {
        assert_eq!(world.error(ticket), &Error::BootFailed("no memory".to_owned()));
    }
    assert!(world.guest.is_none());
    let execution = world.execute("1");
    assert_eq!(world.code_of(execution), "not_initialized");
    let start = world.command(Command::Start);
    assert_eq!(world.boots, 2);
    world.boot();
    assert_eq!(world.answer(start), &Ok(Reply::Done));
}

#[test]
fn a_guest_that_is_not_ready_in_time_is_ended() {
    let mut world = World::new(limits());
    let start = world.command(Command::Start);
    world.wait(9_999.0);
    assert!(world.is_pending(start));
    world.wait(1.0);
    assert!(
        world.error(start).to_string().contains("10000 ms (bootTimeout)"),
        "{}",
        world.error(start)
    );
    assert!(world.guest.is_none());
}

#[test]
fn a_guest_of_another_version_is_ended() {
    let mut world = World::new(limits());
    let start = world.command(Command::Start);
    world.event(Event::Ready {
        version: PROTOCOL_VERSION + 1,
        guest: GuestInfo::default(),
    });
    assert_eq!(world.code_of(start), "boot_failed");
    assert!(world.error(start).to_string().contains("install both from one release"));
}

#[test]
fn assets_that_are_missing_are_named() {
    let mut world = World::new(limits());
    let start = world.command(Command::Start);
    world.feed(guest_lost(Error::AssetFailed("pyodide.wasm: 404".to_owned())));
    assert_eq!(world.error(start), &Error::AssetFailed("pyodide.wasm: 404".to_owned()));
}

#[test]
fn a_context_that_cannot_be_restored_fails_the_boot() {
    for failure in [
        |world: &mut World| {
            world.event(Event::Refused {
                exchange: world.exchange(),
                message: "no memory".to_owned(),
            })
        },
        |world: &mut World| world.feed(guest_lost(Error::GuestLost("no memory".to_owned()))),
    ] {
        let mut world = World::ready();
        world.feed(guest_lost(Error::GuestLost("gone".to_owned())));
        let execution = world.execute("1");
        world.boot();
        failure(&mut world);
        assert_eq!(world.code_of(execution), "boot_failed");
        assert!(world.error(execution).to_string().contains("context was not restored"));
        assert!(world.error(execution).to_string().contains("no memory"));
        assert!(world.guest.is_none(), "it is not tried over and over");
        let next = world.execute("2");
        world.fresh_guest();
        world.ends_well(&[]);
        assert_eq!(world.execution(next).id, 2);
    }
}

#[test]
fn destroy_during_boot_resolves_everything() {
    let mut world = World::new(limits());
    let waiting = [
        world.command(Command::Start),
        world.command(assign_context("c")),
        world.execute("1"),
    ];
    world.feed(Input::Destroy);
    for ticket in waiting {
        assert_eq!(world.code_of(ticket), "destroyed");
    }
    assert!(world.guest.is_none());
}

#[test]
fn destroy_during_an_execution_aborts_its_calls_and_ends_the_guest() {
    let mut world = World::ready();
    let (running, queued) = (world.execute("ask()"), world.execute("2"));
    world.calls("ask");
    world.feed(Input::Destroy);
    assert_eq!(world.code_of(running), "destroyed");
    assert_eq!(world.code_of(queued), "destroyed");
    assert_eq!(world.aborted.len(), 1);
    assert!(world.guest.is_none());
}

#[test]
fn after_destroy_nothing_happens_any_more() {
    let mut world = World::ready();
    world.feed(Input::Destroy);
    world.feed(Input::Destroy);
    for input in [
        Input::Interrupt,
        Input::Tick,
        guest_says(
            Event::Part {
                encoding: Encoding::Bytes,
            },
            None,
        ),
        guest_lost(Error::Destroyed),
        Input::HostReturned(1, Ok(text("late"))),
        bad_message("what".to_owned()),
    ] {
        world.feed(input);
    }
    let late = [
        world.execute("1"),
        world.command(Command::Start),
        world.command(assign_context("c")),
    ];
    for ticket in late {
        assert_eq!(world.code_of(ticket), "destroyed");
    }
    assert_eq!((world.boots, world.session.wake_at()), (1, None));
}

#[test]
fn no_more_commands_wait_than_the_limit_says() {
    let mut world = World::new(limits());
    for _ in 0..sandglass_core::limits::MAX_QUEUED_COMMANDS {
        world.command(assign_context("c"));
    }
    let more = [
        world.command(assign_context("c")),
        world.get("x"),
        world.command(Command::Start),
    ];
    for ticket in more {
        assert_eq!(world.code_of(ticket), "invalid_option");
    }
}

#[test]
fn values_cross_as_they_were_sent() {
    let mut world = World::ready();
    for encoding in [Encoding::None, Encoding::Missing, Encoding::Text, Encoding::Tagged] {
        let get = world.get("x");
        world.event_with(
            Event::Value {
                exchange: world.exchange(),
                encoding,
            },
            b"",
        );
        let Ok(Reply::Value(value)) = world.answer(get) else {
            panic!("{:?}", world.answer(get))
        };
        assert_eq!(value.encoding, encoding);
    }
    let set = world.command(assign("x", "5"));
    assert_eq!(world.asked_for(), "set x");
    world.done();
    assert_eq!(world.answer(set), &Ok(Reply::Done));
}

#[test]
fn a_value_that_cannot_cross_is_refused_and_nothing_is_lost() {
    let mut world = World::ready();
    let get = world.get("x");
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "x contains itself".to_owned(),
    });
    assert_eq!(
        world.error(get),
        &Error::NotSerializable("x contains itself".to_owned())
    );
    let set = world.command(assign("1x", "5"));
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "'1x' is no name".to_owned(),
    });
    assert_eq!(world.code_of(set), "invalid_option");
    assert_eq!(world.boots, 1);
}
