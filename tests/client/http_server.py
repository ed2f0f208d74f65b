"""A server that is a process of its own, and a client of its HTTP API."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

KEY = "a-key-for-tests-0123456789"
#: The environment in which the server knows the key, and says little.
ENVIRONMENT = {"SANDGLASS_KEYS": f"tester {KEY}", "NO_COLOR": "1", "RUST_LOG": "error"}
PATIENCE_SECONDS = 90


class HttpServer:
    """A server, from its start until `kill` or `end`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout
        found = (re.search(r"http://127\.0\.0\.1:[1-9]\d*", line) for line in self.process.stdout)
        self.address = next(address[0] for address in found if address)

    def kill(self) -> None:
        """Kills the server, which hears nothing of it."""
        self.process.kill()
        self.process.wait()
        self._close()

    def end(self) -> None:
        """Ends the server in good order."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0, "the server ends well"
        self._close()

    def _close(self) -> None:
        assert self.process.stdout
        self.process.stdout.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Returns the status and the JSON of an answer."""
        try:
            with urllib.request.urlopen(self._request(method, path, body), timeout=PATIENCE_SECONDS) as response:
                text = response.read()
                return response.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def _request(self, method: str, path: str, body: Any, **more: str) -> urllib.request.Request:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **more}
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.Request(self.address + path, data, headers, method=method)

    def events(self, session: str, code: str) -> Iterator[tuple[str, Any]]:
        """Runs code, and returns the names and data of its events as they come."""
        path = f"/v1/sessions/{session}/execute"
        request = self._request("POST", path, {"code": code}, Accept="text/event-stream")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
            name = ""
            for line in response:
                field, _, value = line.decode().strip().partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, json.loads(value)

    def execute(self, session: str, code: str) -> tuple[int, Any]:
        return self.ask("POST", f"/v1/sessions/{session}/execute", {"code": code})


class SharingServer(HttpServer):
    """A server that shares its sessions with others, until the end of the `with` block, which kills it."""

    #: The answers while another server may have the session.
    BETWEEN: ClassVar = {(503, "state_unavailable")}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def session(self) -> str:
        status, made = self.ask("POST", "/v1/sessions", {"context": "a text"})
        assert status == 201, made
        session: str = made["id"]
        return session

    def runs(self, session: str, code: str) -> Any:
        status, run = self.execute(session, code)
        assert status == 200, run
        return run

    def at_last(self, ask: Callable[[], tuple[int, Any]]) -> Any:
        """The answer to a request when no other server can have its session any more."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, told = ask()
            if status in (200, 201):
                return told
            assert (status, told["error"]["code"]) in self.BETWEEN, told
            assert time.monotonic() < until, "the session is never taken over"
            time.sleep(0.05)

    def has_at_last(self, session: str, code: str) -> Any:
        """Runs a cell when no other server can have the session. Until then, the answer says that one may have it.

        The code may run more than once, since a server whose lease runs out meanwhile loses what it did.
        """

        def ask() -> tuple[int, Any]:
            status, run = self.execute(session, code)
            assert status == 200 or "another server" in run["error"]["message"], run
            return status, run

        return self.at_last(ask)
