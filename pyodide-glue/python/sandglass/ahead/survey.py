"""Collects facts for guesses about the next code: the newest variables, and the columns of DataFrames.

No code of the user's runs for this, whatever the user has made of their classes or of pandas. An attribute is read only
from a slot in C or from the object's own dictionary. An attribute that is not found there is left out.

Some rows of each column are sampled: the first ones, since values often take turns, and others at even distances. Texts
are compared and never hashed, because a text stores its hash, which would be a change for the next checkpoint.
"""

# Decisions: docs/internals/running-ahead.md.

from __future__ import annotations

from types import GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from sandglass.runtime.collector import CollectorOff
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sandglass.runtime.runtime import Runtime
    from sandglass.runtime.wire import ColumnKind, ColumnSample, SurveyedColumn, SurveyedVariable

MOST_VARIABLES = 100
_MOST_FRAMES = 20
_MOST_COLUMNS = 50
_NAME_CHARS = 100
#: Limits of a sample: rows of a column, the first rows among them, values of all columns together, texts of a column,
#: and characters of a text.
_MOST_ROWS = 100
_FIRST_ROWS = 50
_MOST_VALUES = 5_000
_MOST_TEXTS = 10
_TEXT_CHARS = 40
#: The largest length and size in bytes that the host can hold.
_MOST_LENGTH = 2**32 - 1
_MOST_BYTES = 2**53 - 1
_LENGTH_TYPES = (str, bytes, list, tuple, dict, set)
#: Kinds of columns by `dtype.kind` of numpy. Other kinds are "other".
_KINDS: dict[str, ColumnKind] = {
    "i": "number",
    "u": "number",
    "f": "number",
    "b": "bool",
    "M": "time",
    "m": "time",
    "U": "text",
}
#: Kinds of columns by the class of a pandas array that is not numpy's. A column of objects is most likely text.
_ARRAYS: dict[str, ColumnKind] = {
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
#: Marks of a missing value, besides None and NaN: pandas' classes, numpy's time, and the code of a category.
_NULLS = ("NAType", "NaTType")
_NO_TIME = -(2**63)
_NO_CATEGORY = -1
#: Ids of classes whose values can be compared without code of the user's. Ids, because a user's class may define a
#: hash.
_PLAIN = frozenset(map(id, (type(None), str, int, float, bool)))
_MISSING = object()
#: The flag of a class that a `class` statement made. Such a class may hear of operations on its arrays.
_HEAP_TYPE = 1 << 9
_flags_of = type.__dict__["__flags__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_table_of = type.__dict__["__dict__"].__get__


def survey_of(runtime: Runtime) -> list[SurveyedVariable]:
    """Surveys a runtime's newest variables. Returns nothing when code is traced, since the trace is the user's code."""
    if runtime.is_traced():
        return []
    with CollectorOff():
        try:
            return survey(runtime.namespace.globals, runtime.namespace.newest_names(MOST_VARIABLES))
        except Exception:
            return []


def survey(variables: dict[str, Any], names: list[str]) -> list[SurveyedVariable]:
    """Returns the facts about these variables.

    For a frame, `length` is the number of rows, and `memory` is the bytes of its arrays. `sample` of a column is None
    or `{rows, nulls, distinct, texts}`: the rows in the sample, those without a value, the number of different values
    among the others, and the most frequent texts.
    """
    found: list[SurveyedVariable] = []
    frames = 0
    left = [_MOST_VALUES]
    for name in names[:MOST_VARIABLES]:
        if len(name) > _NAME_CHARS:
            continue
        value = variables.get(name, _MISSING)
        if value is _MISSING:
            continue
        kind = type_name(value)
        length: int | None = None
        memory: int | None = None
        columns: list[SurveyedColumn] = []
        if kind == "DataFrame" and frames < _MOST_FRAMES:
            frames += 1
            length, memory, columns = _frame(value, left)
        else:
            base = next((base for base in _LENGTH_TYPES if issubclass(type(value), base)), None)
            length = None if base is None else base.__len__(value)
        length = None if length is None else min(length, _MOST_LENGTH)
        found.append({"name": name, "type": kind, "length": length, "memory": memory, "columns": columns})
    return found


def _frame(frame: object, left: list[int]) -> tuple[int | None, int | None, list[SurveyedColumn]]:
    """Returns the number of rows, the bytes of all arrays, and the first columns whose names are texts."""
    manager = _read(frame, "_mgr")
    axes, blocks = _read(manager, "axes"), _read(manager, "blocks")
    if type(axes) is not list or type(blocks) is not tuple or not axes:
        return None, None, []
    rows, memory = None, 0
    kinds: dict[Any, ColumnKind] = {}
    places: dict[Any, tuple[object, int]] = {}
    for block in blocks:
        values = _read(block, "values")
        kind = _kind(values)
        array = _array_of(values)
        shape = _read(array, "shape")
        if rows is None and type(shape) is tuple and shape and type(shape[-1]) is int:
            rows = shape[-1]
        size = _read(array, "nbytes")
        memory += size if type(size) is int else 0
        for at, place in enumerate(_start(_read(_read(block, "_mgr_locs"), "as_array"))):
            kinds[place] = kind
            places[place] = values, at
    labels = _read(axes[0], "_data")
    columns: list[SurveyedColumn] = []
    for place, label in enumerate(_start(_array_of(labels))):
        if type(label) is str and len(label) <= _NAME_CHARS and _is_text(label):
            sample = _sample(*places[place], left) if place in places else None
            columns.append({"name": label, "kind": kinds.get(place, "other"), "sample": sample})
    return rows, min(memory, _MOST_BYTES), columns


def _array_of(values: object) -> object:
    """Returns pandas' array as an array of numpy's, if there is one."""
    for name in ("_ndarray", "_data"):
        array = _read(values, name)
        if array is not _MISSING:
            return array
    return values


def _sample(values: object, at: int, left: list[int]) -> ColumnSample | None:
    """Returns a sample of a column. `at` is the column's position in its block."""
    array, mask = _array_of(values), _read(values, "_mask")
    items = _rows(array, at, left)
    looked = len(items)
    if mask is not _MISSING:
        masked = _rows(mask, at, left)
        if len(masked) != looked:
            return None
        items = [item for item, is_null in zip(items, masked, strict=True) if not is_null]
    if not {*map(id, map(type, items))} <= _PLAIN:
        # Comparing values of an unknown class may run code of the user's.
        if any(id(type(item)) not in _PLAIN and type_name(item) not in _NULLS for item in items):
            return None
        items = [item for item in items if id(type(item)) in _PLAIN]
    categories = _read(_read(values, "_dtype"), "_categories")
    if _read(_read(array, "dtype"), "kind") in ("m", "M"):
        items = [item for item in items if item != _NO_TIME]
    elif categories is not _MISSING:
        items = [item for item in items if item != _NO_CATEGORY]
    texts = [item for item in items if type(item) is str]
    others = [item for item in items if type(item) is not str and item is not None and item == item]
    if not looked:
        return None
    texts.sort()
    begins = [place for place, text in enumerate(texts) if not place or texts[place - 1] != text]
    runs = [(end - begin, texts[begin]) for begin, end in zip(begins, [*begins[1:], len(texts)], strict=False)]
    often = [text for _, text in sorted(runs, reverse=True)]
    if categories is not _MISSING:
        named = [item for item in _start(_array_of(_read(categories, "_data"))) if type(item) is str]
        often += named[:_MOST_TEXTS]
    told = [text for text in often[:_MOST_TEXTS] if 0 < len(text) <= _TEXT_CHARS and _is_text(text)]
    values_found = len(texts) + len(others)
    return {"rows": looked, "nulls": looked - values_found, "distinct": len(runs) + len({*others}), "texts": told}


def _rows(array: object, at: int, left: list[int]) -> list[Any]:
    """Returns values of the first rows of a column and of some others; nothing once enough values were read."""
    shape, cut = _read(array, "shape"), _method(array, "__getitem__")
    if type(shape) is not tuple or not shape or type(shape[-1]) is not int or cut is None or not _is_in_c(array):
        return []
    left[0] -= _MOST_ROWS
    if left[0] < 0:
        return []
    found: list[Any] = []
    others = max(1, -(-(shape[-1] - _FIRST_ROWS) // (_MOST_ROWS - _FIRST_ROWS)))
    for rows in (slice(0, _FIRST_ROWS), slice(_FIRST_ROWS, None, others)):
        some = cut(rows if len(shape) == 1 else (at, rows))
        if _read(_read(array, "dtype"), "kind") in ("m", "M"):
            as_other = _method(some, "view")
            some = as_other("i8") if as_other is not None else some
        to_list = _method(some, "tolist")
        items = to_list() if to_list is not None else []
        found += items if type(items) is list else []
    return found


def _kind(values: object) -> ColumnKind:
    """Returns the kind of a column, by its array."""
    dtype = _read(values, "dtype")
    kind = _read(dtype, "kind")
    if type(kind) is not str:
        return _ARRAYS.get(type_name(values), "other")
    return "text" if kind == "O" else _KINDS.get(kind, "other")


def _start(array: object) -> Iterable[Any]:
    """Returns the first items of an array of numpy's."""
    cut = _method(array, "__getitem__")
    start = cut(slice(0, _MOST_COLUMNS)) if cut is not None and _is_in_c(array) else None
    to_list = _method(start, "tolist")
    items = to_list() if to_list is not None else []
    return items if type(items) is list else []


def _is_in_c(value: object) -> bool:
    return not _flags_of(type(value)) & _HEAP_TYPE


def _is_text(name: str) -> bool:
    """Returns true when the text can be sent: it has no lone surrogate."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _find(value: object, name: str) -> Any:
    """Finds an attribute in the classes of a value."""
    for kind in _mro_of(type(value)):
        table = _table_of(kind)
        if name in table:
            return table[name]
    return _MISSING


def _read(value: object, name: str) -> Any:
    """Reads an attribute without running any Python code."""
    found = _find(value, name)
    if type(found) in (GetSetDescriptorType, MemberDescriptorType):
        return found.__get__(value)
    if found is not _MISSING:
        return _MISSING
    table = _find(value, "__dict__")
    own = table.__get__(value) if type(table) is GetSetDescriptorType else None
    return dict.get(own, name, _MISSING) if type(own) is dict else _MISSING


def _method(value: object, name: str) -> Any:
    """Returns a method that is written in C; None when there is none."""
    found = _find(value, name)
    return found.__get__(value) if type(found) in (MethodDescriptorType, WrapperDescriptorType) else None
