"""A reserve of memory that user code cannot take, for the runtime's own work around a cell that has taken all memory.

For a backend that bounds memory by refusing more. There, code may catch MemoryError and keep its memory. Then nothing
would be left to compile the next cell with, not even one that deletes variables.
"""

# Decisions: docs/internals/guest-in-a-browser.md.

from __future__ import annotations

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

_BYTES = 2 << 20
_PIECE_BYTES = 64 << 10
#: The least memory of a cell, so that it can delete variables.
_CELL_BYTES = 32 << 10
#: The least memory with which the runtime can work.
_ROOM_BYTES = 128 << 10
#: The pieces of the reserve that the next cell needs.
_LEAST_PIECES = 8


#: Nested so deep that its text takes more stack than a callback of an event loop.
_NESTED: list[object] = []
for _ in range(200):
    _NESTED = [_NESTED]


def need_room() -> None:
    """Raises MemoryError or RecursionError where the runtime could not work."""
    bytes(_ROOM_BYTES)
    repr(_NESTED)


class Reserve:
    """Memory that is held while user code runs, and given back when no other is left."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        #: True when user code has taken most of the reserve after all, bit by bit. The next cell might not even begin.
        self.is_spent = False
        self.hold()

    def hold(self) -> None:
        """Fills up the reserve before user code, as far as there is memory for it."""
        missing = _BYTES // _PIECE_BYTES - len(self._held)
        if missing == 0:
            return
        try:
            cell = bytes(_CELL_BYTES)
            for _ in range(missing):
                self._held.append(bytes(_PIECE_BYTES))
            del cell
        except MemoryError:
            pass

    def ease(self) -> bool:
        """Makes room after user code if there is none. Returns true if that was necessary."""
        self.is_spent = False
        try:
            bytes(_ROOM_BYTES)
        except MemoryError:
            self.is_spent = len(self._held) < _LEAST_PIECES
            self._held.clear()
            return True
        return False

    def release(self) -> bool:
        """Makes room. Returns true if there was anything to give back."""
        held = len(self._held)
        self._held.clear()
        return held > 0
