"""The adapters, each with the released package of its library, and with the real program in the default isolation. Models are scripts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "pyodide-glue/python"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
os.environ.setdefault("SANDGLASS_HOST", str(TARGET / "debug/sandglass-host"))
os.environ.setdefault("DSPY_CACHEDIR", str(ROOT / ".setup/logs/dspy-cache"))
os.environ["XDG_STATE_HOME"] = str(ROOT / ".setup/logs/state")  # snapshots of openai-agents
