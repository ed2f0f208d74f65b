"""Captures what Python prints, in order, and sends it to the host in bounded messages.

Per stream, the first `limit` characters of an execution are sent in full. What comes after goes through a tail buffer
of `limit` characters that keeps the newest ones between two flushes and counts what it drops. So a host that keeps the
first and the last `limit / 2` characters always gets the right ones, and printing without end costs bounded memory and
a bounded rate of messages. Order between streams is exact until one of them exceeds its limit.
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
#: The time after a flush of user code from which the next one counts.
HURRY_SECONDS = 0.001
MAX_MESSAGE_CHARS = 64 * 1024
#: Texts that wait to be taken together, and the characters of each: longer ones are taken at once.
MAX_PENDING, MAX_PENDING_CHARS = 1024, 4096
STREAMS: tuple[Stream, ...] = ("stdout", "stderr", "result", "error", "traceback")


class Channel:
    """State of one stream within one execution."""

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
    """Collects text of all streams and sends it when there is enough of it, when 50 ms have passed, or on `flush`."""

    def __init__(self, bridge: Output) -> None:
        self._bridge = bridge
        self._limit = 0
        self.active = False  # whether what is written belongs to an execution
        self._due = 0.0
        #: The clock. Code that runs ahead has none: its output goes when there is enough of it.
        self.now: Callable[[], float] = monotonic
        self._head: list[tuple[Channel, str]] = []
        self._head_chars = 0
        self.channels = {name: Channel(name) for name in STREAMS}

    def begin(self, limit: int) -> None:
        """Starts an execution: counts anew and accepts text."""
        self._limit = limit
        self._head = []
        self._head_chars = 0
        for channel in self.channels.values():
            if channel.head_left != limit or channel.tail_chars or channel.skipped:
                channel.reset(limit)
        self._due = self.now() + FLUSH_SECONDS
        self.active = True

    def end(self) -> None:
        """Sends what is left; text written from now on (by finalizers, say) belongs to no execution and is dropped."""
        self.flush()
        self.active = False

    def write(self, channel: Channel, text: str) -> None:
        # The hot path of print(): every call here counts four times in WebAssembly.
        if not self.active:
            return
        size = len(text)
        if size <= channel.head_left:
            channel.head_left -= size
            self._head.append((channel, text))
            self._head_chars += size
            if self._head_chars >= FLUSH_CHARS:
                Emitter.flush(self)  # not what a subclass has: that may take more text first
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
        """Keeps the last `size` characters of text; trims only when the buffer is twice the limit."""
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
        """User code has flushed a stream. Nothing to do: text is sent within 50 ms, and a message costs something."""

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
    """The same where user code has threads, and another thread sends what has waited long enough.

    What print() writes goes into `pending` of its stream without a lock, for as long as nothing else is written: a step
    of C, where `write` would be many of Python. Whoever comes next takes it, under the lock.
    """

    def __init__(self, bridge: Output) -> None:
        super().__init__(bridge)
        self.lock = RLock()  # one thread may come back here: flushing may collect garbage whose `__del__` prints
        #: Sends what the bridge has been given.
        self.send_now: Callable[[], object] | None = None
        self._is_silenced: Callable[[int], bool] | None = None
        self._catch_up: Callable[[], object] | None = None
        #: The stream that text may be added to as it is.
        self._newest: Channel | None = None
        self._hurried = 0.0

    @property
    def is_silenced(self) -> Callable[[int], bool] | None:
        """Tells whether a thread is an earlier execution's leftover, which prints nothing; None when there are none."""
        return self._is_silenced

    @is_silenced.setter
    def is_silenced(self, is_silenced: Callable[[int], bool] | None) -> None:
        self._is_silenced = is_silenced
        self._newest = None

    @property
    def catch_up(self) -> Callable[[], object] | None:
        """Called before text is taken, where something else may have been printed before it."""
        return self._catch_up

    @catch_up.setter
    def catch_up(self, catch_up: Callable[[], object] | None) -> None:
        self._catch_up = catch_up
        self._newest = None

    def begin(self, limit: int) -> None:
        with self.lock:
            for channel in self.channels.values():
                channel.pending = []  # another list: a leftover may be about to add to the old one
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
            if self._is_silenced or self._catch_up or not self.active:  # looked at last: another thread may set them
                self._newest = None

    def writer(self, channel: Channel, otherwise: Callable[[str], int]) -> Callable[[str], int]:
        """The method that print() calls: mostly text is only put aside; `otherwise` ends in `write`."""
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
                del pending[: len(texts)]  # not all: other threads add to it
                Emitter.write(self, channel, "".join(texts))

    def write_caught_up(self, channel: Channel, text: str) -> None:
        """Writes what `catch_up` found."""
        with self.lock:
            self._take_pending()
            Emitter.write(self, channel, text)

    def flush(self) -> None:
        with self.lock:
            self._take_pending()
            super().flush()

    def hurry(self) -> None:
        """Sends what was flushed, or it would be lost should the process be killed; once a millisecond at most."""
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


#: Stands for a clock. As with one, the interpreter has no frame for it.
no_time: Callable[[], float] = (0.0).conjugate


class KeptText:
    """The part of a stream that a host in Python keeps: text of at most `limit` characters whole, of longer both ends.

    `crates/core/src/output.rs` has the same rule.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = self._tail = ""
        self._length = 0

    def add(self, skipped: int, text: str) -> None:
        """Takes text, before which `skipped` characters were left out."""
        self._length += skipped + len(text)
        if not skipped and len(self._head) < self._limit:
            self._head += text
        self._tail = (self._tail + text)[-self._limit :] if self._limit else ""

    def text(self) -> str:
        """The text that is kept, with a notice where something is missing."""
        limit = self._limit
        if self._length <= limit:
            return self._head
        tail = limit // 2
        end = self._tail[-tail:] if tail else ""
        return f"{self._head[: limit - tail]}\n... [{self._length - limit} characters omitted] ...\n{end}"


def printable(text: str) -> str:
    """Text that UTF-8 can carry: lone surrogates are written as `\\udc80`."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


class TextStream(io.TextIOWrapper):
    """sys.stdout or sys.stderr of user code.

    A real TextIOWrapper, since libraries ask for one, whose text does not go through its buffer.
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
        """The parts of the stream, for `renew`."""
        return self.buffer, dict(vars(self))

    def renew(self, parts: tuple[ByteStream, dict[str, Any]]) -> None:
        """Undoes what code did to the stream, such as taking its buffer by way of the class."""
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
            text = str.__str__(text)  # the plain text of a subclass, without calling into it
        if text:
            self._emitter.write(self._channel, text)
        return len(text)

    def writelines(self, lines: Iterable[str], /) -> None:  # type: ignore[override]
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """See `Emitter.hurry`."""
        self._emitter.hurry()

    def close(self) -> None:
        """Nothing to do: the stream outlives a cell that closes it."""

    def detach(self) -> ByteStream:  # type: ignore[override]
        """Returns the buffer, for code that wraps it anew. The stream still works: later cells have it as well."""
        return self.buffer

    def isatty(self) -> bool:
        return False

    def reconfigure(self, **_options: Any) -> None:
        """Accepted for compatibility; the stream is always UTF-8."""


class ByteStream(io.BufferedIOBase):
    """`sys.stdout.buffer`, and where bytes written to file descriptors 1 and 2 arrive."""

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
        for start in range(0, len(view), MAX_MESSAGE_CHARS):  # so that 100 MB are never decoded at once
            self._text.write(self._decoder.decode(view[start : start + MAX_MESSAGE_CHARS]))
        self._partial = True
        return len(view)

    def finish(self) -> None:
        """Writes out what looks like the beginning of a character."""
        if self._partial:
            self._partial = False
            self._text.write(self._decoder.decode(b"", True))
            self._decoder.reset()

    def fileno(self) -> int:
        """The descriptor for processes and for `faulthandler`; what is written to it is part of the output, too."""
        return self._fd

    def flush(self) -> None:
        self._text.flush()

    def close(self) -> None:
        """Nothing to do, as in `TextStream`."""

    def writable(self) -> bool:
        return True


class EmptyStdin(io.TextIOWrapper):
    """sys.stdin of user code: at its end from the start, so that pdb and others quit instead of hanging."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")

    def close(self) -> None:
        """Nothing to do, as in `TextStream`; `exit()` calls it."""


def no_input(prompt: object = "", /) -> str:
    """Stands for input(): nobody is there to answer."""
    audit("builtins.input", prompt)
    raise EOFError("input() is not available in this sandbox: assign the value in code instead")


no_input.__name__ = no_input.__qualname__ = "input"
