//! Tests of runs with a scripted model and a scripted sandbox.

use proptest::prelude::*;
use sandglass_core::CodeExecution;
use sandglass_core::budget::{Budget, BudgetLimits, Usage};
use sandglass_core::execution::{Outcome, Truncated};
use sandglass_rlm::controller::{Controller, Effect, Finish, Input, Task};
use sandglass_rlm::event::{RlmEventKind, RunOutcome};
use sandglass_rlm::openai::Reply;
use sandglass_rlm::schema::Schema;
use sandglass_rlm::{Message, estimate_tokens};
use serde_json::{Value, json};

fn task() -> Task {
    Task {
        task: "Find it.".to_owned(),
        schema: None,
        max_iterations: 5,
        max_prompt_tokens: 10_000,
        output_chars: 20_000,
        depth: 0,
        max_depth: 1,
        functions: Vec::new(),
        packages: Vec::new(),
        models: Vec::new(),
        instructions: None,
    }
}

pub(super) fn execution(outcome: Outcome, stdout: &str) -> CodeExecution {
    serde_json::from_value(json!({
        "id": 1, "code": "", "stdout": stdout, "stderr": "", "duration": 1, "guestTime": 1, "outcome": outcome,
        "state": { "status": "kept" }, "truncated": Truncated::default(), "hostCalls": 0, "displays": [], "files": []
    }))
    .unwrap()
}

pub(super) fn said(text: &str) -> Reply {
    Reply {
        text: text.to_owned(),
        usage: Some(Usage {
            input_tokens: 10.0,
            output_tokens: 5.0,
            ..Usage::default()
        }),
        cut: false,
        price: None,
    }
}

/// The result of a run: its end, the code that ran, and the last message of each turn.
struct Ran {
    finish: Finish,
    code: Vec<String>,
    heard: Vec<String>,
    events: Vec<RlmEventKind>,
}

/// Runs a task. The scripted Python knows `FINAL <json>` (declares that), `fail` (raises), and `FINAL_VAR("found")` and `FINAL(found)`
/// (declare 7). It prints all other code.
fn run(task: Task, limits: BudgetLimits, mut model: impl FnMut(&[Message]) -> Result<Reply, String>) -> Ran {
    let mut controller = Controller::new(task, Budget::new(limits, 0.0), 0.0);
    let (mut now, mut input) = (0.0, Input::Ready(Vec::new()));
    let (mut code, mut heard, mut events) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..10_000 {
        now += 1.0;
        let mut next = None;
        for effect in controller.handle(now, input) {
            assert!(next.is_none(), "something follows what is waited for");
            match effect {
                Effect::Emit(kind) => events.push(kind),
                effect => next = Some(effect),
            }
        }
        input = match next.unwrap() {
            Effect::Ask(messages) => {
                heard.push(messages.last().unwrap().content.clone());
                Input::Replied(model(&messages), 1.0)
            }
            Effect::Execute(source) => {
                code.push(source.clone());
                let declared = source
                    .strip_prefix("FINAL ")
                    .and_then(|value| serde_json::from_str(value).ok());
                let (outcome, value) = match declared {
                    Some(value) => (Outcome::Ok, Some(Ok(value))),
                    None if source == "fail" => (Outcome::Error, None),
                    None if ["FINAL_VAR(\"found\")", "FINAL(found)"].contains(&source.as_str()) => {
                        (Outcome::Ok, Some(Ok(json!(7))))
                    }
                    None => (Outcome::Ok, None),
                };
                Input::Executed(Box::new(execution(outcome, &source)), value)
            }
            Effect::Finish(finish) => {
                assert!(controller.is_done());
                assert_eq!(controller.handle(now, Input::Ready(Vec::new())), [], "it is over");
                return Ran {
                    finish,
                    code,
                    heard,
                    events,
                };
            }
            Effect::Emit(_) => unreachable!(),
        };
    }
    panic!("the run has no end")
}

fn script(task: Task, replies: &[&str]) -> Ran {
    let mut replies = replies.iter();
    run(task, BudgetLimits::default(), |_| {
        Ok(said(replies.next().copied().unwrap_or("I do not know.")))
    })
}

pub(super) fn cell(code: &str) -> String {
    format!("```repl\n{code}\n```")
}

fn answer(ran: &Ran) -> (RunOutcome, Option<Value>) {
    (ran.finish.outcome, ran.finish.answer.clone())
}

#[test]
fn blocks_run_in_order_and_their_output_is_shown() {
    let ran = script(task(), &["```repl\na\n```\n```python\nb\n```", &cell("FINAL \"x\"")]);
    assert_eq!(answer(&ran), (RunOutcome::Answered, Some(json!("x"))));
    assert_eq!(ran.code, ["a", "b", "FINAL \"x\""]);
    assert!(ran.heard[0].contains("Task:\nFind it.") && ran.heard[0].contains("Turn 1 of 5"));
    assert!(ran.heard[1].starts_with("Output (block 1):\na\n\nOutput (block 2):\nb\n\nTurn 2 of 5"));
}

#[test]
fn blocks_after_one_that_failed_are_not_run() {
    let reply = format!("{}\n{}\n{}\nFINAL(4)", cell("fail"), cell("b"), cell("c"));
    let ran = script(task(), &[&reply, &cell("FINAL 1")]);
    assert_eq!(ran.code, ["fail", "FINAL 1"]);
    assert!(ran.heard[1].contains("Blocks 2 to 3 were not run"), "{}", ran.heard[1]);
}

#[test]
fn blocks_after_the_answer_are_not_run() {
    let reply = format!("{}\n{}", cell("FINAL 1"), cell("b"));
    let ran = script(task(), &[&reply]);
    assert_eq!(
        (answer(&ran), ran.code.len()),
        ((RunOutcome::Answered, Some(json!("1"))), 1)
    );
}

#[test]
fn a_block_that_was_cut_off_is_not_run() {
    let mut replies = [Some("```repl\na\n```\n```repl\nhalf of"), Some("```repl\nFINAL 2")].into_iter();
    let ran = run(task(), BudgetLimits::default(), |_| {
        let text = replies.next().flatten().unwrap_or_default();
        Ok(Reply {
            cut: text.contains("half"),
            ..said(text)
        })
    });
    // The second reply ends within its block as well, but was not cut: the model forgot the fence.
    assert_eq!(ran.code, ["a", "FINAL 2"]);
    assert!(ran.heard[1].contains("because your reply was cut"));
}

#[test]
fn many_blocks_are_bounded() {
    let reply: String = (0..40).map(|number| cell(&format!("b{number}")) + "\n").collect();
    let ran = script(task(), &[&reply, &cell("FINAL 1")]);
    assert_eq!(ran.code.len(), 17);
    assert!(ran.heard[1].contains("Blocks 17 to 40 were not run"));
}

/// Source: in alexzhang13/rlm#115 a declaration inside of a fence was read as prose.
#[test]
fn prose_declares_answers_outside_of_code_only() {
    let ran = script(task(), &["FINAL(f(x) = 3)"]);
    assert_eq!(answer(&ran), (RunOutcome::Answered, Some(json!("f(x) = 3"))));
    let ran = script(task(), &["```json\nFINAL(1)\n```", "```repl\na\n```\n\nFINAL(found)"]);
    let code = ["a", "FINAL_VAR(\"found\")"].map(str::to_owned);
    assert_eq!((answer(&ran).1, ran.code), (Some(json!("7")), code.to_vec()));
    let ran = script(task(), &["FINAL_VAR(x\"é)", &cell("FINAL 1")]);
    assert_eq!(ran.code[0], "FINAL_VAR(\"x\\\"\\U000000e9\")");
    assert!(ran.heard[1].starts_with("Output:\nFINAL_VAR"), "a miss is shown");
}

/// Sources: in alexzhang13/rlm#127 and Algorineko/AgenticArXiv-RL#19 the model made up what its code prints, and answered by that.
#[test]
fn a_text_beside_code_is_no_answer() {
    for made_up in [
        "Output:\n5",
        "```\n5\n```\nSo it is 5.",
        "REPL output:\n```text\n5\n```",
    ] {
        let reply = format!("{}\n{made_up}\n\nFINAL(5 of them)", cell("look"));
        let ran = script(task(), &[&reply, "FINAL(6 of them)"]);
        assert_eq!(
            answer(&ran),
            (RunOutcome::Answered, Some(json!("6 of them"))),
            "{reply}"
        );
        assert_eq!(ran.code, ["look"]);
        let heard = &ran.heard[1];
        assert!(
            heard.starts_with("Output:\nlook\n\nThat final answer was not accepted:"),
            "{heard}"
        );
        assert!(heard.contains("before the code of its own reply had run"), "{heard}");
        let rejected = |event: &&RlmEventKind| matches!(event, RlmEventKind::AnswerRejected { .. });
        assert_eq!(ran.events.iter().filter(rejected).count(), 1);
    }
    // Of the last turn, too. The model is asked once more, and has seen the output by then.
    let once = Task {
        max_iterations: 1,
        ..task()
    };
    let ran = script(once, &[&format!("{}\nFINAL(5 of them)", cell("look")), "6 of them"]);
    assert_eq!(answer(&ran), (RunOutcome::Exhausted, Some(json!("6 of them"))));
}

/// Source: in alexzhang13/rlm:rlm/core/rlm.py@16075dd the prose of a reply counts, whatever became of its code.
#[test]
fn prose_beside_code_that_did_not_run_is_no_answer() {
    let mut replies = [Some("FINAL_VAR(found)\n```repl\nfound = half of"), Some("FINAL(8)")].into_iter();
    let ran = run(task(), BudgetLimits::default(), |_| {
        let text = replies.next().flatten().unwrap_or_default();
        Ok(Reply {
            cut: text.contains("half"),
            ..said(text)
        })
    });
    assert_eq!((answer(&ran).1, ran.code.len()), (Some(json!("8")), 0));
    assert!(
        ran.heard[1].starts_with("The last block has no end"),
        "{}",
        ran.heard[1]
    );
    let many: String = (0..20).map(|number| cell(&format!("b{number}")) + "\n").collect();
    let ran = script(task(), &[&format!("{many}FINAL_VAR(found)"), "FINAL(8)"]);
    assert_eq!((answer(&ran).1, ran.code.len()), (Some(json!("8")), 16));
}

/// Sources: in QwenLM/qwen-code#6548 and QwenLM/Qwen3#1459 what the model wants done stands in its thoughts only.
#[test]
fn the_model_is_told_of_code_in_its_thoughts() {
    for reply in [
        "<think>\n```repl\nlook\n```\n</think>\nI wait.",
        "Perhaps\n```repl\nlook\n```\n</think>",
        "<think>\n```repl\nlook\n```\n",
    ] {
        let ran = script(task(), &[reply, "FINAL(8)"]);
        assert!(ran.code.is_empty());
        assert!(
            ran.heard[1].starts_with("The only code of your reply is in its thoughts"),
            "{}",
            ran.heard[1]
        );
    }
}

/// Sources: in alexzhang13/rlm#115 and Ovid/ananta:tests/unit/rlm/test_engine.py@03aa2e1 the name itself was the answer, and in the latter
/// it was looked up before the reply's code ran.
#[test]
fn a_name_in_prose_is_a_variable_and_no_answer_without_one() {
    let ran = script(task(), &["FINAL(found)"]);
    assert_eq!(answer(&ran), (RunOutcome::Answered, Some(json!("7"))));
    let plan = "First I look, then call\nFINAL(result)\nonce done.";
    let ran = script(task(), &[plan, &format!("{plan}\n{}", cell("look")), &cell("FINAL 1")]);
    assert_eq!(
        ran.code,
        ["FINAL_VAR(\"result\")", "look", "FINAL_VAR(\"result\")", "FINAL 1"]
    );
    assert!(
        ran.heard[1].contains("FINAL(\"result\") in a ```repl block"),
        "{}",
        ran.heard[1]
    );
    assert!(ran.heard[2].starts_with("Output:\nlook\n\nOutput (block 2):"));
    // A text is an answer as it is.
    for said in ["two words", "7", "True", "f(x)"] {
        let ran = script(task(), &[&format!("FINAL({said})")]);
        assert_eq!((answer(&ran).1, ran.code.len()), (Some(json!(said)), 0));
    }
    // The variable `answer` exists from the beginning, without a value.
    let ran = script(task(), &["FINAL(answer)", &cell("FINAL 1")]);
    assert!(ran.code[0].starts_with("FINAL_VAR(\"answer\") if "), "{}", ran.code[0]);
}

#[test]
fn a_wrong_answer_is_told_and_asked_for_again() {
    let typed = Task {
        schema: Some(Schema::new(json!({ "type": "integer" })).unwrap()),
        ..task()
    };
    let ran = script(typed, &[&cell("FINAL \"many\""), "FINAL(a few)", &cell("FINAL 3")]);
    assert_eq!(answer(&ran), (RunOutcome::Answered, Some(json!(3))));
    assert!(ran.heard[0].contains("JSON Schema:\n{\"type\":\"integer\"}"));
    assert!(ran.heard[1].contains("not accepted:\n$: must be of type \"integer\", not a string"));
    assert!(ran.heard[2].contains("not accepted"));
    let rejected = ran
        .events
        .iter()
        .filter(|event| matches!(event, RlmEventKind::AnswerRejected { .. }));
    assert_eq!(rejected.count(), 2);
}

#[test]
fn after_the_last_turn_the_model_is_asked_once_more() {
    let ran = script(task(), &["a", "b", "c", "d", "e", "Perhaps 7.\n```repl\nz\n```"]);
    assert_eq!(answer(&ran), (RunOutcome::Exhausted, Some(json!("Perhaps 7."))));
    assert!(ran.heard[4].contains("Turn 5 of 5") && ran.heard[4].contains("last turn"));
    assert!(ran.heard[5].contains("There are no turns left"));
    assert!(ran.code.is_empty());
    let ran = script(task(), &["a", "b", "c", "d", "e", "```repl\nz\n```"]);
    assert_eq!(answer(&ran), (RunOutcome::Exhausted, None));
    assert!(ran.finish.error.unwrap().contains("within 5 turns"));
}

#[test]
fn what_the_last_words_declare_is_looked_up() {
    let once = || Task {
        max_iterations: 1,
        ..task()
    };
    let typed = || Task {
        schema: Some(Schema::new(json!({ "type": "integer" })).unwrap()),
        ..once()
    };
    for (reply, answer) in [
        ("FINAL_VAR(found)", Some("7")),
        ("I say:\nFINAL(found)", Some("7")),
        ("```repl\nFINAL(found)\n```", Some("7")),
        ("It is in it:\n```python\nlook\nFINAL_VAR(found)\n```", Some("7")),
        ("```\nFINAL_VAR('found')\n```", Some("7")),
        ("```\nFINAL(in Paris)\n```", None),
        ("```repl\nFINAL \"no directive\"\n```", None),
        ("FINAL_VAR(lost)", None),
        ("```repl\nFINAL(lost)\n```", None),
        ("Perhaps 8.\n```repl\nFINAL(lost)\n```", Some("Perhaps 8.")),
        ("FINAL(Paris)", Some("Paris")),
        ("FINAL(in Paris)", Some("in Paris")),
    ] {
        let ran = script(once(), &["a", reply]);
        assert_eq!(ran.finish.outcome, RunOutcome::Exhausted, "{reply}");
        assert_eq!(ran.finish.answer, answer.map(Value::from), "{reply}");
        assert_eq!(ran.finish.iterations, 2);
        assert!(!ran.code.contains(&"look".to_owned()), "no other code runs");
        assert!(ran.finish.error.unwrap().contains("within 1 turns"));
    }
    for (reply, answer) in [
        ("FINAL_VAR(found)", Some(7)),
        ("FINAL(8)", Some(8)),
        ("```json\n9\n```", Some(9)),
        ("FINAL_VAR(lost)", None),
        ("FINAL(Paris)", None),
    ] {
        let ran = script(typed(), &["a", reply]);
        assert_eq!(ran.finish.answer, answer.map(Value::from), "{reply}");
    }
    let ran = script(once(), &["a", "FINAL_VAR(lost)"]);
    let error = ran.finish.error.unwrap();
    assert!(error.contains("last reply declares has no value"), "{error}");
}

#[test]
fn a_budget_ends_the_run_before_the_model_is_asked() {
    for (limits, turns, name) in [
        (r#"{ "maxCalls": 2 }"#, 2, "maxCalls"),
        (r#"{ "maxTokens": 16 }"#, 2, "maxTokens"),
        (r#"{ "maxTime": 5 }"#, 2, "maxTime"),
        (r#"{ "maxCalls": 0 }"#, 0, "maxCalls"),
    ] {
        let limits: BudgetLimits = serde_json::from_str(limits).unwrap();
        let ran = run(task(), limits, |_| Ok(said(&cell("a"))));
        assert_eq!(ran.finish.outcome, RunOutcome::Limit, "{name}");
        assert!(ran.finish.error.clone().unwrap().contains(name));
        assert_eq!(ran.heard.len(), turns, "{name}");
        assert_eq!(ran.finish.iterations as usize, turns, "{name}");
    }
}

#[test]
fn a_model_that_fails_fails_the_run() {
    let ran = run(task(), BudgetLimits::default(), |_| Err("no more".to_owned()));
    assert_eq!(answer(&ran), (RunOutcome::Failed, None));
    assert_eq!(ran.finish.error.as_deref(), Some("no more"));
}

#[test]
fn a_task_that_leaves_no_room_is_refused() {
    let long = Task {
        task: "x".repeat(100_000),
        ..task()
    };
    let ran = script(long, &["a"]);
    assert_eq!((ran.finish.outcome, ran.heard.len()), (RunOutcome::Failed, 0));
}

#[test]
fn a_run_can_be_stopped_in_any_state() {
    for steps in 0..4 {
        let mut controller = Controller::new(task(), Budget::new(BudgetLimits::default(), 0.0), 0.0);
        let mut inputs = vec![
            Input::Ready(Vec::new()),
            Input::Replied(Ok(said(&cell("a"))), 1.0),
            Input::Executed(Box::new(execution(Outcome::Ok, "")), None),
        ];
        inputs.truncate(steps);
        for input in inputs {
            controller.handle(1.0, input);
        }
        let effects = controller.handle(2.0, Input::Stop(RunOutcome::Aborted, "why".to_owned()));
        let [Effect::Emit(RlmEventKind::RunEnded { .. }), Effect::Finish(finish)] = &effects[..] else {
            panic!("{effects:?}");
        };
        assert_eq!(
            (finish.outcome, finish.error.as_deref()),
            (RunOutcome::Aborted, Some("why"))
        );
        assert_eq!(controller.handle(3.0, Input::Replied(Ok(said("late")), 1.0)), []);
    }
}

proptest! {
    /// Checks that every run ends within its turns, that its messages fit, and that its events are consistent.
    #[test]
    fn any_model_comes_to_an_end(
        replies in prop::collection::vec(
            "(a|FINAL\\(x\\)|FINAL\\(found\\)|FINAL_VAR\\(y\\)|\n|```repl\n|```\n|fail\n|FINAL 1\n|~~~py\n|<think>|z{2000})*", 1..8
        ),
        iterations in 1u32..6,
        calls in 0u8..10,
        cut in any::<bool>(),
        typed in any::<bool>(),
    ) {
        let bounded = Task {
            max_iterations: iterations,
            max_prompt_tokens: 4_000,
            schema: typed.then(|| Schema::new(json!({ "type": "integer" })).unwrap()),
            ..task()
        };
        let limits = BudgetLimits { max_calls: Some(f64::from(calls)), ..BudgetLimits::default() };
        let mut turn = 0;
        let ran = run(bounded, limits, |messages| {
            let tokens: usize = messages.iter().map(|message| estimate_tokens(&message.content)).sum();
            assert!(tokens <= 4_000, "{tokens}");
            turn += 1;
            Ok(Reply { cut, ..said(&replies[(turn - 1) % replies.len()]) })
        });
        prop_assert!(turn <= usize::from(calls).min(iterations as usize + 1));
        prop_assert_eq!(ran.finish.answer.is_some() || ran.finish.error.is_some(), true);
        let count = |is: fn(&RlmEventKind) -> bool| ran.events.iter().filter(|event| is(event)).count();
        prop_assert_eq!(count(|event| matches!(event, RlmEventKind::RunStarted { .. })), 1);
        prop_assert_eq!(count(|event| matches!(event, RlmEventKind::RunEnded { .. })), 1);
        prop_assert_eq!(count(|event| matches!(event, RlmEventKind::ModelReplied { .. })), turn);
        prop_assert_eq!(
            count(|event| matches!(event, RlmEventKind::CodeStarted { .. })),
            count(|event| matches!(event, RlmEventKind::ExecutionEnded { .. }))
        );
        let ends = matches!(ran.events.last(), Some(RlmEventKind::RunEnded { .. }));
        prop_assert!(ends);
    }

    /// Checks that no declaration is read out of a block's source, for fences of every kind, with any text before them. Source:
    /// alexzhang13/rlm#115.
    #[test]
    fn no_answer_is_taken_out_of_the_source_of_a_block(
        stretches in prop::collection::vec((
            prop::sample::select(vec!["", "", "\u{feff}", "\u{200b}", "</think>", "<code>", "> ", "- ", "1. ", "> - ", "   ", "So: ", "In `it`, "]),
            prop::sample::select(vec!["```", "````", "~~~"]),
            prop::sample::select(vec!["repl", "python", "py x=1", "", "json", "js `x`", "markdown\n```repl\nx\n```"]),
            prop::collection::vec(prop::sample::select(vec![
                "FINAL(source(1))", "  FINAL(source)", "FINAL_VAR(source)", "x = '''\nFINAL(source, 2)\n'''", "", "look", "FINAL(source[\n1])",
            ]), 1..4),
            prop::sample::select(vec!["", "\nSo it is.", "\n\nI see (as\nsaid)"]),
            any::<bool>(),
        ), 1..4),
        last_is_open in any::<bool>(),
        iterations in 1u32..3,
    ) {
        let mut reply = String::new();
        let all = stretches.len();
        for (index, (before, mark, info, code, prose, is_quoted)) in stretches.into_iter().enumerate() {
            // A fence of tildes cannot stand after words.
            let has_words = before.starts_with(['S', 'I']);
            let before = if has_words && mark == "~~~" { "" } else { before };
            let quote = if is_quoted && before.starts_with('>') { "> " } else { "" };
            let code = code.join("\n").replace('\n', &format!("\n{quote}"));
            reply += &format!("{before}{mark}{info}\n{quote}{code}\n");
            if !(last_is_open && index + 1 == all) {
                reply += &format!("{quote}{mark}{prose}\n");
            }
        }
        let limits = BudgetLimits::default();
        let ran = run(Task { max_iterations: iterations, ..task() }, limits, |_| Ok(said(&reply)));
        let answer = ran.finish.answer.unwrap_or_default().to_string();
        prop_assert!(!answer.contains("source"), "{answer} of {reply:?}");
    }
}
