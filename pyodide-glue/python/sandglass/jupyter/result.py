"""The result of an execution of a `JupyterREPL`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sandglass.runtime.helpers import AwaitableList, AwaitableStr
from sandglass.runtime.output import KeptText, printable
from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.values import safe_repr

_MAX_REPR_CHARS = 1000


@dataclass(slots=True, repr=False)
class Result:
    """The result of an execution. `str(result)` is short, however much the result holds."""

    stdout: str
    stderr: str
    #: The last line of the error's traceback; None when there was no error.
    error: str | None
    error_type: str | None
    traceback: str | None
    #: The last expression's value as text, in profiles that show it.
    result: str | None
    #: The code's variables themselves: later code may change their values.
    locals: dict[str, Any]
    #: Duration in seconds, including callbacks.
    execution_time: float
    #: The final answer; None when none was declared.
    final_answer: Any
    #: With an `RLM`: its records of the calls of this execution.
    rlm_calls: list[Any] = field(default_factory=list)

    @property
    def llm_calls(self) -> list[Any]:
        """Another name for `rlm_calls`."""
        return self.rlm_calls

    def __repr__(self) -> str:
        shown = ("stdout", "stderr", "error", "result", "final_answer")
        values = {name: getattr(self, name) for name in shown}
        fields = [f"{name}={short(value, 200)}" for name, value in values.items() if not _is_nothing(value)]
        return f"Result({', '.join(fields)}, execution_time={self.execution_time:.3f})"

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict for JSON. Values that are not plain become text, and long ones are shortened."""
        return {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "error": self.error,
            "locals": {name: _plain(value) for name, value in self.locals.items()},
            "execution_time": self.execution_time,
            "rlm_calls": [call.to_dict() for call in self.rlm_calls],
            "final_answer": final if type(final := self.final_answer) is str else _plain(final),
        }


def kept(text: str, limit: int) -> str:
    """Shortens a text, in the same way as output."""
    bounded = KeptText(limit)
    bounded.add(0, printable(text))
    return bounded.text()


def short(value: object, limit: int) -> str:
    """Returns the beginning of a value's repr."""
    if type(value) is str:
        value = value[: limit + 1]  # the repr is at least as long
    text = printable(safe_repr(value))
    return text if len(text) <= limit else f"{text[:limit]}…"


def _is_nothing(value: object) -> bool:
    return value is None or (type(value) is str and not value)


def _plain(value: object) -> Any:
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return printable(str.__str__(value)[:_MAX_REPR_CHARS])[:_MAX_REPR_CHARS]
    return short(value, _MAX_REPR_CHARS)


def unwrapped(value: Any) -> Any:
    """Returns a model's answer as a plain str or list."""
    if type(value) is AwaitableStr:
        return str.__str__(value)
    return list(value) if type(value) is AwaitableList else value
