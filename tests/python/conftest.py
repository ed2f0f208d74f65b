"""A runtime on a fake bridge. The bridge records all messages to the host, and sleeps take virtual time."""

from __future__ import annotations

import asyncio
import builtins
import gc
import json
import linecache
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[2] / "pyodide-glue" / "python"))

from sandglass.runtime import values
from sandglass.runtime.runtime import Runtime
from sandglass.state.portable import generators
from sandglass.state.state import State

if TYPE_CHECKING:
    from sandglass.runtime.bridge import Answer
    from sandglass.runtime.runtime import Ended
    from sandglass.runtime.wire import Encoding

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPIPE)

settings.register_profile("untimed", deadline=None)  # a slow machine is not a failure
settings.load_profile("untimed")

CONFIG = {
    "maxOutputChars": 50_000,
    "maxValueBytes": 64 * 1024 * 1024,
    "maxValueDepth": 100,
    "maxSourceCache": 1_000_000,
    "maxDisplays": 10,
    "maxDisplayBytes": 100_000,
    "maxDisplaysBytes": 200_000,
    "maxFiles": 100,
    "hostFunctions": ["fetch_page"],
}


_STREAMS = ("stdin", "stdout", "stderr")
_SYS = ("excepthook", "displayhook", "unraisablehook", "breakpointhook", *_STREAMS, *(f"__{n}__" for n in _STREAMS))
#: Attributes that sandglass replaces, or might. Audit hooks and those of os.fork can neither be read nor restored.
_PLACES: list[tuple[Any, str]] = [
    *((sys, name) for name in _SYS),
    (builtins, "input"),
    (time, "sleep"),
    (os, "write"),
    (os, "fork"),
    (os, "_exit"),
    (os, "abort"),
    (asyncio, "run"),
    (asyncio.runners, "run"),
    (asyncio.events, "_event_loop_policy"),
    (threading, "excepthook"),
    (linecache, "cache"),
]


def hooks() -> dict[str, object]:
    """The current objects in `_PLACES` and other hooks of the interpreter, by name."""
    return {
        **{f"{module.__name__}.{name}": getattr(module, name) for module, name in _PLACES},
        **{f"the handler of {number.name}": signal.getsignal(number) for number in _SIGNALS},
        "sys.modules['__main__']": sys.modules["__main__"],
        "sys.meta_path": [*sys.meta_path],
        "sys.path_hooks": [*sys.path_hooks],
        "the hooks of asynchronous generators": sys.get_asyncgen_hooks(),
    }


def is_ours(hook: Any) -> bool:
    if isinstance(hook, (list, tuple)):
        return any(map(is_ours, hook))
    return str(getattr(hook, "__module__", "")).startswith("sandglass")


@contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Installs the runtime for a block only, because pytest replaces sys.stdout between phases."""
    before = hooks()
    runtime.install()
    taken = [name for name, hook in hooks().items() if hook is not before[name] and hook != before[name]]
    try:
        yield runtime
    finally:
        runtime.uninstall()
    after = hooks()
    left = [name for name in taken if after[name] is not before[name] and after[name] != before[name]]
    assert taken and not left, f"not given back: {', '.join(left)}"


@pytest.fixture(autouse=True)
def _interpreter() -> Iterator[None]:
    """Checks that a test leaves nothing of sandglass in the interpreter, and removes what cells put there."""
    before = hooks()
    yield
    left = [name for name, hook in hooks().items() if is_ours(hook) and hook is not before[name]]
    for module, name in _PLACES:
        setattr(module, name, before[f"{module.__name__}.{name}"])
    gc.enable()
    assert not left, f"not given back: {', '.join(left)}"


class Reply:
    """A host's reply that is a failure."""

    def __init__(self, message: str, kind: str = "error") -> None:
        self.message, self.kind = message, kind


class FakeBridge:
    def __init__(self) -> None:
        self.messages: list[tuple[str, int, str]] = []
        self.calls: list[tuple[str, list[Any]]] = []
        self.lines: list[tuple[int, ...]] = []  # of calls of user's functions: cell and line
        self.events: list[str] = []
        self.displays: list[tuple[str, bytes]] = []
        self.slept: list[float | None] = []
        self.answer: Callable[..., Any] = lambda *args: f"answer to {args[0]}"
        self.interrupt_sleep = False
        self.interrupt_call = False

    def output(self, stream: str, skipped: int, text: str) -> None:
        assert len(text) <= 64 * 1024
        text.encode()  # fails unless the text is valid UTF-8
        self.messages.append((stream, skipped, text))
        self.events.append(stream)

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        assert type(mime) is str and type(data) is bytes
        self.displays.append((mime, data))
        self.events.append("display")

    def flat(self, value: Any) -> list[Any]:
        """The arguments of a call; keyword arguments are one dict at the end."""
        if isinstance(value, tuple):
            args, kwargs, *line = value
            self.lines.append(tuple(line))
            return [*args, kwargs] if kwargs else args
        return [value] if isinstance(value, str) else value

    def host_call(self, name: str, calls: list[tuple[Encoding, str | bytes]]) -> list[Answer]:
        self.events.append("call")
        if self.interrupt_call:
            raise KeyboardInterrupt
        decoded = [body if isinstance(body, str) else values.decode(encoding, body) for encoding, body in calls]
        arguments = [self.flat(value) for value in decoded]
        self.calls.append((name, arguments))
        replies = []
        for args in arguments:
            reply = self.answer(*args)
            if isinstance(reply, Reply):
                replies.append((reply.kind, "none", reply.message))
            else:
                replies.append(("ok", *values.encode(reply, max_bytes=10**8, max_depth=100)))
        return replies

    def sleep(self, seconds: float | None) -> None:
        self.events.append("sleep")
        self.slept.append(seconds)
        if self.interrupt_sleep:
            raise KeyboardInterrupt

    def text(self, stream: str) -> str:
        return "".join(text for name, _, text in self.messages if name == stream)


class Cell:
    """All that the host knows of one execution."""

    def __init__(self, ended: Ended | None, bridge: FakeBridge) -> None:
        assert ended is not None
        self.header, encoding, body = ended
        assert len(json.dumps(self.header)) < 10_000_000
        self.ended = self.header["ended"]
        self.error_type = self.header["errorType"]
        self.names = self.header.get("names")
        self.final = values.decode(encoding, body) if self.header["final"] else None
        self.has_final = self.header["final"]
        self.stdout, self.stderr = bridge.text("stdout"), bridge.text("stderr")
        self.result, self.error = bridge.text("result"), bridge.text("error")
        self.traceback = bridge.text("traceback")
        self.messages = bridge.messages
        self.displays = bridge.displays
        self.omitted_displays = self.header.get("omittedDisplays", 0)


class Guest:
    def __init__(self) -> None:
        self.bridge = FakeBridge()
        self.runtime = Runtime(self.bridge)
        self.state = State(self.runtime)
        self.count = 0

    def run(self, source: str, ahead: bool = False) -> Cell:
        self.bridge.messages = []
        self.bridge.displays = []
        self.count += 1
        with installed(self.runtime) as runtime:
            reply = runtime.execute(self.count, source, ahead)
        return Cell(reply, self.bridge)

    def write(self, pieces: list[str]) -> Cell:
        """Runs a cell whose text comes in these pieces. Each but the last ends with a statement."""
        self.bridge.messages = []
        self.bridge.displays = []
        self.count += 1
        with installed(self.runtime) as runtime:
            if len(pieces) == 1:
                return Cell(runtime.execute(self.count, pieces[0]), self.bridge)
            runtime.extend(self.count, pieces[0], False)
            reply = runtime.execute(self.count, pieces[0], True)
            for number, piece in enumerate(pieces[1:], 2):
                assert reply is None
                runtime.extend(self.count, piece, number == len(pieces))
                reply = runtime.execute(self.count, piece, number < len(pieces))
        return Cell(reply, self.bridge)

    def ok(self, source: str) -> Cell:
        cell = self.run(source)
        assert cell.ended == "ok", cell.traceback
        return cell

    def get(self, name: str) -> Any:
        return values.decode(*self.runtime.get_variable(name))

    def listing(self) -> Any:
        return values.decode(*self.runtime.list_variables())

    def put(self, name: str, value: Any) -> None:
        self.runtime.set_variable(name, *values.encode(value, max_bytes=10**9, max_depth=100))


@pytest.fixture
def guest() -> Iterator[Guest]:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    generators.begin()  # as guests do
    recursion_limit, modules, builtin_names = sys.getrecursionlimit(), dict(sys.modules), dict(vars(builtins))
    yield guest
    sys.setrecursionlimit(recursion_limit)
    sys.modules.update(modules)
    vars(builtins).update(builtin_names)
