//! Stored sessions beside hostile ones, failures, and servers that end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{ANN, BOB, TestServer, answer, eventually};
use crate::suspending::{about, files, is_suspended, metric, quick, slow, states, suspended};

/// Has the guest hang when its state is read: what holds a lock is asked for its state.
const HANGS: &str = "import threading
class Slow:
    def __init__(self): self.lock = threading.Lock()
    def __getstate__(self):
        threading.Event().wait()
slow = Slow()
1";
/// Keeps the session from being suspended where a state may have 1 MiB.
const TOO_LARGE: &str = "with open('full', 'wb') as file: file.write(bytes(2 << 20))\ndel file";

/// A session of the current key whose guest hangs when it is suspended.
async fn hanging(server: &TestServer) -> String {
    let id = server.session(json!({})).await;
    let run = server.execute(&id, HANGS).await;
    assert_eq!(run["result"], "1", "{run}");
    id
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_that_hang_do_not_keep_other_states_from_being_written_at_the_end() {
    let (_folder, path) = states();
    let mut server = slow(&path, &["--shutdown-seconds", "10"]).await;
    server.key = Some(BOB);
    join_all((0..8).map(async |_| hanging(&server).await)).await;
    server.key = Some(ANN);
    hanging(&server).await;
    let good = join_all((0..4).map(async |number| {
        let id = server.session(json!({})).await;
        server.execute(&id, &format!("x = {number}")).await;
        id
    }));
    let good = good.await;
    let began = Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let server = slow(&path, &[]).await;
    for (number, id) in good.iter().enumerate() {
        let run = server.execute(id, "x").await;
        assert_eq!(run["result"], number.to_string(), "{run}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn guests_that_hang_do_not_keep_another_keys_sessions_awake() {
    let (_folder, path) = states();
    let mut server = quick(&path, &["--suspend-after", "1", "--shutdown-seconds", "1"]).await;
    server.key = Some(BOB);
    join_all((0..6).map(async |_| hanging(&server).await)).await;
    tokio::time::sleep(Duration::from_secs(2)).await; // their suspensions are under way
    assert_eq!(metric(&server, "sandglass_sessions").await, 6.0);
    server.key = Some(ANN);
    let id = server.session(json!({})).await;
    let began = Instant::now();
    suspended(&server, &id).await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_takes_back_what_waits() {
    let (_folder, path) = states();
    let server = slow(&path, &["--shutdown-seconds", "0.5"]).await;
    let id = server.session(json!({ "gracePeriod": 30_000 })).await;
    server.execute(&id, "x = 1").await;
    let mut requests = Vec::new();
    let mark = TempDir::new().unwrap();
    let begun = mark.path().join("begun");
    let first = format!("x += 1\nopen({begun:?}, 'w').close()\nwhile True: pass");
    let codes = [
        first.as_str(),
        "x += 10\nwhile True: pass",
        "x += 100\nwhile True: pass",
    ];
    for (number, code) in codes.iter().enumerate() {
        let request = server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": code }));
        requests.push(tokio::spawn(answer(request)));
        eventually("it runs or waits", async || {
            metric(&server, "sandglass_executions").await >= (number + 1) as f64 && begun.exists()
        })
        .await;
    }
    server.stop().await;
    let mut told = Vec::new();
    for request in requests {
        told.push(request.await.unwrap());
    }
    assert_eq!(told[0].1["outcome"], "interrupted", "{told:?}");
    for (status, body) in &told[1..] {
        assert_eq!(
            (*status, &body["error"]["code"]),
            (StatusCode::SERVICE_UNAVAILABLE, &json!("shutting_down")),
            "{told:?}"
        );
    }
    let server = slow(&path, &[]).await;
    let run = server.execute(&id, "x").await;
    assert_eq!((&run["result"], &run["id"]), (&json!("2"), &json!(3)), "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wake_that_fails_early_keeps_newer_files() {
    let (folder, path) = states();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let workspaces = folder.path().join("workspaces");
    let own = [
        "--workspace-dir",
        workspaces.to_str().unwrap(),
        "--max-suspended-mib",
        "1",
    ];
    let server = quick(&path, &[&own[..], &["--session-idle-seconds", "1.5"]].concat()).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 1").await;
    suspended(&server, &id).await;
    server.execute(&id, TOO_LARGE).await; // so it falls back, as after a kill
    suspended(&server, &id).await;
    server.stop().await;
    let newer = workspaces.join("ann").join(&id).join("full");
    assert!(newer.exists());

    let server = slow(&path, &[&own[..], &["--python", "/nowhere/python"]].concat()).await;
    let wake = server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": "x" }));
    let (status, told) = answer(wake).await;
    assert!(!status.is_success(), "{told}");
    server.stop().await;
    assert!(newer.exists(), "the newest files are gone");

    let server = slow(&path, &own).await;
    let run = server.execute(&id, "import os\nx, os.path.getsize('full')").await;
    assert_eq!(run["result"], "(1, 2097152)", "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_forgotten_by_its_last_use() {
    // On a busy machine, its time may be over before the test looks.
    for _ in 0..3 {
        if outlives_its_first_state().await {
            return;
        }
    }
    panic!("the session was always forgotten before the test looked");
}

/// Returns false if the time of a session was over before the test looked whether it is still there.
async fn outlives_its_first_state() -> bool {
    const TIME: Duration = Duration::from_millis(4_500);
    let (_folder, path) = states();
    let own = [
        "--max-suspended-mib",
        "1",
        "--session-idle-seconds",
        "1.5",
        "--forget-after",
        "5",
    ];
    let server = quick(&path, &own).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 1").await;
    suspended(&server, &id).await;
    let used = Instant::now() + Duration::from_secs(5); // at the earliest
    server
        .execute(&id, &format!("import time\ntime.sleep(5)\n{TOO_LARGE}"))
        .await;
    let is_late = || used.elapsed() > TIME;
    eventually("it falls back", async || is_suspended(&server, &id).await || is_late()).await;
    tokio::time::sleep(Duration::from_secs(1)).await; // many searches for old states
    let is_there = is_suspended(&server, &id).await;
    assert!(is_there || is_late(), "{}", about(&server, &id).await);
    server.stop().await;
    is_there
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_could_not_be_read_at_the_start_is_read_again() {
    let (folder, path) = states();
    let own = ["--max-suspended-mib", "1", "--session-idle-seconds", "10"];
    let server = quick(&path, &own).await;
    let [left, newest] = [server.session(json!({})).await, server.session(json!({})).await];
    for id in [&left, &newest] {
        server.execute(id, "x = 1").await;
        suspended(&server, id).await;
    }
    server.execute(&left, TOO_LARGE).await;
    suspended(&server, &left).await; // it falls back: this state was left
    server.stop().await;
    let heads = files(folder.path(), "sessions");
    assert_eq!(heads.len(), 2);
    let contents: Vec<_> = heads.iter().map(|head| fs::read(head).unwrap()).collect();
    for head in &heads {
        fs::remove_file(head).unwrap();
        fs::create_dir(head).unwrap();
    }
    let server = slow(&path, &[]).await;
    for (head, content) in heads.iter().zip(contents) {
        fs::remove_dir(head).unwrap();
        fs::write(head, content).unwrap();
    }
    for (id, status) in [(&left, "restored"), (&newest, "kept")] {
        let run = server.execute(id, "x").await;
        assert_eq!(
            (&run["result"], &run["state"]["status"]),
            (&json!("1"), &json!(status)),
            "{run}"
        );
    }
    server.stop().await;
}

/// A first write that fails after its ref is in place leaves a state of a session that goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ends_leaves_no_ghost() {
    let (folder, path) = states();
    let server = quick(&path, &["--max-suspended-mib", "1", "--session-idle-seconds", "10"]).await;
    let other = server.session(json!({})).await;
    server.execute(&other, "x = 1").await;
    suspended(&server, &other).await;
    let stored = files(folder.path(), "sessions").pop().unwrap();
    let id = server.session(json!({ "context": "x".repeat(2 << 20) })).await; // it never fits a state
    let ghost = stored.with_file_name(&id);
    fs::write(&ghost, fs::read(&stored).unwrap()).unwrap();
    eventually("the session ends", async || {
        answer(server.get(&format!("/v1/sessions/{id}"))).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    assert_eq!(files(folder.path(), "sessions"), [stored]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_beside_executions_is_of_one_moment() {
    let server = TestServer::with_keys(&["--max-spares", "0"]).await;
    let id = server.session(json!({})).await;
    let first = "n = 1\ndef write():\n    for i in range(100):\n        with open(f'file{i}', 'w') as file: file.write(str(n))\nwrite()";
    server.execute(&id, first).await;
    let busy = async {
        loop {
            server.execute(&id, "n += 1\nwrite()").await;
        }
    };
    let forked = async {
        let mut copies = Vec::new();
        for _ in 0..5 {
            let (status, told) = answer(server.post(&format!("/v1/sessions/{id}/fork"), &json!({}))).await;
            assert_eq!(status, StatusCode::CREATED, "{told}");
            copies.push(told);
        }
        copies
    };
    let copies: Vec<Value> = tokio::select! {
        copies = forked => copies,
        () = busy => unreachable!("it goes on"),
    };
    for told in copies {
        let copy = told["sessions"][0]["id"].as_str().unwrap();
        let run = server
            .execute(copy, "n, {int(open(f'file{i}').read()) for i in range(100)}")
            .await;
        let n = told["execution"].as_u64().unwrap();
        assert_eq!(run["result"], format!("({n}, {{{n}}})"), "{run}");
        assert_eq!(run["id"], n + 1, "{run}");
        let remove = server.request(Method::DELETE, &format!("/v1/sessions/{copy}"));
        answer(remove).await;
    }
    server.stop().await;
}
