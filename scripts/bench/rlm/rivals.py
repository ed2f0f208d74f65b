"""Runs one contestant of `npm run bench:rlm` that is written in Python.

`python rivals.py map-reduce|rlms|rlms-docker|dspy|minrlm` prints `{"ready": …}` when everything is imported.
Then it takes tasks as lines of JSON, and answers each with a line.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = "no-key-is-needed"


class MapReduce:
    """The floor: the code is given, and no model writes any. Sub-models are asked by OpenAI's own client."""

    package = "openai"

    def __init__(self) -> None:
        import openai

        self.client = openai.OpenAI

    def run(self, order: dict[str, Any]) -> str:
        client = self.client(base_url=order["url"], api_key=KEY)
        answers: list[str] = []

        def query(prompt: str) -> str:
            messages: Any = [{"role": "user", "content": prompt}]
            try:
                reply = client.chat.completions.create(model=order["subModel"], messages=messages)
                return reply.choices[0].message.content or ""
            except Exception as error:
                return f"Error: {error}"

        with client, ThreadPoolExecutor(32) as pool:
            space = {
                "context": order["context"],
                "llm_query": query,
                "llm_query_batched": lambda prompts: list(pool.map(query, prompts)),
                "FINAL": lambda value: answers.append(str(value)),
            }
            for code in order["code"]:
                exec(code, space)
        return answers[0]


class Rlms:
    """alexzhang13/rlm. Its REPL is `exec` in this process, without isolation."""

    package = "rlms"
    environment = "local"
    environment_options: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        from rlm import RLM

        self.make: Any = RLM

    def run(self, order: dict[str, Any]) -> str:
        endpoint = {"base_url": order["url"], "api_key": KEY}
        rlm = self.make(
            backend="openai",
            backend_kwargs={"model_name": order["model"], **endpoint},
            other_backends=["openai"],
            other_backend_kwargs=[{"model_name": order["subModel"], **endpoint}],
            environment=self.environment,
            environment_kwargs=self.environment_options,
            **given(max_timeout=order.get("seconds"), max_tokens=order.get("allTokens")),
        )
        return str(rlm.completion(order["context"], root_prompt=order["task"]).response)


class RlmsInDocker(Rlms):
    """The same with its REPL in a container."""

    environment = "docker"
    image = os.environ.get("RLMS_IMAGE")
    environment_options: ClassVar[dict[str, str]] = {"image": image} if image else {}


class Dspy:
    """DSPy's RLM, with its own interpreter: Pyodide in Deno. DSPy's cache is off, or a second run would ask nothing."""

    package = "dspy"

    def __init__(self) -> None:
        import dspy
        from dspy.primitives.python_interpreter import PythonInterpreter

        self.dspy: Any = dspy
        self.interpreter: Callable[[], Any] = PythonInterpreter
        imports = os.environ.get("DSPY_IMPORTS")
        if imports:
            # The command of its own, but for one import whose host this machine does not reach.
            runner = str(Path(dspy.__file__).parent / "primitives/runner.js")
            cache = os.environ["DENO_DIR"]
            command = ["deno", "run", "--no-config", "--no-lock", "--node-modules-dir=false", f"--import-map={imports}"]
            command += [f"--allow-read={runner},{cache}", runner, "", f"--dspy-deno-dir={cache}"]
            self.interpreter = lambda: PythonInterpreter(deno_command=command)

    def run(self, order: dict[str, Any]) -> str:
        dspy = self.dspy
        root, sub = (
            dspy.LM(f"openai/{order[name]}", api_base=order["url"], api_key=KEY, cache=False)
            for name in ("model", "subModel")
        )
        rlm = dspy.RLM(
            "context, question -> answer",
            sub_lm=sub,
            interpreter_factory=self.interpreter,
            **given(max_llm_calls=order.get("calls")),
        )
        with dspy.context(lm=root):
            return str(rlm(context=order["context"], question=order["task"]).answer)


class MinRlm:
    """minrlm. Its REPL is `exec` in this process, and one model both writes code and answers."""

    package = "minrlm"

    def __init__(self) -> None:
        from minrlm import RLM

        self.make: Any = RLM

    def run(self, order: dict[str, Any]) -> str:
        rlm = self.make(
            model=order["model"],
            base_url=order["url"],
            api_key=KEY,
            **given(max_sub_llm_calls=order.get("calls"), max_time_seconds=order.get("seconds")),
        )
        return str(rlm.completion(task=order["task"], context=order["context"]).response)


CONTESTANTS: dict[str, type[Any]] = {
    "map-reduce": MapReduce,
    "rlms": Rlms,
    "rlms-docker": RlmsInDocker,
    "dspy": Dspy,
    "minrlm": MinRlm,
}


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value; the others keep the contestant's own defaults."""
    return {name: value for name, value in options.items() if value is not None}


def main() -> None:
    """Runs tasks until the input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # contestants print into standard output

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    contestant = CONTESTANTS[sys.argv[1]]()
    say({"ready": importlib.metadata.version(contestant.package)})
    for line in sys.stdin:
        order = json.loads(line)
        order["context"] = Path(order["file"]).read_text()
        try:
            say({"answer": contestant.run(order)})
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"[:300]})


if __name__ == "__main__":
    main()
