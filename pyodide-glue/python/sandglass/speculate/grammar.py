"""The syntax of pure expressions; see `purity`."""

from __future__ import annotations

import ast
import collections
import re
from typing import Any, ClassVar

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.rows import (
    COUNTER,
    DATA,
    ITER,
    ITERABLE,
    MATCH,
    MATCHES,
    OPERATORS,
    PATTERN,
    PLAIN,
    SET,
    TESTABLE,
    Kinds,
)

MISSING = object()


class Impure(Exception):
    """It is not known to be pure."""


class Grammar:
    """The syntax of a pure expression, and what it depends on: all but calls, which `purity.Expression` adds."""

    looks: ClassVar[dict[type, Any]] = {}

    def __init__(self, tree: ast.expr, namespace: dict[str, Any]) -> None:
        self.tree = tree
        #: Variables with data, and those that only ever are looked through, where they may be sets.
        self.names: dict[str, None] = {}
        #: Variables with functions, modules and patterns, which are what they are by identity.
        self.fixed: dict[str, Any] = {}
        #: Builtins.
        self.builtins: set[str] = set()
        #: What else it rests on: attributes of modules, and families of `intact`.
        self.attributes: dict[tuple[str, str], Any] = {}
        self.families: set[str] = set()
        #: Methods of Python's types.
        self.methods: set[str] = set()
        #: Whether dicts may be copied: a copy's room, which `sys.getsizeof` tells, is that of the original.
        self.copies = False
        #: Patterns that `re` compiles by itself: the variable or the text, and flags.
        self.patterns: list[tuple[bool, str, int]] = []
        self.namespace = namespace
        try:
            if self._look(tree, {}) is not DATA:
                raise ValueError("its value is no data")
        except Impure as why:
            raise ValueError(str(why)) from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    # ---- expressions ----

    def _look(self, node: ast.expr, local: dict[str, str]) -> str:
        look = self.looks.get(type(node))
        if look is None:
            raise Impure(type(node).__name__)
        kind: str = look(self, node, local)
        return kind

    def _need(self, node: ast.expr, kinds: Kinds, local: dict[str, str]) -> str:
        kind = self._look(node, local)
        if kind not in kinds:
            raise Impure(f"{kind} where it is not known")
        return kind

    def _constant(self, node: ast.Constant, _local: dict[str, str]) -> str:
        if node.value is Ellipsis:
            raise Impure("Ellipsis")
        return DATA

    def _name(self, node: ast.Name, local: dict[str, str]) -> str:
        name = node.id
        if name in local:
            return local[name]
        value = self.namespace.get(name, MISSING)
        if value is MISSING:
            raise Impure(f"{name} is no variable")
        kind = type(value)
        if kind is re.Pattern:
            if value.flags & re.LOCALE:
                raise Impure("the locale")
            self.fixed[name] = value
            return PATTERN
        if kind is collections.Counter:
            raise Impure("a counter")
        self.names[name] = None
        return SET if kind is set or kind is frozenset else DATA

    def _operation(self, node: ast.BinOp, local: dict[str, str]) -> str:
        if not isinstance(node.op, OPERATORS):
            raise Impure("an operator")
        self.copies |= isinstance(node.op, ast.BitOr)
        self._need(node.left, PLAIN, local)
        self._need(node.right, PLAIN, local)
        return DATA

    def _unary(self, node: ast.UnaryOp, local: dict[str, str]) -> str:
        if isinstance(node.op, ast.Not):
            self._need(node.operand, TESTABLE, local)
        elif isinstance(node.op, ast.Invert):
            raise Impure("~")
        else:
            self._need(node.operand, PLAIN, local)
        return DATA

    def _boolean(self, node: ast.BoolOp, local: dict[str, str]) -> str:
        for value in node.values:
            self._need(value, PLAIN, local)
        return DATA

    def _test(self, node: ast.expr, local: dict[str, str]) -> None:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._test(value, local)
        else:
            self._need(node, TESTABLE, local)

    def _compare(self, node: ast.Compare, local: dict[str, str]) -> str:
        left = self._look(node.left, local)
        for op, right in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.Is, ast.IsNot)):
                if not (isinstance(right, ast.Constant) and right.value is None and len(node.ops) == 1):
                    raise Impure("identity")
                if left not in (DATA, MATCH):
                    raise Impure("identity")
                return DATA
            kind = self._look(right, local)
            if left is not DATA or (kind not in ITERABLE if isinstance(op, (ast.In, ast.NotIn)) else kind is not DATA):
                raise Impure("a comparison")
            left = kind
        return DATA

    def _conditional(self, node: ast.IfExp, local: dict[str, str]) -> str:
        self._test(node.test, local)
        self._need(node.body, PLAIN, local)
        self._need(node.orelse, PLAIN, local)
        return DATA

    def _display(self, node: ast.List | ast.Tuple | ast.Set, local: dict[str, str]) -> str:
        for item in node.elts:
            if isinstance(item, ast.Starred):
                self._need(item.value, ITERABLE - {SET} if isinstance(node, ast.Set) else ITERABLE, local)
            else:
                self._need(item, PLAIN, local)
        return DATA

    def _dict(self, node: ast.Dict, local: dict[str, str]) -> str:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is not None:
                self._need(key, PLAIN, local)
            else:
                self.copies = True
            self._need(value, PLAIN, local)
        return DATA

    def _subscript(self, node: ast.Subscript, local: dict[str, str]) -> str:
        self._need(node.value, frozenset((DATA, COUNTER, MATCH)), local)
        if isinstance(node.slice, ast.Slice):
            for part in (node.slice.lower, node.slice.upper, node.slice.step):
                if part is not None:
                    self._need(part, PLAIN, local)
        else:
            self._need(node.slice, PLAIN, local)
        return DATA

    def _text(self, node: ast.JoinedStr, local: dict[str, str]) -> str:
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self._need(part.value, PLAIN, local)
                if part.format_spec is not None:
                    specs = part.format_spec.values if isinstance(part.format_spec, ast.JoinedStr) else [None]
                    for spec in specs:
                        if not isinstance(spec, ast.Constant) or "n" in str(spec.value):
                            raise Impure("a format")
            elif not isinstance(part, ast.Constant):
                raise Impure("a part of a text")
        return DATA

    # ---- loops ----

    def _comprehension(self, node: Any, local: dict[str, str]) -> str:
        inner = dict(local)
        for loop in node.generators:
            if loop.is_async:
                raise Impure("async")
            kind = self._need(loop.iter, ITERABLE | {MATCHES}, inner)
            self._bind(loop.target, MATCH if kind is MATCHES else DATA, inner)
            for test in loop.ifs:
                self._test(test, inner)
        if isinstance(node, ast.DictComp):
            self._need(node.key, PLAIN, inner)
            self._need(node.value, PLAIN, inner)
        else:
            self._need(node.elt, PLAIN, inner)
        return ITER if isinstance(node, ast.GeneratorExp) else DATA

    def _bind(self, target: ast.expr, kind: str, local: dict[str, str]) -> None:
        if isinstance(target, ast.Name):
            local[target.id] = kind
        elif isinstance(target, ast.Tuple) and kind is DATA:
            for part in target.elts:
                self._bind(part, DATA, local)
        else:
            raise Impure("a target")


Grammar.looks = {
    ast.Constant: Grammar._constant,
    ast.Name: Grammar._name,
    ast.BinOp: Grammar._operation,
    ast.UnaryOp: Grammar._unary,
    ast.BoolOp: Grammar._boolean,
    ast.Compare: Grammar._compare,
    ast.IfExp: Grammar._conditional,
    ast.List: Grammar._display,
    ast.Tuple: Grammar._display,
    ast.Set: Grammar._display,
    ast.Dict: Grammar._dict,
    ast.Subscript: Grammar._subscript,
    ast.JoinedStr: Grammar._text,
    ast.ListComp: Grammar._comprehension,
    ast.SetComp: Grammar._comprehension,
    ast.DictComp: Grammar._comprehension,
    ast.GeneratorExp: Grammar._comprehension,
}
