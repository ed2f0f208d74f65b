//! What may be spent on models.

use sandglass::budget::{BudgetLimits, Usage};
use sandglass::deadline::StopReason;
use sandglass::execution::Outcome;
use sandglass::protocol::ReplyStatus;
use sandglass::session::{Command, Input};

use crate::stopping::stopped;
use crate::world::{World, ok, raised};

fn calls(most: f64) -> BudgetLimits {
    BudgetLimits {
        max_calls: Some(most),
        ..BudgetLimits::default()
    }
}

fn time(most: f64) -> BudgetLimits {
    BudgetLimits {
        max_time: Some(most),
        ..BudgetLimits::default()
    }
}

/// Python asks a model and is answered, or refused.
fn ask(world: &mut World, name: &str) -> Option<ReplyStatus> {
    let call = world.calls(name);
    if let [under_way] = world.under_way()[..] {
        world.returns(under_way, "an answer");
    }
    world.reply(call).map(|(status, _)| status)
}

#[test]
fn calls_of_models_are_counted_over_all_executions_and_others_are_not() {
    let mut world = World::ready_within(calls(2.0));
    let first = world.execute("llm_query('a')");
    assert_eq!(ask(&mut world, "llm_query"), Some(ReplyStatus::Ok));
    assert_eq!(ask(&mut world, "look"), Some(ReplyStatus::Ok));
    world.ends(ok());
    assert_eq!(world.execution(first).usage.map(|usage| usage.calls), Some(1.0));
    let second = world.execute("llm_query('b'); llm_query('c')");
    assert_eq!(ask(&mut world, "rlm_query"), Some(ReplyStatus::Ok));
    let call = world.calls("llm_query");
    let refusal = "the budget of 2 model calls is used up (maxCalls)";
    assert_eq!(world.reply(call), Some((ReplyStatus::Limit, refusal)));
    world.ends(raised("LimitError"));
    assert_eq!(world.execution(second).usage.map(|usage| usage.calls), Some(1.0));
}

#[test]
fn an_execution_may_have_a_budget_of_its_own() {
    let mut world = World::ready();
    let budget = calls(1.0);
    let ticket = world.command(Command::Execute {
        code: "…".to_owned(),
        timeout_ms: None,
        budget,
    });
    assert_eq!(ask(&mut world, "llm_query"), Some(ReplyStatus::Ok));
    assert_eq!(ask(&mut world, "llm_query"), Some(ReplyStatus::Limit));
    world.ends(ok());
    assert_eq!(world.execution(ticket).outcome, Outcome::Ok);
    world.execute("llm_query('again')");
    assert_eq!(ask(&mut world, "llm_query"), Some(ReplyStatus::Ok));
}

#[test]
fn what_an_answer_took_is_charged_while_its_call_is_under_way_only() {
    let mut world = World::ready_within(BudgetLimits {
        max_tokens: Some(10.0),
        ..BudgetLimits::default()
    });
    let usage = Usage {
        input_tokens: 4.0,
        output_tokens: 7.0,
        ..Usage::default()
    };
    let ticket = world.execute("…");
    world.calls("llm_query");
    let under_way = world.under_way()[0];
    world.feed(Input::Used(under_way, usage));
    world.returns(under_way, "an answer");
    world.feed(Input::Used(under_way, usage));
    assert_eq!(world.session.budget().spent().tokens(), 11.0);
    assert_eq!(ask(&mut world, "llm_query"), Some(ReplyStatus::Limit));
    world.ends(ok());
    assert_eq!(world.execution(ticket).usage.map(|usage| usage.tokens()), Some(11.0));
}

#[test]
fn a_batch_that_uses_the_budget_up_is_refused_slot_by_slot_as_its_turn_comes() {
    let mut world = World::ready_within(calls(3.0));
    world.execute("llm_query_batched(…)");
    let numbers: Vec<u32> = (0..5).map(|_| world.calls("llm_query")).collect();
    while let Some(&next) = world.under_way().first() {
        world.returns(next, "an answer");
    }
    let statuses: Vec<_> = numbers
        .iter()
        .map(|number| world.reply(*number).map(|(status, _)| status))
        .collect();
    let (well, refused) = (Some(ReplyStatus::Ok), Some(ReplyStatus::Limit));
    assert_eq!(statuses, [well, well, well, refused, refused]);
    assert_eq!(world.progress.last(), Some(&(5, 2, 5)));
}

#[test]
fn when_its_time_is_over_the_execution_ends_as_limit_and_the_next_one_is_not_run() {
    let mut world = World::ready_within(time(300.0));
    let ticket = world.execute("llm_query('slow')");
    world.calls("llm_query");
    world.wait(300.0);
    assert!(world.under_way().is_empty(), "nobody waits for its call any more");
    world.ends(stopped(StopReason::Budget));
    let execution = world.execution(ticket);
    assert_eq!(execution.outcome, Outcome::Limit);
    let error = "LimitError: the budget's time of 300 ms is over (maxTime); variables are kept";
    assert_eq!(execution.error.as_deref(), Some(error));
    let late = world.execute("1");
    let execution = world.execution(late);
    assert_eq!(execution.outcome, Outcome::Limit);
    assert!(
        execution
            .error
            .as_deref()
            .is_some_and(|error| error.ends_with("nothing was run"))
    );
}

#[test]
fn a_guest_that_goes_on_when_its_budget_is_over_is_ended() {
    let mut world = World::ready_within(time(300.0));
    let ticket = world.execute("while True: …");
    world.wait(300.0);
    world.wait(100.0);
    assert_eq!(world.execution(ticket).outcome, Outcome::Limit);
}

#[test]
fn recursion_ends_at_the_depth_that_is_allowed() {
    let mut world = World::ready_within(BudgetLimits {
        max_depth: Some(0.0),
        ..BudgetLimits::default()
    });
    world.execute("rlm_query('…')");
    assert_eq!(ask(&mut world, "llm_query"), Some(ReplyStatus::Ok));
    assert_eq!(ask(&mut world, "rlm_query"), Some(ReplyStatus::Limit));
}
