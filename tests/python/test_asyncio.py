"""asyncio inside cells, on virtual time."""

from __future__ import annotations

import time

import pytest
from conftest import Guest

from sandglass import loop

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


def test_an_external_wake_hook_waits_instead(guest: Guest) -> None:
    guest.runtime._namespace.globals["bridge"] = guest.bridge
    source = (
        "import asyncio\nloop = asyncio.get_running_loop()\nfuture = loop.create_future()\nloop.expect_wake(1)\n"
        "bridge.sleep = lambda s: (None if s else loop.call_soon_threadsafe(future.set_result, 'woken'))\nawait future"
    )
    assert guest.ok("import asyncio\n" + source).result == "'woken'"
