"""A trial of exact copies of a live session: forks of a real guest, each in namespaces and a control group of its own.

`python3 scripts/bench/forks/isolated.py --copies 100` needs root, bubblewrap, Linux on x86_64, and pandas for the guest: in the Python that
runs this, or in the folder `--packages`. It prints the times and the memory, tries attacks, and fails when one succeeds.

Not part of the product.
"""

# Decisions: docs/internals/copies-on-hosts.md.

from __future__ import annotations

import argparse
import fcntl
import json
import os
import queue
import random
import select
import socket
import statistics
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from guests import BYTES, FOLDERS, GROUP, GROUPS, NEW, USER, Checkpoint, Copy, Guest
from tracing import SUSPEND_FILTER, Calls, Traced, call, call_instruction

from sandglass.native import landlock

_NOSUID, _NODEV, _NOEXEC, _RDONLY, _BIND = 2, 4, 8, 1, 4096
_DUMPABLE, _DROP_BOUND = 4, 24
_CREATE, _CLOEXEC, _INTO_EMPTY = 6, 1, 4
_NS_GET_PARENT = 0xB702
#: Calls that a paused copy makes between an order and the fork, and from there to the next order.
ALLOWED = frozenset(
    (
        "brk", "close", "dup3", "futex", "getpid", "madvise", "mmap", "mprotect", "munmap", "pidfd_open", "prctl", "recvmsg",
        "sendmsg", "write",
    )
)  # fmt: skip

STATE = """
import random
import numpy as np
import pandas as pd
frame = pd.DataFrame(np.random.rand(6_553_600, 2), columns=["a", "b"])
def counter():
    number = 0
    def add():
        nonlocal number
        number += 1
        return number
    return add
def numbers():
    yield from range(100)
count, generator = counter(), numbers()
count(), next(generator), next(generator)
file = open("file.txt", "w+")
file.write("hello world")
file.flush(), file.seek(6)
random.seed(7)
secret = b"the secret of this copy"
"""
LOOK = "print(count(), next(generator), file.read(), round(random.random(), 6), round(frame.a.sum(), 6), file.tell())"
CALLS = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def tried(number, *arguments):
    return errno.errorcode.get(ctypes.get_errno()) if libc.syscall(number, *arguments) < 0 else "done"
"""


KILL = """
try: os.kill({0}, 0); print("done")
except OSError as error: print(type(error).__name__)
"""
OPEN = """
try: open({0!r}, {1!r}); print("opened")
except OSError as error: print(type(error).__name__)
"""


class Entering:
    """A thread that enters the namespaces of copies, and makes their mounts from outside."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[None], int, int, int]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def enter(self, pidfd: int, number: int, proc: int) -> None:
        """Gives a copy its folders, its `/proc`, its terminals and its loopback. Files of the working folder go along."""
        done: Future[None] = Future()
        self._jobs.put((done, pidfd, number, proc))
        done.result()

    def _run(self) -> None:
        call("unshare", 0x200)  # CLONE_FS
        while True:
            done, *job = self._jobs.get()
            try:
                _furnish(*job)
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)


def _furnish(pidfd: int, number: int, proc: int) -> None:
    call("setns", pidfd, NEW["mnt"] | NEW["net"])
    files = {}
    for entry in os.scandir("/workspace"):
        if entry.is_file(follow_symlinks=False):
            with open(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                files[entry.name] = file.read()
    safe = _NOSUID | _NODEV
    _mount(f"{FOLDERS}/{number}/workspace", "/workspace", None, _BIND)
    _mount(f"{FOLDERS}/{number}/tmp", "/tmp", None, _BIND)
    _mount("tmpfs", FOLDERS, "tmpfs", safe | _NOEXEC | _RDONLY, "size=4k,mode=000")
    _mount("tmpfs", "/dev/shm", "tmpfs", safe | _NOEXEC, f"size={BYTES},mode=1777,uid={USER},gid={USER}")
    _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=620,max=64")
    call("move_mount", proc, b"", -100, b"/proc", _INTO_EMPTY)
    call("setfsgid", USER)
    call("setfsuid", USER)
    for name, data in files.items():
        with open(f"/workspace/{name}", "xb") as file:
            file.write(data)
    call("setfsuid", 0)
    call("setfsgid", 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", 1))


class Copying:
    """Makes copies of a paused copy, which never runs but under the eyes of this thread."""

    def __init__(self, checkpoint: Checkpoint, guest: Guest, most: int) -> None:
        self._checkpoint, self._guest = checkpoint, guest
        self.paused = Traced.seize(checkpoint.pid)
        self.paused.run_to("recvmsg", ALLOWED)
        self._at = call_instruction(checkpoint.pid)
        self._entering = Entering()
        self._last_capability = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
        self._made = 0
        self.parts: defaultdict[str, list[float]] = defaultdict(list)
        above = next(line for line in Path(f"/proc/{checkpoint.pid}/status").read_text().splitlines() if "PPid" in line)
        self.stands_over = int(above.split()[1])
        self._foreign = {link for link in links_of(self.stands_over).values() if link.startswith("pipe:")}
        allow_namespaces(checkpoint.pid, most)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.parts[name].append(time.perf_counter() - begin)

    def make(self) -> Copy:
        self._made += 1
        copy = Copy(self._guest, self._made)
        for kind in GROUPS:
            os.mkdir(f"/sys/fs/cgroup/{kind}/{copy.group}")
        traced = self._clone(copy, sum(NEW.values()), "fork with namespaces")
        try:
            self._isolate(traced, copy)
        except BaseException:
            traced.kill()
            raise
        with self._part("the copy goes on"):
            traced.let_go()
        return copy

    def order(self, copy: Copy, allowed: frozenset[str]) -> None:
        """Has the paused copy go on to its fork. Any call but those allowed ends it."""
        order = json.dumps({"epoch": copy.epoch, "paused": []}).encode()
        socket.send_fds(self._checkpoint.control, [order], [copy.channel.fileno(), copy.its_control.fileno()])
        self.paused.run_to("clone", allowed)

    def time_plain_fork(self) -> None:
        """Takes the time of a fork without namespaces, whose copy ends at once."""
        self._made += 1
        copy = Copy(self._guest, self._made)
        self._clone(copy, 0, "fork without namespaces, for comparison").kill()

    def _clone(self, copy: Copy, flags: int, what: str) -> Traced:
        with self._part("order to a paused copy"):
            self.order(copy, ALLOWED)
        with self._part(what):
            traced = self.paused.clone_with(flags)
        with self._part("way back of the paused copy"):
            self.paused.run_to("recvmsg", ALLOWED)
            data, fds, _, _ = socket.recv_fds(self._checkpoint.control, 4096, 2)
            for fd in fds:
                os.close(fd)
            if json.loads(data) != {"forked": copy.epoch}:
                raise AssertionError(data)
        copy.pid = traced.pid
        return traced

    def _isolate(self, traced: Traced, copy: Copy) -> None:
        pid = traced.pid
        pidfd = os.pidfd_open(pid)
        with self._part("group, ids, /proc"):
            links = links_of(pid)
            free = next(fd for fd in range(1024) if fd not in links)
            control = f"socket:[{os.fstat(copy.its_control.fileno()).st_ino}]"
            copy.channel.close()
            copy.its_control.close()
            calls = Calls(traced, self._at)
            self._enter_group(calls, copy, next(fd for fd, link in links.items() if link == control), free)
            # Without this, the process's files in /proc belong to root. The memory of the calls is not executed meanwhile by anybody else.
            calls.add("prctl", _DUMPABLE, 1)
            for name, value in (("setgroups", b"deny"), ("uid_map", b"1000 1000 1"), ("gid_map", b"1000 1000 1")):
                calls.add("open", calls.data(f"/proc/self/{name}\0".encode()), os.O_WRONLY)
                calls.add("write", free, calls.data(value), len(value))
                calls.add("close", free)
            calls.add("prctl", _DUMPABLE, 0)
            # A /proc of a namespace can only be made within it. Landlock does not let the copy mount it.
            calls.add("fsopen", calls.data(b"proc\0"), _CLOEXEC)
            calls.add("fsconfig", free, _CREATE, 0, 0, 0)
            calls.add("fsmount", free, _CLOEXEC, _NOSUID | _NODEV | _NOEXEC)
            calls.add("close", free)
            calls.run()
        with self._part("mounts and loopback"):
            proc = call("pidfd_getfd", pidfd, free + 1, 0)
            self._entering.enter(pidfd, self._made, proc)
            os.close(proc)
            os.close(pidfd)
        with self._part("files, capabilities"):
            calls.add("close", free + 1)
            calls.add("chdir", calls.data(b"/workspace\0"))
            self._open_files(calls, pid, links, free)
            for capability in range(self._last_capability + 1):
                calls.add("prctl", _DROP_BOUND, capability)
            calls.add("capset", calls.data(struct.pack("<II", 0x20080522, 0)), calls.data(bytes(24)))
            calls.run()
            calls.end()
        with self._part("checks from outside"):
            check(pid, self.paused.pid, copy.group)

    def _enter_group(self, calls: Calls, copy: Copy, control: int, free: int) -> None:
        """Has the copy enter its control groups. A move by another process waits for all processors."""
        with ExitStack() as stack:
            files = [stack.enter_context(open(f"/sys/fs/cgroup/{kind}/{copy.group}/tasks", "wb", 0)) for kind in GROUPS]
            socket.send_fds(copy.control, [b"!"], [file.fileno() for file in files])
        message = struct.pack("<QQ", calls.data(bytes(16)), 16)
        header = struct.pack("<QQQQQQQ", 0, 0, calls.data(message), 1, calls.data(bytes(64)), 64, 0)
        calls.add("recvmsg", control, calls.data(header), 0x40000000)
        for number in range(len(GROUPS)):
            calls.add("write", free + number, calls.data(b"0"), 1)
        for number in range(len(GROUPS)):
            calls.add("close", free + number)

    def _open_files(self, calls: Calls, pid: int, links: dict[int, str], free: int) -> None:
        """Opens the files of the working folder anew, in the copy's own. Closes what leads to other processes."""
        for fd, link in links.items():
            if link in self._foreign:
                calls.add("open", calls.data(b"/dev/null\0"), os.O_RDWR)
                calls.add("dup3", free, fd, os.O_CLOEXEC)
                calls.add("close", free)
            if not link.startswith("/workspace/"):
                continue
            info = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines()[:2])
            flags = int(info["flags"], 8) & ~(os.O_CREAT | os.O_EXCL | os.O_TRUNC)
            calls.add("open", calls.data(link.encode() + b"\0"), flags)
            calls.add("lseek", free, int(info["pos"]), os.SEEK_SET)
            calls.add("dup3", free, fd, flags & os.O_CLOEXEC)
            calls.add("close", free)


def check(pid: int, of: int, group: str) -> None:
    """Raises AssertionError for a copy that is not as isolated as a session, by the kernel's word."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, f"{capabilities} is {status[capabilities]}"
    assert status["Seccomp"] == "2", "there is no filter"
    assert status["NoNewPrivs"] == status["Threads"] == "1"
    assert status["NSpid"].split()[-1] == "1", "it is not the first process of a namespace"
    for namespace in NEW:
        ours, theirs = (os.readlink(f"/proc/{each}/ns/{namespace}") for each in (pid, of))
        assert ours != theirs, f"it shares the namespace {namespace}"
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    assert sum(line.endswith(f"/{group}") for line in lines) == len(GROUPS), lines
    assert Path(f"/proc/{pid}/uid_map").read_text().split() == ["1000", str(USER), "1"]


def links_of(pid: int) -> dict[int, str]:
    """What the descriptors of a process stand for."""
    links = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            links[int(fd)] = os.readlink(f"/proc/{pid}/fd/{fd}")
    return links


def allow_namespaces(pid: int, count: int) -> None:
    """Lets `count` user namespaces be made below that of a guest, which bubblewrap forbade. The filter still refuses them to the guest."""
    with open(f"/proc/{pid}/ns/user", "rb") as namespace:
        above = fcntl.ioctl(namespace, _NS_GET_PARENT)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            call("setns", above, NEW["user"])
            Path("/proc/sys/user/max_user_namespaces").write_text(str(1 + count))
            os._exit(0)
        os._exit(1)
    os.close(above)
    assert os.waitpid(child, 0)[1] == 0, "the bound of user namespaces cannot be changed"


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, flags, data.encode())


def private_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def measure(guest: Guest, count: int) -> tuple[Copying, list[Copy]]:
    begin = time.perf_counter()
    checkpoint = Checkpoint(guest)
    pause = time.perf_counter() - begin
    copying = Copying(checkpoint, guest, count)
    copies, each = [], []
    begin = time.perf_counter()
    for _ in range(count):
        one = time.perf_counter()
        copies.append(copying.make())
        each.append(time.perf_counter() - one)
    whole = time.perf_counter() - begin
    for copy in copies:
        copy.wake()
    for _ in range(5):
        copying.time_plain_fork()
    print(f"{count} copies of a session with pandas and 100 MB: {ms(whole)}, after a pause of {ms(pause)}")
    print(f"  one copy: p50 {ms(statistics.median(each))}, least {ms(min(each))}, most {ms(max(each))}")
    memory = [private_bytes(copy.pid) for copy in copies]
    print(
        f"  its own memory, once it can run code: p50 {statistics.median(memory) / 1e6:.2f} MB, most {max(memory) / 1e6:.2f} MB"
    )
    for name, times in copying.parts.items():
        print(f"    {name}: p50 {ms(statistics.median(times))}, least {ms(min(times))}")
    return copying, copies


def try_out(what: str, is_so: bool) -> None:
    print(f"  {'yes' if is_so else 'NO '} {what}")
    if not is_so:
        FAILURES.append(what)


FAILURES: list[str] = []


def look_at_copies(copying: Copying, copies: list[Copy], want: str) -> None:
    """Tries what copies have, and what they can do to each other. Their guest has ended."""
    print("Exactness")
    a, b = copies[0], copies[1]
    seen = [copy.run(LOOK) for copy in copies]
    try_out(f"each goes on where the guest was: {want}", all(each == want for each in seen))
    a.run("file.seek(0); file.write('changed'); file.flush(); open('/tmp/left', 'w').close()")
    look = "print(open('file.txt').read(), __import__('os').path.exists('/tmp/left'))"
    original = Path(f"/proc/{copying.paused.pid}/root", "workspace/file.txt").read_text()
    try_out("a change of files is seen by no other", [b.run(look), original] == ["hello world False", "hello world"])
    print("Walls of a copy")
    pids = "import os\nprint(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))"
    try_out("it sees no process but its own", a.run(pids) == "[1]")
    found = [a.run(KILL.format(pid)) for pid in (b.pid, nested_pid(b.pid), copying.paused.pid, copying.stands_over)]
    try_out("it cannot signal the others", found == ["ProcessLookupError"] * 4)
    calls = "(272, 0x10000000), (308, 0, 0), (165, b'a', b'/tmp', b'tmpfs', 0, 0), (101, 16, 1)"
    tried = a.run(CALLS + f"print(*(tried(*arguments) for arguments in ({calls})))")
    try_out("it makes and enters no namespace, mounts nothing and traces nobody", tried.split() == ["EPERM"] * 4)
    for path, error in (("/sys/fs/cgroup/pids/tasks", "FileNotFoundError"), ("/usr/left", "OSError")):
        try_out(f"it cannot write to {path}", a.run(OPEN.format(path, "w")) in (error, "PermissionError"))
    others = {copying.paused.pid, *children_of(copying.stands_over), copying.stands_over} - {a.pid}
    theirs = {link for pid in others for link in links_of(pid).values() if link.startswith(("pipe", "socket"))}
    common = theirs & {*links_of(a.pid).values()}
    try_out("it shares no pipe and no socket with the others", not common)
    with suppress(EOFError, OSError):
        a.run("os._exit(1)")
    try_out("the others live on after its end", b.run("print(secret)") == "b'the secret of this copy'")


def end_guest(copying: Copying, copies: list[Copy]) -> None:
    """Ends all that is in the guest's namespaces, but its copies, the paused copy and what stands over them."""
    kept = {copying.paused.pid, *(copy.pid for copy in copies)}
    for pid in children_of(copying.stands_over):
        if pid not in kept:
            os.kill(pid, 9)


def look_at_guest(guest: Guest) -> None:
    """Shows what a guest can do to its copies, whose namespaces are below its own."""
    print("Why the guest itself has to become a copy")
    copying = Copying(Checkpoint(guest), guest, 1)
    copy = copying.make()
    copy.wake()
    look = f"import os\nvictim = {nested_pid(copy.pid)}\nprint(os.path.isdir(f'/proc/{{victim}}'))\n" + KILL.format(
        "victim"
    )
    look += "".join(
        "\n" + OPEN.format(f"/proc/{pid}/mem", "r") for pid in (nested_pid(copy.pid), nested_pid(copying.paused.pid))
    )
    sees, kills, reads, reads_paused = guest.run(look).split()
    try_out("the guest sees its copies, and can signal them", (sees, kills) == ("True", "done"))
    print(f"      the guest opens the memory of a copy: {reads}; of the paused copy: {reads_paused}")
    try_out("the guest ends them after its next cell, as processes that the cell has left", has_ended(copy.pid))
    print("A paused copy under the eyes of the host")
    another = Copy(guest, 2)
    try:
        copying.order(another, ALLOWED - {"prctl"})
    except ChildProcessError as error:
        print(f"      {error}")
    try_out("a call that no fork needs ends it before the call", has_ended(copying.paused.pid))


def has_ended(pid: int) -> bool:
    """Returns true when a process ends within a second."""
    try:
        return bool(select.select([os.pidfd_open(pid)], [], [], 1)[0])
    except ProcessLookupError:
        return True


def children_of(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nested_pid(pid: int) -> int:
    """The number by which the guest knows a process of a copy."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    numbers = next(line for line in lines if line.startswith("NSpid")).split()[1:]
    return int(numbers[1])


def look_at_kernel() -> None:
    """Shows why a host without root needs another way."""
    child = os.fork()
    if child == 0:
        os.setresuid(USER, USER, USER)
        try:
            victim = os.fork()
            if victim == 0:
                time.sleep(60)
            with suppress(PermissionError):
                Traced.seize(victim, SUSPEND_FILTER)
                os._exit(1)
        finally:
            os.kill(victim, 9)
        os._exit(0)
    try_out("a host without root may not suspend a filter", os.waitpid(child, 0)[1] == 0)


def look_at_siblings() -> None:
    """Shows what a Landlock domain for each copy would hold where namespaces cannot be had: on a host without root."""
    print("Copies in one namespace, each in a Landlock domain of its own, and their guest in the domain around these")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            os.chdir("/")
            call("prctl", _DUMPABLE, 1)  # as after an exec
            landlock.confine()
            others = [_confined_again(), _confined_again()]
            guest = os.getpid()
            reads, writes = os.pipe()
            if os.fork() == 0:
                landlock.confine()
                os.write(writes, json.dumps([_reach(pid) for pid in (others[0], guest)]).encode())
                os._exit(0)
            tried = [*json.loads(os.read(reads, 4096)), _reach(others[0])]
            os.write(writer, json.dumps(tried).encode())
            for pid in others:
                os.kill(pid, 9)
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="ascii") as answer:
        sibling, guest, copy = json.loads(answer.read())
    os.waitpid(child, 0)
    print(f"      signal and memory: a copy at its sibling {sibling}, at the guest {guest}; the guest at a copy {copy}")
    nothing = ["PermissionError"] * 2
    scopes = landlock.version() >= 6
    try_out("a copy reaches neither its sibling nor the guest", not scopes or sibling == guest == nothing)
    try_out("the guest reaches its copies", copy == ["done", "done"])


def _confined_again() -> int:
    """Forks a process that confines itself once more, and waits. Returns its number once it is confined."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        landlock.confine()
        os.write(writer, b"!")
        time.sleep(600)
        os._exit(0)
    os.read(reader, 1)
    return pid


def _reach(pid: int) -> list[str]:
    """Tries to signal a process, and to open its memory."""
    came_to = []
    for attempt in (lambda: os.kill(pid, 0), lambda: open(f"/proc/{pid}/mem", "rb").close()):
        try:
            attempt()
            came_to.append("done")
        except OSError as error:
            came_to.append(type(error).__name__)
    return came_to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--copies", type=int, default=100, help="2 to 120")
    parser.add_argument("--packages", type=Path, help="a folder with pandas, for the Python in /usr/bin")
    options = parser.parse_args()
    packages = options.packages and options.packages.resolve()
    make_groups()
    pids: list[int] = []
    try:
        with Guest(packages) as guest:
            guest.init()
            total = guest.run(STATE + "print(round(frame.a.sum(), 6))")
            copying, copies = measure(guest, options.copies)
            pids = [copy.pid for copy in copies]
            end_guest(copying, copies)
            look_at_copies(copying, copies, f"2 2 world {round(random.Random(7).random(), 6)} {total} 11")
        clean_up()
        make_groups()
        with Guest(packages) as guest:
            guest.init()
            look_at_guest(guest)
        look_at_kernel()
        look_at_siblings()
    finally:
        clean_up()
    print("Afterwards")
    try_out("nothing is left", not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    sys.exit(f"{len(FAILURES)} failed: {FAILURES}" if FAILURES else 0)


def make_groups() -> None:
    for kind in GROUPS:
        os.mkdir(f"/sys/fs/cgroup/{kind}/{GROUP}")


def clean_up() -> None:
    """Removes the control groups, once the processes in them are gone: they end with the guest's first process."""
    for kind in GROUPS:
        top = Path(f"/sys/fs/cgroup/{kind}/{GROUP}")
        for group in [*(path for path in top.iterdir() if path.is_dir()), top]:
            deadline = time.monotonic() + 10
            while True:
                try:
                    group.rmdir()
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)


if __name__ == "__main__":
    main()
