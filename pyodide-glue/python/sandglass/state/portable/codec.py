"""A codec: how the values of one type are taken apart, and made again."""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandglass.runtime.namespace import Namespace
    from sandglass.runtime.sources import Sources


class Scope:
    """The surroundings of one write or read, which some codecs need."""

    def __init__(self, namespace: Namespace, sources: Sources) -> None:
        self.namespace = namespace
        self.sources = sources
        #: Texts by file name, of cells that are kept.
        self.texts = dict(sources.kept())
        self.helpers = {id(value): name for name, value in (namespace.aliases | namespace.helpers).items()}
        #: What stays behind of a value that goes otherwise: `(what, why)` by the value's id.
        self.notes: dict[int, tuple[str, str]] = {}
        self._kept_alive: list[Any] = []
        #: The most bytes of the state.
        self.max_bytes = 0
        #: Owners of memory that several values use, by id; all owners, each with the ids of its users.
        self.shared: set[int] = set()
        self._users: dict[int, set[int]] = {}

    def note(self, value: Any, what: str, why: str) -> None:
        self.notes[id(value)] = what, why
        self._kept_alive.append(value)

    def share(self, owner: Any, user: Any) -> None:
        """Notes that a value uses the memory of an owner."""
        self._kept_alive.append(owner)
        self._users.setdefault(id(owner), set()).add(id(user))

    def newly_shared(self) -> set[int]:
        """Returns the ids of values that turned out to share memory since the last call."""
        found: set[int] = set()
        for owner, users in self._users.items():
            if len(users) > 1 and owner not in self.shared:
                self.shared.add(owner)
                found |= users
        return found


class Codec:
    """A way for values of one type.

    `take(value, scope)` returns the parts: atoms, and values that have codecs of their own. It raises `Cannot` for a
    value whose state the codec does not see completely.

    Without `fill`, `make(parts, scope)` gets all parts. With `fill`, `make` gets the first `needs` parts only, so that
    the others may lead back to the value. `fill(value, parts, scope)` gets all of them later.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[Any, Scope], list[Any]],
        make: Callable[[list[Any], Scope], Any],
        fill: Callable[[Any, list[Any], Scope], None] | None = None,
        *,
        needs: int = 0,
        joins: bool | None = None,
        reads: bool = False,
    ) -> None:
        self.name, self.take, self.make, self.fill, self.needs = name, take, make, fill, needs
        #: Variables that share such a value go in one group.
        self.joins = fill is not None if joins is None else joins
        #: To make the value, its parts are read or hashed. So they are filled before.
        self.reads = reads

    def needed(self, parts: list[Any]) -> int:
        """The number of the first parts that the value is made of."""
        return len(parts) if self.fill is None else self.needs


#: Codecs by the id of a type (a metaclass may lie about equality), and by name.
BY_TYPE: dict[int, Codec] = {}
BY_NAME: dict[str, Codec] = {}
#: Functions that find the codec of a type which is not known by itself.
FINDERS: list[Callable[[type], Codec | None]] = []
_kinds: list[type] = []


def register(kind: type | None, codec: Codec) -> Codec:
    """Makes a codec known: by its name, and with a `kind` for values of exactly this type."""
    BY_NAME[codec.name] = codec
    if kind is not None:
        _kinds.append(kind)
        BY_TYPE[id(kind)] = codec
    return codec


def pairs(mapping: Any) -> list[Any]:
    """Returns the keys and values of a dict in turn."""
    return [part for item in dict.items(mapping) for part in item]


def unpaired(parts: list[Any]) -> dict[Any, Any]:
    """Returns the dict of keys and values in turn. Raises ValueError for an odd number, or a key that occurs twice."""
    if len(parts) % 2:
        raise ValueError("it has a key without a value")
    made = dict(zip(parts[::2], parts[1::2], strict=True))
    if len(made) != len(parts) // 2:
        raise ValueError("two of its keys are equal here")
    return made
