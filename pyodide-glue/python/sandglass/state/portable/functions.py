"""Functions as source.

A function goes as the text of the top-level statement of its cell, and the number of the function in it. The reader
parses the text, and compiles the function alone, within a function and a class of the same names that never run. So no
decorator, default or class body runs again; these values travel by themselves. The writer compiles in the same way, and
compares the code with the function's own. Code that differs has no source.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import ast
import functools
import sys
import types
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from sandglass.runtime.compiling import FLAGS, lines_of
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.portable.codec import Codec, register
from sandglass.state.portable.graph import Cannot

if TYPE_CHECKING:
    from sandglass.state.portable.codec import Scope

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FUTURE_ANNOTATIONS = 0x1000000
_NESTED = 0x10
_MAX_SOURCE_CHARS = 1 << 20
_UNREADABLE = (SyntaxError, ValueError, IndexError, RecursionError, MemoryError)
_SAME = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_argcount", "co_posonlyargcount",
         "co_kwonlyargcount", "co_name", "co_qualname", "co_exceptiontable")  # fmt: skip
_OWN = ("__name__", "__qualname__", "__module__", "__doc__")


class Place:
    """A function in the text of a unit: its number, its class for private names, and its tree."""

    def __init__(self, node: _Function, in_class: str | None) -> None:
        self.node, self.in_class = node, in_class
        self.name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        self.line = min([node.lineno, *(decorator.lineno for decorator in decorators)])


def parse(text: str) -> ast.Module:
    if len(text) > _MAX_SOURCE_CHARS:
        raise ValueError("the source is too long")
    tree: ast.Module = compile(text, "<state>", "exec", FLAGS | ast.PyCF_ONLY_AST, True)
    return tree


def places(statements: list[ast.stmt]) -> list[Place]:
    """Returns all functions in statements, in the order of the text's tree."""
    found: list[Place] = []
    todo: list[tuple[ast.AST, str | None]] = [(statement, None) for statement in reversed(statements)]
    while todo:
        node, in_class = todo.pop()
        if isinstance(node, _Function):
            found.append(Place(node, in_class))
        inner = node.name if isinstance(node, ast.ClassDef) else in_class
        todo += [(child, inner) for child in reversed(list(ast.iter_child_nodes(node)))]
    return found


def compile_place(place: Place, free: tuple[str, ...], qualname: str, filename: str, futures: int) -> types.CodeType:
    """Compiles a function alone. Changes its tree. `free` are the variables of functions around it."""
    node = place.node
    args = node.args
    args.defaults, args.kw_defaults = [], [None] * len(args.kw_defaults)
    statement: ast.stmt
    if isinstance(node, ast.Lambda):
        statement = ast.Expr(node)
    else:
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        for arg in every:
            if arg is not None:
                arg.annotation = None
        node.returns = None
        if hasattr(node, "type_params"):
            node.type_params = []
        # The first decorator has the line at which the code begins.
        node.decorator_list = [ast.Constant(None, lineno=place.line, col_offset=0)] if place.line < node.lineno else []
        statement = node
    if place.in_class is not None:
        statement = ast.ClassDef(place.in_class, [], [], [statement], [], type_params=[])  # type: ignore[call-arg, unused-ignore]
    body: list[ast.stmt] = [statement]
    # Otherwise a function that names itself or its class would find them in the function around it.
    own = place.in_class or place.name
    if own not in free and not (isinstance(node, ast.Lambda) and place.in_class is None):
        body.insert(0, ast.Global([own]))
    if free:
        targets: list[ast.expr] = [ast.Name(name, ast.Store()) for name in free]
        body.insert(0, ast.Assign(targets, ast.Constant(None)))
    # Code that names its own function or class means the global variable, unless a function around it has it.
    own = place.in_class or place.name
    if own.isidentifier() and own not in free:
        body.insert(0, ast.Global([own]))
    no_args = ast.arguments([], [], None, [], [], None, [])
    around = ast.FunctionDef("around", no_args, body, [], None, None, type_params=[])  # type: ignore[call-arg, unused-ignore]
    around.lineno, around.end_lineno, around.col_offset, around.end_col_offset = place.line, node.end_lineno, 0, 0
    module = ast.fix_missing_locations(ast.Module([around], []))
    code = compile(module, filename, "exec", futures, True)
    for name in ("around", place.in_class, place.name):
        if name is not None:
            inner = [const for const in code.co_consts if type(const) is types.CodeType and const.co_name == name]
            if len(inner) != 1:
                raise ValueError("the source does not have this function")
            code = inner[0]
    if code.co_freevars != free:
        raise ValueError("the source uses other variables of functions around it")
    return _renamed(code, code.co_qualname, qualname)


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    name = code.co_qualname
    if name == old or name.startswith(old + "."):
        name = new + name[len(old) :]
    consts = [_renamed(const, old, new) if type(const) is types.CodeType else const for const in code.co_consts]
    # The body of a class has the name as a constant.
    consts = [name if type(const) is str and const == code.co_qualname else const for const in consts]
    return code.replace(co_qualname=name, co_consts=tuple(consts))


def is_same(one: types.CodeType, other: types.CodeType) -> bool:
    """Returns true for code that does the same. Lines and file names may differ."""
    if (one.co_flags | _NESTED) != (other.co_flags | _NESTED) or len(one.co_consts) != len(other.co_consts):
        return False
    if any(getattr(one, name) != getattr(other, name) for name in _SAME):
        return False
    return all(map(_is_same_constant, one.co_consts, other.co_consts))


def _is_same_constant(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if type(one) is types.CodeType:
        return is_same(one, other)
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_is_same_constant, one, other))
    if type(one) is frozenset:
        return one == other and sorted(map(_typed, one)) == sorted(map(_typed, other))
    return repr(one) == repr(other)  # tells -0.0 from 0.0


def _typed(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"


# --- Finding the source -----------------------------------------------------------------------------------------------


class _Text:
    """The text of a cell, and where its functions are."""

    def __init__(self, text: str) -> None:
        self.lines = lines_of(text)
        self.body = parse(text).body
        #: Functions by name and first line, as the number of a unit and the number in it.
        self.found: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self.units: list[tuple[int, int]] = []  # first and last line of statements that share no line with others
        self._starts: list[list[ast.stmt]] = []
        for statement in self.body:
            first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
            last = statement.end_lineno or statement.lineno
            if self.units and first <= self.units[-1][1]:
                self.units[-1] = self.units[-1][0], max(last, self.units[-1][1])
                self._starts[-1].append(statement)
            else:
                self.units.append((first, last))
                self._starts.append([statement])
        for number, statements in enumerate(self._starts):
            for index, place in enumerate(places(statements)):
                self.found.setdefault((place.name, place.line), []).append((number, index))

    def unit(self, number: int) -> str:
        first, last = self.units[number]
        return "\n".join(line.rstrip("\r\n") for line in self.lines[first - 1 : last]) + "\n"


@functools.lru_cache(64)
def _text(source: str) -> _Text:
    return _Text(source)


def source_of(code: types.CodeType, scope: Scope) -> tuple[str, int]:
    """Returns the text of the top-level statement that has a function, and the function's number in it."""
    source = scope.texts.get(code.co_filename)
    if source is None:
        raise Cannot("a function whose source is not kept: it comes from exec, eval or a library")
    try:
        text = _text(source)
        candidates = text.found.get((code.co_name, code.co_firstlineno), [])
    except _UNREADABLE:
        candidates = []
    for number, index in candidates:
        try:
            unit = text.unit(number)
            place = places(parse(unit).body)[index]
            made = compile_place(place, code.co_freevars, code.co_qualname, "", code.co_flags & _FUTURE_ANNOTATIONS)
        except _UNREADABLE:
            continue
        if is_same(made, code):
            return unit, index
    raise Cannot("a function whose code is not that of its cell's source")


# --- The codecs -------------------------------------------------------------------------------------------------------


def annotations_of(value: Any, scope: Scope) -> dict[str, Any]:
    """Returns the annotations of a function or class, its own only. Notes those that cannot be evaluated."""
    if sys.version_info >= (3, 14):
        from annotationlib import get_annotations  # type: ignore[import-not-found, unused-ignore]

        if value.__annotate__ is None and not value.__annotations__:
            return {}
        try:
            found: dict[str, Any] = get_annotations(value)
        except Exception:
            scope.note(value, "its annotations", "they cannot be evaluated")
            return {}
        return found
    return dict(value.__annotations__) if isinstance(value, types.FunctionType) else dict(value)


def _take(function: Any, scope: Scope) -> list[Any]:
    if function.__globals__ is not scope.namespace.globals:
        raise Cannot("a function of a library that cannot be imported by name")
    if getattr(function, "__type_params__", ()):
        raise Cannot("a function with type parameters")
    code = function.__code__
    unit, index = source_of(code, scope)
    return [
        unit,
        index,
        code.co_qualname,
        bool(code.co_flags & _FUTURE_ANNOTATIONS),
        code.co_freevars,
        function.__closure__,
        *(getattr(function, name) for name in _OWN),
        function.__defaults__,
        function.__kwdefaults__,
        annotations_of(function, scope),
        function.__dict__,
    ]


_NEEDED = 6


def _make(parts: list[Any], scope: Scope) -> Any:
    unit, index, qualname, future, free, closure = parts
    found = places(parse(unit).body)
    if not 0 <= index < len(found):
        raise ValueError("the source has no such function")
    filename = f"<state {sha256(unit.encode('utf-8', 'replace')).hexdigest()[:12]}>"
    place = found[index]
    code = compile_place(place, free, qualname, filename, _FUTURE_ANNOTATIONS if future else 0)
    if filename not in scope.texts:
        scope.texts[filename] = unit
        scope.sources.add(filename, unit)
    return types.FunctionType(code, scope.namespace.globals, place.name, None, closure)


def _fill(function: Any, parts: list[Any], _: Scope) -> None:
    *own, defaults, keyword_defaults, annotations, attributes = parts[_NEEDED:]
    for name, value in zip(_OWN, own, strict=True):
        setattr(function, name, value)
    function.__defaults__, function.__kwdefaults__ = defaults, keyword_defaults
    if annotations:
        function.__annotations__ = annotations
    function.__dict__ = attributes


def _content(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _fill_cell(cell: Any, parts: list[Any], _: Scope) -> None:
    if parts:
        cell.cell_contents = parts[0]


FUNCTION = register(None, Codec("function", _take, _make, _fill, needs=_NEEDED))
register(types.CellType, Codec("cell", lambda cell, _: _content(cell), lambda _, __: types.CellType(), _fill_cell))


# --- Functions that wrap others ---------------------------------------------------------------------------------------


def _take_cached(wrapper: Any, scope: Scope) -> list[Any]:
    if wrapper.cache_info().currsize:
        scope.note(wrapper, "its cache", "the function fills it again when it is called")
    parameters = wrapper.cache_parameters()
    attributes = {name: value for name, value in vars(wrapper).items() if name != "cache_parameters"}
    return [wrapper.__wrapped__, parameters["maxsize"], parameters["typed"], attributes]


def _make_cached(parts: list[Any], _: Scope) -> Any:
    return functools.lru_cache(maxsize=parts[1], typed=parts[2])(parts[0])


def _fill_cached(wrapper: Any, parts: list[Any], _: Scope) -> None:
    vars(wrapper).update(parts[3])


register(
    type(functools.lru_cache(len)),
    Codec("lru_cache", _take_cached, _make_cached, _fill_cached, needs=3),
)
#: Attributes that a `staticmethod` copies from its function.
_COPIED = frozenset({*functools.WRAPPER_ASSIGNMENTS, "__dict__", "__wrapped__", "__isabstractmethod__"})
for _wrapper in (staticmethod, classmethod):
    register(
        _wrapper,
        Codec(
            _wrapper.__name__,
            lambda value, _: [value.__func__, {k: v for k, v in vars(value).items() if k not in _COPIED}],
            lambda parts, _, kind=_wrapper: kind(parts[0]),  # type: ignore[misc]
            lambda value, parts, _: vars(value).update(parts[1]),
            needs=1,
        ),
    )
register(
    property,
    Codec(
        "property",
        lambda value, _: [value.fget, value.fset, value.fdel, value.__doc__],
        lambda parts, _: property(*parts),
        joins=True,
    ),
)


def _take_cached_property(value: Any, _: Scope) -> list[Any]:
    return [value.func, value.attrname, value.__doc__]


def _make_cached_property(parts: list[Any], _: Scope) -> Any:
    made: Any = functools.cached_property(parts[0])
    made.attrname, made.__doc__ = parts[1], parts[2]
    return made


register(functools.cached_property, Codec("cached_property", _take_cached_property, _make_cached_property, joins=True))
