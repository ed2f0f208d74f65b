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

/**
 * The reason why an answer is no file of the package; undefined if it may be one. Servers answer with their start page where
 * an application has taken over all addresses.
 * @param {string} url
 * @param {Response} response
 * @returns {string | undefined}
 */
export function wrongAnswer(url, response) {
  const isPage = response.headers.get("content-type")?.includes("text/html");
  if (response.ok && !isPage) return undefined;
  const what = response.ok
    ? "the server answered with a web page (text/html), so the file is not there"
    : `the server answered ${response.status}`;
  return `${what}. ${remedy(url)}`;
}

/**
 * The reason why a request failed. Browsers do not tell code that CORS was the reason.
 * @param {string} url
 * @param {unknown} error
 */
export function failedRequest(url, error) {
  const what = error instanceof Error ? error.message : String(error);
  const own = globalThis.location?.origin;
  if (!own || new URL(url, location.href).origin === own) return what;
  return `${what}; its server must allow pages of ${own} to read it: Access-Control-Allow-Origin`;
}

/** Advice for a file that is not where the bundle looks for it. @param {string} url */
const remedy = (url) =>
  url.includes("/.vite/")
    ? `Vite moved the package's code away from its files: set optimizeDeps: { exclude: ["sandglass"] } in vite.config.js`
    : "If your bundler does not copy the files of packages, copy node_modules/sandglass/dist into your site and pass its " +
      "address by the option assetsUrl (docs/bundlers.md)";
