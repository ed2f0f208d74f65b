"""What the memo answers, and all that it must not answer. Each attack begins with a hit, so that it could succeed."""

from __future__ import annotations

import gc
import linecache
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import CONFIG, Cell, Guest

from sandglass.speculate import memo as memos
from sandglass.speculate.results import Recipe

SETUP = """
import json, math, re, collections, operator
from collections import Counter
text = "the quick brown fox, 12 jumps over the lazy dog\\n" * 3
big = text * 500
words = []
words += text.split()
numbers = [3, 1.5, True, 0, -0.0, 10**20, 300]
counts = {"the": 3, "fox": 300}
rows = [{"n": 1, "tags": ["a"]}, {"n": 200, "tags": []}]
stop = {"the", "over"}
pattern = re.compile("o.")
n = 2
"""


def make(most_bytes: int = 10_000_000, slow: float = 0) -> Guest:
    guest = Guest()
    guest.runtime.configure({**CONFIG, "maxMemoBytes": most_bytes})
    memo = guest.runtime._memo
    memo.slow_seconds = slow
    if not slow:
        memo.much_text = memo.many_items = memo.most_refused = 0
    guest.ok(SETUP)
    return guest


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Libraries of other tests hear of the collector, and other tests count the sources of cells."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(callbacks)
    for name in [name for name in linecache.cache if name.startswith("<cell ")]:
        del linecache.cache[name]


@pytest.fixture
def memory(guest: Guest) -> Iterator[Guest]:
    """A guest that has a memo, for which nothing is too quick."""
    guest.runtime.configure({**CONFIG, "maxMemoBytes": 10_000_000})
    memo = guest.runtime._memo
    memo.slow_seconds = memo.much_text = memo.many_items = memo.most_refused = 0
    guest.ok(SETUP)
    yield guest
    assert memo._most_bytes, "the memo has failed"


def hits(cell: Cell) -> int:
    return int(cell.header.get("memo", {"hits": 0})["hits"])


def told(cell: Cell) -> tuple[str, ...]:
    return cell.ended, cell.stdout, cell.stderr, cell.result, cell.error, cell.traceback


PURE = [
    "len(text)",
    "text.upper()",
    "text.split()",
    "[w for w in words if w not in stop]",
    "sorted(words, key=str.lower)",
    "sorted(counts.items(), key=lambda kv: -kv[1])",
    "max(counts, key=counts.get)",
    "{w: len(w) for w in words}",
    "f'{n:>5}|{text[:3]!r}'",
    "re.findall(r'\\w+', text)",
    "re.findall('THE', text, re.I)",
    "re.sub('fox', 'cat', text)",
    "[m.group() for m in re.finditer('o', text)]",
    "pattern.findall(text)",
    "json.loads('[1, {\"a\": 2.5}]')",
    "json.dumps(rows, indent=1)",
    "Counter(words).most_common(2)",
    "collections.Counter(words)['fox,']",
    "sum(r['n'] for r in rows)",
    "len(set(words))",
    "math.sqrt(n) + math.pi",
    "list(dict.fromkeys(words))",
    "dict(zip(words, numbers))",
    "list(map(len, words))",
    "next((w for w in words if 'z' in w), None)",
    "sorted(stop)",
    "[300, 300 + n]",
    "'abc'",
]


@pytest.mark.parametrize("source", PURE)
@pytest.mark.parametrize("form", ["{}", "x = {}", "x = y = {}", "print({}, n, sep='|', end='.')"])
def test_it_answers(memory: Guest, source: str, form: str) -> None:
    source = form.format(source)
    cells = [memory.ok(source), memory.ok(f"\n\n{source}"), memory.ok(f"1\n{source}")]
    assert [hits(cell) for cell in cells] == [0, 1, 1]
    assert told(cells[0]) == told(cells[1]) == told(cells[2])
    if form == "x = {}":
        real, found = memory.get("x"), memory.runtime._namespace.globals["x"]
        assert real == found


NOT_PURE = [
    "words",  # a part of the data is what it is
    "rows[0]",
    "[r for r in rows]",
    "set(words)",
    "[set(words)]",
    "frozenset(words)",
    "dict(counts)",
    "{**counts}",
    "counts.copy()",
    "stop | {'a'}",
    "set(stop)",
    "words.append('a')",
    "words.pop()",
    "counts.setdefault('a', 1)",
    "id(words)",
    "hash(text)",
    "words is text",
    "~n",
    "(lambda: 1)()",
    "open('/dev/null')",
    "input",
    "eval('1')",
    "text.format(1)",
    "f'{n:n}'",
    "f'{n:{n}}'",
    "text.encode('cp437')",
    "re.sub('o', r'\\g<0>', text)",
    "re.sub('o', str.upper, text)",
    "re.sub('o', lambda m: 'x', text)",
    "re.compile('o')",
    "re.escape(text)",
    "re.findall('the', text, re.I | re.M)",
    "re.findall('the', text, re.L)",
    "json.loads('1', parse_int=str)",
    "json.dumps(rows, default=str)",
    "Counter(words)",
    "Counter(words, a=1)",
    "sorted(words, key=lambda w, k=[]: k)",
    "sorted(words, key=print)",
    "[(y := w) for w in words]",
    "(yield_ := 1)",
    "globals()",
    "dir()",
    "__import__('os')",
    "type(n)",
    "n.real",
    "b'ab'[:1]",
    "math.nan",
    "math.pi",
    "json.loads('NaN')",
    "json.dumps(-1e999)",
    "[m.groupdict() for m in re.finditer('(?P<a>o)', text)]",
    "...",
    "[...]",
    "zip(words)",
    "(w for w in words)",
    "range(3)",
    "counts.items()",
]


@pytest.mark.parametrize("source", NOT_PURE)
@pytest.mark.parametrize("form", ["{}", "x = {}"])
def test_it_does_not_answer(memory: Guest, source: str, form: str) -> None:
    source = form.format(source)
    assert [hits(memory.run(source)) for _ in range(3)] == [0, 0, 0]


CHANGES = {
    "another value": ("len(words)", "words = ['a']"),
    "append": ("len(words)", "words.append('a')"),
    "by alias": ("len(words)", "w = words; w.append('a')"),
    "nested": ("str(rows)", "rows[0]['tags'].append(1)"),
    "the type of a number": ("str(numbers)", "numbers[0] = 3.0"),
    "True for 1": ("str(counts)", "counts['the'] = 1; counts['the'] = True"),
    "a zero's sign": ("str(numbers)", "numbers[4] = 0.0"),
    "order": ("list(counts)", "counts['the'] = counts.pop('the')"),
    "order of a set": ("list(stop)", "stop.clear(); stop.update(map(str, range(50)))"),
    "a text": ("text.count('o')", "text += 'o'"),
    "a long text": ("big.count('o')", "big = big[:-1] + 'o'"),
    "a long text of equal length": ("big.count('q')", "big = 'q' + big[1:]"),
    "deleted": ("len(words)", "del words"),
    "a name for a builtin": ("len(words)", "len = lambda v: 'mine'"),
    "a builtin": ("print(len(words))", "import builtins; builtins.len = lambda v: 'mine'"),
    "print": ("print(words)", "print = lambda *a: None"),
    "other builtins": ("len(words)", "__builtins__ = {'len': lambda v: 'mine'}"),
    "builtins' table": ("len(words)", "vars(__import__('builtins'))['len'] = sum"),
    "a function of re": ("re.findall('o', text)", "re.findall = lambda *a: 'mine'"),
    "its code": ("re.findall('o', text)", "re.findall.__code__ = (lambda p, s, flags=0: 'mine').__code__"),
    "its defaults": ("re.findall('o', text)", "re.findall.__defaults__ = (re.DOTALL,)"),
    "what it calls": ("re.findall('o', text)", "re._compile = lambda *a: pattern"),
    "re's memory": (
        "re.findall('o', text)",
        "for c in (re._cache, getattr(re, '_cache2', {})):\n    for k in c: c[k] = pattern",
    ),
    "re itself": ("re.findall('o', text)", "re = type('R', (), {'findall': lambda *a: 'mine'})"),
    "a flag": ("re.findall('THE', text, re.I)", "re.I._value_ = 8"),
    "a flag's class": ("re.findall('THE', text, re.I)", "re.RegexFlag.value = 8"),
    "a pattern": ("pattern.findall(text)", "pattern = re.compile('x')"),
    "json's decoder": ("json.loads('[1]')", "json._default_decoder.scan_once = lambda s, i: ('mine', len(s))"),
    "json's class": ("json.loads('[1]')", "json.JSONDecoder.decode = lambda self, s: 'mine'"),
    "json's encoder": ("json.dumps(rows)", "json._default_encoder.indent = 3"),
    "defaults by keyword": ("json.dumps(rows)", "json.dumps.__kwdefaults__['indent'] = 3"),
    "Counter": ("Counter(words).most_common(1)", "Counter.most_common = lambda *a: 'mine'"),
    "what counts": ("Counter(words).most_common(1)", "collections._count_elements = lambda *a: None"),
    "an abstract class": ("Counter(words).most_common(1)", "collections.abc.Mapping.__subclasshook__ = classmethod(lambda *a: True)"),
    "a registered class": ("len(Counter(words))", "class L(list): pass\ncollections.abc.Mapping.register(list)"),
    "heapq": ("Counter(words).most_common(1)", "import heapq; heapq.nlargest = lambda *a, **k: 'mine'"),
    "a table of methods": ("text.upper()", "import gc; gc.get_referents(str.__dict__)[0]['upper'] = str.lower"),
    "a table of patterns": ("re.findall('o', text)", "import gc; gc.get_referents(re.Pattern.__dict__)[0]['findall'] = re.Pattern.split"),
    "a table of matches": ("re.search('o', text).start()", "import gc; gc.get_referents(re.Match.__dict__)[0]['start'] = re.Match.end"),
    "a constant": ("math.pi + n", "math.pi = 3"),
    "a subclass of str": ("len(text)", "class T(str):\n    def __len__(self): return 5\ntext = T(text)"),
    "one in a list": ("[w.upper() for w in words]", "class T(str):\n    def upper(self): return 'mine'\nwords[0] = T(words[0])"),
    "a subclass of dict": ("counts['the']", "class D(dict):\n    def __getitem__(self, k): return 'mine'\ncounts = D(counts)"),
    "a lying class": ("len(words)", "class L:\n    __class__ = list\n    def __len__(self): return 5\nwords = L()"),
    "a metaclass that hashes": ("len(words)", "class M(type):\n    def __hash__(self): raise ValueError\n    __eq__ = lambda *a: True\nclass A(metaclass=M):\n    def __len__(self): return 5\nwords = A()"),
    "a buffer": ("str(words)", "words = [bytearray(b'x')]"),
    "less recursion": ("str(rows)", "import sys; sys.setrecursionlimit(500)"),
    "another stream": ("print(words)", "import sys; sys.stdout = sys.stderr"),
    "a stream's method": ("print(words)", "import sys; type(sys.stdout).write = lambda self, t, w=type(sys.stdout).write: w(self, t.upper())"),
    "one of its own": ("print(words)", "import sys; sys.stdout.write = lambda t: None"),
    "a profile": ("len(words)", "import sys; sys.setprofile(lambda *a: None)"),
    "a trace": ("len(words)", "import sys; sys.settrace(lambda *a: None)"),
    "callbacks": ("len(words)", "import gc; gc.callbacks.append(lambda *a: None)"),
    "what counts references": ("len(words)", "import sys; r = sys.getrefcount(words)"),
}  # fmt: skip


@pytest.mark.parametrize(("source", "change"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_seen(source: str, change: str) -> None:
    """The change comes in the same cell, before the statement: at a cell's end, some are undone."""
    program = f"""
import re, conftest, types
# The test reads headers itself: json is what some changes are about.
conftest.json = types.SimpleNamespace(loads=lambda t: eval(t, {{"null": None, "true": True, "false": False}}))
from test_memo import *
source, change = {source!r}, {change!r}
guest, fresh = make(), make()
guest.ok(source)
assert hits(guest.ok(source)) == 1
fresh.runtime._memo._most_bytes = 0
cells = [made.run(change + "\\n" + source) for made in (guest, fresh)]
assert hits(cells[0]) == 0
a, b = [[re.sub("<cell [0-9]+>", "<cell>", text) for text in told(cell)] for cell in cells]
assert a == b, (a, b)
"""
    run_apart(program)


def run_apart(program: str) -> None:
    ended = subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_digits_of_integers(memory: Guest) -> None:
    if not hasattr(sys, "set_int_max_str_digits"):
        pytest.skip("this Python has no such limit")
    memory.ok("import sys\nsys.set_int_max_str_digits(0)\nhuge = 10**1000")
    memory.ok("str(huge)")
    assert hits(memory.ok("str(huge)")) == 1
    try:
        assert memory.run("sys.set_int_max_str_digits(700)\nstr(huge)").error_type == "ValueError"
    finally:
        sys.set_int_max_str_digits(4300)


def test_equal_data_are_as_good(memory: Guest) -> None:
    memory.ok("len([w for w in words if 'o' in w])")
    assert hits(memory.ok("words = ' '.join(words).split()\nlen([w for w in words if 'o' in w])")) >= 1
    memory.ok("big.count('o')")
    assert hits(memory.ok("big = ''.join(list(big))\nbig.count('o')")) >= 1


IDENTITIES = {
    "parts of a list": ("x = [w for w in words if 'o' in w]", "x[0] is words[2]"),
    "of a new one": ("x = [w for w in words if 'o' in w]", "words = ' '.join(words).split()", "x[0] is words[2]"),
    "a text itself": ("x = big[:]", "x is big"),
    "another text itself": ("x = big[:]", "big = ''.join(list(big))", "x is big"),
    "a stripped one": ("x = text.rstrip('z')", "x is text"),
    "a sorted list": ("x = sorted(words)", "{*map(id, x)} == {*map(id, words)}"),
    "the largest": ("x = max(words)", "any(x is w for w in words)"),
    "new texts": ("x = [w + '!' for w in words]", "len({*map(id, x)}) == len(x)"),
    "new each time": ("x = [w + '!' for w in words]", "y = x", "x is y or x[0] is y[0] or x == y and [x is y]"),
    "shared new ones": ("x = [words[0] + '!'] * 3", "x[0] is x[1] is x[2]"),
    "a new list": ("x = [[]] * 2 + [[]]", "[x[0] is x[1], x[1] is x[2]]"),
    "characters": ("x = [c for c in text]", "x[0] is text[0]"),
    "new characters": ("x = ['A'.lower()]", "x[0] is chr(97)"),
    "small integers": ("x = [len(w) for w in words]", "x[0] is (lambda: 3)()"),
    "texts of bools": ("x = [str(n > 1), f'{n > 1}']", "[x[0] is x[1], x[0] is str(True)]"),
    "nothing": ("x = [(), '', None, b'']", "[x[0] is tuple([]), x[1] is str(), x[3] is bytes()]"),
    "single bytes": ("x = ('a', b'x')", "x[1] is bytes([120])"),
    "constants": ("x = ['abc' for w in words]", "x[0] is x[1]"),
    "NaN": ("x = [float('nan')] * 2", "[x[0] is x[1], x[0] == x[1], x == x]"),
    "which of two equal ones": (
        "x = [words[0]]",
        "words[0] = ''.join(list(words[0]))",
        "[x[0] is words[0], x[0] is words[7]]",
    ),
    "room": ("x = text.split()", "__import__('sys').getsizeof(x)"),
    "room of a small one": ("x = 'a b'.split()", "__import__('sys').getsizeof(x)"),
    "room of a comprehension": ("x = [w for w in words]", "__import__('sys').getsizeof(x)"),
    "room of a dict": ("x = {w: 1 for w in words}", "__import__('sys').getsizeof(x)"),
    "room of nested ones": ("x = [l.split() for l in text.split('o')]", "[*map(__import__('sys').getsizeof, x)]"),
}


@pytest.mark.parametrize("sources", IDENTITIES.values(), ids=IDENTITIES)
def test_identities_are_those_of_a_run(memory: Guest, sources: tuple[str, ...]) -> None:
    plain = make(0)
    statement, *changes, question = sources
    found = []
    for guest in (memory, plain):
        guest.ok(statement)
        for change in changes:
            guest.ok(change)
        guest.ok(statement)
        found.append(told(guest.ok(question)))
    assert found[0] == found[1]


def test_what_it_hands_over_is_nobody_elses(memory: Guest) -> None:
    memory.ok("x = text.split()")
    for _ in range(3):
        cell = memory.ok("x = text.split()\nx.append('more')\nprint(len(x))")
        assert hits(cell) >= 1 and cell.stdout == "31\n"


def test_only_what_is_slow_is_recorded() -> None:
    guest = make(slow=memos.SLOW_SECONDS)
    memo = guest.runtime._memo
    guest.ok("context = 'some words and more\\n' * 200_000")
    for _ in range(3):
        guest.ok("len(words) + 1\nx = 1")
        guest.ok("context[:10]")
    assert not memo._entries
    guest.ok("len(context.split())")
    assert hits(guest.ok("len(context.split())")) == 1
    guest.ok("sum(range(3_000_000))")  # it is known to be slow from now on
    assert hits(guest.ok("sum(range(3_000_000))")) == 0
    assert hits(guest.ok("sum(range(3_000_000))")) == 1


def test_the_header_is_what_it_was(memory: Guest) -> None:
    memory.ok("len(words)")
    cell = memory.ok("len(words)")
    assert cell.header.keys() == {"ended", "errorType", "final", "names", "omittedDisplays", "memo"}
    assert cell.header["memo"].keys() == {"hits", "ms"}
    memory.ok("words.append('a')")
    assert memory.run("n += 1").header == {"ended": "ok", "errorType": None, "final": False, "names": None}


def test_it_is_off_unless_it_is_asked_for(guest: Guest) -> None:
    guest.ok("x = 'a' * 10**6")
    for _ in range(3):
        assert hits(guest.ok("len(x.split('a'))")) == 0
    assert not guest.runtime._memo.is_on


def test_memory_is_bounded() -> None:
    guest = make(50_000)
    memo = guest.runtime._memo
    for number in range(400):
        guest.ok(f"x = [w * {number} for w in words]")
        assert memo._bytes <= 50_000 and len(memo._entries) <= memos.MOST_ENTRIES
        assert memo._bytes == sum(entry.size for entry in memo._entries.values())
    assert memo._entries
    guest.ok("x = [w * 5000 for w in words]")  # too much for one
    assert hits(guest.ok("x = [w * 5000 for w in words]")) == 0
    assert len(memo._names) <= 5 * memos.MOST_ENTRIES


@pytest.mark.parametrize("change", ["del big", "big = 'other'", "big = None"])
def test_texts_are_let_go(memory: Guest, change: str) -> None:
    memory.ok("big = 'a b ' * 1_000_000\nlen(big.split())")
    variables = memory.runtime._namespace.globals
    assert any(held is variables["big"] for held in held_texts(memory))
    memory.ok(change)
    assert not any(len(held) > 100_000 for held in held_texts(memory))


def held_texts(guest: Guest) -> list[Any]:
    entries = guest.runtime._memo._entries.values()
    return [tag.held for entry in entries for _, tag in entry.tags if tag.held is not None]


def test_errors_are_not_recorded(memory: Guest) -> None:
    cells = [memory.run("words[99]") for _ in range(3)]
    assert {(cell.ended, hits(cell)) for cell in cells} == {("error", 0)}
    cells = [memory.run("print(words[99], len(words))") for _ in range(3)]
    assert {(cell.error_type, hits(cell)) for cell in cells} == {("IndexError", 0)}
    frames = {cell.traceback.replace(f"cell {number}>", "cell>") for number, cell in enumerate(cells, memory.count - 2)}
    assert len(frames) == 1 and "print(words[99], len(words))" in frames.pop()
    assert gc.isenabled()


def test_data_nested_deeply(memory: Guest) -> None:
    memory.ok("deep = []\nfor _ in range(600): deep = [deep]")
    for source in ("len(str(deep))", "print(len(repr(deep)))", "print(deep)", "[deep]", "x = [[1, deep[:]]]"):
        assert told(memory.run(source))[:4] == told(memory.run(source))[:4]


def test_an_error_of_print_is_its_own(memory: Guest) -> None:
    for _ in range(3):
        assert memory.run("print(n, sep=5)").error_type == "TypeError"
        assert memory.run("print(n, file=n)").error_type == "AttributeError"


def test_a_finalizer_does_not_see_the_memo(memory: Guest) -> None:
    memory.ok(
        "import sys\nseen = []\nclass End:\n    def __del__(self): seen.append(sys._getframe(1).f_code.co_filename[:5])"
    )
    memory.ok("x = End()\nx = len(words)")
    memory.ok("x = End()\nx = len(words)")
    memory.ok("x = [End()]\nx = len(words)")
    assert memory.get("seen") == ["<cell"] * 3


def test_a_finalizer_cannot_come_between(memory: Guest) -> None:
    """It changes the data while the statement runs: what was recorded would be of neither state."""
    memory.ok(
        "import gc\nclass End:\n    def __del__(self): words.append('late')\n"
        "def leave():\n    e = End(); e.me = e\ngc.set_threshold(1, 1, 1)"
    )
    try:
        for _ in range(20):
            count, listed = eval(
                memory.ok("leave()\nx = [[w] for w in words]\nlen(x), len([[w] for w in words])").result
            )
            assert 0 <= listed - count <= 1
            assert memory.ok("len([[w] for w in words]) == len(words)").result == "True"
    finally:
        gc.set_threshold(700, 10, 10)


def test_threads_and_handlers_end_it(memory: Guest) -> None:
    memory.ok("import threading, time\nend = threading.Event()\nt = threading.Thread(target=end.wait)\nt.start()")
    assert [hits(memory.ok("len(words)")) for _ in range(3)] == [0, 0, 0]
    memory.ok("end.set()\nt.join()\nlen(words)")
    assert hits(memory.ok("len(words)")) == 1
    memory.ok("import signal\nold = signal.signal(signal.SIGUSR1, lambda *a: words.append('signal'))")
    assert [hits(memory.ok("len(words) + 1")) for _ in range(3)] == [0, 0, 0]
    memory.ok("signal.signal(signal.SIGUSR1, old)\n1")


def test_code_that_runs_ahead_is_answered_and_not_recorded(memory: Guest) -> None:
    for _ in range(3):
        assert hits(memory.run("len(words)", ahead=True)) == 0
    memory.ok("len(words)")
    assert hits(memory.run("len(words)", ahead=True)) == 1


def test_code_that_comes_in_pieces(memory: Guest) -> None:
    pieces = ["x = len(words)\n", "y = x + n\n", "print(y, x)"]
    first, second = memory.write(pieces), memory.write(pieces)
    assert told(first) == told(second)
    memory.ok("".join(pieces))
    third = memory.write(pieces)
    assert told(third) == told(first) and hits(third) == 3


def test_cells_that_await_are_left_alone(memory: Guest) -> None:
    for _ in range(3):
        assert hits(memory.ok("import asyncio\nawait asyncio.sleep(0)\nx = len(words)\nlen(words)")) == 0


def test_an_interrupt_leaves_it_as_it_was(memory: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.ok("len(words)")
    real = Recipe.make

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recipe, "make", interrupt)
    assert memory.run("len(words)").error_type == "KeyboardInterrupt"
    monkeypatch.setattr(Recipe, "make", real)
    assert gc.isenabled() and hits(memory.ok("len(words)")) == 1


@pytest.mark.parametrize("fault", [ValueError, TypeError, RecursionError])
@pytest.mark.parametrize("place", ["_serve", "_watch", "_record", "_has_much"])
def test_a_fault_ends_the_memo_and_nothing_else(
    place: str, fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = make()
    guest.ok("len(words)")

    def fail(*_: Any) -> Any:
        raise fault

    monkeypatch.setattr(memos.Memo, place, fail)
    cells = [guest.ok("print(len(words))\nlen(words)") for _ in range(3)]
    assert {(cell.stdout, cell.result) for cell in cells} == {("30\n", "30")}
    assert gc.isenabled()


def test_memory_that_is_full_empties_it(memory: Guest, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.ok("len(words)")

    def fail(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(memos, "Entry", fail)
    assert memory.ok("len(text)").result == "144"
    assert not memory.runtime._memo._entries


def test_the_collector_is_left_as_it_is(memory: Guest) -> None:
    for _ in range(3):
        assert memory.ok("import gc\ngc.disable()\nx = len(words)\ngc.isenabled()").result == "False"
        assert memory.ok("gc.enable()\nx = len(words)\ngc.isenabled()").result == "True"


def test_a_name_in_the_statement_that_it_assigns(memory: Guest) -> None:
    for _ in range(3):
        assert memory.ok("n = 5\nn = n * 300\nn").result == "1500"
        assert memory.ok("w = ['b', 'a']\nw = sorted(w)\nw").result == "['a', 'b']"


def test_equal_constants_of_other_types(memory: Guest) -> None:
    sources = ["[1, n]", "[1.0, n]", "[True, n]", "[0.0, n]", "[-0.0, n]", "['1', n]", "[b'11', n]"]
    for _ in range(3):
        assert [memory.ok(source).result for source in sources] == [repr(eval(source, {"n": 2})) for source in sources]


@pytest.mark.parametrize("library", ["numpy", "pandas"])
def test_arrays_and_frames_are_left_alone(library: str) -> None:
    pytest.importorskip(library)
    program = """
from test_memo import *
guest = make()
guest.ok("import numpy as np\\na = np.arange(5)\\nv = a[1:]")
for number in range(3):
    cell = guest.ok("v[0] += 1\\nprint(a.sum(), len(a), [int(i) for i in a])\\nlen(a)")
    assert hits(cell) == 0 and cell.stdout.startswith(f"{11 + number} "), cell.stdout
if LIBRARY == "pandas":
    guest.ok("import pandas as pd\\ndf = pd.DataFrame({'a': [1, 2]})")
    for number in range(3):
        cell = guest.ok("df.iloc[0, 0] += 1\\nprint(df['a'].sum(), len(df))\\ndf.describe()\\nlen(df)")
        assert hits(cell) == 0 and cell.stdout == f"{4 + number} 2\\n", cell.stdout
"""
    run_apart(program.replace("LIBRARY", repr(library)))


def test_code_that_finds_the_memo_hurts_nobody_else() -> None:
    program = """
from test_memo import *
guest = make()
guest.ok("len(words)")
find = "import gc, sys\\nframe = sys._getframe()\\nwhile 'memo' not in frame.f_locals: frame = frame.f_back\\nmemo = frame.f_locals['memo']\\n"
for harm in ("memo._entries = None", "memo._names = 5", "memo._namespace = None", "vars(type(memo)); type(memo)._watch = None", "memo._entries.update(dict.fromkeys(memo._entries, 1))"):
    guest.ok(find + harm)
    for _ in range(2):
        cell = guest.run("print(len(words))\\nlen(words)")
        assert (cell.ended, cell.stdout, cell.result) == ("ok", "30\\n", "30"), (harm, cell.traceback)
"""
    run_apart(program)


# ---- calls in pure statements ----


def both(memory: Guest, codes: list[str]) -> tuple[list[Cell], list[Cell]]:
    """What code says without the memo, and with it."""
    runs = []
    for most_bytes in (0, 10_000_000):
        memory.runtime.configure({**CONFIG, "maxMemoBytes": most_bytes})
        memory.ok(SETUP)
        runs.append([memory.run(code) for code in codes])
    real, found = runs
    for one, other in zip(real, found, strict=True):
        assert re.sub(r"cell \d+| at 0x\w+", "", str(told(one))) == re.sub(r"cell \d+| at 0x\w+", "", str(told(other)))
    return real, found


@pytest.mark.parametrize(
    "source",
    [
        "n2 = big.count('fox')",
        "big.count('fox') + n",
        "print('found', big.count('fox'), sep=': ')",
        "[big.count('fox')]",
        "f'{big.count(\"fox\")} times'",
        "{'fox': big.count('fox'), 'n': n}",
        "str(big.count('fox'))",
        "[word for word in str(big.count('fox')).split()]",
        "n < big.count('fox') < n",
        "big.count('fox') if big.count('fox') else 0",
    ],
)
@pytest.mark.parametrize("before", ["big.count('fox')", "x = big.count('fox')", "print(big.count('fox'), 5)"])
def test_calls_in_it_are_answered(memory: Guest, before: str, source: str) -> None:
    real, found = both(memory, [before, source])
    assert [hits(cell) for cell in (*real, *found)] == [0, 0, 0, 1]


def test_what_may_not_be_called_is_not(memory: Guest) -> None:
    cell = memory.ok("x = [].index(5) if n > 100 else n or max([])\ny = n > 100 > max([])\n(x, y)")
    assert cell.result == "(2, False)"


def test_what_fails_fails_as_it_is_written(memory: Guest) -> None:
    sources = ["print(len(text), [len(words), [].index(len(words))])", "x = len(text) + max([])"]
    _, found = both(memory, sources)
    assert all("ValueError" in str(cell.error) for cell in found)


@pytest.mark.parametrize(
    "source",
    [
        "[1.5, max(1.5, n - 9), min(1.5, n)]",
        "['a b', max('a b', 'a'), ', '.join(['x', 'y'])]",
        "[('a b', 1.5), max(('a b', 1.5), ('a', 1)), tuple(('a b', 1.5))]",
        "[-1.5, max(-1.5, -9), 300, max(300, n)]",
        "[b'x y', max(b'x y', b'x'), 'x' * 3, max('xxx', 'x' * 3)]",
    ],
)
def test_constants_are_one_object_as_they_were(memory: Guest, source: str) -> None:
    look = "[[a is b for a in x] for b in x]"
    both(memory, [f"x = {source}", look, f"max(1.5, n)\nx = {source}", look, f"x = [{source}, *{source}][1:]", look])


#: Expressions that parts could be told by: by which objects are which, by what is evaluated, by what exists once.
TELLING = """[tuple(("key",)), sorted(words, key=len)[:1], ("key",)]
[sorted(words, key=lambda w: (1.5, w))[0], 1.5, max(1.5, n - 5)]
{"a": re.findall("fox", text), "b": re.sub("dog", "cat", text)}
{re.search("fox", text).group(): len(re.findall("o", text)), "z": text.count("o")}
[w for w in text.split() if w in [v for v in words]]
[(w, len(w), len(text.split())) for w in text.split()]
(len(text), w)
[len(text) if n else len(undefined), len(words)]
[max(w for w in words), max(words), words[0]]
[(300), max(300, n), (lambda: 300), 300][:2]
[str(len(text)) + "ab", "ab" + str(len(text)), str(len(text))]
[len(text), *sorted(words), *("a b", 1.5)]
max(("a b", "c d"), key=len), "a b", ("a b", "c d")
[max(("a b", "c d")), "a b", ("a b", "c d"), max(("a b", "c d"), ("a", "b"))]
[text.startswith(("the", "qu ick")), ("the", "qu ick")]
["x y".join(words[:2]), "x y", " ".join(["x", "y"])]
["x y".strip(), "x y".strip("q"), "x y", str("x y"), max("x y", "a")]
[float("1.5"), 1.5, abs(1.5), round(1.5, 3), max(1.5, 1.0)]
[abs(10**20), 10**20, max(10**20, n), int(10**20), numbers[5], max(numbers), sum([10**20])]
[math.pi, max(math.pi, n), math.pi + 0]
[json.loads("[NaN, 1.5]"), json.loads("1.5"), json.dumps(1.5), json.dumps(True), json.dumps(None)]
[str(True), str(n > 1), f"{n > 1}", "%s" % (n > 1), repr(None), str(None), f"{None}"]
[u.upper() for u in "a b".split()] + "a b".split()
[b"x y".split(), b"x y", b"x", "x".encode(), "x y".encode(), bytes.fromhex("20") if 0 else 1]
list(map(str.upper, words))[:3]
dict(zip(words, map(len, words)))
{**dict(zip(words, numbers)), "q": len(words)}
dict(counts), dict(counts)
[dict(counts), counts.copy(), sorted(counts)]
list(dict.fromkeys(words)) + list(dict.fromkeys(text.split()))
[Counter(words).most_common(2), Counter(words)["the"], len(Counter(text))]
next((w for w in words if "z" in w), len(text))
len(text) < max(numbers) < len(undefined) if n > 5 else len(text)
(n > 5 and len(undefined)) or len(text)
[x for x in range(len(words)) if x > len(text.split()) - 3]
sorted(words, key=lambda q: len(text.split()) - len(q))[:4]
f"{len(text)!r:>10} {max(words)} {'-' * len(words[:4])}"
text[len(words):len(words) + 10], text[max(1, n)]
[[], [], len(words), [len(words)], [[]] * 2]
[(), tuple(()), tuple([]), "", "".join([]), str()]
(lambda v: v)(len(text))
[len(w) for w in sorted(set(words))]
sorted(stop | {"x y"}), sorted({"x y"}), "x y"
[max(stop), min(stop), len(stop), "the" in stop, sorted(stop)]
["a-b".split("-"), "-".join("ab"), "a-b"]
divmod(len(big), 7), pow(len(big), 3, 1000), pow(len(big), 2)
[int("300"), 300, len(text * 2)]
operator.itemgetter(0)(words), 1
sorted(rows, key=operator.itemgetter("n"))
[r["tags"] for r in sorted(rows, key=lambda r: -r["n"])]
max(rows, key=lambda r: r["n"]), rows[0]
print("inner")
[len(text), print]
{len(text): 1, len(words): 2, "s": {len(text), len(words)}}
-len(text), +len(text), not len(text)
[text.count("a"), text.count("a"), big.count("fox"), big.count("fox") * 1000]
"a b" if text.count("a") else "c d", "a b"
(x for x in words)
[len(text)] * text.count("fox") + [1.5] * len("ab")
text.partition("fox"), text.partition("absent"), text.replace("absent", "x"), text.strip("z")
[t.strip() for t in text.splitlines()][-1], text.splitlines()[0]
"é".upper(), "é", max("é", "a"), "ÿ".lower(), "éé".upper()
[max("éé", "a"), "éé", min("éé", "ÿÿ")]
1e999 - len(text), [float("nan")] * len("ab")
[max(-1.5, -9), -1.5, max(-2, -9), -2, max(-300, -900), -300]
[(1, 2.5), max((1, 2.5), (0, 1)), (1, 2.5)[1], 2.5]
[len(text), 2.5, (2.5, len(text)), max((2.5, 1)), [2.5, (2.5,)]]
[min("ab cd", "b"), "ab" " cd", "ab cd"[:], "ab cd"[:2]]""".splitlines()

LOOK = """
def flat(value):
    yield value
    if type(value) in (list, tuple, set, frozenset):
        for item in value: yield from flat(item)
    elif type(value) is dict:
        for key, item in value.items(): yield from flat(key); yield from flat(item)
o = [*flat(x), *flat(y)]
same = [[place for place, other in enumerate(o) if one is other] for one in o]
rooms = [__import__("sys").getsizeof(one) for one in o if type(one) in (list, dict, tuple)]
(same, [type(one).__name__ for one in o], str(x).partition(" at ")[0], rooms)
"""


@pytest.mark.parametrize("expression", TELLING)
def test_nothing_tells_parts(memory: Guest, expression: str) -> None:
    forms = [
        "x = {}",
        "x = y = {}",
        "x = [{}, {}]",
        "print({}, {}, sep='|')",
        "{}",
        "x = {}, 1.5, max(1.5, n), 300, {}",
    ]
    codes = ["x = y = w = 0\nglobals()['part 0'] = 7"]
    for form in forms:
        code = form.replace("{}", f"({expression})")
        codes += [code, LOOK, code, LOOK, f"1\n{code}", LOOK]
    both(memory, codes)


def test_parts_see_what_has_changed(memory: Guest) -> None:
    memory.ok("x = sum(map(len, words))")
    assert memory.ok("words.append('more')\n[sum(map(len, words))]").result == f"[{memory.get('x') + 4}]"
    assert memory.ok("len = lambda value: 1\n[sum(map(len, words))]").result == "[31]"


def test_a_large_result_is_not_kept_of_a_part(memory: Guest) -> None:
    memory.ok("x = len(big.split())")
    assert hits(memory.ok("len(big.split()) + 1")) == 1, "the length is"
    assert hits(memory.ok("print(big.split()[0])")) == 0


def test_the_last_value_is_no_data_of_a_statement(memory: Guest) -> None:
    for words in ("['b', 'a']", "['d', 'c']"):
        memory.ok(words)
        cell = memory.ok("x = sorted(_)\nsorted(x)")
        assert cell.result == str(sorted(eval(words))) and hits(cell) == 0
    for _ in range(3):
        assert memory.ok("sorted(words)[:1]").result == "['12']"
        assert memory.ok("_.append(n)\n_").result == "['12', 2]"
