//! Servers that share states in NATS: each answers for the sessions of all.

use std::sync::{LazyLock, OnceLock};

use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use sandglass_server::Secrets;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::nats::Nats;
use super::resuming;
use super::support::{ANN, BOB, TestServer, answer, args, eventually, refusal};

/// A bucket that no other test has.
pub fn bucket() -> String {
    static SERVER: OnceLock<Nats> = OnceLock::new();
    static NUMBER: LazyLock<std::sync::atomic::AtomicU32> = LazyLock::new(Default::default);
    let server = SERVER.get_or_init(|| Nats::start(0, &[]));
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    format!("{}/test-{number}", server.url)
}

pub async fn server(bucket: &str, more: &[&str]) -> TestServer {
    let secrets = Secrets {
        keys: Some(format!("ann {ANN}\nbob {BOB}")),
        state_key: Some("5a".repeat(32)),
        ..Secrets::default()
    };
    let own = ["--cluster", bucket, "--max-spares", "0"];
    let all: Vec<_> = own.iter().chain(more).copied().collect();
    let mut server = TestServer::with(args(&all), secrets).await;
    server.key = Some(ANN);
    server
}

#[tokio::test]
async fn each_server_answers_for_the_sessions_of_all() {
    let bucket = bucket();
    let (a, b) = (server(&bucket, &[]).await, server(&bucket, &[]).await);
    let id = a.session(json!({ "context": "a text" })).await;
    // It never slept, so only its id tells where it is.
    assert_eq!(b.execute(&id, "x = 41\nlen(context)").await["result"], "6");
    assert_eq!(a.execute(&id, "x + 1").await["result"], "42");
    let path = format!("/v1/sessions/{id}");
    let (status, shown) = answer(b.get(&path)).await;
    assert_eq!((status, &shown["id"]), (StatusCode::OK, &json!(id)));
    let escaped = format!("/v1/sessions/%{:02x}{}", id.as_bytes()[0], &id[1..]);
    assert_eq!(answer(b.get(&escaped)).await.1["id"], id);
    // Files and variables, with bytes in both directions.
    let long = "é".repeat(300_000);
    let put = b
        .request(Method::PUT, &format!("{path}/files/a%20b.txt"))
        .body(long.clone());
    assert!(put.send().await.unwrap().status().is_success());
    assert_eq!(a.execute(&id, "len(open('a b.txt').read())").await["result"], "300000");
    let got = b.get(&format!("{path}/files/a%20b.txt")).send().await.unwrap();
    assert_eq!(got.text().await.unwrap(), long);
    let missing = refusal(b.get(&format!("{path}/files/missing"))).await;
    assert_eq!(missing, refusal(a.get(&format!("{path}/files/missing"))).await);
    // Errors of the other server come back as they are; so do those of keys.
    let mut of_bob = server(&bucket, &[]).await;
    of_bob.key = Some(BOB);
    assert_eq!(refusal(of_bob.get(&path)).await.0, 404);
    assert_eq!(
        refusal(b.get("/v1/sessions/00112233445566778899aabbccddeeff")).await.0,
        404
    );
    // Files of a stateless run are where it ran.
    let ran = answer(a.post("/execute", &json!({ "code": "open('f', 'w').write('a file')" })))
        .await
        .1;
    let file = b.get(&format!("/execute/{}/files/f", ran["id"].as_str().unwrap()));
    assert_eq!(file.send().await.unwrap().text().await.unwrap(), "a file");
    assert_eq!(answer(b.request(Method::DELETE, &path)).await.0, StatusCode::NO_CONTENT);
    for server in [&a, &b] {
        assert_eq!(refusal(server.get(&path)).await, (404, "session_not_found".to_owned()));
    }
    for server in [a, b, of_bob] {
        server.stop().await;
    }
}

#[tokio::test]
async fn streams_and_web_sockets_are_forwarded() {
    let bucket = bucket();
    let (a, b) = (server(&bucket, &[]).await, server(&bucket, &[]).await);
    let id = a.session(json!({})).await;
    let code = "print('first', flush=True)\nwhile True: pass";
    let run = b.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": code }));
    let mut stream = run
        .header("accept", "text/event-stream")
        .send()
        .await
        .unwrap()
        .bytes_stream();
    let (mut text, mut is_interrupted) = (String::new(), false);
    // Events come while the code runs: it goes on until the first event is there.
    while let Some(piece) = stream.next().await {
        text.push_str(std::str::from_utf8(&piece.unwrap()).unwrap());
        if text.contains("first") && !is_interrupted {
            is_interrupted = true;
            let interrupted = b.post(&format!("/v1/sessions/{id}/interrupt"), &json!({}));
            assert!(interrupted.send().await.unwrap().status().is_success());
        }
    }
    assert!(text.contains("event: result") && text.contains("interrupted"), "{text}");
    let channel = a.session(json!({ "channel": true })).await;
    let mut socket = b.channel(&channel).await.unwrap();
    socket
        .send(Message::text(json!({ "type": "boot" }).to_string()))
        .await
        .unwrap();
    let booted = loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => break text,
            _ => continue,
        }
    };
    assert!(booted.contains("booted"), "{booted}");
    drop(socket);
    for server in [a, b] {
        server.stop().await;
    }
}

/// A server remembers who answered for a session. The memory is wrong once the session has moved, and then the store tells.
#[tokio::test]
async fn a_session_that_moved_is_found_by_a_server_that_remembers_its_former_place() {
    let bucket = bucket();
    let a = server(&bucket, &["--suspend-after", "5"]).await; // long enough for both requests on a slow machine
    let (b, c) = (server(&bucket, &[]).await, server(&bucket, &[]).await);
    let id = a.session(json!({})).await;
    // The second one goes by what the first one has shown.
    for expected in ["1", "2"] {
        let code = "x = globals().get('x', 0) + 1\nx";
        assert_eq!(b.execute(&id, code).await["result"], expected);
    }
    let sleeps = async || answer(a.get("/v1/sessions")).await.1["sessions"][0]["suspended"] == true;
    eventually("the session is suspended", sleeps).await;
    assert_eq!(c.execute(&id, "x += 1\nx").await["result"], "3");
    // It is no longer where the second server remembers it.
    assert_eq!(b.execute(&id, "x += 1\nx").await["result"], "4");
    let metrics = b.get("/metrics").send().await.unwrap().text().await.unwrap();
    assert!(
        metrics.contains("sandglass_forwards_total{result=\"refused\"} 1"),
        "{metrics}"
    );
    // The third server has it, and ends. The second one has a kept connection to it, and goes on with the session.
    c.stop().await;
    assert_eq!(b.execute(&id, "x += 1\nx").await["result"], "5");
    for server in [a, b] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_request_is_forwarded_once() {
    let bucket = bucket();
    let a = server(&bucket, &[]).await;
    // This server tells an address that leads to the first one.
    let b = server(&bucket, &["--advertise", &a.url]).await;
    let c = server(&bucket, &[]).await;
    let id = b.session(json!({})).await;
    let path = format!("/v1/sessions/{id}");
    assert_eq!(refusal(c.get(&path)).await, (508, "forwarded_twice".to_owned()));
    assert_eq!(refusal(a.get(&path)).await, (508, "forwarded_twice".to_owned()));
    assert_eq!(answer(b.get(&path)).await.0, StatusCode::OK);
    for server in [a, b, c] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_told() {
    let bucket = bucket();
    let a = server(&bucket, &["--advertise", "http://127.0.0.1:1"]).await;
    let b = server(&bucket, &[]).await;
    let id = a.session(json!({})).await;
    let refused = b.get(&format!("/v1/sessions/{id}")).send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "5");
    let text = refused.text().await.unwrap();
    assert!(
        text.contains("server_unreachable") && text.contains("nothing was done"),
        "{text}"
    );
    // A server that ends in good order leaves what it stored to the others.
    a.execute(&id, "x = 7").await;
    a.stop().await;
    assert_eq!(b.execute(&id, "x").await["result"], "7");
    b.stop().await;
}

/// The place of a suspended session in the quota of a server is free again when another server has the session.
#[tokio::test]
async fn a_session_that_another_server_woke_is_no_longer_listed() {
    let bucket = bucket();
    let a = server(&bucket, &["--suspend-after", "0.01", "--max-suspended-per-key", "1"]).await;
    let b = server(&bucket, &[]).await;
    let listed = async || answer(a.get("/v1/sessions")).await.1["sessions"].clone();
    let sleeps = async || {
        let is_asleep = async || listed().await[0]["suspended"] == true;
        eventually("the session is suspended", is_asleep).await;
    };
    let first = a.session(json!({})).await;
    a.execute(&first, "x = 1").await;
    sleeps().await;
    assert_eq!(b.execute(&first, "x").await["result"], "1");
    assert_eq!(listed().await.as_array().unwrap().len(), 1, "nothing has told it");
    assert_eq!(a.execute(&first, "x + 1").await["result"], "2");
    assert_eq!(listed().await, json!([]));
    let second = a.session(json!({})).await;
    a.execute(&second, "x = 3").await;
    sleeps().await;
    for server in [a, b] {
        server.stop().await;
    }
}

/// Sessions of a server that is told to end go on elsewhere while it still answers, also those that never slept.
#[tokio::test]
async fn a_server_that_is_told_to_end_hands_its_sessions_over_and_answers() {
    let bucket = bucket();
    let (mut a, b) = (server(&bucket, &[]).await, server(&bucket, &[]).await);
    let (idle, busy) = (a.session(json!({})).await, a.session(json!({})).await);
    a.execute(&idle, "x = 1").await;
    let mut client = resuming::Client::with_sandbox(&b).await;
    // It waits until the test lets it go on, so the drain lasts until then.
    let folder = tempfile::tempdir().unwrap();
    let code = format!(
        "import os, time\nos.chdir({:?})\nopen('begun', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.01)\ny = 2\ny",
        folder.path()
    );
    let run = b.post(&format!("/v1/sessions/{busy}/execute"), &json!({ "code": code }));
    let run = tokio::spawn(answer(run));
    eventually("the code runs", async || folder.path().join("begun").exists()).await;
    assert_eq!(answer(a.get("/readyz")).await.0, StatusCode::OK);
    a.tell_to_end();
    let is_told = async || answer(a.get("/readyz")).await.0 == StatusCode::SERVICE_UNAVAILABLE;
    eventually("it is told to balancers", is_told).await;
    assert_eq!(refusal(a.get("/v1/rpc")).await, (503, "shutting_down".to_owned()));
    // Conversations that go on elsewhere are carried still, and none begins.
    resuming::drains(&a, &mut client).await;
    // Each server answers for both sessions, and for new ones.
    assert_eq!(a.execute(&idle, "x += 1\nx").await["result"], "2");
    assert_eq!(b.execute(&idle, "x += 1\nx").await["result"], "3");
    let new = a.session(json!({})).await;
    assert_eq!(b.execute(&new, "1").await["result"], "1");
    let metrics = b.get("/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nsandglass_sessions 3\n"), "{metrics}");
    let metrics = a.get("/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("\nsandglass_draining 1\n"), "{metrics}");
    std::fs::write(folder.path().join("go"), "").unwrap();
    let (status, ran) = run.await.unwrap();
    assert_eq!((status, &ran["result"]), (StatusCode::OK, &json!("2")), "{ran}");
    a.ended().await;
    let went_on = b.execute(&busy, "y + 1").await;
    assert_eq!(
        (&went_on["result"], &went_on["state"]["status"]),
        (&json!("3"), &json!("kept")),
        "{went_on}"
    );
    b.stop().await;
}

#[tokio::test]
async fn a_full_server_sends_new_sessions_to_another_one() {
    let bucket = bucket();
    let (a, b) = (
        server(&bucket, &["--max-sessions", "1"]).await,
        server(&bucket, &["--max-sessions", "1"]).await,
    );
    a.session(json!({})).await;
    // The look at its own id makes the other server known at once.
    let elsewhere = b.session(json!({})).await;
    assert_eq!(a.execute(&elsewhere, "1").await["result"], "1");
    let (status, full) = answer(a.post("/v1/sessions", &json!({}))).await;
    assert_eq!(
        (status, &full["error"]["code"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("server_full"))
    );
    let message = full["error"]["message"].to_string();
    assert!(message.contains("the other servers that it knows (1)"), "{message}");
    // A run needs no place of a session.
    assert_eq!(
        answer(a.post("/execute", &json!({ "code": "1" }))).await.0,
        StatusCode::OK
    );
    assert_eq!(
        answer(a.request(Method::DELETE, &format!("/v1/sessions/{elsewhere}")))
            .await
            .0,
        StatusCode::NO_CONTENT
    );
    // Until the other server has told that it has room again, the answer is that all are full.
    let moved = OnceLock::new();
    eventually("the other server has room", async || {
        let (status, made) = answer(a.post("/v1/sessions", &json!({}))).await;
        match made["id"].as_str() {
            Some(id) => drop(moved.set(id.to_owned())),
            None => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{made}"),
        }
        moved.get().is_some()
    })
    .await;
    assert_eq!(b.execute(moved.get().unwrap(), "2").await["result"], "2");
    for server in [a, b] {
        server.stop().await;
    }
}

/// The value of a metric without labels.
async fn metric<T: std::str::FromStr>(server: &TestServer, name: &str) -> T {
    let text = server.get("/metrics").send().await.unwrap().text().await.unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("sandglass_{name} ")));
    let value = line.and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("{name}\n{text}"))
}

/// Waits until each server knows the loads of so many others.
async fn know_loads(servers: &[&TestServer], others: u64) {
    for server in servers {
        eventually("the loads are known", async || {
            metric::<u64>(server, "other_loads").await == others
        })
        .await;
    }
}

#[tokio::test]
async fn sessions_of_a_full_server_spread_by_load() {
    let bucket = bucket();
    let a = server(&bucket, &["--max-sessions", "1"]).await;
    // With few places, a session weighs more than what other programs do to the machine's memory.
    let few = ["--max-sessions", "13"];
    let others = [
        server(&bucket, &few).await,
        server(&bucket, &few).await,
        server(&bucket, &few).await,
    ];
    know_loads(&[&a], 3).await;
    for _ in 0..13 {
        a.session(json!({})).await;
    }
    // With two choices of three, the server with the largest load gets no session.
    for other in &others {
        let sessions: u64 = metric(other, "sessions").await;
        assert!((2..=7).contains(&sessions), "{sessions}");
    }
    let text = a.get("/metrics").send().await.unwrap().text().await.unwrap();
    assert!(
        text.contains("sandglass_placements_total{reason=\"full\"} 12"),
        "{text}"
    );
    for server in others.into_iter().chain([a]) {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_busy_server_prefers_another_one_before_it_is_full() {
    let bucket = bucket();
    let (a, b) = (
        server(&bucket, &["--max-sessions", "5"]).await,
        server(&bucket, &["--max-sessions", "5"]).await,
    );
    know_loads(&[&a, &b], 1).await;
    for _ in 0..5 {
        a.session(json!({})).await;
    }
    // Both are on this machine. If most of its memory is in use, both are busy for that.
    let has_memory = metric::<f64>(&a, "memory_used_ratio").await < 0.5;
    let sessions = async || (metric::<u64>(&a, "sessions").await, metric::<u64>(&b, "sessions").await);
    if has_memory {
        assert_eq!(sessions().await, (4, 1));
    }
    let (before, elsewhere) = sessions().await;
    // A request that cannot be sent twice stays.
    a.session(json!({ "context": "é".repeat(50_000) })).await;
    if before < 5 {
        assert_eq!(sessions().await, (before + 1, elsewhere));
    }
    for server in [a, b] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_quota_of_a_key_holds_for_all_servers_together() {
    let bucket = bucket();
    let more = ["--max-sessions-per-key", "3", "--max-executions-per-key", "1"];
    let (a, b) = (server(&bucket, &more).await, server(&bucket, &more).await);
    know_loads(&[&a, &b], 1).await;
    let first = a.session(json!({})).await;
    a.session(json!({})).await;
    a.session(json!({})).await;
    let refused = async |path: &str, body: serde_json::Value, code: &str| {
        let last = OnceLock::new();
        eventually("the other server tells it", async || {
            let (status, refused) = answer(b.post(path, &body)).await;
            if status == StatusCode::TOO_MANY_REQUESTS {
                return last.set(refused).is_ok();
            }
            // Undone, so that the quota is the same at the next attempt.
            if let Some(id) = refused["id"].as_str().filter(|_| status == StatusCode::CREATED) {
                answer(b.request(Method::DELETE, &format!("/v1/sessions/{id}"))).await;
            }
            false
        })
        .await;
        let error = &last.get().unwrap()["error"];
        assert_eq!(error["code"], code);
        assert!(
            error["message"].to_string().contains("on all servers together"),
            "{error}"
        );
    };
    refused("/v1/sessions", json!({}), "too_many_sessions").await;
    let mut of_bob = server(&bucket, &more).await;
    of_bob.key = Some(BOB);
    of_bob.session(json!({})).await;
    // Code that runs until it is interrupted.
    let run = a.post(
        &format!("/v1/sessions/{first}/execute"),
        &json!({ "code": "while True: pass" }),
    );
    let run = tokio::spawn(answer(run));
    eventually("the code runs", async || metric::<u64>(&a, "executions").await == 1).await;
    refused("/execute", json!({ "code": "1" }), "too_many_executions").await;
    let interrupted = a.post(&format!("/v1/sessions/{first}/interrupt"), &json!({}));
    assert!(interrupted.send().await.unwrap().status().is_success());
    assert_eq!(run.await.unwrap().0, StatusCode::OK);
    answer(a.request(Method::DELETE, &format!("/v1/sessions/{first}"))).await;
    eventually("there is room again", async || {
        answer(b.post("/v1/sessions", &json!({}))).await.0 == StatusCode::CREATED
    })
    .await;
    for server in [a, b, of_bob] {
        server.stop().await;
    }
}
