// The cells that the notebook shows on the first visit.

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

  `# A runaway loop. Stop it, or wait for the time limit: what it had assigned is kept.
grains = 0
while True:
    grains += 1
    if grains % 2_000_000 == 0:
        print(f"{grains:,} grains have fallen")`,
];

export const RLM_EXAMPLE = `# rlm_query hands a part of the context to a sandbox of its own and waits for its answer.
half = len(context) // 2
answer_a = rlm_query("Which crate is missing?", context[:half])
answer_b = rlm_query("Where was the missing crate found?", context[half:])
print(answer_a, answer_b, sep="\\n")`;
