"""What a copy of the interpreter's memory cannot hold is found by name, without a call of the user's code."""

import ctypes

from conftest import Guest

from sandglass import foreign


class Proxy:
    """Stands for Pyodide's class of JavaScript objects, which is none of the leaves either."""


def found(guest: Guest) -> dict[str, str]:
    return dict(foreign.find(guest.runtime._namespace, Proxy))


def test_finds_what_leads_there_and_nothing_else(guest: Guest) -> None:
    guest.runtime._namespace.globals["bare"] = Proxy()
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
    guest.runtime._namespace.globals["ctypes"] = ctypes
    guest.ok("double = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda n: 2 * n)\nnumber = ctypes.c_int(1)")
    assert list(found(guest)) == ["double"]
    assert "ctypes" in found(guest)["double"]


def test_much_is_not_searched_through(guest: Guest) -> None:
    guest.runtime._namespace.globals["bare"] = Proxy()
    guest.ok("many = [[n] for n in range(300_000)]\nmore = list(range(10_000_000))")
    assert list(found(guest)) == ["bare"]
    guest.ok("many.append(bare)")
    assert list(found(guest)) == ["bare"], "what lies behind very much is not found"


def test_a_cycle_ends(guest: Guest) -> None:
    guest.ok("a = []\na.append(a)\nb = {'a': a}\nb['b'] = b")
    assert found(guest) == {}
