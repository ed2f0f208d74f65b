// The package's entry on Node, Deno and Bun: as in browsers, but a guest lives in a process of its own.
// Importing it starts nothing, so that pages which are rendered on a server may import it there.
// Decisions: docs/internals/guest-in-a-process.md.

import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { startSandbox } from "../pkg/sandglass.js";
import { createProcesses } from "./confinement.js";
import { load, provide } from "./supervisor.js";

/** @import { Sandbox, SandboxOptions } from "../pkg/sandglass.js" */

export { SandboxError } from "./supervisor.js";

/** Reads a file of the package. @param {string | URL} url @returns {Promise<Uint8Array<ArrayBuffer>>} */
const read = (url) => readFile(fileURLToPath(url));

provide({
  processes: createProcesses(),
  supervisor: () => read(new URL("../pkg/sandglass_bg.wasm", import.meta.url)),
  /** A file by its address, as `fetch` would answer; undefined leaves an address of the web to `fetch`. @param {string} url */
  takeRequest: (url) => (url.startsWith("file:") ? read(url).then((bytes) => new Response(bytes)) : undefined),
});

/**
 * Starts a sandbox; resolves when Python is ready.
 * @param {SandboxOptions} [options]
 * @returns {Promise<Sandbox>}
 */
export async function createSandbox(options) {
  return startSandbox(await load(), options);
}
