"""Servers of NATS and of Sandglass, each in a network namespace of its own.

Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from client_host import PROGRAM, ROOT
from namespaces import Network, Node

#: Time for a server to start or to end.
PATIENCE_SECONDS = 90
CLIENTS, ROUTES, MONITOR, HTTP = 4222, 6222, 8222, 8788
NATS = Path(os.environ.get("NATS_SERVER", ROOT / ".setup/nats/nats-server"))


class Server:
    """A process in a node, which can be killed, stopped for a time, and started again."""

    def __init__(self, node: Node, log: Path) -> None:
        self.node = node
        self.process: subprocess.Popen[bytes] | None = None
        self._log = log

    def _spawn(self, command: Sequence[str], environment: Mapping[str, str], clock_ahead: int = 0) -> None:
        with self._log.open("ab") as log:
            full = self.node.command(*command, clock_ahead=clock_ahead)
            self.process = subprocess.Popen(full, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def start(self) -> None:
        """Starts the process, and waits until it answers."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def kill(self) -> None:
        """Kills the process, which hears nothing of it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def end(self) -> int:
        """Ends the process in good order. Returns its status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Lets the process stand still."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class NatsServer(Server):
    """One of several servers of NATS."""

    def __init__(self, node: Node, routes: Sequence[Node], folder: Path) -> None:
        super().__init__(node, folder / f"{node.name}.log")
        self.url = f"nats://{node.address}:{CLIENTS}"
        self._routes = ",".join(f"nats://{each.address}:{ROUTES}" for each in routes)
        self._store = folder / node.name

    def start(self) -> None:
        command = [str(NATS), "--jetstream", "--name", self.node.name, "--store_dir", str(self._store)]
        command += ["--addr", self.node.address, "--port", str(CLIENTS), "--http_port", str(MONITOR)]
        if "," in self._routes:
            command += ["--cluster_name", "states", "--routes", self._routes]
            command += ["--cluster", f"nats://{self.node.address}:{ROUTES}"]
        self._spawn(command, os.environ)
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                socket.create_connection((self.node.address, CLIENTS), 5).close()
                return
            except OSError as error:
                if self.has_ended() or time.monotonic() > until:
                    raise TimeoutError(f"{self.node.name} does not start; see {self._log}") from error
                time.sleep(0.05)

    def traffic(self) -> dict[str, Any]:
        """Returns the counters of the server."""
        with urllib.request.urlopen(f"http://{self.node.address}:{MONITOR}/varz", timeout=PATIENCE_SECONDS) as answer:
            told: dict[str, Any] = json.loads(answer.read())
        return told


class Worker(Server):
    """A server of Sandglass."""

    def __init__(self, node: Node, options: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        super().__init__(node, folder / f"{node.name}.log")
        self.address = f"http://{node.address}:{HTTP}"
        self.clock_ahead = 0
        self._command = [str(PROGRAM), "serve", "--listen", f"{node.address}:{HTTP}", *options]
        self._environment = dict(environment)
        self._clock = folder / f"{node.name}.clock"

    def has_wall_clock(self, library: Path) -> None:
        """Gives the worker a wall clock of its own, by the library that `wall_clock.c` becomes."""
        self._environment |= {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(self._clock)}
        self.set_wall_clock(0)

    def set_wall_clock(self, ahead: int) -> None:
        """Lets the wall clock jump. From then on, it is ahead of the machine's by so many seconds."""
        self._clock.touch()
        with self._clock.open("r+b") as file:
            file.write(struct.pack("q", ahead))

    def start(self, program: Path = PROGRAM) -> None:
        """Starts the worker, and waits until it answers. While NATS has no leader, a worker ends, and is started again."""
        until = time.monotonic() + PATIENCE_SECONDS
        self._spawn([str(program), *self._command[1:]], self._environment, self.clock_ahead)
        while not self.is_ready():
            if time.monotonic() > until:
                raise TimeoutError(f"{self.node.name} does not start; see {self._log}")
            if self.has_ended():
                self._spawn([str(program), *self._command[1:]], self._environment, self.clock_ahead)
            time.sleep(0.1)

    def is_ready(self, patience_seconds: float = 5) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/readyz", timeout=patience_seconds) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


class Cluster:
    """Servers of NATS, and workers that share their sessions through them."""

    def __init__(
        self, folder: Path, servers: int, workers: int, options: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.network = Network()
        nodes = [self.network.node(f"nats-{number + 1}") for number in range(servers)]
        self.nats = [NatsServer(node, nodes, folder) for node in nodes]
        own = {
            "SANDGLASS_CLUSTER": ",".join(each.url for each in self.nats),
            "SANDGLASS_CLUSTER_REPLICAS": str(servers),
            "SANDGLASS_STATE_KEY": secrets.token_hex(32),
            **environment,
        }
        homes = [self.network.node(f"worker-{number + 1}") for number in range(workers)]
        self.workers = [Worker(node, options, {**os.environ, **own}, folder) for node in homes]

    def start(self) -> None:
        for each in self.nats:
            each.start()
        for worker in self.workers:
            worker.start()

    def kill(self) -> None:
        for each in (*self.workers, *self.nats):
            each.kill()
