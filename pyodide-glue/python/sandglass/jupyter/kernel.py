"""What code of a `JupyterREPL` takes of the kernel while it runs, and gives back: streams, folder, loop, shell."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from asyncio.events import _get_running_loop
from contextlib import ExitStack, chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from threading import RLock, current_thread, get_ident, main_thread
from typing import TYPE_CHECKING, Any

from sandglass.loop import EventLoops, FinishedLoop, outer_loop_suspended
from sandglass.output import Channel, KeptText, SharedEmitter, TextStream
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

#: Whether threads can be started: not in JupyterLite.
HAS_THREADS = sys.platform != "emscripten"
#: How long the end of a cell waits for its background tasks to be cancelled.
_CANCEL_SECONDS = 1.0
_STREAMS = ("stdout", "stderr")


def find_shell() -> Any:
    """IPython's shell, or None where there is none."""
    try:
        from IPython.core.getipython import get_ipython  # type: ignore[import-not-found]
    except ImportError:
        return None
    return get_ipython()


class Turn:
    """One execution. Streams and the working folder are the process's, so that one thread has them at a time."""

    def __init__(self, parent: Turn | None) -> None:
        self.parent = parent
        #: What executions within callbacks of this one take turns with.
        self.lock = RLock()
        self.thread = get_ident()
        self.folder: str | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether what runs here and now is a callback, and not this execution's code."""
        turn = serving.get()
        while turn is not None and turn is not self:
            turn = turn.parent
        return turn is self


#: The execution whose callback runs.
serving: ContextVar[Turn | None] = ContextVar("serving", default=None)
_first_lock = RLock()


def turns_of(parent: Turn | None) -> Any:
    """What is held while code runs that the callback of `parent` runs; of None: that no callback runs."""
    return parent.lock if parent else _first_lock


class Interrupts:
    """Holds interrupts back while the kernel changes hands, or one at the wrong moment would leave it half changed."""

    def __init__(self) -> None:
        self._allowed = self._held = False
        self._previous: Callable[[int, Any], object] | None = None

    def begin(self) -> None:
        """From now on they are held back."""
        self._held = False
        previous = signal.getsignal(signal.SIGINT)
        if current_thread() is main_thread() and callable(previous):  # others are not interrupted
            self._previous = previous
            signal.signal(signal.SIGINT, self._hear)

    def allow(self) -> None:
        """Until `hold`, they are what they are for the notebook. Raises one that was held back."""
        self._allowed = True
        if self._held:
            self._held = False
            raise KeyboardInterrupt

    def hold(self) -> None:
        """They are held back again."""
        self._allowed = False

    def end(self) -> bool:
        """All is in order. Whether there was one since `hold`."""
        previous, self._previous = self._previous, None
        if previous is not None and signal.getsignal(signal.SIGINT) == self._hear:  # code may have set its own
            signal.signal(signal.SIGINT, previous)
        return self._held

    def _hear(self, number: int, frame: Any) -> None:
        if self._allowed and self._previous is not None:
            self._previous(number, frame)
        else:
            self._held = True


class Emitter(SharedEmitter):
    """Keeps what code prints. What others print through its streams goes where it would go without them.

    Others are callbacks, and all who have kept a stream longer than the execution: handlers of `logging`, threads.
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
            with _capture():
                sys.stdout, sys.stderr = self.streams  # bounded, which those of IPython are not
                yield
        finally:
            for stream in self.streams:
                stream.buffer.finish()
            self.end()

    def text(self, name: str) -> str:
        """What the last execution printed."""
        return self._kept[name].text()

    def output(self, stream: str, skipped: int, text: str) -> None:
        """Takes what is ready to be kept."""
        self._kept[stream].add(skipped, text)

    def write(self, channel: Channel, text: str) -> None:
        if self._is_for_others():
            if (stream := self._outer.get(channel.name)) is not None:
                stream.write(text)
        else:
            super().write(channel, text)

    def writer(self, channel: Channel, otherwise: Callable[[str], int]) -> Callable[[str], int]:
        return otherwise  # the short way does not ask whose text it is

    def hurry(self) -> None:
        if self._is_for_others():
            for stream in self._outer.values():
                stream.flush()

    def _is_for_others(self) -> bool:
        return not self.active or (self._turn is not None and self._turn.is_waiting)


def _capture() -> AbstractContextManager[Any]:
    """IPython's own capture of streams, or Python's. What `display` shows is the notebook's and goes there."""
    try:
        from IPython.utils.capture import capture_output  # type: ignore[import-not-found]
    except ImportError:
        stack = ExitStack()
        for redirect, stream in ((redirect_stdout, sys.stdout), (redirect_stderr, sys.stderr)):
            stack.enter_context(redirect(stream))
        return stack
    capture: AbstractContextManager[Any] = capture_output(display=False)
    return capture


def in_folder(path: str | None) -> AbstractContextManager[None]:
    """Code runs in this folder; None: in the kernel's."""
    return chdir(path) if path is not None else nullcontext()


@contextmanager
def loop_suspended() -> Iterator[None]:
    """The kernel's event loop, within which its cells run, is not seen by code."""
    outer = _get_running_loop()
    with outer_loop_suspended():
        try:
            yield
        finally:
            if outer is not None:
                asyncio.set_event_loop(outer)  # asyncio.run() of code has left none


@contextmanager
def shell_namespace(shell: Any, variables: dict[str, Any]) -> Iterator[None]:
    """Magics see these variables in place of the notebook's."""
    before, shell.user_ns = shell.user_ns, variables
    try:
        yield
    finally:
        shell.user_ns = before


# What asyncio makes where nobody has said otherwise.
_Loop: type = getattr(asyncio, "ProactorEventLoop", asyncio.SelectorEventLoop)


class _KernelLoop(FinishedLoop, _Loop):  # type: ignore[misc]
    """A loop as scripts have it."""

    async def until_done(self, tasks: set[Any]) -> None:
        await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)


class KernelLoops(EventLoops):
    """Loops for cells that await: the kernel's own waits for the notebook's cell to end."""

    def __init__(self) -> None:
        super().__init__(lambda seconds: time.sleep(seconds or 0))

    def make(self) -> FinishedLoop:
        return _KernelLoop() if HAS_THREADS else super().make()
