"""The native guest as a process: exchanges, host calls, stopping, output, files."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from native_host import CONFIG, EPOCH, Host, frame, text

from sandglass.native.frames import MAX_FRAME_BYTES, BodyParts, FrameError, FrameReader, pack_frame
from sandglass.runtime import values
from sandglass.runtime.wire import VERSION


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with Host(tmp_path) as host:
        assert host.init()["type"] == "ready"
        yield host


# ---- frames ----


def reader_of(data: bytes, chance: random.Random | None = None) -> FrameReader:
    left = memoryview(data)

    def receive(view: memoryview) -> int:
        nonlocal left
        size = min(len(view), len(left))
        if chance and size:
            size = chance.randint(1, size)
        view[:size] = left[:size]
        left = left[size:]
        return size

    return FrameReader(receive, EPOCH)


@pytest.mark.parametrize("seed", range(50))
def test_frames_are_the_same_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    frames = [
        (f'{{"é":{number}}}', [chance.randbytes(chance.choice((0, 1, 300))) for _ in range(chance.randint(0, 4))])
        for number in range(10)
    ]
    stream = b"".join(pack_frame(EPOCH, header.encode(), bodies) for header, bodies in frames)
    reader = reader_of(stream, chance)
    assert [(header, [bytes(body) for body in bodies]) for header, bodies in (reader.read() for _ in frames)] == frames
    with pytest.raises(EOFError):
        reader.read()


def test_parts_are_the_begin_of_the_next_first_body_and_of_no_other() -> None:
    parts = BodyParts()
    bodies = [memoryview(b"d"), memoryview(b"e")]
    assert parts.join(bodies) == bodies
    parts.add([memoryview(b"a")])
    parts.add([memoryview(b"b"), memoryview(b"c")])
    assert parts.join([]) == []
    assert [bytes(body) for body in parts.join(bodies)] == [b"abcd", b"e"]
    assert parts.join(bodies) == bodies


def test_frames_are_those_of_the_host() -> None:
    assert pack_frame(EPOCH, b'{"a": 1}', [b"x", b""]) == frame({"a": 1}, b"x", b"")


@pytest.mark.parametrize(
    "data",
    [
        frame({}, epoch=EPOCH + 1),
        b"\xff\xff\xff\xff" + frame({})[4:],
        (MAX_FRAME_BYTES + 1).to_bytes(4, "little") + frame({})[4:],
        b"\x00\x00\x00\x00" + frame({})[4:],
        frame({})[:8] + b"\x03" + frame({})[9:],
        pack_frame(EPOCH, b"\xff"),
        pack_frame(EPOCH, b"{}x")[:8] + b"\x02" + pack_frame(EPOCH, b"{}x")[9:],
        pack_frame(EPOCH, b"{}", [b"abc"])[:-7] + b"\x04" + b"\0\0\0abc",
    ],
)
def test_what_is_no_frame_is_refused_before_it_is_taken(data: bytes) -> None:
    with pytest.raises(FrameError):
        reader_of(data).read()


def test_a_frame_of_another_epoch_ends_the_guest(host: Host) -> None:
    host.send({"type": "listVariables", "exchange": 1, "timeoutMs": 1000}, epoch=EPOCH - 1)
    with pytest.raises((EOFError, ConnectionResetError)):
        host.receive()
    assert host.process.wait(60) != 0


# ---- exchanges ----


def test_says_what_it_is(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        ready = host.init()
        assert ready["version"] == VERSION
        assert ready["guest"]["bridge"] == "native" and ready["guest"]["softInterrupt"] is True
        assert ready["guest"]["python"].startswith("3.") and ready["guest"]["pyodide"] is None


def test_a_configuration_that_cannot_be_fails_the_boot(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        failed = host.init(hostFunctions=["print_all", "FINAL"])
        assert failed["type"] == "bootFailed" and "FINAL" in failed["message"]


def test_executes(host: Host) -> None:
    seen = host.ok("x = 5\nprint('hi')\nx + 1")
    assert (seen.stdout, seen.result, seen.report["names"]) == ("hi\n", "6", ["x"])
    assert host.ok("x").result == "5"
    seen = host.run("print('before')\n1/0")
    assert (seen.stdout, seen.error) == ("before\n", "ZeroDivisionError: division by zero")
    assert "<cell 3>" in seen.traceback and "sandglass" not in seen.traceback
    assert host.run("import sys; sys.exit(3)").report["errorType"] == "SystemExit"
    assert host.run("def f(): f()\nf()").report["errorType"] == "RecursionError"
    assert host.run("[0] * (1 << 60)").report["errorType"] == "MemoryError"
    assert host.run("nope(").report["errorType"] == "SyntaxError"
    assert host.run("input()").report["errorType"] == "EOFError"


def test_what_cells_do_to_json_does_no_harm(host: Host) -> None:
    host.run("import json\nx = 1\nfor n in [n for n in vars(json) if not n.startswith('__')]: setattr(json, n, None)")
    assert host.run("1 / 0").report["errorType"] == "ZeroDivisionError"
    assert host.ok("print(x)").stdout == "1\n"


def test_a_final_answer_is_the_body(host: Host) -> None:
    assert host.ok("FINAL({'a': [1, 2.5]})").final == {"a": [1, 2.5]}
    seen = host.ok("FINAL(None)")
    assert seen.report["final"] and seen.final is None


def test_shows_displays_after_what_was_printed(host: Host) -> None:
    seen = host.ok(
        "class P:\n  def _repr_png_(self): return b'\\x89PNG' + bytes(100)\nprint('a'); display(P()); print('b')"
    )
    assert seen.displays == [("image/png", b"\x89PNG" + bytes(100))] and seen.stdout == "a\nb\n"


def test_variables_go_in_and_out(host: Host) -> None:
    assert host.ask("setVariable", b"h\xc3\xa9", name="x", encoding="text")[0]["type"] == "done"
    assert host.ok("x").result == "'hé'"
    event, body = host.ask("getVariable", name="x")
    assert (event["type"], event["encoding"], body) == ("value", "text", "hé".encode())
    assert host.ask("getVariable", name="y")[0]["encoding"] == "missing"
    event, body = host.ask("listVariables")
    assert values.decode(event["encoding"], body) == [{"name": "x", "type": "str", "length": 2}]
    event, _ = host.ask("setVariable", b"1", name="not a name", encoding="text")
    assert event["type"] == "refused" and "not a valid" in event["message"]
    host.ok("class C:\n  def __repr__(self): raise SystemExit\nc = C()")
    assert host.ask("getVariable", name="c")[0]["type"] == "refused"
    assert host.ask("setVariable", name="n", encoding="none")[0]["type"] == "done"
    assert host.ok("n is None").result == "True"


def test_bodies_may_come_in_parts(host: Host) -> None:
    pieces = [b"a" * 100_000, b"b" * 100_000, b"c"]
    for piece in pieces[:2]:
        host.send({"type": "part", "encoding": "text"}, piece)
    host.ask("setVariable", pieces[2], name="x", encoding="text")
    assert host.ok("(len(x), x[0], x[-1])").result == "(200001, 'a', 'c')"


def test_a_large_value_crosses_both_ways(host: Host) -> None:
    body = os.urandom(20_000_000)
    host.ask("setVariable", body, name="x", encoding="bytes")
    assert host.ask("getVariable", name="x")[1] == body


def test_what_it_cannot_do_is_refused(host: Host) -> None:
    host.send({"type": "save", "checkpoint": 7, "full": False})
    (event,), _ = host.receive()
    assert (event["type"], event["checkpoint"]) == ("notSaved", 7) and event["reason"]
    assert host.ask("install", b"PK", wheels=[], maxBytes=1.0)[0]["type"] == "refused"
    assert host.ask("restore", b"", checkpoint=1)[0]["type"] == "refused"
    assert host.ok("1").result == "1"


def test_a_short_execution_is_answered_by_one_frame(host: Host) -> None:
    host.ok("pass")
    for _ in range(100):  # an execution that takes longer needs more frames
        host.begin("import sys\nprint('a')\nprint('b', file=sys.stderr)\n'c'")
        events, _ = host.receive()
        if events[-1]["type"] == "executed":
            assert [event["type"] for event in events] == ["output"] * 3 + ["executed"]
            return
        while events[-1]["type"] != "executed":
            events, _ = host.receive()
    raise AssertionError("never")


# ---- host calls ----


def test_calls_the_host(host: Host) -> None:
    host.answer = lambda name, argument: text(f"{name}: {argument}")
    assert (
        host.ok("llm_query('a'), fetch_page('b', 2)").result
        == "('llm_query: a', \"fetch_page: (['b', 2], None, 1, 1)\")"
    )


def test_a_batch_leaves_in_one_frame_and_is_answered_in_any_order(host: Host) -> None:
    host.begin("llm_query_batched([f'p{i}' for i in range(50)])[:3]")
    events, bodies = host.receive()
    assert len(events) == len(bodies) == 50
    numbers = [event["call"] for event in events]
    assert numbers == sorted(set(numbers)) and not any(event["blocking"] for event in events)
    for event, body in reversed(list(zip(events, bodies, strict=True))):
        prompt = values.decode(event["encoding"], body)[0]
        host.reply(event["call"], "text", f"re {prompt}".encode())
    assert host.end().result == "['re p0', 're p1', 're p2']"


def test_all_threads_of_a_cell_can_call_at_once(host: Host) -> None:
    host.begin(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(10) as pool: found = list(pool.map(llm_query, map(str, range(10))))\nfound"
    )
    pending = []
    while len(pending) < 10:  # no call is answered before all have come
        events, bodies = host.receive()
        pending += [(event["call"], body) for event, body in zip(events, bodies, strict=True)]
    for number, body in reversed(pending):
        host.reply(number, "text", b"re " + body)
    assert host.end().result == str([f"re {number}" for number in range(10)])


def test_asyncio_has_threads_that_call_at_once(host: Host) -> None:
    host.begin("import asyncio\nawait asyncio.gather(*[asyncio.to_thread(llm_query, str(i)) for i in range(4)])")
    pending = []
    while len(pending) < 4:
        events, bodies = host.receive()
        pending += [(event["call"], body) for event, body in zip(events, bodies, strict=True)]
    for number, body in pending:
        host.reply(number, "text", b"re " + body)
    assert host.end().result == "['re 0', 're 1', 're 2', 're 3']"


def test_a_thread_can_wake_an_event_loop_that_has_nothing_to_do(host: Host) -> None:
    source = (
        "import asyncio, threading\nloop = asyncio.get_running_loop()\nfuture = loop.create_future()\n"
        "def work():\n  started.wait()\n  loop.call_soon_threadsafe(future.set_result, 5)\n"
        "started = threading.Event()\nthreading.Thread(target=work).start()\nstarted.set()\nawait future"
    )
    assert host.ok(source).result == "5"
    seen = host.run("await asyncio.get_running_loop().create_future()")
    assert "deadlock" in seen.error


@pytest.mark.parametrize(
    ("status", "kind"), [("error", "HostCallError"), ("timeout", "HostCallError"), ("limit", "LimitError")]
)
def test_a_call_can_fail(host: Host, status: str, kind: str) -> None:
    host.begin("llm_query('x')")
    (event,), _ = host.receive()
    host.reply(event["call"], "none", b"", status, "no such luck")
    seen = host.end()
    assert (seen.report["errorType"], seen.error) == (kind, f"{kind}: no such luck")
    assert seen.report["ended"] == ("limit" if status == "limit" else "error")


def test_answers_that_nobody_waits_for_are_ignored(host: Host) -> None:
    host.reply(1, "text", b"x")
    host.begin("llm_query('x')")
    (event,), _ = host.receive()
    host.reply(event["call"] + 5, "text", b"wrong")
    host.reply(event["call"], "text", b"right")
    host.reply(event["call"], "text", b"late")
    assert host.end().result == "'right'"


# ---- stopping ----

WAITS = {
    "a loop": "while True: pass",
    "a loop of prints": "while True: print('.', end='')",
    "a regular expression": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "a sleep": "import time\ntime.sleep(1000)",
    "a host call": "llm_query('never answered')",
    "a coroutine": "import asyncio\nawait asyncio.sleep(1000)",
    "tasks": "import asyncio\nasync def spin():\n  while True: await asyncio.sleep(0)\nawait asyncio.gather(spin(), spin())",
    "a child process": "import subprocess\nsubprocess.run(['sleep', '1000'])",
    "a thread": "import threading, time\nt = threading.Thread(target=time.sleep, args=(1000,)); t.start(); t.join()",
    "calls of threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(2) as pool: list(pool.map(llm_query, 'ab'))"
    ),
    "a thread that asyncio waits for": "import asyncio, time\nawait asyncio.to_thread(time.sleep, 1000)",
    "a repr": "class A:\n  def __repr__(self):\n    while True: pass\nA()",
}


@pytest.mark.parametrize("code", WAITS.values(), ids=WAITS.keys())
def test_an_interrupt_stops(host: Host, code: str) -> None:
    host.answer = lambda name, argument: pytest.fail("not to be answered")
    host.begin(f"kept = 1\nprint('begun')\n{code}")
    while "begun" not in str(host.receive()):
        pass
    host.interrupt()
    report = None
    while report is None:
        for event in host.receive()[0]:
            assert event["exchange"] == host.exchange
            report = event.get("execution")
    assert report["stopped"] == "interrupt" and report["errorType"] == "KeyboardInterrupt", report
    host.answer = lambda name, argument: "late"  # a thread may make its call only now
    assert host.ok("kept").result == "1"


def test_a_turn_ends_itself_after_its_time(host: Host) -> None:
    for code in ("while True: pass", "import time\ntime.sleep(1000)", "import asyncio\nawait asyncio.sleep(1000)"):
        seen = host.run(code, timeout_ms=200)
        assert (seen.report["stopped"], seen.report["errorType"]) == ("timeout", "KeyboardInterrupt")


def test_the_clock_stands_still_during_host_calls(host: Host) -> None:
    host.begin("llm_query('x')", timeout_ms=5000)
    (event,), _ = host.receive()
    assert not host.hears_anything_within(5.5)
    host.reply(event["call"], "text", b"y")
    seen = host.end()
    assert (seen.result, seen.report["stopped"]) == ("'y'", None)


def test_an_interrupt_that_comes_with_the_request_is_heard(host: Host) -> None:
    for _ in range(10):
        host.begin("while True: pass")
        host.interrupt("wallTimeout")
        assert host.end().report["stopped"] == "wallTimeout"


def test_an_interrupt_of_a_turn_that_is_over_has_no_effect(host: Host) -> None:
    host.ok("1")
    host.interrupt()
    for _ in range(20):
        host.send({"type": "interrupt", "exchange": host.exchange, "reason": "interrupt"})
        assert host.ok("sum(range(1000))").result == "499500"


def test_interrupts_never_break_a_frame(host: Host) -> None:
    chance = random.Random(1)
    for _ in range(40):
        host.begin("while True: print('x' * 50, llm_query('q'))")
        for _ in range(chance.randint(1, 30)):
            events, _ = host.receive()
            for event in events:
                if event["type"] == "hostCall":
                    host.reply(event["call"], "text", b"a")
        host.interrupt()
        report = host.end().report
        assert (report["stopped"], report["errorType"]) == ("interrupt", "KeyboardInterrupt")
    assert host.ok("1").result == "1"


def test_an_interrupt_can_be_cleaned_up_after(host: Host) -> None:
    host.begin("import time\nprint('begun')\ntry: time.sleep(1000)\nfinally: print('cleaned up')")
    host.end(until="begun")
    host.interrupt()
    assert host.end().stdout == "cleaned up\n"


def test_an_interrupt_that_is_swallowed_comes_again(host: Host) -> None:
    host.begin(
        "def spin():\n  while True: pass\nprint('begun')\ncaught = 0\nwhile caught < 3:\n  try: spin()\n"
        "  except KeyboardInterrupt: caught += 1\nprint('caught', caught)"
    )
    host.end(until="begun")
    host.interrupt()
    seen = host.end()
    assert (seen.stdout, seen.report["stopped"], seen.report["ended"]) == ("caught 3\n", "interrupt", "ok")


def test_reading_a_variable_can_be_interrupted(host: Host) -> None:
    host.ok("class A:\n  def __repr__(self):\n    while True: pass\na = A()")
    host.exchange += 1
    host.send({"type": "getVariable", "exchange": host.exchange, "name": "a", "timeoutMs": 100_000})
    host.interrupt()
    (event,), _ = host.receive()
    assert event["type"] == "refused"
    assert host.ok("1").result == "1"


def test_signals_that_a_cell_sets_do_not_outlive_it(host: Host) -> None:
    host.ok(
        "import signal\nsignal.alarm(1)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})"
    )
    host.begin("import time\nprint('begun')\nend = time.monotonic() + 1.5\nwhile True: pass")
    host.end(until="begun")
    time.sleep(1.5)  # beyond the alarm
    host.interrupt()
    assert host.end().report["stopped"] == "interrupt"


def test_the_end_of_the_channel_ends_a_guest_that_computes(host: Host) -> None:
    host.begin("print('begun')\nwhile True: pass")
    host.end(until="begun")
    host.socket.close()
    host.process.wait(60)


# ---- output ----


def test_what_is_printed_arrives_while_python_computes(host: Host) -> None:
    host.begin("print('early')\nwhile True: pass")
    assert host.end(until="early").stdout == "early\n"
    host.interrupt()
    host.end()


def test_no_more_than_the_credit_is_on_its_way(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.init(maxOutputChars=20_000_000)
        host.credits = False
        host.begin("for i in range(1000): print('é' * 4999)")
        window, total, taken, report = 4 << 20, 0, 0, None
        while report is None:
            if total - taken > window - 200_000 and not host.hears_anything_within(0.3):
                host.send({"type": "credit", "bytes": total - taken})
                taken = total
            for event in host.receive()[0]:
                total += len(event.get("text", "").encode())
                report = event.get("execution", report)
            assert total - taken <= window
        assert total == 1000 * (2 * 4999 + 1)


def test_a_display_larger_than_the_credit_is_sent_alone(tmp_path: Path) -> None:
    with Host(tmp_path) as host:
        host.init(maxDisplayBytes=20_000_000, maxDisplaysBytes=40_000_000)
        seen = host.ok("print('a'); display({'image/png': bytes(9_000_000)}, raw=True); print('b')")
        assert len(seen.displays[0][1]) == 9_000_000 and seen.stdout == "a\nb\n"


def test_threads_print_whole_lines_of_text(host: Host) -> None:
    source = (
        "import threading\ndef work(n):\n  for i in range(500): print(f'{n}:{i}\\n', end='')\n"
        "ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n"
        "for t in ts: t.start()\nfor t in ts: t.join()"
    )
    lines = host.ok(source).stdout.splitlines()
    assert len(lines) == 4000
    for n in range(8):
        assert [line for line in lines if line.startswith(f"{n}:")] == [f"{n}:{i}" for i in range(500)]


def test_much_output_is_bounded_and_keeps_its_end(host: Host) -> None:
    seen = host.ok("for i in range(100_000): print('x' * 99)\nprint('end')")
    assert len(seen.stdout) < 5_000_000 and seen.stdout.endswith("x\nend\n")
    assert host.ok("print('y' * 10_000_000)").stdout.endswith("y\n")


def test_descriptors_and_children_print_in_order(host: Host) -> None:
    seen = host.ok(
        "import os, subprocess, sys\nprint('a')\nos.write(1, b'b\\n')\nos.system('echo c; echo oops >&2')\nprint('d')\n"
        "subprocess.run(['sh', '-c', 'printf \"e\\\\xc3\\\\xa9\"; exit 3']).returncode"
    )
    assert (seen.stdout.replace("\\xc3\\xa9", "é"), seen.stderr, seen.result) == ("a\nb\nc\nd\neé", "oops\n", "3")


def test_a_child_that_prints_much_is_bounded(host: Host) -> None:
    seen = host.ok("import os\nos.system('yes | head -c 20000000; echo end')")
    assert seen.stdout.endswith("y\nend\n") and len(seen.stdout) < 10_000_000


def test_what_c_code_prints_is_taken(host: Host) -> None:
    assert host.ok("import ctypes\nc = ctypes.CDLL(None)\nc.puts(b'from C'); c.fflush(None); None").stdout == "from C\n"


def test_descriptors_that_a_cell_closes_are_back_in_the_next_one(host: Host) -> None:
    host.ok("import os\nos.close(1); os.close(2); os.open('/dev/null', os.O_RDWR)")
    seen = host.ok("os.system('echo back; echo too >&2')")
    assert (seen.stdout, seen.stderr) == ("back\n", "too\n")


# ---- files ----


def test_files_go_in_and_out(host: Host, tmp_path: Path) -> None:
    assert host.ask("writeFile", b"h\xc3\xa9", path="a/b.txt")[0]["type"] == "done"
    assert (tmp_path / "a/b.txt").read_bytes() == b"h\xc3\xa9"
    assert host.ok("open('a/b.txt', encoding='utf-8').read()").result == "'hé'"
    event, body = host.ask("readFile", path="a/b.txt", text=True)
    assert (event["encoding"], body) == ("text", "hé".encode())
    event, body = host.ask("readFile", path="a/b.txt", text=False)
    assert (event["encoding"], body) == ("bytes", "hé".encode())
    event, body = host.ask("listFiles", path=".")
    assert [row["path"] for row in values.decode(event["encoding"], body)] == ["a", "a/b.txt"]
    assert host.ask("readFile", path="nope", text=False)[0]["encoding"] == "missing"
    assert host.ask("removeFile", path="a")[0]["type"] == "done"
    assert host.ask("removeFile", path="a")[0]["encoding"] == "missing"
    refused = host.ask("readFile", path="/etc/hostname", text=False)[0]
    assert refused["type"] == "refused" and "outside of the working folder" in refused["message"]


def test_files_of_the_host_have_a_quota(host: Host) -> None:
    assert host.ask("writeFile", bytes(CONFIG["maxFileBytes"] - 10), path="a")[0]["type"] == "done"  # type: ignore[operator]
    refused = host.ask("writeFile", bytes(11), path="b")[0]
    assert (
        refused["type"] == "refused" and "No space left" in refused["message"] and "maxFileBytes" in refused["message"]
    )
    assert host.ask("writeFile", bytes(10), path="b")[0]["type"] == "done"
    assert host.ask("writeFile", bytes(10), path="b")[0]["type"] == "done"  # in place of the old file


def test_an_execution_tells_which_files_it_changed(host: Host) -> None:
    host.ask("writeFile", b"x", path="by the host")
    seen = host.ok(
        "import os\nos.makedirs('a/b')\nfor n in ('a/b/one', 'two', 'three'): open(n, 'w').write('x')\nopen('gone', 'w').close(); os.remove('gone')"
    )
    assert seen.report["files"] == [
        {"path": path, "change": "created", "size": 1} for path in ("a/b/one", "three", "two")
    ]
    seen = host.ok(
        "open('two', 'w').write('y'); open('three', 'a').write('yz'); os.rename('a', 'c'); os.remove('by the host')"
    )
    assert [(row["path"], row["change"], row["size"]) for row in seen.report["files"]] == [
        ("a/b/one", "deleted", 0),
        ("by the host", "deleted", 0),
        ("c/b/one", "created", 1),
        ("three", "modified", 3),
        ("two", "modified", 1),
    ]
    assert not host.ok("open('two').read()").report.get("files")
    seen = host.ok("for n in range(1500): open(f'many{n:04}', 'w').close()")
    assert (len(seen.report["files"]), seen.report["omittedFiles"]) == (1000, 500)


def test_modules_of_the_working_folder_can_be_imported(host: Host) -> None:
    host.ask("writeFile", b"x = 41", path="my_module.py")
    assert host.ok("import my_module\nmy_module.x + 1").result == "42"
