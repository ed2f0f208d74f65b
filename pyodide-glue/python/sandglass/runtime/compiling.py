"""Compiles a cell.

A cell runs statement by statement, each with code of its own, so that one whose text is still being written runs as it
would when it is whole. Only a cell that awaits is one coroutine, and one of very many statements is one piece of code.
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

#: The way cells are compiled.
FLAGS = PyCF_ALLOW_TOP_LEVEL_AWAIT
FUTURES = 0x1FF0000  # the bits of co_flags that `from __future__ import …` sets
#: Without any of these, a cell that is in order statement by statement is so as a whole, and awaits nothing.
_OF_THE_WHOLE = ("await", "async", "global", "__future__")
#: A cell of more is not written for people, and so many pieces of code take more memory and time than one.
_MOST_STATEMENTS = 2000
#: From here on, the annotations of a module are a function of its code: of that of the last statement that has some.
_ANNOTATIONS_ARE_CODE = sys.version_info >= (3, 14)
#: Statements that have others of the same module in them.
_COMPOUND = (If, For, While, With, Try, TryStar, Match, AsyncFor, AsyncWith)
#: Statements that the line after them may go on with.
_OPEN = (*_COMPOUND, FunctionDef, AsyncFunctionDef, ClassDef)
_find_line_ends = to_pattern(r"\r\n|\r|\n").finditer


def compile_cell(source: str, filename: str) -> list[CodeType]:
    """The code of a cell: that of each statement; an expression at the end is the value to show.

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
            error.text = "".join(lines_of(source)[error.lineno - 1 : error.lineno])
        raise


def is_plain(source: str, filename: str) -> bool:
    """Returns true when a cell compiles without a warning, and is its statements only: they may run as they come."""
    try:
        with Warnings("error"):
            codes = compile_cell(source, filename)
            if _is_one(_parse(source, filename).body):
                return False
    except BaseException:  # a hook of the user's may raise anything
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
                _compile_whole(body, filename)  # it may find another one first
            raise
    codes = _compile_whole(body, filename)
    if any(code.co_flags & CO_COROUTINE for code in codes):
        return codes
    with Warnings("ignore"):  # all were told
        return _compile_each(body, filename, FLAGS, is_first=True)[0]


def _is_one(body: list[stmt]) -> bool:
    """Returns true when a cell is one piece of code, whatever its statements are."""
    return len(body) > _MOST_STATEMENTS or (_ANNOTATIONS_ARE_CODE and _annotates(body))


def _annotates(body: list[stmt]) -> bool:
    """Returns true when there are annotations of the module's own."""
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
    """The code of each statement, and the flags for those that follow. `is_first`: whether the cell begins here."""
    codes: list[CodeType] = []
    for index, statement in enumerate(body):
        if index == len(body) - 1 and isinstance(statement, Expr):
            codes.append(compile(Expression(statement.value), filename, "eval", flags, True))
            continue
        if isinstance(statement, Expr) and isinstance(statement.value, Constant) and (index or not is_first):
            continue  # or a text would be the module's __doc__, which only one at the beginning is
        code = compile(Module([statement], []), filename, "exec", flags, True)
        flags |= code.co_flags & FUTURES
        codes.append(code)
    return codes, flags


class Warnings:
    """Handles the compiler's warnings. Not by `catch_warnings`: all that were told once would be told again.

    Nor is it one of contextlib's: those need builtins that a cell may have replaced.
    """

    def __init__(self, action: str) -> None:
        self._action = action

    def __enter__(self) -> None:
        self._filters = getattr(warnings, "filters", [])
        warnings.filters = [(self._action, None, Warning, None, 0)]

    def __exit__(self, *_: object) -> None:
        warnings.filters = self._filters


class Growing:
    """Compiles a cell whose text comes bit by bit, each time up to the end of a line, without that end itself.

    A simple statement is complete there, whatever the next line is; one that has statements in it only when another one
    begins. An expression may be the last of the cell: so its code always has a value.
    """

    def __init__(self, filename: str) -> None:
        self.source = ""
        self.filename = filename
        self.is_whole = False
        self._compiled = 0  # characters of the source
        self._flags = FLAGS
        self._is_first = True
        self._retry = 0  # how long what is not complete has to be before it is looked at again

    def add(self, text: str, is_last: bool) -> list[CodeType]:
        """The code that it makes complete. None as long as that is no Python, such as half of a text of many lines."""
        self.source += text
        self.is_whole = is_last
        pending = len(self.source) - self._compiled
        if not is_last and pending < self._retry:
            return []
        # The lines before are empty ones, for the numbers.
        before = sum(1 for _ in _find_line_ends(self.source, 0, self._compiled))
        source = "\n" * before + self.source[self._compiled :]
        end = len(self.source)
        try:
            with Warnings("error"):
                body = _parse(source, self.filename).body
                if not is_last and body and self._may_go_on(body):
                    body.pop()
                    if self._is_first and len(body) == 1 and _is_text(body[0]):
                        body.pop()  # the cell's __doc__, which is one with what comes after it
                    # Where a statement begins is not known, such as one with decorators, but where the one before ends.
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
    """Returns true when it is a constant alone."""
    return isinstance(statement, Expr) and isinstance(statement.value, Constant)


def _end_of_line(source: str, line: int) -> int:
    """The place where the line after this one begins."""
    for number, end in enumerate(_find_line_ends(source), 1):
        if number == line:
            return end.end()
    return len(source)


def _parse(source: str, filename: str) -> Module:
    try:
        return compile(source, filename, "exec", FLAGS | PyCF_ONLY_AST, True)  # type: ignore[no-any-return]
    except SystemError:
        # CPython before 3.11.8 and 3.12.2 counts the depth of all trees under construction in one place (gh-106905):
        # one that another thread or a finalizer makes meanwhile spoils the count, and a good tree is thrown away.
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
    """Lines as the compiler counts them: str.splitlines would also split at form feeds and U+2028."""
    if "\n" not in source and "\r" not in source:
        return [source + "\n"] if source else []
    lines = StringIO(source, newline=None).readlines()
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return lines
