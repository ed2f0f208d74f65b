// Shows HTML from guest code in a page. An entry of its own (`sandglass/display`), because most pages show none.
//
// A policy and `<iframe sandbox>` keep HTML from running scripts and from loading anything. They do not keep HTML from
// looking up names and opening connections (`<link rel=preconnect>`), by which a guest could send its secrets to
// anyone. So the HTML is rebuilt from an allowlist, the same as on hosts (`host/src/html.rs`), in two steps: `tidyHtml`
// bounds the cost of parsing, and DOMPurify checks what the browser made of it.

import createDOMPurify from "dompurify";
import allowed from "../crates/core/src/display/html.json";
import { filterCss, isData } from "./filter-css.js";
import { tidyHtml } from "./tidy-html.js";

const words = (/** @type {string[]} */ lines) => lines.flatMap((line) => line.split(" "));
const CSS_ATTRIBUTES = new Set(words(allowed.cssAttributes));
const CONFIG = {
  // Style sheets are filtered separately. Purified HTML has none left.
  ALLOWED_TAGS: [...words(allowed.tags), ...words(allowed.svgTags), "#text"].filter((tag) => tag !== "style"),
  ALLOWED_ATTR: [...words(allowed.attributes), ...words(allowed.svgAttributes)],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
};

/** @typedef {{ createHTML(html: string): string, createScriptURL(url: string): string }} Policy */

/**
 * Set by the first call, because making it needs a document.
 * @type {{ purify: ReturnType<typeof createDOMPurify>, policy: Policy | undefined } | undefined}
 */
let tools;

/**
 * Rebuilds HTML from guest code from an allowlist of elements, attributes and styles. The result has no scripts and no
 * links out, and makes the browser look up, connect to and load nothing. Pictures, sound and fonts stay if they are
 * `data:` URLs.
 *
 * Show the result in a frame all the same, because it can look like anything: see `displayFrame`.
 * @param {string} html  a display's `data`, where its `mime` is `text/html`
 * @returns {string}
 */
export function sanitizeHtml(html) {
  const { purify, policy } = (tools ??= createTools());
  const tidied = tidyHtml(html);
  const styles = tidied.styles.map((style) => `<style>${filterCss(style)}</style>`).join("");
  return (
    styles + purify.sanitize(tidied.html, { ...CONFIG, TRUSTED_TYPES_POLICY: /** @type {any} */ (policy ?? null) })
  );
}

/**
 * Makes a frame that shows HTML from guest code: sanitized, without scripts, of an opaque origin, and under a policy
 * that lets it load nothing. The page sets the frame's size. A page that requires Trusted Types has to allow the policy
 * `sandglass-display`.
 * @param {string} html  a display's `data`, where its `mime` is `text/html`
 * @returns {HTMLIFrameElement}
 */
export function displayFrame(html) {
  const clean = sanitizeHtml(html);
  const page = `<!doctype html><meta http-equiv="Content-Security-Policy" content="${allowed.policy}">${clean}`;
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "");
  frame.srcdoc = tools?.policy?.createHTML(page) ?? page;
  return frame;
}

function createTools() {
  /** @type {Policy | undefined} */
  let policy;
  try {
    policy = /** @type {any} */ (globalThis).trustedTypes?.createPolicy("sandglass-display", {
      createHTML: (/** @type {string} */ html) => html,
      createScriptURL: () => "",
    });
  } catch {
    // The page does not allow the policy. If it requires Trusted Types, the browser reports that next.
  }
  // An instance of our own: the page may have configured another.
  const purify = createDOMPurify(window);
  purify.addHook("uponSanitizeAttribute", (node, data) => {
    const value = data.attrValue.trim();
    if (data.attrName === "src") data.keepAttr = isData(value);
    else if (/^(?:xlink:)?href$/.test(data.attrName)) {
      // A drawing refers to its own parts, and an image to its data.
      data.keepAttr = node.nodeName.toLowerCase() === "image" ? isData(value) : value.startsWith("#");
    } else if (CSS_ATTRIBUTES.has(data.attrName)) data.attrValue = filterCss(data.attrValue);
  });
  return { purify, policy };
}
