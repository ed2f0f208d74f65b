"""The examples for Python run, and their own assertions hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

EXAMPLES = sorted((ROOT / "examples/python").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(example: Path, tmp_path: Path) -> None:
    path = {"PYTHONPATH": str(ROOT / "pyodide-glue/python"), "DSPY_CACHEDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, example], env={**os.environ, **path}, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0 and done.stdout, done.stderr


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 5
