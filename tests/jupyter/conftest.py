"""`JupyterREPL` on the notebook kernels of scripts/setup: in this process, and in kernels that the tests start.

.setup/jupyter/7/bin/python -m pytest tests/jupyter
.setup/jupyter/7/bin/python -m pytest tests/jupyter/test_notebooks.py --write   writes the outputs of the examples
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "pyodide-glue" / "python"
sys.path.insert(0, str(PACKAGE))
os.environ["PYTHONPATH"] = str(PACKAGE)  # kernels import it from there
_home = tempfile.TemporaryDirectory()
os.environ["IPYTHONDIR"] = os.environ["JUPYTER_RUNTIME_DIR"] = _home.name  # keeps the user's own files out of the tests

collect_ignore = [] if find_spec("rlm") else ["test_rlm.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write", action="store_true", help="write the outputs of the example notebooks")


@pytest.fixture
def shell() -> Iterator[Any]:
    """IPython in this process, without a kernel. A test's variables are removed after it."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    shell.reset(new_session=True)
    yield shell
    shell.reset(new_session=True)
    InteractiveShell.clear_instance()
