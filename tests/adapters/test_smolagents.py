"""`SmolagentsExecutor`: the code of a `CodeAgent` in a sandbox."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import PIL.Image
import pytest
from smolagents import ChatMessage, CodeAgent, FinalAnswerTool, Model, PythonExecutor, tool
from smolagents.local_python_executor import CodeOutput, InterpreterError
from smolagents.utils import AgentError

from sandglass.adapters import SmolagentsExecutor


class Script(Model):
    """A model with scripted replies. Keeps the messages that it gets."""

    def __init__(self, *codes: str) -> None:
        super().__init__(model_id="script")
        self.replies = [f"Thought: next.\n<code>\n{code}\n</code>" for code in codes]
        self.seen: list[str] = []

    def generate(self, messages: list[Any], **_: Any) -> ChatMessage:
        self.seen.append(str(messages))
        return ChatMessage(role="assistant", content=self.replies.pop(0))


@tool
def lookup(name: str, year: int = 1987) -> dict:
    """Looks a price up.

    Args:
        name: The good's name.
        year: The year.
    """
    if name == "nothing":
        raise KeyError(name)
    return {"name": name, "year": year}


@pytest.fixture(scope="module")
def shared() -> Iterator[SmolagentsExecutor]:
    with SmolagentsExecutor() as executor:
        yield executor


def test_an_agent_finds_its_answer() -> None:
    model = Script(
        "found = lookup('sand', year=1990)\nprint(found['year'], goods)\nimport os\nprint(os.getcwd())",
        "print('before'); lookup('nothing')",
        "final_answer({'year': found['year'], 'goods': len(goods)})\nprint('never')",
    )
    with SmolagentsExecutor() as executor, CodeAgent(tools=[lookup], model=model, executor=executor) as agent:
        answer = agent.run("What year?", additional_args={"goods": ["sand", "glass"]})
        assert answer == {"year": 1990, "goods": 2}
    assert "1990 ['sand', 'glass']" in model.seen[1] and "/workspace" in model.seen[1]
    assert "before" in model.seen[2] and "HostCallError" in model.seen[2] and "nothing" in model.seen[2]


def test_an_agent_manages_an_agent() -> None:
    inner_model = Script("final_answer(task.upper() if 'task' in globals() else 'inner')")
    with SmolagentsExecutor() as inner_executor, SmolagentsExecutor() as executor:
        inner = CodeAgent(
            tools=[], model=inner_model, executor=inner_executor, name="helper", description="Helps.", max_steps=2
        )
        model = Script("report = helper('do it')\nfinal_answer('inner' in report)")
        assert CodeAgent(tools=[], model=model, executor=executor, managed_agents=[inner]).run("Ask.") is True


def test_the_output_is_the_last_value_and_the_prints(shared: SmolagentsExecutor) -> None:
    assert isinstance(shared, PythonExecutor)
    done = shared("x = 2\nprint('seen')\nx + 1")
    assert (done.output, done.logs, done.is_final_answer) == (3, "seen\n", False)
    assert shared("x = 5").output is None
    assert shared("object").output == "<class 'object'>"
    shared.send_variables({"rows": [{"a": 1}]})
    assert shared("rows[0]['a'] + x").output == 6


def test_a_failure_is_what_local_and_remote_executors_raise(shared: SmolagentsExecutor) -> None:
    with pytest.raises(AgentError, match="SyntaxError"):
        shared("print('")
    with pytest.raises(
        InterpreterError, match="(?s)line 2, in <module>.*ZeroDivisionError: division by zero"
    ) as raised:
        shared("print('before')\n1 / 0")
    assert raised.value.message and shared.state["_print_outputs"] == "before\n"
    with pytest.raises(AgentError, match="(?s)All variables, functions and imports are lost"):
        shared("import os; os._exit(3)")
    assert shared("1 + 1").output == 2


def test_a_final_answer_is_what_the_tool_makes_of_it(shared: SmolagentsExecutor) -> None:
    class Both(FinalAnswerTool):
        inputs = {name: {"type": "string", "description": name} for name in ("first", "second")}

        def forward(self, first: str, second: str) -> str:
            if not second:
                raise ValueError("second is missing")
            return f"{first} and {second}"

    shared.send_tools({"final_answer": Both()})
    done = shared("final_answer = 1")
    assert not done.is_final_answer
    done = shared("try:\n    final_answer('a', second='b')\nexcept Exception:\n    print('caught')")
    assert (done.output, done.logs, done.is_final_answer) == ("a and b", "", True)
    with pytest.raises(AgentError, match="second is missing"):
        shared("final_answer('a', '')")
    assert shared("SUBMIT(5)") == CodeOutput(output=5, logs="", is_final_answer=True)
    shared.send_tools({})
    with pytest.raises(AgentError, match="_final_answer"):
        shared("_final_answer(1)")


def test_a_final_answer_may_be_an_image() -> None:
    with SmolagentsExecutor(backend="subprocess", python=sys.executable) as executor:  # a Python that has Pillow
        executor.send_tools({"final_answer": FinalAnswerTool()})
        done = executor("import PIL.Image\nfinal_answer(PIL.Image.new('RGB', (3, 2), 'red'))")
    assert isinstance(done.output, PIL.Image.Image)
    assert done.output.size == (3, 2) and done.output.getpixel((0, 0)) == (255, 0, 0)
