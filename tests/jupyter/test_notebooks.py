"""The example notebooks: their outputs are those in the repository, and their variables are as promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"

#: Assertions for each notebook, checked before its last cell, which cleans up.
PROMISES = {
    "needle": """
assert result.final_answer == "9034" and repl.locals["code"] == "9034" and len(repl.locals["odd"]) == 2
assert repl.locals["context"] is context and len(context) > 18_000_000
""",
    "turns": """
there = repl.locals
assert there["context"] == there["context_0"] == there["session_context_0"] == there["context_history"][0]
assert there["context_1"] is there["session_context_1"] is there["completion_context"] is there["context_history"][1]
assert there["session_history"] == [there["history_0"], there["history_1"]] and there["history"] is there["history_0"]
assert there["history_1"][1]["content"] == "91 years later" and there["years"] == [1815, 1843]
assert (repl.get_context_count(), repl.get_history_count()) == (2, 2)
""",
    "variables": """
assert orders[0] == {"city": "Oslo", "amount": 45} and repl.locals["orders"] is orders
assert "totals" not in globals() and "rate" not in repl.locals and api_key == "none of the model's business"
""",
}


@pytest.mark.parametrize("name", sorted(PROMISES))
def test_notebook(name: str, pytestconfig: pytest.Config) -> None:
    path = FOLDER / f"{name}.ipynb"
    committed = nbformat.read(path, as_version=4)
    run = nbformat.from_dict(committed)
    promise = nbformat.v4.new_code_cell(PROMISES[name])
    at = len(run.cells) - 1
    run.cells.insert(at, promise)
    NotebookClient(run, timeout=60, kernel_name="python3", record_timing=False).execute()
    del run.cells[at]
    run.metadata.pop("language_info", None)  # depends on the kernel that ran it
    for number, cell in enumerate((cell for cell in run.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    if pytestconfig.getoption("write"):
        nbformat.write(run, path)
    shown = [_outputs(cell) for cell in run.cells]
    assert any(shown) and shown == [_outputs(cell) for cell in nbformat.read(path, as_version=4).cells]


def test_all_of_them_are_run() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(PROMISES)


def _outputs(cell: Any) -> list[Any]:
    """The outputs of a cell, with the pieces of each stream joined."""
    found: list[Any] = []
    for output in cell.get("outputs", ()):
        kind = output.output_type
        if kind == "stream" and found and found[-1][0] == output.name:
            found[-1][1] += output.text
        else:
            found.append([output.name, output.text] if kind == "stream" else [kind, dict(output.get("data", {}))])
    return found
