"""The codecs of the standard library's values. A subclass has none of these: `classes.py` is for those of cells."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import functools
import ipaddress
import json
import pathlib
import random
import re
import types
import uuid
import zoneinfo
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.portable.codec import Codec, pairs, register, unpaired
from sandglass.state.portable.graph import Cannot, Never, Objects, are_atoms, encode_atom, is_atom

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandglass.state.portable.codec import Scope

_MAX_PATTERN_CHARS = 1 << 20


def _built(kind: type, name: str, take: Callable[[Any], list[Any]], make: Callable[..., Any], **options: Any) -> None:
    """A codec of values that are made from all their parts, as arguments."""
    register(kind, Codec(name, lambda value, _: take(value), lambda parts, _: make(*parts), **options))


def _filled(kind: type, name: str, take: Callable[[Any], list[Any]], make: Callable[..., Any], fill: Any) -> None:
    """A codec of containers, whose items may lead back to them."""

    def fill_it(value: Any, parts: list[Any], _: Scope) -> None:
        fill(value, parts)

    register(kind, Codec(name, lambda value, _: take(value), lambda parts, _: make(*parts), fill_it))


def _bare(value: Any, take: Callable[[Any], list[Any]], own: frozenset[str] = frozenset()) -> list[Any]:
    """Takes a value whose class gives instances a `__dict__`, unless the user has put attributes there."""
    if not own.issuperset(getattr(value, "__dict__", ())):
        raise Cannot(f"the {type(value).__name__} has attributes of its own")
    return take(value)


# --- Containers -------------------------------------------------------------------------------------------------------


def in_order(items: Any) -> list[Any]:
    """Returns the items of a set. Atoms, and tuples of atoms, come in an order that does not depend on hashes."""
    held = list(items)
    keys = list(map(_key, held))
    if None in keys:
        return held
    return [held[number] for number in sorted(range(len(held)), key=keys.__getitem__)]


def _key(item: Any) -> Any:
    if is_atom(item):
        return type(item).__name__, json.dumps(encode_atom(item, Objects()))
    if type(item) is tuple and are_atoms(item):
        return "tuple", json.dumps([(type(part).__name__, encode_atom(part, Objects())) for part in item])
    return None


def _make_set(kind: Any) -> Callable[..., Any]:
    def make(*parts: Any) -> Any:
        made = kind(parts)
        if len(made) != len(parts):
            raise ValueError("two of its items are equal here")
        return made

    return make


def _fill_set(value: set[Any], parts: list[Any]) -> None:
    value.update(_make_set(frozenset)(*parts))


def _fill_dict(value: Any, parts: list[Any]) -> None:
    value.update(unpaired(parts))


def _take_defaultdict(value: Any) -> list[Any]:
    return [value.default_factory, *pairs(value)]


def _fill_defaultdict(value: Any, parts: list[Any]) -> None:
    if parts[0] is not None and not callable(parts[0]):
        raise TypeError("its default_factory cannot be called")
    value.default_factory = parts[0]
    value.update(unpaired(parts[1:]))


def _fill_deque(value: Any, parts: list[Any]) -> None:
    value.extend(parts[1:])


def _take_user(value: Any) -> list[Any]:
    return _bare(value, lambda value: [value.data], frozenset({"data"}))


def _fill_user(kind: type) -> Callable[[Any, list[Any]], None]:
    def fill(value: Any, parts: list[Any]) -> None:
        if type(parts[0]) is not kind:
            raise TypeError(f"its data is no {kind.__name__}")
        value.data = parts[0]

    return fill


def _no_parts(*_: Any) -> None:
    pass


_filled(list, "list", list, list, list.extend)
_filled(dict, "dict", pairs, dict, _fill_dict)
_filled(set, "set", in_order, set, _fill_set)
_built(tuple, "tuple", list, lambda *parts: parts)
_built(frozenset, "frozenset", in_order, _make_set(frozenset), reads=True)
_filled(
    collections.OrderedDict,
    "OrderedDict",
    lambda value: _bare(value, lambda value: [part for key in value for part in (key, value[key])]),
    collections.OrderedDict,
    _fill_dict,
)
_filled(collections.defaultdict, "defaultdict", _take_defaultdict, collections.defaultdict, _fill_defaultdict)
_filled(
    collections.Counter,
    "Counter",
    lambda value: _bare(value, pairs),
    collections.Counter,
    lambda value, parts: dict.update(value, unpaired(parts)),
)
_filled(
    collections.ChainMap,
    "ChainMap",
    lambda value: _bare(value, lambda value: [value.maps], frozenset({"maps"})),
    collections.ChainMap,
    lambda value, parts: setattr(value, "maps", parts[0]),
)
_filled(collections.UserDict, "UserDict", _take_user, collections.UserDict, _fill_user(dict))
_filled(collections.UserList, "UserList", _take_user, collections.UserList, _fill_user(list))
_filled(collections.UserString, "UserString", _take_user, lambda: collections.UserString(""), _fill_user(str))
_filled(
    types.SimpleNamespace,
    "SimpleNamespace",
    lambda value: pairs(vars(value)),
    types.SimpleNamespace,
    lambda value, parts: value.__dict__.update(unpaired(parts)),
)
register(
    collections.deque,
    Codec(
        "deque",
        lambda value, _: [value.maxlen, *value],
        lambda parts, _: collections.deque(maxlen=parts[0]),
        lambda value, parts, _: _fill_deque(value, parts),
        needs=1,
    ),
)
register(
    types.MappingProxyType,
    Codec(
        "mappingproxy",
        lambda value, _: [_behind(value)],
        lambda parts, _: types.MappingProxyType(parts[0]),
        joins=True,
    ),
)


def _behind(proxy: Any) -> Any:
    from gc import get_referents

    (mapping,) = get_referents(proxy)
    if type(mapping) is not dict:
        raise Cannot("the mapping behind a mappingproxy is no dict")
    return mapping


# --- Bytes ------------------------------------------------------------------------------------------------------------

_ARRAY_CODES = "bBhHiIlLqQfd"


def _with_owner(value: Any, scope: Scope) -> Any:
    """Notes that the value is used as itself, besides arrays of NumPy that may use its memory."""
    scope.share(value, value)
    return value


def _take_array(value: Any) -> list[Any]:
    if value.typecode not in _ARRAY_CODES:
        return [value.typecode, 0, value.tounicode()]
    little = array.array(value.typecode, value)
    if _IS_BIG:
        little.byteswap()
    return [value.typecode, value.itemsize, little.tobytes()]


_IS_BIG = array.array("h", [1]).tobytes() != b"\x01\x00"


def _fill_array(value: Any, parts: list[Any]) -> None:
    code, size, data = parts
    if code not in _ARRAY_CODES:
        value.fromunicode(data)
        return
    same = next(
        code
        for code in (code, *_ARRAY_CODES)
        if array.array(code).itemsize == size
        and (code in "fd") is (parts[0] in "fd")
        and (code.islower() or code in "fd") is (parts[0].islower() or parts[0] in "fd")
    )
    held = array.array(same)
    held.frombytes(data)
    if _IS_BIG:
        held.byteswap()
    if same == code:
        value.extend(held)
    else:
        value.fromlist(held.tolist())  # raises OverflowError where this machine's items are smaller


def _take_memoryview(value: Any) -> list[Any]:
    under = value.obj
    whole = type(under) in (bytes, bytearray) and value.format == "B" and value.ndim == 1 and value.c_contiguous
    if not whole or value.nbytes != len(under) or value.readonly is not (type(under) is bytes):
        raise Never("a memoryview of a part of an object, or of another format than bytes")
    return [under]


def _make_memoryview(under: Any) -> Any:
    if type(under) not in (bytes, bytearray):
        raise TypeError("a memoryview of something else than bytes")
    return memoryview(under)


def _make_bytearray(data: Any) -> bytearray:
    if type(data) is not bytes:
        raise TypeError("a bytearray of something else than bytes")
    return bytearray(data)


register(
    bytearray,
    Codec(
        "bytearray",
        lambda value, scope: [bytes(_with_owner(value, scope))],
        lambda parts, _: _make_bytearray(parts[0]),
        joins=True,
    ),
)
_built(memoryview, "memoryview", _take_memoryview, _make_memoryview, joins=True)
register(
    array.array,
    Codec(
        "array",
        lambda value, scope: _take_array(_with_owner(value, scope)),
        lambda parts, _: array.array(parts[0]),
        lambda value, parts, _: _fill_array(value, parts),
        needs=1,
    ),
)

# --- Numbers and other values that cannot change ----------------------------------------------------------------------


def _complex(real: float, imaginary: float) -> complex:
    if type(real) is not float or type(imaginary) is not float:
        raise TypeError("a complex number of something else than floats")
    return complex(real, imaginary)


def _constant(name: str) -> Any:
    return {"Ellipsis": ..., "NotImplemented": NotImplemented}[name]


def _fraction(numerator: int, denominator: int) -> Any:
    return fractions.Fraction(numerator, denominator)


def _uuid(number: int, safety: str) -> Any:
    return uuid.UUID(int=number, is_safe=uuid.SafeUUID[safety])


def _pattern(pattern: str | bytes, flags: int) -> Any:
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ValueError("the regular expression is too long")
    made = re.compile(pattern, flags & ~re.DEBUG)
    if made.flags != flags & ~re.DEBUG or flags >= 1 << 16:
        raise ValueError("a regular expression has other flags here")
    return made


def _take_zone(value: Any) -> list[Any]:
    if value.key is None:
        raise Cannot("a time zone that was read from a file")
    return [value.key]


def _zone(offset: Any, name: str | None) -> Any:
    if name is None:
        return datetime.UTC if offset == datetime.timedelta(0) else datetime.timezone(offset)
    return datetime.timezone(offset, name)


def _take_zone_offset(value: Any) -> list[Any]:
    offset, *name = value.__getinitargs__()
    return [offset, name[0] if name else None]


def _datetime(*parts: Any) -> Any:
    *numbers, fold, zone = parts
    made: Any = datetime.datetime
    return made(*numbers, tzinfo=zone, fold=fold)


def _time(*parts: Any) -> Any:
    *numbers, fold, zone = parts
    made: Any = datetime.time
    return made(*numbers, tzinfo=zone, fold=fold)


def _take_decimal(value: Any) -> list[Any]:
    return [str(value)]


def _take_partial(value: Any, _: Scope) -> list[Any]:
    names, values = tuple(value.keywords), tuple(value.keywords.values())
    return [value.func, value.args, names, values, vars(value)]


def _make_partial(parts: list[Any], _: Scope) -> Any:
    function, args, names, values = parts
    return functools.partial(function, *args, **dict(zip(names, values, strict=True)))


register(
    functools.partial,
    Codec(
        "partial",
        _take_partial,
        _make_partial,
        lambda value, parts, _: vars(value).update(parts[4]),
        needs=4,
    ),
)
_built(complex, "complex", lambda z: [z.real, z.imag], _complex)
_built(range, "range", lambda r: [r.start, r.stop, r.step], range)
_built(slice, "slice", lambda s: [s.start, s.stop, s.step], slice)
_built(type(...), "constant", lambda _: ["Ellipsis"], _constant)
_built(type(NotImplemented), "constant", lambda _: ["NotImplemented"], _constant)
_built(fractions.Fraction, "Fraction", lambda f: [f.numerator, f.denominator], _fraction)
_built(decimal.Decimal, "Decimal", _take_decimal, decimal.Decimal)
_built(uuid.UUID, "UUID", lambda u: [u.int, u.is_safe.name], _uuid)
_built(re.Pattern, "Pattern", lambda p: [p.pattern, p.flags], _pattern)
_built(datetime.timedelta, "timedelta", lambda d: [d.days, d.seconds, d.microseconds], datetime.timedelta)
_built(datetime.date, "date", lambda d: [d.year, d.month, d.day], datetime.date)
_built(datetime.time, "time", lambda t: [t.hour, t.minute, t.second, t.microsecond, t.fold, t.tzinfo], _time)
_built(
    datetime.datetime,
    "datetime",
    lambda t: [t.year, t.month, t.day, t.hour, t.minute, t.second, t.microsecond, t.fold, t.tzinfo],
    _datetime,
)
_built(datetime.timezone, "timezone", _take_zone_offset, _zone)
_built(zoneinfo.ZoneInfo, "ZoneInfo", _take_zone, zoneinfo.ZoneInfo)
for _kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath):
    _built(_kind, _kind.__name__, lambda path: [str(path)], _kind)
for _address in (
    ipaddress.IPv4Address,
    ipaddress.IPv6Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv6Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Network,
):
    _built(_address, _address.__name__, lambda address: [str(address)], _address)


# --- Generators of random numbers -------------------------------------------------------------------------------------


def _take_random(value: Any) -> list[Any]:
    version, state, gauss = value.getstate()
    return _bare(value, lambda _: [version, gauss, *state], frozenset({"gauss_next"}))


def _fill_random(value: Any, parts: list[Any]) -> None:
    value.setstate((parts[0], tuple(parts[2:]), parts[1]))


_filled(random.Random, "Random", _take_random, lambda: random.Random(0), _fill_random)
