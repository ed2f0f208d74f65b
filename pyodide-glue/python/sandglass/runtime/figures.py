"""Figures of `matplotlib.pyplot`. As in a notebook, figures that are open at the end of a cell are shown and closed,
and `plt.show()` shows them at once.

matplotlib is never imported here. The module of this name in `sys.modules` is user code, and treated as such.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import type_name

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from sandglass.runtime.displays import Displays

_PYPLOT = "matplotlib.pyplot"


class Figures:
    """Shows figures. Also an import finder, to notice an import of pyplot."""

    def __init__(self, displays: Displays) -> None:
        self._displays = displays
        self._adopted: tuple[Any, Any, Any] | None = None

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        """Undoes `install`."""
        with suppress(ValueError):  # a cell may have removed the finder
            sys.meta_path.remove(self)
        adopted, self._adopted = self._adopted, None
        if adopted is not None:
            pyplot, theirs, ours = adopted
            if getattr(pyplot, "show", None) is ours:
                pyplot.show = theirs

    def begin_cell(self) -> None:
        """Takes over `show` of a pyplot that was not imported the usual way."""
        pyplot = sys.modules.get(_PYPLOT)
        if pyplot is not None:
            self._adopt(pyplot)

    def show_open(self, shown: object = None) -> None:
        """Shows the open figures, except one that was shown already, and closes them all."""
        pyplot: Any = sys.modules.get(_PYPLOT)
        if pyplot is None:
            return
        try:
            numbers = list(pyplot.get_fignums())
            if not numbers:
                return
            try:
                for position, number in enumerate(numbers):
                    if self._displays.is_full:
                        self._displays.omitted += len(numbers) - position
                        break
                    figure = pyplot.figure(number)
                    if figure is not shown:
                        self._displays.show(figure)
            finally:
                pyplot.close("all")
        except Exception as error:
            self._displays.note(f"the open figures could not be shown: {type_name(error)}")

    def _adopt(self, pyplot: Any) -> None:
        def show(*_args: object, **_options: object) -> None:
            """Shows all open figures as rich outputs of the cell, and closes them."""
            self.show_open()

        try:
            if getattr(pyplot.show, "__module__", None) != __name__:
                self._adopted = pyplot, pyplot.show, show
                pyplot.show = show
        except Exception:  # the module is no pyplot
            pass

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Finds pyplot by the other finders, and takes it over once it is loaded."""
        if name != _PYPLOT:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    """A loader that reports its module once it is loaded. After that, the module has its own loader again."""

    def __init__(self, loader: Any, figures: Figures) -> None:
        self._loader = loader
        self._figures = figures

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._figures._adopt(module)
