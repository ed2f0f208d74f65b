"""RLM code in the notebook kernel that is running: `JupyterREPL`. It isolates nothing; see docs/jupyter.md.

- `repl.py`         `JupyterREPL`: namespace, helpers, output and profiles are those of every backend
- `result.py`       `Result`: what an execution came to
- `code.py`         what code may say: its builtins, and magics
- `kernel.py`       what code takes of the kernel while it runs, and gives back: streams, folder, event loop, shell
- `sync.py`         which variables go to the notebook and come from there
- `callbacks.py`    who answers `llm_query` and `rlm_query`
- `environment.py`  the package `rlms`: its environments' protocol, and how its `RLM` comes to use this one

Part of the wheel only: guests have no notebook, so that `crates/core/src/guest.rs` leaves this folder out.
"""

from sandglass.jupyter.environment import register
from sandglass.jupyter.repl import JupyterREPL
from sandglass.jupyter.result import Result

__all__ = ["JupyterREPL", "Result", "register"]
