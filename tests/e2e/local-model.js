// Tests of `wllama` of `sandglass/models` with a real engine and a real model, in a page. tests/e2e/local-model.mjs runs them.

import { unequal } from "./tools.js";

const { Wllama } = await import(/** @type {any} */ ("/node_modules/@wllama/wllama/esm/index.js"));
const { createSandbox } = /** @type {typeof import("../../pyodide-glue/index.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/index.js"))
);
const { wllama } = /** @type {typeof import("../../pyodide-glue/models.js")} */ (
  await import(/** @type {any} */ ("/pyodide-glue/models.js"))
);

const WASM = "/node_modules/@wllama/wllama/esm/wasm/wllama.wasm";
const WINDOW = 512;
/** @type {import("../../pyodide-glue/models.js").Model} */
let model;

/** @param {string} url  of a GGUF file */
export async function load(url) {
  const engine = new Wllama({ default: WASM }, { suppressNativeLog: true });
  await engine.loadModel([await (await fetch(url)).blob()], { n_ctx: WINDOW, n_threads: 1 });
  model = wllama(engine, { temperature: 0, max_tokens: 5 });
}

/** @type {Record<string, () => Promise<string[]>>} */
export const TESTS = {
  "Python gets answers, several at a time, and the budget counts them": async () => {
    const sandbox = await createSandbox({ onLLMQuery: model, budget: {} });
    await sandbox.initialize(null);
    const { stdout, error } = await sandbox.execute(
      "answers = llm_query_batched(['Say a colour.', 'Say an animal.'])\nprint(len(answers), all(isinstance(a, str) and a for a in answers), [a for a in answers if a.startswith('Error')])",
    );
    const { calls, inputTokens, outputTokens } = sandbox.budget.spent;
    await sandbox.destroy();
    return [
      ...unequal(stdout, "2 True []\n", "stdout"),
      ...(error ? [error] : []),
      ...unequal(calls, 2, "calls"),
      ...(inputTokens > 10 && outputTokens >= 2 && outputTokens <= 10
        ? []
        : [`${inputTokens}, ${outputTokens} tokens`]),
    ];
  },

  "the pieces are the answer": async () => {
    let pieces = "";
    const { text, usage } = await model([{ role: "user", content: "Say a colour." }], {
      signal: new AbortController().signal,
      onText: (piece) => (pieces += piece),
    });
    return [...unequal(pieces, text, "pieces"), ...(usage?.outputTokens ? [] : ["no usage"])];
  },

  "a prompt that is longer than the window says what to do": async () => {
    const sandbox = await createSandbox({ onLLMQuery: model });
    await sandbox.initialize(null);
    const { error } = await sandbox.execute("llm_query('word ' * 1000)");
    await sandbox.destroy();
    const says = new RegExp(`context window \\(.*${WINDOW}.*maxPromptTokens.*n_ctx`, "s");
    return says.test(error ?? "") ? [] : [`${error}`];
  },

  "an abort ends the answer, and the next is whole": async () => {
    const controller = new AbortController();
    const aborted = model("Tell a story.", { signal: controller.signal, onText: () => controller.abort() });
    const how = await aborted.then(
      ({ text }) => `an answer: ${text}`,
      (error) => error.name,
    );
    const { text } = await model("Say a colour.", { signal: new AbortController().signal });
    return [...unequal(how, "AbortError", "the aborted question"), ...(text ? [] : ["the next has no text"])];
  },
};
