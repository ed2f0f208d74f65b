"""An RLM of the package `rlms`. Its code, and that of the RLM that it starts, runs in sandboxes.

Here a script stands in for the models. With a real one: `RLM(**rlm_environment(), backend="openai")`.
"""

import rlm.core.rlm
from rlm import RLM
from rlm.clients.base_lm import BaseLM
from rlm.core.types import ModelUsageSummary, UsageSummary
from sandglass.adapters import rlm_environment

REPLIES = [
    # The root splits the text, and gives each half to a sub-RLM.
    "```repl\nhalves = [context[: len(context) // 2], context[len(context) // 2 :]]\nprint(len(halves[0]))\n```",
    '```repl\nfound = rlm_query_batched(halves)\nanswer["content"] = sum(map(int, found))\nanswer["ready"] = True\n```',
    # Both sub-RLMs write the same code.
    '```repl\nanswer["content"] = context.count("sand")\nanswer["ready"] = True\n```',
    '```repl\nanswer["content"] = context.count("sand")\nanswer["ready"] = True\n```',
]


class Script(BaseLM):
    """A model that gives the next reply, whatever it is asked."""

    def completion(self, prompt):
        return REPLIES.pop(0)

    async def acompletion(self, prompt):
        return self.completion(prompt)

    def get_usage_summary(self):
        return UsageSummary(model_usage_summaries={"script": self.get_last_usage()})

    def get_last_usage(self):
        return ModelUsageSummary(total_calls=1, total_input_tokens=0, total_output_tokens=0)


rlm.core.rlm.get_client = lambda backend, options: Script(model_name="script")

counter = RLM(
    **rlm_environment(timeout=10_000),
    backend_kwargs={"model_name": "script"},
    max_depth=2,
)
done = counter.completion("sand runs through a glass. " * 2_000)
print(done.response)
assert done.response == "2000"
