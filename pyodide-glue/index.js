// The package's entry: hands out sandboxes.

import { frameHash as hash } from "../dist/assets.js";
import { startSandbox } from "../pkg/sandglass.js";
import { discardPrefetched, prefetch } from "./prefetch.js";
import { load } from "./supervisor.js";

/** @import { Sandbox, SandboxOptions } from "../pkg/sandglass.js" */

export { deletePersisted, listPersisted } from "./kept-sessions.js";
export { SandboxError } from "./sandbox-error.js";

/** The hash of the frames' script, for the `script-src` of a page's Content-Security-Policy. @type {string} */
export const frameHash = hash;

let isFirst = true;

/**
 * Starts a sandbox; resolves when Python is ready.
 * @param {SandboxOptions} [options]
 * @returns {Promise<Sandbox>}
 */
export async function createSandbox(options) {
  if (!isFirst) return startSandbox(await load(options), options);
  isFirst = false;
  try {
    prefetch(options);
    return await startSandbox(await load(options), options);
  } finally {
    discardPrefetched();
  }
}
