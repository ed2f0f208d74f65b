"""Exceptions as text. Tracebacks have guest frames only: cells and the library code that they call."""

from __future__ import annotations

from traceback import StackSummary, TracebackException
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.user_code import CELL_PREFIX, is_ours
from sandglass.runtime.values import type_name

if TYPE_CHECKING:
    from collections.abc import Iterator

_FALLBACK_CHARS = 2000


def describe(error: BaseException) -> tuple[str, str]:
    """Returns the traceback's last line(s) (`ZeroDivisionError: division by zero`), and the full traceback.

    Survives exceptions whose `__str__`, attributes or causes are broken.
    """
    try:
        summary = TracebackException(type(error), error, error.__traceback__, lookup_lines=False, compact=True)
        for part in _chain(summary):
            _keep_guest_frames(part)
        return _last_line(summary, error), "".join(summary.format())
    except Exception:
        text = f"{type_name(error)}: {_message(error)}"
        return text, text + "\n"


def _chain(summary: TracebackException) -> Iterator[TracebackException]:
    todo, seen = [summary], set()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        todo += [other for other in (part.__cause__, part.__context__, *(part.exceptions or ())) if other is not None]


def _keep_guest_frames(part: TracebackException) -> None:
    frames = [frame for frame in part.stack if not is_ours(frame.filename)]
    for start, frame in enumerate(frames):
        if frame.filename.startswith(CELL_PREFIX):
            frames = frames[start:]  # frames below the cell, such as the event loop's, are not the guest's
            break
    part.stack = StackSummary.from_list(frames) if frames else None  # type: ignore[assignment]


def _last_line(summary: TracebackException, error: BaseException) -> str:
    lines = list(summary.format_exception_only())
    if issubclass(type(error), SyntaxError):  # file, line and caret come first
        name = type_name(error)
        lines = [line for line in lines if line.startswith(name)] or lines[-1:]
    return lines[0].rstrip("\n")


def message_of(error: BaseException) -> str:
    """Returns the message of any exception, or the name of its class if there is no readable message."""
    try:
        return str.__str__(str(error)) or type_name(error)
    except BaseException:
        return type_name(error)


def _message(error: BaseException) -> str:
    try:
        return str.__str__(str(error))[:_FALLBACK_CHARS]
    except Exception:
        return "<exception str() failed>"
