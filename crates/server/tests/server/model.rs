//! A model's endpoint that follows a script: it refuses, stays silent, breaks off, or quotes secrets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use sandglass_server::Secrets;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::support::{LONG, TestServer, args};

/// The operator's, for the endpoint only.
pub(crate) const KEY: &str = "sk-operators-key-0123456789";

/// The endpoint's way with a request.
pub(crate) enum Step {
    /// Writes this text and closes the connection. `{authorization}` stands for the request's header.
    Say(String),
    /// Writes this text once it is told to, and closes the connection.
    SayWhen(oneshot::Receiver<()>, String),
    /// Writes nothing, until the client closes the connection.
    Wait,
}

#[derive(Debug)]
pub(crate) enum Seen {
    Request {
        head: String,
        body: Value,
    },
    /// The client closed a connection on which it waited.
    Left,
}

pub(crate) struct Endpoint {
    pub(crate) url: String,
    seen: UnboundedReceiver<Seen>,
    script: Arc<Mutex<VecDeque<Step>>>,
}

impl Endpoint {
    pub(crate) async fn with(steps: impl IntoIterator<Item = Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let script = Arc::new(Mutex::new(steps.into_iter().collect::<VecDeque<_>>()));
        let (told, seen) = unbounded_channel();
        let steps = Arc::clone(&script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&steps), told.clone()));
            }
        });
        Self { url, seen, script }
    }

    pub(crate) async fn next(&mut self) -> Seen {
        timeout(LONG, self.seen.recv())
            .await
            .expect("nothing was asked")
            .unwrap()
    }

    /// The number of requests after the end of the script.
    pub(crate) fn requests(&mut self) -> usize {
        assert!(
            self.script.lock().unwrap().is_empty(),
            "the script was not played to its end"
        );
        let seen = std::iter::from_fn(|| self.seen.try_recv().ok());
        seen.filter(|seen| matches!(seen, Seen::Request { .. })).count()
    }
}

async fn serve(mut stream: TcpStream, script: Arc<Mutex<VecDeque<Step>>>, told: UnboundedSender<Seen>) {
    let mut bytes = Vec::new();
    let (head, length, at) = loop {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some(at) = text.find("\r\n\r\n") else { continue };
        let head = text[..at].to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        break (text[..at].to_owned(), length.unwrap_or(0), at + 4);
    };
    while bytes.len() < at + length {
        stream.read_buf(&mut bytes).await.unwrap();
    }
    let authorization = head.lines().find_map(|line| line.strip_prefix("authorization: "));
    let authorization = authorization.unwrap_or("").to_owned();
    let body = serde_json::from_slice(&bytes[at..]).unwrap();
    told.send(Seen::Request { head, body }).unwrap();
    let step = script
        .lock()
        .unwrap()
        .pop_front()
        .expect("more is asked than the script has");
    match step {
        Step::Say(text) => {
            let text = text.replace("{authorization}", &authorization);
            stream.write_all(text.as_bytes()).await.unwrap();
        }
        Step::SayWhen(told, text) => {
            told.await.unwrap();
            let _ = stream.write_all(text.as_bytes()).await; // whoever asked may be gone
        }
        Step::Wait => {
            let _ = stream.read_to_end(&mut Vec::new()).await;
            let _ = told.send(Seen::Left);
        }
    }
}

fn reply(status: &str, headers: &str, body: &str) -> Step {
    Step::Say(format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}\r\n{body}"))
}

/// As [`said`], once it is told to.
pub(crate) fn said_when_told(text: &str) -> (oneshot::Sender<()>, Step) {
    let (tell, told) = oneshot::channel();
    match said(text) {
        Step::Say(text) => (tell, Step::SayWhen(told, text)),
        _ => unreachable!("it says the text"),
    }
}

pub(crate) fn said(text: &str) -> Step {
    let body = json!({
        "choices": [{ "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 7, "completion_tokens": 3 },
    });
    reply("200 OK", "", &body.to_string())
}

fn refused(status: &str, headers: &str) -> Step {
    reply(status, headers, r#"{"error": {"message": "not now"}}"#)
}

async fn server(endpoint: &Endpoint) -> TestServer {
    let args = args(&["--llm-url", &endpoint.url, "--llm-model", "large,small"]);
    let secrets = Secrets {
        llm_key: Some(KEY.to_owned()),
        ..Secrets::default()
    };
    TestServer::with(args, secrets).await
}

/// The outcome of asking in Python: the answer, or the error.
const ASK: &str = "def ask(*args, **named):\n    try: return 'said ' + llm_query(*args, **named)\n    except Exception as error: return f'{type(error).__name__}: {error}'\n";

async fn asked(server: &TestServer, id: &str, call: &str) -> String {
    let run = server.execute(id, &format!("{ASK}print({call}, end='')")).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    run["stdout"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_answers_and_is_paid_for() {
    let mut endpoint = Endpoint::with([said("hello"), said("hi")]).await;
    let server = server(&endpoint).await;
    let id = server.session(json!({})).await;
    let run = server
        .execute(&id, "llm_query('first') + llm_query('second', model='small')")
        .await;
    assert_eq!(run["result"], "'hellohi'", "{run}");
    assert_eq!(
        (
            &run["usage"]["calls"],
            &run["usage"]["inputTokens"],
            &run["usage"]["outputTokens"]
        ),
        (&json!(2.0), &json!(14.0), &json!(6.0)),
        "{run}"
    );
    for (prompt, model) in [("first", "large"), ("second", "small")] {
        let Seen::Request { head, body } = endpoint.next().await else {
            panic!("no request")
        };
        assert!(head.starts_with("POST /v1/chat/completions "), "{head}");
        assert!(head.contains(&format!("authorization: Bearer {KEY}")), "{head}");
        assert_eq!(
            (&body["model"], &body["messages"][0]["content"]),
            (&json!(model), &json!(prompt))
        );
    }
    let other = asked(&server, &id, "ask('third', model='huge')").await;
    assert!(
        other.contains("there is no model huge") && other.contains("large, small"),
        "{other}"
    );
    assert_eq!(endpoint.requests(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_endpoint_is_asked_again_and_a_final_refusal_is_told() {
    let soon = "retry-after-ms: 1\r\n";
    let script = [
        refused("429 Too Many Requests", soon),
        refused("503 Service Unavailable", soon),
        said("at last"),
    ];
    let mut endpoint = Endpoint::with(script).await;
    let server = server(&endpoint).await;
    let id = server.session(json!({})).await;
    assert_eq!(asked(&server, &id, "ask('x')").await, "said at last");
    assert_eq!(endpoint.requests(), 3);

    for (step, expected) in [
        (
            refused("429 Too Many Requests", "retry-after: 100000\r\n"),
            "429: not now",
        ),
        (refused("400 Bad Request", ""), "400: not now"),
        (
            reply(
                "429 Too Many Requests",
                "",
                r#"{"error": {"message": "no money", "code": "insufficient_quota"}}"#,
            ),
            "429: no money",
        ),
    ] {
        endpoint.script.lock().unwrap().push_back(step);
        let error = asked(&server, &id, "ask('x')").await;
        assert!(
            error.starts_with("HostCallError") && error.contains(expected),
            "{error}"
        );
        assert_eq!(endpoint.requests(), 1);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_replies_are_asked_for_again() {
    let script = [
        reply("200 OK", "", "<html>busy</html>"),
        reply("200 OK", "content-length: 1000\r\n", r#"{"choices": ["#),
        Step::Say("no HTTP at all".to_owned()),
        said("whole"),
    ];
    let mut endpoint = Endpoint::with(script).await;
    let server = server(&endpoint).await;
    let id = server.session(json!({})).await;
    assert_eq!(asked(&server, &id, "ask('x')").await, "said whole");
    assert_eq!(endpoint.requests(), 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recursion_falls_back_to_the_model_where_the_profile_says_so() {
    for (profile, code, expected) in [
        (
            "rlm",
            "rlm_query('a'), rlm_query_batched(['b', 'c'])",
            "('x', ['x', 'x'])\n",
        ),
        (
            "rlm-legacy",
            "rlm_query('a'), await rlm_query_batched(['b', 'c'])",
            "('x', ['x', 'x'])\n",
        ),
    ] {
        let mut endpoint = Endpoint::with([said("x"), said("x"), said("x")]).await;
        let server = server(&endpoint).await;
        let id = server.session(json!({ "profile": profile })).await;
        let run = server.execute(&id, &format!("print(({code}))")).await;
        assert_eq!(run["stdout"], expected, "{run}");
        assert_eq!(endpoint.requests(), 3);
        server.stop().await;
    }
    // Other profiles behave differently, because their prompts mention recursion.
    let mut endpoint = Endpoint::with([]).await;
    let server = server(&endpoint).await;
    for profile in ["default", "rlm-core"] {
        let id = server.session(json!({ "profile": profile })).await;
        let run = server.execute(&id, "rlm_query('a')").await;
        assert!(run["error"].as_str().unwrap().contains("no recursion"), "{run}");
    }
    assert_eq!(endpoint.requests(), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_end_is_given_up() {
    let endless = reply("200 OK", "", &"x".repeat(17 << 20));
    let mut endpoint = Endpoint::with([endless]).await;
    let server = server(&endpoint).await;
    let id = server.session(json!({})).await;
    let error = asked(&server, &id, "ask('x')").await;
    assert!(
        error.starts_with("HostCallError") && error.contains("longer than"),
        "{error}"
    );
    assert_eq!(endpoint.requests(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_endpoint_is_left_when_nobody_waits_for_it() {
    let mut endpoint = Endpoint::with([Step::Wait, Step::Wait, said("later")]).await;
    let server = server(&endpoint).await;
    // A call of the model has a timeout.
    let id = server.session(json!({ "hostCallTimeout": 5_000 })).await;
    let error = asked(&server, &id, "ask('x')").await;
    assert!(error.contains("5000 ms"), "{error}");
    assert!(matches!(endpoint.next().await, Seen::Request { .. }));
    assert!(matches!(endpoint.next().await, Seen::Left));

    // An interrupt stops the waiting code.
    let id = server.session(json!({})).await;
    let interrupting = async {
        assert!(matches!(endpoint.next().await, Seen::Request { .. }));
        let interrupt = server.post(&format!("/v1/sessions/{id}/interrupt"), &json!({}));
        assert_eq!(interrupt.send().await.unwrap().status(), 204);
        assert!(matches!(endpoint.next().await, Seen::Left));
    };
    let (run, ()) = tokio::join!(server.execute(&id, "llm_query('x')"), interrupting);
    assert_eq!(
        (&run["outcome"], &run["state"]["status"]),
        (&json!("interrupted"), &json!("kept")),
        "{run}"
    );
    assert_eq!(asked(&server, &id, "ask('x')").await, "said later");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_never_reaches_a_guest() {
    let quoted = r#"{"error": {"message": "Incorrect API key provided: {authorization}"}}"#;
    let quoting = json!({ "choices": [{ "message": { "content": "you sent {authorization}" } }] }).to_string();
    let mut endpoint = Endpoint::with([
        reply("401 Unauthorized", "", quoted),
        reply("418 I'm a teapot", "", "plainly {authorization}"),
        reply("200 OK", "", &quoting),
    ])
    .await;
    let server = server(&endpoint).await;
    let id = server.session(json!({})).await;
    for expected in [
        "Incorrect API key provided: Bearer [key]",
        "plainly Bearer [key]",
        "said you sent Bearer [key]",
    ] {
        let told = asked(&server, &id, "ask('x')").await;
        assert!(told.contains(expected) && !told.contains(KEY), "{told}");
    }
    // The key was in the request, so the endpoint could quote it.
    assert_eq!(endpoint.requests(), 3);
    // Nor does the address, which is the operator's as well.
    drop(endpoint);
    let environment =
        "import os\nwith open('/proc/self/environ') as file: environ = file.read()\nprint(dict(os.environ), environ)";
    let run = server.execute(&id, environment).await;
    let text = run.to_string();
    assert!(!text.contains(KEY) && !text.contains("chat/completions"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed() {
    let mut elsewhere = Endpoint::with([]).await;
    let to = format!("location: {}/chat/completions\r\n", elsewhere.url);
    let mut endpoint = Endpoint::with([reply("307 Temporary Redirect", &to, "")]).await;
    let server = server(&endpoint).await;
    let id = server.session(json!({})).await;
    let error = asked(&server, &id, "ask('x')").await;
    assert!(error.starts_with("HostCallError") && error.contains("307"), "{error}");
    assert_eq!((endpoint.requests(), elsewhere.requests()), (1, 0));
    server.stop().await;
}
