"""Sessions that are suspended, on a server that is killed at random moments.

What a client was told must hold afterwards: a session that was suspended has the state of its last execution, and one that was
awake has an older one, and says so. SANDGLASS_KILLS=1000 for the long form, SANDGLASS_KILLS_SEED to draw the same again.
"""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from client_host import PROGRAM
from http_server import ENVIRONMENT, PATIENCE_SECONDS, HttpServer

#: Counts the executions, by all that a state has to hold: a closure, a module, a private name, a class and its object.
CODE = """
if "x" not in globals():
    import math as _math
    x, _step = 0, 1
    class Sum:
        def __init__(self, n): self.n = n
        def more(self): return Sum(self.n + _step)
    total = Sum(0)
    def counter(n):
        def count():
            nonlocal n
            n = _math.floor(n + _step)
            return n
        return count
    count = counter(0)
x, total = x + 1, total.more()
assert x == total.n == count()
x"""
KILLS = int(os.environ.get("SANDGLASS_KILLS", "8"))
SEED = int(os.environ.get("SANDGLASS_KILLS_SEED", time.time_ns() % 1_000_000))
#: Sessions at the same time.
SESSIONS = 4
#: Unused sessions are suspended after so many seconds.
SUSPEND_AFTER = 0.05


class Server(HttpServer):
    """A server on a folder of states."""

    def __init__(self, folder: Path) -> None:
        command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--max-spares", "0"]
        command += ["--state-dir", str(folder), "--suspend-after", str(SUSPEND_AFTER), "--requests-per-second", "10000"]
        super().__init__(command, os.environ | ENVIRONMENT)


class Client:
    """A client of one session, and what it knows of it."""

    def __init__(self, server: Server) -> None:
        status, made = server.ask("POST", "/v1/sessions", {"context": "a text"})
        assert status == 201, made
        self.session: str = made["id"]
        #: The executions that were answered. Each adds 1 to `x`.
        self.done = 0
        #: The newest execution whose state the client has seen suspended.
        self.stored: int | None = None

    def work(self, server: Server) -> None:
        """Runs a cell. The server lives meanwhile."""
        status, run = server.execute(self.session, CODE)
        assert status == 200, run
        assert (run["id"], run["result"]) == (self.done + 1, str(self.done + 1)), run
        assert (run["state"]["status"], "lost" in run["state"]) == ("kept", False), run
        self.done += 1

    def look(self, server: Server) -> None:
        """Sees if the session is suspended."""
        status, told = server.ask("GET", f"/v1/sessions/{self.session}")
        assert status == 200, told
        if told.get("suspended"):
            self.stored = self.done

    def survives(self, server: Server) -> bool:
        """Checks the session on the next server. Returns false if it is gone, which is told."""
        status, run = server.execute(self.session, CODE)
        if status == 404:
            assert self.stored is None, f"a suspended session is gone: {run}"
            assert run["error"]["code"] == "session_not_found", run
            return False
        assert status == 200, run
        value, state = int(run["result"]), run["state"]
        # The value is that of the execution whose state was written.
        assert value == run["id"], run
        assert self.stored is None or value > self.stored, f"older than what was stored: {run}, {self.stored}"
        if state["status"] == "kept":
            assert value == self.done + 1, f"executions are lost, and nobody was told: {run}, {self.done}"
        else:
            assert (state["status"], state["restoredTo"]) == ("restored", value - 1), run
        self.done = value
        return True


def test_no_stored_session_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    print(f"seed {SEED}")
    folder = tmp_path / "states"
    server = Server(folder)
    clients = [Client(server) for _ in range(SESSIONS)]
    gone = stored = 0
    with ThreadPoolExecutor(SESSIONS) as lanes:
        try:
            for _ in range(KILLS):
                busy = [client for client in clients if chance.random() < 0.7]
                list(lanes.map(Client.work, busy, repeat(server)))
                # About half of the time, the kill comes while sessions are being written.
                time.sleep(chance.choice([0, SUSPEND_AFTER, SUSPEND_AFTER * 2]) + chance.random() * 0.1)
                for client in clients:
                    if chance.random() < 0.5:
                        client.look(server)
                server.kill()
                server = Server(folder)
                stored += sum(client.stored == client.done for client in clients)
                for index, survives in enumerate(list(lanes.map(Client.survives, clients, repeat(server)))):
                    if not survives:
                        gone += 1
                        clients[index] = Client(server)
            until = time.monotonic() + PATIENCE_SECONDS
            for client in clients:
                while client.stored != client.done:  # those that were seen above depend on the machine
                    client.look(server)
                    assert time.monotonic() < until, "it is never suspended"
                    time.sleep(0.05)
            server.kill()
            server = Server(folder)
            stored += len(clients)
            assert all(client.survives(server) for client in clients)
            server.end()
            server = Server(folder)
            for client in clients:
                client.stored = client.done
                assert client.survives(server), "a server that ends well stores all sessions"
        finally:
            server.kill()
    print(f"{KILLS} kills, {gone} sessions gone that were never stored, {stored} checked that were")
    assert stored > 0
