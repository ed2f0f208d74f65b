"""Sandboxes of a server, over its WebSocket."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from client_host import PACKAGE, PLAIN, PROGRAM
from test_program import FORK
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as ws_serve
from websockets.typing import Subprotocol

from sandglass import AsyncSandbox, Sandbox, SandboxError
from sandglass.client import server
from sandglass.client.resumable import SUFFIX
from sandglass.client.server import SUBPROTOCOL

KEY = "a-key-for-tests-0123456789"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--allow-subprocess"]
    env = {**os.environ, "SANDGLASS_KEYS": f"tester {KEY}", "NO_COLOR": "1"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:[1-9]\d*", line):
                yield found[0]
                break
        else:
            raise RuntimeError("the server did not start")
        server.terminate()


def test_a_sandbox_of_a_server(url: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("word " * 1_000_000)

    def ask(prompt: str) -> str:
        return prompt.upper()

    with Sandbox(url=url, api_key=KEY, on_llm_query=ask) as sandbox:
        sandbox.initialize(tmp_path / "text")
        heard: list[str] = []
        run = sandbox.execute("print(len(context), llm_query('a'))\ncontext", on_stdout=heard.append)
        assert run.stdout == "".join(heard) == "5000000 A\n"
        assert sandbox["context"] == "word " * 1_000_000
        sandbox.files["a"] = b"\x00" * 3_000_000
        assert sandbox.files["a"] == b"\x00" * 3_000_000
        with pytest.raises(KeyError):
            sandbox["nothing"]


def test_asynchronous(url: str) -> None:
    async def main() -> None:
        async def ask(prompt: str) -> str:
            return prompt * 2

        async with AsyncSandbox(url=url, api_key=KEY, on_llm_query=ask) as sandbox:
            assert (await sandbox.execute("llm_query('a')")).value == "aa"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_refusals(url: str) -> None:
    with pytest.raises(SandboxError) as key:
        Sandbox(url=url, api_key="another-key-0123456789abc")
    assert key.value.code == "unauthorized"
    with pytest.raises(SandboxError) as local:
        Sandbox(url=url, api_key=KEY, python="/usr/bin/python3")
    assert local.value.code == "invalid_option"
    with pytest.raises(SandboxError) as gone:
        Sandbox(url="http://127.0.0.1:1", api_key=KEY)
    assert gone.value.code == "backend_unavailable"
    for wrong in ("", "python.example.com", "file:///etc"):
        with pytest.raises(SandboxError) as address:
            Sandbox(url=wrong, api_key=KEY)
        assert address.value.code == "invalid_option"


def test_the_trace_of_the_caller_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package opentelemetry is one of the program that uses the client. This stands in for it."""

    class Propagator:
        def inject(self, headers: dict[str, str]) -> None:
            headers["traceparent"] = TRACE

    name = "opentelemetry.trace.propagation.tracecontext"
    module = ModuleType(name)
    module.TraceContextTextMapPropagator = Propagator  # type: ignore[attr-defined]
    told: list[str | None] = []

    def refuse(socket: ServerConnection) -> None:
        assert socket.request
        told.append(socket.request.headers.get("traceparent"))

    with ws_serve(refuse, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL + SUFFIX)]) as fake:
        thread = threading.Thread(target=fake.serve_forever)
        thread.start()
        address = f"http://127.0.0.1:{fake.socket.getsockname()[1]}"
        for _ in range(2):
            with pytest.raises(SandboxError):
                Sandbox(url=address, api_key=KEY)
            for part in ("opentelemetry", "opentelemetry.trace", "opentelemetry.trace.propagation"):
                monkeypatch.setitem(sys.modules, part, ModuleType(part))
            monkeypatch.setitem(sys.modules, name, module)
        fake.shutdown()
    thread.join()
    assert told == [None, TRACE]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('#{"type":"ended","reason":"it is full"}', "it is full"),
        ('#{"type":"begun","token":"a"}', "does not answer as it should"),
        ("#[]", "does not answer as it should"),
        ("#{", "does not answer as it should"),
        ("hello", "does not answer as it should"),
    ],
)
def test_a_greeting_that_fails_leaves_no_connection(answer: str, reason: str) -> None:
    closed = threading.Event()

    def greet(socket: ServerConnection) -> None:
        socket.recv()
        socket.send(answer)
        for _ in socket:  # until the client closes it
            pass
        closed.set()

    with ws_serve(greet, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL + SUFFIX)]) as greeter:
        thread = threading.Thread(target=greeter.serve_forever)
        thread.start()
        with pytest.raises(SandboxError, match=reason) as refused:
            Sandbox(url=f"http://127.0.0.1:{greeter.socket.getsockname()[1]}", api_key=KEY)
        assert refused.value.code == "backend_unavailable"
        assert closed.wait(60)
    thread.join()


@contextmanager
def conversing(answers: list[str]) -> Iterator[server.Server]:
    """A client of a server that answers the greeting of each WebSocket as the list says, and breaks all but the last."""

    def greet(socket: ServerConnection) -> None:
        socket.recv()
        socket.send(answers.pop(0))
        if answers:
            return
        for _ in socket:
            pass

    with ws_serve(greet, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL + SUFFIX)]) as greeter:
        thread = threading.Thread(target=greeter.serve_forever)
        thread.start()
        client = server.Server(f"http://127.0.0.1:{greeter.socket.getsockname()[1]}", KEY)
        try:
            yield client
        finally:
            client.close()
            greeter.shutdown()
            thread.join()


BEGUN = '#{"type":"begun","token":"a","within":60000,"maxBytes":1000}'


@pytest.mark.parametrize("resumed", ['#{"type":"resumed"}', '#{"type":"resumed","taken":7}'])
def test_an_odd_answer_ends_the_conversation(resumed: str) -> None:
    with conversing([BEGUN, resumed]) as client:
        assert client.receive() is None
        assert "does not answer as it should" in client.why()


def test_an_error_of_the_thread_that_writes_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    with conversing([BEGUN]) as client:

        def send(*_: object, **__: object) -> None:
            raise RuntimeError("it cannot be written")

        monkeypatch.setattr(client._socket, "send", send)
        received: list[object] = []
        reader = threading.Thread(target=lambda: received.append(client.receive()), daemon=True)
        reader.start()
        client.send(b"{}", False)
        reader.join(20)
        assert received == [None]
        assert "it cannot be written" in client.why()
        with pytest.raises(BrokenPipeError):
            client.send(b"{}", False)


def test_a_server_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_OPEN_SECONDS", 600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        refused: list[BaseException] = []

        def wait() -> None:
            with pytest.raises(SandboxError) as error:
                Sandbox(url=address)
            refused.append(error.value)

        thread = threading.Thread(target=wait)
        thread.start()
        accepted, _ = silent.accept()
        with Sandbox(**PLAIN) as sandbox:
            assert sandbox.execute("1").value == 1
        assert not refused
        accepted.close()
        thread.join()
        assert refused


def test_a_forked_process_does_not_end_the_sandboxes_of_its_parent(url: str) -> None:
    code = FORK.format(options=f"url={url!r}, api_key={KEY!r}")
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "fine\n", done.stderr


def test_without_websockets_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["websockets"] = None
from sandglass import Sandbox
try:
    Sandbox(url="http://127.0.0.1:1")
except Exception as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert 'pip install "websockets>=15"' in done.stdout, done.stderr
