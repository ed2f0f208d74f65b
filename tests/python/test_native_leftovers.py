"""Leftovers of cells in a native guest: threads, processes, and things broken or closed; and their effect on later cells."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_host import Host, text

from sandglass.native.leftovers import Leftovers


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as host:
        assert host.init()["type"] == "ready"
        yield host


# ---- threads ----

BUSY = "import threading\ndef spin():\n  while True: pass\n"


def test_threads_that_a_cell_leaves_are_stopped(host: Host) -> None:
    seen = host.ok(
        f"{BUSY}import time\n"
        "ts = [threading.Thread(target=spin), threading.Thread(target=time.sleep, args=(1000,)),"
        " threading.Thread(target=lambda: [time.sleep(0.001) for _ in iter(int, 1)])]\n"
        "for t in ts: t.start()"
    )
    assert seen.stderr == ""
    assert host.ok("for t in ts: t.join(60)\n[t.is_alive() for t in ts]").result == "[False, False, False]"


def test_threads_can_clean_up(host: Host) -> None:
    seen = host.ok(
        "import threading, time\nrunning = threading.Event()\n"
        "def work():\n  try:\n    running.set()\n    time.sleep(1000)\n  finally: print('cleaned up')\n"
        "threading.Thread(target=work).start()\nrunning.wait(); None"
    )
    assert (seen.stdout, seen.stderr) == ("cleaned up\n", "")


def test_threads_of_others_are_seen_whichever_of_ours_have_begun() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    leftovers = Leftovers({*sys._current_frames(), 1}, set, False)
    assert not leftovers.has_others()
    thread.start()
    assert leftovers.has_others()
    go.set()
    thread.join()
    assert not leftovers.has_others()


def test_an_await_of_the_first_cell_waits_for_a_thread_that_has_not_begun(host: Host) -> None:
    seen = host.ok(
        "import _thread, asyncio\nloop = asyncio.get_running_loop()\nfuture = loop.create_future()\n"
        "_thread.start_new_thread(lambda: loop.call_soon_threadsafe(future.set_result, 5), ())\nawait future"
    )
    assert seen.result == "5"
    assert host.run("await asyncio.get_running_loop().create_future()").error.startswith("RuntimeError: deadlock")


LEFTOVER = (
    "import threading\ngo, said = threading.Event(), []\n"
    "def work():\n"
    "  while True:\n"
    "    try:\n"
    "      go.wait()\n"
    "      break\n"
    "    except BaseException: pass\n"
    "  print('late')\n"
    "  display({'text/html': 'late'}, raw=True)\n"
    "  for act in (lambda: llm_query('late'), lambda: __import__('time').sleep(0.001)):\n"
    "    try: act()\n"
    "    except BaseException as error: said.append(type(error).__name__)\n"
    "t = threading.Thread(target=work, name='leftover'); t.start()"
)


def test_a_thread_that_would_not_end_is_named_and_has_no_part_in_later_cells(host: Host) -> None:
    assert "sandglass: the thread 'leftover' still runs" in host.ok(LEFTOVER).stderr
    assert host.ok("1").stderr == ""  # the thread is named only once
    seen = host.ok("go.set(); t.join(60); print('mine'); (t.is_alive(), len(said))")
    assert (seen.stdout, seen.stderr, seen.result) == ("mine\n", "", "(False, 2)")
    assert seen.calls == [] and seen.displays == []
    # New threads' output is shown, even if the system reuses a thread's number.
    source = "ts = [threading.Thread(target=print, args=(i,)) for i in range(20)]\nfor t in ts: t.start()\nfor t in ts: t.join()"
    assert sorted(host.ok(source).stdout.split()) == sorted(map(str, range(20)))


def test_a_pool_of_threads_lives_on(host: Host) -> None:
    host.answer = lambda name, argument: text(f"re {argument}")
    host.ok(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(4)\nlist(pool.map(llm_query, 'abcd'))"
    )
    seen = host.ok("print('x'); pool.submit(print, 'from the pool').result(); list(pool.map(llm_query, 'ef'))")
    assert (seen.stdout, seen.stderr, seen.result) == ("x\nfrom the pool\n", "", "['re e', 're f']")


def test_work_that_a_pool_still_does_is_stopped(host: Host) -> None:
    seen = host.ok(
        f"{BUSY}from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\nfuture = pool.submit(spin); None"
    )
    assert seen.stderr == ""
    seen = host.ok("(type(future.exception(60)).__name__, pool.submit(len, 'abc').result(60))")
    assert seen.result == "('SystemExit', 3)"


CAREFUL = (
    "import threading, time\nrunning, caught, heard = threading.Event(), [], []\n"
    "def clean_up(begun):\n  while time.monotonic() < begun + 0.15: pass\n"
    "def work(wait):\n"
    "  try:\n    running.set()\n    while True: wait()\n"
    "  except BaseException as error:\n"
    "    caught.append(type(error).__name__)\n"
    "    try: clean_up(time.monotonic())\n"
    "    except BaseException as error: heard.append(type(error).__name__)\n"
    "t = threading.Thread(target=work, args=(WAIT,)); t.start(); running.wait()\n"
)


@pytest.mark.parametrize("wait", ["int", "lambda: time.sleep(1000)", "lambda: llm_query('q')"])
def test_a_thread_hears_once_that_it_is_to_stop(host: Host, wait: str) -> None:
    host.begin(CAREFUL.replace("WAIT", wait))
    report = None
    while report is None:  # the call stays unanswered
        for event in host.receive()[0]:
            report = event.get("execution")
    assert report["ended"] == "ok"
    assert host.ok("t.join(60); caught, heard").result == "(['SystemExit'], [])"


def test_a_thread_that_was_stopped_with_its_cell_is_not_stopped_again(host: Host) -> None:
    code = CAREFUL.replace("WAIT", "lambda: time.sleep(1000)")
    host.begin(f"{code}print('begun')\nwhile not caught: pass\ntime.sleep(1000)")
    host.end(until="begun")
    host.interrupt()
    assert host.end().report["stopped"] == "interrupt"
    assert host.ok("t.join(60); caught, heard").result == "(['SystemExit'], [])"


def test_a_thread_may_wait_while_it_cleans_up(host: Host) -> None:
    host.ok(
        "import threading, time\nrunning, done = threading.Event(), []\n"
        "def work():\n  try:\n    running.set()\n    time.sleep(1000)\n  finally:\n    time.sleep(0.01)\n    done.append(1)\n"
        "t = threading.Thread(target=work); t.start(); running.wait(); None"
    )
    assert host.ok("t.join(60); done").result == "[1]"


def test_host_calls_of_threads_end_with_their_cell(host: Host) -> None:
    host.begin("import threading\nt = threading.Thread(target=llm_query, args=('x',)); t.start(); t.join(0.2)")
    kinds = []
    while "executed" not in kinds:
        events, _ = host.receive()
        kinds += [event["type"] for event in events]
    assert "output" not in kinds  # no thread is named
    host.reply(1, "text", b"late")
    assert host.ok("t.join(60); t.is_alive()").result == "False"


# ---- processes ----


def is_there(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_children_that_a_cell_leaves_are_killed_and_reaped(host: Host, tmp_path: Path) -> None:
    # The shell's own child is an orphan of another session when the cell ends.
    seen = host.ok(
        "import os, subprocess, time\n"
        "p = subprocess.Popen(['sleep', '1000'])\n"
        "subprocess.run(['sh', '-c', 'setsid sh -c \"echo \\\\$\\\\$ > orphan; exec sleep 1000\" & sleep 0'])\n"
        "while not os.path.exists('orphan') or not open('orphan').read().strip(): time.sleep(0.01)\n"
        "p.pid"
    )
    assert seen.stderr == ""
    assert not is_there(int(seen.result)) and not is_there(int((tmp_path / "orphan").read_text()))
    assert host.ok("p.wait()").result == "-9"


def test_how_a_child_ended_is_still_known_in_a_later_cell(host: Host) -> None:
    host.ok(
        "import os, subprocess\np = subprocess.Popen(['sh', '-c', 'exit 3'])\nos.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT); None"
    )
    assert host.ok("p.wait()").result == "3"


ENDED = "os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)"


@pytest.mark.parametrize(
    ("code", "later", "result"),
    [
        # Processes of a subclass.
        ("class Mine(subprocess.Popen): pass\np = Mine(['sleep', '1000'])", "p.wait()", "-9"),
        (
            "class Mine(subprocess.Popen): pass\np = Mine(['sh', '-c', 'exit 3'])\n" + ENDED,
            "p.poll(), p.returncode",
            "(3, 3)",
        ),
        # A process object whose `poll` is broken.
        ("p = subprocess.Popen(['sleep', '1000'])\np.poll = None", "p.wait()", "-9"),
        # A process that a thread waits for: one of the cell's, or one that stays.
        (
            "p = subprocess.Popen(['sleep', '1000'])\nt = threading.Thread(target=p.wait); t.start()\n"
            "while not p._waitpid_lock.locked(): pass",
            "t.join(60); p.wait()",
            "-9",
        ),
        (
            "p = subprocess.Popen(['sleep', '1000'])\npool = ThreadPoolExecutor(1); f = pool.submit(p.wait)\n"
            "while not p._waitpid_lock.locked(): pass",
            "f.result(60), p.wait()",
            "(-9, -9)",
        ),
        (
            "p = fork.Process(target=time.sleep, args=(1000,)); p.start()",
            "p.join(60); p.exitcode, p.is_alive()",
            "(-9, False)",
        ),
        ("p = os.popen('exec sleep 1000')", "p.close() >> 8", "-9"),
    ],
)
def test_later_cells_see_that_a_child_was_killed(host: Host, code: str, later: str, result: str) -> None:
    host.ok(
        "import multiprocessing, os, subprocess, threading, time\nfrom concurrent.futures import ThreadPoolExecutor\n"
        f"fork = multiprocessing.get_context('fork')\n{code}\nNone"
    )
    assert host.ok(later).result == result


def test_all_children_are_seen_to_be_killed(host: Host) -> None:
    # So many that some end between two looks.
    host.ok("import subprocess\nps = [subprocess.Popen(['sleep', '1000']) for _ in range(40)]")
    assert host.ok("{p.wait() for p in ps}").result == "{-9}"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_child_whose_main_thread_has_ended_is_killed_all_the_same(host: Host) -> None:
    seen = host.ok(
        "import subprocess, sys\n"
        "code = 'import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start(); "
        "ctypes.CDLL(None).pthread_exit(None)'\n"
        "p = subprocess.Popen([sys.executable, '-c', code], start_new_session=True)\n"
        "def state(): return open(f'/proc/{p.pid}/stat').read().rpartition(') ')[2][0]\n"
        "while state() != 'Z': pass\n"
        "p.pid"
    )
    assert not is_there(int(seen.result)) and seen.stderr == ""
    assert host.ok("p.wait()").result == "-9"


def test_a_child_that_prints_without_end_does_not_hold_up_the_end(host: Host) -> None:
    seen = host.ok("import subprocess, time\np = subprocess.Popen(['yes'])\ntime.sleep(0.1)\np.pid")
    assert not is_there(int(seen.result)) and len(seen.stdout) < 20_000_000
    assert host.ok("print('next')").stdout == "next\n"


def test_a_pool_of_processes_works_and_ends_with_its_cell(host: Host) -> None:
    seen = host.ok(
        "import multiprocessing\ndef square(x):\n  print(f'in {x}\\n', end='')\n  return x * x\n"
        "pool = multiprocessing.get_context('fork').Pool(2)\npool.map(square, [1, 2, 3])"
    )
    assert (sorted(seen.stdout.split("\n")), seen.stderr, seen.result) == (
        ["", "in 1", "in 2", "in 3"],
        "",
        "[1, 4, 9]",
    )
    seen = host.run("import os\nos.waitpid(-1, os.WNOHANG)")
    assert seen.report["errorType"] == "ChildProcessError" and seen.stderr == ""
    assert host.run("pool.map(square, [4])").error == "ValueError: Pool not running"


def test_processes_of_concurrent_futures_work(host: Host) -> None:
    seen = host.ok(
        "import multiprocessing\nfrom concurrent.futures import ProcessPoolExecutor\ndef square(x): return x * x\n"
        "with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool: found = list(pool.map(square, [1, 2, 3]))\nfound"
    )
    assert (seen.result, seen.stderr) == ("[1, 4, 9]", "")


# ---- copies of the process ----


def test_a_copy_prints_but_has_no_part_in_the_sandbox(host: Host) -> None:
    seen = host.ok(
        "import os, sys, time\nprint('before')\npid = os.fork()\n"
        "if pid == 0:\n"
        "  print('copy'); print('copy too', file=sys.stderr); time.sleep(0.001)\n"
        "  try: llm_query('x')\n"
        "  except RuntimeError as error: print(error)\n"
        "  FINAL('of the copy')\n"
        "else: status = os.waitpid(pid, 0)[1]; print('original', status)"
    )
    assert seen.stdout == (
        "before\ncopy\nthis process is a copy (os.fork) of the sandbox's: it cannot call the host\noriginal 0\n"
    )
    assert seen.stderr == "copy too\n" and seen.calls == [] and seen.final is None
    assert host.ok("1").result == "1"


def test_a_copy_that_fails_says_so(host: Host) -> None:
    seen = host.ok("import os\npid = os.fork()\nif pid == 0: 1 / 0\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])")
    assert seen.result == "1" and seen.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_copy_that_computes_ends_with_the_cell(host: Host) -> None:
    seen = host.ok("import os\npid = os.fork()\nwhile pid == 0: pass\npid")
    assert not is_there(int(seen.result))


# ---- things that cells break ----


@pytest.mark.parametrize(
    "code",
    [
        "import builtins\nfor n in list(vars(builtins)):\n  if not n.startswith('__') and n not in ('list', 'setattr'): setattr(builtins, n, None)",
        "import sys\nfor n in list(sys.modules): del sys.modules[n]",
        "import sys\nsys.stdout = sys.stderr = sys.excepthook = sys.displayhook = sys.unraisablehook = None\nsys.setswitchinterval(1000)",
        "import sys\nsys.setrecursionlimit(60)",
        "import os\nos.closerange(0, 100)",
        "import os, shutil\nfolder = os.getcwd()\nos.chdir('/')\nos.rmdir(folder)",
        "import gc\ngc.disable(); gc.set_threshold(0)",
        "import sys\nsys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
        "import sandglass.runtime.runtime, sys\ndel sys.modules['sandglass.native.guest']",
        "import time\ntime.sleep = time.monotonic = None",
        "import sys\nsys.setswitchinterval(1e-9)",
        "import json\njson.dumps = json.loads = json.JSONEncoder = json.JSONDecoder = None",
        "import gc\ngc.collect = gc.enable = gc.get_referrers = gc.get_threshold = None\ngc.disable()",
        "import sys\nfor n in ('recursionlimit', 'switchinterval', 'trace', 'profile'): setattr(sys, f'get{n}', None); setattr(sys, f'set{n}', None)\nsys.audit = sys._current_frames = sys._current_exceptions = None",
        "import io, linecache, operator, re, traceback\nvars(operator).update(dict.fromkeys(operator.__all__))\nlinecache.cache = traceback.TracebackException = traceback.format_exc = None\nio.StringIO = io.BytesIO = re.compile = re.error = None",
        "import os, os.path, posix, signal, select, threading, _thread\nfor m in (signal, select, threading, _thread):\n  for n in dir(m):\n    if not n.startswith('_') and callable(getattr(m, n)) and n not in ('RLock', 'get_ident'): setattr(m, n, None)\nfor n in ('getpid', 'waitpid', 'waitid', 'kill', 'listdir', 'stat', 'makedirs', 'replace'): setattr(os, n, None)",
        "import asyncio\nfor n in ('all_tasks', 'gather', 'iscoroutine', 'ensure_future', 'current_task', 'Task'): setattr(asyncio, n, None)",
    ],
)
def test_later_cells_work_whatever_a_cell_breaks(host: Host, code: str) -> None:
    host.run(code)
    assert host.ok("x = 6\nprint('fine')\nllm_query('q')").stdout == "fine\n"
    assert host.ok("async def f(): return x\nawait f()").result == "6"
    seen = host.run("def f():\n  1/0\nf()")
    assert 'File "<cell 4>", line 2, in f' in seen.traceback and seen.error == "ZeroDivisionError: division by zero"
    host.begin("print('begun')\nwhile True: pass")
    host.end(until="begun")
    host.interrupt()
    assert host.end().report["stopped"] == "interrupt"
    assert host.ask("getVariable", name="x")[0]["type"] == "value"


def test_what_threads_of_ours_need_is_put_back_and_what_is_the_users_stays(host: Host) -> None:
    before = host.ok("import gc, sys\nsys.getswitchinterval()").result
    for interval in ("1000", "1e-9"):
        host.ok(f"sys.setswitchinterval({interval}); gc.disable(); gc.set_threshold(0, 5); sys.setrecursionlimit(5000)")
        assert host.ok("sys.getswitchinterval()").result == before
        assert (
            host.ok("gc.isenabled(), gc.get_threshold()[:2], sys.getrecursionlimit()").result == "(False, (0, 5), 5000)"
        )


def test_a_recursion_limit_of_code_is_for_its_frames_and_the_guest_works_with_a_low_one(host: Host) -> None:
    host.ok(
        "import sys, time, os, threading\ndef depth(n=1):\n  try: return depth(n + 1)\n  except RecursionError: return n"
    )
    assert (
        host.ok("sys.setrecursionlimit(500)\nlen(range(depth(), 501)) <= 3, sys.getrecursionlimit()").result
        == "(True, 500)"
    )
    assert host.ok("async def f(): return depth()\n450 < await f() < 520").result == "True"
    assert host.ok("sys.setrecursionlimit(10)\nprint('x' * 100)\nsys.getrecursionlimit()").result == "10"
    for code, stdout in {
        "print('x' * 200_000)": "",
        "print('a'); time.sleep(0.2); print('b')": "a\nb\n",
        "os.write(1, b'q')\nllm_query('q')": "q",
        "os.system('echo child')": "child\n",
        "t = threading.Thread(target=print, args=(3,)); t.start(); t.join()": "3\n",
        "import asyncio\nawait asyncio.sleep(0.01)\nprint(depth() < 60)": "True\n",
    }.items():
        assert host.ok(code).stdout[: len(stdout)] == stdout
    assert host.run("sys.setrecursionlimit(1)").report["errorType"] == "RecursionError"
    assert host.run("sys.setrecursionlimit('x')").report["errorType"] == "TypeError"
    host.begin("print('begun')\nwhile True: pass")
    host.end(until="begun")
    host.interrupt()
    assert host.end().report["stopped"] == "interrupt"
    assert host.ok("sys.setrecursionlimit(2**31 - 1)\nsys.getrecursionlimit()").result == str(2**31 - 1)


def test_a_cell_that_closes_the_channel_ends_the_guest_and_nothing_else(host: Host) -> None:
    host.begin("import os\nos.closerange(3, 5000)\nprint('x' * 10000)")
    with pytest.raises((EOFError, ConnectionResetError)):
        while True:
            host.receive()
    host.process.wait(60)


def test_a_cell_cannot_end_the_process_by_exiting(host: Host) -> None:
    assert host.run("exit()").report["errorType"] == "SystemExit"
    assert host.run("import sys\nsys.exit('x')").report["errorType"] == "SystemExit"
    assert host.ok("1").result == "1"


def test_it_starts_as_a_module_too(tmp_path: Path) -> None:
    with Host(tmp_path, as_module=True) as host:
        assert host.init()["type"] == "ready"
        assert host.ok("__name__").result == "'__main__'"
