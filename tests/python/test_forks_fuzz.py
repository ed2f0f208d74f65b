"""A few sessions of `forks_fuzz.py`."""

from __future__ import annotations

import os

import pytest
from forks_fuzz import KINDS, fuzz

from sandglass.ahead.syscall_gate import is_possible


@pytest.mark.skipif(not is_possible(), reason="for Linux on x86-64")
def test_nobody_can_tell_what_ran_ahead() -> None:
    hash_seed = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"  # the same for both guests
    try:
        found, problems = fuzz(7, 250)
    finally:
        os.environ.pop("PYTHONHASHSEED")
        if hash_seed is not None:
            os.environ["PYTHONHASHSEED"] = hash_seed
    assert not problems, problems
    assert len(found.keys() & KINDS.keys()) > 60
