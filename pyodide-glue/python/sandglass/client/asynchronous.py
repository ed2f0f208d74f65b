"""`AsyncSandbox`: the same as `Sandbox`, for programs with asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from inspect import isawaitable
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeVar, Unpack, overload

from sandglass.client.calls import Tools
from sandglass.client.connection import Answer, Asked, Connection
from sandglass.client.errors import SandboxError
from sandglass.client.execution import (
    BudgetState,
    CapturedState,
    CodeExecution,
    Display,
    FileInfo,
    Lost,
    PendingExecution,
    PersistedSandbox,
    Replay,
    Variable,
)
from sandglass.client.options import Budget, SandboxOptions
from sandglass.client.session import (
    Ask,
    Execution,
    Heard,
    Listeners,
    Session,
    delete_persisted,
    ignore,
    list_persisted,
)

T = TypeVar("T")


class AsyncSandbox:
    """`Sandbox` with `await`. Callbacks that are `async def` run on the loop of the `execute` that they are of.

        async with AsyncSandbox(on_llm_query=ask) as sandbox:
            await sandbox.initialize("a text")
            run = await sandbox.execute("print(len(context))")

    Without `async with`, the first call makes the sandbox. Cancelling a task that awaits `execute` interrupts the code,
    and keeps its variables.
    """

    def __init__(
        self, *, url: str | None = None, api_key: str | None = None, **options: Unpack[SandboxOptions]
    ) -> None:
        self._session = Session("AsyncSandbox", url, api_key, options)
        self._opening = asyncio.Lock()

    __init__.__doc__ = SandboxOptions.__doc__

    async def __aenter__(self) -> AsyncSandbox:
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.backend or 'nothing yet'}>"

    @property
    def backend(self) -> str:
        """The kind of backend: `bubblewrap`, `docker`, `subprocess` or `jupyter`. Empty before the first call."""
        return self._session.backend

    @property
    def capabilities(self) -> dict[str, Any]:
        """The sandbox's facts: see `Sandbox.capabilities`. Empty before the first call."""
        return self._session.capabilities

    @property
    def tools(self) -> Tools:
        """The host functions by name. Changes count from the next execution on."""
        return self._session.tools

    @property
    def output_fields(self) -> list[str]:
        """The names of the values that `SUBMIT` takes. Set it to change them for the next execution."""
        return self._session.output_fields

    @output_fields.setter
    def output_fields(self, fields: Iterable[str]) -> None:
        self._session.output_fields = list(fields)

    @property
    def files(self) -> AsyncFiles:
        """The files of the working folder."""
        return AsyncFiles(self)

    async def start(self) -> None:
        """Starts Python now. Otherwise the first call that needs it does."""
        await self._run(self._session.start())

    async def initialize(self, context: Any) -> None:
        """Sets the variable `context`: to a text, bytes, any plain data, or the content of the file of a `Path`."""
        await self._run(self._session.initialize(context))

    async def add_context(self, value: Any, *, series: Literal["context", "history"] = "context") -> str:
        """Adds a variable: the next of `context_0`, `context_1`, … or of `history_0`, …. Returns its name."""
        return await self._run(self._session.add_context(value, series))

    async def execute(
        self,
        code: str,
        *,
        timeout: float | None = None,
        budget: Budget | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> CodeExecution:
        """Runs code, and returns also when the code fails: see the result's `outcome`.

        `timeout` is in milliseconds of Python's own time; waiting for host functions does not count. Listeners are
        called in the task that awaits, and may be `async`; what they raise interrupts the code.
        """
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return await self._heard(listeners, lambda execution: self._session.execute(code, timeout, budget, execution))

    async def _heard(self, listeners: Listeners, make_ask: Callable[[Execution], Ask[T]]) -> T:
        """Runs code, and calls the listeners meanwhile."""
        await self._open()
        configure = self._session.configure()
        if configure is not None:
            await self._run(configure)
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Heard] = asyncio.Queue()
        execution = self._session.execution(listeners, _to_loop(loop, inbox.put_nowait), loop)
        ask = make_ask(execution)
        connection, number = self._session.begin(ask, execution)
        try:
            while (heard := await inbox.get()).answer is None:
                awaitable = execution.hear(heard)
                if isawaitable(awaitable):
                    await awaitable
        except BaseException:
            connection.cancel(number)
            raise
        return await _read(ask, heard.answer)

    async def pending(self) -> PendingExecution | None:
        """The execution that an earlier program has not finished, in a sandbox with `persist`.

        Until `resume` or `discard`, other calls raise `SandboxError` with the code `execution_pending`.
        """
        return await self._run(self._session.pending())

    async def resume(
        self,
        answers: Mapping[str, Any] | None = None,
        *,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> CodeExecution:
        """Goes on with the pending execution: its code runs again from the state before, with the same answers.

        Calls without an answer are made again, but those that `answers` names by their ids. Output comes from the
        beginning. Raises `SandboxError` with the code `journal_differs` when the code goes another way.
        """
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return await self._heard(listeners, lambda execution: self._session.resume(answers, execution))

    async def discard(self) -> None:
        """Gives the pending execution up. The state stays as it was before it."""
        await self._run(self._session.discard())

    async def last(self) -> CodeExecution | None:
        """The last execution that has ended, in a sandbox with `persist`, also if it ended in an earlier program.

        It has neither `value` nor `calls`, and `final` is made of JSON. None if there is none, or if it was too large.
        """
        return await self._run(self._session.last())

    async def replay(
        self, execution: int, answers: Mapping[int | str, Any] | None = None, *, ask: bool = False
    ) -> Replay:
        """Runs an ended execution again by its journal, in a sandbox with `persist`. The sandbox stays as it is.

        Without `answers`, output and result are the same, or it raises `SandboxError` with the code `journal_differs`.
        `answers` take the place of those in the journal, by a call's place from 1 or its id. Then the result's
        `difference` says where the code first went another way. A call without an answer in the journal raises
        `HostCallError` in Python, or is made with `ask=True`. The code `no_checkpoint` says why there is no replay.
        """
        return await self._heard({}, lambda run: self._session.replay(execution, answers, ask, run))

    @staticmethod
    async def list_persisted(
        folder: str | PathLike[str] | None = None, *, url: str | None = None, api_key: str | None = None
    ) -> list[PersistedSandbox]:
        """The sandboxes that are kept by `persist`: see `Sandbox.list_persisted`."""
        return await asyncio.to_thread(list_persisted, fspath(folder) if folder is not None else None, url, api_key)

    @staticmethod
    async def delete_persisted(name: str, *, url: str, api_key: str | None = None) -> None:
        """Removes what a server keeps by `persist=name`: see `Sandbox.delete_persisted`."""
        await asyncio.to_thread(delete_persisted, name, url, api_key)

    async def execute_stream(
        self,
        pieces: Iterable[str] | AsyncIterable[str],
        *,
        timeout: float | None = None,
        budget: Budget | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> CodeExecution:
        """Runs code that comes in pieces, such as a model's reply, as one execution.

        With the option `ahead`, complete statements run while the rest is written.
        """
        await self._open()
        code = ""
        async for piece in _each(pieces):
            code += piece
            if "\n" in piece:
                self._send(self._session.written(code, timeout))
        return await self.execute(
            code, timeout=timeout, budget=budget, on_stdout=on_stdout, on_stderr=on_stderr, on_display=on_display
        )

    async def hint(self, codes: str | Sequence[str]) -> None:
        """Names code that may come next, the likeliest first. With the option `ahead`, it runs already."""
        await self._open()
        self._send(self._session.hint(codes))

    async def update_conversation(self, conversation: str | Sequence[Mapping[str, Any]]) -> None:
        """Gives the newest of the conversation, a text or messages, for `predictions`."""
        await self._open()
        self._send(self._session.update_conversation(conversation))

    async def interrupt(self) -> None:
        """Interrupts the running code, from another task. Its variables are kept."""
        await self._run(self._session.interrupt())

    async def get_variable(self, name: str, default: Any = None) -> Any:
        """The value of a variable, or the default if there is no such variable."""
        return await self._run(self._session.get_variable(name, default))

    async def set_variable(self, name: str, value: Any) -> None:
        """Sets a variable."""
        await self._run(self._session.set_variable(name, value))

    async def list_variables(self) -> list[Variable]:
        """The user's variables, with types and lengths."""
        return await self._run(self._session.list_variables())

    async def capture_state(self, portable: bool = False) -> CapturedState:
        """The variables as bytes, for `open_state` of another sandbox. Never unpickle them: guests alone may.

        With `portable`, the state is for every backend and every version of Python.
        """
        return await self._run(self._session.capture_state(portable))

    async def open_state(self, state: bytes) -> list[Lost]:
        """Takes the variables of `capture_state`. Returns those that cannot be had here, each with the reason."""
        return await self._run(self._session.open_state(state))

    @overload
    async def fork(self, *, exact: bool = False) -> AsyncSandbox: ...
    @overload
    async def fork(self, count: int, *, exact: bool = False) -> list[AsyncSandbox]: ...
    async def fork(self, count: int | None = None, *, exact: bool = False) -> AsyncSandbox | list[AsyncSandbox]:
        """Copies the sandbox: see `Sandbox.fork`."""
        copies = []
        for session in await self._run(self._session.fork(1 if count is None else count, exact)):
            copy = type(self).__new__(type(self))
            copy._session, copy._opening = session, asyncio.Lock()
            copies.append(copy)
        return copies[0] if count is None else copies

    async def checkpoint(self) -> int:
        """Saves the state now. Returns the number of the execution whose state it is, 0 before the first."""
        return await self._run(self._session.checkpoint())

    async def undo(self) -> int:
        """Takes back the last execution, with the option `checkpoints`. Changes of files stay.

        Returns the number of the execution whose state it is, 0 before the first. Raises `SandboxError` with the code
        `no_checkpoint`, and changes nothing, when the state before it was not saved.
        """
        return await self._run(self._session.undo())

    async def restore(self, execution: int | None = None) -> int:
        """Goes back to the newest checkpoint of an execution, or of all.

        Returns and raises as `undo`.
        """
        return await self._run(self._session.restore(execution))

    async def stats(self) -> dict[str, Any]:
        """Counts of the sandbox's work so far: executions, restarts, host calls and the like."""
        return await self._run(self._session.stats())

    async def budget(self) -> BudgetState:
        """The amounts of the budget that are left, and those that are spent."""
        return await self._run(self._session.budget())

    async def destroy(self) -> None:
        """Ends the sandbox. Nothing of it is left afterwards; later calls raise. Doing it twice is no error."""
        ask = self._session.destroy()
        async with self._opening:  # a sandbox that is being made ends, too
            if not self._session.destroyed():
                return
        try:
            await self._run(ask)
        except SandboxError as error:
            if not self._session.is_gone(error):
                raise

    close = destroy

    async def _open(self) -> None:
        if self._session.is_open:
            return
        async with self._opening:
            if not self._session.is_open:
                connection = await asyncio.to_thread(self._session.connect)
                ask = self._session.create()
                answer = await _answer(
                    lambda asked: (connection, connection.ask(ask.method, ask.params, asked)),
                    dropped=lambda answer: self._session.dropped(connection, answer),
                )
                self._session.created(connection, ask.result(answer))

    async def _run(self, ask: Ask[T]) -> T:
        await self._open()
        answer = await _answer(lambda asked: self._session.begin(ask, asked), ask.is_heavy)
        return await _read(ask, answer)

    def _send(self, ask: Ask[None]) -> None:
        self._session.begin(ask, Asked(ignore))


class AsyncFiles:
    """The files of a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._run, self._session = sandbox._run, sandbox._session

    async def read(self, path: str) -> bytes:
        """Reads a file. Raises SandboxError with the code `file_not_found` if there is none."""
        return await self._run(self._session.read_file(path))

    async def write(self, path: str, data: bytes | str | Path) -> None:
        """Writes bytes, a text as UTF-8, or the file of a `Path`. Makes the folders that it needs."""
        await self._run(self._session.write_file(path, data))

    async def remove(self, path: str) -> None:
        """Removes a file or a folder."""
        await self._run(self._session.remove_file(path))

    async def list(self, folder: str = "") -> list[FileInfo]:
        """The files and folders below a folder, which is the working folder by default."""
        return await self._run(self._session.list_files(folder))


async def _answer(
    begin: Callable[[Asked], tuple[Connection, int]],
    is_heavy: bool = False,
    dropped: Callable[[Answer], object] = ignore,
) -> Answer:
    """Begins a request, in a thread if that takes long, and awaits its answer.

    If cancelled, `dropped` gets the answer, on the loop or in the thread that reads: the loop may be closed by then.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def answered(answer: Answer) -> None:
        if future.done():  # it is cancelled
            dropped(answer)
        else:
            future.set_result(answer)

    def arrived(answer: Answer) -> None:
        if future.cancelled():
            dropped(answer)
            return
        try:
            loop.call_soon_threadsafe(answered, answer)
        except RuntimeError:  # the loop is closed, and nobody awaits anything
            dropped(answer)

    asked = Asked(arrived)
    connection, number = await asyncio.to_thread(begin, asked) if is_heavy else begin(asked)
    try:
        return await future
    except asyncio.CancelledError:
        connection.cancel(number)
        if future.done() and not future.cancelled():  # the answer came before this task could take it
            dropped(future.result())
        raise


async def _read(ask: Ask[T], answer: Answer) -> T:
    """Reads an answer, in a thread if that takes long."""
    return await asyncio.to_thread(ask.result, answer) if answer.message.blobs else ask.result(answer)


async def _each(pieces: Iterable[str] | AsyncIterable[str]) -> AsyncIterable[str]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces:
            yield piece


def _to_loop(loop: asyncio.AbstractEventLoop, function: Callable[[T], object]) -> Callable[[T], None]:
    """The function on a loop, for other threads. Once the loop is closed, nobody listens any more."""

    def call(item: T) -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(function, item)

    return call
