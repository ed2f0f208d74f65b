"""`Sandbox`: what its methods do in a real guest."""

from __future__ import annotations

import ast
import gc
import math
import pickle
import pydoc
import re
import signal
import threading
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from client_host import PLAIN

import sandglass
from sandglass import Answer, CodeExecution, HostCall, Sandbox, SandboxError, Usage, approve
from sandglass.client import CodeLine, Display, HostFunction, Lost, Opaque, calls, session
from sandglass.client.connection import Asked

WHO: ContextVar[str] = ContextVar("who", default="nobody")


def test_the_sample_of_the_readme(tmp_path: Path) -> None:
    letters = tmp_path / "letters.txt"
    letters.write_text("Dear Sir,\nit rains.\n" * 1000)

    def ask(prompt: str, model: str | None = None) -> str:
        return f"{model}: {len(prompt)}"

    def lookup(name: str, *, year: int) -> dict[str, int]:
        return {name: year}

    with Sandbox(on_llm_query=ask, host_functions={"lookup": lookup}, **PLAIN) as sandbox:
        sandbox.initialize(letters)
        run = sandbox.execute("print(len(context)); x = llm_query(context[:100])\nlookup('sand', year=1987)")
        assert (run.outcome, run.stdout, run.error) == ("ok", "20000\n", None)
        assert run.state.status == "kept"
        assert run.value == {"sand": 1987}
        assert sandbox["x"] == "None: 100"
        assert [(call.name, call.args, call.kwargs, call.error) for call in run.calls] == [
            ("llm_query", ("Dear Sir,\nit rains.\n" * 5,), {}, None),
            ("lookup", ("sand",), {"year": 1987}, None),
        ]
        assert all(call.seconds is not None and call.seconds >= 0 for call in run.calls)
        assert sandbox.execute("llm_query('abc', model='small')").value == "small: 3"


def test_results(shared: Sandbox) -> None:
    failed = shared.execute("print('before')\n1 / 0")
    assert (failed.outcome, failed.stdout, failed.error) == ("error", "before\n", "ZeroDivisionError: division by zero")
    assert failed.error_type == "ZeroDivisionError"
    assert failed.traceback is not None
    assert "1 / 0" in failed.traceback
    shared.execute("kept = 1")
    late = shared.execute("while True: pass", timeout=200)
    assert (late.outcome, late.state.status) == ("timeout", "kept")
    assert shared["kept"] == 1
    final = shared.execute("FINAL({'a': [1]})")
    assert (final.is_final, final.final, final.value) == (True, {"a": [1]}, None)
    none = shared.execute("FINAL(None)")
    assert (none.is_final, none.final) == (True, None)
    plain = shared.execute("x = 1")
    assert (plain.is_final, plain.final, plain.result) == (False, None, None)
    assert plain.id == none.id + 1
    assert plain.duration >= plain.guest_time > 0


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, 2.0, True, None, "ä\n", b"\xff"],
        2**70,
        "a\ud800",
        {"a": {"b": []}},
        {1: "x", (2, 3): "y"},
        {1, 2},
        datetime(2024, 2, 29, 12, tzinfo=UTC),
        "x" * 200_000,
        b"\x00\xff" * 100_000,
        ["text"] * 50_000,
        {"$blob": {"id": 1, "type": "str"}},
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_go_in_and_come_back(shared: Sandbox, value: Any) -> None:
    shared["value"] = value
    assert shared.execute("same = value").outcome == "ok"
    assert shared["same"] == value
    assert shared.execute("value").value == value


def test_arrays_and_tables(shared: Sandbox) -> None:
    table = pandas.DataFrame({"a": [1, 2], "b": ["x", None]}, index=["p", "q"])
    shared["table"], shared["array"] = table, numpy.arange(6, dtype="float32").reshape(2, 3)
    run = shared.execute("total = int(table['a'].sum()) + float(array.sum())\narray * 2")
    assert run.error is None
    assert (run.value == numpy.arange(6).reshape(2, 3) * 2).all()
    assert shared["total"] == 18.0
    pandas.testing.assert_frame_equal(shared["table"], table)
    shared.execute("import threading; lock = threading.Lock()")
    assert isinstance(shared["lock"], Opaque)


def test_variables() -> None:
    with Sandbox(**PLAIN) as sandbox:
        sandbox.initialize("text")
        sandbox["x"] = 5
        assert "x" in sandbox
        assert "y" not in sandbox
        assert list(sandbox) == ["x"] or "x" in list(sandbox)
        assert len(sandbox) == len(list(sandbox))
        assert bool(sandbox)
        assert sandbox.get_variable("y", "none") == "none"
        with pytest.raises(KeyError):
            sandbox["y"]
        described = {variable.name: variable for variable in sandbox.list_variables()}
        assert described["x"].type == "int"
        assert sandbox.add_context("more") == "context_1"
        assert sandbox.add_context([], series="history") == "history_0"


def test_numbers_of_numpy_that_others_do_not_have_are_refused(shared: Sandbox) -> None:
    for value in (numpy.longdouble(1), numpy.datetime64(1, "ns"), numpy.timedelta64(1, "ns"), numpy.complex128(1)):
        with pytest.raises(SandboxError) as refused:
            shared["x"] = [value]
        assert refused.value.code == "not_serializable"
    shared["x"] = [numpy.float32(0.5), numpy.uint8(3), numpy.bool_(True)]
    assert shared["x"] == [0.5, 3, True]


def test_keys_that_are_chosen_to_collide_are_not_looked_up(shared: Sandbox) -> None:
    shared.execute("numbers = [n * (2**61 - 1) for n in range(1, 2_000)]")
    for code, kind in (("dict.fromkeys(numbers)", "dict"), ("{(n, 0) for n in numbers}", "set")):
        value = shared.execute(code).value
        assert isinstance(value, Opaque)
        assert value.type == kind
    assert shared.execute("set(numbers[:500])").value == {n * (2**61 - 1) for n in range(1, 501)}


def test_keys_of_which_many_pairs_have_equal_hashes_are_keys(shared: Sandbox) -> None:
    assert hash((-1, 5)) == hash((-2, 5))
    shared.execute("grid = {(x, y): 0 for x in range(-300, 300) for y in range(-300, 300)}")
    assert shared["grid"] == {(x, y): 0 for x in range(-300, 300) for y in range(-300, 300)}
    shared.execute("pairs = {(x, y) for x in range(100_000) for y in (-1, -2)}")
    assert shared["pairs"] == {(x, y) for x in range(100_000) for y in (-1, -2)}
    shared.execute("del grid, pairs")


def test_values_that_no_message_names_are_dropped() -> None:
    with Sandbox(**PLAIN) as sandbox:
        text = "x" * 70_000  # a blob
        for _ in range(1_001):  # as many as may wait for a message, and one
            with pytest.raises(SandboxError, match="lone surrogates"):
                sandbox["\ud800"] = text
        assert sandbox.execute("1").value == 1


def test_files(shared: Sandbox, tmp_path: Path) -> None:
    files = shared.files
    files["in/a.bin"] = bytes(range(256)) * 1000
    files["b.txt"] = "ä"
    (tmp_path / "c").write_bytes(b"\xffc" * 300_000)
    files["c"] = tmp_path / "c"
    run = shared.execute(
        "import os\nopen('d', 'w').write('x')\nprint(os.path.getsize('in/a.bin'), open('b.txt').read())"
    )
    assert run.stdout == "256000 ä\n"
    assert [(change.path, change.change) for change in run.files] == [("d", "created")]
    assert files["d"] == b"x"
    assert files["c"] == (tmp_path / "c").read_bytes()
    assert {"in/a.bin", "b.txt", "c", "d"} <= set(files)
    assert "in" not in set(files)
    assert [(file.type, file.path) for file in files.list() if file.path == "in"] == [("directory", "in")]
    del files["d"]
    assert "d" not in files
    with pytest.raises(KeyError):
        files["d"]
    for path, is_there in (("in", False), ("in/a.bin", True), ("./in//a.bin", True), ("in/b", False), ("no/b", False)):
        assert (path in files) is is_there, path


def test_files_that_are_there(shared: Sandbox) -> None:
    """`in` says true for what can be read, under each of its names, and never lists the neighbours."""
    code = """
import os
os.makedirs("many", exist_ok=True)
for number in range(10_001):
    open(f"many/{number}", "w").close()
os.makedirs("one")
open("one/one", "w").close()
os.symlink("one", "to_one")
os.symlink("one/one", "to_file")
os.symlink("nowhere", "to_nothing")
os.getcwd()
"""
    files = shared.files
    folder = shared.execute(code).value
    there = ("many/7", "one/one", "to_one/one", "to_file", f"{folder}/one/one", f"{folder}/to_one/one", "./one//one")
    absent = ("many", "many/x", "one", "to_one", f"{folder}/one", "to_nothing", "one/one/one", "/etc/passwd", "", "\0")
    for path in there:
        assert path in files, path
        assert files[path] == b""
    for path in absent:
        assert path not in files, path
    shared.execute("import shutil\nfor name in ('many', 'one'): shutil.rmtree(name)")


def test_a_file_that_cannot_be_read_changes_nothing(shared: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        shared.initialize(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        shared.initialize(tmp_path)
    assert shared.execute("1 + 1").value == 2


def test_output_as_it_comes(shared: Sandbox) -> None:
    heard: list[tuple[str, str]] = []
    here = threading.get_ident()

    def hear(text: str) -> None:
        assert threading.get_ident() == here
        heard.append(("out", text))

    run = shared.execute(
        "import sys\nprint('a')\nprint('b', file=sys.stderr)",
        on_stdout=hear,
        on_stderr=lambda text: heard.append(("err", text)),
    )
    assert "".join(text for stream, text in heard if stream == "out") == run.stdout == "a\n"
    assert "".join(text for stream, text in heard if stream == "err") == run.stderr == "b\n"


def test_a_listener_that_fails_interrupts_the_code(shared: Sandbox) -> None:
    def fail(text: str) -> None:
        raise ValueError("enough")

    shared["n"] = 0
    with pytest.raises(ValueError, match="enough"):
        shared.execute("print('a', flush=True)\nwhile True: n += 1", on_stdout=fail)
    assert shared.execute("n > 0").value is True


def test_a_listener_that_does_not_keep_up_misses_output_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_WAITING_CHARS", 1_000)
    printed = threading.Event()
    heard: list[str] = []

    def slow(text: str) -> None:
        assert printed.wait(60)
        heard.append(text)

    # A host call comes after all that was printed before it.
    with Sandbox(host_functions={"tick": lambda: None, "printed": printed.set}, **PLAIN) as sandbox:
        run = sandbox.execute("for _ in range(50): print('x' * 999, flush=True); tick()\nprinted()", on_stdout=slow)
    text = "".join(heard)
    omitted = [int(count) for count in re.findall(r"\n\.\.\. \[(\d+) characters omitted\] \.\.\.\n", text)]
    assert omitted
    assert text.count("x") + sum(omitted) >= 50 * 999
    assert run.stdout.count("x") == 50 * 999


def test_displays(shared: Sandbox) -> None:
    code = "class T:\n    def _repr_html_(self): return '<b>7</b><script>alert(1)</script><img src=\"https://x.example/\">'\nT()"
    shown: list[Display] = []
    run = shared.execute(code, on_display=shown.append)
    assert run.displays == shown
    (display,) = shown
    assert display.mime == "text/html"
    assert "<b>7</b>" in display.data
    assert "script" not in display.data  # the host has cleaned it
    assert "x.example" not in display.data
    bundle = Display("text/html", '<script>alert("&amp;")</script>')._repr_mimebundle_()
    assert bundle["text/html"].startswith('<iframe sandbox=""')
    assert '"<script' not in bundle["text/html"]
    assert Display("image/png", "AA==")._repr_mimebundle_() == {"image/png": "AA=="}
    assert "image/png" not in Display("image/png", 'AA" onerror="alert(1)')._repr_mimebundle_()
    assert Display("application/javascript", "alert(1)")._repr_mimebundle_() == {"text/plain": "alert(1)"}
    assert "<svg" not in str(Display("image/svg+xml", "<svg onload='x'>")._repr_mimebundle_()["text/html"])


def test_host_functions_run_at_the_same_time_in_the_callers_context() -> None:
    barrier = threading.Barrier(3)

    def ask(prompt: str) -> str:
        barrier.wait(30)  # all three are here, or this fails
        return f"{WHO.get()} read {prompt}"

    with Sandbox(on_llm_query=ask, **PLAIN) as sandbox:
        token = WHO.set("Ada")
        run = sandbox.execute("llm_query_batched(['a', 'b', 'c'])")
        WHO.reset(token)
        assert run.value == ["Ada read a", "Ada read b", "Ada read c"]


def test_async_functions_of_a_sandbox_without_a_loop() -> None:
    async def ask(prompt: str) -> str:
        return f"{WHO.get()} read {prompt}"

    with Sandbox(host_functions={"ask": ask, "lazily": lambda text: ask(text)}, **PLAIN) as sandbox:
        WHO.set("Bob")
        run = sandbox.execute("print(ask('a'), lazily('b'))")
        assert run.stdout == "Bob read a Bob read b\n"
        WHO.set("nobody")


def test_errors_of_host_functions_are_errors_in_python() -> None:
    def fail() -> None:
        raise ValueError("no such price\ud800")

    def leave() -> None:
        raise SystemExit(3)

    functions = {"fail": fail, "leave": leave, "odd": threading.Lock, "none": lambda: None}
    with Sandbox(host_functions=functions, **PLAIN) as sandbox:
        for call, text in (("fail()", "no such price"), ("leave()", "3"), ("odd()", "cannot go into the sandbox")):
            run = sandbox.execute(f"try:\n    {call}\nexcept HostCallError as error:\n    print(error)")
            assert text in run.stdout, (call, run)
            assert run.calls[0].error
        assert sandbox.execute("fail(1)").error_type == "HostCallError"
        assert sandbox.execute("print(none())").stdout == "None\n"
        run = sandbox.execute("llm_query('x')")
        assert run.outcome == "error"


def test_an_error_of_a_host_function_has_its_class_and_a_traceback_here(caplog: pytest.LogCaptureFixture) -> None:
    def lookup(name: str) -> int:
        return {"sand": 12}[name]

    async def later() -> None:
        raise RuntimeError("\x1b[31mred\u202e")

    def plain() -> None:
        raise Exception("no price today")

    with Sandbox(host_functions={"lookup": lookup, "later": later, "plain": plain}, **PLAIN) as sandbox:
        run = sandbox.execute("lookup('k')")
        assert run.error == "HostCallError: KeyError: 'k'"
        traceback = run.calls[0].traceback or ""
        assert traceback.startswith("Traceback") and traceback.endswith("KeyError: 'k'")
        assert 'return {"sand": 12}[name]' in traceback and "calls.py" not in traceback
        assert sandbox.execute("later()").error == "HostCallError: RuntimeError: \x1b[31mred\u202e"
        assert sandbox.execute("plain()").error == "HostCallError: no price today"  # `Exception` says nothing
        run = sandbox.execute("lookup('again')\n")
        assert "KeyError: 'again'" in (run.calls[0].traceback or "")
        assert sandbox.execute("lookup('sand')").calls[0].traceback is None
        wrong = sandbox.execute("lookup()")
        assert (wrong.error or "").startswith("HostCallError: TypeError: ") and "lookup()" in (wrong.error or "")
    logged = [record for record in caplog.records if record.levelname == "WARNING" and "failed" in record.message]
    assert [record.name for record in logged] == ["sandglass"] * 4  # each kind of error of a function once
    assert "the host function lookup() failed:" in logged[0].message and "KeyError: 'k'" in logged[0].message
    assert "RuntimeError: \\x1b[31mred\\u202e" in logged[1].message  # which could control a terminal


def test_texts_name_options_as_python_does() -> None:
    with Sandbox(host_functions={"wait": lambda: threading.Event().wait(5)}, host_call_timeout=50, **PLAIN) as sandbox:
        assert sandbox.execute("wait()").error == "HostCallError: wait took longer than 50 ms (host_call_timeout)"
        assert "pass on_llm_query," in (sandbox.execute("llm_query('x')").error or "")
    with Sandbox(on_llm_query=lambda _: "ok", budget={"max_calls": 1}, **PLAIN) as sandbox:
        assert "(max_calls)" in (sandbox.execute("llm_query('x')\nllm_query('y')").error or "")
    with Sandbox(wall_timeout=300, **PLAIN) as sandbox:
        assert "(wall_timeout)" in (sandbox.execute("import time\ntime.sleep(9)").error or "")
    with pytest.raises(SandboxError, match=r"^memory_limit: ") as refused:
        Sandbox(memory_limit=1, **PLAIN)
    assert refused.value.code == "invalid_option"


def test_capabilities_are_those_of_the_sandbox_that_runs() -> None:
    with Sandbox(**PLAIN) as sandbox:
        assert sandbox.capabilities == {
            "backend": "subprocess",
            "soft_interrupt": True,
            "python": None,
            "checkpoints": 0,
        }
        version = sandbox.execute("import platform\nplatform.python_version()").value
        assert sandbox.capabilities == {
            "backend": "subprocess",
            "soft_interrupt": True,
            "python": version,
            "checkpoints": 0,
        }
        assert sandbox.capabilities["python"] == version  # also when asked again
        sandbox.execute("import os\nos._exit(1)")
        sandbox.start()
        assert sandbox.capabilities["python"] == version
    with Sandbox(**PLAIN) as sandbox:
        sandbox.start()
        assert sandbox.capabilities["python"] == version


def test_the_package_says_what_it_has() -> None:
    from sandglass import SandboxOptions

    assert {"Sandbox", "AsyncSandbox", "SandboxOptions", "SandboxError", "approve"} <= set(sandglass.__all__)
    assert all(getattr(sandglass, name) is not None for name in sandglass.__all__)
    for kind in (Sandbox, sandglass.AsyncSandbox, sandglass.Notebook, sandglass.AsyncNotebook):
        text = pydoc.render_doc(kind)
        assert [name for name in SandboxOptions.__annotations__ if f"`{name}`" not in text] == []
    # What the wheel lacks is named by no text in it.
    for module in Path(sandglass.__file__).parent.glob("**/*.py"):
        tree = ast.parse(module.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                assert "docs/" not in (ast.get_docstring(node) or ""), (module, node)


def test_an_answer_that_cannot_be_sent_is_an_error_in_python() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    def ask(prompt: str) -> Answer:
        if prompt == "raise":
            raise Silent
        return Answer("ok", Usage(cost=Decimal("0.1") if prompt == "decimal" else math.nan))  # type: ignore[arg-type]

    with Sandbox(on_llm_query=ask, host_call_timeout=60_000, **PLAIN) as sandbox:
        for prompt, reason in (("nan", "cannot be sent"), ("decimal", "cannot be sent"), ("raise", "Silent")):
            run = sandbox.execute(f"llm_query({prompt!r})")
            assert run.error_type == "HostCallError"
            assert reason in (run.error or "")
            assert reason in (run.calls[0].error or "")


def test_an_answer_that_is_too_large_is_charged_all_the_same() -> None:
    functions = {"ask": lambda: Answer("x" * 200_000, Usage(calls=1, cost=2.5))}
    with Sandbox(host_functions=functions, max_value_size=100_000, **PLAIN) as sandbox:
        assert "takes 200" in (sandbox.execute("ask()").error or "")
        assert sandbox.budget().spent.cost == 2.5


def test_texts_that_a_guest_makes_large_do_not_end_the_connection() -> None:
    def price(name: str) -> int:
        raise KeyError(name * 7)  # as errors do, it quotes the argument

    with Sandbox(host_functions={"price": price}, **PLAIN) as sandbox:
        run = sandbox.execute("price('x' * 10_000_000)")  # together more than a message may have
        assert (run.error_type, run.state.status) == ("HostCallError", "kept")
        assert len(run.calls[0].error or "") <= 10_000
        sandbox.execute("globals().update({letter * 35_000_000: 1 for letter in 'yz'})")
        assert {variable.name[:1] for variable in sandbox.list_variables()} >= {"y", "z"}
        assert sandbox.execute("1").value == 1


def test_positional_and_keyword_arguments_stay_apart() -> None:
    seen: list[Any] = []

    def take(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    with Sandbox(host_functions={"take": take}, **PLAIN) as sandbox:
        sandbox["big"] = "x" * 300_000
        run = sandbox.execute("take({'a': 1}); take(a=1); take(1, *[2], b={3: b'x'}); take(big, key=[big, {4}])")
        assert run.error is None
        big = "x" * 300_000
        assert seen == [
            (({"a": 1},), {}),
            ((), {"a": 1}),
            ((1, 2), {"b": {3: b"x"}}),
            ((big,), {"key": [big, {4}]}),
        ]
        assert run.host_calls == len(run.calls) == 4


def test_the_arguments_that_a_result_keeps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_KEPT", 250_000)
    with Sandbox(host_functions={"take": lambda text: len(text)}, **PLAIN) as sandbox:
        run = sandbox.execute("for _ in range(4): print(take('x' * 100_000))")
        assert run.stdout.split() == ["100000"] * 4
        assert [call.args is None for call in run.calls] == [False, False, True, True]


def test_tools_and_output_fields_change_between_executions() -> None:
    with Sandbox(host_functions={"one": lambda: 1}, profile="dspy", output_fields=["answer"], **PLAIN) as sandbox:
        sandbox.initialize(None)
        assert sandbox.execute("print(one())").stdout == "1\n"
        sandbox.tools["two"] = lambda: 2
        del sandbox.tools["one"]
        assert list(sandbox.tools) == ["two"]
        assert sandbox.execute("print(two())").stdout == "2\n"
        assert sandbox.execute("one()").outcome == "error"
        sandbox.output_fields = ["first", "second"]
        assert sandbox.execute("SUBMIT(first=1, second='b')").final == {"first": 1, "second": "b"}
        with pytest.raises(SandboxError, match="must be a function"):
            sandbox.tools["three"] = 3  # type: ignore[assignment]


def test_functions_that_the_host_refuses_are_not_forgotten(shared: Sandbox) -> None:
    with Sandbox(**PLAIN) as sandbox:
        sandbox.tools["good"] = lambda: 1
        sandbox.tools["not a name"] = lambda: 2
        for _ in range(2):
            with pytest.raises(SandboxError, match="not a name"):
                sandbox.execute("good()")
        del sandbox.tools["not a name"]
        assert sandbox.execute("good()").value == 1


def test_approval() -> None:
    asked: list[HostCall] = []
    paid: list[Any] = []
    verdicts: list[Any] = []

    @approve
    def pay(amount: int, *, to: str) -> str:
        paid.append((amount, to))
        return f"{amount} to {to}"

    def on_approve(call: HostCall) -> Any:
        asked.append(HostCall(call.name, call.args, call.kwargs, call.line))
        return verdicts.pop(0)

    async def later(call: HostCall) -> bool:
        return call.args == (1,)

    functions: dict[str, HostFunction] = {
        "pay": pay,
        "free": lambda: "free",
        "send": {"call": lambda: "sent", "approve": True},
    }
    with Sandbox(host_functions=functions, on_approve=on_approve, **PLAIN) as sandbox:
        verdicts[:] = [True, ((5,), {"to": "Bob"}), False, "too much", None, 1]
        run = sandbox.execute("x = 1\nprint(pay(1, to='Ada'))")
        assert run.stdout == "1 to Ada\n"
        assert (asked[0].name, asked[0].args, asked[0].kwargs) == ("pay", (1,), {"to": "Ada"})
        assert asked[0].line == CodeLine(run.id, 2, "print(pay(1, to='Ada'))")
        assert sandbox.execute("pay(10**6, to='Eve')").value == "5 to Bob"
        for reason in ("refused by the user", "too much", "refused by the user", "on_approve returned an int"):
            run = sandbox.execute("pay(1, to='Ada')")
            assert run.error_type == "HostCallError"
            assert reason in (run.error or "")
        assert paid == [(1, "Ada"), (5, "Bob")]
        verdicts[:] = [True]
        assert sandbox.execute("free() + send()").value == "freesent"
        assert [call.name for call in asked[-1:]] == ["send"]
    with Sandbox(host_functions={"f": approve(lambda n: n)}, on_approve=later, **PLAIN) as sandbox:
        assert sandbox.execute("f(1)").value == 1
        assert sandbox.execute("f(2)").error_type == "HostCallError"
    with pytest.raises(SandboxError, match="give on_approve"):
        Sandbox(host_functions={"pay": pay}, **PLAIN)


def test_the_time_of_an_approval_is_none_of_the_call() -> None:
    def on_approve(_: HostCall) -> bool:
        # Takes longer than a call may: the other sandbox's call has the same time.
        late = other.execute("wait()")
        assert "host_call_timeout" in (late.error or "") or "hostCallTimeout" in (late.error or "")
        return True

    ended = threading.Event()
    functions: dict[str, HostFunction] = {"pay": approve(lambda: "paid")}
    with (
        Sandbox(host_functions={"wait": ended.wait}, host_call_timeout=2_000, **PLAIN) as other,
        Sandbox(host_functions=functions, on_approve=on_approve, host_call_timeout=2_000, **PLAIN) as sandbox,
    ):
        assert sandbox.execute("pay()").value == "paid"
        ended.set()


def test_budgets() -> None:
    def ask(prompt: str) -> Answer:
        return Answer("ok", Usage(input_tokens=10, output_tokens=2, cost=0.5))

    with Sandbox(on_llm_query=ask, budget={"max_calls": 3, "max_cost": 9}, **PLAIN) as sandbox:
        run = sandbox.execute("llm_query('a'); llm_query('b')")
        assert run.usage == Usage(2, 20, 4, 1.0)
        budget = sandbox.budget()
        assert (budget.left.calls, budget.left.cost, budget.left.tokens, budget.spent.calls) == (1, 8.0, None, 2)
        assert sandbox.execute("llm_query('c'); llm_query('d')").outcome == "limit"
    with Sandbox(on_llm_query=ask, **PLAIN) as sandbox:
        run = sandbox.execute("llm_query('a'); llm_query('b')", budget={"max_calls": 1})
        assert run.outcome == "limit"


def test_interrupt_from_another_thread(shared: Sandbox) -> None:
    begun = threading.Event()

    def interrupt() -> None:
        begun.wait(30)
        shared.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    run = shared.execute("n = 1\nprint('on', flush=True)\nwhile True: n += 1", on_stdout=lambda _: begun.set())
    thread.join()
    assert (run.outcome, run.state.status) == ("interrupted", "kept")
    assert shared["n"] > 0


def test_ctrl_c_interrupts_the_code_and_keeps_the_state(shared: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        shared.execute(
            "m = 1\nprint('on', flush=True)\nwhile True: m += 1", on_stdout=lambda _: signal.raise_signal(signal.SIGINT)
        )
    assert shared["m"] > 0
    begun, caller = tmp_path / "begun", threading.get_ident()

    def press() -> None:
        while not begun.exists():
            time.sleep(0.01)
        signal.pthread_kill(caller, signal.SIGINT)

    thread = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        shared.execute(f"k = 1\nopen({str(begun)!r}, 'w').close()\nwhile True: pass")
    thread.join()
    assert shared["k"] == 1


def test_calls_that_would_wait_for_themselves_are_refused() -> None:
    def again() -> Any:
        return sandbox.get_variable("x")

    with Sandbox(host_functions={"again": again}, **PLAIN) as sandbox:
        run = sandbox.execute("again()")
        assert run.error_type == "HostCallError"
        assert "would wait" in (run.error or "")


def test_a_child_sandbox_within_a_host_function() -> None:
    def recurse(task: str, context: str) -> str:
        with Sandbox(on_rlm_query=recurse, **PLAIN) as child:
            child.initialize(context)
            code = "FINAL(len(context))" if task == "deep" else "FINAL(rlm_query('deep', context * 2))"
            return str(child.execute(code).final)

    with Sandbox(on_rlm_query=recurse, **PLAIN) as sandbox:
        sandbox.initialize("abc")
        assert sandbox.execute("rlm_query('shallow')").value == "6"


def test_streams_and_hints(shared: Sandbox) -> None:
    assert shared.execute_stream(iter(["a = 2\nb =", " a * 3\n", "print(b)"])).stdout == "6\n"

    def fails() -> Any:
        yield "never = 1\n"
        raise OSError("the model is gone")

    with pytest.raises(OSError, match="the model is gone"):
        shared.execute_stream(fails())
    assert "never" not in shared
    shared.hint(["c = 1", "c = 2"])
    shared.update_conversation([{"role": "user", "content": "sum of b"}])
    assert shared.execute("c = 2\nc").value == 2
    assert shared.stats()["executions"]["ok"] > 0


def test_code_runs_ahead() -> None:
    with Sandbox(backend="subprocess", ahead=True) as sandbox:
        sandbox.initialize(None)
        sandbox.start()
        sandbox.hint("total = sum(range(1000))")
        deadline = time.monotonic() + 60
        while not sandbox.stats()["ahead"]["code"].get("explicit", {}).get("finished"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert sandbox.execute("total = sum(range(1000))").outcome == "ok"
        assert sandbox["total"] == 499500


def test_states_move_to_another_sandbox() -> None:
    with Sandbox(**PLAIN) as sandbox, Sandbox(**PLAIN) as other:
        sandbox.execute("x = [1, {'a': 2}]\ndef f(): return x\ng = (i for i in 'ab')\nnext(g)")
        state = sandbox.capture_state()
        assert isinstance(state, bytes)
        assert state.lost == [Lost("g", "a generator, which only its own guest can continue")]
        copied = pickle.loads(pickle.dumps(state))
        assert (copied, copied.lost) == (state, state.lost)
        other.open_state(state)
        assert other.execute("f()").value == [1, {"a": 2}]


def test_portable_states_move_to_another_sandbox() -> None:
    with Sandbox(**PLAIN) as sandbox, Sandbox(**PLAIN) as other:
        sandbox.files["mine.py"] = "value = 7"
        sandbox.execute(
            "import mine, math\n_x = [1]\ndef f(): return _x\nclass K: pass\nk = K()\ng = (i for i in 'ab')"
        )
        state = sandbox.capture_state(portable=True)
        assert state.startswith(b"sandglass-portable\n")
        assert [lost.name for lost in state.lost] == ["g"]
        lost = other.open_state(state)
        assert [(one.name, "mine" in one.reason) for one in lost] == [("mine", True)]
        assert other.execute("assert type(k) is K and math.pi > 3\nf()").value == [1]
        assert other.open_state(sandbox.capture_state()) == []
        with pytest.raises(SandboxError) as damaged:
            other.open_state(state[:-1])
        assert damaged.value.code == "invalid_option"


def test_options() -> None:
    with pytest.raises(TypeError, match="no option 'timeouts': did you mean 'timeout'"):
        Sandbox(timeouts=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="api_key is for a server"):
        Sandbox(api_key="x")
    with pytest.raises(SandboxError) as wrong:
        Sandbox(timeout=-1)
    assert wrong.value.code == "invalid_option"
    for number in (math.nan, math.inf, Decimal(1)):
        with pytest.raises(SandboxError, match="nothing was done") as unsent:
            Sandbox(timeout=number, **PLAIN)  # type: ignore[arg-type]
        assert unsent.value.code == "invalid_option"
    with pytest.raises(SandboxError) as unknown:
        Sandbox(backend="docked")  # type: ignore[arg-type]
    assert "docker" in str(unknown.value)
    with Sandbox(max_output_length=20, max_result_size=0, timeout=5_000, grace_period=500, **PLAIN) as sandbox:
        run = sandbox.execute("print('0123456789' * 10)\n7")
        assert "characters omitted" in run.stdout
        assert run.truncated.stdout > 0
        assert (run.result, run.value) == ("7", None)


def test_an_option_that_holds_itself_is_refused() -> None:
    with Sandbox(**PLAIN) as sandbox:
        connection = sandbox._session._connection
        assert connection
        sent: list[str] = []
        notify, connection._notify = connection._notify, lambda method, params: sent.append(method)  # type: ignore[method-assign]
        cycle: dict[str, Any] = {}
        cycle["a"] = [cycle]
        try:
            refused: list[SandboxError] = []

            def ask() -> None:
                try:
                    connection.ask("create", {"env": cycle}, Asked(print))
                except SandboxError as error:
                    refused.append(error)

            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            thread.join(20)
        finally:
            cycle.clear()
            connection._notify = notify  # type: ignore[method-assign]
        assert [error.code for error in refused] == ["invalid_option"]
        assert sent == []  # the other side has not heard of the request
        assert sandbox.execute("1").value == 1


def test_bubblewrap_isolates() -> None:
    with Sandbox(backend="bubblewrap", memory_limit=256 << 20) as sandbox:
        assert sandbox.backend == "bubblewrap"
        run = sandbox.execute("import socket\nsocket.create_connection(('127.0.0.1', 9))")
        assert run.outcome == "error"
        run = sandbox.execute("import os\nos.listdir('/root')")
        assert run.outcome == "error"
        with pytest.raises(SandboxError) as refused:
            sandbox.files["/etc/passwd"] = b""
        assert refused.value.code == "file_error"
        large = sandbox.execute("x = bytearray(10**9)")
        assert large.error_type == "MemoryError" or large.killer == "oom"
        lost = sandbox.execute("import os\nos.kill(os.getpid(), 9)")
        assert (lost.outcome, lost.state.status) == ("crashed", "lost")
        assert sandbox.execute("1").value == 1


def test_the_end() -> None:
    sandbox = Sandbox(**PLAIN)
    sandbox.execute("1")
    sandbox.destroy()
    sandbox.destroy()
    with pytest.raises(SandboxError) as ended:
        sandbox.execute("1")
    assert ended.value.code == "destroyed"


def test_a_forgotten_sandbox_ends() -> None:
    keeper = Sandbox(**PLAIN)
    connection = keeper._session._connection
    assert connection
    sandbox = Sandbox(**PLAIN)
    identity = sandbox._session._id
    sandbox.execute("1")
    del sandbox
    gc.collect()
    keeper.execute("1")  # the next call tells the host
    with pytest.raises(SandboxError) as ended:
        keeper._session._id, own = identity, keeper._session._id
        keeper.execute("1")
    assert ended.value.code == "no_sandbox"
    keeper._session._id = own
    keeper.destroy()


def test_threads_share_a_sandbox(shared: Sandbox) -> None:
    results: list[CodeExecution] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(shared.execute(f"t{n} = {n}\nt{n} * 2"))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.value for run in results) == [n * 2 for n in range(8)]


def test_going_back() -> None:
    with Sandbox(checkpoints=3, grace_period=200, **PLAIN) as sandbox:
        sandbox.execute("x = [1]\nrows = (n for n in range(9))\nnext(rows)")
        assert sandbox.capabilities["checkpoints"] == 3
        for number in (2, 3):
            sandbox.execute(f"x.append({number})")
        assert sandbox.undo() == 2
        assert sandbox["x"] == [1, 2]
        assert sandbox.undo() == 1
        assert sandbox.execute("x, next(rows)").value == [[1], 1]
        sandbox["x"] = "set"
        assert sandbox.checkpoint() == 4
        killed = sandbox.execute("import os; os._exit(1)")
        assert (killed.outcome, killed.state.status, killed.state.restored_to) == ("crashed", "restored", 4)
        assert sandbox["x"] == "set"
        assert sandbox.restore(4) == 4
        assert sandbox.restore() == 4
        with pytest.raises(SandboxError) as none:
            sandbox.restore(99)
        assert none.value.code == "no_checkpoint"
    with Sandbox(**PLAIN) as sandbox:
        sandbox.execute("x = 1")
        with pytest.raises(SandboxError) as off:
            sandbox.undo()
        assert off.value.code == "invalid_option"
    with pytest.raises(SandboxError, match="checkpoints"):
        Sandbox(checkpoints=99, **PLAIN).start()
