"""The survey of a session for predictions: the newest variables, and columns of DataFrames, without running code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sandglass
from sandglass.ahead.survey import survey, survey_of


def told(variables: dict[str, object]) -> dict[str, tuple[str, object, list[tuple[str, str]]]]:
    rows = survey(variables, [*reversed(variables)])
    return {
        row["name"]: (row["type"], row["length"], [(column["name"], column["kind"]) for column in row["columns"]])
        for row in rows
    }


def test_texts_and_containers_have_a_length():
    rows = survey({"context": "abc", "lines": [1, 2], "x": 1.5}, ["x", "lines", "context"])
    assert [(row["name"], row["type"], row["length"]) for row in rows] == [
        ("x", "float", None),
        ("lines", "list", 2),
        ("context", "str", 3),
    ]


def test_the_number_of_variables_and_the_length_of_names_are_bounded():
    names = [f"v{number}" for number in range(300)]
    rows = survey(dict.fromkeys([*names, "n" * 101]), ["n" * 101, *names])
    assert [row["name"] for row in rows] == names[:99]


def test_a_guest_tells_of_its_newest_variables(guest):
    guest.ok("\n".join(f"v{number} = {number}" for number in range(2000)))
    guest.ok("llm_query = 1; text = 'abc'; del v5")
    rows = survey_of(guest.runtime)
    assert [row["name"] for row in rows] == ["text", *(f"v{number}" for number in range(1999, 1900, -1))]


def test_columns_of_a_frame_and_what_they_hold():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "number": [1, 2],
            "text": ["x", "y"],
            "share": [0.5, 1.5],
            "group": pandas.Categorical(["u", "v"]),
            "day": pandas.to_datetime(["2020-01-01", "2020-01-02"]),
            "is_new": [True, False],
            "nullable": pandas.array([1, None], dtype="Int64"),
            3: [1, 2],
            'it\'s "quoted"\n': [1, 2],
            "\ud800": [1, 2],
            "long" * 26: [1, 2],
        }
    )
    assert told({"frame": frame})["frame"] == (
        "DataFrame",
        2,
        [
            ("number", "number"),
            ("text", "text"),
            ("share", "number"),
            ("group", "text"),
            ("day", "time"),
            ("is_new", "bool"),
            ("nullable", "number"),
            ('it\'s "quoted"\n', "number"),
        ],
    )


def test_frames_of_any_shape_are_told():
    pandas = pytest.importorskip("pandas")
    wide = pandas.DataFrame([[0] * 80], columns=[f"c{number}" for number in range(80)])
    frames: dict[str, object] = {f"f{number}": pandas.DataFrame({"a": [1]}) for number in range(25)}
    frames |= {
        "empty": pandas.DataFrame(),
        "wide": wide,
        "texts": pandas.DataFrame({"t": pandas.Series(["a", "b", "c"], dtype="object")}),
        "counted": pandas.DataFrame({"a": range(3), "b": range(3)}).set_index("a"),
        "levels": pandas.DataFrame([[1, 2]], columns=pandas.MultiIndex.from_tuples([("a", "b"), ("a", "c")])),
    }
    found = told(frames)
    assert found["empty"] == ("DataFrame", None, [])
    assert len(found["wide"][2]) == 50
    assert found["texts"] == ("DataFrame", 3, [("t", "text")])
    assert found["counted"] == ("DataFrame", 3, [("b", "number")])
    assert found["levels"][2] == []
    assert sum(bool(columns) for _, _, columns in found.values()) == 18, (
        "20 frames, of which two have no columns to tell"
    )


def test_what_is_in_columns_is_told_by_some_of_their_rows():
    pandas = pytest.importorskip("pandas")
    rows = 1000
    frame = pandas.DataFrame(
        {
            "key": [f"id {row}" for row in range(rows)],
            "city": ["Berlin", "New York", "Berlin", None] * 250,
            "old": pandas.Series(["x", "y"] * 500, dtype="object"),
            "number": [row % 5 for row in range(rows)],
            "share": [0.5, float("nan")] * 500,
            "day": pandas.to_datetime(["2020-01-01", None] * 500),
            "is_new": [True, False] * 500,
            "nullable": pandas.array([1, 2, None, 4] * 250, dtype="Int64"),
            "group": pandas.Categorical(["u", "v", None, "u"] * 250),
            "long": ["x" * 41, "\ud800"] * 500,
            "empty": [None] * rows,
        }
    )
    frame = frame.iloc[: rows - 7].reset_index(drop=True)
    row = survey({"frame": frame}, ["frame"])[0]
    assert row["memory"] == pytest.approx(frame.memory_usage(index=False).sum(), rel=0.5)
    samples = {column["name"]: column["sample"] for column in row["columns"]}
    looked = pandas.concat([frame.iloc[:50], frame.iloc[50::19]])
    assert len(looked) == 100
    for name in frame.columns:
        sample = samples[name]
        if sample is None:
            continue  # a column in Arrow's arrays has no sample
        assert sample["rows"] == len(looked)
        assert sample["nulls"] == looked[name].isna().sum(), name
        assert sample["distinct"] == looked[name].nunique(), name
    told = {name: sample["texts"] for name, sample in samples.items() if sample and sample["texts"]}
    assert {*told["old"]} == {"x", "y"}
    assert told["group"][:1] == ["u"]
    assert "long" not in told
    assert {"old", "number", "share", "day", "is_new", "nullable", "group"} <= {
        name for name, sample in samples.items() if sample
    }


def test_the_values_that_are_looked_at_are_bounded():
    pandas = pytest.importorskip("pandas")
    wide = {f"f{number}": pandas.DataFrame({f"c{place}": range(500) for place in range(40)}) for number in range(4)}
    samples = [column["sample"] for row in survey(wide, [*wide]) for column in row["columns"]]
    assert [sample is not None for sample in samples] == [True] * 50 + [False] * 110


def test_columns_of_objects_are_not_looked_into():
    pandas = pytest.importorskip("pandas")
    ran: list[str] = []

    class Value:
        def __getattribute__(self, name):
            ran.append(name)
            return object.__getattribute__(self, name)

        def __eq__(self, other):
            ran.append("eq")
            return True

        def __hash__(self):
            ran.append("hash")
            return 1

        def __lt__(self, other):
            ran.append("lt")
            return True

    class Text(str):
        __slots__ = ()
        __eq__, __hash__, __lt__ = Value.__eq__, Value.__hash__, Value.__lt__  # type: ignore[assignment]

    objects = pandas.DataFrame(
        {
            "values": pandas.Series([Value(), Value()], dtype="object"),
            "texts": pandas.Series([Text("a"), Text("b")], dtype="object"),
            "lists": [[1], [2]],
        }
    )
    ran.clear()
    columns = survey({"objects": objects}, ["objects"])[0]["columns"]
    assert [column["sample"] for column in columns] == [None] * 3
    assert ran == []


def test_no_code_of_a_kind_of_array_runs():
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    ran: list[str] = []

    class Array(numpy.ndarray):  # type: ignore[misc]
        def __array_finalize__(self, other):
            ran.append("finalize")

    frame = pandas.DataFrame({"a": [1, 2, 3]})
    block = frame._mgr.blocks[0]
    block.values = block.values.view(Array)
    if type(block.values) is not Array:
        pytest.skip("pandas keeps no such arrays")
    ran.clear()
    survey({"frame": frame}, ["frame"])
    assert ran == []


def test_texts_get_no_hash():
    pandas = pytest.importorskip("pandas")
    ctypes = pytest.importorskip("ctypes")
    texts = [f"{number} {'x' * 30}" for number in range(20)]

    def hash_in(text: str) -> int:
        return int(ctypes.c_ssize_t.from_address(id(text) + 24).value)

    frame = pandas.DataFrame({"a": pandas.Series(texts, dtype="object")})
    kept = list(frame["a"])
    assert [hash_in(text) for text in kept] == [-1] * 20
    sample = survey({"frame": frame}, ["frame"])[0]["columns"][0]["sample"]
    assert sample["distinct"] == 20
    assert [hash_in(text) for text in kept] == [-1] * 20


def test_no_code_of_the_users_runs():
    ran: list[str] = []

    class Meta(type):
        def __getattribute__(cls, name):
            ran.append(f"meta {name}")
            return type.__getattribute__(cls, name)

    class DataFrame(dict, metaclass=Meta):  # type: ignore[type-arg]
        def __getattribute__(self, name):
            ran.append(name)
            return dict.__getattribute__(self, name)

        def __len__(self):
            ran.append("len")
            return 1

        @property
        def _mgr(self):
            ran.append("_mgr")

        @property
        def __dict__(self):
            ran.append("dict")
            return {}

    class List(list):  # type: ignore[type-arg]
        def __len__(self):
            ran.append("len")
            return 7

    found = told({"frame": DataFrame(), "items": List([1])})
    assert found == {"frame": ("DataFrame", None, []), "items": ("List", 1, [])}
    assert ran == []


#: A program for a process of its own, because it changes pandas for good.
TAMPERED = """
import pandas, sys
from sandglass.ahead.survey import survey
frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
def ran(*_):
    print("it ran")
    sys.stdout.flush()
    return frame
for owner in (pandas.DataFrame, pandas.Index, type(frame._mgr), *{type(block) for block in frame._mgr.blocks},
        type(frame._mgr.blocks[0].values), type(frame.columns._data)):
    for name in ("__len__", "__iter__", "__getitem__", "__getattribute__", "columns", "dtypes", "shape", "axes",
            "blocks", "values", "tolist", "_mgr", "_data", "_ndarray", "__dict__", "mgr_locs", "_mgr_locs"):
        try:
            setattr(owner, name, property(ran) if name[:2] != "__" else ran)
        except (TypeError, AttributeError):
            pass  # a class in C
print(survey({"frame": frame}, ["frame"])[0]["type"])
"""


def test_no_code_runs_that_was_put_into_pandas():
    pytest.importorskip("pandas")
    environment = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(sandglass.__file__))}
    command = [sys.executable, "-c", TAMPERED]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("DataFrame\n", 0), run.stderr


def test_a_frame_is_as_it_was():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    before = {**vars(frame)}, {**vars(frame.columns)}
    survey({"frame": frame}, ["frame"])
    assert ({**vars(frame)}, {**vars(frame.columns)}) == before
