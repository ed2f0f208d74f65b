"""Landlock on this machine's kernel. Each attempt runs in a process of its own, which stays confined."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandglass.native import landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not landlock.version(), reason="the kernel has no Landlock")

CONFINED = """
import os, signal, subprocess, sys
from sandglass.native import landlock
inside, outside = sys.argv[1:]
landlock.WRITABLE = (inside, "/nowhere")
assert landlock.confine()
"""


def confined(code: str, *folders: Path) -> str:
    command = [sys.executable, "-c", CONFINED + code, *map(str, folders)]
    env = {"PYTHONPATH": str(Path(landlock.__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside/file").write_text("before")
    return tmp_path / "inside", tmp_path / "outside"


def test_it_writes_in_its_own_folders_only(folders: tuple[Path, Path]) -> None:
    code = """
open(inside + "/a", "w").write("x")
os.mkdir(inside + "/b"); os.rename(inside + "/a", inside + "/b/a"); os.truncate(inside + "/b/a", 0)
os.symlink("/etc", inside + "/link"); os.mkfifo(inside + "/fifo"); os.unlink(inside + "/fifo")
print(open(outside + "/file").read(), os.listdir(outside))
for attack in (
    lambda: open(outside + "/new", "w"),
    lambda: open(outside + "/file", "a"),
    lambda: os.truncate(outside + "/file", 0),
    lambda: os.unlink(outside + "/file"),
    lambda: os.mkdir(outside + "/folder"),
    lambda: os.symlink("/etc", outside + "/link"),
    lambda: os.rename(inside + "/b/a", outside + "/a"),
    lambda: os.link(outside + "/file", inside + "/hard"),
    lambda: os.mkfifo(outside + "/fifo"),
):
    try:
        attack()
    except OSError as error:
        print(type(error).__name__, end=" ")
    else:
        print("WRITTEN", end=" ")
"""
    lines = confined(code, *folders).split("\n")
    assert lines[0] == "before ['file']"
    assert set(lines[1].split()) <= {"PermissionError", "OSError"}
    assert (folders[1] / "file").read_text() == "before"
    assert [path.name for path in folders[1].iterdir()] == ["file"]


def test_children_are_confined_as_well(folders: tuple[Path, Path]) -> None:
    code = """
made = subprocess.run(["/bin/sh", "-c", "echo > $0/new; echo > $1/new", inside, outside], capture_output=True)
print(os.listdir(inside), os.listdir(outside))
"""
    assert confined(code, *folders) == "['new'] ['file']\n"


@pytest.mark.skipif(landlock.version() < 6, reason="the kernel's Landlock has no scopes")
def test_signals_end_at_the_boundary(folders: tuple[Path, Path]) -> None:
    code = """
try:
    os.kill(os.getppid(), 0)
except PermissionError:
    print("refused", end=" ")
child = subprocess.Popen(["/bin/sleep", "100"])
child.kill()
print(child.wait())
"""
    assert confined(code, *folders) == "refused -9\n"
