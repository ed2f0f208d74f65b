"""Profiles: the names, signatures, texts and conventions that the projects of the same names publish."""

from __future__ import annotations

import pytest
from conftest import CONFIG, Guest, Reply

from sandglass.runtime.profiles import PROFILES

LM, RLM = "Error: LM query failed - ", "Error: RLM query failed - "
BOTH = ["llm_query", "rlm_query"]


def speaking(guest: Guest, profile: str, **config: object) -> Guest:
    guest.runtime.configure({**CONFIG, "hostFunctions": ["fetch_page", *BOTH], "profile": profile, **config})
    return guest


@pytest.fixture
def rlm(guest: Guest) -> Guest:
    return speaking(guest, "rlm")


@pytest.fixture
def legacy(guest: Guest) -> Guest:
    return speaking(guest, "rlm-legacy")


@pytest.fixture
def dspy(guest: Guest) -> Guest:
    return speaking(guest, "dspy")


def visible(guest: Guest, source: str) -> str:
    return guest.ok(f"print(({source}))").stdout.removesuffix("\n")


# ---- names ----

QUERIES = ["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"]
EVERYWHERE = ["HostCallError", "LimitError", "fetch_page"]


DEFAULT = [
    *QUERIES,
    *("batch_llm_query", "batch_rlm_query", "FINAL", "FINAL_VAR", "SUBMIT", "SHOW_VARS", "answer"),
    *("chunk_text", "search_context", "llm_batch", "recursive_llm", "query", "final_answer", "display"),
]
READING = [
    *("chunk_by_headers", "chunk_by_size", "count_lines", "count_matches", "extract_json", "extract_sections"),
    *("find_line", "get_line", "quote_match"),
]


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        ("default", DEFAULT),
        ("rlm-core", [*DEFAULT, *READING]),
        ("rlm", [*QUERIES, "SHOW_VARS", "answer"]),
        ("rlm-legacy", [*QUERIES, "SHOW_VARS", "FINAL_VAR"]),
        ("dspy", ["llm_query", "llm_query_batched", "SUBMIT"]),
    ],
)
def test_every_profile_has_its_names_and_no_other(guest: Guest, profile: str, names: list[str]) -> None:
    speaking(guest, profile)
    found = visible(guest, "sorted(n for n in globals() if n[:2] != '__')")
    assert found == str(sorted([*names, *EVERYWHERE]))
    assert [row["name"] for row in guest.listing()] == []


def test_there_are_five() -> None:
    assert list(PROFILES) == ["default", "rlm", "rlm-legacy", "rlm-core", "dspy"]


def test_what_a_profile_does_not_reserve_is_the_user_s(dspy: Guest) -> None:
    cell = dspy.ok("answer = 'mine'; FINAL = 1; query = 2; context = 3; SHOW_VARS = 4")
    assert cell.names == ["answer", "FINAL", "query", "context", "SHOW_VARS"] and not cell.has_final
    assert dspy.get("answer") == "mine"
    dspy.put("answer", {"ready": True})
    assert not dspy.ok("answer['ready'] = True").has_final
    assert visible(dspy, "answer, FINAL") == "({'ready': True}, 1)"


def test_a_host_function_may_have_a_name_that_the_profile_leaves_free(guest: Guest) -> None:
    speaking(guest, "dspy", hostFunctions=["answer", "FINAL"])
    assert visible(guest, "answer('x')") == "answer to x"
    speaking(guest, "default", hostFunctions=["query"])
    assert guest.ok("query('x')").result == "'answer to x'" and guest.bridge.calls[-1][0] == "query"
    for profile, name in [("rlm", "answer"), ("rlm-legacy", "FINAL_VAR"), ("dspy", "SUBMIT"), ("dspy", "context")]:
        with pytest.raises(ValueError, match=f"{name}.*built-in helper"):
            speaking(guest, profile, hostFunctions=[name])


def test_a_profile_that_is_refused_changes_nothing(rlm: Guest) -> None:
    for config in [{"profile": "dspy", "outputFields": ["a b"]}, {"profile": "dspy", "hostFunctions": ["SUBMIT"]}]:
        with pytest.raises(ValueError, match=r"a b|SUBMIT"):
            rlm.runtime.configure({**CONFIG, **config})
    rlm.bridge.answer = lambda *args: Reply("no")
    assert visible(rlm, "llm_query('x')") == "Error: no"


# ---- queries ----


@pytest.mark.parametrize("profile", PROFILES)
def test_queries_can_be_used_and_awaited(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    one, two = "answer to a", "['answer to a', 'answer to b']"
    single, batch = "llm_query('a')", "llm_query_batched(['a', 'b'])"
    for query, expected in [(single, one), (batch, two)]:
        assert visible(guest, query) == expected
        assert visible(guest, f"await {query}") == expected
        source = f"import asyncio\nasync def f(): return {{}} {query}\nprint(await f(), asyncio.run(f()))"
        for way in ("", "await"):
            assert guest.ok(source.format(way)).stdout == f"{expected} {expected}\n"
        for way in (
            f"asyncio.gather({query}, f(), {query})",
            f"asyncio.gather(*[asyncio.create_task({query}), asyncio.ensure_future({query}), {query}])",
        ):
            assert guest.ok(f"async def f(): return await {query}\nprint(await {way})").stdout == (
                f"{[eval(expected) if query == batch else expected] * 3}\n"
            )
        assert visible(guest, f"await asyncio.wait_for({query}, 5)") == expected
        assert visible(guest, f"asyncio.run({query})") == expected
        group = f"async with asyncio.TaskGroup() as group: t = group.create_task({query})\nprint(t.result())"
        assert guest.ok(group).stdout == f"{expected}\n"
        done = f"print([await one for one in asyncio.as_completed([{query}])][0])"
        assert guest.ok(done).stdout == f"{expected}\n"


@pytest.mark.parametrize("profile", PROFILES)
def test_failures_can_be_awaited_too(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.bridge.answer = lambda *args: Reply("boom")
    raises = PROFILES[profile].returned is None
    cell = guest.run("x = await llm_query('a')\nprint(x)")
    assert (cell.error, cell.stdout) == (("HostCallError: boom", "") if raises else ("", "Error: boom\n"))
    assert len(eval(visible(guest, "await llm_query_batched(['a', 'b'])"))) == 2


@pytest.mark.parametrize("profile", PROFILES)
def test_only_answers_are_taken_for_coroutines(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    for what in ("'text'", "['list']", "5"):
        cell = guest.run(f"import asyncio\nawait asyncio.create_task({what})")
        assert cell.error.startswith("TypeError: a coroutine was expected, got ")


@pytest.mark.parametrize(
    ("profile", "single", "slots"),
    [
        ("rlm", "Error: boom", "Error: llm() call failed - boom"),
        ("rlm-legacy", "Error: boom", "Error: boom"),
        ("dspy", None, "[ERROR] boom"),
        ("default", None, LM + "boom"),
    ],
)
def test_a_failing_model(guest: Guest, profile: str, single: str | None, slots: str) -> None:
    speaking(guest, profile)
    guest.bridge.answer = lambda *args: Reply("boom") if args[0] == "bad" else "good"
    if single is None:
        assert guest.run("llm_query('bad')").error == "HostCallError: boom"
        assert guest.ok("try: llm_query('bad')\nexcept RuntimeError as e: print(e)").stdout == "boom\n"
    else:
        assert visible(guest, "llm_query('bad')") == single
    assert visible(guest, "llm_query_batched(['a', 'bad', 'b'])") == repr(["good", slots, "good"])


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_rlm_returns_every_error(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.bridge.answer = lambda *args: Reply("too slow", "timeout")
    assert visible(guest, "llm_query('x')") == LM + "too slow"
    assert visible(guest, "llm_query_batched(['x', 'y'])") == repr([LM + "too slow"] * 2)
    assert visible(guest, "rlm_query('x')") == RLM + "too slow"
    guest.bridge.answer = lambda *args: Reply("budget", "limit")
    cell = guest.ok("print(llm_query('x'), rlm_query_batched(['x']))")
    assert cell.stdout == f"{LM}budget {[RLM + 'budget']}\n"
    guest.bridge.answer = lambda *args: Reply("boom")
    assert visible(guest, "rlm_query('x')") == RLM + "boom"
    assert visible(guest, "rlm_query_batched(['x', 'y'])") == repr([RLM + "boom"] * 2)
    guest.bridge.answer = lambda *args: {"not": "text"}
    assert visible(guest, "llm_query('x')") == "Error: onLLMQuery returned a dict, not a string"
    count = len(guest.bridge.calls)
    assert visible(guest, "llm_query(5)") == LM + "llm_query() needs prompt to be str, not int"
    assert visible(guest, "llm_query('x', 5)") == LM + "llm_query() needs model to be str, not int"
    assert visible(guest, "rlm_query(None)") == RLM + "rlm_query() needs prompt to be str, not NoneType"
    needs = "llm_query_batched() needs every prompt to be str, not int"
    assert visible(guest, "llm_query_batched(['a', 5])") == repr([LM + needs] * 2)
    for batch in ("llm_query_batched", "rlm_query_batched"):
        assert visible(guest, f"{batch}([])") == "[]"
        assert guest.run(f"{batch}('abc')").error == f"TypeError: {batch}() needs prompts to be a list, not str"
        assert guest.run(f"{batch}(5)").error_type == "TypeError"
    assert len(guest.bridge.calls) == count


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_an_interrupt_is_no_error_that_is_returned(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.bridge.interrupt_call = True
    for query in ("llm_query('x')", "llm_query_batched(['x'])", "rlm_query('x')", "rlm_query_batched(['x'])"):
        assert guest.run(query).error_type == "KeyboardInterrupt"


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_a_sub_rlm_gets_the_prompt_and_nothing_else(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.put("context", "a" * 1000)
    guest.ok("rlm_query('t'); rlm_query('t', 'm'); rlm_query_batched(['a', 'b'], model='m'); rlm_query_batched(['c'])")
    assert guest.bridge.calls == [
        ("rlm_query", [["t", None]]),
        ("rlm_query", [["t", None, "m"]]),
        ("rlm_query", [["a", None, "m"], ["b", None, "m"]]),
        ("rlm_query", [["c", None, None]]),
    ]


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_without_sub_rlms_the_model_is_asked(guest: Guest, profile: str) -> None:
    speaking(guest, profile, hostFunctions=["llm_query"])
    assert visible(guest, "rlm_query('t', 'm'), rlm_query_batched(['a'])") == "('answer to t', ['answer to a'])"
    assert guest.bridge.calls == [("llm_query", [["t", "m"]]), ("llm_query", [["a", None]])]
    guest.bridge.answer = lambda *args: Reply("boom")
    assert visible(guest, "rlm_query('t')") == "Error: boom"


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_without_a_model_queries_say_so(guest: Guest, profile: str) -> None:
    speaking(guest, profile, hostFunctions=[])
    guest.bridge.answer = lambda *args: Reply("the host has no function llm_query")
    nobody = "Error: No LM handler configured"
    assert visible(guest, "llm_query('x')") == visible(guest, "rlm_query('x')") == nobody
    assert visible(guest, "llm_query_batched(['x', 'y'])") == repr([nobody] * 2)


@pytest.mark.parametrize("profile", PROFILES)
def test_prompts_of_any_text_cross(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.bridge.answer = lambda prompt, *_: prompt
    for text in ("'\\ud800 lone'", "'\\x00'", "'🦀' * 1000"):
        assert guest.ok(f"print(llm_query({text}) == {text} == llm_query_batched([{text}])[0])").stdout == "True\n"
    assert guest.ok("class S(str): pass\nx = llm_query(S('sub')); y = llm_query_batched(('t', S('u')))\nprint(x, y)")
    assert guest.get("x") == "sub" and guest.get("y") == ["t", "u"]


def test_dspy_refuses_an_empty_prompt_before_it_counts(dspy: Guest) -> None:
    speaking(dspy, "dspy", maxHostCalls=1)
    for empty in ("''", "None", "prompt=''"):
        cell = dspy.run(f"llm_query({empty})")
        assert cell.error == "ValueError: prompt cannot be empty" and "sandglass" not in cell.traceback
    assert dspy.bridge.calls == []
    assert dspy.ok("try: llm_query('')\nexcept ValueError: print(llm_query('x'))").stdout == "answer to x\n"
    assert visible(dspy, "llm_query_batched([''])") == "['answer to ']"
    assert visible(dspy, "llm_query_batched([])") == "[]"


@pytest.mark.parametrize("profile", ["default", "rlm", "rlm-legacy"])
def test_others_ask_empty_prompts(guest: Guest, profile: str) -> None:
    assert visible(speaking(guest, profile), "llm_query('')") == "answer to "


def test_dspy_s_call_limit_takes_all_of_a_batch_or_nothing(dspy: Guest) -> None:
    speaking(dspy, "dspy", maxHostCalls=3)
    text = "LLM call limit exceeded: 2 + 2 > 3. Use Python code for aggregation instead of making more LLM calls."
    cell = dspy.run("llm_query_batched(['a', 'b'])\nllm_query_batched(['c', 'd'])")
    assert (cell.ended, cell.error_type, cell.error) == ("limit", "RuntimeError", f"RuntimeError: {text}")
    assert dspy.bridge.calls == [("llm_query", [["a", None], ["b", None]])]
    # Refused calls do not count, calls of the host's own functions do, and the next cell starts from zero.
    cell = dspy.ok(
        "fetch_page('u'); llm_query('a')\n"
        "try: llm_query_batched(['c', 'd'])\nexcept RuntimeError as e: print(e, isinstance(e, LimitError))\n"
        "print(llm_query('b'))\nimport copy, pickle"
    )
    assert cell.stdout == f"{text} True\nanswer to b\n"
    kept = "try: llm_query_batched(['x'] * 4)\nexcept LimitError as e: kept = pickle.loads(pickle.dumps(e))\nprint(repr(kept))"
    assert dspy.ok(kept).stdout == repr(RuntimeError(text.replace("2 + 2", "0 + 4"))) + "\n"


def test_dspy_s_batch_raises_what_the_code_did_wrong(dspy: Guest) -> None:
    assert dspy.run("llm_query_batched(['a', 5])").error_type == "TypeError"
    dspy.bridge.answer = lambda prompt, *_: Reply("budget", "limit") if prompt == "b" else prompt
    for call in ("llm_query('b')", "llm_query_batched(['a', 'b'])"):
        cell = dspy.run(call)
        assert (cell.ended, cell.error) == ("limit", "RuntimeError: budget")


# ---- output ----


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_rlm_discards_bare_expressions(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    cell = guest.ok("class Loud:\n    def __repr__(self): print('asked')\nx = 5\nLoud()")
    assert (cell.result, cell.stdout) == ("", "")
    assert guest.run("1/0").error == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("source", "result"),
    [
        ("'text'", "text"),
        ("5", "5"),
        ("[1, 'two', None]", "1\ntwo\nNone"),
        ("(1, 2)", "1\n2"),
        ("llm_query_batched(['a', 'b'])", "answer to a\nanswer to b"),
        ("{'a': 1}", "{'a': 1}"),
        ("None", ""),
        ("class L(list):\n    __iter__ = None\nL('ab')", "a\nb"),
        ("class L:\n    __class__ = list\n    __str__ = None\n    __repr__ = lambda self: 'l'\nL()", "l"),
    ],
)
def test_dspy_shows_values_as_text(dspy: Guest, source: str, result: str) -> None:
    assert dspy.ok(source).result == result


# ---- variables ----


@pytest.mark.parametrize("profile", ["rlm", "rlm-legacy"])
def test_contexts_and_histories_are_put_back(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    assert visible(guest, "SHOW_VARS()") == "No variables created yet. Use ```repl``` blocks to create variables."
    guest.put("context", "first")
    guest.put("context_1", ["second"])
    guest.put("history", [{"role": "user"}])
    names = ["context_0", "context", "context_1", "history_0", "history"]
    assert [row["name"] for row in guest.listing()] == names
    kinds = dict(zip(names, ["str", "str", "list", "list", "list"], strict=True))
    assert visible(guest, "SHOW_VARS()") == f"Available variables: {kinds}"
    assert guest.ok("context = 'mine'; history = 5; context_1 = 'kept'\nprint(context)").stdout == "mine\n"
    assert visible(guest, "context, history, context_1") == "('first', [{'role': 'user'}], 'kept')"
    guest.ok("del context, history")
    assert visible(guest, "context is context_0, history is history_0") == "(True, True)"
    guest.run("context = 5\n1/0")
    assert guest.get("context") == "first"
    guest.put("context_0", "third")
    assert guest.get("context") == "third"
    guest.put("context", None)
    assert visible(guest, "context_0, context") == "(None, None)"
    guest.ok("del context_0, context")
    assert "context" not in [row["name"] for row in guest.listing()]
    guest.ok("globals().clear()")
    assert guest.listing() == []


@pytest.mark.parametrize("profile", ["default", "dspy"])
def test_others_leave_contexts_alone(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.put("context", "first")
    guest.ok("context = 'mine'")
    assert guest.get("context") == "mine" and [row["name"] for row in guest.listing()] == ["context"]


@pytest.mark.parametrize("profile", PROFILES)
def test_reserved_names_are_put_back(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    guest.ok("\n".join(f"{name} = None" for name in (*PROFILES[profile].helpers, "HostCallError")))
    assert visible(guest, "llm_query('x')") == "answer to x"
    guest.ok("del llm_query, llm_query_batched, HostCallError\nglobals()[5] = 6")
    assert visible(guest, "llm_query_batched(['x'])") == "['answer to x']"
    with pytest.raises(ValueError, match="reserved"):
        guest.put("llm_query", 5)


def test_aliases_yield_to_the_user_s_variables(guest: Guest) -> None:
    speaking(guest, "default")
    assert guest.ok("query('a'), await llm_batch(['b'])").result == "('answer to a', ['answer to b'])"
    guest.ok("recursive_llm('q', 'c'); recursive_llm(sub_query='q', sub_context='c')")
    assert guest.bridge.calls[-1] == ("rlm_query", [["q", "c"]])
    assert guest.ok("final_answer(5)").final == 5
    assert "query" not in guest.ok("SHOW_VARS()").result
    assert "'query' not found" in guest.ok("FINAL_VAR('query')").result
    guest.put("query", "What is it?")
    cell = guest.ok("query")
    assert cell.result == "'What is it?'" and cell.names == ["query"]
    assert guest.ok("final_answer = 'done'\nFINAL_VAR('final_answer')").final == "done"
    cell = guest.ok("query, final_answer")
    assert cell.result == "('What is it?', 'done')" and cell.names is None
    cell = guest.ok("del query")
    assert cell.names == ["final_answer"] and guest.ok("query('a')").result == "'answer to a'"


def test_the_final_answer_of_smolagents_ends_the_cell(guest: Guest) -> None:
    speaking(guest, "default")
    for call, final in [("answer=2", 2), ("[None]", [None]), ("answer={'a': 1}", {"a": 1}), ("''", "")]:
        cell = guest.ok(f"final_answer({call})\nraise RuntimeError('not run')")
        assert cell.has_final and cell.final == final
    # The first answer counts, even if the cell catches its exception.
    assert guest.ok("try:\n    final_answer(1)\nexcept BaseException:\n    final_answer(2)").final == 1
    assert "missing 1 required" in guest.run("final_answer()").error


# ---- rlm-core ----

MARKDOWN = "# A\n## One\n x1 \n## Two\n### Three\nx2\n# B"


@pytest.mark.parametrize(
    ("context", "source", "expected"),
    [
        ("aXbx", "count_matches('X'), count_matches('y')", (2, 0)),
        (
            "",
            "count_matches('x'), count_lines(), get_line(1), chunk_by_size(), extract_sections('x')",
            (0, 1, "", [], []),
        ),
        (
            "",
            "extract_json('so {\"a\": [1]} it is'), extract_json('x [1, {}] x'), extract_json('none'), extract_json('{]')",
            ({"a": [1]}, [1, {}], None, None),
        ),
        ("", "extract_json('{a} [1]'), extract_json('[' * 100_000 + ']' * 100_000)", ([1], None)),
        (
            "H1: a\nb\n\nH2: c",
            "extract_sections(r'^H\\d:'), extract_sections('h1')",
            ([{"header": "H1:", "content": "a\nb", "start": 0}, {"header": "H2:", "content": "c", "start": 9}], []),
        ),
        ("ab\r\nAC\n", "find_line('A'), find_line('z')", ([(1, "ab\r"), (2, "AC")], [])),
        ("import a\nx\nIMPORT b", "count_lines(), count_lines('import'), count_lines('^x$')", (3, 2, 1)),
        ("a\nb", "[get_line(n) for n in (1, 2, 3, 0, -1)]", ["a", "b", "", "", ""]),
        (
            "say Hello " + "o" * 200,
            "quote_match('hello'), quote_match('o+ o', 2), quote_match('z')",
            ("Hello", "o ...", None),
        ),
        ("x" * 101, "quote_match('x+') == 'x' * 100 + '...'", True),
        (
            MARKDOWN,
            "chunk_by_headers(), [chunk['header'] for chunk in chunk_by_headers(level=1)], chunk_by_headers(3)",
            (
                [
                    {"header": "## One", "content": "x1", "start": 4},
                    {"header": "## Two", "content": "### Three\nx2\n# B", "start": 16},
                ],
                ["# A", "# B"],
                [{"header": "### Three", "content": "x2\n# B", "start": 23}],
            ),
        ),
        ("abcdef", "chunk_by_size(4), chunk_by_size(chars=4, overlap=1)", (["abcd", "ef"], ["abcd", "def"])),
    ],
)
def test_rlm_core_reads_the_context(guest: Guest, context: str, source: str, expected: object) -> None:
    speaking(guest, "rlm-core")
    guest.put("context", context)
    assert visible(guest, source) == str(expected)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        *((f"{name}('x' * 501)", "ValueError") for name in ("count_matches", "extract_sections", "find_line")),
        *((f"{name}('(')", "ValueError") for name in ("count_lines", "quote_match")),
        *((f"chunk_by_headers({level})", "ValueError") for level in (0, 7, -1)),
        ("chunk_by_size(5, 5)", "ValueError"),
        ("chunk_by_size(0)", "ValueError"),
        ("quote_match('x', -1)", "ValueError"),
        ("get_line('1')", "TypeError"),
        ("extract_json({})", "TypeError"),
        ("context = ['x']; count_lines()", "TypeError"),
    ],
)
def test_rlm_core_says_what_it_cannot_read(guest: Guest, source: str, error: str) -> None:
    speaking(guest, "rlm-core")
    guest.put("context", "x")
    cell = guest.run(source)
    assert cell.error.startswith(f"{error}: ") and source.split("(")[0].split()[-1] in cell.error


# ---- final answers ----


@pytest.mark.parametrize(
    ("source", "final"),
    [
        ("answer['content'] = 5\nanswer['ready'] = True", "5"),
        ("answer = {'content': None, 'ready': 1}", "None"),
        ("answer = {'ready': True}", ""),
        ("answer['content'] = llm_query('x'); answer['ready'] = 'yes'", "answer to x"),
        ("answer.update(content='\\ud800', ready=True)", "\ud800"),
        ("class D(dict):\n    get = __getitem__ = __contains__ = None\nanswer = D(content='d', ready=True)", "d"),
        (
            "class N:\n    __str__ = lambda self: 5\n    __repr__ = lambda self: 'n'\nanswer = dict(content=N(), ready=1)",
            "n",
        ),
        ("class S(str):\n    __str__ = lambda self: S('inner')\nanswer = dict(content=S('s'), ready=1)", "inner"),
        ("answer['content'] = 'a'; answer['ready'] = True; 1/0", "a"),
    ],
)
def test_rlm_s_answer_is_text(rlm: Guest, source: str, final: str) -> None:
    cell = rlm.run(source)
    assert cell.has_final and cell.final == final and type(cell.final) is str
    assert not rlm.ok("x = 1").has_final


@pytest.mark.parametrize(
    "source",
    [
        "answer = 5",
        "answer = None",
        "del answer",
        "answer = []",
        "answer.clear()",
        "answer['ready'] = 0",
        "answer[1] = 2",
    ],
)
def test_rubbish_in_answer_is_no_answer(rlm: Guest, source: str) -> None:
    assert not rlm.ok(source).has_final
    assert rlm.ok("answer['content'] = 'x'; answer['ready'] = True").final == "x"
    assert visible(rlm, "type(answer), answer['ready']") == "(<class 'dict'>, False)"


def test_rlm_s_answer_that_cannot_be_told_is_said_in_other_words(rlm: Guest) -> None:
    bad = "class B:\n    def __str__(self): raise SystemExit\n    __repr__ = None\n"
    cell = rlm.run(bad + "answer['content'] = B(); answer['ready'] = True")
    assert not cell.has_final and cell.error_type == "SystemExit"
    assert not rlm.ok("x = 1").has_final
    cell = rlm.ok("class B:\n    __str__ = __repr__ = None\nanswer['content'] = B(); answer['ready'] = True")
    assert cell.final.startswith("<B object, repr() raised TypeError")
    deep = "x = []\nfor _ in range(100000): x = [x]\nanswer['content'] = x; answer['ready'] = True"
    assert rlm.ok(deep).final.startswith("<list object, repr() raised RecursionError")


def test_code_that_runs_while_an_answer_is_told_does_no_harm(rlm: Guest) -> None:
    source = (
        "import sys, builtins\nclass E:\n    def __str__(self):\n"
        "        sys.stdout = builtins.str = None; globals().clear(); print = None\n        return llm_query('late')\n"
        "answer['content'] = E(); answer['ready'] = True"
    )
    cell = rlm.run(source)
    assert cell.has_final
    assert visible(rlm, "str(1), llm_query('x')") == "('1', 'answer to x')"


@pytest.mark.parametrize(
    ("source", "final"),
    [
        ("x = [1, 2]\nprint(FINAL_VAR('x'))", "[1, 2]"),
        ("x = 'a'\nprint(FINAL_VAR('\"x\"'))", "a"),
        ("print(FINAL_VAR(5))", "5"),
        ("answer = {'content': 1}\nprint(FINAL_VAR('answer'))", "{'content': 1}"),
        (
            "class N:\n    __str__ = lambda self: 5\n    __repr__ = lambda self: 'n'\nx = N()\nprint(FINAL_VAR('x'))",
            "n",
        ),
        ("class R:\n    def __str__(self): 1/0\n    __repr__ = lambda self: 'r'\nx = R()\nprint(FINAL_VAR('x'))", "r"),
        ("class S(str): __str__ = lambda self: self\nx = S('s')\nprint(FINAL_VAR('x'))", "s"),
    ],
)
def test_legacy_s_final_var_is_text(legacy: Guest, source: str, final: str) -> None:
    cell = legacy.ok(source)
    assert (cell.final, cell.stdout) == (final, f"{final}\n")


@pytest.mark.parametrize("profile", ["rlm-legacy", "default"])
def test_a_miss_of_final_var_teaches(guest: Guest, profile: str) -> None:
    speaking(guest, profile)
    assert visible(guest, "FINAL_VAR('x')") == (
        "Error: Variable 'x' not found. No variables have been created yet. "
        "You must create and assign a variable in a REPL block BEFORE calling FINAL_VAR on it."
    )
    guest.put("context", "…")
    cell = guest.ok("_hidden = y = 2\nprint(FINAL_VAR(' \"x\" '))")
    names = ["context_0", "context", "y"] if profile == "rlm-legacy" else ["context", "y"]
    assert not cell.has_final and cell.stdout == (
        f"Error: Variable 'x' not found. Available variables: {names}. "
        "You must create and assign a variable BEFORE calling FINAL_VAR on it.\n"
    )


def test_legacy_has_no_answer_dict(legacy: Guest) -> None:
    cell = legacy.ok("answer = llm_query('q')")
    assert cell.names == ["answer"] and not cell.has_final
    assert legacy.ok("FINAL_VAR('answer')").final == "answer to q"
    assert not legacy.ok("answer = {'content': 'x', 'ready': True}").has_final
    assert visible(legacy, "SHOW_VARS()") == "Available variables: {'answer': 'dict'}"


@pytest.mark.parametrize("profile", ["default", "dspy"])
def test_submit_names_its_values(guest: Guest, profile: str) -> None:
    speaking(guest, profile, outputFields=["answer", "score"])
    both = {"answer": "a", "score": 1}
    for call in ("'a', 1", "'a', score=1", "score=1, answer='a'"):
        cell = guest.ok(f"SUBMIT({call})\nprint('not reached')")
        assert (cell.final, cell.stdout) == (both, "")
        assert list(cell.final) == ["answer", "score"]
    for call, error in [
        ("'a'", "SUBMIT() missing 1 required positional argument: 'score'"),
        ("", "SUBMIT() missing 2 required positional arguments: 'answer' and 'score'"),
        ("1, 2, 3", "SUBMIT() takes 2 positional arguments but 3 were given"),
        ("1, 2, x=3", "SUBMIT() got an unexpected keyword argument 'x'"),
        ("1, answer=3", "SUBMIT() got multiple values for argument 'answer'"),
    ]:
        cell = guest.run(f"SUBMIT({call})")
        assert not cell.has_final and cell.error == f"TypeError: {error}"
        assert "sandglass" not in cell.traceback
    assert visible(guest, "__import__('inspect').signature(SUBMIT)") == "(answer, score)"
    for bad in (["a", "a"], ["class"], ["a b"], ["__import__('os')"], ["a=1"], ["*a"]):
        with pytest.raises(ValueError, match="output field"):
            speaking(guest, profile, outputFields=bad)


@pytest.mark.parametrize(
    ("source", "final"),
    [
        ("SUBMIT(42)", 42),
        ("SUBMIT(1, 2)", [1, 2]),
        ("SUBMIT(a=1)", {"a": 1}),
        ("try: SUBMIT(1)\nexcept Exception: print('caught')", 1),
        ("try: SUBMIT(1)\nfinally: print('on the way')", 1),
        ("try: SUBMIT(1)\nexcept: x = 2\nprint('goes on')", 1),
        ("try: SUBMIT(1)\nfinally: SUBMIT(2)", 2),
        ("def g():\n    yield SUBMIT(1)\nlist(g())", 1),
        ("async def f(): SUBMIT(1)\nawait f()\nprint('no')", 1),
        ("async def g():\n    yield SUBMIT(1)\nasync for _ in g(): pass\nprint('no')", 1),
        ("import asyncio\nasync def f(): SUBMIT(1)\nawait asyncio.gather(f(), asyncio.sleep(1))\nprint('no')", 1),
        ("import asyncio\nasync def f(): SUBMIT(1)\nasyncio.run(f())\nprint('no')", 1),
        ("import asyncio\nasync def f(): SUBMIT(1)\nt = asyncio.create_task(f())\nawait asyncio.sleep(1)", 1),
        ("sorted([1, 2], key=lambda x: SUBMIT(x))", 1),
        ("import contextlib\nwith contextlib.suppress(Exception): SUBMIT(1)\nprint('no')", 1),
    ],
)
def test_submit_ends_the_cell_wherever_it_is(dspy: Guest, source: str, final: object) -> None:
    cell = dspy.run(source)
    assert cell.has_final and cell.final == final and cell.ended == "ok", cell.traceback
    assert "no\n" not in cell.stdout
    assert not dspy.ok("x = 1").has_final
