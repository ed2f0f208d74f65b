"""Sandboxes with checkpoints, while their processes are killed and their connections break at random.

Some are used over JSON-RPC and some over HTTP. What a sandbox holds must be as its results say, and nothing may be left
in the end: processes, control groups, mounts, descriptors, files. SANDGLASS_SOAK_SECONDS=600 for the long form,
SANDGLASS_SOAK_SEED to draw the same again.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from client_host import PROGRAM
from http_sandbox import HttpSandbox
from proxy import Proxy
from states import ALLOWED, MEMORY_BYTES, RpcSandbox, User

from sandglass import SandboxError

KEY = "a-key-for-tests-0123456789"
#: The backends, each with options of the server. Guests are forked from a zygote, or start cold.
BACKENDS = {
    "subprocess": ["--backend", "subprocess", "--max-spares", "0"],
    "bubblewrap": ["--backend", "bubblewrap", "--max-spares", "0"],
    "bubblewrap with a zygote": ["--backend", "bubblewrap", "--spares", "1", "--max-spares", "1", "--preload", "wave"],
}
#: For all backends together.
SECONDS = float(os.environ.get("SANDGLASS_SOAK_SECONDS", "30")) / len(BACKENDS)
#: The time for what has not happened by then.
MORE_SECONDS = 120
SEED = int(os.environ.get("SANDGLASS_SOAK_SEED", time.time_ns() % 1_000_000))
LANES = 3
#: The number of things that a user does with one sandbox.
ACTS = 25
PATIENCE_SECONDS = 60
_CGROUPS = "/sys/fs/cgroup"


@contextmanager
def server(backend: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, whose temporary files are in `folder`."""
    command = [str(PROGRAM), "serve", "--listen", "127.0.0.1:0", "--allow-subprocess", *BACKENDS[backend]]
    command += ["--requests-per-second", "10000", "--max-sessions-per-key", "100"]
    env = {**os.environ, "SANDGLASS_KEYS": f"tester {KEY}", "NO_COLOR": "1", "RUST_LOG": "error", "TMPDIR": str(folder)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = (re.search(r"http://127\.0\.0\.1:[1-9]\d*", line) for line in process.stdout)
            yield process, next(address[0] for address in found if address)
            process.terminate()
            assert process.wait(PATIENCE_SECONDS) == 0, "the server ends well"
        finally:
            process.kill()


def family(root: int) -> dict[int, str]:
    """The living descendants of a process, each with the time of its start."""
    parents: dict[int, int] = {}
    started: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    parents[int(entry.name)], started[int(entry.name)] = int(fields[1]), fields[19]
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return {pid: started[pid] for pid in found[1:] if pid in started}


def is_alive(pid: int, started: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[19] == started and fields[0] not in "ZX"


def groups_of(processes: Iterable[int]) -> set[str]:
    """The names of the servers' control groups that processes are in."""
    found: set[str] = set()
    for pid in processes:
        with suppress(OSError):
            found |= set(re.findall(r"sandglass\.[0-9a-f]+", Path(f"/proc/{pid}/cgroup").read_text()))
    return found


def groups_left(names: set[str]) -> list[str]:
    # Others make and remove groups meanwhile, which `os.walk` bears.
    return [path for path, *_ in os.walk(_CGROUPS) if os.path.basename(path) in names]


def mounts_below(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {folder}" in line]


def has_spares(url: str) -> bool:
    """Whether all guests that a server keeps ready are there. Without any, that is so."""
    request = urllib.request.Request(f"{url}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
        values = dict(re.findall(r"^sandglass_pool_(spares|level) (\d+)", response.read().decode(), re.MULTILINE))
    return int(values.get("spares", 0)) >= int(values.get("level", 0))


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def settle(what: str, is_so: Callable[[], bool], says: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"{what} are left: {says()}"
        time.sleep(0.05)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in which the guests' users find theirs."""
    path = Path(tempfile.mkdtemp(prefix="sandglass-soak-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_is_wrong_or_lost_in_silence_or_left(backend: str, folder: Path) -> None:
    chance = random.Random(f"{SEED}{backend}")
    counts: Counter[str] = Counter()
    groups: set[str] = set()
    with server(backend, folder) as (process, url):
        with closing(Proxy(url, seed=SEED)) as proxy:
            asyncio.run(_use(proxy, url, 2, chance, Counter()))  # what a server opens once
            settle("no spares", lambda: has_spares(url), lambda: family(process.pid))
            at_first = descriptors(process.pid)
            spares = len(family(process.pid))
            until = time.monotonic() + SECONDS

            async def main() -> None:
                proxy.is_on = True
                killer = asyncio.create_task(_kill(process.pid, chance, counts, groups))
                try:
                    await asyncio.gather(*(_soak(proxy, url, until, chance, counts) for _ in range(LANES)))
                finally:
                    killer.cancel()

            asyncio.run(main())
            counts["cuts"] = proxy.cuts
        settle("processes of sandboxes", lambda: len(family(process.pid)) <= spares, lambda: family(process.pid))
        settle("descriptors", lambda: descriptors(process.pid) <= at_first + 4, lambda: descriptors(process.pid))
        last = family(process.pid)
        groups |= groups_of([process.pid, *last])
    settle("processes", lambda: not any(is_alive(*one) for one in last.items()), lambda: last)
    settle("groups", lambda: not groups_left(groups), lambda: groups_left(groups))
    settle("mounts", lambda: not mounts_below(folder), lambda: mounts_below(folder))
    settle("files", lambda: not [*folder.iterdir()], lambda: [*folder.rglob("*")])
    print(f"{backend}, seed {SEED}, {SECONDS} s: {dict(sorted(counts.items()))}")
    assert _has_all(counts), counts


async def _soak(proxy: Proxy, url: str, until: float, chance: random.Random, counts: Counter[str]) -> None:
    # A machine that is busy does little in that time, and chance may leave something out.
    while time.monotonic() < until or (not _has_all(counts) and time.monotonic() < until + MORE_SECONDS):
        await _use(proxy, url, ACTS, chance, counts, max(until, time.monotonic() + 1))


def _has_all(counts: Counter[str]) -> bool:
    whats = (
        "ok",
        "crashed",
        "restored",
        "kills",
        "undo",
        "fork",
        "left alone",
        "over HTTP",
        "over JSON-RPC",
        "cut short",
    )
    return all(counts[what] for what in whats)


async def _use(
    proxy: Proxy, url: str, acts: int, chance: random.Random, counts: Counter[str], until: float = float("inf")
) -> None:
    """Uses one sandbox."""
    bounds: Any = {"checkpoints": chance.choice((2, 4, 8))}
    sandbox: RpcSandbox | HttpSandbox
    if is_http := chance.random() < 0.5:
        # A client that leaves cuts such a connection. There is nothing to take up again.
        try:
            sandbox = await HttpSandbox.create(url, KEY, **bounds, memoryLimit=MEMORY_BYTES, gracePeriod=200)
        except SandboxError as error:
            assert error.code in ALLOWED, error  # its guest was killed
            counts[error.code] += 1
            return
    else:
        options = {**bounds, "memory_limit": MEMORY_BYTES, "grace_period": 200}
        sandbox = RpcSandbox(url=proxy.url, api_key=KEY, **options)
    try:
        if isinstance(sandbox, RpcSandbox):
            await _open(sandbox, counts)
        user = User(sandbox, chance, counts)
        for _ in range(acts):
            if time.monotonic() > until:
                break
            await user.act()
        await user.look()
        if chance.random() < 0.3:
            await _cut_short(sandbox, chance, counts)
    finally:
        await sandbox.destroy()
    counts["over HTTP" if is_http else "over JSON-RPC"] += 1


async def _open(sandbox: RpcSandbox, counts: Counter[str]) -> None:
    """Opens a sandbox. The client gives up if its first connection breaks, and has to be asked once more."""
    while True:
        try:
            await sandbox.list_variables()
            return
        except SandboxError as error:
            assert error.code in (*ALLOWED, "backend_unavailable"), error
            counts[error.code] += 1


async def _cut_short(sandbox: RpcSandbox | HttpSandbox, chance: random.Random, counts: Counter[str]) -> None:
    """Ends a sandbox in the middle of an execution, which says so."""
    running = asyncio.ensure_future(sandbox.execute("while True: pass"))
    await asyncio.wait([running], timeout=chance.uniform(0, 0.05))
    await sandbox.destroy()
    with suppress(SandboxError):
        run = await asyncio.wait_for(running, PATIENCE_SECONDS)
        assert run.outcome != "ok", run
    counts["cut short"] += 1


async def _kill(server: int, chance: random.Random, counts: Counter[str], groups: set[str]) -> None:
    """Kills random processes of sandboxes. Notes their control groups."""
    while True:
        await asyncio.sleep(chance.uniform(0.2, 2.5))
        if others := [*family(server)]:
            groups |= groups_of(others)
            with suppress(ProcessLookupError):
                os.kill(chance.choice(others), signal.SIGKILL)
                counts["kills"] += 1
