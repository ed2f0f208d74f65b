"""Portable states: the global generators of random numbers, and what of their states is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from struct import pack
from typing import Any

import numpy as np
import pytest
from conftest import Guest
from portable_elsewhere import fresh, read, write

from sandglass.state.portable import arrays, codec, generators, layout  # noqa: F401  (`arrays` registers its codecs)
from sandglass.state.portable.graph import Graph

KEY = pack("<624I", *range(1, 625)).hex()


@pytest.fixture(autouse=True)
def own_generators() -> Iterator[None]:
    """Each test has generators that nobody has used, and leaves those of the process as they were."""
    python, numpy, bits = random.getstate(), np.random.get_state(legacy=False), np.random.get_bit_generator()
    first = dict(generators._first)
    generators.begin()
    yield
    random.setstate(python)
    np.random.set_bit_generator(bits)
    np.random.set_state(numpy)
    generators._first.clear()
    generators._first.update(first)


def variables_of(state: bytes) -> dict[str, Any]:
    """The generators whose states a state has."""
    head, objects = layout.split(state, 1 << 20)
    if "generators" not in head:
        return {}
    return Graph([objects[number] for number in head["generators"]["objects"]]).variables


def with_generators(member: Any, objects: list[bytes]) -> bytes:
    """The state of one variable, with any generators."""
    guest = fresh()
    guest.ok("x = 1")
    head, own = layout.split(write(guest), 1 << 20)
    if member is not None:
        head["generators"] = member
    return b"".join(layout.lay_out(head, [*map(bytes, own), *objects], 1 << 20))


def state_of(nodes: list[Any], variables: dict[str, Any]) -> bytes:
    graph = json.dumps({"nodes": nodes, "variables": variables}).encode()
    return with_generators({"objects": [1, 2]}, [graph, bytes.fromhex(KEY)])


def seen() -> tuple[Any, str]:
    return random.getstate(), repr(np.random.get_state(legacy=False))


def test_generators_that_nobody_used_stay_behind(guest: Guest) -> None:
    guest.ok("import random, numpy as np\nx = [random, np]")
    assert variables_of(write(guest)) == {}
    guest.ok("random.random()")
    assert set(variables_of(write(guest))) == {"random"}
    guest.ok("np.random.random()")
    assert set(variables_of(write(guest))) == {"random", "numpy.random"}


def test_a_seed_alone_is_a_use(guest: Guest) -> None:
    guest.ok("import random, numpy as np\nrandom.seed(5)\nnp.random.seed(5)")
    assert set(variables_of(write(guest))) == {"random", "numpy.random"}


def test_numbers_follow_as_they_would_have(guest: Guest) -> None:
    guest.ok(
        "import random, numpy as np\nrandom.seed(1)\nnp.random.seed(2)\nrandom.gauss(0, 1)\nnp.random.normal()\n"
        "random.getrandbits(7)\nnp.random.randint(9)"
    )
    state = write(guest)
    more = "[random.gauss(0, 1), random.random(), np.random.normal(), np.random.random()]"
    expected = guest.run(more).result
    other = fresh()
    assert read(other, state) == []
    again = write(other)
    assert other.run(more).result == expected
    head, before = layout.describe(again), layout.describe(state)
    assert [head["objects"], head["generators"]] == [before["objects"], before["generators"]]


@pytest.mark.parametrize("kind", [kind for kind in generators.FIELDS if hasattr(np.random, kind)])
def test_other_kinds_of_numpy_go_by_name(guest: Guest, kind: str) -> None:
    guest.ok(
        f"import numpy as np\nnp.random.set_bit_generator(np.random.{kind}(5))\n"
        "np.random.normal()\nnp.random.randint(5, dtype='u4')"
    )
    state, expected = write(guest), repr(np.random.get_state(legacy=False))
    np.random.set_bit_generator(np.random.MT19937() if kind != "MT19937" else np.random.PCG64())
    assert read(fresh(), state) == []
    assert repr(np.random.get_state(legacy=False)) == expected


def test_what_cannot_go_is_named(guest: Guest) -> None:
    guest.ok("import numpy as np\nclass Mine(np.random.MT19937): pass\nnp.random.set_bit_generator(Mine(5))\nx = 1")
    head = layout.describe(write(guest))
    assert "generators" not in head and "x" in {entry["name"] for entry in head["variables"]}
    assert dict(head["lost"])["numpy.random: its state"].startswith("a generator of the kind")


def test_what_a_cell_imported_from_random_is_of_the_readers_own(guest: Guest) -> None:
    guest.ok("import random\nfrom random import randint, _inst\nfrom numpy.random import seed\nrandint(1, 9)")
    other = fresh()
    assert read(other, write(guest)) == []
    other.ok("import numpy as np\nassert randint.__self__ is _inst is random._inst")
    other.ok("seed(3)\na = np.random.random()\nseed(3)\nassert np.random.random() == a")


def test_a_reader_without_numpy_names_its_state(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    guest.ok(
        "import random, numpy as np\nnp.random.seed(1)\nrandom.seed(5)\ndel np\nexpected = random.Random(5).random()"
    )
    state = write(guest)
    random.seed()

    def refuse(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(generators, "import_module", refuse)
    other = fresh()
    lost = dict(read(other, state))
    assert set(lost) == {"numpy.random: its state"} and "numpy" in lost["numpy.random: its state"]
    other.ok("assert random.random() == expected")


def test_a_state_without_generators_leaves_those_of_the_guest() -> None:
    before = seen()
    other = fresh()
    assert read(other, with_generators(None, [])) == []
    assert seen() == before
    other.ok("assert x == 1")


def test_a_state_of_hand_opens() -> None:
    state = state_of([["MT19937", 0.5, ["blob", 1], 3]], {"random": [0], "numpy.random": [0]})
    assert read(fresh(), state) == []
    expected = (*range(1, 625), 3)
    assert random.getstate() == (3, expected, 0.5)
    name, key, *rest = np.random.get_state()
    assert (name, key.tolist(), rest) == ("MT19937", list(range(1, 625)), [3, 1, 0.5])


HOSTILE: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "no reference": ([["MT19937", None, ["blob", 1], 3]], {"random": 5}),
    "unknown name": ([["MT19937", None, ["blob", 1], 3]], {"os": [0]}),
    "unknown kind": ([["default_rng", None]], {"numpy.random": [0]}),
    "a kind that is not of random": ([["PCG64", None, 1, 1, 0, 0]], {"random": [0]}),
    "nothing": ([["MT19937"]], {"random": [0]}),
    "too few fields": ([["MT19937", None, ["blob", 1]]], {"random": [0]}),
    "too many fields": ([["MT19937", None, ["blob", 1], 3, 3]], {"random": [0]}),
    "position beyond the key": ([["MT19937", None, ["blob", 1], 625]], {"numpy.random": [0]}),
    "negative position": ([["MT19937", None, ["blob", 1], -1]], {"numpy.random": [0]}),
    "position of another type": ([["MT19937", None, ["blob", 1], True]], {"random": [0]}),
    "huge position": ([["MT19937", None, ["blob", 1], ["int", "f" * 40]]], {"random": [0]}),
    "short key": ([["MT19937", None, ["bytes", "00"], 3]], {"random": [0]}),
    "key of a text": ([["MT19937", None, "x", 3]], {"random": [0]}),
    "key of a list": ([["MT19937", None, [1], 3], ["list"]], {"random": [0]}),
    "number that is none": ([["MT19937", ["float", "7ff8000000000000"], ["blob", 1], 3]], {"random": [0]}),
    "next number of an int": ([["MT19937", 1, ["blob", 1], 3]], {"random": [0]}),
    "128 bits and one": ([["PCG64", None, ["int", "1" + "0" * 32], 1, 0, 0]], {"numpy.random": [0]}),
    "position beyond the buffer": (
        [["Philox", None, ["bytes", "00" * 32], ["bytes", "00" * 16], ["bytes", "00" * 32], 5, 0, 0]],
        {"numpy.random": [0]},
    ),
    "one right, one wrong": (
        [["MT19937", None, ["blob", 1], 3], ["MT19937", None, ["blob", 1], 625]],
        {"random": [0], "numpy.random": [1]},
    ),
}


def refuses(state: bytes) -> None:
    before = seen()
    guest = fresh()
    with pytest.raises(ValueError, match=r"refused.*no variable was set"):
        read(guest, state)
    assert seen() == before
    assert set(guest.runtime.namespace.names()) == set()


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_state_is_refused_and_sets_nothing(what: str) -> None:
    refuses(state_of(*HOSTILE[what]))


@pytest.mark.parametrize("member", [[], {}, {"objects": 5}, {"objects": []}, {"objects": [9]}, {"objects": [True]}, 5])
def test_a_malformed_member_is_refused(member: Any) -> None:
    refuses(with_generators(member, []))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("MT19937", lambda state: state["state"].update(pos=625)),
        ("MT19937", lambda state: state["state"].update(pos=-1)),
        ("MT19937", lambda state: state["state"].update(key=state["state"]["key"][:5])),
        ("MT19937", lambda state: state["state"].update(key=state["state"]["key"].astype("f8"))),
        ("Philox", lambda state: state.update(buffer_pos=-1)),
        ("SFC64", lambda state: state.update(has_uint32="x")),
        ("PCG64", lambda state: state.pop("uinteger")),
    ],
)
def test_a_bit_generator_of_a_wrong_state_is_not_made(kind: str, change: Callable[[Any], Any]) -> None:
    guest = fresh()
    guest.ok("import numpy as np\nx = 1")
    state = getattr(np.random, kind)(1).state
    bits = codec.BY_NAME["numpy.bits"]
    made = bits.make([kind, 1], None)  # type: ignore[arg-type]
    assert bits.fill is not None
    bits.fill(made, [kind, 1, state], None)  # type: ignore[arg-type]
    change(state)
    with pytest.raises((ValueError, KeyError)):
        bits.fill(made, [kind, 1, state], None)  # type: ignore[arg-type]
