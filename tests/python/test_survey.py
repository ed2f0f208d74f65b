"""What is told of a session for predictions: the newest variables and the columns of DataFrames, without running code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import sandglass
from sandglass.speculate.survey import survey


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
    rows = guest.runtime.survey()
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


#: In a process of its own: what it does to pandas is for good.
TAMPERED = """
import pandas, sys
from sandglass.speculate.survey import survey
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
