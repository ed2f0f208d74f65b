//! States of stateless runs: in guests with and without packages, and hostile ones.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{TestServer, answer};

/// A state whose pickle evaluates a Python expression.
fn state_that_evaluates(expression: &str) -> String {
    let pickle = format!("cbuiltins\neval\n(V{}\ntR.", expression.replace('\n', "\\u000a"));
    // A frame of LZ4 with one block, which is not compressed.
    let mut frame = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
    let length = u32::try_from(pickle.len()).unwrap();
    frame.extend((length | 1 << 31).to_le_bytes());
    frame.extend(pickle.as_bytes());
    frame.extend([0; 4]);
    STANDARD.encode(frame)
}

/// A Python without any package: an environment of the system's.
fn bare_python() -> (TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let made = Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--without-pip", "--symlinks"])
        .arg(folder.path())
        .output();
    assert!(made.unwrap().status.success());
    let python = folder.path().join("bin/python3");
    (folder, python)
}

#[tokio::test(flavor = "multi_thread")]
async fn states_need_nothing_but_python_and_open_wherever_it_is_the_same() {
    let (_folder, bare) = bare_python();
    let with_packages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python");
    let start = async |python: &str, more: &[&str]| {
        TestServer::start(&[&["--python", python, "--spares", "1", "--preload", "wave"], more].concat()).await
    };
    let servers = [
        start(bare.to_str().unwrap(), &["--backend", "bubblewrap"]).await,
        start(with_packages, &[]).await,
    ];
    let run = async |server: &TestServer, body: Value| {
        let (status, body) = answer(server.post("/execute", &body)).await;
        assert_eq!((status, &body["exit_code"]), (StatusCode::OK, &json!(0)), "{body}");
        body
    };
    let installed = "from importlib.util import find_spec\nprint([bool(find_spec(n)) for n in ('cloudpickle', 'lz4')])";
    for (server, there) in servers.iter().zip(["[False, False]\n", "[True, True]\n"]) {
        assert_eq!(run(server, json!({ "code": installed })).await["stdout"], there);
        let code =
            "factor = 3\ndef scale(n): return n * factor\nclass P:\n    def ten(self): return scale(10)\np = P()";
        let wrote = run(server, json!({ "code": code, "capture_state": true })).await;
        assert_eq!(wrote["state_error"], Value::Null, "{wrote}");
        let read = run(
            server,
            json!({ "code": "print(p.ten(), factor)", "state": wrote["state"] }),
        )
        .await;
        assert_eq!(read["stdout"], "30 3\n");
    }
    // The two may be of different versions of Python, so these are plain data.
    for (from, to) in [(0, 1), (1, 0)] {
        let wrote = run(
            &servers[from],
            json!({ "code": "x = ['é' * 9] * 99", "capture_state": true }),
        )
        .await;
        let read = run(
            &servers[to],
            json!({ "code": "print(x == ['é' * 9] * 99)", "state": wrote["state"] }),
        )
        .await;
        assert_eq!(read["stdout"], "True\n");
    }
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_asks_for_its_state_gets_it_or_the_reason() {
    let server = TestServer::start(&["--max-spares", "0"]).await;
    let generator = "cannot pickle 'generator' object";
    let nothing = "the guest was ended, or nothing was run: error says why";
    for (code, state, exit_code, error, why) in [
        ("x = 1", Value::Null, 0, "", ""),
        (
            "x = [(i for i in 'ab')]",
            Value::Null,
            0,
            "State serialization failed: cannot",
            generator,
        ),
        (
            "x = [(i for i in 'ab')]\n1/0",
            Value::Null,
            1,
            "ZeroDivisionError: ",
            generator,
        ),
        ("import os; os._exit(1)", Value::Null, 137, "", nothing),
        ("x = 1", json!("bm8="), 1, "StateError: ", nothing),
    ] {
        let body = json!({ "code": code, "state": state, "capture_state": true });
        let (status, told) = answer(server.post("/execute", &body)).await;
        assert_eq!(
            (status, &told["exit_code"]),
            (StatusCode::OK, &json!(exit_code)),
            "{told}"
        );
        assert!(told["error"].as_str().unwrap_or_default().starts_with(error), "{told}");
        assert_eq!(told["state_error"].as_str().unwrap_or_default(), why, "{told}");
        assert_eq!(told["state"].is_null(), told["state_error"].is_string(), "{told}");
        let body = json!({ "code": code, "state": state });
        assert_eq!(
            answer(server.post("/execute", &body)).await.1["state_error"],
            Value::Null
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_names_what_it_lacks() {
    let server = TestServer::start(&["--max-spares", "0"]).await;
    let code = "g = (i for i in 'ab')\nnext(g)\nf = open('a.txt', 'w')\nx = 1";
    let (status, told) = answer(server.post("/execute", &json!({ "code": code, "capture_state": true }))).await;
    assert_eq!(
        (status, &told["exit_code"], &told["state_error"]),
        (StatusCode::OK, &json!(0), &Value::Null),
        "{told}"
    );
    let lost = json!([
        { "name": "g", "reason": "a generator, which only its own guest can continue" },
        { "name": "f", "reason": "an open file: open it again" },
    ]);
    assert_eq!(told["state_lost"], lost);
    let body = json!({ "code": "print(x, 'g' in globals())", "state": told["state"] });
    assert_eq!(answer(server.post("/execute", &body)).await.1["stdout"], "1 False\n");
    server.stop().await;
}

/// A hostile state is a pickle that runs code when opened. It is opened in the run's own guest, so it can hurt only that guest.
#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_state_hurts_its_own_guest_only() {
    // A state made with the library that real states are made with.
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv/bin/python");
    let server = TestServer::start(&["--python", python, "--spares", "1", "--preload", "wave"]).await;
    let id = server.session(json!({})).await;
    server.execute(&id, "kept = 1").await;
    let run = async |expression: &str, code: &str| {
        let body = json!({ "code": code, "state": state_that_evaluates(expression), "timeout": 60 });
        let (status, body) = answer(server.post("/execute", &body)).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        body
    };
    // The process that opens the state is the one that runs the code.
    let who = "{'who': [__import__('os').getpid(), __import__('sys').orig_argv[0]]}";
    let opened = run(who, "import os, sys\nprint(who == [os.getpid(), sys.orig_argv[0]])").await;
    assert_eq!(
        (&opened["stdout"], &opened["exit_code"]),
        (&json!("True\n"), &json!(0)),
        "{opened}"
    );
    for (expression, exit_code) in [
        ("__import__('os')._exit(3)", 137),
        ("__import__('os').kill(__import__('os').getpid(), 9)", 137),
        ("__import__('ctypes').string_at(0)", 137),
        ("__import__('os').closerange(0, 1000)", 1),
        ("(lambda: 1 / 0)()", 1),
        ("exec('raise SystemExit')", 1),
        ("exec('raise KeyboardInterrupt')", 1),
    ] {
        let refused = run(expression, "print('it ran')").await;
        assert_eq!(refused["exit_code"], exit_code, "{expression}: {refused}");
        assert_eq!(refused["stdout"], "", "{expression}: {refused}");
        assert!(
            refused["error"].as_str().unwrap().starts_with("StateError: "),
            "{expression}: {refused}"
        );
    }
    // A state that never finishes loading ends at the timeout.
    let body = json!({ "code": "1", "state": state_that_evaluates("exec('while True: pass')"), "timeout": 0.5 });
    let (_, late) = answer(server.post("/execute", &body)).await;
    assert!([124, 137].contains(&late["exit_code"].as_i64().unwrap()), "{late}");
    // A change by a state is gone with its guest.
    let changes = "exec('import builtins, sandglass as s; builtins.left = s.left = 1') or {}";
    assert_eq!(run(changes, "print(left)").await["stdout"], "1\n");
    let next = run(
        "{}",
        "import builtins, sandglass as s\nprint(hasattr(s, 'left'), hasattr(builtins, 'left'))",
    )
    .await;
    assert_eq!(next["stdout"], "False False\n", "{next}");
    assert_eq!(server.execute(&id, "kept").await["result"], "1");
    server.stop().await;
}
