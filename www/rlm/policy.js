// The built-in "model" of a run: a fixed policy, not a language model. For each question it writes real Python, turn by turn,
// and it answers `llm_query` by keyword extraction (../model.js). So a run can be watched without any endpoint.

import { extract, keywords } from "../model.js";

/** @import { RlmModelFunction } from "../../pkg/sandglass.js" */

/** Size up to which one prompt asks about the whole context. */
const SMALL_CHARS = 30_000;
/** Size from which the context is divided among child runs. */
const LARGE_CHARS = 400_000;
/** Pieces in which the policy "types" its replies, slowly enough to follow. */
const PIECE_CHARS = 16;
const PIECE_MS = 16;

/** Questions that ask for a number. */
const COUNTING = /^\W*(how many|how often|count)\b/i;
const COUNTING_WORDS = new Set(["many", "often", "time", "count", "number", "line", "there", "occur", "happen"]);

/** @type {RlmModelFunction} */
export async function builtInPolicy(messages, { purpose, call, signal, onText }) {
  if (purpose === "query") return extract(messages.at(-1)?.content ?? "");
  const reply = nextReply(messages, call);
  for (let at = 0; at < reply.length; at += PIECE_CHARS) {
    onText(reply.slice(at, at + PIECE_CHARS));
    await new Promise((resolve) => setTimeout(resolve, PIECE_MS));
    signal.throwIfAborted();
  }
  return reply;
}

/** @param {{ role: string, content: string }[]} messages @param {number} turn */
function nextReply(messages, turn) {
  const opening = messages[1]?.content ?? "";
  const task = /^Task:\n(.*?)\n(?:\nThe variable|\nThe final answer|\nTurn |$)/s.exec(opening)?.[1] ?? opening;
  const schema = /under this JSON Schema:\n(\{.*\}|\[.*\]|true|false)\n/.exec(opening)?.[1];
  const seen = messages.at(-1)?.content ?? "";
  const recurses = !messages[0]?.content.includes("no deeper recursion");
  if (turn === 1) return look(task);
  if (turn === 2) {
    if (COUNTING.test(task)) return count(task, schema);
    const chars = Number(/characters in all: (\d+)/.exec(seen)?.[1] ?? 0);
    if (recurses && chars >= LARGE_CHARS) return share();
    return chars > SMALL_CHARS ? narrow(schema) : ask(schema);
  }
  if (turn === 3 && /answers of the parts:/.test(seen)) return combine(schema);
  return "This policy knows nothing else to try.\n\nFINAL(no answer: the built-in policy has no other idea)";
}

/** @param {string} prose @param {string} code */
const reply = (prose, code) => `${prose}\n\n\`\`\`repl\n${code.trim()}\n\`\`\`\n`;

/** @param {string} task */
const look = (task) =>
  reply(
    "First a look at the data: what it is, how long, how it begins, and how often the words of the question occur in it.",
    `
question = ${JSON.stringify(task)}
words = ${pythonList(words(task))}

if isinstance(context, dict):
    texts = {str(name): text for name, text in context.items()}
elif isinstance(context, (list, tuple)):
    texts = {f"item {n}": text for n, text in enumerate(context)}
else:
    texts = {"context": context}
texts = {name: text if isinstance(text, str) else str(text) for name, text in texts.items()}

for name, text in list(texts.items())[:4]:
    print(f"{name}: {len(text):,} characters, beginning with\\n  {text[:160]!r}")
print("characters in all:", sum(map(len, texts.values())))
whole = "\\n".join(texts.values()).lower()
print({word: whole.count(word) for word in words})`,
  );

const share = () =>
  reply(
    "That is more than a model reads at once. I cut it into parts, at line breaks, and give each to a run of its own.",
    `
parts = []
for text in texts.values():
    size = max(400_000, len(whole) // 4 + 1)
    start = 0
    while start < len(text):
        end = text.find("\\n", start + size) + 1 or len(text)
        parts.append(text[start:end])
        start = end

answers = rlm_query_batched([question] * len(parts), parts)
print("answers of the parts:")
for part, answer in zip(parts, answers):
    print(f"- {len(part):,} characters: {answer}")`,
  );

/** @param {string | undefined} schema */
const combine = (schema) =>
  reply(
    "Some parts know nothing of it, others do. One more question, over what they said.",
    `
notes = [answer for answer in answers if not answer.startswith(("Nothing here", "Error"))]
answer = llm_query(question + "\\n\\n" + "\\n".join(notes))
${final(schema)}`,
  );

/** @param {string | undefined} schema */
const narrow = (schema) =>
  reply(
    "Words that are rare here say most. I keep the lines that hold the rarest ones, and ask about those, in pieces that fit a prompt.",
    `
lines = [piece for line in whole.splitlines() for piece in (chunk_text(line, 2000, 0) if len(line) > 2000 else [line])]
weight = {word: 1 / (1 + sum(word in line for line in lines)) for word in words}
score = lambda line: sum(weight[word] for word in words if word in line)

source = "\\n".join(texts.values()).splitlines()
source = source if len(source) == len(lines) else lines
best = sorted(range(len(lines)), key=lambda n: -score(lines[n]))[:160]
kept = [source[n] for n in sorted(best) if score(lines[n])]
print(f"kept {len(kept)} of {len(lines):,} lines")

pieces = chunk_text("\\n".join(kept), size=4000, overlap=0) if kept else []
notes = llm_query_batched([f"{question}\\n\\n{piece}" for piece in pieces])
notes = [note for note in notes if not note.startswith("Nothing here")]
answer = llm_query(question + "\\n\\n" + "\\n".join(notes))
${final(schema)}`,
  );

/** @param {string | undefined} schema */
const ask = (schema) =>
  reply(
    "That fits into one prompt, so I ask about all of it.",
    `
answer = llm_query(question + "\\n\\n" + "\\n".join(texts.values()))
${final(schema)}`,
  );

/** @param {string} task @param {string | undefined} schema */
function count(task, schema) {
  const quoted = [...task.matchAll(/"([^"]+)"|“([^”]+)”|'([^']{2,})'/g)].map(
    (match) => match[1] ?? match[2] ?? match[3],
  );
  const wanted = quoted.length > 0 ? quoted.map((text) => String(text).toLowerCase()) : words(task);
  return reply(
    "Counting is Python's work, no model is needed: I count the lines that have all of these words.",
    `
wanted = ${pythonList(wanted)}
hits = [line for line in whole.splitlines() if all(word in line for word in wanted)]
print(*hits[:5], sep="\\n")
answer = f"{len(hits)} (lines with all of: {', '.join(wanted)})"
${final(schema)}`,
  );
}

/** @param {string[]} texts */
const pythonList = (texts) => `[${texts.map((text) => JSON.stringify(text)).join(", ")}]`;

/** The words to search for. @param {string} task */
function words(task) {
  const all = [...keywords(task)];
  const telling = COUNTING.test(task) ? all.filter((word) => !COUNTING_WORDS.has(word)) : all;
  return (telling.length > 0 ? telling : all).slice(0, 12);
}

/** Code that declares the answer, in the form of the schema as far as keywords can. @param {string | undefined} schema */
function final(schema) {
  if (!schema) return "FINAL(answer)";
  return `
import json, re

def shaped(schema, text):
    kind = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(schema, dict) and schema.get("enum"):
        return next((choice for choice in schema["enum"] if str(choice).lower() in text.lower()), schema["enum"][0])
    if kind in ("integer", "number"):
        found = re.search(r"-?\\d+(\\.\\d+)?", text)
        number = float(found[0]) if found else 0.0
        return int(number) if kind == "integer" else number
    if kind == "boolean":
        return not text.startswith(("Nothing here", "0 "))
    if kind == "array":
        return [shaped(schema.get("items", {}), line) for line in text.splitlines()]
    if kind == "object":
        return {name: shaped(inner, text) for name, inner in schema.get("properties", {}).items()}
    return text

FINAL(shaped(json.loads(${JSON.stringify(schema)}), answer))`.trim();
}
