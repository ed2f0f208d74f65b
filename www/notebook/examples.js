// The cells that the notebook shows on the first visit, and those that its buttons add.

/** @import { CellRecord } from "./ipynb.js" */

/** @type {CellRecord[]} */
export const EXAMPLES = [
  `# The context is a Python variable, of any size: look at a little of it, then search.
print(f"{len(context):,} characters, beginning with")
print(*context.splitlines()[:4], sep="\\n")

print("\\nLines that speak of something missing:")
for hit in search_context(r".*missing.*", window=0):
    print(f"at {hit['start']:,}: {hit['match']}")`,

  `# Too long for one prompt? Cut it up and ask about all the pieces at once.
question = "Where was the missing crate of hourglasses found?"

chunks = chunk_text(context, size=40_000, overlap=200)
notes = llm_query_batched([f"{question}\\n\\n{chunk}" for chunk in chunks])
print(f"asked {len(chunks)} times about {len(context):,} characters")

FINAL(llm_query(question + "\\n\\n" + "\\n".join(notes)))`,

  `# Tables and pictures are shown, in a frame without any rights.
import re
from collections import Counter

class Table(dict):
    def _repr_html_(self):
        rows = "".join(f"<tr><td>{name}</td><td>{n}</td></tr>" for name, n in self.items())
        return f"<table><tr><th>ship</th><th>times in the log</th></tr>{rows}</table>"

Table(Counter(re.findall(r"The ([A-Z]\\w+) ", context)).most_common(6))`,
].map((source) => ({ kind: "code", source }));

/** Cells that a button adds, by the button's name. @type {Record<string, CellRecord>} */
export const MORE = {
  "add-cell": { kind: "code", source: "" },
  "add-text": { kind: "markdown", source: "" },
  "add-rlm": {
    kind: "code",
    source: `# rlm_query hands a part of the context to a sandbox of its own and waits for its answer.
half = len(context) // 2
answer_a = rlm_query("Which crate is missing?", context[:half])
answer_b = rlm_query("Where was the missing crate found?", context[half:])
print(answer_a, answer_b, sep="\\n")`,
  },
  "add-loop": {
    kind: "code",
    source: `# A runaway loop. Stop it: what it had assigned is kept.
grains = 0
while True:
    grains += 1
    if grains % 2_000_000 == 0:
        print(f"{grains:,} grains have fallen")`,
  },
  "add-stubborn": {
    kind: "code",
    source: `# This loop refuses to stop. Stop it all the same: your variables are kept.
while True:
    try:
        while True:
            pass
    except BaseException:
        pass`,
  },
  "add-pay": {
    kind: "code",
    source: `# pay() needs your approval. Python waits until you have looked at the call.
for name, grains in {"Ada": 20, "Mallory": 1_000_000}.items():
    try:
        print("paid", pay(grains, to=name))
    except HostCallError as error:
        print(error)`,
  },
  "add-plot": {
    kind: "code",
    source: `# A package that is not loaded is offered when it is imported.
import matplotlib.pyplot as plt

lengths = [len(line) for line in context.splitlines()]
plt.hist(lengths, bins=30)
plt.title("Lengths of the log's lines")
plt.show()`,
  },
};
