"""`tools`: signatures and documentation from JSON Schemas, and how arguments cross."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import CONFIG, Guest, Reply, installed
from hypothesis import given
from hypothesis import strategies as st

from sandglass.runtime.tools import Tools

ISSUE = {
    "name": "create_issue",
    "description": "Creates an issue.\nIt is open then.",
    "inputSchema": {
        "type": "object",
        "properties": {
            "labels": {"type": "array", "items": {"type": "string"}, "description": "Words to\nfind it by"},
            "title": {"type": "string", "description": "One line"},
            "state": {"enum": ["open", "closed"], "default": "open"},
            "milestone": {"type": ["integer", "null"]},
            "due-date": {"type": "string"},
            "class": {"$ref": "#/$defs/Class"},
        },
        "required": ["title"],
        "additionalProperties": False,
        "$defs": {"Class": {"anyOf": [{"type": "number"}, {"type": "boolean"}]}},
    },
    "outputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
}
SIGNATURE = (
    "create_issue(title: str, labels: list[str] | None = None, state: Literal['open', 'closed'] = 'open', "
    "milestone: int | None = None, due_date: str | None = None, class_: float | bool | None = None) -> dict[str, Any]"
)
SEARCH = {"name": "search", "inputSchema": {"type": "object", "properties": {"query": {}}}}
ANY = {"name": "anything", "description": "Takes anything, such as an issue.", "inputSchema": {"type": "object"}}


def with_tools(guest: Guest, *listed: dict[str, Any]) -> list[tuple[str, Any]]:
    """Gives a guest these tools. Returns the list of the calls that come."""
    calls: list[tuple[str, Any]] = []

    def answer(which: str, name: str = "", arguments: str = "") -> Any:
        if which == "list":
            return json.dumps(listed)
        calls.append((name, json.loads(arguments)))
        return {"called": name}

    guest.bridge.answer = answer
    guest.runtime.configure({**CONFIG, "hostFunctions": ["_tools"]})
    return calls


def test_a_tool_is_called_by_position_and_by_name(guest: Guest) -> None:
    calls = with_tools(guest, ISSUE, SEARCH, ANY)
    assert guest.ok("tools.create_issue('a', ['x'], class_=2.5, due_date='now')").result == "{'called': 'create_issue'}"
    guest.ok("tools.search_({'query': 1}); tools.search_(query=1); tools.anything(); tools.anything(a=1, **{'b c': 2})")
    assert calls == [
        ("create_issue", {"title": "a", "labels": ["x"], "class": 2.5, "due-date": "now"}),
        ("search", {"query": {"query": 1}}),
        ("search", {"query": 1}),
        ("anything", {}),
        ("anything", {"a": 1, "b c": 2}),
    ]
    assert guest.bridge.events.count("call") == 6  # the first asks for the list


def test_none_is_left_out_where_the_schema_has_no_null(guest: Guest) -> None:
    calls = with_tools(guest, ISSUE)
    guest.ok("tools.create_issue('a', labels=None, state=None, milestone=None)")
    assert calls == [("create_issue", {"title": "a", "milestone": None})]


def test_the_signature_and_the_documentation_come_from_the_schema(guest: Guest) -> None:
    with_tools(guest, ISSUE)
    text = guest.ok("tools.describe('create_issue')").stdout
    assert text.startswith(
        f"{SIGNATURE}\n\nCreates an issue.\nIt is open then.\n\nArguments:\n    labels: Words to find it by\n    title: One line\n"
    )
    assert f"\nArguments: {json.dumps(ISSUE['inputSchema'])}\n\nResult: {json.dumps(ISSUE['outputSchema'])}\n" in text
    assert guest.ok("tools.describe(tools.create_issue)").stdout == text
    shown = guest.ok("help(tools.create_issue)").stdout
    assert "title: str" in shown and "Words to find it by" in shown
    assert guest.ok("import inspect; 'create_issue' + str(inspect.signature(tools.create_issue))").result == repr(
        SIGNATURE
    )
    assert guest.ok("tools.create_issue is tools.create_issue").result == "True"


def test_search_finds_the_best_tools_first(guest: Guest) -> None:
    with_tools(guest, ANY, ISSUE, SEARCH)
    found = [
        {"name": "create_issue", "description": "Creates an issue."},
        {"name": "anything", "description": ANY["description"]},
    ]
    assert guest.ok("tools.search('Issues, issue!')").result == repr(found)
    assert guest.ok("[tool['name'] for tool in tools.search()]").result == "['anything', 'create_issue', 'search_']"
    assert guest.ok("tools.search(limit=1)").result == repr(found[1:])
    assert guest.ok("tools.search('nothing like that')").result == "[]"
    assert guest.ok("dir(tools)").result == "['anything', 'create_issue', 'describe', 'search', 'search_']"


def test_names_that_python_cannot_use_are_changed(guest: Guest) -> None:
    names = ["import", "a-b", "a.b", "__class__", "3d", "", "größe", "describe"]
    calls = with_tools(guest, *({"name": name, "inputSchema": {"type": "object"}} for name in names))
    used = ["import_", "a_b", "a_b_", "class__", "n3d", "n", "gr__e", "describe_"]
    assert guest.ok("[tool['name'] for tool in tools.search()]").result == repr(used)
    guest.ok("\n".join(f"tools.{name}()" for name in used))
    assert [name for name, _ in calls] == names
    assert guest.ok("tools.describe('a-b')").stdout.startswith("a_b(**_rest)\n")


def test_wrong_calls_say_how_it_is_called(guest: Guest) -> None:
    calls = with_tools(guest, ISSUE)
    cell = guest.run("tools.create_issue(['x'], nothing=1)")
    assert cell.error == f"TypeError: got an unexpected keyword argument 'nothing': {SIGNATURE}"
    assert "line 1, in <module>" in cell.traceback and "sandglass" not in cell.traceback
    assert guest.run("tools.create_issue()").error == f"TypeError: missing a required argument: 'title': {SIGNATURE}"
    error = "AttributeError: there is no tool 'make_issue'. Similar ones: create_issue"
    assert guest.run("tools.describe('make_issue')").error == error
    assert guest.run("tools.make_issue").error.startswith(error)  # Python may add a guess
    assert guest.run("tools.x").error == "AttributeError: there is no tool 'x'. tools.search(\"words\") finds tools"
    assert guest.run("tools.search(1)").error == "TypeError: tools.search() needs query to be str, not int"
    assert guest.run("tools.create_issue(object())").error == (
        "TypeError: a tool takes JSON values, and no object: pass a str, a number, a list or a dict"
    )
    assert guest.run("tools.create_issue(float('nan'))").error_type == "ValueError"
    assert calls == []


def test_arrays_dates_and_sets_cross_as_json(guest: Guest) -> None:
    calls = with_tools(guest, ANY)
    guest.ok(
        "import datetime, array\ntools.anything(d=datetime.date(2030, 1, 2), a=array.array('i', [1]), s={3}, t=(4,))"
    )
    assert calls == [("anything", {"d": "2030-01-02", "a": [1], "s": [3], "t": [4]})]


def test_a_failing_tool_raises(guest: Guest) -> None:
    with_tools(guest, ANY)
    answer = guest.bridge.answer
    guest.bridge.answer = lambda *args: answer(*args) if args[0] == "list" else Reply("anything: no such file")
    assert guest.run("tools.anything()").error == "HostCallError: anything: no such file"
    assert (
        guest.ok("try: tools.anything()\nexcept HostCallError as e: k = str(e)\nk").result == "'anything: no such file'"
    )


def test_tools_are_no_variable_and_come_back(guest: Guest) -> None:
    with_tools(guest, ANY)
    assert guest.ok("tools = 1\ntools").result == "1"
    assert guest.ok("repr(tools)[:6], '_tools' in globals()").result == "('<tools', False)"
    assert guest.listing() == [] and guest.bridge.calls == []
    with pytest.raises(ValueError, match="'tools' has the name of a built-in helper"):
        guest.runtime.configure({**CONFIG, "hostFunctions": ["tools", "_tools"]})
    guest.runtime.configure(CONFIG)
    assert guest.run("tools").error.startswith("NameError: name 'tools' is not defined")


_keys = st.sampled_from(
    [
        "type",
        "properties",
        "required",
        "enum",
        "anyOf",
        "items",
        "$ref",
        "#/$ref",
        "default",
        "const",
        "a",
        "string",
        "class",
        "1'\"\n)",
    ]
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=20,
)


_schemas = st.fixed_dictionaries(
    {"properties": st.dictionaries(_keys, _json, max_size=4) | _json},
    optional={"required": st.lists(_keys) | _json, "additionalProperties": _json, "type": _json},
)


@given(_schemas, st.text(max_size=20))
def test_every_schema_gives_a_function_whose_texts_are_only_texts(schema: dict[str, Any], text: str) -> None:
    """Nothing of a schema is run: each property is one parameter, whose name is an identifier."""
    asked: list[tuple[Any, ...]] = []

    def ask(*args: Any) -> Any:
        asked.append(args)
        return json.dumps([{"name": "f", "description": text, "inputSchema": schema, "outputSchema": schema}])

    function = Tools(ask).f
    properties = schema.get("properties")
    keys = list(properties) if isinstance(properties, dict) else []
    parameters = [p for p in function.__signature__.parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert len(parameters) == len(keys) and all(p.name.isidentifier() for p in parameters)
    function(**{p.name: 1 for p in parameters})
    assert asked[-1][:2] == ("call", "f") and json.loads(asked[-1][2]) == dict.fromkeys(keys, 1)


def test_a_state_by_value_has_the_tools_of_its_new_host(guest: Guest) -> None:
    with_tools(guest, ANY)
    guest.ok("t, f, g = tools, tools.anything, tools.search")
    with installed(guest.runtime):
        data, lost = guest.state.save()
    other = Guest()
    calls = with_tools(other, ANY)
    with installed(other.runtime):
        more = other.state.load(data)
    assert dict(lost) == {"f": "cannot pickle 'function' object: it is a part of the sandbox"} and more == []
    assert other.ok("t is tools, g()[0]['name']").result == "(True, 'anything')"
    other.ok("t.anything(a=1)")
    assert calls == [("anything", {"a": 1})]
