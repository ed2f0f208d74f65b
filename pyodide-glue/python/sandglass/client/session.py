"""The common part of `Sandbox` and `AsyncSandbox`: requests to the host, and how its answers are read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, Literal, TypeVar, cast
from weakref import finalize

from sandglass.client.calls import Callbacks, Calls, Tools, answering
from sandglass.client.connection import Answer, Asked, Connection, Message, connect
from sandglass.client.errors import SandboxError
from sandglass.client.execution import (
    BudgetLeft,
    BudgetState,
    CapturedState,
    Cell,
    CodeExecution,
    Display,
    FileInfo,
    Lost,
    PendingCall,
    PendingExecution,
    PersistedSandbox,
    Replay,
    Usage,
    Variable,
    make,
    read_execution,
    snake_keys,
)
from sandglass.client.options import Budget, SandboxOptions, write_budget, write_options
from sandglass.client.values import MAX_INLINE

T = TypeVar("T")
D = TypeVar("D")

#: The most characters of output that wait for a listener. Beyond, pieces are left out.
_WAITING_CHARS = 8 << 20
#: Requests that do not wait for the running code.
_AT_ONCE = frozenset({"destroy", "interrupt", "hint", "written", "converse"})
_CLEAR = "notebook.clear"
#: Options of every sandbox.
_ALWAYS = {"cleanHtml": True, "naming": "snake"}
#: The newest part of a conversation. The host uses no more.
_CONVERSATION_CHARS = 20_000


@dataclass(frozen=True)
class Ask(Generic[T]):
    """A request to the host: its parameters, the values that go with it, and how its result is read."""

    method: str
    read: Callable[[Message], T]
    params: dict[str, Any] = field(default_factory=dict)
    values: dict[str, tuple[Any, str]] = field(default_factory=dict)

    @property
    def is_heavy(self) -> bool:
        """True if writing the values may take long."""
        return any(not _is_light(value) for value, _ in self.values.values())

    def result(self, answer: Answer) -> T:
        """Reads the answer. Raises its error."""
        answer.result()
        try:
            return self.read(answer.message)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            problem = f"the answer to {self.method} cannot be read ({error!r}); the state is kept"
            raise SandboxError("protocol", problem) from error


@dataclass(frozen=True)
class Heard:
    """Something for a listener, or the answer, which is the last."""

    listener: str = ""
    item: Any = None
    answer: Answer | None = None


Configuration = tuple[tuple[str, ...], tuple[str, ...]]
"""The names of host functions, and of output fields."""

Listeners = Mapping[str, Callable[..., Any] | None]
"""Listeners by what they hear: `stdout`, `stderr` and `display`."""


class Execution(Asked):
    """An `execute` that is under way. The thread that reads gives to `put`; the caller's thread or loop takes."""

    def __init__(self, calls: Calls, listeners: Listeners, put: Callable[[Heard], None]):
        super().__init__(self._end)
        self.calls = calls
        self.answer: Answer | None = None
        self._listeners = listeners
        self._put = put
        self._given = 0
        self._taken = 0
        self._skipped = {"stdout": 0, "stderr": 0}

    @property
    def listens(self) -> bool:
        """True if anybody hears output as it comes."""
        return any(self._listeners.values())

    def call(self, connection: Connection, message: Message) -> None:
        self.calls.begin(connection, message)

    def cancelled(self, number: int) -> None:
        self.calls.cancel(number)

    def event(self, message: Message) -> None:
        params = message.json["params"]
        if message.json["method"] == "output":
            self._output(params["stream"], params["text"], params.get("skipped", 0))
        elif message.json["method"] == "display" and self._listeners.get("display"):
            self._put(Heard("display", make(Display, params)))

    def hear(self, heard: Heard) -> Any:
        """Calls the listener. Returns what it returned, which may have to be awaited."""
        if isinstance(heard.item, str):
            self._taken += len(heard.item)
        listener = self._listeners.get(heard.listener)
        return listener(heard.item) if listener else None

    def _output(self, stream: str, text: str, skipped: int) -> None:
        if not self._listeners.get(stream):
            return
        if self._given - self._taken > _WAITING_CHARS:
            self._skipped[stream] += len(text) + skipped
            return
        skipped += self._skipped.get(stream, 0)
        self._skipped[stream] = 0
        if skipped:
            text = _omitted(skipped) + text
        self._given += len(text)
        self._put(Heard(stream, text))

    def _end(self, answer: Answer) -> None:
        self.calls.end()
        for stream, skipped in self._skipped.items():
            if skipped:
                self._put(Heard(stream, _omitted(skipped)))
        self.answer = answer
        self._put(Heard(answer=answer))


def list_persisted(folder: str | None, url: str | None, api_key: str | None) -> list[PersistedSandbox]:
    """Lists what a server keeps by `persist`, or what the folders of a folder keep."""
    answers: SimpleQueue[Answer] = SimpleQueue()
    params = {"folder": folder} if folder is not None else {}
    connect(url, api_key).ask("listPersisted", params, Asked(answers.put))
    answer = answers.get()
    answer.result()
    return [make(PersistedSandbox, snake_keys(kept)) for kept in answer.message.json["result"]["persisted"]]


def delete_persisted(name: str, url: str, api_key: str | None) -> None:
    """Removes what a server keeps under a name."""
    answers: SimpleQueue[Answer] = SimpleQueue()
    connect(url, api_key).ask("deletePersisted", {"name": name}, Asked(answers.put))
    answers.get().result()


class Session:
    """A sandbox of a host."""

    def __init__(
        self, kind: str, url: str | None, api_key: str | None, options: SandboxOptions, *, has_cells: bool = False
    ) -> None:
        given = cast("dict[str, Any]", options)
        self._kind, self._options = kind, options
        self._written = write_options(given, kind)
        if has_cells:
            if not self._written.get("workspace"):
                raise TypeError(f"{kind} needs workspace=: the folder for the files of its cells")
            self._written["notebook"] = True
        if api_key is not None and url is None:
            raise TypeError("api_key is for a server: give its url, too")
        self._url, self._api_key = url, api_key
        on_approve = given.get("on_approve")
        self.tools = Tools(given.get("host_functions") or {}, on_approve is not None)
        self._fields: list[str] = list(given.get("output_fields") or [])
        #: The names of functions and fields that the host has for sure, or None; and those that it is being told.
        self._configured: Configuration | None = self._configuration
        self._configuring: Configuration | None = None
        self._callbacks = Callbacks(self.tools, given.get("on_llm_query"), given.get("on_rlm_query"), on_approve)
        self.listeners = {name: given.get(f"on_{name}") for name in ("stdout", "stderr", "display")}
        self._connection: Connection | None = None
        self._id = ""
        self._end: finalize[[str], Session] | None = None
        self._is_destroyed = False
        self.backend = ""
        self._capabilities: dict[str, Any] = {}

    @property
    def output_fields(self) -> list[str]:
        """The names of the values that `SUBMIT` takes."""
        return list(self._fields)

    @output_fields.setter
    def output_fields(self, fields: Iterable[str]) -> None:
        self._fields = list(fields)

    @property
    def _configuration(self) -> Configuration:
        return tuple(self.tools), tuple(self._fields)

    @property
    def capabilities(self) -> dict[str, Any]:
        """The facts that the host told last."""
        if self._connection:
            self._capabilities = self._connection.facts.pop(self._id, self._capabilities)
        return cast("dict[str, Any]", snake_keys(self._capabilities))

    @property
    def is_open(self) -> bool:
        """True once the sandbox is there, also after its end."""
        return self._connection is not None

    def connect(self) -> Connection:
        """Connects to the host; starts its program if need be."""
        return connect(self._url, self._api_key)

    def create(self) -> Ask[dict[str, Any]]:
        """Makes the sandbox."""
        self._check()
        return Ask("create", _result, {**self._written, **_ALWAYS, "hostFunctions": list(self.tools)})

    def created(self, connection: Connection, result: dict[str, Any]) -> None:
        """Takes the sandbox that was made. It ends with this object."""
        self._connection = connection
        self._id = result["sandbox"]
        self.backend = result["backend"]
        self._capabilities = result["capabilities"]
        self._end = finalize(self, connection.forgotten.put, self._id)
        self._end.atexit = False

    def dropped(self, connection: Connection, answer: Answer) -> None:
        """Takes the sandbox that was made although its caller was interrupted: nobody has it, so it ends."""
        if answer.error is None:
            connection.forgotten.put(answer.message.json["result"]["sandbox"])

    def begin(self, ask: Ask[Any], asked: Asked) -> tuple[Connection, int]:
        """Sends a request. Returns its number and the connection."""
        if ask.method != "destroy":
            self._check()
        assert self._connection
        if ask.method not in _AT_ONCE and id(self) in answering.get():
            problem = f"{ask.method} would wait for the code that waits for this host function: do it after execute"
            raise SandboxError("invalid_option", problem)
        values = {name: self._connection.encoded(value, shown) for name, (value, shown) in ask.values.items()}
        params = {"sandbox": self._id, **ask.params, **values}
        try:
            return self._connection, self._connection.ask(ask.method, params, asked)
        finally:
            if ask.method == _CLEAR:
                # Also when it fails or is cancelled: the new guest has the functions and fields of the beginning.
                self._configured = self._configuring = None

    def is_gone(self, error: SandboxError) -> bool:
        """True if the sandbox could not be destroyed because it is gone."""
        return error.code in ("destroyed", "no_sandbox") or self._connection is None or self._connection.has_ended

    def destroyed(self) -> bool:
        """Marks the sandbox as destroyed. Returns false if it was, or never was there."""
        was_there = self._connection is not None and not self._is_destroyed and not self._connection.has_ended
        self._is_destroyed = True
        if self._end:
            self._end.detach()
        return was_there

    def _check(self) -> None:
        if self._is_destroyed:
            raise SandboxError("destroyed", "the sandbox was destroyed: make another")

    # ---- what the host is asked for ----

    def destroy(self) -> Ask[None]:
        return Ask("destroy", _nothing)

    def start(self) -> Ask[None]:
        return Ask("start", _nothing)

    def initialize(self, context: Any) -> Ask[None]:
        return Ask("initialize", _nothing, values={"context": (context, "context")})

    def add_context(self, value: Any, series: Literal["context", "history"]) -> Ask[str]:
        return Ask(
            "addContext", lambda message: str(_result(message)["name"]), {"series": series}, _value(value, series)
        )

    def configure(self) -> Ask[None] | None:
        """Sends the changes of host functions and output fields, if there are any."""
        wanted = self._configuration
        if wanted == self._configured:
            return None
        # Unknown until the host has answered: it may refuse, and the caller may not wait for the answer.
        self._configured, self._configuring = None, wanted

        def read(_: Message) -> None:
            if self._configuring is wanted:
                self._configured = wanted

        functions, fields = wanted
        return Ask("configure", read, {"hostFunctions": list(functions), "outputFields": list(fields)})

    def execution(
        self,
        listeners: Listeners,
        put: Callable[[Heard], None],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> Execution:
        """Makes the caller's side of an execution, in the caller's context variables."""
        heard = {name: listeners.get(name) or listener for name, listener in self.listeners.items()}
        return Execution(Calls(self._callbacks, id(self), copy_context(), loop), heard, put)

    def execute(
        self, code: str, timeout: float | None, budget: Budget | None, execution: Execution
    ) -> Ask[CodeExecution]:
        params = _run_params(timeout, budget, execution)
        return Ask("execute", lambda message: _executed(message, _result(message), execution), {"code": code, **params})

    def pending(self) -> Ask[PendingExecution | None]:
        def read(message: Message) -> PendingExecution | None:
            pending = message.value(_result(message)["value"])
            if pending is None:
                return None
            calls = [make(PendingCall, {**call, "args": tuple(call["args"])}) for call in pending["calls"]]
            return make(PendingExecution, {**pending, "calls": calls})

        return Ask("pending", read)

    def resume(self, answers: Mapping[str, Any] | None, execution: Execution) -> Ask[CodeExecution]:
        params = _run_params(None, None, execution)
        values = {"answers": (dict(answers), "answers")} if answers else {}
        return Ask("resume", lambda message: _executed(message, _result(message), execution), params, values)

    def discard(self) -> Ask[None]:
        return Ask("discard", _nothing)

    def last(self) -> Ask[CodeExecution | None]:
        def read(message: Message) -> CodeExecution | None:
            ended = _result(message)["execution"]
            final = (ended.get("final") or {}).get("value") if ended else None
            return read_execution(ended, None, final, []) if ended else None

        return Ask("last", read)

    def replay(
        self, number: int, answers: Mapping[int | str, Any] | None, ask: bool, execution: Execution
    ) -> Ask[Replay]:
        def read(message: Message) -> Replay:
            result = _result(message)
            return Replay(_executed(message, result["execution"], execution), result.get("difference"))

        named = {str(call): answer for call, answer in (answers or {}).items()}
        values = {"answers": (named, "answers")} if named else {}
        return Ask("replay", read, {"execution": number, "ask": ask}, values)

    def run_cell(
        self, cell: str | None, code: str | None, timeout: float | None, budget: Budget | None, execution: Execution
    ) -> Ask[Cell]:
        params = {"cell": cell, "code": code, **_run_params(timeout, budget, execution)}

        def read(message: Message) -> Cell:
            result = _result(message)
            ran = result.get("execution")
            return make(
                Cell, {**result["cell"], "execution": _executed(message, ran, execution) if ran is not None else None}
            )

        return Ask("notebook.run", read, {name: value for name, value in params.items() if value is not None})

    def list_cells(self) -> Ask[list[Cell]]:
        return Ask("notebook.cells", lambda message: [make(Cell, item) for item in _result(message)["cells"]])

    def cell_file(self, cell: str, file: Literal["input", "output"]) -> Ask[bytes]:
        return Ask(
            "notebook.file",
            lambda message: bytes(message.value(_result(message)["value"])),
            {"cell": cell, "file": file},
        )

    def delete_cell(self, cell: str) -> Ask[None]:
        return Ask("notebook.delete", _nothing, {"cell": cell})

    def clear_cells(self) -> Ask[None]:
        return Ask(_CLEAR, _nothing)

    def hint(self, codes: str | Sequence[str]) -> Ask[None]:
        return Ask("hint", _nothing, {"codes": [codes] if isinstance(codes, str) else list(codes)})

    def written(self, code: str, timeout: float | None) -> Ask[None]:
        return Ask("written", _nothing, {"code": code} if timeout is None else {"code": code, "timeout": timeout})

    def update_conversation(self, conversation: str | Sequence[Mapping[str, Any]]) -> Ask[None]:
        if not isinstance(conversation, str):
            texts = [message.get("content") for message in conversation]
            conversation = "\n".join(text for text in texts if isinstance(text, str))
        return Ask("converse", _nothing, {"text": conversation[-_CONVERSATION_CHARS:]})

    def get_variable(self, name: str, default: D) -> Ask[Any | D]:
        def read(message: Message) -> Any | D:
            result = _result(message)
            return message.value(result.get("value")) if result["found"] else default

        return Ask("getVariable", read, {"name": name})

    def set_variable(self, name: str, value: Any) -> Ask[None]:
        return Ask("setVariable", _nothing, {"name": name}, _value(value, name))

    def list_variables(self) -> Ask[list[Variable]]:
        return Ask("listVariables", lambda message: [make(Variable, item) for item in _result(message)["variables"]])

    def read_file(self, path: str) -> Ask[bytes]:
        return Ask("readFile", lambda message: bytes(message.value(_result(message)["value"])), {"path": path})

    def write_file(self, path: str, data: Any) -> Ask[None]:
        return Ask("writeFile", _nothing, {"path": path}, _value(data, path))

    def remove_file(self, path: str) -> Ask[None]:
        return Ask("removeFile", _nothing, {"path": path})

    def list_files(self, path: str) -> Ask[list[FileInfo]]:
        def read(message: Message) -> list[FileInfo]:
            return [make(FileInfo, item) for item in _result(message)["files"]]

        return Ask("listFiles", read, {"path": path} if path else {})

    def capture_state(self, portable: bool = False) -> Ask[CapturedState]:
        def read(message: Message) -> CapturedState:
            result = _result(message)
            return CapturedState(bytes(message.value(result["value"])), [make(Lost, lost) for lost in result["lost"]])

        return Ask("captureState", read, {"portable": True} if portable else {})

    def open_state(self, state: bytes) -> Ask[list[Lost]]:
        def read(message: Message) -> list[Lost]:
            return [make(Lost, lost) for lost in _result(message).get("lost", [])]

        return Ask("openState", read, values=_value(state, "state"))

    def fork(self, count: int, exact: bool) -> Ask[list[Session]]:
        """Makes copies of the sandbox, with the same options and callbacks."""

        def read(message: Message) -> list[Session]:
            assert self._connection
            copies = []
            for created in _result(message)["sandboxes"]:
                copy = self._copy()
                copy.created(self._connection, created)
                copies.append(copy)
            return copies

        return Ask("fork", read, {"count": count, "exact": exact})

    def _copy(self) -> Session:
        copy = Session(self._kind, self._url, self._api_key, self._options)
        copy.tools.clear()
        copy.tools.update(self.tools)
        copy.output_fields = self.output_fields
        copy._configured = None  # its functions are those that the host knew last
        return copy

    def checkpoint(self) -> Ask[int]:
        return Ask("checkpoint", _execution)

    def undo(self) -> Ask[int]:
        return Ask("undo", _execution)

    def restore(self, execution: int | None) -> Ask[int]:
        return Ask("restore", _execution, {} if execution is None else {"execution": execution})

    def stats(self) -> Ask[dict[str, Any]]:
        return Ask("stats", lambda message: cast("dict[str, Any]", snake_keys(_result(message))))

    def budget(self) -> Ask[BudgetState]:
        def read(message: Message) -> BudgetState:
            budget = snake_keys(_result(message)["budget"])
            return BudgetState(make(BudgetLeft, budget["left"]), make(Usage, budget["spent"]))

        return Ask("stats", read)

    def interrupt(self) -> Ask[None]:
        return Ask("interrupt", _nothing)


def _execution(message: Message) -> int:
    return int(_result(message)["execution"])


def _run_params(timeout: float | None, budget: Budget | None, execution: Execution) -> dict[str, Any]:
    params: dict[str, Any] = {}
    if timeout is not None:
        params["timeout"] = timeout
    if budget:
        params["budget"] = write_budget(budget)
    if execution.listens:
        params["stream"] = True
    return params


def _executed(message: Message, result: dict[str, Any], execution: Execution) -> CodeExecution:
    final = result.get("final") or {}
    value, answer = message.value(result.get("value")), message.value(final.get("value"))
    return read_execution(result, value, answer, execution.calls.made)


def _omitted(characters: int) -> str:
    return f"\n... [{characters} characters omitted] ...\n"


def _is_light(value: Any) -> bool:
    if type(value) is str or type(value) is bytes:
        return len(value) <= MAX_INLINE
    return value is None or type(value) in (bool, int, float)


def _value(value: Any, name: str) -> dict[str, tuple[Any, str]]:
    return {"value": (value, name)}


def _result(message: Message) -> dict[str, Any]:
    return cast("dict[str, Any]", message.json["result"])


def _nothing(_: Message) -> None:
    return None


def ignore(_: object) -> None:
    return None
