"""What user code can call: sub-model queries, final answers, and tools for reading a large context.

Host functions are called with a list of arguments: `llm_query` with `[prompt]` or `[prompt, model]`, `rlm_query` with
`[task, context]`, a user's function with its positional arguments and, when there are keyword arguments, one object
with them at the end.

Everything blocks and returns plain results. A str that came from the host, and lists of them, can also be awaited,
because models write both `llm_query(x)` and `await llm_query(x)`; results of other types are returned as they are.
"""

from __future__ import annotations

import re
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from sandglass.errors import HostCallError, LimitError, Submitted
from sandglass.namespace import MISSING, Namespace
from sandglass.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.values import safe_repr, type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    # Calls a host function for every argument list: `(True, value)` or `(False, error)` each.
    HostCalls = Callable[[str, list[list[Any]]], list[tuple[bool, Any]]]

MAX_PATTERN_CHARS = 500
_CALLBACKS = {"llm_query": "onLLMQuery", "rlm_query": "onRLMQuery"}
_FAILURES = {"llm_query": "Error: LM query failed - ", "rlm_query": "Error: RLM query failed - "}


class AwaitableStr(str):
    """A str that can be awaited; copies and pickles as str, and says it is one."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, str]:
        return str.__str__(self)
        yield  # makes it a generator, which is how an await returns at once

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return str, (str.__str__(self),)


class AwaitableList(list[Any]):
    """A list that can be awaited; copies and pickles as list, and says it is one."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, list[Any]]:
        return list(self)
        yield

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:
        return list, (list.copy(self),)


for _class, _base in ((AwaitableStr, str), (AwaitableList, list)):
    _class.__name__ = _class.__qualname__ = _base.__name__
    _class.__module__ = "builtins"


def _awaitable(value: Any) -> Any:
    if type(value) is str:
        return AwaitableStr(value)
    return AwaitableList(value) if type(value) is list else value


class Helpers:
    """The helpers of one runtime. Each public method is one name in the user's namespace (see `table`)."""

    def __init__(self, namespace: Namespace, call_host: HostCalls) -> None:
        self._namespace = namespace
        self._call_host = call_host

    def table(self, host_functions: list[str]) -> dict[str, Any]:
        """The reserved names and what they stand for. ValueError for a host function that cannot have its name."""
        table: dict[str, Any] = {
            "llm_query": self.llm_query,
            "llm_query_batched": self.llm_query_batched,
            "batch_llm_query": self.llm_query_batched,
            "rlm_query": self.rlm_query,
            "rlm_query_batched": self.rlm_query_batched,
            "batch_rlm_query": self.rlm_query_batched,
            "FINAL": self.FINAL,
            "FINAL_VAR": self.FINAL_VAR,
            "SUBMIT": self.SUBMIT,
            "SHOW_VARS": self.SHOW_VARS,
            "chunk_text": chunk_text,
            "search_context": self.search_context,
            "HostCallError": HostCallError,
            "LimitError": LimitError,
        }
        for name in host_functions:
            if name in table or name in ("answer", "context"):
                raise ValueError(f"host function {name!r} has the name of a built-in helper")
            if iskeyword(name):
                raise ValueError(f"host function {name!r} has the name of a Python keyword")
            table[name] = self._host_function(name)
        return table

    def llm_query(self, prompt: str, model: str | None = None) -> str:
        """Asks the sub-model; returns its answer. Raises HostCallError."""
        _need("llm_query", "prompt", prompt, str)
        _need_model("llm_query", model)
        return self._one("llm_query", [prompt] if model is None else [prompt, model])

    def llm_query_batched(self, prompts: list[Any], model: str | None = None) -> list[str]:
        """Asks the sub-model all prompts at once; answers in order, a failed one as `Error: LM query failed - …`.

        A prompt is a str, `(prompt, model)` or `{"prompt": …, "model": …}`.
        """
        name = "llm_query_batched"
        _need_model(name, model)
        calls = []
        for item in _items(name, "prompts", prompts):
            prompt, own_model = _pair(name, item, ("prompt", "query", "task"), ("model",), model)
            _need(name, "every prompt", prompt, str)
            _need_model(name, own_model)
            calls.append([prompt, own_model])
        return self._many("llm_query", calls)

    def rlm_query(self, task: str, ctx: Any = None) -> str:
        """Starts a sub-RLM on `task` with `ctx` (without it, the current `context`). Raises HostCallError."""
        _need("rlm_query", "task", task, str)
        return self._one("rlm_query", [task, self._context() if ctx is None else ctx])

    def rlm_query_batched(self, tasks: list[Any], contexts: list[Any] | None = None) -> list[str]:
        """Starts sub-RLMs at once; answers in order, a failed one as `Error: RLM query failed - …`.

        A task is a str, `(task, context)` or `{"task": …, "context": …}`; `contexts` has one context per task.
        """
        name = "rlm_query_batched"
        items = _items(name, "tasks", tasks)
        given = [None] * len(items) if contexts is None else _items(name, "contexts", contexts)
        if len(given) != len(items):
            raise ValueError(f"{name}() got {len(items)} tasks but {len(given)} contexts")
        calls = []
        for item, context in zip(items, given, strict=True):
            task, own_context = _pair(name, item, ("task", "prompt", "query"), ("context", "ctx"), context)
            _need(name, "every task", task, str)
            calls.append([task, self._context() if own_context is None else own_context])
        return self._many("rlm_query", calls)

    def FINAL(self, value: Any) -> None:
        """Declares the final answer of this run."""
        self._namespace.final = value

    def FINAL_VAR(self, name: Any) -> str:
        """Declares the variable called `name` the final answer and returns it as text.

        A value that is not a str is taken as the answer itself. A miss returns text that says which variables exist.
        """
        value = name
        if isinstance(name, str):
            key = name.strip().strip("\"'").strip()
            value = self._namespace.find(key)
            if value is MISSING:
                return (
                    f"Error: Variable '{key}' not found. Available variables: {self._visible_names()}. "
                    "You must create and assign a variable BEFORE calling FINAL_VAR on it."
                )
            if value is self._namespace.answer and key == "answer":
                value = value.get("content", "")
        self._namespace.final = value
        try:
            return str(value)
        except Exception:
            return safe_repr(value)

    def SUBMIT(self, *args: Any, **fields: Any) -> None:
        """Declares the final answer and ends the cell: one value as it is, several as a list, fields as a dict."""
        if args and fields:
            raise TypeError("SUBMIT() takes values by position or by name, not both")
        if not args and not fields:
            raise TypeError("SUBMIT() needs the answer: SUBMIT(value) or SUBMIT(name=value)")
        self._namespace.final = fields or (args[0] if len(args) == 1 else list(args))
        raise Submitted

    def SHOW_VARS(self) -> str:
        """Text that lists user variables and their types."""
        found = {name: type_name(self._namespace.globals[name]) for name in self._visible_names()}
        if found:
            return f"Available variables: {found}"
        return "No variables created yet. Use ```repl``` blocks to create variables."

    def search_context(
        self, pattern: str, window: int = 200, max_results: int = 100, text: Any = None
    ) -> list[dict[str, Any]]:
        """Finds a case-insensitive regular expression in `text` (without it, the current `context`).

        Returns dicts with `match`, `start`, `end` and `context`, the match with `window` characters on both sides. In
        a list or dict of texts each item is searched (items that are not text as their str()), and `index` says which.
        """
        return _search(pattern, window, max_results, self._context() if text is None else text)

    def _context(self) -> Any:
        return self._namespace.globals.get("context")

    def _visible_names(self) -> list[str]:
        return [name for name in self._namespace.names() if not name.startswith("_")]

    def _host_function(self, name: str) -> Callable[..., Any]:
        def host_function(*args: Any, **kwargs: Any) -> Any:
            ok, value = self._call_host(name, [[*args, kwargs] if kwargs else list(args)])[0]
            if not ok:
                raise value
            return _awaitable(value)

        host_function.__name__ = host_function.__qualname__ = name
        host_function.__module__ = "__main__"
        host_function.__doc__ = f"Calls the host's function {name!r} and returns what it returns. Raises HostCallError."
        return host_function

    def _one(self, name: str, args: list[Any]) -> str:
        ok, value = _checked(name, self._call_host(name, [args])[0])
        if not ok:
            raise value
        return AwaitableStr(value)

    def _many(self, name: str, calls: list[list[Any]]) -> list[str]:
        replies = self._call_host(name, calls) if calls else []
        checked = [_checked(name, reply) for reply in replies]
        return AwaitableList(value if ok else f"{_FAILURES[name]}{value}" for ok, value in checked)


def chunk_text(text: str, size: int = 10000, overlap: int = 500) -> list[str]:
    """Splits text into chunks of `size` characters; each begins with the last `overlap` characters of the one before.

    Together they cover the text; the last may be shorter. Example: `chunk_text("abcdef", 4, 1)` is `["abcd", "def"]`.
    """
    _need("chunk_text", "text", text, str)
    _need("chunk_text", "size", size, int)
    _need("chunk_text", "overlap", overlap, int)
    if size <= 0:
        raise ValueError(f"chunk_text() needs a size above 0, not {size}")
    if overlap < 0:
        raise ValueError(f"chunk_text() needs an overlap of 0 or more, not {overlap}")
    if overlap >= size:
        raise ValueError(f"chunk_text() needs an overlap smaller than size, and {overlap} >= {size}: pass overlap=")
    text = str.__str__(text)
    stops = max(len(text) - overlap, 1) if text else 0
    return [text[start : start + size] for start in range(0, stops, size - overlap)]


def _search(pattern: str, window: int, max_results: int, text: Any) -> list[dict[str, Any]]:
    _need("search_context", "pattern", pattern, str)
    _need("search_context", "window", window, int)
    _need("search_context", "max_results", max_results, int)
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ValueError(
            f"search_context() takes a pattern of at most {MAX_PATTERN_CHARS} characters, not {len(pattern)}"
        )
    if window < 0:
        raise ValueError(f"search_context() needs a window of 0 or more, not {window}")
    if max_results < 0:
        raise ValueError(f"search_context() needs max_results of 0 or more, not {max_results}")
    try:
        compiled = re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"search_context() got an invalid pattern: {error}") from None
    results: list[dict[str, Any]] = []
    for extra, item in _texts(text):
        if len(results) >= max_results:
            break
        for found in compiled.finditer(item):
            if len(results) >= max_results:
                break
            start, end = found.span()
            around = item[max(0, start - window) : end + window]
            results.append({"match": found.group(), "start": start, "end": end, "context": around, **extra})
    return results


def _texts(text: Any) -> Generator[tuple[dict[str, Any], str], None, None]:
    if isinstance(text, str):
        yield {}, str.__str__(text)
    elif isinstance(text, (list, tuple, dict)):
        for index, item in text.items() if isinstance(text, dict) else enumerate(text):
            yield {"index": index}, item if isinstance(item, str) else str(item)
    else:
        hint = "`context` is not set: pass text=" if text is None else f"not {type_name(text)}"
        raise TypeError(f"search_context() searches a str, or a list or dict of texts; {hint}")


def _checked(name: str, reply: tuple[bool, Any]) -> tuple[bool, Any]:
    """A reply of a query, which must be a string."""
    ok, value = reply
    if ok and type(value) is not str:
        return False, HostCallError(f"{_CALLBACKS[name]} returned a {type_name(value)}, not a string")
    return ok, value


def _need(helper: str, what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{helper}() needs {what} to be {kind.__name__}, not {type_name(value)}")


def _need_model(helper: str, model: object) -> None:
    if model is not None:
        _need(helper, "model", model, str)


def _items(helper: str, what: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, dict)) or not hasattr(type(value), "__iter__"):
        raise TypeError(f"{helper}() needs {what} to be a list, not {type_name(value)}")
    return list(value)


def _pair(helper: str, item: Any, first: tuple[str, ...], second: tuple[str, ...], default: Any) -> tuple[Any, Any]:
    """One item of a batch: a plain value, a tuple or list of one or two, or a dict."""
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
