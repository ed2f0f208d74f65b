"""Files that describe cells."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Guest, installed

from sandglass.state.cell_files import show


def file_of(guest: Guest, which: str, about: bytes) -> bytes:
    """Makes the file of a cell. That repairs the interpreter, so the runtime has to be installed."""
    with installed(guest.runtime):
        return guest.state.cell_file(which, about)


def make(guest: Guest, which: str, **about: Any) -> dict[str, Any]:
    made = pickle.loads(file_of(guest, which, json.dumps(about).encode()))
    assert isinstance(made, dict)
    return made


def test_an_input_holds_what_its_cell_begins_with(guest: Guest) -> None:
    guest.ok(
        "import math, os.path\n"
        "from json import dumps as d\n"
        "if True:\n    import re\n"
        "try:\n    import nothing_like_this\nexcept ImportError:\n    pass\n"
        "@staticmethod\ndef plain(): pass\n"
        "def twice(x):\n    import inner\n    return 2 * x\n"
        "half = lambda x: x / 2\n"
        "class Point:\n    x = 1\n"
        "xs = [1, {'a': 'é'}]\n"
        "point = Point()\n"
    )
    made = make(guest, "input", code="xs", user="ann", session="s1", workspace="/workspace")
    assert (made["code"], made["user"], made["session"], made["workspace"]) == ("xs", "ann", "s1", "/workspace")
    assert made["namespace"] == {"xs": [1, {"a": "é"}], "d": json.dumps}
    assert made["import_statements"] == ["import math, os.path", "from json import dumps as d", "import re"]
    assert made["function_definitions"] == [
        "def twice(x):\n    import inner\n    return 2 * x\n",
        "half = lambda x: x / 2\n",
    ]
    assert made["class_definitions"] == ["class Point:\n    x = 1\n"]
    assert set(made["not_pickled"]) == {"math", "os", "re", "plain", "twice", "half", "Point", "point"}


def test_a_decorated_function_has_its_decorator(guest: Guest) -> None:
    guest.ok("import functools\n@functools.lru_cache\n@functools.wraps(len)\ndef f():\n    return 1\n")
    guest.ok("def deco(g):\n    @functools.wraps(g)\n    def h(): return g()\n    return h\n")
    guest.ok("@deco\ndef k():\n    return 1\n")
    assert "@deco\ndef k():\n    return 1\n" in make(guest, "input")["function_definitions"]


def test_the_newest_definition_counts_and_none_of_what_is_gone(guest: Guest) -> None:
    guest.ok("def f(): return 1\ndef g(): return 1\nclass C: pass\nimport json")
    guest.ok("def f(): return 2\ndel g, json\nclass C: x = 2")
    made = make(guest, "input")
    assert made["function_definitions"] == ["def f(): return 2\n"]
    assert made["class_definitions"] == ["class C: x = 2\n"]
    assert made["import_statements"] == []


def test_an_output_has_the_result_and_the_names_that_changed(guest: Guest) -> None:
    guest.ok("kept = [1]; mutated = [1]; gone = 1; same = 5\ndef f(): return 1\ndef g(): return 1\nopen_ = iter([])")
    make(guest, "input", code="…")
    guest.ok("mutated.append(2); del gone; new = 1; same = 5\ndef g(): return 2")
    result = {"id": 2, "stdout": "out", "guestTime": 1.5, "outcome": "ok", "hostCalls": 0}
    made = make(guest, "output", result=result)
    assert (made["id"], made["stdout"], made["guest_time"], made["error"]) == (2, "out", 1.5, None)
    assert made["changed"] == ["mutated", "g", "new"]
    assert made["removed"] == ["gone"]
    assert "def g(): return 2\n" in made["function_definitions"]
    # Without the state from before the cell, as in a new guest or the second time, the changes are unknown.
    assert make(guest, "output", result=result)["changed"] is None


def test_values_that_are_too_large_are_named_and_cost_the_others_nothing(guest: Guest) -> None:
    guest.ok("small = 1; large = 'x' * 10_000; also_small = 'y' * 100")
    made = make(guest, "input", maxBytes=5_000)
    assert made["namespace"] == {"small": 1, "also_small": "y" * 100}
    assert "too large" in made["not_pickled"]["large"]


def test_what_values_do_while_they_are_pickled_costs_them_only(guest: Guest) -> None:
    guest.ok(
        "import sys, builtins\n"
        "class Bad:\n    def __reduce__(self):\n        sys.exit(3)\n"
        "class Fickle(dict):\n"
        "    n = 0\n"
        "    def __reduce__(self):\n"
        "        Fickle.n += 1\n"
        "        if Fickle.n > 1: raise ValueError('no more')\n"
        "        return dict, ()\n"
        "bad, deep, ok = Bad(), [], 1\n"
        "for _ in range(100_000): deep = [deep]\n"
        "loop = []; loop.append(loop)\n"
    )
    made = make(guest, "input")
    assert made["namespace"]["ok"] == 1 and made["namespace"]["loop"][0] is made["namespace"]["loop"]
    assert {"bad", "deep"} <= set(made["not_pickled"])
    guest.ok("fickle = Fickle()")
    assert "no more" in make(guest, "input")["not_pickled"]["fickle"]


def test_an_interrupt_passes_through(guest: Guest) -> None:
    guest.ok("class Stops:\n    def __reduce__(self): raise KeyboardInterrupt\nx = Stops()")
    with pytest.raises(KeyboardInterrupt):
        make(guest, "input")


def test_nonsense_is_refused(guest: Guest) -> None:
    for which, about in (("other", b"{}"), ("input", b"[]"), ("input", b"{"), ("input", b"\xff")):
        with pytest.raises(ValueError):
            file_of(guest, which, about)


def test_any_python_opens_one(guest: Guest, tmp_path: Path) -> None:
    guest.ok("xs = [1, 2]; half = lambda x: x / 2")
    made = file_of(guest, "input", b'{"code": "xs"}')
    file = tmp_path / "1_input.pkl"
    file.write_bytes(made)
    program = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb'))['namespace']['xs'])"
    done = subprocess.run([sys.executable, "-I", "-c", program, file], capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 2]\n"


def test_a_file_is_shown(guest: Guest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    guest.ok("import math\nxs = [1, 2]\ndef f():\n    return 1")
    made = file_of(guest, "input", b'{"code": "a = 1\\nb = 2"}')
    file = tmp_path / "1_input.pkl"
    file.write_bytes(made)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sandglass.state.cell_files import show; show(sys.argv[2])"
    )
    package = Path(__file__).parents[2] / "pyodide-glue" / "python"
    command = [sys.executable, "-I", "-c", program, package, file]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stdout
    for line in ("code:\n    a = 1\n    b = 2\n", "    xs = [1, 2]  (list)\n", "    import math\n", "    def f():\n"):
        assert line in shown, shown
    (tmp_path / "other.pkl").write_bytes(pickle.dumps([1]))
    show(str(tmp_path / "other.pkl"))


def test_a_file_is_shown_where_a_cell_prints(guest: Guest, tmp_path: Path) -> None:
    guest.ok("xs = [1, 2]")
    made = file_of(guest, "input", b'{"code": "xs"}')
    file = tmp_path / "1_input.pkl"
    file.write_bytes(made)
    cell = guest.ok(f"from sandglass.state.cell_files import show\nshow({str(file)!r})")
    assert "    xs = [1, 2]  (list)\n" in cell.stdout
