"""Distinguishes the user's code from the runtime's, by the files of frames."""

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
#: Files of the runtime that call user code, and may be interrupted anywhere.
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

#: The modules whose callbacks of weak references run Python code, and the names of these callbacks.
_WEAK = frozenset(("_frozen_importlib", "importlib._bootstrap", "weakref", "_weakrefset"))
_CALLBACKS = frozenset(("remove", "_remove"))


def is_ours(filename: str) -> bool:
    """Returns true for a file of the runtime's, or of Pyodide's."""
    return filename.startswith(_OURS) or any(part in filename for part in _PYODIDE)


def in_user_code(frame: FrameType | None) -> bool:
    """Returns true when an exception raised here would not hit the runtime at a bad moment, but user code."""
    if frame is not None and frame.f_code.co_name in _CALLBACKS and frame.f_globals.get("__name__") in _WEAK:
        return False  # Python would print the exception and go on
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(CELL_PREFIX) or filename in _CALLERS:
            return True
        if filename.startswith(_OURS):
            return False
        frame = frame.f_back
    return False
