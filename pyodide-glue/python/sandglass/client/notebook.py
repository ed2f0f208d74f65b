"""`Notebook` and `AsyncNotebook`: sandboxes whose cells leave files. See docs/python.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, Unpack

from sandglass.client.asynchronous import AsyncSandbox
from sandglass.client.execution import Cell, Display
from sandglass.client.options import Budget, SandboxOptions
from sandglass.client.sandbox import Sandbox
from sandglass.client.session import Session


class _Known:
    """The last result of each cell. The host tells all but these, which may be large."""

    def __init__(self) -> None:
        self._cells: dict[str, Cell] = {}

    def ran(self, cell: Cell) -> Cell:
        self._cells[cell.id] = cell
        return cell

    def complete(self, cells: list[Cell]) -> list[Cell]:
        """The cells with their results, as far as the last run had one."""

        def result_of(cell: Cell) -> Cell:
            known = self._cells.get(cell.id)
            return cell if known is None or known.runs != cell.runs else replace(cell, execution=known.execution)

        return [result_of(cell) for cell in cells]


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
        cell = self._heard(listeners, lambda execution: self._session.run_cell(id, code, timeout, budget, execution))
        return self._known.ran(cell)

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
        cell = self._heard(listeners, lambda execution: self._session.run_cell(id, None, timeout, budget, execution))
        return self._known.ran(cell)

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
        self._run(self._session.delete_cell(id))

    def clear(self) -> None:
        """Starts over: without cells, their files and variables. Other files of the workspace stay."""
        self._run(self._session.clear_cells())


class AsyncNotebook(AsyncSandbox):
    """`Notebook` with `await`. Its other methods are those of `AsyncSandbox`."""

    def __init__(self, **options: Unpack[SandboxOptions]) -> None:
        super().__init__()
        self._session = Session("AsyncNotebook", None, None, options, has_cells=True)
        self._known = _Known()

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
        cell = await self._heard(
            listeners, lambda execution: self._session.run_cell(id, code, timeout, budget, execution)
        )
        return self._known.ran(cell)

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
        cell = await self._heard(
            listeners, lambda execution: self._session.run_cell(id, None, timeout, budget, execution)
        )
        return self._known.ran(cell)

    async def cells(self) -> list[Cell]:
        """The cells in order."""
        return self._known.complete(await self._run(self._session.list_cells()))

    async def cell_file(self, id: str, file: Literal["input", "output"]) -> bytes:
        """The bytes of one of a cell's files: see `Notebook.cell_file`."""
        return await self._run(self._session.cell_file(id, file))

    async def delete_cell(self, id: str) -> None:
        """Removes a cell and its files. Its effects on variables stay."""
        await self._run(self._session.delete_cell(id))

    async def clear(self) -> None:
        """Starts over: without cells, their files and variables. Other files of the workspace stay."""
        await self._run(self._session.clear_cells())
