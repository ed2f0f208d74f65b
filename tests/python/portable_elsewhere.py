"""Portable states in files: all kinds that go everywhere, written here or read by another version of Python.

python portable_elsewhere.py write FILE
python portable_elsewhere.py read FILE      prints the kinds that are not the same, with the reason
    python portable_elsewhere.py kinds          prints all kinds
"""

from __future__ import annotations

import base64
import json
import sys
import warnings
from pathlib import Path

from conftest import CONFIG, Guest, installed
from portable_kinds import ANY, KINDS

from sandglass.state.portable import reading, writing

MANY = 100 << 20


def fresh() -> Guest:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    return guest


def write(guest: Guest, max_bytes: int = MANY) -> bytes:
    with installed(guest.runtime):
        return writing.write(guest.runtime.namespace, guest.runtime.sources, max_bytes)


def read(guest: Guest, state: bytes, max_bytes: int = MANY) -> list[tuple[str, str]]:
    with installed(guest.runtime):
        return reading.read(state, max_bytes, guest.runtime.namespace, guest.runtime.sources)


def write_kinds(file: Path) -> None:
    states = {}
    for kind, (code, way, _) in KINDS.items():
        if way == ANY:
            guest = fresh()
            guest.ok(code)
            states[kind] = base64.b64encode(write(guest)).decode()
    file.write_text(json.dumps(states))


def read_kinds(file: Path) -> dict[str, str]:
    failed = {}
    for kind, state in json.loads(file.read_text()).items():
        guest = fresh()
        lost = read(guest, base64.b64decode(state))
        cell = guest.run(KINDS[kind][2])
        if lost or cell.ended != "ok":
            failed[kind] = str(lost) + cell.traceback[-500:]
    return failed


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    way, *names = sys.argv[1:]
    if way == "kinds":
        print(json.dumps(KINDS))
    elif way == "write":
        write_kinds(Path(names[0]))
    else:
        print(json.dumps(read_kinds(Path(names[0]))))
