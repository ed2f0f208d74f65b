"""The search for variables that a copy of the memory cannot hold. It calls no code of the user."""

import ctypes
from pathlib import Path

from conftest import Guest, installed

from sandglass.state import foreign


class Proxy:
    """A stand-in for Pyodide's class of JavaScript objects, which is no leaf either."""


def found(guest: Guest) -> dict[str, str]:
    return dict(foreign.find(guest.runtime.namespace, Proxy))


def test_finds_what_leads_there_and_nothing_else(guest: Guest) -> None:
    guest.runtime.namespace.globals["bare"] = Proxy()
    guest.ok("""
nested = {"deep": [(1, bare)]}
def closure(held=bare):
    return held
class Holder:
    held = bare
holder = Holder()
plain = {"deep": [(1, 2)]}
ask = llm_query
import sys, json
""")
    assert set(found(guest)) == {"bare", "nested", "closure", "Holder", "holder"}


def test_finds_functions_of_ctypes(guest: Guest) -> None:
    guest.runtime.namespace.globals["ctypes"] = ctypes
    guest.ok("double = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: 2 * n)\nnumber = ctypes.c_int(1)")
    assert list(found(guest)) == ["double"]
    assert "ctypes" in found(guest)["double"]


def test_what_is_too_much_to_look_through_is_named(guest: Guest) -> None:
    guest.runtime.namespace.globals["bare"] = Proxy()
    guest.ok("""
many = [[n] for n in range(300_000)]
numbers = {n: str(n) for n in range(1_000_000)}
rows = [[n, n + 1] for n in range(1000)]
late = [rows, bare]
""")
    assert set(found(guest)) == {"bare", "many", "late"}
    assert "too much" in found(guest)["many"]
    assert "JavaScript" in found(guest)["late"]


def test_what_is_many_and_leads_on_is_looked_through(guest: Guest) -> None:
    guest.runtime.namespace.globals["bare"] = Proxy()
    guest.ok("many = list(range(100_000))\nmany[77_777] = bare")
    assert set(found(guest)) == {"bare", "many"}


def test_modules_that_code_made_are_looked_into(guest: Guest, tmp_path: Path) -> None:
    guest.runtime.namespace.globals["bare"] = Proxy()
    (tmp_path / "written.py").write_text("held = None")
    guest.ok(f"""
import json, sys, types
made = types.ModuleType("made")
made.held = [bare]
listed = types.ModuleType("listed")
listed.held = bare
sys.modules["listed"] = listed
sys.path.insert(0, {str(tmp_path)!r})
import written
written.held = bare
sys.path.pop(0)
empty = types.ModuleType("empty")
""")
    try:
        assert set(found(guest)) == {"bare", "made", "listed", "written"}
    finally:
        guest.ok('del sys.modules["listed"], sys.modules["written"]')


def test_files_of_pipes_are_found_by_their_descriptors(guest: Guest) -> None:
    guest.ok("""
import os
reader, writer = map(os.fdopen, os.pipe(), "rw")
other = open(os.devnull)
holder = {"log": writer}
closed = open(os.devnull)
closed.close()
numbers = [reader.fileno()]
""")
    variables = guest.runtime.namespace.globals
    gone = {variables["reader"].fileno(), variables["writer"].fileno()}
    pipes = dict(foreign.find(guest.runtime.namespace, Proxy, gone))
    assert set(pipes) == {"reader", "writer", "holder", *(f"descriptor {number}" for number in gone)}
    assert "pipe" in pipes["holder"]
    assert found(guest) == {}
    guest.ok("reader.close(), writer.close(), other.close()")


def test_a_cycle_ends(guest: Guest) -> None:
    guest.ok("a = []\na.append(a)\nb = {'a': a}\nb['b'] = b")
    assert found(guest) == {}


def test_the_last_value_is_looked_at_too(guest: Guest) -> None:
    guest.runtime.namespace.globals["bare"] = Proxy()
    with installed(guest.runtime) as runtime:
        runtime.execute(1, "[bare]")
        assert set(found(guest)) == {"bare", "_"}
        runtime.execute(2, "_ = 5\ndel bare")
        assert set(found(guest)) == set()
        runtime.execute(3, "del _\n6")
        assert set(found(guest)) == set()
