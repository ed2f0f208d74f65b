"""`State`: saves and loads the user's variables of one runtime, for the host.

Portable states are imported when they are first needed, because few guests need them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.state import by_value, foreign, stateless
from sandglass.state.cell_files import CellFiles
from sandglass.state.portable.layout import MAGIC

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from sandglass.runtime.runtime import Runtime


class State:
    """Saves and loads variables. User hooks run, so each call puts the interpreter back in order."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._cell_files = CellFiles(runtime.namespace, runtime.sources)

    def save(self) -> tuple[bytes, list[tuple[str, str]]]:
        """Returns the user's variables by value, and `(name, reason)` of each that could not be saved."""
        try:
            return by_value.save(self._runtime.namespace, self._runtime.sources)
        finally:
            self._runtime.put_in_order()

    def load(self, data: bytes) -> list[tuple[str, str]]:
        """Loads the result of `save` in a fresh interpreter. Returns `(name, reason)` of each variable that is lost.

        Raises ValueError for data that is damaged or of another build of Python.
        """
        try:
            return by_value.load(data, self._runtime.namespace, self._runtime.sources)
        finally:
            self._runtime.put_in_order()

    def open(self, data: bytes | memoryview, max_bytes: int) -> list[tuple[str, str]]:
        """Adds the variables of a state from `capture`. Returns `(name, reason)` of each that cannot be had here.

        Raises ValueError, and then sets none.
        """
        namespace = self._runtime.namespace
        try:
            if bytes(data[: len(MAGIC)]) == MAGIC:
                from sandglass.state.portable.reading import read

                return read(data, max_bytes, namespace, self._runtime.sources)
            stateless.open_state(data, max_bytes, namespace)
            return []
        finally:
            self._runtime.put_in_order()

    def capture(self, max_bytes: int, portable: bool = False, direct: bool = False) -> bytes:
        """Returns the user's variables, with the names and reasons of those left out before them.

        A portable state is for any guest, and others are for the next stateless run. A `direct` one goes straight to
        another guest, and is not kept. Raises ValueError when the variables cannot be written. `stateless.split_state`
        takes the two parts apart.
        """
        namespace = self._runtime.namespace
        try:
            if portable:
                from sandglass.state.portable.writing import write_pieces

                return stateless.join_state(*write_pieces(namespace, self._runtime.sources, max_bytes, direct))
            state, left_out = stateless.capture_state(max_bytes, namespace)
            return stateless.join_state([state], left_out)
        finally:
            self._runtime.put_in_order()

    def cell_file(self, which: str, about: bytes) -> bytes:
        """Makes the file "input" or "output" that describes a cell, from JSON; see `CellFiles.make`."""
        try:
            return self._cell_files.make(which, about)
        finally:
            self._runtime.put_in_order()

    def find_foreign(self, proxy: type, gone: AbstractSet[int]) -> list[tuple[str, str]]:
        """Returns `(name, reason)` of variables that a copy of the memory does not hold; see `foreign.find`."""
        return foreign.find(self._runtime.namespace, proxy, gone)
