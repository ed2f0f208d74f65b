"""Classes that the standard library makes: dataclasses, named tuples and enumerations.

The library makes such a class again, so methods that it generates need no source. The writer makes one, too,
and compares: all that the library would make otherwise travels as an attribute.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from typing import TYPE_CHECKING, Any

from sandglass.runtime.namespace import MISSING
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.pickling import BASES, MRO, NAME, VARS, make_class, native_base
from sandglass.state.portable.functions import is_same
from sandglass.state.portable.graph import Cannot, is_atom

if TYPE_CHECKING:
    from collections.abc import Callable

#: Attributes of a class that Python makes by itself, and that say nothing about it.
LEFT_OUT = frozenset(
    {
        "__module__",
        "__qualname__",
        "__annotations__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__conditional_annotations__",
        "__firstlineno__",
        "__static_attributes__",
        "__classdictcell__",
        "_abc_impl",
    }
)


class Maker:
    """A way in which the library makes classes.

    `take(class, attributes, annotations)` returns the parts, and the attributes that the library would not make.
    `make(name, bases, skeleton, parts)` makes the class of the first `needs` parts; without it, Python makes the class.
    `fill(class, attributes, parts)` completes the class with the other parts.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any, dict[str, Any], dict[str, Any]], tuple[list[Any], dict[str, Any]]],
        make: Callable[[str, Any, dict[str, Any], list[Any]], Any] | None,
        fill: Callable[[Any, dict[str, Any], list[Any]], None] | None,
        *,
        needs: int = 0,
        takes_meta: bool = False,
    ) -> None:
        self.name, self.take, self.make, self.fill = name, take, make, fill
        self.needs, self.takes_meta = needs, takes_meta


def maker_of(kind: Any) -> Maker | None:
    if type(kind) is enum.EnumMeta:
        return MAKERS["enum"]
    if BASES(kind) == (tuple,) and "_fields" in VARS(kind) and "_field_defaults" in VARS(kind):
        return MAKERS["namedtuple"]
    return MAKERS["dataclass"] if "__dataclass_params__" in VARS(kind) else None


def _differing(attributes: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes that the library does not make. Raises Cannot for one that only the library makes."""
    absent = object()
    return {name: value for name, value in attributes.items() if not _is_equal(value, made.get(name, absent))}


def _is_equal(one: Any, other: Any) -> bool:
    """Compares what a class has with what the library made, without code of the user's."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is types.FunctionType:
        cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (one, other)]
        return (
            is_same(one.__code__, other.__code__)
            and len(cells[0]) == len(cells[1])
            and all(
                type(a) is type(b) and (type(a) is not types.FunctionType or _is_equal(a, b))
                for a, b in zip(*cells, strict=True)
            )
        )
    if kind is staticmethod or kind is classmethod:
        return _is_equal(one.__func__, other.__func__)
    if kind is tuple:
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if kind is type(_GETTER):
        return bool(one.__reduce__() == other.__reduce__())
    return is_atom(one) and repr(one) == repr(other)


# --- Named tuples -----------------------------------------------------------------------------------------------------

_GETTER: Any = collections.namedtuple("_GETTER", "x").x  # type: ignore[attr-defined]


def _take_namedtuple(kind: Any, attributes: dict[str, Any], _: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    fields, defaults = VARS(kind)["_fields"], VARS(kind)["_field_defaults"]
    plain = type(fields) is tuple and all(type(name) is str for name in fields) and type(defaults) is dict
    if not plain or list(defaults) != list(fields[len(fields) - len(defaults) :]):
        raise Cannot(f"the named tuple {NAME(kind)}, whose fields were changed")
    values = tuple(defaults.values())
    made = _make_namedtuple(NAME(kind), (tuple,), {"__qualname__": "", "__module__": ""}, [fields, values])
    attributes = {name: value for name, value in attributes.items() if name != "_field_defaults"}
    rest = _differing(attributes, dict(VARS(made)))
    if "__new__" in rest:
        raise Cannot(f"the named tuple {NAME(kind)}, whose __new__ was replaced")
    rest.pop("__orig_bases__", None)
    return [fields, values], rest


def _make_namedtuple(name: str, _: Any, skeleton: dict[str, Any], parts: list[Any]) -> Any:
    fields, defaults = parts[:2]
    made: Any = collections.namedtuple(name, fields, defaults=defaults)  # type: ignore[misc]
    made.__qualname__, made.__module__ = skeleton["__qualname__"], skeleton["__module__"]
    return made


# --- Enumerations -----------------------------------------------------------------------------------------------------

_MEMBER_STATE = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_", "name", "value"})


def _take_enum(kind: Any, attributes: dict[str, Any], _: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    hooks = ("__init__", "__init_subclass__", "__new__")
    if any(_is_of_user(VARS(base).get(hook)) for base in MRO(kind) for hook in hooks):
        raise Cannot(f"the enumeration {NAME(kind)}, which runs code of its own when it is made")
    new = kind._new_member_
    if new not in (object.__new__, native_base(kind).__new__) and getattr(new, "__module__", "") != "enum":
        raise Cannot(f"the enumeration {NAME(kind)}, whose members have a __new__")
    members = {name: member._value_ for name, member in kind._member_map_.items()}
    for member in kind._member_map_.values():
        if not _MEMBER_STATE.issuperset(vars(member)) or not _is_plain(member._value_):
            raise Cannot(f"the enumeration {NAME(kind)}, whose members have more than plain values")
    boundary = getattr(kind, "_boundary_", None)
    parts = [tuple(members), tuple(members.values()), boundary.name if boundary is not None else None]
    try:
        made = _make_enum(NAME(kind), BASES(kind), {"__qualname__": "", "__module__": ""}, parts)
        same = [(name, repr(member._value_)) for name, member in made._member_map_.items()]
    except Exception:
        same = []
    if same != [(name, repr(value)) for name, value in members.items()]:
        raise Cannot(f"the enumeration {NAME(kind)}, which cannot be made of its names and values")
    known = VARS(made)
    rest = {
        name: value
        for name, value in attributes.items()
        if name not in kind._member_map_
        and (name not in known or _is_of_user(value))
        and value is not known.get(name, kind)
    }
    return parts, rest


def _is_of_user(value: Any) -> bool:
    function = value.__func__ if type(value) in (staticmethod, classmethod) else value
    module = getattr(function, "__module__", None) if type(function) is types.FunctionType else ""
    return type(value) is property or (bool(module) and module != "enum")


def _is_plain(value: Any) -> bool:
    return is_atom(value) or (type(value) is tuple and all(map(_is_plain, value)))


def _make_enum(name: str, bases: Any, skeleton: dict[str, Any], parts: list[Any]) -> Any:
    names, values, boundary = parts[:3]
    if not bases or not all(issubclass(type(base), type) for base in bases):
        raise TypeError("an enumeration of no bases")
    content: Any = enum.EnumMeta.__prepare__(name, bases)
    content.update(skeleton)
    for member, value in zip(names, values, strict=True):
        if type(member) is not str or not _is_plain(value):
            raise TypeError("a member of the enumeration has no plain value")
        content[member] = value
    options: dict[str, Any] = {} if boundary is None else {"boundary": enum.FlagBoundary[boundary]}
    return enum.EnumMeta.__new__(enum.EnumMeta, name, bases, content, **options)


# --- Dataclasses ------------------------------------------------------------------------------------------------------

_PARAMS = ("init", "repr", "eq", "order", "unsafe_hash", "frozen", "match_args", "kw_only", "slots", "weakref_slot")
_FIELD = ("init", "repr", "hash", "compare", "kw_only")
_GENERATED = ("__dataclass_fields__", "__dataclass_params__")
_ABSENT = "absent"
_dataclasses: Any = dataclasses


def _take_dataclass(
    kind: Any, attributes: dict[str, Any], annotations: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    fields, params = (VARS(kind).get(name) for name in _GENERATED)
    if type(fields) is not dict or type(params) is not _dataclasses._DataclassParams:
        raise Cannot(f"the dataclass {NAME(kind)}, whose description was changed")
    options = {name: bool(getattr(params, name, False)) for name in _PARAMS}
    options["match_args"] = "__match_args__" in VARS(kind)
    own = []
    for name in annotations:
        field = fields.get(name)
        if field is None:
            continue  # KW_ONLY
        if type(field) is not dataclasses.Field or field.name != name:
            raise Cannot(f"the dataclass {NAME(kind)}, whose fields were changed")
        own.append(_take_field(field))
    made = make_class(type, NAME(kind), BASES(kind), {"__qualname__": "", "__module__": VARS(kind)["__module__"]})
    plain = {name: value for name, value in attributes.items() if name not in _GENERATED}
    try:
        hooks = _generate(made, plain, options, own)
    except Exception as error:
        raise Cannot(f"the dataclass {NAME(kind)}, which cannot be made again: {type(error).__name__}") from None
    here, there = fields, VARS(made)["__dataclass_fields__"]
    if list(here) != list(there) or any(here[name]._field_type is not there[name]._field_type for name in here):
        raise Cannot(f"the dataclass {NAME(kind)}, which would have other fields when it is made again")
    rest = _differing(plain, {name: value for name, value in VARS(made).items() if name not in hooks})
    return [options, own, tuple(sorted(plain))], rest


def _take_field(field: Any) -> tuple[Any, ...]:
    default = () if field.default is dataclasses.MISSING else (field.default,)
    factory = () if field.default_factory is dataclasses.MISSING else (field.default_factory,)
    metadata = dict(field.metadata)
    return field.name, field.type, default, factory, metadata, *(_three(getattr(field, name)) for name in _FIELD)


def _three(value: Any) -> Any:
    return _ABSENT if value is dataclasses.MISSING else value


def _field(parts: tuple[Any, ...]) -> Any:
    _, _, default, factory, metadata, *rest = parts
    options = {name: value for name, value in zip(_FIELD, rest, strict=True) if value != _ABSENT}
    if default:
        options["default"] = default[0]
    if factory:
        options["default_factory"] = factory[0]
    return dataclasses.field(metadata=metadata or None, **options)


def _generate(kind: Any, attributes: dict[str, Any], options: dict[str, Any], own: list[tuple[Any, ...]]) -> set[str]:
    """Lets the library put its methods into a class. Returns the attributes that were taken into account for that."""
    descriptors = {}
    for parts in own:
        name = parts[0]
        if name in VARS(kind):
            descriptors[name] = VARS(kind)[name]
        type.__setattr__(kind, name, _field(parts))
    type.__setattr__(kind, "__annotations__", {parts[0]: parts[1] for parts in own})
    # These of the class's own decide what the library generates.
    hooks = set()
    for name in ("__post_init__", "__hash__", "__eq__", "__doc__"):
        value = attributes.get(name)
        is_made = type(value) is types.FunctionType and value.__code__.co_filename == "<string>"
        if value is not None and not is_made:
            hooks.add(name)
            type.__setattr__(kind, name, value)
    if "__doc__" not in VARS(kind) or VARS(kind)["__doc__"] is None:
        type.__setattr__(kind, "__doc__", "?")  # the library would make a signature, which may evaluate annotations
    kept = {name: value for name, value in options.items() if name in _PARAMS and name not in ("slots", "weakref_slot")}
    dataclasses.dataclass(**kept)(kind)
    params = VARS(kind)["__dataclass_params__"]
    for name in ("slots", "weakref_slot"):
        if hasattr(params, name):
            setattr(params, name, options[name])
    if VARS(kind)["__doc__"] == "?":
        type.__setattr__(kind, "__doc__", None)
    for name, descriptor in descriptors.items():
        type.__setattr__(kind, name, descriptor)
    return hooks


def _fill_dataclass(kind: Any, attributes: dict[str, Any], parts: list[Any]) -> None:
    options, own, names = parts
    before = VARS(kind).get("__annotations__", MISSING)
    _generate(kind, attributes, options, own)
    if before is not MISSING:
        type.__setattr__(kind, "__annotations__", before)
    slots = VARS(kind).get("__slots__", ())
    for name in [field[0] for field in own]:
        if name in VARS(kind) and name not in names and name not in slots:
            type.__delattr__(kind, name)
    for name, value in attributes.items():
        if name in VARS(kind) and type(value) is types.FunctionType:
            type.__delattr__(kind, name)  # so that attributes keep their order
        type.__setattr__(kind, name, value)


MAKERS = {
    maker.name: maker
    for maker in (
        Maker("namedtuple", _take_namedtuple, _make_namedtuple, None, needs=2),
        Maker("enum", _take_enum, _make_enum, None, needs=3, takes_meta=True),
        Maker("dataclass", _take_dataclass, None, _fill_dataclass),
    )
}
