//! Programs in place of guests. Whatever they send ends them, and the error says why.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandglass_host::guest::{Guest, Plan};
use sandglass_host::{BackendKind, Error, Launcher, Limits, PROTOCOL_VERSION, Resources, Sandbox};

use crate::support::{limits, soon};

/// Starts a script instead of a guest.
struct Script(String);

/// The beginning of every script.
const BEGIN: &str = "
import json, socket, struct, sys, time
channel, epoch = socket.socket(fileno=int(sys.argv[2])), int(sys.argv[4])
def send(header, bodies=(), epoch=epoch, length=None):
    header = header if isinstance(header, bytes) else json.dumps(header).encode()
    rest = struct.pack('<II', epoch, len(header)) + header + b''.join(struct.pack('<I', len(b)) + b for b in bodies)
    channel.sendall(struct.pack('<I', len(rest) if length is None else length) + rest)
def ready():
    send([{'type': 'ready', 'version': VERSION, 'guest': {'bridge': 'native', 'softInterrupt': True, 'python': '3', 'pyodide': None}}])
";

impl Launcher for Script {
    fn kind(&self) -> BackendKind {
        BackendKind::Subprocess
    }

    fn launch(&self) -> BoxFuture<'_, Result<Guest, Error>> {
        let script = format!("VERSION = {PROTOCOL_VERSION}{BEGIN}{}\ntime.sleep(3600)", self.0);
        Box::pin(Guest::spawn(Plan {
            program: PathBuf::from("/usr/bin/python3"),
            args: ["-c".into(), script.into()].to_vec(),
            env: Vec::new(),
            cwd: None,
            user: None,
            bounds: Resources::default().bounds(),
            open_files: 64,
            file_bytes: 1 << 30,
            filter: None,
            id_map: None,
            forks: false,
        }))
    }
}

async fn error_of(script: &str) -> Error {
    let limits = Limits {
        max_value_bytes: 1e6,
        ..limits()
    };
    let sandbox = Sandbox::builder()
        .launcher(Arc::new(Script(script.to_owned())))
        .limits(limits);
    let sandbox = sandbox.build().await.unwrap();
    let error = soon(sandbox.initialize("x")).await.unwrap_err();
    soon(sandbox.destroy()).await;
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_frame_says_so() {
    for (script, why) in [
        ("send([], epoch=epoch ^ 1)", "another epoch"),
        ("send([], length=1 << 30)", "a frame of 1073741824 bytes"),
        ("send([], length=5)", "do not add up"),
        (
            "channel.sendall(struct.pack('<III', 100, epoch, 1 << 31))",
            "oversized header",
        ),
        (
            "channel.sendall(struct.pack('<III2sI', 14, epoch, 2, b'[]', 9999))",
            "do not add up",
        ),
        ("send([])", "a message without an event"),
        ("send(b'{')", "broke the protocol"),
        ("send(b'[' * 10_000)", "broke the protocol"),
        ("send([{'type': 'nonsense'}])", "unknown variant"),
        ("send([{'type': 'done', 'exchange': 1}])", "`done` before it was ready"),
        (
            "ready(); send([{'type': 'done', 'exchange': 1}], [b'x'])",
            "bodies that are not its events'",
        ),
        (
            "ready(); send([{'type': 'done', 'exchange': 7}])",
            "exchange 7, which is not under way",
        ),
        (
            "ready(); send([{'type': 'value', 'exchange': 1, 'encoding': 'text'}], [bytes(1_100_000)])",
            "larger than maxValueSize",
        ),
        (
            "ready(); send([{'type': 'part', 'encoding': 'text'}], [b'x'])",
            "a piece of a body that is none",
        ),
        (
            "ready(); send([{'type': 'part', 'encoding': 'text'}], [bytes(600_000)]); send([{'type': 'part', 'encoding': 'text'}], [bytes(600_000)])",
            "larger than maxValueSize",
        ),
        ("channel.sendall(b'x'); channel.close(); sys.exit(3)", "status 3"),
        (
            "channel.close(); print('what went wrong', file=sys.stderr); sys.exit(3)",
            "status 3: what went wrong",
        ),
        ("sys.exit('no such module')", "no such module"),
    ] {
        let error = error_of(script).await;
        assert!(error.to_string().contains(why), "{script}: {error}");
        assert!(
            matches!(error.code(), "boot_failed" | "protocol" | "guest_lost"),
            "{script}: {error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_never_speaks_is_given_up() {
    let limits = Limits {
        boot_timeout_ms: 300.0,
        ..limits()
    };
    let sandbox = Sandbox::builder()
        .launcher(Arc::new(Script(String::new())))
        .limits(limits);
    let sandbox = sandbox.build().await.unwrap();
    let error = soon(sandbox.start()).await.unwrap_err();
    assert!(error.to_string().contains("bootTimeout"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_does_not_read_holds_nobody_up() {
    let script = "ready()";
    let sandbox = Sandbox::builder()
        .launcher(Arc::new(Script(script.to_owned())))
        .limits(limits());
    let sandbox = sandbox.build().await.unwrap();
    let (given, ()) = tokio::join!(sandbox.initialize("x".repeat(10 << 20)), async {
        sandbox.start().await.unwrap();
        soon(sandbox.destroy()).await;
    });
    assert_eq!(given, Err(Error::Destroyed));
}
