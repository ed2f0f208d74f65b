"""Puts the interpreter back in order after a cell, whatever the cell did to it.

Cheap enough to run after every cell. It restores what was deleted or replaced; what a cell added stays.
"""

from __future__ import annotations

import builtins
import sys
from gc import enable as enable_gc
from gc import get_threshold, set_threshold
from operator import is_
from sys import (
    getprofile,
    getrecursionlimit,
    getswitchinterval,
    gettrace,
    setprofile,
    setrecursionlimit,
    setswitchinterval,
    settrace,
)
from typing import Any

from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

_MISSING = object()
#: See `share_modules`.
_shared_modules: dict[str, Any] = {}


def share_modules() -> None:
    """Notes the modules that there are, for all copies of this process: noting one writes to the page it is in."""
    _shared_modules.update(sys.modules)


class Guards:
    """Slots of the interpreter (`sys.stdout`, `time.sleep`, …) that hold something of ours while installed."""

    def __init__(self) -> None:
        self._slots: list[tuple[dict[str, Any], str, Any]] = []
        self._previous: list[tuple[dict[str, Any], str, Any]] = []
        self._names: tuple[str, ...] = ()
        self._builtins: tuple[Any, ...] = ()
        self._recursion_limit = 0
        self._switch_interval = 0.0
        self._gc_threshold = get_threshold()
        self._modules: dict[str, Any] = {}

    def own(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Declares that `namespace[name]` is `value` from `install` to `uninstall`."""
        self._slots.append((namespace, name, value))

    def install(self) -> None:
        for namespace, name, value in self._slots:
            self._previous.append((namespace, name, namespace.get(name, _MISSING)))
            namespace[name] = value
        originals = dict(vars(builtins))
        self._names, self._builtins = tuple(originals), tuple(originals.values())
        self._recursion_limit = getrecursionlimit()
        self._switch_interval = getswitchinterval()
        self._gc_threshold = get_threshold()
        self._modules = _shared_modules or dict(sys.modules)

    def uninstall(self) -> None:
        """Undoes `install`."""
        while self._previous:
            namespace, name, value = self._previous.pop()
            if value is _MISSING:
                namespace.pop(name, None)
            else:
                namespace[name] = value

    def repair(self) -> None:
        if getrecursionlimit() != self._recursion_limit:  # first: the rest needs room to run
            setrecursionlimit(self._recursion_limit)
        if gettrace() is not None:
            settrace(None)
        if getprofile() is not None:
            setprofile(None)
        if getswitchinterval() != self._switch_interval:  # or threads of ours would never run, or nothing else would
            setswitchinterval(self._switch_interval)
        namespace = vars(builtins)
        # As long as nobody touched them, the values stand in their old order, and what was added behind them.
        in_order = len(namespace) >= len(self._builtins) and all(map(is_, namespace.values(), self._builtins))
        if not in_order and not all(map(is_, map(namespace.get, self._names), self._builtins)):
            namespace.update(zip(self._names, self._builtins, strict=True))
        for namespace, name, value in self._slots:
            if namespace.get(name) is not value:
                namespace[name] = value
        modules = sys.modules
        if len(modules) < len(self._modules):
            for name, module in self._modules.items():
                modules.setdefault(name, module)
        enable_gc()
        if not get_threshold()[0]:  # which turns collection off as well
            set_threshold(*self._gc_threshold)
