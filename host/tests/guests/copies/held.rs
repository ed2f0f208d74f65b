//! Paused copies that are hostile processes, beside a guest that does not come from them.
//!
//! Decisions: `docs/internals/saving-and-restoring.md`.

use sandglass_core::execution::Outcome;
use sandglass_host::Sandbox;

use super::hostile::{REACH, named};
use super::{builder, copies_of};
use crate::ahead::prints;
use crate::support::{token, until};

/// A process that wakes itself, and writes beside the guest that comes after it was undone.
#[tokio::test(flavor = "multi_thread")]
async fn an_undone_process_does_not_go_on_beside_the_guest() {
    let name = format!("awake{}", std::process::id() % 100_000);
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "import os, time\nnumbers = (n for n in range(99))").await;
    let writes = format!(
        "
log, step = os.open('log', os.O_RDWR | os.O_CREAT), 0
def receive_or_write(*arguments):
    global step
    if not is_paused():
        return real_receive(*arguments)
    while True:
        step += 1
        os.pwrite(log, b'%09d' % step, 0)
        if step == 100_000:
            libc.prctl(15, b'{name}', 0, 0, 0)
paused['receive'], paused['answer'] = receive_or_write, wake_itself_and_answer"
    );
    prints(&sandbox, &format!("{REACH}{writes}")).await;
    until("it is awake", || named(name.as_bytes()) == 1).await;
    assert_eq!(sandbox.undo().await, Ok(1));
    let look = "
def steps(): return open('log').read() if os.path.exists('log') else ''
before = steps()
for _ in range(20): time.sleep(0.02)
print(before, steps())";
    let steps = prints(&sandbox, look).await;
    let (before, after) = steps.trim().split_once(' ').unwrap();
    assert_eq!(before, after, "it made a step");
    assert_eq!(prints(&sandbox, "print(next(numbers))").await, "0\n");
    assert_eq!(sandbox.undo().await, Ok(3), "the session goes on");
    copies_of(&sandbox, 1).await;
}

/// A process that wakes itself, and then writes to the memory of a guest.
const WRITER: &str = "
import _thread
def write():
    while True:
        try:
            fd = os.open('/proc/' + open('/workspace/victim').read() + '/mem', os.O_RDWR)
            os.pwrite(fd, b'written', int(open('/workspace/address').read()))
            os.close(fd)
        except (OSError, ValueError):
            libc.usleep(1000)
def tell_awake():
    open('/proc/self/comm', 'wb').write(NAME)
";

/// Checks that such a process writes to no guest that does not come from it. `goes_back` is how that guest comes.
async fn writes_to_no_later_guest(code: &str, goes_back: impl AsyncFn(&Sandbox)) {
    let name = format!("awake{}", token());
    let sandbox = builder().build().await.unwrap();
    prints(&sandbox, "import ctypes, os, time\nnumbers = (n for n in range(99))").await;
    prints(&sandbox, &format!("{REACH}NAME = b'{}'{WRITER}{code}", &name[..14])).await;
    until("it is awake", || named(&name.as_bytes()[..14]) > 0).await;
    goes_back(&sandbox).await;
    let victim = "
target = ctypes.create_string_buffer(b'as it was')
open('/workspace/address', 'w').write(str(ctypes.addressof(target)))
open('/workspace/victim', 'w').write(str(os.getpid()))
for _ in range(20): time.sleep(0.02)
print(target.value.decode(), next(numbers))";
    assert_eq!(prints(&sandbox, victim).await, "as it was 0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undone_process_whose_first_thread_has_ended_goes_on_no_more() {
    let code = "
def receive_and_start(*arguments):
    if not is_paused():
        return real_receive(*arguments)
    real_show(1)
    _thread.start_new_thread(write, ())
    tell_awake()
    libc.syscall(60, 0)  # ends the first thread
paused['receive'], paused['answer'] = receive_and_start, wake_itself_and_answer";
    writes_to_no_later_guest(code, async |sandbox| assert_eq!(sandbox.undo().await, Ok(1))).await;
}

/// A paused copy refuses to make a guest, and has made another process.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_one_that_makes_no_guest_ends_with_the_try() {
    let code = "
def receive_and_fork(*arguments):
    if not is_paused():
        return real_receive(*arguments)
    real_show(1)
    tell_awake()
    while True:
        if not real_receive(*arguments[:1], [], 2, 0):
            os._exit(0)
        if libc.syscall(57) == 0:
            write()
        real_answer(arguments[0], '{\"failed\":\"no\"}', [])
paused['receive'], paused['answer'] = receive_and_fork, wake_itself_and_answer";
    let crashes = async |sandbox: &Sandbox| {
        let run = sandbox.execute("os._exit(1)").await.unwrap();
        assert_eq!(run.outcome, Outcome::Crashed, "{run:?}");
    };
    writes_to_no_later_guest(code, crashes).await;
}
