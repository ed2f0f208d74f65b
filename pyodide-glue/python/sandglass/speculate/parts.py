"""A pure expression in parts: calls in it that are made whatever comes of the rest, each to be answered by itself.

Parts are evaluated on their own, the rest with their values in their places. Nobody can tell: all of it is pure, so no
function that is called looks at frames, what fails is run again as it was written, and only data without a state is in
between. But for objects that are made by compiling: equal constants of a statement are one object. So all parts get
theirs from one syntax tree, parts with constants that the compiler would compute are none, and the result of a part is
kept only when no constant is in it.
"""

from __future__ import annotations

import ast
from types import CodeType
from typing import TYPE_CHECKING, Any

from sandglass import execution as cells
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.purity import Expression
from sandglass.speculate.tags import parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Parts of a statement; items of a result that is kept of one.
_MOST_PARTS = 8
MOST_PART_ITEMS = 500
#: Integers that exist once.
_SMALL = range(-5, 257)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Part:
    """A call in a pure expression, or all of the expression."""

    def __init__(self, expression: Expression, code: CodeType, key: CodeType | None, parts: dict[str, Part]) -> None:
        self.expression = expression
        #: It, with names in the places of its parts.
        self.code = code
        #: What two of them have in common that are the same, as of statements; None for what is not answered by itself.
        self.key = key
        self.parts = parts
        #: Of what comes of it, as of a statement: it is a value.
        self.targets: list[str] = []
        self.options: dict[str, Any] | None = None
        #: Whether its result was kept.
        self.is_kept = False

    def has_constant(self, value: Any) -> bool:
        """Whether a constant of its code is in its value. ValueError for a value that is too large."""
        ids = {id(value)}
        for part in parts_of(value, MOST_PART_ITEMS):
            ids.update(map(id, part))
        return any(id(constant) in ids and not _is_one(constant) for constant in self._constants())

    def _constants(self) -> Iterator[Any]:
        yield from _constants_of(self.code)
        for part in self.parts.values():
            yield from part._constants()


def key_of(code: CodeType) -> CodeType:
    """What two pieces of code have in common that are the same, wherever they stand."""
    constants = code.co_consts
    for constant in constants:
        if type(constant) is CodeType:
            constants = tuple(key_of(item) if type(item) is CodeType else item for item in constants)
            break
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=constants)


def split(tree: ast.expr, expression: Expression, filename: str, flags: int) -> Part:
    """All of a pure expression. Its key is None when it is no call."""
    splitter = _Splitter(expression.namespace, filename, flags)
    # `re` remembers which pattern was used last: with several of them, the order of parts would tell.
    splitter.left = _MOST_PARTS if len(expression.patterns) <= 1 else 0
    return splitter.part(splitter.unified(tree), expression)


class _Splitter:
    def __init__(self, namespace: dict[str, Any], filename: str, flags: int) -> None:
        self.left = 0
        self._namespace = namespace
        self._filename, self._flags = filename, flags
        self._constants: dict[Any, Any] = {}

    def unified(self, node: Any) -> Any:
        """A copy of a tree in which equal constants are one object."""
        if isinstance(node, list):
            return [self.unified(item) for item in node]
        if not isinstance(node, ast.AST):
            return node
        fields = {name: self.unified(value) for name, value in vars(node).items()}
        if isinstance(node, ast.Constant):
            value = node.value
            fields["value"] = self._constants.setdefault((type(value), repr(value)), value)
        return type(node)(**fields)

    def part(self, tree: ast.expr, expression: Expression) -> Part:
        parts: dict[str, Part] = {}
        reduced = self._with_names(tree, parts)
        code = self._compile(reduced)
        key = None
        if isinstance(tree, ast.Call):
            key = key_of(self._compile(tree) if parts else code)
        return Part(expression, code, key, parts)

    def _compile(self, tree: ast.expr) -> CodeType:
        with cells.Warnings("ignore"):
            code: CodeType = compile(ast.Expression(tree), self._filename, "eval", self._flags, True)
        return code

    def _reduced(self, node: Any, parts: dict[str, Part]) -> Any:
        """What stands for an expression: a name, if it is a part."""
        if isinstance(node, list):
            return [self._reduced(item, parts) for item in node]
        if not isinstance(node, ast.AST):
            return node
        if isinstance(node, ast.Call) and self.left > 0:
            part = self._part_of(node)
            if part is not None:
                name = f"part {len(parts)}"  # which no code can have as a name
                parts[name] = part
                return ast.copy_location(ast.Name(name, ast.Load()), node)
        return self._with_names(node, parts)

    def _part_of(self, node: ast.Call) -> Part | None:
        try:
            expression = Expression(node, self._namespace)
        except ValueError:
            return None
        self.left -= 1
        part = self.part(node, expression)
        given = {*map(id, self._constants.values())}
        if all(id(item) in given or _is_one(item) or _is_keywords(item, node) for item in part._constants()):
            return part
        return None

    def _with_names(self, node: Any, parts: dict[str, Part]) -> Any:
        """An expression with names for the parts in it: what is evaluated once, whatever comes of the rest."""
        fields = dict(vars(node))
        if isinstance(node, ast.Lambda):
            return node
        if isinstance(node, _COMPREHENSIONS):
            first, *others = node.generators
            loop = {**vars(first), "iter": self._reduced(first.iter, parts)}
            fields["generators"] = [ast.comprehension(**loop), *others]
        elif isinstance(node, ast.IfExp):
            fields["test"] = self._reduced(node.test, parts)
        elif isinstance(node, ast.BoolOp):
            fields["values"] = [self._reduced(node.values[0], parts), *node.values[1:]]
        elif isinstance(node, ast.Compare):
            fields["left"] = self._reduced(node.left, parts)
            fields["comparators"] = [self._reduced(node.comparators[0], parts), *node.comparators[1:]]
        else:
            fields = {name: self._reduced(value, parts) for name, value in fields.items()}
        return type(node)(**fields)


def _constants_of(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _constants_of(constant)
        else:
            yield constant


def _is_one(constant: Any) -> bool:
    """Whether all code has the same object for that."""
    kind = type(constant)
    if kind is int:
        return constant in _SMALL
    if kind is str:
        return (
            constant < "\u0100"
            if len(constant) == 1
            else constant.isascii() and f"{constant}a".replace("_", "a").isalnum()
        )
    return constant is None or kind is bool or (kind in (tuple, bytes) and not constant)


def _is_keywords(constant: Any, node: ast.Call) -> bool:
    """Whether a constant is the names of a call's keywords, which are nobody's value."""
    if type(constant) is not tuple:
        return False
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Tuple, ast.List, ast.Set)) and all(
            isinstance(item, ast.Constant) for item in inner.elts
        ):
            return False
    calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return any(constant == tuple(keyword.arg for keyword in call.keywords) for call in calls)
