// The sub-model of `npm run demo -- --local-model`: SmolLM2-135M-Instruct, run by wllama (llama.cpp in wasm) in this tab.
import { wllama } from "../pyodide-glue/models.js";
import { Wllama } from "../node_modules/@wllama/wllama/esm/index.js";

const WASM = new URL("../node_modules/@wllama/wllama/esm/wasm/wllama.wasm", import.meta.url);
const silent = () => {};

/**
 * Sentences and their answers, which the model gets before each question. Without examples, a model of this size talks about
 * the sentence. None is in the text.
 * @type {[string, string][]}
 */
const EXAMPLES = [
  ["Nadab was thirty and three years old when he began to reign.", "thirty and three years old"],
  ["Four and fifty years old was Omri when he began to reign.", "four and fifty years old"],
  ["Eleven years old was he when he began to reign.", "eleven years old"],
  ["Elah was nine years old when he began to reign.", "nine years old"],
];
const CONVERSATION = [
  { role: /** @type {const} */ ("system"), content: "Copy the age from the sentence." },
  ...EXAMPLES.flatMap(([sentence, age]) => [
    { role: /** @type {const} */ ("user"), content: sentence },
    { role: /** @type {const} */ ("assistant"), content: age },
  ]),
];

/**
 * Loads the model. Resolves to a function that answers a prompt.
 * @param {string} url  of a GGUF file
 * @returns {Promise<(prompt: string, signal: AbortSignal) => Promise<string>>}
 */
export async function loadLocalModel(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`the model's file did not load: ${response.status}`);
  const engine = new Wllama(
    { default: WASM.href },
    { suppressNativeLog: true, logger: { debug: silent, log: silent, warn: silent, error: console.error } },
  );
  // One thread: several would wait for one another without pause, and be slower where other programs run, too. One slot, in
  // which each question finds the examples that the question before has left.
  await engine.loadModel([await response.blob()], { n_ctx: 1024, n_threads: 1, n_parallel: 1 });
  const model = wllama(engine, { temperature: 0, max_tokens: 12 });
  return async (prompt, signal) => {
    const { text } = await model([...CONVERSATION, { role: "user", content: prompt }], { signal });
    return text;
  };
}
