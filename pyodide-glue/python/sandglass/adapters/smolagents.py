"""`SmolagentsExecutor`: an executor for smolagents whose code runs in a sandbox. Written for smolagents 1.26."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from smolagents.local_python_executor import CodeOutput, InterpreterError, PythonExecutor

from sandglass.client import CodeExecution, Opaque, Sandbox, SandboxOptions

_FINAL = "final_answer"
#: Makes `final_answer` end the code, whatever the tool of that name does. The tool itself runs in this process.
_PRELUDE = f"""def {_FINAL}(*args, **kwargs):
    SUBMIT(_{_FINAL}(*args, **kwargs))
"""


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
        #: The output of the last code: an agent reads it here when the code has failed.
        self.state: dict[str, Any] = {"_print_outputs": ""}

    def send_tools(self, tools: Mapping[str, Callable[..., Any]]) -> None:
        """Lets Python call these tools, in place of the earlier ones."""
        given = {f"_{name}" if name == _FINAL else name: tool for name, tool in tools.items()}
        for name in self.sandbox.tools.keys() - given.keys() - self._own:
            del self.sandbox.tools[name]
        self.sandbox.tools.update(given)

    def send_variables(self, variables: Mapping[str, Any]) -> None:
        """Sets variables. Raises `SandboxError` for one that is no plain data."""
        for name, value in variables.items():
            self.sandbox[name] = value

    def __call__(self, code_action: str) -> CodeOutput:
        """Runs code. Raises `InterpreterError` when the code fails."""
        if f"_{_FINAL}" in self.sandbox.tools:
            self.sandbox.execute(_PRELUDE)
        run = self.sandbox.execute(code_action)
        self.state["_print_outputs"] = logs = run.stdout + run.stderr
        if run.error is not None:
            raise InterpreterError(_explained(run))
        output = run.final if run.is_final else run.value
        if not run.is_final and output is None or isinstance(output, Opaque):
            output = output.repr if isinstance(output, Opaque) else run.result
        return CodeOutput(output=output, logs=logs, is_final_answer=run.is_final)

    def cleanup(self) -> None:
        """Ends the sandbox."""
        self.sandbox.destroy()

    def __enter__(self) -> SmolagentsExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def _explained(run: CodeExecution) -> str:
    lost = "" if run.state.status == "kept" else "\nAll variables, functions and imports are lost: define them again."
    return f"Code execution failed: {run.traceback or run.error}{lost}"
