"""A zygote before its first fork. Later it needs a boundary, so host/tests/pool.rs tests the rest."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sandglass

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a zygote needs Linux")


def ready(folder: Path, preload: list[str]) -> dict[str, Any]:
    """Starts a zygote that preloads modules of a folder. Returns its report."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(folder), str(Path(sandglass.__file__).parents[1])])
    fd = str(theirs.fileno())
    command = [sys.executable, "-m", "sandglass", "--zygote", "--fd", fd]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], env={"PYTHONPATH": path}) as process:
        theirs.close()
        ours.settimeout(60)
        filter_file = os.memfd_create("filter")
        socket.send_fds(ours, [json.dumps({"preload": preload}).encode()], [filter_file])
        os.close(filter_file)
        report: dict[str, Any] = json.loads(ours.recv(65536))
        ours.shutdown(socket.SHUT_RDWR)  # the host ends
        assert process.wait(60) == 0
    return report


def test_what_cannot_be_preloaded_is_named_and_the_rest_is(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    (tmp_path / "witness.py").write_text("import os\nos.write(1, b'imported ')")
    report = ready(tmp_path, ["json", "broken", "threaded", "witness"])
    assert report["ready"] is True
    assert set(report["missing"]) == {"broken", "threaded"}
    assert report["missing"]["broken"] == "ZeroDivisionError: division by zero"
    assert report["missing"]["threaded"].startswith("it leaves threads running, which a fork would lose: ")


def test_what_is_told_at_a_new_start_is_not_left_in_the_environment(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    (tmp_path / "spy.py").write_text("import os\nassert not [name for name in os.environ if 'ZYGOTE' in name]")
    assert set(ready(tmp_path, ["threaded", "spy"])["missing"]) == {"threaded"}


def test_an_order_that_the_host_takes_back_is_not_carried_out() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {"PYTHONPATH": str(Path(sandglass.__file__).parents[1])}
    command = [sys.executable, "-m", "sandglass", "--zygote", "--fd", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env) as process:
        theirs.close()
        ours.settimeout(60)
        ours.send(b'{"preload": []}')
        assert json.loads(ours.recv(65536))["ready"] is True
        channels = [socket.socketpair() for _ in range(2)]
        for number, (host, guest) in enumerate(channels):
            host.close()
            socket.send_fds(ours, [json.dumps({"fork": number, "epoch": 1, "groups": 0}).encode()], [guest.fileno()])
            guest.close()
        for number in range(2):
            told = json.loads(ours.recv(65536))
            assert told == {"failed": number, "message": "OSError: nobody waits for this guest any more"}
        ours.shutdown(socket.SHUT_RDWR)  # the host ends
        assert process.wait(60) == 0


#: A program that runs as a user with limits, because root has none.
HOARD = """
import errno, json, os, signal, socket, time
from sandglass.native import rlimits, zygote
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(*[2147400000] * 3)
    os.setresuid(*[2147400000] * 3)
rlimits.bound_files(256)
kept, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
null = os.open("/dev/null", os.O_RDONLY)
try:
    while True:
        socket.send_fds(control, [b"x"], [null] * 50)
except OSError as error:
    assert error.errno == errno.ETOOMANYREFS, error
guest = os.fork()
if guest == 0:
    signal.pause()
pidfd = os.pidfd_open(guest)
forks = zygote._Forks(control, b"", [])
report, says = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
says.send(b'{"isolated": true}')
number = report.fileno()
forks._isolating[number] = zygote._Isolating(1, guest, pidfd, report, time.monotonic() + 60)
forks._hand_over(number)
try:
    os.kill(guest, 0)
except ProcessLookupError:
    print("ended")
try:
    os.fstat(pidfd)
except OSError:
    print("closed")
while (told := kept.recv(4096)) == b"x":
    pass
print(*sorted(json.loads(told)))
"""


def test_a_guest_that_the_host_cannot_be_given_is_ended() -> None:
    env = {"PYTHONPATH": str(Path(sandglass.__file__).parents[1])}
    told = subprocess.run([sys.executable, "-c", HOARD], env=env, check=True, capture_output=True, text=True).stdout
    assert told.splitlines() == ["ended", "closed", "failed message"]


COPY = """
import os, sys, types

def own():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_Dirty"))

# As many modules as data libraries have, each in a page of its own.
spread = []
for number in range(4000):
    sys.modules[f"module_{number}"] = types.ModuleType("module")
    spread.append([bytes(60) for _ in range(40)])  # objects of this size share pages with modules
from sandglass.native import zygote
from sandglass.runtime.guards import Guards
from sandglass.runtime.warning_origin import WarningOrigin
zygote.become_quiet()
if (copy := os.fork()) == 0:
    before = own()
    Guards().install()
    WarningOrigin()
    grown = own() - before
    print(grown, flush=True)
    os._exit(0)
os.waitpid(copy, 0)
"""


def test_a_copy_does_not_write_to_the_pages_of_all_modules() -> None:
    env = {"PYTHONPATH": str(Path(sandglass.__file__).parents[1])}
    grown = subprocess.run([sys.executable, "-c", COPY], env=env, check=True, capture_output=True, text=True).stdout
    assert int(grown) < 1000, "kB"


MEMORY = """
from sandglass.native import zygote_memory as memory

def huge():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("AnonHugePages"))

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

arenas = memory.Arenas()
arenas.make_room()
objects = [bytes(100) for _ in range(200_000)]
before, size = huge(), resident()
memory.use_huge_pages()
assert [bytes(100)] * len(objects) == objects
collapsed, moved = huge() - before, resident() - size
reserved = memory.reserve()
unused = resident()
memory.take(reserved)
print(collapsed, moved, len(reserved), resident() - unused)
"""


def test_a_zygote_has_huge_pages_and_reserves_memory_that_only_a_guest_takes() -> None:
    env = {"PYTHONPATH": str(Path(sandglass.__file__).parents[1])}
    told = subprocess.run([sys.executable, "-c", MEMORY], env=env, check=True, capture_output=True, text=True).stdout
    collapsed, moved, reserved, taken = map(int, told.split())
    release = tuple(map(int, os.uname().release.split(".")[:2]))
    if release >= (6, 1):
        assert collapsed > 8 << 10, "kB"
    assert moved < 16 << 10, "kB"  # half-empty pages become whole ones
    assert reserved >= 2
    assert 0 < taken <= reserved * (2 << 10) + 256, "kB"
