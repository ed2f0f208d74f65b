"""The Python side of Sandglass: runs cells inside the sandbox and talks to the host through a `Bridge`.

Where things are:

- `runtime.py`    `Runtime`, the one object a backend drives: configure, execute, get and set variables
- `bridge.py`     `Bridge`, what a backend provides: output, host calls, sleep
- `browser.py`    the backend in the browser: adapts the worker's JS bridge, and boots
- `execution.py`  compiles and runs a cell;  `tracebacks.py` turns an exception into text
- `namespace.py`  the user's `__main__`, reserved names, the final answer
- `helpers.py`    `llm_query`, `FINAL`, `chunk_text`, …: what user code can call
- `profiles.py`   the names, texts and conventions of other projects that `helpers.py` can take on
- `output.py`     stdout and stderr, bounded;  `loop.py` asyncio on top of `Bridge.sleep`
- `state.py`      saves the user's variables by value, for another interpreter of the same build
- `pickling.py`   the pickles that it makes: functions and classes of cells by value
- `foreign.py`    finds variables that a copy of the interpreter's memory does not hold
- `displays.py`   rich outputs;  `figures.py` those of matplotlib;  `ipython.py` what code of notebooks imports for them
- `files.py`      files for the host: write, read, list, remove
- `values.py`     how values cross: the wire format;  `guards.py` undoes what a cell did to the interpreter
- `jupyter/`      `JupyterREPL`, the same in a notebook's own kernel; not part of guests

Standard library only, CPython 3.11 … 3.14.
"""

from typing import TYPE_CHECKING, Any

from sandglass.bridge import Bridge
from sandglass.errors import HostCallError, LimitError, NotSerializable
from sandglass.runtime import Runtime

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
