"""`Sandbox`: Python in isolation, for programs without asyncio."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from posixpath import basename, join
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar, Unpack, overload

from sandglass.client import workers
from sandglass.client.calls import Tools
from sandglass.client.connection import Answer, Asked
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
_LOOK_SECONDS = 0.1


class Sandbox:
    """Python in isolation. Variables stay from one `execute` to the next.

        with Sandbox(on_llm_query=ask, host_functions={"lookup": lookup}) as sandbox:
            sandbox.initialize(Path("letters.txt"))
            run = sandbox.execute("print(len(context)); x = llm_query(context[:100])")
            print(run.stdout, run.outcome, sandbox["x"])

    It starts the program that comes with this package, or connects to the server at `url`, with `api_key`. The options
    are those of `SandboxOptions`: see `help(Sandbox.__init__)`. Methods raise `SandboxError` when they cannot do their
    work. Threads may share a sandbox: its calls run one after the other.
    """

    def __init__(
        self, *, url: str | None = None, api_key: str | None = None, **options: Unpack[SandboxOptions]
    ) -> None:
        self._begin(Session("Sandbox", url, api_key, options))

    __init__.__doc__ = SandboxOptions.__doc__

    def _begin(self, session: Session) -> None:
        self._session = session
        connection = self._session.connect()
        answers: SimpleQueue[Answer] = SimpleQueue()
        ask = self._session.create()
        number = connection.ask(ask.method, ask.params, Asked(answers.put))
        try:
            answer = answers.get()
        except BaseException:
            connection.cancel(number)
            workers.begin(lambda: self._session.dropped(connection, answers.get()))
            raise
        self._session.created(connection, ask.result(answer))

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.backend}>"

    @property
    def backend(self) -> str:
        """The kind of backend: `bubblewrap`, `docker`, `subprocess` or `jupyter`."""
        return self._session.backend

    @property
    def capabilities(self) -> dict[str, Any]:
        """The sandbox's facts: `backend`, `soft_interrupt` (code can be interrupted and its state kept), and `python`.

        `python` is the version of the sandbox's Python, and None until that has started: see `start`.
        """
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
    def files(self) -> Files:
        """The files of the working folder, by path."""
        return Files(self)

    def start(self) -> None:
        """Starts Python now. Otherwise the first call that needs it does."""
        self._run(self._session.start())

    def initialize(self, context: Any) -> None:
        """Sets the variable `context`: to a text, bytes, any plain data, or the content of the file of a `Path`."""
        self._run(self._session.initialize(context))

    def add_context(self, value: Any, *, series: Literal["context", "history"] = "context") -> str:
        """Adds a variable: the next of `context_0`, `context_1`, … or of `history_0`, …. Returns its name."""
        return self._run(self._session.add_context(value, series))

    def execute(
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

        `timeout` is in milliseconds of Python's own time; waiting for host functions does not count. Ctrl-C interrupts
        the code, keeps its variables, and raises `KeyboardInterrupt` here. Listeners are called in this thread; what
        they raise interrupts the code, too.
        """
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return self._heard(listeners, lambda execution: self._session.execute(code, timeout, budget, execution))

    def _heard(self, listeners: Listeners, make_ask: Callable[[Execution], Ask[T]]) -> T:
        """Runs code, and calls the listeners meanwhile."""
        self._configure()
        inbox: SimpleQueue[Heard] = SimpleQueue()
        execution = self._session.execution(listeners, inbox.put)
        ask = make_ask(execution)
        connection, number = self._session.begin(ask, execution)
        try:
            while (heard := inbox.get()).answer is None:
                execution.hear(heard)
        except BaseException:
            connection.cancel(number)
            _await_end(execution, inbox)
            raise
        return ask.result(heard.answer)

    def pending(self) -> PendingExecution | None:
        """The execution that an earlier program has not finished, in a sandbox with `persist`.

        Until `resume` or `discard`, other calls raise `SandboxError` with the code `execution_pending`.
        """
        return self._run(self._session.pending())

    def resume(
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
        return self._heard(listeners, lambda execution: self._session.resume(answers, execution))

    def discard(self) -> None:
        """Gives the pending execution up. The state stays as it was before it."""
        self._run(self._session.discard())

    def last(self) -> CodeExecution | None:
        """The last execution that has ended, in a sandbox with `persist`, also if it ended in an earlier program.

        It has neither `value` nor `calls`, and `final` is made of JSON. None if there is none, or if it was too large.
        """
        return self._run(self._session.last())

    def replay(self, execution: int, answers: Mapping[int | str, Any] | None = None, *, ask: bool = False) -> Replay:
        """Runs an ended execution again by its journal, in a sandbox with `persist`. The sandbox stays as it is.

        Without `answers`, output and result are the same, or it raises `SandboxError` with the code `journal_differs`.
        `answers` take the place of those in the journal, by a call's place from 1 or its id. Then the result's
        `difference` says where the code first went another way. A call without an answer in the journal raises
        `HostCallError` in Python, or is made with `ask=True`. The code `no_checkpoint` says why there is no replay.
        """
        return self._heard({}, lambda run: self._session.replay(execution, answers, ask, run))

    @staticmethod
    def list_persisted(
        folder: str | PathLike[str] | None = None, *, url: str | None = None, api_key: str | None = None
    ) -> list[PersistedSandbox]:
        """The sandboxes that are kept by `persist`, the newest first, and 1000 at most.

        With `url`, those of the key on a server. Otherwise those in the folders of `folder`, which may be in use.
        """
        return list_persisted(fspath(folder) if folder is not None else None, url, api_key)

    @staticmethod
    def delete_persisted(name: str, *, url: str, api_key: str | None = None) -> None:
        """Removes what a server keeps by `persist=name`, if it keeps anything.

        Raises `SandboxError` with the code `persist_in_use` while a sandbox has the name.
        """
        delete_persisted(name, url, api_key)

    def execute_stream(
        self,
        pieces: Iterable[str],
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
        code = ""
        for piece in pieces:
            code += piece
            if "\n" in piece:
                self._send(self._session.written(code, timeout))
        return self.execute(
            code, timeout=timeout, budget=budget, on_stdout=on_stdout, on_stderr=on_stderr, on_display=on_display
        )

    def hint(self, codes: str | Sequence[str]) -> None:
        """Names code that may come next, the likeliest first. With the option `ahead`, it runs already."""
        self._send(self._session.hint(codes))

    def update_conversation(self, conversation: str | Sequence[Mapping[str, Any]]) -> None:
        """Gives the newest of the conversation, a text or messages, for `predictions`."""
        self._send(self._session.update_conversation(conversation))

    def interrupt(self) -> None:
        """Interrupts the running code, from another thread. Its variables are kept."""
        self._run(self._session.interrupt())

    def get_variable(self, name: str, default: Any = None) -> Any:
        """The value of a variable, or the default if there is no such variable."""
        return self._run(self._session.get_variable(name, default))

    def list_variables(self) -> list[Variable]:
        """The user's variables, with types and lengths."""
        return self._run(self._session.list_variables())

    def __getitem__(self, name: str) -> Any:
        value = self.get_variable(name, _MISSING)
        if value is _MISSING:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: Any) -> None:
        self._run(self._session.set_variable(name, value))

    def __contains__(self, name: object) -> bool:
        return any(variable.name == name for variable in self.list_variables())

    def __iter__(self) -> Iterator[str]:
        return iter([variable.name for variable in self.list_variables()])

    def __len__(self) -> int:
        return len(self.list_variables())

    def __bool__(self) -> bool:
        return True  # also without variables

    def capture_state(self, portable: bool = False) -> CapturedState:
        """The variables as bytes, for `open_state` of another sandbox. Never unpickle them: guests alone may.

        The state is for the same version of Python. Private names, modules, generators and open files are left out.
        With `portable`, the state is for every backend and every version of Python, and has modules and private names.
        `lost` of the result names what is left out.
        """
        return self._run(self._session.capture_state(portable))

    def open_state(self, state: bytes) -> list[Lost]:
        """Takes the variables of `capture_state`. Returns those that cannot be had here, each with the reason."""
        return self._run(self._session.open_state(state))

    @overload
    def fork(self, *, exact: bool = False) -> Sandbox: ...
    @overload
    def fork(self, count: int, *, exact: bool = False) -> list[Sandbox]: ...
    def fork(self, count: int | None = None, *, exact: bool = False) -> Sandbox | list[Sandbox]:
        """Copies the sandbox, with the same options and callbacks. With `count`, returns so many copies, or none.

        Each copy is isolated on its own, and has the variables, files and contexts by value. `state.lost` of its next
        execution names what it lacks, such as generators. Destroy it on its own.

        With `exact`, a copy has all that is in memory, and lacks nothing. It needs `checkpoints` of a sandbox in
        bubblewrap, on a host that is root. This sandbox then goes on without its older checkpoints.
        Exact copies are new: prefer copies by value for hostile code.
        """
        copies = []
        for session in self._run(self._session.fork(1 if count is None else count, exact)):
            copy = type(self).__new__(type(self))
            copy._session = session
            copies.append(copy)
        return copies[0] if count is None else copies

    def checkpoint(self) -> int:
        """Saves the state now. Returns the number of the execution whose state it is, 0 before the first."""
        return self._run(self._session.checkpoint())

    def undo(self) -> int:
        """Takes back the last execution, with the option `checkpoints`. Changes of files stay.

        Returns the number of the execution whose state it is, 0 before the first. Raises `SandboxError` with the code
        `no_checkpoint`, and changes nothing, when the state before it was not saved.
        """
        return self._run(self._session.undo())

    def restore(self, execution: int | None = None) -> int:
        """Goes back to the newest checkpoint of an execution, or of all.

        Returns and raises as `undo`.
        """
        return self._run(self._session.restore(execution))

    def stats(self) -> dict[str, Any]:
        """Counts of the sandbox's work so far: executions, restarts, host calls and the like."""
        return self._run(self._session.stats())

    def budget(self) -> BudgetState:
        """The amounts of the budget that are left, and those that are spent."""
        return self._run(self._session.budget())

    def destroy(self) -> None:
        """Ends the sandbox. Nothing of it is left afterwards; later calls raise. Doing it twice is no error."""
        ask = self._session.destroy()
        if not self._session.destroyed():
            return
        try:
            self._run(ask)
        except SandboxError as error:
            if not self._session.is_gone(error):
                raise

    close = destroy

    def _configure(self) -> None:
        ask = self._session.configure()
        if ask is not None:
            self._run(ask)

    def _run(self, ask: Ask[T]) -> T:
        answers: SimpleQueue[Answer] = SimpleQueue()
        connection, number = self._session.begin(ask, Asked(answers.put))
        try:
            answer = answers.get()
        except BaseException:
            connection.cancel(number)
            raise
        return ask.result(answer)

    def _send(self, ask: Ask[None]) -> None:
        self._session.begin(ask, Asked(ignore))


class Files(MutableMapping[str, bytes]):
    """The files of a sandbox: `files["a.csv"]` is bytes. Texts and files of a `Path` can be written, too."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._run, self._session = sandbox._run, sandbox._session

    def __getitem__(self, path: str) -> bytes:
        with _missing_is_key_error(path):
            return self._run(self._session.read_file(path))

    def __setitem__(self, path: str, data: bytes | str | Path) -> None:
        self._run(self._session.write_file(path, data))

    def __delitem__(self, path: str) -> None:
        with _missing_is_key_error(path):
            self._run(self._session.remove_file(path))

    def __contains__(self, path: object) -> bool:
        """True for files, also through links. It asks for the path alone, and reads nothing."""
        if not isinstance(path, str):
            return False
        found = self._look(path)
        if len(found) != 1 or found[0].type != "file":
            return False
        # A folder that holds one file has the same list as this file. Nothing is below a file.
        return found[0].path == path or not self._look(join(path, basename(found[0].path)))

    def _look(self, path: str) -> builtins.list[FileInfo]:
        try:
            return self.list(path)
        except SandboxError as error:
            # A `file_error` is no file that can be read: the path is outside, or a folder with too many files.
            if error.code in ("file_not_found", "file_error"):
                return []
            raise

    def __iter__(self) -> Iterator[str]:
        return iter([file.path for file in self.list() if file.type == "file"])

    def __len__(self) -> int:
        return sum(file.type == "file" for file in self.list())

    def list(self, folder: str = "") -> list[FileInfo]:
        """The files and folders below a folder, which is the working folder by default."""
        return self._run(self._session.list_files(folder))


_MISSING = object()


class _missing_is_key_error:
    """A missing file raises KeyError, as mappings do."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, SandboxError) and error.code == "file_not_found":
            raise KeyError(self._path) from error


def _await_end(execution: Execution, inbox: SimpleQueue[Heard]) -> None:
    """Waits until interrupted code has ended. A second Ctrl-C ends the waiting."""
    while execution.answer is None:
        with suppress(Empty):
            inbox.get(timeout=_LOOK_SECONDS)
