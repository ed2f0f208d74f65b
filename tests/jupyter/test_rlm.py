"""`JupyterREPL` as an environment of the package `rlms`, in that package's loop. The models are scripts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import rlm.core.rlm as core
import rlm.environments as environments
from rlm import RLM
from rlm.clients.base_lm import BaseLM
from rlm.core.types import ModelUsageSummary, UsageSummary
from rlm.environments import SupportsCustomTools, SupportsPersistence
from rlm.logger import RLMLogger

from sandglass import JupyterREPL
from sandglass.jupyter import register

USAGE = ModelUsageSummary(total_calls=1, total_input_tokens=1, total_output_tokens=1)


class Script(BaseLM):
    """A client of a model with scripted replies: the next item of a list, or a function's result."""

    def __init__(self, replies: Any) -> None:
        super().__init__(model_name="script")
        self.replies = replies
        self.prompts: list[Any] = []

    def completion(self, prompt: Any) -> str:
        self.prompts.append(prompt)
        return self.replies(prompt) if callable(self.replies) else self.replies.pop(0)

    async def acompletion(self, prompt: Any) -> str:
        return self.completion(prompt)

    def get_usage_summary(self) -> UsageSummary:
        return UsageSummary(model_usage_summaries={"script": USAGE})

    def get_last_usage(self) -> ModelUsageSummary:
        return USAGE


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (core, environments):  # monkeypatch then restores it after the test
        monkeypatch.setattr(module, "get_environment", module.get_environment)
    register()
    register()
    yield


def block(code: str) -> str:
    return f"```repl\n{code}\n```"


def play(monkeypatch: pytest.MonkeyPatch, root: list[str], **options: Any) -> tuple[RLM, Script]:
    """An RLM with a script as its root model, and with sub-models that answer in capitals."""
    answers = iter(root)
    client = Script(lambda prompt: prompt.upper() if isinstance(prompt, str) else next(answers))
    monkeypatch.setattr(core, "get_client", lambda backend, kwargs: client)
    return RLM(backend_kwargs={"model_name": "script"}, **options), client


def test_it_has_what_the_protocols_ask_for() -> None:
    repl = JupyterREPL()
    assert isinstance(repl, SupportsPersistence) and isinstance(repl, SupportsCustomTools)
    for name in environments.BaseEnv.__abstractmethods__ | {"cleanup"}:
        assert callable(getattr(repl, name))


def test_an_rlm_finds_its_answer(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    root = [
        block("print(context[:5]); part = llm_query('first'); print(part, double(4), limit)") + "\n" + block("1 / 0"),
        block("more = llm_query_batched(['a', 'b'])\nanswer['content'] = [part, *more]\nanswer['ready'] = True"),
    ]
    logger = RLMLogger()
    tools = {"double": {"tool": lambda x: 2 * x, "description": "doubles"}, "limit": 7}
    rlm, client = play(monkeypatch, root, environment="jupyter", custom_tools=tools, logger=logger)
    done = rlm.completion("hello world")
    assert done.response == "['FIRST', 'A', 'B']"
    second = next(prompt for prompt in reversed(client.prompts) if isinstance(prompt, list))
    feedback = "\n".join(message["content"] for message in second)
    assert "hello\nFIRST 8 7" in feedback and "ZeroDivisionError: division by zero" in feedback and "'part'" in feedback
    blocks = [b for i in done.metadata["iterations"] for b in i["code_blocks"]]
    assert [len(b["result"]["rlm_calls"]) for b in blocks] == [1, 0, 2]


def test_records_of_a_batch_have_the_order_of_its_prompts() -> None:
    finished = {name: threading.Event() for name in "abc"}
    last = {"a": "b", "b": "c"}

    def ask(prompt: str, model: str | None = None) -> object:
        if prompt in last:
            assert finished[last[prompt]].wait(60)
        completion = SimpleNamespace(response=prompt.upper(), to_dict=dict)
        finished[prompt].set()
        return completion

    repl = JupyterREPL(subcall_fn=ask, max_concurrent_subcalls=3)
    result = repl.execute_code("print(rlm_query_batched(['a', 'b', 'c']), rlm_query('c'))")
    assert result.stdout == "['A', 'B', 'C'] C\n"
    assert [call.response for call in result.rlm_calls] == ["A", "B", "C", "C"]


@pytest.mark.parametrize("answer", [None, "text", SimpleNamespace(response=None), SimpleNamespace(response=b"x")])
def test_what_is_no_completion_is_not_recorded(answer: object) -> None:
    result = JupyterREPL(subcall_fn=lambda prompt, model: answer).execute_code("print(rlm_query('x'))")
    assert result.stdout.startswith("Error: RLM query failed - ") and "was expected" in result.stdout
    assert result.rlm_calls == []


def test_several_turns_of_an_rlm(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = "\nanswer['content'] = found; answer['ready'] = True"
    root = [
        block("found = context" + finish),
        block("found = [context_0, context_1, session_context_1, context_history, found]" + finish),
        block("found = [len(session_history), history is history_0, completion_context]" + finish),
    ]
    options = {"environment": "ipython", "environment_kwargs": {"kernel_mode": "jupyter"}}
    rlm, _ = play(monkeypatch, root, persistent=True, **options)
    with rlm:
        assert rlm.completion("one").response == "one"
        repl = rlm._persistent_env
        assert isinstance(repl, JupyterREPL)
        assert rlm.completion("two").response == str(["one", "two", "two", ["one", "two"], "one"])
        assert rlm.completion("three").response == str([2, True, "three"])
    with pytest.raises(RuntimeError, match="cleaned up"):
        repl.execute_code("1")


def test_an_rlm_within_an_rlm(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    root = [
        block("print('outer'); got = rlm_query('the sub-task')\nanswer['content'] = got; answer['ready'] = True"),
        block("print('inner')\nanswer['content'] = context + '!'; answer['ready'] = True"),
    ]
    options = {"environment": "ipython", "environment_kwargs": {"kernel_mode": "jupyter"}, "max_depth": 2}
    rlm, _ = play(monkeypatch, root, logger=RLMLogger(), **options)
    done = rlm.completion("the task")
    assert done.response == "the sub-task!"
    assert done.metadata["iterations"][0]["code_blocks"][0]["result"]["stdout"] == "outer\n"


def test_failures_of_models_are_texts(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    repl = JupyterREPL(lm_handler_address=("127.0.0.1", 1), context_payload="c")
    assert repl.execute_code("print(llm_query('x'))").stdout.startswith("Error: ")
    assert repl.profile == "rlm"
    batch = repl.execute_code("print(llm_query_batched(['x', 'y']))").stdout
    assert batch.count("Error: ") == 2
    late = JupyterREPL(profile="rlm")
    assert late.execute_code("print(llm_query('x'))").stdout == "Error: No LM handler configured\n"
    late.update_handler_address(("127.0.0.1", 1))
    assert "No LM handler" not in late.execute_code("print(llm_query('x'))").stdout
    broken = JupyterREPL(subcall_fn=lambda prompt, model: [][1])
    assert broken.execute_code("print(rlm_query('x'))").stdout == "Error: RLM query failed - list index out of range\n"


def test_other_environments_are_what_they_were(registered: None) -> None:
    assert type(environments.get_environment("local", {})).__name__ == "LocalREPL"
    with pytest.raises(ValueError, match="Unknown environment: nowhere"):
        environments.get_environment("nowhere", {})
