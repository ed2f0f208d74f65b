"""stdout and stderr: order, bounds, encodings."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import count, groupby
from threading import Thread

import pytest
from conftest import FakeBridge, Guest
from hypothesis import given
from hypothesis import strategies as st

from sandglass.runtime import output
from sandglass.runtime.output import Emitter, KeptText, SharedEmitter, TextStream


def test_order_between_streams_is_kept(guest: Guest) -> None:
    cell = guest.ok("import sys\nprint('a'); print('b', file=sys.stderr); print('c'); 'd'")
    assert [(stream, text) for stream, _, text in cell.messages] == [
        ("stdout", "a\n"), ("stderr", "b\n"), ("stdout", "c\n"), ("result", "'d'"),
    ]  # fmt: skip


def test_output_before_an_error_is_kept(guest: Guest) -> None:
    cell = guest.run("print('here')\n1/0")
    assert cell.stdout == "here\n" and cell.error_type == "ZeroDivisionError"


def test_output_is_sent_before_a_host_call(guest: Guest) -> None:
    guest.ok("print('asking'); llm_query('x')")
    assert guest.bridge.events[:2] == ["stdout", "call"]


def test_output_goes_by_time_when_what_ran_ahead_is_asked_for(guest: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest.runtime, "clock", count().__next__)  # each reading is a second later
    cell = guest.run(
        "import sys; out = sys.stdout.write; out('a'); out('b'); llm_query('x'); out('c'); out('d'); None", ahead=True
    )
    assert [text for _, _, text in cell.messages] == ["ab", "c", "d"]


def test_lone_surrogates_are_printed_escaped(guest: Guest) -> None:
    assert guest.ok("print('a\\ud800é')").stdout == "a\\ud800é\n"


def test_bytes_are_decoded_across_writes(guest: Guest) -> None:
    source = "import sys\nfor b in 'é€😀'.encode(): sys.stdout.buffer.write(bytes([b]))\nsys.stderr.buffer.write(b'\\xff\\xe2')"
    cell = guest.ok(source)
    assert (cell.stdout, cell.stderr) == ("é€😀", "\\xff\\xe2")


def test_file_descriptor_writes_join_the_streams(guest: Guest) -> None:
    guest.put("x", 1)
    guest.runtime.namespace.globals["write"] = guest.runtime.write_fd
    cell = guest.ok("print('a'); write(1, b'b\\n'); write(2, b'c')")
    assert (cell.stdout, cell.stderr) == ("a\nb\n", "c")


def test_streams_behave_like_files(guest: Guest) -> None:
    source = (
        "import sys, io\n"
        "r = [sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.writable(), sys.stdout.readable(), sys.stdout.write('ab'),\n"
        "     isinstance(sys.stdout, io.TextIOWrapper), sys.stdout.fileno(), sys.stderr.buffer.fileno()]\n"
        "sys.stdout.writelines(['x', 'y']); sys.stdout.flush(); sys.stdout.reconfigure(line_buffering=True)\n"
        "for f in (sys.stdout.read, lambda: sys.stdout.write(5)):\n"
        "  try: f()\n"
        "  except Exception as e: r.append(type(e).__name__)\n"
        "class S(str):\n  def __len__(self): return 10**9\n"
        "sys.stdout.write(S('s'))\nr"
    )
    cell = guest.ok(source)
    assert cell.stdout == "abxys"
    assert cell.result == "[False, 'utf-8', True, False, 2, True, 1, 2, 'UnsupportedOperation', 'TypeError']"


def test_output_outside_executions_is_dropped(guest: Guest) -> None:
    guest.ok("class N:\n  def __repr__(self):\n    print('noise'); return 'N'\nn = N()")
    guest.bridge.messages = []
    assert guest.get("n") == {"type": "N", "repr": "N"}
    guest.runtime.write_fd(1, b"late \xe2")
    assert guest.bridge.messages == []
    assert guest.ok("print('x')").stdout == "x\n"


@pytest.mark.parametrize(
    "source", ["print('x' * 30_000_000 + 'END')", "for i in range(300_000): print('y' * 99)\nprint('END')"]
)
def test_huge_output_is_bounded_and_keeps_head_and_tail(guest: Guest, source: str) -> None:
    cell = guest.ok(source)
    seen = sum(len(text) for _, _, text in cell.messages)
    skipped = sum(skip for _, skip, _ in cell.messages)
    assert skipped + seen in (30_000_004,)
    assert cell.stdout.endswith("END\n") and len(cell.stdout) < 5_000_000
    assert cell.messages[0][1] == 0 and sum(len(text) for _, skip, text in cell.messages) >= 100_000


def test_memory_stays_bounded_while_printing_without_end(guest: Guest) -> None:
    guest.bridge.output = lambda *_: None  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        guest.ok("for i in range(200_000): print('z' * 100)")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000  # of the 20 million characters printed


writes = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(max_size=30) | st.text("ab", min_size=80, max_size=200))
)


emitters = pytest.mark.parametrize("make", [Emitter, SharedEmitter])


@emitters
@given(written=writes, limit=st.integers(0, 60), flushes=st.lists(st.integers(0, 30)))
def test_a_host_can_always_rebuild_head_and_tail(
    make: Callable[[FakeBridge], Emitter], written: list[tuple[str, str]], limit: int, flushes: list[int]
) -> None:
    bridge = FakeBridge()
    emitter = make(bridge)
    streams = {name: TextStream(emitter, name) for name in ("stdout", "stderr")}
    emitter.begin(limit)
    for number, (stream, text) in enumerate(written):
        streams[stream].write(text)
        if number in flushes:
            emitter.flush()
    emitter.end()
    for stream in ("stdout", "stderr"):
        whole = "".join(text for name, text in written if name == stream)
        sent = [(skipped, text) for name, skipped, text in bridge.messages if name == stream]
        assert sum(skipped + len(text) for skipped, text in sent) == len(whole)
        position = 0
        for skipped, text in sent:
            position += skipped
            assert whole[position : position + len(text)] == text
            assert skipped == 0 or position >= limit
            position += len(text)
        kept = sent[-1][1] if sent else ""
        assert not sent or whole.endswith(kept)
        if sent and sent[-1][0]:
            assert len(kept) == limit


@emitters
@given(written=writes)
def test_streams_interleave_exactly_below_the_limit(
    make: Callable[[FakeBridge], Emitter], written: list[tuple[str, str]]
) -> None:
    bridge = FakeBridge()
    emitter = make(bridge)
    streams = {name: TextStream(emitter, name) for name in ("stdout", "stderr")}
    emitter.begin(100_000)
    for stream, text in written:
        streams[stream].write(text)
    emitter.end()

    def merged(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
        return [(name, "".join(t for _, t in group)) for name, group in groupby(pairs, key=lambda p: p[0])]

    assert merged([(name, text) for name, _, text in bridge.messages]) == merged([w for w in written if w[1]])


def test_threads_lose_nothing_of_each_other() -> None:
    bridge = FakeBridge()
    emitter = SharedEmitter(bridge)
    streams = {name: TextStream(emitter, name) for name in ("stdout", "stderr")}
    emitter.begin(10_000_000)

    def work(thread: int) -> None:
        for number in range(3_000):
            print(f"{thread} {number}|", end="", file=streams["stderr" if number % 100 == thread else "stdout"])
            if number % 500 == 0:
                emitter.flush()

    threads = [Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emitter.end()
    for stream in streams:
        texts = "".join(text for name, _, text in bridge.messages if name == stream).split("|")[:-1]
        for thread in range(4):
            own = [int(text.split()[1]) for text in texts if text.startswith(f"{thread} ")]
            assert own == [n for n in range(3_000) if (n % 100 == thread) == (stream == "stderr")]


def test_what_was_put_aside_before_an_execution_is_not_its_own() -> None:
    bridge = FakeBridge()
    emitter = SharedEmitter(bridge)
    stream = TextStream(emitter, "stdout")
    emitter.begin(100)
    stream.write("first")
    aside = emitter.channels["stdout"].pending
    stream.write("second")
    assert aside == ["second"]
    emitter.end()
    emitter.begin(100)
    aside.append("late")
    stream.write("third")
    emitter.end()
    assert bridge.messages == [("stdout", 0, "firstsecond"), ("stdout", 0, "third")]


def test_output_is_sent_after_50_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(output, "monotonic", lambda: now[0])
    bridge = FakeBridge()
    emitter = Emitter(bridge)
    emitter.begin(1000)
    emitter.write(emitter.channels["stdout"], "a")
    assert bridge.messages == []
    now[0] += 0.06
    emitter.write(emitter.channels["stdout"], "b")
    assert bridge.messages == [("stdout", 0, "ab")]
    emitter.write(emitter.channels["stdout"], "c")
    assert len(bridge.messages) == 1


@pytest.mark.parametrize("limit", [0, 1, 4, 5])
def test_a_host_keeps_both_ends_of_long_text(limit: int) -> None:
    for length in range(3 * limit + 3):
        whole = "".join(chr(ord("a") + index % 26) for index in range(length))
        kept = KeptText(limit)
        for character in whole:
            kept.add(0, character)
        head, tail = whole[: limit - limit // 2], whole[length - limit // 2 :]
        notice = f"\n... [{length - limit} characters omitted] ...\n"
        assert kept.text() == (whole if length <= limit else head + notice + tail)
