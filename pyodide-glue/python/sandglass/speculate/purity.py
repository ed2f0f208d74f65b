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
from types import ModuleType
from typing import Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.grammar import MISSING, Grammar, Impure
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
    MATH,
    METHODS,
    MODULE_NAMES,
    PATTERN,
    PATTERN_METHODS,
    PLAIN,
    RE_FLAGS,
    RE_FUNCTIONS,
    TYPES,
    VIEWS,
)

#: What looks at the call of a function, by the function's id; and the function, so that the id stays its own.
_FUNCTIONS: dict[int, tuple[Any, Any]] = {}


class Expression(Grammar):
    """A pure expression, and what it depends on. `ValueError` when it is not known to be pure."""

    def _call(self, node: ast.Call, local: dict[str, str]) -> str:
        if any(isinstance(argument, ast.Starred) for argument in node.args):
            raise Impure("*")
        if any(keyword.arg is None for keyword in node.keywords):
            raise Impure("**")
        function = node.func
        if isinstance(function, ast.Name):
            if function.id not in local and function.id not in self.namespace:
                return self._call_builtin(function.id, node, local)
            return self._call_function(self._fixed(function, local), node, local)
        if not isinstance(function, ast.Attribute):
            raise Impure("a call of a value")
        value = self._attribute_of_module(function, local)
        if value is not MISSING:
            return self._call_function(value, node, local)
        if isinstance(function.value, ast.Name) and function.attr == "fromkeys":
            if self._builtin(function.value, local) != "dict" or len(node.args) != 1 or node.keywords:
                raise Impure("fromkeys")
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
                raise Impure(name)
            if not (name == "filter" and isinstance(arguments[0], ast.Constant) and arguments[0].value is None):
                self._key(arguments[0], local)
            self._need(arguments[1], ITERABLE, local)
            return ITER
        if name == "isinstance":
            if len(arguments) != 2 or node.keywords:
                raise Impure(name)
            self._need(arguments[0], frozenset((DATA, MATCH)), local)
            classes = arguments[1].elts if isinstance(arguments[1], ast.Tuple) else [arguments[1]]
            if any(self._builtin(item, local) not in CLASSES for item in classes):
                raise Impure(name)
            return DATA
        row = BUILTINS.get(name)
        if row is None:
            raise Impure(name)
        kinds, least, most, result = row
        if not least <= len(arguments) <= most:
            raise Impure(name)
        for index, argument in enumerate(arguments):
            allowed = kinds[min(index, len(kinds) - 1)]
            if len(arguments) > 1 and name in ("min", "max"):
                allowed = PLAIN
            kind = self._need(argument, allowed, local)
            self.copies |= name == "dict" and kind is DATA
        for keyword in node.keywords:
            if keyword.arg not in KEYWORDS.get(name, ()):
                raise Impure(name)
            if keyword.arg == "key":
                self._key(keyword.value, local)
            else:
                self._need(keyword.value, PLAIN, local)
        return result

    def _builtin(self, node: ast.expr, local: dict[str, str]) -> str:
        """The name of a builtin that is not shadowed."""
        if not isinstance(node, ast.Name) or node.id in local or node.id in self.namespace:
            raise Impure("no builtin")
        self.builtins.add(node.id)
        return node.id

    def _key(self, node: ast.expr, local: dict[str, str]) -> None:
        """A function of one item."""
        if isinstance(node, ast.Lambda):
            parameters = node.args
            if parameters.defaults or parameters.vararg or parameters.kwarg or parameters.kwonlyargs:
                raise Impure("a function")
            names = [parameter.arg for parameter in (*parameters.posonlyargs, *parameters.args)]
            self._need(node.body, PLAIN, {**local, **dict.fromkeys(names, DATA)})
        elif isinstance(node, ast.Name):
            if self._builtin(node, local) not in KEYS:
                raise Impure("a function")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in METHODS - VIEWS:
            name = node.value.id
            if name in local or name in self.namespace:
                self._need(node.value, PLAIN, local)
            elif self._builtin(node.value, local) not in TYPES:
                raise Impure("a function")
            if node.attr in ("encode", "decode"):
                raise Impure("a codec")
            self.methods.add(node.attr)
        elif isinstance(node, ast.Call) and self._called(node.func, local) is operator.itemgetter:
            if node.keywords or not node.args or not all(isinstance(item, ast.Constant) for item in node.args):
                raise Impure("itemgetter")
        else:
            raise Impure("a function")

    def _called(self, node: ast.expr, local: dict[str, str]) -> Any:
        if isinstance(node, ast.Attribute):
            return self._attribute_of_module(node, local)
        return self._fixed(node, local) if isinstance(node, ast.Name) else MISSING

    def _fixed(self, node: ast.Name, local: dict[str, str]) -> Any:
        """A variable that stands for a function or module that is known."""
        value = self.namespace.get(node.id, MISSING)
        if node.id in local or (id(value) not in _FUNCTIONS and id(value) not in MODULE_NAMES):
            raise Impure(f"{node.id} is not known")
        self.fixed[node.id] = value
        return value

    def _attribute_of_module(self, node: ast.Attribute, local: dict[str, str]) -> Any:
        """What a module that is known has by that name; `MISSING` when this is no attribute of a module."""
        if not isinstance(node.value, ast.Name) or node.value.id in local:
            return MISSING
        module = self.namespace.get(node.value.id, MISSING)
        if type(module) is not ModuleType:
            return MISSING
        name = MODULE_NAMES.get(id(module))
        value = None if name is None else vars(module).get(node.attr)
        if name is None or value is None:
            raise Impure("a module")
        self.fixed[node.value.id] = module
        self.attributes[name, node.attr] = value
        return value

    def _attribute(self, node: ast.Attribute, local: dict[str, str]) -> str:
        value = self._attribute_of_module(node, local)
        if any(value is constant for constant in CONSTANTS):
            return DATA
        raise Impure("an attribute")

    def _call_function(self, function: Any, node: ast.Call, local: dict[str, str]) -> str:
        row, known = _FUNCTIONS.get(id(function), (None, None))
        if row is None or known is not function:
            raise Impure("a function")
        kind: str = row(self, function, node, local)
        return kind

    def _call_math(self, _function: Any, node: ast.Call, local: dict[str, str]) -> str:
        if node.keywords:
            raise Impure("math")
        for argument in node.args:
            self._need(argument, frozenset((DATA, ITER)), local)
        return DATA

    def _call_re(self, function: Any, node: ast.Call, local: dict[str, str]) -> str:
        name = RE_FUNCTIONS[function]
        plain = 3 if name == "sub" else 2
        if len(node.args) < plain or (name in ("sub", "split") and len(node.args) > plain) or len(node.args) > 3:
            raise Impure("re")
        pattern, *rest = node.args[:plain]
        flags = [keyword.value for keyword in node.keywords if keyword.arg == "flags"]
        counts = [keyword.value for keyword in node.keywords if keyword.arg != "flags"]
        if any(keyword.arg not in ("flags", "count", "maxsplit") for keyword in node.keywords):
            raise Impure("re")
        flags += node.args[plain:]
        if len(flags) > 1:
            raise Impure("re")
        number = self._flags(flags[0], local) if flags else 0
        if isinstance(pattern, ast.Constant) and type(pattern.value) is str:
            self.patterns.append((False, pattern.value, number))
        elif isinstance(pattern, ast.Name) and self._need(pattern, PLAIN, local):
            if pattern.id in local or type(self.namespace.get(pattern.id)) is not str:
                raise Impure("re")
            self.patterns.append((True, pattern.id, number))
        else:
            raise Impure("re")
        self.families.add("re")
        self.methods.add(name)
        return self._match(name, [*rest, *counts], local)

    def _flags(self, node: ast.expr, local: dict[str, str]) -> int:
        if not isinstance(node, ast.Attribute) or node.attr not in RE_FLAGS:
            raise Impure("flags")
        if self._attribute_of_module(node, local) is MISSING or ("re", node.attr) not in self.attributes:
            raise Impure("flags")
        return RE_FLAGS[node.attr]

    def _match(self, name: str, arguments: list[ast.expr], local: dict[str, str]) -> str:
        if name == "sub":
            replacement, *arguments = arguments
            if not isinstance(replacement, ast.Constant) or type(replacement.value) is not str:
                raise Impure("a replacement")
            if "\\" in replacement.value:
                raise Impure("a replacement")
        if not arguments:
            raise Impure("re")
        for argument in arguments:
            self._need(argument, PLAIN, local)
        return PATTERN_METHODS[name]

    def _call_json(self, function: Any, node: ast.Call, local: dict[str, str]) -> str:
        self.families.add("json")
        self.methods.update(("append", "end", "join", "startswith"))
        if len(node.args) != 1:
            raise Impure("json")
        for keyword in node.keywords:
            if function is json.loads or keyword.arg not in JSON_KEYWORDS:
                raise Impure("json")
            if not isinstance(keyword.value, ast.Constant) or type(keyword.value.value) not in (int, bool):
                raise Impure("json")
        self._need(node.args[0], PLAIN, local)
        return DATA

    def _call_counter(self, _function: Any, node: ast.Call, local: dict[str, str]) -> str:
        self.families.add("collections")
        self.methods.update(("get", "items", "update"))
        if len(node.args) != 1 or node.keywords:
            raise Impure("Counter")
        self._need(node.args[0], ITERABLE - {COUNTER}, local)
        return COUNTER

    def _call_method(self, function: ast.Attribute, node: ast.Call, local: dict[str, str]) -> str:
        name, kind = function.attr, self._look(function.value, local)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if kind is PATTERN and name in PATTERN_METHODS and not node.keywords:
            self.methods.add(name)
            return self._match(name, arguments, local)
        for argument in arguments:
            self._need(argument, ITERABLE - {COUNTER} if name == "join" else PLAIN, local)
        if kind is MATCH and name in MATCH_METHODS:
            self.methods.add(name)
            return DATA
        if kind is COUNTER and name in COUNTER_METHODS:
            return COUNTER_METHODS[name]
        if kind is not DATA or name not in METHODS:
            raise Impure(f"{name} of {kind}")
        if name in ("encode", "decode") and arguments:
            codec = arguments[0]
            if len(arguments) > 1 or not isinstance(codec, ast.Constant) or codec.value not in CODECS:
                raise Impure("a codec")
        self.methods.add(name)
        self.copies |= name == "copy"
        return ITER if name in VIEWS else DATA


Expression.looks = {**Grammar.looks, ast.Call: Expression._call, ast.Attribute: Expression._attribute}
for _row, _functions in (
    (Expression._call_math, MATH),
    (Expression._call_re, RE_FUNCTIONS),
    (Expression._call_json, (json.loads, json.dumps)),
    (Expression._call_counter, (collections.Counter,)),
    (None, (operator.itemgetter,)),
):
    for _function in _functions:
        _FUNCTIONS[id(_function)] = _row, _function
