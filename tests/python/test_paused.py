"""Checkpoints of a native guest: paused copies of its process."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from native_host import PATIENCE_SECONDS, Host

pytestmark = pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="for two kinds of machines")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path, forks=True) as host:
        host.init()
        yield host


def ordered(control: socket.socket, order: dict[str, Any], *ends: socket.socket) -> list[int]:
    """Gives an order with descriptors. Returns the pidfds of the answer."""
    socket.send_fds(control, [json.dumps(order).encode()], [end.fileno() for end in ends])
    control.settimeout(PATIENCE_SECONDS)
    data, pidfds, _, _ = socket.recv_fds(control, 4096, 2)
    assert json.loads(data) == {"forked": order["epoch"]}, data
    return pidfds


class Checkpoint:
    """A paused copy of a host's guest."""

    def __init__(self, of: Host) -> None:
        self.of = of
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control:
            self.pidfds = ordered(of.control, {"epoch": of.epoch + 1, "pause": True}, control)
        self.control.settimeout(PATIENCE_SECONDS)
        assert json.loads(self.control.recv(4096)) == {"waits": True}

    @property
    def pid(self) -> int:
        with open(f"/proc/self/fdinfo/{self.pidfds[0]}", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))

    def has_ended(self, within: float = 0) -> bool:
        return bool(select.select([self.pidfds[0]], [], [], within)[0])

    def revive(self, *others: Checkpoint) -> Revived:
        return Revived(self, [checkpoint.pid for checkpoint in (self, *others)])


class Revived(Host):
    """Speaks to a guest that a paused copy has made."""

    def __init__(self, checkpoint: Checkpoint, paused: list[int]) -> None:
        of = checkpoint.of
        self.epoch = of.epoch + 1000 + checkpoint.pid
        self.exchange, self.execution, self.credits = of.exchange + 100, of.execution, of.credits
        self.answer, self.process = of.answer, of.process
        self.socket, channel = socket.socketpair()
        self.socket.settimeout(PATIENCE_SECONDS)
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with channel, control:
            self.pidfds = ordered(checkpoint.control, {"epoch": self.epoch, "paused": paused}, channel, control)
        self.init()
        event, _ = self.ask("restore", checkpoint=1)
        assert event["type"] == "restored" and event["lost"] == []

    def __exit__(self, _type: type | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        self.socket.close()
        self.control.close()
        self.end_it()

    def end_it(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfds[0], signal.SIGKILL)


def end_guest(checkpoint: Checkpoint) -> None:
    signal.pidfd_send_signal(checkpoint.pidfds[1], signal.SIGKILL)


def refused(host: Host) -> str:
    """The reason why there is no checkpoint now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        socket.send_fds(host.control, [b'{"epoch":7,"pause":true}'], [theirs.fileno()])
        host.control.settimeout(PATIENCE_SECONDS)
        answer = json.loads(host.control.recv(4096))
    assert answer.keys() == {"failed", "epoch"}, answer
    return str(answer["failed"])


def test_a_state_comes_back_exactly_and_as_often_as_wanted(host: Host) -> None:
    host.ok(
        "import random; random.seed(7); x = [1]; y = x\ndef count():\n    n = 0\n    while True: n += 1; yield n\nc = count(); next(c)"
    )
    checkpoint = Checkpoint(host)
    assert host.ok("x.append(random.random()); next(c); print(len(x))").stdout == "2\n", "the guest goes on"
    end_guest(checkpoint)
    for _ in range(3):
        with checkpoint.revive() as guest:
            seen = guest.ok("x.append(random.random()); print(x is y, x == [1, random.Random(7).random()], next(c))")
            assert seen.stdout == "True True 2\n"
            assert guest.ok("import subprocess; print(subprocess.run(['echo', 'a'], capture_output=True).stdout)")
            assert guest.ok("import os; os.system('echo child'); print(os.getpid() > 0)").stdout == "child\nTrue\n"


def test_a_guest_that_came_back_has_checkpoints_of_its_own(host: Host) -> None:
    host.ok("x = [1]")
    first = Checkpoint(host)
    end_guest(first)
    with first.revive() as guest:
        guest.ok("x.append(2)")
        second = Checkpoint(guest)
        guest.ok("x.append(3)")
        guest.end_it()
        with second.revive(first) as again:
            assert again.ok("print(x)").stdout == "[1, 2]\n"
        with first.revive(second) as again:
            assert again.ok("print(x)").stdout == "[1]\n"


def test_all_end_with_the_last_of_them(host: Host) -> None:
    checkpoints = [Checkpoint(host) for _ in range(3)]
    end_guest(checkpoints[0])
    for checkpoint in checkpoints:
        assert host.process.poll() is None
        checkpoint.control.close()  # as when the host is gone
        assert checkpoint.has_ended(PATIENCE_SECONDS)
    assert host.process.wait(PATIENCE_SECONDS) != 0


def test_the_exit_status_is_that_of_the_last_guest(host: Host) -> None:
    checkpoint = Checkpoint(host)
    end_guest(checkpoint)
    with checkpoint.revive() as guest:
        checkpoint.control.close()
        assert checkpoint.has_ended(PATIENCE_SECONDS)
        guest.begin("import os; os._exit(7)")
        with pytest.raises(EOFError):
            guest.end()
        assert host.process.wait(PATIENCE_SECONDS) == 7


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import threading, time\nt = threading.Thread(target=time.sleep, args=(3600,), daemon=True); t.start()",
            "threads",
        ),
        ("import socket\ns = socket.socket()", "a socket is open"),
        ("import os\nends = os.pipe()", "a pipe is open"),
        ("import os\nf = os.memfd_create('x')", "memfd"),
        ("import select\ne = select.epoll()", "eventpoll"),
        ("import mmap\nm = mmap.mmap(-1, 4096)", "memory that may be others'"),
        ("import fcntl\nf = open('locked', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)", "locked"),
    ],
)
def test_what_a_copy_would_lack_or_share_is_named(host: Host, code: str, why: str) -> None:
    host.ok(code)
    if why != "threads":  # a cell's threads are ended with it
        assert why in refused(host)
    names = ("s.close()", "[os.close(end) for end in ends]", "os.close(f)", "e.close()", "m.close()")
    host.ok(f"for code in {names!r}:\n    try: exec(code)\n    except Exception: pass")


def test_open_files_are_where_they_were(host: Host, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("one\ntwo\nthree\n")
    host.ok("import os; f = os.open('lines', os.O_RDONLY); a = os.read(f, 4)")
    checkpoint = Checkpoint(host)
    assert host.ok("print(os.read(f, 4))").stdout == "b'two\\n'\n"
    end_guest(checkpoint)
    for _ in range(2):
        with checkpoint.revive() as guest:
            assert guest.ok("print(a, os.read(f, 4))").stdout == "b'one\\n' b'two\\n'\n"


def test_code_neither_reads_nor_changes_a_checkpoint(host: Host) -> None:
    host.ok("import os, signal\nheard = []\nsignal.signal(signal.SIGUSR1, lambda *_: heard.append(1))")
    checkpoint = Checkpoint(host)
    pid = checkpoint.pid
    if os.geteuid():
        for name in ("mem", "environ", "maps"):
            assert "PermissionError" in host.run(f"open('/proc/{pid}/{name}', 'rb').read(1)").traceback
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert os.stat(f"/proc/{pid}/mem").st_uid == 0, "as for any process that may not be read"
    assert int(status["SigBlk"], 16) & 1 << signal.SIGUSR1 - 1
    host.ok(f"for n in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT): os.kill({pid}, n)")
    assert not checkpoint.has_ended()
    assert host.ok("print(os.stat('/proc/self/mem').st_uid == os.getuid(), heard)").stdout == "True []\n"
    end_guest(checkpoint)
    with checkpoint.revive() as guest:
        assert guest.ok("print(heard)").stdout == "[]\n"
        assert guest.ok("os.kill(os.getpid(), signal.SIGUSR1); print(heard)").stdout == "[1]\n", (
            "signals are heard again"
        )
        guest.ok(f"os.kill({pid}, signal.SIGKILL)")
        assert checkpoint.has_ended(PATIENCE_SECONDS), "it can only end them"


def test_a_checkpoint_is_nobodys_child(host: Host) -> None:
    checkpoint = Checkpoint(host)
    seen = host.run("import os\nos.wait()")
    assert "ChildProcessError" in seen.traceback, "it would wait for ever otherwise"
    assert host.ok("import subprocess\np = subprocess.Popen(['sleep', '3600'])").report["stopped"] is None
    assert not checkpoint.has_ended(), "what a cell leaves is ended, and checkpoints are not that"


def test_many_checkpoints_leave_nothing_behind(host: Host) -> None:
    host.ok("x = 1")
    before = len(os.listdir(f"/proc/{host.process.pid}/fd"))
    for _ in range(150):
        checkpoint = Checkpoint(host)
        checkpoint.control.close()
        for pidfd in checkpoint.pidfds:
            os.close(pidfd)
    assert host.ok("import os; print(x, len(os.listdir('/proc/self/fd')) < 40)").stdout == "1 True\n"
    assert len(os.listdir(f"/proc/{host.process.pid}/fd")) == before
