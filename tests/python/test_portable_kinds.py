"""Portable states: each kind of value is the same in another interpreter, or is named with the reason."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import Guest
from portable_elsewhere import fresh, read, write, write_kinds
from portable_kinds import ANY, KINDS, LOST, PYTHON

from sandglass.state.portable.layout import describe


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_the_same_elsewhere_or_is_named(guest: Guest, kind: str) -> None:
    code, way, check = KINDS[kind]
    guest.ok(code)
    state = write(guest)
    head = describe(state)
    ways = {entry["name"]: entry["portability"] for entry in head["variables"]}
    lost = dict(head["lost"])
    if way == LOST:
        assert "v" not in ways and lost["v"], ways
        return
    assert ways.get("v") == way, lost or head
    assert (way == PYTHON) == bool(next(entry["reason"] for entry in head["variables"] if entry["name"] == "v"))
    other = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read(other, state) == []
        other.ok(check)
    if way == ANY:
        third = fresh()
        assert read(third, state) == []
        again = write(third)
        assert describe(again)["objects"] == describe(state)["objects"]


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 150


ROOT = Path(__file__).parents[2]
OTHERS = [
    program
    for program in (ROOT / ".venv/bin/python", *sorted(ROOT.glob(".setup/python/*/bin/python")))
    if program.exists() and program.resolve() != Path(sys.executable).resolve()
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.parents[1].name)
def test_other_versions_of_python_read_it(program: Path, tmp_path: Path) -> None:
    write_kinds(tmp_path / "states")
    script = Path(__file__).with_name("portable_elsewhere.py")
    command = [str(program), str(script), "read", str(tmp_path / "states")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == {}
