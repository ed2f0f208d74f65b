"""Simulates a large cluster with the costs that `bench.py` measured, and says which resource is full first.

    python3 scripts/bench/cluster/simulate.py [--costs FILE] [--sessions 100000] [--workers 100] [--seed 1]

Each session has bursts of cells, and long pauses in which it sleeps. A load balancer sends each request to a random
worker. That worker wakes the session on itself, as the program does (`--placement two`: on one of two random workers,
the one with fewer sessions by the loads that it knows, which are as old as the last gossip). Workers die, and their
sessions go on at others. Simulated is what happens, and where. What each event takes is a sum of measured costs: no
queue, no network and no noise. So the simulation says what cannot work, and not what will.
"""

from __future__ import annotations

import argparse
import bisect
import heapq
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Seconds between two looks of a worker at the sessions asleep that it knows, at least, and the most that it looks at
#: in a second on average: `LOOK` and `LOOKS_PER_SECOND` in crates/server/src/sharing.rs.
LOOK_SECONDS, LOOKS_PER_SECOND = 300, 10
#: The same for its search of objects that nobody needs: `COLLECT_SHARED` and `COLLECTED_PER_SECOND` in
#: crates/server/src/suspension.rs. It reads two small files of each session.
COLLECT_SECONDS, COLLECTED_PER_SECOND, COLLECTED_FILES = 1800, 10, 2
ASLEEP = -1


@dataclass
class Settings:
    sessions: int
    workers: int
    seed: int = 1
    #: The program wakes a session at the worker that was asked, so `random`.
    placement: str = "random"
    gossip_seconds: float = 5
    lease_seconds: float = 30
    suspend_seconds: float = 300
    cells: float = 10
    pause_seconds: float = 10
    rest_seconds: float = 3600
    death_seconds: float = 600
    warm_seconds: float = 900
    seconds: float = 300


@dataclass
class Counts:
    """What happened in the time that is measured."""

    cells: int = 0
    forwards: int = 0
    wakes: int = 0
    sleeps: int = 0
    most_awake: int = 0
    mean_awake: float = 0
    cells_of: list[int] = field(default_factory=list)
    forwards_of: list[int] = field(default_factory=list)
    wakes_of: list[int] = field(default_factory=list)


class Simulation:
    """Sessions, each of which is on one worker or asleep."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._chance = random.Random(settings.seed)
        self.place = [ASLEEP] * settings.sessions
        self.awake = [0] * settings.workers
        self._last = [0.0] * settings.sessions
        self._left = [0] * settings.sessions
        self._known = [0] * settings.workers
        self._gossiped = 0.0

    def run(self) -> Counts:
        settings, chance = self.settings, self._chance
        cells, forwards, wakes = ([0] * settings.workers for _ in range(3))
        counts = Counts(cells_of=cells, forwards_of=forwards, wakes_of=wakes)
        cycle = settings.rest_seconds + settings.cells * settings.pause_seconds
        events = [(chance.uniform(0, cycle), session, False) for session in range(settings.sessions)]
        heapq.heapify(events)
        end = settings.warm_seconds + settings.seconds
        death = settings.death_seconds
        looks: list[int] = []
        while events and events[0][0] < end:
            now, session, is_sleep = heapq.heappop(events)
            is_measured = now >= settings.warm_seconds
            if now >= death:
                self._die(chance.randrange(settings.workers))
                death += settings.death_seconds
            if now - self._gossiped >= settings.gossip_seconds:
                self._known, self._gossiped = list(self.awake), now
                if is_measured:
                    looks.append(sum(self.awake))
                    counts.most_awake = max(counts.most_awake, *self.awake)
            if is_sleep:
                if self.place[session] != ASLEEP and now - self._last[session] >= settings.suspend_seconds:
                    self._sleeps(session)
                    counts.sleeps += is_measured
                continue
            self._ask(session, counts, is_measured)
            self._last[session] = now
            heapq.heappush(events, (now + settings.suspend_seconds, session, True))
            heapq.heappush(events, (now + self._pause(session), session, False))
        self.check()
        counts.mean_awake = sum(looks) / max(1, len(looks))
        return counts

    def _pause(self, session: int) -> float:
        """The time to the next cell of a session: short in a burst, long after it."""
        if self._left[session] > 0:
            self._left[session] -= 1
            return self._chance.expovariate(1 / self.settings.pause_seconds)
        self._left[session] = round(self._chance.expovariate(1 / self.settings.cells))
        return self._chance.expovariate(1 / self.settings.rest_seconds)

    def _ask(self, session: int, counts: Counts, is_measured: bool) -> None:
        first = self._chance.randrange(self.settings.workers)
        place = self.place[session]
        is_asleep = place == ASLEEP
        if is_asleep:
            place = self.place[session] = self._chosen(first)
            self.awake[place] += 1
        if is_measured:
            counts.cells += 1
            counts.cells_of[place] += 1
            counts.wakes += is_asleep
            counts.wakes_of[place] += is_asleep
            counts.forwards += place != first
            counts.forwards_of[first] += place != first

    def _chosen(self, first: int) -> int:
        if self.settings.placement == "random" or self.settings.workers < 2:
            return first
        return min(self._chance.sample(range(self.settings.workers), 2), key=self._known.__getitem__)

    def _sleeps(self, session: int) -> None:
        self.awake[self.place[session]] -= 1
        self.place[session] = ASLEEP

    def _die(self, worker: int) -> None:
        """Kills a worker. Its sessions are in the store, and another worker takes its place."""
        for session, place in enumerate(self.place):
            if place == worker:
                self._sleeps(session)

    def check(self) -> None:
        """Each session is in one place, and no worker counts one that it does not have."""
        found = [0] * self.settings.workers
        for place in self.place:
            if place != ASLEEP:
                found[place] += 1
        if found != self.awake or len(self.place) != self.settings.sessions:
            raise AssertionError(f"the workers count {self.awake}, and have {found}")


@dataclass
class Machines:
    """What there is of each resource."""

    worker_processors: float = 4
    worker_gigabytes: float = 16
    nats_processors: float = 2


def idle_messages(costs: dict[str, Any], workers: int, lease_seconds: float) -> float:
    """Messages of NATS per second with no client: `a` for each worker's lease, `b` for its looks at each other's."""
    many, at_many, at_two = (float(costs[name]) for name in ("workers", MANY, TWO))
    b = (at_many / many - at_two / 2) / (many - 2)
    a = at_two / 2 - 2 * b
    scale = float(costs["lease seconds"]) / lease_seconds
    return max(0.0, a * workers + b * workers * workers) * scale


LOOK = "look at a session asleep: messages"
MANY = "idle: messages of NATS per second, all servers"
TWO = "idle with two workers: messages of NATS per second, all servers"


def shares(costs: dict[str, Any], settings: Settings, counts: Counts, machines: Machines) -> dict[str, float]:
    """The share of each resource that is used: 1 is all of it."""
    per_second = 1 / settings.seconds
    # Next to none, so the difference that was measured may be below it.
    forward, cycle = max(0.0, costs["forward: messages"]), costs["sleep and wake: messages"]
    asleep = settings.sessions - counts.mean_awake
    message = costs["NATS: processor per message"]
    nats = {
        "leases": idle_messages(costs, settings.workers, settings.lease_seconds) * message,
        "forwarding": counts.forwards * per_second * forward * message,
        "sleeping and waking": counts.wakes * per_second * cycle * message,
        # A worker knows all sessions that were asleep when it started, and looks at each.
        "looks at sessions asleep": settings.workers
        * min(asleep / LOOK_SECONDS, LOOKS_PER_SECOND)
        * costs[LOOK]
        * message,
        "collections": settings.workers
        * min(settings.sessions / COLLECT_SECONDS, COLLECTED_PER_SECOND)
        * COLLECTED_FILES
        * costs[LOOK]
        * message,
    }
    busiest = costs["busiest server of NATS, share of the messages"] / machines.nats_processors
    worker = [
        cells * costs["cell: processor of the worker"]
        + forwards * costs["forward: worker processor"]
        + wakes * costs["wake: worker processor"]
        for cells, forwards, wakes in zip(counts.cells_of, counts.forwards_of, counts.wakes_of, strict=True)
    ]
    of_sleep = max(0, costs["bytes of a worker for a session that sleeps"])
    memory = costs["bytes of a worker without sessions"] + asleep * of_sleep
    return {
        **{f"NATS, {name}": each * busiest for name, each in nats.items()},
        "NATS": sum(nats.values()) * busiest,
        "workers' processors": max(worker) * per_second / machines.worker_processors,
        "workers' memory": (memory + counts.most_awake * costs["bytes of a session that is awake"])
        / (1e9 * machines.worker_gigabytes),
    }


COLUMNS = (
    *("sessions", "workers", "awake", "most on a worker, of the mean", "forwarded", "NATS: leases", "forwarding"),
    *("sleeps", "looks", "collections", "all", "workers' processors", "workers' memory"),
)
RESOURCES = ("NATS", "workers' processors", "workers' memory")


def rows(most_sessions: int, most_workers: int) -> Iterator[tuple[int, int]]:
    for part in (100, 20, 10, 4, 2, 1):
        yield max(1, most_sessions // part), max(2, most_workers // part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, default=Path(__file__).with_name("costs.json"))
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=100)
    for name, default in vars(Settings(0, 1)).items():
        if name not in ("sessions", "workers"):
            parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    for name, default in vars(Machines()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    options = vars(parser.parse_args())
    costs = json.loads(options.pop("costs").read_text())
    machines = Machines(**{name: options.pop(name) for name in vars(Machines())})
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    ratio = options["sessions"] / options["workers"]

    def simulated(sessions: int, workers: int) -> tuple[Counts, dict[str, float]]:
        settings = Settings(**{**options, "sessions": sessions, "workers": workers})
        counts = Simulation(settings).run()
        return counts, shares(costs, settings, counts, machines)

    def is_full(workers: int) -> bool:
        return max(simulated(round(ratio * workers), workers)[1][name] for name in RESOURCES) > 1

    used: dict[str, float] = {}
    for sessions, workers in rows(options["sessions"], options["workers"]):
        counts, used = simulated(sessions, workers)
        mean = max(1.0, counts.mean_awake / workers)
        told = [f"{sessions}", f"{workers}", f"{counts.mean_awake:.0f}", f"{counts.most_awake / mean:.2f}"]
        told += [f"{counts.forwards / max(1, counts.cells):.0%}", *(f"{share:.1%}" for share in used.values())]
        print(f"| {' | '.join(told)} |", flush=True)
    fullest = max(RESOURCES, key=used.__getitem__)
    part = max((name for name in used if name.startswith("NATS,")), key=used.__getitem__)
    where = f"{options['sessions']} sessions on {options['workers']} workers"
    print(f"\nAt {where}, {fullest} would be used by {used[fullest]:.0%}.", end=" ")
    if used[fullest] > 1:
        least = bisect.bisect_left(range(2, options["workers"]), True, key=is_full) + 2
        print(f"So it stops scaling at about {least} workers with {round(ratio * least)} sessions.", end=" ")
    if fullest == "NATS":
        print(
            f"Most of that is {part[6:]} ({used[part]:.0%}); all else together is {used['NATS'] - used[part]:.0%}.",
            end="",
        )
    print()


if __name__ == "__main__":
    main()
