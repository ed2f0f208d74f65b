"""Recorded executions: another guest gives the code the same answers of clocks and chance, by the notes of the first."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
from native_host import PATIENCE_SECONDS, Execution, Host


class Recorded(Host):
    """A host that records the execution, or has it run again by notes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, journals=True)
        self.notes = self.notes_before_call = b""
        self.broken = self.differs = ""
        assert self.init()["type"] == "ready"

    def record(self, code: str, noted: bytes = b"", explores: bool = False) -> Execution:
        """Runs code. Ends early if the code takes another way than the notes, and may not go on."""
        self.exchange += 1
        self.execution += 1
        request: Any = {**self.execute(code, PATIENCE_SECONDS * 1000), "noted": True}
        if explores:
            request["explores"] = True
        self.send(request, *([noted] if noted else []))
        self.notes = noted
        seen = Execution()
        while not (self.differs and not explores) and not self.hear(seen):
            pass
        return seen

    def called(self, call: int, name: str, argument: Any) -> None:
        self.notes_before_call = self.notes
        super().called(call, name, argument)

    def receive(self) -> tuple[list[dict[str, Any]], list[bytes]]:
        events, bodies = super().receive()
        others, bodies_of_others = [], []
        for event in events:
            kind = event["type"]
            has_body = (
                kind in ("hostCall", "display", "noted")
                or (kind == "executed" and bool(event["execution"]["final"]))
                or (kind == "value" and event["encoding"] is not None)
            )
            body = bodies.pop(0) if has_body else None
            if kind == "noted":
                self.notes += body or b""
            elif kind == "unnoted":
                self.broken = event["why"]
            elif kind == "differs":
                self.differs = event["what"]
            else:
                others.append(event)
                bodies_of_others += [body] if body is not None else []
        return others, bodies_of_others


def twice(folder: Path, code: str) -> tuple[Recorded, Execution, Recorded, Execution]:
    """Runs code that calls the host at its end, and runs it again in another guest by the notes until that call."""
    hosts, seen = [], []
    noted = b""
    for name in ("first", "second"):
        (folder / name).mkdir()
        with Recorded(folder / name) as host:
            seen.append(host.record(code, noted))
            noted = host.notes_before_call
            hosts.append(host)
    return hosts[0], seen[0], hosts[1], seen[1]


#: The kinds of notes that each execution has which calls the host.
MODULES, GENERATOR, CALLS = 10, 8, 7


def kinds(notes: bytes) -> set[int]:
    found, at = set(), 0
    while at < len(notes):
        found.add(notes[at])
        at += 5 + int.from_bytes(notes[at + 1 : at + 5], "little")
    return found


SOURCES = {
    "time": "import time\n[time.time(), time.time_ns(), time.monotonic(), time.perf_counter_ns()]",
    "clocks": "import time\n[time.process_time(), time.thread_time_ns(), time.clock_gettime(time.CLOCK_BOOTTIME)]",
    "the present time of functions": (
        "import time\n[time.ctime(), time.asctime(), time.localtime(), time.gmtime(None), time.strftime('%S'), "
        "time.ctime(0)]"
    ),
    "a name of a clock": "from time import perf_counter as now\n[now(), now()]",
    "datetime": (
        "import datetime as d\n[d.datetime.now(), d.datetime.now(d.timezone.utc), d.datetime.today(), d.date.today()]"
    ),
    "a class of datetime": (
        "import datetime\nclass Own(datetime.datetime): pass\n[type(Own.now()).__name__, Own.now(), Own.utcnow()]"
    ),
    "urandom": "import os\n[os.urandom(8), os.getrandom(5)]",
    "OpenSSL": "import ssl\nfrom ssl import RAND_bytes\n[ssl.RAND_bytes(4), RAND_bytes(5)]",
    "uuid": "import uuid\n[uuid.uuid4()]",
    "secrets": "import secrets\n[secrets.token_hex(), secrets.randbelow(10 ** 9), secrets.choice(range(10 ** 9))]",
    "random": "import random\n[random.random(), random.gauss(0, 1), random.getrandbits(99)]",
    "seeds": "import random\nrandom.seed()\n[random.random(), random.Random().random(), random.SystemRandom().random()]",
    "a process": "import os\n[os.getpid(), os.getppid()]",
    "a temporary file": "import tempfile, os\n[os.path.basename(tempfile.mktemp())]",
}


@pytest.mark.parametrize("source", SOURCES)
def test_another_guest_gets_the_noted_answers(source: str, tmp_path: Path) -> None:
    *lines, last = SOURCES[source].split("\n")
    code = "\n".join([*lines, f"told = repr({last})", "print(told)", "fetch_page(told)"])
    first, seen, second, again = twice(tmp_path, code)
    assert (first.broken, second.broken, second.differs) == ("", "", "")
    assert seen.report["ended"] == "ok", seen.traceback
    assert seen.stdout == again.stdout != ""
    assert seen.calls == again.calls
    asked = kinds(first.notes) - {MODULES, GENERATOR, CALLS}
    assert bool(asked) == (source != "random")


def test_the_generator_of_numpy_is_the_same(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    code = "import numpy as np\ntold = repr([np.random.rand(), np.random.default_rng().random()])\nfetch_page(told)"
    _, seen, second, again = twice(tmp_path, code)
    assert (second.differs, seen.calls) == ("", again.calls)


@pytest.mark.parametrize(
    ("before", "code"),
    [
        ("import numpy as np", "told = repr([np.random.rand(), np.arange(3)])"),
        ("import numpy as np\na = np.arange(3)", "told = repr([np.random.rand(), a])"),
        ("import json", "import numpy as np\ntold = repr(np.random.default_rng().random())"),
        (
            "def work():\n    import multiprocessing.process\nwork()",
            "import os, multiprocessing.process\ntold = repr(os.urandom(4))",
        ),
    ],
)
def test_modules_of_earlier_executions_are_there(before: str, code: str, tmp_path: Path) -> None:
    """A portable state has the modules that variables name. The others are imported before the code runs again."""
    if "numpy" in before + code:
        pytest.importorskip("numpy")
    code += "\nfetch_page(told)"
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with Recorded(tmp_path / "first") as first:
        first.record(before)
        event, body = first.ask("captureState", maxBytes=1 << 20, portable=True, direct=False)
        assert event["type"] == "value"
        lost = int.from_bytes(body[:4], "little")
        seen = first.record(code)
    assert (first.broken, seen.report["ended"]) == ("", "ok"), seen.traceback
    with Recorded(tmp_path / "second") as second:
        opened, _ = second.ask("openState", body[4 + lost :], maxBytes=1 << 20)
        assert opened["type"] == "done", opened
        again = second.record(code, first.notes)
    assert (second.differs, second.broken) == ("", "")
    assert [call[1][0] for call in again.calls] == [call[1][0] for call in seen.calls] != []


def test_code_goes_on_where_the_notes_end(tmp_path: Path) -> None:
    code = "import os\na = os.urandom(4)\nfetch_page(a)\nb = os.urandom(4)\nprint(a, b)"
    first, seen, second, again = twice(tmp_path, code)
    assert seen.stdout.split(" ", 1)[0] == again.stdout.split(" ", 1)[0]
    assert seen.stdout != again.stdout
    assert second.differs == ""
    assert len(first.notes) == len(second.notes)


def test_a_sleep_is_not_slept_again(tmp_path: Path) -> None:
    code = "import time\nbegun = time.monotonic()\ntime.sleep(0.3)\nfetch_page(time.monotonic() - begun)"
    _, seen, second, again = twice(tmp_path, code)
    assert (second.differs, seen.calls) == ("", again.calls)
    assert seen.calls[0][1][0][0] >= 0.3
    assert again.report["ended"] == "ok"


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ("import time\ntime.time()", "the code reads a clock where it draws random bytes in the journal"),
        ("import os\nos.urandom(5)", "the code draws random bytes (5) where the journal has 4"),
        ("fetch_page(1)", "the code calls the host where it draws random bytes in the journal"),
        ("1", "the code ended where it draws random bytes in the journal"),
        ("import subprocess\nsubprocess.run(['/bin/true'])", "it started a process"),
    ],
)
def test_another_way_is_told(other: str, what: str, tmp_path: Path) -> None:
    with Recorded(tmp_path) as first:
        first.record("import os\nos.urandom(4)\nfetch_page(1)")
        assert first.notes
    with Recorded(tmp_path) as second:
        second.record(other, first.notes)
        assert second.differs == what


def test_code_that_calls_nobody_runs_again_by_the_notes_that_come_at_its_end(tmp_path: Path) -> None:
    code = "import os, time\nprint(os.urandom(4), time.time_ns())"
    with Recorded(tmp_path) as first:
        seen = first.record(code)
    with Recorded(tmp_path) as second:
        again = second.record(code, first.notes)
        assert (again.stdout, second.differs, second.notes) == (seen.stdout, "", first.notes)


def test_code_that_explores_goes_on_after_the_first_difference(tmp_path: Path) -> None:
    with Recorded(tmp_path) as first:
        first.record("import os\nos.urandom(4)\nfetch_page(1)\nos.urandom(4)")
    for other in ("time.time()", "os.urandom(5)", "os.system('true')", "pass"):
        with Recorded(tmp_path) as second:
            code = f"import os, time\n{other}\nos.urandom(4), time.time()\nfetch_page(2)\nprint('the end')"
            seen = second.record(code, first.notes, explores=True)
            assert (seen.report["ended"], seen.stdout) == ("ok", "the end\n"), seen.traceback
            assert second.differs != ""
            assert (second.notes, second.broken) == (first.notes, ""), "nothing is noted or told any more"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import subprocess\nsubprocess.run(['/bin/true'])", "it started a process"),
        ("import os\nif not (p := os.fork()): os._exit(0)\nos.waitpid(p, 0)", "it started a process"),
        (
            "import os\nfrom multiprocessing.util import spawnv_passfds\n"
            "os.waitpid(spawnv_passfds(b'/bin/true', [b'true'], []), 0)",
            "it started a process",
        ),
        ("import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()", "it started a thread"),
        ("import _thread\n_thread.start_new_thread(print, ())", "it started a thread"),
        ("import socket\nsocket.socket().bind(('127.0.0.1', 0))", "it used the network"),
        ("open('/dev/urandom', 'rb').read(1)", "it read a random device"),
        ("import os\nos.close(os.open(b'/dev/urandom', os.O_RDONLY))", "it read a random device"),
        ("import uuid\nuuid.uuid1()", "it asked the system for a UUID"),
        pytest.param(
            "import ssl\nssl.RAND_pseudo_bytes(4)",
            "it asked OpenSSL for pseudo-random bytes",
            marks=pytest.mark.skipif(not hasattr(ssl, "RAND_pseudo_bytes"), reason="this Python has none"),
        ),
        ("open('/proc/self/stat').read()", "it opened /proc/self/stat"),
        ("import asyncio\nawait asyncio.sleep(0.01)", "it waited in an event loop, whose order no journal holds"),
        ("import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)", "it set an alarm"),
        ("import os\nos.times()", "it asked for the times of the process"),
        ("import os\nos.urandom(2 << 20)", "it asked for the time, or for random numbers, too often"),
        (
            "import time\nfor _ in range(100_000): time.time()",
            "it asked for the time, or for random numbers, too often",
        ),
    ],
)
def test_what_cannot_be_noted_is_named(code: str, why: str, tmp_path: Path) -> None:
    with Recorded(tmp_path) as host:
        seen = host.record(code)
        assert (seen.report["ended"], host.broken) == ("ok", why), seen.traceback
        assert host.notes == b""
        host.broken = ""
        host.record("1 + 1")
        assert host.broken == "", "only the execution itself"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("import os\nos.mkdir('d')\nos.chdir('d')", "it began in another folder than the working folder"),
        ("import os\nos.environ['A'] = 'b'", "environment variables were changed before it"),
    ],
)
def test_a_state_that_no_state_holds_is_named(change: str, why: str, tmp_path: Path) -> None:
    with Recorded(tmp_path) as host:
        host.record(change)
        assert host.broken == ""
        host.record("1")
        assert host.broken == f"{why}, which no state holds"


@pytest.mark.parametrize(
    "change",
    [
        "import os\nos.mkdir('d')\nos.chdir('d')\nos.rmdir('../d')",
        "import random\nrandom.getstate = lambda: 1 / 0",
        "import random\ndel random.setstate",
        "import sys, types\nclass Odd(types.ModuleType):\n    @property\n    def __spec__(self): return 1 / 0\n"
        "sys.modules['odd'] = Odd('odd')",
    ],
)
def test_code_that_breaks_the_beginning_of_a_record_only_ends_it(change: str, tmp_path: Path) -> None:
    with Recorded(tmp_path) as host:
        assert host.record(change).report["ended"] == "ok"
        assert host.broken == ""
        seen = host.record("print('it runs')")
        assert (seen.stdout, host.broken.partition(":")[0]) == ("it runs\n", "the record could not begin")


@pytest.mark.parametrize("damage", ["cut", "kind", "length"])
def test_damaged_notes_are_another_way(damage: str, tmp_path: Path) -> None:
    code = "import os\nos.urandom(4)\nfetch_page(1)"
    with Recorded(tmp_path) as first:
        first.record(code)
    notes = first.notes
    bad = {"cut": notes[:-1], "kind": b"\x63" + notes[1:], "length": notes[:1] + b"\xff\xff\xff\x7f" + notes[5:]}
    with Recorded(tmp_path) as second:
        second.record(code, bad[damage])
        assert second.differs == "the journal is damaged"


def test_executions_that_are_not_recorded_are_as_in_any_guest(tmp_path: Path) -> None:
    with Recorded(tmp_path) as host:
        seen = host.ok("import time, os, threading\nprint(time.time() > 0, len(os.urandom(3)), os.getpid() > 0)")
        assert (seen.stdout, host.notes, host.broken) == ("True 3 True\n", b"", "")
        assert host.ok("fetch_page('x')").calls[0][0] == "fetch_page"


def test_variables_may_hold_the_functions(tmp_path: Path) -> None:
    """A portable state names them, as it names those of any guest."""
    with Recorded(tmp_path) as host:
        host.ok("import time\nfrom os import urandom\nfrom datetime import datetime\nnow = time.monotonic")
        event, body = host.ask("captureState", maxBytes=1 << 20, portable=True, direct=False)
        assert event["type"] == "value"
        assert body[: 4 + len("[]")] == b"\x02\0\0\0[]", "nothing is lost"


def test_the_functions_are_as_those_of_c(tmp_path: Path) -> None:
    code = """
import copy, os, pickle, time
class Clock:
    now = time.time
    draw = os.urandom
    process = os.getpid
told = [Clock().now() > 0, len(Clock().draw(3)), Clock().process() == os.getpid()]
for function in (time.monotonic, os.urandom, os.getpid):
    told += [pickle.loads(pickle.dumps(function)) is function, copy.deepcopy(function) is function]
print(told, time.time, os.urandom.__name__)
fetch_page(1)
"""
    with Recorded(tmp_path) as host:
        seen = host.record(code)
        assert (seen.report["ended"], host.broken) == ("ok", ""), seen.traceback
    assert seen.stdout == f"{[True, 3, True] + [True] * 6} <built-in function time> urandom\n"
