"""A guest in bubblewrap, and its copies, for `isolated.py`."""

# Decisions: docs/internals/copies-on-hosts.md.

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from tracing import NUMBERS

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "pyodide-glue/python")]


from native_host import BOOTSTRAP, EPOCH, FOLDER, PATIENCE_SECONDS, Host, text  # noqa: E402
from test_paused import Checkpoint  # noqa: E402

__all__ = ["Checkpoint", "Copy", "Guest"]

#: The user of the guest, and of its copies.
USER = 2_100_065_000
BYTES = 256 << 20
#: The most copies of the guest, each with a folder for its files.
MOST = 128
FOLDERS = "/run/copies"
GROUPS = ("memory", "pids", "cpu")
GROUP = "sandglass-trial"
NEW = {"user": 1 << 28, "mnt": 1 << 17, "pid": 1 << 29, "ipc": 1 << 27, "uts": 1 << 26, "net": 1 << 30}
#: Makes the folders of copies, and lets the guest and its copies write there: what Landlock allows cannot be added to later.
PREPARE = f"""
import os, sys
sys.path[:0] = ["/run/sandglass"]
from sandglass.native import landlock
more = [f"{FOLDERS}/{{copy}}/{{kind}}" for copy in range({MOST}) for kind in ("workspace", "tmp")]
for folder in more:
    os.makedirs(folder)
landlock.WRITABLE += tuple(more)
del sys.path[0], more, folder
"""


class Guest(Host):
    """A guest in bubblewrap, as the backend starts it. Its filter refuses only what matters here."""

    def __init__(self, packages: Path | None) -> None:
        self.socket, theirs = socket.socketpair()
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_SECONDS)
        more = f"import sys; sys.path.append({str(packages)!r})\n" if packages else ""
        seen = [f"--ro-bind {path} {path}" for path in {"/usr", "/etc", str(packages or "/usr")}]
        seen += [f"--symlink usr{path} {path}" for path in ("/bin", "/lib", "/lib64")]
        size = f"--size {BYTES} --tmpfs"
        with tempfile.TemporaryFile() as program, theirs, control:
            program.write(_filter())
            program.seek(0)
            fds = [theirs.fileno(), control.fileno(), program.fileno()]
            arguments = f"""bwrap --unshare-all --unshare-user --uid 1000 --gid 1000 --cap-drop ALL --new-session --die-with-parent
                --hostname sandglass --clearenv --setenv OPENBLAS_NUM_THREADS 1 {" ".join(seen)} --ro-bind {FOLDER} /run/sandglass
                --proc /proc --dev /dev {size} /dev/shm {size} /tmp --size {BYTES * MOST} --tmpfs {FOLDERS} --disable-userns
                {size} /workspace --remount-ro /dev --remount-ro / --chdir /workspace --seccomp {fds[2]} -- /usr/bin/python3 -I -c"""
            last = f"/run/sandglass --reap all --confine --fd {fds[0]} --epoch {EPOCH} --control {fds[1]}"
            self.process = subprocess.Popen(
                [*arguments.split(), more + PREPARE + BOOTSTRAP, *last.split()],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                user=USER,
                group=USER,
                extra_groups=[],
                cwd="/",
            )
        self.exchange = self.execution = 0
        self.credits = True
        self.answer = lambda _name, _argument: text("")

    def run(self, code: str) -> str:
        """Runs a cell. Returns what it printed."""
        self.begin(code)
        seen = self.end()
        if seen.traceback:
            raise AssertionError(seen.traceback)
        return seen.stdout.strip()


class Copy(Guest):
    """A copy of a guest."""

    pid: int

    def __init__(self, of: Guest, number: int) -> None:
        self.epoch, self.answer, self.credits = of.epoch + number, of.answer, True
        self.exchange, self.execution = 100, of.execution
        self.group = f"{GROUP}/{number}"
        self.socket, self.channel = socket.socketpair()
        self.socket.settimeout(PATIENCE_SECONDS)
        self.control, self.its_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def wake(self) -> None:
        """Makes the session's guest of the copy."""
        self.init()
        event, _ = self.ask("restore", checkpoint=1)
        assert event["type"] == "restored", event


def _filter() -> bytes:
    """A filter that refuses mounts, namespaces, and other processes' memory. glibc falls back from `clone3`."""
    mounts = ("mount", "unshare", "setns", "move_mount", "fsopen", "fsmount", "pidfd_getfd")
    steps = [(0x20, 0, 0, 0)]
    for number, error in [*((NUMBERS[name], 1) for name in mounts), (101, 1), (310, 1), (311, 1), (435, 38)]:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
    steps += [(0x15, 0, 3, NUMBERS["clone"]), (0x20, 0, 0, 16), (0x45, 0, 1, sum(NEW.values())), (0x06, 0, 0, 0x50001)]
    return b"".join(struct.pack("<HBBI", *step) for step in [*steps, (0x06, 0, 0, 0x7FFF0000)])
