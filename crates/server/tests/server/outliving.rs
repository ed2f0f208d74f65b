//! Executions of sessions with `"persist": true` whose clients leave.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::attacks::Raw;
use crate::kept_sessions::{left_waiting, route, with_model};
use crate::model::{Endpoint, Seen, Step, said, said_when_told};
use crate::support::{ANN, BOB, TestServer, answer, eventually, refusal};
use crate::suspending::{metric, slow, states};

const CONNECTIONS: &str = "sandglass_connections";

/// A client that has sent a request, and will leave.
async fn asking(server: &TestServer, route: &str, body: &Value, more: &str) -> Raw {
    let body = body.to_string();
    let head = format!(
        "POST {route} HTTP/1.1\r\nhost: sandglass\r\nauthorization: Bearer {ANN}\r\ncontent-type: application/json\r\n\
         {more}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    Raw::with(server, &head).await
}

/// Drops a client, and waits until the server has noticed.
async fn leaves(server: &TestServer, client: Raw, connections: f64) {
    drop(client);
    eventually("the client has left", async || {
        metric(server, CONNECTIONS).await <= connections
    })
    .await;
}

async fn last(server: &TestServer, id: &str) -> Value {
    let (status, told) = answer(server.get(&route(id, "last"))).await;
    assert_eq!(status, StatusCode::OK, "{told}");
    told
}

/// The last execution, once none runs any more.
async fn ended(server: &TestServer, id: &str) -> Value {
    eventually("nothing runs", async || last(server, id).await["running"] == false).await;
    last(server, id).await["execution"].take()
}

#[tokio::test(flavor = "multi_thread")]
async fn code_goes_on_when_its_client_leaves_and_its_result_waits() {
    let (_folder, path) = states();
    let (tell_first, first) = said_when_told("one");
    let (tell_second, second) = said_when_told("two");
    let mut model = Endpoint::with([first, second]).await;
    let mut server = with_model(&path, &model, &[]).await;
    let id = server.session(json!({ "persist": true })).await;
    assert_eq!(last(&server, &id).await, json!({ "running": false, "execution": null }));
    let connections = metric(&server, CONNECTIONS).await;
    for (number, more, tell, result) in [
        (1, "", tell_first, "'one'"),
        (2, "accept: text/event-stream\r\n", tell_second, "'two'"),
    ] {
        let code = json!({ "code": "print('asks')\nx = llm_query('question')\nx" });
        let client = asking(&server, &route(&id, "execute"), &code, more).await;
        assert!(matches!(model.next().await, Seen::Request { .. }));
        leaves(&server, client, connections).await;
        assert_eq!(last(&server, &id).await["running"], true);
        tell.send(()).unwrap();
        let run = ended(&server, &id).await;
        assert_eq!(
            (&run["id"], &run["result"], &run["stdout"], &run["code"]),
            (&json!(number), &json!(result), &json!("asks\n"), &code["code"]),
            "{run}"
        );
    }
    assert_eq!(server.execute(&id, "x").await["result"], "'two'");
    server.key = Some(BOB);
    assert_eq!(refusal(server.get(&route(&id, "last"))).await.0, 404);
    server.stop().await;
    // The result outlives the server, too.
    let server = slow(&path, &[]).await;
    assert_eq!(last(&server, &id).await["execution"]["result"], "'two'");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_waits_for_its_turn_never_runs_when_its_client_leaves() {
    let (_folder, path) = states();
    let (tell, first) = said_when_told("one");
    let mut model = Endpoint::with([first]).await;
    let server = with_model(&path, &model, &[]).await;
    let id = server.session(json!({ "persist": true })).await;
    let connections = metric(&server, CONNECTIONS).await;
    let execute = route(&id, "execute");
    let client = asking(&server, &execute, &json!({ "code": "x = llm_query('question')" }), "").await;
    assert!(matches!(model.next().await, Seen::Request { .. }));
    let second = asking(&server, &execute, &json!({ "code": "x = 'no'" }), "").await;
    eventually("it waits", async || {
        metric(&server, "sandglass_executions").await >= 2.0
    })
    .await;
    drop(second);
    leaves(&server, client, connections).await;
    tell.send(()).unwrap();
    assert_eq!(ended(&server, &id).await["id"], 1);
    let run = server.execute(&id, "x").await;
    assert_eq!((&run["result"], &run["id"]), (&json!("'one'"), &json!(2)), "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_leaves_the_execution_of_a_client_that_has_left_pending() {
    let (_folder, path) = states();
    let mut model = Endpoint::with([said("one"), Step::Wait]).await;
    let server = with_model(&path, &model, &[]).await;
    let id = server.session(json!({ "persist": true })).await;
    let connections = metric(&server, CONNECTIONS).await;
    let code = json!({ "code": "x = [llm_query('first'), llm_query('second')]\nx" });
    let client = asking(&server, &route(&id, "execute"), &code, "").await;
    for _ in 0..2 {
        assert!(matches!(model.next().await, Seen::Request { .. }));
    }
    leaves(&server, client, connections).await;
    server.stop().await;

    // Its resumption goes on without its client, too.
    let (tell, second) = said_when_told("two");
    let mut model = Endpoint::with([second]).await;
    let server = with_model(&path, &model, &[]).await;
    let (_, pending) = answer(server.get(&route(&id, "pending"))).await;
    assert_eq!(
        (&pending["execution"], &pending["calls"][0]["args"][0]),
        (&json!(1), &json!("second")),
        "{pending}"
    );
    let connections = metric(&server, CONNECTIONS).await;
    let client = asking(&server, &route(&id, "resume"), &json!({}), "").await;
    assert!(matches!(model.next().await, Seen::Request { .. }));
    leaves(&server, client, connections).await;
    tell.send(()).unwrap();
    assert_eq!(ended(&server, &id).await["result"], "['one', 'two']");
    assert_eq!(answer(server.get(&route(&id, "pending"))).await.1, Value::Null);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupts_timeouts_and_the_end_of_the_session_end_what_runs_without_a_client() {
    let (_folder, path) = states();
    let resumed = left_waiting(&path).await;
    let mut model = Endpoint::with([Step::Wait, said("go on"), Step::Wait]).await;
    let server = with_model(&path, &model, &[]).await;
    let connections = metric(&server, CONNECTIONS).await;
    let client = asking(&server, &route(&resumed, "resume"), &json!({}), "").await;
    assert!(matches!(model.next().await, Seen::Request { .. }));
    leaves(&server, client, connections).await;
    let interrupted = answer(server.post(&route(&resumed, "interrupt"), &json!({}))).await;
    assert_eq!(interrupted.0, StatusCode::NO_CONTENT);
    let run = ended(&server, &resumed).await;
    assert!(run["error"].as_str().unwrap().contains("KeyboardInterrupt"), "{run}");
    assert!(matches!(model.next().await, Seen::Left));
    assert_eq!(answer(server.get(&route(&resumed, "pending"))).await.1, Value::Null);
    assert_eq!(server.execute(&resumed, "x").await["result"], "['a text', 'one']");

    let id = server.session(json!({ "persist": true, "timeout": 5_000 })).await;
    let code = json!({ "code": "llm_query('question')\nwhile True:\n    pass" });
    let client = asking(&server, &route(&id, "execute"), &code, "").await;
    assert!(matches!(model.next().await, Seen::Request { .. }));
    leaves(&server, client, connections).await;
    let run = ended(&server, &id).await;
    assert!(run["error"].as_str().unwrap().starts_with("TimeoutError"), "{run}");

    let code = json!({ "code": "llm_query('question')" });
    let client = asking(&server, &route(&id, "execute"), &code, "").await;
    assert!(matches!(model.next().await, Seen::Request { .. }));
    leaves(&server, client, connections).await;
    let gone = answer(server.request(reqwest::Method::DELETE, &format!("/v1/sessions/{id}"))).await;
    assert_eq!(gone.0, StatusCode::NO_CONTENT, "{gone:?}");
    assert!(matches!(model.next().await, Seen::Left));
    assert_eq!(refusal(server.get(&route(&id, "last"))).await.0, 404);
    server.stop().await;
}
