"""Writes variables as a portable state.

All that the variables lead to becomes one graph of nodes. A value without a codec spoils the variables that lead to it:
those go as a pickle, or not at all. Variables that share an object which can change are in one group, and go the same
way. Each group is written by itself, so a group in which nothing changed gives the same bytes again.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import sys
import types
from gc import get_referents
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__
from sandglass.runtime.values import type_name
from sandglass.state.by_value import without_collector
from sandglass.state.pickling import BASES, VARS, is_native
from sandglass.state.portable import classes, codecs, generators, names, pickles  # noqa: F401  (`codecs` registers)
from sandglass.state.portable.codec import BY_TYPE, FINDERS, Codec, Scope
from sandglass.state.portable.functions import FUNCTION
from sandglass.state.portable.graph import (
    MAX_NODES,
    Cannot,
    Never,
    Objects,
    are_atoms,
    encode_atom,
    is_atom,
    pack_graph,
    reach,
    spread,
)
from sandglass.state.portable.layout import FORMAT, MAX_NAME_CHARS, MAX_REASON_CHARS, MAX_VARIABLES, TooLarge, lay_out
from sandglass.state.portable.libraries import register_loaded

if TYPE_CHECKING:
    from sandglass.runtime.namespace import Namespace
    from sandglass.runtime.sources import Sources

_NO_PARTS = frozenset(map(id, (types.ModuleType, types.CodeType, types.FrameType, types.TracebackType)))


def write(namespace: Namespace, sources: Sources, max_bytes: int) -> bytes:
    """Returns the user's variables. The head names those that cannot go, each with the reason.

    Raises ValueError when they take more than `max_bytes`.
    """
    return b"".join(write_pieces(namespace, sources, max_bytes)[0])


def write_pieces(
    namespace: Namespace, sources: Sources, max_bytes: int, is_direct: bool = False
) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Returns the result of `write` in pieces, and each `(name, reason)` of its head."""
    register_loaded()
    with without_collector():
        return _Writing(Scope(namespace, sources), max_bytes).run(is_direct)


class _Writing:
    def __init__(self, scope: Scope, max_bytes: int) -> None:
        self._scope, self._max_bytes = scope, max_bytes
        self._count = 0
        self._left = max_bytes
        self._numbers: dict[int, int] = {}
        self._values: list[Any] = []
        self._codecs: list[Codec | None] = []
        self._parts: list[list[Any]] = []
        self._children: list[list[int]] = []
        self._reasons: dict[int, str] = {}
        #: Reasons for which there is no pickle either.
        self._never: dict[int, str] = {}
        self._lost: list[tuple[str, str]] = []
        self._beyond: set[int] = set()
        #: The names of objects that each interpreter has of its own.
        self._own = generators.names()

    def run(self, is_direct: bool) -> tuple[list[bytes], list[tuple[str, str]]]:
        variables: dict[str, Any] = {}
        for name, value in self._scope.namespace.items():
            if len(name) > MAX_NAME_CHARS or len(variables) == MAX_VARIABLES:
                self._lose(name, f"a state has at most {MAX_VARIABLES} names of {MAX_NAME_CHARS} characters")
            else:
                variables[name] = value
        self._beyond = _tables(self._scope)
        roots = {name: self._number(value) for name, value in variables.items()}
        self._visit_all()
        for reasons in (self._reasons, self._never):
            spread(reasons, self._children)
        ways = self._ways(variables, roots)
        groups = self._groups(ways, roots)
        head, objects = self._join(groups, ways, variables, roots)
        return lay_out(head, objects, self._max_bytes, is_direct), head["lost"]

    # --- The graph ----------------------------------------------------------------------------------------------------

    def _number(self, value: Any) -> int | None:
        """The number of a value's node; None for an atom."""
        if is_atom(value):
            return None
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._values)
            self._values.append(value)
        return number

    def _visit_all(self) -> None:
        while len(self._parts) < len(self._values):
            number = len(self._parts)
            value = self._values[number]
            codec: Codec | None = None
            try:
                codec = self._codec_of(value)
                parts = codec.take(value, self._scope)
            except Cannot as error:
                self._refuse(number, error)
                parts = self._referents(value)
            except KeyboardInterrupt:
                raise
            except Exception as error:
                self._reasons[number] = f"a {type_name(value)} that cannot be read: {type_name(error)}"
                parts = self._referents(value)
            self._codecs.append(codec)
            self._parts.append(parts)
            self._children.append(self._numbers_of(parts))
            self._count += len(parts)
            if 2 * self._count > self._max_bytes:  # each part takes two bytes at least
                raise self._too_large()
        for number in sorted(self._numbers[user] for user in self._scope.newly_shared() if user in self._numbers):
            self._take_again(number)
        if len(self._parts) < len(self._values):
            self._visit_all()

    def _refuse(self, number: int, error: Cannot) -> None:
        self._reasons[number] = str(error)
        if isinstance(error, Never):
            self._never[number] = str(error)

    def _take_again(self, number: int) -> None:
        """Takes a value that shares memory with another: now it refers to the owner."""
        codec = self._codecs[number]
        if codec is None:
            return
        try:
            self._parts[number] = codec.take(self._values[number], self._scope)
        except Cannot as error:
            self._refuse(number, error)
        self._children[number] = self._numbers_of(self._parts[number])

    def _numbers_of(self, parts: list[Any]) -> list[int]:
        if are_atoms(parts):
            return []
        return [number for number in map(self._number, parts) if number is not None]

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the variables take more than {self._max_bytes} bytes; keep large data in files")

    def _codec_of(self, value: Any) -> Codec:
        kind = type(value)
        if id(value) in self._scope.helpers:
            return names.HELPER
        if id(value) in self._own:
            return Codec("name", lambda value, _: self._own[id(value)], names.NAME.make)
        codec = BY_TYPE.get(id(kind))
        if codec is not None:
            return names.NAME if codec is names.METHOD and names.has_name(value) else codec
        if issubclass(kind, type):
            if names.has_name(value):
                return names.NAME
            if is_native(value):
                if names.name_in_types(value):
                    return names.NAME
                raise Cannot(f"the class {value.__name__}, which no module names")
            return classes.CLASS
        if kind is types.FunctionType:
            return names.NAME if names.has_name(value) else FUNCTION
        if names.is_member(value):
            return names.MEMBER
        if classes.is_builtin_exception(kind):
            return classes.EXCEPTION
        found = next((codec for find in FINDERS if (codec := find(kind))), None)
        if found is not None:
            return found
        if not is_native(kind) and not names.has_name(kind):
            return classes.INSTANCE
        if names.has_name(value) and getattr(value, "__name__", None) == getattr(value, "__qualname__", value):
            return names.NAME
        raise Cannot(f"a {type_name(value)}, for which there is no portable form")

    def _referents(self, value: Any) -> list[Any]:
        """Returns what a value without a codec refers to, so that objects that it shares are known."""
        if id(type(value)) in _NO_PARTS:
            return []
        if issubclass(type(value), type):
            return [] if is_native(value) else [type(value), *BASES(value), *VARS(value).values()]
        if type(value) is types.FunctionType:
            return [value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value)]
        if issubclass(type(value), BaseException):
            classes.note_traceback(value, self._scope)
        parts = get_referents(value)
        return [part for part in parts if id(part) not in self._beyond and not _is_class(part)]

    # --- Ways and groups ----------------------------------------------------------------------------------------------

    def _ways(self, variables: dict[str, Any], roots: dict[str, int | None]) -> dict[str, str]:
        """Returns the reason against the portable form for each variable; "" without one. Others are lost."""
        ways = {}
        for name, value in variables.items():
            root = roots[name]
            reason = "" if root is None else self._reasons.get(root, "")
            never = self._never.get(root) if root is not None else None
            if never is not None:
                self._lose(name, f"it is or holds {never}")
                continue
            if reason:
                _, against = pickles.dump({name: value}, self._scope, self._max_bytes)
                if against:
                    self._lose(name, _both(reason, against))
                    continue
            ways[name] = reason
        return ways

    def _groups(self, ways: dict[str, str], roots: dict[str, int | None]) -> list[list[str]]:
        """Returns the names of variables that share objects, together."""
        sticky = {number: "" for number, codec in enumerate(self._codecs) if codec is None or codec.joins}
        spread(sticky, self._children)
        leader: dict[int, int] = {}

        def find(item: int) -> int:
            while leader.setdefault(item, item) != item:
                leader[item] = item = leader[leader[item]]
            return item

        # Variables without shared objects are groups of their own, with negative numbers.
        own = {name: -1 - position for position, name in enumerate(ways)}
        seen: set[int] = set()
        for name in ways:
            root = roots[name]
            todo = [(own[name], root)] if root is not None else []
            while todo:
                parent, number = todo.pop()
                if number not in sticky:
                    continue
                leader[find(number)] = find(parent)
                if number not in seen:
                    seen.add(number)
                    todo += [(number, child) for child in self._children[number]]
        groups: dict[int, list[str]] = {}
        for name in ways:
            groups.setdefault(find(own[name]), []).append(name)
        return list(groups.values())

    # --- The bytes ----------------------------------------------------------------------------------------------------

    def _join(
        self,
        groups: list[list[str]],
        ways: dict[str, str],
        variables: dict[str, Any],
        roots: dict[str, int | None],
    ) -> tuple[dict[str, Any], list[bytes]]:
        objects: list[bytes] = []
        group_entries: list[dict[str, Any]] = []
        entries: dict[str, dict[str, Any]] = {}
        while groups:
            group = groups.pop(0)
            reason = next((ways[name] for name in group if ways[name]), "")
            if reason:
                pickled, against = pickles.dump({name: variables[name] for name in group}, self._scope, self._max_bytes)
                if pickled is None:
                    # Together with what it shares it cannot go. The others go without it.
                    for name in group:
                        if ways[name]:
                            self._lose(name, _both(ways[name], against))
                            del ways[name]
                    rest = [name for name in group if name in ways]
                    groups += self._groups({name: ways[name] for name in rest}, roots)
                    continue
                data, entry = pickled
            else:
                data, entry = self._graph({name: variables[name] for name in group}, roots), {"codec": "graph"}
            self._note_notes(group, roots)
            self._left_for(data)
            entry["objects"] = list(range(len(objects), len(objects) + len(data)))
            objects += data
            for name in group:
                why = ways[name] or (f"it shares objects with a variable that holds {reason}" if reason else "")
                entries[name] = {
                    "name": name,
                    "type": type_name(variables[name]),
                    "codec": "pickle" if reason else self._codec_name(roots[name]),
                    "portability": "python" if reason else "any",
                    "reason": why[:MAX_REASON_CHARS],
                    "group": len(group_entries),
                }
            group_entries.append(entry)
        states, lost = generators.write()
        self._left_for(states)
        for name, reason in lost:
            self._lose(name, reason)
        head = {
            "format": FORMAT,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "packages": pickles.versions(self._packages_used()),
            "variables": [entries[name] for name in ways if name in entries],
            "groups": group_entries,
            "lost": [(name[:MAX_NAME_CHARS], reason[:MAX_REASON_CHARS]) for name, reason in self._lost],
        }
        if states:
            head["generators"] = {"objects": list(range(len(objects), len(objects) + len(states)))}
            objects += states
        return head, objects

    def _left_for(self, data: list[bytes]) -> None:
        self._left -= sum(map(len, data))
        if self._left < 0:
            raise self._too_large()

    def _codec_name(self, root: int | None) -> str:
        codec = None if root is None else self._codecs[root]
        return "atom" if codec is None else codec.name

    def _graph(self, variables: dict[str, Any], roots: dict[str, int | None]) -> list[bytes]:
        """Returns the objects of a group. Nodes are numbered by the first path to each, whatever is in other groups."""
        used = reach([root for name in variables if (root := roots[name]) is not None], self._children)
        if len(used) > MAX_NODES:
            raise TooLarge(
                f"variables that share objects hold more than {MAX_NODES} objects; keep large data in arrays"
            )
        local = {number: position for position, number in enumerate(used)}
        objects = Objects()

        def encode(part: Any) -> Any:
            if is_atom(part):
                return encode_atom(part, objects)
            return [local[self._numbers[id(part)]]]

        nodes = []
        for number in used:
            codec = self._codecs[number]
            assert codec is not None
            nodes.append([codec.name, *map(encode, self._parts[number])])
        objects.data[0] = pack_graph(nodes, {name: encode(value) for name, value in variables.items()})
        return objects.data

    def _note_notes(self, group: list[str], roots: dict[str, int | None]) -> None:
        """Names what stays behind of variables that go."""
        notes = self._scope.notes
        for name in group if notes else ():
            root = roots[name]
            for number in reach([] if root is None else [root], self._children):
                if id(self._values[number]) in notes:
                    what, why = notes[id(self._values[number])]
                    self._lose(f"{name}: {what}", why)
                    break

    def _packages_used(self) -> set[str]:
        modules = set()
        for value, codec in zip(self._values, self._codecs, strict=True):
            if codec is None or codec.name in ("name", "module") or "." in codec.name:
                module = type(value).__module__ if codec is None or "." in codec.name else _module_of(value)
                modules.add(str(module).partition(".")[0])
        return modules

    def _lose(self, name: str, reason: str) -> None:
        if len(self._lost) < MAX_VARIABLES:
            self._lost.append((name, reason))


def _module_of(value: Any) -> Any:
    return getattr(value, "__name__", "") if type(value) is types.ModuleType else getattr(value, "__module__", "")


def _both(reason: str, against: str) -> str:
    return f"it is or holds {reason}; {against}"


def _is_class(value: Any) -> bool:
    return issubclass(type(value), type) and names.has_name(value)


def _tables(scope: Scope) -> set[int]:
    """The dictionaries of modules, which a value may refer to without sharing what is in them."""
    modules = [module for module in list(sys.modules.values()) if issubclass(type(module), types.ModuleType)]
    return {id(scope.namespace.globals), id(__builtins__), *(id(vars(module)) for module in modules)}
