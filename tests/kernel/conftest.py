"""Sandglass's Jupyter kernel, installed from the built program and started by Jupyter's own client.

SANDGLASS_HOST names another program, SANDGLASS_BACKEND another backend than bubblewrap.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient, KernelManager
from jupyter_client.kernelspec import KernelSpecManager

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = os.environ.get("SANDGLASS_HOST", str(TARGET / "debug" / "sandglass-host"))
BACKEND = os.environ.get("SANDGLASS_BACKEND", "bubblewrap")
#: Seconds to wait for short work; long, because a slow machine is not a failure.
PATIENCE = 60.0

Spec = Callable[..., str]


def host(*arguments: str, **environment: str) -> str:
    """Runs the program. Returns its output."""
    done = subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, env={**os.environ, **environment}, timeout=PATIENCE
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def until(what: Callable[[], Any], told: str) -> Any:
    """Waits until a condition holds. Returns its value."""
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end, told
        time.sleep(0.02)
    return found


@dataclass
class Cell:
    """All messages about one request."""

    reply: dict[str, Any]
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for what, content in self.messages if what == kind]

    def text(self, stream: str) -> str:
        return "".join(content["text"] for content in self.of("stream") if content["name"] == stream)

    @property
    def stdout(self) -> str:
        return self.text("stdout")

    @property
    def stderr(self) -> str:
        return self.text("stderr")

    @property
    def data(self) -> dict[str, Any]:
        (result,) = self.of("execute_result")
        found: dict[str, Any] = result["data"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        (error,) = self.of("error")
        return error


class Kernel:
    """A running kernel and its client."""

    def __init__(self, name: str, environment: dict[str, str] | None = None, **options: Any) -> None:
        self.manager = KernelManager(kernel_name=name, **options)
        self.manager.start_kernel(env={**os.environ, **(environment or {})})
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    @property
    def pid(self) -> int:
        pid = self.manager.provisioner.pid  # type: ignore[union-attr]
        assert isinstance(pid, int)
        return pid

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def begin(self, code: str, **options: Any) -> str:
        return self.client.execute(code, **{"allow_stdin": False, **options})

    def collect(self, request: str, on: Callable[[str, dict[str, Any]], None] | None = None) -> Cell:
        """Collects the messages of a request until the kernel is idle again. Calls `on` for each."""
        messages = []
        end = time.monotonic() + PATIENCE
        while True:
            message = self.client.get_iopub_msg(timeout=max(end - time.monotonic(), 0.01))
            kind, content = message["header"]["msg_type"], message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if kind == "status" and content["execution_state"] == "idle":
                break
            messages.append((kind, content))
            if on is not None:
                on(kind, content)
        return Cell(self.reply(request), messages)

    def reply(self, request: str) -> dict[str, Any]:
        while True:
            message = self.client.get_shell_msg(timeout=PATIENCE)
            if message["parent_header"].get("msg_id") == request:
                content: dict[str, Any] = message["content"]
                return content

    def run(self, code: str, **options: Any) -> Cell:
        return self.collect(self.begin(code, **options))

    def ok(self, code: str, **options: Any) -> Cell:
        cell = self.run(code, **options)
        assert cell.reply["status"] == "ok", cell.reply
        return cell


def processes() -> dict[int, int]:
    """All processes, each with its parent."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:  # the process has ended
                continue
            if stat[0] != "Z":
                found[int(folder.name)] = int(stat[1])
    return found


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    parents = processes()
    found = {pid} & set(parents)
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spec]:
    """A function that installs the kernel with these options and returns the name of its specification."""
    prefix = tmp_path_factory.mktemp("prefix")
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = str(prefix / "share" / "jupyter")
    names: dict[tuple[str, ...], str] = {}

    def install(*options: str) -> str:
        if options not in names:
            name = f"sandglass-{len(names)}"
            backend = [] if any(option.startswith("--backend=") for option in options) else [f"--backend={BACKEND}"]
            place = host("kernel", "install", "--prefix", str(prefix), "--name", name, *backend, *options)
            assert Path(place.strip()) == prefix / "share" / "jupyter" / "kernels" / name
            assert KernelSpecManager().get_kernel_spec(name).interrupt_mode == "message"
            names[options] = name
        return names[options]

    yield install
    if before is None:
        del os.environ["JUPYTER_PATH"]
    else:
        os.environ["JUPYTER_PATH"] = before


@pytest.fixture(scope="module")
def shared(spec: Spec) -> Iterator[Kernel]:
    """A kernel for tests that leave it as it was."""
    kernel = Kernel(spec())
    yield kernel
    kernel.end()


@pytest.fixture
def start(spec: Spec) -> Iterator[Callable[..., Kernel]]:
    """A function that starts a kernel with these options, for one test only."""
    kernels = []

    def start(*options: str, **environment: str) -> Kernel:
        kernel = Kernel(spec(*options), environment)
        kernels.append(kernel)
        return kernel

    yield start
    for kernel in kernels:
        kernel.end()
