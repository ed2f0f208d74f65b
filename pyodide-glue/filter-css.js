// Removes addresses from CSS. It goes token by token, so that no spelling of an address gets by. Hosts do the same
// (`host/src/html/css.rs`).

import { tokenizer, TokenType } from "@csstools/css-tokenizer";
import allowed from "../crates/core/src/display/html.json";

/** @import { CSSToken } from "@csstools/css-tokenizer" */

const words = (/** @type {string[]} */ lines) => new Set(lines.flatMap((line) => line.split(" ")));
const AT_RULES = words(allowed.atRules);
const FUNCTIONS = words(allowed.functions);
/** The start of a URL that contains its own data. */
const DATA = /^data:(?:image|audio|video|font)\//i;

/** Returns true for a URL that contains its own data: a picture, sound or a font. @param {string} url */
export const isData = (url) => DATA.test(url);

/**
 * Replaces addresses, unknown functions and unknown at-rules by words without meaning. A browser drops the declarations
 * and rules with these. All brackets get closed. Content in too many nested brackets is left out.
 * @param {string} css
 */
export function filterCss(css) {
  const { nextToken, endOfFile } = tokenizer({ css });
  let filtered = "";
  /** The closing brackets that are still missing. @type {string[]} */
  const open = [];
  const write = (/** @type {string} */ text) => {
    if (open.length <= allowed.maxCssDepth) filtered += text;
  };

  /** Reads the rest of `url("…")`. Returns the address. */
  const readUrl = () => {
    /** @type {string | undefined} */
    let address;
    for (const inside = [")"]; inside.length > 0 && !endOfFile();) {
      const token = nextToken();
      const closing = closingOf(token);
      if (token[1] === inside.at(-1)) inside.pop();
      else if (closing) inside.push(closing);
      else if (token[0] === TokenType.String) address ??= token[4].value;
    }
    return address ?? "";
  };

  while (!endOfFile()) {
    const token = nextToken();
    if (token[0] === TokenType.Function && token[4].value.toLowerCase() === "url") {
      write(url(readUrl()));
      continue;
    }
    if (token[1] === open.at(-1)) open.pop();
    write(filterToken(token));
    const closing = closingOf(token);
    if (closing) open.push(closing);
  }
  while (open.length > 0) write(/** @type {string} */ (open.pop()));
  // The text could end the element that holds it.
  return filtered.replaceAll("<", "\\3c ");
}

/** Filters one token of any kind but `url("…")`. @param {CSSToken} token */
function filterToken(token) {
  switch (token[0]) {
    case TokenType.URL:
      return url(token[4].value);
    case TokenType.Function:
      // Written by its meaning, without escapes.
      return FUNCTIONS.has(token[4].value.toLowerCase()) ? `${token[4].value}(` : "blocked(";
    case TokenType.AtKeyword: {
      const name = token[4].value.toLowerCase();
      return AT_RULES.has(name) ? `@${name}` : "@blocked";
    }
    case TokenType.String:
      return quote(token[4].value);
    case TokenType.BadURL:
    case TokenType.BadString:
      return " blocked ";
    case TokenType.Comment:
      return "/**/"; // keeps the parts on both sides separate
    case TokenType.CDO:
    case TokenType.CDC:
      return " ";
    default:
      return token[1];
  }
}

/** The bracket that closes the one a token opens. @param {CSSToken} token */
function closingOf([type]) {
  switch (type) {
    case TokenType.Function:
    case TokenType.OpenParen:
      return ")";
    case TokenType.OpenSquare:
      return "]";
    case TokenType.OpenCurly:
      return "}";
  }
}

/** @param {string} address */
function url(address) {
  return address.startsWith("#") || isData(address) ? `url(${quote(address)})` : " blocked ";
}

/** Writes a string of CSS. @param {string} text */
function quote(text) {
  const escaped = text.replace(/["\\]/g, "\\$&");
  return `"${escaped.replace(/[\0-\x1f\x7f]/g, (char) => `\\${char.charCodeAt(0).toString(16)} `)}"`;
}
