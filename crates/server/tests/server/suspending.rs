//! Sessions that are suspended while nobody uses them, and woken when somebody does.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use sandglass_server::{Secrets, Server};
use sandglass_states::FolderStore;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{ANN, BOB, TestServer, answer, args, eventually, gone, refusal};

/// A folder for states.
pub(crate) fn states() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("states").to_str().unwrap().to_owned();
    (folder, path)
}

/// Waits until an earlier server of this process has let go of the folder.
pub(crate) async fn can_be_opened(path: &str) {
    eventually("no server has the folder", async || {
        FolderStore::open(Path::new(path)).is_ok()
    })
    .await;
}

/// A server that suspends at once.
pub(crate) async fn quick(path: &str, more: &[&str]) -> TestServer {
    can_be_opened(path).await;
    let own = ["--state-dir", path, "--suspend-after", "0.1", "--max-spares", "0"];
    TestServer::with_keys(&[&own[..], more].concat()).await
}

/// A server that suspends only when it ends.
pub async fn slow(path: &str, more: &[&str]) -> TestServer {
    quick(path, &[&["--suspend-after", "1000"], more].concat()).await
}

pub async fn about(server: &TestServer, id: &str) -> Value {
    answer(server.get(&format!("/v1/sessions/{id}"))).await.1
}

pub async fn is_suspended(server: &TestServer, id: &str) -> bool {
    about(server, id).await["suspended"] == true
}

pub(crate) async fn suspended(server: &TestServer, id: &str) {
    eventually("the session is suspended", async || is_suspended(server, id).await).await;
}

/// The value of a line in the metrics; 0 without one.
pub async fn metric(server: &TestServer, line: &str) -> f64 {
    let text = server.get("/metrics").send().await.unwrap().text().await.unwrap();
    let found = text
        .lines()
        .find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.map_or(0.0, |value| value.parse().unwrap())
}

/// All files of a folder and below, but for the store's own.
pub fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, kind));
        } else if path.parent().unwrap().ends_with(kind) {
            found.push(path);
        }
    }
    found
}

const MADE: &str = "
import os
import json as _json
count = 41
_private = [1]
def adder(n):
    def add(m): return _json.loads(str(m + n)) + len(_private)
    return add
add = adder(5)
def twice(value): return 2 * value + count
class Point:
    def __init__(self, x): self.x = x
    def moved(self, by): return Point(self.x + by)
point = Point(3)
shared = [1]
both = [shared, shared]
os.makedirs('data/empty')
with open('data/file.txt', 'w') as file: file.write('contents of ' + context)
del file
os.getpid()";

async fn goes_on(backend: &str) {
    let (_folder, path) = states();
    let server = quick(&path, &["--backend", backend]).await;
    let id = server.session(json!({ "context": "a text", "timeout": 20_000 })).await;
    let run = server.execute(&id, MADE).await;
    assert_eq!((&run["outcome"], &run["id"]), (&json!("ok"), &json!(1)), "{run}");
    let pid: i64 = run["result"].as_str().unwrap().parse().unwrap();
    suspended(&server, &id).await;
    if backend == "subprocess" {
        gone(pid).await;
    }
    assert_eq!(metric(&server, "sandglass_sessions_suspended").await, 1.0);
    assert_eq!(metric(&server, "sandglass_sessions").await, 0.0, "its place is free");

    let code = "both[0] is both[1], twice(1), point.moved(4).x, isinstance(point, Point), context, open('data/file.txt').read(), os_listed, add(2)";
    let code = format!("os_listed = sorted(os.listdir('data'))\n{code}");
    let run = server.execute(&id, &code).await;
    assert_eq!(
        run["result"], "(True, 43, 7, True, 'a text', 'contents of a text', ['empty', 'file.txt'], 8)",
        "{run}"
    );
    assert_eq!(
        (&run["id"], &run["state"]["status"]),
        (&json!(2), &json!("kept")),
        "{run}"
    );
    assert_eq!(lost(&run), [""; 0], "{run}");
    // On a slow machine, the session sleeps again before the request that woke it comes to its turn, and is woken once more.
    assert!(metric(&server, "sandglass_wake_seconds_count{result=\"ok\"}").await >= 1.0);

    // The session can sleep again.
    suspended(&server, &id).await;
    let run = server.execute(&id, "count += 1\nundefined").await;
    assert_eq!(
        (&run["id"], &run["errorType"]),
        (&json!(3), &json!("NameError")),
        "{run}"
    );
    suspended(&server, &id).await;
    let run = server.execute(&id, "count").await;
    assert_eq!(
        (&run["id"], &run["result"], lost(&run).len()),
        (&json!(4), &json!("42"), 0),
        "{run}"
    );
    server.stop().await;
}

/// The names of lost variables.
pub(crate) fn lost(run: &Value) -> Vec<&str> {
    let lost = run["state"]["lost"].as_array();
    lost.into_iter()
        .flatten()
        .map(|lost| lost["name"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_nobody_uses_sleeps_and_goes_on() {
    goes_on("subprocess").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_session_that_nobody_uses_sleeps_and_goes_on() {
    goes_on("bubblewrap").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_from_the_pool_takes_the_state() {
    let (_folder, path) = states();
    let options = [
        "--backend",
        "bubblewrap",
        "--max-spares",
        "2",
        "--spares",
        "1",
        "--preload",
        "wave",
    ];
    let server = quick(&path, &options).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 6").await;
    for number in 2..5 {
        suspended(&server, &id).await;
        let run = server.execute(&id, "x * 7").await;
        assert_eq!((&run["result"], &run["id"]), (&json!("42"), &json!(number)), "{run}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlive_the_server() {
    let (_folder, path) = states();
    let server = slow(&path, &[]).await;
    let options = json!({ "context": "a text", "timeout": 1_500, "profile": "rlm" });
    let id = server.session(options).await;
    server.execute(&id, "x = [1, 2]").await;
    let other = server.session(json!({})).await;
    server.execute(&other, "x = 'other'").await;
    server.stop().await;

    let server = slow(&path, &[]).await;
    let told = about(&server, &id).await;
    assert_eq!(
        (&told["suspended"], &told["backend"]),
        (&json!(true), &json!("subprocess")),
        "{told}"
    );
    let listed = answer(server.get("/v1/sessions")).await.1;
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");
    let run = server
        .execute(&id, "x.append(3)\nprint(x, context, 'SHOW_VARS' in globals())")
        .await;
    assert_eq!(
        (&run["stdout"], &run["id"]),
        (&json!("[1, 2, 3] a text True\n"), &json!(2)),
        "{run}"
    );
    let late = server.execute(&id, "while True: pass").await;
    assert!(late["error"].as_str().unwrap().contains("1500 ms"), "{late}");
    server.stop().await;

    // What was woken is written again, and what was not woken stays.
    let server = slow(&path, &[]).await;
    assert_eq!(server.execute(&id, "print(x)").await["stdout"], "[1, 2, 3]\n");
    assert_eq!(server.execute(&other, "x").await["result"], "'other'");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_interrupts_what_runs_and_keeps_its_variables() {
    let (_folder, path) = states();
    let server = slow(&path, &["--shutdown-seconds", "0.5"]).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 1").await;
    let mark = TempDir::new().unwrap();
    let begun = mark.path().join("begun");
    let running = server.post(
        &format!("/v1/sessions/{id}/execute"),
        &json!({ "code": format!("x = 2\nopen({begun:?}, 'w').close()\nwhile True: pass") }),
    );
    let running = tokio::spawn(running.send());
    eventually("the code runs", async || begun.exists()).await;
    server.stop().await;
    let told: Value = running.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(told["outcome"], "interrupted", "{told}");
    let server = slow(&path, &[]).await;
    let run = server.execute(&id, "x").await;
    assert_eq!((&run["result"], &run["id"]), (&json!("2"), &json!(3)), "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_state_cannot_be_written_goes_on() {
    let (_folder, path) = states();
    let server = quick(&path, &["--max-suspended-mib", "1"]).await;
    let bad = server.session(json!({})).await;
    // A guest that answers with what is no state.
    let run = "import os, sys\nfrom sandglass.state.portable import writing\nwriting.write_pieces = lambda *_: ([b'no state'], [])\nos.getpid()";
    let run = server.execute(&bad, run).await;
    let large = server.session(json!({})).await;
    server
        .execute(&large, "import random\nlarge = random.randbytes(2 << 20)")
        .await;
    let full = server.session(json!({})).await;
    server
        .execute(
            &full,
            "with open('full', 'wb') as file: file.write(bytes(2 << 20))\ndel file",
        )
        .await;
    eventually("three attempts", async || {
        metric(&server, "sandglass_suspensions_total{result=\"state\"}").await == 3.0
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await; // several searches later
    assert_eq!(
        metric(&server, "sandglass_suspensions_total{result=\"state\"}").await,
        3.0,
        "tried again"
    );
    assert_eq!(server.execute(&bad, "os.getpid()").await["result"], run["result"]);
    assert_eq!(server.execute(&large, "len(large)").await["result"], "2097152");
    assert_eq!(
        server
            .execute(&full, "os.path.getsize('full') if 'os' in globals() else 'full'")
            .await["result"],
        "'full'"
    );
    // What stood in the way is gone.
    server.execute(&large, "del large, random").await;
    suspended(&server, &large).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_come_at_once_wake_a_session_once() {
    let (_folder, path) = states();
    let server = slow(&path, &[]).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 0").await;
    server.stop().await;
    let server = slow(&path, &[]).await;
    let requests = (0..8).map(async |_| server.execute(&id, "x += 1\nimport os\nos.getpid()").await);
    let runs = join_all(requests).await;
    let pids: Vec<_> = runs.iter().map(|run| &run["result"]).collect();
    assert!(pids.iter().all(|pid| *pid == pids[0]), "{pids:?}");
    let mut ids: Vec<_> = runs.iter().map(|run| run["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (2..10).collect::<Vec<_>>());
    assert_eq!(server.execute(&id, "x").await["result"], "8");
    // On a slow machine, the session sleeps again before the request that woke it comes to its turn, and is woken once more.
    assert!(metric(&server, "sandglass_wake_seconds_count{result=\"ok\"}").await >= 1.0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_sleeps_and_wakes_for_its_own_key_only() {
    let (_folder, path) = states();
    let mut server = quick(&path, &[]).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 1").await;
    suspended(&server, &id).await;
    server.key = Some(BOB);
    let execute = server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": "x" }));
    assert_eq!(refusal(execute).await, (404, "session_not_found".to_owned()));
    for method in [Method::GET, Method::DELETE] {
        let request = server.request(method, &format!("/v1/sessions/{id}"));
        assert_eq!(refusal(request).await.0, 404);
    }
    let listed = answer(server.get("/v1/sessions")).await.1;
    assert_eq!(listed, json!({ "sessions": [] }));
    server.key = Some(ANN);
    assert!(is_suspended(&server, &id).await);
    assert_eq!(server.execute(&id, "x").await["result"], "1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_told_and_others_wake() {
    let (folder, path) = states();
    let server = quick(&path, &[]).await;
    let bad = server.session(json!({})).await;
    server.execute(&bad, "x = 'bad'").await;
    suspended(&server, &bad).await;
    let before = files(folder.path(), "objects");
    let good = server.session(json!({})).await;
    server.execute(&good, "x = 'good'").await;
    suspended(&server, &good).await;
    let after = files(folder.path(), "objects");
    assert!(after.len() > before.len());
    for object in &before {
        let mut bytes = fs::read(object).unwrap();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(object, bytes).unwrap();
    }
    let wake = |id: &str| server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": "x" }));
    for _ in 0..2 {
        let (status, told) = answer(wake(&bad)).await;
        assert_eq!(
            (status.as_u16(), &told["error"]["code"]),
            (500, &json!("state_damaged")),
            "{told}"
        );
        let message = told["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("was changed") && message.contains("DELETE"),
            "{message}"
        );
        assert!(!message.contains(folder.path().to_str().unwrap()), "{message}");
        assert!(is_suspended(&server, &bad).await);
    }
    assert_eq!(server.execute(&good, "x").await["result"], "'good'");
    let remove = server.request(Method::DELETE, &format!("/v1/sessions/{bad}"));
    assert_eq!(answer(remove).await.0, StatusCode::NO_CONTENT);
    assert_eq!(refusal(wake(&bad)).await.0, 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_is_gone_from_the_disk() {
    let (folder, path) = states();
    let server = quick(&path, &[]).await;
    let [asleep, awake] = [server.session(json!({})).await, server.session(json!({})).await];
    for id in [&asleep, &awake] {
        server.execute(id, "x = 1").await;
        suspended(&server, id).await;
    }
    server.stop().await;
    let server = slow(&path, &[]).await;
    server.execute(&awake, "x").await;
    assert_eq!(files(folder.path(), "sessions").len(), 2);
    for id in [&asleep, &awake] {
        let remove = server.request(Method::DELETE, &format!("/v1/sessions/{id}"));
        assert_eq!(answer(remove).await.0, StatusCode::NO_CONTENT);
        assert_eq!(refusal(server.get(&format!("/v1/sessions/{id}"))).await.0, 404);
    }
    assert!(files(folder.path(), "sessions").is_empty());
    server.stop().await;
    let server = slow(&path, &[]).await;
    assert_eq!(answer(server.get("/v1/sessions")).await.1, json!({ "sessions": [] }));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn suspended_sessions_have_quotas_of_their_own() {
    let (_folder, path) = states();
    let options = ["--max-suspended-per-key", "1", "--max-sessions-per-key", "1"];
    let server = quick(&path, &options).await;
    let first = server.session(json!({})).await;
    server.execute(&first, "x = 1").await;
    suspended(&server, &first).await;
    // The sleeper takes no place among those that are awake, but nor can both be awake.
    let second = server.session(json!({})).await;
    server.execute(&second, "x = 2").await;
    let wake = server.post(&format!("/v1/sessions/{first}/execute"), &json!({ "code": "x" }));
    assert_eq!(refusal(wake).await, (429, "too_many_sessions".to_owned()));
    eventually("the store is full", async || {
        metric(&server, "sandglass_suspensions_total{result=\"store\"}").await >= 1.0
    })
    .await;
    assert_eq!(server.execute(&second, "x").await["result"], "2");
    let remove = server.request(Method::DELETE, &format!("/v1/sessions/{second}"));
    assert_eq!(answer(remove).await.0, StatusCode::NO_CONTENT);
    // A state that is replaced needs no second place.
    for _ in 0..2 {
        assert_eq!(server.execute(&first, "x").await["result"], "1");
        suspended(&server, &first).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_runs_is_not_suspended() {
    let (_folder, path) = states();
    let server = quick(&path, &[]).await;
    let id = server.session(json!({})).await;
    let run = server
        .execute(
            &id,
            "import os, time\nfirst = os.getpid()\ntime.sleep(1.5)\nfirst == os.getpid()",
        )
        .await;
    assert_eq!(run["result"], "True", "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_on_disk_goes_with_its_session_and_comes_back() {
    let (folder, path) = states();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let workspaces = folder.path().join("workspaces");
    let server = quick(&path, &["--workspace-dir", workspaces.to_str().unwrap()]).await;
    let id = server.session(json!({})).await;
    let code = "import os\nos.makedirs('a/b')\nwith open('a/b/c', 'wb') as file: file.write(bytes(range(256)))\ndel file\nos.getcwd()";
    let place = workspaces.join("ann").join(&id);
    let made = server.execute(&id, code).await;
    assert!(made["result"].as_str().unwrap().contains(&id), "{made}");
    suspended(&server, &id).await;
    assert!(!place.exists(), "the store has its files");
    let read = server
        .get(&format!("/v1/sessions/{id}/files/a/b/c"))
        .send()
        .await
        .unwrap();
    assert_eq!(read.bytes().await.unwrap(), (0..=255).collect::<Vec<u8>>());
    let run = server.execute(&id, "os.getcwd(), os.path.exists('a/b/c')").await;
    let found = run["result"].as_str().unwrap();
    assert!(found.contains(&id) && found.contains("True"), "{run}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_begin_anew_after_a_sleep() {
    let (_folder, path) = states();
    let server = quick(&path, &[]).await;
    let id = server.session(json!({ "checkpoints": 3 })).await;
    server.execute(&id, "x = 1").await;
    server.execute(&id, "x = 2").await;
    suspended(&server, &id).await;
    server.stop().await;
    let server = slow(&path, &[]).await; // it does not sleep between the next requests
    let undo = server.post(&format!("/v1/sessions/{id}/undo"), &json!({}));
    let told = refusal(undo).await;
    assert_eq!(told, (409, "no_checkpoint".to_owned()));
    let run = server.execute(&id, "x += 1\nx").await;
    assert_eq!((&run["result"], &run["id"]), (&json!("3"), &json!(3)), "{run}");
    let (status, undone) = answer(server.post(&format!("/v1/sessions/{id}/undo"), &json!({}))).await;
    assert_eq!((status, undone), (StatusCode::OK, json!({ "execution": 2 })));
    assert_eq!(server.execute(&id, "x").await["result"], "2");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_is_not_filled_by_a_sleep() {
    let (_folder, path) = states();
    let server = quick(&path, &[]).await;
    let id = server.session(json!({ "budget": { "maxCalls": 1 } })).await;
    let ask = "def ask():\n    try: return llm_query('?')\n    except Exception as error: return str(error)\nask()";
    let run = server.execute(&id, ask).await;
    assert!(!run["result"].as_str().unwrap().contains("budget"), "{run}");
    suspended(&server, &id).await;
    let run = server.execute(&id, "ask()").await;
    assert!(
        run["result"].as_str().unwrap().contains("budget of 1 model calls"),
        "{run}"
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_nobody_wakes_is_forgotten() {
    let (folder, path) = states();
    let server = quick(&path, &["--forget-after", "1"]).await;
    let id = server.session(json!({})).await;
    eventually("it sleeps", async || {
        metric(&server, "sandglass_suspensions_total{result=\"ok\"}").await >= 1.0
    })
    .await;
    eventually("it is forgotten", async || {
        answer(server.get(&format!("/v1/sessions/{id}"))).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    assert!(files(folder.path(), "sessions").is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_contradict_are_refused_at_the_start() {
    let (folder, path) = states();
    let refused = async |more: &[&str], secrets: Secrets| {
        let args = args(&[&["--state-dir", path.as_str()], more].concat());
        Server::bind(args, secrets).await.map(drop).unwrap_err()
    };
    let told = refused(
        &["--suspend-after", "60", "--session-idle-seconds", "60"],
        Secrets::default(),
    )
    .await;
    assert!(told.contains("--session-idle-seconds"), "{told}");
    let key = |text: &str| Secrets {
        state_key: Some(text.to_owned()),
        ..Secrets::default()
    };
    let told = refused(&[], key("too short")).await;
    assert!(
        told.contains("64 hexadecimal digits") && !told.contains("too short"),
        "{told}"
    );
    // The folder belongs to the key with which it was begun.
    let first = Server::bind(args(&["--state-dir", &path]), Secrets::default())
        .await
        .unwrap();
    let told = refused(&[], Secrets::default()).await;
    assert!(told.contains("another process"), "{told}");
    drop(first);
    let told = refused(&[], key(&"ab".repeat(32))).await;
    assert!(told.contains("not the one"), "{told}");
    let file = folder.path().join("key");
    fs::write(&file, "cd".repeat(32)).unwrap();
    let told = refused(&["--state-key-file", file.to_str().unwrap()], key(&"ab".repeat(32))).await;
    assert!(told.contains("not both"), "{told}");
}

/// A session that fails to be suspended keeps its idle time, so it still expires; one with a stored state sleeps on instead.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_expires_falls_back_to_its_stored_state() {
    let (_folder, path) = states();
    let server = quick(&path, &["--session-idle-seconds", "1.5", "--max-suspended-mib", "1"]).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "x = 1").await;
    suspended(&server, &id).await;
    let bad = "import random\nlarge = random.randbytes(2 << 20)\nx = 2";
    server.execute(&id, bad).await;
    suspended(&server, &id).await;
    let run = server.execute(&id, "x").await;
    assert_eq!(
        (&run["result"], &run["state"]["status"], &run["state"]["restoredTo"]),
        (&json!("1"), &json!("restored"), &json!(1)),
        "{run}"
    );
    server.stop().await;
}
