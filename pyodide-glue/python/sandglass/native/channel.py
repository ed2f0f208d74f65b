"""Sends a native guest's messages: events of the current exchange, in frames, from any thread.

Text that soon follows a message waits for the next one, so that most executions are answered by one frame. Output and
displays use up credit, which the host returns as it reads them. Output beyond the credit waits here.
"""

from __future__ import annotations

from _thread import RLock, allocate_lock
from time import monotonic
from typing import TYPE_CHECKING

from sandglass.native.frames import pack_frame
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.pristine import to_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sandglass.runtime.wire import Encoding, Event, Stream

#: The most bytes of output and displays that the host has not acknowledged: UTF-8 of texts, and bodies of displays.
CREDIT_BYTES = 4 << 20
HOLD_SECONDS = 0.02
_MAX_HELD_CHARS = 4096
_MAX_HELD_EVENTS = 64
_MAX_FRAME_BYTES = 256 << 10
#: The approximate size of a host call's event, without the name.
_CALL_BYTES = 120


class Channel:
    """Sends events. `send` takes a whole frame, and may block."""

    def __init__(self, send: Callable[[bytes], object], epoch: int) -> None:
        self._send = send
        self._epoch = epoch
        self._held: list[Event] = []
        self._hold_until = 0.0
        self._credit = CREDIT_BYTES
        self._credit_lock = allocate_lock()  # held for a moment only: the reader takes it
        self._more_credit = allocate_lock()  # released when there is more credit
        self._more_credit.acquire()
        #: Held while a frame is sent. The reader never takes it, because it has to hear of credit meanwhile.
        self.lock = RLock()
        #: The current exchange; 0 between exchanges.
        self.exchange = 0
        #: The clock. Code that runs ahead has none.
        self.now = monotonic

    def begin(self, exchange: int) -> None:
        """Begins an exchange. The reader calls this."""
        self._hold_until = monotonic() + HOLD_SECONDS
        self.exchange = exchange

    def renew(self, epoch: int) -> None:
        """Begins anew in a copy of the guest, which has a channel of its own."""
        self._epoch = epoch
        self._held = []
        self._credit = CREDIT_BYTES

    def end(self, event: Event, *bodies: bytes) -> None:
        """Ends the exchange with an event."""
        with self.lock:
            self.exchange = 0  # first: the host may begin the next exchange as soon as it has the event
            self._post([event], bodies)

    def post(self, event: Event) -> None:
        """Sends an event that does not end the exchange."""
        with self.lock:
            self._post([event])

    def output(self, stream: Stream, skipped: int, text: str) -> None:
        with self.lock:
            exchange = self.exchange
            if not exchange:
                return
            self._spend(len(text) if text.isascii() else len(text.encode()))
            event: Event = {"type": "output", "exchange": exchange, "stream": stream, "skipped": skipped, "text": text}
            if self.now() < self._hold_until and len(text) < _MAX_HELD_CHARS and len(self._held) < _MAX_HELD_EVENTS:
                self._held.append(event)
            else:
                self._post([event])

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        with self.lock:
            if self.exchange:
                self._spend(len(data))
                self._post(
                    [{"type": "display", "exchange": self.exchange, "mime": mime, "isResult": is_result}], [data]
                )

    def calls(self, exchange: int, first: int, name: str, calls: list[tuple[Encoding, str | bytes]]) -> None:
        """Sends host calls, numbered from `first`. Large ones take several frames."""
        events: list[Event] = []
        bodies: list[bytes] = []
        size = 0
        for number, (encoding, body) in enumerate(calls, first):
            events.append(
                {
                    "type": "hostCall",
                    "exchange": exchange,
                    "call": number,
                    "batch": len(calls),
                    "name": name,
                    "encoding": encoding,
                    "blocking": False,
                }
            )
            bodies.append(body.encode() if isinstance(body, str) else body)
            size += len(body) + len(name) + _CALL_BYTES
            if size > _MAX_FRAME_BYTES:
                self._post(events, bodies)
                events, bodies, size = [], [], 0
        if events:
            self._post(events, bodies)

    def noted(self, exchange: int, notes: bytes) -> None:
        """Sends notes of a recorder, before what depends on them."""
        with self.lock:
            self._post([{"type": "noted", "exchange": exchange}], [notes])

    def flush(self) -> None:
        """Sends the held events."""
        with self.lock:
            if self._held:
                self._post()

    def flush_due(self) -> None:
        """Sends the held events if they have waited for long enough."""
        if self._held and self.now() >= self._hold_until:
            self.flush()

    def give(self, credit: int) -> None:
        """Takes credit back from the host, in bytes."""
        with self._credit_lock:
            self._credit += credit
            if self._more_credit.locked():
                self._more_credit.release()

    def _spend(self, size: int) -> None:
        """Waits for credit.

        Half of it is enough for something large: hosts return credit in portions, and never all.
        """
        needed = min(size, CREDIT_BYTES // 2)
        if self._credit < needed and self._held:
            self._post()  # the host returns credit only for what it has received
        while True:
            with self._credit_lock:
                if self._credit >= needed:
                    self._credit -= size
                    return
            self._more_credit.acquire()

    def _post(self, events: Sequence[Event] = (), bodies: Sequence[bytes] = ()) -> None:
        held, self._held = self._held, []
        self._hold_until = self.now() + HOLD_SECONDS
        # A lone surrogate would end the guest. The runtime never sends one.
        header = to_json([*held, *events]).encode("utf-8", "replace")
        self._send(pack_frame(self._epoch, header, bodies))
