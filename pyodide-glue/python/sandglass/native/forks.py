"""Forks shadows of a native guest: copies of its process that run code which has not been asked for yet.

The host asks for a copy on a control socket of type SOCK_SEQPACKET, between two exchanges. The packet is `{"epoch":
n}`. Three descriptors come with it: the copy's channel, the copy's own control socket, and a socket that gets a byte
when the copy is promoted. The answer is `{"forked": n}` with pidfds of the copy and of the guest, or `{"failed": why,
"epoch": n}`.
With `"pause":true` and only the control socket, the copy is a checkpoint (`paused.py`). `"room"` is then the bytes of
memory that the guest may take ahead of its next cell.

The fork is the bare system call. Python's own steps at a fork are left out, such as seeding `random` anew, because the
copy may become the guest. So the guest may have one thread only, and nothing that a fork does not copy or would share.
The copy has the same descriptors under the same numbers, and its effects on the world wait (`ahead/syscall_gate.py`).
Only the process's number and its computing time differ. Once code has asked for either, there are no more copies.

The process that the host has started (`stand_over`) stays while guests replace each other, and waits for the last one.
"""

# Decisions: docs/internals/running-ahead.md.

from __future__ import annotations

import ctypes
import os
import signal
from _signal import ITIMER_PROF, ITIMER_REAL, ITIMER_VIRTUAL, SIG_DFL, SIG_IGN, SIGCHLD, getitimer, getsignal  # type: ignore[import-not-found]
from _socket import AF_UNIX, MSG_DONTWAIT, SOCK_SEQPACKET, socketpair
from _socket import socket as Socket
from _thread import get_native_id
from contextlib import suppress
from os import (
    O_CLOEXEC,
    O_RDWR,
    WNOHANG,
    _exit,
    close,
    dup2,
    fstat,
    getpid,
    listdir,
    pidfd_open,
    waitpid,
    waitstatus_to_exitcode,
)
from os import open as open_fd
from os import read as read_fd
from os import write as system_write
from re import compile as to_pattern
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NoReturn

from sandglass.ahead.syscall_gate import SyscallGate, is_possible
from sandglass.native.hot_pages import HotPages, lines_of_maps
from sandglass.native.leftovers import PausedCopies, adopt_orphans
from sandglass.native.paused import (
    PID,
    Refused,
    answer,
    hide,
    offsets_of,
    order_of,
    pause,
    pids_in,
    receive,
    refusal,
    show,
)
from sandglass.native.pipes import move_up
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_FDS = 3
#: The descriptors that a paused copy opens for an order: two that come with it, and two of processes.
_FDS_OF_AN_ORDER = 4
#: The longest wait for the runtime's own threads to end.
_ALONE_SECONDS = 0.2
#: The folder whose shared mappings are the C library's, and are only read.
_LIBRARIES = b" /usr/lib/"
#: Makes a copy the first process that the system kills when memory runs out.
_OOM_SCORE = b"1000"
#: The number of reported copies from which on those that have ended are forgotten.
_MOST_COPIES = 64
_TIMERS = (ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF)
#: Code that may learn its process's number or computing time, or that can do anything at all.
_TELLING = to_pattern(
    r"\w*pid\b|/proc\b|CPUTIME|cpuclock|_time_ns\b|process_time|thread_time|getrusage|cpu_times|\btimes\b|native_id|psutil|multiprocessing|ctypes"
)
_fork = ctypes.PyDLL(None).fork  # keeps the interpreter's lock, and runs no fork handlers


class Forks:
    """Forks the guest's process when the host asks for it.

    By then, cells may have removed anything from any module, so all functions are imported before. Every failure is a
    reason to refuse, and never ends the guest.
    """

    def __init__(self, control: int, channel: int, heirs: int) -> None:
        """`channel` is the descriptor of the guest's channel; `heirs` is what `stand_over` has returned."""
        self._control = Socket(fileno=move_up(control))
        self._channel = channel
        self._heirs = heirs
        self._copies: set[int] = set()
        #: The paused copies that are the session's checkpoints.
        self.paused = PausedCopies()
        self.hot_pages = HotPages()
        self._oom, self._oom_score = -1, b""  # the file of the process's OOM score, and the score before
        #: True when the host will ask for no more copies.
        self.is_over = False
        #: Descriptors that were here before any code of the user's: what the host's own starter left open.
        self._given = {(fd, _identity(fd)) for fd in map(int, listdir("/proc/self/fd"))}
        self._telling = ""
        self._works: bool | None = None

    def fileno(self) -> int:
        """The descriptor on which the host asks for copies."""
        return self._control.fileno()

    def note(self, code: str) -> None:
        """Takes note of a cell's code."""
        if not self._telling and (found := _TELLING.search(code)):
            self._telling = found[0]

    def fork(self, shared: Collection[int], why_not: Callable[[bool], str]) -> tuple[int, SyscallGate | None] | None:
        """Answers the host. In the copy, returns its epoch and its gate. A copy of a paused copy has no gate.

        `why_not` returns a reason to refuse a copy; its argument is true for a paused copy. No other descriptor may
        refer to the files of `shared`. Call this while there is one thread only.
        """
        fds: list[int] = []
        epoch = None
        try:
            data = self._receive(fds)
            if not data:
                self.is_over = True
                return None
            order = order_of(data)
            epoch, pauses = order["epoch"], order.get("pause") is True
            if len(fds) != (1 if pauses else _FDS):
                raise Refused("a packet has to come with its descriptors")
            if why := why_not(pauses):
                raise Refused(why)
            if pauses:
                made = self._pause(shared, fds[0], order.get("room"))
                if not isinstance(made, int):
                    fds.clear()
                    return made["epoch"], None
                system_write(self._heirs, PID.pack(made))
                self.paused.note(made)
                try:
                    process = pidfd_open(made)
                except ProcessLookupError:
                    raise Refused("the copy ended at once") from None
                answer(self._control, f'{{"forked":{epoch}}}', [process, pidfd_open(getpid())])
                return None
            self._check(shared)
            pid = _fork()
            if pid == 0:
                try:
                    return epoch, self._become_copy(fds)
                except BaseException:
                    _exit(1)  # the host sees the closed channel
            if pid < 0:
                raise Refused("the system makes no more processes")
            self._copies.add(pid)
            system_write(self._heirs, PID.pack(pid))
            answer(self._control, f'{{"forked":{epoch}}}', [pidfd_open(pid), pidfd_open(getpid())])
        except BlockingIOError:
            return None
        except BaseException as error:
            answer(self._control, refusal(error, epoch), [])
        finally:
            for fd in fds:
                with suppress(OSError):
                    close(fd)
        return None

    def _become_copy(self, fds: list[int]) -> SyscallGate:
        channel, control, release = fds
        self._copies.clear()
        dup2(channel, self._channel, False)
        dup2(control, self._control.fileno(), False)
        # Kept open until the promotion, which another thread handles while code runs. If that thread opened the file
        # then, it could take the number of a descriptor that the code opens.
        with suppress(OSError):
            self._oom = move_up(open_fd("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC))
            self._oom_score = read_fd(self._oom, 16)
            system_write(self._oom, _OOM_SCORE)
        adopt_orphans()
        gate = SyscallGate(self._channel, move_up(release))
        fds.clear()
        for fd in (channel, control):
            close(fd)
        return gate

    def promoted(self) -> None:
        """Hears that the copy was promoted."""
        if self._oom >= 0:
            with suppress(OSError):
                system_write(self._oom, self._oom_score)
            with suppress(OSError):
                close(self._oom)
            self._oom = -1

    def _receive(self, fds: list[int]) -> bytes:
        return receive(self._control, fds, _FDS, MSG_DONTWAIT)

    def _pause(self, shared: Collection[int], control: int, room: object) -> int | dict[str, Any]:
        """Makes a paused copy: see `pause`."""
        maps = self._check_likeness(shared)
        _has_free(_FDS_OF_AN_ORDER)
        own = {*shared, self._control.fileno(), self._heirs, control}
        others = {int(name) for name in listdir("/proc/self/fd")} - own
        offsets = offsets_of([fd for fd in others if (fd, _identity(fd)) not in self._given])
        self.hot_pages.find(maps, room if isinstance(room, int) else None)
        made = pause(self._control, self._channel, self._heirs, control, offsets)
        if not isinstance(made, int):
            self._copies.clear()
            self.paused.set(pids_in(made))
        return made

    def _check(self, shared: Collection[int]) -> None:
        """Raises Refused when a fork would lack something of this process, or share something with it."""
        if self._works is None:
            self._works = is_possible() and _try_out()
        if not self._works:
            raise Refused("this system cannot hold up the system calls of a thread")
        if self._telling:
            raise Refused(f"code may know the number of its process, or its time: {self._telling}")
        if getsignal(SIGCHLD) not in (SIG_DFL, SIG_IGN):
            raise Refused("code hears of the end of child processes, as which copies are made")
        self._check_likeness(shared)

    def _check_likeness(self, shared: Collection[int]) -> list[bytes]:
        """Raises Refused when a copy would not be like this process, whatever the copy is for.

        Returns the lines of /proc/self/maps: hundreds, which take the kernel long.
        """
        deadline = monotonic() + _ALONE_SECONDS
        while len(listdir("/proc/self/task")) > 1:
            if monotonic() > deadline:
                raise Refused("there are threads")
            sleep(0.0005)
        if any(getitimer(timer)[0] for timer in _TIMERS):
            raise Refused("a timer is set")
        if self._children() - self._copies:
            raise Refused("there are child processes")
        most = getrlimit(RLIMIT_NOFILE)[0]
        if most != RLIM_INFINITY and max(self._channel, self._control.fileno(), *shared) >= most:
            raise Refused(f"only {most} files may be open, and descriptors of the sandbox's own have higher numbers")
        maps = lines_of_maps()
        if any(line.split(b" ", 2)[1].endswith(b"s") and _LIBRARIES not in line for line in maps):
            raise Refused("there is memory that may be others'")
        own = {_identity(fd) for fd in shared}
        others = {int(name) for name in listdir("/proc/self/fd")} - {*shared}
        if any(_identity(fd) in own for fd in others):
            raise Refused("a descriptor stands for the sandbox's own")
        for fd in others:
            with suppress(FileNotFoundError), open(f"/proc/self/fdinfo/{fd}", "rb") as info:
                if b"\nlock:" in info.read():
                    raise Refused("a file is locked, which a copy would not have")
        return maps

    def take_ends(self) -> None:
        """Reaps copies that were given up."""
        for pid in [*self._copies]:
            try:
                if waitpid(pid, WNOHANG)[0]:
                    self._copies.discard(pid)
            except ChildProcessError:
                self._copies.discard(pid)

    def _children(self) -> set[int]:
        self.take_ends()
        with open(f"/proc/self/task/{get_native_id()}/children", encoding="ascii") as file:
            return {int(pid) for pid in file.read().split()}


def _identity(fd: int) -> tuple[int, int]:
    try:
        status = fstat(fd)
    except OSError:  # the descriptor of the folder that was just listed
        return -1, -1
    return status.st_dev, status.st_ino


def _has_free(count: int) -> None:
    """Raises Refused when a copy could not open so many descriptors."""
    free: list[int] = []
    try:
        for _ in range(count):
            free.append(pidfd_open(getpid()))
    except OSError:
        raise Refused(f"fewer than {count} descriptors are free") from None
    finally:
        for fd in free:
            close(fd)


def _try_out() -> bool:
    """Returns true when the gate works here.

    Tries it in a process of its own, since a gate changes a process for good.
    """
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    pid = _fork()
    if pid == 0:
        status = 1
        try:
            gate = SyscallGate(ours.fileno(), theirs.fileno())
            gate.enclose()
            gate.release()
            gate.remove()
            status = 0
        finally:
            _exit(status)
    ours.close()
    theirs.close()
    return pid > 0 and waitstatus_to_exitcode(waitpid(pid, 0)[1]) == 0


def stand_over() -> int:
    """Forks. The new process returns and becomes the guest; this one waits for the end of the guest and its copies.

    Returns the descriptor on which the guest reports its copies. The guest cannot reach the memory of the process that
    waits: code that it put there would outlive the guest.
    """
    adopt_orphans()
    told, tells = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    shown = hide()
    guest = os.fork()
    if guest:
        os.closerange(3, told)
        os.closerange(told + 1, 64)
        _wait_for(guest, told)
    show(shown)
    close(told)
    return move_up(tells)


def _wait_for(guest: int, told: int) -> NoReturn:
    reported: list[int] = []  # copies that may be children of other processes
    alive = [guest]
    code = -signal.SIGKILL
    while alive:
        while alive:
            pid, status = os.waitpid(-1, 0)
            if pid in alive or pid in reported:
                (alive if pid in alive else reported).remove(pid)
                # A host kills a guest that a copy replaces, and copies that it does not need. Such a copy may still be
                # dying when the guest has ended by itself, so only the guest's exit status is reported.
                if (its_code := waitstatus_to_exitcode(status)) != -signal.SIGKILL:
                    code = its_code
            with suppress(BlockingIOError):
                while data := os.read(told, PID.size):
                    reported.append(PID.unpack(data)[0])
            if len(reported) > _MOST_COPIES:
                reported = [pid for pid in reported if _exists(pid)]
        # Copies of a guest that has ended are children of this process now, and paused copies always are. Everything
        # else that the guest left ends with the boundary.
        for pid in [*reported]:
            try:
                found, status = os.waitpid(pid, WNOHANG)
            except ChildProcessError:  # its parent lives
                continue
            reported.remove(pid)
            if not found:
                alive.append(pid)
            elif (its_code := waitstatus_to_exitcode(status)) != -signal.SIGKILL:
                code = its_code
    if code < 0 and getpid() != 1:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
