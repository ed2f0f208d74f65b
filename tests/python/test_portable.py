"""Portable states: what they share, what changes in them, and what of a hostile state is refused."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import Guest, installed
from portable_elsewhere import fresh, read, write

from sandglass.state.portable import graph, layout, writing
from sandglass.state.stateless import split_state


def head_of(state: bytes) -> dict[str, Any]:
    return layout.describe(state)


def way_of(state: bytes) -> dict[str, str]:
    return {entry["name"]: entry["portability"] for entry in head_of(state)["variables"]}


def objects_of(state: bytes) -> dict[str, list[str]]:
    """The hashes of the objects of each variable's group."""
    head = head_of(state)
    hashes = [entry["sha256"] for entry in head["objects"]]
    return {
        entry["name"]: [hashes[number] for number in head["groups"][entry["group"]]["objects"]]
        for entry in head["variables"]
    }


# --- What goes together -----------------------------------------------------------------------------------------------


def test_variables_that_share_an_object_still_share_it(guest: Guest) -> None:
    guest.ok(
        "a = [1]; b = {'a': a}; t = (a, 5); alone = [2]; class_ = type('K', (), {})\nclass K: pass\nx, y = K(), K()"
    )
    state = write(guest)
    groups = {entry["name"]: entry["group"] for entry in head_of(state)["variables"]}
    assert groups["a"] == groups["b"] == groups["t"] != groups["alone"]
    assert groups["x"] == groups["y"] == groups["K"]
    other = fresh()
    assert read(other, state) == []
    other.ok("a.append(2)\nassert b['a'] is a is t[0] and type(x) is type(y) is K")


def test_one_execution_changes_only_what_it_changed(guest: Guest) -> None:
    guest.ok(
        "import numpy as np\nbig = np.arange(1000)\nrows = [{'n': i} for i in range(100)]\ns = {'b', 'a'}\ndef f(x): return x\nclass K: pass\nk = K()"
    )
    before = write(guest)
    assert objects_of(write(guest)) == objects_of(before)
    guest.ok("rows[57]['n'] = -1; fresh = 1")
    after = objects_of(write(guest))
    changed = {name for name, hashes in after.items() if objects_of(before).get(name) != hashes}
    assert changed == {"rows", "fresh"}
    guest.ok("big[999] = 5; k.x = 1")
    changed = {name for name, hashes in objects_of(write(guest)).items() if after[name] != hashes}
    assert changed == {"big", "K", "k"}


def test_a_set_of_texts_gives_the_same_bytes_in_every_process(guest: Guest) -> None:
    guest.ok("s = {'a', 'b', 'c', 1, None, 2.5, b'x'}")
    other = fresh()
    other.ok("s = {b'x', 2.5, None, 'c', 1, 'b', 'a'}")
    assert objects_of(write(guest)) == objects_of(write(other))


def test_a_value_that_cannot_go_costs_only_the_variables_that_hold_it(guest: Guest) -> None:
    guest.ok("import threading\nshared = [1]\nbad = [shared, threading.Lock()]\nworse = {'x': bad}\ngood = [shared]")
    state = write(guest)
    assert way_of(state) == {"threading": "any", "shared": "any", "good": "any"}
    reasons = dict(head_of(state)["lost"])
    assert set(reasons) == {"bad", "worse"} and all("a lock" in reason for reason in reasons.values()), reasons
    other = fresh()
    assert read(other, state) == []
    other.ok("assert good[0] is shared")


def test_what_shares_with_a_pickle_is_in_the_pickle(guest: Guest) -> None:
    guest.ok("items = [1, 2, 3]\nit = iter(items)\nnext(it)\nalone = 1")
    state = write(guest)
    assert way_of(state) == {"items": "python", "it": "python", "alone": "any"}
    reason = {entry["name"]: entry["reason"] for entry in head_of(state)["variables"]}
    assert "list_iterator" in reason["it"] and "shares objects" in reason["items"]
    other = fresh()
    assert read(other, state) == []
    other.ok("items.append(4)\nassert list(it) == [2, 3, 4]")


def test_memory_of_others_is_named_and_that_of_arrays_is_shared_in_a_pickle(guest: Guest) -> None:
    guest.ok(
        "import numpy as np\na = np.arange(4)\nv = a[1:]\nit = iter([a, v])\nb = bytearray(4)\nw = np.frombuffer(b, 'u1')\nm = memoryview(b)[1:]"
    )
    state = write(guest)
    lost = dict(head_of(state)["lost"])
    assert set(lost) == {"w", "m"}, lost
    assert way_of(state)["it"] == "python"
    other = fresh()
    assert read(other, state) == []
    other.ok("a[1] = 99\nassert v[0] == 99 and b == bytearray(4)\nagain = it.__reduce__()[1][0]")
    other.ok("assert again[0] is a and again[1] is v")
    # The arrays have memory of their own, so views of them can go again.
    other.ok("late = v[1:]\nmore = iter([late])")
    third = fresh()
    assert read(third, write(other)) == []
    third.ok("a[2] = 7\nassert v[1] == late[0] == 7 and next(more) is late")


def test_an_array_of_another_class_that_shares_memory_is_named(guest: Guest) -> None:
    guest.ok(
        "import numpy as np\nclass K(np.ndarray): pass\na = np.arange(4)\nmatrix = a.view(np.matrix)\nmasked = np.ma.array(a)\n"
        "own = np.ndarray.__new__(K, 2)\nview = np.asarray(own)\nalone = np.arange(3).view(K)\ns = np.zeros(2, [('o', 'O')])\nt = s[1:]"
    )
    state = write(guest)
    lost = dict(head_of(state)["lost"])
    assert set(lost) == {"matrix", "masked", "view", "t"}, lost
    assert "a matrix that shares its memory with another array" in lost["matrix"]
    assert way_of(state)["a"] == "any" and way_of(state)["alone"] == way_of(state)["own"] == "python"
    other = fresh()
    assert read(other, state) == []
    other.ok("assert type(alone) is type(own) is K and a.tolist() == [0, 1, 2, 3] and s['o'][0] == 0")


def test_a_class_with_hooks_is_asked_only_if_nothing_else_is_left(guest: Guest) -> None:
    guest.ok(
        """import threading
class K:
    def __init__(self): self.x = 1; self.lock = threading.Lock()
    def __getstate__(self): return {"x": self.x}
    def __setstate__(self, state): self.x = state["x"]; self.lock = threading.Lock()
class Made:
    def __init__(self, n): self.n = n; self.it = iter([n])
    def __reduce__(self): return Made, (self.n,)
class Liar(Made):
    def __reduce__(self): return dict, ()
class Portable:
    def __getstate__(self): raise RuntimeError("it was asked")
k, made, liar, portable = K(), Made(5), Liar(6), Portable()
portable.x = 3"""
    )
    state = write(guest)
    lost = dict(head_of(state)["lost"])
    assert set(lost) == {"k: what __getstate__ leaves out", "made: what __reduce__ leaves out", "liar"}, lost
    assert "makes something else" in lost["liar"]
    other = fresh()
    assert read(other, state) == []
    other.ok(
        "assert k.x == 1 and k.lock.acquire() and type(k) is K and next(made.it) == made.n == 5 and portable.x == 3"
    )


def test_partial_losses_are_named(guest: Guest) -> None:
    guest.ok(
        "import functools\n@functools.lru_cache\ndef f(n): return n\nf(1)\ntry: 1 / 0\nexcept Exception as e: error = e"
    )
    state = write(guest)
    assert {"f: its cache", "error: its traceback"} <= {name for name, _ in head_of(state)["lost"]}
    other = fresh()
    assert read(other, state) == []
    other.ok("assert f.cache_info().currsize == 0 and error.__traceback__ is None")


def test_what_a_pickle_would_drop_is_named(guest: Guest) -> None:
    guest.ok(
        "import json, numpy as np\ntry:\n    try: 1 / 0\n    finally: json.loads('{')\nexcept ValueError as e: chained = e\n"
        "try: json.loads('{')\nexcept ValueError as e: plain = e\n"
        "a = np.arange(3)\na.flags.writeable = False\nreadonly = [a, iter(())]\nb = np.arange(2)\nalone = [b, iter(())]"
    )
    state = write(guest)
    lost = dict(head_of(state)["lost"])
    assert set(lost) == {"chained: its cause, context and traceback", "plain: its traceback"}, lost
    other = fresh()
    assert read(other, state) == []
    other.ok("assert plain.doc == '{' and chained.doc == '{' and not a.flags.writeable and alone[0] is b")
    other.ok("assert readonly[0] is a")


def test_functions_see_the_variables_of_their_new_home(guest: Guest) -> None:
    guest.ok("factor = 2\ndef scale(n): return n * factor\ndef ask(): return llm_query('q')")
    other = fresh()
    assert read(other, write(guest)) == []
    cell = other.run(
        "factor = 5\nassert scale(2) == 10 and ask() == 'answer to q'\nraise_ = lambda: 1 / 0\nscale('x', 1)"
    )
    assert cell.error_type == "TypeError"
    cell = other.run("import inspect\nprint(inspect.getsource(scale))")
    assert cell.stdout == "def scale(n): return n * factor\n\n"


def test_tracebacks_have_the_source(guest: Guest) -> None:
    guest.ok("x = 1\ndef f():\n    y = 2\n    return 1 / 0")
    other = fresh()
    read(other, write(guest))
    assert "return 1 / 0" in other.run("f()").traceback


def test_variables_that_are_there_stay(guest: Guest) -> None:
    guest.ok("x = 1")
    other = fresh()
    other.ok("x = 5; y = 2")
    read(other, write(guest))
    other.ok("assert (x, y) == (1, 2)")


def test_deep_and_wide_values_go(guest: Guest) -> None:
    guest.ok(
        "deep = []\nfor _ in range(100_000): deep = [deep]\nwide = list(range(200_000))\nround_ = [[] for _ in range(50_000)]\nfor i, r in enumerate(round_): r.append(round_[i - 1])"
    )
    other = fresh()
    assert read(other, write(guest)) == []
    other.ok(
        "n = 0\nwhile deep: deep, n = deep[0], n + 1\nassert n == 100_000 and wide == list(range(200_000)) and round_[0][0] is round_[-1]"
    )


def test_sizes_are_capped_both_ways(guest: Guest) -> None:
    guest.ok("x = bytes(1_000_000)")
    with pytest.raises(ValueError, match="more than 500000"):
        write(guest, 500_000)
    state = write(guest)
    with pytest.raises(ValueError, match="more than 500000"):
        read(guest, state, 500_000)
    guest.ok("x = list(range(1_000_000))")
    with pytest.raises(ValueError, match="more than 500000"):
        write(guest, 500_000)


def test_no_state_is_written_that_no_reader_takes(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAX_NODES", 1_000)
    monkeypatch.setattr(writing, "MAX_NODES", 1_000)
    guest.ok("x = [[] for _ in range(900)]; y = [[] for _ in range(900)]")
    other = fresh()
    assert read(other, write(guest)) == []  # in two groups
    guest.ok("both = [x, y]")
    with pytest.raises(layout.TooLarge, match="more than 1000 objects"):
        write(guest)


def test_a_missing_package_costs_only_its_values(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    guest.ok("import numpy as np\na = np.arange(3)\nb = [1]\nc = [a]\ndef f(): return np")
    state = write(guest)
    for name in [name for name in sys.modules if name.partition(".")[0] == "numpy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)  # type: ignore[arg-type]
    from sandglass.state.portable import codec

    monkeypatch.setattr(codec, "BY_NAME", {k: v for k, v in codec.BY_NAME.items() if not k.startswith("numpy.")})
    monkeypatch.setattr("sandglass.state.portable.reading.BY_NAME", codec.BY_NAME)
    monkeypatch.setattr("sandglass.state.portable.libraries.import_module", _refuse_import)
    other = fresh()
    lost = dict(read(other, state))
    assert set(lost) == {"np", "a", "c"} and "numpy" in lost["np"] and "numpy" in lost["a"]
    other.ok("assert b == [1] and callable(f)")


def _refuse_import(name: str) -> Any:
    raise ImportError(name)


def test_no_code_of_the_users_decides_what_goes(guest: Guest) -> None:
    hooks = (
        "__reduce__ __reduce_ex__ __getstate__ __getattr__ __getattribute__ __iter__ __len__ __eq__ __bool__ __repr__"
    )
    guest.ok(
        "ran = []\nclass K:\n    pass\nv = K()\nv.x = 1\n"
        f"for name in '{hooks}'.split(): setattr(K, name, lambda self, *a, name=name: ran.append(name))\n"
        "class L(list):\n    def __iter__(self): ran.append('iter'); return iter(())\n    def __len__(self): ran.append('len'); return 0\nw = L([1])\n"
    )
    write(guest)
    guest.ok("assert ran == [], ran")


def test_a_guest_writes_and_opens_both_kinds_of_states(guest: Guest) -> None:
    guest.ok("x = [1]\nimport math\ng = (i for i in 'ab')")
    with installed(guest.runtime):
        state, lost = split_state(guest.state.capture(1 << 20, portable=True))
        plain, _ = split_state(guest.state.capture(1 << 20))
    assert state.startswith(layout.MAGIC) and not plain.startswith(layout.MAGIC)
    assert [name for name, _ in lost] == ["g"]
    for data, names_there in ((state, {"x", "math"}), (plain, {"x"})):
        other = fresh()
        with installed(other.runtime):
            assert other.state.open(memoryview(data), 1 << 20) == []
        assert names(other) == names_there
        other.ok("assert x == [1]")


def test_a_state_that_goes_straight_to_another_guest_has_quick_checksums(guest: Guest) -> None:
    guest.ok("big = bytes(range(256)) * 1000; text = 'é' * 100_000; pairs = [(1, 'a')]; g = (i for i in 'ab')")
    with installed(guest.runtime):
        kept, _ = split_state(guest.state.capture(1 << 20, portable=True))
        direct, lost = split_state(guest.state.capture(1 << 20, portable=True, direct=True))
    assert [name for name, _ in lost] == ["g"]
    assert layout.split(kept, 1 << 20)[1] == layout.split(direct, 1 << 20)[1]
    assert {*head_of(kept)["objects"][0]} == {"bytes", "sha256"} and {*head_of(direct)["objects"][0]} == {
        "bytes",
        "crc32",
    }
    other = fresh()
    assert read(other, direct) == []
    other.ok("assert big == bytes(range(256)) * 1000 and text == 'é' * 100_000 and pairs == [(1, 'a')]")
    _, objects = layout.split(direct, 1 << 20)
    at = len(direct) - sum(map(len, objects))
    for piece in objects:
        at += len(piece)
        damaged = direct[: at - 1] + bytes([direct[at - 1] ^ 1]) + direct[at:]
        with pytest.raises(ValueError, match="another checksum"):
            layout.split(damaged, 1 << 20)


@pytest.mark.parametrize("sums", [{}, {"crc32": "00000000"}, {"sha256": 0}, {"sha256": None, "crc32": 0}])
def test_an_object_without_its_checksum_is_refused(guest: Guest, sums: dict[str, Any]) -> None:
    guest.ok("x = [1]")
    head, (graph_of_x,) = layout.split(write(guest), 1 << 20)
    head["objects"] = [{"bytes": len(graph_of_x), **sums}]
    packed = json.dumps(head).encode()
    size = len(packed).to_bytes(4, "little")
    state = layout.MAGIC + (1).to_bytes(4, "little") + size + sha256(packed).digest() + packed + graph_of_x
    with pytest.raises(ValueError, match="checksum"):
        layout.split(state, 1 << 20)


# --- Random graphs ----------------------------------------------------------------------------------------------------


def _random_graph(rng: random.Random) -> dict[str, Any]:
    made: list[Any] = []

    def pick() -> Any:
        atoms = [None, True, rng.randrange(-(10**20), 10**20), rng.random(), "t" * rng.randrange(3), b"b", float("inf")]
        return rng.choice(made) if made and rng.random() < 0.6 else rng.choice(atoms)

    def hashable() -> Any:
        return rng.choice([rng.random(), rng.randrange(99), "k" * rng.randrange(4), (1, rng.randrange(9)), None])

    for _ in range(rng.randrange(1, 60)):
        kind = rng.randrange(6)
        if kind == 0:
            made.append([pick() for _ in range(rng.randrange(5))])
        elif kind == 1:
            made.append({hashable(): pick() for _ in range(rng.randrange(5))})
        elif kind == 2:
            made.append(tuple(pick() for _ in range(rng.randrange(4))))
        elif kind == 3:
            made.append({hashable() for _ in range(rng.randrange(5))})
        elif kind == 4:
            made.append(frozenset(hashable() for _ in range(rng.randrange(3))))
        else:
            made.append(bytearray(rng.randbytes(3)))
    for value in made:
        if type(value) is list and rng.random() < 0.5:
            value.append(rng.choice(made))
        elif type(value) is dict and rng.random() < 0.5:
            value["back"] = rng.choice(made)
    return {f"v{number}": rng.choice(made) for number in range(rng.randrange(1, 12))}


def _is_same_graph(one: Any, other: Any) -> bool:
    """Compares two graphs: types, values, order, and which of the mutable objects are the same."""
    there: dict[int, int] = {}
    back: dict[int, int] = {}
    seen: set[tuple[int, int]] = set()
    todo = [(one, other)]
    while todo:
        a, b = todo.pop()
        if type(a) is not type(b):
            return False
        if (id(a), id(b)) in seen:
            continue
        is_same = there.setdefault(id(a), id(b)) == id(b) and back.setdefault(id(b), id(a)) == id(a)
        if type(a) in (list, dict, set, bytearray) and not is_same:
            return False
        seen.add((id(a), id(b)))
        if type(a) in (list, tuple):
            if len(a) != len(b):
                return False
            todo += zip(a, b, strict=True)
        elif type(a) is dict:
            if list(map(repr, a)) != list(map(repr, b)):
                return False
            todo += zip(a.values(), b.values(), strict=True)
        elif type(a) in (set, frozenset):
            if sorted(map(repr, a)) != sorted(map(repr, b)):
                return False
        elif a != b:
            return False
    return True


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs_are_the_same_elsewhere(seed: int) -> None:
    rng = random.Random(seed)
    guest, other = fresh(), fresh()
    variables = _random_graph(rng)
    guest.runtime.namespace.globals.update(variables)
    state = write(guest)
    assert read(other, state) == []
    found = {name: other.runtime.namespace.globals[name] for name in variables}
    assert _is_same_graph(variables, found)
    assert write(other) == state
    if seed < 20:
        assert not _is_same_graph(variables, {**found, "v0": object()})


# --- Hostile states ---------------------------------------------------------------------------------------------------


def forge(head: dict[str, Any], objects: list[bytes]) -> bytes:
    return b"".join(layout.lay_out({**head, "objects": []}, objects, 1 << 40))


def state_of(nodes: list[Any], variables: dict[str, Any] | None = None, buffers: tuple[bytes, ...] = ()) -> bytes:
    """A state with right checksums around any graph."""
    variables = {"v": [0]} if variables is None else variables
    graph = json.dumps({"nodes": nodes, "variables": variables}).encode()
    entry = {"type": "x", "codec": "x", "portability": "any", "reason": "", "group": 0}
    head = {
        "format": 1,
        "python": "3.14",
        "packages": {},
        "variables": [{"name": name, **entry} for name in variables],
        "groups": [{"codec": "graph", "objects": list(range(1 + len(buffers)))}],
        "lost": [],
    }
    return forge(head, [graph, *buffers])


def names(guest: Guest) -> set[str]:
    return set(guest.runtime.namespace.names())


def refuses(state: bytes, why: str) -> None:
    guest = fresh()
    with pytest.raises(ValueError, match=why):
        read(guest, state)
    assert names(guest) == set()


def test_every_flipped_bit_is_refused(guest: Guest) -> None:
    guest.ok("x = [1, 'a', b'" + "b" * 80 + "']; y = {'k': x}")
    state = write(guest)
    other = fresh()
    for position in range(len(state)):
        for bit in (1, 128):
            damaged = bytearray(state)
            damaged[position] ^= bit
            with pytest.raises(ValueError):
                read(other, bytes(damaged))
    assert names(other) == set()


def test_every_cut_is_refused(guest: Guest) -> None:
    guest.ok("x = [1, 'a']; y = b'z' * 100")
    state = write(guest)
    other = fresh()
    for size in range(len(state)):
        with pytest.raises(ValueError):
            read(other, state[:size])
    with pytest.raises(ValueError, match="follow"):
        read(other, state + b"x")
    assert names(other) == set()


def test_a_forged_hash_is_refused(guest: Guest) -> None:
    guest.ok("x = [1]")
    head, objects = layout.split(write(guest), 1 << 20)
    changed = bytes(objects[0]).replace(b"1", b"2")
    packed = json.dumps(head).encode()
    prefix = layout.MAGIC + (1).to_bytes(4, "little") + len(packed).to_bytes(4, "little")
    refuses(prefix + sha256(packed).digest() + packed + changed, "checksum")


def _with(change: Callable[[dict[str, Any]], Any]) -> bytes:
    head, objects = layout.split(state_of([["list"]]), 1 << 20)
    change(head)
    packed = json.dumps(head).encode()
    prefix = layout.MAGIC + (1).to_bytes(4, "little") + len(packed).to_bytes(4, "little")
    return prefix + sha256(packed).digest() + packed + b"".join(objects)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head.pop("groups"),
        lambda head: head.update(variables={}),
        lambda head: head["variables"].append(head["variables"][0]),
        lambda head: head["variables"][0].update(group=1),
        lambda head: head["variables"][0].update(group=-1),
        lambda head: head["variables"][0].update(group=True),
        lambda head: head["variables"][0].update(name=5),
        lambda head: head["variables"][0].update(name="w"),
        lambda head: head["groups"][0].update(objects=[]),
        lambda head: head["groups"][0].update(objects=[7]),
        lambda head: head["groups"][0].update(objects=[-1]),
        lambda head: head["groups"][0].update(codec="zip"),
        lambda head: head["groups"][0].update(codec="pickle"),
        lambda head: head["objects"][0].update(bytes=-1),
        lambda head: head["objects"][0].update(bytes=1 << 60),
        lambda head: head["objects"].append({"bytes": 5, "sha256": ""}),
        lambda head: head["lost"].append(["x"]),
        lambda head: head["lost"].append(["x", 5]),
    ],
)
def test_a_malformed_head_is_refused(change: Callable[[dict[str, Any]], Any]) -> None:
    refuses(_with(change), "refused")


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"sandglass-portable\n",
        b"sandglass-state\n" + bytes(100),
        layout.MAGIC + (2).to_bytes(4, "little") + bytes(40),
        layout.MAGIC + (1).to_bytes(4, "little") + b"\xff\xff\xff\xff" + bytes(40),
        pickle.dumps({"x": 1}),
    ],
)
def test_what_is_no_state_is_refused(state: bytes) -> None:
    refuses(state, "refused|no portable state")


@pytest.mark.parametrize(
    "nodes",
    [
        [["list", [1]]],
        [["list", [-1]]],
        [["list", [True]]],
        [["list", [0.0]]],
        [["list", []]],
        [["list", {}]],
        [["list", ["blob", 1]]],
        [["list", ["blob", 0]]],
        [["list", ["text", -1]]],
        [["list", ["int", "xyz"]]],
        [["list", ["float", "00"]]],
        [["list", ["bytes", "0"]]],
        [["list", ["str", "ff"]]],
        [["list", ["eval", "1"]]],
        [["list", 1 << 60]],
        [[]],
        [[5]],
        [{}],
        ["list"],
    ],
)
def test_a_malformed_graph_is_refused(nodes: list[Any]) -> None:
    refuses(state_of(nodes), "refused")


def test_json_that_is_deep_or_odd_is_refused() -> None:
    good = state_of([["list"]])
    head, _ = layout.split(good, 1 << 20)
    for text in (b"[" * 200_000, b'{"nodes":[["list",NaN]],"variables":{"v":[0]}}', b"\xff", b"9" * 10_000):
        refuses(forge(head, [text]), "JSON")


#: Graphs with right references whose values cannot be made: the variable is named, and nothing else happens.
IMPOSSIBLE: dict[str, list[Any]] = {
    "unknown codec": [["future", 1]],
    "a tuple in itself": [["tuple", [0]]],
    "two tuples in each other": [["tuple", [1]], ["tuple", [0]]],
    "a frozenset in itself": [["frozenset", [0]]],
    "an unhashable key": [["dict", [1], 1], ["list"]],
    "a key without a value": [["dict", 1]],
    "equal keys": [["dict", 1, "a", 1.0, "b"]],
    "equal items": [["set", 1, True]],
    "huge array": [
        ["numpy.array", [1], "C", True, [2], ["bytes", ""]],
        ["numpy.dtype", "simple", "<f8"],
        ["tuple", 1 << 50],
    ],
    "huge array of objects": [
        ["numpy.array", [1], "C", True, [2], None],
        ["numpy.dtype", "simple", "|O"],
        ["tuple", 1 << 50],
    ],
    "array of objects from bytes": [
        ["numpy.array", [1], "C", True, [2], ["bytes", "00" * 8]],
        ["numpy.dtype", "simple", "|O"],
        ["tuple", 1],
    ],
    "structured objects from bytes": [
        ["numpy.array", [1], "C", True, [3], ["bytes", "00" * 8]],
        ["numpy.dtype", "struct", [2], [4], [5], 8, False],
        ["tuple", "a"],
        ["tuple", 1],
        ["tuple", [6]],
        ["tuple", 0],
        ["numpy.dtype", "simple", "|O"],
    ],
    "negative shape": [
        ["numpy.array", [1], "C", True, [2], ["bytes", ""]],
        ["numpy.dtype", "simple", "<f8"],
        ["tuple", -1, 0],
    ],
    "view beyond its memory": [
        ["numpy.array", [1], "view", True, [2], [3], 8, [5]],
        ["numpy.dtype", "simple", "<f8"],
        ["tuple", 4],
        ["numpy.array", [1], "C", True, [4], ["bytes", "00" * 8]],
        ["tuple", 1],
        ["tuple", 8],
    ],
    "view before its memory": [
        ["numpy.array", [1], "view", True, [2], [3], -8, [4]],
        ["numpy.dtype", "simple", "<f8"],
        ["tuple", 1],
        ["numpy.array", [1], "C", True, [2], ["bytes", "00" * 8]],
        ["tuple", 8],
    ],
    "object scalar": [["numpy.scalar", [1], ["bytes", "00" * 8]], ["numpy.dtype", "simple", "|O"]],
    "dtype by code": [["numpy.dtype", "simple", "__import__('os')"]],
    "category codes out of range": [
        ["pandas.Categorical", [1], [4]],
        ["numpy.array", [2], "C", True, [3], ["bytes", "7f"]],
        ["numpy.dtype", "simple", "|i1"],
        ["tuple", 1],
        ["pandas.CategoricalDtype", [5], False],
        ["pandas.RangeIndex", 0, 2, 1, None],
    ],
    "series of another length": [
        ["pandas.Series", [1], [4], None, [5], True],
        ["numpy.array", [2], "C", True, [3], ["bytes", "7f"]],
        ["numpy.dtype", "simple", "|i1"],
        ["tuple", 1],
        ["pandas.RangeIndex", 0, 1 << 40, 1, None],
        ["dict"],
    ],
    "module of a path": [["module", "../../etc/passwd"]],
    "module of the sandbox": [["module", "sandglass.runtime.runtime"]],
    "main module": [["module", "__main__"]],
    "name in the sandbox": [["name", "sandglass.state.pickling", "Saver"]],
    "name that is missing": [["name", "os", "no.such"]],
    "name of numbers": [["name", 1, 2]],
    "source that is no Python": [
        ["function", "def f(:", 0, "f", False, [1], None, "f", "f", "m", None, None, None, [2], [2]],
        ["tuple"],
        ["dict"],
    ],
    "source that is deep": [
        ["function", "(" * 5000, 0, "f", False, [1], None, "f", "f", "m", None, None, None, [2], [2]],
        ["tuple"],
        ["dict"],
    ],
    "function that is missing": [
        ["function", "x = 1\n", 0, "f", False, [1], None, "f", "f", "m", None, None, None, [2], [2]],
        ["tuple"],
        ["dict"],
    ],
    "function with another closure": [
        ["function", "def f(): pass\n", 0, "f", False, [1], None, "f", "f", "m", None, None, None, [2], [2]],
        ["tuple", "a", "b"],
        ["dict"],
    ],
    "class of a base that forbids it": [
        ["class", "", False, "K", "K", "m", [1], None, [3], [3]],
        ["tuple", [2]],
        ["name", "builtins", "bool"],
        ["dict"],
    ],
    "class of a number": [["class", "", False, "K", "K", "m", [1], None, [2], [2]], ["tuple", 5], ["dict"]],
    "instance of no class": [["instance", 5, None, None, None, None]],
    "instance of a native class": [["instance", [1], None, None, None, None], ["name", "_io", "FileIO"]],
    "int of text": [["instance", [1], "5", None, None, [2]], ["name", "builtins", "int"], ["dict"]],
    "exception of no exception": [["exception", "print", [1], [2], [2]], ["tuple"], ["dict"]],
    "slots that are methods": [
        ["exception", "ValueError", [1], [2], [3]],
        ["tuple"],
        ["dict"],
        ["dict", "with_traceback", 1],
    ],
    "enumeration of lists": [
        ["class", "enum", False, "K", "K", "m", [1], None, [3], [4], None, [5], [5]],
        ["tuple", [2]],
        ["name", "enum", "Enum"],
        ["tuple", "A"],
        ["tuple", [6]],
        ["dict"],
        ["list"],
    ],
    "member that is missing": [["member", [1], "NOPE", None], ["name", "http", "HTTPStatus"]],
    "helper that is missing": [["helper", "rm_rf"]],
    "method that is a function": [["method", [1], "loads"], ["name", "json", "JSONDecoder"]],
    "typing of anything": [["typing", "get_type_hints", 1]],
    "pattern that is wrong": [["Pattern", "(", 0]],
    "pattern with odd flags": [["Pattern", "a", 1 << 40]],
    "date that is none": [["date", 2024, 13, 1]],
    "zone of a path": [["ZoneInfo", "../../../etc/passwd"]],
    "fraction by zero": [["Fraction", 1, 0]],
    "UUID that is too large": [["UUID", ["int", "f" * 40], "unknown"]],
    "deque of a negative length": [["deque", -1]],
    "array of an unknown code": [["array", "z", 8, ["bytes", ""]]],
    "array of cut bytes": [["array", "d", 8, ["bytes", "00"]]],
    "state of no generator": [["Random", 3, None, 1, 2]],
    "named tuple of keywords": [
        ["class", "namedtuple", False, "K", "K", "m", [1], None, [2], [3], [4], [4]],
        ["tuple", [5]],
        ["tuple", "class"],
        ["tuple"],
        ["dict"],
        ["name", "builtins", "tuple"],
    ],
    "bit generator by name": [["numpy.bits", "default_rng", None, None]],
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_a_value_that_cannot_be_made_is_named(what: str) -> None:
    guest = fresh()
    nodes = IMPOSSIBLE[what]
    number = len(nodes)
    lost = dict(read(guest, state_of([*nodes, ["list", 7]], {"v": [0], "w": [number]})))
    assert set(lost) == {"v"} and lost["v"], lost
    assert names(guest) == {"w"}
    guest.ok("assert w == [7]")


@pytest.mark.parametrize("name", ["a.b", "class", "__builtins__", "__name__", "llm_query", "", "1x", "answer", "../x"])
def test_a_name_that_no_variable_can_have_is_not_set(name: str) -> None:
    guest = fresh()
    before = dict(guest.runtime.namespace.globals)
    assert [lost for lost, _ in read(guest, state_of([["list"]], {name: [0]}))] == [name]
    assert dict(guest.runtime.namespace.globals) == before


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _pickled(path: Path, python: str, packages: dict[str, str]) -> bytes:
    data = pickle.dumps(None) + pickle.dumps({"v": Evil(path)})
    head = head_of(state_of([["list"]]))
    head["groups"] = [{"codec": "pickle", "python": python, "packages": packages, "objects": [0, 1]}]
    return forge(head, [data, b"[]"])


def test_a_pickle_for_another_python_or_package_is_not_opened(guest: Guest, tmp_path: Path) -> None:
    here = str(sys.implementation.cache_tag)
    for python, packages in (("cpython-39", {}), (here, {"numpy": "0.1"}), (here, {"no_such_package": "1"})):
        state = _pickled(tmp_path / "ran", python, packages)
        assert [name for name, _ in read(guest, state)] == ["v"]
    assert not (tmp_path / "ran").exists()
    read(guest, _pickled(tmp_path / "ran", here, {}))  # its own Python opens it, within the guest
    assert (tmp_path / "ran").exists()


def test_a_description_opens_nothing(tmp_path: Path) -> None:
    state = _pickled(tmp_path / "ran", str(sys.implementation.cache_tag), {})
    assert head_of(state)["groups"][0]["codec"] == "pickle"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("seed", range(20))
def test_random_damage_with_right_checksums_does_no_harm(guest: Guest, seed: int) -> None:
    """Changes one thing of a graph. The state is refused, or read: no other error, and no hang."""
    guest.ok(
        "class K:\n    def m(self, a=[1]): return a\nk = K()\nk.x = {1: (2, k.m)}\nfs = [lambda: k, K.m]\ns = frozenset({1, (2,)})\ne = ValueError(1, k)"
    )
    head, objects = layout.split(write(guest), 1 << 20)
    rng = random.Random(seed)
    for _ in range(15):
        parts = [bytes(piece) for piece in objects]
        number = rng.randrange(len(parts))
        graph = json.loads(parts[number])
        node = rng.choice(graph["nodes"]) if graph["nodes"] else ["list"]
        place = rng.randrange(len(node))
        node[place] = rng.choice(
            [None, 5, "x", [rng.randrange(len(graph["nodes"]) + 2)], "list", [0], -1, ["bytes", ""]]
        )
        parts[number] = json.dumps(graph).encode()
        other = fresh()
        try:
            read(other, forge(head, parts))
        except ValueError:
            assert names(other) == set()
