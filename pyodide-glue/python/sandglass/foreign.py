"""Finds what a copy of the interpreter's memory cannot hold: objects of JavaScript, and functions that ctypes made."""

from __future__ import annotations

import sys
from collections import deque
from gc import get_referents
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sandglass.namespace import MAX_NAME_CHARS
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from sandglass.namespace import Namespace

_JAVASCRIPT = "the JavaScript object that it is or holds is gone"
_CTYPES = "the function of ctypes that it is or holds is gone"
#: By their ids: to look a class up by itself would ask its metaclass, which may be the user's.
_LEAVES = {
    id(kind)
    for kind in (str, int, float, complex, bool, bytes, bytearray, type(None), ModuleType, BuiltinFunctionType, range)
}
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
#: Objects that one search looks at: nothing interrupts it.
_MOST = 200_000
_VARS: Any = ModuleType.__dict__
_DICT_OF_MODULE = _VARS["__dict__"]


def find(namespace: Namespace, proxy: type) -> list[tuple[str, str]]:
    """`(name, reason)` of user variables that lead to such an object. What lies behind very much is not found.

    No code of the user's is run: whatever it defines is looked at as `type` and `object` see it.
    """
    modules = [module for module in list(sys.modules.values()) if issubclass(type(module), ModuleType)]
    beyond = {id(namespace.globals), *(id(_DICT_OF_MODULE.__get__(module)) for module in modules)}
    found = []
    left = _MOST
    for name in namespace.names():
        if len(name) > MAX_NAME_CHARS:
            continue
        seen = set(beyond)
        todo = [namespace.globals[name]]
        while todo and left > 0:
            value = todo.pop()
            left -= 1
            kind = type(value)
            if id(kind) in _LEAVES or id(value) in seen:
                continue
            seen.add(id(value))
            reason = _reason(kind, proxy)
            if reason:
                found.append((name, reason))
                break
            if _leads_on(value, kind) and _size(value, kind) <= left:
                todo += get_referents(value)
    return found


def _reason(kind: type, proxy: type) -> str | None:
    for base in type.__dict__["__mro__"].__get__(kind):
        if base is proxy:
            return _JAVASCRIPT
        if _text(base, "__module__") == "_ctypes" and _text(base, "__name__") in ("CFuncPtr", "CThunkObject"):
            return _CTYPES
    return None


def _leads_on(value: Any, kind: type) -> bool:
    if _text(kind, "__module__").partition(".")[0] == "sandglass":
        return False
    return not issubclass(kind, type) or _text(value, "__module__") == "__main__"


def _size(value: Any, kind: type) -> int:
    return next((base.__len__(value) for base in _CONTAINERS if issubclass(kind, base)), 0)


def _text(kind: type, name: str) -> str:
    """A text among the attributes of a class as `type` has it: a metaclass may say anything."""
    try:
        text = type.__dict__[name].__get__(kind)
    except (AttributeError, KeyError):
        return ""
    return text if type(text) is str else ""
