// A real language model as sub-model of `npm run bench:rlm -- --local-sub-model`: SmolLM2-135M-Instruct by wllama (llama.cpp in
// wasm), in a page of its own browser. It sees four examples before each question, because without them it talks about the sentence.
import { join } from "node:path";
import { launch } from "../../browsers.mjs";
import { localModel } from "../../local-model.mjs";
import { root } from "../../project.mjs";
import { serve } from "../../serve.mjs";
import { EXAMPLES, INSTRUCTION } from "./tasks/phrase.mjs";

/** Starts it. Questions are answered one after the other, on one thread. */
export async function startSmallModel() {
  const { folder, file } = localModel();
  const site = await serve(root, { folders: { node_modules: join(root, "node_modules"), "local-model": folder } });
  const browser = await launch("chromium");
  const close = async () => {
    await browser.close();
    await site.close();
  };
  const page = await browser.newPage();
  await page.goto(`${site.url}/tests/e2e/page.html`);
  const conversation = [
    { role: "system", content: INSTRUCTION },
    ...EXAMPLES.flatMap(([sentence, copied]) => [
      { role: "user", content: sentence },
      { role: "assistant", content: copied },
    ]),
  ];
  await page
    .evaluate(
      async (url, conversation) => {
        const { Wllama } = await import(/** @type {any} */ ("/node_modules/@wllama/wllama/esm/index.js"));
        const { wllama } = await import(/** @type {any} */ ("/pyodide-glue/models.js"));
        const engine = new Wllama(
          { default: "/node_modules/@wllama/wllama/esm/wasm/wllama.wasm" },
          { suppressNativeLog: true },
        );
        await engine.loadModel([await (await fetch(url)).blob()], { n_ctx: 1024, n_threads: 1, n_parallel: 1 });
        const model = wllama(engine, { temperature: 0, max_tokens: 12 });
        const ask = async (/** @type {string} */ content) => {
          const { text } = await model([...conversation, { role: "user", content }], {
            signal: new AbortController().signal,
          });
          return text;
        };
        Object.assign(window, { ask });
      },
      `/local-model/${file}`,
      conversation,
    )
    .catch(async (error) => {
      await close();
      throw error;
    });
  /** @type {Promise<unknown>} */
  let last = Promise.resolve();
  return {
    /** @param {string} sentence @returns {Promise<string>} */
    ask(sentence) {
      const late = () =>
        new Promise((_, reject) => setTimeout(() => reject(new Error("no answer in time")), 120_000).unref());
      const answer = () => page.evaluate((text) => /** @type {any} */ (window).ask(text), sentence);
      const asked = last.then(() => Promise.race([answer(), /** @type {Promise<never>} */ (late())]));
      last = asked.catch(() => undefined);
      return asked;
    },
    close,
  };
}
