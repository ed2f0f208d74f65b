"""`dspy.RLM` with its code in a sandbox. The tool, and the models, stay in this process.

Here a script stands in for the models. With a real one: `dspy.configure(lm=dspy.LM("openai/gpt-5"))`.
"""

import dspy
from dspy.utils import DummyLM
from sandglass.adapters import DspyInterpreter


def price(name: str) -> int:
    """The price of a good."""
    return {"sand": 12, "glass": 30}[name]


CODES = [
    "print(len(orders), orders[:30])",
    "names = orders.split()\ntotal = sum(price(name) for name in set(names)) * len(names) // 2\nprint(total)",
    "import dspy\nclerk = dspy.Predict('total: int -> remark')\nSUBMIT(total, clerk(total=total).remark)",
]

rlm = dspy.RLM(
    "orders -> total: int, remark: str",
    tools=[price],
    interpreter_factory=DspyInterpreter.factory(timeout=10_000),
)
model = DummyLM(
    [
        *({"reasoning": "Next.", "code": code} for code in CODES),
        {"remark": "a good year"},
    ]
)
with dspy.context(lm=model, adapter=dspy.ChatAdapter()):
    found = rlm(orders="sand glass " * 100_000)
print(found.total, found.remark)
assert (found.total, found.remark) == (4_200_000, "a good year")
