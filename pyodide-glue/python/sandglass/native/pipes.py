"""File descriptors 1 and 2 of a native guest: pipes, so that what child processes and C code print is taken as well.

Python's own prints do not go through them (`output.py`). A thread reads the pipes; it also sends what waits too long to
be sent, while Python computes.
"""

from __future__ import annotations

import os
from _thread import RLock
from codecs import getincrementaldecoder
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from os import close, dup2, fstat, get_inheritable
from os import read as read_fd
from select import POLLIN, poll
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable

_F_SETPIPE_SZ = 1031
#: C code that prints while it holds the interpreter's lock waits for ever once a pipe is full.
_PIPE_BYTES = 256 << 10
_READ_BYTES = 64 << 10
#: Taken at once, at most: somebody may print without end.
_MAX_DRAIN_BYTES = 4 << 20
_TICK_MS = 25
_Decoder = getincrementaldecoder("utf-8")


def move_up(fd: int) -> int:
    """Moves a descriptor out of the way of code that closes all low ones; children do not inherit it."""
    for least in (1000, 200, 3):
        try:
            moved: int = fcntl(fd, F_DUPFD_CLOEXEC, least)
        except (OSError, ValueError):
            continue
        close(fd)
        return moved
    return fd


class Pipes:
    """Takes what is written to descriptors 1 and 2. `write` gets a descriptor's number and text."""

    def __init__(self, write: Callable[[int, str], None]) -> None:
        self._write = write
        self._lock = RLock()
        self._decoders = {fd: _Decoder("backslashreplace") for fd in (1, 2)}
        self._partial: set[int] = set()
        self._readers: dict[int, int] = {}  # by their own descriptor: 1 or 2
        self._writers: dict[int, int] = {}
        self._identities: dict[int, Any] = {}
        self._ready = poll()
        self._all = poll()
        self._wake_reader = self._wake_writer = -1
        self._idle = self._stops = False
        #: True while `keep_draining` waits, and wants nothing of the interpreter.
        self.rests = False

    def open(self, take: bool = True) -> None:
        """Takes over descriptors 1 and 2; with `take` false, only from `repair` on."""
        for fd in (1, 2):
            reader, writer = map(move_up, os.pipe())
            with suppress(OSError):
                fcntl(reader, _F_SETPIPE_SZ, _PIPE_BYTES)
            self._readers[reader] = fd
            self._writers[fd] = writer
            self._identities[fd] = _identity(writer)
            for poller in (self._ready, self._all):
                poller.register(reader, POLLIN)
            if take:
                dup2(writer, fd)
        self._wake_reader, self._wake_writer = map(move_up, os.pipe())
        self._all.register(self._wake_reader, POLLIN)

    def repair(self) -> None:
        """Puts descriptors 1 and 2 back, whatever user code did to them."""
        for fd, writer in self._writers.items():
            try:
                if _identity(fd) == self._identities[fd] and get_inheritable(fd):
                    continue
            except OSError:
                pass
            dup2(writer, fd)

    def drain(self) -> None:
        """Takes what there is."""
        taken = 0
        with self._lock:
            while taken < _MAX_DRAIN_BYTES and (found := self._ready.poll(0)):
                for reader, _ in found:
                    fd = self._readers[reader]
                    data = read_fd(reader, _READ_BYTES)
                    taken += len(data)
                    self._partial.add(fd)
                    if text := self._decoders[fd].decode(data):
                        self._write(fd, text)

    def finish(self) -> None:
        """Takes what there is, and writes out what looks like the beginning of a character."""
        self.drain()
        if not self._partial:
            return
        with self._lock:
            for fd in self._partial:
                if text := self._decoders[fd].decode(b"", True):
                    self._write(fd, text)
                self._decoders[fd].reset()
            self._partial.clear()

    def wake(self) -> None:
        """An exchange has been under way for a while: `keep_draining` looks after it."""
        if self._idle:
            self._idle = False
            os_write(self._wake_writer, b"x")

    def keep_draining(self, is_busy: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Takes what there is until `stop`, and calls `tick` every so often while an exchange is under way.

        Raises OSError when user code has closed what it works with.
        """
        while True:
            self._idle = True  # before the question: an exchange that begins in between wakes it
            time_limit = _TICK_MS if is_busy() else None
            self.rests = True
            found = self._all.poll(time_limit)
            self.rests = self._idle = False
            for reader, events in found:
                if not events & POLLIN:
                    raise OSError("user code has closed file descriptors that are the sandbox's own")
                if reader == self._wake_reader:
                    read_fd(reader, 64)
                    if self._stops:
                        self._stops = False
                        return
            self.drain()
            tick()

    def stop(self) -> None:
        """Ends `keep_draining`."""
        self._stops = True
        os_write(self._wake_writer, b"x")

    def descriptors(self) -> list[int]:
        """All that stand for the pipes, 1 and 2 among them."""
        return [*self._writers, *self._readers, *self._writers.values(), self._wake_reader, self._wake_writer]

    def renew(self) -> None:
        """In a copy of the guest: other pipes take the place of all of them, under the same numbers."""
        for reader, fd in self._readers.items():
            self._replace([reader], [self._writers[fd], fd])
            with suppress(OSError):
                fcntl(reader, _F_SETPIPE_SZ, _PIPE_BYTES)
            self._identities[fd] = _identity(fd)
        self._replace([self._wake_reader], [self._wake_writer])

    def _replace(self, readers: list[int], writers: list[int]) -> None:
        reader, writer = os.pipe()
        for fd, stands in ((reader, readers), (writer, writers)):
            for other in stands:
                dup2(fd, other, other in self._writers)
            close(fd)

    def abandon(self) -> None:
        """In a copy of the process: leaves everything to the original."""
        for fd in (*self._readers, *self._writers.values(), self._wake_reader, self._wake_writer):
            with suppress(OSError):
                close(fd)


def _identity(fd: int) -> tuple[int, int]:
    status = fstat(fd)
    return status.st_dev, status.st_ino


os_write = os.write
