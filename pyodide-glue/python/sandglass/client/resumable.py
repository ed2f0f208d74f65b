"""A conversation that outlives its connections: a client's side of it. `crates/core/src/resumable.rs` explains more."""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Generic, TypeVar

M = TypeVar("M")

SUFFIX = ".resumable"
MARK = "#"
#: The bytes of messages on their way, from which on no further message is sent.
WINDOW = 4 << 20
#: The bytes that each message counts in addition to its own.
PER_MESSAGE = 64
_TOLD = WINDOW // 8


def control(**fields: Any) -> str:
    """The text of a message of this layer."""
    return MARK + json.dumps(fields, separators=(",", ":"))


class Resumable(Generic[M]):
    """The client's side of a conversation. It takes each message as soon as it comes."""

    def __init__(self) -> None:
        #: The number of messages of the other side that were taken.
        self.taken = 0
        self._opened = 0
        self._is_linked = False
        #: Messages that the other side has not taken, the oldest first. The first `_sent` are on their way.
        self._kept: deque[tuple[M, int]] = deque()
        self._kept_bytes = 0
        self._sent = 0
        self._sent_bytes = 0
        self._taken_there = 0
        self._most_taken_there = 0
        self._untold = 0

    @property
    def has_room(self) -> bool:
        """True while few enough messages are kept. Large messages should wait otherwise."""
        return self._kept_bytes < WINDOW

    def open(self) -> int:
        """The number of a link that is about to be opened. Links before it are cut."""
        self.cut()
        self._opened += 1
        return self._opened

    def link(self, taken_there: int) -> None:
        """Goes over to the link, whose other side has taken this many messages."""
        self._forget(taken_there, self._most_taken_there)
        self._untold = 0
        self._is_linked = True

    def cut(self) -> None:
        """Notes that the link is broken."""
        self._is_linked = False
        self._sent = self._sent_bytes = 0

    def push(self, message: M, size: int) -> None:
        """Keeps a message, to be sent when its turn comes."""
        size += PER_MESSAGE
        self._kept.append((message, size))
        self._kept_bytes += size

    def next(self) -> M | None:
        """The next message to be sent on the link."""
        if not self._is_linked or self._sent_bytes >= WINDOW or self._sent == len(self._kept):
            return None
        message, size = self._kept[self._sent]
        self._sent += 1
        self._sent_bytes += size
        self._most_taken_there = max(self._most_taken_there, self._taken_there + self._sent)
        return message

    def told(self, taken_there: int) -> None:
        """Takes the other side's word that it has taken this many messages."""
        if self._is_linked:
            self._forget(taken_there, self._taken_there + self._sent)

    def took(self, size: int) -> int | None:
        """Notes that a message was taken. Returns the number of taken messages if it is time to tell the other side."""
        self.taken += 1
        self._untold += size + PER_MESSAGE
        if self._untold < _TOLD:
            return None
        self._untold = 0
        return self.taken

    def _forget(self, taken_there: int, most: int) -> None:
        if type(taken_there) is not int or not self._taken_there <= taken_there <= most:
            raise ValueError("the number of messages that the host has taken cannot be true")
        while self._taken_there < taken_there:
            _, size = self._kept.popleft()
            self._kept_bytes -= size
            self._taken_there += 1
            if self._sent:
                self._sent -= 1
                self._sent_bytes -= size


class Plain(Resumable[M]):
    """A conversation that ends with its connection: nothing is sent again."""

    def next(self) -> M | None:
        if not self._kept:
            return None
        message, size = self._kept.popleft()
        self._kept_bytes -= size
        return message

    def took(self, size: int) -> int | None:
        return None
