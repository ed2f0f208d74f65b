"""Copies of a native guest that user code made by `os.fork`. They have no part in the sandbox."""

from __future__ import annotations

from os import _exit
from os import write as system_write
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from sandglass.runtime.wire import ExecutionReport


def write_all(fd: int, text: str) -> None:
    """Writes text to a descriptor."""
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[system_write(fd, data) :]


def leave_copy(report: ExecutionReport, error: str) -> None:
    """Ends a copy that user code made, at the end of the cell that made it, as a script would end."""
    failure = report.get("errorType")
    try:
        if failure and failure != "SystemExit":
            write_all(2, error)
    finally:
        _exit(1 if failure else 0)
