"""The wire format, and variables as the host sees them."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import marshal
import math
from typing import Any

import pytest
from conftest import Guest
from hypothesis import given
from hypothesis import strategies as st

from sandglass.runtime.errors import NotSerializable
from sandglass.runtime.values import decode, encode

LIMITS = {"max_bytes": 10_000_000, "max_depth": 50}
UTC = datetime.UTC


def cross(value: Any, **limits: int) -> Any:
    return decode(*encode(value, **{**LIMITS, **limits}))


def exact(value: Any) -> Any:
    """A form of the value that tells types and NaN apart when it is compared."""
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [exact(item) for item in value]
    if isinstance(value, dict):
        return "dict", [(exact(key), exact(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value).__name__, sorted(repr(exact(item)) for item in value)
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else repr(value)
    return type(value).__name__, value


text = st.text(st.characters(exclude_categories=[]), max_size=20)
hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text | st.binary(max_size=20),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=4) | st.sets(hashable, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=20,
)  # fmt: skip


@given(plain)
def test_plain_values_cross_unchanged(value: Any) -> None:
    encoding, body = encode(value, **LIMITS)
    assert encoding in ("none", "text", "bytes", "marshal")
    assert exact(decode(encoding, body)) == exact(value)


@given(plain)
def test_the_slow_path_writes_what_the_fast_path_writes(value: Any) -> None:
    shared = [value]  # containers that occur twice take the slow path
    assert exact(cross([shared, shared, value])) == exact([[value], [value], value])


@given(plain)
def test_bodies_hold_only_documented_tags(value: Any) -> None:
    encoding, body = encode([value, complex(1, 2), [value]], **LIMITS)
    assert encoding == "tagged"
    assert _read(memoryview(body), 0)[1] == len(body)


def _read(body: memoryview, at: int) -> tuple[Any, int]:
    """A reader written from the format's description, like the host's."""
    tag, at = chr(body[at]), at + 1
    if tag in "NTFS0":
        return tag, at
    size = int.from_bytes(body[at : at + 4], "little", signed=tag in "il")
    if tag == "i":
        return size, at + 4
    if tag == "g":
        return None, at + 8
    at += 4
    if tag == "l":
        return None, at + 2 * abs(size)
    if tag in "us":
        return None, at + size
    assert tag in "([<>{"
    if tag == "{":
        at -= 4
        while True:
            key, at = _read(body, at)
            if key == "0":
                return None, at
            _, at = _read(body, at)
    for _ in range(size):
        _, at = _read(body, at)
    return None, at


class Color(enum.IntEnum):
    RED = 1


class Mode(enum.StrEnum):
    A = "a"


class MyDict(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("not to be called")

    __iter__ = keys = __len__ = __getitem__ = items


class MyFloat(float):
    def __float__(self) -> float:
        raise RuntimeError("not to be called")


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (MyDict(a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (Color.RED, 1),
        (Mode.A, "a"),
        (MyFloat(-0.0), -0.0),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[::2], b"ac"),
        (type("S", (str,), {"__str__": lambda s: "no"})("yes"), "yes"),
        (type("L", (list,), {"__iter__": None})([1]), [1]),
        (type("Set", (set,), {})({1}), {1}),
        (type("B", (bytes,), {})(b"x"), b"x"),
    ],
)  # fmt: skip
def test_subclasses_cross_as_their_base(value: Any, seen: Any) -> None:
    for wrap in (lambda v: v, lambda v: [v], lambda v: {"k": (v,)}):
        assert exact(cross(wrap(value))) == exact(wrap(seen))


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (1 + 2j, "complex", "(1+2j)"),
        (..., "ellipsis", "Ellipsis"),
        (StopIteration, "type", "<class 'StopIteration'>"),
        (len, "builtin_function_or_method", "<built-in function len>"),
        (math, "module", None),
        (decimal.Decimal("1.5"), "Decimal", "Decimal('1.5')"),
        (datetime.datetime(2020, 1, 1), "datetime", "datetime.datetime(2020, 1, 1, 0, 0)"),
        (cross.__code__, "code", None),
        (range(3), "range", "range(0, 3)"),
        (collections.deque([1]), "deque", "deque([1])"),
        (object(), "object", None),
    ],
)
def test_anything_else_crosses_as_type_and_repr(value: Any, kind: str, shown: str | None) -> None:
    assert encode(value, **LIMITS)[0] == "tagged"
    for seen in (cross(value), cross([value])[0], cross({"k": value})["k"], cross((1, (value,)))[1][0]):
        assert seen == {"type": kind, "repr": repr(value)[:1000]}
        assert shown is None or seen["repr"] == shown


def test_long_and_broken_reprs_are_bounded() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise OSError("no")

    assert cross(Broken()) == {"type": "Broken", "repr": "<Broken object, repr() raised OSError: no>"}
    assert len(cross(range(10**1000, 10**1001))["repr"]) == 1000
    assert cross(type("\u00e9" * 900, (), {})())["type"] == "\u00e9" * 200


def test_aware_datetimes_cross_as_dates() -> None:
    moment = datetime.datetime(2026, 11, 21, 12, 30, 15, 250_000, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert cross(moment) == moment and cross([moment])[0].tzinfo is UTC
    encoding, body = encode(moment, **LIMITS)
    assert (encoding, marshal.loads(body)) == ("tagged", (StopIteration, "date", moment.timestamp() * 1000))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", ">i4", "int64", "uint64", "float16", "float32", ">f8"]
)
def test_numpy_arrays_cross_with_dtype_and_shape(dtype: str) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(12).reshape(3, 4).astype(dtype)
    for variant in (array, array.T, array[::2], array[:, 1:1], numpy.array(5, dtype)):
        kind = marshal.loads(encode(variant, **LIMITS)[1])
        assert kind[1:3] == ("ndarray", array.dtype.name) and kind[3] == list(variant.shape)
        seen = cross({"a": variant})["a"]
        assert (seen == variant).all() and seen.dtype == array.dtype.newbyteorder("=")


def test_what_is_missing_crosses_as_none() -> None:
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    missing = [pandas.NaT, pandas.NA, numpy.datetime64("NaT"), numpy.timedelta64("NaT", "s"), numpy.ma.masked]
    assert cross(missing) == [None] * 5 and cross(missing[0]) is None
    assert cross({"a": {"b": pandas.NA}}) == {"a": {"b": None}}
    assert cross(numpy.datetime64("2024-01-01"))["type"] == "datetime64"
    frame = pandas.DataFrame({"t": [pandas.Timestamp("2024-01-01", tz="UTC"), pandas.NaT]})
    frame["n"] = pandas.array([None, 1], dtype="Int64")
    rows = marshal.loads(encode(frame, **LIMITS)[1])[4]
    assert (rows[0][1], rows[1]) == (None, [None, 1])
    assert cross(frame.to_dict("records"))[1] == {"t": None, "n": 1}


def test_numpy_scalars_cross_as_numbers_and_odd_arrays_as_repr() -> None:
    numpy = pytest.importorskip("numpy")
    values = [numpy.float64(1.5), numpy.int64(3), numpy.bool_(True), numpy.float32(0.5), numpy.str_("s")]
    assert exact(cross(values)) == exact([1.5, 3, True, 0.5, "s"])
    assert cross(numpy.array(["a"]))["type"] == "ndarray"
    assert cross(numpy.array([object()]))["type"] == "ndarray"
    assert cross(numpy.ma.masked_array([1], [True]))["type"] == "MaskedArray"
    with pytest.raises(NotSerializable):
        cross(numpy.zeros(10**6), max_bytes=1000)


def test_data_frames_cross_as_columns_index_and_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None], "c": [0.5, math.nan]}, index=["r", "s"])
    encoding, body = encode(frame, **LIMITS)
    kind = marshal.loads(body)
    assert encoding == "tagged" and kind[1:4] == ("frame", ["a", "b", "c"], ["r", "s"])
    assert kind[4][0] == [1, "x", 0.5] and type(kind[4][0][0]) is int
    assert cross(frame)["a"].tolist() == [1, 2]
    assert marshal.loads(encode(pandas.DataFrame(index=[1, 2]), **LIMITS)[1])[2:] == ([], [1, 2], [[], []])
    with pytest.raises(NotSerializable):
        cross(pandas.DataFrame({"a": range(10_000)}), max_bytes=1000)


def _laughs(leaf: Any, levels: int) -> Any:
    for _ in range(levels):
        leaf = [leaf] * 10
    return leaf


def _nested(levels: int, leaf: Any = None) -> Any:
    for _ in range(levels):
        leaf = [leaf]
    return leaf


def _cycle() -> dict[str, Any]:
    value: dict[str, Any] = {"a": [0, 1, 2, {}]}
    value["a"][3]["up"] = value
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (_cycle(), r"^x\['a'\]\[3\]\['up'\] contains itself, which cannot cross to the host: send a part$"),
        (_nested(51), "x is nested deeper than 50 levels"),
        (_nested(5000), "x is nested deeper than 50 levels"),
        (_nested(51, 1j), "x is nested deeper than 50 levels"),
        (_laughs("ha", 30), "x takes more than 10,000,000 bytes"),
        (_laughs(1j, 12), "x takes more than 10,000,000 bytes"),
        (["x" * 10**6] * 1000, "x takes more than 10,000,000 bytes"),
        ([1 << 10**7] * 1000, "x takes more than 10,000,000 bytes"),
        ([None] * 10_000_001, "x takes more than"),
        ("x" * 10_000_001, "x takes more than"),
        (b"x" * 10_000_001, "x takes more than"),
        ([bytearray(10_000_001)], "x takes more than"),
    ],
    ids=range(12),
)
def test_what_cannot_cross_is_named_at_once(value: Any, message: str) -> None:
    with pytest.raises(NotSerializable, match=message):
        encode(value, **LIMITS, name="x")


def test_shared_containers_cross_within_bounds() -> None:
    shared = [1, 2]
    assert cross({"a": shared, "b": shared, "c": (shared, [])}) == {"a": [1, 2], "b": [1, 2], "c": ([1, 2], [])}
    assert cross(_nested(50)) == _nested(50)
    assert len(cross(_laughs(1, 5))) == 10


def test_opaque_keys_with_equal_reprs_do_not_merge() -> None:
    class Same:
        def __repr__(self) -> str:
            return "same"

    body = encode({Same(): 1, Same(): 2}, **LIMITS)[1]
    assert body.count(b"same") == 2
    assert encode({Same(), Same()}, **LIMITS)[1].count(b"same") == 2


@pytest.mark.parametrize("encoding", ["marshal", "tagged"])
@pytest.mark.parametrize(
    "body", [b"", b"?", b"[\x02\0\0\0N", b"{NT", b"u\x01\0\0\0\xff", b"{(\x01\0\0\0[\0\0\0\0N0", b"i\0"]
)
def test_malformed_bodies_are_value_errors(encoding: str, body: bytes) -> None:
    with pytest.raises(ValueError):
        decode(encoding, body)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", ""),
        ("Grüße 🙂".encode(), "Grüße 🙂"),
        (b"\xef\xbb\xbftext", "text"),
        (b"\xff", b"\xff"),
        (b"cut \xe2\x82", b"cut \xe2\x82"),
        ("\ud800".encode("utf-8", "surrogatepass"), b"\xed\xa0\x80"),
    ],
)
def test_a_file_is_text_where_it_is_utf8(data: bytes, value: object) -> None:
    assert decode("file", data) == value
    nested = marshal.dumps([(StopIteration, "file", data)], 2)
    assert decode("tagged", nested) == [value]


def test_unknown_encodings_are_value_errors() -> None:
    with pytest.raises(ValueError, match="unknown encoding"):
        decode("pickle", b"")
    with pytest.raises(ValueError, match="unknown extension"):
        decode("tagged", marshal.dumps((StopIteration, "what"), 2))


def test_variables_cross_both_ways(guest: Guest) -> None:
    guest.put("context", "text " * 10)
    assert guest.ok("len(context)").result == "50"
    guest.ok("y = {'k': [1, 2.5, None]}")
    assert guest.get("y") == {"k": [1, 2.5, None]}
    assert guest.runtime.get_variable("nope") == ("missing", b"")
    assert guest.runtime.get_variable("llm_query") == ("missing", b"")
    assert guest.runtime.get_variable("__name__") == ("missing", b"")
    guest.ok("z = []; z.append(z)")
    with pytest.raises(NotSerializable, match=r"^z\[0\] contains itself"):
        guest.runtime.get_variable("z")


@pytest.mark.parametrize("name", ["", "1x", "a b", "class", "llm_query", "__name__", "a.b", "\ud800", "fetch_page"])
def test_bad_variable_names_are_refused(guest: Guest, name: str) -> None:
    with pytest.raises(ValueError, match=r"not a valid Python variable name|is reserved"):
        guest.put(name, 1)


def test_the_host_can_set_answer(guest: Guest) -> None:
    guest.put("answer", {"content": "c", "ready": False})
    assert guest.ok("answer").result == "{'content': 'c', 'ready': False}"


def test_numbered_contexts_and_histories_have_other_names_too(guest: Guest) -> None:
    guest.put("context", "zero")
    guest.put("context_2", "two")
    assert guest.ok("context_0, context_2").result == "('zero', 'two')"
    guest.put("context", "new")
    assert guest.ok("context_0").result == "'new'"
    for name in ("session_context_0", "session_context_1", "history_0", "history_1"):
        guest.put(name, name)
    assert guest.ok("context_history, session_history, history").result == (
        "(['session_context_0', 'session_context_1'], ['history_0', 'history_1'], 'history_0')"
    )
    guest.put("history_999999999999", "far")
    guest.put("context_x", "no number")
    assert guest.ok("len(session_history)").result == "2"
    guest.put("session_context_0", "again")
    assert guest.ok("context_history").result == "['again', 'session_context_1']"
    guest.ok("session_context_01 = 'not written so'")
    guest.put("session_context_5", "five")
    guest.put("session_context_1", "one")
    assert guest.ok("context_history").result == "['again', 'one', 'five']"


def test_list_variables(guest: Guest) -> None:
    guest.put("context", "abc")
    guest.ok("import re\nclass L(list):\n  def __len__(self): raise OSError\nx = [1, 2]; y = 5; z = L()")
    assert decode(*guest.runtime.list_variables()) == [
        {"name": "context", "type": "str", "length": 3},
        {"name": "re", "type": "module", "length": None},
        {"name": "L", "type": "type", "length": None},
        {"name": "x", "type": "list", "length": 2},
        {"name": "y", "type": "int", "length": None},
        {"name": "z", "type": "L", "length": 0},  # the list's length, not that of the class's __len__
    ]
