"""asyncio inside cells, on virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest
from conftest import Guest

from sandglass.runtime import loop

PREFIX = "import asyncio\nlog = []\nasync def f(x, t=1):\n  await asyncio.sleep(t)\n  log.append(x)\n  return x\n"


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("asyncio.run(f(1))", "1"),
        ("await f(1)", "1"),
        ("await asyncio.gather(f(1, .03), f(2, .02), f(3, .01)), log", "([1, 2, 3], [3, 2, 1])"),
        ("asyncio.get_event_loop().run_until_complete(f(4))", "4"),
        ("loop = asyncio.new_event_loop()\nasyncio.set_event_loop(loop)\nloop.run_until_complete(f(4))", "4"),
        ("await f(0)\nasyncio.run(f(5))", "5"),
        ("async def g(): return asyncio.run(f(6)), await f(7)\nawait g()", "(6, 7)"),
        ("async def g(): return asyncio.get_event_loop().run_until_complete(f(8))\nawait g()", "8"),
        (
            "async def g(): return asyncio.get_event_loop().run_until_complete(f(8)), await f(9)\nasyncio.run(g())",
            "(8, 9)",
        ),
        ("t = asyncio.create_task(f(9))\nawait t\nt.result()", "9"),
        ("await asyncio.to_thread(llm_query, 'q')", "'answer to q'"),
        ("async with asyncio.timeout(5) as t: x = await f(1)\nx", "1"),
        ("async with asyncio.TaskGroup() as g: t = g.create_task(f(3))\nt.result()", "3"),
        ("asyncio.run(f(1)); asyncio.run(f(2)); log", "[1, 2]"),
        ("[await llm_query(str(i)) for i in range(2)]", "['answer to 0', 'answer to 1']"),
        ("await llm_query_batched(['a'])", "['answer to a']"),
    ],
)
def test_works_in_a_cell(guest: Guest, source: str, result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr(loop, "monotonic", lambda: clock[0])  # sleeping advances time, so nothing waits for real
    real_sleep = guest.bridge.sleep

    def sleep(seconds: float | None) -> None:
        real_sleep(seconds)
        clock[0] += seconds or 0

    monkeypatch.setattr(guest.bridge, "sleep", sleep)
    cell = guest.ok(PREFIX + source)
    assert cell.result == result
    assert cell.stderr == ""


def test_tasks_left_over_never_run_in_the_next_cell(guest: Guest) -> None:
    cell = guest.ok(
        "import asyncio\nseen = []\nasync def bg():\n  try:\n    while True:\n      await asyncio.sleep(9); seen.append('late')\n"
        "  finally: seen.append('closed')\na, b = asyncio.create_task(bg()), asyncio.create_task(bg())\nawait asyncio.sleep(0)"
    )
    assert cell.stderr == "sandglass: 2 background tasks were cancelled at the end of the cell\n"
    assert guest.ok("await asyncio.sleep(0)\nseen").result == "['closed', 'closed']"


def test_a_failed_await_cell_does_not_count_itself_as_background(guest: Guest) -> None:
    guest.bridge.interrupt_sleep = True
    cell = guest.run("import asyncio\ntry: await asyncio.sleep(9)\nfinally: print('cleaned')")
    assert (cell.error_type, cell.stdout, cell.stderr) == ("KeyboardInterrupt", "cleaned\n", "")


def test_async_generators_are_shut_down(guest: Guest) -> None:
    guest.ok("log = []\nasync def g():\n  try: yield 1\n  finally: log.append('shut')\na = g()\nawait anext(a)")
    assert guest.ok("log").result == "['shut']"


@pytest.mark.parametrize(
    "source",
    [
        "await asyncio.Event().wait()",
        "await asyncio.Queue().get()",
        "asyncio.run(asyncio.Event().wait())",
        "await asyncio.gather(asyncio.Event().wait(), asyncio.Event().wait())",
        "await asyncio.create_task(asyncio.Event().wait())",
        "await asyncio.get_running_loop().create_future()",
        "asyncio.get_event_loop().run_forever()",
    ],
)
def test_a_deadlock_is_an_error_not_a_hang(guest: Guest, source: str) -> None:
    cell = guest.run("import asyncio\n" + source)
    assert cell.error_type == "RuntimeError" and cell.error.startswith("RuntimeError: deadlock")
    assert guest.ok("await asyncio.sleep(0, 5)").result == "5"


def test_a_task_that_refuses_to_end_is_dropped(guest: Guest) -> None:
    guest.ok(
        "import asyncio\nasync def stubborn():\n  while True:\n    try: await asyncio.Event().wait()\n"
        "    except asyncio.CancelledError: pass\nt = asyncio.create_task(stubborn())\nawait asyncio.sleep(0)"
    )
    assert guest.ok("1").result == "1"


def test_submit_and_exit_pass_through_coroutines(guest: Guest) -> None:
    assert (
        guest.ok(
            "import asyncio\nasync def f():\n  try: SUBMIT(5)\n  except Exception: pass\nawait f()\nprint('no')"
        ).final
        == 5
    )
    assert guest.ok("asyncio.run(f())").final == 5
    cell = guest.run("import sys\nasync def f(): sys.exit(3)\nawait f()")
    assert (cell.error_type, cell.error) == ("SystemExit", "SystemExit: 3")
    assert guest.ok("await asyncio.sleep(0, 1)").result == "1"


@pytest.mark.parametrize(
    "source",
    [
        "cls = type(asyncio.get_event_loop())\nfor n in ('run_forever', 'run_until_complete', '_run_once', 'create_task', 'close', 'select'): setattr(cls, n, None)",
        "for cls in type(asyncio.get_event_loop()).__mro__[:2]: cls.finish = cls.__init__ = lambda *args: 1 / 0",
        "p = asyncio.get_event_loop_policy()\ntype(p).get_event_loop = type(p).new_event_loop = lambda self: 1 / 0",
        "cls = type(asyncio.get_event_loop())\ncls.__bases__ = (type('Other', cls.__bases__, dict(run_until_complete=None, run_forever=None)),)",
        "vars(asyncio.get_event_loop_policy()).update(get_event_loop=None, _loops=None, _local=None)",
        "asyncio.create_task = asyncio.tasks.create_task = asyncio.run = asyncio.runners.run = None",
        "asyncio.Task = asyncio.tasks._CTask = asyncio.tasks.Task = asyncio.tasks._PyTask\nasyncio.Future = asyncio.futures.Future = asyncio.futures._PyFuture",
    ],
)
def test_patches_end_with_their_cell(guest: Guest, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in {
        asyncio: ("Task", "Future"),
        asyncio.tasks: ("Task", "_CTask"),
        asyncio.futures: ("Future",),
    }.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # undone after the test, as the last value stays
    guest.run("import asyncio\n" + source)
    assert guest.ok("await asyncio.sleep(0, 5)").result == "5"
    assert guest.ok("async def f(): return await asyncio.sleep(0, 6)\nasyncio.run(f())").result == "6"
    assert guest.ok("asyncio.get_event_loop().run_until_complete(f())").result == "6"
    assert guest.ok("task = asyncio.create_task(f())").stderr == ""
    assert guest.ok("task.result()").result == "6"
    cell = guest.run("await asyncio.gather(asyncio.Event().wait(), f())")
    assert cell.error.startswith("RuntimeError: deadlock")


def test_many_tasks_of_a_cell_that_awaits_nothing(guest: Guest) -> None:
    guest.ok("import asyncio\nasync def f(n): return n\ntasks = [asyncio.create_task(f(n)) for n in range(5000)]")
    assert guest.ok("sum(task.result() for task in tasks)").result == "12497500"
    cell = guest.run("async def leave(): exit(3)\ntask = asyncio.create_task(leave())")
    assert cell.error == "SystemExit: 3"
    guest.bridge.interrupt_sleep = True
    assert guest.run("task = asyncio.create_task(asyncio.sleep(9))").error_type == "KeyboardInterrupt"


def test_what_is_dropped_with_a_loop_is_dropped_at_once(guest: Guest) -> None:
    guest.ok("import asyncio\nclass A:\n  def __del__(self): print('gone')\nasync def f(): return A()")
    assert guest.ok("(await f()) and None").stdout == "gone\n"
    source = "loop = asyncio.get_event_loop()\nfor _ in range(3): loop.run_until_complete(f()); print('next')"
    assert guest.ok(source).stdout == "gone\nnext\n" * 3
    assert guest.ok("import gc\ngc.disable()\ntask = asyncio.create_task(f())\ndel task").stdout == "gone\n"
