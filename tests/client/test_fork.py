"""Copies of sandboxes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest
from client_host import PLAIN

from sandglass import AsyncSandbox, Notebook, Sandbox, SandboxError

CODE = """
import math as _math
import os
_private = 2
class Point:
    x = 1
    def more(self):
        return Point()
def counter(start):
    def count():
        nonlocal start
        start += _private
        return _math.floor(start)
    return count
count = counter(10)
point = Point()
items = same = [len(context)]
def add(n):
    items.append(n)
steps = (n for n in range(9))
os.makedirs("empty")
with open("kept.txt", "w") as file:
    file.write("a file")
del file
"""


def test_a_copy_goes_its_own_way() -> None:
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return f"about {prompt}"

    with Sandbox(**PLAIN, on_llm_query=ask, host_functions={"double": lambda n: 2 * n}) as sandbox:
        sandbox.initialize("a text")
        assert sandbox.execute(CODE).outcome == "ok"
        sandbox.tools["triple"] = lambda n: 3 * n
        assert sandbox.execute("triple(2)").result == "6"
        with sandbox.fork() as copy:
            run = copy.execute(
                "add(double(4) + triple(1))\nitems, same is items, point.more().x, count(), llm_query('x')"
            )
            assert (run.result, run.id) == ("([6, 11], True, 1, 12, 'about x')", 3)
            assert [lost.name for lost in run.state.lost] == ["steps"], "all else is there"
            assert copy.files["kept.txt"] == b"a file"
            assert copy.execute("os.listdir('empty'), context").result == "([], 'a text')"
            assert sandbox.execute("items, next(steps)").result == "([6], 0)"
        assert sandbox.execute("items").result == "[6]", "it outlives its copy"
    assert asked == ["x"]


def test_a_copy_outlives_the_original() -> None:
    sandbox = Sandbox(**PLAIN)
    sandbox.initialize(None)
    sandbox.execute("x = [1]")
    copies = sandbox.fork(3)
    sandbox.destroy()
    for number, copy in enumerate(copies):
        assert copy.execute(f"x.append({number})\nx").result == f"[1, {number}]"
    first, *others = copies
    first.destroy()
    with pytest.raises(SandboxError, match="destroyed"):
        first.execute("x")
    assert [copy["x"] for copy in others] == [[1, 1], [1, 2]]
    for copy in others:
        copy.destroy()


def test_a_copy_names_the_execution_whose_state_it_has() -> None:
    with Sandbox(**PLAIN, checkpoints=3) as sandbox:
        sandbox.initialize(None)
        for value in (1, 2, 3):
            sandbox.execute(f"x = {value}")
        assert sandbox.undo() == 2
        with sandbox.fork() as copy:
            assert copy.execute("x += 10\nx").id == 4, "executions are counted on"
            assert copy.undo() == 2, "the third was undone"
            assert copy["x"] == 2


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root makes exact copies")
def test_an_exact_copy_lacks_nothing() -> None:
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return prompt

    with Sandbox(backend="bubblewrap", checkpoints=3, on_llm_query=ask) as sandbox:
        sandbox.initialize("a text")
        sandbox.execute("numbers = (n for n in range(9))\nfile = open('f', 'w+')\nfile.write('abc'), next(numbers)")
        for copy in (sandbox.fork(exact=True), *sandbox.fork(2, exact=True)):
            with copy:
                run = copy.execute("llm_query('x')\nfile.write('d'), file.seek(0), file.read(), next(numbers), context")
                assert (run.result, run.id) == ("(1, 0, 'abcd', 1, 'a text')", 2)
                assert copy.undo() == 1
                assert copy.execute("next(numbers)").result == "1"
        assert sandbox.execute("next(numbers)").result == "1"
        assert sandbox.undo() == 1
        sandbox.execute("import threading\nthread = threading.Timer(60, print)\nthread.start()")
        with pytest.raises(SandboxError, match="thread") as caught:
            sandbox.fork(exact=True)
        assert caught.value.code == "not_serializable"
        assert sandbox.execute("thread.cancel()\nnext(numbers)").result == "1"
    assert asked == ["x"] * 3


def test_without_checkpoints_there_are_no_exact_copies() -> None:
    with Sandbox(**PLAIN) as sandbox:
        sandbox.initialize(None)
        sandbox.execute("x = (n for n in range(9))")
        with pytest.raises(SandboxError, match="it needs checkpoints") as caught:
            sandbox.fork(exact=True)
        assert caught.value.code == "not_serializable"
        assert sandbox.execute("next(x)").result == "0"


def test_what_cannot_be_copied_is_told() -> None:
    with Sandbox(**PLAIN) as sandbox:
        sandbox.initialize(None)
        sandbox.execute("import threading\nclass No:\n    def __reduce__(self): raise RuntimeError('no')\nno = No()")
        sandbox.execute("no.x = 3\nheld = [no, threading.Lock()]")
        with sandbox.fork() as copy:
            run = copy.execute("no.x, 'held' in globals()")
            assert run.result == "(3, False)", "no class is asked if its objects can go without"
            assert [lost.name for lost in run.state.lost] == ["held"]
        sandbox.execute("for n in range(2001): open(f'{n}.txt', 'w').close()")
        with pytest.raises(SandboxError, match="at most 2000") as caught:
            sandbox.fork()
        assert caught.value.code == "not_serializable"
        for count in (0, 101):
            with pytest.raises(SandboxError, match="count"):
                sandbox.fork(count)
        assert sandbox.execute("type(no).__name__").result == "'No'"


def test_sandboxes_with_a_folder_of_their_own_are_not_copied(tmp_path: Path) -> None:
    with Notebook(**PLAIN, workspace=tmp_path) as notebook, pytest.raises(SandboxError, match="same folder"):
        notebook.fork()


def test_copies_with_asyncio() -> None:
    async def main() -> None:
        async def ask(prompt: str) -> str:
            await asyncio.sleep(0)
            return prompt.upper()

        async with AsyncSandbox(**PLAIN, on_llm_query=ask) as sandbox:
            await sandbox.initialize(None)
            await sandbox.execute("x = 1")
            copies = await sandbox.fork(2)
            runs = await asyncio.gather(*(copy.execute("x, llm_query('a')") for copy in copies))
            assert [run.result for run in runs] == ["(1, 'A')"] * 2
            await asyncio.gather(*(copy.destroy() for copy in copies))
            single = await sandbox.fork()
            assert (await single.execute("x")).result == "1"
            await single.destroy()

    asyncio.run(main())
