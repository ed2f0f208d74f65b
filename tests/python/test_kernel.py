"""A guest in an interpreter of another program. Tests with real Jupyter kernels are in crates/jupyter/tests/jupyter.rs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from native_host import FOLDER, Host

from sandglass.runtime.namespace import Namespace
from sandglass.runtime.profiles import PROFILES

#: Runs exchanges within an event loop, as a kernel does, and checks that the interpreter is restored between them.
LODGING = f"""import asyncio, sys
sys.path[:0] = [sys.argv.pop(1), {str(Path(__file__).parent)!r}]
from conftest import hooks
from socket import socket
from sandglass.native import kernel_guest as kernel

def ours():
    return {{**hooks(), "the loop": asyncio._get_running_loop(), "the task": asyncio.current_task()}}

async def run():
    before = ours()
    guest = kernel.KernelGuest("token", socket(fileno=int(sys.argv[2])), int(sys.argv[4]), None)
    kernel._guests["token"] = guest
    kernel._listen()
    guest.begin()
    while "token" in kernel._guests:
        try:
            kernel.turn("token")
        except KeyError:
            if "token" in kernel._guests:
                raise
            break  # the host has left since
        # between
        after = ours()
        changed = {{name: after[name] for name in after if after[name] != before[name]}}
        if changed:
            sys.exit(f"not given back: {{changed}}")
    sys.exit(0 if "FINAL" not in globals() and x == 5 else "it left with what is not its own")

x = 1
# before
asyncio.run(run())
"""


def test_a_turn_gives_back_what_it_takes_over(tmp_path: Path) -> None:
    with Host(tmp_path, program=LODGING) as host:
        host.init()
        run = host.run("import sys, time, os\ntime.sleep(0.01)\nos.system('echo child')\nprint('self')\nx")
        assert run.stdout == "child\nself\n"
        assert run.result == "1"
        assert "x" in run.report["names"]
        assert host.run("sys.stdout = time.sleep = os._exit = None\n1/0").report["errorType"] == "ZeroDivisionError"
        assert host.run("import asyncio\nawait asyncio.sleep(0)\nx = asyncio.run(asyncio.sleep(0, 5))\nx").result == "5"
        assert host.run("llm_query('q')").result == "'answer to q'"
        host.socket.close()
        assert host.process.wait(30) == 0


def test_what_a_cell_keeps_of_ours_works_between_turns(tmp_path: Path) -> None:
    with Host(tmp_path, program=LODGING.replace("# between", "if 'nap' in globals(): nap(0.001)")) as host:
        host.init()
        assert host.run("from time import sleep as nap; x = 5").report["ended"] == "ok"
        assert host.run("x").result == "5"


def test_code_that_runs_when_the_host_leaves_is_stopped(tmp_path: Path) -> None:
    with Host(tmp_path, program=LODGING) as host:
        host.init()
        assert host.run("x = 5").report["ended"] == "ok"
        host.begin("print('begun', flush=True)\nwhile True: pass")
        host.end(until="begun")
        host.socket.close()
        assert host.process.wait(30) == 0


def test_no_thread_of_ours_stays_when_the_host_leaves(tmp_path: Path) -> None:
    before = """import time
flush_due = kernel.KernelGuest._flush_due
def flush_and_leave(guest):
    'The host leaves after the last look of the thread that reads the pipes, and before its next wait.'
    flush_due(guest)
    if globals().get("is_leaving") and not guest._channel.exchange:
        guest._socket.shutdown(2)
        while "token" in kernel._guests: time.sleep(0.001)
kernel.KernelGuest._flush_due = flush_and_leave

def end():
    until = time.monotonic() + 20
    while len(sys._current_frames()) > 1:
        if time.monotonic() > until: sys.exit("a thread of ours is left")
        time.sleep(0.01)
"""
    program = LODGING.replace("# before", before).replace("    sys.exit(0 if", "    end()\n    sys.exit(0 if")
    with Host(tmp_path, program=program) as host:
        host.init()
        # That thread looks at intervals while code runs.
        assert host.run("import time\ntime.sleep(0.3)\nx, is_leaving = 5, True").report["ended"] == "ok"
        assert host.process.wait(60) == 0


def test_what_others_have_by_names_like_ours_they_have_again(tmp_path: Path) -> None:
    before = "answer, llm_query, is_set = 'theirs', 'theirs too', False"
    between = """if not is_set:
            globals().update(answer="newer", is_set=True)"""
    program = LODGING.replace("# before", before).replace("# between", between)
    program = program.replace("x == 5", "(x, answer, llm_query) == (5, 'newer', 'theirs too')")
    with Host(tmp_path, program=program) as host:
        host.init()
        assert host.run("x = 5\ntype(answer), llm_query('q')").result == "(<class 'dict'>, 'answer to q')"
        host.socket.close()
        assert host.process.wait(30) == 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_lodgers_leave_in_any_order(order: tuple[int, int]) -> None:
    module = ModuleType("__main__")
    vars(module)["answer"] = "theirs"
    lodgers = [Namespace(module=module, hidden=lambda _name: False) for _ in order]
    for lodger in lodgers:
        lodger.configure(PROFILES["default"], {"helper": object()}, {"alias": object()})
    for which in order:
        lodgers[which].withdraw()
    assert module.answer == "theirs"
    assert not {"helper", "alias"} & vars(module).keys()


def test_names_of_underscores_are_the_kernels(tmp_path: Path) -> None:
    names = "globals().update({'__': VALUE, '___': VALUE, '__version__': VALUE})"
    program = LODGING.replace("# before", names.replace("VALUE", "'early'"))
    with Host(tmp_path, program=program.replace("# between", names.replace("VALUE", "'late'"))) as host:
        host.init()
        assert host.run("__, ___, __version__").result == "('late', 'late', 'late')"


def test_an_interrupt_of_others_tears_no_attaching(tmp_path: Path) -> None:
    program = """import os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
from socket import AF_UNIX, socket
from sandglass.native import kernel_guest as kernel

signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background would ignore it
begin = kernel.KernelGuest.begin
def interrupted(guest):
    os.kill(os.getpid(), signal.SIGINT)
    begin(guest)
    os.kill(os.getpid(), signal.SIGINT)

kernel.KernelGuest.begin = interrupted
with socket(AF_UNIX) as listener:
    listener.bind("host")
    listener.listen()
    kernel.attach("host", "token", 1)
    guest = kernel._guests["token"]
    kernel.attach("host", "token", 1)  # the answer to the first was lost
    assert kernel._guests == {"token": guest}
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
os._exit(7)
"""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program, FOLDER], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 7, ended.stderr


def test_an_interrupt_of_others_tears_no_end_of_a_turn(tmp_path: Path) -> None:
    before = """import os, signal
signal.signal(signal.SIGINT, lambda *args: signal.default_int_handler(*args))  # not Python's own handler, which asyncio would replace
put, turn = kernel._set_handler, kernel.turn
def put_and_interrupt(*args):
    put(*args)
    os.kill(os.getpid(), signal.SIGINT)
def interrupted(token):
    try:
        turn(token)
    except KeyboardInterrupt:
        pass
    else:
        sys.exit("the interrupt was lost")
    if signal.getsignal(signal.SIGVTALRM) != signal.SIG_DFL:
        sys.exit("not given back: SIGVTALRM")
kernel._set_handler, kernel.turn = put_and_interrupt, interrupted"""
    with Host(tmp_path, program=LODGING.replace("# before", before)) as host:
        host.init()
        assert host.run("x = 5\nx").result == "5"
        host.socket.close()
        assert host.process.wait(30) == 0


@pytest.mark.parametrize("torn", ["_handle", "_enter"])
def test_a_turn_that_fails_is_not_the_kernels_end(torn: str, tmp_path: Path) -> None:
    before = f"""import time
torn = kernel.KernelGuest.{torn}
def fails(guest, *args):
    torn(guest, *args)
    guest._bridge.watch()
    raise OSError("torn")
kernel.KernelGuest.{torn} = fails
def turns(token, turn=kernel.turn):
    try:
        turn(token)
    except OSError as error:
        assert str(error) == "torn"
    else:
        return
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    sys.exit(7)
kernel.turn = turns"""
    with Host(tmp_path, program=LODGING.replace("# before", before)) as host:
        host.send({"type": "listVariables", "exchange": 1, "timeoutMs": 60_000})
        assert host.process.wait(30) == 7


def test_a_list_of_variables_fits_into_a_message(tmp_path: Path) -> None:
    before = "globals().update({f'name_{number}': 'é' * 600 for number in range(10_000)})"
    between = "print(len(guest.inspect()), file=open('length', 'w'))"
    program = LODGING.replace("# before", before).replace("# between", between)
    with Host(tmp_path, program=program) as host:
        host.init()
        host.run("x = 5")
        host.socket.close()
        assert host.process.wait(30) == 0
    assert 2 << 20 < int((tmp_path / "length").read_text()) <= 4 << 20
