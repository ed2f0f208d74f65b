// Makes hidden frames of opaque origins, in which guests live.
// Decisions: docs/internals/guest-in-a-browser.md.

import { frame as script } from "../dist/assets.js";

/** @typedef {{ element: HTMLIFrameElement, loaded: boolean }} Frame */

/**
 * The policy of the frame, which its worker inherits: no network, no storage and no `eval`. Only wasm runs, in a worker
 * made of what the page passed in.
 */
const POLICY =
  "default-src 'none'; script-src 'nonce-sandglass' 'wasm-unsafe-eval'; worker-src blob:; connect-src 'none'";

/** Adds a frame to the page. @returns {Frame} */
export function createFrame() {
  const element = document.createElement("iframe");
  element.setAttribute("sandbox", "allow-scripts");
  element.allow = "cross-origin-isolated *";
  element.title = "Sandglass guest";
  element.setAttribute("aria-hidden", "true");
  element.hidden = true;
  const policy = `<meta http-equiv="Content-Security-Policy" content="${POLICY}">`;
  element.srcdoc = `<!doctype html>${policy}<script nonce="sandglass">${script}</script>`;
  const frame = { element, loaded: false };
  element.addEventListener("load", () => (frame.loaded = true), { once: true });
  (document.body ?? document.documentElement).append(element);
  return frame;
}
