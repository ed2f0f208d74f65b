"""Reads a portable state. Checks all of it first; then makes the values, and sets the variables last.

Values are made in two steps, so that they may contain themselves: first each value of those parts that it needs, then
its other parts are filled in. A value that cannot be made here costs the variables that lead to it, and no others.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

from contextlib import contextmanager
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from sandglass.runtime.namespace import MISSING
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name
from sandglass.state.by_value import without_collector
from sandglass.state.pickling import reason_of
from sandglass.state.portable import classes, codecs, generators, names, pickles  # noqa: F401  (they register codecs)
from sandglass.state.portable.codec import BY_NAME, Scope
from sandglass.state.portable.graph import Graph, Ref, spread
from sandglass.state.portable.layout import refused, split
from sandglass.state.portable.libraries import register_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sandglass.runtime.namespace import Namespace
    from sandglass.runtime.sources import Sources

    Reasons = list[tuple[str, str]]


def read(data: bytes | memoryview, max_bytes: int, namespace: Namespace, sources: Sources) -> Reasons:
    """Sets the variables of a state, and the global generators. Returns `(name, reason)` of each that cannot be had.

    Raises ValueError for anything that `write` cannot have made, or above `max_bytes`. Then nothing was set.
    """
    head, objects = split(data, max_bytes)
    states = generators.read(head, objects)
    scope = Scope(namespace, sources)
    scope.max_bytes = max_bytes
    members: list[list[str]] = [[] for _ in head["groups"]]
    for entry in head["variables"]:
        members[entry["group"]].append(entry["name"])
    graphs: list[Graph] = []
    pickled: list[tuple[list[str], dict[str, Any], list[memoryview]]] = []
    for group, group_names in zip(head["groups"], members, strict=True):
        own = [objects[number] for number in group["objects"]]
        if group["codec"] == "graph":
            graph = Graph(own)
            if set(graph.variables) != set(group_names):
                raise refused("a graph has other variables than the head says")
            graphs.append(graph)
        elif group["codec"] == "pickle":
            pickled.append((group_names, pickles.check(group, own), own))
        else:
            raise refused(f"it has a group of the unknown kind {group['codec'][:40]!r}")
    found: dict[str, Any] = {}
    lost: Reasons = []
    with without_collector():
        for graph in graphs:
            _Making(graph, scope).run(found, lost)
    if pickled:
        with _set_for_now(found, namespace):
            for group_names, needs, own in pickled:
                pickles.load(needs, own, group_names, scope, found, lost)
    for entry in head["variables"]:
        name = entry["name"]
        if name in found and _is_free(name, namespace, lost):
            namespace.globals[name] = found[name]
    namespace.restore()
    return lost + generators.put(states)


@contextmanager
def _set_for_now(found: dict[str, Any], namespace: Namespace) -> Iterator[None]:
    """Sets variables while pickles are opened: methods of their classes, such as `__setstate__`, may use them."""
    own = {name: value for name, value in found.items() if _is_free(name, namespace, [])}
    before = {name: namespace.globals.get(name, MISSING) for name in own}
    namespace.globals.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is MISSING:
                namespace.globals.pop(name, None)
            else:
                namespace.globals[name] = value


def _is_free(name: str, namespace: Namespace, lost: Reasons) -> bool:
    if not name.isidentifier() or iskeyword(name) or name[:2] == name[-2:] == "__":
        lost.append((name, "no variable can have this name"))
    elif name in namespace.helpers or (name == "answer" and namespace.has_answer):
        lost.append((name, "the sandbox has something of its own under this name"))
    else:
        return True
    return False


class _Making:
    """Makes the values of one graph."""

    def __init__(self, graph: Graph, scope: Scope) -> None:
        self._graph, self._scope = graph, scope
        self._values: list[Any] = [MISSING] * len(graph.codecs)
        self._reasons: dict[int, str] = {}
        self._is_making = bytearray(len(graph.codecs))
        self._is_filling = bytearray(len(graph.codecs))
        self._deferred: list[int] = []
        register_for(graph.codecs)

    def run(self, found: dict[str, Any], lost: Reasons) -> None:
        roots = [part for part in self._graph.variables.values() if type(part) is Ref]
        for step in (self._make, self._fill):
            for root in roots:
                self._do([(step, root)])
        deferred, self._deferred = self._deferred, []
        for number in deferred:
            self._fill_now(number, is_last=True)
        spread(self._reasons, self._graph.children)
        for name, part in self._graph.variables.items():
            reason = self._reasons.get(part) if type(part) is Ref else None
            if reason is None:
                found[name] = self._value(part)
            else:
                lost.append((name, reason))

    def _do(self, tasks: list[Any]) -> None:
        """Does tasks, the last first. A task may return others, which come before those that wait."""
        while tasks:
            step, number = tasks.pop()
            more = step(number)
            if more:
                tasks += more

    def _make(self, number: int) -> Any:
        if self._is_making[number]:
            return None
        self._is_making[number] = 1
        codec = BY_NAME.get(self._graph.codecs[number])
        if codec is None:
            self._reasons[number] = f"it holds something of the unknown kind {self._graph.codecs[number][:40]!r}"
            return None
        parts = self._graph.parts[number]
        if codec.fill is None:
            children = self._graph.children[number]
        else:
            children = [part for part in parts[: codec.needed(parts)] if type(part) is Ref]
        if not children:
            return self._make_now(number)
        more = [(self._make_now, number)]
        if codec.reads:
            more += [(self._fill, child) for child in reversed(children)]
        return more + [(self._make, child) for child in reversed(children)]

    def _make_now(self, number: int) -> None:
        codec = BY_NAME[self._graph.codecs[number]]
        parts = self._graph.parts[number]
        parts = parts[: codec.needed(parts)]
        if self._check(number, parts):
            self._try(number, lambda: self._set(number, codec.make(list(map(self._value, parts)), self._scope)))

    def _set(self, number: int, value: Any) -> None:
        self._values[number] = value

    def _fill(self, number: int) -> Any:
        if self._is_filling[number]:
            return None
        self._is_filling[number] = 1
        children = self._graph.children[number]
        if not children:
            return self._fill_now(number)
        more = [(self._fill_now, number), *((self._fill, child) for child in reversed(children))]
        return more + [(self._make, child) for child in reversed(children)]

    def _fill_now(self, number: int, is_last: bool = False) -> None:
        codec = BY_NAME.get(self._graph.codecs[number])
        if codec is None or codec.fill is None or number in self._reasons:
            return
        parts = self._graph.parts[number]
        waits = any(
            self._values[part] is MISSING and part not in self._reasons for part in self._graph.children[number]
        )
        if waits and not is_last:
            self._deferred.append(number)
        elif self._check(number, parts):
            fill = codec.fill
            self._try(number, lambda: fill(self._values[number], list(map(self._value, parts)), self._scope))

    def _check(self, number: int, parts: list[Any]) -> bool:
        """Returns false, with a reason, when a part could not be made."""
        for part in parts:
            if type(part) is Ref and self._values[part] is MISSING:
                reason = self._reasons.get(part, "it contains itself where that is impossible")
                self._reasons.setdefault(number, reason)
                return False
        return True

    def _try(self, number: int, action: Any) -> None:
        try:
            action()
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._values[number] = MISSING
            self._reasons[number] = f"{self._graph.codecs[number][:40]}: {reason_of(error) or type_name(error)}"

    def _value(self, part: Any) -> Any:
        return self._values[part] if type(part) is Ref else part
