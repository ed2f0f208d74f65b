"""Sandboxes for libraries of agents and of Recursive Language Models.

- `rlms.py`          `rlm_environment`, for the package `rlms` (`import rlm`)
- `dspy.py`          `DspyInterpreter`, for `dspy.RLM` and everything that runs on a `PythonInterpreter`
- `smolagents.py`    `SmolagentsExecutor`, for a `CodeAgent`
- `deepagents.py`    `DeepAgentsBackend`, for LangChain's `create_deep_agent`
- `openai_agents.py` `OpenAIAgentsSandboxClient`, for a `SandboxAgent` of OpenAI's Agents SDK
- `shell.py`         the part of these two in the guest

Each module imports its library, which is the user's own installation. So a module is loaded on first use. Part of the
wheel only, as `client/` is.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandglass.adapters.deepagents import DeepAgentsBackend as DeepAgentsBackend
    from sandglass.adapters.dspy import DspyInterpreter as DspyInterpreter
    from sandglass.adapters.openai_agents import OpenAIAgentsSandboxClient as OpenAIAgentsSandboxClient
    from sandglass.adapters.rlms import rlm_environment as rlm_environment
    from sandglass.adapters.smolagents import SmolagentsExecutor as SmolagentsExecutor

_MODULES = {
    "DeepAgentsBackend": "deepagents",
    "DspyInterpreter": "dspy",
    "OpenAIAgentsSandboxClient": "openai_agents",
    "SmolagentsExecutor": "smolagents",
    "rlm_environment": "rlms",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_MODULES]
