"""The options of sandboxes, and how they are written in the wire."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

from sandglass.client.calls import HostFunction
from sandglass.client.errors import a_type
from sandglass.client.execution import Display, HostCall, camel


class Budget(TypedDict, total=False):
    """Bounds of what a sandbox may spend on models. Time is in milliseconds."""

    max_calls: int
    max_tokens: float
    max_cost: float
    max_time: float
    max_depth: int


class SandboxOptions(TypedDict, total=False):
    """The options. All have a default. Times are in milliseconds, sizes in bytes.

    Functions of yours, which may all be `async`:

    - `on_llm_query`: answers `llm_query(prompt)`. Gets the prompt, and the model if the code names one
    - `on_rlm_query`: answers `rlm_query(task, context)`. Gets both, and the model if the code names one
    - `host_functions`: functions that Python calls by name: `{"lookup": lookup}`
    - `on_approve`: is asked before a function that is marked by `approve` runs
    - `on_stdout`, `on_stderr`, `on_display`: hear output as it comes

    The sandbox:

    - `backend`: `"auto"` (default), `"bubblewrap"`, `"docker"`; `"subprocess"` and `"jupyter"` isolate nothing
    - `profile`: the names and texts in Python: `"default"`, `"rlm"`, `"rlm-legacy"`, `"rlm-core"` or `"dspy"`
    - `output_fields`: the names of the values that `SUBMIT` takes
    - `budget`: bounds of models: `max_calls`, `max_tokens`, `max_cost`, `max_time`, `max_depth`
    - `resources`: its share of the machine: `cpus`, `pids`, `open_files`, `tmp_bytes`, `disk_bytes`
    - `persist`: keeps the state, and the execution that waits in a host call: see `Sandbox.pending`. A folder, or with
      `url` a name at the server
    - `ahead`: true lets code run before it is asked for; `predictions`: `"auto"` guesses such code

    Time, and sizes:

    - `timeout`: Python's own time for each execution, without that of host calls (30 s)
    - `wall_timeout`: all time of an execution; `host_call_timeout`: of one host call (10 minutes)
    - `grace_period`: from an interrupt to the end of Python (1 s); `boot_timeout`: for Python's start (2 minutes)
    - `memory_limit`: of Python's memory (2 GiB); `max_file_bytes`: of all its files (256 MiB)
    - `max_output_length`: characters that are kept of each stream (50,000)
    - `max_code_length`: characters of one source; `max_value_size`: of one value that crosses (512 MiB)
    - `max_result_size`: of a last expression's value that results have (1 MiB)
    - `max_host_calls`, `max_concurrent_host_calls`: of one execution, and at the same time (10,000 and 32)
    - `max_shadows`: copies that run ahead

    Of programs on this machine only, not with `url`:

    - `python`: the sandbox's Python; `image`, `runtime`: of Docker
    - `workspace`: the folder that Python works in; otherwise a new one, which is removed in the end
    - `allow_subprocess`: true allows the backend `"subprocess"`
    """

    on_llm_query: Callable[..., Any] | None
    on_rlm_query: Callable[..., Any] | None
    host_functions: Mapping[str, HostFunction] | None
    on_approve: Callable[[HostCall], Any] | None
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
    persist: str | PathLike[str] | None
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

    python: str | PathLike[str] | None
    image: str | None
    runtime: str | None
    workspace: str | PathLike[str] | None
    allow_subprocess: bool | None


#: Options that stay in this process.
_OWN = frozenset(
    {"on_llm_query", "on_rlm_query", "host_functions", "on_approve", "on_stdout", "on_stderr", "on_display"}
)
#: Names that `camel` does not find.
_QUERIES = {"on_llm_query": "onLLMQuery", "on_rlm_query": "onRLMQuery"}
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
    for name, query in _QUERIES.items():
        if options.get(name) is not None:
            if not callable(options[name]):
                raise TypeError(f"{name} must be a function, not {a_type(options[name])}")
            written[query] = True
    return written


def write_budget(budget: Budget | None) -> Written:
    """A budget as the host reads it."""
    return {camel(name): value for name, value in (budget or {}).items()}


def with_names_of_python(text: str) -> str:
    """An error of the host, with the names that options have in Python: `host_call_timeout` for `hostCallTimeout`."""
    return _WORD.sub(lambda word: _NAMES.get(word[0], word[0]), text)


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {camel(name): item for name, item in value.items()}
    if isinstance(value, PathLike):
        return fspath(value)
    return list(value) if isinstance(value, (list, tuple)) else value


_WORD = re.compile(r"\b[a-z]+[A-Z]\w*")
_NAMES = {_QUERIES.get(name, camel(name)): name for kind in (SandboxOptions, Budget) for name in kind.__annotations__}
