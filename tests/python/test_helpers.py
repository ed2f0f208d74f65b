"""Helpers: queries, final answers, chunking and search."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from conftest import CONFIG, Guest, Reply
from hypothesis import given
from hypothesis import strategies as st

from sandglass.runtime.reading import chunk_text, search


def test_llm_query_sends_prompt_and_model(guest: Guest) -> None:
    assert guest.ok("llm_query('hi', model='m')").result == "'answer to hi'"
    assert guest.ok("await llm_query('hi')").result == "'answer to hi'"
    assert guest.bridge.calls == [("llm_query", [["hi", "m"]]), ("llm_query", [["hi"]])]


def test_answers_are_strings(guest: Guest) -> None:
    source = "import json, copy, pickle\nx = llm_query('hi')\nl = llm_query_batched(['hi'])\n"
    assert guest.ok(
        source + "json.dumps([x, l]), x + '!', f'{x:>14}', {x: 1}['answer to hi'], x == 'answer to hi'"
    ).result == ("('[\"answer to hi\", [\"answer to hi\"]]', 'answer to hi!', '  answer to hi', 1, True)")
    assert guest.ok(
        "[type(copy.copy(x)) is str, type(copy.deepcopy(l)) is list, type(pickle.loads(pickle.dumps(x))) is str]"
    ).result == ("[True, True, True]")
    assert guest.ok("type(await x) is str, type(x).__name__, isinstance(x, str)").result == "(True, 'str', True)"
    assert guest.get("x") == "answer to hi" and guest.get("l") == ["answer to hi"]


def test_batches_are_one_crossing_in_order_and_keep_failures_in_their_slot(guest: Guest) -> None:
    guest.bridge.answer = lambda prompt, model: {
        "a": "A",
        "b": Reply("boom"),
        "c": {"no": 1},
        "d": Reply("budget", "limit"),
    }[prompt]
    assert guest.ok("llm_query_batched(['a', ('b', 'm'), {'prompt': 'c'}, 'd', {'query': 'a', 'model': 'n'}], 'x')").result == repr([
        "A", "Error: LM query failed - boom", "Error: LM query failed - onLLMQuery returned a dict, not a string",
        "Error: LM query failed - budget", "A",
    ])  # fmt: skip
    assert guest.bridge.calls == [("llm_query", [["a", "x"], ["b", "m"], ["c", "x"], ["d", "x"], ["a", "n"]])]
    assert guest.ok("batch_llm_query([])").result == "[]"
    assert len(guest.bridge.calls) == 1


def test_rlm_query_sends_the_current_context_by_default(guest: Guest) -> None:
    guest.put("context", ["long", "text"])
    guest.ok(
        "rlm_query('t'); rlm_query('t', 'own'); rlm_query_batched(['a', ('b', 'B'), {'task': 'c', 'context': {'k': 1}}])"
    )
    guest.ok("batch_rlm_query([{'task': 'd'}], ['D'])")
    assert guest.bridge.calls == [
        ("rlm_query", [["t", ["long", "text"]]]),
        ("rlm_query", [["t", "own"]]),
        ("rlm_query", [["a", ["long", "text"]], ["b", "B"], ["c", {"k": 1}]]),
        ("rlm_query", [["d", "D"]]),
    ]
    guest.bridge.answer = lambda *args: Reply("no")
    assert guest.ok("rlm_query_batched(['x'])").result == "['Error: RLM query failed - no']"


def test_a_failed_query_raises(guest: Guest) -> None:
    guest.bridge.answer = lambda *args: Reply("too slow", "timeout")
    cell = guest.run("llm_query('x')")
    assert (cell.ended, cell.error_type, cell.error) == ("error", "HostCallError", "HostCallError: too slow")
    assert "line 1, in <module>" in cell.traceback and "sandglass" not in cell.traceback
    assert guest.ok("try: llm_query('x')\nexcept HostCallError as e: k = e.kind\nk").result == "'timeout'"
    guest.bridge.answer = lambda *args: Reply("budget of 3 calls is used up", "limit")
    cell = guest.run("rlm_query('x')")
    assert (cell.ended, cell.error_type) == ("limit", "LimitError")
    assert (
        guest.ok("try: llm_query('x')\nexcept HostCallError as e: k = (e.kind, type(e).__name__)\nk").result
        == "('limit', 'LimitError')"
    )
    guest.bridge.answer = lambda *args: None
    assert guest.run("llm_query('x')").error == "HostCallError: onLLMQuery returned a NoneType, not a string"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("llm_query(5)", "TypeError: llm_query() needs prompt to be str, not int"),
        ("llm_query('x', 5)", "TypeError: llm_query() needs model to be str, not int"),
        ("llm_query_batched('abc')", "TypeError: llm_query_batched() needs prompts to be a list, not str"),
        ("llm_query_batched(5)", "TypeError: llm_query_batched() needs prompts to be a list, not int"),
        ("llm_query_batched([5])", "TypeError: llm_query_batched() needs every prompt to be str, not int"),
        ("llm_query_batched([('a', 'b', 'c')])", "TypeError: llm_query_batched() takes (prompt, model) tuples, not one of 3 items"),
        ("llm_query_batched([{'x': 1}])", "TypeError: llm_query_batched() takes dicts with 'prompt' and maybe 'model', not with the keys: 'x'"),
        ("rlm_query(None)", "TypeError: rlm_query() needs task to be str, not NoneType"),
        ("rlm_query_batched(['a', 'b'], ['c'])", "ValueError: rlm_query_batched() got 2 tasks but 1 contexts"),
        ("rlm_query_batched(['a'], 'c')", "TypeError: rlm_query_batched() needs contexts to be a list, not str"),
        ("x = []; x.append(x); rlm_query('t', x)", "NotSerializable: rlm_query() arguments[1][0] contains itself"),
        ("chunk_text(5)", "TypeError: chunk_text() needs text to be str, not int"),
        ("chunk_text('a', 0)", "ValueError: chunk_text() needs a size above 0, not 0"),
        ("chunk_text('a', 5, -1)", "ValueError: chunk_text() needs an overlap of 0 or more, not -1"),
        ("chunk_text('a', 5, 5)", "ValueError: chunk_text() needs an overlap smaller than size, and 5 >= 5"),
        ("chunk_text('a', 'b')", "TypeError: chunk_text() needs size to be int, not str"),
        ("search_context(5)", "TypeError: search_context() needs pattern to be str, not int"),
        ("search_context('(', text='x')", "ValueError: search_context() got an invalid pattern: missing ), unterminated"),
        ("search_context('x' * 501, text='x')", "ValueError: search_context() takes a pattern of at most 500 characters, not 501"),
        ("search_context('x', -1, text='x')", "ValueError: search_context() needs a window of 0 or more, not -1"),
        ("search_context('x', 1, -1, text='x')", "ValueError: search_context() needs max_results of 0 or more, not -1"),
        ("search_context('x')", "TypeError: search_context() searches a str, or a list or dict of texts; `context` is not set"),
        ("search_context('x', text=5)", "TypeError: search_context() searches a str, or a list or dict of texts; not int"),
        ("SUBMIT()", "TypeError: SUBMIT() needs the answer"),
        ("SUBMIT(1, a=2)", "TypeError: SUBMIT() takes values by position or by name, not both"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_clear_errors(guest: Guest, call: str, error: str) -> None:
    cell = guest.run(call)
    assert cell.error.startswith(error)
    assert "sandglass" not in cell.traceback


def test_host_functions_take_positional_and_keyword_arguments(guest: Guest) -> None:
    guest.bridge.answer = lambda *args: list(args)
    assert guest.ok("fetch_page('u', 2)").result == "['u', 2]"
    assert guest.ok("await fetch_page('u', depth=3)").result == "['u', {'depth': 3}]"
    assert guest.ok("def visit():\n    return fetch_page('v')\nvisit()").result == "['v']"
    assert guest.bridge.lines == [(1, 1), (2, 1), (3, 2)]
    assert guest.ok("fetch_page.__name__").result == "'fetch_page'"
    guest.bridge.answer = lambda *args: {"n": 1}
    assert guest.ok("fetch_page()").result == "{'n': 1}"
    guest.bridge.answer = lambda *args: Reply("404")
    assert guest.run("fetch_page()").error == "HostCallError: 404"


@pytest.mark.parametrize(
    ("source", "final"),
    [
        ("FINAL(42)", 42),
        ("FINAL('a'); FINAL('b')", "b"),
        ("FINAL(None)", None),
        ("x = [1, 2]\nFINAL_VAR('x')", [1, 2]),
        ("x = 1\nFINAL_VAR(' \"x\" ')", 1),
        ("FINAL_VAR({'direct': 1})", {"direct": 1}),
        ("answer = 'text'\nFINAL_VAR('answer')", "text"),
        ("SUBMIT('a')\nprint('never')", "a"),
        ("try: SUBMIT(1, 2)\nexcept Exception: pass", [1, 2]),
        ("SUBMIT(a=1, b='x')", {"a": 1, "b": "x"}),
        ("answer['content'] = 'done'; answer['ready'] = True", "done"),
        ("answer = {'content': 5, 'ready': 1}", 5),
        ("class T: __bool__ = None\nanswer = {'content': 6, 'ready': T()}", 6),
        ("answer['ready'] = True; FINAL('first')", "first"),
        ("x = []\nFINAL(x)\nx.append(1)", [1]),
    ],
)
def test_final_answers(guest: Guest, source: str, final: object) -> None:
    cell = guest.ok(source)
    assert cell.has_final and cell.final == final and cell.stdout == ""
    assert not guest.ok("1").has_final


def test_an_answer_is_kept_until_it_is_ready(guest: Guest) -> None:
    assert not guest.ok("answer['content'] = 'draft'").has_final
    assert guest.ok("answer['ready'] = True").final == "draft"
    assert guest.ok("answer").result == "{'content': 'draft', 'ready': False}"
    assert not guest.ok("answer = 'rebound'").has_final
    assert guest.ok("FINAL_VAR('answer')").final == "rebound"


def test_a_final_answer_survives_an_error(guest: Guest) -> None:
    cell = guest.run("FINAL(1)\n1/0")
    assert cell.final == 1 and cell.error_type == "ZeroDivisionError"


def test_a_final_answer_that_cannot_cross_is_an_error(guest: Guest) -> None:
    cell = guest.run("x = [1]\nx.append(x)\nFINAL(x)")
    assert not cell.has_final and cell.error_type == "NotSerializable"
    assert cell.error.startswith("NotSerializable: the final value[1] contains itself")


def test_a_miss_of_final_var_teaches(guest: Guest) -> None:
    cell = guest.ok("x = 1; _hidden = 2\nprint(FINAL_VAR('y'))")
    assert not cell.has_final
    assert cell.stdout == (
        "Error: Variable 'y' not found. Available variables: ['x']. "
        "You must create and assign a variable BEFORE calling FINAL_VAR on it.\n"
    )
    assert "not found" in guest.ok("FINAL_VAR('llm_query')").result
    assert guest.ok("print(FINAL_VAR('x'))").stdout == "1\n"


def test_show_vars(guest: Guest) -> None:
    empty = "No variables created yet. Use ```repl``` blocks to create variables."
    assert guest.ok("SHOW_VARS()").result == repr(empty)
    assert (
        guest.ok("x = 5; y = llm_query('q'); _z = 1\nprint(SHOW_VARS())").stdout
        == "Available variables: {'x': 'int', 'y': 'str'}\n"
    )


def test_overwritten_helpers_are_back_in_the_next_cell(guest: Guest) -> None:
    assert guest.ok("llm_query = lambda p: 'mine'\nchunk_text = 5\nllm_query('x')").result == "'mine'"
    assert guest.ok("llm_query('x'), chunk_text('ab', 1, 0)").result == "('answer to x', ['a', 'b'])"
    assert guest.run("from builtins import nothing").names is None


def test_search_uses_the_context_and_says_which_item(guest: Guest) -> None:
    guest.put("context", "one TWO three two")
    assert guest.ok("search_context('two', window=2)").result == repr([
        {"match": "TWO", "start": 4, "end": 7, "context": "e TWO t"},
        {"match": "two", "start": 14, "end": 17, "context": "e two"},
    ])  # fmt: skip
    guest.put("context", ["x", "a y", {"role": "y"}])
    assert [r["index"] for r in eval(guest.ok("search_context('y')").result)] == [1, 2]
    guest.put("context", {"k1": "foo", "k2": "xx foo"})
    assert (
        guest.ok("search_context('FOO', 1, 9)[1]").result
        == "{'match': 'foo', 'start': 3, 'end': 6, 'context': ' foo', 'index': 'k2'}"
    )
    assert guest.ok("len(search_context('o', max_results=3)), search_context('o', max_results=0)").result == "(3, [])"


@given(st.text(max_size=400), st.integers(1, 50), st.integers(0, 49))
def test_chunks_cover_the_text(text: str, size: int, overlap: int) -> None:
    if overlap >= size:
        with pytest.raises(ValueError, match="overlap"):
            chunk_text(text, size, overlap)
        return
    chunks = chunk_text(text, size, overlap)
    assert "".join(chunk if not i else chunk[overlap:] for i, chunk in enumerate(chunks)) == text
    assert all(0 < len(chunk) <= size for chunk in chunks)
    assert all(len(chunk) == size for chunk in chunks[:-1])
    assert all(len(chunk) > overlap for chunk in chunks[1:])
    for before, after in pairwise(chunks):
        assert overlap == 0 or before[-overlap:] == after[:overlap]


@given(
    st.text("abAB .\n", max_size=200),
    st.sampled_from(["a", "b+", "[ab]{2}", "^", r"\bA"]),
    st.integers(0, 9),
    st.integers(0, 20),
)
def test_search_finds_what_a_regex_finds(text: str, pattern: str, window: int, limit: int) -> None:
    found = search(pattern, window, limit, text)
    assert [(f["start"], f["end"]) for f in found] == [m.span() for m in re.finditer(pattern, text, re.IGNORECASE)][
        :limit
    ]
    for f in found:
        assert text[f["start"] : f["end"]] == f["match"] and f["match"] in f["context"]
        assert f["context"] in text and len(f["context"]) <= len(f["match"]) + 2 * window


def test_input_is_a_builtin_that_the_host_may_answer(guest: Guest) -> None:
    cell = guest.run("input('?')")
    assert cell.error == "EOFError: input() is not available in this sandbox: assign the value in code instead"
    guest.runtime.configure({**CONFIG, "hostFunctions": ["input"]})
    assert guest.ok("input('name? ') + input()").result == "'answer to name? answer to '"
    assert guest.bridge.calls == [("input", [["name? "]]), ("input", [[""]])]
    assert "input" not in [row["name"] for row in guest.listing()]


def test_getpass_asks_as_input_does_and_says_so(guest: Guest) -> None:
    guest.runtime.configure({**CONFIG, "hostFunctions": ["input"]})
    with pytest.warns(UserWarning, match="may be seen") as told:
        cell = guest.ok("from getpass import getpass\ngetpass('key? ')")
    assert cell.result == "'answer to key? '" and guest.bridge.calls == [("input", [["key? "]])]
    assert (told[0].filename, told[0].lineno, told[0].category.__name__) == ("<cell 1>", 2, "GetPassWarning")
    guest.runtime.configure(CONFIG)
    assert guest.run("getpass()").error.startswith("EOFError: getpass() is not available in this sandbox")
