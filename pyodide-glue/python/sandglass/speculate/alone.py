"""Whether a statement is alone: nothing else of the user's can run meanwhile, and its output goes nowhere else."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import sys
from types import FunctionType, MethodType
from typing import Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

_SIGNALS = tuple(map(int, _signal.valid_signals()))
#: The namespaces of modules whose handlers of signals run nothing but what is ours.
_ours: list[dict[str, Any]] = []


def note() -> None:
    """What there is of this package is ours. To be called before any code of the user's runs."""
    package = __name__.partition(".")[0]
    modules = [(name.partition(".")[0], module) for name, module in sys.modules.items()]
    _ours[:] = [vars(module) for name, module in modules if name == package]


def has_no_handlers() -> bool:
    """Whether no signal runs code of the user's."""
    return all(map(_is_quiet, map(_signal.getsignal, _SIGNALS)))


def state_of(stream: Any) -> tuple[Any, ...]:
    """What there is to replace of a stream."""
    mine = vars(stream)
    kind = type(stream)
    return (kind, vars(kind).get("write"), vars(kind).get("flush"), len(vars(kind)), len(mine), *mine.values())


def _is_quiet(handler: Any) -> bool:
    """Whether a handler of a signal runs no code of the user's."""
    if handler is None or type(handler) is int or handler is _signal.default_int_handler:
        return True
    if type(handler) is MethodType:
        handler = handler.__func__
    return type(handler) is FunctionType and any(handler.__globals__ is namespace for namespace in _ours)
