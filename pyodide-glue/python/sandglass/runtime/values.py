"""The wire format: values between Python and the host, as `(encoding, body)`.

Encodings:

- `none`     the value None; empty body
- `text`     a str: UTF-8, with lone surrogates as three bytes (`surrogatepass`, like WTF-8 but never combining pairs)
- `bytes`    bytes, as they are
- `marshal`  everything else made of None, bool, int, float, str, bytes, list, tuple, dict, set and frozenset:
             CPython's marshal format, version 2, of which only the tags below occur
- `tagged`   the same grammar, with extension values (below)
- `missing`  only as the answer to `get_variable`: there is no such variable; empty body

Marshal version 2, tags as ASCII, integers little-endian. No references (0x80 is never set), no interning.

    N T F                 None, True, False
    i  <i32>              int that fits in 32 bits, signed
    l  <i32 n> <u16>*|n|  larger int: |n| digits of 15 bits, least significant first; n < 0 means negative
    g  <f64>              float, IEEE 754 (NaN and infinities included)
    u  <u32 n> <n bytes>  str, UTF-8 with surrogatepass
    s  <u32 n> <n bytes>  bytes
    (  <u32 n> values     tuple        [ list        < set        > frozenset
    {  (key value)* 0     dict; the tag `0` in place of a key ends it

A reader should also accept `y <f64> <f64>` (complex) as unknown; this module never writes it. Extensions occur in
`tagged` only. They are tuples whose first item is the tag `S` (marshal's StopIteration class, which no other value
encodes to):

    (S "date"    ms)                       aware datetime: float milliseconds since 1970-01-01 UTC
    (S "ndarray" dtype shape data)         numpy array: dtype name ("float64", "bool", …), list of ints, bytes in
                                           C order, little-endian
    (S "frame"   columns index rows)       pandas DataFrame: three lists; each row is a list of values
    (S "file"    data)                     from the host only: bytes that are a str where they are UTF-8
    (S "opaque"  type repr)                anything else: type name, repr of at most 1000 characters

Subclasses of the builtin types (Counter, namedtuple, IntEnum, …) and numpy scalars cross as their base type. bytearray
and memoryview cross as bytes. Marks of a missing value cross as None: NaT and NA of pandas, NaT and `ma.masked` of
numpy. A value that is too deep, too large or contains itself raises `NotSerializable`.
"""

# Decisions: docs/internals/values-and-calls.md.

from __future__ import annotations

import sys
from marshal import dumps, loads
from struct import pack
from typing import TYPE_CHECKING, Any

from sandglass.runtime.errors import NotSerializable
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandglass.runtime.wire import Encoding

OPAQUE_CHARS = 1000
VALUE_MIME = "application/vnd.sandglass."  # and an encoding: the last expression's value as a rich output
BYTE_ORDER_MARK = "\ufeff"
TYPE_NAME_CHARS = 200
_SCALARS = frozenset({type(None), bool, int, float})
_SIZED = frozenset({str, bytes})
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
_PLAIN = _SCALARS | _SIZED | _CONTAINERS
_ARRAY_KINDS = "biuf"
_NO_CODE = {"allow_code": False} if sys.version_info >= (3, 13) else {}


def encode(value: Any, *, max_bytes: int, max_depth: int, name: str = "value") -> tuple[Encoding, bytes]:
    """Encodes a value. `name` is the value's name in error messages. Raises NotSerializable."""
    kind = type(value)
    encoding: Encoding = "none"
    if value is None:
        return encoding, b""
    if kind is str:
        encoding, body = "text", value.encode("utf-8", "surrogatepass")
    elif kind is bytes:
        encoding, body = "bytes", value
    elif _is_plain(value, max_bytes, max_depth):
        encoding, body = "marshal", dumps(value, 2)
    else:
        encoding, body = _Writer(max_bytes, max_depth, name).encode(value)
    if len(body) > max_bytes:
        raise _too_large(name, max_bytes)
    return encoding, body


def decode(encoding: Encoding, body: bytes) -> Any:
    """Decodes a body. Raises ValueError when it is malformed."""
    if encoding == "text":
        return str(body, "utf-8", "surrogatepass")
    if encoding == "none":
        return None
    if encoding == "bytes":
        return bytes(body)
    if encoding == "file":
        return _file(bytes(body))
    if encoding not in ("marshal", "tagged"):
        raise ValueError(f"unknown encoding {encoding!r}")
    try:
        value = loads(body, **_NO_CODE)
    except (EOFError, TypeError) as error:
        raise ValueError(f"malformed value: {error}") from None
    if encoding == "marshal":
        return value
    try:
        return _untag(value)
    except TypeError as error:  # for instance an extension value as the key of a dict
        raise ValueError(f"malformed value: {error}") from None


def type_name(value: object) -> str:
    """Returns the name of a value's type, whatever the type's metaclass says."""
    name: str = type.__dict__["__name__"].__get__(type(value))
    return name[:TYPE_NAME_CHARS].encode("utf-8", "replace").decode()


def a_type(value: object) -> str:
    """Returns the name of a value's type as a sentence has it, such as `a str` or `an int`."""
    name = type_name(value)
    return ("an " if name[:1] in "AEIOUaeiou" else "a ") + name


def safe_repr(value: object) -> str:
    """Returns repr(), or a placeholder when repr() raises."""
    try:
        return str.__str__(repr(value))
    except Exception as error:
        return f"<{type_name(value)} object, repr() raised {type_name(error)}: {_safe_message(error)}>"


def as_text(value: object) -> str:
    """Returns str(), or repr() when str() raises."""
    try:
        return str.__str__(str(value))
    except Exception:
        return safe_repr(value)


def _safe_message(error: Exception) -> str:
    try:
        return str.__str__(str(error))[:OPAQUE_CHARS]
    except Exception:
        return "…"


def _too_large(name: str, max_bytes: int) -> NotSerializable:
    return NotSerializable(
        f"{name} takes more than {max_bytes:,} bytes and cannot cross to the host: send a part or a summary of it"
    )


def _is_plain(value: object, max_bytes: int, max_depth: int) -> bool:
    """Returns true when marshal alone writes `value` as this format wants it, in about `max_bytes`.

    Goes through the value level by level, so that the work per item is done in C. If false, `_Writer` handles the value
    or explains the refusal: other types (marshal would write arrays as bytes), too deep, too large, or containers that
    occur twice (marshal would write them twice: a small graph can unfold to any size, or contain itself).
    """
    level: list[Any] = [value]
    containers_seen: set[int] = set()
    count = budget = 0
    for _ in range(max_depth + 1):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        budget += len(level)
        if not kinds.isdisjoint(_SIZED):
            budget += sum(map(len, level if kinds <= _SIZED else [item for item in level if type(item) in _SIZED]))
        if int in kinds:
            ints = level if len(kinds) == 1 else [item for item in level if type(item) is int]
            budget += sum(map(int.bit_length, ints)) >> 3
        if budget > max_bytes:
            return False
        if kinds.isdisjoint(_CONTAINERS):
            return True
        containers = level if kinds <= _CONTAINERS else [item for item in level if type(item) in _CONTAINERS]
        containers = [item for item in containers if item]
        containers_seen.update(map(id, containers))
        count += len(containers)
        if len(containers_seen) != count:
            return False
        level = []
        for container in containers:
            level.extend(container)
            if type(container) is dict:
                level.extend(container.values())
        if not level:
            return True
    return False


class _Writer:
    """Writes any value. Measures first, to find cycles, and values that are too deep or too large, early."""

    def __init__(self, max_bytes: int, max_depth: int, name: str) -> None:
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._name = name
        self._parts: list[bytes] = []
        self._size = 0
        self._tagged = False
        self._path: list[str] = []
        self._measured: dict[int, tuple[int, int]] = {}  # id of a container -> height and least size; (-1, 0): open
        self._keep: list[object] = []  # objects that are referred to by id must live until the end

    def encode(self, value: object) -> tuple[Encoding, bytes]:
        _, size = self._measure(value)
        if size > self._max_bytes:
            raise _too_large(self._name, self._max_bytes)
        self._write(value)
        return ("tagged" if self._tagged else "marshal"), b"".join(self._parts)

    def _measure(self, value: Any) -> tuple[int, int]:
        """Returns the height and a lower bound of the size in bytes. Linear in the number of distinct containers."""
        if issubclass(type(value), (str, bytes, bytearray)):
            return 0, len(value) + 5 if type(value) in _SIZED else 5
        if not issubclass(type(value), (list, tuple, dict, set, frozenset)):
            return 0, 1
        known = self._measured.get(id(value))
        if known is not None:
            if known[0] < 0:
                raise NotSerializable(f"{self._where()} contains itself, which cannot cross to the host: send a part")
            height, size = known
        else:
            self._measured[id(value)] = (-1, 0)
            self._keep.append(value)
            height, size = self._measure_items(value)
            self._measured[id(value)] = (height, size)
        if len(self._path) + height > self._max_depth:
            raise self._too_deep()
        return height, size

    def _measure_items(self, value: Any) -> tuple[int, int]:
        if len(self._path) > self._max_depth:
            raise self._too_deep()
        if type(value) in _CONTAINERS and len(value) > self._max_bytes:
            raise _too_large(self._name, self._max_bytes)  # each item takes a byte at least
        height, size = 0, 5
        for step, item in _steps(value):
            self._path.append(step)
            item_height, item_size = self._measure(item)
            self._path.pop()
            height = max(height, item_height + 1)
            size += item_size
        return height, size

    def _too_deep(self) -> NotSerializable:
        return NotSerializable(
            f"{self._name} is nested deeper than {self._max_depth} levels and cannot cross to the host: flatten it"
        )

    def _where(self) -> str:
        path = self._path
        shown = path if len(path) <= 12 else [*path[:6], "…", *path[-5:]]
        return self._name + "".join(shown)

    def _put(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._max_bytes:
            raise _too_large(self._name, self._max_bytes)
        self._parts.append(part)

    def _write(self, value: Any) -> None:
        kind = type(value)
        if (kind not in _CONTAINERS and kind in _PLAIN) or _is_plain(value, self._max_bytes, self._max_depth):
            self._put(dumps(value, 2))
        elif issubclass(type(value), dict):
            self._put(b"{")
            for key, item in list(dict.items(value)):
                self._write(key)
                self._write(item)
            self._put(b"0")
        elif issubclass(type(value), list):
            self._write_all(b"[", list.copy(value))
        elif issubclass(type(value), tuple):
            self._write_all(b"(", tuple.__getitem__(value, slice(None)))
        elif issubclass(type(value), (set, frozenset)):
            tag = b"<" if issubclass(type(value), set) else b">"
            self._write_all(tag, list((set if tag == b"<" else frozenset).__iter__(value)))
        elif _is_missing(value):
            self._put(dumps(None, 2))
        else:
            base = _scalar_base(value)
            if base is not None:
                self._put(dumps(base, 2))
            else:
                self._write_extension(value)

    def _write_all(self, tag: bytes, items: Iterable[object]) -> None:
        held = tuple(items)
        self._put(tag + pack("<I", len(held)))
        for item in held:
            self._write(item)

    def _write_extension(self, value: Any) -> None:
        self._tagged = True
        kind, *payload = _date(value) or self._array(value) or self._frame(value) or _opaque(value)
        self._put(b"(" + pack("<I", 2 + len(payload)) + b"S")
        self._put(dumps(kind, 2))
        for item in payload:
            self._write(item)

    def _array(self, value: Any) -> tuple[Any, ...] | None:
        numpy = _library("numpy", "ndarray")
        if numpy is None or not issubclass(type(value), numpy.ndarray) or issubclass(type(value), numpy.ma.MaskedArray):
            return None
        array = numpy.asarray(value)
        if array.dtype.kind not in _ARRAY_KINDS or array.dtype.itemsize > 8:
            return None
        if array.nbytes > self._max_bytes:
            raise _too_large(self._name, self._max_bytes)
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return "ndarray", array.dtype.name, list(array.shape), little.tobytes("C")

    def _frame(self, value: Any) -> tuple[Any, ...] | None:
        pandas = _library("pandas", "DataFrame")
        if pandas is None or not issubclass(type(value), pandas.DataFrame):
            return None
        rows, width = value.shape
        if rows * (width + 1) > self._max_bytes - self._size:
            raise _too_large(self._name, self._max_bytes)
        columns = [value.iloc[:, position].tolist() for position in range(width)]
        data = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(rows)]
        return "frame", value.columns.tolist(), value.index.tolist(), data


def _steps(value: Any) -> Iterable[tuple[str, object]]:
    """Yields the items of a container, each with its step from the container. Never calls overridden methods."""
    if issubclass(type(value), dict):
        for key, item in list(dict.items(value)):
            if type(key) not in _SCALARS:
                yield ".keys()", key
            shown = repr(key) if type(key) in _PLAIN and type(key) not in _CONTAINERS else type_name(key)
            yield f"[{shown if len(shown) <= 40 else shown[:40] + '…'}]", item
    elif issubclass(type(value), (set, frozenset)):
        for item in (set if issubclass(type(value), set) else frozenset).__iter__(value):
            yield "{…}", item
    else:
        items = list.copy(value) if issubclass(type(value), list) else tuple.__getitem__(value, slice(None))
        for index, item in enumerate(items):
            yield f"[{index}]", item


_NOTHING = object()


def _is_missing(value: Any) -> bool:
    """Returns true for a library's mark of a missing value."""
    pandas, numpy = _library("pandas", "DataFrame"), _library("numpy", "datetime64", "timedelta64")
    if pandas is not None and any(value is getattr(pandas, name, _NOTHING) for name in ("NaT", "NA")):
        return True
    if numpy is None:
        return False
    if issubclass(type(value), (numpy.datetime64, numpy.timedelta64)):
        return bool(numpy.isnat(value))
    return value is getattr(getattr(numpy, "ma", None), "masked", _NOTHING)


def _library(name: str, *classes: str) -> Any:
    """Returns a module if it has these classes. It may be a user's stand-in, or half imported by another thread."""
    module = sys.modules.get(name)
    return module if all(isinstance(getattr(module, kind, None), type) for kind in classes) else None


def _scalar_base(value: Any) -> Any:
    """Returns the plain value of a numpy scalar or of a subclass of a scalar type; None for any other value."""
    numpy = _library("numpy", "generic")
    if numpy is not None and issubclass(type(value), numpy.generic) and value.dtype.kind in _ARRAY_KINDS:
        item = value.item()
        return item if type(item) in _SCALARS else None
    if issubclass(type(value), str):
        return str.__str__(value)
    if issubclass(type(value), int):
        return int.__pos__(value)
    if issubclass(type(value), float):
        return float.__pos__(value)
    if issubclass(type(value), bytes):
        return bytes.__getitem__(value, slice(None))
    if issubclass(type(value), (bytearray, memoryview)):
        return bytes(value)
    return None


def _date(value: Any) -> tuple[str, float] | None:
    datetime = _library("datetime", "datetime", "timezone", "timedelta")
    if datetime is None or not issubclass(type(value), datetime.datetime) or value.tzinfo is None:
        return None
    try:
        delta = value - datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        return "date", float(delta / datetime.timedelta(milliseconds=1))
    except Exception:  # a tzinfo of user code, or pandas.NaT
        return None


def _opaque(value: object) -> tuple[str, str, str]:
    shown = safe_repr(value)
    if len(shown) > OPAQUE_CHARS:
        shown = shown[: OPAQUE_CHARS - 1] + "…"
    return "opaque", type_name(value), shown


def _untag(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [_untag(item) for item in value]
    if kind is dict:
        return {_untag(key): _untag(item) for key, item in value.items()}
    if kind is tuple:
        if value and value[0] is StopIteration:
            return _untag_extension(*value[1:])
        return tuple(map(_untag, value))
    if kind is set or kind is frozenset:
        return kind(map(_untag, value))
    return value


def _file(data: bytes) -> str | bytes:
    try:
        return str(data, "utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError:
        return data


def _untag_extension(kind: object = None, *payload: Any) -> Any:
    if kind == "date" and len(payload) == 1:
        from datetime import UTC, datetime, timedelta

        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=payload[0])
    if kind == "file" and len(payload) == 1:
        return _file(payload[0])
    if kind == "ndarray" and len(payload) == 3:
        try:
            import numpy
        except ImportError as error:
            raise ValueError("the value is an array, and this Python has no numpy") from error
        dtype, shape, data = payload
        return numpy.frombuffer(data, numpy.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)
    if kind == "frame" and len(payload) == 3:
        try:
            import pandas
        except ImportError as error:
            raise ValueError("the value is a DataFrame, and this Python has no pandas") from error
        columns, index, rows = _untag(list(payload))
        return pandas.DataFrame(rows, index=index, columns=columns)
    if kind == "opaque" and len(payload) == 2:
        return {"type": payload[0], "repr": payload[1]}
    raise ValueError(f"unknown extension value {kind!r}")
