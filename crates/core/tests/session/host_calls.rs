//! Python calls the host.

use sandglass_core::deadline::StopReason;
use sandglass_core::execution::Outcome;
use sandglass_core::limits::Limits;
use sandglass_core::protocol::{ExecutionReport, ReplyStatus};
use sandglass_core::session::Input;

use crate::world::{World, bad_message, limits, ok, raised};

#[test]
fn a_call_is_answered_with_what_the_function_returned() {
    let mut world = World::ready();
    let ticket = world.execute("ask('why')");
    let call = world.calls("ask");
    let [number] = world.under_way()[..] else {
        panic!("one call is under way")
    };
    assert_eq!(world.calls[&number], ("ask".to_owned(), b"args".to_vec()));
    world.returns(number, "because");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "because")));
    world.ends(ok());
    assert_eq!(world.execution(ticket).host_calls, 1);
}

#[test]
fn a_function_that_fails_is_told_to_the_guest() {
    let mut world = World::ready();
    world.execute("ask()");
    let call = world.calls("ask");
    world.fails(world.under_way()[0], "TypeError: no");
    assert_eq!(world.reply(call), Some((ReplyStatus::Error, "TypeError: no")));
}

#[test]
fn calls_start_in_order_and_only_so_many_at_a_time() {
    let mut world = World::ready();
    world.execute("ask_all()");
    let calls = [
        world.calls("ask"),
        world.calls("look"),
        world.calls("ask"),
        world.calls("look"),
    ];
    let [first, second] = world.under_way()[..] else {
        panic!("two at a time")
    };
    world.returns(second, "second");
    let [_, third] = world.under_way()[..] else {
        panic!("two at a time")
    };
    assert_eq!(world.calls[&third].0, "ask");
    world.returns(first, "first");
    let [_, fourth] = world.under_way()[..] else {
        panic!("two at a time")
    };
    assert_eq!(world.calls[&fourth].0, "look");
    world.returns(fourth, "fourth");
    world.returns(third, "third");
    for (call, answer) in calls.into_iter().zip(["first", "second", "third", "fourth"]) {
        assert_eq!(world.reply(call), Some((ReplyStatus::Ok, answer)));
    }
}

#[test]
fn calls_beyond_their_number_are_refused_and_the_execution_goes_on() {
    let mut world = World::ready();
    let ticket = world.execute("while True: ask()");
    for _ in 0..5 {
        world.calls("ask");
        world.returns(world.under_way()[0], "yes");
    }
    let call = world.calls("ask");
    let (status, message) = world.reply(call).expect("an answer at once");
    assert_eq!(status, ReplyStatus::Limit);
    assert!(message.contains("5 host calls (maxHostCalls)"), "{message}");
    assert!(world.calls.is_empty());
    world.ends(ok());
    assert_eq!(world.execution(ticket).host_calls, 6);
    world.execute("ask()");
    world.calls("ask");
    assert_eq!(world.calls.len(), 1, "every execution counts anew");
}

#[test]
fn as_many_calls_as_the_limit_allows_are_no_flood() {
    let mut world = World::ready_with(Limits {
        max_host_calls: 10_000,
        max_value_bytes: 1e6,
        ..limits()
    });
    let ticket = world.execute("llm_query_batched(prompts)");
    let calls: Vec<u32> = (0..10_000).map(|_| world.calls("ask")).collect();
    while let Some(&number) = world.under_way().first() {
        world.returns(number, "yes");
    }
    assert_eq!(world.reply(calls[9_999]), Some((ReplyStatus::Ok, "yes")));
    world.ends(ok());
    assert_eq!(world.execution(ticket).host_calls, 10_000);
}

#[test]
fn a_call_that_takes_too_long_is_aborted_and_the_next_one_starts() {
    let mut world = World::ready();
    world.execute("ask_all()");
    let calls = [world.calls("ask"), world.calls("ask"), world.calls("ask")];
    world.wait(5_000.0);
    let (status, message) = world.reply(calls[0]).expect("an answer");
    assert_eq!(
        (status, message),
        (ReplyStatus::Timeout, "ask took longer than 5000 ms (hostCallTimeout)")
    );
    assert_eq!(world.aborted.len(), 2);
    assert_eq!(world.calls.len(), 1, "the third has its place now");
    world.wait(4_999.0);
    world.returns(world.under_way()[0], "in time");
    assert_eq!(world.reply(calls[2]), Some((ReplyStatus::Ok, "in time")));
}

#[test]
fn the_time_of_an_approval_does_not_count_for_a_call() {
    let mut world = World::ready();
    world.execute("ask()");
    let call = world.calls("ask");
    let number = world.under_way()[0];
    world.wait(4_000.0);
    world.feed(Input::NeedsApproval(number));
    world.wait(3_600_000.0);
    world.feed(Input::Approved(number));
    world.wait(4_999.0);
    assert_eq!((world.reply(call), world.aborted.len()), (None, 0));
    world.wait(1.0);
    assert_eq!(world.reply(call).map(|(status, _)| status), Some(ReplyStatus::Timeout));
    world.feed(Input::Approved(number));
    world.feed(Input::NeedsApproval(99));
}

#[test]
fn the_line_that_calls_is_known_while_its_code_runs() {
    let mut world = World::ready();
    world.execute("a\r\nb\rc\n\nd");
    let lines = |world: &World, execution| {
        let lines = (0..=6).filter_map(|number| world.session.line(execution, number));
        lines.collect::<Vec<_>>()
    };
    assert_eq!(lines(&world, 1), ["a", "b", "c", "", "d"]);
    assert!(lines(&world, 2).is_empty());
    world.ends(ok());
    assert!(lines(&world, 1).is_empty());
}

#[test]
fn a_function_that_does_not_exist_is_refused() {
    let mut world = World::ready();
    world.execute("call('rm')");
    let call = world.calls("rm");
    assert_eq!(
        world.reply(call),
        Some((
            ReplyStatus::Error,
            "the host has no function rm: pass it in hostFunctions, or in host_functions in Python, or by host_function in Rust, when you create the sandbox"
        ))
    );
    assert!(world.calls.is_empty());
}

#[test]
fn arguments_that_wait_are_bounded() {
    let mut world = World::ready_with(Limits {
        max_value_bytes: 10.0,
        ..limits()
    });
    world.execute("ask_all()");
    let calls: Vec<u32> = (0..5).map(|_| world.calls("ask")).collect();
    assert_eq!(world.reply(calls[3]), None);
    assert_eq!(
        world.reply(calls[4]).map(|(status, _)| status),
        Some(ReplyStatus::Limit)
    );
}

#[test]
fn returns_that_nobody_waits_for_are_ignored() {
    let mut world = World::ready();
    world.execute("ask()");
    world.calls("ask");
    let number = world.under_way()[0];
    world.returns(number, "once");
    let told = world.guest.as_ref().map(|guest| guest.inbox.len());
    for stale in [number, 0, 999] {
        world.returns(stale, "again");
    }
    assert_eq!(world.guest.as_ref().map(|guest| guest.inbox.len()), told);
}

#[test]
fn a_return_from_a_guest_before_does_not_answer_this_one() {
    let mut world = World::ready();
    world.execute("ask()");
    world.calls("ask");
    let stale = world.under_way()[0];
    world.feed(bad_message("what".to_owned()));
    assert!(world.aborted.contains(&stale));
    world.fresh_guest();
    world.execute("ask()");
    let call = world.calls("ask");
    world.returns(stale, "the answer to another question");
    assert_eq!(world.reply(call), None);
    world.returns(world.under_way()[0], "the answer");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "the answer")));
}

#[test]
fn calls_are_aborted_when_their_execution_ends() {
    let mut world = World::ready();
    let ticket = world.execute("start_task(ask)");
    let calls = [world.calls("ask"), world.calls("ask"), world.calls("ask")];
    let under_way = world.under_way();
    world.ends(ok());
    assert_eq!(world.aborted.iter().copied().collect::<Vec<_>>(), under_way);
    assert_eq!(world.execution(ticket).host_calls, 3);
    world.execute("2");
    under_way.into_iter().for_each(|number| world.returns(number, "late"));
    assert!(calls.into_iter().all(|call| world.reply(call).is_none()));
    assert!(world.calls.is_empty(), "the third never started");
}

#[test]
fn waiting_for_the_host_is_not_guest_time() {
    let mut world = World::ready();
    let ticket = world.execute("ask_twice()");
    world.wait(600.0);
    world.calls("ask");
    world.wait(1_000.0);
    world.calls("ask");
    let [first, second] = world.under_way()[..] else {
        panic!("two at a time")
    };
    world.returns(first, "1");
    world.wait(1_000.0);
    assert_eq!(
        world.guest.as_ref().and_then(|guest| guest.interrupted),
        None,
        "one call is still pending"
    );
    world.returns(second, "2");
    world.wait(399.0);
    assert_eq!(world.guest.as_ref().and_then(|guest| guest.interrupted), None);
    world.wait(1.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
    world.ends(ExecutionReport {
        stopped: Some(StopReason::Timeout),
        ..raised("KeyboardInterrupt")
    });
    let execution = world.execution(ticket);
    assert_eq!(
        (execution.outcome, execution.guest_time, execution.duration),
        (Outcome::Timeout, 1_000.0, 3_000.0)
    );
}

#[test]
fn a_refused_call_does_not_stop_the_clock() {
    let mut world = World::ready();
    world.execute("while True: call('rm')");
    world.calls("rm");
    world.wait(1_000.0);
    assert_eq!(world.asked_for(), "interrupt Timeout");
}

#[test]
fn an_interrupt_aborts_the_calls_and_later_ones_are_refused() {
    let mut world = World::ready();
    world.execute("ask()");
    let pending = world.calls("ask");
    world.feed(Input::Interrupt);
    assert_eq!(world.aborted.len(), 1);
    assert_eq!(world.reply(pending), None, "the guest rejects it itself");
    let stubborn = world.calls("ask");
    assert_eq!(
        world.reply(stubborn),
        Some((ReplyStatus::Error, "the execution is being stopped"))
    );
    world.wait(100.0);
    assert_eq!(world.boots, 2, "it goes on calling, and is ended all the same");
}
