"""Statements that are pure but for what they do with a value."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any

from sandglass import execution as cells
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.parts import Part, key_of, split
from sandglass.speculate.purity import Expression


def code_of(statement: ast.stmt, code: CodeType, *, is_value: bool) -> CodeType | None:
    """The key of a statement, compiled as `code` was."""
    flags = cells.FLAGS | (code.co_flags & cells.FUTURES)
    tree: Any = ast.Module([statement], [])
    if is_value:
        if not isinstance(statement, ast.Expr):
            return None
        tree = ast.Expression(statement.value)
    with cells.Warnings("ignore"):
        return key_of(compile(tree, "", "eval" if is_value else "exec", flags, True))


class Plan:
    """A statement that is pure but for what it does with the value."""

    def __init__(self, statement: ast.stmt, code: CodeType, namespace: dict[str, Any], *, is_value: bool) -> None:
        """`is_value`: it is the cell's last expression. ValueError when it is not known to be pure."""
        self.targets: list[str] = []
        self.options: dict[str, Any] | None = None
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if not isinstance(target, ast.Name):
                    raise ValueError("a target")
                self.targets.append(target.id)
            tree = statement.value
        elif isinstance(statement, ast.Expr):
            tree = statement.value
            if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "print":
                self.options = _options(tree)
                tree = ast.copy_location(ast.Tuple(tree.args, ast.Load()), tree)
            elif not is_value:
                raise ValueError("nothing comes of it")
        else:
            raise ValueError("a statement")
        self.expression = Expression(tree, namespace)
        if self.options is not None:
            self.expression.builtins.add("print")
            if "print" in namespace:
                raise ValueError("print is a variable")
        try:
            whole = split(tree, self.expression, code.co_filename, cells.FLAGS | (code.co_flags & cells.FUTURES))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        #: What is evaluated in place of the statement: parts, or arguments of `print`. None when it would be the same.
        self.whole: Part | None = whole if self.options is not None or whole.parts or whole.key else None


def _options(call: ast.Call) -> dict[str, Any]:
    options = {}
    for keyword in call.keywords:
        if keyword.arg not in ("sep", "end", "flush") or not isinstance(keyword.value, ast.Constant):
            raise ValueError("an option of print")
        value = keyword.value.value
        if type(value) is not (bool if keyword.arg == "flush" else str) and value is not None:
            raise ValueError("an option of print")
        options[keyword.arg] = value
    return options
