"""`DspyInterpreter`: an interpreter for dspy whose code runs in a sandbox. Written for dspy 3.3 and 3.4."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from inspect import Parameter, isawaitable, signature
from keyword import iskeyword
from typing import Any

from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreterError, FinalOutput
from dspy.utils.callback import with_callbacks
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from sandglass.client import CodeExecution, Opaque, Sandbox, SandboxError

#: The profile answers `llm_query` itself, and asks the tool of that name.
_QUERY = "llm_query"
#: Names that a host function cannot have. Python code finds such a tool by its own name all the same.
_PRIVATE = "__"
#: Longer texts are sent once, for `dspy.RLM` gives its inputs again at each step.
_LARGE = 1 << 16


class DspyInterpreter:
    """Runs the code of `dspy.RLM`, and of other modules of dspy, in a sandbox.

        dspy.configure(interpreter_factory=DspyInterpreter)
        rlm = dspy.RLM("context, question -> answer", interpreter_factory=DspyInterpreter.factory(timeout=10_000))

        with DspyInterpreter(tools={"lookup": lookup}) as interpreter:
            interpreter.execute("print(lookup(name='sand'))")

    The options are those of `Sandbox`. `tools` and `output_fields` may be changed between executions. Tools run in this
    process, in the context variables of the caller of `execute`.
    """

    execution_instructions = (
        "Python runs in an isolated sandbox without network access. State persists across executions: variables, "
        "imports and functions. Python's standard libraries are available. Files in the working directory persist, too."
    )

    def __init__(
        self,
        tools: Mapping[str, Callable[..., Any]] | None = None,
        output_fields: Sequence[Mapping[str, Any]] | None = None,
        *,
        callbacks: Sequence[Any] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        **options: Any,
    ) -> None:
        self.tools: dict[str, Callable[..., Any]] = dict(tools or {})
        self.output_fields = output_fields
        self.callbacks = list(callbacks or [])
        self._make = partial(Sandbox, url=url, api_key=api_key, **{"profile": "dspy", **options})
        self._sandbox: Sandbox | None = None
        self._sent: dict[str, Any] = {}
        self._has_ended = False

    @classmethod
    def factory(cls, **options: Any) -> Callable[[], DspyInterpreter]:
        """Makes interpreters with these options, for `interpreter_factory`."""
        factory = partial(cls, **options)
        factory.execution_instructions = cls.execution_instructions  # type: ignore[attr-defined]
        return factory

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox itself, for its files and variables. Starts it if need be."""
        if self._has_ended:
            raise CodeInterpreterError("the session has ended: make another DspyInterpreter")
        if self._sandbox is None:
            try:
                self._sandbox = self._make(on_llm_query=self._ask)
            except SandboxError as error:
                raise CodeInterpreterError(f"the sandbox did not start: {error}") from error
        return self._sandbox

    @with_callbacks
    def start(self) -> None:
        """Starts Python now. Otherwise the first execution does."""
        _checked(self.sandbox.start)

    @with_callbacks
    def execute(self, code: str, variables: Mapping[str, Any] | None = None) -> Any:
        """Runs code, and returns the last expression's value, the output, or a `FinalOutput` after `SUBMIT`.

        Raises SyntaxError and `CodeExecutionError` for faults of the code, and `CodeInterpreterError` when the sandbox
        cannot go on.
        """
        if self._sandbox is None:
            self.start()
        sandbox = self.sandbox
        renamed = _checked(self._configure, sandbox)
        for name, value in (variables or {}).items():
            if not name.isidentifier() or iskeyword(name):
                raise CodeInterpreterError(f"Invalid variable name: {name!r}")
            target = name
            if isinstance(value, (str, bytes)) and len(value) > _LARGE:
                renamed[name] = target = f"_dspy_input_{name}"
            if target == name or self._sent.get(name) is not value:
                _checked(sandbox.__setitem__, target, _plain(value))
                self._sent[name] = value if target != name else None
        if renamed:
            run = _checked(sandbox.execute, "\n".join(f"{name} = {target}" for name, target in renamed.items()))
            if run.error is not None:  # code has deleted one
                self._sent.clear()
                raise CodeInterpreterError(f"the inputs could not be set, try again: {run.error}")
        return self._read(_checked(sandbox.execute, code))

    def __call__(self, code: str, variables: Mapping[str, Any] | None = None) -> Any:
        return self.execute(code, variables)

    @with_callbacks
    def shutdown(self) -> None:
        """Ends the sandbox. Doing it twice is no error."""
        self._has_ended = True
        if self._sandbox is not None:
            self._sandbox.destroy()

    @with_callbacks
    def invoke_tool(self, tool_name: str, kwargs: dict[str, Any]) -> Any:
        """Calls a tool as the sandbox does."""
        if tool_name not in self.tools:
            raise CodeInterpreterError(f"Unknown tool: {tool_name}")
        return self.tools[tool_name](**kwargs)

    def __enter__(self) -> DspyInterpreter:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _configure(self, sandbox: Sandbox) -> dict[str, str]:
        """Gives the sandbox the current tools and fields. Returns the names under which it has private ones."""
        wanted = {_public(name) if name.startswith(_PRIVATE) else name: name for name in self.tools if name != _QUERY}
        for name in sandbox.tools.keys() - wanted.keys():
            del sandbox.tools[name]
        added = wanted.keys() - sandbox.tools.keys()
        for name in added:
            sandbox.tools[name] = partial(self._call, wanted[name])
        outputs = [str(field["name"]) for field in self.output_fields or [{"name": "output"}]]
        if outputs != sandbox.output_fields:
            sandbox.output_fields = outputs
        return {wanted[name]: name for name in added if wanted[name] != name}

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a tool by the names of its arguments, as tools of dspy are called."""
        try:
            value = self.invoke_tool(name, _by_name(self.tools[name], args, kwargs) if args else kwargs)
            return _awaited(value) if isawaitable(value) else _result(value)
        except Exception as error:
            raise _described(error) from error

    def _ask(self, prompt: str, model: str | None = None) -> Any:
        if _QUERY not in self.tools:
            raise CodeInterpreterError("this interpreter has no tool llm_query")
        return self._call(_QUERY, prompt=prompt)

    def _read(self, run: CodeExecution) -> Any:
        if run.state.status == "lost":
            self.shutdown()
            raise CodeInterpreterError(f"the sandbox has lost its state: {run.error}")
        if run.error_type == "SyntaxError":
            raise SyntaxError(f"Invalid Python syntax. message: {run.error}")
        if run.error is not None:
            printed = f"\nOutput before the error:\n{run.stdout}" if run.stdout else ""
            raise CodeExecutionError(f"{run.error}{printed}")
        if run.is_final:
            return FinalOutput(_readable(run.final))
        if run.result is None:
            return run.stdout
        # A value that is too large to cross is shown as text.
        return run.result if run.value is None or isinstance(run.value, Opaque) else _readable(run.value)


def _public(name: str) -> str:
    return f"_dspy_tool_{name.strip('_')}"


def _checked(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except SandboxError as error:
        raise CodeInterpreterError(str(error)) from error


def _by_name(tool: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    described = signature(tool)
    named = dict(described.bind_partial(*args, **kwargs).arguments)
    for name, parameter in described.parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            named.update(named.pop(name, {}))
        elif parameter.kind is Parameter.VAR_POSITIONAL and name in named:
            raise TypeError(f"the arguments of {getattr(tool, '__name__', 'this tool')}() need their names")
    return named


async def _awaited(value: Any) -> Any:
    try:
        return _result(await value)
    except Exception as error:
        raise _described(error) from error


def _described(error: Exception) -> CodeInterpreterError:
    """An error of a tool, for Python in the sandbox, which sees the text only."""
    return CodeInterpreterError(f"{type(error).__name__}: {error}")


def _result(value: Any) -> Any:
    """The value of a tool as plain data, and as text where that is not possible."""
    try:
        return _plain(value)
    except CodeInterpreterError:
        if isinstance(value, BaseModel):
            raise
        return str(value)


def _plain(value: Any) -> Any:
    """The value as plain data, as it would be in JSON. Models of pydantic, dataclasses and the like become dicts."""
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if isinstance(value, BaseModel):
        try:
            return _plain(value.model_dump(mode="json"))
        except PydanticSerializationError as error:
            raise CodeInterpreterError(f"Unable to serialize {type(value).__name__} as JSON: {error}") from error
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        items = [_plain(item) for item in value]
        with suppress(TypeError):
            items.sort()
        return items
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError:
        raise CodeInterpreterError(f"Unsupported value type: {type(value).__name__}") from None


def _readable(value: Any) -> Any:
    """A value of the sandbox, with texts in place of those that cannot leave it."""
    if isinstance(value, Opaque):
        return value.repr
    if isinstance(value, dict):
        return {key: _readable(item) for key, item in value.items()}
    return [_readable(item) for item in value] if isinstance(value, list) else value
