"""Puts the interpreter back in order after a cell, whatever the cell did to it.

Cheap enough to run after every cell. It restores what was deleted or replaced; what a cell added stays.
"""

from __future__ import annotations

import builtins
import gc
import operator
import sys
from typing import Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)


class Guards:
    """Slots of the interpreter (`sys.stdout`, `time.sleep`, …) that hold something of ours while installed."""

    def __init__(self) -> None:
        self._slots: list[tuple[dict[str, Any], str, Any]] = []
        self._previous: list[tuple[dict[str, Any], str, Any]] = []
        self._names: tuple[str, ...] = ()
        self._builtins: tuple[Any, ...] = ()
        self._recursion_limit = 0
        self._modules: dict[str, Any] = {}

    def own(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Declares that `namespace[name]` is `value` from `install` to `uninstall`."""
        self._slots.append((namespace, name, value))

    def install(self) -> None:
        for namespace, name, value in self._slots:
            self._previous.append((namespace, name, namespace.get(name)))
            namespace[name] = value
        originals = dict(vars(builtins))
        self._names, self._builtins = tuple(originals), tuple(originals.values())
        self._recursion_limit = sys.getrecursionlimit()
        self._modules = dict(sys.modules)

    def uninstall(self) -> None:
        """Undoes `install`; only tests need it."""
        while self._previous:
            namespace, name, value = self._previous.pop()
            namespace[name] = value

    def repair(self) -> None:
        if sys.getrecursionlimit() != self._recursion_limit:  # first: the rest needs room to run
            sys.setrecursionlimit(self._recursion_limit)
        if sys.gettrace() is not None:
            sys.settrace(None)
        if sys.getprofile() is not None:
            sys.setprofile(None)
        namespace = vars(builtins)
        # As long as nobody touched them, the values stand in their old order, and what was added behind them.
        if not all(map(operator.is_, namespace.values(), self._builtins)) and not all(
            map(operator.is_, map(namespace.get, self._names), self._builtins)
        ):
            namespace.update(zip(self._names, self._builtins, strict=True))
        for namespace, name, value in self._slots:
            if namespace.get(name) is not value:
                namespace[name] = value
        modules = sys.modules
        if len(modules) < len(self._modules):
            for name, module in self._modules.items():
                modules.setdefault(name, module)
        gc.enable()
