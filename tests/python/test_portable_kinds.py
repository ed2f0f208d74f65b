"""Portable states: each kind of value is the same in another interpreter, or is named with the reason."""

from __future__ import annotations

import warnings

import pytest
from conftest import CONFIG, Guest, installed
from portable_kinds import ANY, KINDS, LOST, PYTHON

from sandglass.state import portable

MANY = 100 << 20


def write(guest: Guest) -> bytes:
    with installed(guest.runtime):
        return portable.write(guest.runtime.namespace, guest.runtime.sources, MANY)


def read(guest: Guest, state: bytes) -> list[tuple[str, str]]:
    with installed(guest.runtime):
        return portable.read(state, MANY, guest.runtime.namespace, guest.runtime.sources)


def fresh() -> Guest:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    return guest


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_the_same_elsewhere_or_is_named(guest: Guest, kind: str) -> None:
    code, way, check = KINDS[kind]
    guest.ok(code)
    state = write(guest)
    head = portable.describe(state)
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
        assert portable.describe(again)["objects"] == portable.describe(state)["objects"]


def test_there_are_many_kinds() -> None:
    assert len(KINDS) >= 150
