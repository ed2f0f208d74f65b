"""Servers that share states in NATS, over HTTP: each answers for the sessions of all, the sessions of a killed one go on, and quotas hold for all."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import pytest
from client_host import PROGRAM
from cluster_users import Balancer, User, all_go_on
from conftest import PASSWORD
from http_server import ENVIRONMENT, KEY, PATIENCE_SECONDS, SharingServer
from proxy import Proxy
from test_reconnect import CUTS, Client

from sandglass import Sandbox, SandboxError

STATE_KEY = "5a" * 32
#: The time that the lease of a server lasts that others shall take over, and of one that they shall not, however busy the machine is.
SHORT_LEASE, LONG_LEASE = 1, 3600


def environment(bucket: str, log: str = "error") -> dict[str, str]:
    own = {"SANDGLASS_CLUSTER": bucket, "SANDGLASS_STATE_KEY": STATE_KEY, "RUST_LOG": log}
    return {**os.environ, **ENVIRONMENT, **own}


def command(*more: str, lease: int = LONG_LEASE, listen: str = "127.0.0.1:0") -> list[str]:
    options = ["--listen", listen, "--backend", "subprocess", "--max-spares", "0", "--suspend-after", "1000"]
    return [str(PROGRAM), "serve", *options, "--state-lease-seconds", str(lease), *more]


class Server(SharingServer):
    """A server of the cluster."""

    BETWEEN: ClassVar = {(503, "server_unreachable"), (503, "state_unavailable")}

    def __init__(
        self,
        bucket: str,
        lease: int = LONG_LEASE,
        more: tuple[str, ...] = (),
        more_environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(command(*more, lease=lease), {**environment(bucket), **more_environment})

    def result(self, session: str, code: str) -> str:
        result: str = self.runs(session, code)["result"]
        return result


def test_the_sessions_of_a_killed_server_go_on_at_another(bucket: str) -> None:
    with Server(bucket) as former:
        stored = former.session()
        former.result(stored, "x = 1\nx")
        former.end()
    with Server(bucket, lease=SHORT_LEASE) as first, Server(bucket) as second:
        assert first.has_at_last(stored, "x = 2\nx")["result"] == "2"
        unstored = first.at_last(lambda: first.ask("POST", "/v1/sessions", {}))["id"]
        first.kill()
        run = second.has_at_last(stored, "x")
        # The state is that of the last sleep, and the client is told.
        assert (run["result"], run["state"]["status"], run["state"]["restoredTo"]) == ("1", "restored", 1), run
        # What was never stored ended with its server.
        assert second.ask("GET", f"/v1/sessions/{unstored}")[0] == 404
        # A server that comes later finds the session as well.
        with Server(bucket) as third:
            assert third.result(stored, "x += 10\nx") == "11"
            assert second.result(stored, "x") == "11"


def test_a_killed_server_is_told_as_long_as_its_lease_runs(bucket: str) -> None:
    with Server(bucket) as first, Server(bucket) as second:
        session = first.session()
        assert second.result(session, "1") == "1"
        first.kill()
        status, refused = second.execute(session, "1")
        assert (status, refused["error"]["code"]) == (503, "server_unreachable"), refused
        assert "nothing was done" in refused["error"]["message"]


def test_a_rolling_restart_loses_nothing_and_answers_everything(bucket: str) -> None:
    more = ("--requests-per-second", "100000", "--shutdown-seconds", "80")
    servers = [Server(bucket, more=more) for _ in range(3)]
    try:
        balancer = Balancer([server.address for server in servers], seed=1)
        # Those who rest have sessions that never slept. Nobody asks for them before the end.
        busy, resting = ([User(balancer, number) for number in numbers] for numbers in (range(6), range(6, 10)))
        for user in resting:
            user.act()
        for user in busy:
            user.start()
        for number, former in enumerate(servers):
            all_go_on(busy)
            former.end()
            servers[number] = Server(bucket, more=more)
            balancer.replace(former.address, servers[number].address)
        all_go_on(busy)
        for user in busy:
            user.stop()
        for user in (*busy, *resting):
            user.act()
        print(balancer.counts)
    finally:
        for server in servers:
            server.kill()


def test_conversations_go_on_through_any_server(bucket: str) -> None:
    """Each connection breaks at a random moment, and the next one is to a random server. Nothing is lost or doubled."""
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(bucket, more=("--requests-per-second", "100000"))) for _ in range(3)]
        proxy = stack.enter_context(closing(Proxy(*(server.address for server in servers), seed=3)))
        users = [Client() for _ in range(3)]
        sandboxes = [
            stack.enter_context(Sandbox(url=proxy.url, api_key=KEY, host_functions={"effect": user.effect}))
            for user in users
        ]
        for sandbox in sandboxes:
            sandbox.initialize(None)
        proxy.is_on = True
        while proxy.cuts < CUTS:
            for user, sandbox in zip(users, sandboxes, strict=True):
                user.check(sandbox.execute(user.code, on_stdout=user.hear, on_display=user.show))
                data = bytes(range(256)) * 1_000
                sandbox.files["data"] = data
                assert sandbox.files["data"] == data
        proxy.is_on = False
        for user, sandbox in zip(users, sandboxes, strict=True):
            assert sandbox.execute("number + 1").value == user.begin


def test_a_server_that_only_carries_may_be_killed(bucket: str) -> None:
    with Server(bucket) as first, Server(bucket) as second, Server(bucket) as third:
        proxy = Proxy(first.address, seed=1)
        killed: list[int] = []

        def kill() -> str:
            killed.append(1)
            proxy.lead_to(third.address)
            second.kill()
            return "killed"

        with closing(proxy), Sandbox(url=proxy.url, api_key=KEY, host_functions={"kill": kill}) as sandbox:
            sandbox.initialize(None)
            proxy.lead_to(second.address)
            proxy.cut()
            # The answer to the call reaches the code over the next server.
            assert sandbox.execute("(kill(), 2)[0]").value == "killed"
            assert killed == [1]


def test_a_conversation_of_a_killed_server_ends_with_a_reason(bucket: str) -> None:
    with Server(bucket, lease=SHORT_LEASE) as first, Server(bucket) as second:
        proxy = Proxy(first.address, seed=1)
        with closing(proxy), Sandbox(url=proxy.url, api_key=KEY) as sandbox:
            assert sandbox.execute("1").value == 1
            proxy.lead_to(second.address)
            first.kill()
            # It is repeated until the lease is over, and told then.
            with pytest.raises(SandboxError) as error:
                sandbox.execute("2")
            assert "has ended or was killed" in str(error.value), error.value


def metric(server: Server, name: str) -> int:
    """The value of a metric without labels."""
    request = urllib.request.Request(f"{server.address}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        found = re.search(rf"^sandglass_{name} (\d+)$", response.read().decode(), re.MULTILINE)
    assert found, name
    return int(found[1])


def eventually(what: str, happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < until, f"did not happen: {what}"
        time.sleep(0.05)


def knows_loads(server: Server, others: int) -> None:
    eventually("the loads of others are known", lambda: metric(server, "other_loads") == others)


def has_refused(server: Server, loads: int) -> bool:
    return metric(server, "loads_refused_total") == loads


def forge(bucket: str, subject: str, *bodies: bytes) -> None:
    """Publishes bytes as a program that has the login of NATS, and no key of states."""
    url = urllib.parse.urlsplit(bucket)
    assert url.hostname
    with socket.create_connection((url.hostname, url.port or 4222), timeout=PATIENCE_SECONDS) as line:
        login = {"user": url.username, "pass": url.password, "verbose": False, "pedantic": False}
        line.sendall(f"CONNECT {json.dumps(login)}\r\n".encode())
        for body in bodies:
            line.sendall(f"PUB {subject} {len(body)}\r\n".encode() + body + b"\r\n")
        line.sendall(b"PING\r\n")
        heard = b""
        while b"PONG" not in heard:
            heard += line.recv(4096)


def test_sessions_of_a_full_server_spread_over_the_others(bucket: str) -> None:
    with (
        Server(bucket, more=("--max-sessions", "1")) as full,
        Server(bucket, more=("--max-sessions", "9")) as second,
        Server(bucket, more=("--max-sessions", "9")) as third,
    ):
        knows_loads(full, 2)
        for _ in range(9):
            full.session()
        spread = [metric(server, "sessions") for server in (full, second, third)]
        assert spread[0] == 1, spread
        assert sum(spread) == 9, spread
        # The memory of the machine changes meanwhile, and counts as well.
        assert min(spread[1:]) >= 2, spread


def test_a_quota_of_a_key_holds_over_three_servers(bucket: str) -> None:
    more = ("--max-sessions-per-key", "6")
    with Server(bucket, more=more) as first, Server(bucket, more=more) as second, Server(bucket, more=more) as third:
        servers = (first, second, third)
        for server in servers:
            knows_loads(server, 2)
            server.session()
            server.session()
        # Nobody can make a load up that counts, whatever is in its place.
        name = bucket.rpartition("/")[2]
        for place in ("loads." + "0" * 32, "loads.nothing", "elsewhere", "loads." + "0" * 32 + ".more"):
            forge(bucket, f"sandglass.told.{name}.{place}", b"", b"SGS1" + bytes(64), bytes(200_000))
        for server in servers:
            eventually("what is made up is refused", partial(has_refused, server, 12))
        made = []

        def is_refused(server: Server) -> bool:
            status, answer = server.ask("POST", "/v1/sessions", {})
            if status == 429:
                assert answer["error"]["code"] == "too_many_sessions", answer
                return "on all servers together" in answer["error"]["message"]
            made.append(answer["id"])
            assert server.ask("DELETE", f"/v1/sessions/{made[-1]}")[0] == 204
            return False

        for server in servers:
            eventually("the quota holds", partial(is_refused, server))
        # Two of a server that was killed count no longer after a while.
        third.kill()
        eventually("there is room again", lambda: first.ask("POST", "/v1/sessions", {})[0] == 201)


def test_settings_that_contradict_each_other_are_refused(bucket: str, tmp_path: Path) -> None:
    full = environment(bucket, log="trace")
    without_key = {name: value for name, value in full.items() if name != "SANDGLASS_STATE_KEY"}
    for options, env, expected in [
        (command(), without_key, "needs a key of states"),
        (command(listen="0.0.0.0:0"), full, "--cluster needs --advertise"),
        (command(), environment("nats://127.0.0.1,nats://192.0.2.1"), "NATS is on another machine"),
        (command("--state-dir", str(tmp_path)), full, "cannot be used with"),
        (command("--state-url", "file:///states"), full, "must be s3://BUCKET/PREFIX"),
        (command("--workspace-dir", str(tmp_path)), full, "give one of the two"),
        (command("--advertise", "http://user@host"), full, "must be http://HOST:PORT"),
        (command("--cluster-replicas", "3"), full, "replicas > 1 not supported"),
        (command(), environment(f"http://ann:{PASSWORD}@127.0.0.1"), "must be nats://HOST"),
    ]:
        ended = subprocess.run(options, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        told = ended.stdout + ended.stderr
        assert ended.returncode != 0
        assert expected in told, told
        assert PASSWORD not in told
        assert STATE_KEY not in told
