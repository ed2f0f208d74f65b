"""`tools`: functions of the host that say how they are called, such as the tools of an agent.

A host that answers the function `_tools` gives Python the object `tools`. `_tools("list")` returns the tools as JSON
text: objects with `name`, `description`, `inputSchema` and maybe `outputSchema`, as in MCP. `_tools("call", name,
arguments)` gets the arguments as the JSON text of an object, and returns the result. So every argument crosses under
the name that the schema gives it, however it was passed.
"""

# Decisions: docs/internals/values-and-calls.md.

from __future__ import annotations

import re
from inspect import Parameter, Signature
from json import JSONEncoder
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

from sandglass.runtime.pristine import BUILTINS as __builtins__  # noqa: F401  (see pristine.py)
from sandglass.runtime.pristine import from_json
from sandglass.runtime.reading import need
from sandglass.runtime.values import type_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container

#: The host function that answers for all tools.
HOST_FUNCTION = "_tools"
_LINE_CHARS = 200
_MOST_LITERALS = 20
_LITERAL_CHARS = 100
_MOST_LEVELS = 4
_words_of = re.compile(r"[^\W_]+").findall
_replace_others = re.compile(r"\W", re.ASCII).sub
_TYPES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}


class Tools:
    """The host's tools. Each is a function: `tools.name(...)`.

    `tools.search("words")` finds tools. `tools.describe("name")` prints how a tool is called.
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._listed: dict[str, dict[str, Any]] | None = None
        self._functions: dict[str, Callable[..., Any]] = {}

    def search(self, query: str = "", limit: int = 20) -> list[dict[str, str]]:
        """Finds tools by words of their names and descriptions, the best ones first. Without words, lists all.

        Returns at most `limit` dicts with `name` and `description`, which is the description's first line.
        """
        need("tools.search", "query", query, str)
        need("tools.search", "limit", limit, int)
        return [
            {"name": tool["name"], "description": _first_line(tool)} for tool in self._found(query)[: max(limit, 0)]
        ]

    def describe(self, name: str) -> None:
        """Prints a tool's signature, its documentation and its JSON Schemas."""
        tool = self._tool(getattr(name, "__name__", name))
        function = self._function(tool)
        print(f"{tool['name']}{function.__signature__}", function.__doc__, sep="\n\n")  # type: ignore[attr-defined]
        for title, key in (("Arguments", "inputSchema"), ("Result", "outputSchema")):
            if key in tool:
                print(f"\n{title}: {_to_json(tool[key])}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # whoever looks for a hook must not call the host
            raise AttributeError(f"{type_name(self)!r} object has no attribute {name!r}")
        return self._function(self._tool(name))

    def __dir__(self) -> list[str]:
        return ["describe", "search", *(self._listed or ())]

    def __repr__(self) -> str:
        return '<tools: tools.search("words") finds them, tools.describe("name") prints how one is called>'

    def _all(self) -> dict[str, dict[str, Any]]:
        """Returns the tools by their names in Python. `called` is a tool's name on the host."""
        if self._listed is None:
            listed: dict[str, dict[str, Any]] = {}
            for tool in from_json(self._ask("list")):
                name = _python_name(tool["name"], {*listed, "search", "describe"})
                listed[name] = {**tool, "name": name, "called": tool["name"]}
            self._listed = listed
        return self._listed

    def _found(self, query: str) -> list[dict[str, Any]]:
        words = _words_of(query.lower())
        tools = list(self._all().values())
        if not words:
            return tools
        scores = [(sum(_score(word, tool) for word in words), tool) for tool in tools]
        return [tool for score, tool in sorted(scores, key=lambda scored: -scored[0]) if score]

    def _tool(self, name: str) -> dict[str, Any]:
        need("tools.describe", "name", name, str)
        tool = self._all().get(name) or next((tool for tool in self._all().values() if tool["called"] == name), None)
        if tool is None:
            near = ", ".join(tool["name"] for tool in self._found(name)[:5])
            help_ = f"Similar ones: {near}" if near else 'tools.search("words") finds tools'
            raise AttributeError(f"there is no tool {name!r}. {help_}")
        return tool

    def _function(self, tool: dict[str, Any]) -> Callable[..., Any]:
        """Returns the function of a tool, always the same one."""
        name = tool["name"]
        if name not in self._functions:
            self._functions[name] = _function(tool, self._ask)
        return self._functions[name]


def _score(word: str, tool: dict[str, Any]) -> int:
    name = tool["name"].lower()
    return 4 * (word in name.split("_")) + 2 * (word in name) + (word in tool.get("description", "").lower())


def _first_line(tool: dict[str, Any]) -> str:
    lines = tool.get("description", "").strip().splitlines()
    return lines[0][:_LINE_CHARS] if lines else ""


def _function(tool: dict[str, Any], ask: Callable[..., Any]) -> Callable[..., Any]:
    name = tool["name"]
    signature, keys, omitted = _signature(tool)

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{error}: {name}{signature}") from None
        arguments: dict[str, Any] = dict(bound.pop(_REST, {}))
        for parameter, value in bound.items():
            if value is not None or parameter not in omitted:
                arguments[keys[parameter]] = value
        return ask("call", tool["called"], _to_json(arguments))

    function.__name__ = function.__qualname__ = name
    function.__module__ = "__main__"
    function.__doc__ = _documentation(tool, keys)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


#: The parameter of arguments that the schema has no name for. No other parameter begins with an underscore.
_REST = "_rest"


def _signature(tool: dict[str, Any]) -> tuple[Signature, dict[str, str], set[str]]:
    """Returns a signature, the properties of its parameters, and the parameters that are left out when they are None.

    Python wants parameters without a default first.
    """
    schema = tool["inputSchema"]
    properties = _object(schema, "properties")
    required = schema.get("required")
    required = required if type(required) is list else []
    keys: dict[str, str] = {}
    omitted: set[str] = set()
    needed: list[Parameter] = []
    optional: list[Parameter] = []
    for key, about in properties.items():
        name = _python_name(key, keys)
        keys[name] = key
        annotation = _annotation(about, schema)
        if key in required:
            needed.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation))
            continue
        default = about.get("default") if type(about) is dict else None
        if "None" not in annotation.split(" | "):
            omitted.add(name)
            annotation = annotation if default is not None else _Text(f"{annotation} | None")
        optional.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation))
    if schema.get("additionalProperties", "properties" not in schema):
        optional.append(Parameter(_REST, Parameter.VAR_KEYWORD))
    returned = _annotation(tool["outputSchema"], tool["outputSchema"]) if "outputSchema" in tool else Signature.empty
    return Signature([*needed, *optional], return_annotation=returned), keys, omitted


def _python_name(name: str, taken: Container[str]) -> str:
    """Returns a name like this one, that Python code can use and that is not taken."""
    name = _replace_others("_", name).lstrip("_")
    if not name or name[0].isdecimal():
        name = f"n{name}"
    while iskeyword(name) or name in taken:
        name += "_"
    return name


class _Text(str):
    """An annotation that is shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str.__str__(self)


def _annotation(schema: Any, root: Any, level: int = 0) -> _Text:
    """Returns a JSON Schema as a type, as far as Python can say it."""
    if type(schema) is not dict or level > _MOST_LEVELS:
        return _Text("Any")
    if "$ref" in schema:
        return _annotation(_referred(schema["$ref"], root), root, level + 1)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if type(values) is list and values:
        return _literals(values)
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if type(kinds) is list:
        return _union([_annotation(kind, root, level + 1) for kind in kinds])
    kind = schema.get("type")
    if type(kind) is list:
        return _union([_annotation({**schema, "type": one}, root, level + 1) for one in kind])
    if kind == "array":
        return _Text(f"list[{_annotation(schema.get('items'), root, level + 1)}]")
    return _Text("dict[str, Any]" if kind == "object" else _TYPES.get(str(kind), "Any"))


def _union(kinds: list[_Text]) -> _Text:
    return _Text("Any" if "Any" in kinds or not kinds else " | ".join(dict.fromkeys(kinds)))


def _literals(values: list[Any]) -> _Text:
    if len(values) > _MOST_LITERALS or any(type(value) is str and len(value) > _LITERAL_CHARS for value in values):
        return _union([_Text(type_name(value)) for value in values if type(value) in (str, int, bool)])
    others = [value for value in values if value is not None]
    if any(type(value) not in (str, int, bool) for value in others):
        return _Text("Any")
    kinds = [_Text(f"Literal[{', '.join(map(repr, others))}]")] if others else []
    return _union(kinds + [_Text("None")] * (None in values))


def _referred(reference: Any, root: Any) -> Any:
    """Returns the part of a schema that a reference such as `#/$defs/name` leads to."""
    found = root
    for part in str(reference).removeprefix("#/").split("/"):
        found = _object(found, part.replace("~1", "/").replace("~0", "~"))
    return found


def _object(schema: Any, key: str) -> dict[str, Any]:
    found = schema.get(key) if type(schema) is dict else None
    return found if type(found) is dict else {}


def _documentation(tool: dict[str, Any], keys: dict[str, str]) -> str:
    properties = _object(tool["inputSchema"], "properties")
    told = [(name, _object(properties, key).get("description")) for name, key in keys.items()]
    lines = [f"    {name}: {' '.join(str(text).split())}" for name, text in told if text]
    text = tool.get("description", "").strip() or "A tool of the host."
    return "\n".join([text, "", "Arguments:", *lines]) if lines else text


def _plain(value: Any) -> Any:
    """Returns a JSON value for an array, a number of numpy, a date or a set."""
    for name in ("tolist", "isoformat"):
        convert = getattr(value, name, None)
        if convert is not None:
            return convert()
    if isinstance(value, (set, frozenset)):
        return list(value)
    raise TypeError(f"a tool takes JSON values, and no {type_name(value)}: pass a str, a number, a list or a dict")


_to_json = JSONEncoder(default=_plain, allow_nan=False).encode
