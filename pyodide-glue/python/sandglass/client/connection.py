"""A connection to a `sandglass-host`: requests of both sides, blobs, and one thread that reads."""

# The wire: docs/rpc.md. Decisions: docs/internals/python-client.md.

from __future__ import annotations

import atexit
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from struct import Struct
from threading import Lock, Thread, current_thread, main_thread
from typing import Any, NamedTuple

from sandglass.client import traces, workers
from sandglass.client.errors import SandboxError
from sandglass.client.options import with_names_of_python
from sandglass.client.program import find_program
from sandglass.client.server import Server
from sandglass.client.transports import Program, Transport, logger
from sandglass.client.values import MAX_INLINE, Blobs, blob_of, blobs_in, decode, dump, encode

VERSION = 1
_PIECE = 1 << 20
_HEAD = Struct("<IB")
_HELLO_SECONDS = 60.0
#: The code of errors of host functions; programs branch on nothing else.
_FAILED = -32000
_GONE = "Its sandboxes are gone: make new ones."


class Message(NamedTuple):
    """A message, and the blobs that it names."""

    json: dict[str, Any]
    blobs: Blobs
    size: int

    def value(self, structure: Any) -> Any:
        """The value that a structure of the message stands for."""
        return decode(structure, self.blobs)


class Answer(NamedTuple):
    """The answer to a request: its result, or an error."""

    message: Message
    error: SandboxError | None = None

    def result(self) -> Any:
        """The result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.message.json["result"]


class Asked:
    """A request of this side that is under way. Its methods are called by the thread that reads, and must not wait."""

    def __init__(self, answered: Callable[[Answer], None]) -> None:
        self.answered = answered

    def call(self, connection: Connection, message: Message) -> None:
        """Answers a call of Python."""
        connection.refuse_late(message.json["id"], "this request has no host functions")

    def cancelled(self, number: int) -> None:
        """Hears that nobody awaits the answer to a call any more."""

    def event(self, message: Message) -> None:
        """Hears an `output` or a `display`."""


class Connection:
    """A connection that threads share. All sandboxes of a process with the same program or server have the same."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = Lock()
        self._asked: dict[int, Asked] = {}
        self._numbers = count(1)
        self._blob_numbers = count(1)
        #: Pieces of blobs that have not come wholly, and blobs that no message has named yet.
        self._pieces: dict[int, list[bytes]] = {}
        self._blobs: Blobs = {}
        self._end: SandboxError | None = None
        self.server = ""
        #: Facts of sandboxes whose guests have started. They may come before the caller of `create` has its answer.
        self.facts: dict[str, dict[str, Any]] = {}
        #: Sandboxes to which nobody refers any more. The garbage collector may add to it at any point of any thread.
        self.forgotten: SimpleQueue[str] = SimpleQueue()
        Thread(target=self._read, name="sandglass-reader", daemon=True).start()

    def hello(self) -> None:
        """Begins the conversation."""
        answers: SimpleQueue[Answer] = SimpleQueue()
        version = sys.modules[__name__.partition(".")[0]].__version__  # this package's, which imports from here
        client = f"sandglass-repl {version} (Python {sys.version.split()[0]})"
        self.ask("hello", {"version": VERSION, "client": client}, Asked(answers.put))
        try:
            self.server = answers.get(timeout=_HELLO_SECONDS).result()["server"]
        except Empty:
            self.close()
            problem = f"it has not answered in {_HELLO_SECONDS:.0f} s: is it a sandglass-host of this version?"
            raise SandboxError("backend_unavailable", problem) from None
        except BaseException:
            self.close()
            raise

    @property
    def has_ended(self) -> bool:
        """True when there can be no further requests."""
        return self._end is not None

    def close(self) -> None:
        """Ends the connection with all its sandboxes."""
        self._transport.close()

    def abandon(self, reason: SandboxError) -> None:
        """Makes the connection unusable in a forked process; the parent's goes on."""
        self._lock = Lock()
        self._end = reason
        self._transport.abandon()

    def ask(self, method: str, params: dict[str, Any], asked: Asked) -> int:
        """Sends a request. Returns its number."""
        while not self.forgotten.empty():
            sandbox = self.forgotten.get()
            self.facts.pop(sandbox, None)
            self._begin("destroy", {"sandbox": sandbox}, Asked(lambda _: None))
        return self._begin(method, params, asked)

    def _begin(self, method: str, params: dict[str, Any], asked: Asked) -> int:
        number = next(self._numbers)
        try:
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            data = _written({**request, **traces.current()})
            with self._lock:
                if self._end is not None:
                    raise self._end.copy()
                self._asked[number] = asked
            try:
                self._write(data, False)
            except BaseException:
                # When an interrupt came, the request may have been sent, and it is not known to the caller.
                self._asked.pop(number, None)
                self.cancel(number)
                raise
        except BaseException:
            for structure in params.values():  # and not below: an option that holds itself has no end
                self.drop(structure)
            raise
        return number

    def cancel(self, number: int) -> None:
        """Tells the other side that nobody needs the answer to a request."""
        self._notify("cancel", {"id": number})

    def answer(self, number: int, result: dict[str, Any]) -> None:
        """Answers a request of the other side."""
        self._send({"jsonrpc": "2.0", "id": number, "result": result})

    def refuse(self, number: int, reason: str) -> None:
        """Answers a request of the other side with an error."""
        reason = reason.encode(errors="backslashreplace").decode()
        self._send({"jsonrpc": "2.0", "id": number, "error": {"code": _FAILED, "message": reason}})

    def refuse_late(self, number: int, reason: str) -> None:
        """As `refuse`, for the thread that reads: it must not wait for the other side, which may wait for it."""

        def refuse() -> None:
            with suppress(SandboxError):  # the connection has ended, and everybody knows
                self.refuse(number, reason)

        workers.begin(refuse)

    def approval(self, number: int, is_pending: bool) -> None:
        """Tells the other side that a person is asked before its call is answered, or has decided."""
        self._notify("approval", {"id": number, "pending": is_pending})

    def drop(self, structure: Any) -> None:
        """Tells the other side that no message names the blob, if the structure is one."""
        number = blob_of(structure)
        if number is not None:
            self._notify("drop", {"blob": number})

    def encoded(self, value: Any, name: str) -> Any:
        """The structure that stands for a value in a message. A large value is sent before, as a blob."""
        if isinstance(value, Path):
            return self._file(value)
        if type(value) is bytes or type(value) is bytearray:
            if len(value) > MAX_INLINE:
                return self._blob(value, "bytes")
        elif type(value) is str and len(value) > MAX_INLINE:
            try:
                return self._blob(value.encode(), "str")
            except UnicodeEncodeError:
                pass  # lone surrogates
        structure, data = encode(value, name)
        return structure if len(data) <= MAX_INLINE else self._blob(data, "json")

    def _blob(self, data: bytes | bytearray, kind: str) -> Any:
        view = memoryview(data)
        return self._sent(kind, (view[begin : begin + _PIECE] for begin in range(0, len(view), _PIECE)))

    def _file(self, path: Path) -> Any:
        with path.open("rb") as file:
            return self._sent("file", iter(lambda: memoryview(file.read(_PIECE)), b""))

    def _sent(self, kind: str, pieces: Iterator[memoryview]) -> Any:
        number = next(self._blob_numbers)
        structure = {"$blob": {"id": number, "type": kind}}
        try:
            piece = next(pieces, memoryview(b""))
            for following in pieces:
                self._write(piece, True, _HEAD.pack(number, False))
                piece = following
            self._write(piece, True, _HEAD.pack(number, True))
        except BaseException:
            self.drop(structure)
            raise
        return structure

    def _notify(self, method: str, params: dict[str, Any]) -> None:
        with suppress(SandboxError):  # the connection has ended, and everybody knows
            if self._end is None:
                self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        self._write(_written(message), False)

    def _write(self, data: bytes | memoryview, is_binary: bool, head: bytes = b"") -> None:
        try:
            if len(data) + 100 > self._transport.atomic and current_thread() is main_thread():
                # Signals interrupt this thread alone. Half a message would end the connection.
                workers.run(lambda: self._transport.send(data, is_binary, head))
            else:
                self._transport.send(data, is_binary, head)
        except OSError:
            if self._end is None:
                self._finish()
            end = self._end or SandboxError("backend_unavailable", "the connection has ended")
            raise end.copy() from None

    def _read(self) -> None:
        transport = self._transport
        try:
            while (received := transport.receive()) is not None:
                data, is_binary = received
                if is_binary:
                    self._take_piece(data)
                else:
                    message = json.loads(data)
                    # The quotes of a text in JSON have backslashes, so these bytes are a key.
                    blobs = self._named(message) if b'"$blob"' in data else {}
                    size = len(data) + sum(map(len, blobs.values()))
                    self._take(Message(message, blobs, size))
            self._finish()
        except Exception as error:
            logger.exception("a message of the host could not be read")
            self._finish(SandboxError("protocol", f"a message of the host could not be read ({error!r}). {_GONE}"))
            self._transport.close()

    def _take_piece(self, data: bytes) -> None:
        number, is_last = _HEAD.unpack_from(data)
        pieces = self._pieces.setdefault(number, [])
        pieces.append(data[_HEAD.size :])
        if is_last:
            self._blobs[number] = b"".join(self._pieces.pop(number))

    def _named(self, message: Any) -> Blobs:
        return {number: self._blobs.pop(number) for number in blobs_in(message)}

    def _take(self, message: Message) -> None:
        fields = message.json
        method = fields.get("method")
        if method is None:
            asked = self._asked.pop(fields["id"], None)
            if asked is not None:
                asked.answered(Answer(message, _error(fields.get("error"))))
            return
        params = fields["params"]
        if method == "started":
            self.facts[params["sandbox"]] = params["capabilities"]
            return
        if method == "drop":
            self._blobs.pop(params["blob"], None)
            self._pieces.pop(params["blob"], None)
            return
        if method == "cancel":
            for asked in list(self._asked.values()):
                asked.cancelled(params["id"])
            return
        asked = self._asked.get(params.get("request"))
        if "id" not in fields:
            if asked is not None:
                asked.event(message)
        elif asked is not None:
            asked.call(self, message)
        else:
            self.refuse_late(fields["id"], "the execution that calls is not under way any more")

    def _finish(self, reason: SandboxError | None = None) -> None:
        """Answers all requests: the other side is gone."""
        reason = reason or SandboxError("backend_unavailable", f"{self._transport.why()}{_GONE}")
        with self._lock:
            self._end = self._end or reason
            asked, self._asked = list(self._asked.values()), {}
        for request in asked:
            request.answered(Answer(Message({}, {}, 0), self._end.copy()))


def _written(message: dict[str, Any]) -> bytes:
    """The bytes of a message. Raises for options that no message can have."""
    try:
        return dump(message)
    except UnicodeEncodeError:
        problem = "a text has lone surrogates, which only values may have; nothing was done"
        raise SandboxError("invalid_option", problem) from None
    except (TypeError, ValueError) as error:
        raise SandboxError("invalid_option", f"an option cannot be sent ({error}); nothing was done") from None


def _error(error: dict[str, Any] | None) -> SandboxError | None:
    if error is None:
        return None
    data = error.get("data")
    code = data.get("code", "protocol") if type(data) is dict else "protocol"
    return SandboxError(code, with_names_of_python(error["message"]))


_connections: dict[tuple[str, ...], Connection] = {}
#: A server that does not answer must not hold up the others, so each has a lock. `_lock` guards the two dicts.
_locks: dict[tuple[str, ...], Lock] = {}
_lock = Lock()


def connect(url: str | None, api_key: str | None) -> Connection:
    """The connection of this process to a server, or to the program of this machine."""
    key = ("server", url, api_key or "") if url is not None else ("program", find_program())
    with _lock:
        turn = _locks.setdefault(key, Lock())
    with turn:
        connection = _connections.get(key)
        if connection is None or connection.has_ended:
            transport = Server(url, api_key) if url is not None else Program(key[1])
            connection = Connection(transport)
            connection.hello()
            with _lock:
                _connections[key] = connection
        return connection


def _close_all() -> None:
    with _lock:
        connections = list(_connections.values())
        _connections.clear()
    for connection in connections:
        connection.close()


def _after_fork() -> None:
    global _lock
    _lock = Lock()
    _locks.clear()
    reason = "the sandbox belongs to the process that this one was forked from: make another here"
    for connection in _connections.values():
        connection.abandon(SandboxError("destroyed", reason))
    _connections.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
