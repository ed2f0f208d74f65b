"""Copies of a native guest that run code ahead and take its place."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from native_host import Copy, Host

from sandglass.ahead import syscall_gate

pytestmark = pytest.mark.skipif(not syscall_gate.is_possible(), reason="for Linux on x86-64")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path, forks=True) as host:
        host.init()
        yield host


def take_over(copy: Copy) -> None:
    """Promotes a copy that has run its code, by the host's steps."""
    copy.end_origin()
    copy.promote()


def test_a_copy_becomes_the_guest(host: Host) -> None:
    host.ok("import random; random.seed(7); x = [1]; y = x")
    with host.fork() as copy:
        copy.run_ahead("x.append(random.random()); print(x is y, len(x)); x[1]")
        seen = copy.end()
        assert (seen.stdout, seen.report["ended"]) == ("True 2\n", "ok")
        take_over(copy)
        assert copy.ok("print(x[1])").stdout == seen.result + "\n"
        assert copy.ok("import os; os.system('echo from a child'); print('after')").stdout == "from a child\nafter\n"
        assert copy.ok("random.seed(7); print(random.random() == x[1])").stdout == "True\n"


def test_a_copy_that_nobody_wants_changes_nothing(host: Host, tmp_path: Path) -> None:
    host.ok("import os, random; random.seed(1); x = [1]")
    with host.fork() as copy:
        copy.run_ahead("x.append(random.random()); open('made', 'w').write('x')\nprint(x)")
        assert not copy.hears_anything_within(0.3)
        copy.end_it()
    assert not (tmp_path / "made").exists()
    assert host.ok("print(x, random.random())").stdout == "[1] 0.13436424411240122\n"


def test_copies_of_copies(host: Host) -> None:
    host.ok("x = []")
    with host.fork() as first:
        first.run_ahead("x.append(1); print(x)")
        assert first.end().stdout == "[1]\n"
        take_over(first)
        with first.fork() as second:
            second.run_ahead("x.append(2); print(x)")
            assert second.end().stdout == "[1, 2]\n"
            take_over(second)
            with second.fork() as third:
                third.run_ahead("x.append(3)")
                third.end()
                third.end_it()
            assert second.ok("print(x)").stdout == "[1, 2]\n"
            # The first process lives as long as any copy.
            assert host.process.poll() is None
            second.begin("import os; os._exit(7)")
            with pytest.raises(EOFError):
                second.end()
            assert host.process.wait(10) == 7


def test_copies_of_one_state(host: Host) -> None:
    host.ok("import random; random.seed(7); x = []")
    copies = [host.fork() for _ in range(3)]
    for at, copy in enumerate(copies):
        copy.run_ahead(f"x.append(({at}, random.random())); print(len(x))")
    assert [copy.end().stdout for copy in copies] == ["1\n"] * 3
    first, second, third = copies
    with second:
        take_over(second)
        for copy in (first, third):
            with copy:
                copy.end_it()
        assert second.ok("random.seed(7); print(x == [(1, random.random())])").stdout == "True\n"
        with second.fork() as another:
            another.run_ahead("print(len(x))")
            assert another.end().stdout == "1\n"
            another.end_it()
        second.begin("import os; os._exit(7)")
        with pytest.raises(EOFError):
            second.end()
        assert host.process.wait(10) == 7, "the end of the last guest, not of a copy that was thrown away"


def test_the_end_of_a_guest_is_told_though_a_copy_outlives_it(host: Host) -> None:
    with host.fork() as copy:
        host.begin("import os; os._exit(7)")
        with pytest.raises(EOFError):
            host.end()
        copy.end_it()
        assert host.process.wait(10) == 7


def test_a_signal_that_ends_the_guest_ends_what_stands_over_it(host: Host) -> None:
    host.begin("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert host.process.wait(10) == -signal.SIGSEGV


WORLD = {
    "the time": "import time; print(time.time() > 0)",
    "the date": "import datetime; print(datetime.datetime.now().year > 2000)",
    "a clock": "import time; print(time.monotonic() > 0)",
    "a clock by another name": "from timeit import default_timer as timer; print(timer() > 0)",
    "seconds of C's": "import time; print(len(time.localtime()) > 0)",
    "chance": "import os; print(len(os.urandom(4)) == 4)",
    "a clock by its number": "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC) > 0)",
    "a wait": "import threading; print(not threading.Event().wait(0.01))",
    "a seed": "import random; random.seed(); print(0 <= random.random() < 1)",
    "a file": "print(open('there').read() == 'x')",
    "a folder": "import os; print(os.listdir('.') == ['there'])",
    "a file that is written": "print(open('there', 'a').write('y') == 1)",
    "a process": "import os; print(os.system('true') == 0)",
    "a thread": "import threading; t = threading.Thread(target=print, args=(True,)); t.start(); t.join()",
    "the processor": "import time; print(time.process_time() > 0)",
    "a socket": "import socket; a, b = socket.socketpair(); a.send(b'x'); print(b.recv(1) == b'x')",
    "a pipe": "import os; print(len(os.pipe()) == 2)",
    "a module": "import this as zen; print(zen is not None)",
    "who sent a signal": "import signal; print(signal.signal(signal.SIGUSR1, signal.SIG_IGN) is not None)",
}


@pytest.mark.parametrize("what", WORLD)
def test_the_world_waits(host: Host, tmp_path: Path, what: str) -> None:
    (tmp_path / "there").write_text("x")
    host.ok("x = 1; import time, datetime, os, random, threading, socket, signal, timeit")
    with host.fork() as copy:
        copy.run_ahead(f"x = 2\n{WORLD[what]}")
        assert not copy.hears_anything_within(0.1), "it knows something of the world, and ends"
        assert (tmp_path / "there").read_text() == "x"
        copy.end_origin()
        copy.promote()
        assert "True\n" in copy.end(promoted=True).stdout
        assert copy.ok("print(x)").stdout == "2\n"
        assert copy.ok("import time; print(time.monotonic() > 0, time.time() > 0)").stdout == "True True\n"


def test_waits_begin_when_the_code_has_come(host: Host) -> None:
    host.ok("import time, queue, threading\nq = queue.Queue()")
    with host.fork() as copy:
        copy.run_ahead("time.sleep(0.3)\nprint('slept')")
        time.sleep(0.5)
        copy.end_origin()
        begun = time.monotonic()
        copy.promote()
        assert copy.end(promoted=True).stdout == "slept\n"
        assert time.monotonic() - begun > 0.25
        copy.begin("q.get()", timeout_ms=300)
        assert copy.end().report["stopped"] == "timeout"


def test_what_waits_for_nobody_can_be_interrupted(host: Host) -> None:
    host.ok("import queue, threading\nq = queue.Queue()\nlock = threading.Lock()\nlock.acquire()\nx = 1")
    for code in ("q.get()", "lock.acquire()", "threading.Event().wait()"):
        with host.fork() as copy:
            copy.run_ahead(code)
            assert not copy.hears_anything_within(0.05)
            copy.promote()
            time.sleep(0.05)
            copy.interrupt()
            assert copy.end(promoted=True).report["stopped"] == "interrupt"
            assert copy.ok("print(x)").stdout == "1\n"
            copy.end_it()


def test_hooks_that_are_added_ahead_hear_nothing_before(host: Host, tmp_path: Path) -> None:
    host.ok("import sys, os")
    with host.fork() as copy:
        copy.run_ahead(
            "def hook(event, args):\n    if event == 'os.scandir': open('evil', 'w').close()\nsys.addaudithook(hook)"
        )
        assert not copy.hears_anything_within(0.1)
        assert not (tmp_path / "evil").exists()
        copy.end_origin()
        copy.promote()
        copy.end(promoted=True)
        assert copy.ok("print(os.path.exists('evil'))").stdout == "True\n"


def test_signals_are_masked_as_they_would_be(host: Host) -> None:
    host.ok("import signal")
    with host.fork() as copy:
        copy.run_ahead("print(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1]))")
        assert not copy.hears_anything_within(0.05)
        copy.end_origin()
        copy.promote()
        assert copy.end(promoted=True).stdout == "set()\n"
        assert copy.ok("print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR1})").stdout == "True\n"


def test_what_still_computes_goes_on(host: Host) -> None:
    host.ok("x = 0")
    with host.fork() as copy:
        copy.run_ahead("for x in range(30_000_000): pass\nimport time; print(x, time.time() > 0)")
        assert not copy.hears_anything_within(0.02)
        copy.promote()
        copy.end_origin()
        assert copy.end(promoted=True).stdout == "29999999 True\n"


def test_it_can_be_interrupted_from_then_on(host: Host) -> None:
    host.ok("x = 0")
    with host.fork() as copy:
        copy.run_ahead("while True: x += 1")
        copy.promote()
        copy.end_origin()
        copy.interrupt()
        assert copy.end(promoted=True).report["stopped"] == "interrupt"
        assert copy.ok("print(x > 0)").stdout == "True\n"


def test_a_host_call_waits_for_its_answer(host: Host) -> None:
    host.ok("x = 0")
    with host.fork() as copy:
        copy.run_ahead("print(llm_query('a'))\nimport time; print(time.time() > 0)")
        (event,), _ = copy.receive()
        assert (event["type"], event["name"]) == ("hostCall", "llm_query")
        copy.end_origin()
        copy.let_go()
        copy.reply(event["call"], "text", b"answer")
        assert copy.end().stdout == "answer\nTrue\n"


def test_a_child_that_tells_nobody_of_its_end_ends_with_its_cell(host: Host) -> None:
    clone = "import ctypes, time\npid = ctypes.CDLL(None).syscall(56, 0, 0, 0, 0, 0)\nif pid == 0:\n    while True: time.sleep(1)\npid"
    pid = int(host.ok(clone).result or "0")
    assert pid > 0
    assert not Path(f"/proc/{pid}").exists()


def test_what_there_is_can_be_told_whatever_it_is(host: Host) -> None:
    def survey(number: int) -> list[dict[str, object]]:
        host.send({"type": "survey", "survey": number})
        (event,), _ = host.receive()
        assert (event["type"], event["survey"]) == ("surveyed", number)
        return list(event["variables"])

    host.ok("long = bytes(5_000_000_000)")  # never written, so that it takes no memory
    assert [(found["name"], found["length"]) for found in survey(1)] == [("long", 2**32 - 1)]
    host.ok("del long\nimport sys\nsys.addaudithook(lambda *args: None)")
    assert survey(2) == []


def test_code_that_comes_bit_by_bit(host: Host) -> None:
    host.ok("x = []")
    with host.fork() as copy:
        copy.run_ahead("x.append(1)\nx.append(2)", more=True)
        assert copy.waits() == {}
        copy.extend("\nprint(x)")
        assert copy.waits() == {"stdout": "[1, 2]\n"}
        copy.extend("\nimport time; print(time.time() > 0)")
        assert not copy.hears_anything_within(0.1)
        copy.end_origin()
        copy.promote("\nx")
        seen = copy.end(promoted=True)
        assert (seen.stdout, seen.result) == ("True\n", "[1, 2]")


def test_code_that_is_known_to_be_whole_runs_to_its_end(host: Host, tmp_path: Path) -> None:
    host.ok("x = []")
    with host.fork() as copy:
        copy.run_ahead("x.append(1)\nfor i in range(2):", more=True)
        assert copy.waits() == {}
        copy.extend("\n    x.append(i)\nprint(open('made', 'w').write('a'))\nlen(x)", last=True)
        assert not copy.hears_anything_within(0.1), "what it does to the world waits"
        assert not (tmp_path / "made").exists()
        copy.end_origin()
        copy.promote("")
        seen = copy.end(promoted=True)
        assert (seen.stdout, seen.result) == ("1\n", "3")
        assert copy.ok("x").result == "[1, 0, 1]"


def test_code_that_looks_at_its_own_source_waits_for_the_rest(host: Host) -> None:
    host.ok("import linecache, sys")
    with host.fork() as copy:
        copy.run_ahead("print(len(linecache.getlines(sys._getframe().f_code.co_filename)))", more=True)
        assert not copy.hears_anything_within(0.1)
        copy.end_origin()
        copy.promote("\n1\n2")
        assert copy.end(promoted=True).stdout == "3\n"


def test_what_it_says_first_says_that_it_goes_on(host: Host) -> None:
    host.ok("import time")
    for _ in range(20):
        with host.fork() as copy:
            copy.run_ahead("t = time.time()\nprint(llm_query('a'))")
            assert not copy.hears_anything_within(0.01)
            copy.promote()
            (event,), _ = copy.receive()
            if event["type"] == "promoted":
                (event,), _ = copy.receive()
            assert event["type"] == "hostCall"
            copy.reply(event["call"], "text", b"answer")
            assert copy.end().stdout == "answer\n"
            copy.end_it()


REFUSED = {
    "there are threads": "import threading; e = threading.Event(); threading.Thread(target=e.wait, daemon=True).start()",
    "getpid": "import os; p = os.getpid()",
    "process_time": "import time; t = time.process_time()",
    "memory": "import mmap; m = mmap.mmap(-1, 4096)",
    "descriptor": "import os; d = os.dup(1)",
    "CPUTIME": "import time; t = time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID)",
    "locked": "import fcntl; f = open('lock', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)",
    "child processes": "import signal; signal.signal(signal.SIGCHLD, lambda *_: None)",
    "hook": "import sys; sys.addaudithook(lambda *_: None)",
}


def test_what_cells_do_to_modules_does_no_harm(host: Host) -> None:
    host.run("import json, os, socket, struct, signal, ctypes, sys, select, time\nx = 1")
    host.run(
        "for m in (socket, select, struct):\n"
        "    for n in [n for n in vars(m) if not n.startswith('__')]:\n"
        "        try: setattr(m, n, None)\n"
        "        except BaseException: pass\n"
        "sys.modules.clear()"
    )
    with suppress(AssertionError), host.fork() as copy:
        copy.end_it()
    assert host.ok("print(x)").stdout == "1\n"


def test_what_ends_with_the_collector_ends_behind_the_gate(host: Host, tmp_path: Path) -> None:
    host.ok(
        "import gc\nclass Noisy:\n    def __del__(self):\n        open('made', 'a').write('x')\ngc.set_threshold(1)\n"
    )
    host.ok("n = Noisy(); n.me = n; gc.disable(); del n; gc.enable()\nx = 1")
    made = tmp_path / "made"
    made.unlink(missing_ok=True)
    with host.fork() as copy:
        copy.run_ahead("x = 2")
        copy.hears_anything_within(0.2)
        copy.end_it()
    text = made.read_text() if made.exists() else ""
    assert len(text) <= 1, "of the guest itself, if anything"


@pytest.mark.parametrize("why", REFUSED)
def test_there_is_no_copy_of_what_a_fork_does_not_copy(host: Host, why: str) -> None:
    host.run(REFUSED[why])
    with pytest.raises(AssertionError, match=why):
        host.fork()
    assert host.ok("print(1)").stdout == "1\n"


def test_what_is_no_order_is_refused(host: Host) -> None:
    for packet in (b"{", b'{"epoch": "x"}', b"[]", b'{"epoch": 1}'):
        host.control.send(packet)
        data = json.loads(host.control.recv(4096))
        assert data["failed"], data
    assert host.ok("print(1)").stdout == "1\n"
    host.control.shutdown(socket.SHUT_RDWR)
    assert host.ok("print(2)").stdout == "2\n"


@pytest.mark.skipif(not shutil.which("as"), reason="no assembler")
def test_the_handler_is_what_its_text_says(tmp_path: Path) -> None:
    lines = syscall_gate._HANDLER.splitlines()
    text = "\n".join(line[syscall_gate._HEX_CHARS :] for line in lines)
    source, made = tmp_path / "handler.s", tmp_path / "handler.o"
    source.write_text(f".intel_syntax noprefix\n{text}\n")
    subprocess.run(["as", source, "-o", made], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", made, tmp_path / "handler"], check=True)
    assert (tmp_path / "handler").read_bytes().hex(" ") == bytes.fromhex(
        "".join(line[: syscall_gate._HEX_CHARS] for line in lines)
    ).hex(" ")


def test_many_turns_leave_nothing_open(host: Host) -> None:
    host.ok("import os\nx = 0")
    before = host.ok("print(len(os.listdir('/dev/fd')))").stdout
    at, copies = host, []
    for _ in range(20):
        copy = at.fork()
        copies.append(copy)
        copy.run_ahead("x += 1")
        copy.end()
        take_over(copy)
        at = copy
    assert at.ok("print(len(os.listdir('/dev/fd')))").stdout == before
    assert at.ok("print(x)").stdout == "20\n"
    children = Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children")
    while len(children.read_text().split()) > 1:  # until the last replaced process is gone
        time.sleep(0.01)
    for copy in copies:
        copy.__exit__()
