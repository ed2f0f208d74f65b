"""Runs a compiled cell."""

from __future__ import annotations

from inspect import CO_COROUTINE
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from contextvars import Context
    from types import CodeType

    from sandglass.runtime.loop import EventLoops


def awaits(codes: list[CodeType]) -> bool:
    """Returns true when a cell is a coroutine."""
    return any(code.co_flags & CO_COROUTINE for code in codes)


def run(
    codes: list[CodeType],
    namespace: dict[str, Any],
    loops: EventLoops,
    context: Context | None = None,
) -> Any:
    """Runs compiled code. Returns the value of its last expression; None when there is none.

    A cell that awaits runs in `context`, which must not be entered already, or by default in a copy of the current one.
    Other cells run in the current one.
    """
    if awaits(codes):
        return loops.run_cell(_run_async(codes, namespace), context)
    value = None
    for code in codes:
        value = eval(code, namespace)
    return value


async def _run_async(codes: list[CodeType], namespace: dict[str, Any]) -> Any:
    value = None
    for code in codes:
        value = eval(code, namespace)
        if code.co_flags & CO_COROUTINE:
            value = await value
    return value
