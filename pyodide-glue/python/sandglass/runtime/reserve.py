"""Memory that user code cannot take: what the runtime needs around a cell that has taken all there is.

For a backend that bounds memory by refusing more of it. There, code may catch MemoryError and keep what it has; nothing
would be left to compile the next cell with, not even one that deletes variables.
"""

from __future__ import annotations

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

_BYTES = 2 << 20
_PIECE_BYTES = 64 << 10
#: The memory that a cell has at least, so that it can delete variables.
_CELL_BYTES = 32 << 10
#: With less, the runtime does not get far.
_ROOM_BYTES = 128 << 10
#: The part that has to be left of the reserve for the next cell, in pieces.
_LEAST_PIECES = 8


class Reserve:
    """Held while user code runs, and given back when there is nothing else."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        #: True when user code has taken most of it after all, a little in each cell: another might not even begin.
        self.is_spent = False
        self.hold()

    def hold(self) -> None:
        """User code comes next: puts back what is missing, as far as there is memory for it."""
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
        """It has ended: makes room where there is none. Whether that was necessary."""
        self.is_spent = False
        try:
            bytes(_ROOM_BYTES)
        except MemoryError:
            self.is_spent = len(self._held) < _LEAST_PIECES
            self._held.clear()
            return True
        return False

    def release(self) -> bool:
        """Makes room. Whether there was anything to give back."""
        held = len(self._held)
        self._held.clear()
        return held > 0
