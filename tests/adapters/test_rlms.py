"""`rlm_environment`: sandboxes as environments of the package `rlms`, in that package's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rlm.core.rlm as core
import rlm.environments as environments
from rlm import RLM
from rlm.clients.base_lm import BaseLM
from rlm.core.types import ModelUsageSummary, RLMChatCompletion, UsageSummary
from rlm.environments import SupportsCustomTools, SupportsPersistence
from rlm.logger import RLMLogger

from sandglass.adapters import rlm_environment, rlms
from sandglass.adapters.rlms import SandboxEnv

USAGE = ModelUsageSummary(total_calls=1, total_input_tokens=1, total_output_tokens=1)


class Script(BaseLM):
    """A model that answers by a function."""

    def __init__(self, answer: Callable[[Any], str]) -> None:
        super().__init__(model_name="script")
        self.answer = answer
        self.prompts: list[Any] = []

    def completion(self, prompt: Any) -> str:
        self.prompts.append(prompt)
        return self.answer(prompt)

    async def acompletion(self, prompt: Any) -> str:
        return self.completion(prompt)

    def get_usage_summary(self) -> UsageSummary:
        return UsageSummary(model_usage_summaries={"script": USAGE})

    def get_last_usage(self) -> ModelUsageSummary:
        return USAGE


@pytest.fixture(autouse=True)
def unregistered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (core, environments):  # monkeypatch restores it after the test
        monkeypatch.setattr(module, "get_environment", module.get_environment)
    yield


@pytest.fixture(scope="module")
def shared() -> Iterator[SandboxEnv]:
    with SandboxEnv(subcall_fn=completion) as env:
        yield env


def block(code: str) -> str:
    return f"```repl\n{code}\n```"


def play(monkeypatch: pytest.MonkeyPatch, root: list[str], **options: Any) -> tuple[RLM, Script]:
    """An RLM with a script as its root model, and with sub-models that answer in capitals."""
    replies = iter(root)
    client = Script(lambda prompt: prompt.upper() if isinstance(prompt, str) else next(replies))
    monkeypatch.setattr(core, "get_client", lambda backend, kwargs: client)
    return RLM(**rlm_environment(), backend_kwargs={"model_name": "script"}, **options), client


def completion(prompt: str, model: str | None = None) -> RLMChatCompletion:
    if prompt == "bad":
        raise RuntimeError("boom")
    usage = UsageSummary(model_usage_summaries={})
    return RLMChatCompletion(model or "m", prompt, prompt.upper(), usage, 0.0)


def test_an_rlm_finds_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    root = [
        block("print(context[:5]); part = llm_query('first'); print(part, double(4), limit)") + "\n" + block("1 / 0"),
        block("more = llm_query_batched(['a', 'b'])\nanswer['content'] = [part, *more]\nanswer['ready'] = True"),
    ]
    tools = {"double": {"tool": lambda x: 2 * x, "description": "doubles"}, "limit": 7}
    rlm, client = play(monkeypatch, root, custom_tools=tools, logger=RLMLogger())
    done = rlm.completion("hello world")
    assert done.response == "['FIRST', 'A', 'B']"
    second = next(prompt for prompt in reversed(client.prompts) if isinstance(prompt, list))
    feedback = "\n".join(message["content"] for message in second)
    assert "hello\nFIRST 8 7" in feedback and "ZeroDivisionError: division by zero" in feedback and "'part'" in feedback
    blocks = [b for i in done.metadata["iterations"] for b in i["code_blocks"]]
    assert [len(b["result"]["rlm_calls"]) for b in blocks] == [1, 0, 2]


def test_functions_among_the_options_are_there_besides_the_tools() -> None:
    with SandboxEnv(host_functions={"own": lambda: 1}, custom_tools={"tool": lambda: 2}) as env:
        assert env.execute_code("print(own(), tool())").stdout == "1 2\n"


def test_values_of_many_variables_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlms, "_MOST_SHOWN", 3)
    with SandboxEnv() as env:
        shown = env.execute_code("for n in range(50): globals()[f'v{n}'] = n").locals
        assert len(shown) >= 50 and sum(value == "<int>" for value in shown.values()) >= 47


def test_an_rlm_within_an_rlm_has_a_sandbox_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    root = [
        block("mine = 1; got = rlm_query('the sub-task')\nanswer['content'] = got; answer['ready'] = True"),
        block("answer['content'] = context + '!' + str('mine' in globals()); answer['ready'] = True"),
    ]
    rlm, _ = play(monkeypatch, root, max_depth=2)
    assert rlm.completion("the task").response == "the sub-task!False"


def test_several_turns_of_an_rlm(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = "\nanswer['content'] = found; answer['ready'] = True"
    root = [
        block("found = context" + finish),
        block("found = [context_0, context_1, context, found]" + finish),
        block("context = 0; found = [len(history), history is history_0 or history == history_0]" + finish),
    ]
    rlm, _ = play(monkeypatch, root, persistent=True)
    with rlm:
        assert rlm.completion("one").response == "one"
        env = rlm._persistent_env
        assert isinstance(env, SandboxEnv) and isinstance(env, SupportsPersistence | SupportsCustomTools)
        assert rlm.completion("two").response == str(["one", "two", "one", "one"])
        answer = rlm.completion("three").response
        assert answer.startswith("[") and answer.endswith("True]")
        assert env.locals["context"] == "one"
    assert not env.locals


def test_records_of_a_batch_have_the_order_of_its_prompts() -> None:
    later = threading.Event()

    def ask(prompt: str, model: str | None = None) -> RLMChatCompletion:
        if prompt == "a":
            assert later.wait(60)
        else:
            later.set()
        return completion(prompt, model)

    with SandboxEnv(subcall_fn=ask, max_concurrent_subcalls=2) as env:
        result = env.execute_code("print(rlm_query_batched(['a', 'b'], 'other'), rlm_query('c'))")
    assert result.stdout == "['A', 'B'] C\n"
    assert [(call.response, call.root_model) for call in result.rlm_calls] == [
        ("A", "other"),
        ("B", "other"),
        ("C", "m"),
    ]


def test_failures_are_texts(shared: SandboxEnv) -> None:
    assert shared.execute_code("print(llm_query('x'))").stdout == "Error: No LM handler configured\n"
    assert shared.execute_code("print(llm_query_batched(['x']))").stdout == "['Error: No LM handler configured']\n"
    result = shared.execute_code("print(rlm_query('bad'), rlm_query_batched(['a', 'bad']))")
    boom = "Error: RLM query failed - boom"
    assert result.stdout == f"{boom} ['A', '{boom}']\n" and len(result.rlm_calls) == 1
    assert "needs prompts to be a list of str" in shared.execute_code("rlm_query_batched([1])").stderr
    shared.update_handler_address(("127.0.0.1", 1))
    assert shared.execute_code("print(llm_query_batched(['x']))").stdout.startswith("['Error: ")


def test_a_result_has_short_values_and_describes_others(shared: SandboxEnv) -> None:
    found = shared.execute_code("n = 1; t = 'x' * 5000; s = 'short'; items = [t] * 100; def_ = None").locals
    names = ("n", "t", "s", "items", "def_")
    shown = [1, "<str of length 5000>", "short", "<list of length 100>", None]
    assert [found[name] for name in names] == shown
    assert shared.locals["items"][99] == "x" * 5000


def test_compaction_is_seen_in_the_sandbox() -> None:
    with SandboxEnv(compaction=True, context_payload={"a": 1}, setup_code="ready = True") as env:
        assert env.execute_code("print(history, context['a'], ready)").stdout == "[] 1 True\n"
        env.append_compaction_entry({"type": "summary", "content": "so far"})
        assert env.execute_code("print(history[0]['content'])").stdout == "so far\n"


def test_a_lost_state_is_said() -> None:
    with SandboxEnv() as env:
        result = env.execute_code("x = 1; import os; os._exit(3)")
        assert "All variables, functions and imports are lost" in result.stderr
        assert env.execute_code("print('x' in globals())").stdout == "False\n"


def test_other_environments_are_what_they_were() -> None:
    rlm_environment()
    rlm_environment()
    assert type(environments.get_environment("local", {})).__name__ == "LocalREPL"
    with pytest.raises(ValueError, match="Unknown environment: nowhere"):
        environments.get_environment("nowhere", {})
