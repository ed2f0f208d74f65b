"""The codecs of pandas: frames and series by column, with dtypes, index, names and attrs."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.portable import arrays  # noqa: F401  (columns are arrays)
from sandglass.state.portable.codec import FINDERS, Codec, register
from sandglass.state.portable.graph import Cannot

if TYPE_CHECKING:
    from collections.abc import Callable

_np: Any = np
_pd: Any = pd


def _add(kind: Any, name: str, take: Callable[[Any], list[Any]], make: Callable[..., Any], **options: Any) -> Codec:
    return register(
        kind, Codec(f"pandas.{name}", lambda v, _: take(v), lambda parts, _: make(*parts), reads=True, **options)
    )


# --- Values -----------------------------------------------------------------------------------------------------------


def _take_timestamp(value: Any) -> list[Any]:
    return [int(value.asm8.view("i8")), value.unit, value.tz, value.fold]


def _timestamp(number: int, unit: str, zone: Any, fold: int) -> Any:
    made = _pd.Timestamp(np.datetime64(number, unit))  # type: ignore[call-overload]
    if zone is not None:
        return made.tz_localize("UTC").tz_convert(zone)
    return made.replace(fold=fold) if fold else made


def _timedelta(number: int, unit: str) -> Any:
    return _pd.Timedelta(np.timedelta64(number, unit))  # type: ignore[call-overload]


def _period(ordinal: int, freq: str) -> Any:
    return _pd.Period(ordinal=ordinal, freq=freq)


_add(pd.Timestamp, "Timestamp", _take_timestamp, _timestamp)
_add(pd.Timedelta, "Timedelta", lambda v: [int(v.asm8.view("i8")), v.unit], _timedelta)
_add(pd.Period, "Period", lambda v: [v.ordinal, v.freqstr], _period)
_add(pd.Interval, "Interval", lambda v: [v.left, v.right, v.closed], lambda a, b, c: _pd.Interval(a, b, closed=c))
_add(type(pd.NaT), "missing", lambda _: ["NaT"], lambda name: {"NaT": pd.NaT, "NA": pd.NA}[name])
_add(type(pd.NA), "missing", lambda _: ["NA"], lambda name: {"NaT": pd.NaT, "NA": pd.NA}[name])

# --- dtypes -----------------------------------------------------------------------------------------------------------


def _string_dtype(storage: str, missing: str) -> Any:
    if missing == "NA":
        return _pd.StringDtype(storage)
    try:
        return _pd.StringDtype(storage, na_value=np.nan)
    except ImportError:
        return _pd.StringDtype("python", na_value=np.nan)  # the same dtype; the storage is the reader's affair


def _take_string_dtype(dtype: Any) -> list[Any]:
    return [dtype.storage, "NA" if dtype.na_value is pd.NA else "nan"]


_add(_pd.CategoricalDtype, "CategoricalDtype", lambda d: [d.categories, d.ordered], _pd.CategoricalDtype)
_add(_pd.DatetimeTZDtype, "DatetimeTZDtype", lambda d: [d.unit, d.tz], _pd.DatetimeTZDtype)
_add(_pd.StringDtype, "StringDtype", _take_string_dtype, _string_dtype)
_NAMED = (
    *(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)),
    "Float32",
    "Float64",
    "boolean",
)


def _named_dtype(name: str) -> Any:
    if name not in _NAMED:
        raise ValueError("an unknown dtype")
    return _pd.api.types.pandas_dtype(name)


NAMED = _add(None, "dtype", lambda dtype: [dtype.name], _named_dtype)
for _name in _NAMED:
    register(type(_named_dtype(_name)), NAMED)

# --- Arrays -----------------------------------------------------------------------------------------------------------


def _column(values: Any) -> Any:
    """Returns an array of pandas, or a copy of NumPy's where it is no more than that."""
    if type(values) is _pd.arrays.NumpyExtensionArray or isinstance(values.dtype, np.dtype):
        return values.to_numpy(copy=True)
    return values


def _take_string(values: Any) -> list[Any]:
    missing = values.isna()
    items = [None if is_missing else item for item, is_missing in zip(values.tolist(), missing, strict=True)]
    if any(type(item) is not str for item in items if item is not None):
        raise Cannot("an array of strings that has something else in it")
    return [values.dtype, *items]


def _string(dtype: Any, *items: Any) -> Any:
    if not isinstance(dtype, _pd.StringDtype):
        raise TypeError("an array of strings of another dtype")
    return _pd.array(list(items), dtype=dtype)


def _take_zoned(values: Any) -> list[Any]:
    if isinstance(values.dtype, np.dtype):
        return [values.to_numpy(copy=True), None]
    return [values.asi8.copy(), values.dtype]


def _zoned(numbers: Any, dtype: Any) -> Any:
    if dtype is None:
        return _pd.array(numbers, dtype=numbers.dtype)
    naive = _pd.DatetimeIndex(numbers.view(f"M8[{dtype.unit}]"))
    return naive.tz_localize("UTC").tz_convert(dtype.tz).array


def _period_array(numbers: Any, freq: str) -> Any:
    return _pd.arrays.PeriodArray(numbers, dtype=_pd.PeriodDtype(freq))


def _categorical(codes: Any, dtype: Any) -> Any:
    return _pd.Categorical.from_codes(codes, dtype=dtype)


def _masked(name: str, data: Any, mask: Any) -> Any:
    kind = {"I": "IntegerArray", "U": "IntegerArray", "F": "FloatingArray", "b": "BooleanArray"}[name[:1]]
    made = getattr(_pd.arrays, kind)(data, mask)
    if made.dtype.name != name:
        raise ValueError("its data is of another dtype")
    return made


def _interval(left: Any, right: Any, closed: str) -> Any:
    return _pd.arrays.IntervalArray.from_arrays(left, right, closed=closed)


_add(_pd.Categorical, "Categorical", lambda v: [v.codes.copy(), v.dtype], _categorical, joins=True)
_add(_pd.arrays.DatetimeArray, "DatetimeArray", _take_zoned, _zoned, joins=True)
_add(_pd.arrays.TimedeltaArray, "TimedeltaArray", _take_zoned, _zoned, joins=True)
_add(_pd.arrays.PeriodArray, "PeriodArray", lambda v: [v.asi8.copy(), v.freqstr], _period_array, joins=True)
_add(_pd.arrays.IntervalArray, "IntervalArray", lambda v: [v.left, v.right, v.closed], _interval, joins=True)
_MASKED = _add(None, "masked", lambda v: [v.dtype.name, v._data.copy(), v._mask.copy()], _masked, joins=True)
for _name in ("IntegerArray", "FloatingArray", "BooleanArray"):
    register(getattr(_pd.arrays, _name), _MASKED)
_STRING = _add(None, "strings", _take_string, _string, joins=True)


def _find(kind: type) -> Codec | None:
    """Finds the classes of arrays of strings, which differ from version to version."""
    is_ours = kind.__module__.partition(".")[0] == "pandas"
    if is_ours and issubclass(kind, _pd.api.extensions.ExtensionArray) and "String" in kind.__name__:
        return _STRING
    return None


FINDERS.append(_find)

# --- Indexes ----------------------------------------------------------------------------------------------------------

_INDEXES = ("Index", "CategoricalIndex", "DatetimeIndex", "TimedeltaIndex", "PeriodIndex", "IntervalIndex")


def _take_index(index: Any) -> list[Any]:
    freq = getattr(index, "freqstr", None) if type(index) in (pd.DatetimeIndex, pd.TimedeltaIndex) else None
    return [type(index).__name__, _column(index.array), freq, index.name]


def _index(name: str, values: Any, freq: str | None, label: Any) -> Any:
    if name not in _INDEXES:
        raise ValueError("an unknown kind of index")
    made = _pd.Index(values, dtype=values.dtype, name=label, copy=True)
    if type(made).__name__ != name:
        raise ValueError(f"it would be a {type(made).__name__} here")
    if freq is not None:
        made.freq = freq
    return made


def _take_multi(index: Any) -> list[Any]:
    return [tuple(index.levels), tuple(_np.array(codes) for codes in index.codes), tuple(index.names)]


def _multi(levels: Any, codes: Any, names: Any) -> Any:
    return _pd.MultiIndex(levels=levels, codes=codes, names=names)


for _name in _INDEXES:
    _add(getattr(pd, _name), "Index", _take_index, _index, joins=True)
_add(
    pd.RangeIndex,
    "RangeIndex",
    lambda index: [index.start, index.stop, index.step, index.name],
    lambda start, stop, step, name: _pd.RangeIndex(start, stop, step, name=name),
    joins=True,
)
_add(pd.MultiIndex, "MultiIndex", _take_multi, _multi, joins=True)

# --- Series and frames ------------------------------------------------------------------------------------------------


def _take_series(series: Any) -> list[Any]:
    return [_column(series.array), series.index, series.name, series.attrs, series.flags.allows_duplicate_labels]


def _series(values: Any, index: Any, name: Any, attrs: Any, duplicates: bool) -> Any:
    made = _pd.Series(values, index=index, name=name, dtype=values.dtype, copy=True)
    return _with(made, attrs, duplicates)


def _with(made: Any, attrs: Any, duplicates: bool) -> Any:
    made.attrs = attrs
    return made if duplicates else made.set_flags(allows_duplicate_labels=False)


def _take_frame(frame: Any) -> list[Any]:
    columns = [_column(frame.iloc[:, position].array) for position in range(frame.shape[1])]
    return [frame.columns, frame.index, frame.attrs, frame.flags.allows_duplicate_labels, *columns]


def _frame(names: Any, index: Any, attrs: Any, duplicates: bool, *columns: Any) -> Any:
    if len(names) != len(columns):
        raise ValueError("it has another number of columns than names")
    if columns:
        held = {place: _pd.Series(values, index=index, dtype=values.dtype) for place, values in enumerate(columns)}
        made = _pd.DataFrame(held, index=index, copy=True)
        made.columns = names
    else:
        made = _pd.DataFrame(index=index, columns=names)
    return _with(made, attrs, duplicates)


_add(pd.Series, "Series", _take_series, _series, joins=True)
_add(pd.DataFrame, "DataFrame", _take_frame, _frame, joins=True)
