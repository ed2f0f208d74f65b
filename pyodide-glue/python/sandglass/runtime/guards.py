"""Puts the interpreter back in order after a cell, whatever the cell did to it.

Restores objects that were deleted or replaced; objects that a cell added stay. Settings that only concern the user stay
as well, such as whether garbage is collected. For the recursion limit see `recursion.py`. Cheap enough to run after
every cell.
"""

from __future__ import annotations

import builtins
import sys
from operator import is_
from sys import getprofile, getswitchinterval, gettrace, setprofile, setswitchinterval, settrace
from typing import Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

_MISSING = object()
#: The modules that `share_modules` has noted.
_shared_modules: dict[str, Any] = {}


def share_modules() -> None:
    """Notes all modules, for all copies of this process. Noting them in each copy would write to shared pages."""
    _shared_modules.update(sys.modules)


class Guards:
    """Slots of the interpreter (`sys.stdout`, `time.sleep`, …) that hold the runtime's own objects while installed."""

    def __init__(self) -> None:
        self._slots: list[tuple[dict[str, Any], str, Any]] = []
        self._previous: list[tuple[dict[str, Any], str, Any]] = []
        self._names: tuple[str, ...] = ()
        self._builtins: tuple[Any, ...] = ()
        self._switch_interval = 0.0
        self._modules: dict[str, Any] = {}
        self._classes: list[tuple[type, tuple[type, ...], dict[str, Any]]] = []

    def own(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Declares that `namespace[name]` is `value` from `install` to `uninstall`."""
        self._slots.append((namespace, name, value))

    def own_class(self, kind: type) -> None:
        """Declares that a class stays as it is now. User code has its instances, and so could patch the class."""
        self._classes.append((kind, kind.__bases__, dict(vars(kind))))

    def install(self) -> None:
        for namespace, name, value in self._slots:
            self._previous.append((namespace, name, namespace.get(name, _MISSING)))
            namespace[name] = value
        originals = dict(vars(builtins))
        self._names, self._builtins = tuple(originals), tuple(originals.values())
        self._switch_interval = getswitchinterval()
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
        if gettrace() is not None:
            settrace(None)
        if getprofile() is not None:
            setprofile(None)
        if getswitchinterval() != self._switch_interval:  # or threads of ours might never run
            setswitchinterval(self._switch_interval)
        namespace = vars(builtins)
        # Untouched builtins are in their old order, with any additions behind them.
        in_order = len(namespace) >= len(self._builtins) and all(map(is_, namespace.values(), self._builtins))
        if not in_order and not all(map(is_, map(namespace.get, self._names), self._builtins)):
            namespace.update(zip(self._names, self._builtins, strict=True))
        for namespace, name, value in self._slots:
            if namespace.get(name) is not value:
                namespace[name] = value
        self.repair_classes()
        modules = sys.modules
        if len(modules) < len(self._modules):
            for name, module in self._modules.items():
                modules.setdefault(name, module)

    def repair_classes(self) -> None:
        """Repairs the classes. The end of a cell itself depends on them."""
        for kind, bases, attributes in self._classes:
            if kind.__bases__ != bases:
                kind.__bases__ = bases
            now = vars(kind)
            if len(now) == len(attributes) and all(map(is_, now.values(), attributes.values())):
                continue
            for name in [name for name in now if name not in attributes]:
                type.__delattr__(kind, name)
            for name, value in attributes.items():
                if now.get(name, _MISSING) is not value:
                    type.__setattr__(kind, name, value)
