"""File descriptors 1 and 2 of a native guest: pipes, so that output of child processes and C code is taken as well.

Python's own prints do not go through the pipes (`output.py`). A thread reads the pipes. It also sends output that has
waited for long enough while Python computes.
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
#: The size of a pipe. C code that prints while it holds the interpreter's lock waits for ever once a pipe is full.
_PIPE_BYTES = 256 << 10
_READ_BYTES = 64 << 10
#: The most bytes that are taken at once, because a process may print without end.
_MAX_DRAIN_BYTES = 4 << 20
_TICK_MS = 25
_Decoder = getincrementaldecoder("utf-8")


def move_up(fd: int) -> int:
    """Moves a descriptor to a high number, because some code closes all low ones. Children do not inherit it."""
    for least in (1000, 200, 3):
        try:
            moved: int = fcntl(fd, F_DUPFD_CLOEXEC, least)
        except (OSError, ValueError):
            continue
        close(fd)
        return moved
    return fd


class Pipes:
    """Takes text that is written to descriptors 1 and 2. `write` gets the descriptor's number and the text."""

    def __init__(self, write: Callable[[int, str], None]) -> None:
        self._write = write
        self._lock = RLock()
        self._decoders = {fd: _Decoder("backslashreplace") for fd in (1, 2)}
        self._partial: set[int] = set()
        self._readers: dict[int, int] = {}  # 1 or 2, by the descriptor that reads it
        self._writers: dict[int, int] = {}
        self._identities: dict[int, Any] = {}
        self._ready = poll()
        self._all = poll()
        self._wake_reader = self._wake_writer = -1
        self._idle = self._stops = False
        #: True while `keep_draining` waits, and needs nothing of the interpreter.
        self.rests = False

    def open(self, take: bool = True) -> None:
        """Takes over descriptors 1 and 2; without `take`, only once `repair` is called."""
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
        """Takes the text that is there."""
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
        """Takes the text that is there, and writes out an incomplete character at its end."""
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
        """Wakes `keep_draining` to look after an exchange that takes long."""
        if self._idle:
            self._idle = False
            os_write(self._wake_writer, b"x")

    def keep_draining(self, is_busy: Callable[[], bool], tick: Callable[[], None]) -> None:
        """Takes text until `stop`. While an exchange is running, calls `tick` at intervals.

        Raises OSError when user code has closed one of the descriptors.
        """
        while True:
            self._idle = True  # set before the question, so that an exchange which begins in between wakes it
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
        """Returns all descriptors of the pipes, including 1 and 2."""
        return [*self._writers, *self._readers, *self._writers.values(), self._wake_reader, self._wake_writer]

    def renew(self) -> None:
        """Replaces all pipes by new ones under the same numbers, in a copy of the guest."""
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
        """Closes the pipes in a copy of the process, since they belong to the original."""
        for fd in (*self._readers, *self._writers.values(), self._wake_reader, self._wake_writer):
            with suppress(OSError):
                close(fd)


def _identity(fd: int) -> tuple[int, int]:
    status = fstat(fd)
    return status.st_dev, status.st_ino


os_write = os.write
