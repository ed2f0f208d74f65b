"""Results: `CodeExecution` and its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeVar
from urllib.parse import quote

_T = TypeVar("_T")
Outcome = Literal["ok", "error", "timeout", "interrupted", "limit", "crashed"]

#: The policy of the frame that shows HTML.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
#: The types of images that a notebook may show as they are. Others can bring scripts.
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
#: The data of such an image. Anything else could end the attribute of a page that has it.
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")


@dataclass(frozen=True)
class Display:
    """A rich output, such as a figure or a table. `data` is text, or base64 of an image.

    It comes from untrusted code. Notebooks show HTML in a frame without rights, so that it can run no scripts.
    """

    mime: str
    data: str

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if self.mime == "text/plain" or (self.mime in _IMAGES and _BASE64.fullmatch(self.data)):
            return {self.mime: self.data}
        if self.mime == "image/svg+xml":
            return {"text/html": f'<img src="data:image/svg+xml,{quote(self.data)}">', "text/plain": "<a drawing>"}
        if self.mime == "text/html":
            return {"text/html": _framed(self.data), "text/plain": "<HTML>"}
        return {"text/plain": self.data}


def _framed(html: str) -> str:
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    source = (policy + html).replace("&", "&amp;").replace('"', "&quot;")
    return f'<iframe sandbox="" style="border: 0; width: 100%; height: 20em" srcdoc="{source}"></iframe>'


@dataclass(frozen=True)
class Lost:
    """A variable that is gone, and why."""

    name: str
    reason: str


class CapturedState(bytes):
    """The variables of a sandbox, for `open_state` of another. `lost` are those that it lacks, each with the reason.

    Never unpickle it: only guests may.
    """

    lost: list[Lost]

    def __new__(cls, data: bytes, lost: list[Lost]) -> CapturedState:
        state = super().__new__(cls, data)
        state.lost = lost
        return state

    def __getnewargs__(self) -> tuple[bytes, list[Lost]]:  # type: ignore[override]
        return bytes(self), self.lost


@dataclass(frozen=True)
class State:
    """The state of the variables after an execution."""

    status: Literal["kept", "restored", "lost"]
    restored_to: int | None = None
    lost: list[Lost] = field(default_factory=list)


@dataclass(frozen=True)
class FileChange:
    """A file that an execution changed."""

    path: str
    change: Literal["created", "modified", "deleted"]
    size: int


@dataclass(frozen=True)
class FileInfo:
    """A file or a folder of the sandbox. `modified` is in milliseconds since 1970."""

    path: str
    size: int
    modified: float
    type: Literal["file", "directory"]


@dataclass(frozen=True)
class Variable:
    """A variable of the sandbox: its name, the name of its type, and its length if it has one."""

    name: str
    type: str
    length: int | None = None


@dataclass(frozen=True)
class Usage:
    """The use of models: calls, tokens and cost."""

    calls: float = 0
    input_tokens: float = 0
    output_tokens: float = 0
    cost: float = 0


@dataclass(frozen=True)
class BudgetLeft:
    """The rest of a budget, with the time in milliseconds. None means that there is no limit."""

    calls: float | None = None
    tokens: float | None = None
    cost: float | None = None
    time: float | None = None
    depth: float | None = None


@dataclass(frozen=True)
class BudgetState:
    """The amounts of a budget that are left, and those that are spent."""

    left: BudgetLeft
    spent: Usage


@dataclass(frozen=True)
class Truncated:
    """The numbers of characters, displays and files that were left out."""

    stdout: int = 0
    stderr: int = 0
    displays: int = 0
    files: int = 0


@dataclass(frozen=True)
class CodeLine:
    """A place in code, by the sandbox's word: the numbers of the execution and the line, and the line's text."""

    execution: int
    number: int
    text: str | None = None


@dataclass
class HostCall:
    """A call of a host function: by the code's word, until `seconds` and `error` say how it ended.

    `args` and `kwargs` are None where the arguments of all calls together have become too large to be kept. `id` is
    there in a sandbox with `persist`; a call that `resume` makes again has the same one.
    `traceback` tells where in your program the function failed. The sandbox does not see it.
    """

    name: str
    args: tuple[Any, ...] | None = ()
    kwargs: dict[str, Any] | None = field(default_factory=dict)
    line: CodeLine | None = None
    seconds: float | None = None
    error: str | None = None
    traceback: str | None = None
    id: str | None = None


@dataclass(frozen=True)
class PendingCall:
    """A host call without an answer, of an execution that is pending. The function may have run.

    `since` is the time at which Python made the call, in milliseconds since 1970.
    """

    id: str
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    since: float


@dataclass(frozen=True)
class PendingExecution:
    """An execution that was under way when its program ended: its number, its code, and the calls that it waits for."""

    execution: int
    code: str
    calls: list[PendingCall]


@dataclass(frozen=True)
class PersistedSandbox:
    """A sandbox that is kept by `persist`: its name, its last execution whose effects are kept, and its state's bytes.

    `saved_at` is the time at which the state was written, in milliseconds since 1970.
    """

    name: str
    execution: int
    bytes: int
    saved_at: int


@dataclass(frozen=True)
class Replay:
    """An execution that has run again.

    `difference` says where the code first went another way than its journal says. It is None if the code did not.
    """

    execution: CodeExecution
    difference: str | None = None


@dataclass(frozen=True)
class CodeExecution:
    """The result of running code.

    `outcome` tells how the code ended, `error` and `traceback` why it failed, and `state` what became of the variables.
    `value` is the last expression's value, and `final` the declared answer, if `is_final`. `calls` are the host calls
    in order. Times are in milliseconds. `unkept` is there in a sandbox with `persist`: the reason for which exactly
    this state is not kept, or None if it is.
    """

    id: int
    code: str
    outcome: Outcome
    stdout: str
    stderr: str
    duration: float
    guest_time: float
    state: State
    error: str | None = None
    error_type: str | None = None
    traceback: str | None = None
    result: str | None = None
    value: Any = None
    is_final: bool = False
    final: Any = None
    displays: list[Display] = field(default_factory=list)
    files: list[FileChange] = field(default_factory=list)
    calls: list[HostCall] = field(default_factory=list)
    host_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    killer: str | None = None
    truncated: Truncated = field(default_factory=Truncated)
    unkept: str | None = None


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook.

    `outcome` is that of the last run, and None if the sandbox could not run the cell. `execution` is the result of the
    last run. It is also None when the call that ran the cell did not get it, because it was cancelled. `missing` names
    those of the cell's files that could not be made, each with the reason.
    """

    id: str
    code: str
    runs: int
    missing: list[str] = field(default_factory=list)
    outcome: Outcome | None = None
    execution: CodeExecution | None = None


def read_execution(result: dict[str, Any], value: Any, final: Any, calls: list[HostCall]) -> CodeExecution:
    """Makes a result of JSON. A newer host's fields are left out."""
    plain = snake_keys({key: item for key, item in result.items() if key not in ("value", "final")})
    state = plain["state"]
    state["lost"] = [make(Lost, lost) for lost in state.get("lost") or []]
    return make(
        CodeExecution,
        {
            **plain,
            "state": make(State, state),
            "value": value,
            "is_final": "final" in result,
            "final": final,
            "displays": [make(Display, display) for display in plain.get("displays", [])],
            "files": [make(FileChange, change) for change in plain.get("files", [])],
            "calls": calls,
            "usage": make(Usage, plain.get("usage") or {}),
            "truncated": make(Truncated, plain.get("truncated") or {}),
        },
    )


def make(kind: type[_T], values: dict[str, Any]) -> _T:
    """Makes an instance of a dataclass of the fields that it knows."""
    known = kind.__dict__["__dataclass_fields__"]
    return kind(**{name: value for name, value in values.items() if name in known})


@lru_cache(1000)
def snake(name: str) -> str:
    """The Python name of a field, such as `guest_time` of `guestTime`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: "_" + match[1].lower(), name)


def camel(name: str) -> str:
    """The field's name in JSON, such as `guestTime` of `guest_time`."""
    return re.sub(r"_([a-z])", lambda match: match[1].upper(), name)


def snake_keys(structure: Any) -> Any:
    """JSON with Python's names of fields."""
    if type(structure) is dict:
        return {snake(key): snake_keys(item) for key, item in structure.items()}
    return [snake_keys(item) for item in structure] if type(structure) is list else structure
