"""The options of sandboxes, and how they are written in the wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

from sandglass.client.calls import HostFunction
from sandglass.client.execution import Display, HostCall, camel


class Budget(TypedDict, total=False):
    """Bounds of what a sandbox may spend on models: see docs/budgets.md. Time is in milliseconds."""

    max_calls: int
    max_tokens: float
    max_cost: float
    max_time: float
    max_depth: int


class SandboxOptions(TypedDict, total=False):
    """Options of `Sandbox` and `AsyncSandbox`. All have a default. Times are in milliseconds, sizes in bytes."""

    #: Answers `llm_query(prompt)`: gets the prompt, and the model if the code names one. May be `async`.
    on_llm_query: Callable[..., Any] | None
    #: Answers `rlm_query(task, context)`: gets both, and the model if the code names one. May be `async`.
    on_rlm_query: Callable[..., Any] | None
    #: Functions that Python calls by name.
    host_functions: Mapping[str, HostFunction] | None
    #: Is asked before a function that is marked by `approve` runs: see docs/python.md.
    on_approve: Callable[[HostCall], Any] | None
    #: Hear output as it comes.
    on_stdout: Callable[[str], Any] | None
    on_stderr: Callable[[str], Any] | None
    on_display: Callable[[Display], Any] | None

    profile: Literal["default", "rlm", "rlm-legacy", "rlm-core", "dspy"] | None
    output_fields: Sequence[str] | None
    budget: Budget | None
    backend: Literal["auto", "bubblewrap", "docker", "subprocess", "jupyter"] | None
    resources: Mapping[str, float] | None
    ahead: bool | None
    #: The number of states that are kept to go back to: see `Sandbox.undo`.
    checkpoints: int | None
    predictions: Literal["auto", "off"] | None

    timeout: float | None
    wall_timeout: float | None
    host_call_timeout: float | None
    grace_period: float | None
    boot_timeout: float | None
    memory_limit: float | None
    max_output_length: int | None
    max_host_calls: int | None
    max_concurrent_host_calls: int | None
    max_code_length: int | None
    max_value_size: float | None
    max_file_bytes: float | None
    max_shadows: int | None
    max_result_size: int | None

    #: Of programs on this machine only, not with `url`.
    python: str | PathLike[str] | None
    image: str | None
    runtime: str | None
    workspace: str | PathLike[str] | None
    allow_subprocess: bool | None


#: Options that stay in this process.
_OWN = frozenset(
    {"on_llm_query", "on_rlm_query", "host_functions", "on_approve", "on_stdout", "on_stderr", "on_display"}
)
Written = dict[str, Any]
Heard = Callable[[str], Any] | Callable[[str], Awaitable[Any]]


def write_options(options: Mapping[str, Any], kind: str) -> Written:
    """The options as the host reads them. Raises TypeError for an unknown option, and names a similar one."""
    for name in options:
        if name not in SandboxOptions.__annotations__:
            similar = get_close_matches(name, [*SandboxOptions.__annotations__, "url", "api_key"], 1)
            raise TypeError(f"{kind} has no option {name!r}" + (f": did you mean {similar[0]!r}?" if similar else ""))
    written: Written = {}
    for name, value in options.items():
        if name not in _OWN and value is not None:
            written[camel(name)] = _written(value)
    for name, query in (("on_llm_query", "onLLMQuery"), ("on_rlm_query", "onRLMQuery")):
        if options.get(name) is not None:
            if not callable(options[name]):
                raise TypeError(f"{name} must be a function, not a {type(options[name]).__name__}")
            written[query] = True
    return written


def write_budget(budget: Budget | None) -> Written:
    """A budget as the host reads it."""
    return {camel(name): value for name, value in (budget or {}).items()}


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {camel(name): item for name, item in value.items()}
    if isinstance(value, PathLike):
        return fspath(value)
    return list(value) if isinstance(value, (list, tuple)) else value
