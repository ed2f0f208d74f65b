"""Starts a cluster on this machine, to try it: servers of NATS and workers, each in a network namespace of its own.

    npm run cluster -- [--workers 5] [--port 8780] [--backend bubblewrap]

Needs root. A load balancer listens on 127.0.0.1, and sends each connection to a random worker that is ready. Lines on
standard input let things go wrong. The end of the input, or Ctrl+C, ends all: states, keys and networks are gone then.

Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cluster_nodes import HTTP, Cluster, Server, Worker
from namespaces import enter

LISTENER, FOLDER = "SANDGLASS_LISTENER", "SANDGLASS_FOLDER"
HELP = """\
  list                      the servers, and which are ready
  kill NAME                 ends it as by kill -9
  end NAME                  ends it in good order: a worker hands its sessions over
  start NAME                starts it again
  stop NAME, go-on NAME     it stands still for a time
  cut NAME [in|out|both]    cuts it off from all servers of NATS, for packets that come, that go, or both
  unplug NAME               cuts it off from everything
  rejoin NAME               ends both
  quit                      ends all"""


WELCOME = """\
{servers} servers of NATS and {workers} workers are ready, behind the load balancer {address}.
Try, in another terminal:

  ask() {{ curl -s {address}/v1/sessions$1 -H 'Authorization: Bearer {key}' \\
    -H 'content-type: application/json' -d "$2"; echo; }}
  id=$(ask "" '{{"context": "a text"}}' | python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])')
  ask /$id/execute '{{"code": "x = len(context)\\nx"}}'

Logs are in {folder}. Here, let something go wrong:

{help}
"""


class LoadBalancer:
    """Sends each connection to a random worker that is ready."""

    def __init__(self, listener: socket.socket, workers: Sequence[Worker]) -> None:
        self._listener = listener
        self._workers = workers
        self.ready: list[Worker] = []
        for work in (self._look, self._accept):
            threading.Thread(target=work, daemon=True).start()

    def _look(self) -> None:
        while True:
            self.ready = [worker for worker in self._workers if worker.is_ready(1)]
            time.sleep(0.3)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        for worker in random.sample(self.ready, len(self.ready)):
            with suppress(OSError):
                server = socket.create_connection((worker.node.address, HTTP), 1)
                break
        else:
            client.close()
            return
        server.settimeout(None)
        pumps = [
            threading.Thread(target=_pump, args=each, daemon=True) for each in ((client, server), (server, client))
        ]
        for pump in pumps:
            pump.start()
        for pump in pumps:
            pump.join()
        client.close()
        server.close()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_WR)


def act(cluster: Cluster, line: str) -> str:
    """Does what a line says, and returns what to print."""
    servers: dict[str, Server] = {each.node.name: each for each in (*cluster.nats, *cluster.workers)}
    match line.split():
        case ["list"]:
            states = (f"{name} {server.node.address} {_state(server)}" for name, server in servers.items())
            return "\n".join(states)
        case [verb, name, *ways] if name in servers and (not ways or verb == "cut"):
            server = servers[name]
            others = [each.node for each in cluster.nats if each is not server]
            match verb, ways:
                case "kill", []:
                    server.kill()
                case "end", []:
                    server.end()
                case "start", []:
                    server.kill()
                    server.start()
                case "stop", []:
                    server.stop()
                case "go-on", []:
                    server.go_on()
                case "cut", [] | ["both"]:
                    server.node.cut_off(others)
                case "cut", ["in" | "out" as way]:
                    server.node.cut_off(others, way)
                case "unplug", []:
                    server.node.unplug()
                case "rejoin", []:
                    server.node.rejoin()
                case _:
                    return HELP
            return f"{name}: done"
        case _:
            return HELP


def _state(server: Server) -> str:
    if server.has_ended():
        return "ended"
    return "ready" if not isinstance(server, Worker) or server.is_ready(1) else "not ready"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--servers", type=int, choices=(1, 3, 5), default=3, help="of NATS")
    parser.add_argument("--port", type=int, default=8780, help="of the load balancer on 127.0.0.1")
    parser.add_argument("--backend", default="auto")
    parser.add_argument(
        "--more",
        nargs="*",
        default=[],
        metavar="OPTION=VALUE",
        help="for the workers, without --",
    )
    options = parser.parse_args()
    if LISTENER not in os.environ:
        # A socket stays in the network in which it was made. So this one accepts for the machine, whoever has it.
        listener = socket.create_server(("127.0.0.1", options.port))
        made = tempfile.mkdtemp(prefix="sandglass-cluster-")
        os.environ |= {LISTENER: str(listener.fileno()), FOLDER: made}
        try:
            enter([listener.fileno()])
        finally:
            shutil.rmtree(made, ignore_errors=True)
    enter()
    listener, folder = (
        socket.socket(fileno=int(os.environ.pop(LISTENER))),
        Path(os.environ.pop(FOLDER)),
    )
    key = secrets.token_urlsafe(24)
    settings = [f"--backend={options.backend}", *(f"--{each}" for each in options.more)]
    cluster = Cluster(
        folder,
        options.servers,
        options.workers,
        settings,
        {"SANDGLASS_KEYS": f"you {key}"},
    )
    with suppress(KeyboardInterrupt):
        try:
            cluster.start()
            LoadBalancer(listener, cluster.workers)
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            print(WELCOME.format(**vars(options), address=address, key=key, folder=folder, help=HELP), flush=True)
            for line in sys.stdin:
                if line.strip() == "quit":
                    break
                print(act(cluster, line), flush=True)
        finally:
            cluster.kill()


if __name__ == "__main__":
    main()
