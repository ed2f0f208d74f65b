"""The host's end of a native guest: a real process on a socketpair, and frames written by hand."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sandglass.runtime import values
from sandglass.runtime.wire import VERSION

if TYPE_CHECKING:
    from sandglass.runtime.wire import (
        Encoding,
        ExecuteRequest,
        GuestConfig,
        HostReplyRequest,
        ReplyStatus,
        Request,
        StopReason,
    )

FOLDER = str(Path(__file__).parents[2] / "pyodide-glue" / "python")
BOOTSTRAP = "import sys; sys.path.insert(0, sys.argv.pop(1)); from sandglass.__main__ import main; main()"
#: A zygote's work, without the namespaces, which need privileges.
FORKED = """import os, sys
sys.path.insert(0, sys.argv.pop(1))
from sandglass.native import guest as native, zygote
fd, epoch = int(sys.argv[2]), int(sys.argv[4])
zygote.become_quiet()
guest = zygote.fork_in_thread(lambda: None, lambda: native.serve(fd, epoch, False))
os.close(fd)
os._exit(os.waitstatus_to_exitcode(os.waitpid(guest, 0)[1]) % 256)
"""
EPOCH = 0xFEDCBA98
PATIENCE_SECONDS = 120.0
CONFIG: GuestConfig = {
    "maxOutputChars": 50_000,
    "maxValueBytes": 64 << 20,
    "maxMemoryBytes": 1 << 30,
    "maxValueDepth": 100,
    "maxSourceCache": 1_000_000,
    "maxDisplays": 10,
    "maxDisplayBytes": 1_000_000,
    "maxDisplaysBytes": 2_000_000,
    "maxFileBytes": 1_000_000,
    "maxFiles": 1000,
    "hostFunctions": ["llm_query", "fetch_page"],
    "maxHostCalls": 1000,
    "profile": "default",
    "maxResultBytes": 0,
    "outputFields": [],
}
#: An event as the guest wrote it: anything.
Event = dict[str, Any]


def text(value: str) -> tuple[Encoding, bytes]:
    return "text", value.encode()


class Execution:
    """All that the host knows of one execution."""

    def __init__(self) -> None:
        self.streams: dict[str, str] = {}
        self.calls: list[tuple[str, Any]] = []
        self.displays: list[tuple[str, bytes]] = []
        self.report: dict[str, Any] = {}
        self.final: Any = None

    def __getattr__(self, name: str) -> str:
        if name in ("stdout", "stderr", "result", "error", "traceback"):
            return self.streams.get(name, "")
        raise AttributeError(name)


class Host:
    """Speaks to one guest. `answer` gets a function's name and arguments and returns `(encoding, body)`."""

    epoch = EPOCH

    def __init__(
        self,
        folder: Path,
        *,
        as_module: bool = False,
        program: str = BOOTSTRAP,
        forks: bool = False,
        journals: bool = False,
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        more = ["--control", str(control.fileno())] if forks else []
        more += ["--journals"] if journals else []
        self.socket.settimeout(PATIENCE_SECONDS)
        command = ["-m", "sandglass"] if as_module else ["-I", "-c", program, FOLDER]
        self.process = subprocess.Popen(
            [sys.executable, *command, "--fd", str(theirs.fileno()), "--epoch", str(EPOCH), *more],
            pass_fds=[theirs.fileno(), control.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": FOLDER},
        )
        theirs.close()
        control.close()
        self.exchange = self.execution = 0
        self.credits = True
        self.answer: Callable[[str, Any], tuple[Encoding, bytes]] = lambda name, argument: text(f"answer to {argument}")

    def __enter__(self) -> Host:
        return self

    def __exit__(self, _type: type | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        self.socket.close()
        self.control.close()
        self.process.kill()
        self.process.wait()

    # ---- frames ----

    def send(self, request: Request, *bodies: bytes, epoch: int | None = None) -> None:
        self.socket.sendall(frame(request, *bodies, epoch=self.epoch if epoch is None else epoch))

    def receive(self) -> tuple[list[Event], list[bytes]]:
        (length,) = struct.unpack("<I", self._take(4))
        data = self._take(length)
        epoch, header_length = struct.unpack_from("<II", data)
        assert epoch == self.epoch
        events: list[Event] = json.loads(data[8 : 8 + header_length])
        bodies, at = [], 8 + header_length
        while at < length:
            (size,) = struct.unpack_from("<I", data, at)
            bodies.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        assert at == length
        has_body = ("hostCall", "display", "value", "part", "noted")
        assert len(bodies) == sum(
            event["type"] in has_body or (event["type"] == "executed" and event["execution"]["final"])
            for event in events
        )
        if self.credits:
            size = sum(len(event["text"].encode()) for event in events if event["type"] == "output")
            with_body = [event for event in events if event["type"] in has_body]
            size += sum(
                len(body)
                for event, body in zip(with_body, bodies[: len(with_body)], strict=True)
                if event["type"] == "display"
            )
            if size:
                self.send({"type": "credit", "bytes": size})
        return events, bodies

    def hears_anything_within(self, seconds: float) -> bool:
        return bool(select.select([self.socket], [], [], seconds)[0])

    def _take(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)

    # ---- exchanges ----

    def init(self, **changes: Any) -> Event:
        config: Any = {**CONFIG, **changes}
        self.send({"type": "init", "version": VERSION, "config": config, "restores": False})
        (event,), _ = self.receive()
        return event

    def begin(self, code: str, timeout_ms: float = PATIENCE_SECONDS * 1000) -> None:
        self.exchange += 1
        self.execution += 1
        self.send(self.execute(code, timeout_ms))

    def execute(self, code: str, timeout_ms: float) -> ExecuteRequest:
        """The request to run this code."""
        return {
            "type": "execute",
            "exchange": self.exchange,
            "execution": self.execution,
            "code": code,
            "timeoutMs": timeout_ms,
        }

    def end(self, until: str | None = None, *, promoted: bool = False) -> Execution:
        """Takes events to the execution's end, or until the text `until` was printed.

        `promoted`: also accepts a copy's events that it is promoted, or waits for that.
        """
        seen = Execution()
        while True:
            is_over = self.hear(seen, promoted=promoted)
            if is_over:
                assert until is None, seen.streams
                return seen
            if until is not None and until in seen.streams.get("stdout", ""):
                return seen

    def hear(self, seen: Execution, *, promoted: bool = False) -> bool:
        """Takes the events of the next frame. Returns true if the execution has ended with them."""
        events, bodies = self.receive()
        for event in events:
            kind = event["type"]
            assert event["exchange"] == self.exchange, event
            if kind == "output":
                seen.streams[event["stream"]] = seen.streams.get(event["stream"], "") + event["text"]
            elif kind == "display":
                seen.displays.append((event["mime"], bodies.pop(0)))
            elif kind == "hostCall":
                argument = values.decode(event["encoding"], bodies.pop(0))
                seen.calls.append((event["name"], argument))
                self.called(event["call"], event["name"], argument)
            elif not promoted or kind not in ("promoted", "waiting"):
                assert kind == "executed", event
                seen.report = event["execution"]
                if seen.report["final"]:
                    seen.final = values.decode(event["encoding"], bodies.pop(0))
                return True
        return False

    def called(self, call: int, name: str, argument: Any) -> None:
        """Answers a host call."""
        encoding, body = self.answer(name, argument)
        self.reply(call, encoding, body)

    def reply(
        self, call: int, encoding: Encoding, body: bytes, status: ReplyStatus = "ok", message: str | None = None
    ) -> None:
        answer: HostReplyRequest = {"type": "hostReply", "call": call, "status": status, "encoding": encoding}
        if message is not None:
            answer["message"] = message
        self.send(answer, *([body] if status == "ok" else []))

    def run(self, code: str, timeout_ms: float = PATIENCE_SECONDS * 1000) -> Execution:
        self.begin(code, timeout_ms)
        return self.end()

    def ok(self, code: str) -> Execution:
        seen = self.run(code)
        assert seen.report["ended"] == "ok" and seen.report["stopped"] is None, (seen.report, seen.traceback)
        return seen

    def interrupt(self, reason: StopReason = "interrupt") -> None:
        self.send({"type": "interrupt", "exchange": self.exchange, "reason": reason})

    def ask(self, kind: str, *bodies: bytes, **fields: Any) -> tuple[Event, bytes]:
        """Runs another exchange. Returns the answer and its body."""
        self.exchange += 1
        request: Any = {"type": kind, "exchange": self.exchange, "timeoutMs": PATIENCE_SECONDS * 1000, **fields}
        self.send(request, *bodies)
        (event,), bodies_back = self.receive()
        assert event["exchange"] == self.exchange
        return event, bodies_back[0] if bodies_back else b""

    # ---- copies ----

    def fork(self) -> Copy:
        """Makes a copy of the guest. Raises AssertionError with the guest's reason if it refuses."""
        return Copy(self)


class Copy(Host):
    """Speaks to a copy of another host's guest."""

    def __init__(self, origin: Host) -> None:
        self.epoch = origin.epoch + 1
        self.exchange, self.execution = origin.exchange + 100, origin.execution
        self.credits, self.answer, self.process = origin.credits, origin.answer, origin.process
        self.socket, channel = socket.socketpair()
        self.socket.settimeout(PATIENCE_SECONDS)
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._release, release = socket.socketpair()
        with channel, control, release:
            order = json.dumps({"epoch": self.epoch}).encode()
            socket.send_fds(origin.control, [order], [channel.fileno(), control.fileno(), release.fileno()])
        origin.control.settimeout(PATIENCE_SECONDS)
        data, self._pids, _, _ = socket.recv_fds(origin.control, 4096, 2)
        assert json.loads(data) == {"forked": self.epoch}, data
        self.is_guest = False
        self._unanswered: list[tuple[int, str, Any]] = []
        self.init()

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        self.control.close()
        self._release.close()
        for pidfd in self._pids:
            os.close(pidfd)

    def end_it(self) -> None:
        signal.pidfd_send_signal(self._pids[0], signal.SIGKILL)

    def end_origin(self) -> None:
        signal.pidfd_send_signal(self._pids[1], signal.SIGKILL)

    def run_ahead(self, code: str, more: bool = False) -> None:
        self.exchange += 1
        self.execution += 1
        self.send({**self.execute(code, PATIENCE_SECONDS * 1000), "ahead": True, "more": more})

    def take(self, seen: Execution, until: float | None) -> bool:
        """Takes events until this time, or until the execution's end. Returns true if it has ended."""
        while until is None or self.hears_anything_within(max(until - time.monotonic(), 0)):
            if self.hear(seen, promoted=True):
                return True
        return False

    def called(self, call: int, name: str, argument: Any) -> None:
        if self.is_guest:
            super().called(call, name, argument)
        else:
            self._unanswered.append((call, name, argument))

    def extend(self, text: str, last: bool = False) -> None:
        self.send({"type": "extend", "exchange": self.exchange, "text": text, "last": last})

    def waits(self) -> dict[str, str]:
        """Takes output until the copy waits for more code. Returns the text of each stream."""
        streams: dict[str, str] = {}
        while True:
            for event in self.receive()[0]:
                if event["type"] == "waiting":
                    return streams
                assert event["type"] == "output", event
                streams[event["stream"]] = streams.get(event["stream"], "") + event["text"]

    def let_go(self) -> None:
        """Makes the copy the guest, because its code has come."""
        self.is_guest = True
        with suppress(OSError):  # the copy has run its code, and waits no more
            self._release.send(b"x")

    def promote(self, rest: str | None = None) -> None:
        self.let_go()
        self.send({"type": "promote", "exchange": self.exchange, "rest": rest})
        for call in self._unanswered:
            self.called(*call)


def frame(request: Any, *bodies: bytes, epoch: int = EPOCH) -> bytes:
    header = json.dumps(request).encode()
    data = struct.pack("<II", epoch, len(header)) + header
    data += b"".join(struct.pack("<I", len(body)) + body for body in bodies)
    return struct.pack("<I", len(data)) + data
