// The notebook's `rlm_query`: a sandbox of its own takes the sub-context and searches it.

import { createSandbox } from "../../pyodide-glue/index.js";

/** A fixed search in Python that uses `task` and `context`. A real controller would let a model write this code. */
const SEARCH = `
import re

text = context if isinstance(context, str) else "\\n".join(map(str, context))
words = {w.lower() for w in re.findall(r"\\w{4,}", task)}
lines = sorted(text.splitlines(), key=lambda line: -sum(w in line.lower() for w in words))
print(f"kept the best 50 of {len(lines):,} lines")
FINAL(llm_query(task + "\\n\\n" + "\\n".join(lines[:50])))
`;

/**
 * @param {string} task
 * @param {unknown} context
 * @param {object} options
 * @param {AbortSignal} options.signal
 * @param {(prompt: string, info: { model?: string, signal: AbortSignal }) => Promise<string>} options.onLLMQuery
 * @returns {Promise<string>}
 */
export async function searchInChild(task, context, { signal, onLLMQuery }) {
  signal.throwIfAborted();
  const child = await createSandbox({ onLLMQuery });
  try {
    await child.initialize(context);
    await child.setVariable("task", task);
    const run = await child.execute(SEARCH, { signal });
    if (run.outcome !== "ok") throw new Error(`the sub-sandbox's search failed: ${run.error ?? run.outcome}`);
    return String(run.final?.value);
  } finally {
    await child.destroy();
  }
}
