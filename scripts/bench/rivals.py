"""Runs one rival for `npm run bench:host`: `python rivals.py monty|ipykernel|local-repl|dspy|docker-exec|docker-run`.

`python rivals.py client` runs Sandglass by its own Python package, in bubblewrap.

It takes the same orders as crates/cli/examples/bench.rs, as lines of JSON, and answers in the same way.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

IMAGE = "sandglass-base"
ORDER_SECONDS = 5
"""An order ends after so long with the samples that it has: a container per cell takes half a second."""


class Client:
    """Sandglass's own Python package: the program beside this process, and the guest in bubblewrap."""

    def __enter__(self) -> Client:
        from sandglass import Sandbox

        self.sandbox = Sandbox(backend="bubblewrap", host_functions={"echo": lambda text: text})
        return self

    def __exit__(self, *_: object) -> None:
        self.sandbox.close()

    def execute(self, code: str) -> None:
        self.sandbox.execute(code)

    def host_calls(self, times: int) -> list[float]:
        began = time.perf_counter()
        self.sandbox.execute(f"for _ in range({times}):\n    echo('x')")
        return [(time.perf_counter() - began) * 1000 / times]

    def context(self, text: str) -> None:
        self.sandbox.initialize(text)
        self.sandbox.execute("len(context)")


class Monty:
    """pydantic-monty: an interpreter of its own for a part of Python, in a worker process."""

    def __enter__(self) -> Monty:
        from pydantic_monty import Monty as Pool

        self.stack = contextlib.ExitStack()
        self.pool = self.stack.enter_context(Pool())
        self.session = self.stack.enter_context(self.pool.checkout())
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def execute(self, code: str) -> None:
        self.session.feed_run(code)

    def host_calls(self, times: int) -> list[float]:
        # It has no clock without a handler, so each call counts as the mean of all.
        began = time.perf_counter()
        with self.pool.checkout() as session:  # one session may call the host a thousand times
            session.feed_run(f"for _ in range({times}):\n    echo('x')", external_lookup={"echo": lambda text: text})
        return [(time.perf_counter() - began) * 1000 / times]

    def context(self, text: str) -> None:
        self.session.feed_run("len(context)", inputs={"context": text})


class Kernel:
    """ipykernel through jupyter_client, as notebook servers use it."""

    def __enter__(self) -> Kernel:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def execute(self, code: str) -> None:
        self.client.execute_interactive(code, timeout=120, output_hook=lambda _: None)

    def host_calls(self, times: int) -> list[float]:
        # A kernel asks its client by `input()`.
        took: list[float] = []
        began = [0.0]

        def answer(message: dict[str, Any]) -> None:
            self.client.input("x")
            took.append((time.perf_counter() - began[0]) * 1000)
            began[0] = time.perf_counter()

        began[0] = time.perf_counter()
        self.client.execute_interactive(
            f"for _ in range({times}): input()",
            allow_stdin=True,
            stdin_hook=answer,
            output_hook=lambda _: None,
            timeout=120,
        )
        return took[1:]

    def context(self, text: str) -> None:
        self.execute(f"context = {text!r}\nlen(context)")


class LocalRepl:
    """The LocalREPL of rlms: `exec` in the controller's own process, without isolation."""

    def __enter__(self) -> LocalRepl:
        from rlm.environments.local_repl import LocalREPL

        self.repl = LocalREPL(custom_tools={"echo": lambda text: text})
        return self

    def __exit__(self, *_: object) -> None:
        self.repl.cleanup()

    def execute(self, code: str) -> None:
        self.repl.execute_code(code)

    def context(self, text: str) -> None:
        self.repl.load_context(text)
        self.repl.execute_code("len(context)")


class Dspy:
    """DSPy's PythonInterpreter: Pyodide in Deno."""

    def __enter__(self) -> Dspy:
        from dspy.primitives.python_interpreter import PythonInterpreter

        self.interpreter = PythonInterpreter(tools={"echo": lambda text: text})
        self.interpreter.execute("x = 1 + 1")
        return self

    def __exit__(self, *_: object) -> None:
        self.interpreter.shutdown()

    def execute(self, code: str) -> None:
        self.interpreter.execute(code)

    def host_calls(self, times: int) -> list[float]:
        began = time.perf_counter()
        self.interpreter.execute(f"for _ in range({times}):\n    echo(text='x')")
        return [(time.perf_counter() - began) * 1000 / times]

    def context(self, text: str) -> None:
        self.interpreter.execute("len(context)", variables={"context": text})


class DockerExec:
    """`docker exec` of a Python in a running container."""

    def __enter__(self) -> DockerExec:
        self.name = f"sandglass-bench-{uuid.uuid4().hex[:12]}"
        self._docker("run", "--detach", "--rm", "--network=none", f"--name={self.name}", IMAGE, "sleep", "infinity")
        return self

    def __exit__(self, *_: object) -> None:
        self._docker("rm", "--force", self.name)

    def execute(self, code: str) -> None:
        self._docker("exec", self.name, "python3", "-c", code)

    def _docker(self, *args: str) -> None:
        docker = shutil.which("docker")
        if docker is None:
            raise RuntimeError("docker is not installed")
        subprocess.run([docker, *args], check=True, stdout=subprocess.DEVNULL)


class DockerRun(DockerExec):
    """A new container for each cell."""

    def __enter__(self) -> DockerRun:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, code: str) -> None:
        self._docker("run", "--rm", "--network=none", IMAGE, "python3", "-c", code)


RIVALS = {
    "client": Client,
    "monty": Monty,
    "ipykernel": Kernel,
    "local-repl": LocalRepl,
    "dspy": Dspy,
    "docker-exec": DockerExec,
    "docker-run": DockerRun,
}


def measure(make: Any, warm: list[Any], order: dict[str, Any]) -> list[float]:
    """Measures an order. Returns milliseconds."""
    what, times = order["what"], int(order.get("times", 1))
    if what == "session":
        return [timed(lambda: first_result(make)) for _ in range(times)]
    if not warm:
        warm.append(make().__enter__())
    rival = warm[0]
    list(within(min(times, 20), lambda: rival.execute("x = 1 + 1")))
    if what == "execute":
        return list(within(times, lambda: rival.execute("x = 1 + 1")))
    if what == "hostCall":
        return list(rival.host_calls(times))
    if what == "context":
        text = "0123456789abcde\n" * (int(order["megabytes"]) << 16)
        return [timed(lambda: rival.context(text)) for _ in range(times)]
    raise AttributeError(what)


def within(times: int, work: Any) -> Iterator[float]:
    """Times `work`, `times` times, or until the order's seconds are over."""
    end = time.perf_counter() + ORDER_SECONDS
    for _ in range(times):
        yield timed(work)
        if time.perf_counter() > end:
            return


def first_result(make: Any) -> None:
    with make() as rival:
        rival.execute("1 + 1")


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    """Answers orders until the input ends."""
    make, warm = RIVALS[sys.argv[1]], []
    out = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer: dict[str, Any] = {"samples": {order["what"]: measure(make, warm, order)}}
        except AttributeError:
            answer = {"error": "it has no such thing"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        print(json.dumps(answer), file=out, flush=True)
    for rival in warm:
        rival.__exit__(None, None, None)


if __name__ == "__main__":
    main()
