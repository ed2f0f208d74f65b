"""`SmolagentsExecutor`: an executor for smolagents whose code runs in a sandbox. Written for smolagents 1.26."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Unpack

import PIL.Image
from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor
from smolagents.utils import AgentError

from sandglass.client import CodeExecution, Opaque, Sandbox, SandboxOptions

_FINAL = "final_answer"
#: The host's tool of that name. In the sandbox, `final_answer` calls it and then ends the code.
_HOST_FINAL = "_final_answer"


class CodeError(AgentError, InterpreterError):
    """A failure of an agent's code, as a local executor raises it, and as a remote one does."""

    def __init__(self, message: str) -> None:
        Exception.__init__(self, message)
        self.message = message


class SmolagentsExecutor(PythonExecutor):
    """Runs the code of a `CodeAgent` in a sandbox.

        agent = CodeAgent(tools=[lookup], model=model, executor=SmolagentsExecutor(timeout=10_000))

    The options are those of `Sandbox`. Tools and managed agents run in this process, so that they keep their secrets.
    The code may import whatever the sandbox's Python has: `additional_authorized_imports` does not count.
    """

    def __init__(
        self, *, url: str | None = None, api_key: str | None = None, **options: Unpack[SandboxOptions]
    ) -> None:
        self.sandbox = Sandbox(url=url, api_key=api_key, **options)
        self._own = set(self.sandbox.tools)
        self._answers: list[Any] = []
        #: The output of the last code: an agent reads it here when the code has failed.
        self.state: dict[str, Any] = {"__name__": "__main__", "_print_outputs": ""}

    def send_tools(self, tools: Mapping[str, Callable[..., Any]]) -> None:
        """Lets Python call these tools, in place of the earlier ones."""
        given = {name: tool for name, tool in tools.items() if name != _FINAL}
        if _FINAL in tools:
            given[_HOST_FINAL] = self._taking(tools[_FINAL])
        for name in self.sandbox.tools.keys() - given.keys() - self._own:
            del self.sandbox.tools[name]
        self.sandbox.tools.update(given)

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Sets variables. Raises `SandboxError` for one that is no plain data."""
        for name, value in variables.items():
            self.sandbox[name] = value

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs code. Raises `CodeError` when the code fails."""
        if _HOST_FINAL in self.sandbox.tools:  # each time: code may have taken the name for a variable
            source = Path(__file__).with_name("final_answer.py").read_text(encoding="utf-8")
            self.sandbox.execute(f"{source}\n{_FINAL} = final_answer_of({_HOST_FINAL}, SUBMIT)")
        self._answers.clear()
        run = self.sandbox.execute(code_action)
        self.state["_print_outputs"] = logs = run.stdout + run.stderr
        if run.error is not None:
            raise CodeError(_explained(run))
        if run.is_final:
            output = self._answers[-1] if self._answers else run.final  # of `SUBMIT`, without the tool
            return CodeOutput(output=output, logs=logs, is_final_answer=True)
        # A value that cannot leave the sandbox is shown as text.
        output = run.result if run.value is None or isinstance(run.value, Opaque) else run.value
        return CodeOutput(output=output, logs=logs, is_final_answer=False)

    def cleanup(self) -> None:
        """Ends the sandbox."""
        self.sandbox.destroy()

    def __enter__(self) -> SmolagentsExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def _taking(self, tool: Callable[..., Any]) -> Callable[..., None]:
        """The tool `final_answer`, whose result stays in this process."""

        def take(*args: Any, **kwargs: Any) -> None:
            named = {name: _received(value) for name, value in kwargs.items()}
            self._answers.append(tool(*map(_received, args), **named))

        return take


def _received(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {"$png"} and isinstance(value["$png"], bytes):
        return PIL.Image.open(BytesIO(value["$png"]), formats=["PNG"])
    return value


def _explained(run: CodeExecution) -> str:
    lost = "" if run.state.status == "kept" else "\nAll variables, functions and imports are lost: define them again."
    return f"Code execution failed: {run.traceback or run.error}{lost}"
