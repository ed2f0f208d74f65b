"""Objects that replace the interpreter's own for user code: streams, `input`, `time.sleep`, asyncio, …"""

from __future__ import annotations

import asyncio
import builtins
import getpass
import json
import linecache
import os
import sys
import time
import traceback
import warnings
from asyncio import events
from errno import ENOTTY
from functools import wraps
from typing import TYPE_CHECKING, Any

from sandglass.runtime.loop import CellLoop, FinishedLoop, Policy
from sandglass.runtime.output import EmptyStdin, no_input
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from sandglass.runtime.guards import Guards
    from sandglass.runtime.loop import EventLoops
    from sandglass.runtime.output import TextStream
    from sandglass.runtime.recursion import RecursionLimit


def own_interpreter(
    guards: Guards,
    *,
    streams: tuple[TextStream, TextStream],
    main: ModuleType,
    sleep: Callable[[float], None],
    write_fd: Callable[[int, bytes], None],
    has_input: Callable[[], bool],
    ask: Callable[[object], str],
    show_warning: Callable[[Any], None],
    loops: EventLoops,
    recursion: RecursionLimit,
) -> None:
    """Declares the runtime's own objects in the interpreter to `guards`.

    `write_fd` takes bytes for descriptors 1 and 2. `ask` reads a line; it is called only if `has_input` returns true,
    which means that somebody can answer.
    """

    def sleep_for(seconds: float, /) -> None:
        sleep(seconds)

    system_write = os.write

    def write(fd: int, data: Any, /) -> int:
        """Writes data to a file descriptor. Data for 1 and 2 go to `sys.stdout` and `sys.stderr`, in order."""
        if fd != 1 and fd != 2:
            return system_write(fd, data)
        size = memoryview(data).nbytes
        write_fd(fd, data)
        return size

    system_terminal_size = os.get_terminal_size

    def get_terminal_size(fd: int = 1, /) -> os.terminal_size:
        """Return the size of the terminal window as (columns, lines)."""
        if fd in (0, 1, 2):  # no terminal: pandas asks for each repr, and code that runs ahead would have to wait
            raise OSError(ENOTTY, "Inappropriate ioctl for device")
        return system_terminal_size(fd)

    def read_line(prompt: object = "", /) -> str:
        """Asks for a line of text if somebody can answer."""
        return ask(prompt) if has_input() else no_input(prompt)

    @wraps(vars(getpass)["getpass"])
    def read_secret(prompt: str = "Password: ", stream: object = None, **_options: object) -> str:
        if not has_input():
            raise EOFError("getpass() is not available in this sandbox: there is nobody to type a password")
        warnings.warn("getpass asks as input() does: what is typed may be seen", getpass.GetPassWarning, 2)
        return ask(prompt)

    read_line.__name__ = read_line.__qualname__ = "input"
    sleep_for.__name__, sleep_for.__qualname__, sleep_for.__doc__ = "sleep", "sleep", sleep.__doc__
    for name, stream in zip(("stdout", "stderr", "stdin"), (*streams, EmptyStdin()), strict=True):
        guards.own(vars(sys), name, stream)
        guards.own(vars(sys), f"__{name}__", stream)
    guards.own(vars(sys), "modules", sys.modules)
    for module in (sys, builtins, time, asyncio, linecache, traceback, json):
        guards.own(sys.modules, module.__name__, module)
    guards.own(vars(linecache), "cache", linecache.cache)
    guards.own(sys.modules, "__main__", main)
    guards.own(vars(builtins), "input", read_line)
    for name in ("getpass", "unix_getpass", "fallback_getpass"):
        guards.own(vars(getpass), name, read_secret)
    guards.own(vars(warnings), "_showwarnmsg", show_warning)
    guards.own(vars(time), "sleep", sleep_for)
    guards.own(vars(os), "write", write)
    guards.own(vars(os), "get_terminal_size", get_terminal_size)
    guards.own(vars(asyncio), "run", loops.run)
    guards.own(vars(asyncio.runners), "run", loops.run)
    guards.own(vars(asyncio), "create_task", loops.create_task)
    guards.own(vars(asyncio.tasks), "create_task", loops.create_task)
    guards.own(vars(events), "_event_loop_policy", loops.policy)
    for kind in (FinishedLoop, CellLoop, loops.kind, Policy):
        guards.own_class(kind)
    get_limit, set_limit = recursion.functions()
    guards.own(vars(sys), "getrecursionlimit", get_limit)
    guards.own(vars(sys), "setrecursionlimit", set_limit)
