"""The Python side of Sandglass: runs cells inside the sandbox and talks to the host through a `Bridge`.

One folder per place that the code runs in:

- `runtime/`  in every guest: `Runtime` and what it is made of; imports none of the others
- `state/`    the user's variables outside of their interpreter: saved, loaded, and what cannot be
- `ahead/`    running ahead: what waits until the code has come, and what guesses are made of
- `browser/`  the guest in a browser, inside Pyodide
- `native/`   the guest on a host, the zygote that forks it, and the guest in a Jupyter kernel
- `jupyter/`  `JupyterREPL`, the same in a notebook's own kernel; not part of guests

Backends drive a `Runtime` and give it a `Bridge`. `scripts/check-structure.mjs` refuses imports against these layers.

Standard library only, CPython 3.11 … 3.14.
"""

from typing import TYPE_CHECKING, Any

from sandglass.runtime.bridge import Bridge
from sandglass.runtime.errors import HostCallError, LimitError, NotSerializable
from sandglass.runtime.runtime import Runtime

__version__ = "0.1.0"
__all__ = ["Bridge", "HostCallError", "LimitError", "NotSerializable", "Runtime", "__version__"]

if TYPE_CHECKING:
    from sandglass.jupyter import JupyterREPL as JupyterREPL


def __getattr__(name: str) -> Any:
    """`JupyterREPL` is loaded when it is asked for: guests have no use for it."""
    if name == "JupyterREPL":
        from sandglass.jupyter import JupyterREPL

        return JupyterREPL
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
