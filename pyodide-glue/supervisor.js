// Loads the supervisor once for all entries of the package.

import init from "../pkg/sandglass.js";
import { build, integrity, platform } from "../dist/assets.js";
import { ASSETS_URL, openFrame, takeRequest } from "./prefetch.js";
import { startWorker } from "./start-worker.js";
import { readMetadata } from "./wheel.js";

/** The error of a sandbox that cannot do what it was asked to. `code` names the kind of error and never changes. */
export class SandboxError extends Error {
  name = "SandboxError";

  /** @param {string} code @param {string} message */
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** JavaScript's functions for the supervisor. */
const glue = {
  SandboxError,
  build,
  integrity,
  platform,
  assetsUrl: ASSETS_URL,
  openFrame,
  takeRequest,
  startWorker,
  readMetadata,
  /** Reads the supervisor, where it cannot be fetched. @type {(() => Promise<BufferSource>) | undefined} */
  supervisor: undefined,
};

/** Adds functions for another place than a page, or replaces a page's: `node.js` does. @param {object} functions */
export function provide(functions) {
  Object.assign(glue, functions);
}

/** Resolves when the supervisor can be called, to the functions that it needs. */
export async function load() {
  try {
    await (glue.supervisor ? init({ module_or_path: glue.supervisor() }) : init());
  } catch (error) {
    const what = `the supervisor (pkg/sandglass_bg.wasm) could not be loaded; serve the package's pkg/ beside its entry`;
    throw new SandboxError("asset_failed", `${what}: ${error}`);
  }
  return glue;
}
