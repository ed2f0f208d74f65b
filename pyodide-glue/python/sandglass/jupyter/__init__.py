"""RLM code in the notebook kernel that is running: `JupyterREPL`. It isolates nothing.

- `repl.py`         `JupyterREPL`: with the namespace, helpers, output and profiles of every backend
- `result.py`       `Result`: the result of an execution
- `code.py`         the rules for code: its builtins, and magics
- `kernel.py`       changes the kernel while code runs, and changes it back: streams, folder, event loop, shell
- `sync.py`         shares variables with the notebook
- `callbacks.py`    answers `llm_query` and `rlm_query`
- `environment.py`  the package `rlms`: its environments' protocol, and the registration with its `RLM`

Part of the wheel only. Guests have no notebook, so `crates/core/src/guest.rs` leaves this folder out.
"""

from sandglass.jupyter.environment import register
from sandglass.jupyter.repl import JupyterREPL
from sandglass.jupyter.result import Result

__all__ = ["JupyterREPL", "Result", "register"]
