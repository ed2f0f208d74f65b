//! A guest that does not keep to the protocol is ended with a named error, and the session works afterwards.

use sandglass_core::deadline::StopReason;
use sandglass_core::execution::Outcome;
use sandglass_core::limits::{
    EVENT_BYTES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES, MAX_NAMES, MAX_OUTPUT_EVENT_BYTES, OUTPUT_BURST_BYTES,
};
use sandglass_core::protocol::{Encoding, Event, ExecutionReport, GuestInfo, PROTOCOL_VERSION, Stream};
use sandglass_core::session::{Command, Session};

use crate::world::{World, assign, bad_message, guest_says, limits, ok, output};

/// The execution that runs is told that the guest broke the protocol by `what`; the next one runs on a fresh guest.
fn is_a_violation(what: &str, forge: impl FnOnce(&mut World)) {
    let mut world = World::ready();
    let (broken, next) = (world.execute("forge()"), world.execute("2"));
    world.print("before");
    forge(&mut world);
    assert_eq!(world.execution(broken).outcome, Outcome::Crashed, "{what}");
    assert_eq!(world.execution(broken).stdout, "before");
    let failure = world.failure(broken);
    assert!(
        failure.starts_with("ProtocolError: ") && failure.contains(what),
        "{what}: {failure}"
    );
    assert!(failure.len() < 1_000);
    world.fresh_guest();
    assert_eq!(world.asked_for(), "execute 2");
    world.ends(ok());
    assert_eq!(world.execution(next).outcome, Outcome::Ok);
}

fn call(exchange: u32, call: u32, name: &str) -> Event {
    Event::HostCall {
        exchange,
        call,
        batch: 1,
        name: name.to_owned(),
        encoding: Encoding::Marshal,
        blocking: false,
    }
}

fn executed(exchange: u32, report: ExecutionReport) -> Event {
    Event::Executed {
        exchange,
        execution: report,
        encoding: Encoding::None,
    }
}

#[test]
fn events_for_a_turn_that_is_not_under_way() {
    for shift in [-1_i32, 1] {
        let exchange = |world: &World| world.exchange().wrapping_add_signed(shift);
        is_a_violation("not under way", |world| {
            world.event(output(exchange(world), Stream::Stdout, "x"))
        });
        is_a_violation("not under way", |world| world.event(executed(exchange(world), ok())));
        is_a_violation("not under way", |world| {
            world.event_with(call(exchange(world), 1, "ask"), b"")
        });
        is_a_violation("not under way", |world| {
            world.event(Event::Done {
                exchange: exchange(world),
            })
        });
    }
}

#[test]
fn answers_that_do_not_fit_the_question() {
    is_a_violation("`done` does not fit", |world| world.done());
    is_a_violation("`refused` does not fit", |world| {
        world.event(Event::Refused {
            exchange: world.exchange(),
            message: String::new(),
        });
    });
    is_a_violation("`value` does not fit", |world| {
        world.event_with(
            Event::Value {
                exchange: world.exchange(),
                encoding: Encoding::Text,
            },
            b"",
        );
    });
}

#[test]
fn events_out_of_order() {
    let ready = || Event::Ready {
        version: PROTOCOL_VERSION,
        guest: GuestInfo::default(),
    };
    is_a_violation("`ready` out of order", |world| world.event(ready()));
    is_a_violation("`bootFailed` out of order", |world| {
        world.event(Event::BootFailed { message: String::new() })
    });
    is_a_violation("`part` out of order", |world| {
        world.event_with(
            Event::Part {
                encoding: Encoding::Bytes,
            },
            b"x",
        )
    });
}

#[test]
fn messages_that_are_none() {
    is_a_violation("not JSON", |world| {
        world.feed(bad_message(format!("not JSON: {}", "x".repeat(100_000))))
    });
}

#[test]
fn host_calls_that_are_malformed() {
    is_a_violation("host call 7 twice", |world| {
        world.event_with(call(world.exchange(), 7, "ask"), b"");
        world.event_with(call(world.exchange(), 7, "ask"), b"");
    });
    is_a_violation("host call 6 twice", |world| {
        world.event_with(call(world.exchange(), 7, "ask"), b"");
        world.event_with(call(world.exchange(), 6, "ask"), b"");
    });
    is_a_violation("without arguments", |world| {
        world.event(call(world.exchange(), 1, "ask"))
    });
}

#[test]
fn events_that_are_too_large() {
    let long = |bytes: usize| "x".repeat(bytes + 1);
    is_a_violation("oversized", |world| world.print(&long(MAX_OUTPUT_EVENT_BYTES)));
    is_a_violation("oversized", |world| {
        world.event_with(call(world.exchange(), 1, &long(MAX_NAME_BYTES)), b"")
    });
    is_a_violation("oversized", |world| {
        world.event(Event::Fatal {
            message: long(MAX_MESSAGE_BYTES),
        })
    });
    let report = ExecutionReport {
        error_type: Some(long(MAX_NAME_BYTES)),
        ..ok()
    };
    is_a_violation("oversized", |world| world.event(executed(world.exchange(), report)));
    let report = ExecutionReport {
        names: Some(vec![long(MAX_NAME_BYTES)]),
        ..ok()
    };
    is_a_violation("oversized", |world| world.event(executed(world.exchange(), report)));
    let report = ExecutionReport {
        names: Some(vec![String::new(); MAX_NAMES + 1]),
        ..ok()
    };
    is_a_violation("oversized", |world| world.event(executed(world.exchange(), report)));
}

#[test]
fn bodies_that_are_too_large() {
    is_a_violation("maxValueSize", |world| {
        world.event_with(call(world.exchange(), 1, "ask"), &[0; 1_001])
    });
    is_a_violation("maxValueSize", |world| {
        world.event_with(executed(world.exchange(), ok()), &[0; 1_001])
    });
}

#[test]
fn what_is_as_large_as_allowed_is_fine() {
    let mut world = World::ready();
    let ticket = world.execute("1");
    world.print(&"x".repeat(MAX_OUTPUT_EVENT_BYTES));
    world.event_with(call(world.exchange(), u32::MAX, "ask"), &[0; 1_000]);
    let names = Some(vec!["x".repeat(MAX_NAME_BYTES); MAX_NAMES]);
    world.ends(ExecutionReport { names, ..ok() });
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
}

#[test]
fn a_flood_of_events_or_bytes() {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small and positive"
    )]
    let (events, bytes) = ((OUTPUT_BURST_BYTES / EVENT_BYTES) as usize, OUTPUT_BURST_BYTES as usize);
    is_a_violation("flooded", |world| {
        (0..=events).take_while(|_| floods(world, "")).for_each(drop)
    });
    let text = "x".repeat(MAX_OUTPUT_EVENT_BYTES);
    let most = bytes / MAX_OUTPUT_EVENT_BYTES + 1;
    is_a_violation("flooded", |world| {
        (0..most).take_while(|_| floods(world, &text)).for_each(drop)
    });
    is_a_violation("flooded", |world| {
        // Refused calls count as well.
        for number in 1..=100_000 {
            if world.boots > 1 {
                break;
            }
            world.event_with(call(world.exchange(), number, "ask"), b"");
        }
    });
}

/// Sends output that does not show; false when that was too much.
fn floods(world: &mut World, text: &str) -> bool {
    let exchange = world.exchange();
    world.event(output(exchange, Stream::Stderr, text));
    world.boots == 1
}

#[test]
fn steady_output_is_no_flood() {
    let mut world = World::ready_with(sandglass_core::Limits {
        timeout_ms: 1e9,
        ..limits()
    });
    let ticket = world.execute("log_for_hours()");
    for _ in 0..20_000 {
        world.print("x");
        world.wait(50.0);
    }
    world.ends(ok());
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
}

#[test]
fn events_of_a_guest_that_has_nothing_to_do() {
    for event in [
        output(1, Stream::Stdout, "x"),
        Event::Done { exchange: 1 },
        Event::Done { exchange: 9 },
        executed(1, ok()),
    ] {
        let mut world = World::ready();
        world.event(event);
        assert_eq!(world.boots, 2);
        world.fresh_guest();
        let ticket = world.execute("1");
        world.ends(ok());
        assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    }
}

#[test]
fn events_before_the_guest_is_ready_fail_the_boot() {
    let long = GuestInfo {
        python: "3".repeat(MAX_NAME_BYTES + 1),
        ..GuestInfo::default()
    };
    for (event, body) in [
        (output(1, Stream::Stdout, "x"), None),
        (Event::Done { exchange: 0 }, None),
        (
            Event::Ready {
                version: PROTOCOL_VERSION,
                guest: long,
            },
            None,
        ),
        (
            Event::Ready {
                version: PROTOCOL_VERSION,
                guest: GuestInfo::default(),
            },
            Some(vec![0; 1_001]),
        ),
    ] {
        let mut world = World::new(limits());
        let start = world.command(Command::Start);
        world.feed(guest_says(event, body));
        assert_eq!(world.code_of(start), "boot_failed");
        let again = world.command(Command::Start);
        world.boot();
        assert!(world.answer(again).is_ok());
    }
}

#[test]
fn a_value_without_a_body_ends_the_guest_and_names_the_reason() {
    let mut world = World::ready();
    let get = world.get("x");
    world.event(Event::Value {
        exchange: world.exchange(),
        encoding: Encoding::Text,
    });
    assert_eq!(world.code_of(get), "protocol");
    let set = world.command(assign("x", "1"));
    world.fresh_guest();
    world.event_with(
        Event::Value {
            exchange: world.exchange(),
            encoding: Encoding::Text,
        },
        b"",
    );
    assert_eq!(world.code_of(set), "protocol");
}

#[test]
fn a_stop_that_is_forged_does_not_hide_how_the_code_ended() {
    let mut world = World::ready();
    let ticket = world.execute("1");
    world.ends(ExecutionReport {
        stopped: Some(StopReason::Interrupt),
        ..ok()
    });
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
}

/// A session whose guest has to prove that it is idle, after an execution that went well.
fn pinged() -> (World, u32) {
    let session = Session::new(limits(), Vec::new()).with_pings(7);
    let mut world = World::with(limits(), session).begun();
    let first = world.execute("1");
    world.ends(ok());
    assert_eq!(world.execution(first).outcome, Outcome::Ok);
    let ping = world.ping().expect("it is asked after an execution");
    (world, ping)
}

#[test]
fn a_worker_that_proves_that_it_is_idle_goes_on() {
    let (mut world, ping) = pinged();
    world.event(Event::Pong { ping });
    world.wait(60_000.0);
    assert_eq!(world.guests(), 1);
    let next = world.execute("2");
    world.ends(ok());
    assert_eq!(world.execution(next).outcome, Outcome::Ok);
    assert_ne!(world.ping(), Some(ping), "numbers cannot be used again");
}

#[test]
fn no_event_of_a_turn_counts_before_a_worker_has_proved_that_it_is_idle() {
    let (mut world, _) = pinged();
    let next = world.execute("2");
    world.ends(ok());
    let failure = world.failure(next);
    assert!(failure.contains("before it was idle"), "{failure}");
}

#[test]
fn a_worker_that_goes_on_computing_is_ended() {
    let (mut world, _) = pinged();
    world.wait(5_000.0);
    assert_eq!(world.guests(), 1, "the page may have been blocked");
    world.wait(5_000.0);
    assert_eq!(world.guests(), 2);
}

#[test]
fn an_answer_to_no_ping_is_a_violation() {
    let (mut world, ping) = pinged();
    world.event(Event::Pong { ping: ping ^ 1 });
    assert_eq!(world.guests(), 2);
}
