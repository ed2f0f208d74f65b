// Loads the supervisor once for all entries of the package.

import init from "../pkg/sandglass.js";
import { build, integrity, platform } from "../dist/assets.js";
import { assetUrl, failedRequest, wrongAnswer } from "./assets.js";
import { findKept, forgetModule, keep, keepModule } from "./kept-files.js";
import { openRun } from "./kept-runs.js";
import { openSession } from "./kept-sessions.js";
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
  wrongAnswer,
  failedRequest,
  openFrame,
  takeRequest,
  findKept,
  keep,
  keepModule,
  forgetModule,
  openRun,
  openSession,
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

/** The supervisor's start; undefined before it, and after a failure. @type {Promise<unknown> | undefined} */
let starting;

/**
 * Resolves when the supervisor can be called, to the functions that it needs.
 * @param {unknown} [options]  the sandbox's options, which nobody has checked yet
 */
export async function load(options) {
  starting ??= start(Object(options).assetsUrl);
  try {
    await starting;
  } catch (error) {
    starting = undefined; // the next sandbox tries again
    throw error;
  }
  return glue;
}

/** @param {unknown} assetsUrl */
async function start(assetsUrl) {
  const url = assetUrl("supervisor", typeof assetsUrl === "string" ? assetsUrl : undefined);
  try {
    const bytes = await (glue.read?.(url) ?? fetched(url));
    await init({ module_or_path: await WebAssembly.compile(bytes) });
  } catch (error) {
    throw new SandboxError("asset_failed", `${url}: ${await reason(url, error)}; no guest was started`);
  }
}

/** @param {string} url */
async function fetched(url) {
  const response = await fetch(url, { integrity: integrity.supervisor });
  if (!response.ok) throw new Error(`the server answered ${response.status}`);
  return response.arrayBuffer();
}

/** The reason why the supervisor did not start. @param {string} url @param {unknown} error */
async function reason(url, error) {
  if (glue.read?.(url)) return `it could not be read: ${error}`;
  try {
    const answer = wrongAnswer(url, await fetch(url));
    return answer ?? `it is not the file of this release (${error}); serve the package's dist/ whole`;
  } catch (failure) {
    return `it could not be fetched (${failedRequest(url, failure)})`;
  }
}
