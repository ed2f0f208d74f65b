"""Checkpoints of a native guest: paused copies of its process.

A paused copy only waits on its control socket. The host asks it for a copy as it asks a guest (`forks.py`), and that
copy becomes the next guest: `{"epoch": n, "paused": [pids]}` comes with the copy's channel and control socket. The
paused copy stays, so a state can come back many times. `paused` are the numbers of all paused copies. With
`"stays":true` and only a control socket, the copy is another paused copy. A paused copy that comes from a guest says
`{"waits":true}` before its first order. When the host closes the control socket, the paused copy ends.

Nobody may look into a paused copy or change it. So it is born without a way for other processes to read its memory, and
with all signals blocked. What a signal did to the memory would otherwise be part of the state. It is a child of the
process that stands over the guest, so code that waits for its own children does not wait for it.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import ctypes
from _json import encode_basestring_ascii as quote
from _signal import SIG_BLOCK, SIG_SETMASK, SIGCHLD, SIGKILL, pthread_sigmask, sigtimedwait, valid_signals  # type: ignore[import-not-found]
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET
from _socket import socket as Socket
from contextlib import suppress
from json import JSONDecoder
from os import SEEK_CUR, SEEK_SET, close, dup2, fstat, getpid, kill, lseek, pidfd_open, readlink
from os import write as system_write
from platform import machine
from stat import S_ISCHR, S_ISDIR, S_ISFIFO, S_ISREG, S_ISSOCK
from struct import Struct
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Collection

PACKET_BYTES = 4096
MOST_REASON_CHARS = 500
#: The most numbers of paused copies that are believed.
_MOST_PAUSED = 64
_FDS = 2
DESCRIPTOR = Struct("=i")
PID = Struct("<q")
_HARMLESS = frozenset(("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"))
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE, _PR_GET_TID_ADDRESS = 3, 4, 40
_CLONE_PARENT, _CLONE_CHILD_SETTID, _CLONE_CHILD_CLEARTID = 0x8000, 0x01000000, 0x00200000
#: The number of the system call `clone`, and whether the thread's own storage comes before the address of its number.
_CLONE = {"x86_64": (56, False), "aarch64": (220, True)}.get(machine())
_parse = JSONDecoder().scan_once  # type: ignore[attr-defined]
_library = ctypes.PyDLL(None)  # keeps the interpreter's lock
_prctl, _syscall = _library.prctl, _library.syscall
_prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
_syscall.restype = ctypes.c_long
_ALL_SIGNALS = valid_signals()


class Refused(Exception):
    """There can be no copy. The message says why."""


def receive(socket: Socket, fds: list[int], most: int, flags: int) -> bytes:
    """Receives a packet and its descriptors."""
    data, found, _, _ = socket.recvmsg(PACKET_BYTES, CMSG_SPACE(most * DESCRIPTOR.size), flags)
    for level, kind, payload in found:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            whole = len(payload) // DESCRIPTOR.size * DESCRIPTOR.size
            fds += (fd for (fd,) in DESCRIPTOR.iter_unpack(payload[:whole]))
    return bytes(data)


def answer(socket: Socket, message: str, fds: list[int]) -> None:
    """Answers an order. Closes the descriptors that go with the answer."""
    try:
        rights = b"".join(DESCRIPTOR.pack(fd) for fd in fds)
        with suppress(OSError):  # the host is gone, or user code has closed the socket
            socket.sendmsg([message.encode()], [(SOL_SOCKET, SCM_RIGHTS, rights)] if fds else [])
    finally:
        for fd in fds:
            close(fd)


def refusal(error: BaseException, epoch: int | None) -> str:
    """Makes an answer of an error. `epoch` is that of the order, if it has one."""
    why = str(error) if type(error) is Refused else f"{type(error).__name__}: {error}"
    return f'{{"failed":{quote(why[:MOST_REASON_CHARS])},"epoch":{"null" if epoch is None else epoch}}}'


def order_of(packet: bytes) -> dict[str, Any]:
    """Parses an order. Raises Refused when it is none."""
    try:
        order = _parse(packet.decode(), 0)[0]
        order["epoch"] = int(order["epoch"])
    except (ValueError, TypeError, KeyError, StopIteration):
        raise Refused("a packet has to be a JSON object with an epoch") from None
    return dict(order)


def offsets_of(fds: Collection[int]) -> list[tuple[int, int]]:
    """Returns the positions in open files, by descriptor: copies share them.

    Raises Refused for a descriptor of a thing that a copy would share with the guest in another way.
    """
    found = []
    for fd in fds:
        try:
            mode, name = fstat(fd).st_mode, readlink(f"/proc/self/fd/{fd}")
        except OSError:  # the descriptor of the folder that was just listed
            continue
        if S_ISDIR(mode) or (S_ISREG(mode) and not name.startswith("/memfd:")):
            found.append((fd, lseek(fd, 0, SEEK_CUR)))
        elif S_ISSOCK(mode):
            raise Refused(f"a socket is open (descriptor {fd})")
        elif S_ISFIFO(mode):
            raise Refused(f"a pipe is open (descriptor {fd})")
        elif not (S_ISCHR(mode) and name in _HARMLESS):
            raise Refused(f"{name.removeprefix('anon_inode:')} is open (descriptor {fd})")
    return found


def pause(
    control: Socket, channel: int, heirs: int, order: int, offsets: list[tuple[int, int]]
) -> int | dict[str, Any]:
    """Makes a paused copy, whose control socket is `order`, and returns its process number.

    In a guest that a paused copy has made, returns the order for it. Call this while there is one thread only.
    """
    mask = pthread_sigmask(SIG_BLOCK, _ALL_SIGNALS)
    shown = hide()
    made: int | dict[str, Any]
    try:
        made = _clone()
        if made == 0:
            try:
                made = _rest(control, channel, heirs, order)
                for fd, offset in offsets:
                    with suppress(OSError):
                        lseek(fd, offset, SEEK_SET)
                while sigtimedwait(_ALL_SIGNALS, 0) is not None:
                    pass  # signals were for nobody
            except BaseException:
                kill(getpid(), SIGKILL)  # the host sees the closed socket
    finally:
        show(shown)
        pthread_sigmask(SIG_SETMASK, mask)
    return made


def hide() -> int:
    """Keeps other processes without privileges from reading and changing the memory of this one, and of what it forks.

    Returns what `show` needs to undo that.
    """
    shown = int(_prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    return shown


def show(shown: int) -> None:
    """Takes back `hide`."""
    _prctl(_PR_SET_DUMPABLE, max(shown, 0), 0, 0, 0)


def _rest(control: Socket, channel: int, heirs: int, order: int) -> dict[str, Any]:
    """Waits for orders. Returns in copies of this process only, which become guests."""
    for fd in (channel, control.fileno()):
        dup2(order, fd, False)
    close(order)
    answer(control, '{"waits":true}', [])
    while True:
        fds: list[int] = []
        epoch = None
        try:
            data = receive(control, fds, _FDS, 0)
            if not data:
                kill(getpid(), SIGKILL)
            given = order_of(data)
            epoch = given["epoch"]
            stays = given.get("stays") is True
            if len(fds) != (1 if stays else _FDS):
                raise Refused("an order comes with a channel and a control socket")
            pid = _clone()
            if pid == 0:
                dup2(fds[0], channel, False)
                dup2(fds[-1], control.fileno(), False)
                for fd in fds:
                    close(fd)
                if stays:
                    continue
                return given
            system_write(heirs, PID.pack(pid))
            answer(control, f'{{"forked":{epoch}}}', [pidfd_open(pid), pidfd_open(getpid())])
        except Exception as error:
            answer(control, refusal(error, epoch), [])
        for fd in fds:
            with suppress(OSError):
                close(fd)


def _clone() -> int:
    """Forks without any of the steps that Python and libraries take at a fork.

    The new process has the parent of this one. The C library's own note of the thread's number is kept right.
    """
    if _CLONE is None:
        raise Refused("this kind of machine is not supported")
    number, storage_first = _CLONE
    address = ctypes.c_ulong(0)
    flags = _CLONE_PARENT | SIGCHLD
    if _prctl(_PR_GET_TID_ADDRESS, ctypes.addressof(address), 0, 0, 0) == 0 and address.value:
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    last = (0, address.value) if storage_first else (address.value, 0)
    pid = int(_syscall(number, *map(ctypes.c_ulong, (flags, 0, 0, *last))))
    if pid < 0:
        raise Refused("the system makes no more processes")
    return pid


def pids_in(order: dict[str, Any]) -> list[int]:
    """The numbers of the paused copies, as the host tells them."""
    told = order.get("paused")
    return [pid for pid in told[:_MOST_PAUSED] if type(pid) is int] if isinstance(told, list) else []
