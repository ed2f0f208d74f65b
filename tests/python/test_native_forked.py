"""Guests forked in a thread of another process, as a zygote does it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_host import FORKED, Host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path, program=FORKED) as host:
        assert host.init()["type"] == "ready"
        yield host


def test_its_only_thread_is_the_main_one(host: Host) -> None:
    seen = host.ok(
        "import threading\nmain = threading.main_thread()\n"
        "main is threading.current_thread(), main.name, type(main).__name__, main.daemon, threading.active_count()"
    )
    assert seen.result == "(True, 'MainThread', '_MainThread', False, 1)"
    source = "t = threading.Thread(target=lambda: found.append(threading.main_thread() is main))"
    assert host.ok(f"found = []\n{source}; t.start(); t.join()\nfound, t.is_alive()").result == "([True], False)"


def test_an_await_that_nothing_can_complete_is_an_error(host: Host) -> None:
    seen = host.run("import asyncio\nawait asyncio.get_event_loop().create_future()")
    assert seen.report["stopped"] is None and seen.error.startswith("RuntimeError: deadlock")


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 13),
    reason="seen with CPython 3.13.0: after a fork in a thread, code that computes does not hear of signals",
)
def test_signals_are_the_main_threads(host: Host) -> None:
    seen = host.ok(
        "import signal, os\nheard = []\nsignal.signal(signal.SIGUSR1, lambda *_: heard.append(1))\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\nheard"
    )
    assert seen.result == "[1]"
    for code in ("while True: pass", "import time\ntime.sleep(1000)", "import threading\nthreading.Event().wait()"):
        host.begin(f"print('begun')\n{code}")
        host.end(until="begun")
        host.interrupt()
        report = host.end().report
        assert (report["stopped"], report["errorType"]) == ("interrupt", "KeyboardInterrupt")


def test_threads_and_children_end_with_their_cell(host: Host) -> None:
    seen = host.ok(
        "import subprocess, threading, time\np = subprocess.Popen(['sleep', '1000'])\n"
        "t = threading.Thread(target=time.sleep, args=(1000,)); t.start()"
    )
    assert seen.stderr == ""
    assert host.ok("t.join(60); t.is_alive(), p.wait()").result == "(False, -9)"


def test_a_copy_of_it_is_one(host: Host) -> None:
    seen = host.ok(
        "import os, threading\npid = os.fork()\n"
        "if pid == 0: print(threading.current_thread() is threading.main_thread())\n"
        "else: status = os.waitpid(pid, 0)[1]; print(status)"
    )
    assert seen.stdout == "True\n0\n"


TAMPER = (
    "import sys\nfor name, module in list(sys.modules.items()):\n  if name.startswith('sandglass'):\n"
    "    for key in list(vars(module)):\n      if not key.startswith('__'): setattr(module, key, None)"
)


def test_one_without_a_runtime_ends(host: Host) -> None:
    host.begin(TAMPER)
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            host.receive()
    assert host.process.wait(60) != 0


def test_a_guest_that_cannot_be_readied_is_an_error(tmp_path: Path) -> None:
    program = FORKED.replace("lambda: None", "lambda: open('/no/such/file')")
    with Host(tmp_path, program=program) as host:
        with pytest.raises((EOFError, ConnectionResetError)):
            host.receive()
        assert host.process.wait(60) == 1
