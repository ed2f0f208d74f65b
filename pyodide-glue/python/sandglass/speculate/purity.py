"""Which expressions are pure: an allowlist of syntax, functions and methods over Python's own types.

Data are None, numbers, text, bytes, and tuples, lists, dicts and sets of data, of exactly these types. All that is
allowed here makes data of data and nothing else, whatever their types turn out to be: whoever calls a method that the
type does not have gets an error, and errors are not recorded. So no types have to be inferred, but for what is no data:
iterators, patterns, matches and counters. What is not known is not pure.

Left out, although it looks pure: `~` (warns for a bool), `is` (but for None), `hash`, `id`, whatever makes a set of a
set (the order of the new one depends on how the old one came to be), format specifications with `n` and `str.format`
(the locale), codecs other than UTF-8 (a registry), replacements with a backslash (parsed in Python).

Arrays and frames are left out as well. Data of theirs can be written through other arrays (`flags.writeable` can be set
even with copy-on-write), so that only all their bytes tell of a change, which takes as long as most of what is asked;
and what they do is thousands of functions in Python that code may replace.
"""

from __future__ import annotations

import ast
import collections
import json
import operator
import re
from types import ModuleType
from typing import Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.rows import (
    BUILTINS,
    CLASSES,
    CODECS,
    CONSTANTS,
    COUNTER,
    COUNTER_METHODS,
    DATA,
    ITER,
    ITERABLE,
    JSON_KEYWORDS,
    KEYS,
    KEYWORDS,
    MATCH,
    MATCH_METHODS,
    MATCHES,
    MATH,
    METHODS,
    MODULE_NAMES,
    OPERATORS,
    PATTERN,
    PATTERN_METHODS,
    PLAIN,
    RE_FLAGS,
    RE_FUNCTIONS,
    SET,
    TESTABLE,
    TYPES,
    VIEWS,
    Kinds,
)

#: What looks at the call of a function, by the function's id; and the function, so that the id stays its own.
_FUNCTIONS: dict[int, tuple[Any, Any]] = {}
_MISSING = object()


class _Impure(Exception):
    """It is not known to be pure."""


class Expression:
    """A pure expression, and what it depends on. `ValueError` when it is not known to be pure."""

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
        self._namespace = namespace
        try:
            if self._look(tree, {}) is not DATA:
                raise ValueError("its value is no data")
        except _Impure as why:
            raise ValueError(str(why)) from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None

    # ---- expressions ----

    def _look(self, node: ast.expr, local: dict[str, str]) -> str:
        look = _LOOKS.get(type(node))
        if look is None:
            raise _Impure(type(node).__name__)
        kind: str = look(self, node, local)
        return kind

    def _need(self, node: ast.expr, kinds: Kinds, local: dict[str, str]) -> str:
        kind = self._look(node, local)
        if kind not in kinds:
            raise _Impure(f"{kind} where it is not known")
        return kind

    def _constant(self, node: ast.Constant, _local: dict[str, str]) -> str:
        if node.value is Ellipsis:
            raise _Impure("Ellipsis")
        return DATA

    def _name(self, node: ast.Name, local: dict[str, str]) -> str:
        name = node.id
        if name in local:
            return local[name]
        value = self._namespace.get(name, _MISSING)
        if value is _MISSING:
            raise _Impure(f"{name} is no variable")
        kind = type(value)
        if kind is re.Pattern:
            if value.flags & re.LOCALE:
                raise _Impure("the locale")
            self.fixed[name] = value
            return PATTERN
        if kind is collections.Counter:
            raise _Impure("a counter")
        self.names[name] = None
        return SET if kind is set or kind is frozenset else DATA

    def _operation(self, node: ast.BinOp, local: dict[str, str]) -> str:
        if not isinstance(node.op, OPERATORS):
            raise _Impure("an operator")
        self.copies |= isinstance(node.op, ast.BitOr)
        self._need(node.left, PLAIN, local)
        self._need(node.right, PLAIN, local)
        return DATA

    def _unary(self, node: ast.UnaryOp, local: dict[str, str]) -> str:
        if isinstance(node.op, ast.Not):
            self._need(node.operand, TESTABLE, local)
        elif isinstance(node.op, ast.Invert):
            raise _Impure("~")
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
                    raise _Impure("identity")
                if left not in (DATA, MATCH):
                    raise _Impure("identity")
                return DATA
            kind = self._look(right, local)
            if left is not DATA or (kind not in ITERABLE if isinstance(op, (ast.In, ast.NotIn)) else kind is not DATA):
                raise _Impure("a comparison")
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
                            raise _Impure("a format")
            elif not isinstance(part, ast.Constant):
                raise _Impure("a part of a text")
        return DATA

    # ---- loops ----

    def _comprehension(self, node: Any, local: dict[str, str]) -> str:
        inner = dict(local)
        for loop in node.generators:
            if loop.is_async:
                raise _Impure("async")
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
            raise _Impure("a target")

    # ---- calls ----

    def _call(self, node: ast.Call, local: dict[str, str]) -> str:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise _Impure("*")
        if any(keyword.arg is None for keyword in node.keywords):
            raise _Impure("**")
        function = node.func
        if isinstance(function, ast.Name):
            if function.id not in local and function.id not in self._namespace:
                return self._call_builtin(function.id, node, local)
            return self._call_function(self._fixed(function, local), node, local)
        if not isinstance(function, ast.Attribute):
            raise _Impure("a call of a value")
        value = self._attribute_of_module(function, local)
        if value is not _MISSING:
            return self._call_function(value, node, local)
        if isinstance(function.value, ast.Name) and function.attr == "fromkeys":
            if self._builtin(function.value, local) != "dict" or len(node.args) != 1 or node.keywords:
                raise _Impure("fromkeys")
            self._need(node.args[0], ITERABLE, local)
            self.methods.add("fromkeys")
            self.copies = True
            return DATA
        return self._call_method(function, node, local)

    def _call_builtin(self, name: str, node: ast.Call, local: dict[str, str]) -> str:
        arguments = node.args
        self.builtins.add(name)
        if name in ("map", "filter"):
            if len(arguments) != 2 or node.keywords:
                raise _Impure(name)
            if not (name == "filter" and isinstance(arguments[0], ast.Constant) and arguments[0].value is None):
                self._key(arguments[0], local)
            self._need(arguments[1], ITERABLE, local)
            return ITER
        if name == "isinstance":
            if len(arguments) != 2 or node.keywords:
                raise _Impure(name)
            self._need(arguments[0], frozenset((DATA, MATCH)), local)
            classes = arguments[1].elts if isinstance(arguments[1], ast.Tuple) else [arguments[1]]
            if any(self._builtin(item, local) not in CLASSES for item in classes):
                raise _Impure(name)
            return DATA
        row = BUILTINS.get(name)
        if row is None:
            raise _Impure(name)
        kinds, least, most, result = row
        if not least <= len(arguments) <= most:
            raise _Impure(name)
        for index, argument in enumerate(arguments):
            allowed = kinds[min(index, len(kinds) - 1)]
            if len(arguments) > 1 and name in ("min", "max"):
                allowed = PLAIN
            kind = self._need(argument, allowed, local)
            self.copies |= name == "dict" and kind is DATA
        for keyword in node.keywords:
            if keyword.arg not in KEYWORDS.get(name, ()):
                raise _Impure(name)
            if keyword.arg == "key":
                self._key(keyword.value, local)
            else:
                self._need(keyword.value, PLAIN, local)
        return result

    def _builtin(self, node: ast.expr, local: dict[str, str]) -> str:
        """The name of a builtin that is not shadowed."""
        if not isinstance(node, ast.Name) or node.id in local or node.id in self._namespace:
            raise _Impure("no builtin")
        self.builtins.add(node.id)
        return node.id

    def _key(self, node: ast.expr, local: dict[str, str]) -> None:
        """A function of one item."""
        if isinstance(node, ast.Lambda):
            parameters = node.args
            if parameters.defaults or parameters.vararg or parameters.kwarg or parameters.kwonlyargs:
                raise _Impure("a function")
            names = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
            self._need(node.body, PLAIN, {**local, **dict.fromkeys(names, DATA)})
        elif isinstance(node, ast.Name):
            if self._builtin(node, local) not in KEYS:
                raise _Impure("a function")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS - VIEWS:
            name = node.value.id
            if name in local or name in self._namespace:
                self._need(node.value, PLAIN, local)
            elif self._builtin(node.value, local) not in TYPES:
                raise _Impure("a function")
            if node.attr in ("encode", "decode"):
                raise _Impure("a codec")
            self.methods.add(node.attr)
        elif isinstance(node, ast.Call) and self._called(node.func, local) is operator.itemgetter:
            if node.keywords or not node.args or not all(isinstance(item, ast.Constant) for item in node.args):
                raise _Impure("itemgetter")
        else:
            raise _Impure("a function")

    def _called(self, node: ast.expr, local: dict[str, str]) -> Any:
        if isinstance(node, ast.Attribute):
            return self._attribute_of_module(node, local)
        return self._fixed(node, local) if isinstance(node, ast.Name) else _MISSING

    def _fixed(self, node: ast.Name, local: dict[str, str]) -> Any:
        """A variable that stands for a function or module that is known."""
        value = self._namespace.get(node.id, _MISSING)
        if node.id in local or (id(value) not in _FUNCTIONS and id(value) not in MODULE_NAMES):
            raise _Impure(f"{node.id} is not known")
        self.fixed[node.id] = value
        return value

    def _attribute_of_module(self, node: ast.Attribute, local: dict[str, str]) -> Any:
        """What a module that is known has by that name; `_MISSING` when this is no attribute of a module."""
        if not isinstance(node.value, ast.Name) or node.value.id in local:
            return _MISSING
        module = self._namespace.get(node.value.id, _MISSING)
        if type(module) is not ModuleType:
            return _MISSING
        name = MODULE_NAMES.get(id(module))
        value = None if name is None else vars(module).get(node.attr)
        if name is None or value is None:
            raise _Impure("a module")
        self.fixed[node.value.id] = module
        self.attributes[name, node.attr] = value
        return value

    def _attribute(self, node: ast.Attribute, local: dict[str, str]) -> str:
        value = self._attribute_of_module(node, local)
        if any(value is constant for constant in CONSTANTS):
            return DATA
        raise _Impure("an attribute")

    def _call_function(self, function: Any, node: ast.Call, local: dict[str, str]) -> str:
        row, known = _FUNCTIONS.get(id(function), (None, None))
        if row is None or known is not function:
            raise _Impure("a function")
        kind: str = row(self, function, node, local)
        return kind

    def _call_math(self, _function: Any, node: ast.Call, local: dict[str, str]) -> str:
        if node.keywords:
            raise _Impure("math")
        for argument in node.args:
            self._need(argument, frozenset((DATA, ITER)), local)
        return DATA

    def _call_re(self, function: Any, node: ast.Call, local: dict[str, str]) -> str:
        name = RE_FUNCTIONS[function]
        plain = 3 if name == "sub" else 2
        if len(node.args) < plain or (name in ("sub", "split") and len(node.args) > plain) or len(node.args) > 3:
            raise _Impure("re")
        pattern, *rest = node.args[:plain]
        flags = [keyword.value for keyword in node.keywords if keyword.arg == "flags"]
        counts = [keyword.value for keyword in node.keywords if keyword.arg != "flags"]
        if any(keyword.arg not in ("flags", "count", "maxsplit") for keyword in node.keywords):
            raise _Impure("re")
        flags += node.args[plain:]
        if len(flags) > 1:
            raise _Impure("re")
        number = self._flags(flags[0], local) if flags else 0
        if isinstance(pattern, ast.Constant) and type(pattern.value) is str:
            self.patterns.append((False, pattern.value, number))
        elif isinstance(pattern, ast.Name) and self._need(pattern, PLAIN, local):
            if pattern.id in local or type(self._namespace.get(pattern.id)) is not str:
                raise _Impure("re")
            self.patterns.append((True, pattern.id, number))
        else:
            raise _Impure("re")
        self.families.add("re")
        return self._match(name, [*rest, *counts], local)

    def _flags(self, node: ast.expr, local: dict[str, str]) -> int:
        if not isinstance(node, ast.Attribute) or node.attr not in RE_FLAGS:
            raise _Impure("flags")
        if self._attribute_of_module(node, local) is _MISSING or ("re", node.attr) not in self.attributes:
            raise _Impure("flags")
        return RE_FLAGS[node.attr]

    def _match(self, name: str, arguments: list[ast.expr], local: dict[str, str]) -> str:
        if name == "sub":
            replacement, *arguments = arguments
            if not isinstance(replacement, ast.Constant) or type(replacement.value) is not str:
                raise _Impure("a replacement")
            if "\\" in replacement.value:
                raise _Impure("a replacement")
        if not arguments:
            raise _Impure("re")
        for argument in arguments:
            self._need(argument, PLAIN, local)
        return PATTERN_METHODS[name]

    def _call_json(self, function: Any, node: ast.Call, local: dict[str, str]) -> str:
        self.families.add("json")
        if len(node.args) != 1:
            raise _Impure("json")
        for keyword in node.keywords:
            if function is json.loads or keyword.arg not in JSON_KEYWORDS:
                raise _Impure("json")
            if not isinstance(keyword.value, ast.Constant) or type(keyword.value.value) not in (int, bool):
                raise _Impure("json")
        self._need(node.args[0], PLAIN, local)
        return DATA

    def _call_counter(self, _function: Any, node: ast.Call, local: dict[str, str]) -> str:
        self.families.add("collections")
        if len(node.args) != 1 or node.keywords:
            raise _Impure("Counter")
        self._need(node.args[0], ITERABLE - {COUNTER}, local)
        return COUNTER

    def _call_method(self, function: ast.Attribute, node: ast.Call, local: dict[str, str]) -> str:
        name, kind = function.attr, self._look(function.value, local)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if kind is PATTERN and name in PATTERN_METHODS and not node.keywords:
            return self._match(name, arguments, local)
        for argument in arguments:
            self._need(argument, ITERABLE - {COUNTER} if name == "join" else PLAIN, local)
        if kind is MATCH and name in MATCH_METHODS:
            return DATA
        if kind is COUNTER and name in COUNTER_METHODS:
            return COUNTER_METHODS[name]
        if kind is not DATA or name not in METHODS:
            raise _Impure(f"{name} of {kind}")
        if name in ("encode", "decode") and arguments:
            codec = arguments[0]
            if len(arguments) > 1 or not isinstance(codec, ast.Constant) or codec.value not in CODECS:
                raise _Impure("a codec")
        self.methods.add(name)
        self.copies |= name == "copy"
        return ITER if name in VIEWS else DATA


_LOOKS: dict[type, Any] = {
    ast.Constant: Expression._constant,
    ast.Name: Expression._name,
    ast.BinOp: Expression._operation,
    ast.UnaryOp: Expression._unary,
    ast.BoolOp: Expression._boolean,
    ast.Compare: Expression._compare,
    ast.IfExp: Expression._conditional,
    ast.List: Expression._display,
    ast.Tuple: Expression._display,
    ast.Set: Expression._display,
    ast.Dict: Expression._dict,
    ast.Subscript: Expression._subscript,
    ast.JoinedStr: Expression._text,
    ast.ListComp: Expression._comprehension,
    ast.SetComp: Expression._comprehension,
    ast.DictComp: Expression._comprehension,
    ast.GeneratorExp: Expression._comprehension,
    ast.Call: Expression._call,
    ast.Attribute: Expression._attribute,
}
for _row, _functions in (
    (Expression._call_math, MATH),
    (Expression._call_re, RE_FUNCTIONS),
    (Expression._call_json, (json.loads, json.dumps)),
    (Expression._call_counter, (collections.Counter,)),
    (None, (operator.itemgetter,)),
):
    for _function in _functions:
        _FUNCTIONS[id(_function)] = _row, _function
