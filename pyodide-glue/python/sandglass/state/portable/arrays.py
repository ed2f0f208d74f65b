"""The codecs of NumPy: arrays by their bytes, dtypes by their description, generators by their state."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name
from sandglass.state.portable.codec import FINDERS, Codec, register
from sandglass.state.portable.generators import FIELDS
from sandglass.state.portable.graph import Cannot, Never

if TYPE_CHECKING:
    from sandglass.state.portable.codec import Scope

_np: Any = np
_BASE: Any = _np.ndarray.base.__get__

# --- dtypes -----------------------------------------------------------------------------------------------------------


def _take_dtype(dtype: Any, _: Scope) -> list[Any]:
    if dtype.metadata:
        raise Cannot("a dtype with metadata")
    if dtype.subdtype is not None:
        return ["sub", *dtype.subdtype]
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]
        if any(len(field) > 2 for field in fields):
            raise Cannot("a dtype whose fields have titles")
        formats, offsets = tuple(field[0] for field in fields), tuple(field[1] for field in fields)
        return ["struct", dtype.names, formats, offsets, dtype.itemsize, dtype.isalignedstruct]
    if dtype.char == "T":
        has_missing = hasattr(dtype, "na_object")
        return ["string", dtype.coerce, has_missing, dtype.na_object if has_missing else None]
    if dtype.char in "gG":
        raise Cannot("a long double, whose format is that of one kind of machine")
    if np.dtype(dtype.str) != dtype:
        raise Cannot(f"the dtype {dtype.str}")
    return ["simple", dtype.str]


def _dtype(parts: list[Any], _: Scope) -> Any:
    match parts:
        case ["simple", str(text)]:
            return np.dtype(text)
        case ["sub", base, shape]:
            return np.dtype((base, shape))
        case ["struct", names, formats, offsets, size, aligned]:
            held = {"names": list(names), "formats": list(formats), "offsets": list(offsets), "itemsize": size}
            return _np.dtype(held, align=aligned)
        case ["string", coerce, has_missing, missing]:
            options = {"na_object": missing} if has_missing else {}
            return _np.dtypes.StringDType(coerce=coerce, **options)
    raise ValueError("an unknown kind of dtype")


DTYPE = register(None, Codec("numpy.dtype", _take_dtype, _dtype))

# --- Arrays -----------------------------------------------------------------------------------------------------------


def _owner(array: Any) -> Any:
    """Returns the object that has an array's memory."""
    owner = array
    while issubclass(type(owner), np.ndarray) and (base := _BASE(owner)) is not None:
        owner = base
    return owner.obj if type(owner) is memoryview else owner


def _take_array(array: Any, scope: Scope) -> list[Any]:
    owner = _owner(array)
    scope.share(owner, array)
    if id(owner) in scope.shared and owner is not array:
        return _take_view(array, owner)
    if "mmap" in type(owner).__name__:
        raise Never("an array in the memory of a file")
    dtype = array.dtype
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    order = "F" if is_fortran else "C"
    head = [dtype, order, array.flags.writeable, array.shape]
    if dtype.char in "OT":
        return [*head, None, *array.ravel(order=order).tolist()]
    if dtype.hasobject:
        raise Cannot("a structured array with objects in it")
    return [*head, array.tobytes(order=order)]


def _take_view(array: Any, owner: Any) -> list[Any]:
    if type(owner) is not np.ndarray or array.dtype.hasobject or array.dtype.char == "T":
        raise Never("an array that shares its memory with an object of another kind")
    if not owner.flags.contiguous and not owner.flags.f_contiguous:
        raise Never("an array that shares memory which has gaps")
    offset = array.__array_interface__["data"][0] - owner.__array_interface__["data"][0]
    return [array.dtype, "view", array.flags.writeable, array.shape, owner, offset, array.strides]


def _make_array(parts: list[Any], scope: Scope) -> Any:
    dtype, order, _, shape, data, *more = parts
    if not isinstance(dtype, np.dtype) or not all(type(size) is int and size >= 0 for size in shape):
        raise TypeError("its dtype or shape is none")
    if order == "view":
        # NumPy checks that the view stays within the memory.
        return _np.ndarray(shape, dtype, buffer=data, offset=more[0], strides=more[1])
    if data is None:
        if dtype.char not in "OT" or prod(shape) > scope.max_bytes:
            raise ValueError("its shape is too large")
        return _np.empty(shape, dtype, order=order)
    if type(data) is not bytes or dtype.hasobject or prod(shape) * dtype.itemsize != len(data):
        raise ValueError("its bytes do not fit its shape")
    if not data:
        return _np.empty(shape, dtype, order=order)
    made = _np.empty(shape, dtype, order=order)
    made.reshape(-1, order=order).view("u1")[:] = _np.frombuffer(data, "u1")  # bytes between fields, too
    return made


def _fill_array(array: Any, parts: list[Any], _: Scope) -> None:
    _, order, is_writeable, _, data, *items = parts
    if data is None:
        if array.size != len(items):
            raise ValueError("its items do not fit its shape")
        flat = array.ravel(order=order)
        if not np.shares_memory(flat, array) and array.size:
            raise ValueError("its memory has gaps")
        for position, item in enumerate(items):
            flat[position] = item
    if not is_writeable:
        array.flags.writeable = False


class _ArrayCodec(Codec):
    """A view needs its offset and strides before it exists."""

    def needed(self, parts: list[Any]) -> int:
        return 7 if parts[1:2] == ["view"] else 5


register(_np.ndarray, _ArrayCodec("numpy.array", _take_array, _make_array, _fill_array, needs=5))


def _take_subclass(array: Any, scope: Scope) -> list[Any]:
    """Refuses an array of another class. Its own hooks of pickle know nothing of memory that it shares."""
    owner = _owner(array)
    scope.share(owner, array)
    what = f"a {type_name(array)}"
    if id(owner) in scope.shared and owner is not array:
        raise Never(f"{what} that shares its memory with another array")
    raise Cannot(f"{what}, for which there is no portable form")


_SUBCLASS = Codec("numpy.subclass", _take_subclass, _make_array, joins=True)

# --- Scalars ----------------------------------------------------------------------------------------------------------


def _take_scalar(value: Any, _: Scope) -> list[Any]:
    if value.dtype.hasobject or (value.dtype.names is None and np.dtype(value.dtype.str).type is not type(value)):
        raise Cannot(f"a scalar of the type {type(value).__name__}")
    return [value.dtype, value.tobytes()]


def _scalar(parts: list[Any], _: Scope) -> Any:
    dtype, data = parts
    if not isinstance(dtype, np.dtype) or dtype.hasobject or len(data) != dtype.itemsize:
        raise ValueError("its bytes do not fit its dtype")
    return _np.frombuffer(data, dtype)[0].copy() if data else _np.zeros((), dtype)[()]


SCALAR = register(None, Codec("numpy.scalar", _take_scalar, _scalar))


def _find(kind: type) -> Codec | None:
    if issubclass(kind, np.ndarray):
        return _SUBCLASS
    if issubclass(kind, np.dtype):
        return DTYPE
    if issubclass(kind, np.generic) and getattr(np, kind.__name__, None) is kind:
        return SCALAR
    return None


FINDERS.append(_find)

# --- Generators of random numbers -------------------------------------------------------------------------------------


def _take_bits(value: Any, _: Scope) -> list[Any]:
    name = type(value).__name__
    if name not in FIELDS:
        raise Cannot(f"a generator of the kind {name}")
    return [name, value.seed_seq, value.state]


def _make_bits(parts: list[Any], _: Scope) -> Any:
    name, seed = parts
    if name not in FIELDS:
        raise ValueError(f"a generator of the kind {name}")
    made = getattr(np.random, name)(0 if seed is None else seed)
    if seed is None and name == "MT19937":
        made._legacy_seeding(0)  # a generator without a seed sequence, as RandomState makes it
    return made


def _fill_bits(value: Any, parts: list[Any]) -> None:
    name, _, state = parts
    values = {**state, **state["state"]}
    for field, what in FIELDS[name].items():
        found = values[field]
        if isinstance(what, int):
            is_right = type(found) is int and 0 <= found <= what
        else:
            is_right = type(found) is np.ndarray and (found.dtype.kind, found.shape) == ("u", (int(what[:-1]),))
        if not is_right:
            raise ValueError(f"its state has a wrong {field}")
    value.state = state


def _take_seed(value: Any, _: Scope) -> list[Any]:
    return [value.entropy, value.spawn_key, value.pool_size, value.n_children_spawned]


def _seed(parts: list[Any], _: Scope) -> Any:
    entropy, key, size, spawned = parts
    return _np.random.SeedSequence(entropy, spawn_key=key, pool_size=size, n_children_spawned=spawned)


def _take_legacy(value: Any, _: Scope) -> list[Any]:
    state = value.get_state(legacy=False)
    return [value._bit_generator, state]


for _name in FIELDS:
    if hasattr(np.random, _name):
        register(
            getattr(np.random, _name),
            Codec(
                "numpy.bits",
                _take_bits,
                _make_bits,
                lambda value, parts, _: _fill_bits(value, parts),
                needs=2,
            ),
        )
register(_np.random.SeedSequence, Codec("numpy.SeedSequence", _take_seed, _seed, joins=True, reads=True))
register(
    _np.random.Generator,
    Codec(
        "numpy.Generator",
        lambda value, _: [value.bit_generator],
        lambda parts, _: np.random.Generator(parts[0]),
        joins=True,
    ),
)
register(
    _np.random.RandomState,
    Codec(
        "numpy.RandomState",
        _take_legacy,
        lambda parts, _: np.random.RandomState(parts[0]),
        lambda value, parts, _: value.set_state(parts[1]),
        needs=1,
    ),
)
