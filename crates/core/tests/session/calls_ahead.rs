//! Host calls that begin before their code is asked for.

use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_core::limits::Limits;
use sandglass_core::predictions::{Prediction, Source};
use sandglass_core::protocol::{Encoding, Ended, Event, ExecutionReport, ReplyStatus};
use sandglass_core::session::{Input, Session};
use sandglass_core::stats::CallsAhead;

use crate::world::{World, limits, ok};

/// A session with a saved state that may begin calls, as far as its budget allows.
fn ready_within(max_calls: Option<f64>) -> World {
    let limits = Limits {
        checkpoints: true,
        max_host_calls: 100,
        ..limits()
    };
    let budget = BudgetLimits {
        max_calls,
        ..BudgetLimits::default()
    };
    let names = ["ask", "llm_query", "rlm_query"].map(str::to_owned).to_vec();
    let session = Session::new(limits.clone(), names)
        .with_budget(Budget::new(budget, 1_000.0))
        .with_calls_ahead();
    let mut world = World::with(limits, session).begun();
    assert!(world.saves(true));
    world
}

/// The guest that runs code ahead makes a call; its number.
fn calls(world: &mut World, name: &str) -> u32 {
    let call = world.fresh_call();
    calls_as(world, name, call);
    call
}

fn calls_as(world: &mut World, name: &str, call: u32) {
    calls_with(world, name, call, b"args");
}

fn calls_with(world: &mut World, name: &str, call: u32, args: &[u8]) {
    let event = Event::HostCall {
        exchange: world.shadow_turn(),
        call,
        batch: 1,
        name: name.to_owned(),
        encoding: Encoding::Marshal,
        blocking: false,
    };
    world.shadow_says(event, Some(args));
}

fn begun(world: &World) -> Vec<u32> {
    world.begun.keys().copied().collect()
}

fn counts(world: &World) -> (u32, u32, u32) {
    let CallsAhead { begun, used, wasted } = world.session.stats().ahead.calls;
    (begun, used, wasted)
}

/// The code is asked for, and goes on as it was written.
fn asked_for(world: &mut World, code: &str) -> u32 {
    let ticket = world.execute(code);
    world.checks(true);
    ticket
}

#[test]
fn a_call_begins_while_its_code_is_written_and_answers_it() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    let first = calls(&mut world, "llm_query");
    let second = calls(&mut world, "llm_query");
    let third = calls(&mut world, "llm_query");
    let [early, late] = begun(&world)[..] else {
        panic!("as many as may run at the same time")
    };
    assert_eq!(world.session.budget().spent().calls, 2.0, "counted at once");
    world.returns(early, "one");
    world.feed(Input::Used(late, tokens(7.0)));
    assert_eq!(world.reply(first), None, "nobody has asked");
    assert_eq!(world.session.budget().spent().tokens(), 0.0);
    let ticket = asked_for(&mut world, "a\nb");
    assert_eq!(world.reply(first), Some((ReplyStatus::Ok, "one")));
    assert_eq!(world.session.budget().spent().tokens(), 7.0);
    // The third was never begun, and begins now.
    assert_eq!(world.under_way().len(), 2);
    assert!(world.begun.is_empty() && world.under_way().contains(&late));
    let usual = world.under_way()[0];
    world.returns(late, "two");
    world.returns(usual, "three");
    assert_eq!(world.reply(second), Some((ReplyStatus::Ok, "two")));
    assert_eq!(world.reply(third), Some((ReplyStatus::Ok, "three")));
    world.ends(ok());
    assert_eq!(world.execution(ticket).host_calls, 3);
    assert_eq!(world.session.budget().spent().calls, 3.0);
    assert_eq!(counts(&world), (2, 2, 0));
}

#[test]
fn an_answer_that_comes_while_its_call_waits_for_room_is_kept() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    let others = [calls(&mut world, "ask"), calls(&mut world, "ask")];
    let call = calls(&mut world, "llm_query");
    let early = begun(&world)[0];
    let ticket = asked_for(&mut world, "a\nb");
    assert_eq!(
        world.under_way().len(),
        others.len(),
        "as many as may run at the same time"
    );
    world.feed(Input::Used(early, tokens(7.0)));
    world.returns(early, "one");
    assert_eq!(world.reply(call), None);
    let other = world.under_way()[0];
    world.returns(other, "it");
    assert_eq!(world.reply(call), Some((ReplyStatus::Ok, "one")));
    let other = world.under_way()[0];
    world.returns(other, "it");
    world.ends(ok());
    let usage = world.execution(ticket).usage.expect("a model was asked");
    assert_eq!((usage.calls, usage.tokens()), (1.0, 7.0), "the execution's own");
    assert_eq!(counts(&world), (1, 1, 0));
}

#[test]
fn of_two_calls_with_one_number_the_second_does_not_begin() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    let number = calls(&mut world, "ask");
    calls_as(&mut world, "llm_query", number);
    assert!(begun(&world).is_empty());
}

#[test]
fn arguments_that_are_too_large_together_do_not_begin() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    let call = world.fresh_call();
    let event = Event::HostCall {
        exchange: world.shadow_turn(),
        call,
        batch: 1,
        name: "llm_query".to_owned(),
        encoding: Encoding::Marshal,
        blocking: false,
    };
    world.shadow_says(event, Some(&[b'x'; 1_001]));
    assert!(begun(&world).is_empty());
}

#[test]
fn a_failure_is_told_when_the_code_is_asked_for() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    let call = calls(&mut world, "llm_query");
    let early = begun(&world)[0];
    world.fails(early, "the model is gone");
    asked_for(&mut world, "a\nb");
    assert_eq!(world.reply(call), Some((ReplyStatus::Error, "the model is gone")));
}

#[test]
fn calls_that_no_code_makes_are_aborted_and_paid_for() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    let early = begun(&world)[0];
    world.feed(Input::Used(early, tokens(5.0)));
    for code in ["b", "c"] {
        assert!(world.aborted.is_empty(), "the code that comes next may make it");
        world.execute(code);
        assert_eq!(world.asked_for(), format!("execute {code}"));
        world.ends(ok());
    }
    assert!(world.begun.is_empty() && world.aborted.contains(&early));
    assert_eq!(counts(&world), (1, 0, 1));
    let spent = world.session.budget().spent();
    assert_eq!((spent.calls, spent.tokens()), (1.0, 5.0));
    world.returns(early, "late");
}

#[test]
fn the_same_calls_in_a_reply_that_is_mended_answer_it() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    calls(&mut world, "llm_query");
    let [early, late] = begun(&world)[..] else {
        panic!("two begin")
    };
    world.returns(early, "one");
    // The code is cut, and fails.
    world.execute("a(");
    world.ends(ExecutionReport {
        ended: Ended::Error,
        error_type: Some("SyntaxError".to_owned()),
        ..ok()
    });
    world.wait(60.0);
    world.saves(true);
    world.writes("a");
    world.shadow_begins();
    let first = calls(&mut world, "llm_query");
    let second = calls(&mut world, "llm_query");
    let other = world.fresh_call();
    calls_with(&mut world, "llm_query", other, b"other");
    assert_eq!(
        begun(&world),
        [early, late],
        "none begins anew, and too many may be in vain for another"
    );
    let ticket = asked_for(&mut world, "a\nb");
    assert_eq!(world.reply(first), Some((ReplyStatus::Ok, "one")));
    world.returns(late, "two");
    assert_eq!(world.reply(second), Some((ReplyStatus::Ok, "two")));
    let usual = world.under_way()[0];
    world.returns(usual, "three");
    world.ends(ok());
    assert_eq!(world.execution(ticket).host_calls, 3);
    assert_eq!(world.session.budget().spent().calls, 3.0);
    assert_eq!(counts(&world), (2, 2, 0));
}

#[test]
fn a_reply_that_begins_again_makes_the_same_calls() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    world.writes("");
    let early = begun(&world);
    assert!(early.len() == 1 && world.aborted.is_empty());
    world.saves(true);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    assert_eq!(begun(&world), early);
}

#[test]
fn calls_that_are_left_end_with_the_sandbox() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    let early = begun(&world)[0];
    world.writes("");
    world.feed(Input::Destroy);
    assert!(world.aborted.contains(&early));
    assert_eq!(counts(&world), (1, 0, 1));
}

#[test]
fn too_much_waste_ends_it_until_there_are_enough_calls() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    world.execute("b");
    let made: Vec<u32> = (0..19).map(|_| world.calls("ask")).collect();
    for _ in &made {
        let call = world.under_way()[0];
        world.returns(call, "it");
    }
    world.ends(ok());
    world.execute("b"); // does not make the call either
    world.ends(ok());
    let again = |world: &mut World, code: &str| {
        world.wait(60.0);
        world.saves(true);
        world.writes(code);
        world.shadow_begins();
        calls(world, "llm_query");
        begun(world)
    };
    assert!(again(&mut world, "c").is_empty(), "1 of 19 is more than a twentieth");
    asked_for(&mut world, "c\nd");
    let call = world.under_way()[0];
    world.returns(call, "it");
    world.ends(ok());
    assert_eq!(again(&mut world, "e").len(), 1);
}

#[test]
fn the_budget_bounds_what_begins() {
    let mut world = ready_within(Some(1.0));
    world.writes("a");
    world.shadow_begins();
    let (first, second) = (calls(&mut world, "llm_query"), calls(&mut world, "llm_query"));
    let early = begun(&world);
    assert_eq!(early.len(), 1);
    asked_for(&mut world, "a\nb");
    assert_eq!(world.under_way(), early);
    world.returns(early[0], "it");
    assert_eq!(world.reply(first), Some((ReplyStatus::Ok, "it")));
    assert!(matches!(world.reply(second), Some((ReplyStatus::Limit, _))));
}

#[test]
fn an_interrupt_aborts_claimed_calls() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    let early = begun(&world);
    asked_for(&mut world, "a\nb");
    world.feed(Input::Interrupt);
    assert!(world.calls.is_empty() && world.aborted.contains(&early[0]));
}

#[test]
fn only_model_queries_of_written_code_begin_and_only_if_wanted() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "ask");
    calls(&mut world, "rlm_query");
    assert!(begun(&world).is_empty());
    // A guess of the user's may be wrong.
    let mut world = ready_within(None);
    world.feed(Input::Hint(vec![Prediction::told(
        0,
        "a".to_owned(),
        Source::Explicit,
        1.0,
    )]));
    world.shadow_begins();
    calls(&mut world, "llm_query");
    assert!(begun(&world).is_empty());
    // Off by default.
    let mut world = World::ready_with(Limits {
        checkpoints: true,
        ..limits()
    });
    world.saves(true);
    world.writes("a");
    world.shadow_begins();
    calls(&mut world, "llm_query");
    assert!(begun(&world).is_empty());
}

#[test]
fn a_guest_that_numbers_two_calls_alike_gets_one() {
    let mut world = ready_within(None);
    world.writes("a");
    world.shadow_begins();
    let call = calls(&mut world, "llm_query");
    calls_as(&mut world, "llm_query", call);
    assert_eq!(begun(&world).len(), 1);
    world.execute("a\nb");
    world.checks(true);
    assert!(world.begun.is_empty() && world.calls.is_empty(), "the guest was ended");
}

fn tokens(count: f64) -> Usage {
    Usage {
        input_tokens: count,
        ..Usage::default()
    }
}
