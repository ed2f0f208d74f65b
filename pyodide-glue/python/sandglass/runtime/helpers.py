"""Helpers for user code: sub-model queries and final answers. `reading.py` has the helpers that read a text.

A new helper also needs a name in `profiles.py` and a line in the controller's prompt (`crates/rlm/src/prompt.rs`).

The profile selects the helpers, their names and their texts (`profiles.py`).

A query is called with a list of arguments. `llm_query` gets `[prompt]` or `[prompt, model]`. `rlm_query` gets
`[task, context]` or `[task, context, model]`. A user's function is called with a tuple: the list of positional
arguments, the dict of keyword arguments or None, and the numbers of the cell and line that called it.

All helpers block and return plain results. A str from the host, and a list of them, can also be awaited, because models
write both `llm_query(x)` and `await llm_query(x)`. Results of other types are returned as they are.
"""

from __future__ import annotations

import re
from functools import wraps
from keyword import iskeyword
from sys import _getframe
from typing import TYPE_CHECKING, Any

from sandglass.runtime.errors import CallLimitError, HostCallError, LimitError, Submitted
from sandglass.runtime.namespace import MISSING, Namespace
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.profiles import PROFILES
from sandglass.runtime.reading import Reading, chunk_text, extract_json, need, search
from sandglass.runtime.tools import HOST_FUNCTION, Tools
from sandglass.runtime.values import a_type, as_text, safe_repr, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from types import FrameType

    from sandglass.runtime.profiles import Failure, Profile

    # Calls a host function once for each list or tuple of arguments. Returns `(True, value)` or `(False, error)` for
    # each.
    HostCalls = Callable[[str, list[Any]], list[tuple[bool, Any]]]

_CELL = re.compile(r"<cell (\d{1,9})>\Z").match
_NEAR_FRAMES = 50
_CALLBACKS = {"llm_query": "onLLMQuery", "rlm_query": "onRLMQuery"}
#: Helpers that a host function of the same name replaces: it gets a batch as a whole.
_BATCHES = frozenset({"llm_query_batched", "rlm_query_batched", "batch_llm_query", "batch_rlm_query"})


class AwaitableStr(str):
    """A str that can be awaited. Copies and pickles are a plain str, and its type says that it is one."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, str]:
        return str.__str__(self)
        yield  # makes it a generator, which is how an await returns at once

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return str, (str.__str__(self),)


class AwaitableList(list[Any]):
    """A list that can be awaited. Copies and pickles are a plain list, and its type says that it is one."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # asyncio.gather puts what it waits for into a dict

    def __await__(self) -> Generator[None, None, list[Any]]:
        return list(self)
        yield

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return list, (list.copy(self),)


for _class, _base in ((AwaitableStr, str), (AwaitableList, list)):
    _class.__name__ = _class.__qualname__ = _base.__name__
    _class.__module__ = "builtins"


def _caller() -> tuple[int, int]:
    """Returns the numbers of the cell and line that called a host function; zeros when no cell is near."""
    frame: FrameType | None = _getframe(2)
    for _ in range(_NEAR_FRAMES):
        if frame is None:
            break
        cell = _CELL(frame.f_code.co_filename)
        if cell:
            return int(cell[1]), frame.f_lineno
        frame = frame.f_back
    return 0, 0


def _awaitable(value: Any) -> Any:
    if type(value) is str:
        return AwaitableStr(value)
    return AwaitableList(value) if type(value) is list else value


class Helpers:
    """The helpers of one runtime. Each public method is one name in the user's namespace (see `table`)."""

    def __init__(self, namespace: Namespace, call_host: HostCalls) -> None:
        self._namespace = namespace
        self._call_host = call_host
        self._reading = Reading(self._context)
        self._made = 0  # host calls of this cell so far
        self.configure(PROFILES["default"], [], 0)

    def table(self, profile: Profile, answered: list[str], fields: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the objects of the reserved names, and the aliases. Raises ValueError for a name that cannot be used.

        `answered` are the names that the host answers. `fields` are the names of the values that `SUBMIT` takes.
        """
        table: dict[str, Any] = {name: self._find(method) for name, method in profile.helpers.items()}
        table.update(HostCallError=HostCallError, LimitError=LimitError)
        if fields and "SUBMIT" in table:
            table["SUBMIT"] = self._submit_of(fields)
        if HOST_FUNCTION in answered:
            table["tools"] = Tools(self._host_function(HOST_FUNCTION))
        for name in answered:
            if name in (*_CALLBACKS, HOST_FUNCTION, "input"):  # `input` is a builtin
                continue
            is_taken = name in table and name not in _BATCHES
            if is_taken or name == "context" or (name == "answer" and profile.has_answer):
                raise ValueError(f"host function {name!r} has the name of a built-in helper")
            if iskeyword(name):
                raise ValueError(f"host function {name!r} has the name of a Python keyword")
            table[name] = self._host_function(name)
        aliases = {name: self._find(method) for name, method in profile.aliases.items() if name not in table}
        return table, aliases

    def _find(self, method: str) -> Any:
        functions = {"chunk_text": chunk_text, "extract_json": extract_json}
        owner = self._reading if hasattr(Reading, method) else self
        return functions[method] if method in functions else getattr(owner, method)

    def configure(self, profile: Profile, answered: list[str], most_calls: int) -> None:
        """Sets the profile. `most_calls` is the number of host calls that a cell may make."""
        self._profile, self._answered, self._most = profile, answered, most_calls

    def begin_cell(self) -> None:
        self._made = 0

    def llm_query(self, prompt: str, model: str | None = None) -> str:
        """Asks the sub-model and returns its answer. Raises HostCallError."""
        if self._profile.refuses_empty and not prompt:
            raise ValueError("prompt cannot be empty")
        try:
            need("llm_query", "prompt", prompt, str)
            _need_model("llm_query", model)
            return self._one("llm_query", [prompt] if model is None else [prompt, model])
        except Exception as error:
            return self._failure("llm_query", error)

    def llm_query_batched(self, prompts: list[Any], model: str | None = None) -> list[str]:
        """Asks the sub-model all prompts at once. Returns the answers in order, a failure as `Error: LM query failed -
        …`.

        A prompt is a str, `(prompt, model)` or `{"prompt": …, "model": …}`.
        """
        name = "llm_query_batched"
        items = _items(name, "prompts", prompts)
        try:
            return self._many("llm_query", _prompts(name, items, model))
        except Exception as error:
            return AwaitableList([self._failure("llm_query", error)] * len(items))

    def rlm_query(self, task: str, ctx: Any = None) -> str:
        """Starts a sub-RLM on `task` with `ctx` (default: the current `context`).

        Returns its answer. Raises HostCallError.
        """
        need("rlm_query", "task", task, str)
        return self._one("rlm_query", [task, self._context() if ctx is None else ctx])

    def rlm_query_batched(self, tasks: list[Any], contexts: list[Any] | None = None) -> list[str]:
        """Starts several sub-RLMs at once. Returns the answers in order, a failure as `Error: RLM query failed - …`.

        A task is a str, `(task, context)` or `{"task": …, "context": …}`. `contexts` has one context for each task.
        """
        name = "rlm_query_batched"
        items = _items(name, "tasks", tasks)
        given = [None] * len(items) if contexts is None else _items(name, "contexts", contexts)
        if len(given) != len(items):
            raise ValueError(f"{name}() got {len(items)} tasks but {len(given)} contexts")
        calls = []
        for item, context in zip(items, given, strict=True):
            task, own_context = _pair(name, item, ("task", "prompt", "query"), ("context", "ctx"), context)
            need(name, "every task", task, str)
            calls.append([task, self._context() if own_context is None else own_context])
        return self._many("rlm_query", calls)

    def recursive_llm(self, sub_query: str, sub_context: Any = None) -> str:
        """Another name for `rlm_query`."""
        return self.rlm_query(sub_query, sub_context)

    def rlm_query_of_prompt(self, prompt: str, model: str | None = None) -> str:
        """Starts a sub-RLM that gets only the prompt. Without sub-RLMs, asks the sub-model."""
        if "rlm_query" not in self._answered:
            return self.llm_query(prompt, model)
        try:
            need("rlm_query", "prompt", prompt, str)
            _need_model("rlm_query", model)
            return self._one("rlm_query", [prompt, None] if model is None else [prompt, None, model])
        except Exception as error:
            return self._failure("rlm_query", error)

    def rlm_query_of_prompts(self, prompts: list[Any], model: str | None = None) -> list[str]:
        """Like `rlm_query` for all prompts at once.

        Returns the answers in order, a failure as `Error: RLM query failed - …`.
        """
        if "rlm_query" not in self._answered:
            return self.llm_query_batched(prompts, model)
        name = "rlm_query_batched"
        items = _items(name, "prompts", prompts)
        try:
            calls = [[prompt, None, own_model] for prompt, own_model in _prompts(name, items, model)]
            return self._many("rlm_query", calls)
        except Exception as error:
            return AwaitableList([self._failure("rlm_query", error)] * len(items))

    def FINAL(self, value: Any) -> None:
        """Declares the final answer of this run."""
        self._namespace.final = value

    def final_answer(self, answer: Any) -> None:
        """Declares the final answer and ends the cell, as in smolagents. Only the first call of a cell counts."""
        if self._namespace.final is MISSING:
            self._namespace.final = answer
        raise Submitted

    def FINAL_VAR(self, name: Any) -> str:
        """Declares the variable called `name` the final answer. Returns its value as text.

        A value that is not a str is the answer itself. If there is no such variable, the returned text lists the
        variables.
        """
        value = name
        if isinstance(name, str):
            key = name.strip().strip("\"'").strip()
            value = self._namespace.find(key)
            if value is MISSING:
                return self._miss(key)
            if value is self._namespace.answer and key == "answer":
                value = dict.get(value, "content", "")
        self._namespace.final = value
        text = as_text(value)
        if self._profile.final_is_text:
            self._namespace.final = text
        return text

    def _miss(self, name: str) -> str:
        names = self._visible_names()
        if names:
            return (
                f"Error: Variable '{name}' not found. Available variables: {names}. "
                "You must create and assign a variable BEFORE calling FINAL_VAR on it."
            )
        return (
            f"Error: Variable '{name}' not found. No variables have been created yet. "
            "You must create and assign a variable in a REPL block BEFORE calling FINAL_VAR on it."
        )

    def SUBMIT(self, *args: Any, **fields: Any) -> None:
        """Declares the final answer and ends the cell.

        One value is the answer itself; several make a list, fields a dict.
        """
        if args and fields:
            raise TypeError("SUBMIT() takes values by position or by name, not both")
        if not args and not fields:
            raise TypeError("SUBMIT() needs the answer: SUBMIT(value) or SUBMIT(name=value)")
        self._namespace.final = fields or (args[0] if len(args) == 1 else list(args))
        raise Submitted

    def _submit_of(self, fields: list[str]) -> Callable[..., None]:
        """Makes SUBMIT for these fields, by position or by name. Python itself reports missing or extra ones."""
        for name in fields:
            if not name.isidentifier() or iskeyword(name) or fields.count(name) > 1:
                raise ValueError(f"output field {name!r} is no name of its own that Python code can use")
        values = ", ".join(f"{name!r}: {name}" for name in fields)
        submitted = eval(f"lambda {', '.join(fields)}: {{{values}}}", {})
        submitted.__name__ = submitted.__qualname__ = "SUBMIT"
        submitted.__doc__ = self.SUBMIT.__doc__

        @wraps(submitted)
        def submit(*args: Any, **values: Any) -> None:
            self._namespace.final = submitted(*args, **values)
            raise Submitted

        submit.__module__ = "__main__"
        return submit

    def SHOW_VARS(self) -> str:
        """Returns text that lists the user variables and their types."""
        found = {name: type_name(value) for name, value in self._namespace.items() if not name.startswith("_")}
        if found:
            return f"Available variables: {found}"
        return "No variables created yet. Use ```repl``` blocks to create variables."

    def search_context(
        self, pattern: str, window: int = 200, max_results: int = 100, text: Any = None
    ) -> list[dict[str, Any]]:
        """Finds a case-insensitive regular expression in `text` (default: the current `context`).

        Returns dicts with `match`, `start`, `end` and `context`: the match with `window` characters on both sides. In a
        list or dict of texts, each item is searched (as its str() if it is no text), and `index` names the item.
        """
        return search(pattern, window, max_results, self._context() if text is None else text)

    def _context(self) -> Any:
        return self._namespace.globals.get("context")

    def _visible_names(self) -> list[str]:
        return [name for name in self._namespace.names() if not name.startswith("_")]

    def _host_function(self, name: str) -> Callable[..., Any]:
        def host_function(*args: Any, **kwargs: Any) -> Any:
            self._made += 1
            call = list(args), kwargs or None, *_caller()
            ok, value = self._call_host(name, [call])[0]
            if not ok:
                raise value
            return _awaitable(value)

        host_function.__name__ = host_function.__qualname__ = name
        host_function.__module__ = "__main__"
        host_function.__doc__ = f"Calls the host's function {name!r} and returns what it returns. Raises HostCallError."
        return host_function

    def _reserve(self, calls: int) -> None:
        limit = self._profile.call_limit
        if limit is not None and self._made + calls > self._most:
            raise CallLimitError(limit.format(made=self._made, calls=calls, most=self._most))
        self._made += calls

    def _failure(self, name: str, error: Exception) -> str:
        """Returns the value of a failed query, or raises the error where the profile says so."""
        returned = self._profile.returned
        if returned is None:
            raise error
        return AwaitableStr(self._describe(name, error, returned))

    def _describe(self, name: str, error: Exception, failures: Mapping[str, Failure]) -> str:
        no_model = self._profile.no_model
        return failures[name].text(error) if no_model is None or name in self._answered else no_model

    def _one(self, name: str, args: list[Any]) -> str:
        self._reserve(1)
        ok, value = self._checked(name, self._call_host(name, [args])[0])
        if not ok:
            raise value
        return AwaitableStr(value)

    def _checked(self, name: str, reply: tuple[bool, Any]) -> tuple[bool, Any]:
        """Checks a query's reply, which must be a string.

        Raises the error in batches where prompts speak of the call limit.
        """
        ok, value = reply
        if ok and type(value) is not str:
            return False, HostCallError(f"{_CALLBACKS[name]} returned {a_type(value)}, not a string")
        if type(value) is LimitError and self._profile.call_limit is not None:
            raise CallLimitError(as_text(value))
        return ok, value

    def _many(self, name: str, calls: list[list[Any]]) -> list[str]:
        self._reserve(len(calls))
        replies = self._call_host(name, calls) if calls else []
        slots = self._profile.slots
        checked = [self._checked(name, reply) for reply in replies]
        return AwaitableList(value if ok else self._describe(name, value, slots) for ok, value in checked)


def _need_model(helper: str, model: object) -> None:
    if model is not None:
        need(helper, "model", model, str)


def _items(helper: str, what: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, dict)) or not hasattr(type(value), "__iter__"):
        raise TypeError(f"{helper}() needs {what} to be a list, not {type_name(value)}")
    return list(value)


def _prompts(helper: str, items: list[Any], model: str | None) -> list[list[Any]]:
    """Returns the prompt and the model of each item of a batch."""
    _need_model(helper, model)
    calls = []
    for item in items:
        prompt, own_model = _pair(helper, item, ("prompt", "query", "task"), ("model",), model)
        need(helper, "every prompt", prompt, str)
        _need_model(helper, own_model)
        calls.append([prompt, own_model])
    return calls


def _pair(helper: str, item: Any, first: tuple[str, ...], second: tuple[str, ...], default: Any) -> tuple[Any, Any]:
    """Reads one item of a batch: a plain value, a tuple or list of one or two, or a dict."""
    if isinstance(item, (tuple, list)):
        if len(item) not in (1, 2):
            raise TypeError(f"{helper}() takes ({first[0]}, {second[0]}) tuples, not one of {len(item)} items")
        return item[0], item[1] if len(item) == 2 else default
    if not isinstance(item, dict):
        return item, default
    unknown = [key for key in item if key not in first and key not in second]
    key = next((key for key in first if key in item), None)
    if unknown or key is None:
        keys = ", ".join(map(safe_repr, item))
        raise TypeError(f"{helper}() takes dicts with {first[0]!r} and maybe {second[0]!r}, not with the keys: {keys}")
    return item[key], next((item[other] for other in second if other in item), default)
