"""`State`: the user's variables of one runtime, as the host wants to have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state import by_value, foreign, stateless
from sandglass.state.cell_files import CellFiles

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sandglass.runtime.runtime import Runtime


class State:
    """Saves and loads variables. Hooks of the user's run, so that the interpreter is put in order after each call."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._cell_files = CellFiles(runtime.namespace, runtime.sources)

    def save(self) -> tuple[bytes, list[tuple[str, str]]]:
        """The user's variables by value, and `(name, reason)` of each that is not among them."""
        try:
            return by_value.save(self._runtime.namespace, self._runtime.sources)
        finally:
            self._runtime.put_in_order()

    def load(self, data: bytes) -> list[tuple[str, str]]:
        """Puts back what `save` returned, in a fresh interpreter; `(name, reason)` of each variable that is lost.

        ValueError for data that is damaged or of another build of Python.
        """
        try:
            return by_value.load(data, self._runtime.namespace, self._runtime.sources)
        finally:
            self._runtime.put_in_order()

    def open(self, data: bytes, max_bytes: int) -> None:
        """Adds the variables that `capture` wrote, or raises ValueError and sets none."""
        try:
            stateless.open_state(data, max_bytes, self._runtime.namespace)
        finally:
            self._runtime.put_in_order()

    def capture(self, max_bytes: int) -> bytes:
        """The user's variables for the guest of the next stateless run. ValueError when they cannot be written."""
        try:
            return stateless.capture_state(max_bytes, self._runtime.namespace)
        finally:
            self._runtime.put_in_order()

    def cell_file(self, which: str, about: bytes) -> bytes:
        """The file "input" or "output" that describes a cell, of JSON; see `CellFiles.make`."""
        try:
            return self._cell_files.make(which, about)
        finally:
            self._runtime.put_in_order()

    def find_foreign(self, proxy: type, gone: AbstractSet[int]) -> list[tuple[str, str]]:
        """`(name, reason)` of what a copy of the interpreter's memory does not hold; see `foreign.find`."""
        return foreign.find(self._runtime.namespace, proxy, gone)
