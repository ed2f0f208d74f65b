"""The zygote: imports the heavy libraries once and forks guests. A fork takes milliseconds, the imports take seconds.

`python -m sandglass --zygote --fd N` runs inside a backend's boundary, with capabilities in the boundary's own user
namespace. It runs no code but that of the modules that it has to import, and holds nothing of the host but its control
socket.

The control socket is of type SOCK_SEQPACKET. A packet is a JSON object and its descriptors.

From the host:

- `{"preload": [names]}`, once, first. The seccomp program comes with it as a descriptor, if there is one. The answer is
  `ready`.
- `{"fork": id, "epoch": n, ...}`, with the guest's end of its channel. `groups` more descriptors are files `tasks` of
  the guest's control groups, in which the guest is born. The answer is `forked` or `failed`, in any order. The host
  cancels the order by closing its own end of the channel. With `"copies": true`, the second descriptor is the socket on
  which the host asks the guest for copies (`forks.py`). The guest then is not the first process of its namespace, since
  the copies have to outlive it. It begins when the host sends anything on that socket.

To the host:

- `{"ready": true, "missing": {name: why}}`: modules that could not be imported are named, and the others stay. A module
  that leaves threads running is missing, too, since a fork would lose them: the process starts anew without it.
- `{"forked": id}`, with a pidfd of the guest's first process. Killing this process kills all of the guest's.
- `{"failed": id, "message": why}`: there is no guest.
- `{"ended": id, "status": n}`: a guest has ended. `n` is its exit code, or minus the signal.

A guest has mount, pid, ipc, uts and network namespaces of its own, and its own `/tmp`, `/dev/shm` and `/proc`. It sees
no workspace but its own, and has no capabilities. The kernel does all of that. `_isolate` orders it, and fails rather
than leave a part out. With `user` in the request, the guest is that user outside, so that the kernel's counts by user
count this guest alone. It then has a user namespace of its own, in which it looks the same as every guest.

A failed fork never ends this process, because all guests would end with it.
"""

# Decisions: docs/internals/guests-on-hosts.md.

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from _thread import allocate_lock, start_new_thread
from typing import TYPE_CHECKING, Any, NoReturn

from sandglass.native import landlock, zygote_memory
from sandglass.native.forks import stand_over
from sandglass.native.guest import serve as serve_guest
from sandglass.native.rlimits import bound_files, bound_signals
from sandglass.runtime.guards import share_modules
from sandglass.runtime.warning_origin import share_tables

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKET_BYTES = 64 << 10
_MESSAGE_CHARS = 2_000
_FDS = 5
_ISOLATION_SECONDS = 10
#: The number of guests that isolate themselves at the same time, on a machine with few processors.
_LEAST_AT_ONCE = 4

_CLONE_NEWNS = 0x00020000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWUTS = 0x04000000
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_RDONLY, _MS_REMOUNT = 2, 4, 8, 1, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 4, 38, 22
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 47, 4
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
#: The kernel's `struct ifreq`, for flags.
_INTERFACE = struct.Struct("16sH22x")
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
#: Modules of the runtime for sessions that sleep or wake. Importing them takes longer than the rest of that.
_OWN_MODULES = ["sandglass.state.portable.writing", "sandglass.state.portable.reading"]
#: The environment variable for a new start: the order, and the modules to leave out.
_ORDER = "SANDGLASS_ZYGOTE_ORDER"
_REASON_CHARS = 200
#: Threads of libraries that a fork may lose. jemalloc (of pyarrow and polars) starts its thread again. The other one,
#: of polars, removes files of queries that did not fit into memory.
_EXPENDABLE = frozenset(("jemalloc_bg_thd", "polars-ooc-clea"))

#: The most terminals of a guest. The machine has 4096 in all.
_TERMINALS = 64
#: The user id of a guest inside of its namespace.
_INSIDE = 1000

#: The folder in which the zygote sees all workspaces. A guest finds an empty folder there.
WORKSPACES = "/run/workspaces"
#: The folder in which a guest finds its own workspace.
WORKSPACE = "/workspace"


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]


_libc = ctypes.CDLL(None, use_errno=True)


def serve(fd: int) -> NoReturn:
    """Imports the modules of its order, then forks a guest for each request on the socket `fd`. Never returns."""
    control = socket.socket(fileno=fd)
    order = _first_order(control)
    missing: dict[str, str] = order["missing"]
    arenas = zygote_memory.Arenas()
    arenas.make_room()
    preload(_OWN_MODULES)
    for name in order["preload"]:
        arenas.make_room()
        missing |= preload([name])
        if left := threads():
            missing[name] = f"it leaves threads running, which a fork would lose: {', '.join(left)}"
            _start_anew(control, order)
    seccomp = _read_all(order["fds"][0]) if order["fds"] else b""
    zygote_memory.use_huge_pages()
    become_quiet()
    reserved = zygote_memory.reserve()
    _send(control, {"ready": True, "missing": missing})
    _Forks(control, seccomp, reserved).serve()


class _Forks:
    """Forks guests, several at a time: one is forked while others isolate themselves, for which they mostly wait."""

    def __init__(self, control: socket.socket, seccomp: bytes, reserved: list[int]) -> None:
        self._control = control
        self._seccomp = seccomp
        self._reserved = reserved
        self._guests: dict[int, int] = {}  # the host's number of each guest, by process
        self._isolating: dict[int, _Isolating] = {}  # by the descriptor of the report
        self._most = max(_LEAST_AT_ONCE, os.cpu_count() or 1)
        self._wake, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def serve(self) -> NoReturn:
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        control = self._control.fileno()
        while True:
            heard = [self._wake, *self._isolating]
            if len(self._isolating) < self._most:
                heard.append(control)
            ready, _, _ = select.select(heard, [], [], self._seconds_left())
            for report in [fd for fd in ready if fd in self._isolating]:
                self._hand_over(report)
            for report in [fd for fd, its in self._isolating.items() if its.deadline < time.monotonic()]:
                self._give_up(report, "it was not isolated in time")
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            if control in ready:
                request, fds = _receive(self._control)
                if not request:
                    os._exit(0)  # the host is gone; guests end with the boundary's pid namespace, whose child this is
                self._fork(request, fds)

    def _seconds_left(self) -> float | None:
        deadlines = [its.deadline for its in self._isolating.values()]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _fork(self, request: dict[str, Any], fds: list[int]) -> None:
        number = request["fork"]
        try:
            first = 2 if request.get("copies") else 1
            if len(fds) != first + int(request["groups"]):
                raise OSError("this process has no room for the descriptors of another guest")
            if _is_closed(fds[0]):
                raise OSError("nobody waits for this guest any more")
            its = self._start(number, request, fds[:first], fds[first:])
            self._isolating[its.report.fileno()] = its
        except Exception as error:
            _send(self._control, {"failed": number, "message": _describe(error)})
        finally:
            for fd in fds:
                os.close(fd)

    def _start(self, number: int, request: dict[str, Any], sockets: list[int], groups: list[int]) -> _Isolating:
        """Forks a guest, which begins to isolate itself."""
        # A guest gets no copy of these. With the pidfd of another guest, it could kill that one.
        ours = [self._control.fileno(), self._wake, self._woken, *self._isolating, *groups]
        ours += [its.pidfd for its in self._isolating.values()]
        report, guests_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        seccomp, reserved = self._seccomp, self._reserved

        def prepare() -> None:
            for group in groups:
                os.write(group, b"0")  # this thread, and so the process that it forks
            _libc_call("unshare", _CLONE_NEWPID)

        def become() -> NoReturn:
            try:
                for fd in (*ours, report.detach()):
                    os.close(fd)
                _become_guest(request, sockets, seccomp, reserved, guests_end)
            except BaseException as error:
                _tell_failure(guests_end, error)
                raise

        try:
            with guests_end:
                guest = fork_in_thread(prepare, become)
            try:
                # Its number is not used again before `_reap`.
                return _Isolating(number, guest, os.pidfd_open(guest), report, time.monotonic() + _ISOLATION_SECONDS)
            except OSError:
                os.kill(guest, signal.SIGKILL)
                raise
        except BaseException:
            report.close()
            raise

    def _hand_over(self, report: int) -> None:
        """Gives the host the pidfd of a guest that says it is isolated. There must be no guest without it."""
        its = self._isolating[report]
        try:
            said, _ = _receive(its.report)
        except (OSError, ValueError) as error:
            said = {"message": _describe(error)}
        if "isolated" not in said:
            self._give_up(report, said.get("message", "the guest ended before it was isolated"))
            return
        try:
            _send(self._control, {"forked": its.number}, [its.pidfd])
        except OSError as error:  # the kernel bounds descriptors in flight
            self._give_up(report, _describe(error))
            return
        self._forget(report)
        if its.status is None:
            self._guests[its.process] = its.number
        else:
            _send(self._control, {"ended": its.number, "status": its.status})

    def _give_up(self, report: int, why: str) -> None:
        """Kills a guest, and reports that there is none."""
        its = self._isolating[report]
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(its.pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):  # it was reaped
            os.waitid(os.P_PIDFD, its.pidfd, os.WEXITED)
        self._forget(report)
        _send(self._control, {"failed": its.number, "message": why})

    def _forget(self, report: int) -> None:
        its = self._isolating.pop(report)
        os.close(its.pidfd)
        its.report.close()

    def _reap(self) -> None:
        """Reports the exit codes of guests that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    return
                code = os.waitstatus_to_exitcode(status)
                if process in self._guests:
                    _send(self._control, {"ended": self._guests.pop(process), "status": code})
                for its in self._isolating.values():
                    if its.process == process:
                        its.status = code


class _Isolating:
    """A guest that has not reported its isolation yet."""

    def __init__(self, number: int, process: int, pidfd: int, report: socket.socket, deadline: float) -> None:
        self.number = number
        self.process = process
        self.pidfd = pidfd
        self.report = report
        self.deadline = deadline
        #: Its exit code, once it has ended.
        self.status: int | None = None


def _is_closed(channel: int) -> bool:
    """Returns true when the other end of a socket is closed."""
    poll = select.poll()
    poll.register(channel, 0)  # hang-ups are reported anyway
    return bool(poll.poll(0))


def preload(names: list[str]) -> dict[str, str]:
    """Imports modules. A failure of one is reported, and does not stop the others."""
    missing = {}
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            missing[name] = _describe(error)
    return missing


def become_quiet() -> None:
    """Prepares the process for forks: a garbage collection then writes to no shared page."""
    share_modules()
    share_tables()
    gc.collect()
    gc.freeze()


def threads() -> list[str]:
    """Returns the names of other threads, except those that a fork may lose."""
    names = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) == threading.get_native_id():
            continue
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:  # the thread may have ended
            names.append(file.read().strip())
    return sorted(name for name in names if name not in _EXPENDABLE)


def _first_order(control: socket.socket) -> dict[str, Any]:
    again = os.environ.pop(_ORDER, None)
    if again is not None:
        order: dict[str, Any] = json.loads(again)
        for fd in (control.fileno(), *order["fds"]):
            os.set_inheritable(fd, False)
        return order
    message, fds = _receive(control)
    return {"preload": message.get("preload", []), "missing": {}, "fds": fds}


def _start_anew(control: socket.socket, order: dict[str, Any]) -> NoReturn:
    missing = {name: why[:_REASON_CHARS] for name, why in order["missing"].items()}
    again = {**order, "preload": [name for name in order["preload"] if name not in missing], "missing": missing}
    for fd in (control.fileno(), *order["fds"]):
        os.set_inheritable(fd, True)
    os.environ[_ORDER] = json.dumps(again)
    os.execv(sys.executable, sys.orig_argv)


def fork_in_thread(prepare: Callable[[], object], become: Callable[[], NoReturn]) -> int:
    """Forks a process in a thread that `prepare` has prepared, for instance by choosing a pid namespace for its
    children.

    A thread cannot go back to its earlier namespace, so each fork has a new thread. A process in its place would be one
    more copy of this one. `threading` does not know the thread, and makes it the child's main thread.
    """
    made: list[int | BaseException] = []
    thread = 0
    done = allocate_lock()
    done.acquire()
    end = os._exit  # user code may remove anything from this module, and the thread must never return

    def fork() -> None:
        nonlocal thread
        thread = threading.get_native_id()
        try:
            prepare()
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # the other thread only waits
                process = os.fork()
        except BaseException as error:
            made.append(error)
        else:
            if process == 0:
                try:
                    become()
                finally:
                    end(127)
            made.append(process)
        finally:
            done.release()

    start_new_thread(fork, ())
    done.acquire()
    # The thread may be in a guest's control group, whose members the host kills.
    while os.path.exists(f"/proc/self/task/{thread}"):
        time.sleep(0.0001)
    if isinstance(made[0], BaseException):
        raise made[0]
    return made[0]


def _become_guest(
    request: dict[str, Any],
    sockets: list[int],
    seccomp: bytes,
    reserved: list[int],
    report: socket.socket,
) -> NoReturn:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    user = request.get("user")
    _libc_call("unshare", _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUTS | _CLONE_NEWNET)
    _isolate(request, user)
    if user is not None:
        _become_user(user, has_namespaces=_can_be_copied(request))
    os.chdir(WORKSPACE)
    bound_files(int(request["openFiles"]))
    bound_signals()
    reseed()
    _drop_capabilities()
    landlock.confine()
    if seccomp:
        _filter(seccomp)
    _send(report, {"isolated": True})
    report.close()
    gc.freeze()
    channel, *control = sockets
    copies = None
    if control:
        os.read(control[0], 64)  # the host has put this process into its control group
        copies = control[0], stand_over()
        zygote_memory.set_large_data_apart()
    zygote_memory.take(reserved)
    serve_guest(channel, int(request["epoch"]), True, copies)
    os._exit(0)


def _isolate(request: dict[str, Any], user: int | None) -> None:
    """Gives the process its own view of files, processes and the host's name."""
    socket.sethostname(str(request.get("hostname", "sandglass")))
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    safe = _MS_NOSUID | _MS_NODEV
    size = int(request["tmpBytes"])
    owner = "" if user is None else f",uid={user},gid={user}"
    _mount("tmpfs", "/tmp", "tmpfs", safe, f"size={size},mode=1777{owner}")
    _mount("tmpfs", "/dev/shm", "tmpfs", safe | _MS_NOEXEC, f"size={size},mode=1777{owner}")
    if user is not None:  # only the root user's namespace can have terminals, and the zygote is in it in this case
        terminals = f"newinstance,ptmxmode=0666,mode=620,max={_TERMINALS}"
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, terminals)
    workspace = request.get("workspace")
    if workspace:
        _mount(os.path.join(WORKSPACES, workspace), WORKSPACE, None, _MS_BIND)
    else:
        _mount("tmpfs", WORKSPACE, "tmpfs", safe, f"size={int(request['diskBytes'])},mode=755{owner}")
    if user is not None and _can_be_copied(request):
        _make_rooms(int(request["roomsBytes"]), user)
    if os.path.isdir(WORKSPACES):
        _mount("tmpfs", WORKSPACES, "tmpfs", safe | _MS_RDONLY, "size=4k,mode=000")
    _mount("proc", "/proc", "proc", safe | _MS_NOEXEC)
    _bring_up_loopback()
    os.setsid()


def _can_be_copied(request: dict[str, Any]) -> bool:
    """Returns true if the host can make exact copies of the guest, whose files are in memory then."""
    return bool(request.get("copies")) and not request.get("workspace")


def _make_rooms(size: int, user: int) -> None:
    """Makes the folders of later copies. They cannot be written to here."""
    safe = _MS_NOSUID | _MS_NODEV
    _mount("tmpfs", landlock.ROOMS, "tmpfs", safe, f"size={size},mode=755,uid={user},gid={user}")
    group, owner = _libc.setfsgid(user), _libc.setfsuid(user)
    for folder in landlock.rooms():
        os.makedirs(folder, mode=0o755, exist_ok=True)
    _libc.setfsuid(owner)
    _libc.setfsgid(group)
    _mount(None, landlock.ROOMS, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | safe)


def _bring_up_loopback() -> None:
    """Lets the guest reach itself, for servers and their clients in one cell, such as those of dask or of a manager."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _INTERFACE.pack(b"lo", _IFF_UP))


def _become_user(user: int, has_namespaces: bool) -> None:
    """Makes the process another user outside. Inside of a new user namespace, it looks the same as before.

    The namespace can have none below, unless `has_namespaces` is true: the host makes some for copies. Earlier
    mounts belong to the parent: the guest could not unmount them, even with all capabilities.
    """
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _libc_call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise root would own the process's files in /proc
    _libc_call("unshare", _CLONE_NEWUSER)
    for name, text in (
        ("self/setgroups", "deny"),
        ("self/uid_map", f"{_INSIDE} {user} 1"),
        ("self/gid_map", f"{_INSIDE} {user} 1"),
        *(() if has_namespaces else (("sys/user/max_user_namespaces", "0"),)),
    ):
        with open(f"/proc/{name}", "wb", buffering=0) as file:
            file.write(text.encode())


def reseed() -> None:
    """Makes random numbers differ from those of the sibling guests.

    After a fork, Python itself does so for `random`.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _drop_capabilities() -> None:
    _libc_call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # beyond the last capability that the kernel knows
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _libc_call("capset", ctypes.byref(header), ctypes.byref(none))
    _libc_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _filter(program: bytes) -> None:
    instructions = ctypes.create_string_buffer(program, len(program))
    fprog = _Filter(len(program) // 8, ctypes.cast(instructions, ctypes.c_void_p))
    _libc_call("prctl", _PR_SET_SECCOMP, 2, ctypes.byref(fprog), 0, 0)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    try:
        _libc_call("mount", *(_bytes(text) for text in (source, target, kind)), ctypes.c_ulong(flags), _bytes(data))
    except OSError as error:
        raise OSError(error.errno, f"mounting {target}: {error.strerror}") from None


def _bytes(text: str | None) -> bytes | None:
    return text.encode() if text else None


def _libc_call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def _tell_failure(report: socket.socket, error: BaseException) -> None:
    try:
        _send(report, {"message": _describe(error)})
    except OSError:
        os.write(2, f"sandglass: {_describe(error)}\n".encode())


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE_CHARS]


def _send(to: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    data = json.dumps(message).encode()
    if fds:
        socket.send_fds(to, [data], fds)
    else:
        to.send(data)


def _receive(from_: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receives a packet and its descriptors, which close on exec. Returns `({}, [])` when the other end is closed."""
    data, fds, _, _ = socket.recv_fds(from_, _PACKET_BYTES, _FDS)
    for fd in fds:
        os.set_inheritable(fd, False)
    return (json.loads(data) if data else {}), fds


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as file:
        return file.read()
