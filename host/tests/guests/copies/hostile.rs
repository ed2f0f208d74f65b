//! Paused copies that are hostile processes. Code of the user changes the functions that a paused copy runs, so it does what it likes when the
//! host has it fork.
//!
//! Each attack lets the session go on, or the session tells of the loss.
//!
//! Decisions: `docs/internals/copies-on-hosts.md`.

use sandglass_core::execution::{Outcome, StateStatus};
use sandglass_host::{Resources, Sandbox};

use super::{builder, copies_of};
use crate::ahead::prints;
use crate::support::until;

/// Puts other functions in the place of those of a paused copy. `paused` are its module's names.
pub(super) const REACH: &str = "
import ctypes, gc, mmap, os, socket, struct, sys, types
paused = next(f.__globals__ for f in gc.get_objects()
              if isinstance(f, types.FunctionType) and f.__name__ == '_rest' and f.__code__.co_argcount == 4)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
real_clone, real_receive, real_show, real_hide, real_answer = (paused[name] for name in ('_clone', 'receive', 'show', 'hide', 'answer'))
numbers = (n for n in range(99))
def is_paused():
    return sys._getframe(2).f_code.co_name == '_rest'

def tell_made():
    os.close(os.open('made', os.O_CREAT, 0o600))  # the host ends a paused copy that makes another call than to close after that
def show_when_made(shown):
    while not os.path.exists('made'):
        os.sched_yield()
    return real_show(shown)

def wake_itself():
    # Before it says that it waits: the host stops it then.
    import signal
    signal.signal(signal.SIGCONT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCONT])
    for wait in range(1, 3000):
        timer, event = ctypes.c_void_p(), struct.pack('QiiQQQQQQ', 0, signal.SIGCONT, 0, *[0] * 6)
        assert not libc.timer_create(1, event, ctypes.byref(timer))
        assert not libc.timer_settime(timer, 0, struct.pack('4q', 0, 0, wait // 100, wait % 100 * 10_000_000 + 1), None)
def wake_itself_and_answer(*arguments):
    if is_paused():
        wake_itself()
    return real_answer(*arguments)

def code_that_writes_to_keepers():
    # The host's memory will be where this is now.
    place = libc.mmap(None, 36 << 10, 3, 0x22, -1, 0)
    code = libc.mmap(None, 4096, 7, 0x22, -1, 0)
    libc.munmap(place, 36 << 10)
    zeros = os.open('/dev/zero', os.O_RDONLY)
    loop = (b'\\x48\\xbf' + struct.pack('<Q', place) + b'\\xbe\\x00\\x10\\x00\\x00\\xba\\x07\\x00\\x00\\x00\\xb8\\x0a\\x00\\x00\\x00\\x0f\\x05'  # mprotect
            + b'\\xbf' + struct.pack('<I', zeros) + b'\\x48\\xbe' + struct.pack('<Q', place + 256)
            + b'\\xba\\x40\\x00\\x00\\x00\\x31\\xc0\\x0f\\x05')  # read
    loop += b'\\xe9' + struct.pack('<i', -len(loop) - 5)
    ctypes.memmove(code, loop, len(loop))
    return code
";

async fn hostile(code: &str) -> Sandbox {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, &format!("{REACH}{code}")).await;
    sandbox
}

/// Both the sandbox and its copies go on.
async fn is_copied(sandbox: &Sandbox) {
    for sandbox in copies_of(sandbox, 2).await.iter().chain([sandbox]) {
        assert_eq!(prints(sandbox, "print(next(numbers))").await, "0\n");
    }
}

/// The end of the guest before already ends this twin. The look at the processes beside the paused copy is a second wall.
#[tokio::test(flavor = "multi_thread")]
async fn a_twin_that_shares_its_memory_ends_before() {
    let sandbox = hostile(
        "
def receive_with_twin(*arguments):
    global twin
    if is_paused() and not twin:
        stack = mmap.mmap(-1, 1 << 16, mmap.MAP_PRIVATE)
        top = ctypes.addressof(ctypes.c_char.from_buffer(stack)) + (1 << 16) - 64
        twin = stack, libc.clone(ctypes.c_void_p(code_that_writes_to_keepers()), ctypes.c_void_p(top), 0x8100, None)
        tell_made()
        assert twin[1] > 0
    return real_receive(*arguments)
twin = None
paused['receive'], paused['show'] = receive_with_twin, show_when_made
",
    )
    .await;
    is_copied(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_makes_no_step_once_there_are_copies() {
    let sandbox = hostile(
        "
code = code_that_writes_to_keepers()
def clone_and_write():
    pid = None
    try:
        pid = real_clone()
    finally:
        if pid != 0 and is_paused() and os.getpid() != 2:  # which a copy has
            ctypes.CFUNCTYPE(None)(code)()
    return pid
paused['_clone'] = clone_and_write
",
    )
    .await;
    is_copied(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_is_shared_late_is_found() {
    let sandbox = hostile(
        "
def share_and_clone():
    global shared
    shared = is_paused() and mmap.mmap(-1, 4096)
    return real_clone()
paused['_clone'] = share_and_clone
",
    )
    .await;
    let error = sandbox.fork(2).await.unwrap_err().to_string();
    assert!(error.contains("there is memory that may be others'"), "{error}");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_socket_is_found() {
    let sandbox = hostile(
        "
def open_and_hide():
    global kept
    kept = socket.socketpair()
    return real_hide()
paused['hide'] = open_and_hide
",
    )
    .await;
    let error = sandbox.fork(2).await.unwrap_err().to_string();
    assert!(error.contains("a socket is open"), "{error}");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_does_something_else_ends_and_the_loss_is_told() {
    for other in ["os.listdir('/')", "os.fork()", "os._exit(0)", "os.kill(os.getpid(), 9)"] {
        let sandbox = hostile(&format!(
            "
def do_something_else():
    if is_paused():
        {other}
    return real_clone()
paused['_clone'] = do_something_else
"
        ))
        .await;
        let is_copied = sandbox.fork(2).await.is_ok();
        assert!(!is_copied || other == "os.fork()", "{other}"); // which the host takes for the copy
        let run = sandbox.execute("print('numbers' in globals())").await.unwrap();
        assert_eq!(
            (&*run.stdout, run.state.status),
            ("False\n", StateStatus::Lost),
            "{other}: {run:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_that_end_at_once_are_told_of() {
    let sandbox = hostile(
        "
def clone_and_end():
    pid = real_clone()
    if pid == 0 and is_paused():
        os._exit(3)
    return pid
paused['_clone'] = clone_and_end
",
    )
    .await;
    let _ = sandbox.fork(2).await;
    let run = sandbox.execute("print('numbers' in globals())").await.unwrap();
    assert_eq!(
        (&*run.stdout, run.state.status),
        ("False\n", StateStatus::Lost),
        "{run:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_a_copy_keeps_the_session() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "numbers = (n for n in range(99))").await;
    for number in 0..6 {
        let copying = sandbox.fork(100); // each needs most of the rooms
        let _ = tokio::time::timeout(std::time::Duration::from_millis(15 * number), copying).await;
        assert_eq!(prints(&sandbox, "print(next(numbers))").await, format!("{number}\n"));
    }
    copies_of(&sandbox, 2).await;
}

/// Code of the user in a keeper could write to the memory of all others.
#[tokio::test(flavor = "multi_thread")]
async fn no_signal_reaches_a_keeper() {
    let sandbox = hostile(
        "
import signal
end = libc.mmap(None, 4096, 7, 0x22, -1, 0)
ctypes.memmove(end, bytes.fromhex('bf07000000b8e70000000f05'), 12)  # exit_group(7)
others = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGCONT}  # the host sends the last one
def receive_with_handlers(*arguments):
    if is_paused():
        libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
        for number in signal.valid_signals() - others:
            libc.signal(number, end)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        tell_made()
    return real_receive(*arguments)
paused['receive'], paused['show'] = receive_with_handlers, show_when_made
",
    )
    .await;
    let copies = copies_of(&sandbox, 2).await;
    let sends = "for number in signal.valid_signals(): os.kill(1, number)\nprint(next(numbers))";
    assert_eq!(prints(&copies[0], sends).await, "0\n");
    for sandbox in copies.iter().chain([&sandbox]) {
        prints(sandbox, "print(next(numbers))").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_all_of_its_group_reaches_no_other_copy() {
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "import os\nnumbers = (n for n in range(99))").await;
    let copies = copies_of(&sandbox, 2).await;
    let slower = "os.setpriority(os.PRIO_PGRP, 0, 7); os.kill(0, 9)";
    assert_eq!(copies[0].execute(slower).await.unwrap().outcome, Outcome::Crashed);
    for sandbox in [&copies[1], &sandbox] {
        let look = "print(next(numbers), os.getpriority(os.PRIO_PROCESS, 0), os.getpriority(os.PRIO_PROCESS, 1))";
        assert_eq!(prints(sandbox, look).await, "0 0 0\n");
    }
}

/// Closing a socket that lingers blocks.
#[tokio::test(flavor = "multi_thread")]
async fn what_it_sends_keeps_nobody_waiting() {
    let sandbox = hostile(
        "
import array, contextlib
are_sent = False
def receive_and_send(control, *arguments):
    global are_sent
    if is_paused() and not are_sent:
        are_sent = True
        server = socket.create_server(('127.0.0.1', 0))
        full = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        full.setblocking(False)
        try:
            while True:
                full.send(bytes(65536))
        except BlockingIOError:
            pass
        with contextlib.suppress(PermissionError):  # by the filter
            full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 100_000))
        for sent in full, peer:
            control.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [sent.fileno()]))])
        for each in server, full, peer:
            each.close()
        tell_made()
    return real_receive(control, *arguments)
def share_and_clone():
    global shared
    shared = is_paused() and mmap.mmap(-1, 4096)
    return real_clone()
paused['receive'], paused['show'], paused['_clone'] = receive_and_send, show_when_made, share_and_clone
",
    )
    .await;
    let error = sandbox.fork(2).await.unwrap_err().to_string();
    assert!(error.contains("there is memory that may be others'"), "{error}");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
}

/// The kernel counts a page of a file for each place at which it is mapped. So a keeper could count for more than all processes of its copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_seemed_larger_than_its_memory_takes_nobody_along() {
    let resources = Resources {
        memory_bytes: 256 << 20,
        ..Resources::default()
    };
    let sandbox = builder().resources(resources).build().await.unwrap();
    let maps = "
import time
program = os.open(sys.executable, os.O_RDONLY)
size = os.path.getsize(sys.executable)
parts = [libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, program, 0) for _ in range((600 << 20) // size)]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
for part in parts:
    ctypes.memset(part, 0, 1)  # otherwise a fork does not copy it
    assert not libc.madvise(part, size, 22)  # MADV_POPULATE_READ
numbers = (n for n in range(99))";
    prints(&sandbox, &format!("{REACH}{maps}")).await;
    let copies = copies_of(&sandbox, 2).await;
    let fills = "
for part in parts:
    libc.munmap(part, size)
for _ in range(16):
    if os.fork() == 0:
        part = bytearray(os.urandom(1 << 20)) * 25
        time.sleep(60)
        os._exit(0)
os.waitpid(-1, 0)";
    let _ = copies[0].execute(fills).await;
    for sandbox in [&copies[1], &sandbox] {
        assert_eq!(
            prints(sandbox, "print(next(numbers), len(parts) > 9)").await,
            "0 True\n"
        );
    }
}

/// The kernel ends all processes that share the memory of one that it chooses.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_uses_up_its_memory_takes_nobody_along() {
    let resources = Resources {
        memory_bytes: 512 << 20,
        ..Resources::default()
    };
    let sandbox = builder().resources(resources).build().await.unwrap();
    let state = "import os, time\nballast = bytearray(os.urandom(1 << 20)) * 150\nnumbers = (n for n in range(99))";
    prints(&sandbox, state).await;
    let copies = copies_of(&sandbox, 2).await;
    // No process takes as much as a keeper.
    let fills = "
del ballast
for _ in range(40):
    if os.fork() == 0:
        part = bytearray(os.urandom(1 << 20)) * 25
        time.sleep(60)
        os._exit(0)
os.waitpid(-1, 0)";
    let _ = copies[0].execute(fills).await;
    for sandbox in [&copies[1], &sandbox] {
        assert_eq!(
            prints(sandbox, "print(next(numbers), len(ballast) >> 20)").await,
            "0 150\n"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_process_does_not_go_on_by_its_timer() {
    let sandbox = hostile(
        "
log, step, armed = os.open('log', os.O_WRONLY | os.O_CREAT), 0, True
def receive_or_write(*arguments):
    global step
    if not (is_paused() and armed):
        return real_receive(*arguments)
    while True:
        step += 1
        os.pwrite(log, b'%09d' % step, 0)
paused['receive'], paused['answer'] = receive_or_write, wake_itself_and_answer
",
    )
    .await;
    prints(
        &sandbox,
        "while not os.path.getsize('log'): os.sched_yield()\narmed, paused['answer'] = False, real_answer",
    )
    .await;
    let copies = copies_of(&sandbox, 3).await;
    let mut steps = Vec::new();
    for sandbox in copies.iter().chain([&sandbox]) {
        steps.push(prints(sandbox, "print(open('log').read())").await);
    }
    assert_ne!(steps[0], "\n", "it has written before");
    steps.dedup();
    assert_eq!(steps.len(), 1, "nobody wrote while copies were made: {steps:?}");
}

/// One that ends at once is no checkpoint, and nobody counts on it.
#[tokio::test(flavor = "multi_thread")]
async fn a_paused_copy_that_ends_before_it_waits_is_none() {
    let sandbox = hostile(
        "
def fail(*arguments):
    raise OSError
paused['dup2'] = fail
",
    )
    .await;
    let error = sandbox.checkpoint().await.unwrap_err().to_string();
    assert!(error.contains("the copy ended at once"), "{error}");
    let error = sandbox.fork(2).await.unwrap_err().to_string();
    assert!(error.contains("the copy ended at once"), "{error}");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
}

/// The first guest of each copy does not start, as on a machine that is too busy for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_does_not_start_once_costs_no_copy() {
    let sandbox = hostile(
        "
has_failed = False
def clone_the_second_time():
    global has_failed
    if sys._getframe(1).f_code.co_name == '_rest' and os.getpid() == 2 and not has_failed:
        has_failed = True
        raise RuntimeError('once')
    return real_clone()
paused['_clone'] = clone_the_second_time
",
    )
    .await;
    for sandbox in copies_of(&sandbox, 2).await.iter().chain([&sandbox]) {
        assert_eq!(prints(sandbox, "print(next(numbers))").await, "0\n");
    }
}

/// The kernel lists a process's memory with names of files, which have any length.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_memory_that_is_too_long_is_not_read() {
    let sandbox = hostile(
        "
os.chdir('/dev/shm')
long, depth = '\\n' * 255, 100
for _ in range(depth):
    os.mkdir(long)
    os.chdir(long)
mapped = os.open('mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, 4096)
os.unlink('mapped')
for _ in range(depth):
    os.chdir('..')
    os.rmdir(long)
os.chdir('/workspace')
def receive_and_map(*arguments):
    global mapped
    if is_paused() and mapped:
        for _ in range(300):
            assert libc.mmap(None, 4096, 1, 2, mapped, 0) > 0
        os.close(mapped)
        mapped = 0
        tell_made()
    return real_receive(*arguments)
paused['receive'], paused['show'] = receive_and_map, show_when_made
",
    )
    .await;
    let error = sandbox.fork(2).await.unwrap_err().to_string();
    assert!(error.contains("/maps is too large"), "{error}");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
}

/// Processes with this name.
pub(super) fn named(name: &[u8]) -> usize {
    let each = std::fs::read_dir("/proc").unwrap().flatten();
    let names = each.filter_map(|process| std::fs::read(process.path().join("comm")).ok());
    names.filter(|its| its.strip_suffix(b"\n") == Some(name)).count()
}

/// A process chooses its name, which `/proc` tells as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_whose_name_is_no_text_ends_before() {
    let number = std::process::id() % 100_000;
    let name = [b"\xff\xfe", number.to_string().as_bytes()].concat();
    let sandbox = hostile(&format!(
        "
def show_and_start(shown):
    real_show(shown)
    if not os.path.exists('/workspace/named'):
        if os.fork() == 0:
            if os.fork() == 0:
                libc.prctl(15, b'\\xff\\xfe{number}', 0, 0, 0)
                os.close(os.open('/workspace/named', os.O_CREAT, 0o600))
                while True: libc.pause()
            os._exit(0)
        libc.wait(None)
        while not os.path.exists('/workspace/named'): os.sched_yield()
paused['show'] = show_and_start
"
    ))
    .await;
    while named(&name) == 0 {
        tokio::task::yield_now().await;
    }
    is_copied(&sandbox).await;
    until("it has ended, and its exit is taken", || named(&name) == 0).await;
}

/// The kernel writes the number of a new process to an address that the process it came from chooses. Here, that is an instruction.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_instruction_is_changed_is_not_made() {
    // clone(CLONE_PARENT | SIGCHLD | CLONE_CHILD_SETTID, 0, 0, instruction - 3), and after the changed one: unshare(CLONE_NEWUSER)
    let sandbox = hostile(
        "
code = bytes.fromhex('53b838000000bf1180000131f631d24531c04c8d1503000000eb0490909090' '0f05eb400000' 'b810010000bf000000100f05ebfe') + bytes(48) + b'\\x5b\\xc3'
page = libc.mmap(None, 1 << 16, 7, 0x22, -1, 0)
ctypes.memmove(page, code, len(code))
raw = ctypes.PYFUNCTYPE(ctypes.c_long)(page)
paused['_clone'] = lambda: raw() if sys._getframe(1).f_code.co_name == '_rest' else real_clone()
",
    )
    .await;
    let error = sandbox.fork(2).await.unwrap_err().to_string();
    assert!(error.contains("went elsewhere, and was ended"), "{error}");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
}
