"""The ways to a `sandglass-host`: what each can do, and the one to a program of this machine."""

# Decisions: docs/internals/python-client.md.

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import deque
from contextlib import suppress
from threading import Lock, Thread
from typing import Protocol

from sandglass.client.errors import SandboxError
from sandglass.client.program import environment

#: The most bytes of a JSON message, and of a piece of a blob with its header.
MAX_MESSAGE = 64 << 20
#: The most bytes of a message of the host. A longer one ends the connection with all its sandboxes. Guests choose
#: the longest parts of such messages, so the bound is wide.
MAX_RECEIVED = 4 * MAX_MESSAGE
#: Writes of at most this many bytes are done at once or not at all (PIPE_BUF of Linux).
_ATOMIC = 4096
#: A pipe as large as a piece of a blob: fewer turns between the two processes.
_PIPE_BYTES = 1 << 20
_STDERR_LINES = 20
_LINE_CHARS = 2000
_END_SECONDS = 5.0

logger = logging.getLogger("sandglass")


class Transport(Protocol):
    """Carries whole messages. `send` may be called by several threads, `receive` by one."""

    #: Messages of at most this many bytes are sent at once or not at all, even if an exception interrupts `send`.
    atomic: int

    def send(self, data: bytes | memoryview, is_binary: bool, head: bytes = b"") -> None:
        """Sends `head` and `data` as one message. Raises OSError if the other side is gone."""

    def receive(self) -> tuple[bytes, bool] | None:
        """The next message, and true if it is binary. None if the other side is gone."""

    def close(self) -> None:
        """Ends the connection, and the program if there is one."""

    def abandon(self) -> None:
        """Forgets the connection, which belongs to the parent of this forked process."""

    def why(self) -> str:
        """Tells why the other side is gone."""


class Program:
    """`sandglass-host rpc`, which ends when its input ends: also when this process is killed."""

    atomic = _ATOMIC

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            # In a process group of its own, Ctrl-C in a terminal reaches this process alone.
            self._process = subprocess.Popen(
                [path, "rpc"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environment(),
                process_group=0,
            )
        except OSError as error:
            raise SandboxError("backend_unavailable", f"{path} could not be started: {error}") from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._input = self._process.stdin.fileno()
        self._output = open(self._process.stdout.fileno(), "rb", _PIPE_BYTES, closefd=False)  # noqa: SIM115
        for pipe in (self._process.stdin, self._process.stdout):
            _widen(pipe.fileno())
        #: Guards the pipe.
        self._lock = Lock()
        self._is_closed = False
        self._said: deque[str] = deque(maxlen=_STDERR_LINES)
        self._listener = Thread(target=self._listen, name="sandglass-stderr", daemon=True)
        self._listener.start()

    def send(self, data: bytes | memoryview, is_binary: bool, head: bytes = b"") -> None:
        kind = b"Content-Type: application/octet-stream\r\n" if is_binary else b""
        header = b"Content-Length: %d\r\n%s\r\n%s" % (len(head) + len(data), kind, head)
        with self._lock:
            if self._is_closed:  # the number of its pipe may be another file's by now
                raise BrokenPipeError("the program's input is closed")
            if len(header) + len(data) <= _ATOMIC:
                os.write(self._input, header + data)
                return
            views = [memoryview(header), memoryview(data)]
            while views:
                count = os.writev(self._input, views)
                while views and count >= len(views[0]):
                    count -= len(views.pop(0))
                if views:
                    views[0] = views[0][count:]

    def receive(self) -> tuple[bytes, bool] | None:
        size, is_binary = -1, False
        while (line := self._output.readline(1024)) != b"\r\n":
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
            elif name.lower() == b"content-type":
                is_binary = value.strip() == b"application/octet-stream"
            else:
                return None  # the end, or no message
        if not 0 <= size <= MAX_RECEIVED:
            return None
        data = self._output.read(size)
        return (data, is_binary) if len(data) == size else None

    def close(self) -> None:
        assert self._process.stdin
        is_free = self._lock.acquire(timeout=_END_SECONDS)
        if not is_free:  # somebody writes, and the program does not read
            self._process.kill()
            is_free = self._lock.acquire(timeout=_END_SECONDS)  # not without a bound: this may be the end of Python
        self._is_closed = True
        if is_free:
            with suppress(OSError):
                self._process.stdin.close()
            self._lock.release()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def abandon(self) -> None:
        self._lock = Lock()
        self._is_closed = True
        # A copy of the pipe's end in this process would keep the program alive after its parent's end.
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe:
                pipe.close()
        self._process.returncode = 0  # it is no child of this process, so nobody may wait for it

    def why(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._listener.join(_END_SECONDS)
        code = self._process.poll()
        how = "closed its output" if code is None else f"ended with code {code}"
        said = "\n".join(self._said)
        return f"{self._path} {how}" + (f" and said:\n{said}\n" if said else ". ")

    def _listen(self) -> None:
        assert self._process.stderr
        with open(self._process.stderr.fileno(), encoding="utf-8", errors="replace", closefd=False) as lines:
            for line in lines:
                level, text = _read_log(line.strip()[:_LINE_CHARS])
                self._said.append(text)
                logger.log(level, "%s", text)


def _read_log(line: str) -> tuple[int, str]:
    """The level of a line of the program's log, and its text."""
    word, _, rest = line.partition(" ")
    level = {"ERROR": logging.ERROR, "WARN": logging.WARNING}.get(word)
    return (logging.INFO, line) if level is None else (level, rest)


def _widen(pipe: int) -> None:
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # the user's pipes may be large enough in all already
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
