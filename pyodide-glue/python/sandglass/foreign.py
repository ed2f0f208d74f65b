"""Finds what a copy of the interpreter's memory cannot hold: objects of JavaScript, and functions that ctypes made."""

from __future__ import annotations

import gc
import sys
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from sandglass.namespace import Namespace

_JAVASCRIPT = "the JavaScript object that it is or holds is gone"
_CTYPES = "the function of ctypes that it is or holds is gone"
_MODULE = "__module__"
_LEAVES = (str, int, float, complex, bool, bytes, bytearray, type(None), ModuleType, BuiltinFunctionType, range)
#: Objects that one search looks at. It runs while the guest has nothing else to do, but nothing interrupts it.
_MOST = 200_000


def find(namespace: Namespace, proxy: type) -> list[tuple[str, str]]:
    """`(name, reason)` of user variables that lead to such an object. What lies behind very much is not found."""
    leaves = set(_LEAVES)
    beyond = {id(namespace.globals), *(id(vars(module)) for module in list(sys.modules.values()) if _is_module(module))}
    found = []
    left = _MOST
    for name in namespace.names():
        seen = set(beyond)
        frontier = [namespace.globals[name]]
        while frontier and left > 0:
            follow: list[Any] = []
            for value in frontier:
                kind = type(value)
                if kind in leaves or id(value) in seen:
                    continue
                seen.add(id(value))
                left -= 1
                reason = _reason(kind, proxy)
                if reason:
                    found.append((name, reason))
                    follow = []
                    break
                if not _is_ours(kind) and not (isinstance(value, type) and _attribute(value, _MODULE) != "__main__"):
                    follow.append(value)
            frontier = gc.get_referents(*follow)
    return found


def _reason(kind: type, proxy: type) -> str | None:
    for base in type.__dict__["__mro__"].__get__(kind):
        if base is proxy:
            return _JAVASCRIPT
        if _attribute(base, _MODULE) == "_ctypes" and _attribute(base, "__name__") in ("CFuncPtr", "CThunkObject"):
            return _CTYPES
    return None


def _is_module(value: Any) -> bool:
    return issubclass(type(value), ModuleType)


def _is_ours(kind: type) -> bool:
    module = _attribute(kind, _MODULE)
    return type(module) is str and module.split(".")[0] == "sandglass"


def _attribute(kind: type, name: str) -> Any:
    """An attribute of a class as `type` has it: a metaclass may say anything, and is user code."""
    try:
        return type.__dict__[name].__get__(kind)
    except (AttributeError, KeyError):
        return None
