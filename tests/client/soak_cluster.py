"""Soaks a cluster: users whose sessions are checked at each cell, while servers end, are killed, and a server of NATS is killed.

Run by hand: `npm run soak:cluster -- --minutes 1 --seed 7`. It prints what it saw, and ends with status 1 if a server was wrong. A killed
server may lose what ran since the last sleep, and must say so. Nothing else may be lost, and nothing may be done twice.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from client_host import PROGRAM, ROOT
from cluster_users import Balancer, Forgiving
from http_server import ENVIRONMENT, PATIENCE_SECONDS, HttpServer

USERS, SERVERS = 10, 3
LEASE_SECONDS = 2


class Nats:
    """Three servers of NATS."""

    def __init__(self, folder: Path) -> None:
        process = os.getpid()
        self._host = f"127.{192 + (process >> 16 & 31)}.{process >> 8 & 255}.{process & 255}"
        self._folder = folder
        self._running = [self._start(number) for number in range(3)]
        self.url = ",".join(f"nats://{self._host}:{4221 + number}" for number in range(3))

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        routes = ",".join(f"nats://{self._host}:{6221 + other}" for other in range(3))
        command = [str(ROOT / ".setup/nats/nats-server"), "--jetstream", "--addr", self._host, "--name", f"n{number}"]
        command += ["--port", str(4221 + number), "--store_dir", str(self._folder / f"nats-{number}")]
        command += ["--cluster_name", "soak", "--cluster", f"nats://{self._host}:{6221 + number}", "--routes", routes]
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                socket.create_connection((self._host, 4221 + number)).close()
                return started
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise TimeoutError("NATS does not start")

    def kill_one(self, number: int) -> None:
        """Kills a server of NATS, and starts it again."""
        self._running[number].kill()
        self._running[number].wait()
        self._running[number] = self._start(number)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def server(nats: Nats) -> HttpServer:
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--backend", "subprocess", "--max-spares", "0"]
    command += ["--requests-per-second", "100000", "--suspend-after", "0.5", "--cluster-replicas", "3"]
    command += ["--state-lease-seconds", str(LEASE_SECONDS)]
    own = {"SANDGLASS_CLUSTER": nats.url, "SANDGLASS_STATE_KEY": "5a" * 32, "RUST_LOG": "off"}
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return HttpServer(command, {**os.environ, **ENVIRONMENT, **own})
        except StopIteration:  # NATS has no leader yet
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def soak(minutes: float, seed: int, folder: Path) -> bool:
    chance = random.Random(seed)
    nats = Nats(folder)
    servers: list[HttpServer] = []
    try:
        servers.extend(server(nats) for _ in range(SERVERS))
        balancer = Balancer([each.address for each in servers], seed)
        users = [Forgiving(balancer, number) for number in range(USERS)]
        for user in users:
            user.start()
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until and not any(user.problem for user in users):
            time.sleep(chance.uniform(1, 5))
            number = chance.randrange(SERVERS)
            act = chance.choice(("terminate", "terminate", "kill", "kill NATS"))
            balancer.count(act)
            if act == "kill NATS":
                nats.kill_one(number)
                continue
            former = servers[number]
            former.kill() if act == "kill" else former.end()
            servers[number] = server(nats)
            balancer.replace(former.address, servers[number].address)
        for user in users:
            user.end()
        print(f"seed {seed}: {dict(sorted(balancer.counts.items()))}")
        problems = [user.problem for user in users if user.problem]
        for problem in problems:
            print(f"WRONG: {problem!r}")
        return not problems
    finally:
        for each in servers:
            each.kill()
        nats.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-cluster-"))
    try:
        is_well = soak(options.minutes, options.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
