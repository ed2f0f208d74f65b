"""Answers editors about code that is being written: completes names, and describes the object of a name.

Names are looked up in the user's namespace. Dots are followed, which may run hooks of the user's classes, as in any
notebook. Calls and subscripts are not evaluated. Answers are bounded.
"""

from __future__ import annotations

import builtins
import inspect
import sys
from json import dumps as to_json
from json import loads as from_json
from keyword import kwlist, softkwlist
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sandglass.runtime.output import printable
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import safe_repr, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_MOST_MATCHES = 500
_MOST_NAMES = 100_000
_NAME_CHARS = 200
_MOST_DOTS = 20
_REPR_CHARS = 1_000
_DOC_CHARS = 20_000
_SOURCE_CHARS = 50_000
_SIGNATURE_CHARS = 2_000
_LENGTH_TYPES = (str, bytes, bytearray, list, tuple, dict, set, frozenset)
_MISSING = object()


class Completion:
    """Answers for one namespace."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._variables = variables

    def answer(self, which: str, about: bytes) -> bytes:
        """Answers a question. Both are JSON; the question has `code`, and `cursor` in characters.

        "complete" returns `matches`, each a replacement for the characters from `start` to `end`. "inspect" returns
        `text`, or null; with `detail`, the text includes the source. Raises ValueError for any other question.
        """
        told = from_json(about)
        code, cursor = told["code"], told["cursor"]
        if type(code) is not str or type(cursor) is not int:
            raise ValueError("there is no code to look at")
        cursor = min(max(cursor, 0), len(code))
        if which == "complete":
            start, matches = self._complete(code, cursor)
            answer: dict[str, Any] = {"matches": matches, "start": start, "end": cursor}
        elif which == "inspect":
            answer = {"text": self._inspect(code, cursor, bool(told.get("detail")))}
        else:
            raise ValueError("there is no such look")
        return to_json(answer).encode()

    # ---- completion ----

    def _complete(self, code: str, cursor: int) -> tuple[int, list[str]]:
        start = _word_start(code, cursor)
        prefix = code[start:cursor]
        owner = _chain_before(code, start)
        statement = code[code.rfind("\n", 0, start) + 1 : start].split()
        if owner is None:  # an attribute of an object that is not looked up
            return start, []
        if statement[:1] == ["import"] or (statement[:1] == ["from"] and "import" not in statement):
            return start, _matching(prefix, _modules(owner))
        if statement[:1] == ["from"] and "import" in statement:
            module = sys.modules.get(statement[1])
            return start, [] if module is None else _matching(prefix, _attributes(module))
        if owner:
            value = self._find(owner)
            return start, [] if value is _MISSING else _matching(prefix, _attributes(value))
        if not prefix:  # a list of all names would help nobody
            return start, _matching(prefix, [name for name in self._variables if not name.startswith("_")])
        names = [*self._variables, *vars(builtins), *kwlist, *softkwlist]
        return start, _matching(prefix, names)

    def _find(self, dotted: list[str]) -> Any:
        first, *rest = dotted
        value = self._variables.get(first, _MISSING)
        if value is _MISSING:
            value = vars(builtins).get(first, _MISSING)
        for name in rest[:_MOST_DOTS]:
            if value is _MISSING:
                break
            try:
                value = getattr(value, name, _MISSING)
            except Exception:  # a property of the user's may raise any exception
                return _MISSING
        return value

    # ---- inspection ----

    def _inspect(self, code: str, cursor: int, with_source: bool) -> str | None:
        for dotted in _names_at(code, cursor):
            value = self._find(dotted)
            if value is not _MISSING:
                return printable(_describe(".".join(dotted), value, with_source))
        return None


def _is_word(char: str) -> bool:
    return char == "_" or char.isalnum()


def _word_start(code: str, end: int) -> int:
    start = end
    while start and _is_word(code[start - 1]):
        start -= 1
    return start


def _chain_before(code: str, start: int) -> list[str] | None:
    """Returns the names before a dot that ends at `start`. Empty without a dot, None when it is no chain of names."""
    names: list[str] = []
    while start and code[start - 1] == ".":
        end = start - 1
        start = _word_start(code, end)
        if not code[start:end].isidentifier():
            return None
        names.insert(0, code[start:end])
    return names


def _names_at(code: str, cursor: int) -> Iterable[list[str]]:
    """Returns the chain of names at the cursor, then the chain of each call whose parentheses are around the cursor."""
    end = cursor
    while end < len(code) and _is_word(code[end]):
        end += 1
    while True:
        start = _word_start(code, end)
        if code[start:end].isidentifier():
            before = _chain_before(code, start)
            if before is not None:
                yield [*before, code[start:end]]
        depth = 0
        while start and depth <= 0:
            start -= 1
            depth += (code[start] in "([{") - (code[start] in ")]}")
        if depth <= 0:
            return
        end = start


def _matching(prefix: str, names: Iterable[Any]) -> list[str]:
    found = set()
    for name in names:
        if type(name) is not str or len(name) > _NAME_CHARS or not name.isidentifier():
            continue
        if name.startswith(prefix) and (prefix or not name.startswith("_")):
            found.add(name)
    # Private names come last, because few look for them.
    return sorted(found, key=lambda name: (name.startswith("__"), name.startswith("_"), name))[:_MOST_MATCHES]


def _attributes(value: Any) -> list[Any]:
    try:
        return list(dir(value))[:_MOST_NAMES]
    except Exception:
        return []


def _modules(package: list[str]) -> list[str]:
    """Lists modules that can be imported: top-level ones, or those of a loaded package."""
    from pkgutil import iter_modules

    if not package:
        return [*sys.stdlib_module_names, *(found.name for found in iter_modules())]
    module = sys.modules.get(".".join(package))
    path = vars(module).get("__path__") if type(module) is ModuleType else None
    try:
        return [] if path is None else [found.name for found in iter_modules(path)]
    except Exception:  # a user's package may have anything as its path
        return []


def _describe(name: str, value: Any, with_source: bool) -> str:
    lines: list[str] = []
    signature = _attempt(lambda: str(inspect.signature(value))) if callable(value) else None
    if signature:
        lines.append(f"Signature: {name}{signature[:_SIGNATURE_CHARS]}")
    lines.append(f"Type:      {type_name(value)}")
    if not callable(value) and type(value) is not ModuleType:
        lines.append(f"Value:     {_cut(safe_repr(value), _REPR_CHARS)}")
    if issubclass(type(value), _LENGTH_TYPES):
        lines.append(f"Length:    {len(value)}")
    file = _attempt(lambda: inspect.getsourcefile(value)) if callable(value) or type(value) is ModuleType else None
    if file:
        lines.append(f"File:      {file}")
    source = _attempt(lambda: inspect.getsource(value)) if with_source else None
    documented = value if callable(value) or type(value) is ModuleType else type(value)
    doc = None if source else _attempt(lambda: inspect.getdoc(documented))
    if source:
        lines.append(f"Source:\n{_cut(source, _SOURCE_CHARS)}")
    elif doc:
        lines.append(f"Docstring:\n{_cut(doc, _DOC_CHARS)}")
    return "\n".join(lines)


def _attempt(make: Callable[[], Any]) -> str | None:
    try:
        made = make()
    except Exception:
        return None
    return made if type(made) is str else None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
