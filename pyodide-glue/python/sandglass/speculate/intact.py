"""Whether what pure code rests on is what it was before any user code ran.

`note` is called once, before the first cell. Functions written in C and types of the interpreter cannot be changed but
by replacing what names them, so identity says it all; of functions written in Python, code and defaults count too.
"""

from __future__ import annotations

import builtins
import collections
import enum
import heapq
import json
import math
import operator
import re
import sys
from operator import is_
from types import FunctionType
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    _Table = tuple[Mapping[str, Any], tuple[str, ...], tuple[Any, ...], bool]

#: What of the builtins others may put something of their own for: the runtime, and a REPL.
_NOT_COMPARED = frozenset(("input", "_"))
#: Modules in Python that rows of `purity` rest on, by what an expression uses.
_TREES: dict[str, tuple[str, ...]] = {
    "re": ("re", "enum"),
    "json": ("json", "json.decoder", "json.encoder", "json.scanner"),
    "collections": ("collections", "_collections_abc", "heapq", "abc"),
}
#: `isinstance` asks the abstract class, which can be told anything.
_NO_MAPPINGS: tuple[Any, ...] = (str, bytes, list, tuple, set, frozenset, zip, map, filter, enumerate, range)
_NO_MAPPINGS += (type(_ for _ in ""),)
_VIEWS: tuple[Any, ...] = (type({}.keys()), type({}.values()), type({}.items()), type(reversed([])))
_MAPPING: Any = collections.abc.Mapping
_LOADED = (re, json, enum, heapq)  # without them, there would be nothing to note

#: Modules whose attributes an expression may use.
MODULES: dict[str, Any] = {"math": math, "re": re, "json": json, "collections": collections, "operator": operator}
_METHOD_TYPES: tuple[type, ...] = (str, bytes, int, float, list, tuple, dict, set, frozenset, re.Pattern, re.Match)
_TYPE_TABLES = tuple(kind.__dict__ for kind in _METHOD_TYPES)
_compile = vars(re)["_compile"]
_caches: tuple[dict[Any, Any], ...] = tuple(
    vars(re)[name] for name in ("_cache2", "_cache") if type(vars(re).get(name)) is dict
)

_builtins: dict[str, Any] = vars(builtins)
_names: tuple[str, ...] = ()
_values: tuple[Any, ...] = ()
_noted: dict[str, list[_Noted]] = {}


class _Noted:
    """A module: its names, those of its classes, and the functions among them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: Any = sys.modules[name]
        module = self._module
        self._tables: list[_Table] = []
        functions: list[Any] = []
        self._note_table(vars(module), functions, is_whole=False)
        for value in list(vars(module).values()):
            if isinstance(value, type) and vars(value).get("__module__") == module.__name__:
                self._note_table(vars(value), functions, is_whole=True)
        for extra in self._objects():
            self._note_table(vars(extra), functions, is_whole=True)
        self._functions = tuple(functions)
        self._code = tuple(_parts_of(functions))

    def _objects(self) -> list[Any]:
        """Objects of the module that its functions use, and whose attributes may be set."""
        if self._name == "re":
            return list(re.RegexFlag.__members__.values())
        names = ("_default_decoder", "_default_encoder") if self._name == "json" else ()
        return [vars(self._module)[name] for name in names]

    def _note_table(self, table: Mapping[str, Any], functions: list[Any], *, is_whole: bool) -> None:
        self._tables.append((table, tuple(table), tuple(table.values()), is_whole))
        for value in table.values():
            for part in (value, getattr(value, "__func__", None), getattr(value, "fget", None)):
                if type(part) is FunctionType:
                    functions.append(part)

    def is_intact(self) -> bool:
        if sys.modules.get(self._name) is not self._module:
            return False
        for table, names, values, is_whole in self._tables:
            if is_whole and len(table) != len(names):
                return False
            if not all(map(is_, map(table.get, names), values)):
                return False
        return all(map(is_, _parts_of(self._functions), self._code))


def _parts_of(functions: Iterable[Any]) -> Iterable[Any]:
    for function in functions:
        yield function.__code__
        yield function.__defaults__
        keywords = function.__kwdefaults__
        yield keywords
        if keywords:
            yield from keywords.values()


def note() -> None:
    """Notes everything as it is now, unless that was done before."""
    global _names, _values
    if _names:
        return
    for family, modules in _TREES.items():
        _noted[family] = [_Noted(name) for name in modules]
    for table in _TYPE_TABLES:
        for name in table:
            if name not in _methods:
                _methods[name] = _methods_of(name)
    _names = tuple(name for name in BUILTINS if name not in _NOT_COMPARED)
    _values = tuple(map(BUILTINS.get, _names))


def are_builtins(namespace: dict[str, Any]) -> bool:
    """Whether code in that namespace, and that of libraries, finds Python's own builtins."""
    table = namespace.get("__builtins__")
    if table is not builtins and table is not _builtins:
        return False
    return all(map(is_, map(_builtins.get, _names), _values))


def is_intact(family: str) -> bool:
    """Whether nothing of these modules was replaced since."""
    for noted in _noted.get(family, ()):
        if not noted.is_intact():
            return False
    if family == "collections":
        return not any(map(_is_mapping, _NO_MAPPINGS)) and not any(map(_is_mapping, _VIEWS)) and _is_mapping(dict)
    return family in _noted


def _is_mapping(kind: Any) -> bool:
    return issubclass(kind, _MAPPING)


_methods: dict[str, tuple[Any, ...]] = {}


def has_methods(names: Iterable[str]) -> bool:
    """Whether types have the methods that they had: a table of theirs can be had, and written to."""
    return all(all(map(is_, _methods_of(name), _methods.get(name, (_methods,)))) for name in names)


def _methods_of(name: str) -> tuple[Any, ...]:
    return tuple(table.get(name) for table in _TYPE_TABLES)


def pattern(place: tuple[type, str, int]) -> Any:
    """What `re` has for a pattern and its flags; None when it would have to compile it."""
    for cache in _caches:
        found = cache.get(place)
        if found is not None:
            return found if type(found) is re.Pattern and not found.flags & re.LOCALE else None
    return None


def has_pattern(place: tuple[type, str, int], known: Any) -> bool:
    """Whether `re` still has that, which it then takes note of as when it is asked for the pattern."""
    found = pattern(place)
    if found is None or not (found is known or found == known):
        return False
    _compile(place[1], place[2])
    return True
