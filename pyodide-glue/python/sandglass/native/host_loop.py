"""The event loop of cells on hosts. It also waits for pipes, sockets and processes.

Only the waiting is our own, because an interrupt has to end it. The loop polls descriptors between short waits, and
opens nothing for a loop without descriptors.
"""

from __future__ import annotations

from asyncio import unix_events, wait
from contextlib import suppress
from selectors import BaseSelector, DefaultSelector
from time import monotonic
from typing import TYPE_CHECKING, Any

from sandglass.runtime.loop import BEYOND_TASKS, CellLoop
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Mapping
    from selectors import SelectorKey

    from sandglass.runtime.bridge import Threads

#: The pauses between two polls: the first one, and the longest. Each pause is twice as long as the one before.
_FIRST_LOOK, _LAST_LOOK = 0.0005, 0.01
_END_SECONDS = 1.0
_UnixLoop: Any = unix_events._UnixSelectorEventLoop


class Descriptors(BaseSelector):
    """A selector that is made on first use."""

    def __init__(self) -> None:
        self._made: DefaultSelector | None = None
        #: Waits for so many seconds, or until a thread wakes the loop. None waits without end.
        self.wait: Callable[[float | None], Any] = lambda _seconds: None
        #: Returns true when the loop has work to do.
        self.is_ready: Callable[[], bool] = bool

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        if self._made is None:
            self._made = DefaultSelector()
        return self._made.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        if self._made is None:
            raise KeyError(f"{fileobj!r} is not registered")
        return self._made.unregister(fileobj)

    def get_map(self) -> Mapping[Any, SelectorKey]:
        return {} if self._made is None else self._made.get_map()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        made = self._made
        if made is None or not made.get_map():
            self.wait(timeout)
            return []
        end = None if timeout is None else monotonic() + timeout
        pause = _FIRST_LOOK
        while not (found := made.select(0)) and not self.is_ready():
            left = pause if end is None else min(pause, end - monotonic())
            if left <= 0:
                break
            self.wait(left)
            pause = min(2 * pause, _LAST_LOOK)
        return found

    def close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made.close()


class HostLoop(CellLoop, _UnixLoop):  # type: ignore[misc]
    """An event loop that also waits for descriptors."""

    _ssock: Any = None

    def __init__(self, sleep: Callable[[float | None], None], threads: Threads | None) -> None:
        descriptors = Descriptors()
        super().__init__(sleep, threads, descriptors)
        self._processes: list[Any] = []
        descriptors.wait, descriptors.is_ready = self.select, lambda: bool(self._ready)
        self._selector: Any = descriptors

    def _make_self_pipe(self) -> None:
        """Part of the selector loop. Threads wake this loop without a pipe."""

    def _close_self_pipe(self) -> None:
        if self._ssock is not None:
            super()._close_self_pipe()

    def add_signal_handler(self, *args: Any) -> None:  # type: ignore[override]
        if self._ssock is None:  # Python writes signals to the pipe
            super()._make_self_pipe()
        _UnixLoop.add_signal_handler(self, *args)

    async def _make_subprocess_transport(self, *args: Any, **options: Any) -> Any:
        transport = await _UnixLoop._make_subprocess_transport(self, *args, **options)
        self._processes.append(transport)
        return transport

    def finish(self, main: Future[Any] | None = None) -> int:
        """Ends its processes too: a closed loop could not hear of their end."""
        left = [transport for transport in self._processes if transport.get_returncode() is None]
        self._processes.clear()
        if left and not self.is_closed():
            for transport in left:
                with suppress(ProcessLookupError):
                    transport.kill()
            ends = [self.create_task(transport._wait()) for transport in left]
            with suppress(RuntimeError):
                self.run_until_complete(wait(ends, timeout=_END_SECONDS))
        return super().finish(main)


for _name in (*BEYOND_TASKS, "_process_events"):
    if _name not in vars(HostLoop):
        setattr(HostLoop, _name, getattr(_UnixLoop, _name))
