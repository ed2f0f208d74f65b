"""One way to keep a session's state, once, for `npm run bench:states`: `python states.py WAY [resident]`.

Runs the cells of `session.py`, and prints a line of JSON:

    run      milliseconds of each cell without keeping its state
    total    milliseconds of each cell with it, until the next cell can begin
    bytes    what is kept after the last cell
    states   how many states that is
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from session import CELLS, RESIDENT

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = {"memory_limit": 4 << 30, "max_value_size": 2_000_000_000, "wall_timeout": 600_000}
"""The limits of a sandbox with a GB of state, the largest there are."""
MAX_CHECKPOINTS = 16
PAUSE = 0.1
"""Seconds between cells, in which a model would write the next one."""
THINKS = 3.0
"""Seconds between cells, in which a large model would write the next one."""
WARM = "sum(range(1000))"
"""A cell before the first, after which the guest has started."""


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


class Sink:
    """A file that counts its bytes and keeps none, so that no disk is measured."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Any) -> int:
        self.size += memoryview(data).nbytes
        return memoryview(data).nbytes

    def flush(self) -> None:
        """There is nothing to do."""


# --- Sandglass --------------------------------------------------------------------------------------------------------


class Box:
    """A sandbox whose guest has the packages of this Python."""

    def __init__(self, before: list[str], **options: Any) -> None:
        from sandglass import Sandbox

        backend = os.environ.get("SANDGLASS_BACKEND", "bubblewrap")
        self.sandbox = Sandbox(backend=backend, python=sys.executable, **options, **LARGE)
        for cell in (WARM, *before):
            self.run(cell)

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.sandbox.close()

    def run(self, code: str) -> None:
        done = self.sandbox.execute(code)
        if done.outcome != "ok" or done.unkept:
            raise RuntimeError(f"{done.outcome}: {done.traceback or done.error or done.unkept}")


def copies(before: list[str], pause: float) -> dict[str, Any]:
    """Copies of the process, beside the same session without. A cell waits until the state before it is copied."""
    with Box([*before, *CELLS]):  # reads the packages' files, so that the first of the two need not
        pass
    times: dict[int, list[float]] = {}
    sizes: dict[int, int] = {}
    states = 0
    for checkpoints in (0, MAX_CHECKPOINTS):
        with Box(before, checkpoints=checkpoints) as box:
            took = times[checkpoints] = []
            for cell in CELLS:
                time.sleep(pause)
                took.append(timed(lambda cell=cell: box.run(cell)))
            time.sleep(PAUSE)  # the last copy
            sizes[checkpoints] = memory()
            while checkpoints and states < MAX_CHECKPOINTS and goes_back(box):
                states += 1
    return {
        "run": times[0],
        "total": times[MAX_CHECKPOINTS],
        "bytes": sizes[MAX_CHECKPOINTS] - sizes[0],
        "states": states,
    }


def goes_back(box: Box) -> bool:
    """Takes back an execution. Returns false if there is no state for that."""
    from sandglass import SandboxError

    try:
        box.sandbox.undo()
    except SandboxError as error:
        if error.code != "no_checkpoint":
            raise
        return False
    return True


def kept(before: list[str], pause: float) -> dict[str, Any]:
    """A sandbox that a folder keeps, beside the same session without. Each cell is durable when it is answered."""
    with Box([*before, *CELLS]):  # reads the packages' files, so that the first of the two need not
        pass
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for options in ({}, {"persist": folder}):
            with Box(before, **options) as box:
                took: list[float] = []
                for cell in CELLS:
                    time.sleep(pause)
                    took.append(timed(lambda cell=cell, box=box: box.run(cell)))
                times.append(took)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {"run": times[0], "total": times[1], "bytes": size, "states": 1}


def portable(before: list[str]) -> dict[str, Any]:
    """A portable state after each cell, which a server's store keeps."""
    run, total = [], []
    size = 0
    with (
        subprocess.Popen([os.environ["SANDGLASS_STORE"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as store,
        Box(before) as box,
    ):
        assert store.stdin
        assert store.stdout
        for cell in CELLS:
            took = timed(lambda cell=cell: box.run(cell))
            run.append(took)
            began = time.perf_counter()
            state = box.sandbox.capture_state(portable=True)
            total.append(took + (time.perf_counter() - began) * 1000)
            store.stdin.write(len(state).to_bytes(8, "little"))
            store.stdin.write(state)
            store.stdin.flush()
            # The store is done before the next cell begins, and takes none of its time.
            size = int(store.stdout.readline())
        store.stdin.close()
    return {"run": run, "total": total, "bytes": size, "states": len(CELLS)}


def memory() -> int:
    """The bytes of this process's descendants. Shared pages count once."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
                )
            except OSError:
                continue  # it has ended
    found, todo = set(), [os.getpid()]
    while todo:
        pid = todo.pop()
        more = [child for child, parent in parents.items() if parent == pid and child not in found]
        found.update(more)
        todo += more
    return sum(map(resident_bytes, found))


def resident_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


# --- Rivals -----------------------------------------------------------------------------------------------------------


def whole(before: list[str]) -> dict[str, Any]:
    """All variables by cloudpickle, compressed by lz4, after each cell."""
    import cloudpickle
    import lz4.frame

    names: dict[str, Any] = {"__name__": "__main__"}
    sink = Sink()

    def keep() -> None:
        variables = {name: value for name, value in names.items() if name[:2] != "__"}
        with lz4.frame.LZ4FrameFile(sink, "wb") as file:
            cloudpickle.dump(variables, file)

    for cell in before:
        exec(cell, names)
    run, total = [], []
    for cell in CELLS:
        took = timed(lambda cell=cell: exec(cell, names))
        run.append(took)
        total.append(took + timed(keep))
    return {"run": run, "total": total, "bytes": sink.size, "states": len(CELLS)}


def kishu(before: list[str]) -> dict[str, Any]:
    """Kishu in IPython, by its hooks. Its mode for tests leaves out what needs a browser: saving the notebook."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(KISHU_PATH_ROOT=folder, ENV_KISHU_TEST_MODE="true", HOME=folder)
        import nbformat
        from IPython.core.interactiveshell import InteractiveShell
        from kishu.jupyterint import KishuForJupyter
        from kishu.notebook_id import NotebookId

        notebook = Path(folder) / "bench.ipynb"
        nbformat.write(nbformat.v4.new_notebook(), notebook)
        shell = InteractiveShell()
        keeper = KishuForJupyter(NotebookId(key="bench", path=notebook, kernel_id="bench"), ip=shell)
        spent: list[float] = []
        shell.events.register("pre_run_cell", lambda info: spent.append(timed(lambda: keeper.pre_run_cell(info))))
        shell.events.register("post_run_cell", lambda done: spent.append(timed(lambda: keeper.post_run_cell(done))))
        database = keeper.database_path()

        def execute(cell: str) -> float:
            spent.clear()
            took = timed(lambda: shell.run_cell(cell, store_history=True).raise_error())
            if len(spent) != 2:
                raise RuntimeError("one of its hooks failed")
            return took

        for cell in before:
            execute(cell)
        run, total = [], []
        for cell in CELLS:
            total.append(execute(cell))
            run.append(total[-1] - sum(spent))
        return {"run": run, "total": total, "bytes": size_of(database), "states": len(CELLS)}


def size_of(database: Path) -> int:
    return sum(file.stat().st_size for file in database.parent.glob(f"{database.name}*"))


WAYS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "copies": lambda before: copies(before, 0.0),
    "copies-apart": lambda before: copies(before, PAUSE),
    "kept": lambda before: kept(before, 0.0),
    "kept-apart": lambda before: kept(before, THINKS),
    "portable": portable,
    "cloudpickle": whole,
    "kishu": kishu,
}


def main() -> None:
    way, *options = sys.argv[1:]
    before = [RESIDENT] if "resident" in options else []
    with redirect_stdout(sys.stderr):  # what cells print
        measured = WAYS[way](before)
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
