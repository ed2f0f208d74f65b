"""The client of the Python package against the real program, `sandglass-host rpc`.

`npm test` builds it, or `cargo build -p sandglass-cli`. SANDGLASS_HOST names another one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import count

import pytest
from client_host import PLAIN, ROOT
from http_server import PATIENCE_SECONDS

from sandglass import Sandbox

PASSWORD = "a-secret-of-tests"
NUMBERS = count()


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """A sandbox that the tests of a module share: none depends on what is in it."""
    # Code that is stopped hears of it when it has had a processor for long enough.
    with Sandbox(grace_period=30_000, **PLAIN) as sandbox:
        sandbox.initialize(None)
        yield sandbox


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of NATS, which ends with the tests of this module."""
    # No other process has this address, so the port is free.
    process = os.getpid()
    host = f"127.{128 + (process >> 16 & 63)}.{process >> 8 & 255}.{process & 255}"
    command = [str(ROOT / ".setup/nats/nats-server"), "--jetstream", "--addr", host, "--port", "4222"]
    command += ["--store_dir", str(tmp_path_factory.mktemp("nats")), "--user", "ann", "--pass", PASSWORD]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as service:
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                socket.create_connection((host, 4222)).close()
                break
            except ConnectionRefusedError:
                assert service.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
        yield f"nats://ann:{PASSWORD}@{host}:4222"
        service.kill()


@pytest.fixture
def bucket(nats: str) -> str:
    """The URL of a bucket that no other test uses."""
    return f"{nats}/test-{next(NUMBERS)}"
