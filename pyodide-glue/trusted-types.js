// The policy `sandglass` of pages that require Trusted Types. It lets everything pass, so only this package may have it: two copies of
// the package on a page make one each. Any code of the page, and any text that chooses a global's name, could reach a shared one.

/** @typedef {{ createHTML(html: string): string, createScript(text: string): string, createScriptURL(url: string): string }} Policy */

/** Null when the page allows no such policy. @type {Policy | null | undefined} */
let policy;

function find() {
  const { trustedTypes } = /** @type {any} */ (globalThis);
  try {
    const pass = (/** @type {string} */ text) => text;
    if (policy === undefined)
      policy = trustedTypes?.createPolicy("sandglass", { createHTML: pass, createScript: pass, createScriptURL: pass });
  } catch {
    policy = null; // the next assignment fails if the page requires a policy
  }
  return policy;
}

/** @param {string} html */
export const trustedHtml = (html) => find()?.createHTML(html) ?? html;

/** @param {string} text */
export const trustedScript = (text) => find()?.createScript(text) ?? text;

/** @param {string} url */
export const trustedUrl = (url) => find()?.createScriptURL(url) ?? url;
