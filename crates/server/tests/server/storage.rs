//! The folders of sessions on disk: their owners, their bounds and their fate.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use futures_util::{SinkExt, StreamExt};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;

use sandglass_server::{Secrets, Server};

use crate::support::{TestServer, answer, args, eventually, gone, refusal};

/// A server with workspaces in a folder that guests of a root host can enter.
pub async fn with_folder(more: &[&str]) -> (TempDir, TestServer) {
    let folder = TempDir::new().unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let path = folder.path().join("workspaces");
    let server = TestServer::start(&[&["--workspace-dir", path.to_str().unwrap()], more].concat()).await;
    (folder, server)
}

/// Closes a folder to all other users.
fn close(folder: &TempDir) {
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_guests_cannot_reach_is_refused_at_the_start() {
    let folder = TempDir::new().unwrap();
    close(&folder);
    let path = folder.path().join("workspaces");
    let bind = async |backend: &str| {
        let args = args(&["--backend", backend, "--workspace-dir", path.to_str().unwrap()]);
        Server::bind(args, Secrets::default()).await.map(drop)
    };
    // Plain processes are the server's own user.
    assert_eq!(bind("subprocess").await, Ok(()));
    // So are all guests of a server without root.
    if rustix::process::geteuid().is_root() {
        for backend in ["bubblewrap", "auto"] {
            let why = bind(backend).await.unwrap_err();
            let remedy = format!("run `chmod o+x {}`", folder.path().display());
            assert!(why.contains("WORKSPACE_DIR") && why.contains(&remedy), "{why}");
        }
    } else {
        assert_eq!(bind("bubblewrap").await, Ok(()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_trial_of_the_health_runs_in_a_folder_like_those_of_sessions() {
    let options = [
        "--backend",
        "bubblewrap",
        "--max-spares",
        "0",
        "--health-timeout-seconds",
        "80",
    ];
    for is_closed in [false, true] {
        let (folder, server) = with_folder(&options).await;
        if is_closed {
            close(&folder);
        }
        let (status, told) = answer(server.get("/health/detailed")).await;
        if is_closed && rustix::process::geteuid().is_root() {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{told}");
            let problem = told["backend"]["trial"]["problem"].as_str().unwrap();
            assert!(problem.contains("chmod o+x"), "{problem}");
        } else {
            assert_eq!((status, &told["status"]), (StatusCode::OK, &json!("ok")), "{told}");
        }
        eventually("the trial's folder is gone", async || left(&folder).is_empty()).await;
        server.stop().await;
    }
}

/// The folder of a session's files.
fn place(folder: &TempDir, id: &str) -> PathBuf {
    folder.path().join("workspaces/local").join(id)
}

/// The ids of the sessions that have folders.
fn left(folder: &TempDir) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder.path().join("workspaces/local")) else {
        return Vec::new();
    };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// A session with 8 MiB on disk.
fn small(backend: &str) -> Value {
    json!({ "backend": backend, "timeout": 3_000_000, "resources": { "diskBytes": 8 << 20, "tmpBytes": 1 << 20 } })
}

/// Checks that code is stopped while it writes. `made` names a file to remove afterwards.
async fn is_stopped_while_it_writes(backend: &str, code: &str, made: Option<&str>) {
    let (folder, server) = with_folder(&["--backend", backend, "--preload", "wave", "--spares", "1"]).await;
    let id = server.session(small(backend)).await;
    let run = server.execute(&id, "kept = 1").await;
    assert_eq!(run["outcome"], "ok", "{run}");
    // The code ends only because the server measures the disk meanwhile.
    let run = server.execute(&id, code).await;
    assert_eq!(
        (&run["outcome"], &run["killer"], &run["errorType"]),
        (&json!("limit"), &json!("disk"), &json!("LimitError")),
        "{run}"
    );
    let error = run["error"].as_str().unwrap();
    assert!(
        error.contains("bytes of 8388608") && error.contains("variables are kept"),
        "{error}"
    );
    // The folder may be measured before the code has written all.
    assert!(["", "written\n"].contains(&run["stdout"].as_str().unwrap()), "{run}");
    assert_eq!(run["state"]["status"], "kept");
    if rustix::process::geteuid().is_root() {
        assert!(sandglass_host::Users::default().contains(place(&folder, &id).metadata().unwrap().uid()));
    }
    let Some(made) = made else {
        return server.stop().await;
    };

    let more = server.post(&format!("/v1/sessions/{id}/execute"), &json!({ "code": "1" }));
    assert_eq!(refusal(more).await, (507, "quota".to_owned()));
    let file = server
        .request(Method::PUT, &format!("/v1/sessions/{id}/files/more"))
        .body("x");
    assert_eq!(refusal(file).await, (507, "quota".to_owned()));
    let remove = server.request(Method::DELETE, &format!("/v1/sessions/{id}/files/{made}"));
    assert_eq!(answer(remove).await.0, StatusCode::NO_CONTENT);
    assert_eq!(server.execute(&id, "kept").await["result"], "1");
    server.stop().await;
}

const FILES: &str = "import os\nos.mkdir('data')\nfor number in range(24):\n    with open(f'data/{number}', 'wb') as file: file.write(bytes(1 << 20))\n\
                     print('written')\nwhile True: pass";
/// Writes the same amount into files without names.
const HELD: &str = "import os\nheld = []\nfor number in range(24):\n    held.append(open('held', 'wb'))\n    held[-1].write(bytes(1 << 20))\n    \
                    held[-1].flush()\n    os.unlink('held')\nprint('written')\nwhile True: pass";

#[tokio::test(flavor = "multi_thread")]
async fn code_that_fills_the_disk_is_stopped_while_it_runs() {
    is_stopped_while_it_writes("subprocess", FILES, Some("data")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_code_that_fills_the_disk_is_stopped_while_it_runs() {
    is_stopped_while_it_writes("bubblewrap", FILES, Some("data")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_have_no_names_any_more_count() {
    is_stopped_while_it_writes("bubblewrap", HELD, None).await;
}

/// Files count that only a process without its main thread holds, or only one thread.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_a_thread_holds_count() {
    let code = r#"
import os, subprocess, sys
code = """
import ctypes, os, threading, time
held = [open(f'{number}', 'w+b') for number in range(24)]
for number, file in enumerate(held):
    file.write(bytes(1 << 20))
    file.flush()
    os.unlink(f'{number}')
threading.Thread(target=time.sleep, args=(1000,)).start()
print('written', flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
child = subprocess.Popen([sys.executable, '-c', code])
while True: pass
"#;
    is_stopped_while_it_writes("bubblewrap", code, None).await;
}

/// No process lists files without names while their descriptors are in a socket.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_on_their_way_end_what_runs() {
    let (_folder, server) = with_folder(&["--backend", "bubblewrap", "--preload", "wave", "--spares", "1"]).await;
    let id = server.session(small("bubblewrap")).await;
    // Received descriptors do no harm.
    let code = "
import os, socket
ours, theirs = socket.socketpair()
def send():
    with open('file', 'w+b') as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.unlink('file')
        socket.send_fds(ours, [b'x'], [file.fileno()])
for _ in range(24):
    send()
    for fd in socket.recv_fds(theirs, 1, 1)[1]: os.close(fd)";
    let run = server.execute(&id, code).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    let run = server
        .execute(&id, "for _ in range(24): send()\nwhile True: pass")
        .await;
    assert_eq!(
        (&run["outcome"], &run["killer"]),
        (&json!("limit"), &json!("disk")),
        "{run}"
    );
    assert!(
        run["error"]
            .as_str()
            .unwrap()
            .contains("file descriptors that nobody has received"),
        "{run}"
    );
    assert_eq!(run["state"]["status"], "kept");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_of_the_hosts_name_counts_as_any_other() {
    is_stopped_while_it_writes("bubblewrap", &FILES.replace("data", ".repl"), Some(".repl")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_writes_while_nobody_uses_it_is_ended() {
    let (_folder, server) = with_folder(&[]).await;
    let id = server.session(small("subprocess")).await;
    let pid = server.pid(&id).await;
    let code = "import threading, time\ndef fill(number=0):\n    while True:\n        try:\n            number += 1\n            \
                with open(f'{number}', 'wb') as file: file.write(bytes(1 << 20))\n            time.sleep(0.2)\n        \
                except BaseException: pass\nthreading.Thread(target=fill, daemon=True).start()";
    let run = server.execute(&id, code).await;
    assert_eq!(run["outcome"], "ok", "{run}");
    gone(pid).await;
    assert_eq!(server.forgets(&id).await, "session_not_found");
    server.stop().await;
}

/// All guests of one session have the same user id on the host, and no two sessions share one.
#[tokio::test(flavor = "multi_thread")]
async fn the_guest_after_a_crash_owns_the_files_of_the_one_before() {
    let (folder, server) = with_folder(&["--backend", "bubblewrap", "--preload", "wave", "--spares", "1"]).await;
    let (id, other) = (
        server.session(small("bubblewrap")).await,
        server.session(small("bubblewrap")).await,
    );
    let code = "import os\nos.mkdir('private', 0o700)\nwith open('private/file', 'w') as file: file.write('before')\nos.chmod('private/file', 0o600)";
    assert_eq!(server.execute(&id, code).await["outcome"], "ok");
    assert_eq!(server.execute(&id, "os._exit(1)").await["outcome"], "crashed");
    let code = "with open('private/file', 'r+') as file: before = file.read(); file.write(', after')\nbefore";
    assert_eq!(server.execute(&id, code).await["result"], "'before'");
    let owner = |id: &str, path: &str| place(&folder, id).join(path).metadata().unwrap().uid();
    assert_eq!(owner(&id, ""), owner(&id, "private/file"));
    if rustix::process::geteuid().is_root() {
        assert_ne!(owner(&id, ""), owner(&other, ""));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_does_not_fit_is_refused() {
    let (folder, server) = with_folder(&[]).await;
    let id = server.session(small("subprocess")).await;
    let write = |path: &str, bytes: usize| {
        let path = format!("/v1/sessions/{id}/files/{path}");
        server.request(Method::PUT, &path).body(vec![1_u8; bytes])
    };
    assert_eq!(answer(write("a", 6 << 20)).await.0, StatusCode::NO_CONTENT);
    assert_eq!(refusal(write("b", 6 << 20)).await, (507, "quota".to_owned()));
    assert!(place(&folder, &id).join("a").exists() && !place(&folder, &id).join("b").exists());
    assert_eq!(answer(write("b", 1 << 20)).await.0, StatusCode::NO_CONTENT);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_deleted_takes_its_folder_along() {
    let (folder, server) = with_folder(&["--backend", "bubblewrap", "--spares", "0", "--max-spares", "0"]).await;
    let id = server.session(json!({})).await;
    let other = server.session(json!({})).await;
    let run = server
        .execute(
            &id,
            "import os; os.makedirs('a/b'); open('a/b/c', 'w').write('1'); os.chmod('a', 0)",
        )
        .await;
    assert_eq!(run["outcome"], "ok", "{run}");
    assert_eq!(left(&folder).len(), 2);
    let delete = server.request(Method::DELETE, &format!("/v1/sessions/{id}"));
    assert_eq!(answer(delete).await.0, StatusCode::NO_CONTENT);
    assert_eq!(left(&folder), std::slice::from_ref(&other));
    // A session that nobody deleted keeps its folder when the server ends.
    server.execute(&other, "open('kept.txt', 'w').write('1')").await;
    server.stop().await;
    assert!(place(&folder, &other).join("kept.txt").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_folders_of_ended_sessions_are_kept() {
    let expire = ["--session-idle-seconds", "0.2", "--kept-workspaces"];
    for kept in [0, 2] {
        let (folder, server) = with_folder(&[&expire[..], &[&kept.to_string()]].concat()).await;
        // A folder that is no session's is left alone.
        std::fs::create_dir_all(place(&folder, "mine")).unwrap();
        let mut made = Vec::new();
        for _ in 0..4 {
            made.push(server.session(json!({})).await);
            eventually("it expires", || async {
                answer(server.get("/v1/sessions")).await.1["sessions"] == json!([])
            })
            .await;
        }
        let mut expected = made.split_off(4 - kept);
        expected.push("mine".to_owned());
        expected.sort();
        eventually("the others are gone", || async { left(&folder) == expected }).await;
        server.stop().await;
        assert_eq!(left(&folder), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_made_leaves_no_folder() {
    let (folder, server) = with_folder(&["--python", "/nowhere/python3"]).await;
    let (status, body) = answer(server.post("/v1/sessions", &json!({}))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{body}");
    eventually("its folder is gone", || async { left(&folder).is_empty() }).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channels_guest_is_ended_when_its_folder_holds_too_much() {
    let (folder, server) = with_folder(&[]).await;
    let mut options = small("subprocess");
    options["channel"] = json!(true);
    let id = server.session(options).await;
    let mut socket = server.channel(&id).await.unwrap();
    socket.send(Message::text(r#"{"type":"boot"}"#)).await.unwrap();
    let mut told = async || loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str::<Value>(&text).unwrap();
        }
    };
    assert_eq!(told().await["type"], "booted");
    std::fs::write(place(&folder, &id).join("large"), vec![1; 9 << 20]).unwrap();
    let lost = told().await;
    assert_eq!(
        (&lost["type"], &lost["killer"]),
        (&json!("lost"), &json!("disk")),
        "{lost}"
    );
    drop(socket);
    eventually("the session is gone", || async {
        answer(server.get(&format!("/v1/sessions/{id}"))).await.0 == StatusCode::NOT_FOUND
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_used_is_told_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let args = crate::support::args(&["--workspace-dir", file.path().to_str().unwrap()]);
    let error = sandglass_server::Server::bind(args, Default::default())
        .await
        .unwrap_err();
    assert!(error.contains("workspaces cannot be used"), "{error}");
    assert!(Path::new(file.path()).is_file());
}
