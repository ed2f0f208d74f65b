"""Cells that run statement by statement. The result is that of the whole cell, even if the text comes in pieces."""

from __future__ import annotations

import ast
import gc
import itertools
import linecache
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import CONFIG, Guest

from sandglass.runtime import compiling
from sandglass.runtime.compiling import Growing

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Cells of several statements.
CELLS = {
    "values": "a = 1\nb = a + 1\nprint(b)\n[a, b]",
    "a last statement that is no expression": "a = 1\na += 1\nprint(a)\ndel a",
    "functions": "def f(n):\n    return g(n) * 2\n\ndef g(n):\n    return n + 1\n\nf(3)",
    "decorators": "def twice(f):\n    return lambda: 2 * f()\n\n@twice\ndef five(): return 5\n\nfive()",
    "a class": "class A:\n    x = 1\n    def f(self):\n        return __class__.x\nA.x = 7\nA().f()",
    "blocks that go on": "if 0:\n    a = 1\n# still\nelse:\n    a = 2\ntry:\n    1/0\nexcept ZeroDivisionError:\n    a += 1\nfinally:\n    a *= 5\na",
    "a long text": "a = '''x = 1\ny = 2\n'''\nb = (1,\n2)\na, b",
    "a backslash": "a = 1 + \\\n2\nb = a\nb",
    "lines that end otherwise": "a = 1\r\nb = [a,\r\n2]\r\nb",
    "an error": "print('one')\nx = 1\n\ndef f():\n    raise ValueError('no')\nf()\nprint('never')",
    "an error in what came before": "def f(n):\n    # why\n    return 1 / n\n\nf(0)\nprint('never')\n'more'",
    "a chain": "try:\n    {}[1]\nexcept KeyError as e:\n    error = e\nraise ValueError from error",
    "SUBMIT": "a = 1\nSUBMIT(a)\nprint('never')",
    "FINAL": "FINAL(1)\nprint('on')\nFINAL(2)",
    "the future": "'text'\nfrom __future__ import annotations\ndef f(a: missing): ...\nf.__annotations__",
    "a text at the beginning": "'the text'\na = 1\n__doc__",
    "a text elsewhere": "a = __doc__\n'no text'\n'nor this'\na == __doc__",
    "global": "global a\na = 1\ndef f():\n    global a\n    a = 2\nf()\na",
    "who is who": "a = 1000\nb = 1000\n(a is b, (lambda: 1000)() is a)",
    "await in a function": "import asyncio\nasync def f():\n    return await asyncio.sleep(0, 5)\nx = asyncio.run(f())\nx",
    "frames": "import sys\nf = sys._getframe()\ng = sys._getframe()\n(f is g, f.f_lineno, g.f_lineno, f.f_code.co_name, f.f_code.co_filename[:5])",
    "the stack": "import traceback\nfirst = traceback.format_stack()[-4:]\nsecond = traceback.format_stack()[-4:]\nprint(first, second)",
    "little of the stack": "import sys\nlimit = sys.getrecursionlimit()\nsys.setrecursionlimit(len(sys._current_frames()) + 90)\nx = [1]\nsys.setrecursionlimit(limit)\nx",
    "other builtins": "import builtins\nbuiltins.next = builtins.isinstance = builtins.map = None\nx = [1]\nx",
    "other lines": "import linecache\nlinecache.cache = {}\ndef f(): 1 / 0\nf()",
    "no filters": "import warnings\nfilters = warnings.filters\ndel warnings.filters\nx = 1\nwarnings.filters = filters",
    "how deep": "import inspect\na = len(inspect.stack(0))\nb = len(inspect.stack(0))\na == b",
    "type hints": "x: int = 1\ny: 'str' = 'z'\nx",
    "semicolons": "a = 1; b = 2\nc = a; c; b",
    "a walrus and a comprehension": "(a := 5)\nb = [a for a in range(3)]\nc = [(d := i) for i in b]\n(a, b, c, d)",
    "nothing but comments at the end": "a = 1\na\n# done",
    "what ends while more is compiled": "import gc\nclass A:\n    def __del__(self): print('gone')\na = A()\na.me = a\ndel a\n"
    + "".join(f"v{n} = [1, (1, 1)]\n" for n in range(120))
    + "gc.collect()\nprint('end')",
    "a text before a block": "'the text'\nif 1:\n    a = 1\n__doc__",
    "a text before a function": "'the text'\ndef f(): ...\nb = __doc__\n",
    "a decorator on a line of its own": "a = [1]\n@(\nlambda f: f\n)\ndef f():\n    return 1\n# c \\\n\n@ \\\n staticmethod\ndef g(): pass\nf()",
    "what ends with its statement": "class A:\n    __repr__ = lambda self: 'A'\n    def __del__(self): print('gone')\nA()\nprint('after')\nA(); A()\nx = 1\nA()\n# no more\n",
    "texts that are nobody's": "x = 1\n'a'\n'b'\n",
    "a value that is none": "x = [1]\nx\nx.append(2)\n\n",
    "import *": "from math import *\nx = floor(2.5)\nx",
}


def cuts(source: str) -> list[list[str]]:
    """Ways to cut the source: into all its lines, and into two pieces at each line's end, or at some of them if there are many."""
    ends = [end.start() for end in re.finditer(r"\r?\n", source)]
    pieces = [source[a:b] for a, b in itertools.pairwise([0, *ends, len(source)])]
    some = ends[:: 1 + len(ends) // 20]
    return [*([source[:at], source[at:]] for at in (*some, len(source))), [*pieces, ""], pieces]


@pytest.fixture
def _frozen() -> Iterator[None]:
    """Keeps the garbage collector from what was there before the test: all of pytest, numpy and pandas."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_frozen")
@pytest.mark.parametrize("source", CELLS.values(), ids=CELLS)
def test_it_is_the_same_in_pieces(source: str) -> None:
    def come_to(pieces: list[str]) -> tuple[object, ...]:
        gc.collect()  # earlier tests must not decide when Python collects garbage
        guest = new_guest()
        cell = guest.write(pieces)
        guest.write(["None; 0"])  # gives `_` another value, so that the old one is freed here
        lines = linecache.getlines("<cell 1>")
        return cell.ended, cell.stdout, cell.stderr, cell.result, cell.traceback, cell.names, cell.final, lines

    whole = come_to([source])
    assert cuts(source)
    for pieces in cuts(source):
        assert come_to(pieces) == whole, pieces


def new_guest() -> Guest:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    return guest


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("print(1)\nx = 1\nif x", "SyntaxError: expected ':'"),
        ("print(1)\nreturn 5", "SyntaxError: 'return' outside function"),
        ("print(1)\nx = 1\nglobal x", "SyntaxError: name 'x' is assigned to before global declaration"),
        ("print(1)\nfrom __future__ import annotations", "SyntaxError: from __future__ imports must occur"),
        ("return 1\ndef f(a, a): pass", "SyntaxError: duplicate argument 'a'"),  # the first in the whole cell
        ("def f():\n    nonlocal y\nprint(1)", "SyntaxError: no binding for nonlocal 'y' found"),
        ("print(1)\nbreak", "SyntaxError: 'break' outside loop"),
        ("print(1)\n__debug__ = 1", "SyntaxError: cannot assign to __debug__"),
    ],
)
def test_a_mistake_anywhere_means_that_nothing_runs(guest: Guest, source: str, error: str) -> None:
    cell = guest.run(source)
    assert (cell.ended, cell.stdout) == ("error", "")
    assert cell.error.startswith(error)
    with pytest.raises(SyntaxError) as known, warnings.catch_warnings(action="ignore", category=SyntaxWarning):
        compile(source, "<cell 1>", "exec")
    assert str(known.value.msg) in cell.error and f"line {known.value.lineno}" in cell.traceback


@pytest.mark.parametrize("rest", ["", "\nglobal_ = 1", "\nasync_ = 1", "\nif", "\nreturn"])
def test_the_compiler_warns_once(guest: Guest, rest: str) -> None:
    with warnings.catch_warnings(record=True, action="always") as seen:
        before = warnings.filters
        guest.run(f"a = 1\nb = a is 1\nc = a is not 2{rest}")
        assert warnings.filters is before
    assert [warning.lineno for warning in seen] == ([] if rest == "\nif" else [2, 3])


def test_a_cell_that_is_prepared_warns_when_it_runs(guest: Guest) -> None:
    with warnings.catch_warnings(record=True, action="always") as seen:
        for source in ("a = 1\na is 1", "'\\d'"):
            guest.runtime.prepare(guest.count + 1, source)
            assert not seen
            guest.ok(source)
            assert len(seen) == 1
            seen.clear()
    guest.runtime.prepare(guest.count + 1, "a = ")
    assert guest.run("never looked at").error_type == "SyntaxError"
    guest.runtime.prepare(guest.count + 1, "5")
    assert guest.run("never looked at").result == "5"


def test_code_that_awaits_is_one(guest: Guest) -> None:
    cell = guest.ok("import asyncio, sys\nf = sys._getframe()\nawait asyncio.sleep(0)\nprint(f is sys._getframe())\n0")
    assert cell.stdout == "True\n"


def test_many_statements_run(guest: Guest) -> None:
    source = "\n".join(f"x{number} = {number}" for number in range(3_000))
    assert guest.ok(f"{source}\nx0 + x2999").result == "2999"
    cell = guest.run(f"{source}\n1 / 0\n{source}")
    assert "line 3001, in <module>" in cell.traceback


@pytest.mark.parametrize(
    "source",
    ["x = 1\n1 / 0", "", "import os\ndef f(): return (yield)", "'''a\nb'''", "async def f():\n    await g()\nf"],
)
def test_what_is_plain(guest: Guest, source: str) -> None:
    assert guest.runtime.is_plain(source)


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\nif x",
        "x = 1\nawait f()",
        "[x async for x in f()]",
        "x = 1\nfrom __future__ import annotations",
        "x = 1\nx is 1",
        "a = 1\nb = '\\d'",
        "x = 1\nglobal x",
        "x = '\0'",
        "(" * 1000,
    ],
)
def test_what_is_not_plain(guest: Guest, source: str) -> None:
    with warnings.catch_warnings(record=True, action="always") as seen:
        assert not guest.runtime.is_plain(source)
    assert not seen


def test_half_a_text_waits(guest: Guest) -> None:
    cell = guest.write(["a = '''1\nb = 2\n", "c = 3\n", "'''\nprint(a)\n", "a"])
    assert cell.ended == "ok"
    assert cell.stdout == "1\nb = 2\nc = 3\n\n" and cell.result == repr("1\nb = 2\nc = 3\n")


def test_it_waits_between_statements(guest: Guest) -> None:
    pieces = ["print(1)\nFINAL(5)\n", "1 / 0\n", "print('never')\n", "print('nor this')"]
    cell = guest.write(pieces)
    assert (cell.ended, cell.stdout) == ("error", "1\n")
    assert "line 3, in <module>\n    1 / 0" in cell.traceback
    assert guest.ok("1 + 1").result == "2"


def test_code_that_looks_at_its_own_source_is_told_of_or_has_it_all() -> None:
    begin = "import inspect, linecache\ndef f():\n    return 1\n"
    look = "first = linecache.getlines(f.__code__.co_filename)\nsecond = inspect.getsource(f)\n"
    rest = "(first, second)"

    def look_at(take_rest: str) -> tuple[str, list[str]]:
        guest, asked = new_guest(), []

        def take() -> str:
            asked.append("asked")
            return take_rest

        guest.runtime.take_rest = take
        return guest.write([begin, look, rest]).result, asked

    whole = new_guest().ok(begin + look + rest).result
    seen, asked = look_at("")  # the code looked before it was asked for, so this run is not used
    assert seen != whole and asked
    assert look_at(rest)[0] == whole
    guest = new_guest()
    guest.write([begin, "x = 1\n", "x"])
    assert guest.ok("inspect.getsource(f)").result == repr("def f():\n    return 1\n")


@pytest.mark.parametrize(
    "watch",
    [
        "sys.settrace(lambda *args: None)",
        "sys.setprofile(lambda *args: None)",
        "gc.callbacks.append(print)",
        "tracemalloc.start()",
        "sys.monitoring.use_tool_id(3, 'tool')",
        "sys.addaudithook(lambda *args: None)",
    ],
)
def test_code_that_hears_of_what_others_do_is_told_of(watch: str) -> None:
    program = f"""import gc, sys, tracemalloc
from test_statements import new_guest
if not hasattr(sys, "monitoring") and "monitoring" in {watch!r}:
    sys.exit()
guest, asked = new_guest(), []
guest.runtime.take_rest = lambda: asked.append("asked") or ""
guest.write(["import gc, sys, tracemalloc\\n", "x = 1\\n", "x"])
assert not asked
guest.write([{watch!r} + "\\n", "x = 1\\n", "x"])
assert asked
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_lines_that_cannot_be_kept_are_not() -> None:
    program = """from test_statements import new_guest
evil = '''import linecache
class Evil:
    __hash__ = lambda self: hash('<cell 1>')
    def __eq__(self, other): raise ValueError('evil')
linecache.cache.clear()
linecache.cache[Evil()] = 1
'''
cell = new_guest().write([evil, "x = 1\\n", "x"])
assert (cell.ended, cell.result) == ("ok", "1"), cell
"""
    ended = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_whether_a_cell_is_plain_is_no_business_of_the_users(guest: Guest) -> None:
    guest.ok(
        "import gc\ndef fail(): raise SystemExit\nkept = gc.isenabled, gc.disable\ngc.isenabled = gc.disable = fail"
    )
    assert guest.runtime.is_plain("x = 1")
    guest.ok("gc.isenabled, gc.disable = kept")
    assert not guest.runtime.is_plain("import sys\nsys.addaudithook(print)")


def test_what_is_not_complete_is_not_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    growing, parse = Growing("<cell 1>"), compiling._parse
    tries = 0

    def count(source: str, filename: str) -> ast.Module:
        nonlocal tries
        tries += 1
        return parse(source, filename)

    monkeypatch.setattr(compiling, "_parse", count)
    assert growing.add("x = [\n", False) == []
    for _ in range(1000):
        assert growing.add("1,\n", False) == []
    assert 1 < tries < 12
    assert len(growing.add("]\nx", True)) == 2


def test_annotations_are_of_the_whole_cell(guest: Guest) -> None:
    guest.ok("x: int = 1\nif x:\n    y: str = ''\nz = 1")
    names = guest.ok("import sys\nsorted(sys.modules['__main__'].__annotations__)").result
    assert names == "['x', 'y']"
    assert guest.runtime.is_plain("x: int = 1\ny = 1") == (sys.version_info < (3, 14))


@pytest.mark.parametrize(
    "change", ["linecache.clearcache()", "linecache.cache.pop(name)", "linecache.cache[name] = entry"]
)
def test_what_a_cell_does_to_the_lines_stays(change: str) -> None:
    begin = "import linecache, sys\nname = sys._getframe().f_code.co_filename\nentry = (1, None, ['x\\n'] * 9, name)\n"
    pieces = [f"{begin}{change}\n", "y = 1\n", "1 / 0"]
    assert new_guest().write(pieces).traceback == new_guest().run("".join(pieces)).traceback


def test_a_runtime_of_its_own_size_of_sources() -> None:
    guest = Guest()
    guest.runtime.configure({**CONFIG, "maxSourceCache": 20})
    guest.write(["def f():\n    return 1\n", "x = 1\n", "x"])
    assert not linecache.getlines("<cell 1>")
