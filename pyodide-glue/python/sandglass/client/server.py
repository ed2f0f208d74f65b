"""The WebSocket of a `sandglass-host serve`. The conversation goes on over another one when it breaks."""

# Decisions: docs/internals/python-client.md, docs/internals/server.md.

from __future__ import annotations

import json
import logging
import os
import random
import socket as sockets
from contextlib import ExitStack, suppress
from threading import Condition, Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sandglass.client import traces
from sandglass.client.errors import SandboxError
from sandglass.client.resumable import MARK, SUFFIX, Plain, Resumable, control
from sandglass.client.transports import MAX_MESSAGE, MAX_RECEIVED, logger

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SUBPROTOCOL = "sandglass.rpc.v1"
PATH = "/v1/rpc"
_GREETING_SECONDS = 20.0
_OPEN_SECONDS = 10.0
#: The pause before the second attempt to reconnect, and the longest one.
_PAUSE_SECONDS = (0.05, 2.0)
#: The time for which an end waits for the other side.
_CLOSE_SECONDS = 2.0
#: The time for which the system sends bytes that nobody confirms. Then the connection is broken.
_UNCONFIRMED_MS = 20_000
#: The code with which this client leaves a connection and not the conversation.
_RECONNECTING = 4000
_ODD = "the server does not answer as it should: is it a sandglass-host of this version?"
#: Codes of faults of a message, which would come again.
_FAULTS = frozenset({1002, 1003, 1007, 1009})

#: The log of the package websockets, which prints some breaks. Here they are expected, and told otherwise.
_quiet = logging.getLogger("sandglass.websocket")
_quiet.setLevel(logging.CRITICAL)


class _Over(Exception):
    """A reason for which the conversation cannot be resumed."""


class Server:
    """The WebSocket of a server. `receive` reconnects when it breaks; meanwhile `send` keeps messages.

    Only a thread of its own writes to the network. So `send` may be called where nobody may wait, as in an event loop.
    """

    atomic = 0

    def __init__(self, url: str, api_key: str | None) -> None:
        try:
            import websockets.sync.client  # noqa: F401
        except ImportError:
            advice = 'pip install "websockets>=15"'
            raise SandboxError("invalid_option", f"url needs the package websockets: {advice}") from None
        scheme, host, path, query, _ = urlsplit(url)
        if scheme not in ("http", "https", "ws", "wss") or not host:
            raise SandboxError("invalid_option", f"url must be like https://python.example.com, not {url!r}")
        scheme = {"http": "ws", "https": "wss"}.get(scheme, scheme)
        self._url = urlunsplit((scheme, host, path.rstrip("/").removesuffix(PATH) + PATH, query, ""))
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        #: Guards the conversation, and the order of what is sent. Nobody holds it while the network waits.
        self._turn = Condition()
        self._conversation: Resumable[tuple[bytes, bool]] = Plain()
        #: The number of taken messages, if it is time to tell it.
        self._untold: int | None = None
        self._is_writing = False
        self._closing = Event()
        self._end = ""
        #: The secret that resumes the conversation; empty if the server cannot.
        self._token = ""
        self._within = 0.0
        self._most_bytes = MAX_MESSAGE
        self._socket: ClientConnection | None = self._first()
        Thread(target=self._write, name="sandglass-writer", daemon=True).start()

    def send(self, data: bytes | memoryview, is_binary: bool, head: bytes = b"") -> None:
        message = head + data
        if len(message) > self._most_bytes:
            problem = f"a message has {len(message)} bytes, and the server takes {self._most_bytes}; nothing was done"
            raise SandboxError("invalid_option", problem)
        with self._turn:
            # Pieces of large values wait. All else may come from the thread that reads, which must not.
            while is_binary and not self._conversation.has_room and not self._has_ended:
                self._turn.wait()
            if self._has_ended:
                raise BrokenPipeError(self._end)
            self._conversation.push((message, is_binary), len(message))
            self._turn.notify_all()

    def receive(self) -> tuple[bytes, bool] | None:
        from websockets.exceptions import ConnectionClosed

        while (socket := self._socket) is not None:
            try:
                message: Any = socket.recv()
            except ConnectionClosed as closed:
                self._resume(closed)
                continue
            is_text = isinstance(message, str)
            if is_text and self._token and message.startswith(MARK):
                self._control(json.loads(message[1:]))
                continue
            data = message.encode() if is_text else message
            with self._turn:
                taken = self._conversation.took(len(data))
                if taken is not None:
                    self._untold = taken
                    self._turn.notify_all()
            return data, not is_text
        return None

    def close(self) -> None:
        self._closing.set()
        with self._turn:
            self._turn.notify_all()
            is_idle = self._turn.wait_for(lambda: not self._is_writing, _CLOSE_SECONDS)
            socket = self._socket
        if socket is not None:
            _close(socket, is_idle)

    def abandon(self) -> None:
        # Threads that are not in this process may hold the old ones.
        self._turn, self._closing = Condition(), Event()
        self._closing.set()
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(OSError):
                os.close(socket.socket.detach())

    def why(self) -> str:
        return f"the connection to {self._url} has ended{f' ({self._end})' if self._end else ''}. "

    @property
    def _has_ended(self) -> bool:
        return bool(self._end) or self._closing.is_set()

    def _write(self) -> None:
        """Sends what may be sent. A break is noticed by the thread that reads."""
        from websockets.exceptions import ConnectionClosed

        try:
            while (following := self._await_next()) is not None:
                socket, message, is_binary = following
                with suppress(ConnectionClosed, OSError):
                    socket.send(message, text=not is_binary)
        except Exception as error:  # nobody else writes, so all that is sent would wait for ever
            logger.exception("a message could not be sent to %s", self._url)
            self._is_writing = False
            self._finish(f"a message could not be sent: {error!r}")

    def _await_next(self) -> tuple[ClientConnection, str | bytes, bool] | None:
        """Waits for a message that may be sent, and returns it with its WebSocket. None when the end has come."""
        with self._turn:
            self._is_writing = False
            self._turn.notify_all()
            while not self._has_ended:
                if (socket := self._socket) is not None and (following := self._next()) is not None:
                    self._is_writing = True
                    return socket, *following
                self._turn.wait()
            return None

    def _next(self) -> tuple[str | bytes, bool] | None:
        if self._untold is not None:
            taken, self._untold = self._untold, None
            return control(type="taken", taken=taken), False
        return self._conversation.next()

    def _control(self, message: dict[str, Any]) -> None:
        if message["type"] == "ended":
            self._finish(str(message["reason"]))
            return
        with self._turn:
            self._conversation.told(message["taken"])
            self._turn.notify_all()

    def _finish(self, reason: str) -> None:
        with self._turn:
            socket, self._socket = self._socket, None
            is_idle = not self._is_writing
            self._end = self._end or reason or "it has ended"
            self._turn.notify_all()
        if socket is not None:
            _close(socket, is_idle)

    def _connect(self, seconds: float) -> ClientConnection:
        from websockets.sync.client import connect
        from websockets.typing import Subprotocol

        socket = ExitStack().enter_context(  # whoever has the socket closes it
            connect(
                self._url,
                subprotocols=[Subprotocol(SUBPROTOCOL + SUFFIX), Subprotocol(SUBPROTOCOL)],
                additional_headers={**self._headers, **traces.current()},
                max_size=MAX_RECEIVED,
                compression=None,
                open_timeout=seconds,
                close_timeout=_CLOSE_SECONDS,
                logger=_quiet,
            )
        )
        if hasattr(sockets, "TCP_USER_TIMEOUT"):
            with suppress(OSError):
                socket.socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_USER_TIMEOUT, _UNCONFIRMED_MS)
        return socket

    def _first(self) -> ClientConnection:
        """The first WebSocket."""
        from websockets.exceptions import InvalidStatus, WebSocketException

        try:
            socket = self._connect(_OPEN_SECONDS)
            try:
                if str(socket.subprotocol).endswith(SUFFIX):
                    self._begin(socket)
            except BaseException:
                socket.close()
                raise
            return socket
        except InvalidStatus as error:
            raise _refusal(self._url, error.response.status_code, bytes(error.response.body or b"")) from None
        except _Over as over:
            raise SandboxError("backend_unavailable", f"{self._url} refused: {over}") from None
        except (OSError, TimeoutError, WebSocketException) as error:
            advice = "is the server running, and the address right?"
            raise SandboxError("backend_unavailable", f"{self._url} cannot be reached ({error}): {advice}") from error

    def _begin(self, socket: ClientConnection) -> None:
        """Begins a conversation that can be resumed."""
        self._conversation = Resumable()
        self._conversation.open()
        begun = _ask(socket, control(type="begin"))
        try:
            self._token = str(begun["token"])
            self._within = begun["within"] / 1000
            self._most_bytes = int(begun["maxBytes"])
        except (KeyError, TypeError, ValueError):
            raise _Over(_ODD) from None
        self._conversation.link(0)

    def _resume(self, closed: Any) -> None:
        """Takes the conversation up again with another WebSocket, or ends it."""
        with self._turn:
            self._socket = None
            self._conversation.cut()
        is_ours = closed.rcvd is None and closed.sent is not None and closed.sent.code in _FAULTS
        if not self._token or self._has_ended or is_ours:
            self._finish(str(closed))
            return
        logger.info("the connection to %s is broken (%s): reconnecting", self._url, closed)
        until = monotonic() + self._within
        pause, longest = _PAUSE_SECONDS
        last: BaseException = closed
        while not self._has_ended:
            left = until - monotonic()
            if left <= 0:
                self._finish(f"it was lost, and could not be taken up again within {self._within:g} s: {last}")
                return
            try:
                self._take_up(min(left, _OPEN_SECONDS))
                return
            except _Over as over:
                self._finish(f"it was lost, and could not be taken up again: {over}")
                return
            except _again() as error:
                last = error
            # Clients that lost the same server do not come back all at once.
            self._closing.wait(min(left, pause * random.uniform(0.5, 1)))
            pause = min(pause * 2, longest)
        self._finish("it was closed")

    def _take_up(self, seconds: float) -> None:
        from websockets.exceptions import InvalidStatus

        with self._turn:
            link, taken = self._conversation.open(), self._conversation.taken
        try:
            socket = self._connect(seconds)
        except InvalidStatus as error:
            if error.response.status_code in (401, 403):
                raise _Over(f"the server refused with status {error.response.status_code}") from None
            raise
        try:
            if not str(socket.subprotocol).endswith(SUFFIX):
                raise _Over("the server cannot resume conversations any more")
            resumed = _ask(socket, control(type="resume", token=self._token, link=link, taken=taken))
            with self._turn:
                try:
                    self._conversation.link(resumed["taken"])
                except (KeyError, ValueError):
                    raise _Over(_ODD) from None
                self._socket, self._untold = socket, None
                self._turn.notify_all()
        except BaseException:
            socket.close(_RECONNECTING)
            raise
        if self._has_ended:
            socket.close()


def _close(socket: ClientConnection, is_idle: bool) -> None:
    """Closes a WebSocket, also while a thread writes to a network that has stopped."""
    if not is_idle:
        with suppress(OSError):  # so that the thread that writes gives the WebSocket up
            socket.socket.shutdown(sockets.SHUT_RDWR)
    socket.close()


def _ask(socket: ClientConnection, greeting: str) -> dict[str, Any]:
    """Sends the first message of a WebSocket. Returns the server's answer."""
    socket.send(greeting)
    text = socket.recv(_GREETING_SECONDS)
    try:
        if not isinstance(text, str) or not text.startswith(MARK):
            raise ValueError
        answer: dict[str, Any] = json.loads(text[1:])
        if answer["type"] != "ended":
            return answer
        reason = str(answer["reason"])
    except (KeyError, TypeError, ValueError):
        raise _Over(_ODD) from None
    raise _Over(reason)


def _again() -> tuple[type[BaseException], ...]:
    """Errors after which another attempt may succeed."""
    from websockets.exceptions import WebSocketException

    return OSError, TimeoutError, WebSocketException


def _refusal(url: str, status: int, body: bytes) -> SandboxError:
    try:
        error = json.loads(body)["error"]
        return SandboxError(error["code"], f"{url} refused: {error['message']}")
    except (ValueError, KeyError, TypeError):
        advice = "api_key is missing or wrong" if status == 401 else "is it a sandglass-host of this version?"
        code = "unauthorized" if status == 401 else "backend_unavailable"
        return SandboxError(code, f"{url} refused with status {status}: {advice}")
