"""The memory of a zygote, laid out so that forks cost little.

A fork copies an entry for each page, and the end of the copy removes them again. Huge pages need one entry for 512. A
guest writes to few of them, and gets its own small page for each page that it writes to.
"""

# Decisions: docs/internals/guests-on-hosts.md.

from __future__ import annotations

import ctypes
from contextlib import suppress
from sys import getallocatedblocks

#: Memory that a guest's first work would need. It takes this memory while it waits, because new pages are slow to get.
WARM_BYTES = 4 << 20
_PAGE_BYTES, _HUGE_BYTES = 4096, 2 << 20
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

#: The bytes of Python's small objects for which there is room before each import.
_ROOM_BYTES = 32 << 20
#: The bytes that a small object takes on average.
_BLOCK_BYTES = 96
#: Objects of the largest size that Python keeps in its own arenas, which have 1 MiB each.
_FILLING_BYTES = 440
_PER_ARENA = 2_000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = (ctypes.c_size_t,)
_libc.free.argtypes = (ctypes.c_void_p,)


class Arenas:
    """Keeps the small objects of imported modules close together.

    Python takes memory for them by the megabyte, and each library that is loaded in between would separate these parts.
    No huge page would fit. So parts for many objects are taken at once, and one object in each keeps it.
    """

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._full_at = 0

    def make_room(self) -> None:
        """Makes room for the objects of a module that is about to be imported."""
        blocks = _ROOM_BYTES // _BLOCK_BYTES
        if getallocatedblocks() + blocks // 2 < self._full_at:
            return
        filling = [bytes(_FILLING_BYTES) for _ in range((_ROOM_BYTES >> 20) * _PER_ARENA)]
        self._kept += filling[:: _PER_ARENA // 2]
        del filling
        self._full_at = getallocatedblocks() + blocks


def use_huge_pages() -> None:
    """Moves the memory of this process into huge pages, as far as the kernel can (Linux 6.1 and newer)."""
    with suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file.readlines():
            addresses, rights, _, _, inode, *_ = line.split()
            if rights == "rw-p" and inode == "0":
                begin, end = _aligned(*(int(address, 16) for address in addresses.split("-")))
                if begin < end:
                    _libc.madvise(begin, end - begin, _MADV_COLLAPSE)  # parts without a page are no error that matters


def reserve() -> list[int]:
    """Reserves memory at the end of the heap, for each guest to take with `take`. Returns where its huge pages are."""
    try:
        _libc.mallopt(_M_MMAP_THRESHOLD, 2 * WARM_BYTES)
        _libc.mallopt(_M_TRIM_THRESHOLD, 4 * WARM_BYTES)
    except AttributeError:  # the C library is not glibc
        return []
    # The first page is left out, because its begin may be in use. So one page more is needed for whole huge pages.
    size = WARM_BYTES + _HUGE_BYTES + _PAGE_BYTES
    address = _libc.malloc(size)
    _libc.free(address)
    begin, end = _aligned(address + _PAGE_BYTES, address + size)
    if _libc.madvise(begin, end - begin, _MADV_HUGEPAGE) != 0:
        return []
    return list(range(begin, end, _HUGE_BYTES))


def set_large_data_apart() -> None:
    """Has blocks of 4 MiB or more be mappings of their own, in a guest that keeps copies of itself.

    The same as COPIED_MEMORY in host/src/launcher.rs, which says why.
    """
    with suppress(AttributeError):  # the C library is not glibc
        _libc.mallopt(_M_MMAP_THRESHOLD, 4 << 20)
        _libc.mallopt(_M_TRIM_THRESHOLD, 32 << 20)


def take(reserved: list[int]) -> None:
    """Takes the reserved memory. Its bytes stay as they are, because part of it may be in use by now."""
    for address in reserved:
        ctypes.memmove(address, address, 1)


def _aligned(begin: int, end: int) -> tuple[int, int]:
    return -(-begin // _HUGE_BYTES) * _HUGE_BYTES, end // _HUGE_BYTES * _HUGE_BYTES
