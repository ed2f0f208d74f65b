"""The WebSocket of a `sandglass-host serve`. The conversation goes on over another one when it breaks."""

# Decisions: docs/internals/python-client.md, docs/internals/server.md.

from __future__ import annotations

import json
import logging
import os
import random
import socket as sockets
from contextlib import ExitStack, suppress
from threading import Condition, Event
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from sandglass.client.errors import SandboxError
from sandglass.client.resumable import MARK, SUFFIX, Resumable, control
from sandglass.client.transports import MAX_MESSAGE, logger

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

SUBPROTOCOL = "sandglass.rpc.v1"
PATH = "/v1/rpc"
_GREETING_SECONDS = 20.0
_OPEN_SECONDS = 10.0
#: The pause before the second attempt to reconnect, and the longest one.
_PAUSE_SECONDS = (0.05, 2.0)
#: The time between two looks at the end of this process.
_LOOK_SECONDS = 1.0
#: The time for which the system sends bytes that nobody confirms. Then the connection is broken.
_UNCONFIRMED_MS = 20_000
#: The code with which this client leaves a connection and not the conversation.
_RECONNECTING = 4000
#: Codes of faults of a message, which would come again.
_FAULTS = frozenset({1002, 1003, 1007, 1009})

#: The log of the package websockets, which prints some breaks. Here they are expected, and told otherwise.
_quiet = logging.getLogger("sandglass.websocket")
_quiet.setLevel(logging.CRITICAL)


class _Over(Exception):
    """A reason for which the conversation cannot be resumed."""


class Server:
    """The WebSocket of a server. `receive` reconnects when it breaks; meanwhile `send` keeps messages."""

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
        #: Guards the conversation, and the order of what is sent.
        self._turn = Condition()
        self._conversation: Resumable[tuple[bytes, bool]] = Resumable()
        self._closing = Event()
        self._end = ""
        #: The secret that resumes the conversation; empty if the server cannot.
        self._token = ""
        self._within = 0.0
        self._most_bytes = MAX_MESSAGE
        self._socket: ClientConnection | None = self._first()

    def send(self, data: bytes | memoryview, is_binary: bool, head: bytes = b"") -> None:
        message = head + data
        if not self._token:
            self._send_plain(message, is_binary)
            return
        if len(message) > self._most_bytes:
            problem = f"a message has {len(message)} bytes, and the server takes {self._most_bytes}; nothing was done"
            raise SandboxError("invalid_option", problem)
        with self._turn:
            # Pieces of large values wait. All else may come from the thread that reads, which must not.
            while is_binary and not self._conversation.has_room and not self._has_ended:
                self._turn.wait(_LOOK_SECONDS)
            if self._has_ended:
                raise BrokenPipeError(self._end)
            self._conversation.push((message, is_binary), len(message))
            self._send_next()

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
            if self._token:
                with self._turn:
                    taken = self._conversation.took(len(data))
                    if taken is not None:
                        self._tell(socket, taken)
            return data, not is_text
        return None

    def close(self) -> None:
        # Without the lock, which a sender may hold that waits for the network.
        self._closing.set()
        socket = self._socket
        if socket is not None:
            socket.close()

    def abandon(self) -> None:
        self._closing.set()
        self._turn = Condition()
        socket, self._socket = self._socket, None
        if socket is not None:
            with suppress(OSError):
                os.close(socket.socket.detach())

    def why(self) -> str:
        return f"the connection to {self._url} has ended{f' ({self._end})' if self._end else ''}. "

    @property
    def _has_ended(self) -> bool:
        return bool(self._end) or self._closing.is_set()

    def _send_plain(self, message: bytes, is_binary: bool) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            if self._socket is None:
                raise BrokenPipeError(self._end)
            self._socket.send(message, text=not is_binary)
        except ConnectionClosed as error:
            raise BrokenPipeError(str(error)) from error

    def _send_next(self) -> None:
        """Sends what may be sent now. The caller has the lock. A break is noticed by the thread that reads."""
        from websockets.exceptions import ConnectionClosed

        socket = self._socket
        with suppress(ConnectionClosed):
            while socket is not None and (following := self._conversation.next()) is not None:
                message, is_binary = following
                socket.send(message, text=not is_binary)

    def _tell(self, socket: ClientConnection, taken: int) -> None:
        from websockets.exceptions import ConnectionClosed

        with suppress(ConnectionClosed):
            socket.send(control(type="taken", taken=taken))

    def _control(self, message: dict[str, Any]) -> None:
        if message["type"] == "ended":
            self._finish(str(message["reason"]))
            return
        with self._turn:
            self._conversation.told(message["taken"])
            self._send_next()
            self._turn.notify_all()

    def _finish(self, reason: str) -> None:
        socket = self._socket
        with self._turn:
            self._end = self._end or reason or "it has ended"
            self._socket = None
            self._turn.notify_all()
        if socket is not None:
            socket.close()

    def _connect(self, seconds: float) -> ClientConnection:
        from websockets.sync.client import connect
        from websockets.typing import Subprotocol

        socket = ExitStack().enter_context(  # whoever has the socket closes it
            connect(
                self._url,
                subprotocols=[Subprotocol(SUBPROTOCOL + SUFFIX), Subprotocol(SUBPROTOCOL)],
                additional_headers=self._headers,
                max_size=MAX_MESSAGE + 1024,
                compression=None,
                open_timeout=seconds,
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
            if str(socket.subprotocol).endswith(SUFFIX):
                self._conversation.open()
                begun = _ask(socket, control(type="begin"))
                self._token = str(begun["token"])
                self._within = begun["within"] / 1000
                self._most_bytes = begun["maxBytes"]
                self._conversation.link(0)
            return socket
        except InvalidStatus as error:
            raise _refusal(self._url, error.response.status_code, bytes(error.response.body or b"")) from None
        except _Over as over:
            raise SandboxError("backend_unavailable", f"{self._url} refused: {over}") from None
        except (OSError, TimeoutError, WebSocketException) as error:
            advice = "is the server running, and the address right?"
            raise SandboxError("backend_unavailable", f"{self._url} cannot be reached ({error}): {advice}") from error

    def _resume(self, closed: Any) -> None:
        """Takes the conversation up again with another WebSocket, or ends it."""
        with self._turn:
            self._socket = None
            self._conversation.cut()
        is_ours = closed.rcvd is None and closed.sent is not None and closed.sent.code in _FAULTS
        if not self._token or self._closing.is_set() or is_ours:
            self._finish(str(closed))
            return
        logger.info("the connection to %s is broken (%s): reconnecting", self._url, closed)
        until = monotonic() + self._within
        pause, longest = _PAUSE_SECONDS
        last: BaseException = closed
        while not self._closing.is_set():
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
                self._conversation.link(resumed["taken"])
                self._socket = socket
                self._send_next()
                self._turn.notify_all()
        except BaseException:
            socket.close(_RECONNECTING)
            raise
        if self._closing.is_set():
            socket.close()


def _ask(socket: ClientConnection, greeting: str) -> dict[str, Any]:
    """Sends the first message of a WebSocket. Returns the server's answer."""
    socket.send(greeting)
    text = socket.recv(_GREETING_SECONDS)
    if not isinstance(text, str) or not text.startswith(MARK):
        raise _Over("the server does not answer as it should: is it a sandglass-host of this version?")
    answer: dict[str, Any] = json.loads(text[1:])
    if answer["type"] == "ended":
        raise _Over(str(answer["reason"]))
    return answer


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
