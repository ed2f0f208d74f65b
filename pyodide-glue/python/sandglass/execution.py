"""Compiles a cell and runs it."""

from __future__ import annotations

import linecache
from ast import Expr, Expression, PyCF_ALLOW_TOP_LEVEL_AWAIT, PyCF_ONLY_AST
from collections import deque
from inspect import CO_COROUTINE
from io import StringIO
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from ast import Module
    from types import CodeType

    from sandglass.loop import EventLoops

_FLAGS = PyCF_ALLOW_TOP_LEVEL_AWAIT
_FUTURES = 0x1FF0000  # the bits of co_flags that `from __future__ import …` sets


def compile_cell(source: str, filename: str) -> list[CodeType]:
    """The code of a cell: its statements, then its last expression (or None) for the value to show.

    Raises SyntaxError for anything that is not Python, MemoryError and RecursionError for source nested too deeply.
    """
    try:
        return _compile(source, filename)
    except ValueError as error:  # UnicodeEncodeError is one
        raise _explain_bad_character(source, filename, error) from None
    except SyntaxError as error:
        if "null bytes" in str(error.msg):
            raise _explain_bad_character(source, filename, error) from None
        if error.text is None and error.lineno:  # found after parsing: the compiler looks for the line in a file
            error.text = "".join(_lines(source)[error.lineno - 1 : error.lineno])
        raise


def _compile(source: str, filename: str) -> list[CodeType]:
    if "\n" not in source and "=" not in source:  # most likely a single expression, which needs no tree
        try:
            return [compile(source, filename, "eval", _FLAGS, True)]
        except SyntaxError:
            pass
    tree = _parse(source, filename)
    codes: list[CodeType] = []
    last = tree.body[-1] if tree.body else None
    if isinstance(last, Expr):
        tree.body.pop()
    if tree.body:
        codes.append(compile(tree, filename, "exec", _FLAGS, True))
    if isinstance(last, Expr):
        flags = _FLAGS | (codes[0].co_flags & _FUTURES if codes else 0)
        codes.append(compile(Expression(last.value), filename, "eval", flags, True))
    return codes


def _parse(source: str, filename: str) -> Module:
    try:
        return compile(source, filename, "exec", _FLAGS | PyCF_ONLY_AST, True)  # type: ignore[no-any-return]
    except SystemError:
        # CPython before 3.11.8 and 3.12.2 counts the depth of all trees under construction in one place (gh-106905):
        # one that another thread or a finalizer makes meanwhile spoils the count, and a good tree is thrown away.
        return compile(source, filename, "exec", _FLAGS | PyCF_ONLY_AST, True)  # type: ignore[no-any-return]


def _explain_bad_character(source: str, filename: str, error: Exception) -> SyntaxError:
    for number, line in enumerate(source.split("\n"), 1):
        for column, character in enumerate(line, 1):
            if character == "\0":
                message = "source code cannot contain null bytes"
            elif "\ud800" <= character <= "\udfff":
                message = f"source code cannot contain the lone surrogate U+{ord(character):04X}"
            else:
                continue
            shown = line.replace("\0", "␀").encode("utf-8", "replace").decode()
            return SyntaxError(message, (filename, number, column, shown))
    return SyntaxError(str(error), (filename, 1, 1, None))


def run(codes: list[CodeType], namespace: dict[str, Any], loops: EventLoops) -> Any:
    """Runs compiled code; returns the value of its last expression, None when there is none."""
    for code in codes:
        if code.co_flags & CO_COROUTINE:
            return loops.run_cell(_run_async(codes, namespace))
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


class Sources:
    """Keeps the newest sources, at most `limit` characters, in linecache for tracebacks and `inspect.getsource`."""

    def __init__(self) -> None:
        self.limit = 0
        self._kept: deque[tuple[str, str]] = deque()
        self._chars = 0

    def add(self, filename: str, source: str) -> None:
        size = len(source)
        if size > self.limit:
            return
        linecache.cache[filename] = (size, None, _lines(source), filename)
        self._kept.append((filename, source))
        self._chars += size
        while self._chars > self.limit:
            oldest, dropped = self._kept.popleft()
            self._chars -= len(dropped)
            linecache.cache.pop(oldest, None)

    def kept(self) -> list[tuple[str, str]]:
        """File names and sources, oldest first."""
        return list(self._kept)

    def clear(self) -> None:
        """Forgets them all."""
        for filename, _ in self._kept:
            linecache.cache.pop(filename, None)
        self._kept.clear()
        self._chars = 0


def _lines(source: str) -> list[str]:
    """Lines as the compiler counts them: str.splitlines would also split at form feeds and U+2028."""
    if "\n" not in source and "\r" not in source:
        return [source + "\n"] if source else []
    lines = StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return lines
