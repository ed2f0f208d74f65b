"""Sandboxes with `persist`: executions that outlive the program, wherever it is killed."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from client_host import PACKAGE, PLAIN

from sandglass.client import AsyncSandbox, PendingExecution, Sandbox, SandboxError, call_id

#: A client that runs cells. A question with a question mark waits for ever.
CLIENT = """
import json, sys, threading
sys.path.insert(0, sys.argv[1])
from sandglass.client import Sandbox

def ask(question):
    if question.endswith("?"):
        print("waits", flush=True)
        threading.Event().wait()
    return f"answer to {question}"

sandbox = Sandbox(**json.loads(sys.argv[2]), host_functions={"ask": ask})
for code in sys.argv[3:]:
    print(sandbox.execute(code).outcome, flush=True)
"""
BEFORE = "import random\nx = [1]\nopen('notes.txt', 'w').write('a note')"
CODE = """
import random, time
x.append(random.random())
print(open('notes.txt').read())
first = ask(repr([x, time.time_ns()]))
second = ask("go on?")
[x, first, second]"""


def begin_client(options: dict[str, Any]) -> subprocess.Popen[str]:
    """A client of its own that runs `BEFORE`, and waits in the second call of `CODE`."""
    command = [sys.executable, "-c", CLIENT, str(PACKAGE), json.dumps(options), BEFORE, CODE]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert client.stdout
    assert [next(client.stdout, ""), next(client.stdout, "")] == ["ok\n", "waits\n"]
    return client


class Waiting:
    """A host function. A question with "?" waits until `end`; `waits` tells that it was asked."""

    def __init__(self) -> None:
        self.waits, self.end = Event(), Event()

    def __call__(self, question: str) -> str:
        if question.endswith("?"):
            self.waits.set()
            self.end.wait()
        return f"answer to {question}"


def end_of(process: int, kill: int) -> None:
    """Kills a process, and waits for the end of another one that may go on to its own end."""
    end = os.pidfd_open(process)
    os.kill(kill, signal.SIGKILL)
    assert select.select([end], [], [], 60)[0], "the program did not end"
    os.close(end)


def host_of(client: int) -> int:
    """The process of the program that a client has started."""
    tasks = Path(f"/proc/{client}/task").iterdir()
    (host,) = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return host


def kept(folder: Path, ask: Callable[[str], Any], **options: Any) -> Sandbox:
    return Sandbox(**{"backend": "subprocess", "persist": folder, "host_functions": {"ask": ask}, **options})


def code_of(call: Callable[[], Any]) -> str:
    with pytest.raises(SandboxError) as raised:
        call()
    return raised.value.code


@pytest.mark.parametrize("killed", ["the program", "its client"])
@pytest.mark.parametrize("backend", ["subprocess", "bubblewrap"])
def test_an_execution_goes_on_after_a_kill_in_the_middle_of_a_call(killed: str, backend: str, tmp_path: Path) -> None:
    client = begin_client({"persist": str(tmp_path / "kept"), "backend": backend})
    try:
        host = host_of(client.pid)
        end_of(host, host if killed == "the program" else client.pid)
    finally:
        client.kill()
        client.communicate()

    goes_on({"persist": tmp_path / "kept", "backend": backend})


def goes_on(options: dict[str, Any]) -> None:
    """Goes on with the execution of `CODE`, whose second call has no answer yet."""
    asked: list[tuple[str, str | None]] = []

    def answer(question: str) -> str:
        asked.append((question, call_id()))
        return "yes"

    with Sandbox(**options, host_functions={"ask": answer}) as sandbox:
        pending = sandbox.pending()
        assert pending is not None
        assert (pending.execution, pending.code) == (2, CODE)
        (waits,) = pending.calls
        assert (waits.name, waits.args, waits.kwargs) == ("ask", ("go on?",), {})
        assert waits.since > 1_600_000_000_000
        assert code_of(lambda: sandbox.execute("1")) == "execution_pending"
        assert code_of(lambda: sandbox["x"]) == "execution_pending"
        printed: list[str] = []
        run = sandbox.resume(on_stdout=printed.append)
        assert run.outcome == "ok", run.traceback
        assert "".join(printed) == run.stdout == "a note\n", "from the beginning"
        x, first, second = run.value
        assert second == "yes"
        assert first.startswith(f"answer to [{x}, "), "the same random number, and the first call was not made again"
        assert asked == [("go on?", waits.id)]
        assert [call.id for call in run.calls] == [waits.id]
        assert sandbox.pending() is None
        assert sandbox["x"] == x
        assert sandbox.execute("x").value == x, "kept again, since reading counts as a change"

    with Sandbox(**options, host_functions={"ask": str}) as sandbox:
        assert sandbox.pending() is None
        again = sandbox.execute("x")
        assert (again.value, again.state.status) == (x, "kept")


def left_waiting(folder: Path, code: str) -> None:
    """Has an execution wait in a call, and destroys the sandbox meanwhile."""
    asked, end = Event(), Event()

    def ask(_: str) -> None:
        asked.set()
        end.wait()

    sandbox = kept(folder, ask)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.execute, code)
        asked.wait()
        sandbox.destroy()
        error = running.exception()
        end.set()
    assert isinstance(error, SandboxError)
    assert error.code == "destroyed"


def test_calls_that_are_answered_are_not_made_again(tmp_path: Path) -> None:
    left_waiting(tmp_path, "x = ask('what is x?')\nx")
    asked: list[str] = []
    with kept(tmp_path, asked.append) as sandbox:
        pending = sandbox.pending()
        assert pending is not None
        assert code_of(lambda: sandbox.resume({"nonsense": 1})) == "invalid_option"
        large = ["a" * 100_000, {"b": 2}]
        assert sandbox.resume({pending.calls[0].id: large}).value == large
        assert asked == []
        assert code_of(sandbox.resume) == "invalid_option"


def test_an_execution_may_be_given_up(tmp_path: Path) -> None:
    with kept(tmp_path, str) as sandbox:
        sandbox["x"] = 1
        sandbox.execute("y = x")
    left_waiting(tmp_path, "x = 2\nask('go on?')")
    with kept(tmp_path, str) as sandbox:
        sandbox.discard()
        assert sandbox.pending() is None
        assert sandbox.execute("[x, y]").value == [1, 1]
        assert code_of(sandbox.discard) == "invalid_option"


def test_another_way_than_the_journals_is_an_error(tmp_path: Path) -> None:
    # The times of files are no part of a state.
    with kept(tmp_path, str) as sandbox:
        sandbox.execute("open('file', 'w').close()")
    left_waiting(tmp_path, "import os\nask(str(os.stat('file').st_mtime_ns))")
    with kept(tmp_path, str) as sandbox:
        assert code_of(sandbox.resume) == "journal_differs"
        assert sandbox.pending() is not None


def test_an_ended_execution_runs_again(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(question: str) -> str:
        asked.append(question)
        return f"answer to {question}"

    with kept(tmp_path, ask) as sandbox:
        sandbox.execute("import random\nx = 1")
        first = sandbox.execute("x = random.random()\nprint(x)\n[x, ask('a'), ask('b')]")
        sandbox.execute("x = 'later'")
    asked.clear()
    with kept(tmp_path, ask) as sandbox:
        again = sandbox.replay(2)
        assert (again.execution.value, again.execution.stdout) == (first.value, first.stdout)
        assert (again.difference, again.execution.calls) == (None, [])
        assert sandbox["x"] == "later"
        call = first.calls[1].id
        assert call is not None
        for name in (2, "2", call):
            other = sandbox.replay(2, {name: ["another"]})
            assert (other.execution.value[1:], other.difference) == (["answer to a", ["another"]], None)
        assert asked == []
        assert code_of(lambda: sandbox.replay(2, {3: 1})) == "invalid_option"
        assert code_of(lambda: sandbox.replay(9)) == "no_checkpoint"


def test_a_replay_may_make_other_calls(tmp_path: Path) -> None:
    code = "first = ask('a')\ntry:\n    second = ask(first)\nexcept HostCallError:\n    second = 'none'\nsecond"
    made: list[tuple[str, str | None]] = []

    async def replays() -> None:
        async def ask(question: str) -> str:
            made.append((question, call_id()))
            return question.upper()

        options: Any = {"backend": "subprocess", "persist": tmp_path, "host_functions": {"ask": ask}}
        async with AsyncSandbox(**options) as sandbox:
            assert (await sandbox.execute(code)).value == "A"
            made.clear()
            other = await sandbox.replay(1, {1: "other"})
            assert (other.execution.value, made) == ("none", [])
            other = await sandbox.replay(1, {1: "other"}, ask=True)
            assert (other.execution.value, made) == ("OTHER", [("other", None)])
            assert [call.args for call in other.execution.calls] == [("other",)]
            assert other.difference is not None
            assert other.difference.startswith("call 2 is ask(")

    asyncio.run(replays())


def test_the_sandboxes_of_a_folder_are_listed_also_while_they_are_open(tmp_path: Path) -> None:
    (tmp_path / "no sandbox").mkdir()
    (tmp_path / "no folder").write_text("text")
    with (
        Sandbox(**PLAIN, persist=str(tmp_path / "first")) as first,
        Sandbox(**PLAIN, persist=str(tmp_path / "second")) as second,
        Sandbox(**PLAIN, persist=str(tmp_path / "unused")),
    ):
        assert first.execute("x = 1").unkept is None
        assert second.execute("x = 2").unkept is None
        assert second.execute("x = 3").unkept is None
        listed = Sandbox.list_persisted(tmp_path)
        assert [(kept.name, kept.execution) for kept in listed] == [("second", 2), ("first", 1)]
        assert all(kept.bytes > 0 and kept.saved_at > 0 for kept in listed)
        assert first["x"] == 1, "nobody has lost it"
    assert asyncio.run(AsyncSandbox.list_persisted(tmp_path)) == listed
    assert code_of(lambda: Sandbox.list_persisted(tmp_path / "nowhere")) == "persist_failed"
    assert code_of(Sandbox.list_persisted) == "invalid_option"


def test_the_last_result_is_there_in_a_later_program(tmp_path: Path) -> None:
    code = """class Rich:
    def _repr_html_(self):
        return "<b onclick='steal()'>rich</b>"
print(ask("for"))
display(Rich())
FINAL({"a": [1]})"""
    with kept(tmp_path, str) as sandbox:
        assert sandbox.last() is None
        ran = sandbox.execute(code)
        assert ran.error is None
        assert sandbox.last() == replace(ran, calls=[])
    left_waiting(tmp_path, "ask('again')")
    with kept(tmp_path, str) as sandbox:
        last = sandbox.last()
        assert last == replace(ran, calls=[]), "that of the earlier program, also while another one is pending"
        assert (last.id, last.stdout, last.final) == (ran.id, "for\n", {"a": [1]})
        assert [display.data for display in last.displays] == ["<b>rich</b>"]
        assert sandbox.resume().id == ran.id + 1

    async def last_of_all() -> int | None:
        async with AsyncSandbox(persist=tmp_path, backend="subprocess", host_functions={"ask": str}) as later:
            return last.id if (last := await later.last()) else None

    assert asyncio.run(last_of_all()) == ran.id + 1


def test_an_interrupted_execution_is_not_pending(tmp_path: Path) -> None:
    async def interrupted() -> PendingExecution | None:
        asked = asyncio.Event()

        async def ask(_: str) -> None:
            asked.set()
            await asyncio.Event().wait()

        options: Any = {"backend": "subprocess", "persist": tmp_path, "host_functions": {"ask": ask}}
        async with AsyncSandbox(**options) as sandbox:
            running = asyncio.create_task(sandbox.execute("x = 1\nask('go on?')"))
            await asked.wait()
            await sandbox.interrupt()
            assert (await running).outcome == "interrupted"
            assert (await sandbox.execute("x")).value == 1
            return await sandbox.pending()

    assert asyncio.run(interrupted()) is None


def test_a_sandbox_without_persist_has_nothing_pending() -> None:
    with Sandbox(**PLAIN) as sandbox:
        assert sandbox.pending() is None
        assert code_of(sandbox.resume) == code_of(sandbox.discard) == "invalid_option"
        assert code_of(lambda: sandbox.replay(1)) == code_of(sandbox.last) == "invalid_option"


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    others: list[dict[str, Any]] = [{"workspace": tmp_path}, {"ahead": True}, {"checkpoints": 2}]
    for option in others:
        assert code_of(partial(kept, folder, str, **option)) == "invalid_option"
    with kept(folder, str) as sandbox:
        sandbox["x"] = [1]
        assert code_of(lambda: kept(folder, str)) == "persist_in_use", "one at a time"
        with sandbox.fork() as copy:
            assert copy["x"] == [1]
            assert copy.pending() is None
        sandbox.tools["more"] = str
        assert code_of(lambda: sandbox.execute("1")) == "invalid_option"
