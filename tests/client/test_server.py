"""Sandboxes of a server, over its WebSocket."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_host import PACKAGE, PROGRAM

from sandglass import AsyncSandbox, Sandbox, SandboxError

KEY = "a-key-for-tests-0123456789"


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
