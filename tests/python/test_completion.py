"""An editor's questions about code, on native Python."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Guest, installed


def look(guest: Guest, which: str, code: str, cursor: int | None = None, **more: Any) -> dict[str, Any]:
    about = {"code": code, "cursor": len(code) if cursor is None else cursor, **more}
    with installed(guest.runtime) as runtime:
        encoding, pieces = runtime.file("look", which, [json.dumps(about).encode()])
    assert encoding == "bytes"
    answer: dict[str, Any] = json.loads(b"".join(pieces))
    return answer


def matches(guest: Guest, code: str) -> list[str]:
    found: list[str] = look(guest, "complete", code)["matches"]
    return found


def test_names_of_the_user_builtins_and_keywords(guest: Guest) -> None:
    guest.ok("alphabet = 1; alpha_two = 2; _alpha = 3")
    assert matches(guest, "alph") == ["alpha_two", "alphabet"]
    assert matches(guest, "x = pri") == ["print"]
    assert "while" in matches(guest, "whi")
    assert "_alpha" in matches(guest, "_al")
    answer = look(guest, "complete", "(alphab)\n", 7)
    assert answer == {"matches": ["alphabet"], "start": 1, "end": 7}


def test_attributes_and_nothing_of_what_is_called(guest: Guest) -> None:
    guest.ok("import os.path\nclass A:\n    one = 1\n    _two = 2\na = A()\na.b = A()\na.b.deep = 3")
    assert "path" in matches(guest, "os.pa")
    assert matches(guest, "a.") == ["b", "one"]
    assert "_two" in matches(guest, "a._t")
    assert matches(guest, "print(a.b.de") == ["deep"]
    assert matches(guest, "f().o") == [] and matches(guest, "nothing.o") == [] and matches(guest, "1.") == []


def test_modules_of_imports(guest: Guest) -> None:
    assert "json" in matches(guest, "import js")
    assert "decoder" in matches(guest, "import json.de")
    assert "dumps" in matches(guest, "from json import du")
    assert matches(guest, "from never_heard_of import x") == []


def test_what_a_name_stands_for(guest: Guest) -> None:
    guest.ok('def add(a: int, b: int = 2) -> int:\n    """Adds."""\n    return a + b\nrows = list(range(1000))')
    text = look(guest, "inspect", "add")["text"]
    assert "Signature: add(a: int, b: int = 2) -> int" in text and "Adds." in text and "return a" not in text
    assert "return a + b" in look(guest, "inspect", "add", detail=1)["text"]
    # Within the parentheses of a call, the question is about the call.
    assert "Signature: add" in look(guest, "inspect", "add(1, (2, ")["text"]
    rows = look(guest, "inspect", "rows", 1)["text"]
    assert "Type:      list" in rows and "Length:    1000" in rows and len(rows) < 20_000
    assert look(guest, "inspect", "nobody")["text"] is None and look(guest, "inspect", "")["text"] is None


def test_hooks_may_fail_and_answers_are_bounded(guest: Guest) -> None:
    guest.ok(
        "class Bad:\n"
        "    def __dir__(self): raise ValueError\n"
        "    def __getattr__(self, name): raise RuntimeError\n"
        "    def __repr__(self): raise KeyError\n"
        "bad = Bad()\n"
        "class Many:\n"
        "    def __dir__(self): return [f'name{i}' for i in range(200_000)] + ['x' * 10_000]\n"
        "many = Many()\n"
        "class Long: 'x'\n"
        "Long.__doc__ = 'd' * 1_000_000\n"
    )
    assert matches(guest, "bad.x") == [] and matches(guest, "bad.x.y") == []
    assert look(guest, "inspect", "bad")["text"] is not None
    assert len(matches(guest, "many.na")) == 500
    assert len(look(guest, "inspect", "Long")["text"]) < 30_000


def test_rubbish_is_refused(guest: Guest) -> None:
    with pytest.raises(ValueError):
        look(guest, "execute", "1")
    with pytest.raises(ValueError), installed(guest.runtime) as runtime:
        runtime.file("look", "complete", [b'{"code": 1, "cursor": 2}'])
    # A cursor outside of the code is at its end.
    assert look(guest, "complete", "pri", 1_000)["end"] == 3
    assert look(guest, "complete", "pri", -5)["start"] == 0
