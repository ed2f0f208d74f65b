"""Landlock: keeps a process that gets past the mounts from writing anywhere but in the guest's own folders.

The kernel's `Documentation/userspace-api/landlock.rst` describes the calls and their numbers, which are the same on all
architectures. A kernel without Landlock is no error, because the boundary holds without it.
"""

from __future__ import annotations

import ctypes
import errno
import os

#: The folders below which guests may write: their own, devices such as /dev/null, and settings of a process itself.
WRITABLE = ("/workspace", "/tmp", "/dev", "/proc")
#: The host's `host/src/guest/isolated/rooms.rs` has the same path and number.
ROOMS = "/run/copies"
_MOST_ROOMS = 128

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
_ABSENT = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)  # not built in, not on, or refused by a container's filter

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR_TO_MAKE_SYM = 0x1FF0  # bits 4 to 12: removing, and making of each kind
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_WRITE = _WRITE_FILE | _REMOVE_DIR_TO_MAKE_SYM | _REFER | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
#: The rights that later versions have added, by version.
_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_SCOPES_SINCE = 6
_SCOPES = 0b11  # abstract Unix sockets and signals end at the boundary


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("rights", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """Returns the kernel's version of Landlock; 0 when there is none."""
    try:
        return _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise


def confine() -> bool:
    """Confines this thread and all that it starts, for good. Returns false when the kernel has no Landlock."""
    known = version()
    if known == 0:
        return False
    write = _WRITE
    for since, right in _SINCE.items():
        if known < since:
            write &= ~right
    rules = _Ruleset(write | _READ, 0, _SCOPES if known >= _SCOPES_SINCE else 0)
    size = ctypes.sizeof(rules) if known >= _SCOPES_SINCE else ctypes.sizeof(ctypes.c_uint64)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(rules), size, 0)
    try:
        _allow(ruleset, "/", _READ)
        for folder in (*WRITABLE, *(rooms() if os.path.isdir(f"{ROOMS}/tmp") else ())):
            if os.path.isdir(folder):
                _allow(ruleset, folder, write | _READ)
        if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            raise _error("no_new_privs")
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return True


def rooms() -> list[str]:
    """Returns the folders of later copies. The guest sees them empty, and cannot write there."""
    return [f"{ROOMS}/{folder}/{number}" for folder in ("workspace", "tmp") for number in range(_MOST_ROOMS)]


def _allow(ruleset: int, path: str, rights: int) -> None:
    folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        beneath = _Beneath(rights, folder)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(beneath), 0)
    finally:
        os.close(folder)


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    converted = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *converted)
    if result < 0:
        raise _error(f"system call {number}")
    return result


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"Landlock, {what}: {os.strerror(number)}")
