"""The first process of a container: it connects to the host, confines itself, and starts the guest.

In its process namespace, nobody can kill the first process, and the kernel hides its memory from the guest, although
both run as the same user. It holds only what the guest has too, and a second connection on which nothing is sent. It
ends when the guest has ended and the host has closed this connection. Everything else in the container ends with it.
The host closes late because the container's control group, and its counts, last as long as the container.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from os import fork, waitpid
from socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket

_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_SECCOMP_MODE_FILTER = 2
_FIRST_TO_KILL = "1000"
_BYTES_OF_A_STEP = 8


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def enter(path: str, filter_path: str | None) -> int:
    """Becomes the guest of the host that listens at `path`. Returns in the guest only, the channel's descriptor."""
    program = None
    if filter_path is not None:
        with open(filter_path, "rb") as file:
            program = file.read()
    # The host removes its socket once it has the connection.
    host, watcher = socket(AF_UNIX, SOCK_STREAM), socket(AF_UNIX, SOCK_STREAM)
    host.connect(path)
    watcher.connect(path)
    if program is not None:
        _confine(program)
    _prctl(_PR_SET_DUMPABLE, 0)
    # A first process gets no signal without a handler, and this makes Python install one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    guest = fork()
    if guest == 0:
        watcher.close()
        _prctl(_PR_SET_DUMPABLE, 1)
        _give_way()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return host.detach()
    host.close()
    status = _watch(guest)
    with suppress(OSError):  # no process is left
        os.kill(-1, signal.SIGKILL)
    with suppress(OSError):  # the host is gone
        watcher.shutdown(SHUT_WR)
        watcher.recv(1)
    os._exit(status)


def _give_way() -> None:
    """Makes the kernel kill the guest when memory runs out. The first process has to live, to report that."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_FIRST_TO_KILL)


def _watch(guest: int) -> int:
    """Reaps all processes until the guest's end. Returns an exit status as shells have it."""
    status = None
    while status is None:
        pid, code = waitpid(-1, 0)
        if pid == guest:
            status = os.waitstatus_to_exitcode(code)
    return status if status >= 0 else 128 - status


def _confine(program: bytes) -> None:
    """Puts a filter of system calls on this process and all its descendants."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    steps = _Program(len(program) // _BYTES_OF_A_STEP, program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(steps))


def _prctl(option: int, *values: object) -> None:
    call = ctypes.CDLL(None, use_errno=True).prctl
    arguments = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    if call(option, *arguments, *[ctypes.c_ulong(0)] * (4 - len(arguments))):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
