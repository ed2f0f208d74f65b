"""Recorded results, and how they are made again: as new as the ones of a run, and sharing what they would share.

A run makes new objects, and it takes some that there are: parts of the data, and what exists once (None, small
integers, interned texts). Each is found out when a result is recorded, and the recipe is tried: what it makes twice
must relate to the real result as a second run's would.
"""

from __future__ import annotations

from json import decoder
from marshal import dumps, loads
from operator import is_
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate.tags import ids_in, leaves_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sandglass.speculate.tags import Tag

#: Objects in a result that are made one by one.
_MOST_NODES = 4000
#: Characters that are as quick to make again as one object.
_CHARS_PER_ITEM = 100
_NO_ROOM, _POINTER = [].__sizeof__(), [None].__sizeof__() - [].__sizeof__()
#: The ids of what exists once and for all.
_ONCE = frozenset(map(id, (None, True, False, *range(-5, 257))))


#: Those of what `json.loads` makes of `NaN` and `Infinity`, and `str` of bools: always the same. (CPython 3.11 has not
#: interned the latter.)
_CONSTANTS = frozenset(id(vars(decoder)[name]) for name in ("NaN", "PosInf", "NegInf"))
_CONSTANTS |= {id(text) for text in (str(True), str(False)) if loads(dumps(text, 4)) is not text}


class Changed(Exception):
    """What there is does not say which object a run would have taken."""


class Recipe:
    """Makes a result again."""

    def __init__(self, result: Any, sources: Sequence[tuple[Any, Tag]], most: int, others: Iterable[Any] = ()) -> None:
        """`sources` are the data that it was made of, `others` objects that were used besides.

        ValueError when it cannot be made again, or is too large.
        """
        parts = parts_of(result, most)
        if type(result) in (set, frozenset):
            raise ValueError("the order of a set depends on how it came to be")
        self._body: bytes | None = None
        self._tree: Any = None
        self._indices: Sequence[int] = ()
        self._room = list.__sizeof__(result) if type(result) is list else 0
        #: What exists once, behind the leaves.
        self._refs: list[Any] = []
        #: Leaves that must be one object still: any of these could be the one that a run takes.
        self._groups: list[list[int]] = []
        #: Leaves that exist once, too: nobody knows whether the run took them or made them.
        self._canonical: list[tuple[int, Any]] = []
        self._leaves = leaves = _pool(sources)
        self._is_leafless = not sources
        known = {*_CONSTANTS, *map(id, others)}
        for value, tag in sources:
            if not tag.is_flat:
                known |= ids_in(value, most * 10)
            elif type(value) in (list, tuple, dict):
                known.add(id(value))
        indices: dict[int, list[int]] = {}
        ids = {id(result)}
        for part in parts:
            ids.update(map(id, part))
        ids -= _ONCE
        taken = ids.intersection(map(id, leaves))
        if taken:
            for index, leaf in enumerate(leaves):
                if id(leaf) in taken:
                    indices.setdefault(id(leaf), []).append(index)
        for unknown in ids & known:
            raise ValueError(f"it has a part of something else: {unknown}")
        self._choose(result, parts, indices)
        for number in taken:
            found = indices[number]
            if len(found) > 1:
                self._groups.append(found)
            leaf = leaves[found[0]]
            if loads(dumps(leaf, 4)) is leaf:
                self._canonical.append((found[0], leaf))
        # The pool is of the moment only: what is in it is not to be kept.
        one, two = self._make(leaves), self._make(leaves)
        if not _is_same(result, one, two, parts, most) or any(map(_has_single_bytes, parts)):
            raise ValueError("it cannot be made again as it is")
        self._leaves = ()
        self.size = len(self._body or b"") + 100 * len(self._refs) + 8 * len(self._indices) + self._tree_size

    def _choose(self, result: Any, parts: Sequence[Any], indices: dict[int, list[int]]) -> None:
        self._tree_size = 0
        if not indices:
            self._body = dumps(result, 4)
            return
        kind = type(result)
        first = len(self._leaves)
        if kind is list and len(parts) == 1:
            picks = []
            refs: dict[int, int] = {}
            for item in result:
                found = indices.get(id(item))
                if found is not None:
                    picks.append(found[0])
                    continue
                if loads(dumps(item, 4)) is not item:
                    break
                if id(item) not in refs:
                    refs[id(item)] = first + len(self._refs)
                    self._refs.append(item)
                picks.append(refs[id(item)])
            else:
                self._indices = picks
                return
        self._refs = []
        self._first = first
        nodes: dict[int, int] = {}
        self._tree = self._node(result, indices, nodes)
        self._tree_size = 150 * len(nodes)

    def _node(self, value: Any, indices: dict[int, list[int]], nodes: dict[int, int]) -> tuple[Any, ...]:
        if id(value) in indices:
            return "leaf", indices[id(value)][0]
        if id(value) in nodes:
            return "same", nodes[id(value)]
        if len(nodes) > _MOST_NODES:
            raise ValueError("it has too many parts")
        kind = type(value)
        if kind is list:
            node: tuple[Any, ...] = "list", [self._node(item, indices, nodes) for item in value], list.__sizeof__(value)
        elif kind is tuple and value:
            node = "tuple", [self._node(item, indices, nodes) for item in value]
        elif kind is dict:
            node = (
                "dict",
                [(self._node(key, indices, nodes), self._node(item, indices, nodes)) for key, item in value.items()],
            )
        else:
            node = "body", dumps(value, 4)
        nodes[id(value)] = len(nodes)  # numbered as they are made: after their parts
        return node

    def make(self, sources: Sequence[tuple[Any, Tag]]) -> Any:
        """The result for these data, which are those that it was recorded for. Raises Changed."""
        return self._make(() if self._is_leafless or self._body is not None else _pool(sources))

    def _make(self, leaves: Sequence[Any]) -> Any:
        if self._body is not None:
            made = loads(self._body)
            return _with_room(made, self._room) if type(made) is list else made
        for index, leaf in self._canonical:
            if leaves[index] is not leaf:
                raise Changed
        for group in self._groups:
            first = leaves[group[0]]
            if any(leaves[index] is not first for index in group):
                raise Changed
        if self._tree is not None:
            return _build(self._tree, leaves, [])
        pool = [*leaves, *self._refs] if self._refs else leaves
        return _with_room([*map(pool.__getitem__, self._indices)], self._room)


class Texts:
    """What `print` writes, which is all that its arguments are for."""

    def __init__(self, values: tuple[Any, ...], most: int) -> None:
        texts = (*map(str, values),)
        if sum(map(len, texts)) > most * _CHARS_PER_ITEM:
            raise ValueError("it is too long")
        self._body = dumps(texts, 2)
        self.size = len(self._body)

    def make(self, _sources: Sequence[tuple[Any, Tag]]) -> Any:
        """The texts."""
        return loads(self._body)


def _pool(sources: Sequence[tuple[Any, Tag]]) -> Sequence[Any]:
    """All parts of the data that a result may have."""
    flat = [leaves_of(value) for value, tag in sources if tag.is_flat]
    if len(flat) == 1:
        return flat[0]
    return [leaf for leaves in flat for leaf in leaves]


def _build(node: tuple[Any, ...], leaves: Sequence[Any], made: list[Any]) -> Any:
    what = node[0]
    if what == "leaf":
        return leaves[node[1]]
    if what == "same":
        return made[node[1]]
    value: Any
    if what == "list":
        value = _with_room([_build(item, leaves, made) for item in node[1]], node[2])
    elif what == "tuple":
        value = (*[_build(item, leaves, made) for item in node[1]],)
    elif what == "dict":
        value = {}
        for key, item in node[1]:
            key = _build(key, leaves, made)
            value[key] = _build(item, leaves, made)
    else:
        value = loads(node[1])
    made.append(value)
    return value


def _with_room(items: list[Any], size: int) -> list[Any]:
    """The list with as much room for more items as that of the run had, which `sys.getsizeof` tells."""
    if list.__sizeof__(items) == size:
        return items
    room: list[Any] = [None] * ((size - _NO_ROOM) // _POINTER)
    room[:] = items
    if list.__sizeof__(room) == size or not items:
        return room
    room = ("x " * len(items)).split()  # which sets aside room for twelve
    room[:] = items
    return room


def _is_same(real: Any, one: Any, two: Any, parts: Sequence[Any], most: int) -> bool:
    """Whether three results relate as those of three runs would."""
    if type(one) is not type(real) or dumps(one, 2) != dumps(real, 2):
        return False
    relations: list[tuple[Any, Any, Any]] = [((real,), (one,), (two,))]
    relations += zip(parts, parts_of(one, most), parts_of(two, most), strict=True)
    first: set[tuple[int, int]] = set()
    second: set[tuple[int, int]] = set()
    for a, b, c in relations:
        same = [*map(is_, a, b)]
        # What exists once is the same in all three; what is new is another object in each.
        if same != [*map(is_, a, c)] or same != [*map(is_, b, c)]:
            return False
        first.update(zip(map(id, a), map(id, b), strict=True))
        second.update(zip(map(id, a), map(id, c), strict=True))
        if [*map(_size, a)] != [*map(_size, b)]:
            return False
    for pairs in (first, second):
        if not len(pairs) == len({pair[0] for pair in pairs}) == len({pair[1] for pair in pairs}):
            return False
    return True


def _has_single_bytes(part: Any) -> bool:
    """Whether there are bytes of length 1, which exist once, and which `marshal` makes anew. (Not so characters.)"""
    return id(bytes) in {*map(id, map(type, part))} and any(type(item) is bytes and len(item) == 1 for item in part)


def _size(value: Any) -> int:
    """What `sys.getsizeof` says of a container."""
    kind = type(value)
    if kind is list:
        return list.__sizeof__(value)
    return dict.__sizeof__(value) if kind is dict else 0
