"""A guest that lodges in an interpreter of others, without a Jupyter kernel: those are host/tests/jupyter.rs."""

from __future__ import annotations

from pathlib import Path

from native_host import Host

#: Runs turns as a kernel does, with an event loop around them, and sees that nothing is taken over in between.
LODGING = f"""import asyncio, sys
sys.path[:0] = [sys.argv.pop(1), {str(Path(__file__).parent)!r}]
from conftest import hooks
from socket import socket
from sandglass import kernel

def ours():
    return {{**hooks(), "the loop": asyncio._get_running_loop(), "the task": asyncio.current_task()}}

async def run():
    before = ours()
    guest = kernel.KernelGuest("token", socket(fileno=int(sys.argv[2])), int(sys.argv[4]), None)
    kernel._guests["token"] = guest
    kernel._listen()
    guest.begin()
    while "token" in kernel._guests:
        kernel.turn("token")
        after = ours()
        changed = {{name: after[name] for name in after if after[name] != before[name]}}
        if changed:
            sys.exit(f"not given back: {{changed}}")
    sys.exit(0 if "FINAL" not in globals() and x == 5 else "it left with what is not its own")

x = 1
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
    between = "        if 'nap' in globals(): nap(0.001)\n        after = ours()\n"
    with Host(tmp_path, program=LODGING.replace("        after = ours()\n", between)) as host:
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
