"""Turns garbage collection off, so that it runs no finalizers of the user's."""

from __future__ import annotations

from gc import disable, enable, isenabled

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)


class CollectorOff:
    """Turns garbage collection off.

    Not made by contextlib, because that needs builtins that a cell may have replaced.
    """

    def __enter__(self) -> None:
        self._collects = isenabled()
        disable()

    def __exit__(self, *_: object) -> None:
        if self._collects:
            enable()
