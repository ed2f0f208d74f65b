// The package's entry on Node, Deno and Bun: as in browsers, but a guest lives in a process of its own.
// Importing it starts nothing, so that pages which are rendered on a server may import it there.
// Decisions: docs/internals/guest-in-a-process.md.

import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { frameHash as hash } from "../dist/assets.js";
import { startSandbox } from "../pkg/sandglass.js";
import { createProcesses } from "./confinement.js";
import { load, provide } from "./supervisor.js";

/** @import { Sandbox, SandboxOptions } from "../pkg/sandglass.js" */

export { deletePersisted, listPersisted } from "./kept-sessions.js";
export { SandboxError } from "./sandbox-error.js";

/** The hash of the frames' script, for programs that build a page or serve one. @type {string} */
export const frameHash = hash;

/**
 * Reads a file of the package by its address; undefined leaves an address of the web to `fetch`.
 * @param {string} url
 * @returns {Promise<Uint8Array<ArrayBuffer>> | undefined}
 */
const read = (url) => (url.startsWith("file:") ? readFile(fileURLToPath(url)) : undefined);

provide({
  processes: createProcesses(),
  read,
  takeRequest(url) {
    const response = read(url)?.then((bytes) => new Response(bytes));
    return response && { response };
  },
  // Nothing begins a guest from kept files here.
  keepModule: async () => {},
});

/**
 * Starts a sandbox; resolves when Python is ready.
 * @param {SandboxOptions} [options]
 * @returns {Promise<Sandbox>}
 */
export async function createSandbox(options) {
  return startSandbox(await load(options), options);
}
