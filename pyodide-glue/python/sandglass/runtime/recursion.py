"""`sys.setrecursionlimit` for users: their limit stays across cells, and the runtime's frames do not count.

While user code runs, the interpreter's limit is the user's plus the frames of the runtime below. In between, the
interpreter has its own limit, so that code which asks for ten frames leaves the runtime enough.
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
#: The event loop's frames below a cell that awaits.
_LOOP_FRAMES = 11
#: The fewest frames of user code, whatever its limit: `print` and `llm_query` need some for the runtime.
_LEAST = 30


class RecursionLimit:
    """The recursion limit that user code has set, if any."""

    def __init__(self) -> None:
        self._users: int | None = None
        self._ours = self._applied = _get()
        self._below = 0  # the runtime's frames while user code runs; -1 when not counted yet
        self._in_cell = False

    def enter(self) -> None:
        """Notes the interpreter's own limit."""
        self._ours = self._applied = _get()

    def begin(self, codes: list[CodeType]) -> None:
        """Sets the user's limit. User code must come next, at the same depth as this call."""
        self._in_cell = True
        self._below = -1
        if self._users is not None:
            self._below = _depth() - 1
            self._apply(self._users, _LOOP_FRAMES if awaits(codes) else 0)

    def end(self) -> None:
        """Sets the interpreter's own limit after user code."""
        limit, self._in_cell = _get(), False
        if limit != self._applied:  # by code that holds the interpreter's own function
            self._users = max(limit - max(self._below, 0), 1)
        if limit != self._ours:
            _set(self._ours)
        self._applied = self._ours

    def functions(self) -> tuple[Callable[[], int], Callable[[int], None]]:
        """Returns user code's `sys.getrecursionlimit` and `sys.setrecursionlimit`."""

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
                _set(wanted)  # raises Python's own errors
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
    """Counts the frames from the cell's on, for user code that calls a function that calls this."""
    count = cells = 0
    frame: FrameType | None = _getframe(2)
    while frame is not None:
        count += 1
        if frame.f_code.co_filename.startswith(CELL_PREFIX):
            cells = count
        frame = frame.f_back
    return cells or count  # on a thread's stack, no frame is ours


def _depth() -> int:
    """Returns the depth of the stack at the call, as the interpreter counts. The call itself counts."""
    try:
        _set(1)
    except RecursionError as error:  # "cannot set the recursion limit to 1 at the recursion depth 14: the …"
        return int(str(error).rpartition("depth ")[2].partition(":")[0])
    return 1
