//! Code that forges the guest's messages, or breaks the guest from within. It gains nothing: at worst its guest ends.

use sandglass_host::Killer;

use super::*;

on!(
    bubblewrap,
    crate::hostile::Kind::Bubblewrap,
    frames_on_every_descriptor,
    frames_that_are_too_long,
    frames_for_another_turn,
    what_is_written_where_nobody_looks,
    a_channel_that_is_closed,
    a_channel_that_does_not_wait,
    sockets_that_linger,
    its_own_memory,
    its_own_runtime
);
on!(
    forked,
    crate::hostile::Kind::Forked,
    frames_on_every_descriptor,
    frames_that_are_too_long,
    frames_for_another_turn,
    what_is_written_where_nobody_looks,
    a_channel_that_is_closed,
    a_channel_that_does_not_wait,
    sockets_that_linger,
    its_own_memory,
    its_own_runtime
);
on!(
    docker,
    crate::hostile::Kind::Docker,
    frames_on_every_descriptor,
    frames_that_are_too_long,
    frames_for_another_turn,
    what_is_written_where_nobody_looks,
    a_channel_that_is_closed,
    a_channel_that_does_not_wait,
    sockets_that_linger,
    its_own_memory,
    its_own_runtime
);

/// Defines `frame(header, body…)`, a frame as the guest sends it, and `sockets()`, the guest's descriptors that are sockets.
const PRELUDE: &str = r#"
import json, os, stat, struct

epoch = int(open("/proc/self/cmdline", "rb").read().split(b"--epoch\0")[1].split(b"\0")[0])


def frame(events, *bodies, epoch=epoch):
    header = json.dumps(events).encode()
    rest = struct.pack("<II", epoch, len(header)) + header
    rest += b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    return struct.pack("<I", len(rest)) + rest


def descriptors():
    return [int(name) for name in os.listdir("/proc/self/fd")]


def sockets():
    return [fd for fd in descriptors() if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]


def say(data, fds):
    for fd in fds:
        try:
            os.write(fd, data)
        except OSError:
            pass
"#;

async fn armed(kind: Kind) -> Sandbox {
    let sandbox = sandbox(kind).await;
    text(&sandbox, PRELUDE).await;
    assert_ne!(
        text(&sandbox, "sockets()").await,
        "[]",
        "the channel is a socket of the guest's"
    );
    sandbox
}

/// Checks that no other execution is answered by this code, and that the sandbox goes on.
async fn assert_harmless(sandbox: &Sandbox, code: &str) {
    let run = run_for(sandbox, 10_000.0, code).await;
    assert_ne!(run.outcome, Outcome::Timeout, "{code}: {run:?}");
    // A guest may end after the result of its code was sent. The next execution then says so.
    let next = sandbox.execute("print('here')").await.unwrap();
    assert_eq!(
        (next.outcome, next.stdout.as_str()),
        (Outcome::Ok, "here\n"),
        "{code}: {next:?}"
    );
    let last = sandbox.execute("20 + 22").await.unwrap();
    assert_eq!(
        (last.outcome, last.result.as_deref(), last.state.status),
        (Outcome::Ok, Some("42"), StateStatus::Kept),
        "{code}: {last:?}"
    );
    text(sandbox, PRELUDE).await;
}

async fn frames_on_every_descriptor(kind: Kind) {
    let sandbox = armed(kind).await;
    let report = r#"{"outcome": "ok", "result": "forged", "final": False, "names": [], "stopped": None}"#;
    for events in [
        format!(r#"[{{"type": "executed", "exchange": exchange, "execution": {report}, "encoding": "none"}}]"#),
        r#"[{"type": "value", "exchange": exchange, "encoding": "none"}]"#.to_owned(),
        r#"[{"type": "done", "exchange": exchange}]"#.to_owned(),
        r#"[{"type": "refused", "exchange": exchange, "message": "forged"}]"#.to_owned(),
        r#"[{"type": "ready", "version": 7, "guest": {"bridge": "native", "softInterrupt": True, "python": "9", "pyodide": None}}]"#.to_owned(),
        r#"[{"type": "hostCall", "exchange": exchange, "call": 1, "batch": 1 << 31, "name": "nothing", "encoding": "none", "blocking": False}]"#.to_owned(),
        r#"[{"type": "output", "exchange": exchange, "stream": "stdout", "skipped": 1 << 60, "text": "forged"}]"#.to_owned(),
        r#"[{"type": "saved", "checkpoint": 1, "full": True, "lost": [], "spent": False}]"#.to_owned(),
        r#"[{"type": "unheard of"}]"#.to_owned(),
        "[]".to_owned(),
        "None".to_owned(),
    ] {
        let code = format!("for exchange in range(100):\n    say(frame({events}), descriptors())");
        assert_harmless(&sandbox, &code).await;
        let code = format!("for exchange in range(100):\n    say(frame({events}, b'body'), sockets())");
        assert_harmless(&sandbox, &code).await;
    }
}

async fn frames_that_are_too_long(kind: Kind) {
    let sandbox = armed(kind).await;
    for code in [
        "say(b'\\xff' * 64, sockets())",
        "say(struct.pack('<III', 0xffffffff, epoch, 16), sockets())",
        "say(struct.pack('<III', 16, epoch, 0xffffffff), sockets())",
        "say(struct.pack('<III', 8, epoch, 0x7fffffff), sockets())",
        "say(struct.pack('<I', 0), sockets())",
        "say(frame([{'type': 'done', 'exchange': 1}], epoch=epoch ^ 1), sockets())",
        "say(os.urandom(1 << 16), sockets())",
    ] {
        assert_harmless(&sandbox, code).await;
    }
}

/// A forged answer of a later execution is not used.
async fn frames_for_another_turn(kind: Kind) {
    let sandbox = armed(kind).await;
    let code = r#"
report = {"outcome": "ok", "result": "'forged'", "final": False, "names": [], "stopped": None}
for exchange in range(1000):
    say(frame([{"type": "executed", "exchange": exchange, "execution": report, "encoding": "none"}]), sockets())
"#;
    let _ = sandbox.execute(code).await.unwrap();
    for number in 0..20 {
        let run = sandbox.execute(format!("{number} * 2")).await.unwrap();
        assert_eq!(run.run.result, Some((number * 2).to_string()));
    }
}

/// Standard output and error are no channel, nor are pipes and files.
async fn what_is_written_where_nobody_looks(kind: Kind) {
    let sandbox = armed(kind).await;
    let code = "forged = frame([{'type': 'fatal', 'message': 'forged'}])\nkept = 1\nos.write(1, forged)\nos.write(2, forged)\nos.system('head -c 100000 /dev/zero')";
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(
        (run.outcome, run.state.status),
        (Outcome::Ok, StateStatus::Kept),
        "{run:?}"
    );
    assert!(run.stdout.contains("forged"), "{run:?}");
    assert_eq!(text(&sandbox, "kept").await, "1");
}

/// Such a guest lives until a message comes in two parts, which may be any message.
async fn a_channel_that_does_not_wait(kind: Kind) {
    let sandbox = armed(kind).await;
    run_for(&sandbox, 10_000.0, "for fd in sockets(): os.set_blocking(fd, False)").await;
    for _ in 0..20 {
        let run = sandbox.execute("print('here')").await.unwrap();
        match run.outcome {
            Outcome::Ok => assert_eq!(run.stdout, "here\n"),
            outcome => assert_eq!(outcome, Outcome::Crashed, "{run:?}"),
        }
    }
}

async fn a_channel_that_is_closed(kind: Kind) {
    let sandbox = armed(kind).await;
    for code in [
        "for fd in sockets(): os.close(fd)",
        "os.closerange(0, 256)",
        "import socket\nfor fd in sockets(): socket.socket(fileno=fd).shutdown(socket.SHUT_WR)",
        "null = os.open('/dev/null', os.O_RDWR)\nfor fd in sockets(): os.dup2(null, fd)",
        "os._exit(0)",
        "import sys\nsys.exit(3)",
        "raise SystemExit",
        "os.abort()",
    ] {
        assert_harmless(&sandbox, code).await;
    }
}

/// Through a file that ignores read-only pages.
/// The end of a full socket that lingers blocks whoever holds it last. On a channel, that would be a thread of the host.
async fn sockets_that_linger(kind: Kind) {
    let sandbox = armed(kind).await;
    let code = r#"
import array, contextlib, socket
server = socket.create_server(("127.0.0.1", 0))
full = socket.create_connection(server.getsockname())
peer, _ = server.accept()
full.setblocking(False)
with contextlib.suppress(BlockingIOError):
    while True:
        full.send(bytes(65536))
with contextlib.suppress(PermissionError):
    full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 100_000))
own = [server.fileno(), full.fileno(), peer.fileno()]
sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [full.fileno()]))]
for fd in set(sockets()) - set(own):
    with contextlib.suppress(OSError):
        socket.socket(fileno=os.dup(fd)).sendmsg([b"x"], sent)
full.close()"#;
    assert_harmless(&sandbox, code).await;
}

async fn its_own_memory(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = r#"
for line in open("/proc/self/maps"):
    if " r-xp " in line and ("libc.so" in line or "libc-" in line or "ld-musl" in line):
        begin, end = (int(part, 16) for part in line.split()[0].split("-"))
        break
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    memory.seek(begin)
    memory.write(b"\x00" * (end - begin))
"#;
    let run = run_for(&sandbox, 10_000.0, code).await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Crashed, Some(Killer::Signal)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
    // The first process of the namespace is a parent of the same kind. Without it, all others end.
    let code = code.replace("/proc/self/", "/proc/1/");
    let run = run_for(&sandbox, 10_000.0, &code).await;
    assert!(
        matches!(run.outcome, Outcome::Ok | Outcome::Crashed | Outcome::Error),
        "{run:?}"
    );
    let _ = sandbox.execute("pass").await.unwrap();
    assert_works(&sandbox).await;
}

/// The user's code can reach all of the guest's own code.
async fn its_own_runtime(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import gc, sys
for name, module in list(sys.modules.items()):
    if name.startswith('sandglass'):
        for key in list(vars(module)):
            if not key.startswith('__'):
                setattr(module, key, None)
for found in gc.get_objects():
    if type(found).__module__.startswith('sandglass'):
        try: found.__dict__.clear()
        except BaseException: pass
";
    let run = run_for(&sandbox, 10_000.0, code).await;
    assert_ne!(run.outcome, Outcome::Interrupted, "{run:?}");
    // The guest may be broken, and is then replaced.
    let _ = run_for(&sandbox, 1_000.0, "pass").await;
    assert_works(&sandbox).await;
}
