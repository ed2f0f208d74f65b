"""Pickles functions and classes of cells with their contents. Has a loader that goes on past failures."""

from __future__ import annotations

import abc
import copyreg
import functools
import pickle
import sys
import types
import typing
import weakref
from enum import EnumMeta
from gc import get_referents, get_referrers
from importlib import import_module
from itertools import chain
from marshal import dumps, loads
from struct import pack
from typing import TYPE_CHECKING, Any, ClassVar

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from io import BytesIO

REASON_CHARS = 200


def reason_of(error: BaseException) -> str:
    kind = type(error)
    if issubclass(kind, RecursionError):
        return "it is nested too deeply to be saved: flatten it"
    if issubclass(kind, MemoryError):
        return "there is not enough memory for it"
    try:
        message = str.__str__(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:
        message = ""
    if kind not in (TypeError, pickle.PicklingError, _SandboxError):
        message = f"{type_name(error)}: {message}" if message else type_name(error)
    return bounded(message)


def bounded(message: str) -> str:
    return message[:REASON_CHARS].encode("utf-8", "replace").decode()


class _SandboxError(Exception):
    """The message is the whole reason."""


# --- Taking objects apart ---------------------------------------------------------------------------------------------

_HEAP_TYPE = 1 << 9
_NATIVE_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)
LAYOUT = (types.MemberDescriptorType, types.GetSetDescriptorType)
IMPLICIT_SLOTS = ("__dict__", "__weakref__")
_METHODS = (types.FunctionType, staticmethod, classmethod, property)
_ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes})
VARS: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
MRO: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
BASES: Callable[[type], tuple[type, ...]] = type.__dict__["__bases__"].__get__
NAME: Callable[[type], str] = type.__dict__["__name__"].__get__
_HOOKS = ("__new__", "__setattr__", "__getattr__", "__getattribute__", "__class__")
_abc: Any = abc
_copyreg: Any = copyreg
_LRU_CACHE: type = type(functools.lru_cache(MRO))
_DESCRIPTORS = {property: ("fget", "fset", "fdel", "__doc__"), staticmethod: ("__func__",), classmethod: ("__func__",)}
_PARAMETERS = {
    "bound": "__bound__",
    "covariant": "__covariant__",
    "contravariant": "__contravariant__",
    "infer_variance": "__infer_variance__",
    "default": "__default__",
}
_FUNCTION_ATTRIBUTES = ("__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__type_params__")


def _lookup(kind: type, name: str) -> Any:
    """Returns a class's attribute from the class's own dictionary, whatever the metaclass says."""
    return next((VARS(base)[name] for base in MRO(kind) if name in VARS(base)), None)


def is_native(kind: type) -> bool:
    """Returns true for a class that is written in C."""
    return not kind.__flags__ & _HEAP_TYPE or any(
        type(value) in _NATIVE_METHODS and value.__objclass__ is kind for value in list(VARS(kind).values())
    )


def is_importable(value: Any) -> bool:
    """Returns true when a fresh interpreter finds a function or class by its name after importing its module."""
    get: Any = type.__getattribute__ if issubclass(type(value), type) else object.__getattribute__
    name, path = get(value, "__module__"), get(value, "__qualname__")
    module = sys.modules.get(name) if type(name) is str and name != "__main__" else None
    if getattr(module, "__spec__", None) is None:
        return False
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value


class _Call:
    """Is loaded as the result of a call. The arguments are loaded just before it."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


class Saver(pickle.Pickler):
    """Writes functions, classes and similar objects of cells by value."""

    def __init__(self, file: BytesIO, shared: list[Any]) -> None:
        super().__init__(file, 5)
        numbers = b"".join(b"M" + pack("<H", number) + b"Q\x940" for number in range(len(shared)))
        file.write(b"\x80\x05" + numbers + b"N.")  # a pickle by itself: takes persistent ids 0, 1, … into the memo
        self.memo = {number: (number, value) for number, value in enumerate(shared)}
        self._plans: dict[int, tuple[type, Callable[[Any], Any] | None]] = {}
        self._bare_cells: set[int] = set()
        exact: list[tuple[type, Callable[[Any], Any] | None]] = [
            (types.FunctionType, self._function),
            (types.CodeType, lambda code: (loads, (dumps(code),))),
            (types.CellType, self._cell),
            (types.MethodType, lambda method: (types.MethodType, (method.__func__, method.__self__))),
            (types.MappingProxyType, lambda proxy: (types.MappingProxyType, tuple(get_referents(proxy)))),
            (type({}.keys()), lambda view: (dict.keys, tuple(get_referents(view)))),
            (type({}.values()), lambda view: (dict.values, tuple(get_referents(view)))),
            (type({}.items()), lambda view: (dict.items, tuple(get_referents(view)))),
            (weakref.ref, _reduce_weakref),
            (_LRU_CACHE, _reduce_cached),
            (functools.cached_property, _reduce_cached_property),
            (_Call, None),
        ]
        for name in ("TypeVar", "ParamSpec", "TypeVarTuple", "NewType", "TypeAliasType"):
            if hasattr(typing, name):
                exact.append((getattr(typing, name), _reduce_type_parameter))
        for kind, plan in exact:
            self._plans[id(kind)] = kind, plan

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        found = self._plans.get(id(kind))
        if found is None:
            found = self._plans[id(kind)] = kind, self._plan(kind)
        plan = found[1]
        return plan(value) if plan else NotImplemented

    def _plan(self, kind: type) -> Callable[[Any], Any] | None:
        """Returns the function that reduces instances of a class; None for pickle's own."""
        if issubclass(kind, type):
            return self._class
        if issubclass(kind, types.ModuleType):
            return _reduce_module
        if issubclass(kind, tuple(_DESCRIPTORS)):
            return _reduce_descriptor
        if str(_lookup(kind, "__module__")).startswith("sandglass."):
            return _refuse
        if is_native(kind) or is_importable(kind) or kind in copyreg.dispatch_table:
            return None
        if issubclass(type(kind), EnumMeta):
            return _instances(kind)  # `Enum` would look the member up, in a class that is not filled yet
        ways = _lookup(kind, "__reduce_ex__"), _lookup(kind, "__reduce__")
        if not all(type(way) is types.MethodDescriptorType for way in ways):
            return None  # the class has one of its own
        hashes = _lookup(kind, "__hash__")
        if (hashes is None or hashes is object.__hash__) and all(
            _lookup(kind, name) is vars(object).get(name) for name in _HOOKS
        ):
            return None  # pickle's own runs no code of the class, and is faster
        return _instances(kind)

    def _function(self, function: types.FunctionType) -> Any:
        if is_importable(function):
            return NotImplemented
        home: Any = function.__globals__
        name = home.get("__name__")
        if type(name) is str and name != "__main__" and getattr(sys.modules.get(name), "__dict__", None) is home:
            if name.startswith("sandglass."):
                return _refuse(function)
            home = _Call(_vars_of, name)
        # The function must exist before its cells are filled, because the cells may lead back to it.
        cells = function.__closure__ or ()
        self._bare_cells.update(map(id, cells))
        attributes = {name: getattr(function, name, None) for name in _FUNCTION_ATTRIBUTES}
        if getattr(function, "__annotate__", None) is not None:  # from 3.14 on; `__annotations__` would evaluate them
            attributes["__annotate__"] = function.__annotate__  # type: ignore[attr-defined]
        else:
            attributes["__annotations__"] = function.__annotations__
        attributes = {name: value for name, value in attributes.items() if value or name == "__doc__"}
        state = attributes, function.__dict__, [_content(cell) for cell in cells]
        arguments = function.__code__, home, function.__name__, None, function.__closure__
        return types.FunctionType, arguments, state, None, None, _fill_function

    def _cell(self, cell: types.CellType) -> Any:
        content = _content(cell)
        if not content or id(cell) in self._bare_cells:
            return types.CellType, ()
        return types.CellType, (), content, None, None, _fill_cell

    def _class(self, kind: type) -> Any:
        if is_importable(kind):
            return NotImplemented
        if is_native(kind):
            name = next((name for name, value in vars(types).items() if value is kind), None)
            return NotImplemented if name is None else (getattr, (types, name))
        meta = type(kind)
        if any(is_native(base) for base in MRO(meta) if base is not type and base is not object):
            raise _SandboxError(f"cannot pickle the class {NAME(kind)!r}: its metaclass is written in C")
        layout: list[str] = []
        methods, rest = {}, {}
        skipped = {"__module__", "__orig_bases__"}
        if issubclass(meta, abc.ABCMeta):
            skipped.add("_abc_impl")
        for name, value in list(VARS(kind).items()):
            if type(value) in LAYOUT and value.__objclass__ is kind and value.__name__ == name:
                layout.append(name)
            elif type(value) is types.GetSetDescriptorType and name in IMPLICIT_SLOTS:
                pass  # CPython 3.11.2 leaves that of the class which `dataclass(slots=True)` replaces
            elif type(value) in _METHODS:
                methods[name] = value
            elif name not in skipped:
                rest[name] = value
        skeleton = {name: VARS(kind)[name] for name in skipped if name[:2] == "__" and name in VARS(kind)}
        skeleton["__qualname__"] = type.__getattribute__(kind, "__qualname__")
        if "__slots__" in rest:
            skeleton["__slots__"] = layout
        registry = [reference() for reference in _abc._get_dump(kind)[0]] if "_abc_impl" in skipped else []
        # Methods come first, because other attributes may be instances of the class, which need for instance its
        # `__hash__`.
        steps = [_Call(_fill_class, kind, attributes) for attributes in (methods, rest) if attributes]
        arguments = meta, NAME(kind), BASES(kind), skeleton
        return make_class, arguments, (steps, registry), None, None, _register


def _instances(kind: type) -> Callable[[Any], Any]:
    """Reduces instances of a class without its `__new__`, `__init__`, `append`, `__setitem__`, …"""
    base = native_base(kind)
    reduce_ex, new_args = _lookup(kind, "__reduce_ex__"), _lookup(base, "__getnewargs__")
    is_enum, has_setter = issubclass(type(kind), EnumMeta), _lookup(kind, "__setstate__") is not None
    has_hash = not has_setter and type(_lookup(kind, "__hash__")) is types.FunctionType

    def reduce(value: Any) -> Any:
        reduced = (_copyreg.__newobj__, (), dict(vars(value))) if is_enum else reduce_ex(value, 5)
        if type(reduced) is not tuple:
            return NotImplemented
        make, args, state, items, pairs, *_ = *reduced, None, None, None
        if make is _copyreg.__newobj__ or make is _copyreg.__newobj_ex__:
            args = new_args(value) if new_args else ()
        elif make is not kind:
            return NotImplemented
        early = None
        if has_hash and state:
            # A set that contains the instance may be loaded before its state. Its hash most likely depends on plain
            # attributes.
            halves = _halves(state)
            early = [half and {name: part for name, part in half.items() if _is_plain(part)} for half in halves]
            if all(len(some or ()) == len(half or ()) for some, half in zip(early, halves, strict=True)):
                state = None
        made: tuple[Any, ...] = base.__new__, (kind, *args)
        if early or make is kind:
            made = make_instance, (base, kind, args, make is kind, early)
        if items is None and pairs is None:
            if state is None:
                return made
            if not has_setter:
                return *made, _halves(state), None, None, _set_attributes
        filling = state, None if items is None else list(items), None if pairs is None else list(pairs)
        return *made, filling, None, None, _fill_instance

    return reduce


def native_base(kind: Any) -> Any:
    while not is_native(kind):
        kind = kind.__base__
    return kind


def _halves(state: Any) -> tuple[Any, Any]:
    """Splits an instance's state into the parts of its dictionary and of its slots."""
    return state if type(state) is tuple and len(state) == 2 else (state, None)


def _is_plain(value: object) -> bool:
    return type(value) in _ATOMS or (type(value) is tuple and all(type(item) in _ATOMS for item in value))


def _content(cell: types.CellType) -> tuple[Any, ...]:
    try:
        content = cell.cell_contents
    except ValueError:
        return ()
    # Annotations in a class body refer to the class's own dictionary, as `__classdict__`.
    owner = _owner(content) if type(content) is dict and "__module__" in content and "__doc__" in content else None
    return (content if owner is None else _Call(_dict_of, owner),)


def _owner(members: dict[str, Any]) -> type | None:
    declared = (value.__objclass__ for value in list(members.values()) if type(value) in LAYOUT)
    referrers = (other for _ in (1,) for other in get_referrers(members) if issubclass(type(other), type))
    return next((kind for kind in chain(declared, referrers) if _dict_of(kind) is members), None)


def _dict_of(kind: type) -> Any:
    return get_referents(VARS(kind))[0]


def _refuse(value: Any) -> Any:
    raise _SandboxError(f"cannot pickle {type_name(value)!r} object: it is a part of the sandbox")


def _reduce_module(module: Any) -> Any:
    name = getattr(module, "__name__", None)
    if type(name) is not str or sys.modules.get(name) is not module or getattr(module, "__spec__", None) is None:
        raise _SandboxError(f"cannot pickle the module {name!r}: it cannot be imported")
    return import_module, (name,)


def _reduce_descriptor(descriptor: Any) -> Any:
    base = next(base for base in _DESCRIPTORS if issubclass(type(descriptor), base))
    state = [getattr(descriptor, name) for name in _DESCRIPTORS[base]], getattr(descriptor, "__dict__", None)
    return make_instance, (base, type(descriptor), (), False, None), (base, *state), None, None, _fill_descriptor


def _reduce_weakref(reference: Any) -> Any:
    target = reference()
    return (_dead, ()) if target is None else (weakref.ref, (target, reference.__callback__))


def _reduce_cached(wrapper: Any) -> Any:
    """Reduces a function with `lru_cache`. The cache's contents stay behind."""
    if is_importable(wrapper):
        return NotImplemented
    return _make_cached, (wrapper.__wrapped__, wrapper.cache_parameters()), vars(wrapper)


def _reduce_cached_property(prop: Any) -> Any:
    state = {name: value for name, value in vars(prop).items() if name != "lock"}  # has a lock in 3.11
    return functools.cached_property, (prop.func,), state


def _reduce_type_parameter(parameter: Any) -> Any:
    kind, name, module = type(parameter), parameter.__name__, parameter.__module__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is parameter:
        return NotImplemented
    if kind is typing.NewType:
        return _make_parameter, (kind, (name, parameter.__supertype__), {}, module)
    if NAME(kind) == "TypeAliasType":
        return _make_parameter, (kind, (name, parameter.__value__), {"type_params": parameter.__type_params__}, None)
    options = {option: getattr(parameter, place) for option, place in _PARAMETERS.items() if hasattr(parameter, place)}
    constraints = getattr(parameter, "__constraints__", ())
    return _make_parameter, (kind, (name, *constraints), options, module)


# --- Putting objects together: functions that pickles refer to -------------------------------------------------------


def _vars_of(name: str) -> dict[str, Any]:
    return vars(import_module(name))


def make_class(meta: type, name: str, bases: tuple[type, ...], skeleton: dict[str, Any]) -> type:
    ancestors = {id(base): base for parent in bases for base in MRO(parent)}.values()
    hooks = [
        (base, VARS(base)["__init_subclass__"])
        for base in ancestors
        if "__init_subclass__" in VARS(base) and not is_native(base)
    ]
    try:
        for base, _ in hooks:
            type.__setattr__(base, "__init_subclass__", classmethod(_do_nothing))
        kind: type = type.__new__(meta, name, bases, skeleton)
    finally:
        for base, hook in hooks:
            type.__setattr__(base, "__init_subclass__", hook)
    if issubclass(meta, abc.ABCMeta):
        _abc._abc_init(kind)
    return kind


def _do_nothing(kind: type, /, **_: Any) -> None:
    pass


def _fill_class(kind: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        type.__setattr__(kind, name, value)


def _register(kind: type, state: tuple[Any, list[type | None]]) -> None:
    """Completes a class with its virtual subclasses. The other steps ran while they were loaded."""
    for other in state[1]:
        if other is not None:
            _abc._abc_register(kind, other)


def make_instance(base: Any, kind: type, args: tuple[Any, ...], by_init: bool, early: Any) -> Any:
    instance = base.__new__(kind, *args)
    if by_init:
        base.__init__(instance, *args)
    if early:
        _set_attributes(instance, early)
    return instance


def _fill_instance(instance: Any, filling: tuple[Any, Any, Any]) -> None:
    state, items, pairs = filling
    base = native_base(type(instance))
    if items is not None:
        base.extend(instance, items)
    for key, value in pairs or ():
        base.__setitem__(instance, key, value)
    if state is not None:
        setter = _lookup(type(instance), "__setstate__")
        if setter is None:
            _set_attributes(instance, _halves(state))
        else:
            setter(instance, state)


def _set_attributes(instance: Any, halves: tuple[Any, Any]) -> None:
    named, slots = halves
    if named:
        attributes = object.__getattribute__(instance, "__dict__")
        attributes.clear()  # drops attributes that were set early, to get their order right
        attributes.update(named)
    for name, value in (slots or {}).items():
        object.__setattr__(instance, name, value)


def _fill_descriptor(descriptor: Any, state: tuple[Any, list[Any], dict[str, Any] | None]) -> None:
    base, args, attributes = state
    base.__init__(descriptor, *args)
    if attributes:
        descriptor.__dict__.update(attributes)


def _fill_function(function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any], list[Any]]) -> None:
    attributes, own, contents = state
    for cell, content in zip(function.__closure__ or (), contents, strict=True):
        _fill_cell(cell, content)
    for name, value in attributes.items():
        setattr(function, name, value)
    function.__dict__.update(own)


def _fill_cell(cell: types.CellType, content: tuple[Any, ...]) -> None:
    if content:
        cell.cell_contents = content[0]


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _make_parameter(kind: Any, args: tuple[Any, ...], options: dict[str, Any], module: str | None) -> Any:
    parameter = kind(*args, **options)
    if module is not None:
        parameter.__module__ = module
    return parameter


def _dead() -> Any:
    return weakref.ref(Lost(""))


_FILLERS = (_fill_class, _fill_instance, _set_attributes, _fill_descriptor, _fill_function, _fill_cell, _register)


class Loader(pickle.Unpickler):
    def __init__(self, file: BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]


class Lost:
    """Stands for an object that could not be made."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Salvager(pickle._Unpickler):
    """Loads past failures, and collects broken objects by id. Written in Python, so slower than `Loader`."""

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: BytesIO, shared: list[Any]) -> None:
        super().__init__(file)
        self._shared = shared
        self.broken: dict[int, tuple[object, str]] = {}
        for value in shared:
            if type(value) is Lost:
                self.lose(value, value.reason)

    def persistent_load(self, pid: Any) -> Any:
        return self._shared[pid]

    def lose(self, value: object, reason: str) -> None:
        self.broken.setdefault(id(value), (value, reason))


def _tolerant(opcode: bytes, left: int | None) -> None:
    """Wraps an instruction. `left` is the number of operands still on the stack, in the result's place, after it fails.

    `left` is None for an instruction that fills the object on top of the stack.
    """
    attempt: Any = pickle._Unpickler.dispatch[opcode[0]]

    def run(self: Any) -> None:
        operands = self.stack[-3:]
        try:
            attempt(self)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            args = operands[-1] if operands and type(operands[-1]) is tuple else ()
            inherited = [part.reason for part in (*operands, *args) if type(part) is Lost]
            reason = inherited[0] if inherited else reason_of(error)
            if left is None:
                self.lose(self.stack[-1], reason)
                return
            if left:
                self.stack.pop()
                if any(operands[-2] is filler for filler in _FILLERS):
                    self.lose(args[0], reason)
            lost = Lost(reason)
            self.lose(lost, reason)
            self.stack.append(lost)

    Salvager.dispatch[opcode[0]] = run


for _opcode in (pickle.BUILD, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS, pickle.ADDITEMS):
    _tolerant(_opcode, None)
for _opcode in (pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.STACK_GLOBAL, pickle.FROZENSET):
    _tolerant(_opcode, 0)
_tolerant(pickle.REDUCE, 1)
