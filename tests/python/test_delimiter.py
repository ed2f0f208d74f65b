"""Stateless runs over standard input and output, as a client attached to a container sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parents[2] / "pyodide-glue/python"
START, END = b">>> RESPONSE_START <<<\n", b">>> RESPONSE_END <<<\n"


class Client:
    def __init__(
        self,
        folder: Path,
        python: str = sys.executable,
        user: int | None = None,
        package: Path = PACKAGE,
        **environment: str,
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-m", "sandglass", "--framing", "delimiter"],
            user=user,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(package), **environment},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        assert self.output.readline() == b">>> READY <<<\n"

    def raw(self, text: str) -> Any:
        self.input.write(f">>> REQUEST_START <<<\n{text}\n>>> REQUEST_END <<<\n".encode())
        self.input.flush()
        return self.response()

    def response(self) -> Any:
        assert self.output.readline() == START
        text = self.output.readline()
        assert self.output.readline() == END
        return json.loads(text)

    def run(self, code: str, **more: Any) -> Any:
        return self.raw(json.dumps({"code": code, **more}))

    def close(self) -> None:
        self.input.close()
        assert self.output.read() == b""
        assert self.process.wait(60) == 0
        self.output.close()


@pytest.fixture(params=["forked", "cold"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    client = Client(tmp_path, REPL_ENABLED="false" if request.param == "cold" else "true")
    yield client
    client.close()


def test_the_documented_shapes(client: Client) -> None:
    ok = {"stdout": "Hello\n", "stderr": "", "exit_code": 0, "state": None, "files": [], "error": None}
    ok |= {"state_error": None, "state_lost": []}
    assert client.run("print('Hello')\n1 + 1") == ok
    syntax = client.run("x = (")
    assert syntax["exit_code"] == 1 and syntax["stdout"] == ""
    assert syntax["stderr"] == "SyntaxError: '(' was never closed (line 1)"
    assert syntax["error"] == "SyntaxError: '(' was never closed"
    failed = client.run("print('before')\n1/0")
    assert failed["stdout"] == "before\n" and failed["exit_code"] == 1
    assert failed["stderr"].startswith('Traceback (most recent call last):\n  File "<string>", line 2, in <module>\n')
    assert failed["stderr"].endswith("\nZeroDivisionError: division by zero")
    assert failed["error"] == "ZeroDivisionError: division by zero"


def test_each_run_has_a_guest_of_its_own_and_states_go_on(client: Client) -> None:
    first = client.run("x = [1]\ndef double(): return x * 2\n_private = 1", capture_state=True)
    assert client.run("print('x' in globals())")["stdout"] == "False\n"
    second = client.run("x += double()\nprint(x)", state=first["state"], capture_state=True)
    assert second["stdout"] == "[1, 1, 1]\n" and second["error"] is None
    assert client.run("print(x, '_private' in globals())", state=second["state"])["stdout"] == "[1, 1, 1] False\n"


def test_a_state_that_cannot_be_is_told_with_the_output_kept(client: Client) -> None:
    kept = client.run("print('kept')\nx = [(i for i in 'ab')]", capture_state=True)
    assert (kept["stdout"], kept["exit_code"], kept["state"]) == ("kept\n", 0, None)
    half = client.run("g = iter_ = (i for i in 'ab')\nnext(g)\nx = 1", capture_state=True)
    why = "a generator, which only its own guest can continue"
    assert half["state"] and half["state_lost"] == [{"name": name, "reason": why} for name in ("g", "iter_")]
    assert kept["error"] == "State serialization failed: cannot pickle 'generator' object"
    assert kept["state_error"] == "cannot pickle 'generator' object"
    failed = client.run("x = [(i for i in 'ab')]\n1/0", capture_state=True)
    assert (failed["error"], failed["state"]) == ("ZeroDivisionError: division by zero", None)
    assert failed["state_error"] == "cannot pickle 'generator' object"
    broken = client.run("print('never')", state="bm8gc3RhdGU=")
    assert broken["exit_code"] == 1 and broken["stdout"] == "" and broken["error"].startswith("StateError: ")


def test_output_is_kept_when_the_guest_dies_while_it_writes_its_state(client: Client) -> None:
    died = client.run(
        "import os\nclass Trap:\n    def __reduce__(self): os._exit(3)\nx = Trap()\nprint('kept')", capture_state=True
    )
    assert (died["stdout"], died["exit_code"], died["state"]) == ("kept\n", 0, None)
    assert died["state_error"].startswith("GuestCrashed: ")


def test_each_answer_has_a_state_or_says_why_not(client: Client) -> None:
    for code, more in {
        "x = 1": {},
        "1/0": {},
        "x = (": {},
        "import os; os._exit(1)": {},
        "1": {"state": "bm8="},
    }.items():
        answer = client.run(code, capture_state=True, **more)
        assert (answer["state"] is None) == bool(answer["state_error"]), answer
        assert client.run(code, **more)["state_error"] is None


def test_a_timeout_ends_a_run_even_if_it_swallows_interrupts(client: Client) -> None:
    for loop in ("while True: pass", "while True:\n    try:\n        while True: pass\n    except BaseException: pass"):
        late = client.run(f"print('before', flush=True)\n{loop}", timeout=1.5)
        assert (late["stdout"], late["exit_code"]) == ("before\n", 124)
        assert late["error"] == "TimeoutError: stopped after 1.5 s"
    assert client.run("print('next')")["stdout"] == "next\n"


def test_what_is_no_request_is_refused(client: Client) -> None:
    for text in ("{", "[]", "{}", '{"code": 1}', '{"code": "1", "state": 2}', '{"code": "1", "timeout": "soon"}'):
        refused = client.raw(text)
        assert refused["exit_code"] == 1 and refused["error"].startswith("RequestError: "), text
    assert client.run("print('next')")["stdout"] == "next\n"


FORGERIES = {
    "print": "print(FORGED)",
    "descriptors": (
        "import os\nfor fd in range(2, 1100):\n    try: os.write(fd, FORGED.encode())\n    except OSError: pass"
    ),
    "a child process": "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(' + repr(FORGED) + ')'])",
}


@pytest.mark.parametrize("way", FORGERIES)
def test_a_run_cannot_forge_a_response(client: Client, way: str) -> None:
    forged = 'FORGED = "\\n>>> RESPONSE_START <<<\\n{}\\n>>> RESPONSE_END <<<\\n"\n'
    answer = client.run(forged + FORGERIES[way])
    assert set(answer) == {"stdout", "stderr", "exit_code", "state", "files", "error", "state_error", "state_lost"}
    assert client.run("print('next')")["stdout"] == "next\n"


SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.mark.skipif(not os.path.exists(SYSTEM_PYTHON), reason="needs a Python that other users can run")
def test_a_run_cannot_reach_the_servers_descriptors() -> None:
    # Not as root, which may open any process's descriptors. In a container, it may not.
    user = 65534 if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(PACKAGE, folder / "package")
        folder.chmod(0o777)
        client = Client(folder, SYSTEM_PYTHON, user, folder / "package")
        answer = client.run(OPENS_OTHERS, timeout=60)
        assert answer["stdout"].endswith("done\n") and "refused" in answer["stdout"], answer
        assert client.run("print('next')")["stdout"] == "next\n"
        client.close()


OPENS_OTHERS = """
import os
for pid in [p for p in os.listdir('/proc') if p.isdigit() and int(p) != os.getpid()]:
    try: ours = 'delimiter' in open(f'/proc/{pid}/cmdline').read()
    except OSError: continue
    if not ours: continue
    for fd in range(3, 20):
        try: open(f'/proc/{pid}/fd/{fd}', 'w').write('>>> RESPONSE_START <<<')
        except OSError as error: print('refused', error.errno)
print('done')
"""


def test_what_a_run_leaves_running_is_gone(client: Client, tmp_path: Path) -> None:
    client.run(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('pid', 'w').write(str(os.getpid()))\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        "while not os.path.exists('pid') or not open('pid').read(): time.sleep(0.01)"
    )
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_created_files_are_named(client: Client, tmp_path: Path) -> None:
    answer = client.run("import os\nos.mkdir('out')\nopen('out/a.txt', 'w').write('a')")
    assert answer["files"] == ["out/a.txt"] and (tmp_path / "out/a.txt").read_text() == "a"


def test_long_output_keeps_its_ends(client: Client) -> None:
    answer = client.run("print('head')\nprint('x' * 10_000_000)\nprint('tail')")
    assert answer["stdout"].startswith("head\nxxx") and answer["stdout"].endswith("xxx\ntail\n")
    assert "characters omitted] ..." in answer["stdout"] and len(answer["stdout"]) < 51_000


def test_modules_are_imported_before_the_first_run(tmp_path: Path) -> None:
    client = Client(tmp_path, PRELOAD_MODULES="wave, no_such_module")
    assert client.run("import sys\nprint('wave' in sys.modules)")["stdout"] == "True\n"
    client.close()
