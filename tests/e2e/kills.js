// The page of tests/e2e/kills.mjs: a sandbox that does what the script says, and tells it everything, until somebody kills the page.

import { createSandbox } from "/pyodide-glue/index.js";

/**
 * @param {string} url  the script's address
 * @param {number} visit  the number of this page
 */
export async function visit(url, visit) {
  /** Tells the script something, and resolves to its answer. @param {string} what @param {object} data */
  const tell = async (what, data) => {
    const response = await fetch(url, { method: "POST", body: JSON.stringify({ ...data, what, visit }) });
    return response.json();
  };
  /** The effect of a host call, which happens outside of the browser. @param {string} key @param {string | undefined} id */
  const effect = async (key, id) => {
    const { token, error } = await tell("call", { key, id });
    if (error) throw new Error(error);
    return token;
  };
  const options = {
    persist: { name: "kills", journal: true },
    onProgress: (progress) => {
      if (progress.stage === "kept" || progress.stage === "unkept") void tell("stored", progress);
    },
    hostFunctions: {
      pay: {
        call(/** @type {number} */ cell, /** @type {number} */ place) {
          return effect(`${cell}.${place}`, this.id);
        },
      },
    },
    onLLMQuery: (prompt) => effect(prompt, undefined),
  };
  const sandbox = await open(options);
  const pending = await sandbox.pending();
  let told = await tell("opened", { pending });
  while (told.method) {
    /** @type {object} */
    let answer;
    try {
      answer = { value: await sandbox[/** @type {"execute"} */ (told.method)](.../** @type {[any]} */ (told.given)) };
    } catch (error) {
      answer = { error: `${/** @type {any} */ (error).code}: ${/** @type {any} */ (error).message}` };
    }
    told = await tell("done", { ...answer, method: told.method });
  }
}

/** Makes the sandbox. A page that was killed may have the session for another moment. @param {object} options */
async function open(options) {
  for (;;) {
    try {
      return await createSandbox(options);
    } catch (error) {
      if (/** @type {any} */ (error).code !== "persist_in_use") throw error;
    }
  }
}
