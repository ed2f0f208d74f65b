"""Tells code of the user's from code of ours, by the files that frames are of."""

# Decisions: docs/internals/guest-in-a-browser.md.

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from types import FrameType

CELL_PREFIX = "<cell "
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_PYODIDE = (f"{os.sep}pyodide{os.sep}", f"{os.sep}_pyodide{os.sep}")
#: Code of ours that calls the user's, and can be interrupted anywhere.
_CALLERS = frozenset(
    os.path.join(_OURS, *name)
    for name in (
        ("runtime", "completion.py"),
        ("runtime", "displays.py"),
        ("runtime", "figures.py"),
        ("runtime", "helpers.py"),
        ("state", "cell_files.py"),
    )
)


def is_ours(filename: str) -> bool:
    """Returns true when a file is the runtime's, or Pyodide's."""
    return filename.startswith(_OURS) or any(part in filename for part in _PYODIDE)


def in_user_code(frame: FrameType | None) -> bool:
    """Returns true when an exception raised here passes the user's code, and not ours at an awkward moment."""
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(CELL_PREFIX) or filename in _CALLERS:
            return True
        if filename.startswith(_OURS):
            return False
        frame = frame.f_back
    return False
