"""A session of a server over HTTP, with the methods of `AsyncSandbox`. Each request has a connection of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from sandglass import SandboxError
from sandglass.client.execution import CodeExecution, read_execution

PATIENCE_SECONDS = 90
#: Closing such a socket resets the connection at once.
_RESET = struct.pack("ii", 1, 0)


class HttpSandbox:
    """A session. The server has it until `destroy`."""

    def __init__(self, url: str, key: str, session: str) -> None:
        self._url, self._key = url, key
        self._session = session

    @classmethod
    async def create(cls, url: str, key: str, **options: Any) -> HttpSandbox:
        """Makes a session."""
        made = cls(url, key, "")
        made._session = (await made._ask("POST", "", options))["id"]
        return made

    async def execute(self, code: str, timeout: float | None = None) -> CodeExecution:
        """Runs code."""
        run = {"code": code} if timeout is None else {"code": code, "timeout": timeout}
        return read_execution(await self._ask("POST", "/execute", run), None, None, [])

    async def leave(self, code: str, seconds: float) -> None:
        """Has code run, and closes the connection before there is an answer."""
        connection = self._send("POST", "/execute", {"code": code}, self._session)
        await asyncio.sleep(seconds)
        assert isinstance(connection.sock, socket.socket)
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.close()

    async def undo(self) -> int:
        """Takes back the last execution."""
        return int((await self._ask("POST", "/undo", {}))["execution"])

    async def restore(self, execution: int | None = None) -> int:
        """Goes back to a checkpoint."""
        wanted = {} if execution is None else {"execution": execution}
        return int((await self._ask("POST", "/restore", wanted))["execution"])

    async def checkpoint(self) -> int:
        """Saves the state."""
        return int((await self._ask("POST", "/checkpoint", {}))["execution"])

    async def set_variable(self, name: str, value: Any) -> None:
        """Sets a variable."""
        await self._ask("PUT", f"/variables/{name}", {"value": value})

    async def fork(self) -> HttpSandbox:
        """Makes a copy."""
        copies = (await self._ask("POST", "/fork", {"count": 1}))["sessions"]
        return HttpSandbox(self._url, self._key, copies[0]["id"])

    async def destroy(self) -> None:
        """Ends the session. Does nothing if it was ended."""
        session, self._session = self._session, ""
        if session:
            await self._ask("DELETE", "", session=session)

    def _send(self, method: str, path: str, body: Any, session: str) -> HTTPConnection:
        connection = HTTPConnection(urlsplit(self._url).netloc, timeout=PATIENCE_SECONDS)
        whole = f"/v1/sessions/{session}{path}" if session else "/v1/sessions"
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        connection.request(method, whole, None if body is None else json.dumps(body), headers)
        return connection

    async def _ask(self, method: str, path: str, body: Any = None, session: str | None = None) -> Any:
        session = self._session if session is None else session

        def ask() -> tuple[int, bytes]:
            connection = self._send(method, path, body, session)
            try:
                response = connection.getresponse()
                return response.status, response.read()
            finally:
                connection.close()

        status, text = await asyncio.to_thread(ask)
        answer: Any = json.loads(text) if text else None
        if status >= 400:
            raise SandboxError(answer["error"]["code"], f"{status}: {answer['error']['message']}")
        return answer
