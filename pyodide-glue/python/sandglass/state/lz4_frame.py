"""LZ4 frames in Python alone, for guests without the package `lz4`.

Frames are written without compression, which the format allows, so that any LZ4 reads them. All frames of one piece are
read, but no checksum is compared. Five megabytes of text take about a second to read.

The format: https://github.com/lz4/lz4/blob/dev/doc/lz4_Frame_format.md and `lz4_Block_format.md` beside it.
"""

# Decisions: docs/internals/server.md.

from __future__ import annotations

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

#: The magic number, then: version 1, independent blocks of up to 4 MiB, no checksums, and the head's own checksum.
_HEAD = b"\x04\x22\x4d\x18\x60\x70\x73"
_BLOCK_BYTES = 4 << 20
#: The bit of a block's size that says that the block is not compressed.
_STORED = 1 << 31
_END = bytes(4)
_SHORTEST_MATCH = 4


class TooLarge(Exception):
    """The frame holds more than was allowed."""


def pack(data: bytes | memoryview) -> bytes:
    """Returns a frame of uncompressed blocks."""
    parts: list[bytes | memoryview] = [_HEAD]
    view = memoryview(data)
    for start in range(0, len(view), _BLOCK_BYTES):
        block = view[start : start + _BLOCK_BYTES]
        parts += (len(block) | _STORED).to_bytes(4, "little"), block
    parts.append(_END)
    return b"".join(parts)


def unpack(frame: bytes | memoryview, max_bytes: int) -> bytes:
    """Returns the contents of a frame. Raises `TooLarge` above `max_bytes`, and ValueError for anything but a frame."""
    if frame[:4] != _HEAD[:4] or len(frame) < len(_HEAD):
        raise ValueError("it does not begin as one")
    flags = frame[4]
    is_version_1, are_independent, has_checksums = flags >> 6 == 1, flags & 0x20, flags & 0x10
    if not is_version_1 or flags & 0x03:
        raise ValueError("it is of an unknown version, or needs a dictionary")
    at = len(_HEAD) + (8 if flags & 0x08 else 0)
    found = bytearray()
    while size := int.from_bytes(_piece(frame, at, 4), "little"):
        at += 4
        block = _piece(frame, at, size & ~_STORED)
        at += len(block) + (4 if has_checksums else 0)
        if not size & _STORED:
            _unpack_block(block, found, len(found) if are_independent else 0, max_bytes)
        elif len(found) + len(block) > max_bytes:
            raise TooLarge
        else:
            found += block
    return bytes(found)


def _piece(data: bytes | memoryview, at: int, size: int) -> bytes | memoryview:
    piece = data[at : at + size]
    if len(piece) < size:
        raise ValueError("it ends too early")
    return piece


def _unpack_block(block: bytes | memoryview, found: bytearray, first: int, max_bytes: int) -> None:
    """Appends the contents of a compressed block to `found`. The block may repeat what lies there from `first` on."""
    at = 0
    try:
        while True:
            token = block[at]
            length, at = _length(block, at + 1, token >> 4)
            if len(found) + length > max_bytes:
                raise TooLarge
            found += _piece(block, at, length)
            at += length
            if at == len(block):
                return
            distance = block[at] | block[at + 1] << 8
            length, at = _length(block, at + 2, token & 15)
            length += _SHORTEST_MATCH
            start = len(found) - distance
            if not distance or start < first:
                raise ValueError("it repeats bytes that are not there")
            if len(found) + length > max_bytes:
                raise TooLarge
            if distance < length:
                found += (found[start:] * (length // distance + 1))[:length]
            else:
                found += found[start : start + length]
    except IndexError:
        raise ValueError("it ends too early") from None


def _length(block: bytes | memoryview, at: int, length: int) -> tuple[int, int]:
    """Returns a length that began in a token, and the position behind it."""
    if length == 15:
        while block[at] == 255:
            length, at = length + 255, at + 1
        length, at = length + block[at], at + 1
    return length, at
