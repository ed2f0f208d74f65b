"""The official Python client of the Model Context Protocol with `sandglass-host mcp`, real guests, and a model with a script.

.setup/mcp/bin/python -m pytest tests/mcp
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = os.environ.get("SANDGLASS_HOST", str(TARGET / "debug" / "sandglass-host"))
BACKEND = os.environ.get("SANDGLASS_BACKEND", "bubblewrap")
#: Seconds to wait for short work; long, because a slow machine is not a failure.
PATIENCE = 60.0

#: Options of a server whose sandboxes start when they are needed.
SPARELESS = ("--max-spares", "0")
Messages = list[dict[str, str]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def listening(*arguments: str, command: str = "mcp", **environment: str) -> Iterator[str]:
    """The address of a program that serves HTTP: `mcp`, or `serve`."""
    every = [PROGRAM, command, "--backend", BACKEND, "--listen", "127.0.0.1:0", *arguments]
    program = subprocess.Popen(
        every, stdout=subprocess.PIPE, text=True, env={"RUST_LOG": "error", **os.environ, **environment}
    )
    try:
        assert program.stdout
        lines = (line for line in program.stdout if line.startswith("listening on http://127.0.0.1:"))
        yield next(lines).split()[-1].removesuffix("/mcp") + "/mcp"
    finally:
        program.terminate()
        assert program.wait(PATIENCE) == 0
        program.stdout.close()


@asynccontextmanager
async def connected(transport: str, *arguments: str, **options: Any) -> AsyncIterator[Client]:
    """A client over one of the transports."""
    async with AsyncExitStack() as stack:
        server: Any
        if transport == "server":
            server = stack.enter_context(listening(*SPARELESS, command="serve"))
        elif transport == "http":
            server = stack.enter_context(listening(*arguments))
        else:
            command = ["mcp", "--backend", BACKEND, *arguments]
            server = StdioServerParameters(command=PROGRAM, args=command)
        yield await stack.enter_async_context(Client(server, **options))


def text(result: Any) -> str:
    """The text of a tool's result."""
    return "\n".join(block.text for block in result.content if block.type == "text")


class Model:
    """An OpenAI-compatible endpoint that answers by a script, and keeps what it was asked."""

    def __init__(self, script: Callable[[Messages], str]) -> None:
        self.asked: list[Messages] = []
        model = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                model.asked.append(body["messages"])
                message = {"role": "assistant", "content": script(body["messages"])}
                usage = {"prompt_tokens": 100, "completion_tokens": 10}
                reply = json.dumps(
                    {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
                ).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.options = ["--model", "large", "--url", f"http://127.0.0.1:{self.server.server_port}/v1"]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
