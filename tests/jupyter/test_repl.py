"""Behaviour of `JupyterREPL` in any place: here with IPython in this process, or without IPython."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
import os
import pickle
import random
import signal
import sys
import threading
import time
import tracemalloc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandglass import HostCallError, JupyterREPL
from sandglass.jupyter import Result, kernel


def ok(repl: JupyterREPL, code: str) -> Result:
    result = repl.execute_code(code)
    assert result.error is None, result.traceback
    return result


def echo(prompt: str, model: str | None = None) -> str:
    return f"{prompt}/{model}"


# ---- results ----


def test_a_result_tells_all_there_is_to_know() -> None:
    repl = JupyterREPL(echo)
    repl.load_context("some text")
    result = ok(
        repl, "import sys\nprint(len(context)); print('!', file=sys.stderr)\nx = llm_query('q')\nFINAL_VAR('x')\nx * 2"
    )
    assert (result.stdout, result.stderr, result.error, result.result) == ("9\n", "!\n", None, "'q/Noneq/None'")
    assert result.final_answer == "q/None" and type(result.final_answer) is str
    assert (
        result.locals["x"] == "q/None" and result.locals["context"] == "some text" and "llm_query" not in result.locals
    )
    assert 0 < result.execution_time < 5
    failed = repl.execute_code("print('before')\n1 / 0")
    assert (failed.stdout, failed.error, failed.error_type) == (
        "before\n",
        "ZeroDivisionError: division by zero",
        "ZeroDivisionError",
    )
    assert failed.traceback is not None and "    1 / 0\n" in failed.traceback and "sandglass" not in failed.traceback
    assert repl.execute_code("x =").error_type == "SyntaxError"
    assert failed.final_answer is None and repl.last_result.error_type == "SyntaxError"


def test_the_helpers_are_those_of_the_profile() -> None:
    failing = JupyterREPL(lambda prompt: [][1])
    assert failing.execute_code("llm_query('x')").error == "HostCallError: list index out of range"
    assert ok(failing, "llm_query_batched(['a', 'b'])").result == str(
        ["Error: LM query failed - list index out of range"] * 2
    )
    rlm = JupyterREPL(lambda prompt: [][1], profile="rlm")
    result = rlm.execute_code("print(llm_query('x')); print(rlm_query('y')); 1\nnot_there")
    assert result.stdout == "Error: list index out of range\n" * 2 and result.result is None
    assert result.stderr == "\nNameError: name 'not_there' is not defined"
    assert ok(rlm, "answer['content'] = 42; answer['ready'] = True").final_answer == "42"
    nobody = JupyterREPL()
    assert "give JupyterREPL on_llm_query=" in str(nobody.execute_code("llm_query('x')").error)
    assert ok(JupyterREPL(profile="rlm"), "print(llm_query('x'))").stdout == "Error: No LM handler configured\n"
    assert "on_llm_query returned an int, not a str" in str(
        JupyterREPL(lambda p: 5).execute_code("llm_query('x')").error
    )


def test_the_profile_of_dspy() -> None:
    repl = JupyterREPL(echo, profile="dspy")
    assert ok(repl, "llm_query('a')").result == "a/None"
    done = ok(repl, "SUBMIT(answer=llm_query('b'))\nprint('never')")
    assert done.final_answer == {"answer": "b/None"} and done.stdout == ""
    assert repl.execute_code("llm_query('')").error == "ValueError: prompt cannot be empty"


def test_recursive_queries_get_their_context() -> None:
    asked: list[tuple[Any, ...]] = []
    repl = JupyterREPL(on_rlm_query=lambda *args: asked.append(args) or "done")
    repl.load_context(["the context"])
    ok(repl, "rlm_query('task'); rlm_query('other', [1]); rlm_query_batched(['a', ('b', 2)])")
    assert asked[:2] == [("task", ["the context"]), ("other", [1])]
    assert sorted(asked[2:]) == [("a", ["the context"]), ("b", 2)]
    legacy = JupyterREPL(on_rlm_query=lambda *args: asked.append(args) or "done", profile="rlm-legacy")
    ok(legacy, "rlm_query('p'); rlm_query('p', model='m')")
    assert asked[4:] == [("p", None), ("p", None, "m")]


def test_what_code_overwrites_is_back_in_the_next_cell() -> None:
    repl = JupyterREPL(echo)
    ok(repl, "llm_query = FINAL_VAR = None\n__builtins__['len'] = None\n__builtins__['added'] = 1\ndel SHOW_VARS")
    assert (
        ok(repl, "(llm_query('a'), len('abc'), SHOW_VARS()[:5], 'added' in __builtins__)").result
        == "('a/None', 3, 'No va', False)"
    )
    ok(repl, "__builtins__ = {}; len = 5")
    assert ok(repl, "(len, max(1, 2))").result == "(5, 2)"


def test_builtins_are_safe_against_accidents() -> None:
    repl = JupyterREPL()
    for code in (
        "eval('1')",
        "exec('1')",
        "compile('1', '', 'eval')",
        "globals()",
        "locals()",
        "breakpoint()",
        "exit()",
        "quit()",
    ):
        assert "is not available to code of a JupyterREPL" in str(repl.execute_code(code).error), code
    assert str(repl.execute_code("input()").error).startswith("EOFError: input() is not available")
    assert repl.execute_code("import sys; sys.exit(3)").error == "SystemExit: 3"
    assert (
        ok(repl, "import math\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n  x: int\nP(1)").result
        == "P(x=1)"
    )
    closed = JupyterREPL(allow_builtin_imports=False)
    assert closed.execute_code("import math").error == "ImportError: __import__ not found"


def test_output_of_any_length_is_bounded() -> None:
    repl = JupyterREPL(max_output_length=1000)
    result = repl.execute_code("for i in range(300000): print('x' * 99)\nraise ValueError('y' * 100000)")
    assert len(result.stdout) < 1100 and result.stdout.startswith("x" * 99 + "\n")
    assert "\n... [29999000 characters omitted] ...\n" in result.stdout
    assert len(str(result.error)) < 1100 and len(str(result.traceback)) < 1100
    assert len(str(ok(repl, "'z' * 10**6").result)) < 1100
    assert len(repr(repl.execute_code("big = 'b' * 10**7\nprint('c' * 900)"))) < 500
    assert ok(repl, "import sys\nsys.stdout.buffer.write('é'.encode())\nprint('\\ud800')").stdout == "é\\ud800\n"


def test_broken_reprs_break_nothing() -> None:
    repl = JupyterREPL()
    code = "class B:\n  def __repr__(self): raise OSError('no')\n  __str__ = __bool__ = __len__ = __eq__ = __repr__\nb = B()\nFINAL(b)\nb"
    result = ok(repl, code)
    assert result.result == "<B object, repr() raised OSError: no>" and "B object" in repr(result)
    assert "B object" in result.to_dict()["locals"]["b"]
    assert (
        repl.execute_code("class E(Exception):\n  def __str__(self): raise OSError\nraise E").error
        == "E: <exception str() failed>"
    )
    assert ok(repl, "answer = b").final_answer is None
    assert ok(repl, "answer = {'content': 1, 'ready': b}").final_answer == 1


def test_a_large_context_is_not_copied() -> None:
    context = "line\n" * 20_000_000
    repl = JupyterREPL()
    begun = time.perf_counter()
    repl.load_context(context)
    result = ok(repl, "same = context\nFINAL_VAR('same')\nlen(context)")
    assert result.result == "100000000" and result.final_answer is context and result.locals["context"] is context
    assert len(repr(result)) < 1000 and len(str(result.to_dict()["locals"])) < 10_000
    assert result.to_dict()["final_answer"] is context
    tracemalloc.start()
    try:
        result.to_dict()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begun < 60


# ---- turns ----


def test_contexts_and_histories_of_several_turns() -> None:
    repl = JupyterREPL()
    repl.load_context("zero")
    assert ok(repl, "(context, completion_context)").result == "('zero', 'zero')"
    repl.load_context("again")
    assert ok(repl, "(context, completion_context)").result == "('again', 'again')"
    assert repl.add_context("one") == 1 and repl.get_context_count() == 2
    assert ok(repl, "(context, context_0, context_1, session_context_0, session_context_1)").result == str(
        ("again", "again", "one", "again", "one")
    )
    assert ok(repl, "context_history, completion_context").result == "(['again', 'one'], 'one')"
    repl.load_context("anew")
    assert ok(repl, "(context, session_context_0, context_history, completion_context)").result == str(
        ("anew", "anew", ["anew", "one"], "anew")
    )
    messages = [{"role": "user", "content": "hi"}]
    assert (repl.add_history(messages), repl.add_history([])) == (0, 1) and repl.get_history_count() == 2
    messages[0]["content"] = "changed"
    assert ok(repl, "history[0]['content'], history is history_0, session_history").result == str(
        ("hi", True, [[{"role": "user", "content": "hi"}], []])
    )
    lasting = JupyterREPL(persistent=True, context_payload="first")
    assert ok(lasting, "(context, session_context_0, context_history)").result == "('first', 'first', ['first'])"
    assert lasting.add_context("sixth", 5) == 5 and lasting.add_context("seventh") == 6
    assert ok(lasting, "context, session_context_5, context_6, context_history").result == str(
        ("first", "sixth", "seventh", ["first", "sixth", "seventh"])
    )
    with pytest.raises(ValueError, match="0 or more"):
        lasting.add_context("x", -1)


def test_threads_may_add_contexts_at_once_and_while_code_runs() -> None:
    started, done = threading.Event(), threading.Event()
    repl = JupyterREPL(lambda prompt: started.set() or str(done.wait(60)), persistent=True)
    numbers: list[int] = []

    def add() -> None:
        started.wait(60)
        numbers.extend(repl.add_context(object()) for _ in range(100))
        numbers.extend(repl.add_history([]) for _ in range(100))

    def add_all() -> None:
        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        done.set()

    adding = threading.Thread(target=add_all)
    adding.start()
    source = "from threading import Thread\ndef make(n):\n    for i in range(300): make.__globals__[f'v{n}_{i}'] = i\n"
    source += "threads = [Thread(target=make, args=(n,)) for n in range(4)]\nfor thread in threads: thread.start()\n"
    ok(repl, source + "llm_query('x')\nfor thread in threads: thread.join()")
    adding.join()
    assert sorted(numbers) == sorted([*range(800)] * 2)
    assert len(repl.locals["context_history"]) == len(repl.locals["session_history"]) == 800
    assert repl.get_context_count() == 800
    repl.cleanup()
    assert (repl.get_context_count(), repl.get_history_count()) == (800, 800)
    repl.setup()
    assert (repl.get_context_count(), repl.get_history_count()) == (0, 0)


def test_the_rlm_profile_shows_its_answer_among_the_variables() -> None:
    repl = JupyterREPL(profile="rlm")
    assert ok(repl, "answer['content'] = 1; x = 2").locals == {"x": 2, "answer": {"content": 1, "ready": False}}
    assert ok(JupyterREPL(), "answer['content'] = 1; x = 2").locals == {"x": 2}


def test_code_has_its_time() -> None:
    def slow(prompt: str) -> str:
        time.sleep(2.2)
        return prompt

    repl = JupyterREPL(slow, cell_timeout=2.0)
    assert repl.max_concurrent_subcalls == 4
    assert ok(repl, "llm_query('not counted')").result == "'not counted'"
    for endless in ("while True: pass", "import time; time.sleep(600)", "import asyncio; await asyncio.sleep(600)"):
        repl.cell_timeout = 3.0  # on a busy machine, the code takes long to come to what does not end
        result = repl.execute_code(f"print('before'); x = 1\n{endless}")
        repl.cell_timeout = None
        assert result.error_type == "TimeoutError" and "longer than 3 seconds (cell_timeout)" in str(result.error)
        assert result.stdout == "before\n" and result.locals["x"] == 1
        assert str(result.traceback).endswith(f"{result.error}\n") and ok(repl, "x + 1").result == "2"
    # Code that catches the interrupt is interrupted again.
    repl.cell_timeout = 0.5
    caught = "import time\nn = 0\nwhile n < 2:\n    try: time.sleep(600)\n    except KeyboardInterrupt: n += 1"
    assert ok(repl, caught).locals["n"] == 2
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            repl.execute_code("1")
        except RuntimeError as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(failed[0])


def test_the_rlm_profile_puts_the_context_back() -> None:
    repl = JupyterREPL(profile="rlm", context_payload="given")
    ok(repl, "context = 'mine'")
    assert ok(repl, "print(context, context_0)").stdout == "given given\n"
    repl.add_context("second")
    assert ok(repl, "print(context, context_1)").stdout == "given second\n"


def test_setup_makes_everything_anew() -> None:
    repl = JupyterREPL(
        setup_code="import math\ndef area(r): return math.pi * r * r",
        custom_tools={"limit": 5, "up": {"tool": str.upper}},
    )
    assert ok(repl, "round(area(2)), limit, up('a')").result == "(13, 5, 'A')"
    ok(repl, "up = limit = None; x = 1")
    assert ok(repl, "(up('b'), limit)").result == "('B', None)"
    repl.setup()
    assert repl.execute_code("x").error_type == "NameError"
    assert ok(repl, "limit").result == "5"
    with pytest.raises(RuntimeError, match="setup_code failed: NameError: name 'nowhere'"):
        JupyterREPL(setup_code="nowhere")


def test_cleanup_lets_go() -> None:
    gc.collect()
    before = set(linecache.cache)
    with JupyterREPL(echo) as repl:
        ok(repl, "def f(): return x\nx = [1]")
        kept = repl.locals["f"]
        assert set(linecache.cache) > before
    assert set(linecache.cache) == before
    assert repl.locals == {} and kept() == [1]
    repl.cleanup()
    with JupyterREPL(echo) as repl:
        ok(repl, "class C: pass\nc = C()")
        value = weakref.ref(repl.locals["c"])
    gc.collect()
    assert value() is None and repl.last_result is None
    dropped = JupyterREPL(echo)
    gone = weakref.ref(dropped)
    ok(dropped, "x = 1")
    del dropped
    gc.collect()
    assert gone() is None and set(linecache.cache) == before
    for call in (lambda: repl.execute_code("1"), lambda: repl.load_context(1), lambda: repl.add_history([])):
        with pytest.raises(RuntimeError, match="cleaned up"):
            call()


@pytest.mark.parametrize("method", ["cleanup", "setup"])
def test_what_runs_code_cannot_be_cleaned_up(method: str) -> None:
    def ask(prompt: str) -> str:
        with pytest.raises(RuntimeError, match="runs code already: interrupt it"):
            getattr(repl, method)()
        return prompt

    repl = JupyterREPL(ask)
    assert ok(repl, "x = 1; y = llm_query('a'); print(x, y)").stdout == "1 a\n"
    getattr(repl, method)()


def test_options_are_checked(shell: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no profile 'x', but default"):
        JupyterREPL(profile="x")
    with pytest.raises(NotADirectoryError, match="workdir: there is no folder"):
        JupyterREPL(workdir=tmp_path / "none")
    for names, message in (
        (["a", "b c"], "'b c' is no name"),
        ("df", r"list of names: \['df'\]"),
        ([5], "5 is no name"),
    ):
        with pytest.raises(ValueError, match=message):
            JupyterREPL(sync_vars=names)  # type: ignore[arg-type]
    for name in ("llm_query", "context", "answer"):
        with pytest.raises(ValueError, match=f"custom_tools: '{name}' is reserved"):
            JupyterREPL(custom_tools={name: print})
    with pytest.raises(ValueError, match="custom_tools: 'no name' is no name"):
        JupyterREPL(custom_tools={"no name": print})
    for seconds in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="cell_timeout"):
            JupyterREPL(cell_timeout=seconds)
    with pytest.raises(TypeError, match="code to be a str, not int"):
        JupyterREPL().execute_code(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_llm"):
        JupyterREPL(on_llm=print)  # type: ignore[call-arg]


# ---- state of the process ----


def test_code_has_a_folder_and_callbacks_have_the_notebooks(tmp_path: Path) -> None:
    here = os.getcwd()
    inside = tmp_path / "inside"
    inside.mkdir()
    seen: list[str] = []
    repl = JupyterREPL(lambda prompt: seen.append(os.getcwd()) or "", workdir=tmp_path)
    result = ok(
        repl,
        "import os\nopen('made.txt', 'w').close()\nllm_query('x')\nos.chdir('inside')\nllm_query('y')\nprint(os.getcwd())",
    )
    assert seen == [here, here] and result.stdout == f"{inside}\n" and (tmp_path / "made.txt").exists()
    assert os.getcwd() == here
    assert repl.execute_code("import os; os.chdir('inside'); 1 / 0").error and os.getcwd() == here
    assert ok(repl, "print(os.getcwd())").stdout == f"{tmp_path}\n"


def test_streams_are_given_back_and_what_keeps_one_writes_to_the_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    streams = sys.stdout, sys.stderr
    repl = JupyterREPL(lambda prompt: print("asked", prompt) or "a")
    result = ok(repl, "print('one'); llm_query('q'); print('two')\nimport sys; kept = sys.stdout")
    assert (sys.stdout, sys.stderr) == streams
    assert result.stdout == "one\ntwo\n" and capsys.readouterr().out == "asked q\n"
    repl.locals["kept"].write("later\n")
    repl.locals["kept"].flush()
    assert capsys.readouterr().out == "later\n"
    log = logging.getLogger("of the test")
    log.propagate = False
    ok(
        repl,
        "import logging\nlog = logging.getLogger('of the test')\nlog.addHandler(logging.StreamHandler())\nlog.error('inside')",
    )
    log.error("outside")
    assert repl.last_result.stderr == "inside\n" and capsys.readouterr().err == "outside\n"
    log.handlers.clear()


def test_threads_of_code_print_and_ask() -> None:
    repl = JupyterREPL(lambda prompt: print("unseen") or prompt.upper())
    code = """
from concurrent.futures import ThreadPoolExecutor
def ask(i):
    print(f'line {i}\\n', end='')  # in one write, or other threads' output comes between
    return llm_query(f'q{i}')
with ThreadPoolExecutor(4) as pool:
    got = list(pool.map(ask, range(20)))
got"""
    result = ok(repl, code)
    assert result.result == str([f"Q{i}" for i in range(20)])
    assert sorted(result.stdout.splitlines()) == sorted(f"line {i}" for i in range(20))


def test_a_batch_is_asked_at_once_and_stays_in_order() -> None:
    together = threading.Barrier(3, timeout=10)

    def ask(prompt: str) -> str:
        together.wait()
        if prompt == "b":
            raise OSError("down")
        return prompt

    repl = JupyterREPL(ask, max_concurrent_subcalls=3)
    assert ok(repl, "llm_query_batched(['a', 'b', 'c'])").result == "['a', 'Error: LM query failed - down', 'c']"
    assert ok(repl, "llm_query_batched([])").result == "[]"


def test_callbacks_may_be_asynchronous() -> None:
    async def ask(prompt: str, model: str | None = None) -> str:
        await asyncio.sleep(0.01)
        if prompt == "bad":
            raise ValueError("worse")
        return f"{prompt}/{model}"

    for callback in (ask, lambda *args: ask(*args)):
        repl = JupyterREPL(callback)
        code = "llm_query('a', model='m'), await llm_query('b'), llm_query_batched(['c', 'bad'])"
        assert ok(repl, code).result == "('a/m', 'b/None', ['c/None', 'Error: LM query failed - worse'])"


def test_asynchronous_callbacks_share_a_loop() -> None:
    limit = asyncio.Semaphore(1)
    loops: set[Any] = set()
    threads: set[threading.Thread] = set()

    async def ask(prompt: str) -> str:
        async with limit:
            loops.add(asyncio.get_running_loop())
            threads.add(threading.current_thread())
            await asyncio.sleep(0.01)
            print("unseen")
            return prompt

    with JupyterREPL(ask) as repl:
        for _ in range(2):
            result = ok(repl, "llm_query('a'), llm_query_batched(['b', 'c', 'd'])")
            assert (result.result, result.stdout) == ("('a', ['b', 'c', 'd'])", "")
        repl.setup()
        assert next(iter(loops)).is_closed() and len(loops) == 1
        assert ok(repl, "llm_query('a')").result == "'a'"
    assert len(threads) == 2 and not any(thread.is_alive() for thread in threads)
    threads.clear()
    dropped = JupyterREPL(ask)
    ok(dropped, "llm_query('a')")
    (thread,) = threads
    del dropped
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_an_interrupt_cancels_an_asynchronous_callback() -> None:
    ended = threading.Event()

    async def ask(prompt: str) -> str:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return prompt

    with JupyterREPL(ask) as repl:
        with pytest.raises(KeyboardInterrupt):
            repl.execute_code("llm_query('a')")
        assert ended.wait(10)


def test_what_an_interrupted_batch_leaves_behind_changes_nothing(shell: Any, tmp_path: Path) -> None:
    go_on, both = threading.Event(), threading.Barrier(2, timeout=30)
    ended: list[str] = []

    def interrupt() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        go_on.wait(30)

    def child(_task: str, _context: Any) -> str:
        both.wait()
        try:
            inner = JupyterREPL(echo, workdir=tmp_path, sync_to_user_ns=True, custom_tools={"interrupt": interrupt})
            ended.append(str(inner.execute_code("print('x'); interrupt(); late = 1; llm_query('a')").error))
            inner.execute_code("print('z')")
        except RuntimeError as error:
            ended.append(str(error))
        return ""

    def state() -> tuple[Any, ...]:
        return sys.stdout, sys.stderr, os.getcwd(), sorted(shell.user_ns)

    before = state()
    repl = JupyterREPL(on_rlm_query=child)
    with pytest.raises(KeyboardInterrupt):
        repl.execute_code("rlm_query_batched(['a', 'b'])")
    assert state() == before
    go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("sandglass"):
            thread.join(30)
    assert state() == before
    assert len(ended) == 3 and all("that this belongs to has ended" in error for error in ended)
    assert ok(repl, "print('on')").stdout == "on\n"


def test_a_thread_that_a_callback_starts_waits_for_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "TURN_SECONDS", 0.2)
    inner = JupyterREPL()

    def ask(how: str) -> str:
        run = partial(copy_context().run, ok) if how == "with context" else ok
        with ThreadPoolExecutor(1) as pool:
            return str(pool.submit(run, inner, "1 + 1").result().result)

    repl = JupyterREPL(ask)
    assert "contextvars.copy_context().run" in str(repl.execute_code("llm_query('without')").error)
    assert ok(repl, "llm_query('with context')").result == "'2'"


def test_what_code_leaves_in_loops_is_bounded() -> None:
    repl = JupyterREPL()
    code = """
import asyncio
async def endless():
    try:
        yield 1
    finally:
        await asyncio.sleep(60)
generator = endless()
await anext(generator)
asyncio.set_event_loop(asyncio.get_running_loop())"""
    begun = time.monotonic()
    ok(repl, code)
    assert time.monotonic() - begun < 55
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        ok(repl, code)
        assert asyncio.get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_children_that_run_at_once_keep_their_output_apart() -> None:
    def child(task: str, context: Any) -> str:
        inner = JupyterREPL(lambda prompt: print("of the notebook") or prompt)
        return ok(inner, f"for i in range(200): print({task!r}, end='')\nllm_query('x')").stdout

    repl = JupyterREPL(on_rlm_query=child)
    result = ok(
        repl,
        "print('before')\ngot = rlm_query_batched(['a', 'b', 'c', 'd'])\nprint('after')\n[(set(t), len(t)) for t in got]",
    )
    assert result.stdout == "before\nafter\n" and result.result == str([({letter}, 200) for letter in "abcd"])
    itself = JupyterREPL(lambda prompt: str(itself.execute_code("1")))
    assert "runs code already" in str(itself.execute_code("llm_query('x')").error)
    assert ok(itself, "2").result == "2"


def test_two_repls_know_nothing_of_each_other() -> None:
    first, second = JupyterREPL(echo), JupyterREPL(lambda prompt: "second")
    ok(first, "x = 1\ndef f(): return 1 / 0")
    assert second.execute_code("x").error_type == "NameError"
    ok(second, "def g(): raise ValueError('of g')\nllm_query = 5")
    assert ok(first, "llm_query('a')").result == "'a/None'"
    assert "def f(): return 1 / 0" in str(first.execute_code("f()").traceback)
    assert "raise ValueError('of g')" in str(second.execute_code("g()").traceback)


def test_coroutines_run_whether_a_loop_runs_or_not() -> None:
    code = "import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return await llm_query(x)\n"
    repl = JupyterREPL(echo)

    def check() -> None:
        assert (
            ok(repl, code + "await asyncio.gather(f('a'), asyncio.create_task(llm_query('b')))").result
            == "['a/None', 'b/None']"
        )
        assert ok(repl, "asyncio.run(f('c'))").result == "'c/None'"
        result = ok(repl, "task = asyncio.get_running_loop().create_task(asyncio.sleep(60)); await asyncio.sleep(0)")
        assert result.stderr == "sandglass: 1 background task was cancelled at the end of the cell\n"

    async def notebook() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        check()
        assert (asyncio.get_running_loop(), asyncio.current_task()) == (loop, task) and asyncio.get_event_loop() is loop
        await asyncio.sleep(0)

    check()
    asyncio.run(notebook())


def test_a_task_that_refuses_to_end_holds_nothing_up() -> None:
    repl = JupyterREPL()
    code = """
import asyncio
async def stubborn():
    while True:
        try: await asyncio.sleep(60)
        except asyncio.CancelledError: pass
task = asyncio.create_task(stubborn())
await asyncio.sleep(0)"""
    assert ok(repl, code).execution_time < 10


def test_an_interrupt_goes_on_to_the_notebook() -> None:
    def ask(prompt: str) -> str:
        raise KeyboardInterrupt

    here, streams = os.getcwd(), (sys.stdout, sys.stderr)
    for profile in ("default", "rlm"):
        repl = JupyterREPL(ask, profile=profile)
        with pytest.raises(KeyboardInterrupt):
            repl.execute_code("x = 1\nprint('so far')\ntry: llm_query('q')\nexcept Exception: pass")
        assert repl.last_result.stdout == "so far\n" and repl.last_result.error_type == "KeyboardInterrupt"
        assert (sys.stdout, sys.stderr) == streams and os.getcwd() == here
        assert ok(repl, "print(x)").stdout == "1\n"


@pytest.mark.filterwarnings("ignore")  # half-made objects warn when they are collected
def test_interrupts_at_any_moment_leave_all_in_order(shell: Any, tmp_path: Path) -> None:
    repl = JupyterREPL(lambda prompt: prompt, sync_to_user_ns=True, sync_from_user_ns=True, workdir=tmp_path)
    # Without a batch, because an interrupt while CPython starts a thread may leave that thread waiting for a lock for ever.
    code = "for i in range(3): print(i); llm_query('x')\nawait llm_query('a')"

    def interrupt(_number: int, frame: Any) -> None:
        while frame is not None:
            if frame.f_globals["__name__"].startswith("_pytest."):
                return  # pytest's own frames would take the interrupt for a failure
            if frame.f_code is JupyterREPL.execute_code.__code__:
                raise KeyboardInterrupt
            frame = frame.f_back

    def state() -> tuple[Any, ...]:
        place = sys.stdout, sys.stderr, os.getcwd(), shell.user_ns, signal.getsignal(signal.SIGINT)
        return *place, asyncio.get_running_loop(), asyncio.current_task(), kernel.serving.get()

    async def notebook() -> int:
        before, interrupted, moments = state(), 0, random.Random(5)
        for _ in range(150):
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00001, 0.003))
            try:
                repl.execute_code(code)
            except KeyboardInterrupt:
                interrupted += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert state() == before
        return interrupted

    previous = signal.signal(signal.SIGINT, interrupt)
    alarm = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        assert asyncio.run(notebook()) > 10
    finally:
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, previous)
    assert ok(repl, code).stdout == "0\n1\n2\n"


def test_errors_of_the_host_can_be_caught_by_name() -> None:
    repl = JupyterREPL(lambda prompt: [][1])
    assert (
        ok(repl, "try: llm_query('x')\nexcept HostCallError as error: caught = str(error)\ncaught").result
        == "'list index out of range'"
    )
    assert isinstance(repl.locals["caught"], str) and issubclass(HostCallError, RuntimeError)


# ---- the notebook's variables ----


def test_variables_come_from_the_notebook(shell: Any) -> None:
    shell.run_cell("df = [1, 2]; _private = 1; context = 'mine'; llm_query = 'taken'; answer = 'taken'\nimport math")
    repl = JupyterREPL(echo, sync_from_user_ns=True)
    shell.user_ns["repl"] = repl
    assert ok(repl, "(df, context, math.pi > 3, llm_query('a'))").result == "([1, 2], 'mine', True, 'a/None')"
    for name in ("_private", "In", "Out", "_", "repl"):
        assert repl.execute_code(name).error_type == "NameError", name
    assert "is not available" in str(repl.execute_code("exit()").error)
    ok(repl, "df.append(3); made = 1; df2 = df")
    assert shell.user_ns["df"] == [1, 2, 3]  # the same object
    assert "made" not in shell.user_ns and shell.user_ns["llm_query"] == "taken"
    shell.run_cell("df = 'new'; del math")
    assert ok(repl, "(df, df2)").result == "('new', [1, 2, 3])"
    assert repl.execute_code("math").error_type == "NameError"
    ok(repl, "df = 'of the code'")
    assert shell.user_ns["df"] == "new" and ok(repl, "df").result == "'new'"
    repl.load_context("given")
    assert ok(repl, "context").result == "'given'" and shell.user_ns["context"] == "mine"


def test_variables_go_to_the_notebook(shell: Any) -> None:
    shell.run_cell("x = 1; y = 1; In_before = len(In)")
    repl = JupyterREPL(echo, sync_to_user_ns=True)
    repl.load_context("given")
    assert repl.execute_code("x").error_type == "NameError"
    ok(
        repl,
        "x = 2; text = llm_query('a'); _hidden = 1; In = Out = get_ipython = 'taken'\nimport json\ndef f(): return x",
    )
    user = shell.user_ns
    assert (user["x"], user["text"], user["f"]()) == (2, "a/None", 2) and type(user["text"]) is str and "json" in user
    assert user["In"] != "taken" and user["Out"] != "taken" and callable(user["get_ipython"])
    for name in ("context", "completion_context", "_hidden", "llm_query", "answer", "HostCallError"):
        assert name not in user, name
    shell.run_cell("x = 'by hand'; z = 1")
    ok(repl, "other = 1")
    assert user["x"] == "by hand"  # the code did not touch it
    ok(repl, "z = 1; del x, text, f")
    assert user["x"] == "by hand" and "text" not in user and "f" not in user
    repl.execute_code("late = 5; 1 / 0")
    assert user["late"] == 5  # assignments before the error count
    with pytest.raises(KeyboardInterrupt):
        repl.execute_code("later = 6; raise KeyboardInterrupt")
    assert user["later"] == 6
    repl.cleanup()
    assert user["late"] == 5


def test_the_notebook_may_have_variables_with_the_names_of_aliases(shell: Any) -> None:
    shell.run_cell("query = 'mine'")
    repl = JupyterREPL(echo, sync_to_user_ns=True, sync_from_user_ns=True)
    assert ok(repl, "query").result == "'mine'"
    assert "llm_batch" not in shell.user_ns
    shell.run_cell("del query")
    assert ok(repl, "query('a')").result == "'a/None'" and "query" not in shell.user_ns


def test_what_the_repl_was_given_is_its_own(shell: Any) -> None:
    shell.run_cell("context = ['mine']; limit = 'mine'; context_history = 'mine'; query = 'mine'")
    options: dict[str, Any] = {"sync_to_user_ns": True, "sync_from_user_ns": True}
    repl = JupyterREPL(echo, **options, custom_tools={"limit": 5})
    assert ok(repl, "limit, context, context_history").result == "(5, ['mine'], 'mine')"
    repl.add_context("given")  # under a name that was shared until now
    shell.run_cell("del context")
    assert ok(repl, "context, context_history").result == "('given', ['given'])"
    shell.run_cell("context = 'anew'")
    ok(repl, "del context, limit, query")
    user = shell.user_ns
    assert (user["context"], user["limit"], user["context_history"]) == ("anew", "mine", "mine")
    assert "query" not in user  # the code has deleted the notebook's variable


def test_variables_go_both_ways(shell: Any) -> None:
    shell.run_cell("n = 1; rows = []; gone = 1")
    repl = JupyterREPL(sync_to_user_ns=True, sync_from_user_ns=True)
    ok(repl, "n += 1; rows.append(n); del gone; made = {}")
    assert shell.user_ns["n"] == 2 and shell.user_ns["rows"] == [2] and "gone" not in shell.user_ns
    assert shell.run_cell("n += 1; rows.append(n); made['k'] = n; del rows").success
    assert ok(repl, "(n, made)").result == "(3, {'k': 3})"
    assert repl.execute_code("rows").error_type == "NameError"
    other = JupyterREPL(sync_from_user_ns=True, profile="rlm", context_payload="c")
    assert ok(other, "print(n, made)").stdout == "3 {'k': 3}\n"


def test_with_a_list_of_names_the_notebooks_others_are_left_alone(shell: Any) -> None:
    shell.run_cell("df = [1]; secret = 's'; both = 0")
    repl = JupyterREPL(sync_to_user_ns=True, sync_from_user_ns=True, sync_vars=["df", "both", "not_there"])
    assert repl.execute_code("secret").error_type == "NameError"
    ok(repl, "df = df + [2]; secret = 'mine'; both += 1; made = 1")
    user = shell.user_ns
    assert (user["df"], user["secret"], user["both"], user["made"]) == ([1, 2], "s", 1, 1)
    ok(repl, "made = 2; del both, secret")
    assert user["made"] == 2 and "both" not in user and user["secret"] == "s"
    shell.run_cell("made = 'by hand'")
    assert ok(repl, "made").result == "2"  # not on the list
    ok(repl, "made = 3")
    assert user["made"] == "by hand"
    ok(repl, "not_there = 1")
    assert user["not_there"] == 1


def test_without_ipython_there_is_nothing_to_sync() -> None:
    assert kernel.find_shell() is None
    with pytest.raises(RuntimeError, match="need IPython, and none runs in this process"):
        JupyterREPL(sync_to_user_ns=True)
    assert JupyterREPL().execute_code("%time 1").error_type == "SyntaxError"


def test_magics_work_on_the_codes_variables(shell: Any) -> None:
    repl = JupyterREPL(echo)
    ok(repl, "x = 20")
    result = ok(repl, "%time y = x + 1\nz = y * 2\nprint(z)\n!echo from the shell $x")
    assert result.stdout.splitlines()[-2:] == ["42", "from the shell 20"]
    assert (repl.locals["y"], repl.locals["z"]) == (21, 42) and not {"x", "y", "z"} & shell.user_ns.keys()
    assert "3 loops" in ok(repl, "%%timeit -n 3 -r 1\nx + 1").stdout
    assert "Line magic function `%no_such_magic` not found" in str(repl.execute_code("%no_such_magic").error)
    assert repl.execute_code("x = = 1").error == "SyntaxError: invalid syntax"
    before = shell.user_ns
    with pytest.raises(KeyboardInterrupt):
        repl.execute_code("%time raise KeyboardInterrupt\nraise KeyboardInterrupt")
    assert shell.user_ns is before


def test_outputs_of_the_notebook_are_not_polluted(shell: Any) -> None:
    shell.run_cell("1 + 1", store_history=True)
    before = dict(shell.user_ns)
    repl = JupyterREPL(sync_to_user_ns=True, sync_from_user_ns=True)
    ok(repl, "5")
    ok(repl, "'not shown'")
    assert {name: value for name, value in shell.user_ns.items() if before.get(name) is not value} == {}


def test_results_can_be_pickled() -> None:
    result = ok(JupyterREPL(echo), "x = llm_query('a'); y = llm_query_batched(['b'])")
    assert pickle.loads(pickle.dumps(result)).locals == {"x": "a/None", "y": ["b/None"]}
