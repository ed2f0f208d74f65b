"""The frames that a guest and its native host exchange over a socket.

    u32 length of what follows · u32 epoch · u32 header length · header · (u32 body length · body)*

Integers are little-endian. The header is JSON: a request to the guest, or an array of events to the host, as in
crates/core/src/protocol.rs. The epoch is a number that the guest was started with. A frame with another epoch is not
for this guest.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_FRAME_BYTES = (1 << 30) + (1 << 20)
MAX_HEADER_BYTES = 16 << 20
_PREFIX = Struct("<III")
_LENGTH = Struct("<I")
_pack_prefix, _unpack_prefix = _PREFIX.pack, _PREFIX.unpack
_pack_length, _unpack_length = _LENGTH.pack, _LENGTH.unpack_from
_AFTER_LENGTH = _PREFIX.size - _LENGTH.size


class FrameError(Exception):
    """Raised for data that is no frame for this guest."""


def pack_frame(epoch: int, header: bytes, bodies: Sequence[bytes] = ()) -> bytes:
    """One frame."""
    length = _AFTER_LENGTH + len(header)
    parts: list[bytes] = [b"", header]
    for body in bodies:
        length += _LENGTH.size + len(body)
        parts += (_pack_length(len(body)), body)
    parts[0] = _pack_prefix(length, epoch, len(header))
    return b"".join(parts)


class FrameReader:
    """Reads frames from a stream. `receive` fills a part of a buffer and returns its length, 0 at the stream's end."""

    def __init__(self, receive: Callable[[memoryview], int], epoch: int) -> None:
        self._receive = receive
        self._epoch = epoch

    def read(self) -> tuple[str, list[memoryview]]:
        """Returns the next frame's header and bodies.

        Raises EOFError at the stream's end, FrameError for anything malformed.
        """
        length, epoch, header_length = _unpack_prefix(self._take(_PREFIX.size))
        if epoch != self._epoch:
            raise FrameError("a frame of another epoch")
        if length > MAX_FRAME_BYTES or header_length > MAX_HEADER_BYTES or _AFTER_LENGTH + header_length > length:
            raise FrameError(f"a frame of {length} bytes with a header of {header_length}")
        rest = self._take(length - _AFTER_LENGTH)
        try:
            header = str(rest[:header_length], "utf-8")
        except UnicodeDecodeError:
            raise FrameError("a header that is not UTF-8") from None
        bodies: list[memoryview] = []
        at = header_length
        while at < len(rest):
            start = at + _LENGTH.size
            if start > len(rest):
                raise FrameError("a frame that ends within a body's length")
            at = start + _unpack_length(rest, at)[0]
            if at > len(rest):
                raise FrameError("a frame that ends within a body")
            bodies.append(rest[start:at])
        return header, bodies

    def _take(self, size: int) -> memoryview:
        view = memoryview(bytearray(size))
        at = 0
        while at < size:
            received = self._receive(view[at:])
            if not received:
                raise EOFError("the host has closed the channel")
            at += received
        return view.toreadonly()


class BodyParts:
    """Joins bodies that were sent in parts. The parts come in messages of their own, before the body's message."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []

    def add(self, bodies: list[memoryview]) -> None:
        """Keeps a part."""
        self._parts += bodies

    def join(self, bodies: list[memoryview]) -> list[memoryview]:
        """Returns the bodies of a message. The kept parts come before the first one's bytes."""
        if not self._parts or not bodies:
            return bodies
        parts, self._parts = self._parts, []
        return [memoryview(b"".join([*parts, bodies[0]])), *bodies[1:]]
