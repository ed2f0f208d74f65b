//! The value that an execution resolves to.

use sandglass_core::Error;
use sandglass_core::budget::BudgetLimits;
use sandglass_core::deadline::StopReason;
use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_core::protocol::{Encoding, Ended, Event, ExecutionReport, Request, Stream};
use sandglass_core::session::{Command, Execute, Reply};
use sandglass_core::stats::Outcomes;

use crate::world::{World, guest_lost, limits, ok, output, raised};

#[test]
fn concurrent_executions_run_one_by_one_in_order() {
    let mut world = World::ready();
    let tickets = [world.execute("a"), world.execute("b"), world.execute("c")];
    for (ticket, code) in tickets.into_iter().zip(["a", "b", "c"]) {
        assert!(world.is_pending(ticket));
        assert_eq!(world.asked_for(), format!("execute {code}"));
        world.ends(ok());
    }
    let ids = tickets.map(|ticket| world.execution(ticket).id);
    assert_eq!(ids, [1, 2, 3]);
}

#[test]
fn an_execution_tells_all_that_is_known() {
    let mut world = World::ready();
    let ticket = world.execute("f()");
    world.print("printed");
    world.event(output(world.exchange(), Stream::Stderr, "warned"));
    world.event(output(world.exchange(), Stream::Result, "42"));
    world.wait(30.0);
    world.ends_well(&["context", "f"]);
    let execution = world.execution(ticket);
    assert_eq!((execution.code.as_str(), execution.outcome), ("f()", Outcome::Ok));
    assert_eq!(
        (execution.stdout.as_str(), execution.stderr.as_str()),
        ("printed", "warned")
    );
    assert_eq!(execution.result.as_deref(), Some("42"));
    assert_eq!(
        (execution.duration, execution.guest_time, execution.host_calls),
        (30.0, 30.0, 0)
    );
    assert_eq!((execution.error.as_ref(), execution.error_type.as_ref()), (None, None));
    assert_eq!(execution.state.status, StateStatus::Kept);
    assert_eq!(world.printed, "printedwarned");
}

#[test]
fn an_exception_is_a_result() {
    let mut world = World::ready();
    let ticket = world.execute("1 / 0");
    world.print("before");
    world.event(output(
        world.exchange(),
        Stream::Error,
        "ZeroDivisionError: division by zero",
    ));
    world.event(output(world.exchange(), Stream::Traceback, "Traceback …"));
    world.ends(raised("ZeroDivisionError"));
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, execution.stdout.as_str()),
        (Outcome::Error, "before")
    );
    assert_eq!(execution.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    assert_eq!(execution.error_type.as_deref(), Some("ZeroDivisionError"));
    assert_eq!(execution.traceback.as_deref(), Some("Traceback …"));
    assert_eq!(execution.state.status, StateStatus::Kept);
}

#[test]
fn an_exception_without_a_message_still_has_an_error() {
    let mut world = World::ready();
    let ticket = world.execute("raise Stop");
    world.ends(raised("Stop"));
    assert_eq!(world.failure(ticket), "Stop");
}

#[test]
fn a_limit_in_the_guest_is_a_result() {
    let mut world = World::ready();
    let ticket = world.execute("for _ in range(9): ask()");
    world.event(output(world.exchange(), Stream::Error, "LimitError: no more calls"));
    world.ends(ExecutionReport {
        ended: Ended::Limit,
        ..raised("LimitError")
    });
    assert_eq!(world.execution(ticket).outcome, Outcome::Limit);
    assert_eq!(world.failure(ticket), "LimitError: no more calls");
}

#[test]
fn an_execution_that_ended_well_has_no_error() {
    let mut world = World::ready();
    let ticket = world.execute("1");
    world.event(output(world.exchange(), Stream::Error, "ValueError: forged"));
    world.event(output(world.exchange(), Stream::Traceback, "forged"));
    world.ends(ExecutionReport {
        error_type: Some("ValueError".to_owned()),
        ..ok()
    });
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, &execution.error, &execution.error_type),
        (Outcome::Ok, &None, &None)
    );
    assert_eq!(execution.traceback, None);
}

#[test]
fn long_output_keeps_its_head_and_tail() {
    let mut world = World::ready();
    let ticket = world.execute("print('…')");
    world.print(&"a".repeat(80));
    let exchange = world.exchange();
    world.event(Event::Output {
        exchange,
        stream: Stream::Stdout,
        skipped: 1_000,
        text: "b".repeat(100),
    });
    world.ends(ok());
    let execution = world.execution(ticket);
    let (head, tail) = ("a".repeat(50), "b".repeat(50));
    assert_eq!(
        execution.stdout,
        format!("{head}\n... [1080 characters omitted] ...\n{tail}")
    );
    assert_eq!((execution.truncated.stdout, execution.truncated.stderr), (1_080, 0));
    assert!(
        world.printed.contains("a\n... [1000 characters omitted] ...\nb"),
        "{}",
        world.printed
    );
}

#[test]
fn a_final_answer_comes_with_the_execution() {
    let mut world = World::ready();
    for (encoding, body) in [(Encoding::Text, b"forty-two".as_slice()), (Encoding::None, b"")] {
        let ticket = world.execute("FINAL(x)");
        let report = ExecutionReport {
            has_final: true,
            ..ok()
        };
        world.event_with(
            Event::Executed {
                exchange: world.exchange(),
                execution: report,
                encoding,
            },
            body,
        );
        let Ok(Reply::Execution(_, Some(last))) = world.answer(ticket) else {
            panic!("{:?}", world.answer(ticket))
        };
        assert_eq!((last.encoding, last.body.as_slice()), (encoding, body));
    }
}

#[test]
fn a_body_is_no_final_answer_unless_it_is_declared_one() {
    let mut world = World::ready();
    let ticket = world.execute("1");
    world.event_with(
        Event::Executed {
            exchange: world.exchange(),
            execution: ok(),
            encoding: Encoding::Text,
        },
        b"x",
    );
    assert!(matches!(world.answer(ticket), Ok(Reply::Execution(_, None))));
}

#[test]
fn code_that_is_too_long_never_reaches_the_guest() {
    let mut world = World::ready();
    let running = world.execute("1");
    let ticket = world.execute(&"é".repeat(1_001));
    let execution = world.execution(ticket);
    assert_eq!((execution.outcome, execution.id), (Outcome::Limit, 2));
    assert!(
        world
            .failure(ticket)
            .starts_with("LimitError: the code has 1001 characters, maxCodeLength is 1000")
    );
    assert_eq!(world.asked_for(), "execute 1");
    world.ends(ok());
    assert_eq!(world.execution(running).outcome, Outcome::Ok);
    world.execute(&"é".repeat(1_000));
    assert!(world.asked_for().starts_with("execute é"));
}

#[test]
fn an_execution_may_have_a_timeout_of_its_own() {
    let mut world = World::ready();
    let ticket = world.command(Command::Execute(Execute {
        code: "1".to_owned(),
        timeout_ms: Some(50.0),
        budget: BudgetLimits::default(),
    }));
    let guest = world.guest.as_ref().expect("it lives");
    assert!(matches!(
        guest.inbox.last(),
        Some((Request::Execute { timeout_ms: 50.0, .. }, None))
    ));
    world.wait(50.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
    world.ends(ExecutionReport {
        stopped: Some(StopReason::Timeout),
        ..raised("KeyboardInterrupt")
    });
    assert_eq!(
        world.failure(ticket),
        "TimeoutError: stopped after 50 ms of guest time; variables are kept"
    );
}

#[test]
fn a_guest_cannot_claim_a_stop_that_nobody_asked_for() {
    for claim in [StopReason::Interrupt, StopReason::WallTimeout] {
        let mut world = World::ready();
        let ticket = world.execute("raise KeyboardInterrupt");
        world.ends(ExecutionReport {
            stopped: Some(claim),
            ..raised("KeyboardInterrupt")
        });
        assert_eq!(world.execution(ticket).outcome, Outcome::Error, "{claim:?}");
        assert_eq!(world.failure(ticket), "KeyboardInterrupt");
    }
}

#[test]
fn a_guest_whose_own_clock_ran_out_first_is_believed() {
    let mut world = World::ready();
    let ticket = world.execute("while True: pass");
    world.wait(999.0);
    world.ends(ExecutionReport {
        stopped: Some(StopReason::Timeout),
        ..raised("KeyboardInterrupt")
    });
    assert_eq!(world.execution(ticket).outcome, Outcome::Timeout);
}

#[test]
fn what_the_guest_holds_and_sends_is_bounded_by_the_limits() {
    let mut world = World::new(limits());
    let empty = format!("{:?}", world.session).len();
    world = World::ready();
    world.execute("while True: print('x' * 10_000)");
    for _ in 0..3_000 {
        world.print(&"x".repeat(10_000));
    }
    assert!(world.guest.is_some());
    let full = format!("{:?}", world.session).len();
    assert!(full < empty + 5_000, "{full} characters after 30 MB, {empty} before");
}

#[test]
fn the_session_counts_what_it_has_done() {
    let mut world = World::ready();
    let fine = world.execute("f()");
    let call = world.calls("look");
    world.wait(5.0);
    let under_way = world.under_way()[0];
    world.returns(under_way, "found");
    assert!(world.reply(call).is_some());
    world.wait(30.0);
    world.ends(ok());
    assert_eq!(world.execution(fine).host_calls, 1);
    world.execute("1 / 0");
    world.ends(raised("ZeroDivisionError"));
    world.execute("while True: …");
    world.feed(guest_lost(Error::GuestLost("exit status 139".to_owned())));
    let long = "x".repeat(limits().max_code_chars as usize + 1);
    world.execute(&long);
    let stats = world.session.stats();
    let outcomes = Outcomes {
        ok: 1,
        error: 1,
        crashed: 1,
        limit: 1,
        ..Outcomes::default()
    };
    assert_eq!((&stats.executions, stats.host_calls), (&outcomes, 1));
    assert_eq!((stats.guests, stats.restored, stats.lost), (2, 0, 1));
    assert_eq!((stats.duration, stats.guest_time), (35.0, 30.0));
}
