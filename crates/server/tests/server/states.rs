//! Hostile states of stateless runs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::StatusCode;
use serde_json::json;

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
