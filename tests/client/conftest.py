"""The client of the Python package against the real program, `sandglass-host rpc`. It is built by `npm test`, or by `cargo build -p sandglass-cli`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyodide-glue/python"
sys.path.insert(0, str(PACKAGE))

from sandglass import Sandbox  # noqa: E402

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = Path(os.environ.setdefault("SANDGLASS_HOST", str(TARGET / "debug/sandglass-host")))
#: What needs no isolation runs without, which is the fastest, and on the Python that has numpy.
PLAIN: Any = {"backend": "subprocess", "python": sys.executable}


@pytest.fixture(scope="module")
def shared() -> Iterator[Sandbox]:
    """A sandbox that the tests of a module share: none depends on what is in it."""
    with Sandbox(**PLAIN) as sandbox:
        sandbox.initialize(None)
        yield sandbox
