"""Kept sandboxes of a server: executions that outlive the server and its clients, wherever they are killed.

SANDGLASS_KILLS=1000 for the long form, SANDGLASS_KILLS_SEED to draw the same again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread, Timer
from typing import Any, Protocol

import pytest
from client_host import PROGRAM
from http_server import ENVIRONMENT, KEY, PATIENCE_SECONDS, HttpServer
from test_kept import BEFORE, CODE, Waiting, begin_client, code_of, goes_on

from sandglass.client import AsyncSandbox, Sandbox, SandboxError, call_id

KILLS = int(os.environ.get("SANDGLASS_KILLS", "8"))
#: The server is killed as soon as the execution was answered.
AFTER = 3
SEED = int(os.environ.get("SANDGLASS_KILLS_SEED", time.time_ns() % 1_000_000))
#: Counts the executions, and asks for two numbers to add to a sum. A large state is written after the answer.
LARGE = """
if "n" not in globals():
    n = total = 0
    ballast = bytes(range(256)) * 20_000
n += 1
total += ask(n, 1)
total += ask(n, 2)
[n, total]"""
SMALL = LARGE.replace("20_000", "0")


class Server(HttpServer):
    """A server on a folder of states. With `within`, clients have so many seconds to reconnect."""

    def __init__(self, folder: Path, within: int = 0, backend: str = "subprocess", more: Sequence[str] = ()) -> None:
        command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", backend, "--max-spares", "0"]
        command += ["--state-dir", str(folder), "--reconnect-within", str(within), *more]
        super().__init__(command, os.environ | ENVIRONMENT)

    def options(self, name: str = "kept") -> dict[str, Any]:
        return {"url": self.address, "api_key": KEY, "persist": name}


@contextmanager
def served(folder: Path, within: int = 0, backend: str = "subprocess", more: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(folder, within, backend, more)
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize("backend", ["subprocess", "bubblewrap"])
def test_an_execution_goes_on_after_the_server_was_killed_in_the_middle_of_a_call(backend: str, tmp_path: Path) -> None:
    ask = Waiting()
    with served(tmp_path, backend=backend) as server, ThreadPoolExecutor(1) as pool:
        sandbox = Sandbox(**server.options(), host_functions={"ask": ask})
        assert sandbox.execute(BEFORE).outcome == "ok"
        running = pool.submit(sandbox.execute, CODE)
        ask.waits.wait()
        server.kill()
        error = running.exception()
        ask.end.set()
    assert isinstance(error, SandboxError)
    assert error.code == "backend_unavailable"
    with served(tmp_path, backend=backend) as server:
        goes_on(server.options())


def test_a_name_is_free_when_its_client_was_killed_or_the_server_ends(tmp_path: Path) -> None:
    with served(tmp_path, within=3600) as server:
        client = begin_client(server.options())
        client.kill()
        client.communicate()
        # The server waits for it, and gives the name to another one all the same.
        waits, end = Event(), Event()

        def ask(_: str) -> None:
            waits.set()
            end.wait()

        with ThreadPoolExecutor(1) as pool:
            sandbox = opened(server, ask)
            pool.submit(sandbox.resume)
            waits.wait()
            server.end()
            end.set()
    with served(tmp_path) as server:
        goes_on(server.options())


def opened(server: Server, ask: Any) -> Sandbox:
    """A sandbox. The server may not have noticed yet that the client before has gone."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return Sandbox(**server.options(), host_functions={"ask": ask})
        except SandboxError as error:
            assert error.code == "persist_in_use", error
            assert time.monotonic() < until, error


def test_what_is_kept_can_be_deleted(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        at: dict[str, str] = {"url": server.address, "api_key": KEY}
        with Sandbox(**server.options()) as sandbox:
            unkept = sandbox.execute("x = (n for n in 'ab')").unkept
            assert unkept is not None
            assert unkept.startswith("x cannot be written (")
            assert sandbox.execute("x = 1").unkept is None
            assert code_of(lambda: Sandbox.delete_persisted("kept", **at)) == "persist_in_use"
        Sandbox.delete_persisted("kept", **at)
        with Sandbox(**server.options()) as sandbox:
            assert "x" not in sandbox
        asyncio.run(AsyncSandbox.delete_persisted("kept", **at))
        assert code_of(lambda: Sandbox.delete_persisted("", **at)) == "invalid_option"


def test_names_are_listed_and_their_executions_run_again_after_the_server_was_killed(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        at: dict[str, str] = {"url": server.address, "api_key": KEY}
        assert Sandbox.list_persisted(**at) == []
        with Sandbox(**server.options("name"), host_functions={"ask": lambda _: "one"}) as sandbox:
            run = sandbox.execute("import random\nx = [ask(1), random.random()]\nx")
            assert (run.outcome, run.unkept) == ("ok", None), run
            server.kill()
    with served(tmp_path) as server:
        at = {"url": server.address, "api_key": KEY}
        listed = Sandbox.list_persisted(**at)
        assert [(kept.name, kept.execution) for kept in listed] == [("name", 1)]
        assert asyncio.run(AsyncSandbox.list_persisted(**at)) == listed
        with Sandbox(**server.options("name"), host_functions={"ask": lambda _: "two"}) as sandbox:
            again = sandbox.replay(run.id)
            assert (again.execution.value, again.difference) == (run.value, None)
            assert sandbox.replay(run.id, {1: "other"}).execution.value == ["other", run.value[1]]
            assert sandbox["x"] == run.value
        Sandbox.delete_persisted("name", **at)
        assert Sandbox.list_persisted(**at) == []


class Model(ThreadingHTTPServer):
    """A model that answers each prompt, and those with a question mark once `goes_on` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Completions)
        self.prompts: SimpleQueue[str] = SimpleQueue()
        self.goes_on = Event()
        Thread(target=self.serve_forever, daemon=True).start()

    @property
    def options(self) -> list[str]:
        return ["--llm-url", f"http://127.0.0.1:{self.server_port}/v1", "--llm-model", "large"]


class Completions(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = asked["messages"][-1]["content"]
        self.server.prompts.put(prompt)
        if prompt.endswith("?"):
            self.server.goes_on.wait()
        message = {"role": "assistant", "content": f"answer to {prompt}"}
        body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        with suppress(OSError):  # the server that asked was killed
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.mark.parametrize("backend", ["subprocess", "bubblewrap"])
def test_a_session_goes_on_after_the_server_was_killed_in_the_middle_of_a_call(backend: str, tmp_path: Path) -> None:
    code = "x.append(llm_query('first'))\nx.append(llm_query('go on?'))\nx"
    model = Model()
    with served(tmp_path, backend=backend, more=model.options) as server, ThreadPoolExecutor(1) as pool:
        _, made = server.ask("POST", "/v1/sessions", {"context": "a text", "persist": True})
        session = made["id"]
        assert server.execute(session, "import random\nx = [random.random()]")[1]["outcome"] == "ok"
        running = pool.submit(server.execute, session, code)
        assert [model.prompts.get(), model.prompts.get()] == ["first", "go on?"]
        server.kill()
        assert isinstance(running.exception(), (OSError, HTTPException))
    with served(tmp_path, backend=backend, more=model.options) as server:
        _, pending = server.ask("GET", f"/v1/sessions/{session}/pending")
        assert (pending["execution"], pending["code"], pending["calls"][0]["args"][0]) == (2, code, "go on?")
        status, refused = server.execute(session, "1")
        assert (status, refused["error"]["code"]) == (409, "execution_pending")
        model.goes_on.set()
        status, run = server.ask("POST", f"/v1/sessions/{session}/resume", {})
        assert (status, run["outcome"], run["id"]) == (200, "ok", 2), run
        assert run["result"].endswith(", 'answer to first', 'answer to go on?']")
        assert model.prompts.get() == "go on?"
        assert model.prompts.empty(), "the first question is not asked again"
        before = run["result"]
    # Nothing ran when the second server was killed.
    with served(tmp_path, backend=backend, more=model.options) as server:
        _, run = server.execute(session, "x")
        assert (run["result"], run["id"], run["state"]["status"]) == (before, 3, "kept"), run
        assert server.ask("DELETE", f"/v1/sessions/{session}")[0] == 204
    model.shutdown()
    with served(tmp_path, backend=backend) as server:
        assert server.ask("GET", "/v1/sessions") == (200, {"sessions": []})


class Keeper(Protocol):
    """A server that keeps sandboxes."""

    def kill(self) -> None: ...
    def options(self, name: str = ...) -> dict[str, Any]: ...


class Client:
    """A client of one name, and what it knows of it. The server is killed in one of its calls, or at any moment."""

    #: The errors of a server that is killed.
    CUTS = frozenset({"backend_unavailable"})

    def __init__(self, chance: random.Random, code: str = SMALL) -> None:
        self.chance, self.code = chance, code
        #: The executions that have ended, and the sum of the answers to their calls.
        self.done = self.total = 0
        #: The calls of the execution under way, by their places: their names, and the answers that they got last.
        self.calls: dict[int, tuple[str | None, int]] = {}
        self.resumed = self.again = 0

    def visit(self, server: Keeper, *, kills: bool = True) -> None:
        """Does the work with this server, which may be killed meanwhile."""
        self.kill = server.kill
        self.killing_call = self.chance.choice([1, 2, AFTER, None]) if kills else None
        timer = Timer(self.chance.random() * 2, server.kill)
        if kills and self.killing_call is None:
            timer.start()
        try:
            with Sandbox(**server.options(), host_functions={"ask": self.ask}) as sandbox:
                self.work(sandbox)
                if self.killing_call == AFTER:
                    self.kill()
        except SandboxError as error:
            assert kills, error
            assert error.code in self.CUTS, error
        timer.cancel()
        if timer.ident is not None:
            timer.join()

    def ask(self, execution: int, place: int) -> int:
        assert execution == self.done + 1
        assert place + 1 not in self.calls, "its answer was kept, and it is made again"
        name, answer = call_id(), self.chance.randrange(1000)
        if place in self.calls:
            assert name == self.calls[place][0], "a call that is made again has the same name"
            self.again += 1
        self.calls[place] = name, answer
        if place == self.killing_call:
            self.kill()
        return answer

    def work(self, sandbox: Sandbox) -> None:
        """Runs a cell, or goes on with the one that an earlier server has not finished."""
        pending = sandbox.pending()
        if pending is not None:
            assert (pending.execution, pending.code) == (self.done + 1, self.code)
            self.resumed += 1
            run = sandbox.resume()
        elif sandbox.get_variable("n", 0) == self.done + 1:
            self.ended(sandbox["total"])  # it had ended, and only the result was not told
            return
        else:
            assert sandbox.get_variable("n", 0) == self.done
            assert not self.calls, "calls were made, and their execution is lost"
            run = sandbox.execute(self.code)
        assert (run.outcome, run.unkept) == ("ok", None), run
        assert run.value[0] == self.done + 1
        self.ended(run.value[1])

    def ended(self, total: int) -> None:
        assert list(self.calls) == [1, 2]
        self.total += sum(answer for _, answer in self.calls.values())
        assert total == self.total
        self.done += 1
        self.calls = {}


@pytest.mark.parametrize("code", [SMALL, LARGE], ids=["small", "large"])
def test_no_answer_is_lost_when_the_server_is_killed(code: str, tmp_path: Path) -> None:
    print(f"seed {SEED}")
    client = Client(random.Random(SEED), code)
    for _ in range(KILLS):
        with served(tmp_path) as server:
            client.visit(server)
    with served(tmp_path) as server:
        client.visit(server, kills=False)
    print(f"{KILLS} kills, {client.done} executions, {client.resumed} resumed, {client.again} calls made again")
    assert client.done > 0
