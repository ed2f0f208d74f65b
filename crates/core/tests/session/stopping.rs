//! Timeouts, interrupts, cancellation, and what is lost when a guest is.

use sandglass_core::Error;
use sandglass_core::deadline::StopReason;
use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_core::limits::Limits;
use sandglass_core::protocol::{Event, ExecutionReport, Request};
use sandglass_core::session::{Input, Reply};

use crate::world::{World, assign, assign_context, guest_lost, limits, ok, raised};

/// An execution that was stopped as the host asked.
pub(crate) fn stopped(reason: StopReason) -> ExecutionReport {
    ExecutionReport {
        stopped: Some(reason),
        ..raised("KeyboardInterrupt")
    }
}

fn crash() -> Input<Vec<u8>> {
    guest_lost(Error::GuestLost("exit status 139".to_owned()))
}

#[test]
fn a_guest_that_stops_within_the_grace_period_keeps_its_state() {
    let mut world = World::ready();
    let ticket = world.execute("while True: pass");
    world.wait(1_000.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
    world.wait(99.0);
    world.ends(stopped(StopReason::Timeout));
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, execution.state.status),
        (Outcome::Timeout, StateStatus::Kept)
    );
    assert_eq!(execution.error_type.as_deref(), Some("TimeoutError"));
    assert_eq!(
        world.failure(ticket),
        "TimeoutError: stopped after 1000 ms of guest time; variables are kept"
    );
    assert_eq!((execution.duration, execution.guest_time), (1_099.0, 1_099.0));
    assert_eq!(world.boots, 1);
}

#[test]
fn code_that_ends_well_while_it_is_stopped_ended_well() {
    let mut world = World::ready();
    let ticket = world.execute("quick()");
    world.wait(1_000.0);
    world.ends(ok());
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
}

#[test]
fn a_guest_that_does_not_stop_is_replaced_and_the_next_execution_runs() {
    let mut world = World::ready();
    world.execute("x = 1");
    world.ends_well(&["context", "x", "y"]);
    let (killed, next) = (world.execute("while True: pass"), world.execute("2"));
    world.print("half a ");
    world.wait(1_100.0);
    let execution = world.execution(killed);
    assert_eq!(
        (execution.outcome, execution.state.status),
        (Outcome::Timeout, StateStatus::Lost)
    );
    assert_eq!(execution.stdout, "half a ");
    assert!(
        world
            .failure(killed)
            .starts_with("TimeoutError: it did not stop within 100 ms")
    );
    assert!(
        world
            .failure(killed)
            .ends_with("variables are lost, context is restored")
    );
    assert_eq!(world.lost(killed), ["x", "y"], "all but the context");
    assert_eq!(world.boots, 2);
    world.fresh_guest();
    assert_eq!(world.asked_for(), "execute 2");
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Kept);
}

#[test]
fn the_context_is_restored_with_its_value() {
    let mut world = World::ready();
    world.feed(crash());
    world.boot();
    let guest = world.guest.as_ref().expect("it lives");
    let Some((Request::SetVariable { name, .. }, Some(body))) = guest.inbox.last() else {
        panic!("{guest:?}")
    };
    assert_eq!((name.as_str(), body.as_slice()), ("context", b"the context".as_slice()));
}

#[test]
fn the_newest_context_is_restored() {
    let mut world = World::ready();
    world.command(assign_context("a newer one"));
    world.done();
    world.feed(crash());
    world.boot();
    let guest = world.guest.as_ref().expect("it lives");
    assert_eq!(
        guest.inbox.last().and_then(|(_, body)| body.as_deref()),
        Some(b"a newer one".as_slice())
    );
}

#[test]
fn a_crash_is_told_with_what_was_printed() {
    let mut world = World::ready();
    let ticket = world.execute("os._exit(1)");
    world.print("last words");
    world.feed(crash());
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, execution.stdout.as_str()),
        (Outcome::Crashed, "last words")
    );
    assert_eq!(
        world.failure(ticket),
        "GuestCrashed: exit status 139; variables are lost, context is restored"
    );
}

#[test]
fn a_fatal_event_is_a_crash() {
    let mut world = World::ready();
    let ticket = world.execute("recurse()");
    world.event(Event::Fatal {
        message: "RangeError: Maximum call stack".to_owned(),
    });
    assert_eq!(world.execution(ticket).outcome, Outcome::Crashed);
    assert!(world.failure(ticket).contains("Maximum call stack"));
    assert_eq!(world.boots, 2);
}

#[test]
fn a_loss_between_executions_is_told_by_the_next_one() {
    let mut world = World::ready();
    world.execute("x = 1");
    world.ends_well(&["x"]);
    let get = world.get("x");
    world.feed(crash());
    let why = "exit status 139; variables are lost, context is restored";
    assert_eq!(world.error(get), &Error::GuestLost(why.to_owned()));
    world.fresh_guest();
    let (first, second) = (world.execute("1"), world.execute("2"));
    world.ends(ok());
    world.ends(ok());
    assert_eq!(world.execution(first).state.status, StateStatus::Lost);
    assert_eq!(world.lost(first), ["x"]);
    assert_eq!(world.execution(second).state.status, StateStatus::Kept);
}

#[test]
fn a_guest_whose_server_is_gone_is_replaced_when_somebody_asks_for_something() {
    let mut world = World::ready();
    world.execute("x = 1");
    world.ends_well(&["x"]);
    world.feed(guest_lost(Error::BackendUnavailable("it was idle".to_owned())));
    assert!(world.guest.is_none());
    let (boots, next) = (world.boots, world.execute("1"));
    assert_eq!(world.boots, boots + 1);
    world.fresh_guest();
    world.ends(ok());
    assert_eq!(world.execution(next).state.status, StateStatus::Lost);
    assert_eq!(world.lost(next), ["x"]);
}

#[test]
fn a_loss_is_not_forgotten_over_the_next_loss() {
    let mut world = World::ready();
    world.execute("x = 1");
    world.ends_well(&["x"]);
    world.feed(crash());
    world.fresh_guest();
    world.command(assign("y", "1"));
    world.done();
    world.feed(crash());
    world.fresh_guest();
    let (told, next) = (world.execute("x"), world.execute("x"));
    world.feed(crash());
    assert_eq!(world.lost(told), ["x", "y"]);
    world.fresh_guest();
    world.ends(ok());
    assert_eq!(
        world.execution(next).state.status,
        StateStatus::Kept,
        "it was told already"
    );
}

#[test]
fn an_error_after_an_untold_loss_says_why_the_names_are_gone() {
    let mut world = World::ready();
    world.feed(crash());
    world.fresh_guest();
    let ticket = world.execute("x");
    world.ends(raised("NameError"));
    assert_eq!(world.failure(ticket), "NameError (variables were lost before it began)");
}

#[test]
fn reading_a_variable_that_hangs_is_stopped_and_then_ends_the_guest() {
    let mut world = World::ready();
    let stopped = world.get("x");
    world.wait(60_000.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
    world.event(Event::Refused {
        exchange: world.exchange(),
        message: "KeyboardInterrupt".to_owned(),
    });
    assert_eq!(world.code_of(stopped), "timeout");
    assert_eq!(world.boots, 1);
    let killed = world.get("x");
    world.wait(60_100.0);
    assert_eq!(world.code_of(killed), "guest_lost");
    assert_eq!(world.boots, 2);
}

#[test]
fn an_interrupt_stops_what_runs_and_nothing_else() {
    let mut world = World::ready();
    world.feed(Input::Interrupt);
    let (running, next) = (world.execute("long()"), world.execute("2"));
    world.feed(Input::Interrupt);
    assert_eq!(world.asked_for(), "interrupt Interrupt");
    world.feed(Input::Interrupt);
    world.ends(stopped(StopReason::Interrupt));
    assert_eq!(world.execution(running).outcome, Outcome::Interrupted);
    assert_eq!(
        world.failure(running),
        "KeyboardInterrupt: interrupted; variables are kept"
    );
    assert_eq!(world.asked_for(), "execute 2");
    world.ends(ok());
    assert_eq!(world.execution(next).outcome, Outcome::Ok);
}

#[test]
fn a_guest_that_ignores_an_interrupt_is_ended() {
    let mut world = World::ready();
    let ticket = world.execute("while True: pass");
    world.feed(Input::Interrupt);
    world.wait(100.0);
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, execution.state.status),
        (Outcome::Interrupted, StateStatus::Lost)
    );
    assert!(world.failure(ticket).starts_with("KeyboardInterrupt: it did not stop"));
}

#[test]
fn a_running_execution_is_interrupted_when_it_is_taken_back() {
    let mut world = World::ready();
    let ticket = world.execute("long()");
    world.feed(Input::Cancel(ticket));
    assert_eq!(world.asked_for(), "interrupt Interrupt");
    world.ends(stopped(StopReason::Interrupt));
    assert_eq!(world.execution(ticket).outcome, Outcome::Interrupted);
}

#[test]
fn a_queued_command_that_is_taken_back_never_runs() {
    let mut world = World::ready();
    let (running, execution, get) = (world.execute("1"), world.execute("2"), world.get("x"));
    world.feed(Input::Cancel(execution));
    world.feed(Input::Cancel(get));
    assert_eq!(world.execution(execution).outcome, Outcome::Interrupted);
    assert!(world.failure(execution).contains("nothing was run"));
    assert_eq!(world.code_of(get), "timeout");
    assert_eq!(world.asked_for(), "execute 1", "what runs is not touched");
    world.ends(ok());
    assert_eq!(world.execution(running).outcome, Outcome::Ok);
    assert_eq!(world.asked_for(), "execute 1", "there was nothing left to run");
}

#[test]
fn taking_back_what_is_over_or_never_was_does_nothing() {
    let mut world = World::ready();
    let over = world.execute("1");
    world.ends(ok());
    let running = world.execute("2");
    for ticket in [over, 999, 0] {
        world.feed(Input::Cancel(ticket));
    }
    assert_eq!(world.asked_for(), "execute 2");
    assert!(world.is_pending(running));
}

#[test]
fn total_time_runs_through_host_calls() {
    let mut world = World::ready_with(Limits {
        wall_timeout_ms: Some(3_000.0),
        ..limits()
    });
    let ticket = world.execute("ask()");
    world.calls("ask");
    world.wait(2_999.0);
    assert!(world.asked_for().starts_with("execute"));
    world.wait(1.0);
    assert_eq!(world.asked_for(), "interrupt WallTimeout");
    assert_eq!(world.aborted.len(), 1);
    world.ends(stopped(StopReason::WallTimeout));
    assert_eq!(world.execution(ticket).outcome, Outcome::Timeout);
    assert_eq!(
        world.failure(ticket),
        "TimeoutError: stopped after 3000 ms in all (wallTimeout); variables are kept"
    );
}

#[test]
fn the_clock_of_an_execution_starts_with_its_turn() {
    let mut world = World::new(limits());
    world.command(assign_context("c"));
    let ticket = world.execute("1");
    world.wait(9_000.0);
    world.boot();
    world.wait(9_000.0);
    world.done();
    world.wait(900.0);
    world.ends(ok());
    let execution = world.execution(ticket);
    assert_eq!((execution.outcome, execution.duration), (Outcome::Ok, 900.0));
}

#[test]
fn a_page_that_slept_past_every_deadline_still_asks_before_it_kills() {
    let mut world = World::ready();
    let ticket = world.execute("long()");
    world.now += 1e9;
    world.feed(Input::Tick);
    assert_eq!(world.asked_for(), "interrupt Timeout");
    world.ends(stopped(StopReason::Timeout));
    assert_eq!(world.execution(ticket).state.status, StateStatus::Kept);
}

#[test]
fn the_answer_that_comes_with_the_deadline_counts() {
    let mut world = World::ready();
    let get = world.get("x");
    world.now += 1e9;
    world.event_with(
        Event::Value {
            exchange: world.exchange(),
            encoding: sandglass_core::protocol::Encoding::Text,
        },
        b"5",
    );
    assert!(matches!(world.answer(get), Ok(Reply::Value(_))));
}
