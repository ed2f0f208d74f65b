"""Captures what Python prints, in order, and sends it to the host in bounded messages.

For each stream, the first `limit` characters of an execution are sent in full. The rest goes through a tail buffer of
`limit` characters, which keeps the newest between two flushes and counts the dropped ones. So a host that keeps the
first and the last `limit / 2` characters always gets the right ones. Endless output costs bounded memory and a bounded
rate of messages. The order between streams is exact until one of them exceeds its limit.
"""

from __future__ import annotations

import codecs
import io
from _thread import RLock, get_ident
from sys import audit
from time import monotonic
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sandglass.runtime.bridge import Output
    from sandglass.runtime.wire import Stream

FLUSH_CHARS = 32 * 1024
FLUSH_SECONDS = 0.05
#: The shortest time between two flushes by user code that have an effect.
HURRY_SECONDS = 0.001
MAX_MESSAGE_CHARS = 64 * 1024
#: The most texts that wait together, and the most characters of each. A longer text is taken at once.
MAX_PENDING, MAX_PENDING_CHARS = 1024, 4096
STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "result", "error", "traceback")


class Channel:
    """The state of one stream within one execution."""

    __slots__ = ("head_left", "name", "pending", "skipped", "tail", "tail_chars")

    def __init__(self, name: Stream) -> None:
        self.name = name
        self.pending: list[str] = []
        self.reset(0)

    def reset(self, limit: int) -> None:
        self.head_left = limit
        self.tail: list[str] = []
        self.tail_chars = 0
        self.skipped = 0


class Emitter:
    """Collects text of all streams. Sends it when there is enough text, after 50 ms, or on `flush`."""

    def __init__(self, bridge: Output) -> None:
        self._bridge = bridge
        self._limit = 0
        self.active = False  # whether text belongs to an execution
        self._due = 0.0
        #: The clock. Code that runs ahead has none, and sends only when there is enough text.
        self.now: Callable[[], float] = monotonic
        self._head: list[tuple[Channel, str]] = []
        self._head_chars = 0
        self.channels = {name: Channel(name) for name in STREAMS}

    def begin(self, limit: int) -> None:
        """Begins an execution: resets the counts and accepts text."""
        self._limit = limit
        self._head = []
        self._head_chars = 0
        for channel in self.channels.values():
            if channel.head_left != limit or channel.tail_chars or channel.skipped:
                channel.reset(limit)
        self._due = self.now() + FLUSH_SECONDS
        self.active = True

    def end(self) -> None:
        """Sends the rest.

        Text that comes later, for instance from finalizers, belongs to no execution and is dropped.
        """
        self.flush()
        self.active = False

    def write(self, channel: Channel, text: str) -> None:
        # The hot path of print(). Every call here costs four times as much in WebAssembly.
        if not self.active:
            return
        size = len(text)
        if size <= channel.head_left:
            channel.head_left -= size
            self._head.append((channel, text))
            self._head_chars += size
            if self._head_chars >= FLUSH_CHARS:
                Emitter.flush(self)  # not a subclass's flush, which may take more text first
                return
        elif channel.head_left:
            head = channel.head_left
            Emitter.write(self, channel, text[:head])
            self._keep_tail(channel, text, size - head)
        else:
            self._keep_tail(channel, text, size)
        if self.now() >= self._due:
            Emitter.flush(self)

    def _keep_tail(self, channel: Channel, text: str, size: int) -> None:
        """Keeps the last `size` characters of text. Trims only when the buffer is twice the limit."""
        limit = self._limit
        if size > limit:
            channel.skipped += size - limit
            size = limit
        if size < len(text):
            text = text[len(text) - size :]
        channel.tail.append(text)
        channel.tail_chars += size
        if channel.tail_chars > 2 * limit:
            kept = "".join(channel.tail)
            channel.tail = [kept[len(kept) - limit :]]
            channel.skipped += len(kept) - limit
            channel.tail_chars = limit

    def flush(self) -> None:
        """Sends all pending text."""
        pending, self._head, self._head_chars = self._head, [], 0
        start = 0
        while start < len(pending):
            channel = pending[start][0]
            end = start + 1
            while end < len(pending) and pending[end][0] is channel:
                end += 1
            self._send(channel.name, 0, "".join([text for _, text in pending[start:end]]))
            start = end
        for channel in self.channels.values():
            if channel.tail_chars or channel.skipped:
                self._flush_tail(channel)
        self._due = self.now() + FLUSH_SECONDS

    def hurry(self) -> None:
        """Hears a flush of user code. Does nothing: text is sent within 50 ms, and each message has a cost."""

    def _flush_tail(self, channel: Channel) -> None:
        kept = "".join(channel.tail)
        extra = max(0, len(kept) - self._limit)
        skipped = channel.skipped + extra
        channel.tail, channel.tail_chars, channel.skipped = [], 0, 0
        self._send(channel.name, skipped, kept[extra:])

    def _send(self, stream: Stream, skipped: int, text: str) -> None:
        if not text.isascii():
            text = printable(text)
        self._bridge.output(stream, skipped, text[:MAX_MESSAGE_CHARS])
        for start in range(MAX_MESSAGE_CHARS, len(text), MAX_MESSAGE_CHARS):
            self._bridge.output(stream, 0, text[start : start + MAX_MESSAGE_CHARS])


class SharedEmitter(Emitter):
    """An Emitter for user code with threads. Another thread sends text that has waited long enough.

    print() adds text to `pending` of its stream without a lock, as long as no other stream is written to. This is one
    step of C code, while `write` takes many steps of Python. The next caller takes the text under the lock.
    """

    def __init__(self, bridge: Output) -> None:
        super().__init__(bridge)
        self.lock = RLock()  # reentrant: a flush may collect garbage whose `__del__` prints
        #: Sends the messages that the bridge holds.
        self.send_now: Callable[[], object] | None = None
        self._is_silenced: Callable[[int], bool] | None = None
        self._catch_up: Callable[[], object] | None = None
        #: The stream whose `pending` may take text.
        self._newest: Channel | None = None
        self._hurried = 0.0

    @property
    def is_silenced(self) -> Callable[[int], bool] | None:
        """Returns true for a thread that an earlier execution left, whose output is dropped.

        None when there are none.
        """
        return self._is_silenced

    @is_silenced.setter
    def is_silenced(self, is_silenced: Callable[[int], bool] | None) -> None:
        self._is_silenced = is_silenced
        self._newest = None

    @property
    def catch_up(self) -> Callable[[], object] | None:
        """Called before text is taken, in case others have printed something before it."""
        return self._catch_up

    @catch_up.setter
    def catch_up(self, catch_up: Callable[[], object] | None) -> None:
        self._catch_up = catch_up
        self._newest = None

    def begin(self, limit: int) -> None:
        with self.lock:
            for channel in self.channels.values():
                channel.pending = []  # a new list, because a leftover thread may be adding to the old one
            self._newest = None
            super().begin(limit)

    def end(self) -> None:
        with self.lock:
            self._newest = None
            super().end()

    def write(self, channel: Channel, text: str) -> None:
        if self._is_silenced and self._is_silenced(get_ident()):
            return
        if self._catch_up:
            self._catch_up()
        with self.lock:
            self._take_pending()
            Emitter.write(self, channel, text)
            self._newest = channel
            if self._is_silenced or self._catch_up or not self.active:  # checked last: another thread may set them
                self._newest = None

    def writer(self, channel: Channel, otherwise: Callable[[str], int]) -> Callable[[str], int]:
        """Returns the function that print() calls. It mostly just adds to `pending`; `otherwise` leads to `write`."""
        emitter = self

        def write(text: str, /) -> int:
            pending = channel.pending
            if (
                emitter._newest is channel
                and type(text) is str
                and (size := len(text)) <= MAX_PENDING_CHARS
                and len(pending) < MAX_PENDING
            ):
                pending.append(text)
                return size
            return otherwise(text)

        return write

    def _take_pending(self) -> None:
        for channel in self.channels.values():
            if pending := channel.pending:
                texts = pending[:]
                del pending[: len(texts)]  # not all: other threads may have added more
                Emitter.write(self, channel, "".join(texts))

    def write_caught_up(self, channel: Channel, text: str) -> None:
        """Writes text that `catch_up` has found."""
        with self.lock:
            self._take_pending()
            Emitter.write(self, channel, text)

    def flush(self) -> None:
        with self.lock:
            self._take_pending()
            super().flush()

    def hurry(self) -> None:
        """Sends flushed text, which would be lost if the process were killed. At most once a millisecond."""
        if self.now is no_time:
            return
        waits = self._head or any(channel.pending for channel in self.channels.values())
        if waits and self.send_now and (now := monotonic()) >= self._hurried + HURRY_SECONDS:
            self._hurried = now
            self.flush()
            self.send_now()

    def flush_due(self) -> None:
        """Sends text that has waited for 50 ms."""
        channels = self.channels.values()
        if monotonic() >= self._due and (self._head or any(c.tail_chars or c.pending for c in channels)):
            self.flush()


#: Stands for the clock. Like the clock, it has no frame in the interpreter.
no_time: Callable[[], float] = (0.0).conjugate


class KeptText:
    """The kept part of a stream, for a host in Python: text up to `limit` characters, or both ends of longer text.

    `crates/core/src/output.rs` has the same rule.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = self._tail = ""
        self._length = 0

    def add(self, skipped: int, text: str) -> None:
        """Takes text. `skipped` characters before it were dropped."""
        self._length += skipped + len(text)
        if not skipped and len(self._head) < self._limit:
            self._head += text
        self._tail = (self._tail + text)[-self._limit :] if self._limit else ""

    def text(self) -> str:
        """Returns the kept text, with a notice for the missing part."""
        limit = self._limit
        if self._length <= limit:
            return self._head
        tail = limit // 2
        end = self._tail[-tail:] if tail else ""
        return f"{self._head[: limit - tail]}\n... [{self._length - limit} characters omitted] ...\n{end}"


def printable(text: str) -> str:
    """Returns text that UTF-8 can carry: lone surrogates become `\\udc80`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class TextStream(io.TextIOWrapper):
    """sys.stdout or sys.stderr of user code.

    A real TextIOWrapper, because libraries ask for one. But its text does not go through its buffer.
    """

    mode = "w"
    buffer: ByteStream

    def __init__(self, emitter: Emitter, name: Stream) -> None:
        self._attach(ByteStream(self, name))
        self._emitter = emitter
        self._channel = emitter.channels[name]
        if isinstance(emitter, SharedEmitter):
            self.write = emitter.writer(self._channel, self.write)  # type: ignore[method-assign]

    def parts(self) -> tuple[ByteStream, dict[str, Any]]:
        """Returns the parts of the stream, for `renew`."""
        return self.buffer, dict(vars(self))

    def renew(self, parts: tuple[ByteStream, dict[str, Any]]) -> None:
        """Undoes changes that code made to the stream, such as taking its buffer through the class."""
        buffer, attributes = parts
        names = vars(self)
        if len(names) != len(attributes) or any(names.get(name) is not value for name, value in attributes.items()):
            names.clear()
            names.update(attributes)
        try:
            is_whole = self.buffer is buffer
        except ValueError:
            is_whole = False
        if not is_whole:
            self._attach(buffer)

    def _attach(self, buffer: ByteStream) -> None:
        super().__init__(buffer, encoding="utf-8", errors="backslashreplace", write_through=True)

    def write(self, text: str, /) -> int:
        if type(text) is not str:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            text = str.__str__(text)  # the plain text of a subclass, without calling its methods
        if text:
            self._emitter.write(self._channel, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hurries as `Emitter.hurry` does."""
        self._emitter.hurry()

    def close(self) -> None:
        """Does nothing, because the stream outlives a cell that closes it."""

    def detach(self) -> ByteStream:  # type: ignore[override]
        """Returns the buffer, for code that wraps it. The stream still works, because later cells use it as well."""
        return self.buffer

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **_options: Any) -> None:
        """Accepts options for compatibility. The stream is always UTF-8."""


class ByteStream(io.BufferedIOBase):
    """`sys.stdout.buffer`. Bytes written to file descriptors 1 and 2 also arrive here."""

    mode = "wb"

    def __init__(self, text: TextStream, name: str) -> None:
        self.raw = self
        self.name = f"<{name}>"
        self._fd = 2 if name == "stderr" else 1
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._partial = False

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), MAX_MESSAGE_CHARS):  # in pieces, so that 100 MB are never decoded at once
            self._text.write(self._decoder.decode(view[start : start + MAX_MESSAGE_CHARS]))
        self._partial = True
        return len(view)

    def finish(self) -> None:
        """Writes out an incomplete character at the end."""
        if self._partial:
            self._partial = False
            self._text.write(self._decoder.decode(b"", True))
            self._decoder.reset()

    def fileno(self) -> int:
        """Returns a descriptor for processes and `faulthandler`. Bytes written to it become part of the output."""
        return self._fd

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """Does nothing, as in `TextStream`."""

    def writable(self) -> bool:
        return True


class EmptyStdin(io.TextIOWrapper):
    """sys.stdin of user code. It is at its end from the start, so that pdb and others quit instead of hanging."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def close(self) -> None:
        """Does nothing, as in `TextStream`. `exit()` calls it."""


def no_input(prompt: object = "", /) -> str:
    """Stands for input() when nobody can answer."""
    audit("builtins.input", prompt)
    raise EOFError("input() is not available in this sandbox: assign the value in code instead")


no_input.__name__ = no_input.__qualname__ = "input"
