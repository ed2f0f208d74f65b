"""Runs a compiled cell."""

from __future__ import annotations

from inspect import CO_COROUTINE
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from types import CodeType


def awaits(codes: list[CodeType]) -> bool:
    """Returns true when a cell is a coroutine."""
    return any(code.co_flags & CO_COROUTINE for code in codes)


def run(codes: list[CodeType], namespace: dict[str, Any]) -> Any:
    """Runs a cell that does not await. Returns the value of its last expression; None when there is none."""
    value = None
    for code in codes:
        value = eval(code, namespace)
    return value


async def run_async(codes: list[CodeType], namespace: dict[str, Any]) -> Any:
    """Runs a cell that awaits. Returns the same."""
    value = None
    for code in codes:
        value = eval(code, namespace)
        if code.co_flags & CO_COROUTINE:
            value = await value
    return value
