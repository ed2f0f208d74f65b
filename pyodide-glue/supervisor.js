// Loads the supervisor once for all entries of the package.

import init from "../pkg/sandglass.js";
import { build, integrity, platform } from "../dist/assets.js";
import { assetUrl } from "./assets.js";
import { openFrame, takeRequest } from "./prefetch.js";
import { SandboxError } from "./sandbox-error.js";
import { startWorker } from "./start-worker.js";
import { readMetadata } from "./wheel.js";

/** JavaScript's functions for the supervisor. */
const glue = {
  SandboxError,
  build,
  integrity,
  platform,
  assetUrl,
  openFrame,
  takeRequest,
  startWorker,
  readMetadata,
  /** Reads a file that cannot be fetched. @type {((url: string) => Promise<BufferSource> | undefined) | undefined} */
  read: undefined,
  /** The processes of guests, outside of pages. @type {object | undefined} */
  processes: undefined,
};

/** Adds functions for another place than a page, or replaces a page's: `node.js` does. @param {Partial<typeof glue>} functions */
export function provide(functions) {
  Object.assign(glue, functions);
}

/**
 * Resolves when the supervisor can be called, to the functions that it needs.
 * @param {unknown} [options]  the sandbox's options, which nobody has checked yet
 */
export async function load(options) {
  const { assetsUrl } = Object(options);
  const url = assetUrl("supervisor", typeof assetsUrl === "string" ? assetsUrl : undefined);
  try {
    await init({ module_or_path: glue.read?.(url) ?? url });
  } catch (error) {
    const remedy = "see docs/bundlers.md for the way in which your bundler copies it, or pass assetsUrl";
    throw new SandboxError("asset_failed", `${url}: the supervisor could not be loaded: ${error}; ${remedy}`);
  }
  return glue;
}
