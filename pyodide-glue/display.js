// HTML that code has made, for pages that show it. An entry of its own (`sandglass/display`): most pages show none.
//
// A policy and `<iframe sandbox>` keep HTML from running scripts and from loading anything. They do not keep it from looking up
// names and opening connections (`<link rel=preconnect>`), which tells a guest's secrets to whom it likes. So it is written again
// from an allowlist, the same that hosts go by (`host/src/html.rs`).

import { TokenType, tokenize } from "@csstools/css-tokenizer";
import createDOMPurify from "dompurify";
import allowed from "../crates/core/src/display/html.json";

const words = (/** @type {string[]} */ lines) => lines.flatMap((line) => line.split(" "));
const CSS_ATTRIBUTES = new Set(words(allowed.cssAttributes));
const AT_RULES = new Set(words(allowed.atRules));
const FUNCTIONS = new Set(words(allowed.functions));
/** A URL that holds what it stands for. */
const DATA = /^data:(?:image|audio|video|font)\//i;
const CONFIG = {
  ALLOWED_TAGS: [...words(allowed.tags), ...words(allowed.svgTags), "#text"],
  ALLOWED_ATTR: [...words(allowed.attributes), ...words(allowed.svgAttributes)],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  // Else style sheets at the beginning are lost.
  FORCE_BODY: true,
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
  return purify.sanitize(html, { ...CONFIG, TRUSTED_TYPES_POLICY: /** @type {any} */ (policy ?? null) });
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
  purify.addHook("uponSanitizeElement", (node, { tagName }) => {
    if (tagName === "style") node.textContent = filterCss(node.textContent ?? "");
  });
  purify.addHook("uponSanitizeAttribute", (node, data) => {
    const value = data.attrValue.trim();
    if (data.attrName === "src") data.keepAttr = DATA.test(value);
    else if (/^(?:xlink:)?href$/.test(data.attrName)) {
      // A drawing refers to its own parts, an image to its data.
      data.keepAttr = node.nodeName.toLowerCase() === "image" ? DATA.test(value) : value.startsWith("#");
    } else if (CSS_ATTRIBUTES.has(data.attrName)) data.attrValue = filterCss(data.attrValue);
  });
  return { purify, policy };
}

/**
 * The same CSS, whose addresses, unknown functions and unknown at-rules have become words that mean nothing. A browser drops the
 * declarations and rules with these. Token by token, so that no spelling of an address gets by.
 * @param {string} css
 */
function filterCss(css) {
  const tokens = tokenize({ css });
  const filtered = tokens.map((token, index) => {
    const [type, text] = token;
    switch (type) {
      case TokenType.URL:
        return isOwn(token[4].value) ? text : " blocked ";
      case TokenType.Function: {
        const name = token[4].value.toLowerCase();
        if (name !== "url") return FUNCTIONS.has(name) ? text : "blocked(";
        const next = tokens.slice(index + 1, index + 3).find(([type]) => type !== TokenType.Whitespace);
        return next?.[0] === TokenType.String && isOwn(next[4].value) ? text : "blocked(";
      }
      case TokenType.AtKeyword:
        return AT_RULES.has(token[4].value.toLowerCase()) ? text : "@blocked";
      case TokenType.BadURL:
      case TokenType.BadString:
        return " blocked ";
      case TokenType.Comment:
        return "/**/"; // the parts that it separates stay apart
      case TokenType.CDO:
      case TokenType.CDC:
        return " ";
      default:
        return text;
    }
  });
  // It could end the element that the text stands in.
  return filtered.join("").replaceAll("<", "\\3c ");
}

/** @param {string} address  in CSS */
function isOwn(address) {
  return address.startsWith("#") || DATA.test(address);
}
