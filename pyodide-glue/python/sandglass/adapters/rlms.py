"""`rlm_environment`: the package `rlms` (`import rlm`) with sandboxes as its environments. Written for rlms 0.1.3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import deepcopy
from typing import Any, Unpack, cast

import rlm.core.rlm as core
import rlm.environments as environments
from rlm.core.comms_utils import LMRequest, send_lm_request, send_lm_request_batched
from rlm.core.types import REPLResult
from rlm.environments.base_env import IsolatedEnv, extract_tool_value, validate_custom_tools

from sandglass.client import CodeExecution, Sandbox, SandboxOptions
from sandglass.client.calls import Refused

#: The package gives sub-RLMs, several turns and compaction only to environments of its own. This one has all of them.
_LIKE = "docker"
#: Marks the options of a sandbox among the package's own.
_MARK = "sandglass"
_NO_MODEL = "No LM handler configured"
#: The types of variables whose values a result has.
_SHOWN = frozenset({"int", "float", "bool", "str", "NoneType"})
_SHOWN_CHARS = 1000
_MOST_SHOWN = 1000


def rlm_environment(**options: Unpack[SandboxOptions]) -> dict[str, Any]:
    """The arguments of an `RLM` whose code, and that of its sub-RLMs, runs in sandboxes.

        rlm = RLM(**rlm_environment(timeout=10_000), backend="openai", max_depth=2, custom_tools={"lookup": lookup})

    The options are those of `Sandbox`, with `url` and `api_key`. The package knows its environments by name and has no
    way to add one, so this replaces its function `get_environment`. In its records the environment is called `docker`.
    """
    _register()
    return {"environment": _LIKE, "environment_kwargs": {_MARK: True, **options}}


class SandboxEnv(IsolatedEnv):
    """An environment of an `RLM`: a sandbox, with the names and texts of the package's own environments."""

    def __init__(
        self,
        lm_handler_address: tuple[str, int] | None = None,
        context_payload: Any = None,
        setup_code: str | None = None,
        persistent: bool = False,
        depth: int = 1,
        subcall_fn: Callable[[str, str | None], Any] | None = None,
        custom_tools: dict[str, Any] | None = None,
        custom_sub_tools: dict[str, Any] | None = None,
        compaction: bool = False,
        max_concurrent_subcalls: int = 4,
        url: str | None = None,
        api_key: str | None = None,
        **options: Unpack[SandboxOptions],
    ) -> None:
        super().__init__(persistent=persistent, depth=depth, max_concurrent_subcalls=max_concurrent_subcalls)
        self.lm_handler_address = lm_handler_address
        self.subcall_fn = subcall_fn
        self.custom_tools = custom_tools or {}
        self.custom_sub_tools = self.custom_tools if custom_sub_tools is None else custom_sub_tools
        self.compaction = compaction
        self._history: list[Any] = []
        self._counts = {"context": 0, "history": 0}
        self._completions: list[Any] = []
        self._is_clean = False
        validate_custom_tools(self.custom_tools)
        tools = {name: extract_tool_value(entry) for name, entry in self.custom_tools.items()}
        own: SandboxOptions = {
            "profile": "rlm",
            "on_llm_query": self._ask,
            "on_rlm_query": self._recurse if subcall_fn is not None else None,
            "host_functions": {
                **(options.get("host_functions") or {}),
                **{name: tool for name, tool in tools.items() if callable(tool)},
                "llm_query_batched": self._ask_all,
                "rlm_query_batched": self._recurse_all,
            },
        }
        self.sandbox = Sandbox(url=url, api_key=api_key, **cast("SandboxOptions", {**options, **own}))
        self.setup()
        for name, tool in tools.items():
            if not callable(tool):
                self.sandbox[name] = tool
        if compaction:
            self.sandbox["history"] = []
        if context_payload is not None:
            self.load_context(context_payload)
        if setup_code:
            self.execute_code(setup_code)

    def setup(self) -> None:
        """Starts Python."""
        self.sandbox.start()

    @property
    def locals(self) -> Mapping[str, Any]:
        """The variables, as they are now. There are none after `cleanup`."""
        return {} if self._is_clean else _Variables(self.sandbox)

    def load_context(self, context_payload: Any) -> None:
        """Sets `context`."""
        self.add_context(context_payload, 0)

    def add_context(self, context_payload: Any, context_index: int | None = None) -> int:
        """Sets `context_N`, by default the next one. Returns its number."""
        return self._add("context", context_payload, context_index)

    def add_history(self, message_history: list[dict[str, Any]], history_index: int | None = None) -> int:
        """Sets `history_N`, by default the next one. Returns its number."""
        return self._add("history", message_history, history_index)

    def get_context_count(self) -> int:
        """The number of contexts."""
        return self._counts["context"]

    def get_history_count(self) -> int:
        """The number of histories."""
        return self._counts["history"]

    def update_handler_address(self, address: tuple[str, int]) -> None:
        """Takes the address of the next completion's models."""
        self.lm_handler_address = address

    def append_compaction_entry(self, entry: Any) -> None:
        """Adds a part of the conversation to `history`."""
        if self.compaction:
            self._history.append(deepcopy(entry))
            self.sandbox["history"] = self._history

    def execute_code(self, code: str) -> REPLResult:
        """Runs code."""
        self._completions = []
        run = self.sandbox.execute(code)
        return REPLResult(
            stdout=run.stdout,
            stderr=run.stderr if run.error is None else f"{run.stderr}\n{_explained(run)}",
            locals=self._all_shown(),
            execution_time=run.duration / 1000,
            rlm_calls=self._completions,
            final_answer=run.final if run.is_final else None,
        )

    def cleanup(self) -> None:
        """Ends the sandbox."""
        self._is_clean = True
        self.sandbox.destroy()

    def __enter__(self) -> SandboxEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def _add(self, series: str, value: Any, index: int | None) -> int:
        number = self._counts[series] if index is None else index
        self.sandbox[f"{series}_{number}"] = value  # in this profile the first is also `context` or `history`
        self._counts[series] = max(self._counts[series], number + 1)
        return number

    def _ask(self, prompt: str, model: str | None = None) -> str:
        if not self.lm_handler_address:
            raise Refused(_NO_MODEL)  # the package's texts have no names of classes
        request = LMRequest(prompt=prompt, model=model, depth=self.depth)
        try:
            response = send_lm_request(self.lm_handler_address, request)
        except Exception as error:
            raise Refused(str(error)) from error
        if not response.success:
            raise Refused(response.error)
        return self._recorded(response.chat_completion)

    def _ask_all(self, prompts: list[str], model: str | None = None) -> list[str]:
        _need_texts("llm_query_batched", prompts)
        if not self.lm_handler_address:
            return [f"Error: {_NO_MODEL}"] * len(prompts)
        try:
            responses = send_lm_request_batched(self.lm_handler_address, prompts, model=model, depth=self.depth)
        except Exception as error:
            return [f"Error: LM query failed - {error}"] * len(prompts)
        return [
            self._recorded(response.chat_completion) if response.success else f"Error: {response.error}"
            for response in responses
        ]

    def _recurse(self, prompt: str, _context: object = None, model: str | None = None) -> str:
        assert self.subcall_fn
        try:
            return self._recorded(self.subcall_fn(prompt, model))
        except Exception as error:
            raise Refused(str(error)) from error  # as in `_ask`, and in a batch

    def _recurse_all(self, prompts: list[str], model: str | None = None) -> list[str]:
        if self.subcall_fn is None:
            return self._ask_all(prompts, model)
        _need_texts("rlm_query_batched", prompts)
        with ThreadPoolExecutor(self.max_concurrent_subcalls, thread_name_prefix="sandglass-rlm") as pool:
            begun = [pool.submit(copy_context().run, self.subcall_fn, prompt, model) for prompt in prompts]
        failed = [future.exception() for future in begun]
        return [
            self._recorded(future.result()) if error is None else f"Error: RLM query failed - {error}"
            for future, error in zip(begun, failed, strict=True)
        ]

    def _recorded(self, completion: Any) -> str:
        self._completions.append(completion)
        return str(completion.response)

    def _all_shown(self) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        left = _MOST_SHOWN
        for variable in self.sandbox.list_variables():
            length = "" if variable.length is None else f" of length {variable.length}"
            shown[variable.name] = f"<{variable.type}{length}>"
            if left and variable.type in _SHOWN and (variable.length or 0) <= _SHOWN_CHARS:
                left -= 1  # each costs a question
                shown[variable.name] = self.sandbox.get_variable(variable.name, shown[variable.name])
        return shown


class _Variables(Mapping[str, Any]):
    """The variables of a sandbox. Each look asks the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __getitem__(self, name: str) -> Any:
        return self._sandbox[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sandbox)

    def __len__(self) -> int:
        return len(self._sandbox)


def _need_texts(name: str, prompts: object) -> None:
    if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
        raise Refused(f"{name}() needs prompts to be a list of str")


def _explained(run: CodeExecution) -> str:
    if run.state.status == "kept":
        return str(run.error)
    return f"{run.error}\nAll variables, functions and imports are lost: define them again."


def _register() -> None:
    known = environments.get_environment
    if getattr(known, "knows_sandglass", False):
        return

    def get_environment(environment: str, environment_kwargs: dict[str, Any]) -> Any:
        if environment != _LIKE or not environment_kwargs.get(_MARK):
            return known(environment, environment_kwargs)
        return SandboxEnv(**{name: value for name, value in environment_kwargs.items() if name != _MARK})

    get_environment.knows_sandglass = True  # type: ignore[attr-defined]
    environments.get_environment = core.get_environment = get_environment
