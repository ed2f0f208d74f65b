"""Values between this program and the sandbox, as JSON with special forms."""

# Decisions: docs/internals/python-client.md.

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf, isfinite, isnan, nan
from sys import modules
from typing import Any

from sandglass.client.errors import SandboxError, a_type

MAX_DEPTH = 200
#: The most bytes of a value's JSON within a message. Larger values are blobs.
MAX_INLINE = 64 << 10
_EXACT = 2**53
_NESTED = frozenset({list, dict})
_ARRAY_KINDS = "biuf"
_DTYPES = frozenset(["bool", *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64))]) - {
    "float8"
}
_REPR_CHARS = 1000
#: The most pairs of keys with equal hashes, in all and in addition for each key. Making a dict compares each pair.
_MOST_COLLISIONS = 500_000
_COLLISIONS_PER_KEY = 10
_PLAIN = _NESTED | {str, int, float, bool, type(None)}
#: Python refuses to write longer ints in decimal, and is slow at it.
_DECIMAL_BITS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_FLOATS = {"nan": nan, "inf": inf, "-inf": -inf}

Blobs = dict[int, bytes]
"""The blobs that a message names, by number."""


@dataclass(frozen=True)
class Opaque:
    """A value that cannot leave the sandbox: the name of its type, and its `repr`."""

    type: str
    repr: str


@dataclass(frozen=True)
class Array:
    """A numpy array that numpy cannot take, for it is not installed: its items in C order, little-endian."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Table:
    """A DataFrame that pandas cannot take, for it is not installed: rows of values."""

    columns: list[Any]
    index: list[Any]
    data: list[list[Any]]


def dump(structure: Any) -> bytes:
    """Writes JSON. Raises ValueError for NaN, and UnicodeEncodeError for lone surrogates."""
    return _write(structure).encode()


def encode(value: Any, name: str = "value") -> tuple[Any, bytes]:
    """Returns the structure that stands for a value in JSON, and that JSON. `name` is the value's name in errors."""
    structure = value if _is_plain(value) else _structure(value, name, 0)
    try:
        return structure, dump(structure)
    except UnicodeEncodeError:  # lone surrogates: rare, and too costly to look for in each text
        structure = _structure(value, name, 0)
        return structure, dump(structure)


def decode(structure: Any, blobs: Blobs) -> Any:
    """Returns the value that a structure of JSON stands for."""
    if type(structure) is list:
        return [decode(item, blobs) for item in structure]
    if type(structure) is not dict:
        return structure
    if len(structure) == 1:
        ((kind, content),) = structure.items()
        if kind[:1] == "$":
            return _special(kind, content, blobs)
    return {key: decode(item, blobs) for key, item in structure.items()}


def blobs_in(structure: Any) -> list[int]:
    """The numbers of the blobs that a message names."""
    found, level = [], [structure]
    while level:
        item = level.pop()
        if type(item) is list:
            level.extend(item)
        elif type(item) is dict:
            number = blob_of(item)
            if number is not None:
                found.append(number)
            else:
                level.extend(item.values())
    return found


def blob_of(structure: Any) -> int | None:
    """The number of the blob that a structure is. None if it is something else."""
    blob = structure.get("$blob") if type(structure) is dict and len(structure) == 1 else None
    return blob["id"] if type(blob) is dict and type(blob.get("id")) is int else None


def _is_plain(value: Any) -> bool:
    """Returns true when JSON writes the value as it is. Goes level by level, so that the work per item is done in C."""
    level = [value]
    seen: set[int] = set()
    count = 0
    for _ in range(MAX_DEPTH + 1):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        if int in kinds and any(type(item) is int and not -_EXACT <= item <= _EXACT for item in level):
            return False
        if float in kinds and not all(isfinite(item) for item in level if type(item) is float):
            return False
        containers = [item for item in level if type(item) is list or type(item) is dict] if kinds & _NESTED else []
        # A container that occurs twice may contain itself.
        seen.update(map(id, containers))
        count += len(containers)
        if len(seen) != count:
            return False
        level = []
        for container in containers:
            if type(container) is dict:
                if not set(map(type, container)) <= {str} or _is_special(container):
                    return False
                level.extend(container.values())
            else:
                level.extend(container)
        if not level:
            return True
    return False


def _is_special(entries: dict[str, Any]) -> bool:
    return len(entries) == 1 and next(iter(entries)).startswith("$")


def _structure(value: Any, name: str, depth: int) -> Any:
    """Returns the structure of any value."""
    if depth > MAX_DEPTH:
        raise _refused(name, f"is nested deeper than {MAX_DEPTH} levels, or contains itself: flatten it")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(str.__str__(value))
    if isinstance(value, int):
        number = int(value)
        if -_EXACT <= number <= _EXACT:
            return number
        return {"$bigint": str(number) if number.bit_length() < _DECIMAL_BITS else hex(number)}
    if isinstance(value, float):
        real = float(value)
        if isfinite(real):
            return real
        return {"$float": "nan" if isnan(real) else "inf" if real > 0 else "-inf"}
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, (list, tuple)):
        return [_structure(item, f"{name}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _dict(value, name, depth)
    if isinstance(value, (set, frozenset)):
        return {"$set": [_structure(item, f"{name}{{…}}", depth + 1) for item in value]}
    if isinstance(value, datetime) and value == value:  # pandas' NaT equals nothing
        if value.tzinfo is None:
            raise _refused(name, "is a datetime without a time zone: give it one, such as value.astimezone()")
        return {"$date": (value - _EPOCH) / timedelta(milliseconds=1)}
    return _of_library(value, name, depth)


def _text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$str": json.dumps(value)}
    return value


def _dict(value: dict[Any, Any], name: str, depth: int) -> Any:
    items = [
        (key, _structure(item, f"{name}[{key if type(key) in (str, int) else '…'!r:.40}]", depth + 1))
        for key, item in value.items()
    ]
    if all(type(key) is str and type(_text(key)) is str for key, _ in items):
        entries = dict(items)
        if not _is_special(entries):
            return entries
    return {"$map": [[_structure(key, f"{name}.keys()", depth + 1), item] for key, item in items]}


def _of_library(value: Any, name: str, depth: int) -> Any:
    numpy, pandas = modules.get("numpy"), modules.get("pandas")
    if numpy is not None and isinstance(value, numpy.generic) and _is_number(value.dtype):
        return _structure(value.item(), name, depth)
    if numpy is not None and isinstance(value, numpy.ndarray) and not isinstance(value, numpy.ma.MaskedArray):
        if not _is_number(value.dtype):
            raise _refused(name, f"is an array of {value.dtype}, which cannot go into the sandbox: give value.tolist()")
        data = value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes("C")
        array = {"dtype": value.dtype.name, "shape": list(value.shape), "data": b64encode(data).decode()}
        return {"$array": array}
    if pandas is not None and (value is pandas.NA or value is pandas.NaT):
        return None
    if pandas is not None and isinstance(value, pandas.DataFrame):
        columns = [value.iloc[:, position].tolist() for position in range(value.shape[1])]
        rows = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in value.index]
        parts = {"columns": value.columns.tolist(), "index": value.index.tolist(), "data": rows}
        return {"$table": {part: _structure(item, f"{name}.{part}", depth + 1) for part, item in parts.items()}}
    advice = "give plain data, such as texts, numbers, lists and dicts"
    raise _refused(name, f"is {a_type(value)}, which cannot go into the sandbox: {advice}")


def _is_number(dtype: Any) -> bool:
    """True for numbers that other languages have, too. Not for times, whose `item` can be an int."""
    return dtype.kind in _ARRAY_KINDS and dtype.itemsize <= 8


def _refused(name: str, reason: str) -> SandboxError:
    return SandboxError("not_serializable", f"{name} {reason}")


def _special(kind: str, content: Any, blobs: Blobs) -> Any:
    match kind:
        case "$str":
            return json.loads(content)
        case "$bigint":
            return int(content, 0)
        case "$float":
            return _FLOATS[content]
        case "$bytes":
            return b64decode(content)
        case "$map":
            keys = [_hashable(decode(key, blobs)) for key, _ in content]
            if _collide(keys):
                return Opaque("dict", f"<{len(keys)} keys with the same hashes>")
            return dict(zip(keys, (decode(item, blobs) for _, item in content), strict=True))
        case "$set":
            items = [_hashable(decode(item, blobs)) for item in content]
            return Opaque("set", f"<{len(items)} items with the same hashes>") if _collide(items) else set(items)
        case "$date":
            return _date(content)
        case "$array":
            return _array(content["dtype"], content["shape"], b64decode(content["data"]))
        case "$table":
            return _table(*(decode(content[part], blobs) for part in ("columns", "index", "data")))
        case "$other":
            return Opaque(content["type"], content["repr"])
        case "$blob":
            return _blob(blobs[content["id"]], content["type"])
        case _:
            raise ValueError(f"there is no special form {kind}")


def _blob(data: bytes, kind: str) -> Any:
    if kind == "str":
        return data.decode()
    if kind == "bytes":
        return data
    structure = json.loads(data)
    return decode(structure, {}) if b'"$' in data else structure


def _hashable(value: Any) -> Any:
    """Returns the value as it was in a set or as a key: a tuple has become a list on its way."""
    if type(value) is list:
        return tuple(map(_hashable, value))
    if type(value) is set:
        return frozenset(value)
    try:
        hash(value)
    except TypeError:  # no guest that keeps to its rules sends it
        return Opaque(type(value).__name__, repr(value)[:_REPR_CHARS])
    return value


def _collide(keys: list[Any]) -> bool:
    """True if a guest has chosen keys that are slow to look up, as it can with numbers."""
    counts = Counter(map(hash, keys)).values()
    # Pairs, and not keys: as hash(-1) == hash(-2), many a sound dict has many groups of two.
    pairs = sum(count * (count - 1) // 2 for count in counts)
    return pairs > _MOST_COLLISIONS + _COLLISIONS_PER_KEY * len(keys)


def _date(milliseconds: float) -> Any:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError):
        return Opaque("datetime", f"{milliseconds} ms since 1970")


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    array = Array(dtype, tuple(shape), data)
    if dtype not in _DTYPES:
        return array
    try:
        import numpy

        return numpy.frombuffer(data, numpy.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)
    except (ImportError, ValueError):  # a guest can lie about the shape
        return array


def _table(columns: list[Any], index: list[Any], data: list[list[Any]]) -> Any:
    try:
        if len(index) != len(data) or any(len(row) != len(columns) for row in data):
            raise ValueError("the parts do not fit")
        import pandas

        return pandas.DataFrame(data, index=pandas.Index(index), columns=pandas.Index(columns))
    except (ImportError, TypeError, ValueError):  # a guest can lie about the parts
        return Table(columns, index, data)
