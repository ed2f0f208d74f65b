"""Exact copies of a session with pandas and 100 MB: `exact_copies.py [--copies 100] [--rounds 4]`, as root.

`npm run bench:states` installs what it needs, in `.setup/states`. SANDGLASS_HOST names the program. Prints the times of
one copy, of many at once, and of their first results, and the memory that each of them takes.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median, quantiles

from sandglass import Sandbox

FRAME = "import numpy as np, pandas as pd\nframe = pd.DataFrame(np.random.rand(6_553_600, 2), columns=['a', 'b'])"
"""A table of 100 MiB."""
NEXT = "int(frame.a.iloc[7] * 0) + len(frame)"
SINGLE = 20
"""Copies that are made one after the other in each round. A session can be copied 23 times."""
AT_ONCE = 8
"""Copies that get their first execution at the same time."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    single: list[float] = []
    many: list[float] = []
    first: list[float] = []
    taken: list[float] = []
    for _ in range(options.rounds):
        with Sandbox(
            backend="bubblewrap", python=sys.executable, checkpoints=1, memory_limit=1 << 30, wall_timeout=600_000
        ) as sandbox:
            ok(sandbox, FRAME)
            for _ in range(SINGLE):
                sandbox.checkpoint()  # the state is saved, as it is while a model thinks
                began = time.perf_counter()
                copy = sandbox.fork(exact=True)
                single.append(since(began))
                copy.destroy()
            before = used()
            began = time.perf_counter()
            copies = sandbox.fork(options.copies, exact=True)
            many.append(since(began))
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(lambda copy: ok(copy, NEXT), copies))
            first.append(since(began))
            taken.append((used() - before) / options.copies / (1 << 20))
            for copy in copies:
                copy.destroy()
    p95 = quantiles(single, n=20)[-1]
    print(f"one copy: p50 {median(single):.1f} ms, p95 {p95:.1f} ms, best {min(single):.1f} ms")
    print(f"{options.copies} copies: {listed(many)} ms")
    print(f"until each of them has run a cell: {listed(first)} ms")
    print(f"memory of each after that: {median(taken):.1f} MiB")


def ok(sandbox: Sandbox, code: str) -> None:
    done = sandbox.execute(code)
    if done.outcome != "ok":
        raise RuntimeError(done.traceback or done.error)


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def listed(times: list[float]) -> str:
    return ", ".join(f"{each:.0f}" for each in times)


def used() -> int:
    """The bytes of memory that the machine cannot give to others."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    sizes = {name: int(rest.split()[0]) << 10 for name, rest in (line.split(":") for line in lines)}
    return sizes["MemTotal"] - sizes["MemAvailable"]


if __name__ == "__main__":
    main()
