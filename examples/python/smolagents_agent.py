"""A `CodeAgent` whose code runs in a sandbox. Here a script stands in for the model."""

from sandglass.adapters import SmolagentsExecutor
from smolagents import ChatMessage, CodeAgent, Model, tool


@tool
def price(name: str) -> int:
    """The price of a good.

    Args:
        name: The good's name.
    """
    return {"sand": 12, "glass": 30}[name]


CODES = [
    "prices = [price(good) for good in goods]\nprint(prices)",
    "final_answer(sum(prices))",
]


class Script(Model):
    """A model that writes the next code, whatever it is asked."""

    def generate(self, messages, **options):
        return ChatMessage(
            role="assistant",
            content=f"Thought: next.\n<code>\n{CODES.pop(0)}\n</code>",
        )


with SmolagentsExecutor(timeout=10_000) as executor:
    agent = CodeAgent(tools=[price], model=Script(model_id="script"), executor=executor)
    total = agent.run("What do these cost together?", additional_args={"goods": ["sand", "glass"]})
print(total)
assert total == 42
