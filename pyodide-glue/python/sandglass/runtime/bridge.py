"""The functions that a backend gives the runtime: see `browser/bridge.py` and `native/bridge.py`; tests use a fake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sandglass.runtime.loop import CellLoop
    from sandglass.runtime.wire import Encoding, ReplyStatus, Stream

    # A host call's outcome: a failure has a message, and an answer its value, encoded unless it is a text already.
    Answer = tuple[ReplyStatus, Encoding, str | bytes]


class Output(Protocol):
    """The place where text goes."""

    def output(self, stream: Stream, skipped: int, text: str) -> None:
        """Sends text of a stream, at most 64 Ki characters.

        `skipped` characters of the same stream were dropped right before it. Must not raise.
        """


class Bridge(Output, Protocol):
    """The crossing to the host. Called from the interpreter's main thread only."""

    def display(self, mime: str, data: bytes, is_result: bool) -> None:
        """Sends something to see: UTF-8 or raw bytes, as `displays.is_binary` says. Must not raise.

        `is_result`: it is the last expression's value, whose repr is sent as well.
        """

    def host_call(self, name: str, calls: list[tuple[Encoding, str | bytes]]) -> list[Answer]:
        """Calls the host function `name` once for each encoded argument list, and blocks until all are answered.

        A `str` among them is ASCII. Answers come in the order of the calls. Raises KeyboardInterrupt when the execution
        is interrupted.
        """
        ...

    def sleep(self, seconds: float | None) -> None:
        """Blocks for `seconds`; None means until something wakes it. Raises KeyboardInterrupt when interrupted."""


class Threads(Protocol):
    """Functions that a backend whose user code has threads gives the event loops as well."""

    @property
    def loop(self) -> type[CellLoop]:
        """The kind of loop that cells have."""
        ...

    def may_wake(self) -> bool:
        """Returns true when there is a thread that could wake a loop that has nothing to do."""
        ...

    def wake(self) -> None:
        """Ends `wait`, or has the next one end at once. Called from any thread."""

    def wait(self, seconds: float | None) -> None:
        """`Bridge.sleep` that ends with `wake`."""
