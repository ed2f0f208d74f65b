"""Random sessions in two native guests. One guest is replaced, cell by cell, by a copy that ran the cell ahead. All that
a user can see has to be the same in both.

`PYTHONPATH=pyodide-glue/python python tests/python/forks_fuzz.py --hits 100000 --seed 1` runs until copies have served that many cells.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from native_host import Copy, Execution, Host

#: Cells in a session.
CELLS = 60

#: Code that makes the state of the cells, and the function `look`, which shows all of it.
PREPARE = """
import array, asyncio, collections, contextvars, dataclasses, decimal, gc, io, itertools, os, random, re, signal
import subprocess, sys, tempfile, threading, time, warnings, weakref
random.seed(7)
numbers = []
alias = numbers
table = {"a": numbers}
def counter():
    n = 0
    while True:
        n += 1
        yield n
count = counter()
def make():
    total = 0
    def add(n):
        nonlocal total
        total += n
        return total
    return add
add = make()
class Thing:
    made = 0
    def __init__(self, name):
        type(self).made += 1
        self.name = name
    def __repr__(self):
        return f"Thing({self.name!r})"
    def _repr_html_(self):
        return f"<b>{self.name}</b>"
things = [Thing("first")]
log = open("log.txt", "w+")
value = 0
queue = collections.deque(maxlen=4)
@dataclasses.dataclass
class Point:
    x: int
    y: int = 0
points = {}
memory = io.StringIO()
ways = itertools.cycle("abc")
lock = threading.Lock()
variable = contextvars.ContextVar("variable", default=0)
held = weakref.WeakValueDictionary()
def look():
    log.flush()
    return repr((numbers, alias is numbers, table["a"] is alias, next(count), add(1), things, Thing.made, value, queue,
        points, random.random(), sorted(os.listdir(".")), open("log.txt").read()[-200:], log.tell(), os.getcwd()[-9:],
        sorted(name for name in globals() if name[0] != "_"), random.getstate()[1][-1], memory.getvalue()[-50:], next(ways),
        lock.locked(), variable.get(), sorted(held), sys.getrecursionlimit(), len(os.listdir("/dev/fd")),
        threading.active_count(), os.environ.get("EXTRA"), signal.getsignal(signal.SIGUSR1), len(warnings.filters),
        gc.isenabled(), gc.get_threshold(), sys.getswitchinterval(), threading.current_thread().name, os.umask(0o22)))
"""

#: Cells by their purpose; `N` stands for a number.
KINDS: dict[str, str] = {
    "an int": "value = N",
    "an expression": "len(numbers) + N",
    "a long int": "value = 3 ** (N + 50); value",
    "a float": "value = N / 7; print(value)",
    "text": "value = 'é🙂\\x00' * (N % 5); value",
    "a list": "numbers.append(N); numbers[-3:]",
    "a list, sorted": "numbers.sort(reverse=True); print(alias[:5])",
    "an alias": "alias += [N]; alias is numbers",
    "what others hold": "table['b'] = table; table['b']['b'] is table",
    "a new list": "numbers = numbers[-9:]; alias is numbers",
    "back": "numbers = alias = table['a'] = [1]; things = [Thing('first')]; points.clear()",
    "a generator": "[next(count) for _ in range(3)]",
    "a closure": "add(N)",
    "a class": "Thing.extra = N; [thing.extra for thing in things][:3]",
    "an object": "things = things[-5:] + [Thing(N)]; things[-1]",
    "a dataclass": "points[N % 9] = Point(N); points",
    "a queue": "queue.append(N); queue",
    "a set": "value = {'a', 'b', N}; print(value)",
    "the order of a set": "list({f'name{i}' for i in range(N % 9)})",
    "random numbers": "value = [random.random() for _ in range(5)]; value",
    "a shuffle": "random.shuffle(numbers); numbers[:4]",
    "another generator of numbers": "value = random.Random(N); value.random()",
    "a file": "log.write('line N\\n')",
    "a new file": "open('file' + str(N % 3), 'w').write('x' * N)",
    "a removed file": "open('file0', 'a').close(); os.remove('file0'); N",
    "a file that is read on": "log.seek(0); value = log.read(N); log.seek(0, 2); value",
    "a folder": "os.makedirs(f'folder{N % 2}/inner', exist_ok=True); os.getcwd()[-9:]",
    "an exception": "numbers.append(-1)\nprint('before')\n[][N]",
    "an exception in a function": "def fail(n):\n    return 1 / n\nvalue = N\nfail(0)",
    "a chain of exceptions": "try:\n    {}['key']\nexcept KeyError as error:\n    raise ValueError('wrapped') from error",
    "a syntax error": "value = N\nif value",
    "both streams": "for i in range(4):\n    print(i, file=[sys.stdout, sys.stderr][i % 2])\nN",
    "much text": "print('y' * (60_000 + N)); print('end')",
    "bytes on the descriptor": "os.write(1, b'raw N\\n'); print('after')",
    "a child's text": "print('before'); value = subprocess.run(['echo', 'N']).returncode; print('after', value)",
    "a display": "print('before'); display(Thing(N)); print('after')",
    "an object that shows itself": "Thing('<shown N>')",
    "await": "async def double(n):\n    await asyncio.sleep(0)\n    return 2 * n\nvalue = await asyncio.gather(double(N), double(1))\nvalue",
    "a task": "task = asyncio.create_task(asyncio.sleep(0, N))\nawait task",
    "a sleep": "time.sleep(0.002); 'slept'",
    "an import": "import bisect, heapq, string, textwrap, fractions\nfractions.Fraction(N, 7)",
    "a global of builtins": "import builtins; builtins.extra = N; extra",
    "a deleted name": "value = 1; del value; value = 'again'",
    "a final answer": "FINAL({'n': N, 'list': numbers[:5]})",
    "a host call": "value = llm_query('N'); print(value)",
    "host calls": "llm_query_batched(['a', 'N'])",
    "a finalizer": "class Noisy:\n    def __del__(self):\n        print('gone', N)\nnoisy = Noisy()\ndel noisy",
    "recursion": "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nfib(5 + N % 5)",
    "recursion without end": "def forever():\n    return forever()\nforever()",
    "the traceback of an earlier cell": "fail(0)",
    "exit": "raise SystemExit(3)",
    "the clock": "value = 0 < time.time() - time.monotonic() + time.perf_counter(); value",
    "chance": "len(os.urandom(N))",
    "a thread": "box = []\nt = threading.Thread(target=box.append, args=(N,)); t.start(); t.join(); box",
    "a lock": "value = lock.acquire(False); value and lock.release()",
    "a lock that stays": "lock.locked() or lock.acquire()\nlock.release() if N % 2 else lock.locked()",
    "a lock that nobody releases": "threading.Lock().acquire(timeout=0.001) and threading.Event().wait(0.001)",
    "text in memory": "memory.write('N,')",
    "an iterator": "next(ways)",
    "a context": "variable.set(N); variable.get()",
    "weak references": "held[N % 5] = things[-1]; len(held)",
    "the collector": "gc.collect() >= 0",
    "the collector off": "gc.disable() if N % 2 else gc.enable()",
    "a regular expression": "value = re.sub(r'\\d+', lambda m: m[0] * 2, 'a1b22c' * N)[:40]; value",
    "a decimal": "decimal.Decimal(N) / 7",
    "an environment variable": "os.environ['EXTRA'] = 'N'; os.environ['EXTRA']",
    "a signal's handler": "signal.signal(signal.SIGUSR1, signal.SIG_IGN if N % 2 else signal.SIG_DFL) is None",
    "a warning": "warnings.warn('careful N')",
    "a temporary file": "with tempfile.TemporaryFile() as f: value = f.write(b'x' * N)\nvalue",
    "large memory": "value = len(bytearray(30_000_000 + N)); value",
    "many objects": "value = len([[i] for i in range(20_000)]); value",
    "what takes a while": "for value in range(200_000): pass\nvalue",
    "a descriptor": "d = os.open('log.txt', os.O_RDONLY); value = os.read(d, 3); os.close(d); d, value",
    "an array": "value = array.array('i', range(N)); value[-1:]",
    "code": "exec('value = N'); eval('value')",
    "pickling": "import pickle; pickle.loads(pickle.dumps(points))",
    "how many references": "sys.getrefcount(numbers) - sys.getrefcount(numbers)",
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def answer(name: str, argument: Any) -> tuple[str, bytes]:
    return "text", f"{name} of {argument}".encode()


def seen(execution: Execution) -> list[Any]:
    """All facts of an execution that a user can see, without times and addresses."""
    report = dict(execution.report)
    files = [{**row, "size": row["size"]} for row in report.pop("files", None) or ()]
    streams = {name: _ADDRESS.sub("", text) for name, text in sorted(execution.streams.items())}
    return [report, files, streams, execution.calls, execution.displays, repr(execution.final)]


class Served:
    """A guest that is replaced by its copies."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.first = self.at = Host(folder, forks=True, as_module=True)
        self.chance = chance
        self.hits: Counter[str] = Counter()
        self.pieces: list[str] = []
        self.first.init()
        self.first.answer = answer

    def run(self, kind: str, code: str) -> Execution:
        """Runs a cell ahead in a copy, as a whole or in pieces. The copy is promoted at a random time."""
        at, chance = self.at, self.chance
        pieces = self.pieces = self._pieces(code)
        if pieces and not self._is_plain(code):
            pieces = []
        try:
            copy = at.fork()
        except AssertionError as refused:
            self.hits[f"refused: {refused.args[0][12:60]}"] += 1
            return at.run(code)
        copy.run_ahead(pieces[0] if pieces else code, more=bool(pieces))
        execution, is_over = Execution(), False
        for piece in pieces[1:]:
            if chance.random() < 0.5:
                copy.take(execution, time.monotonic() + chance.choice((0.0, 0.001, 0.005)))
            copy.extend(piece)
        is_over = copy.take(execution, time.monotonic() + chance.choice((0.0, 0.0, 0.0005, 0.001, 0.002, 0.01)))
        copy.end_origin()
        copy.promote(code[sum(map(len, pieces)) :] if pieces and not is_over else None)
        if not is_over:
            copy.take(execution, None)
        if at is not self.first:
            at.__exit__()
        self.at = copy
        self.hits[kind] += 1
        return execution

    def _pieces(self, code: str) -> list[str]:
        """Random pieces of the code that end with lines, without the rest of the code. Empty half of the time."""
        ends = [match.start() for match in re.finditer("\n", code)]
        if not ends or self.chance.random() < 0.5:
            return []
        cuts = sorted(self.chance.sample(ends, self.chance.randint(1, len(ends))))
        return [code[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]

    def _is_plain(self, code: str) -> bool:
        self.at.send({"type": "check", "check": 1, "code": code})
        (event,), _ = self.at.receive()
        return bool(event["plain"])

    def end(self) -> None:
        if isinstance(self.at, Copy):
            self.at.__exit__()
        self.first.__exit__(None, None, None)


def different(one: list[Any], other: list[Any], what: str) -> list[str]:
    """The first difference of two values as a problem; empty if they are equal."""
    a, b = repr(one), repr(other)
    if a == b:
        return []
    at = max(next(at for at, (x, y) in enumerate(zip(a + "$", b + "$", strict=False)) if x != y) - 60, 0)
    return [f"{what}\n  …{a[at : at + 200]}\n  …{b[at : at + 200]}"]


def session(seed: int, hits: Counter[str]) -> list[str]:
    """Runs one session. Returns its differences."""
    chance = random.Random(seed)
    problems: list[str] = []
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workspace" for _ in range(2)]
        for folder in folders:
            folder.mkdir()
        served = Served(folders[0], chance)
        stack.callback(served.end)
        forced = stack.enter_context(Host(folders[1], forks=True, as_module=True))
        forced.init()
        forced.answer = answer
        served.first.ok(PREPARE)
        forced.ok(PREPARE)
        for number in range(CELLS):
            kind = chance.choice([*KINDS])
            code = re.sub(r"\bN\b", str(chance.randrange(1, 40)), KINDS[kind])
            try:
                one, other = seen(served.run(kind, code)), seen(forced.run(code))
            except (EOFError, TimeoutError) as error:
                problems.append(f"seed {seed}, cell {number}, {kind}: {code}\n  {error!r} {served.pieces}")
                break
            problems += different(one, other, f"seed {seed}, cell {number}, {kind}: {code}")
            if chance.random() < 0.3 or number == CELLS - 1:
                here, there = seen(served.at.run("look()")), seen(forced.run("look()"))
                problems += different(here, there, f"seed {seed}, after cell {number}, {kind}: {code}")
            if problems:
                break
        hits.update(served.hits)
    return problems


def fuzz(seed: int, hits: int, *, progress: bool = False) -> tuple[Counter[str], list[str]]:
    """Runs sessions until copies have served `hits` cells. Returns the count of each kind, and the first differences."""
    found: Counter[str] = Counter()
    problems: list[str] = []
    while sum(found[kind] for kind in KINDS) < hits and len(problems) < 3:
        problems += session(seed, found)
        seed += 1
        if progress:
            print(f"{sum(found[kind] for kind in KINDS)} cells served", end="\r", file=sys.stderr, flush=True)
    return found, problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["PYTHONHASHSEED"] = "0"  # the same for both guests
    begun = time.monotonic()
    found, problems = fuzz(options.seed, options.hits, progress=True)
    served = sum(found[kind] for kind in KINDS)
    for name in sorted(found.keys() - KINDS.keys()):
        print(f"{found[name]:8} {name}")
    print(*problems, sep="\n")
    print(f"{served} cells of {len(found.keys() & KINDS.keys())} kinds served, {time.monotonic() - begun:.0f} s")
    print("never served:", ", ".join(KINDS.keys() - found.keys()) or "none")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
