//! Checkpoints, which are paused copies of the guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_core::execution::{Killer, Outcome, StateStatus};
use sandglass_host::launcher::Resources;
use sandglass_host::{BackendKind, ExecuteOptions, Limits, Sandbox, SandboxBuilder, Value};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::ahead::{LIE, finished, prints};
use crate::support::{limits, on_both, processes_with, starts_processes, token, until};

on_both!(
    each_execution_is_taken_back_one_after_the_other,
    a_guest_that_does_not_stop_comes_back_soon,
    a_crash_and_want_of_memory_cost_one_execution,
    what_a_killed_guest_left_ends_with_it,
    a_loss_that_nobody_heard_of_is_told_by_the_next_execution,
    the_state_goes_back_and_forth,
    what_keeps_a_guest_from_being_copied_is_named,
    a_guest_that_ends_its_checkpoints_loses_them,
    a_fork_bomb_ends_and_the_state_comes_back,
    a_copy_that_ran_ahead_has_checkpoints,
    the_oldest_goes_when_memory_is_short,
    the_beginning_comes_back_within_the_same_limits,
    without_its_beginning_a_guest_starts_anew_and_alone,
    a_guest_has_nobody_killed_by_its_checkpoints,
    a_forged_checkpoint_harms_its_own_session_only,
    a_removed_file_takes_room_as_long_as_a_checkpoint_has_it,
    large_data_is_apart_from_the_heap,
    without_checkpoints_there_are_none,
    nothing_is_left_in_the_end,
);

fn builder(kind: BackendKind) -> SandboxBuilder {
    let limits = Limits {
        grace_period_ms: 100.0,
        ..limits()
    };
    crate::support::builder(kind)
        .limits(limits)
        .without_context()
        .checkpoints(3)
}

async fn sandbox(kind: BackendKind) -> Sandbox {
    let sandbox = builder(kind).build().await.unwrap();
    sandbox.start().await.unwrap();
    assert_eq!(sandbox.capabilities().checkpoints, 3);
    sandbox
}

async fn each_execution_is_taken_back_one_after_the_other(kind: BackendKind) {
    let sandbox = builder(kind).checkpoints(5).build().await.unwrap();
    prints(&sandbox, "import random\nrandom.seed(5)\nx = []\ny = x").await;
    for _ in 0..3 {
        prints(&sandbox, "x.append(random.random())").await;
    }
    assert_eq!(sandbox.undo().await, Ok(3));
    assert_eq!(prints(&sandbox, "print(len(x), x is y)").await, "2 True\n");
    assert_eq!(sandbox.undo().await, Ok(3));
    assert_eq!(sandbox.undo().await, Ok(2));
    let code = "x.append(random.random())\nx.append(random.random())\nrandom.seed(5)\nprint(x == [random.random() for _ in range(3)])";
    assert_eq!(
        prints(&sandbox, code).await,
        "True\n",
        "random numbers go on where they were"
    );
    assert_eq!(sandbox.undo().await, Ok(2));
    assert_eq!(prints(&sandbox, "print(len(x))").await, "1\n");
}

async fn a_guest_that_does_not_stop_comes_back_soon(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(
        &sandbox,
        "x = [1]\ndef count():\n    yield 1\n    yield 2\nc = count()\nnext(c)",
    )
    .await;
    for _ in 0..2 {
        let options = ExecuteOptions {
            timeout_ms: Some(2_000.0),
            ..ExecuteOptions::default()
        };
        let code = "new = 1\nx.append(2)\nsum(range(10**13))"; // a call into C, which nothing interrupts
        let run = sandbox.execute_with(code, options).await.unwrap();
        let said = (run.outcome, run.killer, run.state.status);
        let wanted = (Outcome::Timeout, Some(Killer::Timeout), StateStatus::Restored);
        assert_eq!(said, wanted, "{:?}", run.run);
        assert_eq!(run.state.restored_to, Some(1), "{:?}", run.run);
        let began = Instant::now();
        let code = "print(x, 'new' in globals(), next(c))";
        assert_eq!(prints(&sandbox, code).await, "[1] False 2\n");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(sandbox.undo().await, Ok(1));
    }
}

async fn a_crash_and_want_of_memory_cost_one_execution(kind: BackendKind) {
    let resources = Resources {
        memory_bytes: 256 << 20,
        ..Resources::default()
    };
    let sandbox = builder(kind).resources(resources).build().await.unwrap();
    prints(&sandbox, "import os\nx = bytearray(10 << 20)").await;
    for code in [
        "os._exit(3)",
        "os.kill(os.getpid(), 11)",
        "import ctypes\nctypes.string_at(0)",
    ] {
        let run = sandbox.execute(code).await.unwrap();
        assert_eq!(
            (run.outcome, run.state.status),
            (Outcome::Crashed, StateStatus::Restored),
            "{code}: {:?}",
            run.run
        );
        assert_eq!(prints(&sandbox, "print(len(x))").await, "10485760\n");
    }
    let run = sandbox
        .execute("y = []\nwhile True: y.append(bytes(bytearray(b'x') * (4 << 20)))")
        .await
        .unwrap();
    if run.outcome == Outcome::Crashed {
        assert_eq!(run.killer, Some(Killer::Oom), "{:?}", run.run);
        assert_eq!(run.state.status, StateStatus::Restored, "{:?}", run.run);
    } else {
        assert!(
            run.error.as_deref().is_some_and(|error| error.contains("MemoryError")),
            "{:?}",
            run.run
        );
    }
    assert_eq!(
        prints(&sandbox, "print(len(x), 'y' in globals() and len(y) > 0)")
            .await
            .split(' ')
            .next(),
        Some("10485760")
    );
}

async fn a_loss_that_nobody_heard_of_is_told_by_the_next_execution(kind: BackendKind) {
    let code = "import os
try:
    print('it runs', flush=True)
    while True: pass
except KeyboardInterrupt:
    os._exit(1)";
    for cancels in [false, true] {
        // With a long grace period, the code ends by itself.
        let sandbox = builder(kind).limits(limits()).build().await.unwrap();
        sandbox.start().await.unwrap();
        prints(&sandbox, "x = 1").await;
        let runs = Arc::new(Notify::new());
        let heard = Arc::clone(&runs);
        let cancel = CancellationToken::new();
        let options = ExecuteOptions {
            on_output: Some(Arc::new(move |_, _| heard.notify_one())),
            cancel: cancels.then(|| cancel.clone()),
            ..ExecuteOptions::default()
        };
        let mut left = Box::pin(sandbox.execute_with(code, options));
        tokio::select! {
            ended = &mut left => panic!("{ended:?}"),
            () = runs.notified() => {}
        }
        if cancels {
            cancel.cancel();
            assert_eq!(left.await.unwrap().outcome, Outcome::Crashed);
        } else {
            drop(left);
        }
        let run = sandbox.execute("x").await.unwrap();
        let told = (run.state.status, run.state.restored_to, run.result.as_deref());
        assert_eq!(told, (StateStatus::Restored, Some(1), Some("1")), "{:?}", run.run);
        let run = sandbox.execute("x").await.unwrap();
        assert_eq!(run.state.status, StateStatus::Kept, "it is told once");
    }
}

async fn what_a_killed_guest_left_ends_with_it(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "x = 1").await;
    let token = token();
    let run = sandbox
        .execute(format!("{}\nos._exit(1)", starts_processes(&token)))
        .await
        .unwrap();
    assert_eq!(run.state.status, StateStatus::Restored, "{:?}", run.run);
    sandbox.start().await.unwrap();
    assert_eq!(processes_with(&token), 0, "they are gone before anything runs");
    assert_eq!(prints(&sandbox, "print(x)").await, "1\n");
}

async fn the_state_goes_back_and_forth(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    for value in 1..=3 {
        prints(&sandbox, &format!("x = {value}")).await;
    }
    assert_eq!(sandbox.checkpoint().await, Ok(3));
    assert_eq!(sandbox.restore(Some(1)).await, Ok(1));
    assert_eq!(prints(&sandbox, "print(x)").await, "1\n");
    assert_eq!(sandbox.restore(Some(3)).await, Ok(3));
    assert_eq!(prints(&sandbox, "print(x)").await, "3\n");
    let error = sandbox.restore(Some(1)).await.unwrap_err();
    assert_eq!(error.code(), "no_checkpoint", "there are three at most: {error}");
    sandbox.set_variable("x", Value::from("set")).await.unwrap();
    assert_eq!(sandbox.restore(None).await, Ok(5), "what was set is saved, too");
    assert_eq!(prints(&sandbox, "print(x)").await, "set\n");
    assert_eq!(sandbox.undo().await, Ok(5));
    assert_eq!(sandbox.restore(Some(5)).await, Ok(5), "it is there already");
    sandbox.set_variable("x", Value::from("set again")).await.unwrap();
    prints(&sandbox, "x = 4").await;
    sandbox.set_variable("x", Value::from("at last")).await.unwrap();
    assert_eq!(sandbox.undo().await, Ok(5));
    let run = sandbox.execute("x").await.unwrap();
    assert_eq!(run.result.as_deref(), Some("'set again'"));
    let lost = run.state.lost.clone().unwrap_or_default();
    assert_eq!(lost.iter().map(|lost| &*lost.name).collect::<Vec<_>>(), ["x"]);
}

async fn what_keeps_a_guest_from_being_copied_is_named(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "x = 1").await;
    prints(&sandbox, "import socket\ns = socket.socket()").await;
    let error = sandbox.checkpoint().await.unwrap_err();
    assert_eq!(error.code(), "not_serializable");
    assert!(error.to_string().contains("a socket is open"), "{error}");
    prints(&sandbox, "y = 1").await;
    let error = sandbox.undo().await.unwrap_err();
    assert_eq!(error.code(), "no_checkpoint", "{error}");
    let run = sandbox.execute("import os; os._exit(1)").await.unwrap();
    assert_eq!(
        (run.state.status, run.state.restored_to),
        (StateStatus::Restored, Some(1)),
        "{:?}",
        run.run
    );
    let lost = run.state.lost.clone().unwrap_or_default();
    assert!(
        lost.iter()
            .any(|lost| lost.name == "y" && lost.reason.contains("a socket is open")),
        "{lost:?}"
    );
    prints(&sandbox, "x = 2").await;
    assert_eq!(sandbox.undo().await, Ok(1), "there are checkpoints again");
}

async fn a_guest_that_ends_its_checkpoints_loses_them(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "import os\nx = 1").await;
    prints(&sandbox, "x = 2").await;
    // All processes below the one that stands over the guest, but the guest.
    let code = "me, above = os.getpid(), os.getppid()
for pid in open(f'/proc/{above}/task/{above}/children').read().split():
    if int(pid) != me: os.kill(int(pid), 9)
os._exit(1)";
    let killed = sandbox.execute(code).await.unwrap();
    let run = sandbox.execute("'x' in globals()").await.unwrap();
    assert_eq!(run.result.as_deref(), Some("False"));
    // A killed process takes a moment to end. Until then nobody can tell that it will not come back.
    let said = [killed.state.status, run.state.status];
    let wanted = [
        [StateStatus::Lost, StateStatus::Kept],
        [StateStatus::Restored, StateStatus::Lost],
    ];
    assert!(wanted.contains(&said), "{:?} {:?}", killed.run, run.run);
    prints(&sandbox, "x = 3").await;
    assert_eq!(sandbox.undo().await, Ok(4));
}

/// Tries to open the memory of the process that stands over the guest.
const ABOVE: &str = "
import os
above = os.getppid()
try:
    open(f'/proc/{above}/mem', 'r+b').close()
    print('opened')
except PermissionError:
    print('refused to', above > 0)";

/// Checks that a guest cannot write into the process that stands over it, because code there would outlive the guest. A guest that is the
/// host's root user can, so the sandbox is of a backend whose guests are other users.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_cannot_change_the_process_over_it() {
    let sandbox = sandbox(BackendKind::Bubblewrap).await;
    assert_eq!(prints(&sandbox, ABOVE).await, "refused to True\n");
    sandbox.undo().await.unwrap();
    assert_eq!(
        prints(&sandbox, ABOVE).await,
        "refused to True\n",
        "nor can one that came back"
    );
}

async fn a_fork_bomb_ends_and_the_state_comes_back(kind: BackendKind) {
    let resources = Resources {
        pids: 64,
        ..Resources::default()
    };
    let sandbox = builder(kind).resources(resources).build().await.unwrap();
    prints(&sandbox, "import os\nx = 1").await;
    let code = "import signal
for _ in range(8):
    try: made = os.fork()
    except OSError: break
    if made == 0:
        os.setsid()
        while True:
            try:
                if os.fork() == 0: os.setsid()
            except OSError: pass
os._exit(1)";
    let run = sandbox.execute(code).await.unwrap();
    assert_ne!(run.state.status, StateStatus::Kept, "{:?}", run.run);
    let run = sandbox.execute("x").await.unwrap();
    if run.state.status == StateStatus::Kept {
        assert_eq!(run.result.as_deref(), Some("1"), "{:?}", run.run);
    }
    let left = prints(
        &sandbox,
        "print(len([name for name in os.listdir('/proc') if name.isdecimal()]))",
    )
    .await;
    if kind == BackendKind::Bubblewrap {
        assert!(left.trim().parse::<u32>().unwrap() < 10, "{left}");
    }
}

async fn a_copy_that_ran_ahead_has_checkpoints(kind: BackendKind) {
    let sandbox = builder(kind).ahead(true).build().await.unwrap();
    prints(&sandbox, "x = [0]").await;
    for round in 1..=3_u32 {
        let code = format!("x.append({round})\nprint(x)");
        sandbox.hint([code.as_str()]);
        finished(&sandbox, sandglass_core::predictions::Source::Explicit, round).await;
        prints(&sandbox, &code).await;
    }
    assert_eq!(sandbox.undo().await, Ok(3));
    sandbox.hint(["x.append(9)"]);
    assert_eq!(sandbox.undo().await, Ok(2), "while code runs ahead");
    assert_eq!(prints(&sandbox, "print(x)").await, "[0, 1]\n");
    let run = sandbox.execute("import os; os._exit(1)").await.unwrap();
    assert_eq!(run.state.status, StateStatus::Restored);
    assert_eq!(prints(&sandbox, "print(x)").await, "[0, 1]\n");
}

async fn the_oldest_goes_when_memory_is_short(kind: BackendKind) {
    let resources = Resources {
        memory_bytes: 256 << 20,
        ..Resources::default()
    };
    // More than there are executions: only memory ends one.
    let sandbox = builder(kind).checkpoints(8).resources(resources).build().await.unwrap();
    // All copies together fit, also those that are still ending, but not within their share.
    prints(&sandbox, "x = bytearray(48 << 20)").await;
    for value in 2..=4 {
        // Then no two copies share a page of it.
        prints(&sandbox, &format!("for at in range(0, len(x), 4096): x[at] = {value}")).await;
    }
    sandbox.checkpoint().await.unwrap();
    let error = sandbox.restore(Some(1)).await.unwrap_err();
    assert_eq!(error.code(), "no_checkpoint", "{error}");
    assert_eq!(sandbox.undo().await, Ok(3));
    assert_eq!(prints(&sandbox, "print(x[0])").await, "3\n");
}

/// Goes back to the state before the first execution, for which there is no checkpoint.
async fn to_the_beginning(sandbox: &Sandbox) {
    sandbox.restore(Some(1)).await.unwrap();
    assert_eq!(sandbox.undo().await, Ok(0));
}

const OWN_GROUP: &str = "print(open('/proc/self/cgroup').read())";

async fn the_beginning_comes_back_within_the_same_limits(kind: BackendKind) {
    let sandbox = builder(kind).checkpoints(8).build().await.unwrap();
    let group = prints(&sandbox, OWN_GROUP).await;
    prints(&sandbox, "import random\nx = random.random()\nprint(x)").await;
    to_the_beginning(&sandbox).await;
    let code = "import random\nprint('x' in globals(), random.random())";
    let first = prints(&sandbox, code).await;
    assert!(first.starts_with("False "), "{first}");
    assert_eq!(prints(&sandbox, OWN_GROUP).await, group, "one group bounds all");
    assert_eq!(sandbox.restore(Some(2)).await, Ok(2), "later states are still there");
    assert_eq!(prints(&sandbox, "print(type(x))").await, "<class 'float'>\n");
    to_the_beginning(&sandbox).await;
    assert_ne!(prints(&sandbox, code).await, first, "it has random numbers of its own");
}

async fn without_its_beginning_a_guest_starts_anew_and_alone(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, "import os\nx = 1").await;
    // Children are listed in the order of their birth: the guest, and its first copy.
    let code = "above = os.getppid()
pids = open(f'/proc/{above}/task/{above}/children').read().split()
os.kill(int(pids[1]), 9)
print(pids.index(str(os.getpid())))";
    assert_eq!(prints(&sandbox, code).await, "0\n");
    to_the_beginning(&sandbox).await;
    assert_eq!(prints(&sandbox, "print('x' in globals())").await, "False\n");
    let error = sandbox.restore(Some(1)).await.unwrap_err();
    assert_eq!(
        error.code(),
        "no_checkpoint",
        "its limits would be added to the new guest's: {error}"
    );
    prints(&sandbox, "x = 2").await;
    prints(&sandbox, "x = 3").await;
    sandbox.undo().await.unwrap();
    assert_eq!(prints(&sandbox, "print(x)").await, "2\n", "there are checkpoints again");
}

async fn a_guest_has_nobody_killed_by_its_checkpoints(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    prints(&sandbox, LIE).await;
    let error = sandbox.checkpoint().await.unwrap_err();
    assert_eq!(error.code(), "not_serializable");
    assert!(
        error.to_string().contains("something else than its own processes"),
        "{error}"
    );
    assert_eq!(
        prints(&sandbox, "x = 1\nprint(x, lied)").await,
        "1 True\n",
        "this process lives"
    );
}

/// Code that hands over a process of its own as its next checkpoint. The process does not speak the protocol when its time comes.
const FORGERY: &str = "
import gc, json, os, socket, struct, sys, time
Forks = next(type(o) for o in gc.get_objects() if type(o).__name__ == 'Forks')
spoken = Forks.fork.__globals__['answer']
def forge(control, message, fds):
    Forks.fork.__globals__['answer'] = spoken
    frame = sys._getframe(1)
    made = os.fork()
    if made == 0:
        orders = socket.socket(fileno=frame.f_locals['fds'][0])
        orders.send(b'{\"waits\":true}')
        while True:
            data, found, _, _ = orders.recvmsg(4096, socket.CMSG_SPACE(8))
            if not data:
                time.sleep(1000)
            me = os.pidfd_open(os.getpid())
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack('2i', me, me))]
            orders.sendmsg([json.dumps({'forked': json.loads(data)['epoch']}).encode()], rights)
            os.write(struct.unpack('2i', found[0][2])[0], b'\\xff' * 4096)
    frame.f_locals['self'].paused.note(made)
    spoken(control, message, [os.pidfd_open(made), os.pidfd_open(os.getpid())])
Forks.fork.__globals__['answer'] = forge
";

async fn a_forged_checkpoint_harms_its_own_session_only(kind: BackendKind) {
    let (sandbox, other) = (sandbox(kind).await, sandbox(kind).await);
    let token = token();
    prints(&other, "x = 1").await;
    prints(
        &sandbox,
        &format!("import os\nname = '{token}'\nopen('/proc/self/comm', 'w').write(name[-9:])\nx = 1"),
    )
    .await;
    prints(&sandbox, FORGERY).await;
    sandbox.checkpoint().await.unwrap();
    let run = sandbox.execute("import os; os._exit(1)").await.unwrap();
    assert_eq!(run.outcome, Outcome::Crashed, "{:?}", run.run);
    let deadline = Instant::now() + Duration::from_secs(30);
    let run = loop {
        let run = sandbox.execute("x").await;
        match run {
            Ok(run) if run.outcome == Outcome::Ok || run.outcome == Outcome::Error => break run,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
    };
    // Either the state before the forged one is there, or nothing, which the results have said.
    let wanted = [Some("1"), None];
    assert!(wanted.contains(&run.result.as_deref()), "{:?}", run.run);
    assert_eq!(prints(&sandbox, "print(2)").await, "2\n");
    assert_eq!(prints(&other, "print(x)").await, "1\n");
    sandbox.destroy().await;
    assert_eq!(named(&token), 0, "the forged copy has ended, too");
}

async fn a_removed_file_takes_room_as_long_as_a_checkpoint_has_it(kind: BackendKind) {
    if kind != BackendKind::Bubblewrap {
        return; // a plain process has no folder of its own with a bound
    }
    let resources = Resources {
        tmp_bytes: 8 << 20,
        ..Resources::default()
    };
    let sandbox = builder(kind).resources(resources).build().await.unwrap();
    prints(
        &sandbox,
        "import os\nfile = open('/tmp/a', 'wb+')\nsize = file.write(bytes(6 << 20))\nfile.flush()",
    )
    .await;
    prints(&sandbox, "file.close()\nos.remove('/tmp/a')").await;
    let write = "with open('/tmp/b', 'wb') as other: size = other.write(bytes(6 << 20))";
    let first = sandbox.execute(write).await.unwrap();
    assert_eq!(
        (first.outcome, first.killer),
        (Outcome::Error, Some(Killer::Disk)),
        "{:?}",
        first.run
    );
    prints(&sandbox, "os.remove('/tmp/b')").await;
    for _ in 0..3 {
        prints(&sandbox, "pass").await;
    }
    sandbox.checkpoint().await.unwrap();
    prints(&sandbox, write).await;
    prints(&sandbox, "os.remove('/tmp/b')").await;
}

/// A cell would write again to freed memory of the heap, which a checkpoint still has. The system would copy each page of it first.
async fn large_data_is_apart_from_the_heap(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    let code = "import ctypes\n\
        bytearray(16 << 20)  # the C library takes the heap for such blocks once the first one is freed\n\
        data = bytearray(8 << 20)\n\
        at = ctypes.addressof(ctypes.c_char.from_buffer(data))\n\
        heap = [line.split()[0] for line in open('/proc/self/maps') if line.endswith('[heap]\\n')]\n\
        within = [part for part in heap if int(part.split('-')[0], 16) <= at < int(part.split('-')[1], 16)]\n\
        print(len(heap) > 0, within)";
    assert_eq!(prints(&sandbox, code).await, "True []\n");
}

async fn without_checkpoints_there_are_none(kind: BackendKind) {
    let sandbox = builder(kind).checkpoints(0).build().await.unwrap();
    prints(&sandbox, "x = 1").await;
    assert_eq!(sandbox.capabilities().checkpoints, 0);
    for error in [
        sandbox.undo().await,
        sandbox.checkpoint().await,
        sandbox.restore(None).await,
    ] {
        assert_eq!(error.unwrap_err().code(), "invalid_option");
    }
    let run = sandbox.execute("import os; os._exit(1)").await.unwrap();
    assert_eq!(run.state.status, StateStatus::Lost);
}

/// The number of processes with the end of the token as their name. Copies have the command line of the guest, so the mark is in their name.
fn named(token: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    // A process that has ended has no command line, although its parent may not have noticed yet.
    let alive =
        processes.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty()));
    let names = alive.filter_map(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
    names.filter(|name| name.trim() == &token[token.len() - 9..]).count()
}

async fn nothing_is_left_in_the_end(kind: BackendKind) {
    let sandbox = sandbox(kind).await;
    let token = token();
    prints(
        &sandbox,
        &format!(
            "import sys\nname = '{}'\nopen('/proc/self/comm', 'w').write(name[-9:])",
            token
        ),
    )
    .await;
    for _ in 0..3 {
        prints(&sandbox, "x = 1").await;
    }
    let named = || named(&token);
    sandbox.checkpoint().await.unwrap();
    until("the guest and three copies", || named() == 4).await;
    assert_eq!(sandbox.undo().await, Ok(3));
    until("another guest and the same copies", || named() == 4).await;
    sandbox.destroy().await;
    assert_eq!(named(), 0);
    let other = self::sandbox(kind).await;
    prints(
        &other,
        &format!("open('/proc/self/comm', 'w').write('{}')", &token[token.len() - 9..]),
    )
    .await;
    prints(&other, "x = 1").await;
    drop(other);
    until("they end when the last handle is dropped", || named() == 0).await;
}
