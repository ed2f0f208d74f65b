"""Kept sandboxes of servers that share a store: an execution that waits at one server goes on at another, and one server at a time has a name.

SANDGLASS_KILLS=1000 for the long form, SANDGLASS_KILLS_SEED to draw the same again.
"""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPException
from threading import Barrier
from typing import Any

from http_server import KEY, PATIENCE_SECONDS
from test_cluster import LONG_LEASE, SHORT_LEASE, Server
from test_kept import BEFORE, CODE, Waiting, begin_client, code_of, goes_on
from test_kept_server import KILLS, LARGE, SEED, Client, Model

from sandglass.client import Sandbox, SandboxError

#: Two questions, of which the second has no answer until the model goes on.
WAITS = "x.append(llm_query('first'))\nx.append(llm_query('go on?'))\nx"
#: The lease of a server that others shall take over, in seconds. It does not run out by itself, on a busy machine either.
LEASE = 5


class Member(Server):
    """A server of the cluster, which waits so many seconds for clients that are away."""

    def __init__(self, bucket: str, lease: int = LONG_LEASE, more: tuple[str, ...] = (), within: int = 0) -> None:
        super().__init__(bucket, lease, ("--reconnect-within", str(within), *more))

    def kill(self) -> None:
        if self.process.poll() is None:
            super().kill()

    def kept(self) -> str:
        status, made = self.ask("POST", "/v1/sessions", {"context": "a text", "persist": True})
        assert status == 201, made
        session: str = made["id"]
        return session

    def of(self, session: str, what: str = "") -> tuple[int, Any]:
        return self.ask("GET", f"/v1/sessions/{session}{what}")

    def options(self, name: str = "kept") -> dict[str, Any]:
        return {"url": self.address, "api_key": KEY, "persist": name}


def opened(server: Member, ask: Any = None) -> Sandbox:
    """A sandbox of the name, once no other server can have it any more."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return Sandbox(**server.options(), host_functions={"ask": ask or (lambda *_: None)})
        except SandboxError as error:
            assert error.code == "persist_in_use", error
            assert time.monotonic() < until, error
            time.sleep(0.05)


def test_an_execution_that_waits_at_a_killed_server_goes_on_at_another(bucket: str) -> None:
    model = Model()
    more = tuple(model.options)
    with ThreadPoolExecutor(1) as pool, Member(bucket, LEASE, more) as first, Member(bucket, more=more) as second:
        session = first.kept()
        # The other server forwards what is for the session.
        run = second.runs(session, "import random\nx = [random.random()]\nx, context")
        drawn = run["result"]
        running = pool.submit(second.execute, session, WAITS)
        assert [model.prompts.get(), model.prompts.get()] == ["first", "go on?"]
        assert second.of(session, "/last")[1]["running"]
        first.kill()
        status, told = running.result()
        assert (status, told["error"]["code"]) == (503, "server_unreachable"), told
        assert "may have been carried out" in told["error"]["message"]
        pending = second.at_last(lambda: second.of(session, "/pending"))
        assert (pending["execution"], pending["code"], pending["calls"][0]["args"][0]) == (2, WAITS, "go on?")
        status, refused = second.execute(session, "1")
        assert (status, refused["error"]["code"]) == (409, "execution_pending")
        model.goes_on.set()
        status, run = second.ask("POST", f"/v1/sessions/{session}/resume", {})
        assert (status, run["outcome"], run["id"], run.get("unkept")) == (200, "ok", 2, None), run
        assert run["result"].endswith(", 'answer to first', 'answer to go on?']")
        assert run["result"].startswith(drawn[1:].partition("]")[0]), (drawn, run["result"])
        assert model.prompts.get() == "go on?"
        assert model.prompts.empty(), "the first question is not asked again"
        assert second.of(session, "/last")[1]["execution"]["result"] == run["result"]
        # What ended on either server runs again here.
        for execution, result in [(1, drawn), (2, run["result"])]:
            status, again = second.ask("POST", f"/v1/sessions/{session}/replay", {"execution": execution})
            assert (status, again.get("execution", again).get("result")) == (200, result), again
        # A third server has it after the end of the second one, with nothing pending.
        with Member(bucket, more=more) as third:
            second.end()
            status, after = third.execute(session, "x")
            assert (status, after["result"], after["state"]["status"]) == (200, run["result"], "kept"), after
            assert third.of(session, "/last")[1]["execution"]["result"] == run["result"]
            status, again = third.ask("POST", f"/v1/sessions/{session}/replay", {"execution": 2})
            assert (status, again["execution"]["result"]) == (200, run["result"]), again
            assert third.ask("DELETE", f"/v1/sessions/{session}")[0] == 204
            assert third.of(session)[0] == 404
    model.shutdown()


def test_a_server_that_was_silent_makes_no_call_and_writes_nothing(bucket: str) -> None:
    model = Model()
    more = tuple(model.options)
    code = "x.append(llm_query('go on?'))\nx.append(llm_query('next'))\nx"
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        first = stack.enter_context(Member(bucket, LEASE, more))
        # It looks at the other one's lease several times in its own, while it forwards a request.
        second = stack.enter_context(Member(bucket, 2 * LEASE, more))
        session = first.kept()
        first.runs(session, "x = []")
        running = pool.submit(first.execute, session, code)
        assert model.prompts.get() == "go on?"
        first.process.send_signal(signal.SIGSTOP)
        try:
            pending = second.at_last(lambda: second.of(session, "/pending"))
            assert pending["execution"] == 2
            model.goes_on.set()
            status, run = second.ask("POST", f"/v1/sessions/{session}/resume", {})
            assert (status, run["outcome"]) == (200, "ok"), run
            assert [model.prompts.get(), model.prompts.get()] == ["go on?", "next"]
        finally:
            first.process.send_signal(signal.SIGCONT)
        # The first server has the answer now, and must not go on with it.
        status, refused = running.result()
        assert (status, refused["error"]["code"]) in {(409, "persist_in_use"), (503, "state_unavailable")}, refused
        assert model.prompts.empty(), "no call is made twice"
        assert "another server" in refused["error"]["message"], refused
        for server in (second, first, second):
            after = server.at_last(lambda server=server: server.execute(session, "x"))  # type: ignore[misc]
            assert (after["result"], after["state"]["status"]) == ("['answer to go on?', 'answer to next']", "kept")
    model.shutdown()


def test_a_session_goes_on_at_another_server_when_its_own_ends(bucket: str) -> None:
    with Member(bucket) as first, Member(bucket) as second:
        session = first.kept()
        first.runs(session, "x = 1")
        status, _ = first.ask("PUT", f"/v1/sessions/{session}/variables/x", {"value": 2})
        assert status == 204
        first.end()
        run = second.runs(session, "x, context")
        assert (run["result"], run["id"], run["state"]["status"]) == ("(2, 'a text')", 2, "kept"), run


def test_all_servers_list_what_is_kept_and_each_can_remove_it(bucket: str) -> None:
    with Member(bucket) as first, Member(bucket) as second:
        session = first.kept()
        at = {"url": second.address, "api_key": KEY}
        with Sandbox(**first.options("name")) as sandbox:
            sandbox.execute("x = 1")
            for server in (first, second):
                listed = server.ask("GET", "/v1/sessions")[1]["sessions"]
                assert session in [each["id"] for each in listed], listed
                assert server.of(session)[1]["id"] == session
            assert [kept.name for kept in Sandbox.list_persisted(**at)] == ["name"]
            assert code_of(lambda: Sandbox.delete_persisted("name", **at)) == "persist_in_use"
        opened_again = opened_name(second, "name")
        assert opened_again["x"] == 1
        opened_again.destroy()
        assert second.ask("DELETE", f"/v1/sessions/{session}")[0] == 204
        for server in (first, second):
            assert server.of(session)[0] == 404
            assert session not in [each["id"] for each in server.ask("GET", "/v1/sessions")[1]["sessions"]]


def opened_name(server: Member, name: str) -> Sandbox:
    """A sandbox of this name. The server that had it may still be giving it back."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            sandbox = Sandbox(**server.options(name))
            sandbox.execute("0")
            return sandbox
        except SandboxError as error:
            assert error.code == "persist_in_use", error
            assert time.monotonic() < until, error
            time.sleep(0.05)


def test_quotas_count_a_kept_session_once(bucket: str) -> None:
    more = ("--max-suspended-per-key", "2")
    with Member(bucket, more=more) as first, Member(bucket, more=more) as second:
        session = first.kept()
        first.runs(session, "x = 1")
        assert second.runs(session, "x")["result"] == "1"
        other = second.kept()
        first.end()
        # The session that moved does not count a second time, beside the other one.
        assert second.at_last(lambda: second.execute(session, "x"))["result"] == "1"
        status, refused = second.ask("POST", "/v1/sessions", {"persist": True})
        assert (status, refused["error"]["code"]) == (429, "too_many_sessions"), refused
        assert second.ask("DELETE", f"/v1/sessions/{other}")[0] == 204
        until = time.monotonic() + PATIENCE_SECONDS
        while second.ask("POST", "/v1/sessions", {"persist": True})[0] != 201:
            assert time.monotonic() < until, "the place of what was removed is never free"
            time.sleep(0.05)


def test_of_two_servers_that_open_a_name_one_has_it(bucket: str) -> None:
    with Member(bucket) as first, Member(bucket) as second, ThreadPoolExecutor(2) as pool:
        for number in range(4):
            both = Barrier(2)

            def tries(server: Member, both: Barrier = both, name: str = f"name {number}") -> Sandbox | str:
                both.wait()
                try:
                    sandbox = Sandbox(**server.options(name))
                    sandbox.execute("import os\nx = os.getpid()")
                except SandboxError as error:
                    return error.code
                return sandbox

            won = [each.result() for each in [pool.submit(tries, server) for server in (first, second)]]
            (owner,) = [each for each in won if isinstance(each, Sandbox)]
            assert [each for each in won if isinstance(each, str)] == ["persist_in_use"], won
            assert owner.execute("x == os.getpid()").value is True
            owner.destroy()


def test_the_execution_of_a_name_goes_on_at_another_server(bucket: str) -> None:
    ask = Waiting()
    with Member(bucket, LEASE) as first, Member(bucket) as second, ThreadPoolExecutor(1) as pool:
        sandbox = Sandbox(**first.options(), host_functions={"ask": ask})
        assert sandbox.execute(BEFORE).outcome == "ok"
        running = pool.submit(sandbox.execute, CODE)
        ask.waits.wait()
        assert code_of(lambda: Sandbox(**second.options())) == "persist_in_use"
        first.kill()
        assert isinstance(running.exception(), (SandboxError, OSError, HTTPException))
        ask.end.set()
        opened(second).destroy()
        goes_on_at_last(second)


def test_a_client_that_was_killed_leaves_its_name_to_one_at_another_server(bucket: str) -> None:
    with Member(bucket, within=3600) as first, Member(bucket) as second:
        client = begin_client(first.options())
        assert code_of(lambda: Sandbox(**second.options())) == "persist_in_use", "its client is there"
        client.kill()
        client.communicate()
        # The first server waits for its client, and gives the name back all the same.
        opened(second).destroy()
        goes_on_at_last(second)


def goes_on_at_last(server: Member) -> None:
    """Goes on with the execution once the sandbox before has given its name back."""
    opened(server).destroy()
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return goes_on(server.options())
        except SandboxError as error:
            assert error.code == "persist_in_use", error
            assert time.monotonic() < until, error
            time.sleep(0.05)


class OfCluster(Client):
    """A client of servers whose leases are so short that one may run out on a busy machine. Then its execution is pending as well."""

    CUTS = frozenset({"backend_unavailable", "persist_in_use"})


def test_no_answer_is_lost_when_servers_of_a_cluster_are_killed(bucket: str) -> None:
    print(f"seed {SEED}")
    client = OfCluster(random.Random(SEED), LARGE)
    with Member(bucket, SHORT_LEASE):  # it watches the others, and so does each that follows
        for _ in range(KILLS):
            with Member(bucket, SHORT_LEASE) as server:
                opened(server).destroy()
                client.visit(server)
        with Member(bucket) as server:
            opened(server).destroy()
            client.visit(server, kills=False)
    print(f"{KILLS} kills, {client.done} executions, {client.resumed} resumed, {client.again} calls made again")
    assert client.done > 0
