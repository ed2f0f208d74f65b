"""Attributes warnings to the user's code, and never to the runtime below it.

Python attributes a warning to the frame in which an object ends (`coroutine 'f' was never awaited`), or to the frame a
number of levels up (`stacklevel`). For a cell's last value, and for a cell's own level, this frame is the runtime's.
"""

from __future__ import annotations

import warnings
from sys import _getframe, modules
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.user_code import CELL_PREFIX, is_ours

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, FrameType

_REGISTRY = "__warningregistry__"
_PACKAGE = __name__.partition(".")[0]
#: The runtime's namespaces, when `share_tables` has noted them.
_shared_tables: list[dict[str, Any]] = []


def share_tables() -> None:
    """Notes the runtime's namespaces, for all copies of this process.

    The search in each copy would write to shared pages.
    """
    _shared_tables[:] = _tables()


def _tables() -> list[dict[str, Any]]:
    return [vars(module) for name, module in list(modules.items()) if name.partition(".")[0] == _PACKAGE]


class WarningOrigin:
    """Sets the origin of each warning."""

    def __init__(self) -> None:
        self._last: CodeType | None = None
        self._is_noted = False  # True when a warning was noted in a registry of ours
        self._show: Callable[[Any], None] = vars(warnings)["_showwarnmsg"]
        self._tables = _shared_tables or _tables()

    def begin(self, namespace: dict[str, Any]) -> None:
        """Begins a cell. Each cell is a file of its own, so a warning that another cell has shown is shown again."""
        namespace.pop(_REGISTRY, None)
        if self._is_noted:
            self._is_noted = False
            for table in self._tables:
                table.pop(_REGISTRY, None)

    def end_with(self, code: CodeType) -> None:
        """Notes the last statement of the cell, in which the cell's last value ends."""
        self._last = code

    def show(self, message: Any) -> None:
        """Stands for `warnings._showwarnmsg`."""
        if type(message.filename) is str and is_ours(message.filename):
            self._is_noted = True
            place = _user_place(_getframe(1)) or _end_of(self._last)
            if place is not None:
                message.filename, message.lineno = place
        self._show(message)


def _user_place(frame: FrameType | None) -> tuple[str, int] | None:
    while frame is not None:
        if frame.f_code.co_filename.startswith(CELL_PREFIX):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def _end_of(code: CodeType | None) -> tuple[str, int] | None:
    lines = [] if code is None else [line for _, _, line in code.co_lines() if line]
    return None if code is None or not lines else (code.co_filename, lines[-1])
