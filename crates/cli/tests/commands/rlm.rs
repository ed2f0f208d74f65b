//! The controller with real guests. The model is a script, behind a real endpoint on loopback.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::ready;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::{StreamExt, stream};
use sandglass_core::Error;
use sandglass_core::predictions::Source;
use sandglass_core::stats::CallsAhead;
use sandglass_host::backend;
use sandglass_host::launcher::Settings;
use sandglass_host::rlm::{Endpoint, Rlm, RlmOptions, Stop, run, run_while};
use sandglass_host::value::Value;
use sandglass_host::{BackendKind, BudgetLimits};
use sandglass_rlm::event::{RlmEvent, RlmEventKind, RunOutcome};
use sandglass_rlm::prompt::ContextFacts;
use serde_json::json;
use tokio::process::Command;
use tokio::sync::Notify;

use crate::support::{on_both, soon};

on_both!(
    a_question_goes_two_levels_down,
    code_runs_while_its_reply_comes,
    calls_begin_while_their_reply_comes
);

const KEY: &str = "a-key-of-nobody";
/// The time that a model takes to write the rest of a reply after the calls of its begin came.
const WRITING: Duration = Duration::from_secs(5);
/// Attempts at what a busy machine can be too slow for.
const ATTEMPTS: u32 = 6;
/// The longest wait for a call.
const PATIENCE: Duration = Duration::from_secs(60);

/// The requests to the endpoint.
#[derive(Clone)]
struct Asked {
    model: String,
    /// `role: content`, each.
    messages: Vec<(String, String)>,
    key: Option<String>,
}

impl Asked {
    /// The task of the run, or the prompt of a query.
    fn task(&self) -> &str {
        let (_, content) = &self.messages[self.messages.len().min(2) - 1];
        match content.strip_prefix("Task:\n") {
            Some(task) => task.lines().next().unwrap(),
            None => content,
        }
    }

    /// The number of replies that the model has given in this conversation.
    fn turn(&self) -> usize {
        self.messages.iter().filter(|(role, _)| role == "assistant").count()
    }

    /// The outcome of the last reply's code.
    fn told(&self) -> &str {
        &self.messages.last().unwrap().1
    }
}

/// A model's endpoint, which keeps all requests.
struct Model {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Model {
    /// An endpoint that answers by a script. The script gets the request, and the number of requests before it.
    async fn new(script: impl Fn(&Asked, usize) -> Response + Send + Sync + 'static) -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (all, script) = (Arc::clone(&asked), Arc::new(script));
        let answer = move |headers: HeaderMap, Json(body): Json<serde_json::Value>| {
            let (all, script) = (Arc::clone(&all), Arc::clone(&script));
            async move {
                let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
                let messages = body["messages"].as_array().unwrap().iter();
                let asked = Asked {
                    model: text(&body["model"]),
                    messages: messages
                        .map(|message| (text(&message["role"]), text(&message["content"])))
                        .collect(),
                    key: headers
                        .get("authorization")
                        .map(|value| value.to_str().unwrap().to_owned()),
                };
                let before = {
                    let mut all = all.lock().unwrap();
                    all.push(asked.clone());
                    all.len() - 1
                };
                script(&asked, before)
            }
        };
        let routes = Router::new().route("/v1/chat/completions", post(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Self { url, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    fn endpoint(&self, model: &str) -> Endpoint {
        Endpoint::new(&self.url, Some(KEY.to_owned()), model).unwrap()
    }

    fn options(&self, task: &str, context: &str) -> RlmOptions {
        let mut options = RlmOptions::new(task, context, self.endpoint("large")).unwrap();
        options.sub_model = self.endpoint("small");
        options
    }
}

/// A reply of ten tokens to a prompt of a hundred.
fn says(text: impl Into<String>) -> Response {
    Json(json!({
        "choices": [{ "message": { "role": "assistant", "content": text.into() }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 100, "completion_tokens": 10 },
    }))
    .into_response()
}

fn runs(code: &str) -> Response {
    says(format!("I shall run this.\n\n```repl\n{code}\n```\n"))
}

/// Runs to the end. Returns the outcome and all events.
async fn finish(mut options: RlmOptions, backend: BackendKind) -> (Rlm, Vec<RlmEvent>) {
    let events: Arc<Mutex<Vec<RlmEvent>>> = Arc::default();
    let all = Arc::clone(&events);
    options.on_event = Arc::new(move |event| all.lock().unwrap().push(event.clone()));
    let settings = Settings {
        ahead: true,
        ..Settings::default()
    };
    let launcher = backend::launcher(backend, &settings).await.unwrap();
    let done = soon(run(options, launcher, &Stop::default())).await;
    let events = events.lock().unwrap().clone();
    (done, events)
}

/// A model whose runs start child runs, whose child runs ask the model. Its endpoint is busy at first, and breaks off a reply
/// later.
async fn two_levels() -> Model {
    let broken = Mutex::new(false);
    Model::new(move |asked, before| {
        if before == 0 {
            let later = [("retry-after-ms", "1")];
            return (StatusCode::TOO_MANY_REQUESTS, later, "busy").into_response();
        }
        match (asked.task(), asked.turn()) {
            ("shout both", 0) => runs("parts = context.split('|')\nprint(len(parts), 'parts')"),
            ("shout both", 1) => {
                assert!(asked.told().contains("2 parts"), "{}", asked.told());
                runs("FINAL(' + '.join(rlm_query_batched(['shout the first word'] * 2, parts)))")
            }
            ("shout the first word", 0) => {
                if !std::mem::replace(&mut *broken.lock().unwrap(), true) {
                    return r#"{"choices": [{"message": {"content": "```repl\nFINAL("#.into_response();
                }
                runs("FINAL(rlm_query('shout this', context.split()[0]))")
            }
            ("shout this", 0) => runs("FINAL(llm_query('shout: ' + context))"),
            (query, 0) => says(query.strip_prefix("shout: ").unwrap().to_uppercase()),
            (task, turn) => panic!("turn {turn} of {task}: {}", asked.told()),
        }
    })
    .await
}

async fn a_question_goes_two_levels_down(backend: BackendKind) {
    let model = two_levels().await;
    let far = "what is far behind is in no prompt";
    let context = format!("alpha {}|gamma {far}", "beta ".repeat(1_000));
    let mut options = model.options("shout both", &context);
    options.max_depth = 2;
    let (Rlm { finish, usage, .. }, events) = finish(options, backend).await;
    assert_eq!(
        (finish.outcome, finish.answer, finish.error),
        (RunOutcome::Answered, Some("ALPHA + GAMMA".into()), None)
    );
    assert_eq!(finish.iterations, 2);

    let asked = model.asked();
    // Two turns of the first run, one turn of each of the four others, two queries, and two attempts that failed.
    assert_eq!(asked.len(), 2 + 4 + 2 + 2);
    // Whoever was to be asked again is no further call.
    let used = (usage.calls, usage.input_tokens, usage.output_tokens);
    assert_eq!(used, (8.0 + 4.0, 800.0, 80.0));
    for Asked { model, key, .. } in &asked {
        assert!(["large", "small"].contains(&model.as_str()));
        assert_eq!(key.as_deref(), Some(format!("Bearer {KEY}").as_str()));
    }
    let large = asked.iter().filter(|asked| asked.model == "large");
    assert!(large.clone().all(|asked| asked.task() == "shout both") && large.count() == 3);
    assert!(
        asked
            .iter()
            .all(|asked| asked.task() == "shout the first word" || !format!("{:?}", asked.messages).contains(far)),
    );

    let runs: BTreeSet<_> = events.iter().map(|event| event.run.as_str()).collect();
    assert_eq!(runs, BTreeSet::from(["0", "0.0", "0.0.0", "0.1", "0.1.0"]));
    let ended = events.iter().filter_map(|event| match &event.kind {
        RlmEventKind::RunEnded { outcome, .. } => Some((event.run.len(), *outcome)),
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended.len(), 5);
    assert!(ended.iter().all(|(_, outcome)| *outcome == RunOutcome::Answered));
    assert!(ended.is_sorted_by_key(|(depth, _)| std::cmp::Reverse(*depth)) || ended[4].0 == 1);
    let retries = events.iter().filter_map(|event| match &event.kind {
        RlmEventKind::Retry { reason, attempt: 1, .. } => Some((event.depth, reason.as_str())),
        _ => None,
    });
    let retries: Vec<_> = retries.collect();
    assert!(
        matches!(retries[..], [(0, busy), (1, broken)] if busy.contains("429: busy") && broken.contains("broken")),
        "{retries:?}"
    );
    assert!(!serde_json::to_string(&events).unwrap().contains(KEY));
}

/// A reply that comes in these pieces. The pause before a piece leaves time to copy the guest.
fn writes(pieces: &[(u64, &str)]) -> Response {
    writes_after(pieces, || ready(()))
}

/// The same. The last piece is sent after `before_end` as well.
fn writes_after<F>(pieces: &[(u64, &str)], before_end: impl Fn() -> F + Send + Sync + 'static) -> Response
where
    F: Future<Output = ()> + Send,
{
    let (last, before_end) = (pieces.len() - 1, Arc::new(before_end));
    let pieces = pieces.iter().map(|(pause, text)| (*pause, (*text).to_owned()));
    let pieces: Vec<_> = pieces.collect();
    let events = stream::iter(pieces.into_iter().enumerate()).then(move |(index, (pause, text))| {
        let before_end = before_end.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            if index == last {
                before_end().await;
            }
            let piece = json!({ "choices": [{ "delta": { "content": text } }] });
            Ok::<_, Infallible>(format!("data: {piece}\n\n"))
        }
    });
    let end = r#"data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}"#;
    let end = stream::once(async move { Ok(format!("{end}\n\ndata: [DONE]\n\n")) });
    let body = Body::from_stream(events.chain(end));
    ([("content-type", "text/event-stream")], body).into_response()
}

/// The number of cells that ran ahead, and of those that were used.
fn tally(done: &Rlm, source: Source) -> (u32, u32) {
    done.ahead
        .get(&source)
        .map_or((0, 0), |tally| (tally.started, tally.used))
}

async fn code_runs_while_its_reply_comes(backend: BackendKind) {
    // On a busy machine, a copy of the guest may not be there before its reply has ended.
    for _ in 0..ATTEMPTS {
        if writes_and_runs(backend).await == 1 {
            return;
        }
    }
    panic!("no code ran while its reply came");
}

/// One reply that comes in pieces. Returns the number of cells that ran ahead and were used.
async fn writes_and_runs(backend: BackendKind) -> u32 {
    let model = Model::new(|asked, _| match asked.turn() {
        0 => writes(&[
            (0, "Let me count.\n```repl\nseen = [1]\nprint('first', seen)\n"),
            (2_000, "seen.append(len(context))\n```\nThat is all: a-key-of-"),
            (10, "nobody\n"),
        ]),
        1 if asked.told().contains("first [1]") => writes(&[(0, "```repl\nseen.append(3)\nFINAL(seen)\n```\n")]),
        turn => panic!("turn {turn}: {}", asked.told()),
    })
    .await;
    let (done, events) = finish(model.options("count", "four"), backend).await;
    assert_eq!(done.finish.answer, Some("[1,4,3]".into()), "{:?}", done.finish.error);
    let heard = events.iter().filter_map(|event| match &event.kind {
        RlmEventKind::Text { text } => Some(text.as_str()),
        _ => None,
    });
    let heard: String = heard.collect();
    assert!(
        heard.starts_with("Let me count.\n```repl\n") && heard.contains("That is all: [key]\n"),
        "{heard}"
    );
    assert!(!serde_json::to_string(&events).unwrap().contains(KEY));
    tally(&done, Source::Stream).1
}

/// The calls that an endpoint got before the end of the reply that makes them, and the time of this end.
#[derive(Default)]
struct Early {
    ended: AtomicBool,
    calls: AtomicU32,
    called: Notify,
}

impl Early {
    /// Counts a call.
    fn note(&self) {
        if !self.ended.load(Ordering::SeqCst) {
            self.calls.fetch_add(1, Ordering::SeqCst);
            self.called.notify_one();
        }
    }

    /// Waits until there are so many calls, but no longer than any test may take.
    async fn count(&self, calls: u32) {
        let all = async {
            while self.calls.load(Ordering::SeqCst) < calls {
                self.called.notified().await;
            }
        };
        drop(tokio::time::timeout(PATIENCE, all).await);
    }
}

/// The calls of the first run: begun ahead, and wasted.
fn ahead_calls(events: &[RlmEvent]) -> (usize, usize) {
    let begun = |event: &&RlmEvent| matches!(event.kind, RlmEventKind::CallStarted { ahead: true, .. });
    let wasted = |event: &&RlmEvent| matches!(event.kind, RlmEventKind::CallEnded { wasted: true, .. });
    (
        events.iter().filter(begun).count(),
        events.iter().filter(wasted).count(),
    )
}

async fn calls_begin_while_their_reply_comes(backend: BackendKind) {
    let early = Arc::new(Early::default());
    let seen = early.clone();
    let model = Model::new(move |asked, _| match (asked.model.as_str(), asked.turn()) {
        ("small", _) => {
            seen.note();
            says(format!("about {}", asked.task()))
        }
        (_, 0) => {
            let end = seen.clone();
            let pieces = [
                (
                    0,
                    "```repl\nfound = llm_query_batched([f'part {n}' for n in range(3)])\n",
                ),
                (0, "print(found)\n```\nThat was all.\n"),
            ];
            writes_after(&pieces, move || {
                let end = end.clone();
                async move {
                    end.count(3).await; // in the second run they were counted before
                    tokio::time::sleep(WRITING).await;
                    end.ended.store(true, Ordering::SeqCst);
                }
            })
        }
        (_, 1)
            if asked
                .told()
                .contains("['about part 0', 'about part 1', 'about part 2']") =>
        {
            runs("FINAL(llm_query('x'))")
        }
        (_, turn) => panic!("turn {turn}: {}", asked.told()),
    })
    .await;
    let mut options = model.options("ask", "c");
    options.ahead_calls = true;
    let (done, events) = finish(options.clone(), backend).await;
    assert_eq!(done.finish.answer, Some("about x".into()), "{:?}", done.finish.error);
    assert_eq!(early.calls.load(Ordering::SeqCst), 3, "{events:?}");
    let CallsAhead { begun, used, wasted } = done.ahead_calls;
    assert_eq!((begun, used, wasted), (3, 3, 0));
    assert_eq!(ahead_calls(&events), (3, 0));
    assert_eq!(
        (done.usage.calls, model.asked().len()),
        (6.0, 6),
        "nothing is asked twice"
    );
    let ends = events.iter().filter_map(|event| match event.kind {
        RlmEventKind::CallEnded { duration, .. } => Some(duration),
        _ => None,
    });
    assert!(
        ends.into_iter().all(|ms| ms < WRITING.as_secs_f64() * 1e3),
        "the wait for the code is not the call's time"
    );
    // Off by default.
    early.ended.store(false, Ordering::SeqCst);
    options.ahead_calls = false;
    let (done, events) = finish(options, backend).await;
    assert_eq!(done.finish.answer, Some("about x".into()));
    assert_eq!((early.calls.load(Ordering::SeqCst), ahead_calls(&events)), (3, (0, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_vain_are_told_and_paid() {
    let early = Arc::new(Early::default());
    let seen = early.clone();
    let model = Model::new(move |asked, before| match (asked.model.as_str(), before) {
        ("small", _) => {
            seen.note();
            says("an answer")
        }
        // The reply breaks off when its call has been begun and answered.
        (_, 0) => {
            let text = "```repl\nfound = llm_query('the first')\n";
            let piece = json!({ "choices": [{ "delta": { "content": text } }] });
            let begin = stream::iter([Ok::<_, Infallible>(format!("data: {piece}\n\n"))]);
            let seen = seen.clone();
            let cut = stream::once(async move {
                seen.count(1).await;
                tokio::time::sleep(WRITING).await;
                Ok(String::new())
            });
            (
                [("content-type", "text/event-stream")],
                Body::from_stream(begin.chain(cut)),
            )
                .into_response()
        }
        _ => runs("FINAL(llm_query('the second'))"),
    })
    .await;
    let mut options = model.options("ask", "c");
    options.ahead_calls = true;
    let (done, events) = finish(options, BackendKind::Subprocess).await;
    assert_eq!(done.finish.answer, Some("an answer".into()), "{:?}", done.finish.error);
    let CallsAhead { begun, used, wasted } = done.ahead_calls;
    assert_eq!((begun, used, wasted), (1, 0, 1));
    assert_eq!(ahead_calls(&events), (1, 1));
    // Two replies of the code's model, of which the first is not counted, and two of the sub-model.
    assert_eq!((done.usage.calls, model.asked().len()), (3.0, 4));
    assert_eq!(done.usage.output_tokens, 30.0, "the call in vain is paid");
    let replayed = sandglass_rlm::replay::Replay::new(events).unwrap();
    let hash = sandglass_rlm::event::hash("the first");
    assert!(replayed.call("0", 1, &hash).is_err(), "a replay does not need it");
}

/// The facts that the first event of a run tells.
fn contexts(events: &[RlmEvent]) -> &[ContextFacts] {
    match &events[0].kind {
        RlmEventKind::RunStarted { contexts, .. } => contexts,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_is_asked_before_there_is_a_guest() {
    let asked = Arc::new(Notify::new());
    let asks = asked.clone();
    let model = Model::new(move |_, _| {
        asks.notify_one();
        runs("FINAL(context[:2])")
    })
    .await;
    // A launcher that is found only once the model has been asked.
    let launcher = async move {
        asked.notified().await;
        backend::launcher(BackendKind::Subprocess, &Settings::default()).await
    };
    let done = soon(run_while(model.options("look", "text"), launcher, &Stop::default())).await;
    assert_eq!(done.finish.answer, Some("te".into()), "{:?}", done.finish.error);
    // No launcher is an error of the run.
    let none = async { Err(Error::BackendUnavailable("nothing is installed".to_owned())) };
    let done = soon(run_while(model.options("look", "text"), none, &Stop::default())).await;
    assert_eq!(done.finish.outcome, RunOutcome::Failed);
    assert!(done.finish.error.unwrap().contains("nothing is installed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_described_as_a_guest_would() {
    let model = Model::new(|_, _| runs("FINAL('done')")).await;
    let long = "é\u{1f600}x\n".repeat(400);
    for text in ["", "short\t'\"", &long] {
        let mut options = model.options("look", text);
        options.more_contexts = vec![Value::None];
        let (_, early) = finish(options.clone(), BackendKind::Subprocess).await;
        options.more_contexts.push(Value::Bool(true)); // which a guest has to describe
        let (_, guests) = finish(options, BackendKind::Subprocess).await;
        assert_eq!(contexts(&early), &contexts(&guests)[..2]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ran_of_a_reply_that_broke_off_is_gone() {
    let model = Model::new(|asked, before| match (before, asked.turn()) {
        (0, _) => {
            let cut =
                "data: {\"choices\": [{\"delta\": {\"content\": \"```repl\\nseen = [0]\\nseen[0] += 1\\n\"}}]}\n\n";
            ([("content-type", "text/event-stream")], cut).into_response()
        }
        (_, 0) => writes(&[(0, "```repl\n"), (0, "FINAL('seen' in globals())\n```\n")]),
        (_, turn) => panic!("turn {turn}"),
    })
    .await;
    let (done, events) = finish(model.options("look", "c"), BackendKind::Subprocess).await;
    assert_eq!(done.finish.answer, Some("false".into()), "{:?}", done.finish.error);
    let is_retry =
        |event: &&RlmEvent| matches!(&event.kind, RlmEventKind::Retry { reason, .. } if reason.contains("cut"));
    assert_eq!(events.iter().filter(is_retry).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_runs_ahead_and_pays() {
    // On a busy machine, a copy of the guest may not be there before the other model's reply.
    for _ in 0..ATTEMPTS {
        if drafts_and_pays().await == (1, 1) {
            return;
        }
    }
    panic!("no draft ran ahead and was used");
}

/// A run with a draft, and one without enough budget for it. Returns the number of cells that ran ahead in the first, and of those that were used.
async fn drafts_and_pays() -> (u32, u32) {
    let early = Arc::new(Early::default());
    let model = Model::new(move |asked, _| match (asked.model.as_str(), asked.turn()) {
        ("large", 0) => {
            let drafted = early.clone();
            writes_after(&[(0, "```repl\nx = len(context)\nFINAL(x + 1)\n```\n")], move || {
                let drafted = drafted.clone();
                async move {
                    drafted.count(1).await; // in the second run it was counted before
                    tokio::time::sleep(WRITING).await;
                }
            })
        }
        ("small", 0) => {
            early.note();
            runs("x = len(context)\nFINAL(x + 1)")
        }
        other => panic!("{other:?}"),
    })
    .await;
    let mut options = model.options("count", "four");
    options.draft = Some(model.endpoint("small"));
    let (done, _) = finish(options.clone(), BackendKind::Subprocess).await;
    assert_eq!(done.finish.answer, Some("5".into()), "{:?}", done.finish.error);
    let ahead = tally(&done, Source::Model);
    assert_eq!((done.usage.calls, model.asked().len()), (2.0, 2));
    // The other endpoint's reply had no usage.
    assert!(done.usage.output_tokens > 10.0 && done.usage.input_tokens > 100.0);

    // The calls are for the run itself.
    options.max_iterations = 3;
    options.budget.max_calls = Some(3.0);
    let (done, _) = finish(options, BackendKind::Subprocess).await;
    assert_eq!((done.finish.answer, done.usage.calls), (Some("5".into()), 1.0));
    ahead
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_that_refuses_fails_the_run_or_the_call() {
    let model = Model::new(|asked, _| match (asked.model.as_str(), asked.task(), asked.turn()) {
        ("large", "catch it", 0) => runs("try: rlm_query('anything')\nexcept Exception as error: FINAL(str(error))"),
        _ => (StatusCode::UNAUTHORIZED, format!("the key {KEY} is unknown")).into_response(),
    })
    .await;
    let (done, _) = finish(model.options("catch it", "c"), BackendKind::Subprocess).await;
    let why = "the child run has no answer: the endpoint answered 401: the key [key] is unknown";
    assert_eq!(done.finish.answer, Some(why.into()));
    let (done, _) = finish(model.options("fail", "c"), BackendKind::Subprocess).await;
    assert_eq!((done.finish.outcome, done.finish.answer), (RunOutcome::Failed, None));
    assert!(done.finish.error.unwrap().contains("401: the key [key] is unknown"));

    let always = Model::new(|_, _| (StatusCode::BAD_GATEWAY, "").into_response()).await;
    let mut options = always.options("fail", "c");
    options.model.max_retries = 1;
    let (done, _) = finish(options, BackendKind::Subprocess).await;
    assert_eq!((done.finish.outcome, always.asked().len()), (RunOutcome::Failed, 2));
    assert!(done.finish.error.unwrap().contains("(2 attempts)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_of_calls_holds_for_the_whole_tree() {
    let model = Model::new(|asked, _| match (asked.task(), asked.turn()) {
        ("spend it", 0) => runs("answers = llm_query_batched(['p'] * 5)\nprint(answers.count('q'), answers[-1])"),
        _ => says("q"),
    })
    .await;
    let mut options = model.options("spend it", "c");
    options.budget = BudgetLimits {
        max_calls: Some(3.0),
        ..BudgetLimits::default()
    };
    let (Rlm { finish, usage, .. }, events) = finish(options, BackendKind::Subprocess).await;
    assert_eq!((finish.outcome, finish.answer), (RunOutcome::Limit, None));
    let why = "the budget of 3 model calls is used up (maxCalls)";
    assert!(finish.error.unwrap().contains(why));
    assert_eq!((usage.calls, model.asked().len()), (3.0, 3));
    let printed = events.iter().filter_map(|event| match &event.kind {
        RlmEventKind::Output { text, .. } => Some(text.as_str()),
        _ => None,
    });
    let printed: String = printed.collect();
    assert!(printed.starts_with("2 Error: LM query failed"), "{printed}");
    assert!(printed.contains(why), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn time_ends_a_run_whose_model_is_silent() {
    // A server that listens and never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", silent.local_addr().unwrap());
    let mut options = RlmOptions::new("wait", "c", Endpoint::new(&url, None, "m").unwrap()).unwrap();
    options.budget = BudgetLimits {
        max_time: Some(1_500.0),
        ..BudgetLimits::default()
    };
    let (done, _) = finish(options, BackendKind::Subprocess).await;
    assert_eq!(done.finish.outcome, RunOutcome::Limit);
    assert!(done.finish.error.unwrap().contains("(maxTime)"));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_turns_left_the_best_answer_is_asked_for() {
    let model = Model::new(|asked, _| match asked.turn() {
        0 => runs("x = 1"),
        1 => says("perhaps 42"),
        turn => panic!("turn {turn}"),
    })
    .await;
    let mut options = model.options("guess", "c");
    options.max_iterations = 1;
    let (done, _) = finish(options, BackendKind::Subprocess).await;
    assert_eq!(
        (done.finish.outcome, done.finish.answer),
        (RunOutcome::Exhausted, Some("perhaps 42".into()))
    );
}

/// `sandglass-host rlm …`: status, standard output and standard error.
async fn command(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sandglass-host"))
        .arg("rlm")
        .args(args)
        .args(["--backend", "subprocess", "--key-env", "A_KEY"])
        .env("A_KEY", KEY)
        .env_remove("OPENAI_BASE_URL")
        .stdin(Stdio::null())
        .output();
    let output = soon(output).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_prints_the_answer_and_tells_what_happens() {
    let model = two_levels().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (data, lines) = (path("data.txt"), path("run.jsonl"));
    std::fs::write(&data, "alpha beta|gamma delta").unwrap();
    let asks = ["--task", "shout both", "--model", "large", "--url", &model.url];
    let more = ["--max-depth", "2", "--price", "2,10", "--trajectory", &lines];
    let (status, out, err) = command(&[&[data.as_str()], &asks[..], &more].concat()).await;
    assert_eq!((status, out.as_str()), (Some(0), "ALPHA + GAMMA\n"), "{err}");
    for told in [
        "run 0: shout both",
        "> parts = context.split('|')",
        "  2 parts",
        "attempt 1 failed, again in 0.",
        "│ run 0.1: shout the first word",
        "│ │ answer: GAMMA",
        "answered: 12 calls, 800 + 80 tokens, cost 0.0024",
    ] {
        assert!(err.contains(told), "{told:?} is not in {err}");
    }
    let mode = std::fs::metadata(&lines).unwrap().permissions().mode();
    let text = std::fs::read_to_string(&lines).unwrap();
    let events: Vec<RlmEvent> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((mode & 0o777, events.last().unwrap().run.as_str()), (0o600, "0"));
    assert!(!text.contains(KEY) && !err.contains(KEY));
}

#[tokio::test(flavor = "multi_thread")]
async fn several_files_are_several_contexts() {
    let model = Model::new(|asked, _| match asked.task() {
        // The variables outlive the guest to which they were given.
        "join" if asked.turn() == 0 => runs("import os; os._exit(1)"),
        _ => runs("FINAL([context, context_1, context_2.decode('utf-16'), 'context_3' in globals()])"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let files = [path("a"), path("b"), path("c")];
    for (file, bytes) in files.iter().zip([&b"first"[..], b"second", b"\xff\xfe3\0"]) {
        std::fs::write(file, bytes).unwrap();
    }
    let with = ["--task", "join", "--model", "m", "--url", &model.url, "--quiet"];
    let all: Vec<&str> = files.iter().map(String::as_str).chain(with).collect();
    let (status, out, err) = command(&all).await;
    assert_eq!(
        (status, out.as_str()),
        (Some(0), "[\"first\",\"second\",\"3\",false]\n"),
        "{err}"
    );
    let asked = model.asked();
    let (rules, task) = (&asked[0].messages[0].1, &asked[0].messages[1].1);
    assert!(rules.contains("`context_1` and so on"), "{rules}");
    for told in [
        "The variable `context` is a str of 5 characters. It begins:\n<<<\nfirst\n>>>",
        "The variable `context_1` is a str of 6 characters. It begins:\n<<<\nsecond\n>>>",
        "The variable `context_2` is a bytes of 4 bytes.",
    ] {
        assert!(task.contains(told), "{told:?} is not in {task}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_status_tells_how_it_ended() {
    let model = Model::new(|asked, _| match asked.task() {
        "a number" => runs("FINAL({'n': len(context or b'')})"),
        _ => (StatusCode::FORBIDDEN, "not you").into_response(),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let schema = folder.path().join("schema.json");
    let data = folder.path().join("data.bin");
    std::fs::write(&schema, r#"{"type": "object", "required": ["n"]}"#).unwrap();
    std::fs::write(&data, [0xff, 0, 1]).unwrap();
    let (schema, data) = (schema.to_str().unwrap(), data.to_str().unwrap());
    let with = ["--model", "m", "--url", &model.url, "--quiet"];
    let (status, out, err) = command(&[&[data, "--task", "a number", "--schema", schema], &with[..]].concat()).await;
    assert_eq!(
        (
            status,
            out.as_str(),
            err.lines().find(|line| !line.starts_with(" WARN "))
        ),
        (Some(0), "{\"n\":3}\n", None)
    );
    let (status, out, err) = command(&[&["--task", "no"], &with[..]].concat()).await;
    assert_eq!((status, out.as_str()), (Some(1), ""));
    assert!(
        err.contains("sandglass-host rlm: ") && err.contains("403: not you"),
        "{err}"
    );
    for wrong in [
        &["--task", " "][..],
        &["--task", "t", "--budget-cost", "1"],
        &["--task", "t", "--schema", data],
        &["--task", "t", "/nowhere/at/all"],
        &["--task", "t", "-", "-"],
        &["--task", "t", "--sub-key-env", "KEY"],
        &["--task", "t", "--price", "1"],
    ] {
        let (status, out, err) = command(&[wrong, &with[..]].concat()).await;
        assert_eq!((status, out.as_str()), (Some(2), ""), "{wrong:?}: {err}");
    }
}
