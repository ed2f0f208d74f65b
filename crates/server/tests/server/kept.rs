//! Kept sandboxes of JSON-RPC: names, owners and quotas. `tests/client/test_kept_server.py` kills servers and clients.

use std::fs;
use std::path::Path;
use std::time::Instant;

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::rpc::Client;
use crate::support::{ANN, BOB, LONG, TestServer, answer, eventually, refusal};
use crate::suspending::{files, slow, states};

/// A name that would lead to another place, if it were a path.
const NAME: &str = "../../ann/sessions/\u{0}name";

fn code(error: &Value) -> &str {
    error["data"]["code"].as_str().unwrap()
}

/// A sandbox of this name. A client that has left may still have it for a moment.
async fn kept(client: &mut Client, name: &str) -> String {
    let options = json!({ "persist": name, "hostFunctions": ["ask"] });
    let began = Instant::now();
    loop {
        match client.ask("create", options.clone()).await {
            Ok(made) => return made["sandbox"].as_str().unwrap().to_owned(),
            Err(error) => assert!(code(&error) == "persist_in_use" && began.elapsed() < LONG, "{error}"),
        }
    }
}

async fn ran(client: &mut Client, sandbox: &str, code: &str) -> Value {
    let params = json!({ "sandbox": sandbox, "code": code });
    client.ask("execute", params).await.unwrap()
}

async fn pending(client: &mut Client, sandbox: &str) -> Value {
    client.ask("pending", json!({ "sandbox": sandbox })).await.unwrap()["value"].clone()
}

/// Runs code until it makes a call, which is not answered.
async fn asked(client: &mut Client, sandbox: &str, code: &str) {
    let params = json!({ "sandbox": sandbox, "code": code });
    client
        .send(&json!({ "jsonrpc": "2.0", "id": "waits", "method": "execute", "params": params }))
        .await;
    loop {
        let message = client.next().await.unwrap();
        assert!(message["id"] != "waits", "the execution ended: {message}");
        if message["method"] == "call" {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_execution_outlives_its_connection_and_its_server() {
    let (_folder, path) = states();
    let server = slow(&path, &[]).await;
    let mut client = Client::of(&server).await;
    let sandbox = kept(&mut client, NAME).await;
    let run = ran(&mut client, &sandbox, "x = [1]\nopen('notes', 'w').write('a note')").await;
    assert_eq!((&run["outcome"], &run["unkept"]), (&json!("ok"), &Value::Null), "{run}");
    let waits = "import random\ny = random.random()\nz = ask(y, more=x)\n(y, z)";
    asked(&mut client, &sandbox, waits).await;
    drop(client);

    let mut client = Client::of(&server).await;
    let sandbox = kept(&mut client, NAME).await;
    let found = pending(&mut client, &sandbox).await;
    assert_eq!(
        (&found["execution"], &found["code"]),
        (&json!(2), &json!(waits)),
        "{found}"
    );
    let call = &found["calls"][0];
    assert_eq!(
        (&call["name"], &call["kwargs"]),
        (&json!("ask"), &json!({ "more": [1] })),
        "{found}"
    );
    let error = client.ask("execute", json!({ "sandbox": sandbox, "code": "1" })).await;
    assert_eq!(code(&error.unwrap_err()), "execution_pending");
    let given = json!({ "sandbox": sandbox, "answers": { call["id"].as_str().unwrap(): "paid" } });
    let run = client.ask("resume", given).await.unwrap();
    assert_eq!(run["value"], json!([call["args"][0], "paid"]), "{run}");
    asked(&mut client, &sandbox, "z = 1\nask(2)").await;
    server.stop().await;

    let server = slow(&path, &[]).await;
    let mut client = Client::of(&server).await;
    let sandbox = kept(&mut client, NAME).await;
    assert_eq!(pending(&mut client, &sandbox).await["execution"], 3);
    client.ask("discard", json!({ "sandbox": sandbox })).await.unwrap();
    let run = ran(&mut client, &sandbox, "x, z, open('notes').read()").await;
    assert_eq!(
        (&run["value"], &run["id"]),
        (&json!([[1], "paid", "a note"]), &json!(3)),
        "{run}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_belongs_to_its_key_and_is_no_session_of_http() {
    let (folder, path) = states();
    let mut server = slow(&path, &[]).await;
    let mut ann = Client::of(&server).await;
    let sandbox = kept(&mut ann, "same").await;
    ran(&mut ann, &sandbox, "x = 'of ann'").await;
    // Its session has no routes that could go past the journal.
    let route = format!("/v1/sessions/{sandbox}/execute");
    assert_eq!(
        refusal(server.post(&route, &json!({ "code": "x = 1" }))).await,
        (409, "rpc_only".to_owned())
    );

    server.key = Some(BOB);
    let mut bob = Client::of(&server).await;
    bob.ask("deletePersisted", json!({ "name": "same" })).await.unwrap();
    let of_bob = kept(&mut bob, "same").await;
    let run = ran(&mut bob, &of_bob, "'x' in globals()").await;
    assert_eq!(run["value"], false, "{run}");
    server.key = Some(ANN);
    let run = ran(&mut ann, &sandbox, "x").await;
    assert_eq!(run["value"], "of ann", "{run}");
    server.stop().await;

    // All that is stored has the name of a hash, and nothing of it is a session.
    let stored = files(folder.path(), "sessions");
    assert_eq!(stored.len(), 2, "{stored:?}");
    let server = slow(&path, &[]).await;
    let (_, listed) = answer(server.get("/v1/sessions")).await;
    assert_eq!(listed["sessions"], json!([]));
    for file in stored {
        let id = file.file_name().unwrap().to_str().unwrap();
        let (status, told) = answer(server.get(&format!("/v1/sessions/{id}"))).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{told}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_names_are_refused_and_odd_ones_stay_apart() {
    let (folder, path) = states();
    let server = slow(&path, &[]).await;
    let mut client = Client::of(&server).await;
    let long = "é".repeat(101);
    for name in [
        json!(""),
        json!(long),
        json!("a".repeat(1 << 20)),
        json!(["a"]),
        json!({}),
        json!(1),
        Value::Null,
    ] {
        let error = client.ask("create", json!({ "persist": name })).await.unwrap_err();
        assert_eq!(code(&error), "invalid_option", "{name}");
        let error = client
            .ask("deletePersisted", json!({ "name": name }))
            .await
            .unwrap_err();
        assert_eq!(code(&error), "invalid_option", "{name}");
    }
    for option in [
        json!({ "ahead": true }),
        json!({ "checkpoints": 1 }),
        json!({ "context": 1 }),
        json!({ "backend": "docker" }),
    ] {
        let mut options = option.clone();
        options["persist"] = json!("a");
        let error = client.ask("create", options).await.unwrap_err();
        assert!(
            ["invalid_option", "backend_unavailable"].contains(&code(&error)),
            "{option}: {error}"
        );
    }
    let names = [
        ".",
        "..",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "A",
        "a",
        "a\u{0}",
        "%2e%2e",
        "\u{202e}a",
    ];
    for (number, name) in names.iter().enumerate() {
        let sandbox = kept(&mut client, name).await;
        let run = ran(
            &mut client,
            &sandbox,
            &format!("assert 'x' not in globals()\nx = {number}"),
        )
        .await;
        assert_eq!(run["outcome"], "ok", "{name:?}: {run}");
        client.ask("destroy", json!({ "sandbox": sandbox })).await.unwrap();
    }
    let stored = files(folder.path(), "sessions");
    assert_eq!(stored.len(), names.len(), "{stored:?}");
    let is_id = |path: &Path| path.file_name().is_some_and(|name| name.len() == 32);
    assert!(stored.iter().all(|path| is_id(path)), "{stored:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sandbox_at_a_time_has_a_name_until_it_is_deleted() {
    let (folder, path) = states();
    let server = slow(&path, &[]).await;
    let (mut first, mut second) = (Client::of(&server).await, Client::of(&server).await);
    let sandbox = kept(&mut first, "name").await;
    ran(&mut first, &sandbox, "x = 1").await;
    for client in [&mut first, &mut second] {
        let error = client.ask("create", json!({ "persist": "name" })).await.unwrap_err();
        assert_eq!(code(&error), "persist_in_use", "{error}");
        let error = client
            .ask("deletePersisted", json!({ "name": "name" }))
            .await
            .unwrap_err();
        assert_eq!(code(&error), "persist_in_use", "{error}");
    }
    assert_eq!(ran(&mut first, &sandbox, "x").await["value"], 1);
    first.ask("destroy", json!({ "sandbox": sandbox })).await.unwrap();
    let sandbox = kept(&mut second, "name").await;
    assert_eq!(ran(&mut second, &sandbox, "x").await["value"], 1);
    second.ask("destroy", json!({ "sandbox": sandbox })).await.unwrap();
    for _ in 0..2 {
        second.ask("deletePersisted", json!({ "name": "name" })).await.unwrap();
    }
    assert_eq!(files(folder.path(), "sessions").len(), 0);
    let sandbox = kept(&mut first, "name").await;
    assert_eq!(ran(&mut first, &sandbox, "'x' in globals()").await["value"], false);
    server.stop().await;
}

async fn names(client: &mut Client) -> Vec<String> {
    let listed = client.ask("listPersisted", json!({})).await.unwrap();
    let all = listed["persisted"].as_array().unwrap().iter();
    all.map(|kept| kept["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_listed_for_their_key_only_the_newest_first() {
    let (_folder, path) = states();
    let mut server = slow(&path, &[]).await;
    let mut ann = Client::of(&server).await;
    assert_eq!(names(&mut ann).await, [""; 0]);
    // A session over HTTP has no name, and one without a state is not there.
    server.session(json!({ "persist": true })).await;
    kept(&mut ann, "unused").await;
    for name in [NAME, "b", "c"] {
        let sandbox = kept(&mut ann, name).await;
        ran(&mut ann, &sandbox, "x = 1").await;
        ann.ask("destroy", json!({ "sandbox": sandbox })).await.unwrap();
    }
    let listed = ann.ask("listPersisted", json!({})).await.unwrap();
    let newest = &listed["persisted"][0];
    assert_eq!(
        (&newest["name"], &newest["execution"]),
        (&json!("c"), &json!(1)),
        "{listed}"
    );
    assert!(
        newest["bytes"].as_u64().unwrap() > 0 && newest["savedAt"].as_u64().unwrap() > 0,
        "{listed}"
    );
    server.key = Some(BOB);
    let mut bob = Client::of(&server).await;
    assert_eq!(names(&mut bob).await, [""; 0]);
    let error = bob.ask("listPersisted", json!({ "folder": "/" })).await.unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("folder"), "{error}");
    ann.ask("deletePersisted", json!({ "name": "b" })).await.unwrap();
    server.stop().await;

    server = slow(&path, &[]).await;
    let mut ann = Client::of(&server).await;
    assert_eq!(names(&mut ann).await, ["c", NAME]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_execution_runs_again() {
    let (_folder, path) = states();
    let server = slow(&path, &[]).await;
    let mut client = Client::of(&server).await;
    let sandbox = kept(&mut client, "name").await;
    let run = ran(&mut client, &sandbox, "import random\nrandom.random()").await;
    let params = json!({ "sandbox": sandbox, "execution": 1 });
    let replay = client.ask("replay", params).await.unwrap();
    assert_eq!(replay["execution"]["value"], run["value"], "{replay}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn states_and_journals_count_against_the_quota_of_their_key() {
    let (_folder, path) = states();
    let bounds = [
        "--max-suspended-per-key",
        "2",
        "--max-suspended-mib-per-key",
        "3",
        "--max-suspended-mib",
        "8",
    ];
    let server = slow(&path, &bounds).await;
    let mut client = Client::of(&server).await;
    let (large, small) = (kept(&mut client, "large").await, kept(&mut client, "small").await);
    let error = client
        .ask("create", json!({ "persist": "one more" }))
        .await
        .unwrap_err();
    assert_eq!(code(&error), "too_many_sessions", "{error}");
    // A sandbox that has stored nothing leaves its place.
    client.ask("destroy", json!({ "sandbox": small })).await.unwrap();
    let small = kept(&mut client, "one more").await;

    let make = "import os\nx = os.urandom(4 << 20)";
    let run = ran(&mut client, &large, make).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    assert!(run["unkept"].as_str().unwrap().contains("3 MiB"), "{run}");
    let run = ran(&mut client, &large, "x = x[:1 << 20]\nlen(x)").await;
    assert_eq!(
        (&run["value"], &run["unkept"]),
        (&json!(1 << 20), &Value::Null),
        "{run}"
    );

    // A journal takes room as well. The call is made all the same, and the execution cannot be resumed.
    asked(&mut client, &small, "y = 1\nask('a' * (2 << 20))").await;
    drop(client);
    let mut client = Client::of(&server).await;
    let small = kept(&mut client, "one more").await;
    assert_eq!(pending(&mut client, &small).await, Value::Null);
    let run = ran(&mut client, &small, "'y' in globals()").await;
    assert_eq!(
        (&run["value"], &run["state"]["status"]),
        (&json!(false), &json!("restored")),
        "{run}"
    );
    // Its room is free again.
    asked(&mut client, &small, "y = 1\nask('a' * 1000)").await;
    drop(client);
    server.stop().await;

    // The next server counts what it finds.
    let server = slow(&path, &bounds).await;
    let mut client = Client::of(&server).await;
    let small = kept(&mut client, "one more").await;
    assert_eq!(pending(&mut client, &small).await["execution"], 2);
    let error = client.ask("create", json!({ "persist": "small" })).await.unwrap_err();
    assert_eq!(code(&error), "too_many_sessions", "{error}");
    client.ask("deletePersisted", json!({ "name": "large" })).await.unwrap();
    kept(&mut client, "small").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_store_keeps_nothing_and_says_so() {
    let server = TestServer::start(&[]).await;
    let mut client = Client::of(&server).await;
    for (method, params) in [
        ("create", json!({ "persist": "a" })),
        ("deletePersisted", json!({ "name": "a" })),
        ("listPersisted", json!({})),
    ] {
        let error = client.ask(method, params).await.unwrap_err();
        assert_eq!(code(&error), "invalid_option", "{error}");
        assert!(error["message"].as_str().unwrap().contains("--state-dir"), "{error}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_one_says_so_and_can_be_deleted() {
    let (folder, path) = states();
    let server = slow(&path, &[]).await;
    let mut client = Client::of(&server).await;
    let bad = kept(&mut client, "bad").await;
    ran(&mut client, &bad, "x = 1").await;
    let stored = files(folder.path(), "sessions");
    fs::write(&stored[0], "no ref").unwrap();
    let good = kept(&mut client, "good").await;
    ran(&mut client, &good, "x = 2").await;
    server.stop().await;

    let server = slow(&path, &[]).await;
    let mut client = Client::of(&server).await;
    let error = client.ask("create", json!({ "persist": "bad" })).await.unwrap_err();
    assert_eq!(code(&error), "persist_failed", "{error}");
    let good = kept(&mut client, "good").await;
    assert_eq!(ran(&mut client, &good, "x").await["value"], 2);
    client.ask("deletePersisted", json!({ "name": "bad" })).await.unwrap();
    let bad = kept(&mut client, "bad").await;
    assert_eq!(ran(&mut client, &bad, "'x' in globals()").await["value"], false);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_that_nobody_opens_are_forgotten() {
    let (folder, path) = states();
    let server = slow(&path, &["--suspend-after", "0.1", "--forget-after", "0.5"]).await;
    let mut client = Client::of(&server).await;
    let (open, closed) = (kept(&mut client, "open").await, kept(&mut client, "closed").await);
    for sandbox in [&open, &closed] {
        ran(&mut client, sandbox, "x = 1").await;
    }
    client.ask("destroy", json!({ "sandbox": closed })).await.unwrap();
    eventually("it is forgotten", async || files(folder.path(), "sessions").len() == 1).await;
    assert_eq!(ran(&mut client, &open, "x").await["value"], 1, "it is in use");
    server.stop().await;
}
