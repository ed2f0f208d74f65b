// Loads the supervisor once for all entries of the package.

import init from "../pkg/sandglass.js";
import { build, integrity, platform } from "../dist/assets.js";
import { ASSETS_URL, openFrame, takeRequest } from "./prefetch.js";
import { SandboxError } from "./sandbox-error.js";
import { startWorker } from "./start-worker.js";
import { readMetadata } from "./wheel.js";

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
};

/** Resolves when the supervisor can be called, to the functions that it needs. */
export async function load() {
  try {
    await init();
  } catch (error) {
    const what = `the supervisor (pkg/sandglass_bg.wasm) could not be loaded; serve the package's pkg/ beside its entry`;
    throw new SandboxError("asset_failed", `${what}: ${error}`);
  }
  return glue;
}
