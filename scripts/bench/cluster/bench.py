"""Measures a cluster on this machine: workers and servers of NATS in network namespaces, and many sessions.

Run as root: `npm run bench:cluster` (`-- --sessions 1000 --workers 5`; `--json FILE` writes what `simulate.py` reads).
All servers, guests and the client share the processors of one machine. So throughput tells what a cell costs, and not
what several machines would carry.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_nodes import Cluster, NatsServer, Worker
from http_server import ENVIRONMENT, KEY
from namespaces import enter

LEASE_SECONDS, SUSPEND_SECONDS, SERVERS = 4, 4, 3
TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE_SECONDS = 300
#: The time for which a connection is kept without use. Servers close them later.
KEPT_SECONDS = 2
#: The time between two looks of a worker at the sessions asleep that it knows: `LOOK` in crates/server/src/sharing.rs.
LOOK_SECONDS = 300
Session = tuple[Worker, str]
CELL = "x = globals().get('x', 0) + 1\nx"
DATA = "names = {str(n): n for n in range(1000)}\nx = 0\nx"


class Client:
    """An HTTP client that keeps its connections, one for each thread and worker."""

    def __init__(self) -> None:
        self._own = threading.local()

    def ask(self, worker: Worker, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        kept: dict[str, tuple[http.client.HTTPConnection, float]] = self._own.__dict__.setdefault("kept", {})
        host, port = worker.address.removeprefix("http://").split(":")
        connection, used = kept.pop(worker.address, (None, 0.0))
        if connection is None or time.monotonic() - used > KEPT_SECONDS:
            connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        kept[worker.address] = connection, time.monotonic()
        return answer.status, json.loads(text) if text else None

    def made(self, worker: Worker) -> Session:
        status, told = self.ask(worker, "POST", "/v1/sessions", {"context": "a text"})
        assert status == 201, told
        self.runs(worker, told["id"], DATA)
        return worker, told["id"]

    def runs(self, worker: Worker, session: str, code: str = CELL) -> Any:
        """Runs a cell. A refusal that says to come back is repeated, as when a session moves."""
        until = time.monotonic() + PATIENCE_SECONDS
        while True:
            status, told = self.ask(worker, "POST", f"/v1/sessions/{session}/execute", {"code": code})
            if status == 200 and told["outcome"] == "ok":
                return told["result"]
            assert status in (429, 503, 508), told
            assert time.monotonic() < until, told
            time.sleep(0.1)


def quantile(samples: Sequence[float], share: float) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def descendants(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children += [child for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return
    for child in sorted(set(children)):
        yield from descendants(int(child))


def memory(worker: Worker) -> int:
    """Bytes of a worker and its guests: the proportional set size."""
    assert worker.process is not None
    total = 0
    for pid in descendants(worker.process.pid):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def processor_seconds(pid: int) -> float:
    """Seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


class Meter:
    """What workers and servers of NATS use during a block."""

    def __init__(self, workers: Sequence[Worker], nats: Sequence[NatsServer]) -> None:
        self._workers = workers
        self._nats = nats

    def _now(self) -> dict[str, float]:
        told = [server.traffic() for server in self._nats]
        pids = [process.pid for each in self._workers if (process := each.process)]
        ways = ("in", "out")
        return {
            "seconds": time.monotonic(),
            "messages": sum(each[f"{way}_msgs"] for each in told for way in ways),
            "bytes": sum(each[f"{way}_bytes"] for each in told for way in ways),
            **{f"messages of {number}": sum(each[f"{way}_msgs"] for way in ways) for number, each in enumerate(told)},
            "nats processor": sum(processor_seconds(each.process.pid) for each in self._nats if each.process),
            # Guests that end between two readings count, since they are children that have ended.
            "worker processor": sum(processor_seconds(each) for pid in pids for each in descendants(pid)),
        }

    @contextmanager
    def during(self) -> Iterator[dict[str, float]]:
        used: dict[str, float] = {}
        before = self._now()
        yield used
        used |= {name: value - before[name] for name, value in self._now().items()}

    def idle(self, seconds: float) -> dict[str, float]:
        """What is used in a second in which no client asks."""
        with self.during() as used:
            time.sleep(seconds)
        return {name: value / used["seconds"] for name, value in used.items()}


class Bench:
    def __init__(self, cluster: Cluster, sessions: int, seconds: float) -> None:
        self.cluster = cluster
        self.workers = cluster.workers
        self.client = Client()
        self.seconds = seconds
        self.count = sessions
        self.meter = Meter(cluster.workers, cluster.nats)
        self.found: dict[str, Any] = {
            "lease seconds": LEASE_SECONDS,
            "workers": len(self.workers),
            "sessions": sessions,
        }

    def notes(self, name: str, value: Any) -> None:
        self.found[name] = value
        print(f"{time.strftime('%H:%M:%S')} {name}: {value}", flush=True)

    def at_once(self, calls: Sequence[Callable[[], Any]], threads: int = 8) -> list[Any]:
        with ThreadPoolExecutor(threads) as pool:
            return [each.result() for each in [pool.submit(call) for call in calls]]

    def asleep(self, of: Sequence[Session]) -> None:
        """Waits until these sessions sleep."""
        until = time.monotonic() + PATIENCE_SECONDS
        for worker, session in of:
            while not self.client.ask(worker, "GET", f"/v1/sessions/{session}")[1].get("suspended"):
                assert time.monotonic() < until, "a session never falls asleep"
                time.sleep(0.2)

    # --- the parts ---------------------------------------------------------------------------------------------------

    def idle(self) -> None:
        used = self.meter.idle(4 * self.seconds)
        self.notes("idle: messages of NATS per second, all servers", round(used["messages"], 1))
        self.notes("idle: bytes of NATS per second, all servers", round(used["bytes"]))
        self.notes("idle: processor of NATS", round(used["nats processor"], 4))
        self.notes("idle: processor of workers", round(used["worker processor"], 4))

    def throughput(self) -> None:
        one, all_of_them = [self.workers[0]] * 8, [self.workers[n % len(self.workers)] for n in range(8)]
        rates: dict[str, list[float]] = {"one worker": [], "all workers": []}
        for _ in range(2):
            for name, workers in (("one worker", one), ("all workers", all_of_them)):
                rates[name].append(self._rate([self.client.made(worker) for worker in workers]))
        for name, rate in rates.items():
            self.notes(f"cells per second, {name}", round(max(rate)))

    def _rate(self, sessions: list[Session]) -> float:
        until = time.monotonic() + self.seconds

        def runs(session: Session) -> int:
            cells = 0
            while time.monotonic() < until:
                self.client.runs(*session)
                cells += 1
            return cells

        before, own = time.monotonic(), time.process_time()
        with self.meter.during() as used:
            cells = sum(self.at_once([lambda each=each: runs(each) for each in sessions]))  # type: ignore[misc]
        passed = time.monotonic() - before
        self.found["cell: processor of the worker"] = round(used["worker processor"] / cells, 6)
        self.found["cell: processor of the client"] = round((time.process_time() - own) / cells, 6)
        return cells / passed

    def hop(self, pairs: int) -> None:
        """Runs the same cell directly and through another worker, in turns."""
        home, other = self.workers[:2]
        _, session = self.client.made(home)
        direct, forwarded = [list[float](), list[float]()]
        for number in range(pairs + 20):
            for worker, times in random.sample(((home, direct), (other, forwarded)), 2):
                begun = time.perf_counter()
                self.client.runs(worker, session)
                if number >= 20:
                    times.append(1000 * (time.perf_counter() - begun))
        more = [b - a for a, b in zip(direct, forwarded, strict=True)]
        for name, times in (("direct", direct), ("forwarded", forwarded), ("forwarded less direct, pairs", more)):
            self.notes(f"ms of a cell, {name}: p50, p99", [round(quantile(times, share), 2) for share in (0.5, 0.99)])
        with self.meter.during() as used, Meter([other], []).during() as of_other:
            for _ in range(pairs):
                self.client.runs(other, session)
        self._each("forward", used, pairs)
        self.notes("forward: worker processor", round(of_other["worker processor"] / pairs, 6))

    def _each(self, name: str, used: dict[str, float], times: int) -> None:
        """Notes what one of several equal things sends to NATS, without what idle servers send."""
        for what in ("messages", "bytes"):
            idle = self.found[f"idle: {what} of NATS per second, all servers"]
            self.notes(f"{name}: {what}", round((used[what] - idle * used["seconds"]) / times, 1))

    def hold(self) -> list[Session]:
        """Makes all sessions, and waits until they sleep."""
        before = [memory(worker) for worker in self.workers]
        self.notes("bytes of a worker without sessions", round(sum(before) / len(before)))
        homes = [self.workers[number % len(self.workers)] for number in range(self.count)]
        begun = time.monotonic()
        few = min(40, self.count)
        sessions = self.at_once([lambda each=each: self.client.made(each) for each in homes[:few]])  # type: ignore[misc]
        awake = sum(map(memory, self.workers)) - sum(before)
        self.notes("bytes of a session that is awake", round(awake / few))
        sessions += self.at_once([lambda each=each: self.client.made(each) for each in homes[few:]])  # type: ignore[misc]
        self.notes("sessions made per second", round(self.count / (time.monotonic() - begun), 1))
        self.asleep(sessions)
        asleep = sum(map(memory, self.workers)) - sum(before)
        self.notes("bytes of a worker for a session that sleeps", round(asleep / self.count))
        return sessions

    def wake(self, sessions: list[Session]) -> None:
        """Wakes sessions one by one, and lets them sleep again."""
        times = []
        with self.meter.during() as used:
            # Few at a time, so that none is asleep again before the processors are read.
            with self.meter.during() as waking:
                for worker, session in sessions[:20]:
                    self.client.runs(worker, session)
            for worker, session in sessions[20:]:
                begun = time.perf_counter()
                self.client.runs(worker, session)
                times.append(1000 * (time.perf_counter() - begun))
            self.asleep(sessions)
        told = [round(quantile(times, share), 1) for share in (0.5, 0.99)]
        self.notes("ms to wake a session and run a cell: p50, p99", told)
        self._each("sleep and wake", used, len(sessions))
        self.notes("wake: worker processor", round(waking["worker processor"] / 20, 6))

    def all_go_on(self, sessions: list[Session]) -> None:
        """Asks a random worker for each session, and compares the variables."""

        def checks(session: str) -> None:
            told = self.client.runs(random.choice(self.workers), session, "(len(context), len(names), names['7'])")
            assert told == "(6, 1000, 7)", told

        begun = time.monotonic()
        self.at_once([lambda each=each: checks(each) for _, each in sessions])  # type: ignore[misc]
        self.notes("sessions woken at random workers per second", round(len(sessions) / (time.monotonic() - begun), 1))

    def takeover(self, sessions: int) -> None:
        """Kills a worker whose sessions are awake and stored, and asks another one until they go on."""
        gone, other = self.workers[-1], self.workers[0]
        own = [self.client.made(gone) for _ in range(sessions)]
        self.asleep(own)
        for each in own:
            self.client.runs(*each)
        gone.kill()
        killed = time.monotonic()

        def waits(session: str) -> tuple[float, float]:
            refused = killed
            while True:
                asked = time.monotonic()
                path = f"/v1/sessions/{session}/execute"
                status, told = self.client.ask(other, "POST", path, {"code": CELL})
                if status == 200:
                    assert told["state"]["status"] == "restored", told
                    return time.monotonic() - killed, time.monotonic() - refused
                assert status == 503, told
                refused = asked
                time.sleep(0.05)

        told = self.at_once([lambda each=each: waits(each) for _, each in own], sessions)  # type: ignore[misc]
        since_kill, since_over = zip(*told, strict=True)
        for name, times in (("the kill", since_kill), ("the last refusal", since_over)):
            least, median, most = (round(quantile(times, share), 2) for share in (0, 0.5, 1))
            self.notes(f"takeover: s from {name} to the answer: least, p50, most", [least, median, most])

    def nats(self, used: dict[str, float]) -> None:
        """Notes what servers of NATS use."""
        of_each = [used[f"messages of {number}"] for number in range(SERVERS)]
        self.notes("busiest server of NATS, share of the messages", round(max(of_each) / sum(of_each), 2))
        self.notes("NATS: processor per message", round(used["nats processor"] / used["messages"], 7))
        for what in ("messages", "bytes"):
            each = used[what] / used["seconds"] / SERVERS
            self.notes(f"many sessions at work: {what} of NATS per second and server", round(each))

    def fewer_workers(self) -> None:
        """Leaves two workers, and measures what they send when idle."""
        for worker in self.workers[2:]:
            worker.kill()
        # The leases of the others are over then, and removed from the looks.
        time.sleep(3 * LEASE_SECONDS)
        used = Meter(self.workers[:2], self.cluster.nats).idle(4 * self.seconds)
        self.notes("idle with two workers: messages of NATS per second, all servers", round(used["messages"], 1))

    def looks(self) -> None:
        """Starts the last two workers again, which then know all sessions asleep, and waits for their looks at each."""
        for worker in self.workers[:2]:
            worker.end()
            worker.start()
        known = 0
        for worker in self.workers[:2]:
            for session in self.client.ask(worker, "GET", "/v1/sessions")[1]["sessions"]:
                known += bool(session.get("suspended"))
        self.notes("sessions asleep that two new workers know", known)
        time.sleep(10)  # the workers make their spares
        used = Meter(self.workers[:2], self.cluster.nats).idle(LOOK_SECONDS)
        idle = self.found["idle with two workers: messages of NATS per second, all servers"]
        more = (used["messages"] - idle) * LOOK_SECONDS
        self.notes("look at a session asleep: messages", round(more / known, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--backend", default="bubblewrap")
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement that lasts for a time")
    parser.add_argument("--hop", action="store_true", help="measure nothing but a forwarded request")
    parser.add_argument("--looks", action="store_true", help="measure the looks at sessions asleep: five minutes more")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    enter()
    folder = Path(tempfile.mkdtemp(prefix="bench-cluster-"))
    room = str(10 * options.sessions + 1000)
    settings = ["--backend", options.backend, "--max-spares", "4", "--preload", "json"]
    settings += ["--suspend-after", str(SUSPEND_SECONDS), "--state-lease-seconds", str(LEASE_SECONDS)]
    settings += ["--requests-per-second", "100000"]
    for limit in ("sessions", "sessions-per-key", "executions-per-key", "suspended-per-key", "suspended-mib-per-key"):
        settings += [f"--max-{limit}", room]
    cluster = Cluster(folder, SERVERS, options.workers, settings, {**ENVIRONMENT, "RUST_LOG": "warn"})
    try:
        cluster.start()
        bench = Bench(cluster, options.sessions, options.seconds)
        bench.notes("date", time.strftime("%Y-%m-%d"))
        bench.notes("machine", f"{os.cpu_count()} processors, {platform.machine()}, a load of {os.getloadavg()[0]:.1f}")
        time.sleep(10)  # the workers make their spares
        bench.idle()
        if options.hop:
            bench.hop(int(400 * options.seconds))
            return
        bench.throughput()
        bench.hop(int(100 * options.seconds))
        with bench.meter.during() as used:
            sessions = bench.hold()
            bench.wake(sessions[:100])
            bench.all_go_on(sessions)
            bench.asleep(sessions)
        bench.nats(used)
        stored = sum(server.traffic()["jetstream"]["stats"]["storage"] for server in cluster.nats)
        bench.notes("bytes on the disks of NATS per session, all servers", round(stored / options.sessions))
        bench.takeover(min(20, options.sessions))
        bench.fewer_workers()
        if options.looks:
            bench.looks()
        bench.notes("load after", round(os.getloadavg()[0], 1))
        if options.json:
            options.json.write_text(json.dumps(bench.found, indent=2) + "\n")
    except BaseException:
        for log in sorted(folder.glob("worker-*.log")):
            print(log.name, log.read_text()[-500:])
        raise
    finally:
        cluster.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
