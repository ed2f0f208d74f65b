"""The program behind the sandboxes: how it is found, shared and ended."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from client_host import PACKAGE, PLAIN, PROGRAM

from sandglass import Sandbox, SandboxError
from sandglass.client import program, transports, workers
from sandglass.client.connection import connect
from sandglass.client.transports import Program


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def test_sandboxes_of_a_process_share_one_program() -> None:
    with Sandbox(**PLAIN) as one, Sandbox(**PLAIN) as other:
        assert one._session._connection is other._session._connection
        one["x"] = 1
        assert "x" not in other


def test_the_end_of_the_program_is_told_and_the_next_sandbox_starts_another() -> None:
    sandbox = Sandbox(**PLAIN)
    connection = connect(None, None)
    assert isinstance(connection._transport, Program)
    connection._transport._process.kill()
    with pytest.raises(SandboxError) as gone:
        sandbox.execute("while True: pass")
    assert gone.value.code == "backend_unavailable"
    assert "ended with code -9" in str(gone.value)
    with pytest.raises(SandboxError) as again:
        sandbox.execute("1")
    assert str(again.value) == str(gone.value)
    assert again.value is not gone.value  # or its traceback would grow
    sandbox.destroy()
    with Sandbox(**PLAIN) as another:
        assert another.execute("1").value == 1


def test_a_forked_process_starts_a_program_of_its_own() -> None:
    code = """
import os
from sandglass import Sandbox, SandboxError
with Sandbox(backend="subprocess") as sandbox:
    sandbox["x"] = 1
    child = os.fork()
    if child == 0:
        try:
            sandbox["x"]
        except SandboxError as error:
            assert error.code == "destroyed", error
            with Sandbox(backend="subprocess") as own:
                os._exit(own.execute("7").value)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert sandbox["x"] == 1
print("fine")
"""
    done = python(code)
    assert done.stdout == "fine\n", done.stderr


def test_the_program_ends_with_its_process_however_that_ends() -> None:
    code = """
import os
import signal
from sandglass import Sandbox
from sandglass.client.connection import connect
sandbox = Sandbox(backend="subprocess")
sandbox.execute("1")
# Another child of this process that holds the pipes of a forked process, as multiprocessing makes them.
child = os.fork()
if child == 0:
    os.close(1)
    signal.pause()
print(connect(None, None)._transport._process.pid, child, flush=True)
if input() == "kill":
    os.kill(os.getpid(), 9)
"""
    for word in ("end", "kill"):
        env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        command = [sys.executable, "-c", code]
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin
            assert process.stdout
            numbers = map(int, process.stdout.readline().split())
            host, child = map(os.pidfd_open, numbers)
            print(word, file=process.stdin, flush=True)
            process.stdout.read()  # until the process has ended
            with closing(selectors.DefaultSelector()) as ends:
                ends.register(host, selectors.EVENT_READ)
                assert ends.select(60), "the program still runs"
            signal.pidfd_send_signal(child, signal.SIGKILL)
            os.close(host)
            os.close(child)


FORK = """
import gc, multiprocessing, os, sys
from sandglass import Sandbox, SandboxError

def use(sandbox):
    try:
        sandbox["x"] = 2
    except SandboxError as error:
        assert error.code == "destroyed", error
    sandbox.destroy()

with Sandbox({options}) as sandbox:
    sandbox["x"] = 1
    # A child that leaves as programs do, one that forgets the sandbox, and one of multiprocessing.
    if (child := os.fork()) == 0:
        sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    if (child := os.fork()) == 0:
        del sandbox
        gc.collect()
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
    process = multiprocessing.get_context("fork").Process(target=use, args=(sandbox,))
    process.start()
    process.join()
    assert process.exitcode == 0, process.exitcode
    assert sandbox.execute("x").value == 1
print("fine")
"""


def test_a_forked_process_does_not_end_the_sandboxes_of_its_parent() -> None:
    done = python(FORK.format(options="backend='subprocess'"))
    assert done.stdout == "fine\n", done.stderr


def test_a_closed_program_is_not_written_to(tmp_path: Path) -> None:
    transport = Program(str(PROGRAM))
    number = transport._input
    transport.close()
    file = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(file, number)  # another file of the user's has the number now
    with pytest.raises(OSError, match="closed"):
        transport.send(b"{}", False)
    os.close(number)
    os.close(file)
    assert (tmp_path / "other").read_bytes() == b""


def test_the_end_does_not_wait_for_a_pipe_that_another_program_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_END_SECONDS", 0.2)
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec 3<&0\nsleep 60 <&3 &\nsleep 60\n")
    program.chmod(0o755)
    transport = Program(str(program))
    group = transport._process.pid

    def write() -> None:
        with suppress(OSError):
            transport.send(bytes(8 << 20), True)

    writer = Thread(target=write)
    writer.start()
    while not transport._lock.locked():  # until it writes, for as long as nobody reads
        time.sleep(0.01)
    transport.close()
    assert transport._process.returncode is not None
    os.killpg(group, signal.SIGKILL)  # who held the pipe: now the write fails
    writer.join(30)
    assert not writer.is_alive()


def test_without_further_threads_work_waits_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("can't start new thread")

    own = workers.Workers()
    begun, go_on, done = Event(), Event(), Event()

    def first() -> None:
        begun.set()
        go_on.wait(60)

    own.begin(first)
    assert begun.wait(60)
    with monkeypatch.context() as context:
        context.setattr(workers, "Thread", refuse)
        own.begin(done.set)
        with pytest.raises(RuntimeError):
            workers.Workers().begin(done.set)
    assert not done.is_set()
    go_on.set()
    assert done.wait(60)
    own.run(lambda: None)


def test_a_callback_that_hangs_does_not_hold_up_the_end() -> None:
    code = """
import threading
from sandglass import Sandbox
begun = threading.Event()
def hang(prompt):
    begun.set()
    threading.Event().wait()
sandbox = Sandbox(backend="subprocess", on_llm_query=hang)
threading.Thread(target=sandbox.execute, args=("llm_query('x')",), daemon=True).start()
begun.wait()
print("done")
"""
    assert python(code).stdout == "done\n"


def test_finding_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "sandglass-host"
    own.write_text("#!/bin/sh\necho 'no such command: rpc' >&2\nexit 2\n")
    own.chmod(0o755)
    monkeypatch.setenv("SANDGLASS_HOST", str(own))
    assert program.find_program() == str(own)
    with pytest.raises(SandboxError) as wrong:
        Sandbox()
    assert "no such command: rpc" in str(wrong.value)
    monkeypatch.setenv("SANDGLASS_HOST", str(tmp_path / "none"))
    with pytest.raises(SandboxError, match="is no program"):
        program.find_program()
    monkeypatch.delenv("SANDGLASS_HOST")
    monkeypatch.setattr(program, "_folders", list)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.find_program() == str(own)
    monkeypatch.setattr(program, "_folders", lambda: [str(PROGRAM.parent)])
    assert program.find_program() == str(PROGRAM)
    monkeypatch.setattr(program, "_folders", list)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxError, match="is not installed"):
        program.find_program()


def test_warnings_of_the_program_are_heard(caplog: pytest.LogCaptureFixture) -> None:
    with Sandbox(**PLAIN) as sandbox:
        sandbox.execute("1")
        connection = sandbox._session._connection
        assert connection
    connection.close()
    connection._transport.why()  # until the program has ended, and all that it said is read
    (warning,) = [record for record in caplog.records if "nothing isolates it" in record.message]
    assert (warning.name, warning.levelname) == ("sandglass", "WARNING")
