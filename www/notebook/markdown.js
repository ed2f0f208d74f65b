// Markdown as elements. The reader gives tokens, and each becomes an element here with its text as text: HTML in Markdown is shown
// as it is written, pictures are named and not loaded, and links lead to the web only.

import { Lexer } from "../../dist/www/markdown.js";
import { el } from "../dom.js";
import { showPython } from "../rlm/highlight.js";

/**
 * Lengths of a text, and of one paragraph in it, that are read as Markdown: the reader's time grows with their square, and a text may be
 * made to be costly. Longer ones are shown as they are.
 */
const MAX_CHARS = 20_000;
const MAX_PARAGRAPH = 4_000;
/** Depth up to which parts lie in each other. */
const MAX_DEPTH = 20;
const MAX_CELLS = 5_000;

/** @typedef {import("marked").Token} Token */
/** @typedef {Record<string, any>} Loose  a token of any kind */

/** @param {string} source @returns {(Node | string)[]} */
export function markdown(source) {
  if (source.length > MAX_CHARS) return [el("pre", { text: source })];
  try {
    const lexer = new Lexer({ gfm: true });
    const tokens = lexer.blockTokens(source.replace(/\r\n?/g, "\n"));
    for (const { src, tokens: parts } of lexer.inlineQueue) {
      if (src.length <= MAX_PARAGRAPH) lexer.inlineTokens(src, parts);
      else parts.push({ type: "text", raw: src, text: src });
    }
    return blocks(tokens, 0);
  } catch {
    // The reader gives up on parts that lie in each other too deep.
    return [el("pre", { text: source })];
  }
}

/** @param {Token[]} tokens @param {number} depth @returns {(Node | string)[]} */
function blocks(tokens, depth) {
  if (depth > MAX_DEPTH) return tokens.map(({ raw }) => raw);
  return tokens.flatMap((token) => block(token, depth));
}

/** @param {Loose} token @param {number} depth @returns {(Node | string)[]} */
function block(token, depth) {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      // The page's own title is above those of a cell.
      return [el(/** @type {"h2"} */ (`h${Math.min(6, token.depth + 1)}`), {}, ...inlines(token.tokens, depth))];
    case "paragraph":
      return [el("p", {}, ...inlines(token.tokens, depth))];
    case "text":
      return token.tokens ? inlines(token.tokens, depth) : [unescaped(token.text)];
    case "code": {
      const code = el("code", { text: token.text });
      if (/^(python|py)\b/i.test(token.lang ?? "")) void showPython(code, token.text);
      return [el("pre", { class: "code", tabindex: "0" }, code)];
    }
    case "blockquote":
      return [el("blockquote", {}, ...blocks(token.tokens, depth + 1))];
    case "list": {
      const items = token.items.map((/** @type {Loose} */ item) => el("li", {}, ...blocks(item.tokens, depth + 1)));
      if (!token.ordered) return [el("ul", {}, ...items)];
      return [el("ol", { start: String(Number(token.start) || 1) }, ...items)];
    }
    case "checkbox":
      return [token.checked ? "☑ " : "☐ "];
    case "table":
      return [table(token, depth)];
    case "hr":
      return [el("hr")];
    default:
      return [token.raw];
  }
}

/** @param {Loose} token @param {number} depth */
function table({ header, rows }, depth) {
  const row = (/** @type {Loose[]} */ cells, /** @type {"td" | "th"} */ tag) =>
    el("tr", {}, ...cells.map(({ tokens }) => el(tag, {}, ...inlines(tokens, depth))));
  const shown = rows.slice(0, Math.ceil(MAX_CELLS / Math.max(1, header.length)));
  const body = shown.map((/** @type {Loose[]} */ cells) => row(cells, "td"));
  return el("table", {}, el("thead", {}, row(header, "th")), el("tbody", {}, ...body));
}

/** @param {Token[] | undefined} tokens @param {number} depth @returns {(Node | string)[]} */
function inlines(tokens = [], depth) {
  if (depth > MAX_DEPTH) return tokens.map(({ raw }) => raw);
  return tokens.map((token) => inline(token, depth + 1));
}

/** @param {Loose} token @param {number} depth @returns {Node | string} */
function inline(token, depth) {
  const inside = () => inlines(token.tokens, depth);
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return el(/** @type {"em"} */ (token.type), {}, ...inside());
    case "codespan":
      return el("code", { text: token.text });
    case "br":
      return el("br");
    case "link":
      if (!/^https?:\/\//i.test(token.href)) return el("span", {}, ...inside());
      return el(
        "a",
        { href: token.href, target: "_blank", rel: "noopener noreferrer", title: token.href },
        ...inside(),
      );
    case "image":
      return `[picture: ${token.text || "without a name"}]`;
    case "escape":
      return token.text;
    case "text":
      return token.tokens ? el("span", {}, ...inside()) : unescaped(token.text);
    case "checkbox":
      return token.checked ? "☑ " : "☐ ";
    default:
      return token.raw;
  }
}

/** A text whose named characters, such as `&amp;`, are those characters. @param {string} text */
function unescaped(text) {
  const named = { amp: "&", lt: "<", gt: ">", quot: '"', "#39": "'", nbsp: "\u00a0" };
  return text.replace(/&(amp|lt|gt|quot|#39|nbsp);/g, (_, name) => named[/** @type {"amp"} */ (name)]);
}
