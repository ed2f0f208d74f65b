"""Entries of the memo: a result, and all that it depends on."""

from __future__ import annotations

import sys
from sys import getrecursionlimit
from typing import TYPE_CHECKING, Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.speculate import intact
from sandglass.speculate.results import Recipe, Texts
from sandglass.speculate.tags import Tag, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandglass.speculate.parts import Part
    from sandglass.speculate.statements import Plan

#: `json.dumps` has some texts of its own, all of them shorter.
_SHORT = 12
_KEYS: Any = type({}.keys())
_MISSING = object()
_int_digits: Callable[[], int] = getattr(sys, "get_int_max_str_digits", lambda: 0)


class Entry:
    """The result of a statement or a part of one, and all that it depends on."""

    def __init__(self, plan: Plan | Part, data: list[tuple[str, Any, Tag]], result: Any, state: Any, most: int) -> None:
        """ValueError for what cannot be made again."""
        expression = plan.expression
        self.targets, self.options = plan.targets, plan.options
        self.tags = [(name, tag) for name, _, tag in data]
        self.state = state
        self.fixed = tuple(expression.fixed.items())
        self.builtins = tuple(expression.builtins)
        self.attributes = tuple((vars(intact.MODULES[m]), n, value) for (m, n), value in expression.attributes.items())
        self.families = tuple(expression.families)
        self.methods = tuple(expression.methods)
        found = {name: value for name, value, _ in data}
        places = [(str, found[text] if is_name else text, flags) for is_name, text, flags in expression.patterns]
        self.patterns = [(place, intact.pattern(place)) for place in places]
        if any(pattern is None for _, pattern in self.patterns):
            raise ValueError("a pattern")
        if plan.options is None and expression.copies and any(type(part) is _KEYS for part in parts_of(result, most)):
            raise ValueError("a dict whose room is that of another one")
        self.recipe: Recipe | Texts
        if plan.options is not None:
            self.recipe = Texts(result, most)
        else:
            self.recipe = Recipe(result, [(value, tag) for _, value, tag in data], most, expression.attributes.values())
            if "json" in expression.families and type(result) is str and len(result) < _SHORT:
                raise ValueError("it may be a text that the encoder has")
        self.size = 1000 + self.recipe.size + sum(tag.size for _, tag in self.tags)
        self.seconds = 0.0
        #: Whether it may stand for a part of another statement.
        self.is_part = False
        self._most = most

    def is_held(self, namespace: dict[str, Any]) -> bool:
        """Whether variables still have the texts that are kept here."""
        return all(tag.held is None or namespace.get(name) is tag.held for name, tag in self.tags)

    def sources(self, namespace: dict[str, Any]) -> list[tuple[Any, Tag]] | None:
        """The data as they are now; None when anything is not as it was."""
        if self.state != limits() or not intact.are_builtins(namespace):
            return None
        if any(name in namespace for name in self.builtins):
            return None
        if any(namespace.get(name) is not value for name, value in self.fixed):
            return None
        if any(table.get(name) is not value for table, name, value in self.attributes):
            return None
        if not intact.has_methods(self.methods) or not all(map(intact.is_intact, self.families)):
            return None
        if any(not intact.has_pattern(place, known) for place, known in self.patterns):
            return None
        sources = []
        for name, tag in self.tags:
            value = namespace.get(name, _MISSING)
            if not tag.fits(value, self._most):
                return None
            sources.append((value, tag))
        return sources


def limits() -> tuple[int, int]:
    """What lets code fail that did not fail before."""
    return getrecursionlimit(), _int_digits()
