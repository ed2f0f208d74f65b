"""`sys.setrecursionlimit` as users know it: what they set stays, and frames of the runtime's do not count.

While user code runs, the interpreter's limit is theirs, and as much more as the runtime has on the stack below. In
between it is what it was, so that code which asks for ten frames leaves the runtime enough.
"""

from __future__ import annotations

from operator import index
from sys import _getframe
from sys import getrecursionlimit as _get
from sys import setrecursionlimit as _set
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.running import awaits
from sandglass.runtime.user_code import CELL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_MOST = (1 << 31) - 1
#: Frames of the event loop below a cell that awaits.
_LOOP_FRAMES = 12
#: Frames that user code has, whatever it asks for: `print` and `llm_query` need some, which are the runtime's.
_LEAST = 30


class RecursionLimit:
    """The limit that user code has set, if any."""

    def __init__(self) -> None:
        self._users: int | None = None
        self._ours = self._applied = _get()
        self._below = 0  # frames of the runtime's, while user code runs; -1: they were not counted yet
        self._in_cell = False

    def enter(self) -> None:
        """Notes the limit of the interpreter."""
        self._ours = self._applied = _get()

    def begin(self, codes: list[CodeType]) -> None:
        """User code comes next, in place of this call."""
        self._in_cell = True
        self._below = -1
        if self._users is not None:
            self._below = _depth() - 1
            self._apply(self._users, _LOOP_FRAMES if awaits(codes) else 0)

    def end(self) -> None:
        """User code has ended: the interpreter has its own limit again."""
        limit, self._in_cell = _get(), False
        if limit != self._applied:  # by code that has the interpreter's own function
            self._users = max(limit - max(self._below, 0), 1)
        if limit != self._ours:
            _set(self._ours)
        self._applied = self._ours

    def functions(self) -> tuple[Callable[[], int], Callable[[int], None]]:
        """The functions that user code has for `sys.getrecursionlimit` and `sys.setrecursionlimit`."""

        def getrecursionlimit() -> int:
            """Return the maximum depth of the Python interpreter stack. The sandbox's own frames are not counted."""
            limit = _get()
            if limit != self._applied:
                return max(limit - max(self._below, 0), 1)
            return limit if self._users is None else self._users

        def setrecursionlimit(limit: int, /) -> None:
            """Set the maximum depth of the Python interpreter stack. It holds in later cells as well."""
            wanted = index(limit)
            if not 1 <= wanted <= _MOST:
                _set(wanted)  # raises what Python raises
            depth = _depth() - 1
            if self._below < 0:
                self._below = depth - 1 - _frames_of_code()
            depth -= self._below
            if depth >= wanted:
                raise RecursionError(
                    f"cannot set the recursion limit to {wanted} at the recursion depth {depth}: the limit is too low"
                )
            self._users = wanted
            if self._in_cell:
                self._apply(wanted, 0)

        for function in (getrecursionlimit, setrecursionlimit):
            function.__qualname__ = function.__name__
            function.__module__ = "sys"
        return getrecursionlimit, setrecursionlimit

    def _apply(self, limit: int, more: int) -> None:
        self._applied = min(max(limit, _LEAST) + self._below + more, _MOST)
        _set(self._applied)


def _frames_of_code() -> int:
    """The number of frames from the cell's on, where user code calls a function that calls this."""
    count = cells = 0
    frame: FrameType | None = _getframe(2)
    while frame is not None:
        count += 1
        if frame.f_code.co_filename.startswith(CELL_PREFIX):
            cells = count
        frame = frame.f_back
    return cells or count  # a thread, on whose stack there is nothing of ours


def _depth() -> int:
    """The depth of the stack where this is called, as the interpreter counts; the call itself is counted."""
    try:
        _set(1)
    except RecursionError as error:  # "cannot set the recursion limit to 1 at the recursion depth 14: the …"
        return int(str(error).rpartition("depth ")[2].partition(":")[0])
    return 1
