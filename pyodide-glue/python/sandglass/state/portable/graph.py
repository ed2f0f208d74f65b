"""The graph of values: nodes, the atoms in them, and what can be said of paths between nodes.

A node is `[codec, part, …]`. A part is an atom, or a reference to a node. Atoms in JSON:

    null true false    None, True, False
    1, 1.5             an int below 2**53, a finite float
    "text"             a str of at most 1000 characters, without lone surrogates
    ["int", hex]       any other int, such as "-1fffffffffffff00"
    ["float", hex]     any other float: the 8 bytes of IEEE 754, big-endian
    ["str", hex]       a str with lone surrogates: UTF-8 with surrogates as three bytes
    ["bytes", hex]     bytes, at most 64
    ["text", n]        a longer str: object n of the group, encoded the same way
    ["blob", n]        longer bytes: object n of the group
    [n]                a reference to node n of the group
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import json
from math import isfinite
from struct import pack, unpack
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state.portable.layout import parse, refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_NODES = 10_000_000
_EXACT = 1 << 53
_SHORT_TEXT = 1000
_SHORT_BYTES = 64
#: Types whose values are parts of a node themselves. They have no identity in a state.
ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_ATOM_IDS = frozenset(map(id, ATOMS))
_PLAIN = frozenset({type(None), bool})


def is_atom(value: Any) -> bool:
    """Returns true for an atom. Compares types by id, because a metaclass may have a `__hash__` of its own."""
    return id(type(value)) in _ATOM_IDS


def are_atoms(values: Iterable[Any]) -> bool:
    return _ATOM_IDS.issuperset(map(id, map(type, values)))


class Cannot(Exception):
    """A value cannot go by its codec. The message is the reason, for the user."""


class Never(Cannot):
    """A value cannot go as a pickle either, because that would change it without a word."""


class Ref(int):
    """The number of a node, where a part stands for that node."""


class Objects:
    """The objects of one group. The graph is object 0; equal bytes are one object."""

    def __init__(self) -> None:
        self.data: list[bytes] = [b""]
        self._known: dict[bytes, int] = {}

    def add(self, data: bytes) -> int:
        number = self._known.get(data)
        if number is None:
            number = self._known[data] = len(self.data)
            self.data.append(data)
        return number


def encode_atom(value: Any, objects: Objects) -> Any:
    """Returns the JSON of an atom."""
    kind = type(value)
    if kind is int:
        return value if -_EXACT < value < _EXACT else ["int", format(value, "x")]
    if kind is str:
        if len(value) <= _SHORT_TEXT:
            try:
                value.encode()
                return value
            except UnicodeEncodeError:
                return ["str", value.encode("utf-8", "surrogatepass").hex()]
        return ["text", objects.add(value.encode("utf-8", "surrogatepass"))]
    if kind is float:
        return value if isfinite(value) else ["float", pack(">d", value).hex()]
    if kind is bytes:
        return ["bytes", value.hex()] if len(value) <= _SHORT_BYTES else ["blob", objects.add(value)]
    return value


def pack_graph(nodes: list[list[Any]], variables: dict[str, Any]) -> bytes:
    """Returns the graph as JSON: the same bytes for the same graph."""
    text = json.dumps({"nodes": nodes, "variables": variables}, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


class Graph:
    """A graph that was read, with every reference checked. Parts are atoms, or `Ref`."""

    def __init__(self, objects: Sequence[memoryview]) -> None:
        graph = parse(objects[0])
        if type(graph) is not dict or type(graph.get("nodes")) is not list or type(graph.get("variables")) is not dict:
            raise refused("a graph has no nodes and variables")
        nodes, self._objects = graph["nodes"], objects
        if len(nodes) > MAX_NODES:
            raise refused(f"a graph has more than {MAX_NODES} nodes")
        self._size = len(nodes)
        self.codecs: list[str] = []
        self.parts: list[list[Any]] = []
        for node in nodes:
            if type(node) is not list or not node or type(node[0]) is not str:
                raise refused("a node is malformed")
            self.codecs.append(node[0])
            self.parts.append([part if type(part) in _PLAIN else self._part(part) for part in node[1:]])
        self.variables = {name: self._part(part) for name, part in graph["variables"].items()}
        self.children = [[part for part in parts if type(part) is Ref] for parts in self.parts]

    def _part(self, part: Any) -> Any:
        kind = type(part)
        if kind is int:
            if -_EXACT < part < _EXACT:
                return part
        elif kind in ATOMS:
            return part
        elif kind is list and len(part) == 1 and type(part[0]) is int and 0 <= part[0] < self._size:
            return Ref(part[0])
        elif kind is list and len(part) == 2 and type(part[0]) is str:
            try:
                return self._atom(*part)
            except (ValueError, OverflowError):
                pass
        raise refused("a part of a node is no atom and no reference")

    def _atom(self, tag: str, content: Any) -> Any:
        if tag in ("text", "blob"):
            if type(content) is not int or not 0 < content < len(self._objects):
                raise refused("a node names an object that its group does not have")
            data = bytes(self._objects[content])
        elif type(content) is not str:
            raise ValueError
        elif tag == "int":
            return int(content, 16)
        else:
            data = bytes.fromhex(content)
        if tag == "float" and len(data) == 8:
            return unpack(">d", data)[0]
        if tag in ("text", "str"):
            return data.decode("utf-8", "surrogatepass")
        if tag in ("blob", "bytes"):
            return data
        raise ValueError


def spread(reasons: dict[int, str], children: Sequence[Iterable[int]]) -> None:
    """Gives the reason of a node to all nodes that lead to it."""
    if not reasons:
        return
    parents: dict[int, list[int]] = {}
    for number, refs in enumerate(children):
        for child in refs:
            parents.setdefault(child, []).append(number)
    todo = list(reasons)
    while todo:
        number = todo.pop()
        for parent in parents.get(number, ()):
            if parent not in reasons:
                reasons[parent] = reasons[number]
                todo.append(parent)


def reach(roots: Iterable[int], children: Sequence[Iterable[int]]) -> list[int]:
    """Returns all nodes that the roots lead to, in the order of the first path to each."""
    seen: dict[int, None] = {}
    todo = [iter(roots)]
    while todo:
        for number in todo[-1]:
            if number not in seen:
                seen[number] = None
                todo.append(iter(children[number]))
                break
        else:
            todo.pop()
    return list(seen)
