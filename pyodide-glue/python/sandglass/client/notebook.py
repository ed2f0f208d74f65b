"""`Notebook` and `AsyncNotebook`: sandboxes whose cells leave files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack

from sandglass.client.asynchronous import AsyncSandbox
from sandglass.client.execution import Cell, Display
from sandglass.client.options import Budget, SandboxOptions
from sandglass.client.sandbox import Sandbox
from sandglass.client.session import Listeners, Session


class _Known:
    """The last result of each cell, as far as the caller got one. The host tells all but these, which may be large."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def forget(self, id: str | None) -> None:
        """Forgets a result, before the cell changes: a call that fails may have changed it all the same."""
        if id is not None:
            self._cells.pop(id, None)

    def ran(self, cell: Cell) -> Cell:
        """Keeps a result."""
        self._cells[cell.id] = cell
        return cell

    def complete(self, cells: list[Cell]) -> list[Cell]:
        """The cells with their results."""
        return [self._with_result(cell) for cell in cells]

    def _with_result(self, cell: Cell) -> Cell:
        known = self._cells.get(cell.id)
        if known is None or known.runs != cell.runs or cell.outcome is None:
            return cell
        return replace(cell, execution=known.execution)


class Notebook(Sandbox):
    """A sandbox with cells. Each run of a cell leaves two files in the folder `.repl` of the workspace.

        with Notebook(workspace="analysis") as notebook:
            notebook.run("x = [1, 2]")
            cell = notebook.run("sum(x)")
            print(cell.id, cell.execution.value)
            notebook.rerun(cell.id)

    `workspace` is its folder on this machine, which no other notebook may use meanwhile. The other options and methods
    are those of `Sandbox`; what `execute` runs is no cell.
    """

    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        self._known = _Known()
        self._begin(Session("Notebook", None, None, options, has_cells=True))

    __init__.__doc__ = SandboxOptions.__doc__

    def __enter__(self) -> Notebook:
        return self

    def run(
        self,
        code: str,
        id: str | None = None,
        *,
        timeout: float | None = None,
        budget: Budget | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> Cell:
        """Adds a cell at the end and runs it. With the name of a cell, replaces that cell's source. As `execute`."""
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return self._ran(listeners, id, code, timeout, budget)

    def rerun(
        self,
        id: str,
        *,
        timeout: float | None = None,
        budget: Budget | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> Cell:
        """Runs a cell again, with the variables as they are now."""
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return self._ran(listeners, id, None, timeout, budget)

    def cells(self) -> list[Cell]:
        """The cells in order."""
        return self._known.complete(self._run(self._session.list_cells()))

    def cell_file(self, id: str, file: Literal["input", "output"]) -> bytes:
        """The bytes of one of a cell's files, also of an earlier notebook's.

        They are a pickle that untrusted code made. Never load it: `sandglass-host cell FILE` shows it in a sandbox.
        """
        return self._run(self._session.cell_file(id, file))

    def delete_cell(self, id: str) -> None:
        """Removes a cell and its files. Its effects on variables stay."""
        self._known.forget(id)
        self._run(self._session.delete_cell(id))

    def clear(self) -> None:
        """Starts over: without cells, their files and variables. Other files of the workspace stay."""
        self._known = _Known()  # a run that is not answered yet keeps its result in the old one
        self._run(self._session.clear_cells())

    def _ran(
        self, listeners: Listeners, id: str | None, code: str | None, timeout: float | None, budget: Budget | None
    ) -> Cell:
        known = self._known
        known.forget(id)
        return known.ran(
            self._heard(listeners, lambda execution: self._session.run_cell(id, code, timeout, budget, execution))
        )


class AsyncNotebook(AsyncSandbox):
    """`Notebook` with `await`. Its other methods are those of `AsyncSandbox`."""

    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        super().__init__()
        self._session = Session("AsyncNotebook", None, None, options, has_cells=True)
        self._known = _Known()

    __init__.__doc__ = SandboxOptions.__doc__

    async def __aenter__(self) -> AsyncNotebook:
        await self._open()
        return self

    async def run(
        self,
        code: str,
        id: str | None = None,
        *,
        timeout: float | None = None,
        budget: Budget | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> Cell:
        """Adds a cell at the end and runs it. With the name of a cell, replaces that cell's source. As `execute`."""
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return await self._ran(listeners, id, code, timeout, budget)

    async def rerun(
        self,
        id: str,
        *,
        timeout: float | None = None,
        budget: Budget | None = None,
        on_stdout: Callable[[str], object] | None = None,
        on_stderr: Callable[[str], object] | None = None,
        on_display: Callable[[Display], object] | None = None,
    ) -> Cell:
        """Runs a cell again, with the variables as they are now."""
        listeners = {"stdout": on_stdout, "stderr": on_stderr, "display": on_display}
        return await self._ran(listeners, id, None, timeout, budget)

    async def cells(self) -> list[Cell]:
        """The cells in order."""
        return self._known.complete(await self._run(self._session.list_cells()))

    async def cell_file(self, id: str, file: Literal["input", "output"]) -> bytes:
        """The bytes of one of a cell's files: see `Notebook.cell_file`."""
        return await self._run(self._session.cell_file(id, file))

    async def delete_cell(self, id: str) -> None:
        """Removes a cell and its files. Its effects on variables stay."""
        self._known.forget(id)
        await self._run(self._session.delete_cell(id))

    async def clear(self) -> None:
        """Starts over: without cells, their files and variables. Other files of the workspace stay."""
        self._known = _Known()  # a run that is not answered yet keeps its result in the old one
        await self._run(self._session.clear_cells())

    async def _ran(
        self, listeners: Listeners, id: str | None, code: str | None, timeout: float | None, budget: Budget | None
    ) -> Cell:
        known = self._known
        known.forget(id)
        return known.ran(
            await self._heard(listeners, lambda execution: self._session.run_cell(id, code, timeout, budget, execution))
        )
