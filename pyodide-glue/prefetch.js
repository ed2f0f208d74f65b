// The needs of a page's first guest, begun while the supervisor is still being compiled: its frame loads, and its files are
// asked for.
// Decisions: docs/internals/guest-in-a-browser.md.

import { createFrame } from "./frame.js";

/** @import { SandboxOptions } from "../pkg/sandglass.js" */
/** @import { Frame } from "./frame.js" */

export const ASSETS_URL = new URL("../dist/", import.meta.url).href;
const FILES = ["guest.js", "pyodide.asm.wasm", "python_stdlib.zip"];

/** @type {Frame | undefined} */
let frame;
/** @type {Map<string, Promise<Response>>} */
const requests = new Map();

/** Begins what a sandbox of these options will need; they are not known to be valid yet. @param {SandboxOptions} [options] */
export function prefetch(options) {
  const { isolation = "frame", assetsUrl = ASSETS_URL } = Object(options);
  if (isolation === "frame" && globalThis.document) frame = createFrame();
  // Elsewhere each request says what its file must be.
  if (!globalThis.crypto?.subtle) return;
  const base = `${assetsUrl}`.replace(/\/?$/, "/");
  for (const file of FILES) {
    const request = fetch(base + file);
    request.catch(() => {}); // whoever takes it is told
    requests.set(base + file, request);
  }
}

/** A frame for a guest: the one that was begun, if it is there. */
export function openFrame() {
  const begun = frame;
  frame = undefined;
  return begun ?? createFrame();
}

/** The answer that is on its way, once. @param {string} url */
export function takeRequest(url) {
  const request = requests.get(url);
  requests.delete(url);
  return request;
}

/** Gives up what nobody has taken. */
export function discardPrefetched() {
  frame?.element.remove();
  frame = undefined;
  requests.clear();
}
