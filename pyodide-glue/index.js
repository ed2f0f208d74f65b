// The package's entry: hands out sandboxes.

import { startSandbox } from "../pkg/sandglass.js";
import { load } from "./supervisor.js";

/** @import { Sandbox, SandboxOptions } from "../pkg/sandglass.js" */

export { SandboxError } from "./supervisor.js";
/**
 * Starts a sandbox; resolves when Python is ready.
 * @param {SandboxOptions} [options]
 * @returns {Promise<Sandbox>}
 */
export async function createSandbox(options) {
  return startSandbox(await load(), options);
}
