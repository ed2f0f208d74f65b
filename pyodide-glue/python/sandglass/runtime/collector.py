"""Keeps the garbage collector from running code of the user's: what objects do at their end."""

from __future__ import annotations

from gc import disable, enable, isenabled

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)


class CollectorOff:
    """No garbage is collected meanwhile. None of contextlib's: those need builtins that a cell may have replaced."""

    def __enter__(self) -> None:
        self._collects = isenabled()
        disable()

    def __exit__(self, *_: object) -> None:
        if self._collects:
            enable()
