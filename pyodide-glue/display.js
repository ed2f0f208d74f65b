// HTML that code has made, for pages that show it. An entry of its own (`sandglass/display`): most pages show none.
//
// A policy and `<iframe sandbox>` keep HTML from running scripts and from loading anything. They do not keep it from looking up
// names and opening connections (`<link rel=preconnect>`), which tells a guest's secrets to whom it likes. So it is written again
// from an allowlist, the same that hosts go by (`host/src/html.rs`), twice: `tidyHtml` bounds what parsing it may cost, DOMPurify
// looks at what the browser makes of it.

import createDOMPurify from "dompurify";
import allowed from "../crates/core/src/display/html.json";
import { filterCss, isData } from "./filter-css.js";
import { tidyHtml } from "./tidy-html.js";

const words = (/** @type {string[]} */ lines) => lines.flatMap((line) => line.split(" "));
const CSS_ATTRIBUTES = new Set(words(allowed.cssAttributes));
const CONFIG = {
  // Style sheets are filtered apart. What is purified has none any more.
  ALLOWED_TAGS: [...words(allowed.tags), ...words(allowed.svgTags), "#text"].filter((tag) => tag !== "style"),
  ALLOWED_ATTR: [...words(allowed.attributes), ...words(allowed.svgAttributes)],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
};

/** @typedef {{ createHTML(html: string): string, createScriptURL(url: string): string }} Policy */

/** Once there is a document. @type {{ purify: ReturnType<typeof createDOMPurify>, policy: Policy | undefined } | undefined} */
let tools;

/**
 * Rebuilds HTML that code has made from an allowlist of elements, attributes and styles: no scripts, no links out, and nothing
 * that makes the browser look up a name, connect or load. Pictures, sound and fonts stay where they come as `data:` URLs.
 *
 * The result belongs into a frame all the same, since it can look like anything: see `displayFrame`.
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
 * Makes a frame that shows HTML which code has made: sanitized, without scripts, of no origin, and under a policy that lets it
 * load nothing. Its size is the page's affair. A page that requires Trusted Types allows the policy `sandglass-display`.
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
    // The page does not allow it. Where it requires Trusted Types, the browser says so next.
  }
  // One of our own: the page may have configured another.
  const purify = createDOMPurify(window);
  purify.addHook("uponSanitizeAttribute", (node, data) => {
    const value = data.attrValue.trim();
    if (data.attrName === "src") data.keepAttr = isData(value);
    else if (/^(?:xlink:)?href$/.test(data.attrName)) {
      // A drawing refers to its own parts, an image to its data.
      data.keepAttr = node.nodeName.toLowerCase() === "image" ? isData(value) : value.startsWith("#");
    } else if (CSS_ATTRIBUTES.has(data.attrName)) data.attrValue = filterCss(data.attrValue);
  });
  return { purify, policy };
}
