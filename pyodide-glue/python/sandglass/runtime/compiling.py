"""Compiles a cell.

A cell runs statement by statement, each with code of its own. So a cell that is still being written runs exactly as it
would when complete. Only a cell that awaits becomes one coroutine, and a cell of very many statements one code object.
"""

# Decisions: docs/internals/running-ahead.md.

from __future__ import annotations

import sys
import warnings
from ast import (
    AnnAssign,
    AsyncFor,
    AsyncFunctionDef,
    AsyncWith,
    ClassDef,
    Constant,
    Expr,
    Expression,
    For,
    FunctionDef,
    If,
    Match,
    Module,
    PyCF_ALLOW_TOP_LEVEL_AWAIT,
    PyCF_ONLY_AST,
    Try,
    TryStar,
    While,
    With,
)
from inspect import CO_COROUTINE
from io import StringIO
from re import compile as to_pattern
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from ast import stmt
    from types import CodeType

#: The compiler's flags for cells.
FLAGS = PyCF_ALLOW_TOP_LEVEL_AWAIT
FUTURES = 0x1FF0000  # the bits of co_flags that `from __future__ import …` sets
#: A cell without these words is valid as a whole if each statement is, and awaits nothing.
_OF_THE_WHOLE = ("await", "async", "global", "__future__")
#: A cell of more statements is generated, and so many code objects take more memory and time than one.
_MOST_STATEMENTS = 2000
#: From 3.14 on, a module's annotations are a function in its code: in that of the last annotated statement.
_ANNOTATIONS_ARE_CODE = sys.version_info >= (3, 14)
#: Statements that contain other statements of the same module.
_COMPOUND = (If, For, While, With, Try, TryStar, Match, AsyncFor, AsyncWith)
#: Statements that may continue on the next line.
_OPEN = (*_COMPOUND, FunctionDef, AsyncFunctionDef, ClassDef)
_find_line_ends = to_pattern(r"\r\n|\r|\n").finditer


def compile_cell(source: str, filename: str) -> list[CodeType]:
    """Compiles a cell: returns the code of each statement. An expression at the end gives the value to show.

    Raises SyntaxError for anything that is not Python, and MemoryError or RecursionError for source nested too deeply.
    """
    try:
        return _compile(source, filename)
    except ValueError as error:  # such as a UnicodeEncodeError
        raise _explain_bad_character(source, filename, error) from None
    except SyntaxError as error:
        if "null bytes" in str(error.msg):
            raise _explain_bad_character(source, filename, error) from None
        if error.text is None and error.lineno:  # found after parsing: the compiler would look for the line in a file
            error.text = "".join(lines_of(source)[error.lineno - 1 : error.lineno])
        raise


def is_plain(source: str, filename: str) -> bool:
    """Returns true when a cell compiles without a warning, statement by statement, so that statements may run early."""
    try:
        with Warnings("error"):
            codes = compile_cell(source, filename)
            if _is_one(_parse(source, filename).body):
                return False
    except BaseException:  # a hook of the user's may raise any exception
        return False
    return not any(code.co_flags & CO_COROUTINE for code in codes)


def _compile(source: str, filename: str) -> list[CodeType]:
    if "\n" not in source and "=" not in source:  # most likely a single expression, which needs no tree
        try:
            return [compile(source, filename, "eval", FLAGS, True)]
        except SyntaxError:
            pass
    body = _parse(source, filename).body
    if len(body) < 2 or _is_one(body):
        return _compile_whole(body, filename)
    if not any(word in source for word in _OF_THE_WHOLE):
        try:
            return _compile_each(body, filename, FLAGS, is_first=True)[0]
        except SyntaxError:
            with Warnings("ignore"):
                _compile_whole(body, filename)  # may find another error first, which Python would report
            raise
    codes = _compile_whole(body, filename)
    if any(code.co_flags & CO_COROUTINE for code in codes):
        return codes
    with Warnings("ignore"):  # all warnings were shown above
        return _compile_each(body, filename, FLAGS, is_first=True)[0]


def _is_one(body: list[stmt]) -> bool:
    """Returns true when a cell becomes one code object, whatever its statements are."""
    return len(body) > _MOST_STATEMENTS or (_ANNOTATIONS_ARE_CODE and _annotates(body))


def _annotates(body: list[stmt]) -> bool:
    """Returns true when the module itself has annotations."""
    blocks = [body]
    while blocks:
        for statement in blocks.pop():
            if isinstance(statement, AnnAssign):
                return True
            if isinstance(statement, _COMPOUND):
                for field in ("body", "orelse", "finalbody"):
                    blocks.append(getattr(statement, field, []))
                for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
                    blocks.append(part.body)
    return False


def _compile_whole(body: list[stmt], filename: str) -> list[CodeType]:
    last = body[-1] if body else None
    codes: list[CodeType] = []
    statements = body[:-1] if isinstance(last, Expr) else body
    if statements:
        codes.append(compile(Module(statements, []), filename, "exec", FLAGS, True))
    if isinstance(last, Expr):
        flags = FLAGS | (codes[0].co_flags & FUTURES if codes else 0)
        codes.append(compile(Expression(last.value), filename, "eval", flags, True))
    return codes


def _compile_each(body: list[stmt], filename: str, flags: int, *, is_first: bool) -> tuple[list[CodeType], int]:
    """Compiles each statement. Returns the codes and the flags for later ones. `is_first`: the cell begins here."""
    codes: list[CodeType] = []
    for index, statement in enumerate(body):
        if index == len(body) - 1 and isinstance(statement, Expr):
            codes.append(compile(Expression(statement.value), filename, "eval", flags, True))
            continue
        if isinstance(statement, Expr) and isinstance(statement.value, Constant) and (index or not is_first):
            continue  # a text would become the module's __doc__, which only a text at the beginning is
        code = compile(Module([statement], []), filename, "exec", flags, True)
        flags |= code.co_flags & FUTURES
        codes.append(code)
    return codes, flags


class Warnings:
    """Sets the filter for the compiler's warnings. `catch_warnings` would make all earlier warnings be shown again.

    Not made by contextlib, because that needs builtins that a cell may have replaced.
    """

    def __init__(self, action: str) -> None:
        self._action = action

    def __enter__(self) -> None:
        self._filters = getattr(warnings, "filters", [])
        warnings.filters = [(self._action, None, Warning, None, 0)]

    def __exit__(self, *_: object) -> None:
        warnings.filters = self._filters


class Growing:
    """Compiles a cell whose text comes in pieces. Each piece ends at the end of a line, without the newline itself.

    A simple statement is complete at the end of its line. A statement that contains others is complete when the next
    statement begins. Any expression may be the cell's last, so its code always gives a value.
    """

    def __init__(self, filename: str) -> None:
        self.source = ""
        self.filename = filename
        self.is_whole = False
        self._compiled = 0  # the length of the compiled source in characters
        self._flags = FLAGS
        self._is_first = True
        self._retry = 0  # the length that an incomplete rest must reach before it is tried again

    def add(self, text: str, is_last: bool) -> list[CodeType]:
        """Returns the code of newly completed statements.

        Returns none while the rest is no Python, such as half a text.
        """
        self.source += text
        self.is_whole = is_last
        pending = len(self.source) - self._compiled
        if not is_last and pending < self._retry:
            return []
        # Empty lines stand for the lines before, so that line numbers are right.
        before = sum(1 for _ in _find_line_ends(self.source, 0, self._compiled))
        source = "\n" * before + self.source[self._compiled :]
        end = len(self.source)
        try:
            with Warnings("error"):
                body = _parse(source, self.filename).body
                if not is_last and body and self._may_go_on(body):
                    body.pop()
                    if self._is_first and len(body) == 1 and _is_text(body[0]):
                        body.pop()  # the cell's __doc__, which belongs to the statement after it
                    # The start of the next statement is unknown, for instance with decorators. The end of the last one
                    # is known.
                    end = self._compiled
                    end += _end_of_line(source, body[-1].end_lineno or 0) - before if body else 0
                codes, flags = _compile_each(body, self.filename, self._flags, is_first=self._is_first)
        except Exception:
            if is_last:
                raise
            self._retry = 2 * pending
            return []
        self._retry = 0
        if not is_last and any(code.co_flags & CO_COROUTINE for code in codes):
            return []
        self._is_first &= not body
        self._flags = flags
        self._compiled = end
        return codes

    def _may_go_on(self, body: list[stmt]) -> bool:
        if _is_text(body[-1]):  # the cell's __doc__, or its value
            return self._is_first and len(body) == 1
        return isinstance(body[-1], _OPEN)


def _is_text(statement: stmt) -> bool:
    """Returns true for a statement that is only a constant."""
    return isinstance(statement, Expr) and isinstance(statement.value, Constant)


def _end_of_line(source: str, line: int) -> int:
    """Returns the position at which the line after this one begins."""
    for number, end in enumerate(_find_line_ends(source), 1):
        if number == line:
            return end.end()
    return len(source)


def _parse(source: str, filename: str) -> Module:
    try:
        return compile(source, filename, "exec", FLAGS | PyCF_ONLY_AST, True)  # type: ignore[no-any-return]
    except SystemError:
        # CPython before 3.11.8 and 3.12.2 counts the depth of all syntax trees under construction in one place
        # (gh-106905). If another thread or a finalizer makes a tree meanwhile, the count is wrong, and a good tree is
        # refused.
        return compile(source, filename, "exec", FLAGS | PyCF_ONLY_AST, True)  # type: ignore[no-any-return]


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


def lines_of(source: str) -> list[str]:
    """Splits source into lines as the compiler does. str.splitlines would also split at form feeds and U+2028."""
    if "\n" not in source and "\r" not in source:
        return [source + "\n"] if source else []
    lines = StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return lines
