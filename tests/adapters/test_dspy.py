"""`DspyInterpreter` in modules of dspy, and by itself."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Any

import dspy
import pytest
from dspy.primitives.code_interpreter import CodeExecutionError, CodeInterpreter, CodeInterpreterError, FinalOutput
from dspy.utils import DummyLM
from dspy.utils.callback import BaseCallback
from pydantic import BaseModel

from sandglass.adapters import DspyInterpreter


class SubModel:
    """A sub-model that answers in capitals."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> list[str]:
        self.prompts.append(prompt)
        return [prompt.upper()]


@pytest.fixture(scope="module")
def shared() -> Iterator[DspyInterpreter]:
    with DspyInterpreter() as interpreter:
        yield interpreter


def run(signature: str, codes: list[str], *, inputs: dict[str, Any], **options: Any) -> Any:
    """An RLM whose model writes these codes."""
    rlm = dspy.RLM(signature, max_iters=len(codes), interpreter_factory=DspyInterpreter, **options)
    lm = DummyLM([{"reasoning": "Next.", "code": f"```python\n{code}\n```"} for code in codes])
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        return rlm(**inputs)


def test_an_rlm_finds_its_answer() -> None:
    def price(name: str, year: int = 1987) -> dict[str, Any]:
        """Looks a price up."""
        return {"name": name, "year": year, "threads": threading.active_count()}

    sub_model = SubModel()
    codes = [
        "print(len(context), price('sand', 1990)['year'], price(name='sand')['year'])",
        "kept = llm_query_batched(['a', 'b']) + [llm_query('c')]\nprint(kept)\nkept[0].nothing",
        "try:\n    llm_query_batched(['d', 'e'])\nexcept Exception as error:\n    print(error)",
        "SUBMIT(answer=kept[0], count=len(kept))",
    ]
    found = run(
        "context, question -> answer: str, count: int",
        codes,
        inputs={"context": "x" * 3_000_000, "question": "What?"},
        tools=[price],
        sub_lm=sub_model,
        max_llm_calls=4,
    )
    assert (found.answer, found.count) == ("A", 3)
    outputs = [step["output"] for step in found.trajectory]
    assert outputs[0] == "3000000 1990 1987\n"
    assert (
        outputs[1].startswith("[Error] ") and "no attribute 'nothing'" in outputs[1] and "['A', 'B', 'C']" in outputs[1]
    )
    assert "LLM call limit exceeded: 3 + 2 > 4." in outputs[2]
    assert sorted(sub_model.prompts) == ["a", "b", "c"]


def test_sub_agents_run_on_the_host() -> None:
    code = "import dspy\nhelper = dspy.Predict('question -> reply')\nSUBMIT(helper(question='ping').reply)"
    rlm = dspy.RLM("query -> answer", max_iters=1, interpreter_factory=DspyInterpreter.factory(timeout=20_000))
    assert DspyInterpreter.execution_instructions in rlm.generate_action.signature.instructions
    lm = DummyLM([{"reasoning": "Ask.", "code": code}, {"reply": "pong"}])
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        assert rlm(query="q").answer == "pong"


def test_tools_see_the_context_of_their_caller(shared: DspyInterpreter) -> None:
    shared.tools = {"whose": lambda: dspy.settings.get("mine")}
    with dspy.context(mine="here"):
        assert shared.execute("whose()") == "here"
    shared.tools = {}
    with pytest.raises(CodeExecutionError, match="NameError: name 'whose' is not defined"):
        shared.execute("whose()")


def test_results_are_values_prints_or_the_final_output(shared: DspyInterpreter) -> None:
    assert isinstance(shared, CodeInterpreter)
    assert shared.execute("print('a')\n(1, {'b': 2})") == [1, {"b": 2}]
    assert shared.execute("print('a'); x = 1") == "a\n"
    assert shared("[object, x]") == ["<class 'object'>", 1]
    assert shared.execute("lambda: 1").startswith("<function <lambda>")
    assert len(shared.execute("'y' * 3_000_000")) > 1000
    assert shared.execute("SUBMIT([1])") == FinalOutput({"output": [1]})
    shared.output_fields = [{"name": "a", "type": "int"}, {"name": "b"}]
    assert shared.execute("SUBMIT(1, b=x)") == FinalOutput({"a": 1, "b": 1})
    with pytest.raises(CodeExecutionError, match="TypeError: SUBMIT"):
        shared.execute("SUBMIT(1)")
    shared.output_fields = None


def test_values_come_in_as_plain_data(shared: DspyInterpreter) -> None:
    class Hit(BaseModel):
        title: str

    class Color(Enum):
        RED = "red"

    @dataclasses.dataclass
    class Box:
        hits: list[Hit]
        colors: set[str]

    value = {
        "box": Box([Hit(title="t")], {"b", "a"}),
        "color": Color.RED,
        "big": 2**70,
        "raw": b"\xff",
        "of": float("inf"),
    }
    shared.tools = {"get": lambda: Hit(title="from a tool")}
    code = "[v['box'], v['color'], v['big'] == 2**70, v['raw'] == b'\\xff', v['of'], get()]"
    box = {"hits": [{"title": "t"}], "colors": ["a", "b"]}
    assert shared.execute(code, {"v": value}) == [box, "red", True, True, float("inf"), {"title": "from a tool"}]
    with pytest.raises(CodeInterpreterError, match="Invalid variable name: 'class'"):
        shared.execute("1", {"class": 1})
    with pytest.raises(CodeInterpreterError, match="Unsupported value type: object"):
        shared.execute("1", {"v": object()})


def test_a_large_input_is_there_again_at_each_step(shared: DspyInterpreter) -> None:
    large = "x" * 200_000
    assert shared.execute("book = book[1:]; len(book)", {"book": large}) == 199_999
    assert shared.execute("len(book)", {"book": large}) == 200_000
    assert shared.execute("len(book)", {"book": large + "y"}) == 200_001
    assert shared.execute("book", {"book": "short"}) == "short"


def test_faults_of_the_code_leave_the_session_as_it_is(shared: DspyInterpreter) -> None:
    async def broken(x: int) -> str:
        raise ValueError(f"bad {x}")

    shared.tools = {"broken": broken, "again": lambda: shared.execute("1")}
    shared.execute("kept = 1")
    with pytest.raises(SyntaxError, match="Invalid Python syntax"):
        shared.execute("+++")
    with pytest.raises(
        CodeExecutionError, match="(?s)ZeroDivisionError: division by zero.*Output before the error:\nseen"
    ):
        shared.execute("print('seen'); 1 / 0")
    for stop in ("raise SystemExit(1)", "raise KeyboardInterrupt", "class Mine(BaseException): pass\nraise Mine"):
        with pytest.raises(CodeExecutionError):
            shared.execute(stop)
    with pytest.raises(CodeExecutionError, match="ValueError: bad 7"):
        shared.execute("broken(x=7)")
    with pytest.raises(CodeExecutionError, match="TypeError: too many positional arguments"):
        shared.execute("broken(1, 2)")
    with pytest.raises(CodeExecutionError, match="would wait for the code that waits"):
        shared.execute("again()")
    assert shared.execute("kept") == 1


def test_a_lost_state_ends_the_session() -> None:
    with DspyInterpreter() as interpreter:
        with pytest.raises(CodeInterpreterError, match="has lost its state") as raised:
            interpreter.execute("import os; os._exit(3)")
        assert not isinstance(raised.value, CodeExecutionError)
        for use in (interpreter.start, lambda: interpreter.execute("1")):
            with pytest.raises(CodeInterpreterError, match="the session has ended"):
                use()


def test_callbacks_hear_of_starts_executions_and_tools() -> None:
    heard: list[str] = []

    class Listener(BaseCallback):
        def on_interpreter_startup_start(self, **_: Any) -> None:
            heard.append("start")

        def on_interpreter_execute_start(self, **_: Any) -> None:
            heard.append("execute")

        def on_interpreter_execute_end(self, **_: Any) -> None:
            heard.append("executed")

        def on_interpreter_shutdown_end(self, **_: Any) -> None:
            heard.append("shutdown")

    with DspyInterpreter(callbacks=[Listener()]) as interpreter:
        interpreter.execute("1")
    assert heard == ["execute", "start", "executed", "shutdown"]
