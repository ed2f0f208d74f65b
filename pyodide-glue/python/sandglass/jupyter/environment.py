"""Connects with the package `rlms` (`import rlm`): asks its models, and lets its `RLM` use a `JupyterREPL`.

The package is the user's own installation, and is imported only when needed. Written for version 0.1.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandglass.jupyter.result import short
from sandglass.runtime.errors import HostCallError
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sandglass.jupyter.repl import JupyterREPL


def ask_handler(repl: JupyterREPL) -> Callable[..., str]:
    """Makes `on_llm_query` from the handler that an `RLM` has started."""

    def ask(prompt: str, model: str | None = None) -> str:
        from rlm.core.comms_utils import LMRequest, send_lm_request

        response = send_lm_request(repl.lm_handler_address, LMRequest(prompt=prompt, model=model, depth=repl.depth))
        if not response.success:
            raise HostCallError(response.error)
        return _recorded(repl, response.chat_completion)

    return ask


def ask_child(repl: JupyterREPL, subcall: Callable[..., Any]) -> Callable[..., str]:
    """Makes `on_rlm_query` from the function with which an `RLM` starts another."""

    def ask(prompt: str, _context: object = None, model: str | None = None) -> str:
        return _recorded(repl, subcall(prompt, model))

    return ask


def _recorded(repl: JupyterREPL, completion: Any) -> str:
    """Returns the text of an answer. Anything else is an error of the caller's, and leaves no record."""
    answer = getattr(completion, "response", None)
    if not isinstance(answer, str):
        raise HostCallError(f"a completion with a str as its response was expected, not {short(completion, 100)}")
    repl.record(completion)
    return answer


def register() -> None:
    """Lets `RLM(environment="jupyter", environment_kwargs={…})` use `JupyterREPL`.

    rlms knows its environments by name and has no way to add one, so this replaces its function `get_environment`. rlms
    gives sub-RLMs (`max_depth` above 1) and several turns (`persistent=True`) only to its own environments. To have
    these, use `environment="ipython", environment_kwargs={"kernel_mode": "jupyter", …}`.
    """
    import rlm.core.rlm as core
    import rlm.environments as environments

    known = environments.get_environment
    if getattr(known, "knows_jupyter", False):
        return

    def get_environment(environment: str, environment_kwargs: dict[str, Any]) -> Any:
        mode = environment_kwargs.get("kernel_mode")
        if environment != "jupyter" and not (environment == "ipython" and mode == "jupyter"):
            return known(environment, environment_kwargs)
        from sandglass.jupyter.repl import JupyterREPL

        return JupyterREPL(**{name: value for name, value in environment_kwargs.items() if name != "kernel_mode"})

    get_environment.knows_jupyter = True  # type: ignore[attr-defined]
    environments.get_environment = core.get_environment = get_environment
