"""The Python side of Sandglass: runs cells inside the sandbox and talks to the host through a `Bridge`.

One folder for each place in which the code runs:

- `runtime/`  in every guest: `Runtime` and its parts; imports none of the other folders
- `state/`    saves and loads the user's variables, and finds those that cannot be saved
- `ahead/`    holds back the system calls of a shadow, and collects facts for guesses
- `browser/`  the guest in a browser, inside Pyodide
- `native/`   the guest on a host, the zygote that forks it, and the guest in a Jupyter kernel
- `jupyter/`  `JupyterREPL`: the same helpers in a notebook's own kernel; not part of guests
- `client/`   `Sandbox`: programs run Python in a guest of `sandglass-host`; not part of guests
- `adapters/` sandboxes for libraries of agents and RLMs; not part of guests

In your program:

    from sandglass import Sandbox

    with Sandbox(on_llm_query=lambda prompt: f"about {prompt[:20]}") as sandbox:  # ask your model here
        sandbox.initialize("Sand runs through a glass. " * 1000)
        print(sandbox.execute("print(len(context))").stdout)

In a notebook's own kernel, without isolation:

    from sandglass import JupyterREPL

    def ask(prompt, model=None):
        return f"about {prompt[:20]}"  # ask your model here

    with JupyterREPL(on_llm_query=ask) as repl:
        repl.load_context("Sand runs through a glass. " * 1000)
        print(repl.execute_code("print(len(context))").stdout)

A backend drives a `Runtime` and gives it a `Bridge`. `scripts/check-structure.mjs` refuses imports against these
layers.

Uses the standard library only, and runs on CPython 3.11 … 3.14.
"""

import os
from typing import TYPE_CHECKING, Any

from sandglass.runtime.bridge import Bridge
from sandglass.runtime.errors import HostCallError, LimitError, NotSerializable
from sandglass.runtime.runtime import Runtime

__version__ = "0.1.0"
__all__ = [
    "Answer",
    "AsyncNotebook",
    "AsyncSandbox",
    "Bridge",
    "Budget",
    "Cell",
    "CodeExecution",
    "Display",
    "HostCall",
    "HostCallError",
    "LimitError",
    "NotSerializable",
    "Notebook",
    "Runtime",
    "Sandbox",
    "SandboxError",
    "SandboxOptions",
    "Usage",
    "__version__",
    "approve",
    "call_id",
]

if TYPE_CHECKING:
    from sandglass.client import Answer as Answer
    from sandglass.client import AsyncNotebook as AsyncNotebook
    from sandglass.client import AsyncSandbox as AsyncSandbox
    from sandglass.client import Budget as Budget
    from sandglass.client import Cell as Cell
    from sandglass.client import CodeExecution as CodeExecution
    from sandglass.client import Display as Display
    from sandglass.client import HostCall as HostCall
    from sandglass.client import Notebook as Notebook
    from sandglass.client import Sandbox as Sandbox
    from sandglass.client import SandboxError as SandboxError
    from sandglass.client import SandboxOptions as SandboxOptions
    from sandglass.client import Usage as Usage
    from sandglass.client import approve as approve
    from sandglass.client import call_id as call_id
    from sandglass.jupyter import JupyterREPL as JupyterREPL

#: Names of `client/`, which guests do not have.
_OF_CLIENT = frozenset(__all__) - frozenset(globals())
if not os.path.isdir(os.path.join(__path__[0], "client")):
    __all__ = [name for name in __all__ if name not in _OF_CLIENT]


def __getattr__(name: str) -> Any:
    """Loads on first use what guests never need."""
    if name == "JupyterREPL":
        from sandglass.jupyter import JupyterREPL

        return JupyterREPL
    if name in _OF_CLIENT:
        from sandglass import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
