"""Cells: results, errors, tracebacks, and a cell's changes to the interpreter."""

from __future__ import annotations

import builtins
import sys
import time

import pytest
from conftest import CONFIG, FakeBridge, Guest, installed

from sandglass.runtime.reserve import Reserve
from sandglass.runtime.runtime import Runtime


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("1 + 1", "2"),
        ("x = 5\nx", "5"),
        ("x = 5", ""),
        ("None", ""),
        ("", ""),
        ("# nothing", ""),
        ("'é\\ud800'", "'é\\ud800'"),
        ("from __future__ import annotations\ndef f(a: missing): ...\nf.__annotations__", "{'a': 'missing'}"),
        ("import asyncio\nawait asyncio.sleep(0, 'x')", "'x'"),
        ("async def f():\n  yield 1\n  yield 2\n[x async for x in f()]", "[1, 2]"),
        ("__name__", "'__main__'"),
    ],
)
def test_shows_the_last_expression(guest: Guest, source: str, result: str) -> None:
    assert guest.ok(source).result == result


def test_keeps_globals_between_executions(guest: Guest) -> None:
    guest.ok("x = 1")
    assert guest.ok("x + 1").result == "2"


def test_reports_names_only_when_they_change(guest: Guest) -> None:
    assert guest.ok("a = _b = 1; __c = 2; __d__ = 3").names == ["a", "_b", "__c"]
    assert guest.ok("a = 2").names is None
    assert guest.ok("del a").names == ["_b", "__c"]
    assert guest.ok("globals()['no name'] = globals()[7] = 1").names == ["_b", "__c"]
    assert (
        len(guest.ok("globals().update({f'v{i}': 0 for i in range(11000)}); globals()['w' * 300] = 1").names) == 10_000
    )


def test_names_are_reported_after_an_error(guest: Guest) -> None:
    assert guest.run("x = 1\n1/0").names == ["x"]


@pytest.mark.parametrize(
    ("source", "error_type", "error"),
    [
        ("1/0", "ZeroDivisionError", "ZeroDivisionError: division by zero"),
        ("raise ValueError('a\\nb')", "ValueError", "ValueError: a\nb"),
        ("import sys\nsys.exit('x')", "SystemExit", "SystemExit: x"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit", "GeneratorExit"),
        ("raise BaseException('b')", "BaseException", "BaseException: b"),
        ("class E(Exception): pass\nraise E('mine')", "E", "E: mine"),
        ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup", "ExceptionGroup: g (1 sub-exception)"),
        ("e = ValueError(1)\ne.add_note('noted')\nraise e", "ValueError", "ValueError: 1"),
        ("def f(): f()\nf()", "RecursionError", "RecursionError: maximum recursion depth exceeded"),
        ("raise MemoryError", "MemoryError", "MemoryError"),
        ("'a' * 10**18", "MemoryError", "MemoryError"),
        ("input('name? ')", "EOFError", "EOFError: input() is not available in this sandbox"),
        ("import json\njson.loads('{')", "JSONDecodeError", "json.decoder.JSONDecodeError: Expecting"),
    ],
)
def test_errors_are_results(guest: Guest, source: str, error_type: str, error: str) -> None:
    cell = guest.run(source)
    assert (cell.ended, cell.error_type) == ("error", error_type)
    assert cell.error.startswith(error)
    assert guest.ok("1").result == "1"


def test_traceback_shows_source_lines_and_guest_frames_only(guest: Guest) -> None:
    guest.ok("def divide(a):\n    return a / 0")
    cell = guest.run("import json\njson.loads('1', object_hook=None, parse_int=divide)")
    assert cell.traceback.startswith('Traceback (most recent call last):\n  File "<cell 2>", line 2, in <module>\n')
    assert "json/decoder.py" in cell.traceback and 'File "<cell 1>", line 2, in divide' in cell.traceback
    assert "return a / 0" in cell.traceback and "/sandglass/" not in cell.traceback


def test_chains_and_groups_show_guest_frames_only(guest: Guest) -> None:
    guest.bridge.answer = lambda *args: 5
    cell = guest.run(
        "def f():\n"
        "    try: llm_query('x')\n"
        "    except HostCallError as e: raise KeyError('second') from e\n"
        "try: f()\n"
        "except KeyError as e: raise ExceptionGroup('g', [e, OSError()])"
    )
    assert "sandglass" not in cell.traceback
    assert "HostCallError: onLLMQuery returned an int, not a string" in cell.traceback
    assert "direct cause" in cell.traceback and "in f" in cell.traceback


def test_await_cells_hide_the_event_loop(guest: Guest) -> None:
    cell = guest.run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    1/0\nawait f()")
    assert "base_events" not in cell.traceback and "sandglass" not in cell.traceback
    assert cell.traceback.count("File ") == 2


@pytest.mark.parametrize(
    ("source", "error", "shown"),
    [
        ("x = (1,\ny = 2", "SyntaxError: '(' was never closed", "    x = (1,\n        ^\n"),
        ("def f(:\n  pass", "SyntaxError: ", 'File "<cell 1>", line 1\n    def f(:'),
        ("a = 1\nreturn 5", "SyntaxError: 'return' outside function", "line 2\n    return 5\n    ^"),
        ("if 1:\nx", "IndentationError: expected an indented block", "line 2"),
        ("a = 'ok'\nb = '\0'", "SyntaxError: source code cannot contain null bytes", "line 2"),
        ("a = 1\nb = '\ud800'", "SyntaxError: source code cannot contain the lone surrogate U+D800", "line 2"),
        ("(" * 5000, "", ""),
        ("-" * 100_000 + "1", "", ""),
    ],
)
def test_syntax_errors_show_line_and_caret(guest: Guest, source: str, error: str, shown: str) -> None:
    cell = guest.run(source)
    assert cell.ended == "error"
    assert cell.error.startswith(error) and shown in cell.traceback
    assert "sandglass" not in cell.traceback
    if error:
        assert "^" in cell.traceback and "Traceback" not in cell.traceback


def test_survives_broken_str_and_repr(guest: Guest) -> None:
    guest.ok("class B(Exception):\n  def __str__(self): raise ValueError('no')\n  __repr__ = __str__")
    assert guest.ok("B()").result == "<B object, repr() raised ValueError: no>"
    cell = guest.run("raise B()")
    assert cell.error_type == "B" and cell.error == "B: <exception str() failed>"
    assert guest.ok("class C:\n  def __repr__(self): return 5\nC()").result.startswith(
        "<C object, repr() raised TypeError"
    )
    assert guest.ok("class D:\n  def __repr__(self): raise B()\nD()").result == "<D object, repr() raised B: …>"
    assert guest.ok("10 ** 5000").result.startswith("<int object, repr() raised ValueError")
    assert guest.run("class K:\n  def __repr__(self): raise KeyboardInterrupt\nK()").error_type == "KeyboardInterrupt"


def test_survives_hostile_exceptions(guest: Guest) -> None:
    assert (
        guest.run(
            "class M(type):\n  __name__ = property(lambda c: 1/0)\nclass E(Exception, metaclass=M): pass\nraise E"
        ).ended
        == "error"
    )
    assert len(guest.run("raise type('E' * 5000, (Exception,), {})()").error_type) == 200
    assert guest.run("e = ValueError()\ne.__cause__ = e\nraise e").error_type == "ValueError"
    assert (
        guest.run(
            "e = ValueError('x')\nfor i in range(3000):\n  n = ValueError(i)\n  n.__cause__ = e\n  e = n\nraise e"
        ).ended
        == "error"
    )
    assert guest.run("raise ValueError('\\ud800')").error == "ValueError: \\ud800"
    assert guest.run("class S(SyntaxError): pass\nraise S('m', ('f', 'bad', [], {}))").ended == "error"
    assert guest.run("raise ValueError('x' * 10_000_000)").ended == "error"


@pytest.mark.parametrize(
    "source",
    [
        "del __builtins__",
        "__builtins__ = {}",
        "import builtins\nbuiltins.len = builtins.isinstance = builtins.print = None",
        "import builtins\nfor n in list(vars(builtins)):\n  if n not in ('vars', 'list'): delattr(builtins, n)",
        "import builtins\nvars(builtins).clear()",
        "import sys\nsys.modules.clear()",
        "import sys\nsys.modules = {}",
        "import sys\nsys.modules['traceback'] = sys.modules['linecache'] = None",
        "import sys\nsys.stdout = sys.stderr = sys.stdin = None",
        "import sys\ndel sys.stdout, sys.stderr",
        "import sys\nsys.stdout.close(); sys.stderr.close()",
        "import sys\nsys.excepthook = sys.displayhook = None",
        "import sys\nsys.settrace(lambda *a: 1/0)",
        "import sys\nsys.setprofile(lambda *a: None)",
        "import sys\nsys.setrecursionlimit(10**8)",
        "import gc\ngc.disable()",
        "import linecache\nlinecache.cache = None",
        "import asyncio\nasyncio.run = None\nimport asyncio.events\nasyncio.events._event_loop_policy = 5",
        "import time\ntime.sleep = None",
        "globals().clear()",
        "del llm_query, FINAL, answer, chunk_text",
        "llm_query = FINAL_VAR = answer = None",
        "answer = []",
        "import __main__\nimport sys\nsys.modules['__main__'] = None",
        "import asyncio\nasyncio._set_running_loop(object())",
    ],
)
def test_the_next_cell_works_after(guest: Guest, source: str) -> None:
    guest.run(source)
    cell = guest.ok("print(len([1, 2])); x = llm_query('a'); import time; time.sleep(1); [x, sorted(answer), __name__]")
    assert (cell.stdout, cell.result) == ("2\n", "['answer to a', ['content', 'ready'], '__main__']")
    assert guest.ok("import asyncio\nasync def f(): return 1\nasyncio.run(f())").result == "1"
    cell = guest.run("import json\njson.loads('x')")
    assert "json.loads('x')" in cell.traceback or "linecache" in source
    assert sys.gettrace() is None and sys.getprofile() is None
    assert sys.getrecursionlimit() < 10**6


def test_a_tiny_recursion_limit_is_survived(guest: Guest) -> None:
    guest.run(
        "import sys\nn = 1\nwhile True:\n  try: sys.setrecursionlimit(n); break\n  except RecursionError: n += 1\nprint('x')"
    )
    assert guest.ok("print('fine')").stdout == "fine\n"


def test_additions_to_builtins_stay(guest: Guest) -> None:
    guest.ok("import builtins\nbuiltins.my_extra = 5")
    try:
        assert guest.ok("my_extra").result == "5"
    finally:
        del builtins.my_extra  # type: ignore[attr-defined]


def test_a_replaced_builtin_does_not_break_output_within_the_cell(guest: Guest) -> None:
    assert (
        guest.ok("import builtins\nbuiltins.len = builtins.type = builtins.isinstance = None\nprint('still')").stdout
        == "still\n"
    )


def test_main_module_supports_the_library(guest: Guest) -> None:
    source = "import dataclasses, pickle, typing, inspect\n@dataclasses.dataclass\nclass P:\n  x: 'int'\ndef f():\n  return 1\n"
    cell = guest.ok(source + "(pickle.loads(pickle.dumps(P(1))), typing.get_type_hints(P), inspect.getsource(f))")
    assert cell.result == "(P(x=1), {'x': <class 'int'>}, 'def f():\\n  return 1\\n')"


def test_old_sources_are_dropped() -> None:
    import linecache

    with installed(Runtime(FakeBridge())) as runtime:
        runtime.configure({**CONFIG, "maxSourceCache": 100})
        for number in range(50):
            runtime.execute(number, "x = 1  # padding padding")
        assert 0 < len([name for name in linecache.cache if name.startswith("<cell ")]) <= 4
        runtime.execute(50, "#" * 1000)
        assert "<cell 50>" not in linecache.cache
    linecache.clearcache()


def test_time_sleep_goes_through_the_bridge(guest: Guest) -> None:
    cell = guest.run(
        "import time\nprint('before')\ntime.sleep(3600); time.sleep(0.5)\nfor bad in (-1, float('nan'), 'x', 1e300, None):\n"
        "  try: time.sleep(bad)\n  except Exception as e: print(type(e).__name__)"
    )
    assert guest.bridge.slept == [3600.0, 0.5]
    assert guest.bridge.events[:2] == ["stdout", "sleep"]
    assert cell.stdout.split() == ["before", "ValueError", "ValueError", "TypeError", "OverflowError", "TypeError"]


def test_interrupting_sleep_and_host_calls_is_a_result(guest: Guest) -> None:
    guest.bridge.interrupt_sleep = guest.bridge.interrupt_call = True
    assert guest.run("import time\ntime.sleep(9)").error_type == "KeyboardInterrupt"
    cell = guest.run("import asyncio\nawait asyncio.sleep(9)")
    assert cell.error_type == "KeyboardInterrupt" and 'File "<cell 2>", line 2' in cell.traceback
    assert guest.run("llm_query('x')").error == "KeyboardInterrupt"
    guest.bridge.interrupt_sleep = False
    assert guest.ok("import asyncio\nawait asyncio.sleep(0.1)").ended == "ok"


def test_nothing_hangs_on_stdin(guest: Guest) -> None:
    assert guest.run("import sys\n(sys.stdin.read(), sys.stdin.readline())").result == "('', '')"
    assert guest.run("import pdb\npdb.Pdb().set_trace()\nx = 1").error_type in ("BdbQuit", None)


def test_an_interrupt_while_finishing_is_a_result(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def repair() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(guest.runtime._guards, "repair", repair)
    assert guest.run("1").error_type == "KeyboardInterrupt"
    monkeypatch.setattr(guest.runtime._guards, "repair", lambda: 1 / 0)
    assert guest.run("1").ended == "error"


def test_a_cell_that_took_all_memory_leaves_the_reserve_to_the_runtime(
    guest: Guest, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve, end = Reserve(), guest.runtime._recursion.end
    eased: list[bool] = []

    def ease() -> bool:
        eased.append(reserve.release())
        return len(eased) == 1

    def needs_memory() -> None:
        if not eased:
            raise MemoryError
        end()

    monkeypatch.setattr(reserve, "ease", ease)
    monkeypatch.setattr(guest.runtime, "reserve", reserve)
    monkeypatch.setattr(guest.runtime._recursion, "end", needs_memory)
    told = guest.ok("kept = 1")
    assert (eased[0], told.stderr.count("memory is full")) == (True, 1)


def test_uninstall_gives_everything_back() -> None:
    before = sys.stdout, time.sleep, builtins.input, sys.modules["__main__"]
    runtime = Runtime(FakeBridge())
    runtime.install()
    assert (sys.stdout, time.sleep) != before[:2]
    runtime.uninstall()
    assert (sys.stdout, time.sleep, builtins.input, sys.modules["__main__"]) == before


def test_it_gives_back_what_a_cell_took_from_it(guest: Guest) -> None:
    guest.ok(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if not type(f).__module__.startswith('sandglass')]"
    )
    guest.ok("import time\ntime.sleep = None")
    assert guest.ok("1 + 1").result == "2"


def test_configure_refuses_what_it_cannot_do(guest: Guest) -> None:
    with pytest.raises(ValueError, match="no profile 'other', but default, rlm, rlm-legacy, rlm-core, dspy"):
        guest.runtime.configure({**CONFIG, "profile": "other"})
    with pytest.raises(ValueError, match="chunk_text"):
        guest.runtime.configure({**CONFIG, "hostFunctions": ["chunk_text"]})
