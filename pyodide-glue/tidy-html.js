// Tidies HTML: writes known tags only, each of them closed, in bounded depth. Hosts do the same
// (`host/src/html/tidy.rs`).
//
// A browser's parser can make far more elements than there are tags: in each paragraph that follows, it opens again a
// tag that was not closed. From closed tags in bounded depth, it makes as many elements as there are tags.

import { Tokenizer } from "htmlparser2";
import allowed from "../crates/core/src/display/html.json";

const words = (/** @type {string[]} */ ...lines) => new Set(lines.flatMap((line) => line.split(" ")));
// HTML ignores the case of ASCII letters only. `toLowerCase` would turn a Kelvin sign into an ASCII letter.
const lower = (/** @type {string} */ name) => name.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
const TAGS = words(...[...allowed.tags, ...allowed.svgTags].map(lower));
const SVG_TAGS = words(...allowed.svgTags.map(lower));
const ATTRIBUTES = words(...[...allowed.attributes, ...allowed.svgAttributes, ...allowed.cssAttributes].map(lower));
/** Elements whose content is no HTML, or is not shown. */
const HIDDEN = words(...allowed.hidden);
const VOID = words(...allowed.void);
/** Elements that a parser opens again. */
const FORMATTING = words(...allowed.formatting);
const TABLE = words(...allowed.table);
/** For each tag that implicitly ends other elements: these elements, and the walls that it does not reach beyond. */
const ENDS = new Map(
  allowed.ends.flatMap(({ tags, end, within }) =>
    tags.split(" ").map((tag) => [tag, { names: words(end), walls: words(within) }]),
  ),
);
/** The elements that an end tag does not reach beyond: inside a table's cell, it must not close elements outside. */
const [TABLE_WALLS, WALLS] = [words("table"), words("table td th caption")];
/** The start of a reference such as `&lt`. Text behind a dropped tag would otherwise become part of it. */
const CUT_REFERENCE = /&#?\w*$/;

/**
 * Reads HTML tag by tag. References (`&lt;`) stay as they are.
 * @param {string} html
 * @returns {{ html: string, styles: string[] }} HTML that is cheap to parse, and its style sheets
 */
export function tidyHtml(html) {
  let tidied = "";
  /** @type {string[]} */
  const styles = [];
  let elements = 0;
  /** The open elements. @type {string[]} */
  const open = [];
  /**
   * The element whose content is hidden, and its content so far if it is a style sheet.
   * @type {{ name: string, style?: string } | undefined}
   */
  let hidden;
  /** The start tag that is being read. */
  let tag = "";
  /** @type {Map<string, string>} */
  let attributes = new Map();
  let attribute = "";
  let value = "";

  const isInDrawing = () => open.includes("svg");

  const text = (/** @type {string} */ piece) => {
    if (hidden) {
      if (hidden.style !== undefined) hidden.style += piece;
    } else tidied += escape(piece) + (CUT_REFERENCE.test(piece) ? "<!---->" : "");
  };

  /**
   * Ends the innermost element of these names and everything in it, unless a wall lies between.
   * @param {Set<string>} names @param {Set<string>} [walls]
   */
  const endWithin = (names, walls) => {
    for (let at = open.length - 1; at >= 0; at--) {
      if (names.has(open[at])) return close(at);
      if (walls?.has(open[at])) return;
    }
  };

  /** Closes the open elements except the first `count`. @param {number} count */
  const close = (count) => {
    for (const name of open.splice(count).reverse()) tidied += `</${name}>`;
  };

  const start = (/** @type {boolean} */ isClosed) => {
    if (hidden) return;
    if (HIDDEN.has(tag)) {
      // In a drawing, a parser takes this element for closed.
      if (isClosed && isInDrawing()) return;
      hidden = { name: tag, style: tag === "style" && applies(attributes) ? "" : undefined };
      return;
    }
    if (!TAGS.has(tag)) return;
    const ends = ENDS.get(tag);
    if (ends) endWithin(ends.names, ends.walls);
    else if (tag === "p" && open.at(-1) === "p") close(open.length - 1);
    const isNested = FORMATTING.has(tag) && open.filter((name) => FORMATTING.has(name)).length >= allowed.maxFormatting;
    if (elements >= allowed.maxElements || open.length >= allowed.maxDepth || isNested) return;
    elements += 1;
    tidied += `<${tag}`;
    for (const [name, value] of attributes) tidied += ` ${name}="${escape(value).replaceAll('"', "&quot;")}"`;
    tidied += ">";
    if (isClosed && SVG_TAGS.has(tag)) tidied += `</${tag}>`;
    else if (!VOID.has(tag)) open.push(tag);
  };

  const end = (/** @type {string} */ name) => {
    if (!hidden) return endWithin(new Set([name]), TABLE.has(name) ? TABLE_WALLS : WALLS);
    if (hidden.name !== name) return;
    if (hidden.style !== undefined && styles.length < allowed.maxStyles) styles.push(hidden.style);
    hidden = undefined;
  };

  const tokenizer = new Tokenizer(
    { decodeEntities: false },
    {
      isInForeignContext: isInDrawing,
      onopentagname(start, end) {
        tag = lower(html.slice(start, end));
        attributes = new Map();
      },
      onattribname(start, end) {
        attribute = lower(html.slice(start, end));
        value = "";
      },
      onattribdata: (start, end) => (value = html.slice(start, end)),
      onattribend() {
        if (ATTRIBUTES.has(attribute) && !attributes.has(attribute)) attributes.set(attribute, value);
      },
      onopentagend: () => start(false),
      onselfclosingtag: () => start(true),
      onclosetag: (start, end_) => end(lower(html.slice(start, end_))),
      ontext: (start, end) => text(html.slice(start, end)),
      oncdata(start, end, ending) {
        const piece = html.slice(start, end - ending);
        // Outside of a drawing, CDATA is a comment.
        if (isInDrawing()) text(hidden ? piece : piece.replaceAll("&", "&amp;"));
      },
      oncomment() {},
      ondeclaration() {},
      onprocessinginstruction() {},
      onattribentity() {},
      ontextentity() {},
      onend() {},
    },
  );
  tokenizer.write(html);
  tokenizer.end();
  close(0);
  return { html: tidied, styles };
}

/** Returns true for a style sheet that browsers apply to a screen. @param {Map<string, string>} attributes */
function applies(attributes) {
  const is = (/** @type {string} */ name, /** @type {string[]} */ ...values) =>
    values.includes(lower(attributes.get(name) ?? "").trim());
  return is("media", "", "all", "screen") && is("type", "", "text/css");
}

/** Keeps text from being taken for tags. @param {string} text */
const escape = (text) => text.replaceAll("<", "&lt;").replaceAll(">", "&gt;");
