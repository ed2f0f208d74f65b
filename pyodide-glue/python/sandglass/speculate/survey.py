"""What there is in a session that the next code may be about: its newest variables, and the columns of DataFrames.

Nothing of the user's runs for that, whatever they have made of their classes or of pandas: attributes are read only as
far as a slot in C, or the object's own dictionary, holds them. What is not found so is left out.
"""

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.values import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_VARIABLES = 100
_MOST_FRAMES = 20
_MOST_COLUMNS = 50
_NAME_CHARS = 100
#: What the host can hold.
_MOST_LENGTH = 2**32 - 1
_LENGTH_TYPES = (str, bytes, list, tuple, dict, set)
#: numpy's kinds of numbers, in `dtype.kind`, and of others.
_KINDS = {"i": "number", "u": "number", "f": "number", "b": "bool", "M": "time", "m": "time", "U": "text"}
#: What pandas keeps columns in that are no arrays of numpy's; one of objects is most likely text.
_ARRAYS = {
    "ArrowStringArray": "text",
    "BooleanArray": "bool",
    "Categorical": "text",
    "DatetimeArray": "time",
    "FloatingArray": "number",
    "IntegerArray": "number",
    "PeriodArray": "time",
    "StringArray": "text",
    "TimedeltaArray": "time",
}
_MISSING = object()
_mro_of = type.__dict__["__mro__"].__get__
_table_of = type.__dict__["__dict__"].__get__


def survey(variables: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """`[{name, type, length, columns: [{name, kind}]}]` of these variables; `length` of a frame is that of its rows."""
    found = []
    frames = 0
    for name in names[:MOST_VARIABLES]:
        if len(name) > _NAME_CHARS:
            continue
        value = variables.get(name, _MISSING)
        if value is _MISSING:
            continue
        kind = type_name(value)
        length: int | None = None
        columns: list[dict[str, str]] = []
        if kind == "DataFrame" and frames < _MOST_FRAMES:
            frames += 1
            length, columns = _frame(value)
        else:
            base = next((base for base in _LENGTH_TYPES if issubclass(type(value), base)), None)
            length = None if base is None else base.__len__(value)
        length = None if length is None else min(length, _MOST_LENGTH)
        found.append({"name": name, "type": kind, "length": length, "columns": columns})
    return found


def _frame(frame: object) -> tuple[int | None, list[dict[str, str]]]:
    """The number of rows, and the first columns whose names are texts."""
    manager = _read(frame, "_mgr")
    axes, blocks = _read(manager, "axes"), _read(manager, "blocks")
    if type(axes) is not list or type(blocks) is not tuple or not axes:
        return None, []
    rows, kinds = None, {}
    for block in blocks:
        values = _read(block, "values")
        kind = _kind(values)
        array = _read(values, "_ndarray")
        shape = _read(values if array is _MISSING else array, "shape")
        if rows is None and type(shape) is tuple and shape and type(shape[-1]) is int:
            rows = shape[-1]
        for place in _start(_read(_read(block, "_mgr_locs"), "as_array")):
            kinds[place] = kind
    labels = _read(axes[0], "_data")
    array = _read(labels, "_ndarray")
    columns = []
    for place, label in enumerate(_start(labels if array is _MISSING else array)):
        if type(label) is str and len(label) <= _NAME_CHARS and _is_text(label):
            columns.append({"name": label, "kind": kinds.get(place, "other")})
    return rows, columns


def _kind(values: object) -> str:
    """What a column holds, by its array."""
    dtype = _read(values, "dtype")
    kind = _read(dtype, "kind")
    if type(kind) is not str:
        return _ARRAYS.get(type_name(values), "other")
    return "text" if kind == "O" else _KINDS.get(kind, "other")


def _start(array: object) -> Iterable[Any]:
    """The first items of an array of numpy's."""
    cut = _method(array, "__getitem__")
    start = cut(slice(0, _MOST_COLUMNS)) if cut is not None else None
    to_list = _method(start, "tolist")
    items = to_list() if to_list is not None else []
    return items if type(items) is list else []


def _is_text(name: str) -> bool:
    """Whether it can be told: a lone surrogate is no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find(value: object, name: str) -> Any:
    """What the classes of a value have by this name."""
    for kind in _mro_of(type(value)):
        table = _table_of(kind)
        if name in table:
            return table[name]
    return _MISSING


def _read(value: object, name: str) -> Any:
    """An attribute that is there without any code of Python's."""
    found = _find(value, name)
    if type(found) in (GetSetDescriptorType, MemberDescriptorType):
        return found.__get__(value)
    if found is not _MISSING:
        return _MISSING
    table = _find(value, "__dict__")
    own = table.__get__(value) if type(table) is GetSetDescriptorType else None
    return dict.get(own, name, _MISSING) if type(own) is dict else _MISSING


def _method(value: object, name: str) -> Any:
    """A method in C; None when there is none."""
    found = _find(value, name)
    return found.__get__(value) if type(found) in (MethodDescriptorType, WrapperDescriptorType) else None
