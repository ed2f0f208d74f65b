"""Copies of a native guest that run code which nobody has asked for yet: forks of its process (`src/session/ahead.rs`).

The host asks for one on a control socket of type SOCK_SEQPACKET, between two turns. The packet is `{"epoch": n}` and
comes with the copy's channel, its own control socket, and a socket on which there is a byte when its code has come. The
answer is `{"forked": n}` with pidfds of the copy and of the guest itself, or `{"failed": why}`.

The fork is the system's alone: nothing is done that Python does at a fork, such as seeding `random` anew, because the
copy may become the guest. So there must be one thread only, and nothing that a fork does not copy or would share. The
copy has the same descriptors, by number, and what it does to the world waits (`speculate/fence.py`). What tells the two
apart all the same is the number of the process and the time that it has computed: when code has asked for either, there
are no copies any more.

Guests come and go while the process that the host has started remains (`stand_over`): it waits for the last one.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
from _thread import get_native_id
from contextlib import suppress
from os import WNOHANG, close, fstat, getpid, listdir
from re import compile as to_pattern
from socket import AF_UNIX, MSG_DONTWAIT, SOCK_SEQPACKET, recv_fds, send_fds, socketpair
from socket import socket as Socket
from struct import Struct
from time import monotonic, sleep
from typing import TYPE_CHECKING, NoReturn

from sandglass.pipes import move_up
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.fence import Fence, is_possible
from sandglass.strays import adopt_orphans

if TYPE_CHECKING:
    from collections.abc import Collection

_PACKET_BYTES = 4096
_FDS = 3
_MOST_REASON_CHARS = 500
#: How long threads of ours may take to be gone.
_ALONE_SECONDS = 0.2
#: Of all processes, a copy is the first that the system ends when there is no memory left.
_OOM_SCORE = "1000"
_PID = Struct("<q")
#: Whose numbers are kept; most of them have been thrown away.
_MOST_COPIES = 64
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
#: Code that may know which process it runs in, or for how long that has computed; or that can do anything at all.
_TELLING = to_pattern(
    r"\w*pid\b|_time_ns\b|process_time|thread_time|getrusage|cpu_times|\btimes\b|native_id|psutil|multiprocessing|ctypes"
)
_fork = ctypes.PyDLL(None).fork  # with the interpreter's lock, and none of its own measures


class Refused(Exception):
    """There can be no copy, and why."""


class Forks:
    """Forks the process of a guest when the host asks for it."""

    def __init__(self, control: int, channel: int, heirs: int) -> None:
        """Of the guest whose channel is that descriptor; `heirs` is what `stand_over` has returned."""
        self._control = Socket(fileno=move_up(control))
        self._channel = channel
        self._heirs = heirs
        self._copies: set[int] = set()
        #: Whether the host will ask for none any more.
        self.is_over = False
        self._telling = ""
        self._works: bool | None = None

    def fileno(self) -> int:
        """Where the host's wishes arrive."""
        return self._control.fileno()

    def note(self, code: str) -> None:
        """A cell has this code."""
        if not self._telling and (found := _TELLING.search(code)):
            self._telling = found[0]

    def fork(self, shared: Collection[int]) -> tuple[int, Fence] | None:
        """Does what the host wants; the copy returns its epoch, and what keeps it from the world.

        `shared` are descriptors that nothing else may stand for. To be called where there is one thread only.
        """
        try:
            data, fds, _, _ = recv_fds(self._control, _PACKET_BYTES, _FDS, MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if not data:
            self.is_over = True
            return None
        try:
            epoch = _epoch_of(data)
            if len(fds) != _FDS:
                raise Refused("a packet has to come with three descriptors")
            self._check(shared)
            pid = _fork()
            if pid == 0:
                try:
                    return epoch, self._become_copy(fds)
                except BaseException:
                    os._exit(1)  # the host sees that its channel is closed
            if pid < 0:
                raise Refused("the system makes no more processes")
            self._copies.add(pid)
            os.write(self._heirs, _PID.pack(pid))
            self._answer({"forked": epoch}, [os.pidfd_open(pid), os.pidfd_open(getpid())])
        except (Refused, OSError) as error:
            self._answer({"failed": str(error)[:_MOST_REASON_CHARS]}, [])
        finally:
            for fd in fds:
                with suppress(OSError):
                    close(fd)
        return None

    def _become_copy(self, fds: list[int]) -> Fence:
        channel, control, release = fds
        self._copies.clear()
        os.dup2(channel, self._channel, inheritable=False)
        os.dup2(control, self._control.fileno(), inheritable=False)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write(_OOM_SCORE)
        adopt_orphans()
        fence = Fence(self._channel, move_up(release))
        fds.clear()
        for fd in (channel, control):
            close(fd)
        return fence

    def _answer(self, message: dict[str, object], fds: list[int]) -> None:
        send_fds(self._control, [json.dumps(message).encode()], fds)
        for fd in fds:
            close(fd)

    def _check(self, shared: Collection[int]) -> None:
        """Raises Refused when a fork would not be all that this process is, or would share something with it."""
        if self._works is None:
            self._works = is_possible() and _try_out()
        if not self._works:
            raise Refused("this system cannot hold up the system calls of a thread")
        if self._telling:
            raise Refused(f"code may know the number of its process, or its time: {self._telling}")
        deadline = monotonic() + _ALONE_SECONDS
        while len(listdir("/proc/self/task")) > 1:
            if monotonic() > deadline:
                raise Refused("there are threads")
            sleep(0.0005)
        if any(signal.getitimer(timer)[0] for timer in _TIMERS):
            raise Refused("a timer is set")
        if self._children() - self._copies:
            raise Refused("there are child processes")
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            if any(line.split(" ", 2)[1] in ("rw-s", "-w-s", "rwxs") for line in file):
                raise Refused("there is memory that may be others'")
        own = {_identity(fd) for fd in shared}
        others = {int(name) for name in listdir("/proc/self/fd")} - {*shared}
        if any(_identity(fd) in own for fd in others):
            raise Refused("a descriptor stands for the sandbox's own")

    def _children(self) -> set[int]:
        for pid in [*self._copies]:
            try:
                if os.waitpid(pid, WNOHANG)[0]:
                    self._copies.discard(pid)
            except ChildProcessError:
                self._copies.discard(pid)
        with open(f"/proc/self/task/{get_native_id()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}


def _epoch_of(packet: bytes) -> int:
    try:
        order = json.loads(packet)
        return int(order["epoch"])
    except (ValueError, TypeError, KeyError):
        raise Refused("a packet has to be a JSON object with an epoch") from None


def _identity(fd: int) -> tuple[int, int]:
    try:
        status = fstat(fd)
    except OSError:  # that of the folder just listed
        return -1, -1
    return status.st_dev, status.st_ino


def _try_out() -> bool:
    """Whether the fence can be put up here: tried in a process of its own, which it would change for good."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    with ours, theirs:
        pid = _fork()
        if pid == 0:
            status = 1
            try:
                fence = Fence(ours.fileno(), theirs.fileno())
                fence.enclose()
                fence.open_up()
                fence.remove()
                status = 0
            finally:
                os._exit(status)
        return pid > 0 and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def stand_over() -> int:
    """Forks. The new process returns, to be the guest; this one waits until the last of it and its copies has ended.

    What is returned is where the guest tells of its copies: a descriptor.
    """
    adopt_orphans()
    told, tells = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    guest = os.fork()
    if guest:
        os.closerange(3, told)
        os.closerange(told + 1, 64)
        _wait_for(guest, told)
    close(told)
    return move_up(tells)


def _wait_for(guest: int, told: int) -> NoReturn:
    ended: dict[int, int] = {}
    copies: list[int] = []
    while True:
        while guest not in ended:
            pid, status = os.waitpid(-1, 0)
            ended[pid] = status
        with suppress(BlockingIOError):
            while data := os.read(told, _PID.size):
                copies.append(_PID.unpack(data)[0])
        # The guest's copies are this process's children now, and theirs may be soon. What else it has left ends with
        # the boundary.
        alive = [pid for pid in copies if _is_child(pid, ended)]
        if not alive:
            break
        guest = alive[-1]
        copies = [pid for pid in copies if pid not in ended][-_MOST_COPIES:]
    code = os.waitstatus_to_exitcode(ended[guest])
    if code < 0 and getpid() != 1:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _is_child(pid: int, ended: dict[int, int]) -> bool:
    """Whether a process is a child of this one that lives."""
    try:
        found, status = os.waitpid(pid, WNOHANG)
    except ChildProcessError:
        return False
    if found:
        ended[pid] = status
    return not found
