"""The program that the tests use, and options of their sandboxes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pyodide-glue/python"
sys.path.insert(0, str(PACKAGE))

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PROGRAM = Path(os.environ.setdefault("SANDGLASS_HOST", str(TARGET / "debug/sandglass-host")))
#: What needs no isolation runs without, which is the fastest, and on the Python that has numpy.
PLAIN: Any = {"backend": "subprocess", "python": sys.executable}
