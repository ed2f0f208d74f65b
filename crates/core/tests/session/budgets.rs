//! Budgets of models.

use sandglass_core::Profile;
use sandglass_core::budget::{BudgetLimits, Usage};
use sandglass_core::deadline::StopReason;
use sandglass_core::execution::Outcome;
use sandglass_core::protocol::ReplyStatus;
use sandglass_core::session::{Command, Execute, Input, Ticket};

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
    let ticket = world.command(Command::Execute(Execute {
        code: "…".to_owned(),
        timeout_ms: None,
        budget,
    }));
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
fn dspy_s_batches_are_admitted_or_refused_as_a_whole_before_any_call_is_started() {
    let mut world = World::ready_with_profile(Profile::Dspy, calls(7.0));
    let mut batch = |size: u32| -> Vec<Option<(ReplyStatus, String)>> {
        world.execute("llm_query_batched(…)");
        let numbers: Vec<u32> = (0..size).map(|_| world.calls_one_of(size, "llm_query")).collect();
        while let Some(&next) = world.under_way().first() {
            world.returns(next, "an answer");
        }
        let replies = numbers.iter().map(|number| world.reply(*number));
        let replies = replies
            .map(|reply| reply.map(|(status, text)| (status, text.to_owned())))
            .collect();
        world.ends(ok());
        replies
    };
    let well = || Some((ReplyStatus::Ok, "an answer".to_owned()));
    let refused = |sum: &str| {
        let text = format!(
            "LLM call limit exceeded: {sum}. Use Python code for aggregation instead of making more LLM calls."
        );
        Some((ReplyStatus::Limit, text))
    };
    assert_eq!(batch(5), vec![well(); 5], "more than may run at once");
    assert_eq!(batch(3), vec![refused("5 + 3 > 7"); 3]);
    assert_eq!(batch(2), vec![well(); 2]);
    assert_eq!(batch(1), vec![refused("7 + 1 > 7")]);
    assert_eq!(world.session.budget().spent().calls, 7.0);
}

#[test]
fn what_a_guest_says_of_the_size_of_a_batch_gives_it_no_call_more() {
    let mut world = World::ready_with_profile(Profile::Dspy, calls(4.0));
    world.execute("…");
    let mut answered = 0;
    for (number, size) in [3, 0, 1, u32::MAX, 2, 1, 9, 1, 1, 1].into_iter().enumerate() {
        if number % 5 == 0 {
            world.ends(ok());
            world.execute("…");
        }
        let call = world.calls_one_of(size, "llm_query");
        while let Some(&next) = world.under_way().first() {
            world.returns(next, "an answer");
        }
        answered += u32::from(matches!(world.reply(call), Some((ReplyStatus::Ok, _))));
        assert_ne!(world.reply(call), None);
    }
    assert!(answered <= 4, "{answered}");
    assert!(world.session.budget().spent().calls <= 4.0);
}

/// Has the oldest call of a model use 20 tokens and return.
fn answer(world: &mut World) {
    let first = world.under_way()[0];
    let usage = Usage {
        output_tokens: 20.0,
        ..Usage::default()
    };
    world.feed(Input::Used(first, usage));
    world.returns(first, "an answer");
}

/// A session in which one call of a model runs, and two wait, because two at once would use more than the 40 tokens that are left.
fn with_two_held() -> (World, Ticket, [u32; 3]) {
    let mut world = World::ready_within(BudgetLimits {
        max_tokens: Some(60.0),
        ..BudgetLimits::default()
    });
    let ticket = world.execute("llm_query_batched(…)");
    world.calls("llm_query");
    answer(&mut world);
    let numbers = [(); 3].map(|()| world.calls("llm_query"));
    assert_eq!(world.under_way().len(), 1);
    (world, ticket, numbers)
}

#[test]
fn calls_of_a_batch_wait_while_those_that_run_are_expected_to_use_up_the_tokens() {
    let (mut world, ticket, numbers) = with_two_held();
    answer(&mut world);
    assert_eq!(world.under_way().len(), 1, "one alone may pass the limit");
    answer(&mut world);
    let statuses = numbers.map(|number| world.reply(number).map(|(status, _)| status));
    assert_eq!(
        statuses,
        [ReplyStatus::Ok, ReplyStatus::Ok, ReplyStatus::Limit].map(Some)
    );
    world.ends(ok());
    assert_eq!(world.execution(ticket).usage.map(|usage| usage.tokens()), Some(60.0));
}

#[test]
fn other_functions_and_child_runs_pass_a_call_that_waits_for_tokens() {
    for name in ["ask", "rlm_query"] {
        let (mut world, _, held) = with_two_held();
        let number = world.calls(name);
        let passed = *world.under_way().last().expect("it has begun");
        world.returns(passed, "found");
        assert_eq!(
            world.reply(number).map(|(status, _)| status),
            Some(ReplyStatus::Ok),
            "{name}"
        );
        assert_eq!(world.reply(held[1]), None);
        assert_eq!(world.under_way().len(), 1);
    }
}

#[test]
fn nobody_waits_for_the_tokens_of_a_call_that_waits_for_approval() {
    let (mut world, ..) = with_two_held();
    let first = world.under_way()[0];
    world.feed(Input::NeedsApproval(first));
    assert_eq!(world.under_way().len(), 2);
}

#[test]
fn a_call_that_waits_for_tokens_is_refused_as_soon_as_none_are_left() {
    let (mut world, _, held) = with_two_held();
    let first = world.under_way()[0];
    let usage = Usage {
        output_tokens: 40.0,
        ..Usage::default()
    };
    world.feed(Input::Used(first, usage));
    world.returns(first, "an answer");
    let why = "the budget of 60 tokens is used up (maxTokens)";
    assert_eq!(world.reply(held[1]), Some((ReplyStatus::Limit, why)));
}

#[test]
fn a_batch_that_is_admitted_stops_when_its_tokens_are_used_up() {
    let limits = BudgetLimits {
        max_tokens: Some(10.0),
        ..calls(9.0)
    };
    let mut world = World::ready_with_profile(Profile::Dspy, limits);
    world.execute("llm_query_batched(…)");
    let numbers: Vec<u32> = (0..5).map(|_| world.calls_one_of(5, "llm_query")).collect();
    let first = world.under_way()[0];
    let usage = Usage {
        output_tokens: 11.0,
        ..Usage::default()
    };
    world.feed(Input::Used(first, usage));
    while let Some(&next) = world.under_way().first() {
        world.returns(next, "an answer");
    }
    let refused = world.reply(numbers[4]);
    assert_eq!(
        refused,
        Some((ReplyStatus::Limit, "the budget of 10 tokens is used up (maxTokens)"))
    );
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
