"""Changes the kernel while code of a `JupyterREPL` runs, and changes it back: streams, folder, loop, shell."""

# Decisions: docs/internals/jupyter.md.

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from _thread import interrupt_main
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from functools import partial
from threading import RLock, Timer, current_thread, get_ident, main_thread
from typing import TYPE_CHECKING, Any

from sandglass.runtime.loop import EventLoops, FinishedLoop, outer_loop_suspended
from sandglass.runtime.output import Channel, KeptText, SharedEmitter, TextStream
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sandglass.runtime.wire import Stream

#: True when threads can be started. They cannot in JupyterLite.
HAS_THREADS = sys.platform != "emscripten"
#: The longest time for which the end of a cell waits for its cancelled background tasks, in seconds.
_CANCEL_SECONDS = 1.0
_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
#: The longest time for which an execution waits for the one before it, in seconds.
TURN_SECONDS = 600.0
_POLL_SECONDS = 0.05
#: Seconds between two interrupts of code whose time is over.
_AGAIN_SECONDS = 1.0


def find_shell() -> Any:
    """Returns IPython's shell; None when there is none."""
    try:
        from IPython.core.getipython import get_ipython  # type: ignore[import-not-found]
    except ImportError:
        return None
    return get_ipython()


class Turn:
    """One execution. Streams and the working folder belong to the process, so one thread uses them at a time."""

    def __init__(self, parent: Turn | None) -> None:
        self.parent = parent
        #: The lock by which executions inside callbacks of this one take turns.
        self.lock = RLock()
        self.thread = get_ident()
        #: The notebook's folder, module and variables, which callbacks see in place of the code's.
        self.folder: str | None = None
        self.notebook: tuple[Any, Any, Any] | None = None
        #: True when it has ended or was given up. An interrupt of an outer execution gives this one up; its threads go
        #: on.
        self.over = False
        #: Ends the code when it has run for too long.
        self.limit: TimeLimit | None = None
        self._child: Turn | None = None
        self._undo: list[Callable[[], object]] = []

    def begin(self) -> None:
        """Registers this execution with its parent. Raises RuntimeError when the parent has ended."""
        with _changes_lock:
            if self.parent is not None:
                self.parent.need()
                self.parent._child = self

    def need(self) -> None:
        """Raises RuntimeError when this execution has ended."""
        if self.over:
            raise RuntimeError("the execution that this belongs to has ended: it was interrupted, or nobody waited")

    def end(self) -> None:
        """Undoes the changes to the kernel, also those of executions inside of this one, which may still run."""
        with _changes_lock:
            self.over = True
            if self._child is not None:
                self._child.end()
            while self._undo:
                self._undo.pop()()

    @contextmanager
    def changing(self, change: Callable[[], object], undo: Callable[[], object]) -> Iterator[None]:
        """Makes a change to the kernel, and undoes it at the end. Does nothing once the execution has ended."""
        with _changes_lock:
            self.need()
            self._undo.append(undo)
            change()
        try:
            yield
        finally:
            with _changes_lock:
                while undo in self._undo:
                    self._undo.pop()()

    @property
    def is_orphan(self) -> bool:
        """Returns true when an outer execution has ended before this one."""
        return self.parent is not None and (self.parent.over or self.parent.is_orphan)

    @property
    def root(self) -> Turn:
        """The outermost execution, which no callback runs."""
        return self if self.parent is None else self.parent.root

    @property
    def is_waiting(self) -> bool:
        """Returns true when the current code belongs to a callback of this execution."""
        turn = serving.get()
        while turn is not None and turn is not self:
            turn = turn.parent
        return turn is self


#: The execution whose callback runs.
serving: ContextVar[Turn | None] = ContextVar("serving", default=None)
_first_lock = RLock()
_changes_lock = RLock()


def take_turn(parent: Turn | None, interrupts: Interrupts) -> Any:
    """Takes and returns the lock for code that a callback of `parent` runs; with None, for the outermost code."""
    lock = parent.lock if parent else _first_lock
    end = time.monotonic() + TURN_SECONDS
    while not lock.acquire(timeout=_POLL_SECONDS):  # interrupts are held back, since one could lose the lock
        interrupts.check()
        if time.monotonic() > end:
            raise RuntimeError(
                f"other code has run for {TURN_SECONDS:.0f} seconds, and this waits for its end. If that waits for"
                " this: what a callback starts in a thread of its own needs contextvars.copy_context().run"
            )
    return lock


class Interrupts:
    """Holds interrupts back while the kernel changes hands: one at the wrong moment would leave it half changed."""

    def __init__(self) -> None:
        self._allowed = self._held = self._is_struck = False
        #: True once the code was interrupted because its time was over.
        self.timed_out = False
        self._previous: Callable[[int, Any], object] | None = None
        self._raise: Callable[[int, Any], object] = signal.default_int_handler

    def begin(self) -> None:
        """Begins to hold interrupts back."""
        self._held = False
        previous = signal.getsignal(signal.SIGINT)
        if current_thread() is main_thread() and callable(previous):  # other threads get no interrupts
            self._previous = previous
            # In a cell that awaits, ipykernel's own handler makes its loop cancel the cell, and the loop waits for this
            # code.
            if not str(getattr(previous, "__module__", None)).startswith("ipykernel."):
                self._raise = previous
            signal.signal(signal.SIGINT, self._hear)

    def allow(self) -> None:
        """Lets interrupts through to the notebook's handler until `hold`. Raises one that was held back."""
        self._allowed = True
        self.check()

    def check(self) -> None:
        """Raises an interrupt that was held back."""
        if self._held:
            self._held = False
            raise KeyboardInterrupt

    def hold(self) -> None:
        """Holds interrupts back again."""
        self._allowed = False

    def end(self) -> bool:
        """Puts the notebook's handler back. Returns true when an interrupt came since `hold`."""
        previous, self._previous = self._previous, None
        if previous is not None and signal.getsignal(signal.SIGINT) == self._hear:  # code may have set its own
            signal.signal(signal.SIGINT, previous)
        return self._held

    @property
    def is_hearing(self) -> bool:
        """True while this object handles the signal."""
        return signal.getsignal(signal.SIGINT) == self._hear

    def strike(self) -> None:
        """Interrupts the code because its time is over."""
        self._is_struck = True
        if hasattr(signal, "pthread_kill"):  # this also ends a system call
            signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
        else:
            interrupt_main()

    def _hear(self, number: int, frame: Any) -> None:
        is_struck, self._is_struck = self._is_struck, False
        if is_struck:
            if self._allowed:
                self.timed_out = True
                raise KeyboardInterrupt
        elif self._allowed:
            self._raise(number, frame)
        else:
            self._held = True


class TimeLimit:
    """Interrupts code that runs for too long. The clock stops while callbacks run."""

    def __init__(self, seconds: float, strike: Callable[[], None]) -> None:
        self._left, self._strike = seconds, strike
        self._lock = RLock()
        self._timer: Timer | None = None
        self._since = 0.0
        self._is_over = False
        #: The number of running callbacks of all threads of the code, and one more while no code runs.
        self._pauses = 1

    def __enter__(self) -> TimeLimit:
        self._resume()
        return self

    def __exit__(self, *_error: object) -> None:
        self._is_over = True  # first, because a strike that comes now may end the rest of this method
        self._pause()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the time limit while a callback runs."""
        self._pause()
        try:
            yield
        finally:
            self._resume()

    def _pause(self) -> None:
        with self._lock:
            self._pauses += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
                self._left -= time.monotonic() - self._since

    def _resume(self) -> None:
        with self._lock:
            self._pauses -= 1
            if self._pauses == 0:
                self._begin(max(self._left, 0.0))

    def _begin(self, seconds: float) -> None:
        self._since = time.monotonic()
        self._timer = Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        with self._lock:
            if self._timer is current_thread() and not self._is_over:
                self._strike()
                self._begin(_AGAIN_SECONDS)  # for code that has caught the interrupt


class Emitter(SharedEmitter):
    """Keeps the output of the code. Output of others through the code's streams goes on to the notebook's.

    Others are callbacks, and whoever has kept a stream longer than the execution: handlers of `logging`, threads.
    """

    def __init__(self) -> None:
        super().__init__(self)
        self._turn: Turn | None = None
        self._kept: dict[str, KeptText] = {}
        self._outer: dict[str, Any] = {}
        self.streams = tuple(TextStream(self, name) for name in _STREAMS)

    @contextmanager
    def capturing(self, turn: Turn, limit: int) -> Iterator[None]:
        """Takes the place of `sys.stdout` and `sys.stderr`."""
        found = {name: getattr(sys, name) for name in _STREAMS}
        self._outer.update((name, stream) for name, stream in found.items() if stream not in self.streams)
        self._kept = {name: KeptText(limit) for name in _STREAMS}
        self._turn = turn
        self.begin(limit)
        try:
            capture = _capture()

            def begin() -> None:
                capture.__enter__()
                sys.stdout, sys.stderr = self.streams  # bounded, unlike IPython's

            with turn.changing(begin, lambda: capture.__exit__(None, None, None)):
                yield
        finally:
            for stream in self.streams:
                stream.buffer.finish()
            self.end()

    def text(self, name: str) -> str:
        """The output of the last execution."""
        return self._kept[name].text()

    def output(self, stream: str, skipped: int, text: str) -> None:
        """Takes the text that is ready to be kept."""
        self._kept[stream].add(skipped, text)

    def write(self, channel: Channel, text: str) -> None:
        if self._is_for_others():
            if (stream := self._outer.get(channel.name)) is not None:
                stream.write(text)
        else:
            super().write(channel, text)

    def writer(self, channel: Channel, otherwise: Callable[[str], int]) -> Callable[[str], int]:
        return otherwise  # the short way would not ask whose text it is

    def hurry(self) -> None:
        if self._is_for_others():
            for stream in self._outer.values():
                stream.flush()

    def _is_for_others(self) -> bool:
        return not self.active or (self._turn is not None and self._turn.is_waiting)


def _capture() -> AbstractContextManager[Any]:
    """Stands for IPython's or Python's own capture of streams. Displays belong to the notebook and go there."""
    try:
        from IPython.utils.capture import capture_output  # type: ignore[import-not-found]
    except ImportError:
        stack = ExitStack()
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            stack.enter_context(redirect(stream))
        return stack
    capture: AbstractContextManager[Any] = capture_output(display=False)
    return capture


def in_folder(turn: Turn, path: str | None) -> AbstractContextManager[None]:
    """Runs code in this folder; with None, in the kernel's."""
    if path is None:
        return nullcontext()
    return turn.changing(partial(os.chdir, path), partial(os.chdir, os.getcwd()))


@contextmanager
def loop_suspended() -> Iterator[None]:
    """Hides the kernel's event loop, which runs the kernel's cells, from code."""
    before = _loop_of_thread()
    with outer_loop_suspended():
        try:
            yield
        finally:
            if _loop_of_thread() is not before:
                asyncio.set_event_loop(before)  # asyncio.run() of the code has removed the loop


def _loop_of_thread() -> Any:
    """Returns the loop that `set_event_loop` has set. `get_event_loop` would make one."""
    local = getattr(getattr(asyncio.events, "_event_loop_policy", None), "_local", None)
    return getattr(local, "_loop", None)


@contextmanager
def in_notebook(turn: Turn) -> Iterator[None]:
    """Shows a callback the notebook's folder and variables, if its thread may: both belong to the process."""
    with ExitStack() as stack:
        if turn.thread == get_ident():
            stack.enter_context(in_folder(turn, turn.folder))
            if turn.notebook is not None:
                stack.enter_context(_shown(turn, find_shell(), *turn.notebook))
        yield


@contextmanager
def shell_namespace(turn: Turn, shell: Any, module: Any) -> Iterator[None]:
    """Shows magics this module's variables in place of the notebook's."""
    variables, hidden, mine = vars(module), shell.user_ns_hidden, dict(shell.user_ns_hidden)
    turn.notebook = shell.user_module, shell.user_ns, hidden
    variables.setdefault("_dh", shell.user_ns.get("_dh", []))  # %cd needs this name
    try:
        with _shown(turn, shell, module, variables, mine):
            yield
    finally:
        turn.notebook = None
        for name in hidden.keys() | {"_dh"}:  # %reset has put IPython's own there
            if name in variables and any(variables[name] is kept.get(name) for kept in (hidden, mine, shell.user_ns)):
                del variables[name]


def _shown(turn: Turn, shell: Any, *notebook: Any) -> AbstractContextManager[None]:
    """Returns the shell's module, its variables, and the names that are IPython's own."""

    def show(module: Any, variables: Any, hidden: Any) -> None:
        shell.user_module, shell.user_ns, shell.user_ns_hidden = module, variables, hidden

    before = shell.user_module, shell.user_ns, shell.user_ns_hidden
    return turn.changing(partial(show, *notebook), partial(show, *before))


# asyncio's default loop.
_Loop: type = getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)


class _KernelLoop(FinishedLoop, _Loop):  # type: ignore[misc]
    """Makes a loop as for scripts."""

    async def until_done(self, tasks: set[Any]) -> None:
        await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)

    async def shutdown_asyncgens(self) -> None:
        await asyncio.wait([self.create_task(super().shutdown_asyncgens())], timeout=_CANCEL_SECONDS)


class KernelLoops(EventLoops):
    """Makes loops for cells that await. The kernel's own loop waits for the notebook's cell to end."""

    def __init__(self) -> None:
        super().__init__(lambda seconds: time.sleep(seconds or 0))

    def make(self) -> FinishedLoop:
        return _KernelLoop() if HAS_THREADS else super().make()
