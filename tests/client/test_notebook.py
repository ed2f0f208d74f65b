"""`Notebook` and `AsyncNotebook`: cells and their files."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from client_host import PLAIN, PROGRAM

from sandglass import AsyncNotebook, Notebook, Sandbox, SandboxError
from sandglass.client.connection import Answer, Asked


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / ".repl").iterdir())


def test_cells(tmp_path: Path) -> None:
    printed: list[str] = []
    with Notebook(workspace=tmp_path, host_functions={"double": lambda n: 2 * n}, **PLAIN) as notebook:
        assert repr(notebook) == "<Notebook on subprocess>"
        first = notebook.run("x = [double(2)]\nx", on_stdout=printed.append)
        assert (first.id, first.runs, first.missing) == ("cell_1", 1, [])
        assert first.execution is not None
        assert first.execution.value == [4]
        assert [call.name for call in first.execution.calls] == ["double"]
        named = notebook.run("x.append(3)\nprint('hi')", "more", on_stdout=printed.append)
        assert (named.id, "".join(printed)) == ("more", "hi\n")
        again = notebook.rerun("cell_1")
        assert (again.runs, again.code) == (2, first.code)
        replaced = notebook.run("1 / 0", "more")
        assert replaced.execution is not None
        assert (replaced.runs, replaced.execution.error_type) == (2, "ZeroDivisionError")
        assert notebook.cells() == [again, replaced]
        assert files(tmp_path) == [f"{cell}_{file}.pkl" for cell in ("cell_1", "more") for file in ("input", "output")]
        assert notebook.cell_file("more", "output") == (tmp_path / ".repl/more_output.pkl").read_bytes()
        # It is a sandbox, too.
        assert notebook["x"] == [4]
        notebook.files["a.txt"] = "text"
        assert notebook.execute("open('a.txt').read()").value == "text"
        for wrong in ("../x", "none"):
            with pytest.raises(SandboxError) as refused:
                notebook.rerun(wrong)
            assert refused.value.code == "invalid_option"
        with pytest.raises(SandboxError) as used:
            Notebook(workspace=tmp_path, **PLAIN)
        assert used.value.code == "workspace_in_use"
        notebook.delete_cell("more")
        assert [cell.id for cell in notebook.cells()] == ["cell_1"]
        assert len(files(tmp_path)) == 2
        notebook.tools["triple"] = lambda n: 3 * n
        notebook.clear()
        assert notebook.cells() == []
        new = notebook.run("'x' in globals(), triple(1), open('a.txt').read()")
        assert new.id == "cell_1"
        assert new.execution is not None
        assert new.execution.value == [False, 3, "text"]
    # The files stay, and the next notebook goes on counting.
    with Notebook(workspace=tmp_path, **PLAIN) as notebook:
        assert notebook.cells() == []
        assert notebook.run("1").id == "cell_2"
        assert notebook.cell_file("cell_1", "input")
    shown = subprocess.run(
        [PROGRAM, "cell", "--backend", "subprocess", tmp_path / ".repl/cell_2_output.pkl"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "outcome: 'ok'" in shown.stdout


def test_asynchronous(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncNotebook(workspace=tmp_path, **PLAIN) as notebook:
            cell = await notebook.run("x = 1\nx")
            assert cell.execution is not None
            assert cell.execution.value == 1
            begun = asyncio.Event()
            code = "kept = 1\nprint(kept, flush=True)\nwhile True: pass"
            endless = asyncio.create_task(notebook.run(code, "endless", on_stdout=lambda _: begun.set()))
            await begun.wait()
            endless.cancel()
            with pytest.raises(asyncio.CancelledError):
                await endless
            assert await notebook.get_variable("kept") == 1
            assert (await notebook.rerun("cell_1")).runs == 2
            assert [(cell.id, cell.runs) for cell in await notebook.cells()] == [("cell_1", 2), ("endless", 1)]
            assert await notebook.cell_file("cell_1", "output")
            await notebook.delete_cell("cell_1")
            await notebook.clear()
            assert await notebook.get_variable("x") is None

    asyncio.run(asyncio.wait_for(main(), 60))


class Driven:
    """An `AsyncNotebook`, as if it were a `Notebook`."""

    def __init__(self, notebook: AsyncNotebook) -> None:
        self._notebook = notebook
        self._loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._notebook, name)
        return lambda *args, **kwargs: self._loop.run_until_complete(method(*args, **kwargs))


@pytest.fixture(params=["Notebook", "AsyncNotebook"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    options: Any = {"workspace": tmp_path, **PLAIN}
    if request.param == "Notebook":
        with Notebook(**options) as notebook:
            yield notebook
    else:
        driven = Driven(AsyncNotebook(**options))
        yield driven
        driven.destroy()
        driven._loop.close()


def interrupt(notebook: Any, *name: str) -> None:
    """Runs a cell whose call does not get the result."""

    def enough(text: str) -> None:
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        notebook.run("print('on', flush=True)\nwhile True: pass", *name, on_stdout=enough)


def test_a_cell_that_could_not_be_run_has_no_result(either: Any) -> None:
    either.run("'old'", "a")
    assert [(cell.execution.value, cell.outcome) for cell in either.cells()] == [("old", "ok")]
    with pytest.raises(SandboxError, match="timeout"):
        either.run("'wrong'", "a", timeout=-1)
    assert [(cell.code, cell.execution, cell.outcome) for cell in either.cells()] == [("'wrong'", None, None)]
    either.run("'new'", "a")
    with pytest.raises(SandboxError):
        either.rerun("b")
    assert [cell.execution.value for cell in either.cells()] == ["new"]


def test_a_cell_has_no_result_of_another_cell_of_its_name(either: Any) -> None:
    for start_over in (lambda: either.delete_cell("a"), either.clear):
        either.run("'old'", "a")
        start_over()
        interrupt(either, "a")
        assert [(cell.runs, cell.execution, cell.outcome) for cell in either.cells()] == [(1, None, "interrupted")]
        either.clear()
    either.run("'old'")
    either.clear()
    interrupt(either)
    assert [(cell.id, cell.runs, cell.execution) for cell in either.cells()] == [("cell_1", 1, None)]


def test_a_clear_whose_answer_nobody_awaits_is_not_half_done(tmp_path: Path) -> None:
    with Notebook(workspace=tmp_path, **PLAIN) as notebook:
        notebook.tools["double"] = lambda n: 2 * n
        notebook.run("double(1)")
        answers: SimpleQueue[Answer] = SimpleQueue()
        notebook._session.begin(notebook._session.clear_cells(), Asked(answers.put))
        cell = notebook.run("double(2)")
        assert cell.execution is not None
        assert cell.execution.value == 4
        answers.get().result()


def test_guests_do_not_see_the_files() -> None:
    # Guests of root are other users, who may not pass through pytest's folders.
    with TemporaryDirectory() as folder, Notebook(workspace=folder, backend="bubblewrap") as notebook:
        notebook.run("x = 1")
        cell = notebook.run("import os\nopen('own.txt', 'w').close()\nos.listdir('.repl'), sorted(os.listdir('.'))")
        assert cell.execution is not None
        assert cell.execution.value == [[], [".repl", "own.txt"]]
        assert len(files(Path(folder))) == 4


def test_options() -> None:
    with pytest.raises(TypeError, match="workspace"):
        Notebook(**PLAIN)
    with pytest.raises(TypeError, match="no option 'notebook'"):
        Sandbox(notebook=True, **PLAIN)  # type: ignore[call-arg]
