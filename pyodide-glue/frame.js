// Makes hidden frames of opaque origins, in which guests live.
// Decisions: docs/internals/guest-in-a-browser.md.

import { frame as script } from "../dist/assets.js";
import { SandboxError } from "./sandbox-error.js";
import { trustedHtml, trustedScript } from "./trusted-types.js";

/** @typedef {{ element: HTMLIFrameElement, loaded: boolean, blocked: boolean }} Frame */

const TITLE = "Sandglass guest";
/** The time in which a browser reports what a policy blocked, in milliseconds. */
const POLICY_MS = 2_000;

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
  element.title = TITLE;
  element.setAttribute("aria-hidden", "true");
  element.hidden = true;
  const policy = `<meta http-equiv="Content-Security-Policy" content="${POLICY}">`;
  try {
    element.srcdoc = trustedHtml(
      `<!doctype html><html data-sandglass>${policy}<script nonce="sandglass">${script}</script>`,
    );
  } catch (error) {
    const remedy = `allow the policy "sandglass" (trusted-types sandglass), with 'allow-duplicates' if the page has two copies of this package`;
    throw new SandboxError("boot_failed", `the page requires Trusted Types: ${remedy}: ${error}`);
  }
  const frame = { element, loaded: false, blocked: isBlocked ?? false };
  element.addEventListener("load", () => (frame.loaded = true), { once: true });
  (document.body ?? document.documentElement).append(element);
  watchPolicy(frame);
  return frame;
}

/** True once the page's policy has blocked the frames' script. @type {boolean | undefined} */
let isBlocked;

/**
 * Finds out if the page's policy blocks the script of frames. Only a frame would hear of that, so the same script is put into
 * the page, where it does nothing. Dispatches "error" at all frames of guests.
 * @param {Frame} frame
 */
function watchPolicy(frame) {
  if (isBlocked !== undefined) return;
  isBlocked = false;
  const same = document.createElement("script");
  same.text = trustedScript(script);
  const hear = (/** @type {SecurityPolicyViolationEvent} */ { target, disposition }) => {
    if (target !== same || disposition !== "enforce") return;
    isBlocked = frame.blocked = true;
    for (const each of document.querySelectorAll(`iframe[title="${TITLE}"]`)) each.dispatchEvent(new Event("error"));
  };
  document.addEventListener("securitypolicyviolation", hear);
  document.documentElement.append(same);
  setTimeout(() => {
    document.removeEventListener("securitypolicyviolation", hear);
    same.remove();
  }, POLICY_MS);
}
