"""Values of the client in JSON: docs/rpc.md has the forms."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from math import isnan
from typing import Any

import numpy
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandglass.client import Array, Opaque, SandboxError, Table
from sandglass.client.values import blobs_in, decode, encode

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None), max_size=8)
    | st.binary(max_size=8)
)
KEYS = st.text(st.characters(codec=None), max_size=4) | st.just("$bytes") | st.integers() | st.tuples(st.integers())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.sets(st.integers() | st.text(max_size=3) | st.tuples(st.integers()), max_size=3)
    ),
    max_leaves=12,
)


def crossed(value: Any) -> Any:
    structure, data = encode(value)
    assert json.loads(data) == structure
    return decode(json.loads(data), {})


@given(VALUES)
def test_values_come_back_as_they_went(value: Any) -> None:
    assert crossed(value) == value


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (2**53, 2**53),
        (2**53 + 1, {"$bigint": "9007199254740993"}),
        (1.0, 1.0),
        (float("-inf"), {"$float": "-inf"}),
        (b"\xff", {"$bytes": "/w=="}),
        ((1, "a"), [1, "a"]),
        ({"$x": 1}, {"$map": [["$x", 1]]}),
        ({"$x": 1, "y": 2}, {"$x": 1, "y": 2}),
        ({1: "a"}, {"$map": [[1, "a"]]}),
        ("a\ud800", {"$str": '"a\\ud800"'}),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), {"$date": 0.0}),
        (numpy.int64(3), 3),
        (bytearray(b"a"), {"$bytes": "YQ=="}),
    ],
)
def test_forms(value: Any, form: Any) -> None:
    structure = encode(value)[0]
    assert structure == form
    assert type(structure) is type(form)


def test_nan_and_very_large_ints() -> None:
    assert isnan(crossed([float("nan")])[0])
    assert crossed(-(10**6000)) == -(10**6000)


def test_arrays_and_tables() -> None:
    for array in (numpy.arange(6, dtype=">i4").reshape(2, 3).T, numpy.array([True, False]), numpy.array(2.5)):
        read = crossed(array)
        assert read.shape == array.shape
        assert read.dtype == array.dtype.newbyteorder("=")
        assert (read == array).all()
    missing = [None, pandas.NA, pandas.NaT]
    assert crossed(missing) == [None] * 3
    for table in (
        pandas.DataFrame({"a": [1.5, 2.5], "b": ["x", None]}, index=["p", "q"]),
        pandas.DataFrame(index=[1, 2]),
    ):
        pandas.testing.assert_frame_equal(crossed({"t": table})["t"], table, check_column_type=False)


def test_forms_that_only_come_out() -> None:
    array = numpy.array([[1, 2], [3, 4]], "int16")
    form = {"$array": {"dtype": "int16", "shape": [2, 2], "data": "AQACAAMABAA="}}
    read = decode([form], {})[0]
    assert read.dtype == array.dtype
    assert (read == array).all()
    read[0, 0] = 7  # it is the caller's own
    table = decode({"$table": {"columns": ["a", "b"], "index": [5, 6], "data": [[1, "x"], [2, "y"]]}}, {})
    pandas.testing.assert_frame_equal(table, pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=[5, 6]))
    assert decode({"$other": {"type": "Lock", "repr": "<lock>"}}, {}) == Opaque("Lock", "<lock>")
    assert decode({"$date": 1500.0}, {}) == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)


def test_blobs() -> None:
    message = {
        "params": {"value": {"$blob": {"id": 3, "type": "json"}}, "other": [{"$blob": {"id": 4, "type": "str"}}]}
    }
    assert sorted(blobs_in(message)) == [3, 4]
    blobs = {3: b'[{"$bytes":"YQ=="}]', 4: "ä".encode(), 5: b"\x00"}
    assert decode(message["params"]["value"], blobs) == [b"a"]
    assert decode(message["params"]["other"], blobs) == ["ä"]
    assert decode({"$blob": {"id": 5, "type": "bytes"}}, blobs) == b"\x00"


class Own:
    pass


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def loop() -> Any:
    value: list[Any] = []
    value.extend([value, value])
    return value


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [Own()]}, "x['a'][0] is an Own, which cannot go into the sandbox"),
        (nested(300), "is nested deeper than 200 levels"),
        (loop(), "or contains itself"),
        (numpy.array(["a"]), "give value.tolist()"),
        (pandas.DataFrame({"t": [pandas.Timestamp("2000-01-01")]}), "x.data[0][0] is a datetime without a time zone"),
        (datetime(2000, 1, 1), "without a time zone"),
    ],
)
def test_refusals_name_the_place_and_the_remedy(value: Any, message: str) -> None:
    with pytest.raises(SandboxError) as raised:
        encode(value, "x")
    assert raised.value.code == "not_serializable"
    assert message in str(raised.value)


def test_200_levels_cross() -> None:
    assert crossed(nested(199)) == nested(199)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ({"$array": {"dtype": "int8", "shape": [9], "data": "AQ=="}}, Array("int8", (9,), b"\x01")),
        ({"$array": {"dtype": "object", "shape": [1], "data": "AQ=="}}, Array("object", (1,), b"\x01")),
        ({"$table": {"columns": ["a"], "index": [1], "data": [[1, 2], [3]]}}, Table(["a"], [1], [[1, 2], [3]])),
        ({"$date": 1e300}, Opaque("datetime", "1e+300 ms since 1970")),
        ({"$map": [[{"a": 1}, 2]]}, {Opaque("dict", "{'a': 1}"): 2}),
        ({"$set": [[1, [2]]]}, {(1, (2,))}),
    ],
)
def test_a_guest_that_lies_about_a_value_does_no_harm(form: Any, value: Any) -> None:
    assert decode(form, {}) == value
