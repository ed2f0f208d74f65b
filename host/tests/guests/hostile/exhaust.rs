//! Code that uses up resources: processes, memory, disks, output, file descriptors, time.

use sandglass_host::Killer;

use super::*;

on!(
    bubblewrap,
    crate::hostile::Kind::Bubblewrap,
    processes,
    processes_that_run_away,
    threads,
    memory,
    memory_of_a_child,
    memory_in_files,
    memory_in_sockets,
    disks,
    one_large_file,
    output,
    output_past_python,
    output_of_a_child,
    file_descriptors,
    descriptors_on_their_way,
    timers,
    processes_without_a_main_thread,
    time_that_is_not_given_up,
    time_while_stopped,
    depth
);
on!(
    forked,
    crate::hostile::Kind::Forked,
    processes,
    processes_that_run_away,
    threads,
    memory,
    memory_of_a_child,
    memory_in_files,
    memory_in_sockets,
    disks,
    one_large_file,
    output,
    output_past_python,
    output_of_a_child,
    file_descriptors,
    descriptors_on_their_way,
    timers,
    processes_without_a_main_thread,
    time_that_is_not_given_up,
    depth
);
on!(
    docker,
    crate::hostile::Kind::Docker,
    processes,
    processes_that_run_away,
    threads,
    memory,
    memory_of_a_child,
    memory_in_files,
    memory_in_sockets,
    disks,
    one_large_file,
    output,
    output_past_python,
    output_of_a_child,
    file_descriptors,
    descriptors_on_their_way,
    timers,
    processes_without_a_main_thread,
    time_that_is_not_given_up,
    time_while_stopped,
    depth
);

/// Every process starts others until the bound is reached.
async fn processes(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let run = run_for(&sandbox, 30_000.0, "import os\nwhile True:\n    os.fork()").await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Error, Some(Killer::Pids)),
        "{run:?}"
    );
    assert_eq!(run.error_type.as_deref(), Some("BlockingIOError"));
    assert_eq!(run.state.status, StateStatus::Kept);
    assert_alone(&sandbox).await;
    assert_works(&sandbox).await;
}

/// As `processes`, with each process in its own session, ignoring all signals it can, and never giving up.
async fn processes_that_run_away(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import os, signal
for number in signal.valid_signals():
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        pass
";
    let run = run_for(&sandbox, 2_000.0, code).await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Timeout, Some(Killer::Timeout)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
    text(&sandbox, "import os").await;
    assert_alone(&sandbox).await;
}

async fn threads(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import threading
end = threading.Event()
while True:
    threading.Thread(target=end.wait).start()
";
    let run = run_for(&sandbox, 30_000.0, code).await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Error, Some(Killer::Pids)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
    // The earlier execution is no longer the cause.
    let run = sandbox.execute("1 / 0").await.unwrap();
    assert_eq!((run.outcome, run.killer), (Outcome::Error, None));
}

async fn memory(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let run = run_for(&sandbox, 60_000.0, "print('before', flush=True)\nx = b'x' * (1 << 30)").await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Crashed, Some(Killer::Oom)),
        "{run:?}"
    );
    assert_eq!(run.state.status, StateStatus::Lost);
    assert_eq!(run.stdout, "before\n");
    assert!(run.error.as_deref().unwrap().contains("memory"), "{run:?}");
    assert_works(&sandbox).await;
}

/// Only the child is killed, and a later crash is not explained by that kill.
async fn memory_of_a_child(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'b\"x\" * (1 << 30)'], check=True)";
    let run = run_for(&sandbox, 60_000.0, code).await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Error, Some(Killer::Oom)),
        "{run:?}"
    );
    assert_eq!(run.state.status, StateStatus::Kept);
    assert_works(&sandbox).await;
    let run = sandbox.execute("import ctypes; ctypes.string_at(0)").await.unwrap();
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Crashed, Some(Killer::Signal)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
}

/// Files without a name count as memory.
async fn memory_in_files(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import os
held = []
while True:
    held.append(os.memfd_create('x'))
    os.write(held[-1], bytes(8 << 20))
";
    let run = run_for(&sandbox, 60_000.0, code).await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Crashed, Some(Killer::Oom)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
}

/// Data that waits in sockets takes kernel memory, of which the machine has one bound for all sockets.
async fn memory_in_sockets(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import socket
server = socket.create_server(('127.0.0.1', 0))
kept, sent = [], 0
for _ in range(100):
    ours = socket.create_connection(server.getsockname())
    ours.setblocking(False)
    kept += [ours, server.accept()[0]]
    try:
        while sent < 1 << 30: sent += ours.send(bytes(1 << 20))
    except BlockingIOError: pass
sent < 256 << 20, sent
";
    let run = run_for(&sandbox, 60_000.0, code).await;
    let is_bounded = run
        .result
        .as_deref()
        .is_some_and(|result| result.starts_with("(True, "));
    assert!(is_bounded || run.killer == Some(Killer::Oom), "{run:?}");
    assert_works(&sandbox).await;
}

async fn disks(kind: Kind) {
    let sandbox = sandbox(kind).await;
    for folder in ["/tmp", "/dev/shm", "/workspace"] {
        let fill = format!(
            "with open('{folder}/full', 'wb', buffering=0) as file:\n    for _ in range(256):\n        file.write(bytes(1 << 20))"
        );
        let run = run_for(&sandbox, 60_000.0, &fill).await;
        assert_eq!(
            (run.outcome, run.killer),
            (Outcome::Error, Some(Killer::Disk)),
            "{folder}: {run:?}"
        );
        assert_works(&sandbox).await;
        text(&sandbox, &format!("import os; os.remove('{folder}/full')")).await;
    }
    // Many empty files are bounded by memory, because the kernel's memory counts too.
    let many = "
import itertools
for number in itertools.count():
    open(f'/tmp/{number}', 'w').close()
";
    let run = run_for(&sandbox, 60_000.0, many).await;
    assert!(matches!(run.killer, Some(Killer::Disk | Killer::Oom)), "{run:?}");
    assert_works(&sandbox).await;
}

/// A hole takes no space, but the file's length is bounded all the same.
async fn one_large_file(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let run = sandbox
        .execute("open('/workspace/hole', 'wb').truncate(1 << 40)")
        .await
        .unwrap();
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Error, Some(Killer::Disk)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
}

/// The timeout of code that prints ten gigabytes, in milliseconds.
const FLOOD_MS: f64 = 2_000.0;

async fn flood(kind: Kind, code: &str) {
    let sandbox = sandbox(kind).await;
    let run = run_for(&sandbox, FLOOD_MS, code).await;
    // The code is stopped in time, or finishes first.
    assert!(
        matches!(run.outcome, Outcome::Timeout | Outcome::Limit | Outcome::Ok),
        "{:?} {:?}",
        run.outcome,
        run.error
    );
    let kept = sandbox.limits().max_output_chars as usize;
    for output in [&run.stdout, &run.stderr] {
        assert!(output.chars().count() < kept + 100, "{} characters", output.len());
    }
    assert!(run.stdout.contains("characters omitted"), "{}", run.stdout.len());
    assert_works(&sandbox).await;
}

async fn output(kind: Kind) {
    flood(kind, "for _ in range(100_000):\n    print('x' * 100_000)").await;
}

async fn output_past_python(kind: Kind) {
    flood(
        kind,
        "import os\nfor _ in range(100_000):\n    os.write(1, b'x' * 100_000)",
    )
    .await;
}

async fn output_of_a_child(kind: Kind) {
    flood(
        kind,
        "import subprocess\nsubprocess.run(['sh', '-c', 'yes | head -c 10000000000'])",
    )
    .await;
}

async fn file_descriptors(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import os
held = []
while True:
    held.append(os.open('/dev/null', os.O_RDONLY))
";
    let run = sandbox.execute(code).await.unwrap();
    assert_eq!(run.outcome, Outcome::Error, "{run:?}");
    assert!(
        run.error.as_deref().unwrap().starts_with("OSError: [Errno 24]"),
        "{run:?}"
    );
    // Without free descriptors the guest still works, and the cell's leftover processes are ended.
    assert_works(&sandbox).await;
    assert_eq!(text(&sandbox, "len(held) < 256").await, "True");
    text(&sandbox, "import time\nif os.fork() == 0:\n    time.sleep(1000)").await;
    text(&sandbox, "for fd in held:\n    os.close(fd)").await;
    assert_alone(&sandbox).await;
    assert_works(&sandbox).await;
}

/// The kernel bounds sent but unreceived descriptors by user.
async fn descriptors_on_their_way(kind: Kind) {
    let (sandbox, other) = (sandbox(kind).await, super::sandbox(kind).await);
    let code = "
import errno, os, socket
null = os.open('/dev/null', os.O_RDONLY)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
def send(times):
    try:
        for _ in range(times): socket.send_fds(ours, [b'x'], [null] * 100)
    except OSError as error: return errno.errorcode[error.errno]
";
    for sandbox in [&sandbox, &other] {
        text(sandbox, code).await;
    }
    assert_eq!(text(&sandbox, "send(8)").await, "'ETOOMANYREFS'");
    assert_works(&sandbox).await;
    if rustix::process::geteuid().is_root() {
        assert_eq!(text(&other, "send(2)").await, "");
    }
    text(&sandbox, "ours.close(), theirs.close()").await;
    assert_works(&sandbox).await;
}

/// Each timer reserves a signal, and the kernel bounds waiting signals.
async fn timers(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def count():
    timer = ctypes.c_void_p()
    for number in range(100_000):
        if libc.timer_create(1, None, ctypes.byref(timer)):
            return number <= 4096, errno.errorcode[ctypes.get_errno()]
count()
";
    assert_eq!(text(&sandbox, code).await, "(True, 'EAGAIN')");
    assert_works(&sandbox).await;
}

/// By its state, a process has ended when its main thread has, although its other threads go on.
async fn processes_without_a_main_thread(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = r#"
import os, subprocess, sys, time
code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
children = [subprocess.Popen([sys.executable, "-c", code], start_new_session=away) for away in (False, True)]
states = [""]
while set(states) != {"Z"}:
    states = [open(f"/proc/{child.pid}/stat").read().rpartition(") ")[2][0] for child in children]
"#;
    text(&sandbox, code).await;
    assert_alone(&sandbox).await;
    assert_eq!(text(&sandbox, "[child.poll() for child in children]").await, "[-9, -9]");
    assert_works(&sandbox).await;
}

async fn time_that_is_not_given_up(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let code = "
while True:
    try:
        while True:
            pass
    except BaseException:
        print('no')
";
    let run = run_for(&sandbox, 300.0, code).await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Timeout, Some(Killer::Timeout)),
        "{run:?}"
    );
    assert_eq!(run.state.status, StateStatus::Lost);
    assert!(run.error.as_deref().unwrap().starts_with("TimeoutError:"), "{run:?}");
    assert_works(&sandbox).await;
}

/// The guest is stopped, and hears not even the host.
async fn time_while_stopped(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let run = run_for(
        &sandbox,
        300.0,
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    )
    .await;
    assert_eq!(
        (run.outcome, run.killer),
        (Outcome::Timeout, Some(Killer::Timeout)),
        "{run:?}"
    );
    assert_works(&sandbox).await;
}

/// Recursion in Python, in C and in values.
async fn depth(kind: Kind) {
    let sandbox = sandbox(kind).await;
    let run = sandbox.execute("def f(): f()\nf()").await.unwrap();
    assert_eq!(
        (run.outcome, run.error_type.as_deref()),
        (Outcome::Error, Some("RecursionError")),
        "{run:?}"
    );
    text(&sandbox, "x = []\nfor _ in range(100_000):\n    x = [x]").await;
    assert!(sandbox.get_variable("x").await.is_err());
    let run = sandbox
        .execute("import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()\nrepr(x)")
        .await
        .unwrap();
    assert!(
        matches!(run.outcome, Outcome::Error | Outcome::Crashed | Outcome::Timeout),
        "{run:?}"
    );
    assert_works(&sandbox).await;
}
