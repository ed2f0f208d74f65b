//! Exact copies of a session, each in namespaces of its own.
//!
//! Decisions: `docs/internals/copies-on-hosts.md`.

mod held;
mod hostile;

use std::sync::Arc;

use futures_util::future::join_all;
use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_host::{BackendKind, ExecuteOptions, Limits, Sandbox, SandboxBuilder};

use crate::ahead::prints;
use crate::support::{limits, processes_with, starts_processes, token, until};

fn builder() -> SandboxBuilder {
    crate::support::builder(BackendKind::Bubblewrap)
        .limits(Limits {
            grace_period_ms: 100.0,
            ..limits()
        })
        .without_context()
        .checkpoints(3)
}

/// The copies of a sandbox.
async fn copies_of(sandbox: &Sandbox, count: usize) -> Vec<Sandbox> {
    let copies = sandbox.fork(count).await.unwrap();
    assert_eq!(copies.len(), count);
    let made = copies.into_iter().map(|copy| builder().copy(copy).build());
    join_all(made).await.into_iter().map(Result::unwrap).collect()
}

/// State that goes on only in an exact copy.
const STATE: &str = "
import os, random
def counter():
    number = 0
    def add():
        nonlocal number
        number += 1
        return number
    return add
count, numbers = counter(), (number for number in range(100))
count(), next(numbers), next(numbers)
os.makedirs('folder', exist_ok=True)
open('folder/inner.txt', 'w').write('inner')
os.symlink('folder/inner.txt', 'link')
os.chmod('folder', 0o750)
os.utime('folder/inner.txt', (1000, 2000))
open('/tmp/other', 'w').write('other')
file = open('file.txt', 'w+')
file.write('hello world')
file.flush(), file.seek(6)
random.seed(7)
";
const LOOK: &str = "
print(count(), next(numbers), file.read(), round(random.random(), 6), file.tell(), open('link').read(), open('/tmp/other').read(),
      oct(os.stat('folder').st_mode), os.stat('folder/inner.txt').st_mtime, os.getcwd(), sorted(os.listdir()))
";
const SEEN: &str = "2 2 world 0.323833 11 inner other 0o40750 2000.0 /workspace ['file.txt', 'folder', 'link']\n";

#[tokio::test(flavor = "multi_thread")]
async fn each_goes_on_where_the_session_was() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, STATE).await;
    let copies = copies_of(&sandbox, 3).await;
    for sandbox in copies.iter().chain([&sandbox]) {
        let run = sandbox.execute(LOOK).await.unwrap();
        assert_eq!((run.outcome, &*run.stdout, run.id), (Outcome::Ok, SEEN, 2), "{run:?}");
        assert_eq!(run.state.status, StateStatus::Kept, "{run:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_have_checkpoints_of_their_own() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "x = [1]\nnumbers = (n for n in range(9))").await;
    let copies = copies_of(&sandbox, 2).await;
    for (index, sandbox) in copies.iter().chain([&sandbox]).enumerate() {
        prints(sandbox, &format!("x.append({index}); next(numbers)")).await;
        assert_eq!(
            prints(sandbox, "print(x, next(numbers))").await,
            format!("[1, {index}] 1\n")
        );
        assert_eq!(sandbox.undo().await, Ok(2));
        assert_eq!(sandbox.undo().await, Ok(1));
        assert_eq!(prints(sandbox, "print(x, next(numbers))").await, "[1] 0\n");
        let ended = sandbox.execute("x.append(5); __import__('os')._exit(1)").await.unwrap();
        assert_eq!(
            (ended.outcome, ended.state.status, ended.state.restored_to),
            (Outcome::Crashed, StateStatus::Restored, Some(4)),
            "{ended:?}"
        );
        let stuck = "sum(range(10**13))"; // a call into C, which nothing interrupts
        let options = ExecuteOptions {
            timeout_ms: Some(1_000.0),
            ..ExecuteOptions::default()
        };
        let stuck = sandbox.execute_with(stuck, options).await.unwrap();
        assert_eq!(
            (stuck.outcome, stuck.state.restored_to),
            (Outcome::Timeout, Some(4)),
            "{stuck:?}"
        );
        assert_eq!(prints(sandbox, "print(x, next(numbers))").await, "[1] 1\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_copied_again_and_outlive_their_originals() {
    let mut line = vec![builder().build().await.unwrap()];
    prints(&line[0], "depth = 0\nnumbers = (n for n in range(99))").await;
    for depth in 1..=6 {
        let last = line.last().unwrap();
        let copy = copies_of(last, 1).await.pop().unwrap();
        let code = "depth += 1; open(f'{depth}.txt', 'w').close(); next(numbers)";
        prints(&copy, code).await;
        if depth == 3 {
            line.remove(0).destroy().await;
        }
        line.push(copy);
    }
    for (depth, sandbox) in (1..).zip(&line) {
        let look = "import os; print(depth, next(numbers), len(os.listdir()), os.listdir('/proc').count('1'))";
        assert_eq!(prints(sandbox, look).await, format!("{depth} {depth} {depth} 1\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_shared_is_named_and_the_session_goes_on() {
    let obstacles = [
        (
            "import threading; t = threading.Thread(target=stop.wait); t.start()",
            "there are threads",
            "stop.set(); t.join()",
        ),
        ("import socket; s = socket.socket()", "a socket is open", "s.close()"),
        (
            "f = open('gone', 'w'); import os; os.remove('gone')",
            "gone (deleted) is open",
            "f.close()",
        ),
        (
            "import os; open('one', 'w').close(); os.link('one', 'two')",
            "has another name",
            "os.remove('two')",
        ),
        (
            "f = open('log', 'w'); g = os.dup(f.fileno())",
            "log is open twice for writing at one position",
            "f.close(); os.close(g)",
        ),
        (
            "import os; os.mkdir('full'); [open(f'full/{n}', 'w').close() for n in range(1500)]; s = os.scandir('full'); next(s)",
            "/workspace/full is being listed",
            "s.close(); import shutil; shutil.rmtree('full')",
        ),
        (
            "open('/dev/shm/one', 'w').close()",
            "there are files in /dev/shm",
            "import os; os.remove('/dev/shm/one')",
        ),
        (
            "import ctypes; c = ctypes.CDLL(None); q = c.msgget(7, 0o1600)",
            "there are things in /proc/sysvipc/msg",
            "c.msgctl(q, 0, None)",
        ),
        (
            "import resource; r = resource.RLIMIT_NOFILE; most = resource.getrlimit(r); resource.setrlimit(r, (200, most[1]))",
            "only 200 files may be open",
            "resource.setrlimit(r, most)",
        ),
        (
            "import os; os.mkfifo('fifo')",
            "fifo is no ordinary file",
            "os.remove('fifo')",
        ),
        (
            "for n in range(2001): open(f'f{n}', 'w').close()",
            "more than 2000 files",
            "for n in range(2001): os.remove(f'f{n}')",
        ),
    ];
    let sandbox = builder().build().await.unwrap();
    prints(
        &sandbox,
        "import threading; stop = threading.Event(); numbers = (n for n in range(99))",
    )
    .await;
    for (number, (code, why, remove)) in obstacles.into_iter().enumerate() {
        prints(&sandbox, code).await;
        let error = sandbox.fork(1).await.unwrap_err();
        assert_eq!(error.code(), "not_serializable", "{error}");
        assert!(error.to_string().contains(why), "{error}");
        prints(&sandbox, remove).await;
        assert_eq!(prints(&sandbox, "print(next(numbers))").await, format!("{number}\n"));
    }
    assert_eq!(copies_of(&sandbox, 1).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_copies_in_the_end() {
    let token = token();
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, &format!("token = '{token}'\nopen('file', 'w').write(token)")).await;
    let copies: Vec<_> = copies_of(&sandbox, 4).await.into_iter().map(Arc::new).collect();
    for copy in &copies {
        let (copy, busy) = (
            Arc::clone(copy),
            format!("{}\nwhile True: time.sleep(1)", starts_processes(&token)),
        );
        tokio::spawn(async move { copy.execute(busy).await });
    }
    until("all have started", || processes_with(&token) >= 8).await;
    sandbox.destroy().await;
    assert_eq!(processes_with(&token), 8, "copies outlive their original");
    for copy in &copies {
        copy.destroy().await;
    }
    until("all have ended", || processes_with(&token) == 0).await;
}

/// Tries of a copy to get out of its walls.
const WALLS: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(number, *arguments):
    return errno.errorcode.get(ctypes.get_errno()) if libc.syscall(number, *arguments) < 0 else "done"
def opened(path, mode):
    try: open(path, mode); return "opened"
    except OSError as error: return type(error).__name__
pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
# unshare, setns, mount, ptrace, pidfd_getfd
print(pids[0] == 1, len(pids) <= 5, *(tried(*call) for call in (
    (272, 0x10000000), (308, 0, 0), (165, b"a", b"/tmp", b"tmpfs", 0, 0), (101, 16, 1, 0, 0), (438, 0, 0, 0))))
print(opened("/run/copies/x", "w"), opened("/run/copies/workspace/0/x", "w"), opened("/usr/left", "w"), opened("/proc/sys/kernel/x", "w"))
status = dict(line.split(":\t") for line in open("/proc/self/status"))
print(*(status[name].strip() for name in ("CapEff", "CapBnd", "Seccomp", "NoNewPrivs")))
links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]
print(sorted({link for link in links if link.startswith(("socket", "pipe"))}))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_isolated_like_a_session() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "import os\nmine = os.getpid()").await;
    let copies = copies_of(&sandbox, 2).await;
    let mut shared = Vec::new();
    for sandbox in copies.iter().chain([&sandbox]) {
        let printed = prints(sandbox, WALLS).await;
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!(lines[0], "True True EPERM EPERM EPERM EPERM EPERM", "{printed}");
        let denied = ["PermissionError", "OSError", "FileNotFoundError"];
        assert!(lines[1].split(' ').all(|error| denied.contains(&error)), "{printed}");
        assert_eq!(lines[2], "0000000000000000 0000000000000000 2 1", "{printed}");
        shared.extend(
            lines[3]
                .split('\'')
                .filter(|link| link.contains(":["))
                .map(str::to_owned),
        );
        prints(
            sandbox,
            "open('own', 'w').write(str(id(os)))\nopen('/tmp/own', 'w').close()",
        )
        .await;
    }
    let all = shared.len();
    shared.sort_unstable();
    shared.dedup();
    assert_eq!(shared.len(), all, "no pipe and no socket is two copies'");
    // One that kills all that it can takes nobody with it.
    let kills = copies[0]
        .execute("os.kill(-1, 9)\nos.kill(os.getpid(), 9)")
        .await
        .unwrap();
    assert_eq!(kills.outcome, Outcome::Crashed, "{kills:?}");
    for sandbox in [&copies[1], &sandbox] {
        assert_eq!(
            prints(sandbox, "print(sorted(os.listdir()), mine > 0)").await,
            "['own'] True\n"
        );
    }
}
