"""What a pure expression depends on: the data in variables, tagged so that a change cannot go unseen.

Long texts are compared with themselves, everything else by its whole content: the bytes of `marshal`, version 2, which
tell all exact types, the order of dicts and the bits of floats apart. Not what is shared in it: what is pure is blind
to that, but for NaN, which is refused, and for results that are parts of the data, which `results` looks after.
"""

from __future__ import annotations

from itertools import chain
from marshal import dumps
from operator import ne
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

try:
    from _blake2 import blake2b  # `hashlib` would load OpenSSL
except ImportError:
    from hashlib import blake2b

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Texts of more characters are kept as they are, as long as a variable has them.
HELD_CHARS = 4096
#: Content of more bytes is kept as its digest.
_DIGEST_BYTES = 512
#: By their ids: to look up a class by itself would ask its metaclass, which may be the user's.
_SCALARS = frozenset(map(id, (type(None), bool, int, float, complex, str, bytes)))
_UNSIZED = frozenset(map(id, (type(None), bool, int, float, complex)))
_CONTAINERS = frozenset(map(id, (tuple, list, dict)))
_SETS = frozenset(map(id, (set, frozenset)))
_PLAIN = _SCALARS | _CONTAINERS


class Tag:
    """What a variable had in it."""

    __slots__ = ("_body", "_kind", "_length", "held", "is_flat", "size")

    def __init__(self, value: Any, most: int) -> None:
        """ValueError for what is no data, or has more than so many items."""
        self._kind = kind = type(value)
        if id(kind) not in _SCALARS | _CONTAINERS | _SETS:
            raise ValueError("no data")
        #: The text that is compared with itself; else None.
        self.held: Any = None
        #: Whether all items are scalars.
        self.is_flat = True
        self._length = 0
        self._body = b""
        self.size = 100
        if (kind is str or kind is bytes) and len(value) > HELD_CHARS:
            self.held = value
            return
        parts = parts_of(value, most)
        if any(any(map(ne, part, part)) for part in parts):
            raise ValueError("NaN, which is equal only to itself")
        if id(kind) not in _UNSIZED:
            self._length = len(value)
        self.is_flat = len(parts) <= (2 if kind is dict else 1)
        self._body = _content(value)
        self.size += len(self._body)

    def fits(self, value: Any, most: int) -> bool:
        """Whether there is the same in a variable now."""
        kind = type(value)
        if kind is not self._kind:
            return False
        held = self.held
        if held is not None:
            return value is held or bool(len(value) == len(held) and value == held)
        length = len(value) if id(kind) not in _UNSIZED else 0
        if length != self._length:
            return False
        try:
            parts_of(value, most)
            return _content(value) == self._body
        except ValueError:
            return False

    def hold(self, value: Any) -> None:
        """Takes an equal text instead, which is the one that the variable has now."""
        if self.held is not None:
            self.held = value


def leaves_of(value: Any) -> Sequence[Any]:
    """The items of flat data in order; for a scalar, itself."""
    kind = type(value)
    if kind is dict:
        return [*value.keys(), *value.values()]
    if kind is list or kind is tuple:
        return value  # type: ignore[no-any-return]
    return (*value,) if kind is set or kind is frozenset else (value,)


def parts_of(value: Any, most: int) -> list[Iterable[Any]]:
    """The containers in data, as far as they can be gone through without code of the user's: of dicts, keys and values.

    ValueError for what is no data, has more than so many items, or has sets in it.
    """
    kind = type(value)
    if id(kind) in _SCALARS:
        return [(value,)]
    found: list[Iterable[Any]] = []
    todo: list[Any] = [(*value,) if kind is set or kind is frozenset else value]
    while todo:
        container = todo.pop()
        kind = type(container)
        if id(kind) not in _CONTAINERS:
            raise ValueError("no data")
        most -= len(container) + 1
        if most < 0:
            raise ValueError("too much")
        for part in (container.keys(), container.values()) if kind is dict else (container,):
            found.append(part)
            kinds = {*map(id, map(type, part))}
            if kinds <= _SCALARS:
                continue
            if not kinds <= _PLAIN:
                raise ValueError("no data")
            todo += [item for item in part if id(type(item)) in _CONTAINERS]
    return found


def are_plain(values: Iterable[Any], most: int) -> bool:
    """Whether values end without code of the user's, which could see who has ended them."""
    try:
        for value in values:
            if type(value) is not str:
                parts_of(value, most)
    except ValueError:
        return False
    return True


def ids_in(value: Any, most: int) -> set[int]:
    """The ids of data, of all containers and items in it."""
    found = {id(value)}
    found.update(map(id, chain.from_iterable(parts_of(value, most))))
    return found


def _content(value: Any) -> bytes:
    kind = type(value)
    body = dumps((*value,) if kind is set or kind is frozenset else value, 2)
    return body if len(body) <= _DIGEST_BYTES else blake2b(body, digest_size=32).digest()
