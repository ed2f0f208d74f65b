// Where guests live in a page: hidden frames of opaque origins. And what the page's first guest needs, begun while the supervisor
// is still being compiled: its frame loads, and its files are asked for.

import { frame as script } from "../dist/assets.js";

/** @import { SandboxOptions } from "../pkg/sandglass.js" */
/** @typedef {{ element: HTMLIFrameElement, loaded: boolean }} Frame */

/** No network, no storage, no `eval`: nothing but wasm, in a worker made of what the page passed in. The worker inherits the policy. */
const POLICY =
  "default-src 'none'; script-src 'nonce-sandglass' 'wasm-unsafe-eval'; worker-src blob:; connect-src 'none'";
export const ASSETS_URL = new URL("../dist/", import.meta.url).href;
const FILES = ["guest.js", "pyodide.asm.wasm", "python_stdlib.zip"];

/** @type {Frame | undefined} */
let frame;
/** @type {Map<string, Promise<Response>>} */
const requests = new Map();

/** A frame for a guest; the one that was begun, if it is there. */
export function openFrame() {
  const begun = frame;
  frame = undefined;
  return begun ?? makeFrame();
}

/** The answer that is on its way, once. @param {string} url */
export function takeRequest(url) {
  const request = requests.get(url);
  requests.delete(url);
  return request;
}

/** Begins what a sandbox of these options will need; they are not known to be valid yet. @param {SandboxOptions} [options] */
export function begin(options) {
  const { isolation = "frame", assetsUrl = ASSETS_URL } = Object(options);
  if (isolation === "frame" && globalThis.document) frame = makeFrame();
  // Elsewhere each request says what its file must be.
  if (!globalThis.crypto?.subtle) return;
  const base = `${assetsUrl}`.replace(/\/?$/, "/");
  for (const file of FILES) {
    const request = fetch(base + file);
    request.catch(() => {}); // whoever takes it is told
    requests.set(base + file, request);
  }
}

/** Gives up what nobody has taken. */
export function discard() {
  frame?.element.remove();
  frame = undefined;
  requests.clear();
}

/** @returns {Frame} */
function makeFrame() {
  const element = document.createElement("iframe");
  element.setAttribute("sandbox", "allow-scripts");
  element.allow = "cross-origin-isolated *";
  element.title = "Sandglass guest";
  element.setAttribute("aria-hidden", "true");
  element.hidden = true;
  const policy = `<meta http-equiv="Content-Security-Policy" content="${POLICY}">`;
  element.srcdoc = `<!doctype html>${policy}<script nonce="sandglass">${script}</script>`;
  const made = { element, loaded: false };
  element.addEventListener("load", () => (made.loaded = true), { once: true });
  (document.body ?? document.documentElement).append(element);
  return made;
}
