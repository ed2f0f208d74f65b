// Begins the work for a page's first guest while the supervisor is still being compiled: loads the guest's frame, and
// requests its files.
// Decisions: docs/internals/guest-in-a-browser.md.

import { assetUrl } from "./assets.js";
import { createFrame } from "./frame.js";

/** @import { SandboxOptions } from "../pkg/sandglass.js" */
/** @import { Frame } from "./frame.js" */

const FIRST = ["script", "wasm"];

/** @type {Frame | undefined} */
let frame;
/** A request under way, and its body. @typedef {{ response: Promise<Response>, body?: Promise<ArrayBuffer | Blob> }} Begun */

/** @type {Map<string, Begun>} */
const requests = new Map();

/** Begins the work for a sandbox of these options, which nobody has checked yet. @param {SandboxOptions} [options] */
export function prefetch(options) {
  const { isolation = "frame", assetsUrl } = Object(options);
  if (isolation === "frame" && globalThis.document) frame = createFrame();
  // In a context that is not secure, a request has to name the file's hash.
  if (!globalThis.crypto?.subtle) return;
  for (const asset of FIRST) {
    const url = assetUrl(asset, typeof assetsUrl === "string" ? assetsUrl : undefined);
    const response = fetch(url);
    /** @type {Promise<ArrayBuffer | Blob>} */
    const body = response.then(async (response) => (asset === "script" ? response.arrayBuffer() : response.blob()));
    body.catch(() => {}); // the taker hears of the failure
    requests.set(url, { response, body });
  }
}

/** A frame for a guest: the prefetched one, if it is still there. */
export function openFrame() {
  const begun = frame;
  frame = undefined;
  return begun ?? createFrame();
}

/** Takes the prefetched request of an address, once. @param {string} url */
export function takeRequest(url) {
  const request = requests.get(url);
  requests.delete(url);
  return request;
}

/** Aborts the prefetches that nobody has taken. */
export function discardPrefetched() {
  frame?.element.remove();
  frame = undefined;
  requests.clear();
}
