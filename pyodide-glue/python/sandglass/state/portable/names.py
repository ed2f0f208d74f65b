"""Values that go by a name: modules, what a module defines, helpers of the sandbox, methods, and annotations."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import dataclasses
import functools
import operator
import sys
import types
import typing
from enum import EnumMeta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sandglass.runtime.namespace import MISSING
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.pickling import is_importable
from sandglass.state.portable.codec import BY_TYPE, Codec, register
from sandglass.state.portable.graph import Cannot

if TYPE_CHECKING:
    from sandglass.state.portable.codec import Scope

_OURS = "it is a part of the sandbox"


def has_name(value: Any) -> bool:
    """Returns true for a function or class that another interpreter finds in a module."""
    try:
        return is_importable(value)
    except Exception:
        return False


def name_in_types(kind: type) -> str | None:
    """Returns the name in `types` of a class that is in no module under its own name, such as NoneType."""
    return next((name for name, value in vars(types).items() if value is kind), None)


def _take_name(value: Any, _: Scope) -> list[Any]:
    if issubclass(type(value), type) and not has_name(value):
        return ["types", name_in_types(value)]
    module = value.__module__
    if module.partition(".")[0] == "sandglass":
        raise Cannot(_OURS)
    return [module, value.__qualname__]


def _find(parts: list[Any], _: Scope) -> Any:
    name, path = parts
    if name.partition(".")[0] in ("sandglass", "__main__"):
        raise ValueError(_OURS)
    try:
        found: Any = import_module(name)
    except ImportError:
        raise ImportError(f"it needs the module {name}, which is not here") from None
    for part in path.split("."):
        found = getattr(found, part, MISSING)
        if found is MISSING:
            raise AttributeError(f"{name}.{path} is not here")
    return found


def _take_module(module: Any, _: Scope) -> list[Any]:
    name = vars(module).get("__name__")
    if name == "__main__" or type(name) is not str or sys.modules.get(name) is not module:
        raise Cannot("a module that cannot be imported")
    if name.partition(".")[0] == "sandglass":
        raise Cannot(_OURS)
    if vars(module).get("__spec__") is None:
        raise Cannot("a module that cannot be imported")
    return [name]


def _import(parts: list[Any], _: Scope) -> Any:
    name = parts[0]
    if name.partition(".")[0] in ("sandglass", "__main__"):
        raise ValueError(_OURS)
    try:
        return import_module(name)
    except ImportError:
        raise ImportError(f"it needs the module {name}, which is not here") from None


def _helper(parts: list[Any], scope: Scope) -> Any:
    helpers = scope.namespace.aliases | scope.namespace.helpers
    if parts[0] not in helpers:
        raise KeyError(f"there is no helper {parts[0]}() here")
    return helpers[parts[0]]


def _take_method(value: Any, _: Scope) -> list[Any]:
    owner = getattr(value, "__self__", None)
    if owner is None or issubclass(type(owner), types.ModuleType):
        owner = getattr(value, "__objclass__", None)
    if not issubclass(type(owner), type) and id(type(owner)) not in BY_TYPE:
        raise Cannot(f"a {type(value).__name__} of an object of another type")
    if getattr(owner, value.__name__, None) != value:
        raise Cannot(f"a {type(value).__name__} that its owner does not have")
    return [owner, value.__name__]


def _method(parts: list[Any], _: Scope) -> Any:
    owner, name = parts
    method = getattr(owner, name)
    if type(method) not in _METHODS:
        raise TypeError(f"{name} is no method written in C here")
    return method


def _bound(parts: list[Any], _: Scope) -> Any:
    return types.MethodType(parts[0], parts[1])


NAME = register(None, Codec("name", _take_name, _find))
HELPER = register(None, Codec("helper", lambda value, scope: [scope.helpers[id(value)]], _helper))
register(types.ModuleType, Codec("module", _take_module, _import))
register(types.MethodType, Codec("bound", lambda value, _: [value.__func__, value.__self__], _bound, joins=True))
_METHODS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)
METHOD = register(None, Codec("method", _take_method, _method))
for _kind in _METHODS:
    register(_kind, METHOD)

# --- Small callables of the standard library --------------------------------------------------------------------------


def _take_getter(value: Any, _: Scope) -> list[Any]:
    make, args = value.__reduce__()
    if make is not type(value):
        raise Cannot("a methodcaller with keyword arguments")
    return list(args)


for _getter in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    register(
        _getter,
        Codec(_getter.__name__, _take_getter, lambda parts, _, kind=_getter: kind(*parts)),  # type: ignore[misc]
    )


def _take_init_var(value: Any, _: Scope) -> list[Any]:
    return [value.type]


register(dataclasses.InitVar, Codec("InitVar", _take_init_var, lambda parts, _: dataclasses.InitVar(parts[0])))
for _mark in ("KW_ONLY", "MISSING"):
    _value: Any = getattr(dataclasses, _mark)
    register(type(_value), Codec("name", lambda _, __, name=_mark: ["dataclasses", name], _find))  # type: ignore[misc]


_FUTURE: Any = import_module("__future__")


def _take_feature(value: Any, _: Scope) -> list[Any]:
    name = next((name for name in _FUTURE.all_feature_names if getattr(_FUTURE, name) is value), None)
    if name is None:
        raise Cannot("a feature of an unknown name")
    return ["__future__", name]


register(type(annotations), Codec("name", _take_feature, _find))


# --- Members of enumerations, by class and name -----------------------------------------------------------------------


def is_member(value: Any) -> bool:
    return issubclass(type(type(value)), EnumMeta)


def _take_member(member: Any, _: Scope) -> list[Any]:
    kind = type(member)
    name = member._name_
    if type(name) is str and kind._member_map_.get(name) is member:
        return [kind, name, None]
    if type(member._value_) is int:
        return [kind, None, member._value_]  # flags that are combined
    raise Cannot("a member of an enumeration that has no name")


def _member(parts: list[Any], _: Scope) -> Any:
    kind, name, value = parts
    if not issubclass(type(kind), EnumMeta):
        raise TypeError("a member of something else than an enumeration")
    if name is None:
        return kind(value)
    if name not in kind._member_map_:
        raise KeyError(f"the enumeration {kind.__name__} has no member {name} here")
    return kind._member_map_[name]


MEMBER = register(None, Codec("member", _take_member, _member))


# --- Types as annotations ---------------------------------------------------------------------------------------------


def _take_alias(value: Any, _: Scope) -> list[Any]:
    if getattr(value, "__unpacked__", False):
        raise Cannot("an unpacked type")
    return [value.__origin__, *value.__args__]


def _take_typing(value: Any, _: Scope) -> list[Any]:
    origin: Any = value.__origin__
    name: str = getattr(origin, "_name", "") if isinstance(origin, typing._SpecialForm) else value._name
    parts = [name, *value.__args__]
    try:
        same = _typing(parts, None) == value
    except Exception:
        same = False
    if not same:
        raise Cannot(f"the type {value!r:.100}")
    return parts


def _typing(parts: list[Any], _: Any) -> Any:
    name, *args = parts
    if name == "Callable":
        *args, result = args
        return typing.Callable[... if args == [...] else args, result]
    return getattr(typing, name)[tuple(args) if len(args) != 1 else args[0]]


def _take_form(value: Any, _: Scope) -> list[Any]:
    name = value._name
    if getattr(typing, str(name), None) is not value:
        raise Cannot("a special form of an unknown name")
    return ["typing", name]


def _union(parts: list[Any], _: Scope) -> Any:
    return functools.reduce(operator.or_, parts)


register(
    types.GenericAlias, Codec("alias", _take_alias, lambda parts, _: types.GenericAlias(parts[0], tuple(parts[1:])))
)
register(types.UnionType, Codec("union", lambda value, _: list(value.__args__), _union))
_TYPING = Codec("typing", _take_typing, _typing)
_typing_module: Any = typing
for _alias in (
    _typing_module.List[int],
    _typing_module.Optional[int],
    typing.Literal[1],
    typing.Callable[[int], int],
    typing.ClassVar[int],
):
    if id(type(_alias)) not in BY_TYPE:
        register(type(_alias), _TYPING)
for _form in (typing.List, typing.Optional, typing.Tuple, typing.Callable):  # noqa: UP006
    if id(type(_form)) not in BY_TYPE and not isinstance(_form, type):
        register(type(_form), Codec("name", _take_form, _find))
