"""The files that describe a cell: `input` before it runs, and `output` after it. The host never reads their contents.

Both are plain pickles of a dict, which any Python with the same packages can load. Loading a pickle may run any code,
so only guests load them (`show`). Objects that a pickle would hold only as a name of this interpreter are left out and
listed: functions and classes of cells, whose source is included instead, and objects that refer to them.
"""

from __future__ import annotations

import pickle
import sys
from ast import (
    AST,
    AsyncFunctionDef,
    ClassDef,
    FunctionDef,
    Import,
    ImportFrom,
    Lambda,
    iter_child_nodes,
    parse,
    stmt,
    unparse,
    walk,
)
from hashlib import blake2b
from io import BytesIO
from json import loads as from_json
from platform import python_version
from reprlib import Repr
from sys import modules
from textwrap import dedent, indent
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.pickling import REASON_CHARS, bounded, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandglass.runtime.namespace import Namespace
    from sandglass.runtime.sources import Sources

FORMAT = 1
_PROTOCOL = 4  # supported by all Pythons that we support
_MAX_BYTES = 64 << 20
_MAX_SOURCE_CHARS = 4_000_000
_MOST_WRAPPERS = 10
_SHOWN_CHARS = 2_000
_RESULT = {"error": None, "errorType": None, "traceback": None, "result": None}  # absent when they are None


class CellFiles:
    """Makes the files of one guest."""

    def __init__(self, namespace: Namespace, sources: Sources) -> None:
        self._namespace = namespace
        self._sources = sources
        self._before: dict[str, object] | None = None
        self._parsed: dict[str, _Parsed] = {}

    def make(self, which: str, about: bytes) -> bytes:
        """Makes the file `input` or `output` from the host's description of the cell, which is JSON.

        Keys for the first: `code`, `user`, `session`, `workspace`; for the second: `result`. Both take `maxBytes`, for
        the values together. Raises ValueError for any other file. Runs hooks of the user's values.
        """
        told = from_json(about)
        if type(told) is not dict or which not in ("input", "output"):
            raise ValueError("there is no such file of a cell")
        budget = _Budget(int(told.pop("maxBytes", _MAX_BYTES)))
        return self._input(told, budget) if which == "input" else self._output(told, budget)

    def _input(self, told: dict[str, Any], budget: _Budget) -> bytes:
        prints, values, missing = self._fingerprints(budget)
        self._before = prints
        file = {
            "format": FORMAT,
            "python": python_version(),
            **{key: told.get(key) for key in ("code", "user", "session", "workspace")},
            "namespace": values,
            "not_pickled": missing,
            **self._definitions(),
        }
        try:
            return _dump(file, None)
        except Exception as error:  # a hook has changed its mind
            file["namespace"] = {}
            file["not_pickled"] = missing | dict.fromkeys(values, reason_of(error))
            return _dump(file, None)

    def _output(self, told: dict[str, Any], budget: _Budget) -> bytes:
        result = _RESULT | dict(told.get("result") or {})
        before, self._before = self._before, None
        prints = None if before is None else self._fingerprints(budget)[0]
        changed = removed = None  # unknown when another guest has begun the cell
        if before is not None and prints is not None:
            changed = [name for name, mark in prints.items() if name not in before or before[name] != mark]
            removed = [name for name in before if name not in prints]
        names = {"changed": changed, "removed": removed}
        file = {"format": FORMAT, "python": python_version(), **_snake(result), **names, **self._definitions()}
        return _dump(file, None)

    def _fingerprints(self, budget: _Budget) -> tuple[dict[str, object], dict[str, Any], dict[str, str]]:
        """Returns the variables' fingerprints by name, the values that can be pickled, and why others cannot."""
        prints: dict[str, object] = {}
        values: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for name in self._namespace.names():
            value = self._namespace.globals.get(name)
            try:
                digest = _digest(value, budget)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                missing[bounded(name)] = reason_of(error)
                prints[name] = id(value), id(type(value))
            else:
                prints[name] = digest
                values[name] = value
        return prints, values, missing

    def _definitions(self) -> dict[str, list[str]]:
        """Returns source text that makes the objects which pickles cannot hold."""
        kept = dict(self._sources.kept())
        self._parsed = {name: self._parsed.get(name) or _Parsed(source) for name, source in kept.items()}
        cells = list(self._parsed.items())
        names = self._namespace.globals
        imports: dict[str, None] = {}
        for _, cell in cells:
            imports.update((text, None) for text, needs in cell.imports if needs(names))
        functions: dict[str, None] = {}
        classes: dict[str, None] = {}
        for name in self._namespace.names():
            try:
                self._define(names.get(name), cells, functions, classes)
            except Exception:  # a metaclass of the user's, whose class has no source here
                continue
        found = ("import_statements", imports), ("function_definitions", functions), ("class_definitions", classes)
        left = _MAX_SOURCE_CHARS
        texts: dict[str, list[str]] = {}
        for key, sources in found:
            texts[key] = []
            for source in sources:
                if len(source) <= left:
                    left -= len(source)
                    texts[key].append(source)
        return texts

    def _define(
        self, value: Any, cells: list[tuple[str, _Parsed]], functions: dict[str, None], classes: dict[str, None]
    ) -> None:
        if issubclass(type(value), type):
            if type.__getattribute__(value, "__module__") == "__main__":
                title = type.__getattribute__(value, "__name__")
                found = next((cell.classes[title] for _, cell in reversed(cells) if title in cell.classes), None)
                if found is not None:
                    classes[found] = None
            return
        for _ in range(_MOST_WRAPPERS):
            if type(value) is not FunctionType:
                return
            code = value.__code__
            cell = self._parsed.get(code.co_filename)
            source = cell and cell.functions.get(code.co_firstlineno)
            if source:
                functions[source] = None
                return
            value = vars(value).get("__wrapped__")


class _Parsed:
    """The names that a cell's source defines."""

    def __init__(self, source: str) -> None:
        self.imports: list[tuple[str, _Needs]] = []
        self.functions: dict[int, str] = {}  # functions by their first line
        self.classes: dict[str, str] = {}
        try:
            body = parse(source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return
        lines = source.split("\n")
        for node in _statements(body):
            if type(node) in (Import, ImportFrom):
                self.imports.append((unparse(node), _Needs(node)))
            elif type(node) in (FunctionDef, AsyncFunctionDef):
                first, text = _text(node, lines)
                self.functions[first] = text
            elif type(node) is ClassDef:
                self.classes[node.name] = _text(node, lines)[1]
            else:
                for part in walk(node) if "lambda" in lines[node.lineno - 1] else ():
                    if type(part) is Lambda:
                        self.functions.setdefault(part.lineno, _text(node, lines)[1])


class _Needs:
    """Returns true when an import is still in effect: its names exist, or its module."""

    def __init__(self, node: Any) -> None:
        self._module = getattr(node, "module", None)
        self._names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]

    def __call__(self, names: dict[str, Any]) -> bool:
        if self._names == ["*"]:
            return self._module in modules
        return self._module == "__future__" or any(name in names for name in self._names)


def _statements(body: list[stmt]) -> Iterator[Any]:
    """Yields the statements that the cell itself runs, in order, without those inside of definitions."""
    todo: list[AST] = list(reversed(body))
    while todo:
        node = todo.pop()
        parts = () if type(node) in (FunctionDef, AsyncFunctionDef, ClassDef) else iter_child_nodes(node)
        inner = [part for part in parts if isinstance(part, stmt) or hasattr(part, "body")]
        inner = [part for part in inner if type(part) is not Lambda]
        if isinstance(node, stmt):
            yield node
        todo += reversed(inner)


def _text(node: Any, lines: list[str]) -> tuple[int, str]:
    """Returns the first line, decorators included, and the source."""
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])
    return first, dedent("\n".join(lines[first - 1 : node.end_lineno])) + "\n"


class _Budget:
    """The most bytes of all values, and the most bytes that may be pickled to measure them."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most
        self.work = 4 * most


class _TooLarge(Exception):
    pass


class _Digest:
    """A file that keeps only a digest of its contents."""

    def __init__(self, budget: _Budget) -> None:
        self._hash = blake2b(digest_size=16)
        self._budget = budget
        self.size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.size += size
        self._budget.work -= size
        if self.size > self._budget.left or self._budget.work < 0:
            raise _TooLarge
        self._hash.update(data)
        return size

    def digest(self) -> bytes:
        return self._hash.digest()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is FunctionType and value.__module__ == "__main__":
            raise pickle.PicklingError("a function of a cell: see function_definitions")
        if issubclass(kind, type) and type.__getattribute__(value, "__module__") == "__main__":
            raise pickle.PicklingError("a class of a cell, or made by one: see class_definitions")
        if issubclass(kind, ModuleType):
            raise pickle.PicklingError("a module: see import_statements")
        return NotImplemented


def _digest(value: object, budget: _Budget) -> bytes:
    file = _Digest(budget)
    try:
        _dump(value, file)
    except _TooLarge:
        raise pickle.PicklingError(f"too large: the values of a cell's file take {budget.most} bytes at most") from None
    budget.left -= file.size
    return file.digest()


def _dump(value: object, file: Any) -> bytes:
    whole = BytesIO() if file is None else file
    _Pickler(whole, _PROTOCOL).dump(value)
    return whole.getvalue() if file is None else b""


def _snake(result: dict[str, Any]) -> dict[str, Any]:
    """Converts keys to Python's style, with underscores."""
    return {"".join(f"_{char.lower()}" if char.isupper() else char for char in key): result[key] for key in result}


def show(path: str) -> None:
    """Loads a cell's file and prints its contents. Loading may run any code, so this is for guests only."""
    with open(path, "rb") as file:
        data = pickle.load(file)
    short = Repr()
    short.maxstring = short.maxother = _SHOWN_CHARS // 10
    for key, value in data.items() if type(data) is dict else [("the pickle of no cell", data)]:
        sys.stdout.write(f"{key}:{_shown(value, short)}\n")


def _shown(value: Any, short: Repr) -> str:
    if type(value) is str and "\n" in value:
        return "\n" + indent(_cut(value.rstrip("\n")), "    ")
    if type(value) is list and value and all(type(item) is str for item in value):
        return "".join("\n" + indent(_cut(item.rstrip("\n")), "    ") for item in value)
    if type(value) is dict and value:
        return "".join(f"\n    {key} = {_safe(item, short)}" for key, item in value.items())
    return " " + _safe(value, short)


def _safe(value: Any, short: Repr) -> str:
    try:
        return f"{short.repr(value)}  ({type(value).__name__})"
    except Exception as error:
        return f"<{type(value).__name__}: {reason_of(error)[:REASON_CHARS]}>"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"
