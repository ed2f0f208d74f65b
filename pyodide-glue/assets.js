// The addresses of the package's files. Each stands here as `new URL("…", import.meta.url)`, because bundlers look for
// such expressions, copy the file, and write its new address. No name ends in `.js` or `.json`: bundlers would change
// such a file, and its hash would be another one.
// Decisions: docs/internals/guest-in-a-browser.md.

import { SandboxError } from "./sandbox-error.js";

const FILES = {
  supervisor: ["supervisor.wasm", () => new URL("../dist/supervisor.wasm", import.meta.url)],
  script: ["guest.txt", () => new URL("../dist/guest.txt", import.meta.url)],
  wasm: ["pyodide.asm.wasm", () => new URL("../dist/pyodide.asm.wasm", import.meta.url)],
  stdlib: ["python_stdlib.zip", () => new URL("../dist/python_stdlib.zip", import.meta.url)],
  snapshot: ["snapshot.bin", () => new URL("../dist/snapshot.bin", import.meta.url)],
  lock: ["pyodide-lock.txt", () => new URL("../dist/pyodide-lock.txt", import.meta.url)],
};

/** @typedef {keyof typeof FILES} Asset */

/**
 * The address of a file of the package.
 * @param {string} asset  an `Asset`
 * @param {string} [base]  the folder of all files, from the option `assetsUrl`
 * @returns {string}
 */
export function assetUrl(asset, base) {
  const [name, url] = /** @type {[string, () => URL]} */ (FILES[/** @type {Asset} */ (asset)]);
  if (base) return base.replace(/\/?$/, "/") + name;
  try {
    return url().href;
  } catch {
    // A script in the format "iife" or "cjs" has no `import.meta.url`.
    const remedy = "Build it as a module, or copy node_modules/sandglass/dist into your site and pass its address";
    throw new SandboxError(
      "asset_failed",
      `this bundle does not know its own address, so it cannot find ${name}. ${remedy} by the option assetsUrl`,
    );
  }
}
