"""Host functions: their registration, and the calls of Python that they answer."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import Context, ContextVar
from dataclasses import asdict, dataclass, field
from functools import update_wrapper
from inspect import isawaitable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sandglass.client import workers
from sandglass.client.errors import SandboxError, a_type
from sandglass.client.execution import CodeLine, HostCall, Usage, camel, make
from sandglass.client.transports import logger

if TYPE_CHECKING:
    from sandglass.client.connection import Connection, Message

#: The most bytes of all arguments of an execution that its result keeps.
_KEPT = 16 << 20
#: The most characters of an error. It may quote an argument, and a message that is too long would end the connection.
_MOST_ERROR = 10_000

#: The most characters of a traceback that a result keeps and the log gets.
_MOST_TRACEBACK = 20_000
#: Characters that control a terminal. A guest can have an error quote them.
_CONTROLS = re.compile(r"[^\n\t -~\u00a0-\u2027\u202f-\u2065\u2070-\U0010ffff]")

#: The sandboxes whose calls are being answered, innermost last.
answering: ContextVar[tuple[int, ...]] = ContextVar("sandglass_answering", default=())


_call_id: ContextVar[str | None] = ContextVar("sandglass_call_id", default=None)


def call_id() -> str | None:
    """Returns the id of the call that this host function answers, in a sandbox with `persist`.

    A call that `resume` makes again has the same id, so a function can look whether it has run already.
    """
    return _call_id.get()


class Refused(Exception):
    """A reason in this package's own words, for which a call has no answer. It needs no name of a class."""


class Approved:
    """A host function that runs only after `on_approve` has allowed the call."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call
        update_wrapper(self, call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)


def approve(call: Callable[..., Any]) -> Approved:
    """Marks a host function: before each call of Python, the sandbox's `on_approve` is asked. Works as a decorator."""
    return Approved(call)


@dataclass(frozen=True)
class Answer:
    """The value that a host function or model returns, together with its use of models, which counts for the budget."""

    value: Any
    usage: Usage = field(default_factory=Usage)


HostFunction = Callable[..., Any] | Mapping[str, Any]
"""A function, `def` or `async def`; or `{"call": function, "approve": True}`."""


class Tools(MutableMapping[str, HostFunction]):
    """The host functions by name. Changes count from the next execution on."""

    def __init__(self, functions: Mapping[str, HostFunction], can_ask: bool) -> None:
        self._functions: dict[str, HostFunction] = {}
        self._can_ask = can_ask
        for name, function in functions.items():
            self[name] = function

    def find(self, name: str) -> tuple[Callable[..., Any], bool] | None:
        """The function of a name, and true if its calls need approval."""
        function = self._functions.get(name)
        if function is None:
            return None
        if isinstance(function, Mapping):
            return function["call"], bool(function.get("approve"))
        return function, isinstance(function, Approved)

    def __getitem__(self, name: str) -> HostFunction:
        return self._functions[name]

    def __setitem__(self, name: str, function: HostFunction) -> None:
        if isinstance(function, Mapping):
            unknown = set(function) - {"call", "approve"}
            is_right = callable(function.get("call")) and not unknown
        else:
            is_right = callable(function)
        if not isinstance(name, str) or not is_right:
            forms = 'a function, or {"call": function, "approve": True}'
            raise SandboxError("invalid_option", f"host function {name!r} must be {forms}")
        before = self._functions.get(name)
        self._functions[name] = function
        found = self.find(name)
        if found and found[1] and not self._can_ask:
            if before is None:
                del self._functions[name]
            else:
                self._functions[name] = before
            raise SandboxError("invalid_option", f"{name}() needs approval, and nobody is asked: give on_approve")

    def __delitem__(self, name: str) -> None:
        del self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


@dataclass(frozen=True)
class Callbacks:
    """Everything of the caller that Python can reach."""

    tools: Tools
    on_llm_query: Callable[..., Any] | None
    on_rlm_query: Callable[..., Any] | None
    on_approve: Callable[[HostCall], Any] | None
    #: The functions that have failed, each with the class of the error: a guest must not be able to fill the log.
    failed: set[tuple[str, type]] = field(default_factory=set)


class Calls:
    """The host calls of one execution. They run in threads, in the context variables of its `execute`."""

    def __init__(self, callbacks: Callbacks, sandbox: int, context: Context, loop: asyncio.AbstractEventLoop | None):
        self._callbacks = callbacks
        self._sandbox = sandbox
        self._context = context
        self._loop = loop
        self._under_way: dict[int, _Call] = {}
        self._kept = 0
        self.made: list[HostCall] = []

    def begin(self, connection: Connection, message: Message) -> None:
        """Answers a call, in a thread of its own."""
        record = HostCall("")
        self.made.append(record)
        self._kept += message.size
        call = _Call(self._callbacks, self._loop, record, connection, message, self._kept <= _KEPT)
        number = message.json["id"]
        self._under_way[number] = call

        def work() -> None:
            answering.set((*answering.get(), self._sandbox))
            try:
                call.answer()
            finally:
                self._under_way.pop(number, None)

        context = self._context.copy()
        workers.begin(lambda: context.run(work))

    def cancel(self, number: int) -> None:
        """Ends a call as far as that is possible: nobody awaits its answer any more."""
        call = self._under_way.get(number)
        if call is not None:
            call.cancel()

    def end(self) -> None:
        """Ends all calls: the execution has ended, and nobody awaits their answers any more."""
        for call in list(self._under_way.values()):
            call.cancel()


class _Call:
    """One call of Python."""

    def __init__(
        self,
        callbacks: Callbacks,
        loop: asyncio.AbstractEventLoop | None,
        record: HostCall,
        connection: Connection,
        message: Message,
        is_kept: bool,
    ) -> None:
        self._callbacks = callbacks
        self._loop = loop
        self._record = record
        self._connection = connection
        self._message = message
        self._is_kept = is_kept
        self._is_cancelled = False
        self._future: Future[Any] | None = None

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._future is not None:
            self._future.cancel()

    def answer(self) -> None:
        """Runs the function and sends its answer. Never raises."""
        number, record = self._message.json["id"], self._record
        begin = perf_counter()
        try:
            result = self._result()
            self._end(begin)
            try:
                self._connection.answer(number, result)
            except SandboxError as error:
                raise Refused(str(error)) from error
        except BaseException as error:  # also SystemExit and a cancelled task: Python must go on
            record.error = _text_of(error)
            if not isinstance(error, (Refused, asyncio.CancelledError, CancelledError)):
                self._tell(error)
            self._end(begin)
            with suppress(SandboxError):  # the connection has ended, and everybody knows
                self._connection.refuse(number, record.error)

    def _end(self, begin: float) -> None:
        """Completes the record, before Python goes on and its execution may end."""
        self._record.seconds = perf_counter() - begin
        if not self._is_kept:
            self._record.args = self._record.kwargs = None

    def _tell(self, error: BaseException) -> None:
        """Keeps the traceback for the developer, and logs the first of each kind as a warning."""
        record, kind = self._record, (self._record.name, type(error))
        record.traceback = _traceback_of(error)
        level = logging.DEBUG if kind in self._callbacks.failed else logging.WARNING
        self._callbacks.failed.add(kind)
        logger.log(level, "the host function %s() failed:\n%s", record.name, record.traceback)

    def _result(self) -> dict[str, Any]:
        method, params = self._message.json["method"], self._message.json["params"]
        function, args, kwargs = self._asked(method, params)
        value = self._finished(function(*args, **kwargs))
        usage = Usage()
        if isinstance(value, Answer):
            value, usage = value.value, value.usage
        key = "value" if method == "call" else "text"
        if key == "text" and not isinstance(value, str):
            raise Refused(f"on_{self._record.name} returned {a_type(value)}, not a str")
        try:
            result = {key: self._connection.encoded(value, f"the value of {self._record.name}()")}
        except SandboxError as error:
            raise Refused(str(error)) from error
        if usage != Usage():
            result["usage"] = {camel(name): number for name, number in asdict(usage).items()}
        return result

    def _asked(self, method: str, params: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function that is called, and its arguments."""
        record, read = self._record, self._message.value
        if method == "call":
            return self._host_function(params)
        # Like JupyterREPL's, these functions get a model only when the code names one.
        model = [] if params.get("model") is None else [params["model"]]
        if method == "llmQuery":
            record.name, function = "llm_query", self._callbacks.on_llm_query
            record.args = (read(params["prompt"]), *model)
        elif method == "rlmQuery":
            record.name, function = "rlm_query", self._callbacks.on_rlm_query
            record.args = (read(params["task"]), read(params["context"]), *model)
        else:
            raise Refused(f"this version of the client has no {method}")
        if function is None:
            raise Refused(f"nobody answers {record.name}(): give the sandbox on_{record.name}")
        return function, record.args, {}

    def _host_function(self, params: dict[str, Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        record, read = self._record, self._message.value
        record.name = name = params["name"]
        arguments = params if params.get("arguments") is None else read(params["arguments"])
        is_read = arguments is not params
        args = arguments.get("args") or []
        kwargs = arguments.get("kwargs") or {}
        record.args = tuple(args if is_read else map(read, args))
        record.kwargs = kwargs if is_read else {key: read(value) for key, value in kwargs.items()}
        record.id = params.get("id")
        _call_id.set(record.id)
        if params.get("line"):
            record.line = make(CodeLine, params["line"])
        found = self._callbacks.tools.find(name)
        if found is None:
            raise Refused(f"there is no host function {name}() any more")
        function, needs_approval = found
        if needs_approval:
            self._ask(record)
        return function, record.args, record.kwargs

    def _ask(self, record: HostCall) -> None:
        """Asks for approval. Raises unless the call may run; only clear words allow it."""
        assert self._callbacks.on_approve
        number = self._message.json["id"]
        self._connection.approval(number, True)  # no time limit counts while a person decides
        try:
            verdict = self._finished(self._callbacks.on_approve(record))
        finally:
            self._connection.approval(number, False)
        if verdict is True:
            return
        match verdict:
            case (list() | tuple()) as args, Mapping() as kwargs:
                record.args, record.kwargs = tuple(args), dict(kwargs)
            case str():
                raise Refused(f"{record.name}() was refused: {verdict}")
            case False | None:
                raise Refused(f"{record.name}() was refused by the user of this sandbox")
            case _:
                kind = a_type(verdict)
                raise Refused(
                    f"{record.name}() did not run: on_approve returned {kind}, not a bool, str or (args, kwargs)"
                )

    def _finished(self, value: Any) -> Any:
        """Awaits the value if it can be awaited: on the caller's loop, or on this package's own."""
        if not isawaitable(value):
            return value
        future = asyncio.run_coroutine_threadsafe(_awaited(value), self._loop or workers.own_loop())
        self._future = future
        if self._is_cancelled:
            future.cancel()
        return future.result()


def _text_of(error: BaseException) -> str:
    """An error as Python is told: with its class, as in a traceback, unless the class says nothing."""
    kind = type(error).__name__
    try:
        text = str(error)[:_MOST_ERROR]
    except Exception:  # an error may fail to tell itself
        return kind
    if not text:
        return kind
    return text if type(error) in (Exception, Refused) else f"{kind}: {text}"[:_MOST_ERROR]


def _traceback_of(error: BaseException) -> str:
    """The traceback from the host function on. The end is what counts of a long one."""
    steps = error.__traceback__
    while steps is not None and steps.tb_frame.f_code.co_filename == __file__:
        steps = steps.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, steps)).rstrip()
    except Exception:  # as above
        text = type(error).__name__
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text[-_MOST_TRACEBACK:])


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value
