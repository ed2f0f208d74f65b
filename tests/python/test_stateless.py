"""The state that one stateless run hands to the next."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import cloudpickle
import lz4.frame
import pytest
from conftest import CONFIG, Guest, installed
from hypothesis import given
from hypothesis import strategies as st

from sandglass.state import lz4_frame
from sandglass.state.stateless import split_state

MANY = 100 << 20
#: The names and reasons of variables that the last state lacks.
LEFT_OUT: list[tuple[str, str]] = []

PACKAGES = [name for name in sys.modules if name.partition(".")[0] in ("cloudpickle", "lz4")]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the packages, as where Python alone is installed."""
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name)
    for name in ("cloudpickle", "lz4"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture(params=["with packages", "bare"])
def guest(request: pytest.FixtureRequest, guest: Guest) -> Guest:
    if request.param == "bare":
        request.getfixturevalue("bare")
    return guest


@pytest.fixture
def next_guest() -> Iterator[Guest]:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    yield guest


def capture(guest: Guest, max_bytes: int = MANY) -> bytes:
    with installed(guest.runtime):
        state, LEFT_OUT[:] = split_state(guest.state.capture(max_bytes))
        return state


def give(guest: Guest, state: bytes, max_bytes: int = MANY) -> None:
    with installed(guest.runtime):
        guest.state.open(memoryview(state), max_bytes)  # as bodies come


def state_of(value: object) -> bytes:
    return lz4.frame.compress(cloudpickle.dumps(value))


def test_the_next_guest_has_the_variables(guest: Guest, next_guest: Guest) -> None:
    guest.ok(
        "x = [1, 2]; y = x; factor = 3\ndef scale(n): return n * factor\nclass P:\n    a = 1\np = P(); p.b = 'é\\ud800'"
    )
    give(next_guest, capture(guest))
    next_guest.ok("assert x == [1, 2] and x is y and scale(2) == 6 and p.b == 'é\\ud800' and type(p) is P")


def test_what_no_other_guest_can_go_on_with_is_left_out(guest: Guest, next_guest: Guest) -> None:
    guest.ok("import math, os\n_private = 1\ng = (i for i in 'ab')\nf = open(os.devnull)\nkept = math.pi")
    give(next_guest, capture(guest))
    assert LEFT_OUT == [
        ("math", "a module: import it again"),
        ("os", "a module: import it again"),
        ("_private", "a private name, which states do not hold"),
        ("g", "a generator, which only its own guest can continue"),
        ("f", "an open file: open it again"),
    ]
    assert [row["name"] for row in next_guest.listing()] == ["kept"]
    guest.ok("f.close()")


def test_a_variable_that_cannot_be_written_is_told_and_nothing_is_lost(guest: Guest) -> None:
    guest.ok("inner = [i for i in 'ab'], (i for i in 'ab')")
    with pytest.raises(ValueError, match="cannot pickle 'generator' object"):
        capture(guest)
    guest.ok("assert list(inner[1]) == ['a', 'b']")


def test_names_before_a_state_that_a_guest_made_up_are_refused() -> None:
    head = b'[["x", "a module"]]'
    size = len(head).to_bytes(4, "little")
    assert split_state(size + head + b"state") == (b"state", [("x", "a module")])
    long = b'"' + b"x" * (3 << 20) + b'"'
    many = b"[" + b'["x","y"],' * 5000 + b'["x","y"]]'
    for body in (
        b"",
        b"abc",
        b"\xff\xff\xff\xff{}",
        size + b"{}",
        size + head.replace(b'"x"', b"123"),
        size + b'{"x": "a module"}  ',
        size + b'[["x", "a modul"], 1]'[:19],
        len(long).to_bytes(4, "little") + long,
        len(many).to_bytes(4, "little") + many,
    ):
        with pytest.raises(ValueError):
            split_state(body)


def test_functions_that_use_helpers_go_with_it(guest: Guest, next_guest: Guest) -> None:
    guest.ok(
        "import math\ndef pieces(text): return [math.floor(len(p)) for p in chunk_text(text, 4, 0)]\nask = llm_query"
    )
    give(next_guest, capture(guest))
    next_guest.ok("assert pieces('abcdef') == [4, 2] and ask is llm_query")


def test_sizes_are_capped_both_ways(guest: Guest) -> None:
    guest.ok("x = bytes(1_000_000)")
    with pytest.raises(ValueError, match="more than 500000 bytes"):
        capture(guest, 500_000)
    state = capture(guest)
    with pytest.raises(ValueError, match="unpacks to more than 500000 bytes"):
        give(guest, state, 500_000)


def test_a_bomb_is_refused_before_it_has_unpacked(guest: Guest) -> None:
    compressor = lz4.frame.LZ4FrameCompressor()
    piece = bytes(16 << 20)
    bomb = compressor.begin() + b"".join(compressor.compress(piece) for _ in range(32)) + compressor.flush()
    with pytest.raises(ValueError, match="unpacks to more than"):
        give(guest, bomb, 1 << 20)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (b"no frame at all", "no LZ4 frame"),
        (lz4.frame.compress(b"x" * 1000)[:-20], "no LZ4 frame"),
        (lz4.frame.compress(b"no pickle"), "cannot be opened"),
        (state_of([1, 2]), "no dict of variables"),
        (state_of({1: 2}), "no dict of variables"),
    ],
)
def test_what_is_no_state_is_refused_and_sets_nothing(guest: Guest, state: bytes, why: str) -> None:
    guest.ok("x = 1")
    with pytest.raises(ValueError, match=why):
        give(guest, state)
    guest.ok("assert x == 1")
    assert [row["name"] for row in guest.listing()] == ["x"]


def test_a_state_takes_the_place_of_no_helper(guest: Guest) -> None:
    give(guest, state_of({"llm_query": 1, "__builtins__": {}, "_x": 1, "no name": 1, "y": 2}))
    guest.ok("assert y == 2 and callable(llm_query) and len('ab') == 2 and '_x' not in globals()")


@given(data=st.binary(max_size=400))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    guest = Guest()
    guest.runtime.configure(CONFIG)
    for state in (data, lz4.frame.compress(data), lz4_frame.pack(data)):
        with pytest.raises(ValueError):
            give(guest, state)


def test_the_form_is_the_one_of_other_servers(guest: Guest) -> None:
    guest.ok("answer_to_all = 42\ndef double(x): return 2 * x")
    state = capture(guest)
    variables = cloudpickle.loads(lz4.frame.decompress(state))
    assert variables["answer_to_all"] == 42 and variables["double"](4) == 8


def test_a_guest_with_packages_writes_small_states(next_guest: Guest) -> None:
    next_guest.ok("x = bytes(1_000_000)")
    assert len(capture(next_guest)) < 50_000


def test_a_state_of_one_guest_opens_in_a_guest_with_other_packages(
    next_guest: Guest, request: pytest.FixtureRequest
) -> None:
    next_guest.ok("x = ['é'] * 9\nclass P:\n    def double(self): return 2 * self.n\np = P(); p.n = 4")
    with_packages = capture(next_guest)
    request.getfixturevalue("bare")
    without = capture(next_guest)
    for state in (with_packages, without):
        give(next_guest, state)
        next_guest.ok("assert x == ['é'] * 9 and p.double() == 8")


FRAMES = st.fixed_dictionaries(
    {
        "block_linked": st.booleans(),
        "block_size": st.sampled_from([lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX1MB]),
        "block_checksum": st.booleans(),
        "content_checksum": st.booleans(),
        "store_size": st.booleans(),
        "compression_level": st.sampled_from([0, 9]),
    }
)
#: Texts that repeat themselves near and far.
TEXTS = st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 3000)), max_size=8)


@given(parts=TEXTS, options=FRAMES)
def test_every_form_of_a_frame_is_read_without_the_package(
    parts: list[tuple[bytes, int]], options: dict[str, Any]
) -> None:
    data = b"".join(piece * times for piece, times in (*parts, *parts))
    frame = lz4.frame.compress(data, **options)
    assert lz4_frame.unpack(frame, len(data)) == data
    assert lz4.frame.decompress(lz4_frame.pack(data)) == data == lz4_frame.unpack(lz4_frame.pack(data), len(data))
    if data:
        for state in (frame, lz4_frame.pack(data)):
            with pytest.raises(lz4_frame.TooLarge):
                lz4_frame.unpack(state, len(data) - 1)


@given(parts=TEXTS, options=FRAMES, at=st.integers(7, 300), to=st.integers(0, 255), end=st.integers(0, 2000))
def test_damaged_frames_end_in_an_error_or_within_the_bound(
    parts: list[tuple[bytes, int]], options: dict[str, Any], at: int, to: int, end: int
) -> None:
    frame = bytearray(lz4.frame.compress(b"".join(piece * times for piece, times in parts), **options))
    frame[at : at + 1] = [to]
    for damaged in (bytes(frame), bytes(frame[:end])):
        with suppress(ValueError, lz4_frame.TooLarge):
            assert len(lz4_frame.unpack(damaged, 20_000)) <= 20_000
