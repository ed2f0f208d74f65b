"""Ends the leftovers of a native guest's cell: threads, and child processes with all their descendants.

A thread can only be asked to end: an exception is raised in it, which a call into C does not notice. A thread that goes
on is named once, and has no part in later cells. Threads that libraries keep for themselves stay, such as idle workers
of a pool, because whatever they serve would hang without them.
"""

# Decisions: docs/internals/guests-on-hosts.md.

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from _thread import LockType
from contextlib import suppress
from os import CLD_EXITED, getpid, kill, listdir, waitid, waitpid
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from sandglass.native.bridge import STOPPING
from sandglass.runtime.output import printable
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import FrameType

_THREAD_SECONDS = 0.25
_PROCESS_SECONDS = 2.0
#: The time after which a thread is asked again that has caught the last exception and goes on.
_AGAIN_SECONDS = 0.05
#: The time after which a thread is asked again that handles the exception, and so may be about to end.
_HANDLER_SECONDS = 5.0
_MAX_NAME_CHARS = 100
_MOST_NAMED = 20
_MOST_CAUSES = 20
_PR_SET_CHILD_SUBREAPER = 36
_SIGKILL = 9
#: The process numbers that are tried where processes cannot be listed.
_MOST_PIDS = 1 << 16
#: The index of the number of threads among the fields of a process's status, from the state on.
_THREADS = 17
#: The index of the time of the process's start.
_STARTED = 19
_MOST_PAUSED = 64
_current_frames, _current_exceptions = sys._current_frames, sys._current_exceptions
_known_threads: dict[int, Any] = threading._active  # type: ignore[attr-defined]
_PLAIN_THREADS = (threading.Thread, threading.Timer)
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_EXIT = ctypes.py_object(SystemExit)
_ident = ctypes.c_ulong
_get_referrers = gc.get_referrers
_modules = sys.modules
_ANY, _ONE = os.P_ALL, os.P_PID
#: Waits for all children, also those whose end sends another signal than SIGCHLD, or none.
_WALL = 0x40000000 if sys.platform == "linux" else 0
_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT | _WALL
_NOW = os.WNOHANG | _WALL


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent has ended, if the kernel supports it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class PausedCopies:
    """The processes that are the session's checkpoints. They are no leftovers.

    A number may be given to another process later, so the time of the start counts as well.
    """

    def __init__(self) -> None:
        self._started: dict[int, str] = {}

    def note(self, pid: int) -> None:
        """Adds a process."""
        if len(self._started) >= _MOST_PAUSED:
            self.set([pid for pid in self._started if pid in self])
        if status := _status(pid):
            self._started[pid] = status[_STARTED]

    def set(self, pids: list[int]) -> None:
        """Replaces all by these processes."""
        self._started = {pid: status[_STARTED] for pid in pids if (status := _status(pid))}

    def __contains__(self, pid: int) -> bool:
        started = self._started.get(pid)
        return started is not None and (status := _status(pid)) is not None and status[_STARTED] == started


class Leftovers:
    """The threads and processes that cells left running. `end_waits` ends the waits of threads."""

    def __init__(self, ours: set[int], end_waits: Callable[[Collection[int]], object], all_processes: bool) -> None:
        self._ours = ours
        self._end_waits = end_waits
        self._all_processes = all_processes
        self._pid = getpid()
        #: The process that stands over this one, in the same namespace.
        self.spared = 0
        #: Reaps copies of this process. `forks.py` has started them.
        self.take_copies: Callable[[], object] = bool
        self.paused = PausedCopies()
        self._threads: dict[int, Any] = {}
        self._asked: dict[int, float] = {}
        self._told: set[tuple[int, int]] = set()

    def renew(self) -> None:
        """Takes the number of this process, in a copy of the guest."""
        self._pid = getpid()

    def is_leftover(self, ident: int) -> bool:
        """Returns true when an earlier cell left this thread."""
        return ident in self._threads and _known_threads.get(ident) is self._threads[ident]

    @property
    def any_threads(self) -> bool:
        return bool(self._threads)

    def has_others(self) -> bool:
        """Returns true when there are threads besides ours.

        A count would be wrong: a fork keeps the count of lost threads.
        """
        return not _current_frames().keys() <= self._ours

    def end(self) -> list[str]:
        """Ends leftovers. Returns a line for each that would not end."""
        if getpid() != self._pid:  # a copy that user code made
            return []
        lines = self._end_threads()
        self.take_copies()
        if self._may_have_processes():
            lines += self._end_processes()
        return lines

    # ---- threads ----

    def _end_threads(self) -> list[str]:
        if not self.has_others() and not self._threads:
            return []
        named = {ident for ident in self._threads if self.is_leftover(ident)}
        self._asked = {ident: when for ident, when in self._asked.items() if ident in named}
        deadline = monotonic() + _THREAD_SECONDS
        pause = 0.0005
        while True:
            found = self._find_threads()
            now = monotonic()
            self._ask(found, now)
            if found.keys() <= named or now > deadline:
                break
            sleep(pause)
            pause = min(pause * 2, 0.01)
        self._threads = found
        self._end_waits(found)
        new = [thread for ident, thread in found.items() if ident not in named]
        names = [_name_of(thread) for thread in new[:_MOST_NAMED]]
        return [
            f"the thread {name} still runs and cannot be stopped now: it can print nothing and call nobody any more"
            for name in names
        ] + ([f"{len(new) - _MOST_NAMED} more threads still run"] if len(new) > _MOST_NAMED else [])

    def _find_threads(self) -> dict[int, Any]:
        frames: dict[int, FrameType] = _current_frames()
        found = {}
        for ident, frame in frames.items():
            if ident not in self._ours:
                thread = _known_threads.get(ident)
                if not _is_service(thread, frame):
                    found[ident] = thread
        frames.clear()  # drops the frame of this function itself
        return found

    def _ask(self, threads: Collection[int], now: float) -> None:
        """Raises an exception in threads, except in those that have heard it and are cleaning up."""
        handled = _current_exceptions()
        told = set()
        for ident in threads:
            exit_ = _exit_in(handled.get(ident))
            asked = self._asked.get(ident)
            if asked is None and exit_ is not None and exit_.args and exit_.args[0] is STOPPING:
                asked = self._asked[ident] = now  # by the end of its wait
            if asked is None or now >= asked + (_AGAIN_SECONDS if exit_ is None else _HANDLER_SECONDS):
                self._asked[ident] = now
                _raise_in(_ident(ident), _EXIT)
                told.add(ident)
        self._end_waits(told)

    # ---- processes ----

    def _may_have_processes(self) -> bool:
        """Returns true when there may be child processes. Most cells leave none, and then nothing more is done."""
        try:
            if self._all_processes and not self.spared:
                kill(-1, 0)
            else:
                waitid(_ANY, 0, _PEEK)
        except (ChildProcessError, ProcessLookupError):
            return self._all_processes and self.spared > 0 and self._has_siblings()
        return True

    def _has_siblings(self) -> bool:
        """Returns true when the process that stands over this one has adopted processes in place of this one."""
        try:
            with open(f"/proc/{self.spared}/task/{self.spared}/children", "rb") as file:
                return any(pid != self._pid and pid not in self.paused for pid in map(int, file.read().split()))
        except OSError:
            return True

    def _end_processes(self) -> list[str]:
        _end_pools()
        try:
            return self._end_found()
        except OSError:  # the cell has left no file descriptor to list them with
            return self._end_unseen()

    def _end_unseen(self) -> list[str]:
        deadline = monotonic() + _PROCESS_SECONDS
        if self._all_processes:
            self._end_all()
        while not (none_left := _reap(set())) and self._all_processes and monotonic() < deadline:
            sleep(0.001)
        if none_left:
            return []
        return ["processes may still run: they cannot be found, because too many files are open"]

    def _end_all(self) -> None:
        if not self.spared:
            with suppress(OSError):  # there are none
                kill(-1, _SIGKILL)
            return
        for pid in range(2, _MOST_PIDS):
            if pid not in (self.spared, self._pid) and pid not in self.paused:
                with suppress(OSError):
                    kill(pid, _SIGKILL)

    def _end_found(self) -> list[str]:
        deadline = monotonic() + _PROCESS_SECONDS
        pause = 0.0005
        killed: set[int] = set()
        reaped: set[int] = set()
        while True:
            alive, ended = self._find_processes()
            for pid in alive:
                with suppress(OSError):
                    kill(pid, _SIGKILL)
            killed.update(alive)
            none_left = _reap(reaped)
            if (none_left and not self._all_processes) or (not alive and (none_left or not ended)):
                break
            if monotonic() > deadline:
                break
            sleep(pause)
            pause = min(pause * 2, 0.02)
        _tell_owners(killed - reaped)
        lines: list[str] = []
        for pid in self._find_processes()[0]:
            name, started = _describe_process(pid)
            if (pid, started) not in self._told and len(lines) < _MOST_NAMED:
                self._told.add((pid, started))
                lines.append(f"the process {pid} ({name}) cannot be ended")
        return lines

    def _find_processes(self) -> tuple[list[int], list[int]]:
        """Returns the running descendants of this process (with `all_processes`, all processes but its ancestors), and
        its children that have ended.
        """
        parents: dict[int, int] = {}
        ended = set()
        for name in listdir("/proc"):
            if not name.isdecimal():
                continue
            status = _status(int(name))
            if status is not None:
                parents[int(name)] = int(status[1])
                # If a process's main thread has ended, the state says that the process has, although its other threads
                # run.
                if status[0] in "ZX" and int(status[_THREADS]) <= 1:
                    ended.add(int(name))
        me = getpid()
        children = [pid for pid in ended if parents[pid] == me]
        if self._all_processes:
            spared = {1}
            at = me
            while at and at not in spared:
                spared.add(at)
                at = parents.get(at, 0)
            spared.add(me)
            others = [pid for pid in parents if pid not in spared and pid not in ended]
            return [pid for pid in others if pid not in self.paused], children
        return [pid for pid in parents if pid != me and pid not in ended and _descends(pid, me, parents)], children


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    for _ in range(len(parents)):
        pid = parents.get(pid, 0)
        if pid == ancestor:
            return True
        if not pid:
            return False
    return False


def _status(pid: int) -> list[str] | None:
    """Reads the fields of /proc/N/stat from the state on. The name before them may contain any character."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii", "replace").split()
    except OSError:
        return None


def _describe_process(pid: int) -> tuple[str, int]:
    status = _status(pid)
    started = int(status[19]) if status and len(status) > 19 else 0
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().decode("utf-8", "replace").strip(), started
    except OSError:
        return "?", started


def _reap(reaped: set[int]) -> bool:
    """Reaps children. Returns true when no children are left.

    Before a child's end is forgotten, objects of the user's that represent it are told how it ended.
    """
    owners: dict[int, Any] | None = None
    try:
        while (end := waitid(_ANY, 0, _PEEK)) is not None:
            if owners is None:
                owners = _find_owners()
            owner = owners.get(end.si_pid)
            if owner is not None:
                if _is_waited_for(owner):
                    return False  # a thread is reaping it right now
                _tell(owner, end.si_status if end.si_code == CLD_EXITED else -end.si_status)
            with suppress(ChildProcessError):
                waitpid(end.si_pid, _NOW)
            reaped.add(end.si_pid)
    except ChildProcessError:
        return True
    return False


def _end_pools() -> None:
    """Keeps pools of processes from making new ones."""
    with suppress(BaseException):
        if (module := _modules.get("multiprocessing.pool")) is not None:
            for found in _get_referrers(module.Pool):
                if type(found) is module.Pool:
                    found._state = found._worker_handler._state = module.TERMINATE


def _find_owners() -> dict[int, Any]:
    """Finds objects of the user's that represent a process and do not know of its end, by the process's number."""
    candidates: list[Any] = []
    with suppress(BaseException):
        if (module := _modules.get("multiprocessing.process")) is not None:
            candidates += [process._popen for process in list(module._children)]
    with suppress(BaseException):
        if (module := _modules.get("subprocess")) is not None:
            kinds = [module.Popen]
            for kind in kinds:
                kinds += type.__subclasses__(kind)
            identities = set(map(id, kinds))
            candidates += [found for found in _get_referrers(*kinds) if id(type(found)) in identities]
    owners = {}
    for candidate in candidates:
        with suppress(BaseException):
            fields = vars(candidate)
            if fields["returncode"] is None and type(fields["pid"]) is int:
                owners[fields["pid"]] = candidate
    return owners


def _is_waited_for(owner: Any) -> bool:
    lock = vars(owner).get("_waitpid_lock")
    return type(lock) is LockType and lock.locked()


def _tell(owner: Any, code: int) -> None:
    with suppress(BaseException):
        owner.returncode = code


def _tell_owners(killed: set[int]) -> None:
    """Finds processes whose end was taken by a thread that was stopped before it could note the end."""
    for pid, owner in (_find_owners() if killed else {}).items():
        if pid in killed:
            try:
                waitid(_ONE, pid, _PEEK)  # still there
            except ChildProcessError:
                _tell(owner, -_SIGKILL)


def _exit_in(handled: Any) -> SystemExit | None:
    """Returns the SystemExit that a thread handles, or that led to the exception which it handles."""
    error = handled[1] if type(handled) is tuple else handled  # an exception from Python 3.12 on, a tuple before
    for _ in range(_MOST_CAUSES):
        if error is None or type(error) is SystemExit:
            break
        error = error.__context__
    return error if type(error) is SystemExit else None


def _is_service(thread: Any, frame: FrameType) -> bool:
    """Returns true when a thread is a library's own, and runs no code of the user's now."""
    at: FrameType | None = frame
    while at is not None:
        if at.f_code.co_filename.startswith("<cell "):
            return False
        at = at.f_back
    if thread is None:
        return False
    kind = type(thread)
    if kind.__module__ == "__main__":
        return False
    if not any(kind is plain for plain in _PLAIN_THREADS):
        return True
    target = getattr(thread, "_target", None)
    name, module = getattr(target, "__name__", None), getattr(target, "__module__", None)
    return type(name) is str and name.startswith("_") and module != "__main__"


def _name_of(thread: Any) -> str:
    name = getattr(thread, "_name", None)
    return printable(repr(name[:_MAX_NAME_CHARS])) if type(name) is str else "(without a name)"
