"""The functions that a backend gives the runtime. See `browser/bridge.py` and `native/bridge.py`; tests use a fake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sandglass.runtime.loop import CellLoop
    from sandglass.runtime.wire import Encoding, ReplyStatus, Stream

    # The outcome of a host call. A failure has a message. An answer has its value: text as it is, anything else
    # encoded.
    Answer = tuple[ReplyStatus, Encoding, str | bytes]


class Output(Protocol):
    """The receiver of output."""

    def output(self, stream: Stream, skipped: int, text: str) -> None:
        """Sends text of a stream, at most 64 Ki characters.

        `skipped` characters of the same stream were dropped just before it. Must not raise.
        """


class Bridge(Output, Protocol):
    """The crossing to the host. Only the interpreter's main thread calls it."""

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        """Sends a rich output: UTF-8 or raw bytes, as `displays.is_binary` decides. Must not raise.

        With `is_result`, it is the last expression's value, whose repr is sent as well.
        """

    def host_call(self, name: str, calls: list[tuple[Encoding, str | bytes]]) -> list[Answer]:
        """Calls the host function `name` once for each encoded argument list, and blocks until all calls are answered.

        A `str` among them is ASCII. Answers come in the order of the calls. Raises KeyboardInterrupt when the execution
        is interrupted.
        """
        ...

    def sleep(self, seconds: float | None) -> None:
        """Sleeps for `seconds`; None sleeps until something wakes it. Raises KeyboardInterrupt when interrupted."""


class Threads(Protocol):
    """Further functions for event loops, of a backend whose user code has threads."""

    @property
    def loop(self) -> type[CellLoop]:
        """The class of cells' event loops."""
        ...

    def may_wake(self) -> bool:
        """Returns true when a thread is left that could wake an idle loop."""
        ...

    def wake(self) -> None:
        """Ends `wait`, or makes the next one end at once. Any thread may call this."""

    def wait(self, seconds: float | None) -> None:
        """Sleeps like `Bridge.sleep`, until `wake` is called."""
