//! Tests of trees of runs, with scripted models and sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_rlm::event::{RlmEvent, RlmEventKind, RunOutcome};
use sandglass_rlm::openai::Reply;
use sandglass_rlm::query::{self, Refused};
use sandglass_rlm::schema::Schema;
use sandglass_rlm::tree::{Answer, Came, Input, Next, Query, Rules, Run, Step, Tree, Work};
use serde_json::json;

use super::controller::{cell, execution, said};
use sandglass_core::execution::Outcome;

fn rules() -> Rules {
    Rules {
        schema: None,
        max_iterations: 3,
        max_prompt_tokens: 4_000,
        max_depth: 1,
        output_chars: 20_000,
        functions: Vec::new(),
        packages: Vec::new(),
        models: Vec::new(),
        instructions: None,
        sub_price: Some([1.0, 2.0]),
    }
}

fn budget() -> Budget {
    Budget::new(BudgetLimits::default(), 0.0)
}

/// The first run of a tree, with its first block running.
fn running(tree: &Arc<Tree>) -> Run {
    let mut run = tree.root("Find it.".to_owned(), budget(), 0.0);
    assert!(matches!(
        run.handle(0.0, Input::Ready(Vec::new())).step,
        Some(Step::Ask(1, _))
    ));
    let next = run.handle(1.0, Input::Replied(Ok(said(&cell("look")))));
    assert_eq!(next.step, Some(Step::Execute("look".to_owned())));
    run
}

fn executed() -> Input {
    Input::Executed(Box::new(execution(Outcome::Ok, "")), None)
}

fn ask(run: &mut Run, prompt: &str) -> Query {
    run.llm_query(2.0, Ok(prompt.to_owned()), None, false)
}

fn recurse(run: &mut Run, context: Result<Option<String>, String>) -> Query {
    run.rlm_query(2.0, Ok("part".to_owned()), budget(), |_| context)
}

fn ended(next: &Next) -> (&Option<String>, &Option<String>, &Option<Usage>) {
    let Some(RlmEventKind::CallEnded {
        answer, error, usage, ..
    }) = next.events.first().map(|event| &event.kind)
    else {
        panic!("no call has ended: {next:?}");
    };
    (answer, error, usage)
}

#[test]
fn a_run_goes_on_when_all_its_queries_are_answered() {
    let mut run = running(&Tree::new(rules(), 0.0));
    let (first, second) = (ask(&mut run, "a"), ask(&mut run, "b"));
    assert_eq!((first.call, second.call), (1, 2));
    let next = run.handle(3.0, executed());
    assert!(next.events.is_empty() && next.step.is_none(), "{next:?}");
    let (_, next) = run.answered(4.0, 2, Came::Reply(said("x")));
    assert!(next.events.len() == 1 && next.step.is_none(), "{next:?}");
    let (_, next) = run.answered(5.0, 1, Came::Stopped);
    assert!(matches!(next.step, Some(Step::Ask(2, _))), "{next:?}");
    assert!(matches!(next.events[0].kind, RlmEventKind::CallEnded { call: 1, .. }));
    assert!(matches!(next.events[1].kind, RlmEventKind::ExecutionEnded { .. }));
}

#[test]
fn an_answer_has_its_usage_and_its_event() {
    let mut run = running(&Tree::new(rules(), 0.0));
    let Query { call, started, work } = run.llm_query(2.0, Ok("a".to_owned()), Some("m".repeat(1_000)), false);
    let RlmEventKind::CallStarted { model, child, .. } = &started.kind else {
        panic!("{started:?}");
    };
    assert_eq!(model.as_ref().map(String::len), Some(200));
    assert_eq!((started.run.as_str(), started.time, child), ("0", 2.0, &None));
    let Work::Ask(messages, named) = work else {
        panic!("{work:?}")
    };
    assert_eq!((messages[0].content.as_str(), named), ("a", model.clone()));
    let (answer, next) = run.answered(4.0, call, Came::Reply(said("x")));
    let usage = Usage {
        input_tokens: 10.0,
        output_tokens: 5.0,
        ..Usage::default()
    };
    let text = "x".to_owned();
    assert_eq!(answer, Ok(Answer { text, usage }));
    assert_eq!(ended(&next), (&Some("x".to_owned()), &None, &Some(usage)));
    let (again, next) = run.answered(4.0, call, Came::Reply(said("y")));
    assert!(again.is_err() && next.events.is_empty(), "it has ended once");
}

#[test]
fn usage_that_nobody_tells_is_estimated_by_the_prompt() {
    let mut run = running(&Tree::new(rules(), 0.0));
    let query = ask(&mut run, &"a".repeat(400));
    let untold = Reply {
        usage: None,
        ..said("x")
    };
    let (answer, _) = run.answered(4.0, query.call, Came::Reply(untold));
    assert!(answer.is_ok_and(|answer| answer.usage.input_tokens >= 100.0));
}

/// A call that was begun while the run's first reply is written.
fn begun(tree: &Arc<Tree>) -> (Run, u32) {
    let mut run = tree.root("Find it.".to_owned(), budget(), 0.0);
    run.handle(0.0, Input::Ready(Vec::new()));
    let query = run.llm_query(1.0, Ok("a".repeat(40)), None, true);
    assert!(matches!(
        query.started.kind,
        RlmEventKind::CallStarted { ahead: true, .. }
    ));
    (run, query.call)
}

#[test]
fn a_reply_does_not_wait_for_calls_that_it_has_begun() {
    let (mut run, call) = begun(&Tree::new(rules(), 0.0));
    run.came(2.0, call, &Came::Reply(said("x")));
    let next = run.handle(3.0, Input::Replied(Ok(said(&cell("look")))));
    assert_eq!(next.step, Some(Step::Execute("look".to_owned())));
    // What follows the code waits for those that the code has made, as for all others.
    run.claimed(call);
    let next = run.handle(4.0, executed());
    assert!(next.events.is_empty() && next.step.is_none(), "{next:?}");
    let (answer, next) = run.answered(9.0, call, Came::Reply(said("x")));
    assert_eq!(answer.unwrap().text, "x");
    assert!(matches!(
        next.events[0].kind,
        RlmEventKind::CallEnded {
            wasted: false,
            duration: 1.0,
            ..
        }
    ));
    assert!(matches!(next.step, Some(Step::Ask(2, _))), "{next:?}");
}

/// The use of the call that ends in vain, where there is one.
fn wasted(next: &Next) -> Option<Usage> {
    next.events.iter().find_map(|event| match &event.kind {
        RlmEventKind::CallEnded {
            wasted: true, usage, ..
        } => *usage,
        _ => None,
    })
}

#[test]
fn calls_that_no_code_has_made_are_left_to_the_next_reply() {
    let (mut run, call) = begun(&Tree::new(rules(), 0.0));
    run.came(2.0, call, &Came::Reply(said("x")));
    run.handle(3.0, Input::Replied(Ok(said(&cell("look(")))));
    let next = run.handle(4.0, executed());
    assert!(matches!(next.step, Some(Step::Ask(2, _))), "{next:?}");
    // A run that ends first has them in vain, with what they have used.
    let input = run.budget().spent().input_tokens;
    let next = run.handle(5.0, Input::Replied(Ok(said("FINAL(it is so)"))));
    let wasted = wasted(&next).expect("the call ends");
    assert!(wasted.output_tokens > 0.0, "{wasted:?}");
    assert!(run.budget().spent().input_tokens >= input + wasted.input_tokens);
    let told = next.events.iter().find_map(|event| match &event.kind {
        RlmEventKind::RunEnded { usage, .. } => Some(*usage),
        _ => None,
    });
    assert_eq!(told, Some(run.budget().spent()), "the end of the run counts them");
}

#[test]
fn a_run_that_ends_pays_for_calls_in_vain_by_what_came_of_them() {
    for (came, is_paid) in [(Some(Came::Failed("busy".to_owned())), false), (None, true)] {
        let (mut run, call) = begun(&Tree::new(rules(), 0.0));
        if let Some(came) = &came {
            run.came(2.0, call, came);
        }
        let next = run.handle(3.0, Input::Replied(Ok(said("FINAL(it is so)"))));
        let wasted = wasted(&next).expect("the call ends");
        assert_eq!(
            (wasted.cost > 0.0, wasted.input_tokens > 0.0),
            (is_paid, is_paid),
            "{came:?}"
        );
    }
}

#[test]
fn a_call_in_vain_is_charged_once() {
    let (mut run, call) = begun(&Tree::new(rules(), 0.0));
    let (answer, next) = run.answered(2.0, call, Came::Wasted(Reply::default()));
    assert!(answer.unwrap_err().contains("did not make this call"));
    assert!(matches!(
        next.events[0].kind,
        RlmEventKind::CallEnded { wasted: true, .. }
    ));
    let spent = run.budget().spent();
    assert_eq!(
        (spent.calls, spent.input_tokens),
        (1.0, 14.0),
        "the call of the turn, and the prompt"
    );
    assert!(run.answered(3.0, call, Came::Wasted(Reply::default())).0.is_err());
    assert_eq!(run.budget().spent().input_tokens, 14.0);
}

#[test]
fn calls_in_vain_end_before_a_run_that_needs_no_code() {
    let (mut run, call) = begun(&Tree::new(rules(), 0.0));
    let next = run.handle(2.0, Input::Replied(Ok(said("FINAL(it is so)"))));
    assert!(matches!(next.step, Some(Step::Finish(_))), "{next:?}");
    let at = |is: fn(&RlmEventKind) -> bool| next.events.iter().position(|event| is(&event.kind));
    let wasted = at(|kind| matches!(kind, RlmEventKind::CallEnded { wasted: true, .. }));
    let over = at(|kind| matches!(kind, RlmEventKind::RunEnded { .. }));
    assert!(wasted.is_some() && wasted < over, "{:?}", next.events);
    let (_, next) = run.answered(3.0, call, Came::Wasted(Reply::default()));
    assert!(next.events.is_empty() && next.step.is_none(), "{next:?}");
}

#[test]
fn a_prompt_that_does_not_fit_is_refused() {
    let mut run = running(&Tree::new(rules(), 0.0));
    let refused = query::checked("x".repeat(16_001), 4_000);
    let Query { call, started, work } = run.llm_query(2.0, refused.clone(), None, false);
    let Work::Refuse(why) = work else { panic!("{work:?}") };
    assert!(why.contains("16001 characters"), "{why}");
    assert!(matches!(
        started.kind,
        RlmEventKind::CallStarted {
            prompt_chars: 16_001,
            ..
        }
    ));
    let (answer, next) = run.answered(2.0, call, Came::Failed(why.clone()));
    assert_eq!(answer, Err(why.clone()));
    assert_eq!(ended(&next), (&None, &Some(why), &None));
    // A refused task starts no run either.
    let query = run.rlm_query(3.0, refused, budget(), |_| Ok(None));
    assert!(matches!(query.work, Work::Refuse(_)));
    assert!(matches!(
        query.started.kind,
        RlmEventKind::CallStarted { child: None, .. }
    ));
    assert_eq!(
        query::checked("short".to_owned(), 4_000),
        Ok::<_, Refused>("short".to_owned())
    );
}

#[test]
fn children_are_numbered_and_answer_with_texts() {
    let typed = Rules {
        schema: Some(Schema::new(json!({ "type": "integer" })).unwrap()),
        ..rules()
    };
    let mut run = running(&Tree::new(typed, 0.0));
    for number in 0..2 {
        let Query { call, started, work } = recurse(&mut run, Ok(None));
        let id = format!("0.{number}");
        assert!(matches!(started.kind, RlmEventKind::CallStarted { child: Some(child), .. } if child == id));
        let Work::Recurse(mut child) = work else {
            panic!("{work:?}")
        };
        assert_eq!((child.id(), child.depth()), (id.as_str(), 1));
        let begun = child.handle(3.0, Input::Ready(Vec::new()));
        assert!(begun.events.iter().all(|event| event.run == id && event.depth == 1));
        let RlmEventKind::RunStarted { answer_schema, .. } = &begun.events[0].kind else {
            panic!("{begun:?}");
        };
        assert_eq!(answer_schema, &None);
        let Some(Step::Finish(finish)) = child.handle(5.0, Input::Failed("no memory".to_owned())).step else {
            panic!("the child goes on");
        };
        let (answer, _) = run.answered(6.0, call, Came::Finish(finish));
        assert_eq!(answer, Err("the child run has no answer: no memory".to_owned()));
    }
    let Query { call, work, .. } = recurse(&mut run, Ok(None));
    let Work::Recurse(mut child) = work else {
        panic!("{work:?}")
    };
    child.handle(3.0, Input::Ready(Vec::new()));
    let next = child.handle(4.0, Input::Replied(Ok(said("FINAL(some of them)"))));
    let Some(Step::Finish(finish)) = next.step else {
        panic!("{next:?}")
    };
    let (answer, next) = run.answered(6.0, call, Came::Finish(finish));
    assert_eq!(answer.unwrap().text, "some of them");
    assert_eq!(ended(&next).2, &None, "its calls are counted by themselves");
}

#[test]
fn the_sub_model_answers_where_there_is_no_deeper_level() {
    let flat = Rules {
        max_depth: 0,
        ..rules()
    };
    let mut run = running(&Tree::new(flat, 0.0));
    let Work::Ask(messages, None) = recurse(&mut run, Ok(Some("data".to_owned()))).work else {
        panic!("another way");
    };
    assert_eq!(messages[0].content, "part\n\ndata");
    for (context, why) in [
        (Ok(None), "pass a smaller ctx"),
        (Ok(Some("x".repeat(16_000))), "pass a smaller ctx"),
        (Err("it is no text".to_owned()), "it is no text"),
    ] {
        let Work::Refuse(told) = recurse(&mut run, context).work else {
            panic!("another way");
        };
        assert!(told.contains(why), "{told}");
    }
    let mut most = 0;
    run.rlm_query(2.0, Ok(String::new()), budget(), |bytes| {
        most = bytes;
        Ok(None)
    });
    assert_eq!(most, 16_000);
}

#[test]
fn a_run_that_is_ended_says_why() {
    let why_of = |tree: &Arc<Tree>, input: Input| {
        let Some(Step::Finish(finish)) = running(tree).handle(3.0, input).step else {
            panic!("it goes on");
        };
        (finish.outcome, finish.error.unwrap())
    };
    let tree = Tree::new(rules(), 0.0);
    let failed = why_of(&tree, Input::Failed("no memory".to_owned()));
    assert_eq!(failed, (RunOutcome::Failed, "no memory".to_owned()));
    let (outcome, why) = why_of(&tree, Input::Stopped);
    assert_eq!(outcome, RunOutcome::Aborted);
    assert!(why.contains("nobody waits"), "{why}");
    tree.stop(RunOutcome::Limit, "its time is over");
    tree.stop(RunOutcome::Aborted, "too late to be the reason");
    let stopped = why_of(&tree, Input::Stopped);
    assert_eq!(stopped, (RunOutcome::Limit, "its time is over".to_owned()));
}

#[test]
fn an_answer_to_nothing_ends_the_run() {
    let mut run = Tree::new(rules(), 0.0).root("Find it.".to_owned(), budget(), 0.0);
    let next = run.handle(1.0, executed());
    let Some(Step::Finish(finish)) = next.step else {
        panic!("{next:?}")
    };
    assert!(finish.error.unwrap().contains("standstill"));
}

/// A driver that does one step at a time, in any order.
struct Simulation {
    tree: Arc<Tree>,
    runs: BTreeMap<String, Driven>,
    events: Vec<RlmEvent>,
    /// Calls begun ahead that code has made, with the number of events before.
    claimed: BTreeMap<(String, u32), usize>,
    now: f64,
}

/// A run, and the state of its driver.
struct Driven {
    run: Run,
    step: Option<Step>,
    /// True if the run's sandbox is gone.
    is_ended: bool,
    /// Queries that wait for the sub-model.
    asked: BTreeSet<u32>,
    /// The call that waits for this run, with the calling run's path.
    waits: Option<(String, u32)>,
}

impl Simulation {
    fn follow(&mut self, id: &str, next: Next) {
        self.events.extend(next.events);
        let Some(step) = next.step else { return };
        let driven = self.runs.get_mut(id).unwrap();
        assert!(driven.step.is_none(), "two steps at once");
        match (step, driven.waits.clone()) {
            (Step::Finish(finish), Some((parent, call))) => {
                self.runs.remove(id);
                self.answer(&parent, call, Came::Finish(finish));
            }
            (Step::Finish(_), None) => drop(self.runs.remove(id)),
            (step, _) => driven.step = Some(step),
        }
    }

    fn answer(&mut self, id: &str, call: u32, came: Came) {
        let (_, next) = self.runs.get_mut(id).unwrap().run.answered(self.now, call, came);
        self.follow(id, next);
    }

    fn begin(&mut self, run: Run, waits: Option<(String, u32)>) {
        let id = run.id().to_owned();
        let driven = Driven {
            run,
            step: None,
            is_ended: false,
            asked: BTreeSet::new(),
            waits,
        };
        assert!(self.runs.insert(id.clone(), driven).is_none(), "{id} is there twice");
        self.give(&id, Input::Ready(Vec::new()));
    }

    fn give(&mut self, id: &str, input: Input) {
        let driven = self.runs.get_mut(id).unwrap();
        driven.is_ended |= input.is_end();
        let next = driven.run.handle(self.now, input);
        self.follow(id, next);
    }

    /// Has the code of a run make a query.
    fn query(&mut self, id: &str, recurses: bool, ahead: bool) {
        let driven = self.runs.get_mut(id).unwrap();
        let query = match recurses {
            true => driven
                .run
                .rlm_query(self.now, Ok("t".to_owned()), budget(), |_| Ok(Some(String::new()))),
            false => driven.run.llm_query(self.now, Ok("p".to_owned()), None, ahead),
        };
        self.events.push(query.started);
        match query.work {
            Work::Ask(..) => drop(driven.asked.insert(query.call)),
            Work::Recurse(child) => self.begin(*child, Some((id.to_owned(), query.call))),
            Work::Refuse(why) => self.answer(id, query.call, Came::Failed(why)),
        }
    }

    /// Does one of the steps that are possible now. `choice` selects it.
    fn happen(&mut self, choice: u16) {
        self.now += 1.0;
        let ids: Vec<String> = self.runs.keys().cloned().collect();
        let (which, what) = (usize::from(choice >> 8), choice & 0xff);
        let id = ids[which % ids.len()].clone();
        let driven = self.runs.get_mut(&id).unwrap();
        match (what % 8, driven.step.clone()) {
            (0, _) if what == 0 => self.tree.stop(RunOutcome::Aborted, "stopped"),
            (0 | 1, Some(Step::Execute(_))) => self.query(&id, what % 2 == 0, false),
            (4, Some(Step::Ask(..))) => self.query(&id, false, true),
            (3, _) if what > 200 && !driven.asked.is_empty() => {
                let call = driven.asked.pop_last().unwrap();
                self.answer(&id, call, Came::Wasted(Reply::default()));
            }
            (5, Some(Step::Execute(_))) if !driven.asked.is_empty() => {
                let call = *driven.asked.first().unwrap();
                driven.run.claimed(call);
                self.claimed.entry((id, call)).or_insert(self.events.len());
            }
            (2, Some(_)) if what == 2 => {
                driven.step = None;
                self.give(&id, Input::Stopped);
            }
            (3, _) if !driven.asked.is_empty() => {
                let call = driven.asked.pop_last().unwrap();
                self.answer(&id, call, Came::Failed("busy".to_owned()));
            }
            (_, Some(Step::Ask(..))) => {
                driven.step = None;
                let reply = ["```repl\nlook\n```", "FINAL(it is so)", "Hm."][usize::from(what / 8 % 3)];
                self.give(&id, Input::Replied(Ok(said(reply))));
            }
            (_, Some(Step::Execute(_))) => {
                driven.step = None;
                self.give(&id, executed());
            }
            _ => {
                if let Some(call) = driven.asked.pop_first() {
                    self.answer(&id, call, Came::Reply(said("x")));
                }
            }
        }
    }
}

proptest! {
    /// Checks, for steps in any order, that each run and each query begins and ends once, and ends before its parent does.
    #[test]
    fn nothing_outlives_what_it_belongs_to(choices in prop::collection::vec(any::<u16>(), 0..200), max_depth in 0u32..3) {
        let tree = Tree::new(Rules { max_depth, ..rules() }, 0.0);
        let root = tree.root("t".to_owned(), budget(), 0.0);
        let mut driver = Simulation { tree, runs: BTreeMap::new(), events: Vec::new(), claimed: BTreeMap::new(), now: 0.0 };
        driver.begin(root, None);
        for choice in choices {
            if driver.runs.is_empty() {
                break;
            }
            driver.happen(choice);
        }
        // End all runs that are still at work.
        for _ in 0..10_000 {
            let Some(id) = driver.runs.keys().next_back().cloned() else { break };
            let driven = driver.runs.get_mut(&id).unwrap();
            if let Some(call) = driven.asked.pop_first() {
                driver.answer(&id, call, Came::Stopped);
            } else {
                prop_assert!(driven.step.take().is_some() && !driven.is_ended, "{} waits for nothing", id);
                driver.give(&id, Input::Stopped);
            }
        }
        prop_assert!(driver.runs.is_empty());

        let mut open: BTreeMap<String, BTreeMap<u32, Option<String>>> = BTreeMap::new();
        let mut is_ahead = BTreeSet::new();
        let (mut calls, mut ended) = (BTreeMap::new(), BTreeSet::new());
        for (at, RlmEvent { run, depth, kind, .. }) in driver.events.into_iter().enumerate() {
            prop_assert!(depth <= max_depth && run.matches('.').count() == depth as usize);
            prop_assert!(!ended.contains(&run), "{} goes on after its end", run);
            match kind {
                RlmEventKind::RunStarted { .. } => {
                    let asked = depth == 0 || open.values().any(|calls| {
                        calls.values().any(|child| child.as_ref() == Some(&run))
                    });
                    prop_assert!(asked, "nobody has asked for {}", run);
                    prop_assert!(open.insert(run, BTreeMap::new()).is_none());
                }
                RlmEventKind::RunEnded { .. } => {
                    prop_assert_eq!(open.remove(&run), Some(BTreeMap::new()), "{} leaves calls", run);
                    ended.insert(run);
                }
                RlmEventKind::CallStarted { call, child, ahead, .. } => {
                    if ahead {
                        is_ahead.insert((run.clone(), call));
                    }
                    let last: &mut u32 = calls.entry(run.clone()).or_default();
                    *last += 1;
                    prop_assert_eq!(*last, call);
                    prop_assert!(open.get_mut(&run).unwrap().insert(call, child).is_none());
                }
                RlmEventKind::CallEnded { call, .. } => {
                    let child = open.get_mut(&run).unwrap().remove(&call);
                    prop_assert!(child.is_some(), "call {} has not begun", call);
                    prop_assert!(child.flatten().is_none_or(|child| ended.contains(&child)));
                }
                // Events of a block's queries come before the block's end. Those that were begun ahead may be left to the next block.
                RlmEventKind::ExecutionEnded { .. } => {
                    for call in open[&run].keys() {
                        let query = (run.clone(), *call);
                        let is_left = driver.claimed.get(&query).is_none_or(|claimed| *claimed > at);
                        prop_assert!(is_left && is_ahead.contains(&query), "call {} of {} is open", call, run);
                    }
                }
                _ => {}
            }
        }
        prop_assert!(open.is_empty());
    }
}
