"""The hot pages of a guest with checkpoints: those that it writes to in most cells.

A paused copy shares the guest's memory, so the first write to each page copies it. Even a cell of one line writes to
hundreds of pages, because a use of an object counts its references. `HotPages` has these pages copied while the guest
waits for its next cell: the same copies, off the critical path.

The kernel tells which pages belong to this process alone: those that were copied since the last paused copy was made
(bit 56 of /proc/self/pagemap, Linux's admin-guide/mm/pagemap.rst). These become the hot pages. From time to time, none
is copied ahead, so that pages that are written to no longer are forgotten. Without /proc/self/pagemap or
MADV_POPULATE_WRITE (Linux 5.14), nothing is copied ahead.
"""

# Decisions: docs/internals/saving-and-restoring.md.

from __future__ import annotations

import ctypes
from bisect import bisect
from os import O_CLOEXEC, O_RDONLY, close, pread, sysconf
from os import open as open_fd
from re import compile as to_pattern
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    #: An address and a size.
    _Range = tuple[int, int]

_PAGE = sysconf("SC_PAGE_SIZE")
_ENTRY = 8
#: The last byte of an entry whose page is there, is no file's, and is this process's alone.
_OWN = to_pattern(rb"\x81+")
#: The most bytes that are copied ahead. A cell that writes more is unlike the others, such as an import.
_MOST_BYTES = 32 << 20
#: A longer row of pages outside of the heap may be an array that the last cell has made, and that no cell writes to
#: again. So it is hot only if it is written to once more.
_MOST_ROW_BYTES = 2 << 20
#: Larger mappings hold data, and looking through them would take long.
_MOST_MAPPED = 256 << 20
#: As much is copied at a time, between two looks for a message: about half a millisecond.
_PIECE_BYTES = 512 << 10
#: The number of copies after which the hot pages are found anew.
_FORGET_AFTER = 16
_MADV_POPULATE_WRITE = 23
_madvise = ctypes.CDLL(None).madvise  # without the interpreter's lock, so that the reader can take a message meanwhile
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class HotPages:
    """The hot pages of this process. Never fails: without them, a cell only takes longer."""

    def __init__(self) -> None:
        self._ranges: list[_Range] = []
        self._rows: list[_Range] = []  # of pages that were this process's own before the last paused copy, in order
        self._is_shared = False  # whether there was a paused copy before
        self._uses = 0
        self._is_due = False  # whether the pages are to be copied again

    def find(self, maps: list[bytes], room: int | None = None) -> None:
        """Finds the hot pages. Call this before a paused copy is made. `room` is the memory that they may take then."""
        if self._is_shared:
            try:
                found = list(self._found(maps))
            except OSError:
                found = []
            if _bytes_of(found) <= _MOST_BYTES:
                self._ranges = found
            elif self._uses == 0:
                self._ranges = []
        self._is_shared = True
        self._uses = (self._uses + 1) % _FORGET_AFTER if self._ranges else 0
        self._is_due = self._uses != 0 and (room is None or _bytes_of(self._ranges) <= room)

    def _found(self, maps: list[bytes]) -> Iterator[_Range]:
        before, self._rows = self._rows, []
        for is_heap, begin, size in _own_rows(maps):
            self._rows.append((begin, size))
            if is_heap or size <= _MOST_ROW_BYTES:
                yield begin, size
                continue
            first = max(bisect(before, (begin, 0)) - 1, 0)
            for other, its_size in before[first : bisect(before, (begin + size, 0))]:
                both = max(begin, other)
                if (left := min(begin + size, other + its_size) - both) > 0:
                    yield both, left

    def copy(self, is_idle: Callable[[], bool]) -> None:
        """Copies the hot pages while the process is idle. Call this after a paused copy was made."""
        if not self._is_due:
            return
        self._is_due = False
        for begin, size in self._ranges:
            for offset in range(0, size, _PIECE_BYTES):
                if not is_idle():
                    return
                _madvise(begin + offset, min(_PIECE_BYTES, size - offset), _MADV_POPULATE_WRITE)


def _bytes_of(ranges: list[_Range]) -> int:
    return sum(size for _, size in ranges)


def lines_of_maps() -> list[bytes]:
    """Returns the lines of /proc/self/maps."""
    with open("/proc/self/maps", "rb") as file:
        return file.readlines()


def _own_rows(maps: list[bytes]) -> Iterator[tuple[bool, int, int]]:
    """Yields each row of pages that this process alone has: whether it is in the heap, its address and its size."""
    pages = open_fd("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)
    try:
        for line in maps:
            addresses, rights, _ = line.split(b" ", 2)
            begin, end = (int(address, 16) for address in addresses.split(b"-"))
            if not rights.startswith(b"rw-p") or end - begin > _MOST_MAPPED:
                continue
            entries = pread(pages, (end - begin) // _PAGE * _ENTRY, begin // _PAGE * _ENTRY)
            is_heap = line.endswith(b"[heap]\n")
            for row in _OWN.finditer(entries[_ENTRY - 1 :: _ENTRY]):
                yield is_heap, begin + row.start() * _PAGE, (row.end() - row.start()) * _PAGE
    finally:
        close(pages)
