"""The global generators of random numbers: that of `random`, and that of the older functions of `numpy.random`.

Their states are an optional member of the head, `generators`, which names the objects of a graph. Its nodes are
`[kind, gauss, field, …]`, with the fields of `FIELDS`; arrays are bytes, little-endian.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import sys
from importlib import import_module
from math import isfinite
from random import Random, _inst
from struct import calcsize, pack, unpack
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.pickling import reason_of
from sandglass.state.portable.graph import Cannot, Graph, Objects, Ref, encode_atom, pack_graph
from sandglass.state.portable.layout import refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    Reasons = list[tuple[str, str]]
    State = tuple[str, float | None, dict[str, Any]]  # kind, the second number of a pair of normal ones, and fields

_ours: Any = _inst
_RANDOM, _NUMPY = "random", "numpy.random"
_ARRAYS = {"I": "u4", "Q": "u8"}
_UINT32 = {"has_uint32": 1, "uinteger": (1 << 32) - 1}
_128_BITS = (1 << 128) - 1
#: What the state of a kind of generator consists of: numbers from 0 to the largest, or arrays as `struct` names them.
#: NumPy itself does not check positions, and would read beyond its arrays.
FIELDS: dict[str, dict[str, int | str]] = {
    "MT19937": {"key": "624I", "pos": 624},
    "PCG64": {"state": _128_BITS, "inc": _128_BITS, **_UINT32},
    "PCG64DXSM": {"state": _128_BITS, "inc": _128_BITS, **_UINT32},
    "Philox": {"counter": "4Q", "key": "2Q", "buffer": "4Q", "buffer_pos": 4, **_UINT32},
    "SFC64": {"state": "4Q", **_UINT32},
}
#: The fields that are beside NumPy's `state`, and not in it.
_BESIDE = frozenset({"buffer", "buffer_pos", *_UINT32})
#: The states at the start of the guest. No cell has used a generator whose state is still the same.
_first: dict[str, bytes] = {}


def begin() -> None:
    """Seeds the generator of `random`. The states that the generators have now are not the user's."""
    _ours.seed()
    _first.clear()
    for name in (_RANDOM, _NUMPY):
        if name in sys.modules:
            try:
                _first[name] = _packed(_TAKE[name]())
            except Cannot:
                continue


def names() -> dict[int, list[Any]]:
    """Returns the names of the generators by their ids: a reader has its own."""
    found = {id(_ours): [_RANDOM, "_inst"]}
    legacy = _legacy()
    if legacy is not None:
        found[id(legacy)] = ["numpy.random.mtrand", "_rand"]
    return found


def _legacy() -> Any:
    """NumPy's global generator; None if NumPy is not loaded."""
    found = getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None)
    return found if type(found) is getattr(sys.modules.get(_NUMPY), "RandomState", None) else None


# --- Writing ----------------------------------------------------------------------------------------------------------


def write() -> tuple[list[bytes], Reasons]:
    """Returns the objects of the graph, none if no generator was used, and the states that cannot go."""
    objects, lost = Objects(), []
    nodes: list[list[Any]] = []
    variables: dict[str, Any] = {}
    for name, take in _TAKE.items():
        if name not in sys.modules:
            continue
        try:
            state = take()
        except Cannot as error:
            lost.append((_what(name), str(error)))
            continue
        if _packed(state) != _first.get(name) and not (name == _NUMPY and _is_new(state)):
            variables[name] = [len(nodes)]
            nodes.append([state[0], *(encode_atom(part, objects) for part in _parts(state))])
    objects.data[0] = pack_graph(nodes, variables)
    return objects.data if nodes else [], lost


def _take_random() -> State:
    *key, pos = super(Random, _ours).getstate()
    return "MT19937", _gauss(_ours.gauss_next), {"key": key, "pos": pos}


def _take_numpy() -> State:
    legacy = _legacy()
    if legacy is None:
        raise Cannot("the generator of numpy.random is none of NumPy's")
    state = legacy.get_state(legacy=False)
    kind = state["bit_generator"]
    if kind not in FIELDS or type(legacy._bit_generator) is not getattr(sys.modules[_NUMPY], kind, None):
        raise Cannot(f"a generator of the kind {kind}")
    values = {**state, **state["state"]}
    fields = {
        name: int(values[name]) if type(what) is int else values[name].tolist() for name, what in FIELDS[kind].items()
    }
    return kind, _gauss(state["gauss"] if state["has_gauss"] else None), fields


_TAKE = {_RANDOM: _take_random, _NUMPY: _take_numpy}


def _gauss(value: Any) -> float | None:
    if value is not None and (type(value) is not float or not isfinite(value)):
        raise Cannot("a generator whose next normal number is none")
    return value


def _is_new(state: State) -> bool:
    """Returns true for a generator that is as NumPy made it when it was imported: from random seeds."""
    kind, gauss, fields = state
    numpy: Any = sys.modules[_NUMPY]
    seeds = _legacy()._bit_generator.seed_seq  # None once it was seeded
    if kind != "MT19937" or gauss is not None or type(seeds) is not numpy.SeedSequence:
        return False
    new = numpy.MT19937(seeds).state["state"]
    return bool(new["key"].tolist() == fields["key"] and new["pos"] == fields["pos"])


def _parts(state: State) -> list[Any]:
    kind, gauss, fields = state
    shapes = FIELDS[kind]
    packed = {name: pack(f"<{what}", *fields[name]) for name, what in shapes.items() if type(what) is str}
    return [gauss, *({**fields, **packed}[name] for name in shapes)]


def _packed(state: State) -> bytes:
    return repr((state[0], _parts(state))).encode()


# --- Reading ----------------------------------------------------------------------------------------------------------


def read(head: Mapping[str, Any], objects: list[memoryview]) -> dict[str, State]:
    """Returns the states of a head, all checked. Raises ValueError. Sets nothing."""
    if "generators" not in head:
        return {}
    graph = Graph([objects[number] for number in head["generators"]["objects"]])
    states: dict[str, State] = {}
    for name, part in graph.variables.items():
        if name not in _TAKE or type(part) is not Ref:
            raise refused("it has the state of an unknown generator of random numbers")
        kind, (gauss, *values) = graph.codecs[part], graph.parts[part] or [None]
        if kind not in FIELDS or (name == _RANDOM and kind != "MT19937"):
            raise refused(f"it has the state of an unknown kind of generator, {kind[:40]!r}")
        is_gauss = gauss is None or (type(gauss) is float and isfinite(gauss))
        if not is_gauss or len(values) != len(FIELDS[kind]):
            raise refused(f"the state of {name} is malformed")
        fields: dict[str, Any] = {}
        for (field, what), value in zip(FIELDS[kind].items(), values, strict=True):
            if type(what) is str and type(value) is bytes and len(value) == calcsize(f"<{what}"):
                fields[field] = list(unpack(f"<{what}", value))
            elif type(what) is int and type(value) is int and 0 <= value <= what:
                fields[field] = value
            else:
                raise refused(f"the state of {name} has a wrong {field}")
        states[name] = kind, gauss, fields
    return states


def put(states: dict[str, State]) -> Reasons:
    """Sets the generators. Returns the states that cannot be had here."""
    lost = []
    for name, state in states.items():
        try:
            _PUT[name](*state)
        except Exception as error:
            lost.append((_what(name), reason_of(error)))
    return lost


def _put_random(_: str, gauss: float | None, fields: dict[str, Any]) -> None:
    super(Random, _ours).setstate((*fields["key"], fields["pos"]))
    _ours.gauss_next = gauss


def _put_numpy(kind: str, gauss: float | None, fields: dict[str, Any]) -> None:
    try:
        numpy: Any = import_module(_NUMPY)
    except ImportError:
        raise ImportError("it needs the module numpy, which is not here") from None
    legacy = _legacy()
    if legacy is None:
        raise TypeError("the generator of numpy.random is none of NumPy's")
    if type(legacy._bit_generator) is not getattr(numpy, kind):
        numpy.set_bit_generator(getattr(numpy, kind)())
    state = {
        name: import_module("numpy").array(value, _ARRAYS[str(FIELDS[kind][name])[-1]])
        if type(value) is list
        else value
        for name, value in fields.items()
    }
    beside = {name: state.pop(name) for name in _BESIDE & state.keys()}
    has_gauss = {"has_gauss": int(gauss is not None), "gauss": gauss or 0.0}
    legacy.set_state({"bit_generator": kind, "state": state, **beside, **has_gauss})


_PUT = {_RANDOM: _put_random, _NUMPY: _put_numpy}


def _what(name: str) -> str:
    return f"{name}: its state"
