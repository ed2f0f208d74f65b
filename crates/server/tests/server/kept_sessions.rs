//! Sessions over HTTP with `"persist": true`. `tests/client/test_kept_server.py` kills servers.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use sandglass_server::Secrets;
use serde_json::{Value, json};

use crate::attacks::Raw;
use crate::model::{Endpoint, KEY, Seen, Step, said};
use crate::support::{ANN, BOB, TestServer, answer, args, eventually, refusal};
use crate::suspending::{about, can_be_opened, files, is_suspended, metric, slow, states, suspended};

const WAITS: &str = "x.append(llm_query('first'))\nx.append(llm_query('second'))\nx";

pub(crate) fn route(id: &str, name: &str) -> String {
    format!("/v1/sessions/{id}/{name}")
}

/// A server with a model that ends soon, whatever runs.
pub(crate) async fn with_model(path: &str, model: &Endpoint, more: &[&str]) -> TestServer {
    can_be_opened(path).await;
    let own = [
        "--state-dir",
        path,
        "--max-spares",
        "0",
        "--shutdown-seconds",
        "0.1",
        "--llm-url",
        &model.url,
    ];
    let args = args(&[&own[..], &["--llm-model", "large"], more].concat());
    let secrets = Secrets {
        llm_key: Some(KEY.to_owned()),
        keys: Some(format!("ann {ANN}\nbob {BOB}")),
        ..Secrets::default()
    };
    let mut server = TestServer::with(args, secrets).await;
    server.key = Some(ANN);
    server
}

/// A session whose second question has no answer when its server ends.
pub(crate) async fn left_waiting(path: &str) -> String {
    let mut model = Endpoint::with([said("one"), Step::Wait]).await;
    let server = with_model(path, &model, &[]).await;
    let id = server.session(json!({ "context": "a text", "persist": true })).await;
    assert_eq!(server.execute(&id, "x = [context]").await["outcome"], "ok");
    let request = server.post(&route(&id, "execute"), &json!({ "code": WAITS }));
    let running = tokio::spawn(answer(request));
    for _ in 0..2 {
        assert!(matches!(model.next().await, Seen::Request { .. }));
    }
    server.stop().await;
    let (status, told) = running.await.unwrap();
    assert_eq!(
        (status, &told["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("shutting_down")),
        "{told}"
    );
    assert!(told["error"]["message"].as_str().unwrap().contains("pending"), "{told}");
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_goes_on_at_the_next_server() {
    let (_folder, path) = states();
    let id = left_waiting(&path).await;
    let mut model = Endpoint::with([said("two")]).await;
    let server = with_model(&path, &model, &[]).await;
    assert!(is_suspended(&server, &id).await);
    let (_, listed) = answer(server.get("/v1/sessions")).await;
    assert_eq!(
        (
            listed["sessions"].as_array().unwrap().len(),
            &listed["sessions"][0]["id"]
        ),
        (1, &json!(id))
    );
    let (status, pending) = answer(server.get(&route(&id, "pending"))).await;
    assert_eq!(
        (status, &pending["execution"], &pending["code"]),
        (StatusCode::OK, &json!(2), &json!(WAITS)),
        "{pending}"
    );
    let calls = pending["calls"].as_array().unwrap();
    assert_eq!(
        (calls.len(), &calls[0]["name"], &calls[0]["args"][0]),
        (1, &json!("llm_query"), &json!("second")),
        "{pending}"
    );

    // Nothing else may happen until then.
    let value = json!({ "value": 1 });
    for request in [
        server.post(&route(&id, "execute"), &json!({ "code": "1" })),
        server.get(&route(&id, "variables")),
        server.request(Method::PUT, &route(&id, "variables/x")).json(&value),
        server.get(&route(&id, "files")),
        server.post(&route(&id, "fork"), &json!({})),
    ] {
        assert_eq!(refusal(request).await, (409, "execution_pending".to_owned()));
    }
    for body in [
        json!({ "answers": { "nonsense": 1 } }),
        json!({ "answers": [1] }),
        json!({ "timeout": 1 }),
    ] {
        assert_eq!(
            refusal(server.post(&route(&id, "resume"), &body)).await.0,
            400,
            "{body}"
        );
    }
    let request = server
        .post(&route(&id, "resume"), &json!({}))
        .header("accept", "text/event-stream");
    let events = request.send().await.unwrap().text().await.unwrap();
    assert!(
        events.contains("event: result\n") && events.contains("['a text', 'one', 'two']"),
        "{events}"
    );
    assert!(matches!(model.next().await, Seen::Request { body, .. } if body.to_string().contains("second")));
    assert_eq!(model.requests(), 0, "the first question is not paid for again");
    assert_eq!(
        answer(server.get(&route(&id, "pending"))).await,
        (StatusCode::OK, Value::Null)
    );
    assert_eq!(
        refusal(server.post(&route(&id, "resume"), &json!({}))).await,
        (400, "invalid_option".to_owned())
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_answered_or_given_up_by_their_owner_only() {
    let (_folder, path) = states();
    let (answered, given_up) = (left_waiting(&path).await, left_waiting(&path).await);
    let model = Endpoint::with([]).await;
    let mut server = with_model(&path, &model, &[]).await;
    server.key = Some(BOB);
    for id in [&answered, &given_up] {
        assert_eq!(refusal(server.get(&route(id, "pending"))).await.0, 404);
        assert_eq!(refusal(server.post(&route(id, "resume"), &json!({}))).await.0, 404);
        assert_eq!(refusal(server.post(&route(id, "discard"), &json!({}))).await.0, 404);
        assert_eq!(
            refusal(server.request(Method::DELETE, &format!("/v1/sessions/{id}")))
                .await
                .0,
            404
        );
    }
    server.key = Some(ANN);
    let (_, pending) = answer(server.get(&route(&answered, "pending"))).await;
    let answers = json!({ "answers": { pending["calls"][0]["id"].as_str().unwrap(): "given" } });
    let (status, run) = answer(server.post(&route(&answered, "resume"), &answers)).await;
    assert_eq!(
        (status, &run["result"]),
        (StatusCode::OK, &json!("['a text', 'one', 'given']")),
        "{run}"
    );
    let discarded = answer(server.post(&route(&given_up, "discard"), &json!({}))).await;
    assert_eq!(discarded.0, StatusCode::NO_CONTENT, "{discarded:?}");
    let run = server.execute(&given_up, "x").await;
    assert_eq!((&run["result"], &run["id"]), (&json!("['a text']"), &json!(2)), "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_closed_when_nobody_uses_it_and_opened_once() {
    let (_folder, path) = states();
    let server = slow(&path, &["--suspend-after", "0.1"]).await;
    let id = server.session(json!({ "persist": true })).await;
    suspended(&server, &id).await;
    assert_eq!(metric(&server, "sandglass_sessions").await, 0.0);
    let set = server
        .request(Method::PUT, &route(&id, "variables/x"))
        .json(&json!({ "value": [1] }));
    assert_eq!(answer(set).await.0, StatusCode::NO_CONTENT);
    suspended(&server, &id).await;
    // What was set between executions is kept, and all requests find the same session.
    let runs = join_all((0..8).map(async |_| server.execute(&id, "x.append(x[-1] + 1)\nlen(x)").await)).await;
    let mut lengths: Vec<_> = runs
        .iter()
        .map(|run| run["result"].as_str().unwrap().parse::<u32>().unwrap())
        .collect();
    lengths.sort_unstable();
    assert_eq!(lengths, (2..=9).collect::<Vec<_>>());
    assert!(
        runs.iter()
            .all(|run| run["state"]["status"] == "kept" && run.get("unkept").is_none()),
        "{runs:?}"
    );
    suspended(&server, &id).await;
    let gone = answer(server.request(Method::DELETE, &format!("/v1/sessions/{id}"))).await;
    assert_eq!(gone.0, StatusCode::NO_CONTENT, "{gone:?}");
    assert_eq!(refusal(server.get(&route(&id, "pending"))).await.0, 404);
    let awake = server.session(json!({ "persist": true })).await;
    server.execute(&awake, "x = 1").await;
    let gone = answer(server.request(Method::DELETE, &format!("/v1/sessions/{awake}"))).await;
    assert_eq!(gone.0, StatusCode::NO_CONTENT, "{gone:?}");
    server.stop().await;
    let server = slow(&path, &[]).await;
    assert_eq!(answer(server.get("/v1/sessions")).await.1["sessions"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_kept_is_refused() {
    let (folder, path) = states();
    let server = slow(&path, &[]).await;
    let long = "x".repeat(70_000);
    for options in [
        json!({ "persist": "name" }),
        json!({ "persist": true, "channel": true }),
        json!({ "persist": true, "ahead": true }),
        json!({ "persist": true, "checkpoints": 2 }),
        json!({ "persist": true, "profile": "dspy", "outputFields": [long] }),
    ] {
        let refused = refusal(server.post("/v1/sessions", &options)).await;
        assert_eq!(refused, (400, "invalid_option".to_owned()), "{options}");
    }
    let ordinary = server.session(json!({ "persist": false })).await;
    assert_eq!(
        answer(server.get(&route(&ordinary, "pending"))).await,
        (StatusCode::OK, Value::Null)
    );
    for (name, body) in [
        ("resume", json!({})),
        ("discard", json!({})),
        ("replay", json!({ "execution": 1 })),
    ] {
        let refused = refusal(server.post(&route(&ordinary, name), &body)).await;
        assert_eq!(refused, (400, "invalid_option".to_owned()));
    }
    let refused = refusal(server.get(&route(&ordinary, "last"))).await;
    assert_eq!(refused, (400, "invalid_option".to_owned()));
    server.stop().await;
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let workspaces = folder.path().join("workspaces");
    let on_disk = slow(&path, &["--workspace-dir", workspaces.to_str().unwrap()]).await;
    let without = TestServer::start(&[]).await;
    for server in [on_disk, without] {
        let refused = refusal(server.post("/v1/sessions", &json!({ "persist": true }))).await;
        assert_eq!(refused, (400, "invalid_option".to_owned()));
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_does_not_fit_goes_on_and_says_so() {
    let (_folder, path) = states();
    let bounds = ["--max-suspended-per-key", "1", "--max-suspended-mib-per-key", "2"];
    let server = slow(&path, &bounds).await;
    let id = server.session(json!({ "persist": true })).await;
    let second = refusal(server.post("/v1/sessions", &json!({ "persist": true }))).await;
    assert_eq!(second, (429, "too_many_sessions".to_owned()));
    let run = server.execute(&id, "import os\nx = os.urandom(3 << 20)\ny = 1").await;
    assert!(run["unkept"].as_str().unwrap().contains("2 MiB"), "{run}");
    let run = server.execute(&id, "del x\ny").await;
    assert_eq!((&run["result"], run.get("unkept")), (&json!("1"), None), "{run}");
    server.stop().await;
    let server = slow(&path, &bounds).await;
    let run = server.execute(&id, "y").await;
    assert_eq!(
        (&run["result"], &run["state"]["status"]),
        (&json!("1"), &json!("kept")),
        "{run}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_session_says_so_until_it_is_deleted() {
    let (folder, path) = states();
    let server = slow(&path, &[]).await;
    let id = server.session(json!({ "persist": true })).await;
    server.stop().await;
    let [stored] = &files(folder.path(), "sessions")[..] else {
        panic!("one session is stored");
    };
    let whole = fs::read(stored).unwrap();
    fs::write(stored, "no ref").unwrap();

    let server = slow(&path, &["--suspend-after", "0.1"]).await;
    // Two suspensions, so that the search for old sessions has ended once.
    let other = server.session(json!({ "persist": true })).await;
    for _ in 0..2 {
        suspended(&server, &other).await;
        assert_eq!(server.execute(&other, "1").await["outcome"], "ok");
    }
    assert_eq!(fs::read(stored).unwrap(), b"no ref", "it was not removed as an old one");
    for request in [
        server.get(&format!("/v1/sessions/{id}")),
        server.get(&route(&id, "variables")),
        server.post(&route(&id, "execute"), &json!({ "code": "1" })),
    ] {
        assert_eq!(refusal(request).await, (500, "state_damaged".to_owned()));
    }
    // It is read again, because the damage may have been one of the moment.
    fs::write(stored, &whole).unwrap();
    assert_eq!(server.execute(&id, "1").await["result"], "1");
    server.stop().await;

    fs::write(stored, "no ref").unwrap();
    let mut server = slow(&path, &[]).await;
    let gone = format!("/v1/sessions/{id}");
    server.key = Some(BOB);
    assert_eq!(refusal(server.request(Method::DELETE, &gone)).await.0, 404);
    server.key = Some(ANN);
    assert_eq!(
        answer(server.request(Method::DELETE, &gone)).await.0,
        StatusCode::NO_CONTENT
    );
    assert!(!stored.exists());
    assert_eq!(refusal(server.get(&gone)).await.0, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_between_executions_outlive_a_server_that_ends_while_the_session_is_in_use() {
    let (_folder, path) = states();
    let server = slow(&path, &["--shutdown-seconds", "0.1"]).await;
    let id = server.session(json!({ "persist": true })).await;
    let set = server
        .request(Method::PUT, &route(&id, "variables/x"))
        .json(&json!({ "value": [1] }));
    assert_eq!(answer(set).await.0, StatusCode::NO_CONTENT);
    // A request whose body never comes.
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: sandglass\r\nauthorization: Bearer {ANN}\r\ncontent-type: application/json\r\n\
         content-length: 100\r\n\r\n{{",
        route(&id, "execute")
    );
    let _raw = Raw::with(&server, &head).await;
    eventually("the session is in use", async || {
        about(&server, &id).await["idleSeconds"] == 0.0
    })
    .await;
    server.stop().await;
    let server = slow(&path, &[]).await;
    let run = server.execute(&id, "x").await;
    assert_eq!(
        (&run["result"], &run["state"]["status"]),
        (&json!("[1]"), &json!("kept")),
        "{run}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_states_take_no_more_room_than_the_key_may_have() {
    let (folder, path) = states();
    let server = slow(&path, &["--max-suspended-mib-per-key", "3"]).await;
    let id = server.session(json!({ "persist": true })).await;
    for _ in 0..6 {
        let run = server.execute(&id, "import os\nx = os.urandom(2 << 20)").await;
        assert_eq!((&run["outcome"], run.get("unkept")), (&json!("ok"), None), "{run}");
    }
    let bytes = |path: &std::path::PathBuf| fs::metadata(path).unwrap().len();
    // The bound, and the last state.
    let stored: u64 = files(folder.path(), "objects").iter().map(bytes).sum();
    assert!(stored < 8 << 20, "{stored} bytes");
    server.stop().await;
    let server = slow(&path, &[]).await;
    assert_eq!(server.execute(&id, "len(x)").await["result"], "2097152");
    server.stop().await;
}
