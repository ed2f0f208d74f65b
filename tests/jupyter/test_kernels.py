"""`JupyterREPL` in kernels as notebooks start them: processes of ipykernel, with jupyter_client as the front end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient, KernelManager

SECONDS = 60.0


@dataclass
class Cell:
    """The output of a cell, as a notebook shows it."""

    stdout: str = ""
    stderr: str = ""
    result: str | None = None
    error: str | None = None
    displays: list[dict[str, Any]] = field(default_factory=list)


class Notebook:
    """A kernel and its client."""

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def run(self, code: str, on_stdout: Callable[[str], object] | None = None) -> Cell:
        """Runs a cell to its end. `on_stdout` gets the cell's output as it comes."""
        cell = Cell()

        def take(message: dict[str, Any]) -> None:
            kind, content = message["header"]["msg_type"], message["content"]
            if kind == "stream":
                setattr(cell, content["name"], getattr(cell, content["name"]) + content["text"])
                if on_stdout is not None and content["name"] == "stdout":
                    on_stdout(content["text"])
            elif kind == "execute_result":
                cell.result = content["data"]["text/plain"]
            elif kind == "display_data":
                cell.displays.append(content["data"])
            elif kind == "error":
                cell.error = f"{content['ename']}: {content['evalue']}"

        self.client.execute_interactive(code, timeout=SECONDS, output_hook=take, allow_stdin=False)
        return cell

    def ok(self, code: str) -> Cell:
        cell = self.run(code)
        assert cell.error is None, (cell.error, cell.stderr)
        return cell

    def interrupted(self, code: str) -> Cell:
        """Runs a cell and interrupts it once, as soon as it prints `ready`."""
        sent: list[str] = []

        def interrupt(text: str) -> None:
            if "ready" in text and not sent:
                sent.append(text)
                self.manager.interrupt_kernel()

        cell = self.run(code, interrupt)
        assert sent, "the cell never was ready"
        return cell

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Notebook]:
    notebook = Notebook()
    yield notebook
    notebook.close()


@pytest.fixture
def notebook(kernel: Notebook) -> Notebook:
    """A kernel without variables, in which `ask` answers queries."""
    kernel.ok("%reset -f")
    kernel.ok("from sandglass import JupyterREPL\ndef ask(prompt, model=None): return prompt.upper()")
    return kernel


def test_the_kernel_is_of_the_generation_that_is_tested(notebook: Notebook) -> None:
    shown = notebook.ok("import ipykernel, IPython\nprint(ipykernel.version_info[0], IPython.version_info[0])").stdout
    assert shown in ("6 8\n", "7 9\n")


def test_output_is_the_results_and_displays_are_the_notebooks(notebook: Notebook) -> None:
    cell = notebook.ok(
        "from IPython.display import HTML, Markdown\n"
        "repl = JupyterREPL(ask)\n"
        "r = repl.execute_code('''import sys\n"
        "from IPython.display import HTML\n"
        "print(1); display(HTML('<b>shown</b>')); print(2, file=sys.stderr); llm_query('q')''')\n"
        "print('of the notebook')\n"
        "r.stdout, r.stderr, r.result, r.error"
    )
    assert cell.result == str(("1\n", "2\n", "'Q'", None))
    assert cell.stdout == "of the notebook\n" and cell.stderr == ""
    assert [display["text/html"] for display in cell.displays] == ["<b>shown</b>"]


def test_what_a_callback_prints_is_seen_at_once(notebook: Notebook) -> None:
    cell = notebook.ok(
        "def ask(prompt):\n    print(f'asked {prompt}\\n', end=''); return 'a'\n"
        "repl = JupyterREPL(ask)\n"
        "repl.execute_code(\"print('one'); llm_query('x'); llm_query_batched(['y', 'z'])\").stdout"
    )
    assert cell.result == repr("one\n") and sorted(cell.stdout.splitlines()) == ["asked x", "asked y", "asked z"]


def test_code_cannot_end_the_kernel(notebook: Notebook) -> None:
    notebook.ok("repl = JupyterREPL(ask, sync_from_user_ns=True)")
    for name in ("exit", "quit"):
        error = notebook.ok(f"repl.execute_code('{name}()').error").result
        assert f"{name}() is not available to code of a JupyterREPL" in str(error)


def test_captures_of_the_notebook_go_around_it(notebook: Notebook) -> None:
    notebook.ok("repl = JupyterREPL(lambda p: print('in the callback') or p)")
    captured = notebook.ok(
        "%%capture out\nprint('outer'); r = repl.execute_code(\"print('inner'); llm_query('x'); display(5)\")"
    )
    assert (captured.stdout, captured.displays) == ("", [])
    assert notebook.ok("out.stdout, len(out.outputs), r.stdout").result == str(
        ("outer\nin the callback\n", 1, "inner\n")
    )
    timed = notebook.ok("%%time\nr = repl.execute_code('x = 1')")
    assert "Wall time" in timed.stdout


def test_magics_and_shell_commands_of_code(notebook: Notebook) -> None:
    code = "%time y = 6 * 7\\n!echo from the shell {y}\\nprint(y)"
    cell = notebook.ok(
        f'repl = JupyterREPL(ask)\nr = repl.execute_code("{code}")\nr.stdout.splitlines()[-2:], r.error, "y" in globals()'
    )
    assert cell.result == str((["from the shell 42", "42"], None, False)) and cell.stdout == ""


def test_magics_of_code_leave_the_notebooks_variables_alone(notebook: Notebook) -> None:
    notebook.ok("x = 'of the notebook'; mine = 1; repl = JupyterREPL(lambda p: str(get_ipython().user_ns['x']))")
    cell = notebook.ok(
        "r = repl.execute_code('%%capture out\\nx = 1\\ndef f(): return x\\ny = f(); asked = llm_query(str(x))')\n"
        "r.error, repl.locals['y'], repl.locals['asked'], x"
    )
    assert cell.result == str((None, 1, "of the notebook", "of the notebook"))
    moved = "import os\nhere = os.getcwd()\nr = repl.execute_code('%cd /usr')\nos.chdir(here)\nr.error, r.stdout"
    assert notebook.ok(moved).result == str((None, "/usr\n"))
    notebook.ok(HOOKS)
    cell = notebook.ok(
        "before = hooks()\nr = repl.execute_code('%reset -f')\nafter = hooks()\n"
        "r.error, sorted(r.locals), x, mine, [name for name in before if name != 'cells' and before[name] != after[name]]"
    )
    assert cell.result == str((None, [], "of the notebook", 1, []))
    assert notebook.ok("In is get_ipython().user_ns_hidden['In'], repl.execute_code('1 + 1').result").result == str(
        (True, "2")
    )


def test_magics_need_the_main_thread(notebook: Notebook) -> None:
    notebook.ok("import asyncio\nrepl = JupyterREPL(ask)")
    cell = notebook.ok("r = await asyncio.to_thread(repl.execute_code, 'x = 1\\n%time x')\nr.error")
    assert "magics work on what the whole notebook sees: run this code in its main thread" in str(cell.result)


ASYNC = """
import asyncio
async def tell(i):
    await asyncio.sleep(0.01)
    return await llm_query(f"q{i}")
found = await asyncio.gather(*(tell(i) for i in range(3)))
print(found, await llm_query("last"))
"""


@pytest.mark.parametrize(
    "where", ["{}", "import asyncio\nawait asyncio.sleep(0)\n{}", "async def f():\n    return {}\nawait f()"]
)
def test_code_awaits_while_the_kernels_loop_runs(notebook: Notebook, where: str) -> None:
    notebook.ok(f"import asyncio\nrepl = JupyterREPL(ask)\ncode = {ASYNC!r}")
    assert notebook.ok(where.format("repl.execute_code(code).stdout")).result == repr("['Q0', 'Q1', 'Q2'] LAST\n")
    ran = "repl.execute_code('import asyncio\\nasync def f(): return 5\\nprint(asyncio.run(f()))').stdout"
    assert notebook.ok(where.format(ran)).result == repr("5\n")
    # The kernel's own event loop goes on, with its tasks and callbacks.
    after = "async def other(): return 'other'\ntask = asyncio.create_task(other())\nawait asyncio.sleep(0.01)\ntask.result()"
    assert notebook.ok(after).result == repr("other")


def test_a_loop_that_was_made_to_nest() -> None:
    notebook = Notebook()
    try:
        notebook.ok(
            "try: import nest_asyncio2 as nested\nexcept ImportError: import nest_asyncio as nested\nnested.apply()"
        )
        notebook.ok(
            "from sandglass import JupyterREPL\nimport asyncio\nrepl = JupyterREPL(lambda prompt: prompt.upper())"
        )
        shown = repr("['Q0', 'Q1', 'Q2'] LAST\n")
        assert notebook.ok(f"repl.execute_code({ASYNC!r}).stdout").result == shown
        assert notebook.ok(f"await asyncio.sleep(0)\nrepl.execute_code({ASYNC!r}).stdout").result == shown
        ran = "asyncio.run(asyncio.sleep(0, 'ran'))"
        assert notebook.ok(f"repl.execute_code({('import asyncio; ' + ran)!r}).result, {ran}").result == str(
            ("'ran'", "ran")
        )
    finally:
        notebook.close()


def test_code_may_run_in_a_thread_while_the_notebook_goes_on(notebook: Notebook) -> None:
    notebook.ok(
        "import asyncio, threading\nanswer = threading.Event()\nrepl = JupyterREPL(lambda p: str(answer.wait(30)))"
    )
    cell = notebook.ok(
        f"task = asyncio.create_task(asyncio.to_thread(repl.execute_code, {'print(llm_query(0 * chr(0)))' + ASYNC!r}))\n"
        "await asyncio.sleep(0.01); answer.set()\n(await task).stdout"
    )
    assert cell.result == repr("True\n['True', 'True', 'True'] True\n")


def test_asynchronous_callbacks(notebook: Notebook) -> None:
    notebook.ok("import asyncio\nasync def ask(prompt):\n    await asyncio.sleep(0.01); return prompt.upper()")
    run = "JupyterREPL(ask).execute_code(\"print(llm_query('a'), llm_query_batched(['b', 'c']), await llm_query('d'))\").stdout"
    assert notebook.ok(run).result == repr("A ['B', 'C'] D\n")


INTERRUPTED = {
    "code that computes": ("print('ready') or ''", "x = 1; llm_query('q')\nwhile True: pass"),
    "code in a cell that awaits": ("print('ready') or ''", "x = 1; llm_query('q')\nwhile True: pass"),
    "a callback": ("print('ready') or time.sleep(60)", "x = 1; llm_query('q')"),
    "a batch": ("print('ready') or time.sleep(5) or ''", "x = 1; llm_query_batched(['q', 'r'])"),
    "a coroutine": ("print('ready') or ''", "x = 1; llm_query('q')\nimport asyncio\nawait asyncio.sleep(60)"),
    "code that catches all": (
        "print('ready') or ''",
        "x = 1; llm_query('q')\ntry:\n  while True: pass\nexcept Exception: pass",
    ),
}


@pytest.mark.parametrize("what", INTERRUPTED)
def test_an_interrupt_stops_the_cell_and_leaves_all_in_order(notebook: Notebook, what: str) -> None:
    callback, code = INTERRUPTED[what]
    notebook.ok(
        f"import os, sys, time\nrepl = JupyterREPL(lambda prompt: {callback}, sync_to_user_ns=True, workdir='/')"
    )
    notebook.ok("before = sys.stdout, sys.stderr, os.getcwd()")
    begun = time.monotonic()
    first = "import asyncio; await asyncio.sleep(0)\n" if "awaits" in what else ""
    cell = notebook.interrupted(f"{first}repl.execute_code({f'print(0){chr(10)}{code}'!r})\nprint('never reached')")
    assert (cell.error or "").startswith("KeyboardInterrupt") and "never reached" not in cell.stdout
    assert time.monotonic() - begun < 55
    assert notebook.ok("(sys.stdout, sys.stderr, os.getcwd()) == before, repl.last_result.stdout, x").result == str(
        (True, "0\n", 1)
    )
    assert notebook.ok("repl.execute_code('print(x)').stdout").result == repr("1\n")


def test_variables_go_both_ways(notebook: Notebook) -> None:
    notebook.ok(
        "rows = [3, 1, 2]; secret = 1\nrepl = JupyterREPL(ask, sync_from_user_ns=True, sync_to_user_ns=True, sync_vars=['rows'])"
    )
    cell = notebook.ok("r = repl.execute_code('rows.sort(); top = rows[-1]; secret')\nr.error, rows, top, secret")
    assert cell.result == str(("NameError: name 'secret' is not defined", [1, 2, 3], 3, 1))
    notebook.ok("rows = 'new'")
    assert notebook.ok("repl.execute_code('rows').result").result == repr("'new'")
    notebook.ok("repl.execute_code('del rows, top')")
    assert notebook.ok("'rows' in globals(), 'top' in globals()").result == "(False, False)"


def test_last_values_of_the_notebook_are_its_own(notebook: Notebook) -> None:
    notebook.ok("repl = JupyterREPL(ask, sync_from_user_ns=True, sync_to_user_ns=True)")
    notebook.ok("40 + 2")
    notebook.ok("n = len(Out); repl.execute_code('99; _ = 5; Out = None'); repl.execute_code('77');")
    assert (
        notebook.ok("_, len(Out) - n, [value for value in Out.values() if value in (99, 77, 5)]").result
        == "(42, 0, [])"
    )


def test_a_hundred_megabytes_are_quick(notebook: Notebook) -> None:
    notebook.ok("big = 'x' * 100_000_000\nrepl = JupyterREPL(ask)\nimport time, resource")
    notebook.ok("before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; begun = time.perf_counter()")
    notebook.ok("repl.load_context(big); r = repl.execute_code('same = context; print(len(context))')")
    assert notebook.ok("r.stdout, r.locals['same'] is big, time.perf_counter() - begun < 60").result == str(
        ("100000000\n", True, True)
    )
    assert notebook.ok("resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000").result == "True"  # KiB
    notebook.ok("r = repl.execute_code('print(context)')")
    assert notebook.ok("len(r.stdout), 'omitted' in r.stdout").result == "(50039, True)"
    assert len(notebook.ok("r").result or "") < 1000


HOOKS = """
def hooks():
    import asyncio, builtins, gc, linecache, os, signal, sys, threading, time, warnings
    ip = get_ipython()
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        of_policy = asyncio.get_event_loop()
    except RuntimeError as error:
        of_policy = str(error)
    asyncio._set_running_loop(loop)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return {
        'sys': [getattr(sys, n) for n in ('stdout', 'stderr', 'stdin', 'displayhook', 'excepthook', 'unraisablehook', 'breakpointhook')],
        'meta_path': [*sys.meta_path], 'path': [*sys.path], 'main': sys.modules['__main__'], 'trace': (sys.gettrace(), sys.getprofile()),
        'builtins': {n: id(v) for n, v in vars(builtins).items()},
        'functions': (time.sleep, os.write, asyncio.run, asyncio.new_event_loop, input, print, threading.excepthook, warnings.showwarning),
        'signals': {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM, signal.SIGTERM)}, 'wakeup': wakeup,
        'events': {n: [*c] for n, c in ip.events.callbacks.items()},
        'shell': [ip.display_pub, ip.displayhook, ip.user_ns, ip.user_module, ip.compile, ip.history_manager, ip.showtraceback, ip.system],
        'transforms': [*ip.input_transformers_cleanup, *ip.input_transformers_post, *ip.ast_transformers],
        'formatters': {n: len(f.type_printers) for n, f in ip.display_formatter.formatters.items()},
        'hidden': sorted(ip.user_ns_hidden), 'magics': {k: sorted(v) for k, v in ip.magics_manager.magics.items()},
        'loops': (loop, of_policy, sys.get_asyncgen_hooks(), asyncio.current_task()),
        'folder': os.getcwd(), 'environment': dict(os.environ), 'filters': [*warnings.filters], 'gc': gc.isenabled(),
        'cells': [n for n in linecache.cache if n.startswith('<cell ')], 'limit': sys.getrecursionlimit(),
        'threads': sorted(t.name for t in threading.enumerate() if t.name.startswith('sandglass')),
    }
"""
MUCH = """
import asyncio, sys, os
async def f(): return await asyncio.sleep(0)
await f()
print("a" * 100000); llm_query("x"); llm_query_batched(["a", "b"]); display(5)
os.chdir("/usr")
def g(): raise ValueError
try: g()
except ValueError: pass
%time 1
"""


def test_the_kernel_is_afterwards_as_it_was(notebook: Notebook) -> None:
    notebook.ok(HOOKS)
    notebook.ok(
        "import threading\nfor t in threading.enumerate():\n    if t.name.startswith('sandglass'): t.join(30)"
    )  # threads of an interrupted batch
    code = (
        "before = hooks()\n"
        "with JupyterREPL(ask, sync_from_user_ns=True, sync_to_user_ns=True, sync_vars=[], workdir='/tmp') as repl:\n"
        f"    first = repl.execute_code({MUCH!r})\n"
        "    repl.execute_code('asyncio.run(f())')\n"
        "    repl.execute_code('1 / 0')\n"
        "    try: repl.execute_code('raise KeyboardInterrupt')\n"
        "    except KeyboardInterrupt: pass\n"
        "after = hooks()\n"
        "first.error, [name for name in before if before[name] != after[name]]"
    )
    assert notebook.ok(code).result == "(None, [])"


def test_figures_of_code_are_the_notebooks(notebook: Notebook) -> None:
    if notebook.run("import matplotlib").error:
        assert "6" in notebook.ok("import ipykernel; ipykernel.__version__").result  # the newer ipykernel has it
        return
    notebook.ok("%matplotlib inline\nrepl = JupyterREPL(ask)")
    cell = notebook.ok(
        "repl.execute_code('import matplotlib.pyplot as plt\\nplt.plot([1, 2])\\nprint(len(plt.get_fignums()))').stdout"
    )
    assert cell.result == repr("1\n") and ["image/png" in display for display in cell.displays] == [True]
    own = notebook.ok("import matplotlib.pyplot as plt\nplt.plot([3, 4]);")
    assert len(own.displays) == 1


def test_threads_of_the_notebook_go_on(notebook: Notebook) -> None:
    notebook.ok(
        "import threading\nreached, go_on = threading.Event(), threading.Event()\n"
        "def work():\n    reached.set(); go_on.wait(30); print('of the thread')\n"
        "thread = threading.Thread(target=work); thread.start()\nassert reached.wait(30)\n"
        "repl = JupyterREPL(lambda p: go_on.set() or thread.join(30) or str(thread.is_alive()))"
    )
    assert notebook.ok("repl.execute_code(\"llm_query('x')\").result").result == repr("'False'")
