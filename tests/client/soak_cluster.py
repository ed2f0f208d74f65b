"""Soaks a cluster in network namespaces: five workers, three servers of NATS, and users whose sessions are checked at each cell.

Run by hand, as root: `npm run soak:cluster -- --minutes 10 --seed 7`. Two things go wrong at a time, one of a worker and one of NATS.
Workers are killed, ended, restarted one after the other, stopped beyond their leases, cut off in one direction or both, and their clocks jump.
Servers of NATS are killed, stand still as on a disk that stalls, and are cut off from each other. The soak prints what it saw, and ends with
status 1 if a server was wrong:

- A state that slept is never lost. In a session with `persist`, no state after an answer is lost. Anything else is lost only with a server,
  and the client is told (`restored`, 404).
- No cell runs twice, and none is answered without having run. Numbers of executions never go back behind a stored state.
- Of two servers that both believe to have a session, one is refused: a late write would show as variables that no model allows.
- Each request is answered, or its connection breaks. A refusal says if something may have been done.

Decisions: `docs/internals/server.md`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from client_host import PROGRAM, ROOT
from cluster_nodes import Cluster, NatsServer, Worker
from cluster_users import Balancer, Forgiving, Keeping, all_go_on
from http_server import ENVIRONMENT
from namespaces import Way, enter

CLIENTS, SESSIONS, WORKERS, SERVERS = 10, 2, 5, 3
#: One session of so many has `persist`.
KEPT = 4
LEASE_SECONDS = 2
#: The furthest that a clock is ahead or behind.
CLOCK_SECONDS = 1_000_000
WAYS: tuple[Way, ...] = ("both", "in", "out")
OPTIONS = ("--backend", "subprocess", "--max-spares", "0", "--requests-per-second", "100000", "--suspend-after", "0.5")
LOGS = ROOT / ".setup/logs/soak-cluster"
Act = Callable[[], None]


class Trouble(threading.Thread):
    """Lets one thing go wrong after the other, until told to stop. All is well again when it has stopped."""

    def __init__(self, name: str, balancer: Balancer, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.chance = random.Random(f"{name} {seed}")
        self._balancer = balancer
        self._stopped = threading.Event()
        self.problem: BaseException | None = None

    def acts(self) -> dict[str, Act]:
        """Returns what may go wrong, by its name."""
        raise NotImplementedError

    def run(self) -> None:
        try:
            while not self._stopped.wait(self.chance.uniform(0.5, 5)):
                name, act = self.chance.choice(list(self.acts().items()))
                self._balancer.count(name)
                print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
                with self._balancer.trouble():
                    act()
        except BaseException as problem:
            self.problem = problem

    def waits(self, least: float, most: float) -> None:
        time.sleep(self.chance.uniform(least, most))

    def end(self) -> None:
        self._stopped.set()
        self.join()


class TroubleOfWorkers(Trouble):
    """What happens to one worker, and a restart of all of them."""

    def __init__(self, cluster: Cluster, balancer: Balancer, seed: int, upgrade: Path) -> None:
        super().__init__("worker", balancer, seed)
        self._cluster = cluster
        self._versions = (PROGRAM, upgrade)

    def acts(self) -> dict[str, Act]:
        worker = self.chance.choice(self._cluster.workers)
        way = self.chance.choice(WAYS)
        name = worker.node.name
        return {
            f"drain: {name}": lambda: self._restart(worker),
            f"kill: {name}": lambda: self._kill(worker),
            f"kill while cut off: {name}": lambda: self._kill_cut_off(worker),
            f"stop beyond the lease: {name}": lambda: self._pause(worker, LEASE_SECONDS, 4 * LEASE_SECONDS),
            f"stop: {name}": lambda: self._pause(worker, 0.1, LEASE_SECONDS),
            f"cut from NATS ({way}): {name}": lambda: self._cut_from_nats(worker, way),
            f"cut from another worker ({way}): {name}": lambda: self._cut_from_worker(worker, way),
            f"unplug: {name}": lambda: self._unplug(worker),
            f"wall clock: {name}": lambda: worker.set_wall_clock(self.chance.randint(-CLOCK_SECONDS, CLOCK_SECONDS)),
            "upgrade of all": self._upgrade,
        }

    def _restart(self, worker: Worker, program: Path = PROGRAM) -> None:
        status = worker.end()
        assert status == 0, f"{worker.node.name} ends with status {status}"
        worker.start(program)

    def _kill(self, worker: Worker) -> None:
        worker.kill()
        self.waits(0, 2 * LEASE_SECONDS)
        worker.start()

    def _kill_cut_off(self, worker: Worker) -> None:
        worker.node.cut_off([each.node for each in self._cluster.nats])
        self.waits(0, 2 * LEASE_SECONDS)
        worker.kill()
        worker.node.rejoin()
        worker.start()

    def _pause(self, worker: Worker, least: float, most: float) -> None:
        worker.stop()
        self.waits(least, most)
        worker.go_on()

    def _cut_from_nats(self, worker: Worker, way: Way) -> None:
        worker.node.cut_off([each.node for each in self._cluster.nats], way)
        self.waits(0.5, 4 * LEASE_SECONDS)
        worker.node.rejoin()

    def _cut_from_worker(self, worker: Worker, way: Way) -> None:
        other = self.chance.choice([each for each in self._cluster.workers if each is not worker])
        worker.node.cut_off([other.node], way)
        self.waits(0.5, 4 * LEASE_SECONDS)
        worker.node.rejoin()

    def _unplug(self, worker: Worker) -> None:
        worker.node.unplug()
        self.waits(0.5, 4 * LEASE_SECONDS)
        worker.node.rejoin()

    def _upgrade(self) -> None:
        program = self.chance.choice(self._versions)
        for worker in self._cluster.workers:
            self._restart(worker, program)


class TroubleOfNats(Trouble):
    """What happens to one server of NATS. The other two are a majority."""

    def __init__(self, cluster: Cluster, balancer: Balancer, seed: int) -> None:
        super().__init__("nats", balancer, seed)
        self._cluster = cluster

    def acts(self) -> dict[str, Act]:
        server = self.chance.choice(self._cluster.nats)
        way = self.chance.choice(WAYS)
        name = server.node.name
        return {
            f"kill: {name}": lambda: self._kill(server),
            f"stop: {name}": lambda: self._pause(server, 0.5, 4 * LEASE_SECONDS),
            f"stalls of the disk: {name}": lambda: self._stall(server),
            f"cut from NATS ({way}): {name}": lambda: self._cut(server, way),
        }

    def _kill(self, server: NatsServer) -> None:
        server.kill()
        self.waits(0, 2 * LEASE_SECONDS)
        server.start()

    def _pause(self, server: NatsServer, least: float, most: float) -> None:
        server.stop()
        self.waits(least, most)
        server.go_on()

    def _stall(self, server: NatsServer) -> None:
        for _ in range(20):
            self._pause(server, 0.05, 0.4)
            self.waits(0.02, 0.1)

    def _cut(self, server: NatsServer, way: Way) -> None:
        server.node.cut_off([each.node for each in self._cluster.nats if each is not server], way)
        self.waits(0.5, 4 * LEASE_SECONDS)
        server.node.rejoin()


def wall_clock(folder: Path) -> Path:
    """Compiles the library that lets a wall clock jump."""
    library = folder / "wall_clock.so"
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def cluster_of(folder: Path, seed: int) -> Cluster:
    """Makes the cluster. Each worker has a wall clock of its own, and a time since boot that differs by hours."""
    log = {**ENVIRONMENT, "RUST_LOG": "warn"}
    cluster = Cluster(LOGS, SERVERS, WORKERS, (*OPTIONS, "--state-lease-seconds", str(LEASE_SECONDS)), log)
    library, chance = wall_clock(folder), random.Random(seed)
    for worker in cluster.workers:
        worker.has_wall_clock(library)
        worker.clock_ahead = chance.randint(1, CLOCK_SECONDS)
    return cluster


def soak(minutes: float, seed: int, folder: Path, upgrade: Path) -> list[BaseException]:
    """Returns what was wrong."""
    cluster = cluster_of(folder, seed)
    troubles: list[Trouble] = []
    users: list[Forgiving] = []
    try:
        cluster.start()
        balancer = Balancer([each.address for each in cluster.workers], seed)
        for number in range(CLIENTS * SESSIONS):
            ledger = folder / f"user-{number}"
            ledger.touch()
            ledger.chmod(0o666)
            kind = Keeping if number % KEPT == 0 else Forgiving
            users.append(kind(balancer, number, ledger))
        for user in users:
            user.start()
        troubles += [TroubleOfWorkers(cluster, balancer, seed, upgrade), TroubleOfNats(cluster, balancer, seed)]
        for trouble in troubles:
            trouble.start()
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until and not wrong(users, troubles):
            time.sleep(0.5)
        for trouble in troubles:
            trouble.end()
        problems = wrong(users, troubles)
        if not problems:
            problems += failures(lambda: all_go_on(list(users)))
        for user in users:
            user.end()
            problems += failures(user.checks_ledger)
        print(f"seed {seed}: {summary(balancer)}")
        return problems
    finally:
        cluster.kill()


def wrong(users: list[Forgiving], troubles: list[Trouble]) -> list[BaseException]:
    told = [*(user.problem for user in users), *(trouble.problem for trouble in troubles)]
    return [problem for problem in told if problem]


def failures(check: Act) -> list[BaseException]:
    try:
        check()
    except Exception as problem:
        return [problem]
    return []


def summary(balancer: Balancer) -> dict[str, int]:
    """Sums the counts, without the names of servers."""
    counts: dict[str, int] = {}
    for name, count in balancer.counts.items():
        kind, _, server = name.partition(": ")
        kind += " of NATS" if server.startswith("nats") else " of a worker" if server else ""
        counts[kind] = counts.get(kind, 0) + count
    return dict(sorted(counts.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--upgrade", type=Path, default=PROGRAM, help="the program of another version")
    options = parser.parse_args()
    enter()
    shutil.rmtree(LOGS, ignore_errors=True)
    LOGS.mkdir(parents=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-cluster-"))
    folder.chmod(0o755)
    try:
        problems = soak(options.minutes, options.seed, folder, options.upgrade)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for problem in problems:
        print(f"WRONG: {problem!r}")
    if problems:
        print(f"the logs of all servers are in {LOGS}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
