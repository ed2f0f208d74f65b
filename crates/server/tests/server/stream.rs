//! Executions as server-sent events, and clients that leave.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::support::{LONG, TestServer, answer, eventually, refusal};

/// The events of a stream, in order.
struct Events {
    response: reqwest::Response,
    text: String,
}

impl Events {
    async fn of(server: &TestServer, id: &str, code: &str) -> Self {
        let request = server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": code }));
        let response = request.header("accept", "text/event-stream").send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
        }
    }

    async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let event = event.to_owned();
                self.text = rest.to_owned();
                let mut lines = event.lines();
                let Some(name) = lines.next().unwrap().strip_prefix("event: ") else {
                    continue; // a comment
                };
                let data = lines.next().unwrap().strip_prefix("data: ").unwrap();
                return Some((name.to_owned(), serde_json::from_str(data).unwrap()));
            }
            let piece = tokio::time::timeout(LONG, self.response.chunk())
                .await
                .expect("no event came");
            self.text.push_str(std::str::from_utf8(&piece.unwrap()?).unwrap());
        }
    }

    async fn all(mut self) -> Vec<(String, Value)> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_comes_before_the_result_in_its_order() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let code = "import sys\nclass Page:\n    def _repr_html_(self): return '<b>shown</b>'\n\
                print('one')\nprint('two', file=sys.stderr)\ndisplay(Page())\nprint('three')\n7";
    let events = Events::of(&server, &id, code).await.all().await;
    let (last, before) = events.split_last().unwrap();
    assert_eq!(
        (last.0.as_str(), &last.1["outcome"], &last.1["result"]),
        ("result", &json!("ok"), &json!("7"))
    );
    let text = |name: &str| -> String {
        let texts = before.iter().filter(|(event, _)| event == name);
        texts.map(|(_, data)| data["text"].as_str().unwrap()).collect()
    };
    assert_eq!(
        (text("stdout"), text("stderr")),
        ("one\nthree\n".to_owned(), "two\n".to_owned())
    );
    let display = before.iter().find(|(event, _)| event == "display");
    let (_, display) = display.unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!(
        (&display["mime"], &display["data"]),
        (&json!("text/html"), &json!("<b>shown</b>"))
    );
    assert!(
        before
            .iter()
            .all(|(event, _)| ["stdout", "stderr", "display"].contains(&event.as_str()))
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_at_once_hear_of_their_own_code_only() {
    let server = TestServer::start(&[]).await;
    let (one, other) = (server.session(json!({})).await, server.session(json!({})).await);
    // Three executions of one session, which run one after the other, and three of another session.
    let streams = (0..6).map(|number| {
        let id = if number % 2 == 0 { &one } else { &other };
        let code = format!("for _ in range(200): print('mark{number}', flush=True)\n'mark{number}'");
        let server = &server;
        async move { Events::of(server, id, &code).await.all().await }
    });
    for (number, events) in futures_util::future::join_all(streams).await.iter().enumerate() {
        let (last, result) = events.last().unwrap();
        assert_eq!(last, "result", "{events:?}");
        assert_eq!(result["result"], format!("'mark{number}'"));
        assert_eq!(result["stdout"], format!("mark{number}\n").repeat(200));
        let all = format!("{events:?}");
        let foreign = (0..6).find(|other| *other != number && all.contains(&format!("mark{other}")));
        assert_eq!(foreign, None, "{number}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_comes_while_the_code_runs() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    // The code ends only because a client who has read its output stops it.
    // `print('waiting')` would write the end of the line by itself, which may come in a second event.
    let mut events = Events::of(&server, &id, "print('waiting\\n', end='')\nwhile True: pass").await;
    let (name, data) = events.next().await.unwrap();
    assert_eq!((name.as_str(), &data["text"]), ("stdout", &json!("waiting\n")));
    let interrupted = server.post(&format!("/v1/sessions/{id}/interrupt"), &json!({}));
    assert_eq!(answer(interrupted).await.0, StatusCode::NO_CONTENT);
    let (name, result) = events.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &result["outcome"]),
        ("result", &json!("interrupted")),
        "{result}"
    );
    assert_eq!(result["stdout"], "waiting\n");
    assert!(events.next().await.is_none());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_destroyed_ends_its_stream() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let mut events = Events::of(&server, &id, "print('here')\nwhile True: pass").await;
    assert_eq!(events.next().await.unwrap().0, "stdout");
    let destroy = server.request(reqwest::Method::DELETE, &format!("/v1/sessions/{id}"));
    assert_eq!(answer(destroy).await.0, StatusCode::NO_CONTENT);
    let (name, data) = events.next().await.unwrap();
    assert_eq!(
        (name.as_str(), &data["error"]["code"]),
        ("error", &json!("destroyed")),
        "{data}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn much_output_is_bounded_for_a_slow_reader() {
    let server = TestServer::start(&[]).await;
    let id = server.session(json!({})).await;
    let code = "for _ in range(300): print('x' * 100_000)\n'done'";
    let events = Events::of(&server, &id, code).await.all().await;
    let (name, result) = events.last().unwrap();
    assert_eq!((name.as_str(), &result["result"]), ("result", &json!("'done'")));
    assert!(
        result["truncated"]["stdout"].as_u64().unwrap() > 29_000_000,
        "{}",
        result["truncated"]
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_gives_its_code_up() {
    let server = TestServer::start(&["--max-executions-per-key", "1"]).await;
    let options = json!({ "timeout": 3_000_000, "gracePeriod": 30_000 });
    let id = server.session(options).await;
    let executions = || async { answer(server.get("/health/detailed")).await.1["executions"] == 0 };

    // A client that reads events.
    let mut events = Events::of(&server, &id, "kept = 1\nprint('here')\nwhile True: pass").await;
    assert_eq!(events.next().await.unwrap().0, "stdout");
    let second = server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": "1" }));
    assert_eq!(refusal(second).await, (429, "too_many_executions".to_owned()));
    drop(events);
    eventually("the execution is given up", executions).await;
    assert_eq!(server.execute(&id, "kept").await["result"], "1");

    // A client that waits for the answer. The outcome is the same whether the code has begun or not.
    let code = json!({ "code": "while True: pass" });
    let waiting = server
        .post(&format!("/v1/sessions/{id}/execute"), &code)
        .timeout(Duration::from_millis(1_500));
    assert!(waiting.send().await.unwrap_err().is_timeout());
    eventually("the execution is given up", executions).await;
    assert_eq!(server.execute(&id, "kept").await["result"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_a_session_is_made_leaves_nothing() {
    let server = TestServer::start(&["--max-sessions", "4"]).await;
    // Clients leave at various moments of a guest's start. Only a session that was finished before exists.
    let leaving = (1..=8).map(|step| {
        let request = server
            .post("/v1/sessions", &json!({}))
            .timeout(Duration::from_millis(step * 15));
        async { drop(request.send().await) }
    });
    futures_util::stream::iter(leaving)
        .buffer_unordered(2)
        .collect::<Vec<_>>()
        .await;
    eventually("what is counted is what there is", || async {
        let listed = answer(server.get("/v1/sessions")).await.1["sessions"]
            .as_array()
            .unwrap()
            .len();
        let counted = answer(server.get("/health/detailed")).await.1["sessions"]["now"]
            .as_u64()
            .unwrap();
        listed as u64 == counted
    })
    .await;
    server.stop().await;
}
