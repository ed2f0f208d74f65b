"""Classes of cells, and their instances.

A class goes as its name, bases and attributes; its methods are functions and go as source. Its body does not run again.
An instance goes as the content of its built-in base, its `__dict__` and its slots. No method of the class is called for
that, in either direction: not `__reduce__`, `__getstate__`, `__new__`, `__init__` or `__setattr__`.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import abc
import builtins
import collections
import sys
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name
from sandglass.state.pickling import BASES, IMPLICIT_SLOTS, LAYOUT, MRO, NAME, VARS, is_native, make_class, native_base
from sandglass.state.portable.codec import Codec, register
from sandglass.state.portable.codecs import in_order
from sandglass.state.portable.functions import annotations_of
from sandglass.state.portable.graph import Cannot, Never
from sandglass.state.portable.made_classes import LEFT_OUT, MAKERS, maker_of

if TYPE_CHECKING:
    from sandglass.state.portable.codec import Scope

_abc: Any = abc
_METAS = (type, abc.ABCMeta)
#: Built-in bases whose content is an argument of `__new__`, and those that are filled.
_VALUES = (int, float, complex, str, bytes, tuple, frozenset)
_ITEMS = (list, set, bytearray)
_FACTORY: Any = vars(collections.defaultdict)["default_factory"]
_LAST = ("__doc__", "__hash__", "__abstractmethods__", "__match_args__")
_ALL = slice(None)
#: The content as the base sees it. `value[:]` of a base is a plain object.
_PLAIN: dict[Any, Any] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: lambda value: str.__getitem__(value, _ALL),
    bytes: lambda value: bytes.__getitem__(value, _ALL),
    tuple: lambda value: tuple.__getitem__(value, _ALL),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    list: list.copy,
    set: lambda value: in_order(set.__iter__(value)),
    bytearray: lambda value: bytes(bytearray.__getitem__(value, _ALL)),
}
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict)


# --- Classes ----------------------------------------------------------------------------------------------------------


def _take_class(kind: Any, scope: Scope) -> list[Any]:
    meta = type(kind)
    found = maker_of(kind)
    if meta not in _METAS and (found is None or not found.takes_meta):
        raise Cannot(f"the class {NAME(kind)}, which has a metaclass of its own")
    if getattr(kind, "__type_params__", ()):
        raise Cannot(f"the class {NAME(kind)}, which has type parameters")
    if "__class__" in VARS(kind):
        raise Never(f"the class {NAME(kind)}, which defines __class__")
    layout: list[str] | None = [] if "__slots__" in VARS(kind) else None
    attributes: dict[str, Any] = {}
    for name, value in list(VARS(kind).items()):
        if type(value) in LAYOUT and getattr(value, "__objclass__", None) is kind and value.__name__ == name:
            if layout is not None:
                layout.append(name)
        elif not (type(value) is types.GetSetDescriptorType and name in IMPLICIT_SLOTS) and name not in LEFT_OUT:
            attributes[name] = value
    # Python sets these at different moments, so their place says nothing.
    for name in _LAST:
        if name in attributes:
            attributes[name] = attributes.pop(name)
    if meta is abc.ABCMeta and any(reference() is not None for reference in _abc._get_dump(kind)[0]):
        raise Cannot(f"the abstract class {NAME(kind)}, with which other classes are registered")
    annotations = _annotations(kind, scope)
    special: list[Any] = []
    if found is not None:
        special, attributes = found.take(kind, attributes, annotations)
    return [
        found.name if found else "",
        meta is abc.ABCMeta,
        NAME(kind),
        type.__getattribute__(kind, "__qualname__"),
        VARS(kind).get("__module__"),
        BASES(kind),
        None if layout is None else tuple(sorted(layout)),
        *(special[: found.needs] if found else ()),
        attributes,
        annotations,
        *(special[found.needs :] if found else ()),
    ]


_NEEDED = 7


def _annotations(kind: Any, scope: Scope) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        return annotations_of(kind, scope)
    return dict(VARS(kind).get("__annotations__", {}))


def _skeleton(parts: list[Any]) -> dict[str, Any]:
    _, _, _, qualname, module, _, layout = parts[:_NEEDED]
    skeleton = {"__qualname__": qualname, "__module__": module}
    if layout is not None:
        skeleton["__slots__"] = layout
    return skeleton


def _make(parts: list[Any], _: Scope) -> Any:
    maker, is_abstract, name, _, _, bases, _ = parts[:_NEEDED]
    if not all(issubclass(type(base), type) for base in bases):
        raise TypeError("a base of the class is no class")
    make = MAKERS[maker].make if maker else None
    if make is not None:
        return make(name, bases, _skeleton(parts), parts[_NEEDED:])
    return make_class(abc.ABCMeta if is_abstract else type, name, bases, _skeleton(parts))


def _fill(kind: Any, parts: list[Any], _: Scope) -> None:
    maker = MAKERS[parts[0]] if parts[0] else None
    attributes, annotations, *special = parts[_NEEDED + (maker.needs if maker else 0) :]
    if annotations:
        type.__setattr__(kind, "__annotations__", annotations)
    if maker is not None and maker.fill is not None:
        maker.fill(kind, attributes, special)
    else:
        for name, value in attributes.items():
            type.__setattr__(kind, name, value)


class _ClassCodec(Codec):
    """What is needed before the class exists depends on how the class is made."""

    def needed(self, parts: list[Any]) -> int:
        maker = MAKERS.get(parts[0]) if parts and type(parts[0]) is str else None
        return _NEEDED + (maker.needs if maker else 0)


CLASS = register(None, _ClassCodec("class", _take_class, _make, _fill, needs=_NEEDED))


# --- Instances --------------------------------------------------------------------------------------------------------


def _slots(value: Any) -> tuple[dict[str, Any], bool]:
    """Returns the slots that are set, and whether there is a `__dict__`."""
    slots: dict[str, Any] = {}
    has_dict = False
    seen = set()
    for base in MRO(type(value)):
        if is_native(base):
            has_dict = has_dict or base.__dictoffset__ != 0
            continue
        for name, descriptor in list(VARS(base).items()):
            if type(descriptor) is types.GetSetDescriptorType and name == "__dict__":
                has_dict = True
            if type(descriptor) is not types.MemberDescriptorType or descriptor.__objclass__ is not base:
                continue
            if name in seen:
                raise Cannot(f"an instance of {type_name(value)}, which has two slots of the same name")
            seen.add(name)
            with suppress(AttributeError):
                slots[name] = descriptor.__get__(value)
    return slots, has_dict


def _take_instance(value: Any, scope: Scope) -> list[Any]:
    kind = type(value)
    base = native_base(kind)
    slots, has_dict = _slots(value)
    attributes = None
    if has_dict:
        attributes = object.__getattribute__(value, "__dict__") if base is object else _dict_of(value)
    content: Any = None
    items: Any = None
    if base in _VALUES:
        content = _PLAIN[base](value)
    elif base in _ITEMS:
        items = _PLAIN[base](value)
    elif base in _MAPPINGS:
        items = {key: dict.__getitem__(value, key) for key in base.__iter__(value)}
        content = _FACTORY.__get__(value) if base is collections.defaultdict else None
    elif issubclass(base, BaseException) and base.__module__ == "builtins":
        note_traceback(value, scope)
        content, slots = take_exception(value, base, slots)
    elif base is not object:
        raise Cannot(f"an instance of {type_name(value)}, which is made of a {base.__name__}")
    return [kind, content, items, attributes, dict(sorted(slots.items()))]


def _dict_of(value: Any) -> Any:
    found = object.__getattribute__(value, "__dict__")
    if type(found) is not dict:
        raise Cannot(f"an instance of {type_name(value)}, whose __dict__ is no dict")
    return found


def _make_instance(parts: list[Any], _: Scope) -> Any:
    kind, content = parts
    if not issubclass(type(kind), type):
        raise TypeError("an instance of something that is no class")
    base = native_base(kind)
    if base in _VALUES:
        if type(content) is not base:
            raise TypeError(f"its content is no {base.__name__}")
        return base.__new__(kind, content)
    if base is object or base in _ITEMS or base in _MAPPINGS:
        made = base.__new__(kind)
        if base is collections.defaultdict:
            if content is not None and not callable(content):
                raise TypeError("its default_factory cannot be called")
            made.default_factory = content
        return made
    if issubclass(base, BaseException) and base.__module__ == "builtins":
        return base.__new__(kind, *content)
    raise TypeError(f"instances of {kind.__name__} cannot be made")


def _fill_instance(value: Any, parts: list[Any], _: Scope) -> None:
    kind, _, items, attributes, slots = parts
    base = native_base(kind)
    if items is not None and base in _ITEMS:
        (base.update if base is set else base.extend)(value, items)
    for key, item in (items or {}).items() if base in _MAPPINGS else ():
        base.__setitem__(value, key, item)
    if attributes is not None:
        object.__setattr__(value, "__dict__", attributes)
    fill_slots(value, slots)


def fill_slots(value: Any, slots: dict[str, Any]) -> None:
    for name, item in slots.items():
        if type(name) is not str or name in ("__class__", "__dict__"):
            raise TypeError("it has a slot that is none")
        descriptor: Any = next((VARS(base)[name] for base in MRO(type(value)) if name in VARS(base)), None)
        if type(descriptor) not in LAYOUT:
            raise AttributeError(f"its class has no slot {name[:100]!r} here")
        descriptor.__set__(value, item)


INSTANCE = register(None, Codec("instance", _take_instance, _make_instance, _fill_instance, needs=2))


# --- Exceptions -------------------------------------------------------------------------------------------------------

_LINKS = ("__cause__", "__context__", "__suppress_context__")
_GROUPS = ("message", "exceptions")
#: Attributes of every exception that go elsewhere: among the arguments, in the `__dict__`, or not at all.
_OF_ALL = frozenset(VARS(BaseException))


def take_exception(value: Any, base: Any, slots: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of `__new__`, and `slots` with all that C keeps of an exception."""
    args = BaseException.args.__get__(value)  # type: ignore[attr-defined]
    if issubclass(base, BaseExceptionGroup):
        slots["args"] = args
        args = tuple(VARS(BaseExceptionGroup)[name].__get__(value) for name in _GROUPS)
    for kind in MRO(base)[:-1]:
        for name, descriptor in VARS(kind).items():
            if type(descriptor) in LAYOUT and name not in _OF_ALL and name not in _GROUPS:
                try:
                    held = descriptor.__get__(value)
                except AttributeError:
                    continue
                if held is not None:
                    slots[name] = held
    for name in _LINKS:
        held = VARS(BaseException)[name].__get__(value)
        if held:
            slots[name] = held
    return args, slots


def _take_exception(value: Any, scope: Scope) -> list[Any]:
    note_traceback(value, scope)
    kind = type(value)
    args, state = take_exception(value, kind, {})
    return [NAME(kind), args, VARS(BaseException)["__dict__"].__get__(value), dict(sorted(state.items()))]


def note_traceback(value: Any, scope: Scope) -> None:
    if VARS(BaseException)["__traceback__"].__get__(value) is not None:
        scope.note(value, "its traceback", "a traceback holds frames, which only their own guest has")


def _make_exception(parts: list[Any], _: Scope) -> Any:
    kind: Any = vars(builtins).get(parts[0])
    if not issubclass(type(kind), type) or not issubclass(kind, BaseException):
        raise TypeError("it is no exception of this Python")
    return kind.__new__(kind, *parts[1])


def _fill_exception(value: Any, parts: list[Any], _: Scope) -> None:
    _, _, attributes, state = parts
    vars(value).update(attributes)
    fill_slots(value, state)


EXCEPTION = register(None, Codec("exception", _take_exception, _make_exception, _fill_exception, needs=2))


def is_builtin_exception(kind: type) -> bool:
    return issubclass(kind, BaseException) and vars(builtins).get(NAME(kind)) is kind
