"""A little of `memo_fuzz.py`, and that it would notice."""

from __future__ import annotations

import pytest
from memo_fuzz import Process, run


@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_can_tell(seed: int) -> None:
    figures = run(1200, seed)
    assert figures["hits"] >= 1200 and figures["of which in part"] >= 100 and figures["kinds of changes"] >= 30


def test_a_difference_would_be_seen() -> None:
    processes = Process("forced"), Process("served")
    found = []
    try:
        for process, last in zip(processes, ("x = [l[0]]", "x = [''.join(list(l[0]))]"), strict=True):
            process.ask({"new": True})
            process.ask({"source": "l = 'one two'.split()"})
            process.hear()
            process.ask({"source": last})
            found.append(process.hear()["variables"])
    finally:
        for process in processes:
            process.end()
    assert found[0] != found[1]
