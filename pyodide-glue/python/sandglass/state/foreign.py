"""Finds objects that a copy of the interpreter's memory cannot hold: JavaScript objects, functions of ctypes, pipes."""

from __future__ import annotations

import builtins
import os
import sys
from collections import deque
from gc import get_referents
from io import FileIO
from types import BuiltinFunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sandglass.runtime.namespace import MAX_NAME_CHARS
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sandglass.runtime.namespace import Namespace

_JAVASCRIPT = "the JavaScript object that it is or holds is gone"
_CTYPES = "the function of ctypes that it is or holds is gone"
_PIPE = "the pipe or socket that it is or holds is gone"
_DESCRIPTOR = "the pipe or socket is gone"
_TOO_MUCH = (
    "there is too much in it to look through; a JavaScript object, function of ctypes or pipe that it holds is gone"
)
#: Classes by their ids: comparing classes would ask a metaclass, which may be the user's.
_LEAVES = {
    id(kind) for kind in (str, int, float, complex, bool, bytes, bytearray, type(None), BuiltinFunctionType, range)
}
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
#: The most objects of one search. One variable may take half of them. Nothing can interrupt a search.
_MOST = 400_000
#: Items of a container without references that are as quick to check as one object.
_AT_ONCE = 32
_LIBRARY = os.path.dirname(os.path.dirname(os.__file__)) + os.sep
_VARS: Any = ModuleType.__dict__
_DICT_OF_MODULE = _VARS["__dict__"]

# Attributes of a class that describe its objects, besides the reason why they are gone.
_NOTHING, _LEADS_ON, _IS_CLASS, _IS_OPEN = range(4)


def find(namespace: Namespace, proxy: type, gone: AbstractSet[int] = frozenset()) -> list[tuple[str, str]]:
    """Returns `(name, reason)` of variables that lead to such an object, and of those that are too large to check.

    `gone` are the descriptors of pipes and sockets. They are given explicitly because a variable may hold no more than
    their number. No code of the user's runs: objects are read only as `type` and `object` see them.
    """
    modules = [module for module in list(sys.modules.values()) if issubclass(type(module), ModuleType)]
    tables = [table for table in map(_DICT_OF_MODULE.__get__, modules) if not _is_users(table)]
    beyond = {id(namespace.globals), *map(id, tables)}
    search = _Search(proxy, gone)
    found = [(f"descriptor {number}", _DESCRIPTOR) for number in sorted(gone)]
    variables = {name: namespace.globals[name] for name in namespace.names()}
    variables.setdefault("_", vars(builtins).get("_"))  # the last result
    for name, value in variables.items():
        if len(name) <= MAX_NAME_CHARS:
            reason = search.look(value, beyond)
            if reason:
                found.append((name, reason))
    return found


class _Search:
    def __init__(self, proxy: type, gone: AbstractSet[int]) -> None:
        self._proxy = proxy
        self._gone = gone
        self._left = _MOST
        self._kinds: dict[int, int | str] = dict.fromkeys(_LEAVES, _NOTHING)

    def look(self, value: Any, beyond: AbstractSet[int]) -> str | None:
        """Returns the reason why an object that a variable leads to is gone; None without one."""
        seen = set(beyond)
        todo: list[Any] = [value]
        left = most = self._left // 2
        reason = None
        while todo and not reason:
            value = todo.pop()
            what = self._what(type(value))
            if what is _NOTHING or id(value) in seen:
                continue
            if left <= 0:
                reason = _TOO_MUCH
                break
            seen.add(id(value))
            left -= 1
            if type(what) is str:
                reason = what
            elif what is _IS_OPEN and _descriptor(value) in self._gone:
                reason = _PIPE
            elif what is not _IS_CLASS or _text(value, "__module__") == "__main__":
                size, parts = _contents(value)
                size //= _AT_ONCE
                if size > left:
                    reason = _TOO_MUCH
                elif size and all({*map(id, map(type, part))} <= _LEAVES for part in parts):
                    left -= size
                else:
                    todo += get_referents(value)
        self._left -= most - left
        return reason

    def _what(self, kind: type) -> int | str:
        what = self._kinds.get(id(kind))
        if what is None:
            what = self._kinds[id(kind)] = self._judge(kind)
        return what

    def _judge(self, kind: type) -> int | str:
        for base in type.__dict__["__mro__"].__get__(kind):
            if base is self._proxy:
                return _JAVASCRIPT
            if base is FileIO:
                return _IS_OPEN
            module, name = _text(base, "__module__"), _text(base, "__name__")
            if module == "_ctypes" and name in ("CFuncPtr", "CThunkObject"):
                return _CTYPES
            if module == "_socket" and name == "socket":
                return _PIPE
        if _text(kind, "__module__").partition(".")[0] == "sandglass":
            return _NOTHING
        return _IS_CLASS if issubclass(kind, type) else _LEADS_ON


def _is_users(table: dict[str, Any]) -> bool:
    """Returns true when the user's code made a module, or the module is from a file of theirs."""
    known = {name: value for name, value in table.items() if type(name) is str and name in ("__spec__", "__file__")}
    file = known.get("__file__")
    return known.get("__spec__") is None or (type(file) is str and not file.startswith(_LIBRARY))


def _descriptor(file: FileIO) -> int:
    try:
        return FileIO.fileno(file)
    except ValueError:  # the file is closed
        return -1


def _contents(value: Any) -> tuple[int, tuple[Any, ...]]:
    """Returns the size of a container and its parts, if they can be read without code of the user's."""
    kind = type(value)
    for base in _CONTAINERS:
        if issubclass(kind, base):
            return base.__len__(value), (dict.keys(value), dict.values(value)) if base is dict else (
                base.__iter__(value),
            )
    return 0, ()


def _text(kind: Any, name: str) -> str:
    """Reads a text among a class's own attributes. Bypasses the metaclass, which may return anything."""
    try:
        text = type.__dict__[name].__get__(kind)
    except (AttributeError, KeyError):
        return ""
    return text if type(text) is str else ""
